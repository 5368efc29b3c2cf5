//! Names that the user knows: of the network's peers and operations, and of operations that waited here before a plugin had them.

use hg_na::{OpId, Peer, Token};
use rustc_hash::FxHashMap;

/// The user's handle of a peer of the network.
pub(crate) fn outer(peer: Peer) -> Peer {
    Peer::new(peer.index() | Peer::SECOND, peer.generation())
}

/// The user's name of an operation of the network's.
pub(crate) fn seconds(id: OpId) -> OpId {
    OpId { scope: id.scope | Peer::SECOND, ..id }
}

/// An operation that a plugin knows by another name, and without its poster's token.
#[derive(Debug)]
pub(crate) struct Renamed {
    pub(crate) peer: Peer,
    pub(crate) id: OpId,
    pub(crate) token: Token,
}

/// All of one context. The plugins' names of operations are told apart as the user would ([`seconds`]).
#[derive(Debug, Default)]
pub(crate) struct Names {
    old: FxHashMap<OpId, Renamed>,
    new: FxHashMap<OpId, OpId>,
}

impl Names {
    /// Whether there is any.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.old.is_empty()
    }

    /// An operation has this name now.
    pub(crate) fn rename(&mut self, renamed: Renamed, new: OpId) {
        self.new.insert(renamed.id, new);
        self.old.insert(new, renamed);
    }

    /// Takes the name out under which a plugin knows an operation.
    pub(crate) fn take(&mut self, new: OpId) -> Option<Renamed> {
        let renamed = self.old.remove(&new)?;
        self.new.remove(&renamed.id);
        Some(renamed)
    }

    /// Whether a plugin's operation has another name here.
    pub(crate) fn is_renamed(&self, new: OpId) -> bool {
        self.old.contains_key(&new)
    }

    /// The present name of an operation.
    pub(crate) fn of(&self, id: OpId) -> Option<OpId> {
        self.new.get(&id).copied()
    }
}
