//! Transfers of the reference plugin that are moved without their context.

use std::{fmt, sync::Arc};

use hg_na::{Descriptor, Direction, Error, Mover, RegionState, Rights, Transit};

use super::hub::{Hub, State};

/// Checked once more when it is run: its owner may have taken the memory back.
pub(super) struct MemMover<'near> {
    hub: Arc<Hub>,
    /// The domain of the remote memory.
    owner: u64,
    direction: Direction,
    local: (&'near dyn RegionState, u64),
    remote: (Descriptor, u64),
    len: usize,
}

impl<'near> MemMover<'near> {
    /// A transfer with memory of a domain, if it is granted.
    pub(super) fn new(
        (hub, state): (&Arc<Hub>, &State),
        owner: u64,
        transit: &Transit<'near, '_>,
    ) -> Option<Self> {
        let Transit { direction, local, local_offset, remote, remote_offset, len, .. } = *transit;
        let region = state.region(owner, remote, needed_for(direction)).ok()?;
        let is_within = |offset: u64, size| offset.checked_add(len).is_some_and(|end| end <= size);
        if !is_within(remote_offset, region.len()) || !is_within(local_offset, local.len()) {
            return None;
        }
        Some(Self {
            hub: Arc::clone(hub),
            owner,
            direction,
            local: (local, local_offset),
            remote: (remote.clone(), remote_offset),
            len: usize::try_from(len).ok()?,
        })
    }
}

impl Mover for MemMover<'_> {
    fn run(self: Box<Self>) -> Result<(), Error> {
        // Regions of peers are looked at under this lock only, so that their owner knows who uses them.
        let state = self.hub.lock();
        let region = state.region(self.owner, &self.remote.0, needed_for(self.direction))?;
        let mut bounce = vec![0; self.len];
        let ((near, near_at), far_at) = (self.local, self.remote.1);
        let moved = match self.direction {
            Direction::Get => {
                region.read(far_at, &mut bounce).and_then(|()| near.write(near_at, &bounce))
            }
            Direction::Put => {
                near.read(near_at, &mut bounce).and_then(|()| region.write(far_at, &bounce))
            }
        };
        drop(region);
        drop(state);
        moved
    }
}

impl fmt::Debug for MemMover<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "MemMover({:?} of {} bytes)", self.direction, self.len)
    }
}

fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}
