//! Peers that took the network instead: their handles are still those of the local plugin, whose table does not
//! give them out again.
//!
//! What was posted to them before is posted to the network under its old name ([`Renamed`]): receives first, whose
//! answers might else come before them. While the network's queue is full, it waits here, and what comes later behind it, until the
//! network tells room.

use std::collections::VecDeque;

use hg_na::{Address, Completion, Error, GoneReason, Op, OpId, Peer, QUIET, Rejected, Token};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    candidates::{Mark, Waiting, refusal},
    context::{RouteContext, failed, outer},
    full::Full,
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
    /// What was refused because so many are held; whether the network has refused something of the user's.
    full: Full,
    is_refused: bool,
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

    /// Whether anything waits for the network's room.
    pub(crate) fn holds_any(&self) -> bool {
        self.peers.values().any(|moved| !moved.held.is_empty())
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

    /// The network has refused something that was posted by this handle; says whether it was so.
    fn take_refused(&mut self, peer: Peer) -> bool {
        self.peers.get_mut(&peer).is_some_and(|moved| std::mem::take(&mut moved.is_refused))
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
        (held, full): (VecDeque<Waiting>, Full),
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
        let moved = Moved { inner, local: uid.local, held, full, is_refused: false };
        self.moves.peers.insert(peer, moved);
        self.moves.holding.push(peer);
        self.flush_moved(peer);
    }

    /// Posts to a peer that took the network.
    pub(crate) fn post_moved(
        &mut self,
        peer: Peer,
        token: Token,
        op: Op,
    ) -> Result<OpId, Rejected> {
        let depth = self.caps.queue_depth;
        let Some(moved) = self.moves.peers.get_mut(&peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if let Some(error) = refusal(moved.held.iter().map(|it| &it.op), &op, depth) {
            if matches!(error, Error::Again) {
                moved.full.add(&op);
            }
            return Err(Rejected { op, error });
        }
        if moved.held.is_empty() || matches!(op, Op::RecvExpected { .. }) {
            let inner = moved.inner;
            let posted = self.post_network(peer, inner, token, op);
            if let (Err(Rejected { error: Error::Again, .. }), Some(moved)) =
                (&posted, self.moves.peers.get_mut(&peer))
            {
                moved.is_refused = true;
            }
            return posted;
        }
        let id = self.own_id();
        if let Some(moved) = self.moves.peers.get_mut(&peer) {
            moved.held.push_back(Waiting { id, token, op });
        }
        Ok(id)
    }

    /// The network has room at a peer, which the user knows by one handle or by several.
    #[cold]
    pub(crate) fn take_room(&mut self, inner: Peer, done: &mut Vec<Completion>) {
        let (moved, shown) = self.moves.known_as(inner);
        if shown || moved.is_empty() {
            done.push(Completion::Room { peer: outer(inner) });
        }
        for peer in moved {
            if self.moves.take_refused(peer) {
                done.push(Completion::Room { peer });
            }
            self.flush_moved(peer);
        }
        done.append(&mut self.ended);
    }

    /// Posts what is held for a peer, as far as the network takes it.
    fn flush_moved(&mut self, peer: Peer) {
        while let Some(moved) = self.moves.peers.get_mut(&peer) {
            let inner = moved.inner;
            let Some(waiting) = moved.held.pop_front() else {
                self.moves.holding.retain(|holding| *holding != peer);
                break;
            };
            if let Some(back) = self.post_again(peer, inner, waiting) {
                if let Some(moved) = self.moves.peers.get_mut(&peer) {
                    moved.held.push_front(back);
                }
                break;
            }
        }
        self.tell_room_of_held(peer);
    }

    /// Tells once that so few are held that others may be.
    fn tell_room_of_held(&mut self, peer: Peer) {
        let depth = self.caps.queue_depth;
        let Some(moved) = self.moves.peers.get_mut(&peer) else { return };
        if moved.full.take(moved.held.iter().map(|it| &it.op), depth) {
            self.ended.push(Completion::Room { peer });
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
            let (peer, waiting) = (*peer, moved.held.remove(at));
            if let Some(waiting) = waiting {
                self.ended.push(failed(id, waiting.token, waiting.op, Error::Cancelled));
            }
            self.tell_room_of_held(peer);
            return true;
        }
        false
    }
}
