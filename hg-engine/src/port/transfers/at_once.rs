//! Bytes that are got within the call, into memory that is not registered.

use hg_bulk::RemoteRange;
use hg_na::{Context, Descriptor, Peer};

use crate::port::State;

/// The transport's part of a descriptor of an engine that routes.
#[inline]
pub(super) fn part_of(remote: &Descriptor, context: &dyn Context) -> Option<Descriptor> {
    if remote.may_be_joint() { remote.part_for(context.address().scheme()) } else { None }
}

impl State {
    /// Gets bytes of one region into memory that is not registered, where the transport does so within the call.
    #[inline]
    pub(crate) fn fetch_at_once(
        &mut self,
        owner: Peer,
        far: &RemoteRange,
        into: &mut [u8],
    ) -> bool {
        let Some(context) = &mut self.context else { return false };
        let Some(place) = far.only_region() else { return false };
        let remote = &far.descriptor().regions()[place.region];
        let part = if self.routes { None } else { part_of(remote, context.as_ref()) };
        let is_over = context.fetch(owner, part.as_ref().unwrap_or(remote), place.offset, into);
        if is_over {
            self.transfers.moved_at_once += far.len();
        }
        is_over
    }
}
