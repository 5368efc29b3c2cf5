//! Waiting for room for another call, and for the end of all that is in service.

use std::{
    fmt,
    ops::ControlFlow,
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
    Engine,
    call::ended,
    pending::{Pending, PortRef, Step, Then},
    port::Port,
};

impl Engine {
    /// Ends when there is room for another call (`Builder::calls_max`): a future, or [`Ready::wait`]. Where there is none, a call is
    /// refused with [`hg_na::Error::Limit`], also one by [`Engine::notify`], which needs its room until it was handed to the
    /// transport:
    /// ```
    /// # use hg_engine::{Engine, Peer};
    /// # async fn tell<R: hg_core::rpc::Rpc<Args<'static> = ()> + Copy>(
    /// #     engine: &Engine, rpc: R, target: &Peer,
    /// # ) -> Result<(), hg_core::error::Failure> {
    /// engine.ready().await?;
    /// engine.notify(rpc, target, ()).accepted()
    /// # }
    /// ```
    /// The room is not kept for whoever has waited: another thread's call may take it first, and then that one's is refused. It is the
    /// engine's: of calls that wait because one peer does not take them, it keeps a half for those to others, and refuses more.
    /// Whoever sends many to one peer awaits each ([`OneWay`](crate::OneWay) is a future, too), which goes on as that one takes them.
    /// A call has its room until its outcome was taken or it was dropped: who holds calls that are over and waits for room waits in
    /// vain. Each context has its own room: this is the thread's.
    pub fn ready(&self) -> Ready<'_> {
        let port = self.own();
        Pending::new(PortRef::Borrowed(port), port.begin_room(), Waiting)
    }

    /// Begins nothing new from now on, in any context of the engine, and ends when all that is in service was answered, and all
    /// that was sent has left: then the engine can be closed and nobody misses an answer. For restarts.
    ///
    /// Calls that arrive end with [`CallError::Draining`](hg_core::error::CallError::Draining), at once and certainly not
    /// started; one-way calls that arrive are dropped. As this ends, callers are told: a call of theirs that then ends with the
    /// connection, because it came just before the close, ends so, too. The engine's own calls go on, and may be made. Handlers
    /// are not told: one that would not end by itself is ended by closing the engine, when `within` has passed and this has failed.
    /// So it is with a peer that takes nothing, as one that is stopped; one that is gone is not waited for.
    ///
    /// An `async` handler that a runtime runs goes on after its caller has left, unless it looks at [`Request::cancelled`](crate::Request::cancelled), and is
    /// waited for. Over TCP this may take 40 ms longer than the last answer: that long a peer's kernel may wait to say that it has it.
    ///
    /// The handle of a [`Request`](crate::Request) drains its own context only. Draining cannot be taken back.
    ///
    /// A handler is in service itself, and cannot wait for its end: one that shuts the service down tells whoever owns the engine.
    /// ```
    /// # use hg_core::rpc::Rpc;
    /// # fn main_loop<R>(engine: hg_engine::Engine, shut_down: R) -> Result<(), Box<dyn std::error::Error>>
    /// # where R: for<'a> Rpc<Args<'a> = (), Output = ()> {
    /// let (stop, told) = std::sync::mpsc::channel();
    /// engine.serve(shut_down, move |_request, ()| {
    ///     let _ = stop.send(()); // Err: it ends already
    ///     Ok(())
    /// })?;
    /// told.recv()?; // where `main` waits
    /// let drained = engine.drain(std::time::Duration::from_secs(10)).wait();
    /// engine.close();
    /// drained?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self, within: Duration) -> Drain<'_> {
        Drain::new(self.all_ports(), within)
    }
}

/// Room for another call ([`Engine::ready`]), or a one-way call that is to leave. Fails with
/// [`CallError::WouldDeadlock`](hg_core::error::CallError::WouldDeadlock) inside a plain or `async` handler of the same engine where there
/// is no room, [`CallError::Closed`](hg_core::error::CallError::Closed), and what has broken the transport.
pub type Ready<'e> = Pending<'e, Waiting>;

/// Nothing comes of it but its end.
#[derive(Debug)]
pub struct Waiting;

impl Then for Waiting {
    type Output = Result<(), Failure>;

    const NAME: &'static str = "Ready";

    fn end(&mut self, _: &Arc<Port>, outcome: Outcome, _: bool) -> Step<Self::Output> {
        ControlFlow::Break(ended(outcome))
    }
}

/// The end of all that is in service ([`Engine::drain`]): a future, or `wait`.
#[must_use = "it says when the engine may be closed: `wait` or await it"]
#[derive(Debug)]
pub struct Drain<'e>(Vec<Ready<'e>>);

impl<'e> Drain<'e> {
    /// Of all these contexts, which begin nothing new from now on.
    pub(crate) fn new(ports: &'e [Arc<Port>], within: Duration) -> Self {
        let begin = |port: &'e Arc<Port>| {
            let drain = Pending::new(PortRef::Borrowed(port), port.begin_drain(), Waiting);
            port.now().checked_add(within).inspect(|at| drain.operation.end_at(*at));
            drain
        };
        Self(ports.iter().map(begin).collect())
    }

    /// Waits for it, making progress in this thread.
    ///
    /// # Errors
    /// [`DrainError`].
    pub fn wait(self) -> Result<(), DrainError> {
        Ok(self.0.into_iter().try_for_each(Pending::wait)?)
    }
}

impl Future for Drain<'_> {
    type Output = Result<(), DrainError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(pending) = self.0.last_mut() {
            ready!(Pin::new(pending).poll(context))?;
            self.0.pop();
        }
        Poll::Ready(Ok(()))
    }
}

/// Why a drain has not ended well.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// Something is in service still, or was not taken by whom it is for. What is closed now may leave calls in doubt.
    #[error(
        "the time is over, and the engine still drains: close it, or drain it again with more time"
    )]
    OutOfTime,
    /// It was waited for inside a plain or `async` handler of the same engine, which is in service itself. An `async` one that
    /// awaits it is [`DrainError::OutOfTime`].
    #[error(
        "this handler is waited for, too: draining has begun, wait for its end outside of handlers, as in the thread that owns the engine"
    )]
    InHandler,
    /// The engine was closed.
    #[error("{}", hg_na::Error::Closed)]
    Closed,
    /// The transport is broken, or this is a forked child.
    #[error("the engine cannot drain: {0}")]
    Broken(hg_na::Error),
}

impl From<Failure> for DrainError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::DeadlineExceeded(_) => Self::OutOfTime,
            Failure::WouldDeadlock => Self::InHandler,
            Failure::NotMade(error) => Self::Broken(error),
            _ => Self::Closed,
        }
    }
}

impl fmt::Debug for DrainError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::OutOfTime => "OutOfTime",
            Self::InHandler => "InHandler",
            Self::Closed => "Closed",
            Self::Broken(error) => return write!(out, "{self} [Broken: {}]", error.kind()),
        };
        write!(out, "{self} [{kind}]")
    }
}

impl Port {
    /// Begins nothing new; where nothing is in service, that is the outcome at once.
    fn begin_drain(&self) -> Result<OperationId, Outcome> {
        self.enter_open().map_err(failed)?.protocol.drain().ok_or(Outcome::Sent)
    }

    /// Waits for room for another call; where there is some, that is the outcome at once.
    fn begin_room(&self) -> Result<OperationId, Outcome> {
        let operations = &mut self.enter_open().map_err(failed)?.protocol.operations;
        if operations.room() > 0 { Err(Outcome::Sent) } else { Ok(operations.begin_room()) }
    }
}

fn failed(error: hg_na::Error) -> Outcome {
    Outcome::Failed(error.into())
}
