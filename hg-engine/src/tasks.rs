//! Futures of `async` handlers, polled by whoever makes progress.
//!
//! A task is polled at once, and most that need nothing of a peer's end there. One that does not is polled again
//! when its waker has pushed it to the ready queue, which ends the holder's sleep. A task is polled only by the
//! holder of the role; its waker may be used from any thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use hg_core::{
    error::{Status, bounded_text},
    table::{Key, Table},
};

use crate::{
    handler::{self, Ended, Task},
    lock::Mutex,
    port::{Answered, Port},
    request::{Inside, in_handler},
};

/// The tasks of one port.
#[derive(Default)]
pub(crate) struct Tasks {
    table: Table<Entry>,
    ready: Arc<Ready>,
    batch: Vec<Key>,
    /// Of a task that has ended and that nobody else will wake: for the next one.
    spare: Option<Wakening>,
}

struct Entry {
    task: Task,
    wakening: Wakening,
    origin: Origin,
}

/// Whom a task answers.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: hg_na::Peer,
    pub(crate) id: u64,
    pub(crate) wants_answer: bool,
}

#[derive(Default)]
struct Ready {
    queue: Mutex<Vec<Key>>,
    /// Whether the queue holds anything, to look without a lock.
    any: AtomicBool,
}

impl Ready {
    fn push(&self, key: Key) {
        self.queue.lock().push(key);
        // Release: pairs with the Acquire in `any_ready`; the lock orders the queue itself.
        self.any.store(true, Ordering::Release);
    }
}

struct TaskWaker {
    /// Bits of the task's key. A waker outlives its task at will, and then wakes nobody: it is not used again.
    key: AtomicU64,
    ready: Arc<Ready>,
    port: Weak<Port>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: set before the waker was first lent out.
        self.ready.push(Key::from_bits(self.key.load(Ordering::Relaxed)));
        if let Some(port) = self.port.upgrade() {
            port.notify();
        }
    }
}

/// A task's waker, as what it is and as the task knows it.
struct Wakening {
    shared: Arc<TaskWaker>,
    waker: Waker,
}

impl Wakening {
    fn new(ready: &Arc<Ready>, port: &Arc<Port>) -> Self {
        let (ready, port) = (Arc::clone(ready), Arc::downgrade(port));
        let shared = Arc::new(TaskWaker { key: AtomicU64::new(0), ready, port });
        let waker = Waker::from(Arc::clone(&shared));
        Self { shared, waker }
    }

    /// Whether no clone of the waker is left, which could be made again of a clone only.
    fn is_unused(&self) -> bool {
        let holders = Arc::strong_count(&self.shared);
        // Acquire: pairs with the Release of the drop that left the two; what that holder did came before.
        std::sync::atomic::fence(Ordering::Acquire);
        holders == 2
    }
}

impl Tasks {
    /// Polls a task; one that has ended leaves its message, if any, and is over. Others are added, and go on.
    pub(crate) fn start(
        &mut self,
        mut task: Task,
        origin: Origin,
        port: &Arc<Port>,
    ) -> Poll<Option<Answered>> {
        let wakening = self.spare.take().unwrap_or_else(|| Wakening::new(&self.ready, port));
        // Nothing is added meanwhile: only here.
        let key = self.table.next_key();
        // Relaxed: nobody has the waker yet.
        wakening.shared.key.store(key.to_bits(), Ordering::Relaxed);
        let polled = poll(&mut task, origin, &wakening.waker);
        if polled.is_pending() {
            self.table.insert_with(|| Entry { task, wakening, origin });
            return polled;
        }
        // What it holds may hold the waker.
        drop(task);
        if wakening.is_unused() {
            self.spare = Some(wakening);
        } else {
            // Whoever has the waker wakes nobody: the key is used up.
            let task = Box::pin(std::future::pending());
            self.table.insert_with(|| Entry { task, wakening, origin });
            self.table.discard(key);
        }
        polled
    }

    #[inline]
    pub(crate) fn any_ready(&self) -> bool {
        self.ready.any.load(Ordering::Acquire)
    }

    /// Polls every task that is ready; ended ones leave their answers.
    pub(crate) fn poll_ready(&mut self, answers: &mut Vec<Answered>) {
        self.ready.any.store(false, Ordering::Relaxed);
        std::mem::swap(&mut self.batch, &mut *self.ready.queue.lock());
        let mut batch = std::mem::take(&mut self.batch);
        for key in batch.drain(..) {
            if let Poll::Ready(Some(answered)) = self.poll(key) {
                answers.push(answered);
            }
        }
        self.batch = batch; // For its memory.
    }

    /// Polls a task that goes on; an ended one is removed. `Ready(None)`: it has given the duty to answer away.
    fn poll(&mut self, key: Key) -> Poll<Option<Answered>> {
        let Some(entry) = self.table.get_mut(key) else { return Poll::Pending };
        let polled = poll(&mut entry.task, entry.origin, &entry.wakening.waker);
        if polled.is_ready()
            && let Some(Entry { task, wakening, .. }) = self.table.remove(key)
        {
            drop(task);
            self.spare = Some(wakening).filter(Wakening::is_unused);
        }
        polled
    }
}

/// Polls a task once; a panic becomes an answer.
#[inline]
fn poll(task: &mut Task, origin: Origin, waker: &Waker) -> Poll<Option<Answered>> {
    let mut context = Context::from_waker(waker);
    let poll = || in_handler(Inside::Async, || task.as_mut().poll(&mut context));
    let Origin { peer: origin, id, wants_answer } = origin;
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(Ended::Answer(message))) => {
            Poll::Ready(Some(Answered { origin, id, message }))
        }
        Ok(Poll::Ready(Ended::Given)) => Poll::Ready(None),
        Err(panic) => {
            let text = bounded_text(handler::panic_text(panic.as_ref()));
            let message = || handler::status_message(id, Status::Panicked, text, false);
            Poll::Ready(Some(Answered { origin, id, message: wants_answer.then(message) }))
        }
    }
}
