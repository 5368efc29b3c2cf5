//! One endpoint: what `na` calls, and the state behind it.
//!
//! | file | what it does for the context |
//! |---|---|
//! | [`post`] | post, cancel, forget, message |
//! | [`space`] | messages that wait for space, and who is told of room |
//! | [`rounds`] | progress and sleep: which connections are polled, which are parked |
//! | [`chores`] | what is rare: events, timers, pages given back |
//! | [`handshake`] | from the first post, or an accept, to an open connection |
//! | [`draining`], [`partings`] | from the end of a connection to its last word, and what waits in between |
//! | [`transfers`] | put and get |
//! | [`mappings`], [`views`] | what is mapped of a peer's memory, and views of it |
//!
//! Nothing in a round of progress, a sleep or a cancel costs more with more idle peers.

mod chores;
mod draining;
mod handshake;
mod mappings;
mod partings;
mod post;
mod rounds;
mod space;
#[cfg(test)]
mod tests;
mod transfers;
mod views;

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use hg_na::{
    Address, Begun, Completion, Context, Descriptor, Error, Exchange, Exchanged, Guest, Identity,
    Message, Op, OpId, Peer, Rejected, Tag, Token, Told, Transit, Waiter,
};
use hg_na_memory::ForkGuard;
use hg_na_parts::{Flush, WaitSet, limits::os_error};
use nix::sys::epoll::EpollFlags;
use rustc_hash::FxHashMap;

use self::{
    chores::{LEVEL_IN, LISTENER},
    partings::Partings,
    rounds::POLL_EMPTY_MIN,
    transfers::PinsWanted,
};
use crate::{
    connection::{Connection, Phase},
    descriptor::RegionClaim,
    domain::Shared,
    fail,
    link::Kind,
    peers::Peers,
    receive::Intake,
    region::cma::Near,
    rendezvous::{name::Target, packet::GOODBYE, socket::Listener},
    wake::Intent,
};

/// A context of the shared-memory transport.
pub(crate) struct SmContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u8,
    pub(crate) address: Address,
    pub(crate) guard: &'static ForkGuard,
    pub(crate) waiter: Arc<WaitSet>,
    pub(crate) listener: Option<Listener>,
    pub(crate) peers: Peers,
    pub(crate) by_target: FxHashMap<Target, Peer>,
    /// Polled directly.
    pub(crate) hot: Vec<Peer>,
    /// Completions to hand out.
    pub(crate) finished: Vec<Completion>,
    pub(crate) serial: u64,
    flush: Flush,
    pub(crate) intake: Intake,
    /// `may_sleep` has said yes, and nothing has made progress since.
    pub(crate) is_sleeping: bool,
    /// `finished`, `backlog` or `dirty` may ask for something at the end of this round.
    pub(crate) has_leftovers: bool,
    /// A list below has work for the next round.
    pub(crate) has_chores: bool,
    /// Those whose phase asks for something: to connect, to be polled, to be drained.
    pub(crate) called: VecDeque<Peer>,
    /// Lists that wait for something: for admission, hung up or not, for space, for pages to be given back.
    pub(crate) withheld: BTreeSet<Peer>,
    /// What the hung up ones among those left behind.
    partings: Partings,
    pub(crate) backlog: Vec<Peer>,
    pub(crate) dirty: Vec<Peer>,
    pub(crate) timers: BTreeSet<(Instant, Peer)>,
    pub(crate) trim_at: Option<Instant>,
    /// When the listener is watched again, which could not accept.
    pub(crate) listen_at: Option<Instant>,
    /// The earliest of the next timer, `trim_at` and `listen_at`.
    pub(crate) due_at: Option<Instant>,
    /// Bytes that were begun to be moved since the last round.
    ahead: u64,
    /// Peers with whom transfers were to be begun later, and whether a sleep is to end when a word for a pin is free.
    later: BTreeSet<Peer>,
    wants_pins: Intent,
    pins_wanted: Arc<PinsWanted>,
    /// A peer was to be rung, and the system refused: it is tried again.
    pub(crate) unrung: Arc<AtomicBool>,
    pub(crate) events: Vec<Told>,
    /// Rounds in a row that found nothing.
    pub(crate) empty_rounds: u32,
    /// The kernel is asked again after so many of them, and from then on.
    pub(crate) poll_after: u32,
    poll_at: Instant,
}

impl SmContext {
    /// One of a domain's, which sleeps alone or as a guest.
    pub(crate) fn open(shared: &Arc<Shared>, id: u8, guest: Option<Guest>) -> Result<Self, Error> {
        if shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let listener = shared.take(id)?;
        let watched = |waiter: WaitSet| match &listener {
            Some(it) => watch_fd(&waiter, it.fd(), LISTENER, LEVEL_IN).map(|()| waiter),
            None => Ok(waiter),
        };
        let waiter = match WaitSet::new(Arc::clone(shared.guard), guest).and_then(watched) {
            Ok(waiter) => Arc::new(waiter),
            Err(error) => {
                listener.into_iter().for_each(Listener::close);
                shared.closed(id);
                return Err(error);
            }
        };
        Ok(Self {
            address: shared.name.address(id),
            guard: shared.guard,
            shared: Arc::clone(shared),
            id,
            pins_wanted: Arc::new(PinsWanted::of(&waiter)),
            waiter,
            listener,
            peers: Peers::default(),
            by_target: FxHashMap::default(),
            hot: Vec::new(),
            finished: Vec::new(),
            serial: 0,
            flush: Flush::default(),
            intake: Intake { admission: true, ferries: BTreeSet::new() },
            is_sleeping: false,
            has_leftovers: false,
            has_chores: false,
            called: VecDeque::new(),
            withheld: BTreeSet::new(),
            partings: Partings::default(),
            backlog: Vec::new(),
            dirty: Vec::new(),
            timers: BTreeSet::new(),
            trim_at: None,
            listen_at: None,
            due_at: None,
            ahead: 0,
            later: BTreeSet::new(),
            wants_pins: Intent::default(),
            unrung: Arc::default(),
            events: Vec::new(),
            empty_rounds: 0,
            poll_after: POLL_EMPTY_MIN,
            poll_at: Instant::now(),
        })
    }

    /// Work for the next round; ends a sleep, should another thread be in one.
    pub(crate) fn chore(&mut self) {
        self.has_chores = true;
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    /// Asks for [`chores`] at a time; a connection has one timer.
    pub(crate) fn at(&mut self, when: Instant, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        if let Some(before) = connection.timer.replace(when) {
            self.timers.remove(&(before, peer));
        }
        self.timers.insert((when, peer));
        self.schedule();
    }

    /// The connection needs no timer any more.
    pub(crate) fn untime(&mut self, peer: Peer) {
        if let Some(when) = self.peers.find(peer).and_then(|it| it.timer.take()) {
            self.timers.remove(&(when, peer));
            self.schedule();
        }
    }

    /// Finds the time at which [`chores`] are due.
    pub(crate) fn schedule(&mut self) {
        let timer = self.timers.first().map(|(when, _)| *when);
        self.due_at = [timer, self.trim_at, self.listen_at].into_iter().flatten().min();
    }
}

impl Context for SmContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        let target = Target::parse(address)?;
        if let Some(peer) = self.by_target.get(&target) {
            return Ok(*peer);
        }
        let connection = self.peers.add(Phase::Idle);
        connection.target = Some(target.clone());
        let peer = connection.peer;
        self.by_target.insert(target, peer);
        Ok(peer)
    }

    fn forget(&mut self, peer: Peer) {
        if !self.guard.is_child() {
            self.forget_peer(peer);
        }
    }

    fn message(&mut self, to: Peer, len: usize) -> Result<Message, Error> {
        self.new_message(to, len)
    }

    #[inline]
    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.post_op(token, op)
    }

    #[inline]
    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        self.post_exchange(exchange, message)
    }

    #[inline]
    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        if self.guard.is_child() {
            return None;
        }
        self.post_short(to, token, Kind::Answer(tag), message)
    }

    #[inline]
    fn collect(&mut self, from: Peer, tag: Tag, answer: &mut Message) -> bool {
        self.collect_answer(from, tag, answer)
    }

    #[inline]
    fn take_request(&mut self, from: Peer, request: &mut Message) -> bool {
        self.take_only_request(from, request)
    }

    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        self.begin_now(transit)
    }

    fn moves(&mut self, peer: Peer) -> bool {
        let cma = self.shared.settings.cma;
        let reaches = |it: &Connection| it.watch.as_ref().map_or(cma, |watch| watch.is_reachable());
        let may = |it: &mut Connection| it.takes_posts().is_ok() && (reaches(it) || it.maps.any());
        !self.guard.is_child() && self.peers.find(peer).is_some_and(may)
    }

    fn fetch<'into>(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return Begun::No };
        let range = (offset, into.len() as u64);
        self.begin_piece(owner, (Near::Slice(into), &claim, range), may_wait)
    }

    fn cancel(&mut self, id: OpId) {
        self.cancel_op(id);
    }

    fn set_admission(&mut self, open: bool) {
        self.change_admission(open);
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.change_admission_of(peer, open);
    }

    #[inline]
    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due_at
    }

    fn may_sleep(&mut self) -> bool {
        self.prepare_sleep()
    }

    fn identity(&self, peer: Peer) -> Identity {
        if self.guard.is_child() {
            return Identity::default();
        }
        let found = self.peers.get(peer).and_then(|it| it.credentials);
        found.map(|it| Identity::process(it.pid, it.uid)).unwrap_or_default()
    }

    fn flush(&mut self) -> bool {
        // What was published is taken by its peer although this side has closed, or was killed.
        let Self { flush, peers, serial, guard, .. } = self;
        guard.is_child()
            || flush.ask(*serial, |to| peers.iter().all(|connection| connection.has_published(to)))
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.peers.iter().filter(|it| it.is_open()).map(|it| it.peer).collect()
    }

    fn is_connected(&mut self, peer: Peer) -> bool {
        self.peers.find(peer).is_some_and(|connection| connection.is_open())
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.peers.find(peer).is_none_or(|connection| connection.was_open())
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl Drop for SmContext {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return; // The parent's connections are not ours to close; the shared memory is not here.
        }
        let all: Vec<Peer> = self.peers.iter().map(|it| it.peer).collect();
        for peer in all {
            fail::point("close");
            self.release(peer, Some(GOODBYE));
        }
        // Whoever opens the id next listens in its place.
        self.listener.take().into_iter().for_each(Listener::close);
        self.shared.closed(self.id);
    }
}

impl fmt::Debug for SmContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SmContext({}, {} peers)", self.address, self.peers.len())
    }
}

fn watch_fd(on: &WaitSet, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> Result<(), Error> {
    on.add(fd, name, what).map_err(|error| os_error("epoll_ctl", error))
}

/// Whether something moved.
pub(crate) type Moved = Result<bool, Error>;

/// When pages of arenas are looked at that were touched. What was used since the last look is looked at again after ten times that.
pub(crate) const TRIM_AFTER: Duration = Duration::from_millis(100);
