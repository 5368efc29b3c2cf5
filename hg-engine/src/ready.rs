//! Waiting for room for another call, and for the end of all that is in service.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hg_core::{
    error::Failure,
    operations::{OperationId, Outcome},
};

use crate::{
    call::Ended,
    failure::forked,
    pending::{Pending, PortRef},
    port::Port,
};

/// Room for another call ([`Engine::ready`](crate::Engine::ready)): a future, or `wait`. Dropped, it waits no longer.
#[must_use = "it is told nothing unless it is asked: `wait` or await it"]
pub struct Ready<'e>(Pending<'e, Ended>);

impl<'e> Ready<'e> {
    pub(crate) fn new(port: &'e Arc<Port>) -> Self {
        Self(Pending::new(PortRef::Borrowed(port), port.begin_room()))
    }

    /// Waits for it, making progress in this thread.
    ///
    /// # Errors
    /// [`Failure::WouldDeadlock`](hg_core::error::CallError::WouldDeadlock) inside a plain or `async` handler of the same engine
    /// where there is no room, [`Failure::Closed`](hg_core::error::CallError::Closed), and what has broken the transport.
    pub fn wait(mut self) -> Result<(), Failure> {
        self.0.wait().0
    }
}

/// The end of all that is in service ([`Engine::drain`](crate::Engine::drain)): a future, or `wait`.
#[must_use = "it says when the engine may be closed: `wait` or await it"]
pub struct Drain<'e>(Vec<Pending<'e, Ended>>);

impl<'e> Drain<'e> {
    /// Of all these contexts, which begin nothing new from now on.
    pub(crate) fn new(ports: &'e [Arc<Port>], within: Duration) -> Self {
        let begin = |port: &'e Arc<Port>| {
            let pending = Pending::new(PortRef::Borrowed(port), port.begin_drain());
            if let Pending::Open(operation) = &pending {
                operation.end_within(within);
            }
            pending
        };
        Self(ports.iter().map(begin).collect())
    }

    /// Waits for it, making progress in this thread.
    ///
    /// # Errors
    /// [`Failure::DeadlineExceeded`](hg_core::error::CallError::DeadlineExceeded): something is in service still, or was not
    /// taken by whom it is for; what is closed then may leave calls in doubt. [`Failure::WouldDeadlock`](hg_core::error::CallError::WouldDeadlock) inside a plain or `async`
    /// handler of the same engine, [`Failure::Closed`](hg_core::error::CallError::Closed).
    pub fn wait(mut self) -> Result<(), Failure> {
        self.0.iter_mut().try_for_each(|pending| pending.wait().0)
    }
}

impl Future for Drain<'_> {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(pending) = self.0.last_mut() {
            ready!(pending.poll(context)).0?;
            self.0.pop();
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Drain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Drain")
    }
}

impl Port {
    /// Begins nothing new; where nothing is in service, that is the outcome at once.
    fn begin_drain(&self) -> Result<OperationId, Outcome> {
        let Some(mut state) = self.enter_state() else { return Err(Outcome::Failed(forked())) };
        if let Err(failure) = state.protocol.context() {
            return Err(Outcome::Failed(failure.into()));
        }
        state.protocol.drain().ok_or(Outcome::Sent)
    }

    /// Waits for room for another call; where there is some, that is the outcome at once.
    fn begin_room(&self) -> Result<OperationId, Outcome> {
        let Some(mut state) = self.enter_state() else { return Err(Outcome::Failed(forked())) };
        if let Err(failure) = state.protocol.context() {
            return Err(Outcome::Failed(failure.into()));
        }
        if state.protocol.operations.room() > 0 {
            return Err(Outcome::Sent);
        }
        Ok(state.protocol.operations.begin_room())
    }
}

impl Future for Ready<'_> {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|ended| ended.0)
    }
}

impl fmt::Debug for Ready<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Ready")
    }
}
