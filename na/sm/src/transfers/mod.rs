//! Put and get: queued at the post, moved in pieces by the rounds that follow, so that neither blocks.
//!
//! Each piece resolves and pins the remote region anew ([`crate::region`]), so that a region that its
//! owner takes back in the middle of a long transfer ends it with `StaleDescriptor`.
//!
//! | file | how bytes are moved |
//! |---|---|
//! | [`crate::shared::copies`] | memory that is mapped here: copied |
//! | `kernel` | any other memory: by the kernel (CMA), several short transfers at once |
//! | `at_once` | the same without a queue: begun, and moved by whoever asked |
//! | `mover` | what he runs, without the context |
//! | `ferry` | where that is denied: by both sides, through their arenas |

mod at_once;
pub(crate) mod ferry;
mod kernel;
mod mover;

use std::collections::VecDeque;

use hg_na::{
    Completion, Done, Error, GoneReason, LocalSlice, Op, OpId, Peer, Reached, RegionState,
    Rejected, RemoteSlice, Returned, Rights, Token,
};

use crate::{
    connection::failed,
    context::SmContext,
    region::{
        cma::{Direction, Scratch},
        descriptor::RegionClaim,
        state::SmRegion,
    },
    space::{self, FERRIED},
};

/// Transfers of one context that wait.
pub(crate) const TRANSFERS_MAX: usize = 1024;

/// A put or a get under way.
#[derive(Debug)]
struct Transfer {
    id: OpId,
    token: Token,
    peer: Peer,
    direction: Direction,
    claim: RegionClaim,
    local: LocalSlice,
    remote: RemoteSlice,
    moved: u64,
    /// Some bytes may have been moved.
    is_begun: bool,
}

/// All transfers of one context.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    running: VecDeque<Transfer>,
    /// Those that are being moved, within a round.
    batch: Vec<Transfer>,
    scratch: Scratch,
    /// Those whose connection is not open yet.
    waiting: Vec<Transfer>,
    /// Bytes that were moved at once since the last round.
    ahead: u64,
}

impl Transfers {
    /// Whether nothing can be moved now.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// How many more there may be, beside those that are copied through arenas.
    pub(crate) fn free(&self) -> usize {
        TRANSFERS_MAX.saturating_sub(self.running.len() + self.waiting.len())
    }

    /// A connection is open: its transfers can start.
    pub(crate) fn opened(&mut self, peer: Peer) {
        self.running.extend(self.waiting.extract_if(.., |transfer| transfer.peer == peer));
    }

    /// Takes one out.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        let transfer = match self.running.iter().position(|it| it.id == id) {
            Some(at) => self.running.remove(at),
            None => {
                let at = self.waiting.iter().position(|it| it.id == id)?;
                Some(self.waiting.swap_remove(at))
            }
        }?;
        Some(transfer.failed(Error::Cancelled))
    }

    /// Ends those with one peer.
    pub(crate) fn fail(&mut self, peer: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let error = || Error::PeerGone(reason.clone());
        let waiting = self.waiting.extract_if(.., |it| it.peer == peer);
        done.extend(waiting.map(|transfer| transfer.failed(error())));
        if self.running.iter().any(|it| it.peer == peer) {
            let (gone, others) =
                self.running.drain(..).partition::<VecDeque<_>, _>(|it| it.peer == peer);
            self.running = others;
            done.extend(gone.into_iter().map(|transfer| transfer.failed(error())));
        }
    }
}

impl Transfer {
    fn failed(self, error: Error) -> Completion {
        let reached = if self.is_begun { Reached::Unknown } else { Reached::Never };
        failed(self.id, self.token, error, reached, Returned::Slice(self.local))
    }

    /// Bytes that are still to be moved.
    fn left(&self) -> u64 {
        self.remote.len() - self.moved
    }

    /// The rights that it needs at the peer.
    fn needs(&self) -> Rights {
        match self.direction {
            Direction::Get => Rights::READ,
            Direction::Put => Rights::WRITE,
        }
    }

    fn succeeded(self) -> Completion {
        let Self { id, token, local, .. } = self;
        Completion::Done(Done { id, token, result: Ok(()), returned: Returned::Slice(local) })
    }
}

impl SmContext {
    pub(crate) fn post_transfer(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let op = match self.copy_at_once(token, op) {
            Ok(id) => return Ok(id),
            Err(op) => op,
        };
        match self.check_transfer(&op) {
            Ok((direction, claim)) => {
                let (peer, Op::Put { local, remote, .. } | Op::Get { local, remote, .. }) =
                    (op.peer(), op)
                else {
                    unreachable!("only transfers come here")
                };
                let id = self.next_id(peer);
                self.wish_for_mapping(peer, direction, &claim, remote.len());
                let transfer = Transfer {
                    id,
                    token,
                    peer,
                    direction,
                    claim,
                    local,
                    remote,
                    moved: 0,
                    is_begun: false,
                };
                if self.peers.find(peer).is_some_and(|it| it.is_open()) {
                    self.transfers.running.push_back(transfer);
                    self.has_leftovers = true;
                    if self.is_sleeping {
                        self.chore();
                    }
                } else {
                    self.transfers.waiting.push(transfer);
                    self.start(peer);
                    self.chore();
                }
                Ok(id)
            }
            Err(error) => Err(Rejected { op, error }),
        }
    }

    fn check_transfer(&mut self, op: &Op) -> Result<(Direction, RegionClaim), Error> {
        let (direction, local, remote) = match op {
            Op::Put { local, remote, .. } => (Direction::Put, local, remote),
            Op::Get { local, remote, .. } => (Direction::Get, local, remote),
            _ => return Err(Error::Unsupported("this operation")),
        };
        let Some(connection) = self.peers.find(op.peer()) else { return Err(Error::UnknownPeer) };
        if let Some(error) = connection.refusal() {
            return Err(error);
        }
        if connection.ferry.len() >= TRANSFERS_MAX {
            connection.refusals.add(FERRIED);
            return Err(Error::Again);
        }
        if self.transfers.free() == 0 {
            self.refuse_shared(op.peer(), space::TRANSFERS);
            return Err(Error::Again);
        }
        if local.len() != remote.len() {
            let (offset, len, size) = (remote.offset(), local.len(), remote.len());
            return Err(Error::OutOfRange { offset, len, size });
        }
        let mut runs = Vec::new();
        region_of(local.region().as_ref())?.runs(
            local.offset(),
            0,
            direction == Direction::Get,
            &mut runs,
        )?;
        Ok((direction, RegionClaim::decode(remote.descriptor().opaque())?))
    }
}

pub(crate) fn region_of(state: &dyn RegionState) -> Result<&SmRegion, Error> {
    let any: &dyn std::any::Any = state;
    match any.downcast_ref() {
        Some(region) => Ok(region),
        None => Err(Error::Unsupported("local memory of another plugin")),
    }
}
