//! Futures of `async` handlers, polled by whoever makes progress.
//!
//! A waker pushes its task to the ready queue and ends the holder's sleep. A task is polled only by the
//! holder of the role; its waker may be used from any thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
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
}

struct Entry {
    task: Task,
    waker: Waker,
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
    key: std::sync::OnceLock<Key>,
    ready: Arc<Ready>,
    port: Weak<Port>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(key) = self.key.get() {
            self.ready.push(*key);
        }
        if let Some(port) = self.port.upgrade() {
            port.notify();
        }
    }
}

impl Tasks {
    /// Adds a task; it is polled in this round.
    pub(crate) fn spawn(&mut self, task: Task, origin: Origin, port: Weak<Port>) {
        let key = std::sync::OnceLock::new();
        let wake = Arc::new(TaskWaker { key, ready: Arc::clone(&self.ready), port });
        let waker = Waker::from(Arc::clone(&wake));
        let key = self.table.insert(Entry { task, waker, origin });
        // A fresh cell: nobody else has set it.
        let _ = wake.key.set(key);
        self.ready.push(key);
    }

    #[inline]
    pub(crate) fn any_ready(&self) -> bool {
        self.ready.any.load(Ordering::Acquire)
    }

    /// Polls every task that is ready; ended ones leave their answers.
    pub(crate) fn poll_ready(&mut self, answers: &mut Vec<Answered>) {
        self.ready.any.store(false, Ordering::Relaxed);
        std::mem::swap(&mut self.batch, &mut *self.ready.queue.lock());
        for key in std::mem::take(&mut self.batch) {
            let Some(entry) = self.table.get_mut(key) else { continue };
            let mut context = Context::from_waker(&entry.waker);
            let poll = || in_handler(Inside::Async, || entry.task.as_mut().poll(&mut context));
            let message = match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Pending) => continue,
                Ok(Poll::Ready(Ended::Answer(message))) => message,
                Ok(Poll::Ready(Ended::Given)) => {
                    self.table.remove(key);
                    continue;
                }
                Err(panic) => {
                    let text = bounded_text(handler::panic_text(panic.as_ref()));
                    let message =
                        || handler::status_message(entry.origin.id, Status::Panicked, text, false);
                    entry.origin.wants_answer.then(message)
                }
            };
            answers.push(Answered { origin: entry.origin.peer, id: entry.origin.id, message });
            self.table.remove(key);
        }
    }
}
