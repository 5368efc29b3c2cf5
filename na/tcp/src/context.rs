//! One endpoint: what `na` calls, and the state behind it.
//!
//! | file | what it does for the context |
//! |---|---|
//! | [`crate::post`] | post, cancel, forget, message |
//! | [`crate::short_cuts`] | exchange, reply |
//! | [`crate::rounds`] | progress and sleep: what is asked of the kernel, and when |
//! | [`crate::reading`] | from a socket to frames |
//! | [`crate::arrivals`] | what each frame does |
//! | [`crate::parts`] | memory of messages that have come in part |
//! | [`crate::flushing`] | flushes |
//! | [`crate::dialling`] | from the first post to a connection |
//! | [`crate::handshake`] | greetings, and which of two connections is used |

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    io::Read as _,
    net::Shutdown,
    os::fd::AsFd as _,
    sync::Arc,
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Error, Exchange, Exchanged, GoneReason, Identity, Message, Op,
    OpId, Peer, Rejected, Tag, Token, Told, Waiter,
};
use hg_na_link::{Strangers, Table, sending::new_message, strangers::Scarcity};
use hg_na_parts::{FREE_NAME, WaitSet, limits::os_error, regions::random};
use rustc_hash::FxHashMap;
use socket2::Socket;

use crate::{
    address::Target,
    frame::{Kind, MESSAGE_MAX},
    greeting::Incarnation,
    inbox::Inbox,
    link::{Link, Links, State, Way},
    pace::Pace,
    part::Parts,
    settings::LIMITS,
    shared::{Listening, Shared},
    transfers::next_piece,
    watched::Watched,
    wire::{ARRIVALS, Buffers, Flush, Phase, Wire, WireKey},
};

/// The listener's name in the wait set.
pub(crate) const LISTENER: u64 = FREE_NAME;
/// The buffer that all connections are read into.
const SCRATCH: usize = 128 << 10;
/// Rounds during which the kernel is asked each time, after it told something unlooked for.
pub(crate) const CROWD_ROUNDS: u32 = 256;

/// Rounds after which the kernel is asked in any case: twice as many each time that it had nothing to
/// tell but bytes of the connection that is read anyway.
pub(crate) const ASK_MIN: u32 = 32;

/// What is due at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A greeting, or a connection without links, has taken too long.
    Wire(WireKey),
    /// A name was not resolved, or a connection that was promised has not come.
    Link(Peer),
    /// The listener was out of descriptors.
    Accept,
    /// Connections that were written to are looked at.
    Looks,
    /// The flush under way is to be asked about.
    Flush,
    /// Messages in part and those that wait for admission take too much memory.
    Parts,
}

/// The flush of a context.
#[derive(Debug, Default)]
pub(crate) struct Flushing {
    pub(crate) stage: FlushStage,
    /// The time of the next look is set.
    pub(crate) is_timed: bool,
}

/// How far the flush of a context is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum FlushStage {
    /// None is under way.
    #[default]
    Idle,
    /// Messages up to this number are to get among the frames.
    Queues(u64),
    /// They are: each connection knows how far it is to get.
    Wires,
}

/// A context of the TCP transport.
pub(crate) struct TcpContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u8,
    pub(crate) address: Address,
    pub(crate) incarnation: Incarnation,
    pub(crate) waiter: Arc<WaitSet>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) listener: Option<Listening>,
    pub(crate) accepts: bool,
    pub(crate) links: Links,
    /// All connections. One is taken out while something is done with it.
    pub(crate) wires: Table<Wire>,
    /// Open connections that surely lead to a target: dialled, or confirmed by one that was.
    pub(crate) routes: FxHashMap<Target, WireKey>,
    /// Open connections by what their other end says it is.
    pub(crate) by_incarnation: HashMap<Incarnation, WireKey>,
    /// Open connections; accepted connections that have not said who they are.
    pub(crate) open: usize,
    pub(crate) strangers: Strangers<WireKey>,
    pub(crate) scarcity: Scarcity<Socket>,
    pub(crate) watched: Watched,
    pub(crate) parts: Parts,
    pub(crate) flushing: Flushing,
    pub(crate) finished: Vec<Completion>,
    /// Links to be started; links that wait for a connection of the peer's choice.
    pub(crate) starting: Vec<Peer>,
    pub(crate) awaiting: Vec<Peer>,
    /// Wires to be read, to be flushed.
    pub(crate) listed: Vec<WireKey>,
    pub(crate) dirty: Vec<WireKey>,
    /// The wire that was read last.
    pub(crate) hot: Option<WireKey>,
    pub(crate) timers: BTreeSet<(Instant, Timer)>,
    pub(crate) told: Vec<Told>,
    pub(crate) scratch: Vec<u8>,
    /// What came out of the last record.
    pub(crate) opened: Vec<u8>,
    /// What is sealed in.
    buffers: Buffers,
    /// `may_sleep` has said yes, and nothing has made progress since.
    pub(crate) is_sleeping: bool,
    /// Rounds since bytes came, and since the kernel was asked; after how many it is asked again; how
    /// many to come in which it is asked anyway.
    pub(crate) quiet: u32,
    pub(crate) since_ask: u32,
    pub(crate) ask_after: u32,
    pub(crate) crowd: u32,
    /// When the hot wire is read.
    pub(crate) pace: Pace,
}

impl TcpContext {
    /// An endpoint of a domain, with a mark on its handles or none ([`Peer::SECOND`], 0).
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(shared: Arc<Shared>, id: u8, mark: u32) -> Result<Self, Error> {
        let waiter = Arc::new(WaitSet::new(Arc::clone(&shared.guard), None)?);
        let listener = shared.listener()?;
        if let Some(listener) = &listener {
            let added = waiter.add(listener.socket.as_fd(), LISTENER, ARRIVALS);
            added.map_err(|error| os_error("epoll_ctl", error))?;
        }
        Ok(Self {
            address: shared.address(id)?,
            incarnation: random()?,
            inbox: Arc::new(Inbox::new(Arc::clone(&waiter))),
            shared,
            id,
            waiter,
            accepts: listener.is_some(),
            links: Links::new(mark, LIMITS),
            wires: Table::default(),
            routes: FxHashMap::default(),
            by_incarnation: HashMap::new(),
            open: 0,
            strangers: Strangers::default(),
            scarcity: Scarcity::default(),
            listener,
            watched: Watched::default(),
            parts: Parts::default(),
            flushing: Flushing::default(),
            finished: Vec::new(),
            starting: Vec::new(),
            awaiting: Vec::new(),
            listed: Vec::new(),
            dirty: Vec::new(),
            hot: None,
            timers: BTreeSet::new(),
            told: Vec::new(),
            scratch: vec![0; SCRATCH],
            opened: Vec::new(),
            buffers: Buffers::default(),
            is_sleeping: false,
            quiet: 0,
            since_ask: 0,
            ask_after: ASK_MIN,
            crowd: 0,
            pace: Pace::default(),
        })
    }

    /// Ends a sleep, should another thread be in one.
    pub(crate) fn wake(&self) {
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    /// Has a connection flushed in the next round.
    pub(crate) fn soil(&mut self, wire: &mut Wire) {
        wire.soil(&mut self.dirty);
    }

    /// Has a connection read in the next round.
    pub(crate) fn list(&mut self, wire: &mut Wire) {
        if !wire.is_listed {
            wire.is_listed = true;
            self.listed.push(wire.key);
        }
    }

    /// Writes what a connection holds; says whether the socket took something.
    pub(crate) fn flush(&mut self, wire: &mut Wire) -> bool {
        let (links, before, controls) = (&mut self.links, wire.writes, wire.outbound.controls());
        let flushed =
            wire.flush(&mut self.buffers, |wire| next_piece(links, wire), &mut self.finished);
        if wire.outbound.controls() < controls {
            self.tell_room(wire);
        }
        match flushed {
            Flush::Idle => {}
            Flush::More => self.soil(wire),
            Flush::Blocked => {
                self.crowd = CROWD_ROUNDS;
                let watched = wire.watch_space(&self.waiter, true);
                wire.broken_by = watched.err().map(|error| error.kind());
            }
            Flush::Broken => {}
        }
        if wire.is_broken() {
            // What the peer had sent comes first; then the socket says why.
            (wire.is_readable, wire.is_ending) = (true, true);
            self.list(wire);
        }
        if wire.is_stopped && wire.may_read() {
            wire.is_stopped = false;
            self.list(wire);
        }
        let has_left = wire.writes > before + u64::from(flushed == Flush::Blocked);
        if has_left {
            self.watch(wire);
        }
        has_left
    }

    /// Control messages have left a connection: there may be room for others.
    #[cold]
    fn tell_room(&mut self, wire: &Wire) {
        let mut told = false;
        for peer in wire.slots.iter().filter_map(|slot| slot.peer) {
            let Some(link) = self.links.find(peer) else { continue };
            told |= link.tell_room(&LIMITS, wire.outbound.controls(), &mut self.finished);
        }
        if told {
            self.wake();
        }
    }

    /// A connection is of no use any more: ends its links and closes it.
    pub(crate) fn lose(&mut self, mut wire: Box<Wire>, why: &GoneReason) {
        self.untime(&mut wire);
        self.no_stranger(&mut wire);
        self.uncount_part(wire.part.take());
        if wire.phase == Phase::Open {
            self.open -= 1;
            self.unmap(&wire);
        }
        for side in 0..2 {
            let Some(peer) = wire.slots[side].peer.take() else { continue };
            wire.outbound.end((peer, why), false, &mut self.finished);
            self.end_link(peer, why);
        }
        self.promised_has_ended(&wire);
        self.wires.release(wire.key);
    }

    /// The connection is not to be found for new links.
    pub(crate) fn unmap(&mut self, wire: &Wire) {
        self.routes.retain(|_, key| *key != wire.key);
        if self.by_incarnation.get(&wire.incarnation) == Some(&wire.key) {
            self.by_incarnation.remove(&wire.incarnation);
        }
    }

    /// Ends a link and its operations, and says so at once.
    pub(crate) fn end_link(&mut self, peer: Peer, why: &GoneReason) {
        if let Some(link) = self.links.find(peer) {
            link.way.state = State::Ended;
        }
        // Nothing is lent over a stream.
        let _ = self.links.end(peer, why, &mut self.finished);
    }

    /// Gives a connection a time to end at.
    pub(crate) fn time(&mut self, wire: &mut Wire, at: Instant) {
        self.untime(wire);
        wire.deadline = Some(at);
        self.timers.insert((at, Timer::Wire(wire.key)));
    }

    pub(crate) fn untime(&mut self, wire: &mut Wire) {
        if let Some(at) = wire.deadline.take() {
            self.timers.remove(&(at, Timer::Wire(wire.key)));
        }
    }

    /// Says goodbye: what was given to the socket arrives, unless the peer is gone.
    pub(crate) fn part(&mut self, wire: &mut Wire) {
        if wire.phase == Phase::Open {
            let side = wire.own_side();
            wire.send(Kind::Goodbye, side, 0, &[]);
        }
        let _ = wire.flush(&mut self.buffers, |_| None, &mut self.finished);
        // A broken one has nothing to shut down.
        let _ = wire.stream.shutdown(Shutdown::Write);
        // Closing with unread bytes would reset the connection, and what is under way with it.
        let mut left = SCRATCH;
        while let Ok(len @ 1..) = wire.stream.read(&mut self.scratch)
            && left > len
        {
            left -= len;
        }
    }
}

impl Context for TcpContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        if self.shared.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(self.links.look_up(Target::parse(address)?, Way::new))
    }

    fn forget(&mut self, peer: Peer) {
        if !self.shared.guard.is_child() {
            self.forget_peer(peer);
        }
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        new_message(len, MESSAGE_MAX)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.post_op(token, op)
    }

    #[inline]
    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        self.exchange_now(exchange, message)
    }

    #[inline]
    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        self.reply_now(to, tag, token, message)
    }

    fn cancel(&mut self, id: OpId) {
        if !self.shared.guard.is_child() {
            self.cancel_op(id);
        }
    }

    fn set_admission(&mut self, open: bool) {
        if self.links.set_admission(open) {
            self.wake();
        }
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        if self.links.set_admission_of(peer, open) {
            self.wake();
        }
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn may_sleep(&mut self) -> bool {
        self.prepare_sleep()
    }

    fn identity(&self, peer: Peer) -> Identity {
        if self.shared.guard.is_child() {
            return Identity::default();
        }
        let remote = self.links.get(peer).and_then(|link| link.way.remote);
        remote.map(Identity::network).unwrap_or_default()
    }

    fn flush(&mut self) -> bool {
        self.flush_messages()
    }

    fn connected(&mut self) -> Vec<Peer> {
        let open = |link: &&Link| matches!(link.way.state, State::Open { .. });
        self.links.iter().filter(open).map(|link| link.peer).collect()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.links.find(peer).is_none_or(|link| link.way.was_open())
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl Drop for TcpContext {
    fn drop(&mut self) {
        if self.shared.guard.is_child() {
            return; // The parent's connections are not ours to shut down.
        }
        let wires: Vec<_> = self.wires.drain().collect();
        for mut wire in wires {
            self.part(&mut wire);
        }
        self.listener = None;
        self.shared.closed(self.id);
    }
}

impl fmt::Debug for TcpContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (links, wires) = (self.links.len(), self.wires.len());
        write!(out, "TcpContext({}, {links} peers, {wires} connections)", self.address)
    }
}
