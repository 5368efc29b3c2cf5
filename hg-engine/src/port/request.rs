//! What a handler knows about the request that it serves.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use hg_core::{
    cancel::CancelToken,
    error::{Status, bounded_text},
    header::{Header, Kind},
    protocol::status_message,
    rpc::Rpc,
};
use hg_na::{Identity, Message};

use super::{Port, Run, encode_error, encode_value, no_message};
use crate::Peer;

/// A request in service: who asks, until when, and whether anybody still waits.
///
/// A handler takes `&Request` as its first argument, plain, `async` or blocking; only the closures of
/// `serve_async` are given it by value.
#[derive(Clone)]
pub struct Request {
    pub(crate) port: Arc<Port>,
    pub(crate) due: Due,
    /// When it has arrived, and the nanoseconds that it had left then; where it has a deadline.
    arrived: Option<Instant>,
    remaining_ns: Option<u64>,
    /// Which of the handlers it is that this port has started ([`Port::starting`]); 0: not one of those.
    start: u64,
    /// Whether it can be cancelled: not in a plain handler.
    can_be_cancelled: bool,
    /// Made when it is first asked for.
    cancel: OnceLock<CancelToken>,
}

/// The answer that a request is to have: to whom and how.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    pub(crate) origin: hg_na::Peer,
    pub(crate) id: u64,
    /// Whether there is to be one: not for one-way calls.
    answered: bool,
    pub(crate) checksum: bool,
}

impl Due {
    #[inline]
    pub(crate) fn new(origin: hg_na::Peer, header: &Header) -> Self {
        let answered = header.kind == Kind::Request;
        Self { origin, id: header.id, answered, checksum: header.checksum }
    }

    /// Encodes the answer to its place, if one is due.
    #[inline]
    pub(crate) fn answer_into<R: Rpc>(
        &self,
        port: &Port,
        result: Result<R::Output, R::Error>,
        answer: &mut Message,
    ) -> Run {
        if !self.answered {
            return Run::Silent;
        }
        let header = |status| Header::answer(self.id, status as u8, self.checksum);
        match result {
            Ok(output) => {
                let (header, value) = (header(Status::Ok), R::pack_output(output));
                encode_value(port, self.origin, header, value, answer);
            }
            Err(error) => {
                let header = header(Status::HandlerError);
                encode_error(port, self.origin, header, error, answer);
            }
        }
        Run::Answered
    }

    /// Encodes a failure to its place, if an answer is due.
    #[cold]
    pub(crate) fn fail(&self, status: Status, text: &str, answer: &mut Message) -> Run {
        if !self.answered {
            return Run::Silent;
        }
        *answer = status_message(self.id, status, bounded_text(text), self.checksum);
        Run::Answered
    }
}

impl Request {
    pub(crate) fn new(port: Arc<Port>) -> Self {
        Self {
            port,
            due: Due {
                origin: hg_na::Peer::new(u32::MAX, u32::MAX),
                id: 0,
                answered: false,
                checksum: false,
            },
            arrived: None,
            remaining_ns: None,
            start: 0,
            can_be_cancelled: false,
            cancel: OnceLock::new(),
        }
    }

    /// Makes it another request's. When it has arrived is needed for one that has a deadline.
    #[inline]
    pub(crate) fn reuse(&mut self, origin: hg_na::Peer, header: &Header, arrived: Option<Instant>) {
        self.reuse_unasked(origin, header);
        (self.arrived, self.remaining_ns) = (arrived, header.remaining_ns);
    }

    /// The same for a handler that asks for nothing, of which nothing is noted but whom to answer.
    #[inline]
    pub(crate) fn reuse_unasked(&mut self, origin: hg_na::Peer, header: &Header) {
        self.due = Due::new(origin, header);
        self.arrived = None;
        self.can_be_cancelled = false;
        if self.cancel.get().is_some() {
            self.forget_token();
        }
    }

    #[cold]
    fn forget_token(&mut self) {
        self.cancel = OnceLock::new();
    }

    /// It can be cancelled: the handler may run beyond this round. `start` numbers those that are run by whoever makes
    /// progress; 0 for others.
    #[inline]
    pub(crate) fn make_cancellable(&mut self, start: u64) {
        self.start = start;
        self.can_be_cancelled = true;
    }

    fn cancel_token(&self) -> Option<&CancelToken> {
        self.can_be_cancelled.then(|| self.cancel.get_or_init(|| self.token()))
    }

    #[cold]
    fn token(&self) -> CancelToken {
        match self.port.enter_state() {
            Some(mut state) => {
                // Relaxed: it was set before this request was made known to anybody, and is taken back under the lock.
                let starting = self.port.starting.load(Ordering::Relaxed);
                let is_starting = self.start != 0 && starting == self.start;
                state.protocol.serves.token(self.due.origin, self.due.id, is_starting)
            }
            None => CancelToken::default(), // In a forked child nobody cancels.
        }
    }

    /// Who called; can be called back.
    #[must_use]
    pub fn origin(&self) -> Peer {
        Peer { na: self.due.origin, port: self.port.id }
    }

    /// Who called, as far as somebody else than the caller vouches for it: inside a node its process and user, by the
    /// kernel's word; over a network its address. A field is `None` where nobody does, and all are when the caller is
    /// gone or the engine is closed; so ask before the first `await`, and take `None` for no.
    ///
    /// May be called in any handler; it takes a lock for a moment.
    #[must_use]
    pub fn caller(&self) -> Identity {
        let Some(mut state) = self.port.enter_state() else { return Identity::default() };
        state
            .protocol
            .context()
            .map_or_else(|_| Identity::default(), |it| it.identity(self.due.origin))
    }

    /// When the caller gives up, if it said so: its time remaining, counted from the request's arrival. Handlers that run one after
    /// the other because their requests have come together count from the same instant; what is over before its turn is refused.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.arrived?.checked_add(Duration::from_nanos(self.remaining_ns?))
    }

    /// Whether an answer is due: not for one-way calls.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        self.due.answered
    }

    /// Whether nobody waits for the answer any more: cancelled, or the origin is gone. Always `false` in
    /// a plain handler, during which no message is read.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel_token().is_some_and(CancelToken::is_cancelled)
    }

    /// Ends when nobody waits for the answer any more. Never ends in a plain handler.
    pub async fn cancelled(&self) {
        match self.cancel_token() {
            Some(token) => token.clone().await,
            None => std::future::pending().await,
        }
    }

    /// The encoded answer, if one is due.
    pub(crate) fn answer<R: Rpc>(&self, result: Result<R::Output, R::Error>) -> Option<Message> {
        let mut answer = no_message();
        let run = self.due.answer_into::<R>(&self.port, result, &mut answer);
        matches!(run, Run::Answered).then_some(answer)
    }

    /// Tells the caller, where an answer is due, why there is none, from whatever thread this is.
    pub(crate) fn give_up(&self, status: Status, text: &str) {
        let mut answer = no_message();
        let run = self.due.fail(status, text, &mut answer);
        self.hand_in(matches!(run, Run::Answered).then_some(answer));
    }

    /// Sends an answer from whatever thread this is.
    pub(crate) fn hand_in(&self, message: Option<Message>) {
        // In a forked child nobody waits for it.
        let Some(mut state) = self.port.enter_state() else { return };
        state.protocol.end(self.due.origin, self.due.id, message);
        drop(state);
        self.port.notify();
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Request({} from {:?})", self.due.id, self.origin())
    }
}
