//! Transfers that are not queued, looked up and completed: short ones are over when they were asked for, longer ones are
//! left to whoever asked, to be moved without the context.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it. What goes
//! wrong here goes wrong again in a round, which tells it.

use hg_na::{Begun, Error, Peer, Transit};

use super::piece::{Piece, copy};
use crate::{
    connection::BEGUN,
    context::SmContext,
    descriptor::RegionClaim,
    region::{
        cma::{Direction, Near},
        state::SmRegion,
    },
};

/// So many bytes are copied through a mapping sooner than they are handed over, or queued, completed and their task is woken.
const SHORT_MAX: u64 = 16 * 1024;
/// After so many bytes that were begun to be moved a round is due.
const AHEAD_MAX: u64 = 4 * 1024 * 1024;

impl SmContext {
    /// Begins a transfer between memory of this plugin's; does it, if it is short and needs no system call.
    #[inline(always)]
    pub(crate) fn begin_now<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        let Ok(claim) = RegionClaim::decode(transit.remote.opaque()) else { return Begun::No };
        let Ok(local) = SmRegion::of(transit.local) else { return Begun::No };
        let near = match transit.direction {
            Direction::Get => Near::Into(local, transit.local_offset),
            Direction::Put => Near::From(local, transit.local_offset),
        };
        let range = (transit.remote_offset, transit.len);
        self.begin_piece(transit.peer, (near, &claim, range), transit.may_wait)
    }

    /// The same for a piece whose sides are known.
    #[inline(always)]
    pub(crate) fn begin_piece<'near>(
        &mut self,
        peer: Peer,
        (near, claim, range): (Near<'near>, &RegionClaim, (u64, u64)),
        by_kernel: bool,
    ) -> Begun<'near> {
        let (direction, len) = (near.direction(), range.1);
        if len > AHEAD_MAX || self.guard.is_child() {
            return Begun::No;
        }
        let begun = 'now: {
            let Self { peers, ahead, pins_wanted, .. } = self;
            let Some(connection) = peers.find(peer) else { return Begun::No };
            if !connection.is_open() || *ahead >= AHEAD_MAX {
                break 'now None;
            }
            let mut piece = Piece { near, claim, range, pins_wanted };
            let pinned = match piece.admit(connection, by_kernel) {
                Ok(Some(pinned)) => pinned,
                Err(Error::Again) => break 'now None,
                Ok(None) | Err(_) => return Begun::No,
            };
            *ahead += len;
            let wants_mapping = pinned.wants_mapping;
            if let Some(pages) = pinned.pages.filter(|_| len <= SHORT_MAX) {
                let is_moved = copy(&mut piece.near, range, pages).is_ok();
                return if is_moved { Begun::Over } else { Begun::No }; // Posting it tells.
            }
            let Ok(carried) = piece.carry(pinned) else { return Begun::No };
            Some((carried, wants_mapping))
        };
        let Some((carried, wants_mapping)) = begun else { return self.begin_later(peer) };
        if wants_mapping {
            self.want_mapping(peer, direction, claim, len);
        }
        Begun::Ready(Box::new(carried))
    }

    /// What is in the way will not be before long: the connection opens, or a round is made, or a word for a pin is free.
    #[cold]
    fn begin_later(&mut self, peer: Peer) -> Begun<'static> {
        let Some(connection) = self.peers.find(peer) else { return Begun::No };
        if connection.takes_posts().is_err() {
            return Begun::No;
        }
        connection.refusals.add(BEGUN);
        if connection.is_open() {
            self.later.insert(peer);
            self.chore(); // A sleeper does not know that somebody is owed a word.
        } else {
            self.start(peer);
        }
        Begun::Later
    }

    /// Those that were to begin a transfer later are told, unless all words for pins are in use still.
    pub(crate) fn tell_later(&mut self) {
        let Self { later, peers, finished, .. } = self;
        later.retain(|peer| {
            let Some(connection) = peers.find(*peer) else { return false };
            // A word that is free only from here on is told of in the next round.
            let lacks_pins = connection.lacks_pins();
            connection.tell_room(finished);
            lacks_pins
        });
    }
}
