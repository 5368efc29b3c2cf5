//! One endpoint: a context of each plugin, and the fast way through to them.
//!
//! Handles and ids of the local plugin are handed out as they are; those of the network with the bit
//! [`Peer::SECOND`], which it sets by itself where it can ([`hg_na::Domain::second_context`]). Ids of operations that wait here, in neither plugin, have the scope [`OWN_SCOPE`].

use std::{fmt, sync::Arc, time::Instant};

use hg_na::{
    Address, Begun, Caps, Completion, Context, Descriptor, Error, Exchange, Exchanged, Identity,
    Message, Op, OpId, Peer, Rejected, Tag, Token, Transit, Waiter,
};
use rustc_hash::{FxHashMap, FxHashSet};
use uuid::Uuid;

use crate::{
    Way,
    held::Held,
    marks::{Mark, Marks},
    moves::Moves,
    names::{Names, seconds},
    network::Network,
    parts::Parts,
    slices::{self, Slices},
    trials::Candidate,
    uid::Uid,
    waiter::RouteWaiter,
};

/// Scope of the ids of operations that wait here.
pub(crate) const OWN_SCOPE: u32 = Peer::SECOND - 1;

/// Where a peer is reached.
pub(crate) enum At {
    Local,
    /// The local plugin is tried.
    Trial,
    /// By the network, which calls it so.
    Network(Peer),
    /// It took the network, and is gone.
    Gone,
}

/// What all contexts of one domain have in common.
pub(crate) struct Common {
    /// Of the local plugin, and of the network.
    pub(crate) schemes: [String; 2],
    /// Whether each has views.
    pub(crate) views: [bool; 2],
    /// The least of both.
    pub(crate) caps: Caps,
}

/// A context of both plugins.
pub(crate) struct RouteContext {
    address: Address,
    pub(crate) node: Uuid,
    pub(crate) schemes: [String; 2],
    /// The local plugin's parts of descriptors.
    pub(crate) parts: Parts,
    /// Whether each has views.
    views: [bool; 2],
    /// The least of both.
    pub(crate) caps: Caps,
    pub(crate) local: Box<dyn Context>,
    pub(crate) network: Network,
    pub(crate) waiter: Arc<RouteWaiter>,
    /// What became of the peers that were looked up.
    pub(crate) marks: Marks,
    /// Those that the local plugin is tried for.
    pub(crate) candidates: FxHashMap<Peer, Candidate>,
    /// Those of them that are not known to be connected; the receives that make the local plugin connect.
    pub(crate) undecided: Vec<Peer>,
    pub(crate) trials: FxHashSet<OpId>,
    /// Operations that wait here, by their peers.
    pub(crate) held: FxHashMap<Peer, Held>,
    /// Those that did and are a plugin's now.
    pub(crate) names: Names,
    /// The local plugin's handles of those that take the network instead, until it has said its last word about them.
    pub(crate) leaving: FxHashSet<Peer>,
    /// Those that took the network instead.
    pub(crate) moves: Moves,
    /// Transfers under way, by either way.
    pub(crate) slices: Slices,
    /// Ends of operations that waited here.
    pub(crate) ended: Vec<Completion>,
    pub(crate) batch: Vec<Completion>,
    /// Of the last operation that waited here.
    pub(crate) serial: u64,
    /// Rounds that are the local plugin's alone: nothing waits here, and the network sleeps.
    pub(crate) plain_rounds: u32,
    /// Rounds since the local plugin found something or was given something to do, and above those that it will be left
    /// alone in ([`crate::rounds`]).
    pub(crate) local_quiet: u32,
    /// Looks at the local plugin, beside a busy network, that have found nothing.
    pub(crate) idle_looks: u32,
    /// The local plugin has agreed to sleep and had no round since; when it wants to be looked at all the same.
    pub(crate) local_sleeps: bool,
    pub(crate) local_due: Option<Instant>,
    /// `may_sleep` has said yes, and nothing has made progress since.
    pub(crate) is_sleeping: bool,
    /// Of the flush under way: up to which serial it is for what waits here; which plugins' own have ended.
    pub(crate) flush_to: Option<u64>,
    pub(crate) flushed: [bool; 2],
}

impl RouteContext {
    /// Joins two contexts.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when their addresses do not fit into one.
    pub(crate) fn new(
        common: Common,
        uid: &Uid,
        local: Box<dyn Context>,
        network: (Box<dyn Context>, bool),
        waiter: RouteWaiter,
    ) -> Result<Self, Error> {
        let network = Network::new(network, waiter.is_joined());
        Ok(Self {
            address: uid.address()?,
            node: uid.node,
            schemes: common.schemes,
            parts: Parts::default(),
            views: common.views,
            caps: common.caps,
            local,
            network,
            waiter: Arc::new(waiter),
            marks: Marks::default(),
            candidates: FxHashMap::default(),
            undecided: Vec::new(),
            trials: FxHashSet::default(),
            held: FxHashMap::default(),
            names: Names::default(),
            leaving: FxHashSet::default(),
            moves: Moves::default(),
            slices: Slices::default(),
            ended: Vec::new(),
            batch: Vec::new(),
            serial: 0,
            plain_rounds: 0,
            local_quiet: 0,
            idle_looks: 0,
            local_sleeps: false,
            local_due: None,
            is_sleeping: false,
            flush_to: None,
            flushed: [false; 2],
        })
    }

    pub(crate) fn scheme(&self, way: Way) -> &str {
        match way {
            Way::Local => &self.schemes[0],
            Way::Network => &self.schemes[1],
        }
    }

    /// Where a peer is reached.
    pub(crate) fn at(&self, peer: Peer) -> At {
        if peer.index() & Peer::SECOND != 0 {
            return At::Network(self.network.inner(peer));
        }
        match self.marks.of(peer) {
            Mark::None | Mark::Settled => At::Local,
            Mark::Candidate => At::Trial,
            Mark::Moved => self.moves.inner(peer).map_or(At::Gone, At::Network),
        }
    }

    /// Whether a fast way may carry it: no registered memory, and not longer than the other way allows.
    #[inline(always)]
    fn is_plain(&self, op: &Op) -> bool {
        match op {
            Op::SendUnexpected { message, .. } => message.len() <= self.caps.max_unexpected,
            Op::SendExpected { message, .. } => message.len() <= self.caps.max_expected,
            Op::SendControl { message, .. } => message.len() <= self.caps.max_control,
            Op::RecvExpected { .. } => true,
            _ => false,
        }
    }

    /// What the other way could not carry is refused by this one too.
    fn check(&self, op: &Op) -> Result<(), Error> {
        let (len, max) = match op {
            Op::SendUnexpected { message, .. } => (message.len(), self.caps.max_unexpected),
            Op::SendExpected { message, .. } => (message.len(), self.caps.max_expected),
            Op::SendControl { message, .. } => (message.len(), self.caps.max_control),
            Op::Put { local, .. } | Op::Get { local, .. } => {
                let (limit, len) = (self.caps.max_transfer, local.len());
                let (what, remedy) = ("bytes of one transfer", "split it");
                return if len <= limit {
                    Ok(())
                } else {
                    Err(Error::Limit { what, limit, remedy })
                };
            }
            _ => return Ok(()),
        };
        if len <= max { Ok(()) } else { Err(Error::TooLong { len, max }) }
    }

    /// What the short cut leaves: a long message, names that are to be written anew, a peer that is to be searched for.
    #[inline(never)]
    fn exchange_slowly(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        if message.len() > self.caps.max_unexpected {
            return None;
        }
        if exchange.to.index() & Peer::SECOND == 0 {
            let is_direct = self.marks.is_direct(exchange.to);
            self.local_quiet = 0;
            return if is_direct { self.local.exchange(exchange, message) } else { None };
        }
        self.touch_network();
        let exchange = Exchange { to: self.network.inner(exchange.to), ..*exchange };
        let Exchanged { send, receive } = self.network.context.exchange(&exchange, message)?;
        Some(Exchanged { send: seconds(send), receive: seconds(receive) })
    }

    /// The same of an answer.
    #[inline(never)]
    fn reply_slowly(
        &mut self,
        to: Peer,
        tag: Tag,
        token: Token,
        message: &mut Message,
    ) -> Option<OpId> {
        if to.index() & Peer::SECOND == 0 {
            let is_direct = self.marks.is_direct(to);
            self.local_quiet = 0;
            return if is_direct { self.local.reply(to, tag, token, message) } else { None };
        }
        self.touch_network();
        let replied = self.network.context.reply(self.network.inner(to), tag, token, message);
        replied.map(seconds)
    }

    #[inline(never)]
    fn post_slowly(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.disturb();
        if let Err(error) = self.check(&op) {
            return Err(Rejected { op, error });
        }
        let peer = op.peer();
        if peer.index() & Peer::SECOND != 0 {
            return self.post_network(peer, self.network.inner(peer), token, op);
        }
        match self.marks.of(peer) {
            Mark::None | Mark::Settled => self.post_to(Way::Local, token, op),
            Mark::Candidate => self.post_candidate(peer, token, op),
            Mark::Moved => self.post_moved(peer, token, op),
        }
    }

    /// Posts to a peer of the network; its handle there is `inner`, the user's is `outer`.
    pub(crate) fn post_network(
        &mut self,
        outer: Peer,
        inner: Peer,
        token: Token,
        mut op: Op,
    ) -> Result<OpId, Rejected> {
        *op.peer_mut() = inner;
        self.network.touch();
        named(self.post_to(Way::Network, token, op), outer)
    }

    /// Cancels what a plugin has.
    fn cancel_posted(&mut self, id: OpId) {
        if id.scope & Peer::SECOND != 0 {
            let own = self.network.own(id);
            self.network.touch().cancel(own);
        } else {
            self.local.cancel(id);
        }
    }

    /// Hands an operation to a plugin, with its own parts of the memory that it names.
    pub(crate) fn post_to(&mut self, way: Way, token: Token, mut op: Op) -> Result<OpId, Rejected> {
        let (local, remote) = match slices::parts(&mut op, way, self.scheme(way)) {
            Ok(parts) => slices::swap(&mut op, parts),
            Err(error) => return Err(Rejected { op, error }),
        };
        let key = local.map(|local| self.slices.keep(token, local));
        let posted = self.plugin(way).post(key.unwrap_or(token), op);
        posted.map_err(|Rejected { mut op, error }| {
            let local = key.map(|key| self.slices.give_back(key));
            slices::swap(&mut op, (local, remote));
            Rejected { op, error }
        })
    }

    fn plugin(&mut self, way: Way) -> &mut dyn Context {
        match way {
            Way::Local => self.local.as_mut(),
            Way::Network => self.network.context.as_mut(),
        }
    }
}

/// What the network says to an operation that was posted, as the user knows it; the peer is `outer` to them.
#[inline(always)]
fn named(posted: Result<OpId, Rejected>, outer: Peer) -> Result<OpId, Rejected> {
    match posted {
        Ok(id) => Ok(seconds(id)),
        Err(mut rejected) => {
            *rejected.op.peer_mut() = outer;
            Err(rejected)
        }
    }
}

impl Context for RouteContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.disturb();
        self.lookup_by_scheme(address)
    }

    fn forget(&mut self, peer: Peer) {
        self.disturb();
        match self.at(peer) {
            At::Network(inner) => self.network.touch().forget(inner),
            At::Gone => {}
            At::Local | At::Trial => {
                if let Some(candidate) = self.candidates.get_mut(&peer) {
                    candidate.forgotten = true;
                }
                self.local.forget(peer);
            }
        }
    }

    fn message(&mut self, to: Peer, len: usize) -> Result<Message, Error> {
        let caps = &self.caps;
        let max = caps.max_unexpected.max(caps.max_expected).max(caps.max_control);
        if len > max {
            return Err(Error::TooLong { len, max });
        }
        match self.at(to) {
            At::Network(inner) => self.network.context.message(inner, len),
            At::Local => self.local.message(to, len),
            // Memory that either way can carry.
            At::Trial if len <= hg_na::INLINE_MAX => Ok(Message::inline(len)),
            At::Trial => Ok(Message::from(vec![0; len])),
            At::Gone => Err(Error::UnknownPeer),
        }
    }

    #[inline]
    fn post(&mut self, token: Token, mut op: Op) -> Result<OpId, Rejected> {
        let peer = op.peer();
        if self.is_plain(&op) {
            if peer.index() & Peer::SECOND != 0 {
                self.touch_network();
                if self.network.is_marked {
                    return self.network.context.post(token, op);
                }
                // Where it lies: a copy waits for what was just written into it, longer than all else here takes.
                *op.peer_mut() = self.network.inner(peer);
                return named(self.network.context.post(token, op), peer);
            }
            if self.marks.is_direct(peer) {
                self.local_quiet = 0;
                return self.local.post(token, op);
            }
        }
        self.post_slowly(token, op)
    }

    #[inline]
    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        // No way takes fewer bytes than a message carries inside itself.
        if message.slot().is_some() {
            if exchange.to.index() & Peer::SECOND != 0 {
                if self.network.is_marked {
                    self.touch_network();
                    return self.network.context.exchange(exchange, message);
                }
            } else if self.marks.is_plainly_direct(exchange.to) {
                self.local_quiet = 0;
                return self.local.exchange(exchange, message);
            }
        }
        self.exchange_slowly(exchange, message)
    }

    #[inline]
    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        if to.index() & Peer::SECOND != 0 {
            if self.network.is_marked {
                self.touch_network();
                return self.network.context.reply(to, tag, token, message);
            }
        } else if self.marks.is_plainly_direct(to) {
            self.local_quiet = 0;
            return self.local.reply(to, tag, token, message);
        }
        self.reply_slowly(to, tag, token, message)
    }

    #[inline]
    fn collect(&mut self, from: Peer, tag: Tag, answer: &mut Message) -> bool {
        if from.index() & Peer::SECOND != 0 || !self.marks.is_plainly_direct(from) {
            return false;
        }
        self.local_quiet = 0;
        self.local.collect(from, tag, answer)
    }

    #[inline]
    fn take_request(&mut self, from: Peer, request: &mut Message) -> bool {
        if from.index() & Peer::SECOND != 0 || !self.marks.is_plainly_direct(from) {
            return false;
        }
        self.local.take_request(from, request)
    }

    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        self.begin_locally(transit)
    }

    fn moves(&mut self, peer: Peer) -> bool {
        self.moves_locally(peer)
    }

    fn fetch<'into>(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        self.fetch_locally(owner, (remote, offset), into, may_wait)
    }

    fn cancel(&mut self, id: OpId) {
        self.disturb();
        if id.scope == OWN_SCOPE && self.cancel_held(id) {
            if self.is_sleeping {
                self.waiter.wake();
            }
        } else {
            self.cancel_posted(self.names.of(id).unwrap_or(id));
        }
    }

    fn set_admission(&mut self, open: bool) {
        self.disturb();
        self.local.set_admission(open);
        self.network.touch().set_admission(open);
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.disturb();
        match self.at(peer) {
            At::Network(inner) => self.network.touch().set_admission_of(inner, open),
            At::Gone => {}
            At::Local | At::Trial => {
                if let Some(candidate) = self.candidates.get_mut(&peer) {
                    candidate.is_admitted = open;
                }
                self.local.set_admission_of(peer, open);
            }
        }
    }

    #[inline]
    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let both = [self.local.next_deadline(), self.network.context.next_deadline()];
        both.into_iter().flatten().min()
    }

    fn may_sleep(&mut self) -> bool {
        self.prepare_sleep()
    }

    fn way(&self, peer: Peer) -> &str {
        self.scheme(match self.at(peer) {
            At::Local | At::Trial => Way::Local,
            At::Network(_) | At::Gone => Way::Network,
        })
    }

    fn identity(&self, peer: Peer) -> Identity {
        match self.at(peer) {
            At::Network(inner) => self.network.context.identity(inner),
            At::Gone => Identity::default(),
            At::Local | At::Trial => self.local.identity(peer),
        }
    }

    fn views(&self, peer: Peer) -> bool {
        match self.at(peer) {
            At::Local | At::Trial => self.views[0] && self.local.views(peer),
            At::Network(_) | At::Gone => self.views[1],
        }
    }

    fn flush(&mut self) -> bool {
        self.flush_both()
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.connected_to_both()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        match self.at(peer) {
            At::Network(inner) => self.network.context.was_connected(inner),
            At::Gone => true,
            At::Trial => false, // What was posted waits here.
            At::Local => self.local.was_connected(peer),
        }
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl fmt::Debug for RouteContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RouteContext({:?}, {:?})", self.local, self.network.context)
    }
}
