//! Transfers that the local plugin does at once. The network never does: it would have to be told of each.

use hg_na::{Begun, Descriptor, Peer, Transit};

use crate::{Way, context::RouteContext, slices};

impl RouteContext {
    /// Whether the local plugin is asked for something of this peer's.
    #[inline]
    fn is_local(&self, peer: Peer, len: u64) -> bool {
        let is_local = peer.index() & Peer::SECOND == 0 && self.marks.is_direct(peer);
        is_local && len <= self.caps.max_transfer
    }

    /// The local plugin's part of what names a peer's region; `None`: it has none, and is the plugin's to judge.
    #[inline]
    fn part_of(&mut self, remote: &Descriptor) -> Option<Descriptor> {
        let Self { parts, schemes: [local, _], .. } = self;
        parts.of(remote, local)
    }

    /// Asks the local plugin for one.
    #[inline]
    pub(crate) fn begin_locally<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        if !self.is_local(transit.peer, transit.len) {
            return Begun::No;
        }
        let Ok(region) = slices::region_of(transit.local) else { return Begun::No };
        let local = region.part(Way::Local).state();
        let part = self.part_of(transit.remote);
        self.local_quiet = 0;
        let remote = part.as_ref().unwrap_or(transit.remote);
        self.local.begin(&Transit { local, remote, ..*transit })
    }

    /// Whether the local plugin moves the bytes of this peer's transfers.
    #[inline]
    pub(crate) fn moves_locally(&mut self, peer: Peer) -> bool {
        self.is_local(peer, 0) && self.local.moves(peer)
    }

    /// Asks the local plugin for bytes in memory that is not registered.
    #[inline]
    pub(crate) fn fetch_locally<'into>(
        &mut self,
        owner: Peer,
        (remote, offset): (&Descriptor, u64),
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        if !self.is_local(owner, into.len() as u64) {
            return Begun::No;
        }
        self.local_quiet = 0;
        let part = self.part_of(remote);
        self.local.fetch(owner, part.as_ref().unwrap_or(remote), offset, into, may_wait)
    }
}
