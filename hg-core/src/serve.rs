//! The target's side of calls: what to do with an arriving message, how many requests are in
//! service, and who is to be told of a cancellation.
//!
//! ```text
//!             has its share           ended in its round: answered
//!   comes ---------------------> arrived ------------------------------------> (gone)
//!     | has not                  ^     |   goes on beyond it, or was asked
//!     +-----------> held --------+     +-----------------------> running --- answered -----------> (gone)
//! ```
//! Each request is answered once: whoever ends one that does not run any more is told so. An origin that uses the id of one that runs
//! again is disconnected, and what it has begun so counts like all else. In service is what has arrived and
//! what runs. An origin has no more of it than is left to all others ([`Shares`]). What comes of one that has is held, and nothing
//! more is taken from it until it has less: so what is held is what the transport hands over in a round. Origins of which
//! something is held take turns. Nothing is taken, either, from an origin that does not take its answers. An origin that has hung up waits for nothing: its handlers are told, and what else it has asked for
//! is not begun; its one-way calls are.
//!
//! A cancellation may overtake its request: one that finds no handler is remembered (`serve/early.rs`).

mod early;
mod stall;
mod verdicts;

use std::{
    collections::{BTreeSet, VecDeque, hash_map::Entry},
    time::{Duration, Instant},
};

use hg_na::{Message, Peer};
use rustc_hash::FxHashMap;

pub use self::{
    early::EARLY_CANCELS_MAX,
    stall::{STALL_AFTER, Stalled},
    verdicts::{Admission, Arrival},
};
use self::{
    early::EarlyCancels,
    stall::Watch,
    verdicts::{refuse, refuse_with},
};
use crate::{
    cancel::CancelToken,
    codec::{self, Codec as _},
    deferred::{Action, Deferred},
    error::Status,
    header::{Header, Kind},
    shares::Shares,
};

/// Requests in service at a target before it stops taking more (they wait at their origins); of one origin at most as
/// many as are left to all others.
pub const IN_SERVICE_MAX: usize = 4096;
/// A request that can be told of a cancellation.
#[derive(Debug, Default)]
struct Running {
    /// Once somebody has asked for it, or it was set.
    token: Option<CancelToken>,
    /// Handlers that go on beyond their rounds: where there are several, its origin has used an id again.
    kept: u32,
}

impl Running {
    /// Who awaits its token is to be woken.
    fn cancel(&mut self, deferred: &mut Deferred) {
        let wakers = self.token.get_or_insert_default().set();
        deferred.extend(wakers.into_iter().map(Action::Wake));
    }
}

/// Requests that have no room yet, and when each came.
type Held = VecDeque<(Message, Instant)>;

/// The requests of one context that are in service.
#[derive(Debug)]
pub struct Serves {
    /// Those that have arrived in this round, and whose handlers have not ended it yet.
    arrived: usize,
    max: usize,
    reject_above: Option<usize>,
    /// What runs, by origin.
    shares: Shares<Peer>,
    /// So many may arrive in a round, whoever they are of, without a look at shares; none where anything else is to be looked at.
    at_ease: usize,
    /// Whether admission is to be looked at.
    is_due: bool,
    /// What has no room yet, by origin; and those origins, in turn.
    held: FxHashMap<Peer, Held>,
    turns: VecDeque<Peer>,
    admission_open: bool,
    /// Origins of which something has changed, to be looked at.
    changed: Vec<Peer>,
    /// Origins that are not admitted. Of those that have their share, how much that was when they were last looked at.
    shut: FxHashMap<Peer, Option<u64>>,
    /// The latter, in the order in which they are within their shares again.
    full: BTreeSet<(u64, Peer)>,
    /// Origins that have hung up, and of which something may still come; whether they are gone, and only held requests are left.
    hung_up: FxHashMap<Peer, bool>,
    /// Requests whose handlers run longer than one round of progress, or have asked for their token.
    running: FxHashMap<(Peer, u64), Running>,
    /// Origins that have used the id of a request again while its handler runs.
    repeating: Vec<Peer>,
    is_closed: bool,
    /// Nothing new is begun.
    is_draining: bool,
    early_cancels: EarlyCancels,
    /// One-way calls that were dropped, and would have been refused otherwise.
    dropped: u64,
    watch: Watch,
}

impl Serves {
    /// Nothing in service. Admission closes at `max`; above `reject_above` requests are answered
    /// with [`Status::Overloaded`] instead of being run.
    #[must_use]
    pub fn new(max: usize, reject_above: Option<usize>) -> Self {
        let mut serves = Self {
            arrived: 0,
            max: max.max(1),
            reject_above,
            shares: Shares::new(max.max(1) as u64),
            at_ease: 0,
            held: FxHashMap::default(),
            turns: VecDeque::new(),
            admission_open: true,
            changed: Vec::new(),
            shut: FxHashMap::default(),
            full: BTreeSet::new(),
            is_due: false,
            hung_up: FxHashMap::default(),
            running: FxHashMap::default(),
            repeating: Vec::new(),
            is_closed: false,
            is_draining: false,
            early_cancels: EarlyCancels::default(),
            dropped: 0,
            watch: Watch::default(),
        };
        serves.set_ease();
        serves
    }

    /// Requests taken and not yet answered.
    #[must_use]
    pub fn in_service(&self) -> usize {
        self.arrived + usize::try_from(self.shares.total()).unwrap_or(usize::MAX)
    }

    /// Begins nothing new from now on: requests are refused with [`Status::Draining`], one-way calls dropped.
    pub fn drain(&mut self) {
        self.is_draining = true;
        self.set_ease();
    }

    /// Whether [`Serves::poll_admission`] may have something to say.
    #[inline]
    #[must_use]
    pub fn has_chores(&self) -> bool {
        self.is_due
    }

    /// What is to change about admission, one after the other. `takes`: whether a peer takes its answers.
    pub fn poll_admission(&mut self, takes: impl Fn(Peer) -> bool) -> Option<Admission> {
        let open = self.in_service() < self.max;
        if open != self.admission_open {
            self.admission_open = open;
            return Some(Admission::Of(open));
        }
        while let Some(peer) = self.changed.pop() {
            if let Some(change) = self.look_at(peer, &takes) {
                return Some(change);
            }
        }
        while let Some(&(had, peer)) = self.full.first()
            && had < self.shares.left()
        {
            if let Some(change) = self.look_at(peer, &takes) {
                return Some(change);
            }
        }
        self.is_due = !self.admission_open;
        None
    }

    /// Whether one origin is admitted now, if it was not before, or the other way about.
    fn look_at(&mut self, peer: Peer, takes: impl Fn(Peer) -> bool) -> Option<Admission> {
        let was_open = !self.open(peer);
        let has = (!self.shares.admits(peer, 1)).then(|| self.shares.of(peer));
        let is_open = has.is_none() && !self.is_held(peer) && takes(peer);
        if !is_open {
            self.shut.insert(peer, has);
            self.full.extend(has.map(|has| (has, peer)));
        }
        (is_open != was_open).then_some(Admission::OfPeer(peer, is_open))
    }

    /// An origin is not among those any more that are not admitted; says whether it was.
    fn open(&mut self, peer: Peer) -> bool {
        let had = self.shut.remove(&peer);
        if let Some(Some(had)) = had {
            self.full.remove(&(had, peer));
        }
        had.is_some()
    }

    /// Whether anything of this origin is held.
    fn is_held(&self, peer: Peer) -> bool {
        self.held.contains_key(&peer)
    }

    /// Whether there is room for one more request of this origin, as if all of this round were its own.
    fn has_room(&self, peer: Peer) -> bool {
        let (arrived, left) = (self.arrived as u64, self.max.saturating_sub(self.in_service()));
        self.shares.of(peer) + arrived < left as u64
    }

    /// Keeps a request for which [`Arrival::Hold`] was said `now`.
    pub fn hold(&mut self, from: Peer, message: Message, now: Instant) {
        let messages = self.held.entry(from).or_default();
        let is_first = messages.is_empty();
        messages.push_back((message, now));
        if is_first {
            self.turns.push_back(from);
            self.handle_change(from);
        }
        self.set_ease();
    }

    /// Whether anything is held.
    #[inline]
    #[must_use]
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether [`Serves::take_held`] gives anything.
    #[must_use]
    pub fn can_take_held(&self) -> bool {
        self.turns.iter().any(|peer| self.has_room(*peer))
    }

    /// Takes a request for which there is room `now`, and says what to do with it. The time that it was held is not left to it any
    /// more.
    pub fn take_held(&mut self, now: Instant) -> Option<(Peer, Message, Arrival)> {
        let at = self.turns.iter().position(|peer| self.has_room(*peer))?;
        let from = self.turns.remove(at)?;
        let messages = self.held.get_mut(&from)?;
        let (mut message, since) = messages.pop_front()?;
        subtract_remaining(&mut message, now.saturating_duration_since(since));
        let is_last = messages.is_empty();
        if is_last {
            self.held.remove(&from);
        } else {
            self.turns.push_back(from);
        }
        let arrival = self.begin(from, message.as_slice());
        let is_gone = self.hung_up.get(&from) == Some(&true);
        if is_gone && let Arrival::Run { header, .. } = &arrival {
            self.remember(from, header.id); // Before its handler starts that may be forgotten.
        }
        if is_last {
            self.handle_change(from);
            if is_gone {
                self.hung_up.remove(&from);
            }
            self.set_ease();
        }
        Some((from, message, arrival))
    }

    /// Whether a peer is admitted is to be looked at: it takes its answers or not, or has more or less than before.
    pub fn handle_change(&mut self, peer: Peer) {
        if self.changed.last() != Some(&peer) {
            self.changed.push(peer);
            self.is_due = true;
        }
    }

    fn take_share(&mut self, peer: Peer) {
        self.shares.take(peer, 1);
        if !self.shares.admits(peer, 1) {
            self.handle_change(peer);
        }
        self.set_ease();
    }

    fn give_share(&mut self, peer: Peer) {
        self.shares.give(peer, 1);
        self.watch.handle_end(peer);
        if self.shut.contains_key(&peer) {
            self.handle_change(peer);
        }
        self.is_due |= !self.full.is_empty();
        self.set_ease();
    }

    /// Whoever has most has no more than all, and so many more are within its share all the same.
    fn set_ease(&mut self) {
        let is_plain = self.early_cancels.is_empty()
            && self.reject_above.is_none()
            && self.hung_up.is_empty()
            && self.held.is_empty()
            && !self.is_draining;
        let taken = self.in_service() - self.arrived;
        let half = self.max.saturating_sub(taken.saturating_mul(2)).div_ceil(2);
        self.at_ease = if is_plain { half } else { 0 };
    }

    /// Whether one more may arrive without a look at shares.
    #[inline(always)]
    pub(crate) fn is_at_ease(&self) -> bool {
        self.arrived < self.at_ease
    }

    /// The common case of [`Serves::handle_message`], where [`Serves::is_at_ease`]: the header of a request that is to run, and where
    /// its payload begins.
    #[inline(always)]
    pub(crate) fn handle_plain(&mut self, message: &[u8]) -> Option<(Header, usize)> {
        let plain = Header::decode_plain_request(message)?;
        self.arrived += 1;
        Some(plain)
    }

    /// An unexpected message has arrived.
    pub fn handle_message(&mut self, from: Peer, message: &[u8]) -> Arrival {
        if self.is_at_ease()
            && let Some((header, payload)) = self.handle_plain(message)
        {
            return Arrival::Run { header, payload };
        }
        if self.reject_above.is_none() && !self.has_room(from) || self.is_held(from) {
            return Arrival::Hold;
        }
        self.begin(from, message)
    }

    /// The same for one that has room.
    #[cold]
    fn begin(&mut self, from: Peer, message: &[u8]) -> Arrival {
        let (header, payload) = match Header::decode(message) {
            Ok(decoded) => decoded,
            Err(malformed) => return refuse(&malformed),
        };
        if !header.kind.is_request() {
            return Arrival::Disconnect(
                "an answer or control message came as a request".to_owned(),
            );
        }
        if header.kind == Kind::Request && self.hung_up.contains_key(&from) {
            return Arrival::Drop;
        }
        let is_cancelled = self.early_cancels.take(from, header.id);
        self.set_ease();
        if header.code != codec::Default::ID {
            let text = codec::differ(header.code);
            return self.refuse(from, &header, Status::Incompatible, text);
        }
        if self.is_draining {
            return refuse_with(&header, Status::Draining, String::new());
        }
        if header.remaining_ns == Some(0) {
            return refuse_with(&header, Status::DeadlineExceeded, String::new());
        }
        if is_cancelled {
            return refuse_with(&header, Status::Cancelled, String::new());
        }
        if self.reject_above.is_some_and(|limit| self.in_service() >= limit) {
            let text = format!("{} requests are in service, the target's limit", self.in_service());
            return self.refuse(from, &header, Status::Overloaded, text);
        }
        self.arrived += 1;
        self.is_due |= self.in_service() >= self.max;
        Arrival::Run { header, payload }
    }

    /// Refuses a request; a one-way call is dropped, which its origin does not learn.
    fn refuse(&mut self, from: Peer, header: &Header, status: Status, text: String) -> Arrival {
        if header.kind == Kind::OneWay {
            self.log_dropped(from, &text);
        }
        refuse_with(header, status, text)
    }

    /// Says in the log that a one-way call was dropped: of the first, the second, the fourth and so on, so that no peer fills it.
    #[cold]
    pub fn log_dropped(&mut self, from: Peer, why: &str) {
        self.dropped += 1;
        if self.dropped.is_power_of_two() {
            let dropped = self.dropped;
            tracing::warn!(dropped, ?from, "a one-way call was dropped: {why}");
        }
    }

    /// Whether nobody waits for this answer any more, by what was heard so far.
    #[must_use]
    pub fn is_cancelled(&self, from: Peer, id: u64) -> bool {
        let token = self.running.get(&(from, id)).and_then(|it| it.token.as_ref());
        token.is_some_and(CancelToken::is_cancelled)
    }

    /// The origin does not want an answer any more. `has_arrived`: the request came in the same round, and its handler is still to
    /// be run.
    pub fn handle_cancel(
        &mut self,
        from: Peer,
        id: u64,
        has_arrived: bool,
        deferred: &mut Deferred,
    ) {
        if has_arrived {
            self.remember(from, id);
        }
        if let Some(running) = self.running.get_mut(&(from, id)) {
            return running.cancel(deferred);
        }
        self.early_cancels.add(from, id);
        self.set_ease();
    }

    /// A handler goes on beyond this round: it can be told of a cancellation from now on, and is ended by [`Serves::end`].
    #[inline]
    pub fn keep_running(&mut self, from: Peer, id: u64) {
        self.leave_round();
        let running = self.remember(from, id);
        running.kept += 1;
        if running.kept > 1 {
            self.take_share(from);
            self.handle_repeated(from);
        }
    }

    /// A request can be told of a cancellation from now on.
    fn remember(&mut self, from: Peer, id: u64) -> &mut Running {
        let len = self.running.len();
        let is_told = self.is_closed || self.hung_up.contains_key(&from);
        let new = || Running { token: is_told.then(CancelToken::cancelled), kept: 0 };
        self.running.entry((from, id)).or_insert_with(new);
        if self.running.len() > len {
            self.take_share(from);
        }
        self.running.get_mut(&(from, id)).expect("it was put there")
    }

    /// An id is used again while its handler runs, so that nobody could tell whose the answers are.
    #[cold]
    fn handle_repeated(&mut self, from: Peer) {
        self.repeating.push(from);
        self.is_due = true;
    }

    /// Whom to disconnect for that.
    pub fn poll_repeating(&mut self) -> Option<Peer> {
        self.repeating.pop()
    }

    /// One that has arrived is not of this round only any more, or is over. Once closed nobody counts.
    #[inline]
    fn leave_round(&mut self) {
        debug_assert!(self.arrived > 0 || self.is_closed, "a request leaves its round once");
        self.arrived = self.arrived.saturating_sub(1);
    }

    /// By which a handler is told of a cancellation. One that has answered never is. `is_starting`: it is run for the first
    /// time, in a round in which no cancellation can arrive, and is not kept yet.
    pub fn token(&mut self, from: Peer, id: u64, is_starting: bool) -> CancelToken {
        if is_starting || self.running.contains_key(&(from, id)) {
            return self.remember(from, id).token.get_or_insert_default().clone();
        }
        if self.is_closed { CancelToken::cancelled() } else { CancelToken::default() }
    }

    /// A handler has ended in the round that its request has come in.
    #[inline]
    pub fn end_in_round(&mut self, from: Peer, id: u64) {
        self.leave_round();
        if !self.running.is_empty() {
            self.forget(from, id);
        }
    }

    /// A request cannot be told of a cancellation any more. Where a handler was kept, it is another one's.
    fn forget(&mut self, from: Peer, id: u64) {
        match self.running.get(&(from, id)) {
            Some(Running { kept: 1.., .. }) => self.handle_repeated(from),
            Some(Running { kept: 0, .. }) => _ = self.end(from, id),
            None => {}
        }
    }

    /// A handler that was kept has ended. `false`: it had before, and whatever it answers now is nobody's.
    #[must_use = "each request is answered once"]
    pub fn end(&mut self, from: Peer, id: u64) -> bool {
        let Entry::Occupied(mut running) = self.running.entry((from, id)) else { return false };
        if running.get().kept > 1 {
            running.get_mut().kept -= 1;
        } else {
            running.remove();
        }
        self.give_share(from);
        true
    }

    /// The origin is gone: nothing comes of it any more. Handlers of calls that `arrived` in the same round are told, as of one that hangs up.
    pub fn handle_gone(&mut self, peer: Peer, arrived: impl Iterator<Item = u64>) {
        self.early_cancels.forget(peer);
        if self.hung_up.contains_key(&peer) {
            arrived.for_each(|id| _ = self.remember(peer, id));
        }
        if self.is_held(peer) {
            self.hung_up.insert(peer, true);
        } else {
            self.hung_up.remove(&peer);
        }
        self.set_ease();
        self.open(peer);
        self.changed.retain(|changed| *changed != peer);
        self.repeating.retain(|repeating| *repeating != peer);
    }

    /// The origin has hung up: its handlers are told, also those that are still to be run of one-way calls that `arrived` in the
    /// same round.
    pub fn handle_hung_up(
        &mut self,
        peer: Peer,
        arrived: impl Iterator<Item = u64>,
        deferred: &mut Deferred,
    ) {
        self.early_cancels.forget(peer);
        self.hung_up.insert(peer, false);
        if let Some(messages) = self.held.get_mut(&peer) {
            messages.retain(|(message, _)| is_one_way(message.as_slice()));
            if messages.is_empty() {
                self.held.remove(&peer);
                self.turns.retain(|it| *it != peer);
            }
            self.handle_change(peer);
        }
        self.set_ease();
        for id in arrived {
            self.remember(peer, id);
        }
        let of_peer = self.running.iter_mut().filter(|((origin, _), _)| *origin == peer);
        of_peer.for_each(|(_, running)| running.cancel(deferred));
    }

    /// The engine shuts down: every handler is told.
    pub fn close(&mut self, deferred: &mut Deferred) {
        self.is_closed = true;
        self.arrived = 0;
        self.held.clear();
        self.turns.clear();
        self.running.values_mut().for_each(|running| running.cancel(deferred));
    }
}

/// Takes something off the time that is left to a request, where it says so.
fn subtract_remaining(message: &mut Message, waited: Duration) {
    if let Ok((Header { remaining_ns: Some(left), .. }, _)) = Header::decode(message.as_slice()) {
        let left = Duration::from_nanos(left).saturating_sub(waited);
        Header::set_remaining(message.as_mut_slice(), left);
    }
}

fn is_one_way(message: &[u8]) -> bool {
    Header::decode(message).is_ok_and(|(header, _)| header.kind == Kind::OneWay)
}

#[cfg(test)]
mod tests;
