//! Handlers on a runtime of the user's.
//!
//! The future of an `async` handler is handed to the runtime, together with its request: the handler is called there, too. Its
//! answer is handed in from whatever thread polls it. The engine keeps hold of the future meanwhile, in a [`Slot`]: it is dropped when
//! the engine closes, even if the runtime does not run any more. A future that the runtime drops before its end is answered for.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll, Waker},
};

use hg_core::{rpc::ServeKind, table::Key};
use hg_na::Message;

use super::{
    owed::Owed,
    places::{self, Ended},
    tasks,
};
use crate::{
    Request,
    contain::contain,
    inside::{Inside, in_handler},
    lock::Mutex,
    platform::Job,
    pool::Origin,
    port::{Due, Handler, Port, Run, Task, ToClose, no_message},
    spawn::Spawn,
};

/// Where a future is, for its runtime and for whoever closes the engine.
struct Slot {
    /// Locked while it is polled.
    place: Mutex<Place>,
    is_closed: AtomicBool,
}

struct Place {
    /// `None` once it has ended.
    task: Option<Task>,
    /// Who polls it.
    waker: Option<Waker>,
}

/// What the runtime has.
struct Guest {
    port: Arc<Port>,
    slot: Arc<Slot>,
    key: Key,
    due: Due,
    /// `None` once it has ended.
    owed: Option<Owed>,
}

impl ToClose for Slot {
    /// Drops the future; if it is being polled, whoever polls it does.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // SeqCst on both sides (here and in `Guest::poll`): either the place is free here, or who has it sees the end.
        fence(Ordering::SeqCst);
        if let Some(mut place) = self.place.try_lock() {
            let (task, waker) = (place.task.take(), place.waker.take());
            drop(place);
            contain("a handler's future that was dropped", || drop(task));
            // The runtime lets go of it, too.
            contain("a waker", || waker.into_iter().for_each(Waker::wake));
        }
    }
}

impl Guest {
    fn poll_task(&self, context: &mut Context<'_>) -> Option<Poll<(Run, Message)>> {
        let mut place = self.slot.place.lock();
        let Place { task, waker } = &mut *place;
        let current = task.as_mut()?;
        let mut answer = no_message();
        let poll = || current.poll(&self.port, &self.due, context, &mut answer);
        let run = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                return Some(Poll::Pending);
            }
            Ok(Poll::Ready(run)) => run,
            Err(panic) => tasks::fail(current, (self.port.id, &self.due), panic, &mut answer),
        };
        let ended = task.take();
        drop(place);
        contain("a handler's future that has ended", || drop(ended));
        Some(Poll::Ready((run, answer)))
    }

    /// It has ended, one way or the other.
    fn end(&mut self) -> Option<Owed> {
        let owed = self.owed.take()?;
        self.port.guests.remove(self.key);
        Some(owed)
    }
}

impl Future for Guest {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.poll_task(context) {
            Some(Poll::Ready((run, answer))) => {
                if let Some(owed) = self.end() {
                    owed.settle(run, answer);
                }
                return Poll::Ready(());
            }
            Some(Poll::Pending) => {
                // As in `Slot::close`.
                fence(Ordering::SeqCst);
                if !self.slot.is_closed.load(Ordering::Relaxed) {
                    return Poll::Pending;
                }
            }
            None => {}
        }
        // The engine was closed meanwhile.
        self.slot.close();
        drop(self.end());
        Poll::Ready(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The runtime has given it up.
        if let Some(owed) = self.end() {
            self.slot.close();
            drop(owed);
        }
    }
}

impl Port {
    /// Whether a handler is run by a runtime of the user's.
    #[inline]
    pub(crate) fn runtime_for(&self, handler: &Handler) -> Option<&dyn Spawn> {
        let runtime = self.shared.settings.runtime.as_deref()?;
        (handler.kind == ServeKind::Async && !handler.gives).then_some(runtime)
    }

    /// Has a runtime poll what ends in the answer to this request.
    pub(crate) fn spawn_task(self: &Arc<Self>, runtime: &dyn Spawn, request: Request, task: Task) {
        let place = Mutex::new(Place { task: Some(task), waker: None });
        let slot = Arc::new(Slot { place, is_closed: AtomicBool::new(false) });
        let (due, port) = (request.due, Arc::clone(self));
        let Some(key) = self.guests.insert(Arc::clone(&slot) as Arc<dyn ToClose>) else {
            return slot.close();
        };
        let guest = Guest { port, slot, key, due, owed: Some(Owed::new(request)) };
        // A runtime may poll it here.
        in_handler(self.id, Inside::Async, || {
            contain("a runtime that was given a handler", || runtime.spawn(Box::pin(guest)));
        });
    }

    /// Whether such a job has the pool's threads, of which each origin has a share; a runtime's are not to be held up.
    pub(crate) fn has_pool(&self) -> bool {
        self.shared.settings.runtime.is_none()
    }

    /// Has a job run that may block, for this origin.
    pub(crate) fn run_blocking(&self, origin: hg_na::Peer, job: Job) {
        match &self.shared.settings.runtime {
            None => self.shared.pool.add(Origin::Peer(self.id, origin), job),
            Some(runtime) => in_handler(self.id, Inside::Async, || {
                contain("a runtime that was given a handler", || runtime.spawn_blocking(job));
            }),
        }
    }
}

/// Calls an `async` handler, and polls its future.
pub(super) async fn serve(
    handler: Handler,
    request: Request,
    (message, payload): (Message, usize),
) -> Ended {
    let (mut answer, mut future) = (no_message(), None);
    let run = hg_bulk::reading(&message, || {
        handler.run(&request, &message.as_slice()[payload..], &mut answer, &mut future)
    });
    drop(message);
    places::finish((run, future), &request.port, &request.due, answer).await
}
