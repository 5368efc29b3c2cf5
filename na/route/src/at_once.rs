//! Transfers that the local plugin does at once. The network never does: it would have to be told of each.

use hg_na::{Context, Descriptor, Peer, Transit};

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

    /// What the local plugin is to be asked for; `None`: it is not asked.
    #[inline]
    fn inner<'a>(
        &self,
        transit: &Transit<'a>,
        remote: Option<&'a Descriptor>,
    ) -> Option<Transit<'a>> {
        if !self.is_local(transit.peer, transit.len) {
            return None;
        }
        let local = slices::region_of(transit.local).ok()?.part(Way::Local).state();
        Some(Transit { local, remote: remote.unwrap_or(transit.remote), ..*transit })
    }

    /// Asks the local plugin for one.
    #[inline]
    pub(crate) fn transfer_locally<T>(
        &mut self,
        transit: &Transit<'_>,
        ask: impl FnOnce(&mut dyn Context, &Transit<'_>) -> T,
    ) -> Option<T> {
        let remote = self.part_of(transit.remote);
        let inner = self.inner(transit, remote.as_ref())?;
        self.local_quiet = 0;
        Some(ask(self.local.as_mut(), &inner))
    }

    /// Asks the local plugin for bytes in memory that is not registered.
    #[inline]
    pub(crate) fn fetch_locally(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &mut [u8],
    ) -> bool {
        if !self.is_local(owner, into.len() as u64) {
            return false;
        }
        self.local_quiet = 0;
        let part = self.part_of(remote);
        self.local.fetch(owner, part.as_ref().unwrap_or(remote), offset, into)
    }
}
