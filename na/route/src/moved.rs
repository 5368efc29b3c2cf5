//! Peers that took the network instead: their handles are still those of the local plugin, whose table does not
//! give them out again.
//!
//! What was posted to them before is posted to the network under its old name ([`Renamed`]): receives first, whose
//! answers might else come before them. While the network's queue is full, it waits here, and what comes later behind it.

use std::collections::VecDeque;

use hg_na::{Address, Completion, Error, GoneReason, Op, OpId, Peer, QUIET, Rejected, Token};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    candidates::{Mark, Waiting, refusal},
    context::{RouteContext, failed, outer},
    uid::Uid,
};

/// Different reasons that are logged where everybody sees them.
const REASONS_MAX: usize = 16;

/// A peer that took the network.
#[derive(Debug)]
struct Moved {
    inner: Peer,
    local: Address,
    held: VecDeque<Waiting>,
}

/// An operation that the network knows by another id, and without its poster's token.
#[derive(Debug)]
pub(crate) struct Renamed {
    pub(crate) peer: Peer,
    pub(crate) id: OpId,
    pub(crate) token: Token,
}

/// What is known about one place of the network's table.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    generation: u32,
    /// The user knows the peer by the network's own handle.
    shown: bool,
    /// The user knows it by the local plugin's.
    moved: Option<Peer>,
}

/// All of one context.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    peers: FxHashMap<Peer, Moved>,
    by_local: FxHashMap<Address, Peer>,
    places: Vec<Place>,
    /// Who has sent something last, by the network's handle and by the user's.
    last: Option<(Peer, Peer)>,
    renamed: FxHashMap<OpId, Renamed>,
    new_names: FxHashMap<OpId, OpId>,
    /// Peers with something held.
    holding: Vec<Peer>,
    reasons: FxHashSet<String>,
}

impl Moves {
    /// The peer that was looked up by this local address.
    pub(crate) fn find(&self, local: &Address) -> Option<Peer> {
        self.by_local.get(local).copied()
    }

    /// The network's handle of it.
    pub(crate) fn inner(&self, peer: Peer) -> Option<Peer> {
        self.peers.get(&peer).map(|moved| moved.inner)
    }

    fn place(&mut self, inner: Peer) -> &mut Place {
        let at = (inner.index() & !Peer::SECOND) as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::default());
        }
        let place = &mut self.places[at];
        if place.generation != inner.generation() {
            *place = Place { generation: inner.generation(), ..Place::default() };
        }
        place
    }

    /// The user learns the network's handle of a peer.
    pub(crate) fn show(&mut self, inner: Peer) {
        self.place(inner).shown = true;
    }

    /// The user's handle of whoever has sent something.
    #[inline(always)]
    pub(crate) fn sender(&mut self, inner: Peer) -> Peer {
        match self.last {
            Some((last, peer)) if last == inner => peer,
            _ => self.another_sender(inner),
        }
    }

    #[inline(never)]
    fn another_sender(&mut self, inner: Peer) -> Peer {
        let place = self.place(inner);
        let peer = match place.moved {
            Some(peer) => peer,
            None => {
                place.shown = true;
                outer(inner)
            }
        };
        self.last = Some((inner, peer));
        peer
    }

    /// As whom the user knows a peer of the network: by the local plugin's handles (one for each local address
    /// that led here), and whether by the network's own.
    pub(crate) fn known_as(&mut self, inner: Peer) -> (Vec<Peer>, bool) {
        let shown = self.place(inner).shown;
        let is_it = |(peer, moved): (&Peer, &Moved)| (moved.inner == inner).then_some(*peer);
        (self.peers.iter().filter_map(is_it).collect(), shown)
    }

    /// The peer has hung up: who is looked up at its address is another one.
    pub(crate) fn hang_up(&mut self, peer: Peer) {
        self.holding.retain(|holding| *holding != peer);
        let local = self.peers.get(&peer).map(|moved| &moved.local);
        if let Some(local) = local.filter(|local| self.by_local.get(*local) == Some(&peer)) {
            self.by_local.remove(local);
        }
    }

    /// The peer is gone.
    pub(crate) fn remove(&mut self, peer: Peer) {
        let Some(moved) = self.peers.remove(&peer) else { return };
        self.last = None;
        let place = self.place(moved.inner);
        place.moved = place.moved.filter(|other| *other != peer);
    }

    /// Whether the network knows any operation by another name than its poster.
    pub(crate) fn renames(&self) -> bool {
        !self.renamed.is_empty()
    }

    /// Takes the name out under which the network knows an operation.
    pub(crate) fn take_renamed(&mut self, inner: OpId) -> Option<Renamed> {
        let renamed = self.renamed.remove(&inner)?;
        self.new_names.remove(&renamed.id);
        Some(renamed)
    }

    /// Whether anything waits for room in the network.
    pub(crate) fn holds(&self) -> bool {
        !self.holding.is_empty()
    }

    /// The network's name of an operation.
    pub(crate) fn renamed(&self, id: OpId) -> Option<OpId> {
        self.new_names.get(&id).copied()
    }
}

impl RouteContext {
    /// A peer that cannot be reached locally is reached by the network.
    pub(crate) fn move_to_network(
        &mut self,
        peer: Peer,
        inner: Peer,
        uid: Uid,
        held: VecDeque<Waiting>,
        reason: &GoneReason,
    ) {
        let text = reason.to_string();
        if self.moves.reasons.len() < REASONS_MAX && self.moves.reasons.insert(text) {
            tracing::info!(local = %uid.local, network = %uid.network, %reason,
                "a peer on this node is reached by the network");
        } else {
            tracing::debug!(local = %uid.local, network = %uid.network, %reason, "and another one");
        }
        self.marks.set(peer, Mark::Moved);
        self.moves.last = None;
        self.moves.place(inner).moved = Some(peer);
        self.moves.by_local.insert(uid.local.clone(), peer);
        self.moves.peers.insert(peer, Moved { inner, local: uid.local, held });
        self.moves.holding.push(peer);
        self.flush_moves();
    }

    /// Posts to a peer that took the network.
    pub(crate) fn post_moved(
        &mut self,
        peer: Peer,
        token: Token,
        op: Op,
    ) -> Result<OpId, Rejected> {
        let depth = self.caps.queue_depth;
        let Some(moved) = self.moves.peers.get(&peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if let Some(error) = refusal(moved.held.iter().map(|it| &it.op), &op, depth) {
            return Err(Rejected { op, error });
        }
        if moved.held.is_empty() || matches!(op, Op::RecvExpected { .. }) {
            return self.post_network(peer, moved.inner, token, op);
        }
        let id = self.own_id();
        if let Some(moved) = self.moves.peers.get_mut(&peer) {
            moved.held.push_back(Waiting { id, token, op });
        }
        Ok(id)
    }

    /// Posts what is held, as far as the network takes it.
    pub(crate) fn flush_moves(&mut self) {
        for peer in std::mem::take(&mut self.moves.holding) {
            while let Some(moved) = self.moves.peers.get_mut(&peer) {
                let inner = moved.inner;
                let Some(waiting) = moved.held.pop_front() else { break };
                if let Some(back) = self.post_again(peer, inner, waiting) {
                    if let Some(moved) = self.moves.peers.get_mut(&peer) {
                        moved.held.push_front(back);
                        self.moves.holding.push(peer);
                    }
                    break;
                }
            }
        }
    }

    /// Posts one operation under its old name; gives it back when there is no room.
    fn post_again(&mut self, peer: Peer, inner: Peer, waiting: Waiting) -> Option<Waiting> {
        let Waiting { id, token, op } = waiting;
        match self.post_network(peer, inner, token & !QUIET, op) {
            Ok(posted) => {
                let new_name = self.network.own(posted);
                self.moves.renamed.insert(new_name, Renamed { peer, id, token });
                self.moves.new_names.insert(id, new_name);
                None
            }
            Err(Rejected { op, error: Error::Again }) => Some(Waiting { id, token, op }),
            Err(Rejected { op, error }) => {
                self.ended.push(failed(id, token, op, error));
                None
            }
        }
    }

    /// The peer is gone: ends what is held for it, receives or everything else.
    pub(crate) fn fail_held(
        &mut self,
        peer: Peer,
        receives: bool,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    ) {
        let Some(moved) = self.moves.peers.get_mut(&peer) else { return };
        let is_such = |it: &Waiting| matches!(it.op, Op::RecvExpected { .. }) == receives;
        let (ended, kept) = std::mem::take(&mut moved.held).into_iter().partition(is_such);
        moved.held = kept;
        let ended: VecDeque<Waiting> = ended;
        for Waiting { id, token, op } in ended {
            done.push(failed(id, token, op, Error::PeerGone(reason.clone())));
        }
    }

    /// Cancels what is held; says whether it was that.
    pub(crate) fn cancel_held(&mut self, id: OpId) -> bool {
        for peer in &self.moves.holding {
            let Some(moved) = self.moves.peers.get_mut(peer) else { continue };
            let mut held = moved.held.iter().enumerate();
            let Some((at, _)) = held.find(|(_, it)| it.id == id) else { continue };
            if let Some(waiting) = moved.held.remove(at) {
                self.ended.push(failed(id, waiting.token, waiting.op, Error::Cancelled));
            }
            return true;
        }
        false
    }
}
