//! How messages get from one worker to another: the trait, and queues between threads of one process.

use std::{
    hint,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use crate::message::Message;

/// A process of the job has ended, or has sent what makes no sense: what is under way there does not come back, and the
/// job searches no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {process} {why}")]
pub struct Gone {
    /// Its rank in the job.
    pub process: u32,
    /// What has become of it.
    pub why: Arc<str>,
}

/// One worker's way to all others, and theirs to it.
pub(crate) trait Transport {
    /// Takes all messages of a batch, which may be empty afterwards or not hold anything of use. Messages to one worker
    /// come in the order in which they were given. Returns how many bytes they take up on their way.
    ///
    /// # Errors
    /// A worker has ended.
    fn send(&mut self, to: u16, batch: &mut Vec<Message>) -> Result<u64, Gone>;

    /// Appends what has come. `wait`: this worker has nothing else to do, and may sleep until something comes.
    ///
    /// # Errors
    /// A worker has ended.
    fn receive(&mut self, into: &mut Vec<Message>, wait: bool) -> Result<(), Gone>;

    /// Says how much work waits here, and learns the same of all workers, perhaps of some time ago.
    fn exchange_loads(&mut self, own: u32, all: &mut [u32]);

    /// A message of this worker makes no sense: the error that says whose fault it is.
    fn accuse(&self, worker: u16, why: &'static str) -> Gone;
}

/// The queues of all workers of a process.
///
/// A queue is a vector behind a lock: a sender appends a whole batch, the receiver takes all, so that a message costs a
/// small part of a lock. Who has nothing to do watches `filled` for a while, then sleeps.
#[derive(Debug)]
pub(crate) struct Mailboxes(Vec<Mailbox>);

/// Alone on its cache lines: the neighbour's owner writes too.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Mailbox {
    /// A hint that `queue` holds something. Only a look under the lock counts.
    filled: AtomicBool,
    /// What its worker has said about its load.
    load: AtomicU32,
    queue: Mutex<Queue>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    messages: Vec<Message>,
    /// The receiver waits for `bell`.
    is_asleep: bool,
    /// A worker has ended.
    is_broken: bool,
}

/// How often an idle worker looks before it sleeps: some tens of microseconds, less than falling asleep and waking costs.
const LOOKS: u32 = 2_000;

impl Mailboxes {
    pub(crate) fn new(workers: u16) -> Self {
        Self((0..workers).map(|_| Mailbox::default()).collect())
    }

    pub(crate) fn of(&self, worker: u16) -> Local<'_> {
        Local { boxes: self, me: worker }
    }

    /// Tells everybody that one has ended.
    pub(crate) fn break_off(&self) {
        for it in &self.0 {
            let mut queue = it.lock();
            queue.is_broken = true;
            it.filled.store(true, Ordering::Relaxed); // Relaxed: a hint
            it.bell.notify_all();
        }
    }

    /// Whether a worker has ended.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.iter().any(|it| it.lock().is_broken)
    }

    /// Messages that nobody has taken.
    pub(crate) fn pending(&self) -> usize {
        self.0.iter().map(|it| it.lock().messages.len()).sum()
    }
}

impl Mailbox {
    /// The lock guards nothing that a panic could leave half-changed.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's end.
#[derive(Debug)]
pub(crate) struct Local<'a> {
    boxes: &'a Mailboxes,
    me: u16,
}

impl Transport for Local<'_> {
    fn send(&mut self, to: u16, batch: &mut Vec<Message>) -> Result<u64, Gone> {
        let bytes = batch.iter().map(|it| it.bytes() as u64).sum();
        let mailbox = &self.boxes.0[usize::from(to)];
        let mut queue = mailbox.lock();
        if queue.is_broken {
            return Err(panicked());
        }
        if queue.messages.is_empty() {
            std::mem::swap(&mut queue.messages, batch);
        } else {
            queue.messages.append(batch);
        }
        // Relaxed: a hint. Who sleeps is woken under the lock.
        mailbox.filled.store(true, Ordering::Relaxed);
        if std::mem::take(&mut queue.is_asleep) {
            mailbox.bell.notify_one();
        }
        Ok(bytes)
    }

    fn receive(&mut self, into: &mut Vec<Message>, wait: bool) -> Result<(), Gone> {
        let mailbox = &self.boxes.0[usize::from(self.me)];
        let mut looks = if wait { LOOKS } else { 1 };
        // Relaxed: a hint, which is seen sooner or later.
        while !mailbox.filled.load(Ordering::Relaxed) && looks > 0 {
            looks -= 1;
            hint::spin_loop();
        }
        if looks == 0 && !wait {
            return Ok(());
        }
        let mut queue = mailbox.lock();
        while wait && queue.messages.is_empty() && !queue.is_broken {
            // Set and looked at under the lock, as what it waits for: no batch comes between the look and the sleep.
            queue.is_asleep = true;
            queue = mailbox.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_asleep = false;
        if queue.is_broken {
            return Err(panicked());
        }
        mailbox.filled.store(false, Ordering::Relaxed); // Relaxed: a hint
        if into.is_empty() {
            std::mem::swap(&mut queue.messages, into);
        } else {
            into.append(&mut queue.messages);
        }
        Ok(())
    }

    fn exchange_loads(&mut self, own: u32, all: &mut [u32]) {
        // Relaxed: hints.
        self.boxes.0[usize::from(self.me)].load.store(own, Ordering::Relaxed);
        for (load, it) in all.iter_mut().zip(&self.boxes.0) {
            *load = it.load.load(Ordering::Relaxed);
        }
    }

    fn accuse(&self, worker: u16, why: &'static str) -> Gone {
        panic!("a message between threads makes sense, but worker {worker} {why}")
    }
}

/// Of another thread of this process: whoever joins it goes on with its panic.
fn panicked() -> Gone {
    Gone { process: 0, why: "has panicked".into() }
}
