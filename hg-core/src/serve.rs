//! The target's side of calls: what to do with an arriving message, how many requests are in
//! service, and who is to be told of a cancellation.
//!
//! A cancellation may overtake its request, so one that finds no handler is remembered. It may as well be too late, or
//! its request have been taken back: then nothing would ever come for it. But the requests of one origin come in the order
//! of their ids ([`Key::is_after`]): an origin numbers a request in the moment in which it posts it or puts it behind those
//! that wait, and unexpected messages keep their order. So a later request says that the one before has come, or never
//! will, and its cancellation is forgotten.

use std::{collections::VecDeque, task::Waker};

use hg_na::Peer;
use rustc_hash::FxHashMap;

use crate::{
    cancel::CancelToken,
    codec::{self, Codec as _},
    error::Status,
    header::{Header, Kind, Malformed, REQUEST_LEN},
    table::Key,
};

/// Requests in service at a target before it stops taking more (they wait at their origins).
pub const IN_SERVICE_MAX: usize = 4096;
/// Cancellations of one origin that are remembered because they overtook their requests.
pub const EARLY_CANCELS_MAX: usize = 256;

/// What to do with an unexpected message.
#[derive(Debug)]
pub enum Arrival {
    /// Run the handler; the payload begins at this offset.
    Run {
        /// Header of the request.
        header: Header,
        /// Where the payload begins.
        payload: usize,
    },
    /// Answer with a failure.
    Refuse {
        /// Id of the request.
        id: u64,
        /// Why.
        status: Status,
        /// In words.
        text: String,
    },
    /// Close the connection, after this sentence.
    Disconnect(String),
    /// Nothing.
    Drop,
    /// Nothing, but its origin may have the memory of its arguments back.
    DropBulk {
        /// Id of the one-way call.
        id: u64,
    },
}

/// What a control message says.
#[derive(Debug)]
pub enum Control {
    /// The origin does not want this answer any more; a handler that runs still was told.
    Cancelled(u64),
    /// The arguments of this one-way call of ours were taken: their memory is free.
    ArgumentsTaken(u64),
    /// The result of this request was taken: its memory is free.
    ResultTaken(u64),
    /// The peer closes the connection for this reason.
    Fault(String),
    /// Close the connection, after this sentence.
    Disconnect(String),
}

/// The requests of one context that are in service.
#[derive(Debug)]
pub struct Serves {
    in_service: usize,
    max: usize,
    reject_above: Option<usize>,
    /// Requests whose handlers run longer than one round of progress, or have asked for their token; with the token, once
    /// somebody has asked for it, or it was set.
    running: FxHashMap<(Peer, u64), Option<CancelToken>>,
    is_closed: bool,
    /// Of each origin, those that overtook their requests, or came too late: until its next request at most.
    early_cancels: FxHashMap<Peer, VecDeque<u64>>,
}

impl Serves {
    /// Nothing in service. Admission closes at `max`; above `reject_above` requests are answered
    /// with [`Status::Rejected`] instead of being run.
    #[must_use]
    pub fn new(max: usize, reject_above: Option<usize>) -> Self {
        Self {
            in_service: 0,
            max: max.max(1),
            reject_above,
            running: FxHashMap::default(),
            is_closed: false,
            early_cancels: FxHashMap::default(),
        }
    }

    /// Requests taken and not yet answered.
    #[must_use]
    pub fn in_service(&self) -> usize {
        self.in_service
    }

    /// Requests whose handlers run longer than one round of progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether further requests may be taken.
    #[inline]
    #[must_use]
    pub fn admits(&self) -> bool {
        self.in_service < self.max
    }

    /// An unexpected message has arrived.
    #[inline]
    pub fn handle_message(&mut self, from: Peer, message: &[u8]) -> Arrival {
        if let Some(header) = Header::decode_plain_request(message)
            && (self.early_cancels.is_empty() || !self.early_cancels.contains_key(&from))
            && self.reject_above.is_none()
        {
            self.in_service += 1;
            return Arrival::Run { header, payload: REQUEST_LEN };
        }
        self.handle_uncommon(from, message)
    }

    #[cold]
    fn handle_uncommon(&mut self, from: Peer, message: &[u8]) -> Arrival {
        let (header, payload) = match Header::decode(message) {
            Ok(decoded) => decoded,
            Err(malformed) => return refuse(&malformed),
        };
        match header.kind {
            Kind::Request | Kind::OneWay => {}
            Kind::Answer
            | Kind::Cancel
            | Kind::Fault
            | Kind::ArgumentsTaken
            | Kind::ResultTaken => {
                return Arrival::Disconnect(
                    "an answer or control message came as a request".to_owned(),
                );
            }
        }
        let is_cancelled =
            !self.early_cancels.is_empty() && self.take_early_cancel(from, header.id);
        if header.code != codec::Default::ID {
            let text = format!(
                "the arguments use codec {}, this side speaks {}",
                header.code,
                codec::Default::ID
            );
            return refuse_with(&header, Status::Decode, text);
        }
        if header.remaining_ns == Some(0) {
            return refuse_with(&header, Status::DeadlineExceeded, String::new());
        }
        if is_cancelled {
            return refuse_with(&header, Status::Cancelled, String::new());
        }
        if self.reject_above.is_some_and(|limit| self.in_service >= limit) {
            let text = format!("{} requests are in service, the target's limit", self.in_service);
            return refuse_with(&header, Status::Rejected, text);
        }
        self.in_service += 1;
        Arrival::Run { header, payload }
    }

    /// Whether nobody waits for this answer any more, by what was heard so far.
    #[must_use]
    pub fn is_cancelled(&self, from: Peer, id: u64) -> bool {
        let token = self.running.get(&(from, id)).and_then(Option::as_ref);
        token.is_some_and(CancelToken::is_cancelled)
    }

    /// A request has come: whether it was cancelled before. What was said of those before it is forgotten.
    fn take_early_cancel(&mut self, from: Peer, id: u64) -> bool {
        let Some(of_origin) = self.early_cancels.get_mut(&from) else { return false };
        let came = Key::from_bits(id);
        let before = of_origin.len();
        of_origin.retain(|early| *early != id);
        let is_cancelled = of_origin.len() != before;
        of_origin.retain(|early| !came.is_after(Key::from_bits(*early)));
        if of_origin.is_empty() {
            self.early_cancels.remove(&from);
        }
        is_cancelled
    }

    /// A control message has arrived. `has_arrived` tells of a request whether it came in the same round, and its handler
    /// is still to be run. Who awaits a token that was set is to be woken, where a waker may do anything.
    pub fn handle_control(
        &mut self,
        from: Peer,
        message: &[u8],
        has_arrived: impl Fn(u64) -> bool,
        woken: &mut impl Extend<Waker>,
    ) -> Control {
        let (header, payload) = match Header::decode(message) {
            Ok(decoded) => decoded,
            Err(malformed) => return Control::Disconnect(malformed.to_string()),
        };
        match header.kind {
            Kind::Cancel => {
                self.cancel(from, header.id, has_arrived, woken);
                Control::Cancelled(header.id)
            }
            Kind::ArgumentsTaken => Control::ArgumentsTaken(header.id),
            Kind::ResultTaken => Control::ResultTaken(header.id),
            Kind::Fault => Control::Fault(
                String::from_utf8_lossy(&message[payload..]).chars().take(256).collect(),
            ),
            Kind::Request | Kind::OneWay | Kind::Answer => {
                Control::Disconnect("a request or answer came as a control message".to_owned())
            }
        }
    }

    fn cancel(
        &mut self,
        from: Peer,
        id: u64,
        has_arrived: impl Fn(u64) -> bool,
        woken: &mut impl Extend<Waker>,
    ) {
        if has_arrived(id) {
            self.keep_running(from, id);
        }
        if let Some(token) = self.running.get_mut(&(from, id)) {
            return woken.extend(token.get_or_insert_default().set());
        }
        let of_origin = self.early_cancels.entry(from).or_default();
        if of_origin.len() == EARLY_CANCELS_MAX {
            of_origin.pop_front();
        }
        of_origin.push_back(id);
    }

    /// A handler goes on beyond this round: it can be told of a cancellation from now on.
    #[inline]
    pub fn keep_running(&mut self, from: Peer, id: u64) -> &mut Option<CancelToken> {
        let is_told = self.is_closed;
        self.running.entry((from, id)).or_insert_with(|| is_told.then(CancelToken::cancelled))
    }

    /// By which a handler is told of a cancellation. One that has answered never is. `is_starting`: it is run for the first
    /// time, in a round in which no cancellation can arrive, and is not kept yet.
    pub fn token(&mut self, from: Peer, id: u64, is_starting: bool) -> CancelToken {
        if is_starting || self.running.contains_key(&(from, id)) {
            return self.keep_running(from, id).get_or_insert_default().clone();
        }
        if self.is_closed { CancelToken::cancelled() } else { CancelToken::default() }
    }

    /// The answer was handed over, or none is due.
    #[inline]
    pub fn handle_answered(&mut self, from: Peer, id: u64) {
        self.in_service = self.in_service.saturating_sub(1);
        if !self.running.is_empty() {
            self.running.remove(&(from, id));
        }
    }

    /// The origin is gone: its handlers are told, also those that are still to be run of requests that `arrived` in the same
    /// round.
    pub fn handle_gone(
        &mut self,
        peer: Peer,
        arrived: impl Iterator<Item = u64>,
        woken: &mut impl Extend<Waker>,
    ) {
        self.early_cancels.remove(&peer);
        for id in arrived {
            self.keep_running(peer, id);
        }
        let of_peer = self.running.iter_mut().filter(|((origin, _), _)| *origin == peer);
        woken.extend(of_peer.flat_map(|(_, token)| token.get_or_insert_default().set()));
    }

    /// The engine shuts down: every handler is told.
    pub fn close(&mut self, woken: &mut impl Extend<Waker>) {
        self.is_closed = true;
        let tokens = self.running.values_mut().map(Option::get_or_insert_default);
        woken.extend(tokens.flat_map(|token| token.set()));
    }
}

fn refuse(malformed: &Malformed) -> Arrival {
    match malformed.answer_to() {
        Some(id) => Arrival::Refuse { id, status: Status::Decode, text: malformed.to_string() },
        None => Arrival::Disconnect(malformed.to_string()),
    }
}

fn refuse_with(header: &Header, status: Status, text: String) -> Arrival {
    let id = header.id;
    match header.kind {
        Kind::Request => Arrival::Refuse { id, status, text },
        _ if header.bulk => Arrival::DropBulk { id },
        _ => Arrival::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::RpcId;

    const ORIGIN: Peer = Peer::new(1, 1);

    fn request(id: u64) -> Vec<u8> {
        encoded(&Header::request(Kind::Request, id, RpcId(5)))
    }

    fn encoded(header: &Header) -> Vec<u8> {
        let mut bytes = vec![0; header.encoded_len()];
        header.encode(&mut bytes);
        bytes
    }

    /// A cancellation arrives, of a request of an earlier or later round.
    fn cancel(serves: &mut Serves, id: u64) {
        let message = encoded(&Header::control(Kind::Cancel, id));
        let control = serves.handle_control(ORIGIN, &message, |_| false, &mut Vec::new());
        assert!(matches!(control, Control::Cancelled(it) if it == id));
    }

    fn gone(serves: &mut Serves, arrived: &[u64]) {
        serves.handle_gone(ORIGIN, arrived.iter().copied(), &mut Vec::new());
    }

    #[test]
    fn admission_closes_at_the_limit_and_opens_again() {
        let mut serves = Serves::new(2, None);
        for id in 0..2 {
            assert!(serves.admits());
            assert!(matches!(serves.handle_message(ORIGIN, &request(id)), Arrival::Run { .. }));
        }
        assert!(!serves.admits());
        serves.handle_answered(ORIGIN, 0);
        assert!(serves.admits());
    }

    #[test]
    fn a_cancellation_that_overtook_its_request_is_remembered() {
        let mut serves = Serves::new(8, None);
        cancel(&mut serves, 4);
        let arrival = serves.handle_message(ORIGIN, &request(4));
        assert!(
            matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }),
            "{arrival:?}"
        );
        assert!(matches!(serves.handle_message(ORIGIN, &request(5)), Arrival::Run { .. }));
    }

    #[test]
    fn a_cancellation_that_came_too_late_is_forgotten_with_the_next_request() {
        let mut serves = Serves::new(8, None);
        let (mut table, other) = (crate::table::Table::default(), Peer::new(2, 1));
        let ids: Vec<u64> = (0..6).map(|_| table.insert(()).to_bits()).collect();
        assert!(matches!(serves.handle_message(ORIGIN, &request(ids[1])), Arrival::Run { .. }));
        serves.handle_answered(ORIGIN, ids[1]);
        // Of one that is answered, one that never comes, and two that are still to come.
        [1, 2, 4, 5].into_iter().for_each(|at| cancel(&mut serves, ids[at]));
        assert!(matches!(serves.handle_message(other, &request(ids[3])), Arrival::Run { .. }));
        assert_eq!(
            serves.early_cancels[&ORIGIN],
            ids[1..3].iter().chain(&ids[4..]).copied().collect::<Vec<_>>()
        );
        assert!(matches!(serves.handle_message(ORIGIN, &request(ids[3])), Arrival::Run { .. }));
        assert_eq!(serves.early_cancels[&ORIGIN], &ids[4..]);
        let arrival = serves.handle_message(ORIGIN, &request(ids[5]));
        assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }));
        assert!(serves.early_cancels.is_empty());
    }

    #[test]
    fn remembered_cancellations_are_bounded_for_each_origin_by_itself() {
        let mut serves = Serves::new(8, None);
        let other = Peer::new(2, 1);
        let message = encoded(&Header::control(Kind::Cancel, 4));
        serves.handle_control(other, &message, |_| false, &mut Vec::new());
        for id in 0..10 * EARLY_CANCELS_MAX as u64 {
            cancel(&mut serves, id);
        }
        assert_eq!(serves.early_cancels[&ORIGIN].len(), EARLY_CANCELS_MAX);
        let arrival = serves.handle_message(other, &request(4));
        assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }));
        gone(&mut serves, &[]);
        assert!(serves.early_cancels.is_empty());
    }

    #[test]
    fn running_handlers_see_cancellation_and_the_end_of_their_origin() {
        let mut serves = Serves::new(8, None);
        let others = Peer::new(2, 1);
        for (origin, id) in [(ORIGIN, 1), (ORIGIN, 2), (others, 1), (ORIGIN, 3), (ORIGIN, 4)] {
            serves.keep_running(origin, id);
        }
        let cancelled = serves.token(ORIGIN, 1, false);
        let orphaned = serves.token(ORIGIN, 2, false);
        let other = serves.token(others, 1, false);
        cancel(&mut serves, 1);
        cancel(&mut serves, 4);
        assert!(serves.is_cancelled(ORIGIN, 4) && serves.token(ORIGIN, 4, false).is_cancelled());
        assert!(cancelled.is_cancelled() && !orphaned.is_cancelled());
        gone(&mut serves, &[]);
        assert!(orphaned.is_cancelled() && !other.is_cancelled());
        // Whoever asks later learns the same.
        assert!(
            serves.token(ORIGIN, 3, false).is_cancelled()
                && !serves.token(others, 1, false).is_cancelled()
        );
        serves.close(&mut Vec::new());
        assert!(other.is_cancelled());
    }

    #[test]
    fn a_handler_that_starts_has_a_token_only_if_it_asks_or_goes_on() {
        let mut serves = Serves::new(8, None);
        serves.handle_answered(ORIGIN, 1);
        assert_eq!(serves.running(), 0);
        let asked = serves.token(ORIGIN, 2, true);
        serves.keep_running(ORIGIN, 2);
        let kept = serves.token(ORIGIN, 2, false);
        cancel(&mut serves, 2);
        assert!(asked.is_cancelled() && kept.is_cancelled());
        serves.handle_answered(ORIGIN, 2);
        let late = serves.token(ORIGIN, 2, false);
        assert!(!late.is_cancelled() && serves.running() == 0);
    }

    #[test]
    fn a_handler_that_is_still_to_be_run_learns_of_what_came_after_its_request() {
        let mut serves = Serves::new(8, None);
        for id in 3..6 {
            assert!(matches!(serves.handle_message(ORIGIN, &request(id)), Arrival::Run { .. }));
        }
        let message = encoded(&Header::control(Kind::Cancel, 3));
        serves.handle_control(ORIGIN, &message, |id| id == 3, &mut Vec::new());
        assert!(serves.is_cancelled(ORIGIN, 3) && serves.early_cancels.is_empty());
        assert!(serves.token(ORIGIN, 3, true).is_cancelled());
        gone(&mut serves, &[3, 4]);
        assert!(serves.token(ORIGIN, 4, true).is_cancelled());
        assert!(!serves.token(ORIGIN, 5, true).is_cancelled(), "of another origin, say");
        (3..6).for_each(|id| serves.handle_answered(ORIGIN, id));
        assert_eq!((serves.running(), serves.in_service()), (0, 0));
        serves.close(&mut Vec::new());
        assert!(serves.token(ORIGIN, 6, true).is_cancelled());
        assert!(serves.keep_running(ORIGIN, 7).as_ref().is_some_and(CancelToken::is_cancelled));
    }

    #[test]
    fn requests_above_the_rejection_limit_are_answered_so() {
        let mut serves = Serves::new(8, Some(1));
        assert!(matches!(serves.handle_message(ORIGIN, &request(0)), Arrival::Run { .. }));
        let arrival = serves.handle_message(ORIGIN, &request(1));
        assert!(matches!(arrival, Arrival::Refuse { status: Status::Rejected, .. }));
        assert_eq!(serves.in_service(), 1);
    }

    #[test]
    fn a_peer_that_does_not_speak_the_protocol_is_disconnected() {
        let mut serves = Serves::new(8, None);
        for bytes in [&b""[..], b"short", &[0xFF; 40]] {
            assert!(matches!(serves.handle_message(ORIGIN, bytes), Arrival::Disconnect(_)));
        }
        let mut foreign = request(9);
        foreign[2] = 77;
        let arrival = serves.handle_message(ORIGIN, &foreign);
        assert!(matches!(arrival, Arrival::Refuse { id: 9, status: Status::Decode, .. }));
    }
}
