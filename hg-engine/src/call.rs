//! Calls under way, and what comes of them.

use std::{
    fmt,
    marker::PhantomData,
    ops::ControlFlow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hg_core::{
    codec::{self, Codec as _},
    error::{CallError, Failure},
    operations::{OperationId, Outcome},
    rpc::Rpc,
};

use crate::{
    Request,
    arriving::{Arrived, Arriving},
    large::no_memory,
    pending::{Operation, Pending, PortRef, Step, Then},
    port::Port,
};

/// How a call of any kind is made.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Time that the call may take, the target's included: it travels with the request. A one-way call ends with
    /// [`CallError::DeadlineExceeded`] if it was not handed to the transport by then; arguments beyond one message that the
    /// target has not taken by then are kept no longer.
    pub deadline: Option<Duration>,
    /// Whether request and answer carry a CRC32C. `None`: as the engine was opened (`Builder::checksum`).
    pub checksum: Option<bool>,
}

impl CallOptions {
    /// A call that ends after this time, one way or the other.
    #[must_use]
    pub fn within(deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    /// A call that a handler makes for a request: it ends when the request's own time does, whose deadline would not reach
    /// the further target by itself.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        let now = || request.port.now();
        let left = |deadline: Instant| deadline.saturating_duration_since(now());
        Self { deadline: request.deadline().map(left), ..Self::default() }
    }

    /// The same with a checksum, or without one, however the engine was opened.
    #[must_use]
    pub fn with_checksum(self, checksum: bool) -> Self {
        Self { checksum: Some(checksum), ..self }
    }
}

/// A call under way. It was sent when it was made. Dropping it cancels the call, and tells the target so; a cancelled one ends with
/// [`CallError::Cancelled`].
pub type Call<'e, R> = Pending<'e, Called<R>>;

/// A call that keeps no borrow of its engine, nor keeps that open: for those who keep many of them and look at them when they are
/// woken. Of one whose outcome was taken nothing is left.
pub type OwnedCall<R> = Call<'static, R>;

/// An answer comes of it; a large result is pulled first.
pub struct Called<R> {
    arriving: Option<Box<Arriving>>,
    rpc: PhantomData<fn() -> R>,
}

impl<'e, R: Rpc> Call<'e, R> {
    #[inline(always)]
    pub(crate) fn start(port: PortRef<'e>, made: Result<OperationId, Box<Failure>>) -> Self {
        Self::new(port, made, Called { arriving: None, rpc: PhantomData })
    }
}

impl<R: Rpc> OwnedCall<R> {
    pub(crate) fn start_owned(port: &Arc<Port>, made: Result<OperationId, Box<Failure>>) -> Self {
        if made.is_ok() {
            port.leave_to_background();
        }
        Self::start(PortRef::Owned(Arc::clone(port)), made)
    }
}

impl<R: Rpc> Then for Called<R> {
    type Output = Result<R::Output, CallError<R::Error>>;

    const NAME: &'static str = R::NAME;

    fn end(&mut self, port: &Arc<Port>, outcome: Outcome, waits: bool) -> Step<Self::Output> {
        let result = match outcome {
            Outcome::Failed(Failure::WouldDeadlock) => Err(CallError::WouldDeadlock), // Whatever it is, it goes on.
            Outcome::Bulk(answer) => match Arriving::new(port, answer, waits) {
                Ok((arriving, next)) => {
                    self.arriving = Some(Box::new(arriving));
                    return ControlFlow::Continue(next);
                }
                Err(failure) => Err(failure.widen()),
            },
            outcome => match self.arriving.take() {
                Some(arriving) => arrived::<R>(arriving.finish(outcome)),
                None => decode::<R>(outcome),
            },
        };
        ControlFlow::Break(result)
    }

    const READS: bool = true;

    #[inline(always)]
    fn goes_on(&self) -> bool {
        self.arriving.is_some()
    }

    #[inline(always)]
    fn read(payload: &[u8]) -> Self::Output {
        decode_output::<R>(payload)
    }
}

impl<R: Rpc> fmt::Debug for Called<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Called({})", R::NAME)
    }
}

/// A one-way call under way: ends when the request was handed to the transport. Dropped, it goes on all the same.
///
/// A call that could not be made (too many under way, say) is not sent: [`OneWay::accepted`], `wait` and awaiting
/// say so; one that is dropped without a look leaves a warning in the log.
#[derive(Debug)]
pub struct OneWay<'e>(Operation<'e>);

/// How something has ended that has no value.
pub(crate) fn ended(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Failed(failure) => Err(failure),
        _ => Ok(()),
    }
}

impl<'e> OneWay<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<OperationId, Box<Failure>>) -> Self {
        Self(Operation::new(PortRef::Borrowed(port), made))
    }

    /// Lets it go on by itself; says whether it was made at all. Waits for nothing.
    ///
    /// # Errors
    /// Why it was not: [`CallError::NotMade`] with [`hg_na::Error::Limit`] at `Builder::calls_max`, ...
    pub fn accepted(mut self) -> Result<(), Failure> {
        if self.0.is_over() { ended(self.0.wait()) } else { Ok(()) }
    }

    /// Waits until the request was handed to the transport. Whether it was served, nobody tells.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(mut self) -> Result<(), Failure> {
        // One that cannot be waited for here goes on.
        ended(self.0.wait())
    }
}

impl Future for OneWay<'_> {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(Some(context.waker()), true).map(ended)
    }
}

impl Drop for OneWay<'_> {
    fn drop(&mut self) {
        if let Some(Err(failure)) = self.0.detach().map(|outcome| ended(*outcome)) {
            tracing::warn!(%failure, "a one-way call was not sent, and nobody looked");
        }
    }
}

#[inline]
fn decode_output<R: Rpc>(payload: &[u8]) -> Result<R::Output, CallError<R::Error>> {
    match codec::Default::decode::<R::WireOutput>(payload) {
        Ok(output) => Ok(R::unpack_output(output)),
        Err(error) => Err(undecodable::<R>(&error)),
    }
}

fn decode_error<R: Rpc>(payload: &[u8]) -> CallError<R::Error> {
    match codec::Default::decode::<R::Error>(payload) {
        Ok(error) => CallError::Handler(error),
        Err(error) => undecodable::<R>(&error),
    }
}

/// An outcome that is no large result.
fn decode<R: Rpc>(outcome: Outcome) -> Result<R::Output, CallError<R::Error>> {
    match outcome {
        Outcome::Answered { message, payload, handler_error: false } => {
            decode_output::<R>(&message.as_slice()[payload..])
        }
        Outcome::Answered { message, payload, handler_error: true } => {
            Err(decode_error::<R>(&message.as_slice()[payload..]))
        }
        Outcome::Failed(failure) => Err(failure.of::<R>()),
        Outcome::Sent | Outcome::Bulk(_) | Outcome::Moved(_) => Err(CallError::Closed),
    }
}

/// A large result.
#[cold]
fn arrived<R: Rpc>(result: Arrived) -> Result<R::Output, CallError<R::Error>> {
    let (bytes, is_error) = result.map_err(Failure::widen)?;
    if is_error { Err(decode_error::<R>(&bytes)) } else { decode_output::<R>(&bytes) }
}

#[cold]
fn undecodable<R: Rpc>(error: &codec::CodecError) -> CallError<R::Error> {
    match error {
        // The handler has run: the call was made.
        codec::CodecError::NoMemory { len } => {
            CallError::Rejected(no_memory(&hg_na::Error::NoMemory { len: *len as u64 }))
        }
        _ => CallError::Decode(format!("the answer of `{}`: {error}", R::NAME)),
    }
}
