//! Futures of `async` handlers, polled by whoever makes progress.
//!
//! A task is polled at once, and most that need nothing of a peer's end there. One that does not is polled again
//! when its waker has pushed it to the ready queue, which ends the holder's sleep. A task is polled only by the
//! holder of the role; its waker may be used from any thread.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use hg_core::{
    error::Status,
    table::{Key, Table},
};
use hg_na::Message;

use super::places::nothing;
use crate::{
    contain::{contain, discard, panic_text},
    inside::{Inside, in_handler},
    lock::Mutex,
    port::{Due, Port, Run, Task, no_message},
};

/// The tasks of one port.
#[derive(Default)]
pub(crate) struct Tasks {
    table: Table<Entry>,
    ready: Arc<Ready>,
    batch: Vec<Key>,
    /// Of tasks that have ended and that nobody else will wake: for the next ones.
    spares: Vec<Wakening>,
}

/// Wakers, and places of one handler's futures, that are kept for the next ones.
const SPARES_MAX: usize = 16;

/// Keeps something for the next one.
#[inline]
pub(crate) fn keep<T>(spares: &mut Vec<T>, spare: T) {
    if spares.len() < SPARES_MAX {
        spares.push(spare);
    }
}

struct Entry {
    task: Task,
    wakening: Wakening,
    due: Due,
}

#[derive(Default)]
struct Ready {
    queue: Mutex<Vec<Key>>,
    /// Whether the queue holds anything, to look without a lock.
    any: Arc<AtomicBool>,
}

impl Ready {
    fn push(&self, key: Key) {
        self.queue.lock().push(key);
        // Release: pairs with the Acquire of whoever makes progress; the lock orders the queue itself.
        self.any.store(true, Ordering::Release);
    }
}

struct TaskWaker {
    /// Bits of the task's key. A waker outlives its task at will, and then wakes nobody: it is not used again.
    key: AtomicU64,
    /// It is among those that are ready, and was not polled since.
    is_ready: AtomicBool,
    ready: Arc<Ready>,
    port: Weak<Port>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // AcqRel: either this is seen by the poll that is to come, with what was done before, or it is ready once more.
        if self.is_ready.swap(true, Ordering::AcqRel) {
            return;
        }
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
        let (key, is_ready) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(TaskWaker { key, is_ready, ready, port });
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
    /// Polls a task. One that has ended leaves its answer, and its place for the next one; others are added, and go on.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        mut task: Task,
        due: &Due,
        port: &Arc<Port>,
        (answer, spares): (&mut Message, &mut Vec<Task>),
    ) -> Poll<Run> {
        if self.spares.is_empty() {
            self.spares.push(Wakening::new(&self.ready, port));
        }
        let wakening = self.spares.last().expect("one is there, or was added");
        // Nothing is added meanwhile: only here.
        let key = self.table.next_key();
        // Relaxed: nobody has the waker yet.
        wakening.shared.key.store(key.to_bits(), Ordering::Relaxed);
        // The one before it may have been ready when it ended.
        wakening.shared.is_ready.store(false, Ordering::Relaxed);
        let run = poll_once(&mut task, port, due, &wakening.waker, answer);
        if run.is_pending() {
            self.add(task, due);
            return run;
        }
        keep(spares, task);
        if !wakening.is_unused() {
            // Whoever has the waker wakes nobody: the key is used up.
            self.add(nothing(), due);
            drop(self.table.remove(key));
        }
        run
    }

    /// Adds a task that was polled with the last of the wakers that are kept.
    #[cold]
    fn add(&mut self, task: Task, due: &Due) {
        let wakening = self.spares.pop().expect("it was polled with one");
        self.table.insert(Entry { task, wakening, due: *due });
    }

    /// Takes all tasks out. Who wakes one of them later is heard still, for nothing: whoever looks whether any is ready has only this
    /// flag.
    pub(crate) fn take(&mut self) -> Self {
        let ready = Arc::clone(&self.ready);
        std::mem::replace(self, Self { ready, ..Self::default() })
    }

    /// Drops all tasks: the engine is closed.
    pub(crate) fn end(self) {
        for entry in self.table.into_values() {
            contain("a handler's future that was dropped", || drop(entry));
        }
    }

    /// Whether any is ready: written with Release.
    pub(crate) fn is_ready(&self) -> &Arc<AtomicBool> {
        &self.ready.any
    }

    /// Polls every task that is ready; those that end are answered.
    pub(crate) fn poll_ready(&mut self, port: &Port) {
        self.ready.any.store(false, Ordering::Relaxed);
        std::mem::swap(&mut self.batch, &mut *self.ready.queue.lock());
        let mut batch = std::mem::take(&mut self.batch);
        for key in batch.drain(..) {
            self.poll(key, port);
        }
        self.batch = batch; // For its memory.
    }

    /// Polls a task that goes on; one that has ended is removed, and answered unless it has given that duty away.
    fn poll(&mut self, key: Key, port: &Port) {
        let Some(Entry { task, wakening, due }) = self.table.get_mut(key) else { return };
        // Who wakes it from now on has it polled once more.
        wakening.shared.is_ready.swap(false, Ordering::AcqRel);
        let mut answer = no_message();
        let polled = poll_once(task, port, due, &wakening.waker, &mut answer);
        let Poll::Ready(run) = polled else { return };
        let Some(Entry { task, wakening, due }) = self.table.remove(key) else { return };
        drop(task);
        if wakening.is_unused() {
            keep(&mut self.spares, wakening);
        }
        let message = match run {
            Run::Answered => Some(answer),
            Run::Silent => None,
            Run::Given | Run::Later => return,
        };
        if let Some(mut state) = port.enter_at_rest() {
            state.protocol.end(due.origin, due.id, message);
        }
    }
}

/// Polls a task once; a panic becomes an answer. One that has ended holds nothing of its user's any more.
#[inline(always)]
fn poll_once(
    task: &mut Task,
    port: &Port,
    due: &Due,
    waker: &Waker,
    answer: &mut Message,
) -> Poll<Run> {
    let mut context = Context::from_waker(waker);
    let poll = || in_handler(port.id, Inside::Async, || task.poll(port, due, &mut context, answer));
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(run) => run,
        Err(panic) => Poll::Ready(fail(task, (port.id, due), panic, answer)),
    }
}

/// A task has panicked: what is left of it is dropped, and may panic once more.
#[cold]
pub(crate) fn fail(
    task: &mut Task,
    (port, due): (u64, &Due),
    panic: Box<dyn Any + Send>,
    answer: &mut Message,
) -> Run {
    let broken = std::mem::replace(task, nothing());
    let drop = || contain("what was left of a handler's future that has panicked", || drop(broken));
    in_handler(port, Inside::Async, drop);
    let run = due.fail(Status::Panicked, panic_text(panic.as_ref()), answer);
    discard(panic);
    run
}
