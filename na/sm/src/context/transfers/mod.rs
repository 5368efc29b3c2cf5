//! Put and get. There are two ways:
//!
//! | file | what |
//! |---|---|
//! | `at_once`, `piece` | begun ([`hg_na::Context::begin`]): checked and pinned here, and moved by whoever asked, without the context, through a mapping or by the kernel (CMA) |
//! | [`crate::ferry`] | posted: by both sides' copies, through their arenas. For where the others fail; nobody waits there for a peer's memory |
//!
//! Each piece that is begun pins the remote region anew ([`crate::region`]), so that a region that its
//! owner takes back in the middle of a long transfer ends it with `StaleDescriptor`.
//!
//! What waits for a peer, for its connection or for its copies, waits in that connection and is counted there, so that it
//! takes nothing from those with others.

mod at_once;
mod piece;

use hg_na::{Error, Op, OpId, Peer, Rejected, Token};

pub(super) use self::piece::PinsWanted;
use self::piece::would_serve;
use super::SmContext;
use crate::{
    connection::{Connection, Space, TRANSFERS},
    descriptor::RegionClaim,
    link::misbehaved,
    region::{cma::Direction, state::SmRegion},
    transfer::{TRANSFERS_MAX, Transfer},
};

impl SmContext {
    pub(crate) fn post_transfer(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let (direction, claim) = match self.check_transfer(&op) {
            Ok(checked) => checked,
            Err(error) => return Err(Rejected { op, error }),
        };
        let peer = op.peer();
        let (Op::Put { local, remote, .. } | Op::Get { local, remote, .. }) = op else {
            unreachable!("only transfers come here")
        };
        let id = self.next_id(peer);
        // In this way any transfer costs more than a mapping does.
        self.want_mapping(peer, direction, &claim, u64::MAX);
        let found = self.peers.find(peer).expect("found when the transfer was checked");
        let (moved, asked) = (0, None);
        found.ferry.take(Transfer { id, token, direction, claim, local, remote, moved, asked });
        self.start(peer);
        self.attend_ferry(peer);
        Ok(id)
    }

    fn check_transfer(&mut self, op: &Op) -> Result<(Direction, RegionClaim), Error> {
        let (direction, local, remote) = match op {
            Op::Put { local, remote, .. } => (Direction::Put, local, remote),
            Op::Get { local, remote, .. } => (Direction::Get, local, remote),
            _ => return Err(Error::Unsupported("this operation")),
        };
        let Some(connection) = self.peers.find(op.peer()) else { return Err(Error::UnknownPeer) };
        connection.takes_posts()?;
        if connection.ferry.len() >= TRANSFERS_MAX {
            connection.refusals.add(TRANSFERS);
            return Err(Error::Again);
        }
        if local.len() != remote.len() {
            let (offset, len, size) = (remote.offset(), local.len(), remote.len());
            return Err(Error::OutOfRange { offset, len, size });
        }
        let near = SmRegion::of(local.region().as_ref())?;
        near.runs(local.offset(), 0, direction == Direction::Get, &mut Vec::new())?;
        Ok((direction, RegionClaim::decode(remote.descriptor().opaque())?))
    }

    /// A transfer of `len` bytes was not done at once: asks for a mapping where one would serve it, and is worth it.
    fn want_mapping(&mut self, peer: Peer, direction: Direction, claim: &RegionClaim, len: u64) {
        let Some(connection) = self.peers.find(peer).filter(|it| it.is_open()) else { return };
        let Some(link) = &connection.link else { return };
        // Nothing is remembered, nor asked for, in the name of a claim that the table denies.
        let Ok(said) = link.theirs.table.look(claim) else { return };
        if would_serve(said.sharing, direction) {
            // Without it the transfer goes on by other means.
            let _next_time = self.ask_for_mapping(peer, claim, Some(len));
        }
    }

    /// Looks after the transfers that are copied through the arenas of one connection, in this round or the next.
    pub(crate) fn attend_ferry(&mut self, peer: Peer) {
        self.kick(peer);
        self.intake.ferries.insert(peer);
        self.has_leftovers = true;
    }

    /// A round of all connections whose transfers are copied through the arenas and have something to do.
    #[cold]
    pub(crate) fn step_ferries(&mut self) -> bool {
        let mut moved = false;
        for peer in std::mem::take(&mut self.intake.ferries) {
            let open = self.peers.find(peer).filter(|it| it.is_open());
            let Some(connection) = open else { continue };
            let Connection { ferry, link: Some(link), .. } = connection else { continue };
            match ferry.round(link, &self.shared.regions, &mut self.finished) {
                Ok(was_busy) => {
                    moved |= was_busy;
                    let has_notes = ferry.has_notes();
                    let is_unwanted = connection.space == Space::Unwanted;
                    connection.tell_room(&mut self.finished);
                    connection.note_dirty(&mut self.dirty);
                    if has_notes {
                        self.attend_ferry(peer);
                    }
                    if is_unwanted {
                        self.look_for_space(peer);
                    }
                }
                Err(broken) => {
                    moved = true;
                    self.end(peer, misbehaved(broken));
                }
            }
        }
        moved
    }
}
