//! What is under way for a user, of whatever kind: waited for, polled, cancelled or dropped in one way.

use std::{
    ops::Deref,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hg_core::{
    error::Failure,
    operations::{OperationId, Outcome},
};

use crate::{
    deferred,
    inside::{is_inside, is_waited_for, waiting},
    lock::MutexGuard,
    port::{Port, State},
};

/// The port, borrowed from a handle or kept.
pub(crate) enum PortRef<'e> {
    Borrowed(&'e Arc<Port>),
    Owned(Arc<Port>),
}

impl Deref for PortRef<'_> {
    type Target = Arc<Port>;

    #[inline(always)]
    fn deref(&self) -> &Arc<Port> {
        match self {
            Self::Borrowed(port) => port,
            Self::Owned(port) => port,
        }
    }
}

/// An entry of the table of operations. Dropped, it is abandoned: what is open is cancelled.
pub(crate) struct Operation<'e> {
    pub(crate) port: PortRef<'e>,
    /// `None` once its outcome was taken, which frees the entry.
    id: Option<OperationId>,
}

impl Operation<'_> {
    /// Waits outside of handlers; the outcome is put to its place once, and is not there if there is none.
    #[inline(always)]
    pub(crate) fn wait_into(&mut self, outcome: &mut Option<Outcome>) {
        let Some(id) = self.id else { return };
        self.port.wait_for(id, outcome);
        if outcome.is_some() {
            self.id = None;
        }
    }

    /// Waits for the outcome, making progress in this thread.
    pub(crate) fn wait(&mut self) -> Outcome {
        let mut outcome = None;
        if is_inside(self.port.id) {
            let polled = self.poll(&Context::from_waker(Waker::noop()), false);
            return match polled {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Outcome::Failed(Failure::WouldDeadlock),
            };
        }
        waiting(|| self.wait_into(&mut outcome));
        outcome.unwrap_or_else(|| self.port.no_outcome())
    }

    /// The outcome, once it is there; until then the context's waker is left to be woken. Somebody who awaits it makes progress
    /// first.
    pub(crate) fn poll(&mut self, context: &Context<'_>, is_awaited: bool) -> Poll<Outcome> {
        let Some(id) = self.id else { return Poll::Ready(Outcome::Failed(Failure::Closed)) };
        let mut found = None;
        if is_awaited {
            self.port.progress_for_poll(id, &mut found);
        }
        let polled = match found {
            Some(outcome) => Poll::Ready(outcome),
            None => self.port.poll_operation(id, context),
        };
        if polled.is_ready() {
            self.id = None;
        }
        polled
    }

    /// Leaves it to itself: it goes on although nobody will take its outcome.
    pub(crate) fn detach(mut self) {
        if let Some(id) = self.id.take()
            && let Some(mut state) = self.port.enter_state()
        {
            let waker = state.protocol.operations.detach(id);
            self.port.pass_room_on(state);
            drop(waker);
            self.port.leave_to_background();
        }
    }

    pub(crate) fn cancel(&self) {
        if let Some(id) = self.id
            && let Some(mut state) = self.port.enter_state()
        {
            state.protocol.cancel(id);
            drop(state);
            self.port.notify();
        }
    }

    /// Ends it after this time, counted from now, one way or the other. A deadline beyond all time is none.
    pub(crate) fn end_within(&self, deadline: Duration) {
        if let Some(id) = self.id
            && let Some(at) = self.port.now().checked_add(deadline)
            && let Some(mut state) = self.port.enter_state()
        {
            state.protocol.operations.set_deadline(id, at);
            drop(state);
            self.port.notify();
        }
    }

    /// Whether this thread waits for what it polls, and what it waits for never comes.
    pub(crate) fn is_waited_for(&self) -> bool {
        is_waited_for(self.port.id)
    }
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.port.abandon(id);
        }
    }
}

/// What a user holds of it: `T` is made of its outcome.
pub(crate) enum Pending<'e, T> {
    Open(Operation<'e>),
    /// It was over when it began.
    Over(Box<T>),
    Taken,
}

impl<'e, T: From<Outcome>> Pending<'e, T> {
    /// Of what was begun, or was not.
    #[inline(always)]
    pub(crate) fn new<E: Into<Outcome>>(port: PortRef<'e>, begun: Result<OperationId, E>) -> Self {
        match begun {
            Ok(id) => Self::Open(Operation { port, id: Some(id) }),
            Err(over) => Self::over(over.into()),
        }
    }

    #[cold]
    fn over(outcome: Outcome) -> Self {
        Self::Over(Box::new(outcome.into()))
    }

    /// Waits for the outcome, making progress in this thread.
    ///
    /// # Panics
    /// It was taken before: the caller's bug, as polling a future that is over.
    pub(crate) fn wait(&mut self) -> T {
        match std::mem::replace(self, Self::Taken) {
            Self::Open(mut operation) => operation.wait().into(),
            Self::Over(over) => *over,
            Self::Taken => panic!("the outcome was taken before: it is there once, so ask no more"),
        }
    }

    /// The outcome, once it is there; until then the context's waker is left to be woken.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        if let Self::Open(operation) = self {
            let outcome = match operation.poll(context, true) {
                Poll::Ready(outcome) => outcome,
                // Whoever polls there blocks on it: nothing else would poll again.
                Poll::Pending if operation.is_waited_for() => {
                    return Poll::Ready(Outcome::Failed(Failure::WouldDeadlock).into());
                }
                Poll::Pending => return Poll::Pending,
            };
            *self = Self::Taken;
            return Poll::Ready(outcome.into());
        }
        Poll::Ready(self.wait())
    }

    pub(crate) fn cancel(&self) {
        if let Self::Open(operation) = self {
            operation.cancel();
        }
    }
}

impl Port {
    /// The outcome of what is under way, once it is there. A waker is a user's: it is cloned and dropped without the lock, and
    /// only where it is to be kept.
    fn poll_operation(&self, id: OperationId, context: &Context<'_>) -> Poll<Outcome> {
        let mut clone = None;
        loop {
            let Some(mut state) = self.enter_at_rest() else {
                return Poll::Ready(self.no_outcome());
            };
            if let Some(outcome) = state.protocol.operations.take(id) {
                self.pass_room_on(state);
                return Poll::Ready(outcome);
            }
            let is_kept = state.protocol.operations.is_to_wake(id, context.waker());
            let mut before = None;
            if !is_kept {
                let Some(clone) = clone.take() else {
                    drop(state);
                    clone = Some(context.waker().clone());
                    continue;
                };
                before = state.protocol.operations.set_waker(id, clone);
            }
            drop(state);
            drop(before);
            self.leave_to_background();
            return Poll::Pending;
        }
    }

    /// Nobody will take the outcome.
    #[cold]
    pub(crate) fn abandon(&self, id: OperationId) {
        let Some(mut state) = self.enter_state() else { return };
        let left = state.protocol.abandon(id);
        self.pass_room_on(state);
        self.notify();
        drop(left);
    }

    /// What is told of something that was waited for in vain.
    #[cold]
    pub(crate) fn no_outcome(&self) -> Outcome {
        let forked = Failure::NotMade(hg_na::Error::Forked);
        Outcome::Failed(if self.is_forked() { forked } else { Failure::Closed })
    }

    /// Unlocks the state, outside of a round in which a call may have ended: who waits for its room is told.
    #[inline]
    pub(crate) fn pass_room_on(&self, state: MutexGuard<'_, State>) {
        if state.protocol.operations.waits_for_room() {
            self.grant_room(state);
        }
    }

    #[cold]
    fn grant_room(&self, mut state: MutexGuard<'_, State>) {
        state.protocol.tell_waiting();
        if state.work.is_none() {
            // Whoever makes the progress may wait for room itself: what it has to wake keeps it from sleeping.
            drop(state);
            return self.notify();
        }
        let mut woken = std::mem::take(&mut state.protocol.deferred);
        drop(state);
        deferred::run(&mut woken, self.id, &self.shared.pool);
    }
}
