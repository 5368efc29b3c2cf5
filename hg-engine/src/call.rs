//! A call under way: a future that needs no particular runtime, or `wait`.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
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
    inside::is_in_handler,
    large::no_memory,
    pending::{Pending, PortRef, was_taken},
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

/// A call under way. It was sent when it was made; waiting and awaiting only collect the outcome.
///
/// Dropping it cancels the call, and tells the target so.
#[must_use = "dropping a call cancels it: `wait` or await it"]
pub struct Call<'e, R: Rpc> {
    state: CallState<'e>,
    rpc: PhantomData<fn() -> R>,
}

/// A call that keeps no borrow of its engine, nor keeps that open: for those who keep many of them and look at them when they are
/// woken.
pub type OwnedCall<R> = Call<'static, R>;

enum CallState<'e> {
    Under(Pending<'e>),
    /// Its result is being pulled.
    Arriving(Box<Arriving>),
    Taken,
}

impl<'e, R: Rpc> Call<'e, R> {
    #[inline(always)]
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<OperationId, Box<Failure>>) -> Self {
        Self::of(PortRef::Borrowed(port), made)
    }

    #[inline(always)]
    fn of(port: PortRef<'e>, made: Result<OperationId, Box<Failure>>) -> Self {
        Self { state: CallState::Under(Pending::new(port, made)), rpc: PhantomData }
    }

    /// Waits for the outcome, making progress in this thread: the fastest way. An engine that serves runs its plain handlers on this
    /// thread meanwhile, and polls its `async` ones; so does a thread that awaits a call.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::WouldDeadlock`] at once inside a plain or `async` handler of the same engine (of the same
    /// context), which cancels the call. A handler may wait for another engine's call; its own engine makes no progress
    /// meanwhile. Handlers of two engines that wait for each other in two threads wait until their deadlines.
    #[inline]
    pub fn wait(self) -> Result<R::Output, CallError<R::Error>> {
        let CallState::Under(mut pending) = self.state else { return self.wait_otherwise() };
        let mut outcome = None;
        if is_in_handler() {
            outcome = Some(pending.wait());
        } else {
            pending.wait_into(&mut outcome);
        }
        let Some(Outcome::Answered { message, payload, handler_error: false }) = &outcome else {
            return decode_rare::<R>(&pending.port, outcome);
        };
        let output = decode_output::<R>(&message.as_slice()[*payload..]);
        if message.slot().is_some() {
            std::mem::forget(outcome); // Owns nothing.
        }
        pending.end();
        output
    }

    #[cold]
    fn wait_otherwise(self) -> Result<R::Output, CallError<R::Error>> {
        match self.state {
            CallState::Under(mut pending) => decode::<R>(pending.wait()),
            CallState::Arriving(arriving) => arrived::<R>(arriving.wait()),
            CallState::Taken => was_taken(),
        }
    }

    /// The outcome, if it is there; `None`: the call is still under way. Makes no progress, and leaves whoever has polled it to be woken.
    ///
    /// # Panics
    /// When the outcome was taken before, here or by a poll: it is there once. So do [`Call::wait`] and polling then.
    pub fn try_wait(&mut self) -> Option<Result<R::Output, CallError<R::Error>>> {
        match self.poll_by(None, false) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Cancels the call; it ends with [`CallError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        match &self.state {
            CallState::Under(pending) => pending.cancel(),
            CallState::Arriving(arriving) => arriving.cancel(),
            CallState::Taken => {}
        }
    }

    /// The outcome, if it is there; otherwise the context's waker is woken when it is worth another look. Polling it as a
    /// future is the same, except that this is allowed in a plain handler, too: nobody waits here.
    pub fn poll_outcome(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<R::Output, CallError<R::Error>>> {
        self.poll_by(Some(context.waker()), false)
    }

    fn poll_by(
        &mut self,
        waker: Option<&Waker>,
        is_awaited: bool,
    ) -> Poll<Result<R::Output, CallError<R::Error>>> {
        let result = match &mut self.state {
            CallState::Under(pending) => {
                let outcome = ready!(pending.poll(waker, is_awaited));
                if let Outcome::Bulk(answer) = outcome {
                    let arriving = Arriving::new(Arc::clone(&pending.port), answer, false);
                    self.state = CallState::Taken;
                    let arriving = arriving.map_err(Failure::widen)?;
                    self.state = CallState::Arriving(Box::new(arriving));
                    return self.poll_by(waker, is_awaited);
                }
                // One that would wait for itself is under way still; another one's port is needed no more.
                if !pending.is_open() {
                    self.state = CallState::Taken;
                }
                decode::<R>(outcome)
            }
            CallState::Arriving(arriving) => {
                let result = arrived::<R>(ready!(arriving.poll(waker, is_awaited)));
                self.state = CallState::Taken;
                result
            }
            CallState::Taken => was_taken(),
        };
        Poll::Ready(result)
    }
}

impl<R: Rpc> OwnedCall<R> {
    pub(crate) fn new_owned(port: Arc<Port>, made: Result<OperationId, Box<Failure>>) -> Self {
        if made.is_ok() {
            port.leave_to_background();
        }
        Self::of(PortRef::Owned(port), made)
    }
}

impl<R: Rpc> Future for Call<'_, R> {
    type Output = Result<R::Output, CallError<R::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_by(Some(context.waker()), true)
    }
}

impl<R: Rpc> Unpin for Call<'_, R> {}

impl<R: Rpc> fmt::Debug for Call<'_, R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Call({})", R::NAME)
    }
}

/// A one-way call under way: ends when the request was handed to the transport. Dropped, it goes on all the same.
///
/// A call that could not be made (too many under way, say) is not sent: [`OneWay::accepted`], `wait` and awaiting
/// say so; one that is dropped without a look leaves a warning in the log.
#[derive(Debug)]
pub struct OneWay<'e>(Pending<'e>);

/// How something has ended that has no value.
pub(crate) fn ended(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Failed(failure) => Err(failure),
        _ => Ok(()),
    }
}

impl<'e> OneWay<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<OperationId, Box<Failure>>) -> Self {
        Self(Pending::new(PortRef::Borrowed(port), made))
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

/// What a caller finds that has waited outside of handlers, and that is no plain answer.
#[cold]
fn decode_rare<R: Rpc>(
    port: &Arc<Port>,
    outcome: Option<Outcome>,
) -> Result<R::Output, CallError<R::Error>> {
    match outcome.unwrap_or_else(|| port.no_outcome()) {
        Outcome::Bulk(answer) => {
            arrived::<R>(Arriving::new(Arc::clone(port), answer, true).and_then(Arriving::wait))
        }
        outcome => decode::<R>(outcome),
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
