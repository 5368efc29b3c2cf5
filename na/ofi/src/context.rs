//! One context: what `na` calls, and the state behind it.
//!
//! | file | what it does for the context |
//! |---|---|
//! | [`crate::post`] | lookup, post, cancel, forget |
//! | [`crate::send`] | frames out: messages and transfers, as credits and libfabric allow |
//! | [`crate::arrive`] | frames in |
//! | [`crate::lent`] | memory that is lent to a peer, and moves that peers ask for |
//! | [`crate::chores`] | lifelines, timers, the end of connections |
//! | [`crate::strangers`] | accepting |

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Error, Identity, Message, Op, OpId, Peer, Rejected, Token, Waiter,
};
use hg_na_link::{Sending, Strangers, sending::new_message};
use hg_na_parts::Flush;
use nix::sys::epoll::EpollFlags;
use rustc_hash::FxHashMap;

use crate::{
    fabric::{Arrival, Endpoint, Event},
    leftovers::Mark,
    lifeline::Listener,
    link::{Links, Phase, Way},
    settings::{LIMITS, MESSAGE_MAX},
    shared::Shared,
    waiter::{LISTENER, OfiWaiter},
};

/// Batches of completions that one round takes.
const BATCHES: usize = 16;
/// Empty rounds after which the kernel is asked for news of lifelines.
const ASK_AFTER: u32 = 256;
/// So many rounds in any case: while one peer's messages leave no empty ones, others die, and new ones come.
const ASK_ROUNDS: u32 = 4096;

/// Where a frame that has come lies.
pub(crate) enum Frame {
    /// In libfabric's memory.
    Lent(Arrival),
    /// In this process's.
    Near(Vec<u8>),
}

/// A frame that libfabric has.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) peer: Peer,
    pub(crate) address: u64,
    /// The message that is sent with it, as a whole.
    pub(crate) sending: Option<Sending>,
}

/// An endpoint's address in libfabric's vector, while connections use it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) address: u64,
    pub(crate) users: usize,
}

/// An address that no connection uses any more.
#[derive(Debug)]
pub(crate) struct Retiring {
    pub(crate) name: Vec<u8>,
    pub(crate) address: u64,
    /// When it is removed at the latest.
    pub(crate) by: Instant,
}

/// A context of the libfabric transport.
pub(crate) struct OfiContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u8,
    pub(crate) address: Address,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) waiter: Arc<OfiWaiter>,
    pub(crate) listener: Option<Listener>,
    pub(crate) links: Links,
    /// Connections that have not introduced themselves.
    pub(crate) strangers: Strangers<u32>,
    pub(crate) known: FxHashMap<Vec<u8>, Known>,
    /// Addresses to be removed once nothing is under way to them, and when at the latest.
    pub(crate) retiring: Vec<Retiring>,
    pub(crate) flights: Vec<Option<Flight>>,
    pub(crate) free_flights: Vec<usize>,
    /// Moves that libfabric makes for transfers of peers.
    pub(crate) moves: FxHashMap<u64, (Peer, u64)>,
    flush: Flush,
    /// Connections with something to send.
    pub(crate) busy: Vec<u32>,
    /// Draining connections, which are looked at in every round.
    pub(crate) draining: Vec<u32>,
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    pub(crate) finished: Vec<Completion>,
    /// libfabric took a frame no more: it is tried again at this time.
    pub(crate) retry_at: Option<Instant>,
    pub(crate) accept_at: Option<Instant>,
    pub(crate) is_sleeping: bool,
    pub(crate) must_ask: bool,
    pub(crate) empty_rounds: u32,
    /// Since the kernel was asked.
    pub(crate) rounds: u32,
    pub(crate) told: Vec<(u64, EpollFlags)>,
    events: Vec<Event>,
    /// libfabric cannot be used any more.
    pub(crate) broken: Option<Error>,
    /// That the endpoint's memory has an owner who lives.
    _mark: Option<Mark>,
}

impl OfiContext {
    /// A context over an endpoint, listening at its place.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u8,
        address: Address,
        (endpoint, mark): (Endpoint, Option<Mark>),
        listener: Listener,
    ) -> Result<Self, Error> {
        let waiter =
            OfiWaiter::new(Arc::clone(&shared.guard), endpoint.wait_fd(), endpoint.bell())?;
        if shared.listen {
            waiter.add(listener.fd(), LISTENER, EpollFlags::EPOLLIN)?;
        }
        Ok(Self {
            shared,
            id,
            address,
            endpoint: Some(endpoint),
            waiter: Arc::new(waiter),
            listener: Some(listener),
            links: Links::new(0, LIMITS),
            strangers: Strangers::default(),
            known: FxHashMap::default(),
            retiring: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            moves: FxHashMap::default(),
            flush: Flush::default(),
            busy: Vec::new(),
            draining: Vec::new(),
            timers: BTreeSet::new(),
            finished: Vec::new(),
            retry_at: None,
            accept_at: None,
            is_sleeping: false,
            must_ask: true,
            empty_rounds: 0,
            rounds: 0,
            told: Vec::new(),
            events: Vec::new(),
            broken: None,
            _mark: mark,
        })
    }

    /// The endpoint, which is there until the context is dropped.
    #[inline]
    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("taken only by drop")
    }

    /// The beginning of a connection, with a key that nobody guesses.
    pub(crate) fn new_way(phase: Phase) -> Result<Way, Error> {
        let random = hg_na_parts::regions::random()?;
        let key = u64::from_le_bytes(*random.first_chunk().expect("16 bytes hold 8"));
        Ok(Way::new(phase, key))
    }

    /// There is something to do for this side's progress: ends a sleep, should another thread be in one.
    pub(crate) fn nudge(&mut self) {
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    /// One look at libfabric; says whether there was something.
    fn take_events(&mut self) -> Result<bool, Error> {
        let mut found = false;
        let mut events = std::mem::take(&mut self.events);
        for _ in 0..BATCHES {
            if let Err(fault) = self.endpoint().poll(&mut events) {
                let error = Error::from(fault);
                self.broken = Some(error.clone());
                return Err(error);
            }
            if events.is_empty() {
                break;
            }
            found = true;
            for event in events.drain(..) {
                self.take_event(event);
            }
        }
        self.events = events;
        Ok(found)
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Arrived(arrival) => self.frame_came(&Frame::Lent(arrival)),
            Event::Near(bytes) => self.frame_came(&Frame::Near(bytes)),
            Event::Sent(note) => self.flight_landed(note, None),
            Event::Unsent(note, fault) => self.flight_landed(note, Some(fault)),
            Event::Moved(note, fault) => self.move_ended(note, fault),
            Event::Lost(address, fault) => self.frame_lost(address, fault),
            // Of a receive: whose it was is not known. A connection that is broken shows on its lifeline, or is stalled.
            Event::Failed(fault) => {
                tracing::debug!(%fault, "libfabric reports a failure of nobody's")
            }
        }
    }

    fn round(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let before = done.len();
        done.append(&mut self.finished);
        let slept = std::mem::take(&mut self.is_sleeping);
        let mut moved = self.take_events()?;
        self.empty_rounds = if moved { 0 } else { self.empty_rounds + 1 };
        self.rounds += 1;
        let is_time = self.empty_rounds >= ASK_AFTER || self.rounds >= ASK_ROUNDS;
        if slept || self.must_ask || !self.draining.is_empty() || is_time {
            (self.empty_rounds, self.rounds) = (0, 0);
            moved |= self.attend_lifelines(now)?;
        }
        moved |= self.run_timers(now);
        moved |= self.admit();
        moved |= self.send_all(now);
        if !self.draining.is_empty() {
            self.drain_all(now);
        }
        done.append(&mut self.finished);
        Ok(moved || done.len() > before)
    }
}

impl Context for OfiContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.shared.same_process()?;
        self.look_up(address)
    }

    fn forget(&mut self, peer: Peer) {
        if self.shared.same_process().is_ok() {
            self.forget_peer(peer);
        }
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        new_message(len, MESSAGE_MAX)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.post_op(token, op)
    }

    fn cancel(&mut self, id: OpId) {
        if self.shared.same_process().is_ok() {
            self.cancel_op(id);
        }
    }

    fn set_admission(&mut self, open: bool) {
        if self.links.set_admission(open) {
            self.nudge();
        }
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        if self.links.set_admission_of(peer, open) {
            self.nudge();
        }
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.shared.same_process()?;
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(when, _)| *when);
        let retiring = self.retiring.iter().map(|it| it.by).min();
        [timer, self.retry_at, self.accept_at, retiring].into_iter().flatten().min()
    }

    fn may_sleep(&mut self) -> bool {
        if self.shared.same_process().is_err() || self.broken.is_some() {
            return false;
        }
        let can_send = !self.busy.is_empty() && self.retry_at.is_none();
        let is_idle = self.finished.is_empty() && self.draining.is_empty();
        if can_send || self.links.has_admissible() || !is_idle || !self.endpoint().may_wait() {
            return false;
        }
        let mut told = std::mem::take(&mut self.told);
        let asked = self.waiter.ask(&mut told);
        self.told = told;
        self.is_sleeping = asked.is_ok() && self.told.is_empty();
        self.must_ask = !self.is_sleeping;
        self.is_sleeping
    }

    fn identity(&self, peer: Peer) -> Identity {
        match self.links.get(peer) {
            Some(link) if self.shared.same_process().is_ok() => link.way.identity.clone(),
            _ => Identity::default(),
        }
    }

    fn flush(&mut self) -> bool {
        // What libfabric has let go of is waited for by who hears this side's goodbye.
        let Self { flush, links, flights, .. } = self;
        flush.ask(links.serial(), |to| {
            let in_flight = flights.iter().flatten().filter_map(|flight| flight.sending.as_ref());
            links.iter().all(|link| link.queues.has_passed_on(to))
                && in_flight.into_iter().all(|sending| sending.id.serial > to)
        })
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.links.iter().filter(|link| link.way.is_open()).map(|link| link.peer).collect()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.links.find(peer).is_none_or(|link| link.way.was_open())
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl Drop for OfiContext {
    fn drop(&mut self) {
        if self.shared.same_process().is_err() {
            // The parent's connections are not ours to close.
            std::mem::forget(self.endpoint.take());
            return;
        }
        self.close_all();
        drop(self.endpoint.take());
        drop(self.listener.take());
        self.shared.closed(self.id);
    }
}

impl fmt::Debug for OfiContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OfiContext({}, {} peers)", self.address, self.links.len())
    }
}

/// How long a frame that libfabric never gives back keeps its target's address.
pub(crate) const RETIRE_AFTER: Duration = Duration::from_secs(1);
