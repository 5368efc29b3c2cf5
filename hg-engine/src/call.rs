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
    call::{BulkAnswer, CallId, Outcome},
    codec::{self, Codec as _},
    error::{CallError, Failure, Started},
    header::{Header, Kind},
    rpc::Rpc,
};
use hg_na::Message;

use crate::{
    Peer,
    large::{Arrived, Arriving, Sent},
    port::Port,
    request::is_in_handler,
};

/// How a call is made.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Time that the call may take, the target's included: it travels with the request.
    pub deadline: Option<Duration>,
}

impl CallOptions {
    /// A call that ends after this time, one way or the other.
    #[must_use]
    pub fn within(deadline: Duration) -> Self {
        Self { deadline: Some(deadline) }
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
    /// [`CallError`]; [`CallError::WouldDeadlock`] at once inside a plain or `async` handler.
    #[inline]
    pub fn wait(mut self) -> Result<R::Output, CallError<R::Error>> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) if !is_in_handler() => match self.port.wait_for(id) {
                Outcome::Bulk(answer) => wait_for_result::<R>(self.port, answer),
                outcome => decode::<R>(outcome),
            },
            other => self.wait_otherwise(other),
        }
    }

    #[cold]
    fn wait_otherwise(&mut self, state: CallState<'e>) -> Result<R::Output, CallError<R::Error>> {
        match state {
            CallState::Failed(failure) => Err((*failure).widen()),
            CallState::Ended => Err(CallError::Closed),
            other if is_in_handler() => {
                self.state = other;
                Err(CallError::WouldDeadlock)
            }
            CallState::Open(id) | CallState::Large { id, .. } => match self.port.wait_for(id) {
                Outcome::Bulk(answer) => wait_for_result::<R>(self.port, answer),
                outcome => decode::<R>(outcome),
            },
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
                state.calls.cancel(id);
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
            let Some(mut state) = self.port.enter_state() else {
                self.state = CallState::Ended;
                return Poll::Ready(Err(CallError::NotMade(hg_na::Error::Forked)));
            };
            let Some(outcome) = state.calls.take(id) else {
                state.calls.set_waker(id, context.waker());
                return Poll::Pending;
            };
            drop(state);
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
        self.poll_outcome(context)
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
fn abandon(port: &Arc<Port>, id: CallId) {
    let Some(mut state) = port.enter_state() else { return };
    match state.calls.take(id) {
        // The target keeps a result that nobody will pull.
        Some(Outcome::Bulk(answer)) => {
            drop(state);
            return port.result_taken(&answer);
        }
        Some(_) => {}
        None => state.calls.abandon(id),
    }
    drop(state);
    port.notify();
}

impl<R: Rpc> fmt::Debug for Call<'_, R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Call({})", R::NAME)
    }
}

/// A one-way call under way: ends when the request was handed to the transport, and may be dropped.
pub struct OneWay<'e> {
    port: &'e Arc<Port>,
    state: CallState<'e>,
}

impl<'e> OneWay<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<CallId, Box<Unusual>>) -> Self {
        Self { port, state: CallState::new(made) }
    }

    /// Waits until the request was handed to the transport. Whether it was served, nobody tells.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(mut self) -> Result<(), Failure> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) if is_in_handler() => {
                self.state = CallState::Open(id);
                Err(CallError::WouldDeadlock)
            }
            CallState::Open(id) => sent(self.port.wait_for(id)),
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
                let Some(mut state) = self.port.enter_state() else {
                    return Poll::Ready(Err(CallError::NotMade(hg_na::Error::Forked)));
                };
                if let Some(outcome) = state.calls.take(id) {
                    return Poll::Ready(sent(outcome));
                }
                state.calls.set_waker(id, context.waker());
                drop(state);
                self.state = CallState::Open(id);
                Poll::Pending
            }
            CallState::Failed(failure) => Poll::Ready(Err(*failure)),
            _ => Poll::Ready(Err(CallError::Closed)),
        }
    }
}

impl Drop for OneWay<'_> {
    fn drop(&mut self) {
        if let CallState::Open(id) = self.state
            && let Some(mut state) = self.port.enter_state()
        {
            state.calls.detach(id);
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
fn decode<R: Rpc>(outcome: Outcome) -> Result<R::Output, CallError<R::Error>> {
    match &outcome {
        Outcome::Answered { message, payload, handler_error: false } => {
            match codec::Default::decode::<R::WireOutput>(&message.as_slice()[*payload..]) {
                Ok(output) => Ok(R::unpack_output(output)),
                Err(error) => Err(undecodable::<R>(&error)),
            }
        }
        Outcome::Answered { message, payload, handler_error: true } => {
            match codec::Default::decode::<R::Error>(&message.as_slice()[*payload..]) {
                Ok(error) => Err(CallError::Handler(error)),
                Err(error) => Err(undecodable::<R>(&error)),
            }
        }
        Outcome::Failed(_) | Outcome::Sent | Outcome::Bulk(_) => Err(failed::<R>(outcome)),
    }
}

#[cold]
fn failed<R: Rpc>(outcome: Outcome) -> CallError<R::Error> {
    match outcome {
        Outcome::Failed(failure) => failure.widen(),
        Outcome::Sent | Outcome::Answered { .. } | Outcome::Bulk(_) => CallError::Closed,
    }
}

#[cold]
fn wait_for_result<R: Rpc>(
    port: &Arc<Port>,
    answer: Box<BulkAnswer>,
) -> Result<R::Output, CallError<R::Error>> {
    arrived::<R>(Arriving::new(port, answer).and_then(Arriving::wait))
}

/// A large result.
#[cold]
fn arrived<R: Rpc>(result: Arrived) -> Result<R::Output, CallError<R::Error>> {
    let (bytes, is_error) = result.map_err(Failure::widen)?;
    let undecodable = |error| undecodable::<R>(&error);
    if is_error {
        let error = codec::Default::decode::<R::Error>(&bytes).map_err(undecodable)?;
        return Err(CallError::Handler(error));
    }
    let output = codec::Default::decode::<R::WireOutput>(&bytes).map_err(undecodable)?;
    Ok(R::unpack_output(output))
}

#[cold]
fn undecodable<R: Rpc>(error: &codec::CodecError) -> CallError<R::Error> {
    CallError::Decode(format!("the answer of `{}`: {error}", R::NAME))
}

impl Port {
    /// Makes a call: encodes it straight into the outgoing message and posts it.
    #[inline]
    pub(crate) fn start_call<R: Rpc>(
        &self,
        peer: Peer,
        args: R::Args<'_>,
        kind: Kind,
        options: CallOptions,
    ) -> Result<CallId, Box<Unusual>> {
        if peer.port != self.id {
            return Err(Failure::NotMade(hg_na::Error::UnknownPeer).into());
        }
        let wire = R::pack(args);
        let unencodable = |error| unencodable(R::NAME, &error);
        let size = codec::Default::size(&wire).map_err(unencodable)?;
        let deadline = options.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let mut header = Header::request(kind, 0, R::ID);
        header.remaining_ns =
            options.deadline.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        header.checksum = self.shared.settings.checksum;
        let start = header.encoded_len();
        let two_way = kind == Kind::Request;
        if self.is_large(start + size, self.shared.caps.max_unexpected) {
            let sent = self.start_large_call(peer, (R::NAME, &wire, size), header, deadline)?;
            return Err(Box::new(Unusual::Large(sent)));
        }

        let mut state = self.enter_state().ok_or_else(forked)?;
        let mut message = if start + size <= self.shared.caps.short_unexpected {
            Message::inline(start + size)
        } else {
            state.context()?.message(peer.na, start + size).map_err(reserve_failure)?
        };
        if start + size > LOCKED_ENCODING_MAX {
            drop(state);
            codec::Default::encode(&wire, &mut message.as_mut_slice()[start..])
                .map_err(unencodable)?;
            state = self.enter_state().ok_or_else(forked)?;
        } else {
            codec::Default::encode(&wire, &mut message.as_mut_slice()[start..])
                .map_err(unencodable)?;
        }
        state.context()?;
        let id = state
            .calls
            .begin(peer.na, R::NAME, two_way, deadline)
            .ok_or_else(|| self.too_many_calls())?;
        header.id = id.to_bits();
        header.encode(message.as_mut_slice());
        state.post_call(id, peer.na, two_way, message);
        drop(state);
        if !two_way || deadline.is_some() {
            self.notify();
        }
        Ok(id)
    }
}

impl Port {
    #[cold]
    pub(crate) fn too_many_calls(&self) -> Failure {
        Failure::NotMade(hg_na::Error::Limit {
            what: "calls under way",
            limit: self.shared.settings.calls_max as u64,
            remedy: "wait for some of them, or raise `Builder::calls_max`",
        })
    }
}

/// Longest message that is encoded while the state is locked, in bytes.
const LOCKED_ENCODING_MAX: usize = 1024;

#[cold]
fn forked() -> Failure {
    Failure::NotMade(hg_na::Error::Forked)
}

#[cold]
pub(crate) fn reserve_failure(error: hg_na::Error) -> Failure {
    match error {
        hg_na::Error::PeerGone(reason) => Failure::PeerGone { reason, started: Started::No },
        hg_na::Error::UnknownPeer => {
            Failure::PeerGone { reason: hg_na::GoneReason::Closed, started: Started::No }
        }
        other => Failure::NotMade(other),
    }
}

#[cold]
fn unencodable(name: &str, error: &codec::CodecError) -> Failure {
    Failure::Decode(format!("`{name}`: {error}"))
}
