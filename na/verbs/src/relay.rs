//! What a thread does that the card has woken for all who wait ([`hg_na_frames::Relay`]).

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Weak},
};

use hg_na::Error;
use hg_na_frames::Relay;

use crate::card::{Desk, Hub};

/// Of one context's waiter, which may outlive it.
pub(crate) struct Relayed {
    /// Of each port.
    hubs: Vec<Weak<Hub>>,
    desk: Weak<Desk>,
}

impl Relayed {
    pub(crate) fn new(hubs: &[Arc<Hub>], desk: &Arc<Desk>) -> Self {
        Self { hubs: hubs.iter().map(Arc::downgrade).collect(), desk: Arc::downgrade(desk) }
    }
}

impl Relay for Relayed {
    fn each_fd(
        &self,
        with: &mut dyn FnMut(BorrowedFd<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut hubs = self.hubs.iter().filter_map(Weak::upgrade);
        hubs.try_for_each(|hub| with(hub.fd()))
    }

    fn relay(&self) {
        if let Some(desk) = self.desk.upgrade() {
            self.hubs.iter().filter_map(Weak::upgrade).for_each(|hub| hub.relay(&desk));
        }
    }
}
