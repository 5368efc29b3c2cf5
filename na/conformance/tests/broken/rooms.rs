//! Flaws of who is told of room.

use std::collections::HashMap;

use hg_na::{Completion, Error, Peer, Rejected};

use crate::flaws::Flaw;

/// Refusals for want of room by peer.
#[derive(Debug, Default)]
pub(crate) struct Rooms(HashMap<Peer, usize>);

impl Rooms {
    /// Perhaps one more; what is told at once.
    pub(crate) fn refused(&mut self, flaw: Flaw, rejected: &Rejected) -> Option<Completion> {
        let peer = matches!(rejected.error, Error::Again).then(|| rejected.op.peer())?;
        *self.0.entry(peer).or_default() += 1;
        (flaw == Flaw::TellsRoomAtOnce).then_some(Completion::Room { peer })
    }

    /// What is told where room is.
    pub(crate) fn told(&mut self, flaw: Flaw, peer: Peer) -> impl Iterator<Item = Completion> {
        let count = match flaw {
            Flaw::NeverTellsRoom | Flaw::TellsRoomAtOnce => 0,
            Flaw::TellsRoomTwice => 2,
            Flaw::TellsRoomForEachRefusal => self.0.remove(&peer).unwrap_or(1),
            _ => 1,
        };
        (0..count).map(move |_| Completion::Room { peer })
    }

    /// What is told after a hang-up.
    pub(crate) fn hung_up(&self, flaw: Flaw, peer: Peer) -> Option<Completion> {
        let is_told = flaw == Flaw::TellsRoomAfterHangUps && self.0.contains_key(&peer);
        is_told.then_some(Completion::Room { peer })
    }
}
