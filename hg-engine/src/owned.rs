//! A call under way that borrows nothing, for those who keep many of them and look at them when they are woken.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hg_bulk::Local;
use hg_core::{
    call::{CallId, Outcome},
    error::{CallError, Failure},
    rpc::Rpc,
};

use crate::{
    call::{Unusual, abandon, arrived, decode},
    inside::is_waited_for,
    large::{Arrived, Arriving, Sent},
    port::Port,
};

/// A call under way, as [`Call`](crate::Call) is one, that keeps no borrow of its engine, nor keeps it open.
///
/// Dropping it cancels the call, and tells the target so.
#[must_use = "dropping a call cancels it: poll it"]
pub struct OwnedCall<R: Rpc> {
    port: Arc<Port>,
    state: State,
    rpc: PhantomData<fn() -> R>,
}

enum State {
    /// It could not be made.
    Failed(Box<Failure>),
    Open {
        id: CallId,
        /// Arguments that wait to be pulled.
        _arguments: Option<Arc<Local>>,
    },
    /// Its result is being pulled.
    Arriving(Pin<Box<dyn Future<Output = Arrived> + Send>>),
    Ended,
}

impl<R: Rpc> OwnedCall<R> {
    pub(crate) fn new(port: Arc<Port>, made: Result<CallId, Box<Unusual>>) -> Self {
        if made.is_ok() {
            port.leave_to_background();
        }
        let state = match made.map_err(|unusual| *unusual) {
            Ok(id) => State::Open { id, _arguments: None },
            Err(Unusual::Failed(failure)) => State::Failed(Box::new(failure)),
            Err(Unusual::Large(Sent { id, arguments })) => {
                State::Open { id, _arguments: arguments }
            }
        };
        Self { port, state, rpc: PhantomData }
    }

    /// The outcome, if it is there; otherwise the context's waker is woken when it is worth another look. Polling it as a
    /// future is the same, except that this is allowed in a plain handler, too: nobody waits here.
    pub fn poll_taken(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<R::Output, CallError<R::Error>>> {
        if let State::Open { id, .. } = &self.state {
            match ready!(self.port.poll_call(*id, context)) {
                Outcome::Bulk(answer) => {
                    let port = Arc::clone(&self.port);
                    self.state = State::Arriving(Box::pin(async move {
                        let mut arriving = Arriving::new(&port, answer)?;
                        std::future::poll_fn(|context| arriving.poll(context)).await
                    }));
                }
                outcome => {
                    self.state = State::Ended;
                    return Poll::Ready(decode::<R>(outcome));
                }
            }
        }
        if let State::Arriving(arriving) = &mut self.state {
            let result = ready!(arriving.as_mut().poll(context));
            self.state = State::Ended;
            return Poll::Ready(arrived::<R>(result));
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Failed(failure) => Poll::Ready(Err((*failure).widen())),
            _ => Poll::Ready(Err(CallError::Closed)),
        }
    }
}

impl<R: Rpc> Future for OwnedCall<R> {
    type Output = Result<R::Output, CallError<R::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.poll_taken(context) {
            // Whoever polls there blocks on it: nothing else would poll again.
            Poll::Pending if is_waited_for(self.port.id) => {
                Poll::Ready(Err(CallError::WouldDeadlock))
            }
            poll => poll,
        }
    }
}

impl<R: Rpc> Unpin for OwnedCall<R> {}

impl<R: Rpc> Drop for OwnedCall<R> {
    fn drop(&mut self) {
        if let State::Open { id, .. } = &self.state {
            abandon(&self.port, *id);
        }
    }
}

impl<R: Rpc> fmt::Debug for OwnedCall<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OwnedCall({})", R::NAME)
    }
}
