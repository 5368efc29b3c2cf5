//! A call under way: a future that needs no particular runtime, or `wait`.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use hg_bulk::Local;
use hg_core::{
    call::{CallId, Outcome},
    codec::{self, Codec as _},
    error::{CallError, Failure, Started},
    rpc::Rpc,
};

use crate::{
    Request,
    inside::{is_in_handler, is_inside, is_waited_for, waiting},
    large::{Arrived, Arriving, Sent},
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
        let now = || request.port().now();
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
    port: &'e Arc<Port>,
    state: CallState<'e>,
    rpc: PhantomData<fn() -> R>,
}

enum CallState<'e> {
    /// It could not be made.
    Failed(Box<Failure>),
    Open(CallId),
    /// Its arguments wait to be pulled.
    Large {
        id: CallId,
        _arguments: Arc<Local>,
    },
    /// Its result is being pulled.
    Arriving(Box<Arriving<'e>>),
    Ended,
}

/// A call that has begun otherwise than usual.
pub(crate) enum Unusual {
    Failed(Failure),
    Large(Sent),
}

impl From<Failure> for Box<Unusual> {
    fn from(failure: Failure) -> Self {
        Self::new(Unusual::Failed(failure))
    }
}

impl CallState<'_> {
    fn new(made: Result<CallId, Box<Unusual>>) -> Self {
        match made {
            Ok(id) => Self::Open(id),
            Err(unusual) => Self::unusual(*unusual),
        }
    }

    #[cold]
    fn unusual(unusual: Unusual) -> Self {
        match unusual {
            Unusual::Failed(failure) => Self::Failed(Box::new(failure)),
            Unusual::Large(Sent { id, arguments: Some(local) }) => {
                Self::Large { id, _arguments: local }
            }
            Unusual::Large(Sent { id, arguments: None }) => Self::Open(id),
        }
    }

    /// The call that its table knows.
    fn id(&self) -> Option<CallId> {
        match self {
            Self::Open(id) | Self::Large { id, .. } => Some(*id),
            Self::Failed(_) | Self::Arriving(_) | Self::Ended => None,
        }
    }
}

impl<'e, R: Rpc> Call<'e, R> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<CallId, Box<Unusual>>) -> Self {
        Self { port, state: CallState::new(made), rpc: PhantomData }
    }

    /// Waits for the outcome, making progress in this thread: the fastest way.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::WouldDeadlock`] at once inside a plain or `async` handler of the same engine (of the same
    /// context), which cancels the call. A handler may wait for another engine's call; its own engine makes no progress
    /// meanwhile. Handlers of two engines that wait for each other in two threads wait until their deadlines.
    #[inline]
    pub fn wait(self) -> Result<R::Output, CallError<R::Error>> {
        let CallState::Open(id) = self.state else { return self.wait_otherwise() };
        if is_in_handler() {
            return self.wait_otherwise();
        }
        let port = self.port;
        // An open call owns nothing but its entry, and taking the outcome frees that.
        std::mem::forget(self);
        let mut outcome = None;
        port.wait_for(id, &mut outcome);
        let Some(Outcome::Answered { message, payload, handler_error: false }) = &outcome else {
            return port.decode_rare::<R>(outcome);
        };
        let output = decode_output::<R>(&message.as_slice()[*payload..]);
        if message.slot().is_some() {
            std::mem::forget(outcome); // Owns nothing.
        }
        output
    }

    #[cold]
    fn wait_otherwise(mut self) -> Result<R::Output, CallError<R::Error>> {
        if is_inside(self.port.id) && !matches!(self.state, CallState::Failed(_)) {
            return Err(CallError::WouldDeadlock);
        }
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Failed(failure) => Err((*failure).widen()),
            CallState::Ended => Err(CallError::Closed),
            CallState::Open(id) | CallState::Large { id, .. } => {
                let mut outcome = None;
                waiting(|| self.port.wait_for(id, &mut outcome));
                self.port.decode_rare::<R>(outcome)
            }
            CallState::Arriving(arriving) => arrived::<R>(arriving.wait()),
        }
    }

    /// The outcome, if it is there; otherwise the call itself. Makes no progress.
    ///
    /// # Errors
    /// The call, still under way.
    pub fn try_take(mut self) -> Result<Result<R::Output, CallError<R::Error>>, Self> {
        match self.poll_outcome(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Ok(outcome),
            Poll::Pending => Err(self),
        }
    }

    /// Cancels the call; it ends with [`CallError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        if let Some(id) = self.state.id() {
            if let Some(mut state) = self.port.enter_state() {
                state.protocol.calls.cancel(id);
            }
            self.port.notify();
        }
        if let CallState::Arriving(arriving) = &self.state {
            arriving.cancel();
        }
    }

    fn poll_outcome(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<R::Output, CallError<R::Error>>> {
        if let Some(id) = self.state.id() {
            let outcome = ready!(self.port.poll_call(id, context));
            self.state = CallState::Ended;
            match outcome {
                Outcome::Bulk(answer) => match Arriving::new(self.port, answer) {
                    Ok(arriving) => self.state = CallState::Arriving(Box::new(arriving)),
                    Err(failure) => return Poll::Ready(Err(failure.widen())),
                },
                outcome => return Poll::Ready(decode::<R>(outcome)),
            }
        }
        if let CallState::Arriving(arriving) = &mut self.state {
            let result = ready!(arriving.poll(context));
            self.state = CallState::Ended;
            return Poll::Ready(arrived::<R>(result));
        }
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Failed(failure) => Poll::Ready(Err((*failure).widen())),
            _ => Poll::Ready(Err(CallError::Closed)),
        }
    }
}

impl<R: Rpc> Future for Call<'_, R> {
    type Output = Result<R::Output, CallError<R::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.poll_outcome(context) {
            // Whoever polls there blocks on it: nothing else would poll again.
            Poll::Pending if is_waited_for(self.port.id) => {
                Poll::Ready(Err(CallError::WouldDeadlock))
            }
            poll => poll,
        }
    }
}

impl<R: Rpc> Unpin for Call<'_, R> {}

impl<R: Rpc> Drop for Call<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.state.id() {
            abandon(self.port, id);
        }
    }
}

#[cold]
pub(crate) fn abandon(port: &Arc<Port>, id: CallId) {
    let Some(mut state) = port.enter_state() else { return };
    let outcome = state.protocol.calls.take(id);
    let waker = if outcome.is_none() { state.protocol.calls.abandon(id) } else { None };
    port.pass_room_on(state);
    // The target keeps a result that nobody will pull.
    match outcome {
        Some(Outcome::Bulk(answer)) => port.result_taken(&answer),
        _ => port.notify(),
    }
    drop(waker);
}

impl<R: Rpc> fmt::Debug for Call<'_, R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Call({})", R::NAME)
    }
}

/// A one-way call under way: ends when the request was handed to the transport. Dropped, it goes on all the same.
///
/// A call that could not be made (too many under way, say) is not sent: [`OneWay::accepted`], `wait` and awaiting
/// say so; one that is dropped without a look leaves a warning in the log.
pub struct OneWay<'e> {
    port: &'e Arc<Port>,
    state: CallState<'e>,
}

impl<'e> OneWay<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<CallId, Box<Unusual>>) -> Self {
        Self { port, state: CallState::new(made) }
    }

    /// Lets it go on by itself; says whether it was made at all. Waits for nothing.
    ///
    /// # Errors
    /// Why it was not: [`CallError::NotMade`] with [`hg_na::Error::Limit`] at `Builder::calls_max`, ...
    pub fn accepted(mut self) -> Result<(), Failure> {
        if !matches!(self.state, CallState::Failed(_)) {
            return Ok(());
        }
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Failed(failure) => Err(*failure),
            _ => Ok(()),
        }
    }

    /// Waits until the request was handed to the transport. Whether it was served, nobody tells.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(mut self) -> Result<(), Failure> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) if is_inside(self.port.id) => {
                self.state = CallState::Open(id);
                Err(CallError::WouldDeadlock)
            }
            CallState::Open(id) => {
                let mut outcome = None;
                waiting(|| self.port.wait_for(id, &mut outcome));
                sent(outcome.unwrap_or_else(|| self.port.no_outcome()))
            }
            CallState::Failed(failure) => Err(*failure),
            _ => Err(CallError::Closed),
        }
    }
}

impl Future for OneWay<'_> {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) => {
                if let Poll::Ready(outcome) = self.port.poll_call(id, context) {
                    return Poll::Ready(sent(outcome));
                }
                self.state = CallState::Open(id);
                if is_waited_for(self.port.id) {
                    return Poll::Ready(Err(CallError::WouldDeadlock));
                }
                Poll::Pending
            }
            CallState::Failed(failure) => Poll::Ready(Err(*failure)),
            _ => Poll::Ready(Err(CallError::Closed)),
        }
    }
}

impl Drop for OneWay<'_> {
    fn drop(&mut self) {
        match &self.state {
            CallState::Open(id) => {
                if let Some(mut state) = self.port.enter_state() {
                    let waker = state.protocol.calls.detach(*id);
                    self.port.pass_room_on(state);
                    drop(waker);
                    self.port.leave_to_background();
                }
            }
            CallState::Failed(failure) => {
                tracing::warn!(%failure, "a one-way call was not sent, and nobody looked");
            }
            CallState::Large { .. } | CallState::Arriving(_) | CallState::Ended => {}
        }
    }
}

impl fmt::Debug for OneWay<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OneWay")
    }
}

fn sent(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Sent | Outcome::Answered { .. } | Outcome::Bulk(_) => Ok(()),
        Outcome::Failed(failure) => Err(failure),
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
pub(crate) fn decode<R: Rpc>(outcome: Outcome) -> Result<R::Output, CallError<R::Error>> {
    match outcome {
        Outcome::Answered { message, payload, handler_error: false } => {
            decode_output::<R>(&message.as_slice()[payload..])
        }
        Outcome::Answered { message, payload, handler_error: true } => {
            Err(decode_error::<R>(&message.as_slice()[payload..]))
        }
        Outcome::Failed(failure) => Err(failure.of::<R>()),
        Outcome::Sent | Outcome::Bulk(_) => Err(CallError::Closed),
    }
}

impl Port {
    /// The outcome of a call, once it is there; until then the context's waker is left to be woken. A waker is a user's:
    /// it is cloned and dropped without the lock, and only where it is to be kept.
    pub(crate) fn poll_call(&self, id: CallId, context: &Context<'_>) -> Poll<Outcome> {
        let mut clone = None;
        loop {
            let Some(mut state) = self.enter_state() else {
                return Poll::Ready(Outcome::Failed(forked()));
            };
            if let Some(outcome) = state.protocol.calls.take(id) {
                self.pass_room_on(state);
                return Poll::Ready(outcome);
            }
            if state.protocol.calls.is_to_wake(id, context.waker()) {
                drop(state);
                self.leave_to_background();
                return Poll::Pending;
            }
            if let Some(waker) = clone {
                let before = state.protocol.calls.set_waker(id, waker);
                drop(state);
                drop(before);
                self.leave_to_background();
                return Poll::Pending;
            }
            drop(state);
            clone = Some(context.waker().clone());
        }
    }

    #[cold]
    fn decode_rare<R: Rpc>(
        self: &Arc<Self>,
        outcome: Option<Outcome>,
    ) -> Result<R::Output, CallError<R::Error>> {
        match outcome.unwrap_or_else(|| self.no_outcome()) {
            Outcome::Bulk(answer) => {
                arrived::<R>(Arriving::new(self, answer).and_then(Arriving::wait))
            }
            outcome => decode::<R>(outcome),
        }
    }
}

/// A large result.
#[cold]
pub(crate) fn arrived<R: Rpc>(result: Arrived) -> Result<R::Output, CallError<R::Error>> {
    let (bytes, is_error) = result.map_err(Failure::widen)?;
    if is_error { Err(decode_error::<R>(&bytes)) } else { decode_output::<R>(&bytes) }
}

#[cold]
fn undecodable<R: Rpc>(error: &codec::CodecError) -> CallError<R::Error> {
    match error {
        codec::CodecError::NoMemory { len } => {
            CallError::NotMade(hg_na::Error::NoMemory { len: *len as u64 })
        }
        _ => CallError::Decode(format!("the answer of `{}`: {error}", R::NAME)),
    }
}

#[cold]
pub(crate) fn forked() -> Failure {
    Failure::NotMade(hg_na::Error::Forked)
}

#[cold]
pub(crate) fn reserve_failure(error: hg_na::Error) -> Failure {
    match error {
        hg_na::Error::PeerGone(reason) => Failure::PeerGone { reason, started: Started::No },
        hg_na::Error::UnknownPeer => {
            Failure::PeerGone { reason: hg_na::GoneReason::Ended, started: Started::No }
        }
        other => Failure::NotMade(other),
    }
}

#[cold]
pub(crate) fn unencodable(name: &str, error: &codec::CodecError) -> Failure {
    Failure::Decode(format!("`{name}`: {error}"))
}
