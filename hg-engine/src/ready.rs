//! Waiting for room for another call.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, MutexGuard},
    task::{Context, Poll, Waker},
};

use hg_core::error::Failure;

use crate::{
    call::forked,
    deferred::contain,
    inside::{is_inside, is_waited_for, waiting},
    port::{Port, State},
    role::Parked,
};

/// Room for another call ([`Handle::ready`](crate::Handle::ready)): a future, or `wait`.
#[must_use = "it waits for nothing unless it is polled: `wait` or await it"]
pub struct Ready<'e> {
    port: &'e Arc<Port>,
    /// In the queue of those who wait.
    place: Option<u64>,
}

impl<'e> Ready<'e> {
    pub(crate) fn new(port: &'e Arc<Port>) -> Self {
        Self { port, place: None }
    }

    /// Waits for it, making progress in this thread.
    ///
    /// # Errors
    /// [`Failure::WouldDeadlock`](hg_core::error::CallError::WouldDeadlock) inside a plain or `async` handler of the same engine
    /// where there is no room, [`Failure::Closed`](hg_core::error::CallError::Closed), and what has broken the transport.
    pub fn wait(mut self) -> Result<(), Failure> {
        let port = self.port;
        if is_inside(port.id) {
            let mut state = port.enter_state().ok_or_else(forked)?;
            return look(&mut state).unwrap_or(Err(Failure::WouldDeadlock));
        }
        let here = Parked::here(port.shared.platform.as_ref()).waker();
        let place = &mut self.place;
        let found = waiting(|| {
            // In the queue also while this thread makes the progress: others make room without it, and end its sleep then.
            port.wait_until(|state, _| {
                let found = look(state);
                let room = &mut state.protocol.room;
                if found.is_none() && place.is_none_or(|place| room.waker(place).is_none()) {
                    *place = Some(room.push(here.clone()));
                }
                found
            })
        });
        found.unwrap_or_else(|| Err(if port.is_forked() { forked() } else { Failure::Closed }))
    }
}

/// Whether there is room, or never will be.
fn look(state: &mut State) -> Option<Result<(), Failure>> {
    if let Err(failure) = state.protocol.context() {
        return Some(Err(failure));
    }
    (state.protocol.calls.room() > 0).then_some(Ok(()))
}

impl Future for Ready<'_> {
    type Output = Result<(), Failure>;

    /// A user's waker is cloned and dropped without the lock.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let port = self.port;
        let mut clone = None;
        loop {
            let Some(mut state) = port.enter_state() else { return Poll::Ready(Err(forked())) };
            if let Some(found) = look(&mut state) {
                return Poll::Ready(found);
            }
            if is_waited_for(port.id) {
                return Poll::Ready(Err(Failure::WouldDeadlock));
            }
            let room = &mut state.protocol.room;
            let present = self.place.and_then(|place| room.waker(place));
            let before = match (present, clone.take()) {
                (Some(present), _) if present.will_wake(context.waker()) => None,
                (Some(present), Some(clone)) => Some(std::mem::replace(present, clone)),
                (None, Some(clone)) => {
                    self.place = Some(room.push(clone));
                    None
                }
                (_, None) => {
                    drop(state);
                    clone = Some(context.waker().clone());
                    continue;
                }
            };
            drop(state);
            drop(before);
            port.leave_to_background();
            return Poll::Pending;
        }
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && let Some(mut state) = self.port.enter_state()
        {
            let waker = state.protocol.room.remove(place);
            // What it was woken for may be another one's.
            self.port.pass_room_on(state);
            drop(waker);
        }
    }
}

impl fmt::Debug for Ready<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Ready")
    }
}

impl Port {
    /// Unlocks the state, outside of a round in which a call may have ended: who waits for its room is woken.
    #[inline]
    pub(crate) fn pass_room_on(&self, state: MutexGuard<'_, State>) {
        if !state.protocol.room.is_empty() {
            self.wake_for_room(state);
        }
    }

    #[cold]
    fn wake_for_room(&self, mut state: MutexGuard<'_, State>) {
        if state.work.is_none() {
            // Whoever makes the progress may wait for room itself: what it has to wake keeps it from sleeping.
            state.protocol.wake_for_room();
            drop(state);
            return self.notify();
        }
        let free = state.protocol.calls.room();
        let woken = state.protocol.room.pop(free);
        drop(state);
        woken.into_iter().for_each(|waker| contain("a waker", || Waker::wake(waker)));
    }
}
