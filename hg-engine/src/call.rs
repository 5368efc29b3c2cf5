//! A call under way: a future that needs no particular runtime, or `wait`.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hg_core::{
    call::{CallId, Outcome},
    codec::{self, Codec as _},
    error::{CallError, Failure},
    header::{Header, Kind},
    rpc::Rpc,
};
use hg_na::Message;

use crate::{Peer, port::Port, request::is_in_handler};

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
    state: CallState,
    rpc: PhantomData<fn() -> R>,
}

enum CallState {
    /// It could not be made.
    Failed(Box<Failure>),
    Open(CallId),
    Ended,
}

impl<'e, R: Rpc> Call<'e, R> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<CallId, Box<Failure>>) -> Self {
        let state = made.map_or_else(CallState::Failed, CallState::Open);
        Self { port, state, rpc: PhantomData }
    }

    /// Waits for the outcome, making progress in this thread: the fastest way.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::WouldDeadlock`] at once inside a plain or `async` handler.
    #[inline]
    pub fn wait(mut self) -> Result<R::Output, CallError<R::Error>> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) if is_in_handler() => {
                self.state = CallState::Open(id);
                Err(CallError::WouldDeadlock)
            }
            CallState::Open(id) => decode::<R>(self.port.wait_for(id)),
            CallState::Failed(failure) => Err((*failure).widen()),
            CallState::Ended => Err(CallError::Closed),
        }
    }

    /// The outcome, if it is there; otherwise the call itself. Makes no progress.
    ///
    /// # Errors
    /// The call, still under way.
    pub fn try_take(mut self) -> Result<Result<R::Output, CallError<R::Error>>, Self> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) => {
                let Some(mut state) = self.port.enter_state() else {
                    return Ok(Err(CallError::NotMade(hg_na::Error::Forked)));
                };
                let outcome = state.calls.take(id);
                drop(state);
                match outcome {
                    Some(outcome) => Ok(decode::<R>(outcome)),
                    None => {
                        self.state = CallState::Open(id);
                        Err(self)
                    }
                }
            }
            CallState::Failed(failure) => Ok(Err((*failure).widen())),
            CallState::Ended => Ok(Err(CallError::Closed)),
        }
    }

    /// Cancels the call; it ends with [`CallError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        if let CallState::Open(id) = self.state {
            if let Some(mut state) = self.port.enter_state() {
                state.calls.cancel(id);
            }
            self.port.notify();
        }
    }
}

impl<R: Rpc> Future for Call<'_, R> {
    type Output = Result<R::Output, CallError<R::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, CallState::Ended) {
            CallState::Open(id) => {
                let Some(mut state) = self.port.enter_state() else {
                    return Poll::Ready(Err(CallError::NotMade(hg_na::Error::Forked)));
                };
                if let Some(outcome) = state.calls.take(id) {
                    return Poll::Ready(decode::<R>(outcome));
                }
                state.calls.set_waker(id, context.waker());
                drop(state);
                self.state = CallState::Open(id);
                Poll::Pending
            }
            CallState::Failed(failure) => Poll::Ready(Err((*failure).widen())),
            CallState::Ended => Poll::Ready(Err(CallError::Closed)),
        }
    }
}

impl<R: Rpc> Unpin for Call<'_, R> {}

impl<R: Rpc> Drop for Call<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if let CallState::Open(id) = self.state {
            abandon(self.port, id);
        }
    }
}

#[cold]
fn abandon(port: &Arc<Port>, id: CallId) {
    if let Some(mut state) = port.enter_state() {
        state.calls.abandon(id);
        drop(state);
        port.notify();
    }
}

impl<R: Rpc> fmt::Debug for Call<'_, R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Call({})", R::NAME)
    }
}

/// A one-way call under way: ends when the request was handed to the transport, and may be dropped.
pub struct OneWay<'e> {
    port: &'e Arc<Port>,
    state: CallState,
}

impl<'e> OneWay<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, made: Result<CallId, Box<Failure>>) -> Self {
        Self { port, state: made.map_or_else(CallState::Failed, CallState::Open) }
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
            CallState::Ended => Err(CallError::Closed),
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
            CallState::Ended => Poll::Ready(Err(CallError::Closed)),
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
        Outcome::Sent | Outcome::Answered { .. } => Ok(()),
        Outcome::Failed(failure) => Err(failure),
    }
}

#[inline]
fn decode<R: Rpc>(outcome: Outcome) -> Result<R::Output, CallError<R::Error>> {
    match outcome {
        Outcome::Answered { message, payload, handler_error: false } => {
            match codec::Default::decode::<R::WireOutput>(&message.as_slice()[payload..]) {
                Ok(output) => Ok(R::unpack_output(output)),
                Err(error) => Err(undecodable::<R>(&error)),
            }
        }
        Outcome::Answered { message, payload, handler_error: true } => {
            match codec::Default::decode::<R::Error>(&message.as_slice()[payload..]) {
                Ok(error) => Err(CallError::Handler(error)),
                Err(error) => Err(undecodable::<R>(&error)),
            }
        }
        Outcome::Failed(failure) => Err(failure.widen()),
        Outcome::Sent => Err(CallError::Closed),
    }
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
    ) -> Result<CallId, Box<Failure>> {
        if peer.port != self.id {
            return Err(Box::new(Failure::NotMade(hg_na::Error::UnknownPeer)));
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
    fn too_many_calls(&self) -> Box<Failure> {
        Box::new(Failure::NotMade(hg_na::Error::Limit {
            what: "calls under way",
            limit: self.shared.settings.calls_max as u64,
            remedy: "wait for some of them, or raise `Builder::calls_max`",
        }))
    }
}

/// Longest message that is encoded while the state is locked, in bytes.
const LOCKED_ENCODING_MAX: usize = 1024;

#[cold]
fn forked() -> Box<Failure> {
    Box::new(Failure::NotMade(hg_na::Error::Forked))
}

#[cold]
fn reserve_failure(error: hg_na::Error) -> Box<Failure> {
    use hg_core::error::Started;
    Box::new(match error {
        hg_na::Error::PeerGone(reason) => Failure::PeerGone { reason, started: Started::No },
        hg_na::Error::UnknownPeer => {
            Failure::PeerGone { reason: hg_na::GoneReason::Closed, started: Started::No }
        }
        other => Failure::NotMade(other),
    })
}

#[cold]
fn unencodable(name: &str, error: &codec::CodecError) -> Box<Failure> {
    Box::new(Failure::Decode(format!("`{name}`: {error}")))
}
