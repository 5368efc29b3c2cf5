//! Transfers that are moved without their context: at any time after they were begun.

use std::sync::{Arc, Mutex, PoisonError};

use hg_na::{Descriptor, Direction, Error, Mover, RegionState, Transit};

use super::hub::Net;
use crate::world;

/// Checked once more when it is run.
pub(super) struct NetMover<'near> {
    net: Arc<Mutex<Net>>,
    endpoint: usize,
    /// Domain and process of the remote memory.
    owner: (u64, usize),
    direction: Direction,
    local: (&'near dyn RegionState, u64),
    remote: (Descriptor, u64, u64),
}

impl<'near> NetMover<'near> {
    pub(super) fn new(
        net: &Arc<Mutex<Net>>,
        endpoint: usize,
        owner: (u64, usize),
        transit: &Transit<'near, '_>,
    ) -> Self {
        let Transit { direction, local, local_offset, remote, remote_offset, len, .. } = *transit;
        let remote = (remote.clone(), remote_offset, len);
        let net = Arc::clone(net);
        Self { net, endpoint, owner, direction, local: (local, local_offset), remote }
    }
}

impl Mover for NetMover<'_> {
    fn run(self: Box<Self>) -> Result<(), Error> {
        world::maybe_interrupt();
        let (descriptor, offset, len) = &self.remote;
        let lock = || self.net.lock().unwrap_or_else(PoisonError::into_inner);
        // Like the kernel it waits for as long as that takes, whatever becomes of this process.
        let away = lock().away_until(self.owner.1);
        if away > world::now() {
            world::sleep(away - world::now());
        }
        let mut net = lock();
        let near = (self.direction, self.local);
        net.move_begun(self.endpoint, self.owner.0, near, (descriptor, *offset, *len))
    }
}
