//! Transfers that the local plugin does at once. The network never does: it would have to be told of each.

use hg_na::{Context, Descriptor, Peer, Transit};

use crate::{Way, context::RouteContext, slices};

/// The local plugin's parts of a region and of its descriptor.
struct Parts<'a> {
    transit: Transit<'a>,
    /// `None`: the descriptor has none, and is the plugin's to judge.
    remote: Option<Descriptor>,
}

impl<'a> Parts<'a> {
    fn inner(&'a self) -> Transit<'a> {
        Transit { remote: self.remote.as_ref().unwrap_or(self.transit.remote), ..self.transit }
    }
}

impl RouteContext {
    /// Whether the local plugin is asked for something of this peer's.
    #[inline]
    fn is_local(&self, peer: Peer, len: u64) -> bool {
        let is_local = peer.index() & Peer::SECOND == 0 && self.marks.is_direct(peer);
        is_local && len <= self.caps.max_transfer
    }

    /// What the local plugin is to be asked for; `None`: it is not asked.
    #[inline]
    fn parts_of<'a>(&self, transit: &Transit<'a>) -> Option<Parts<'a>> {
        if !self.is_local(transit.peer, transit.len) {
            return None;
        }
        let local = slices::region_of(transit.local).ok()?.part(Way::Local).state();
        let remote = transit.remote.part_for(self.scheme(Way::Local));
        Some(Parts { transit: Transit { local, ..*transit }, remote })
    }

    /// Asks the local plugin for one.
    #[inline]
    pub(crate) fn transfer_locally<T>(
        &mut self,
        transit: &Transit<'_>,
        ask: impl FnOnce(&mut dyn Context, &Transit<'_>) -> T,
    ) -> Option<T> {
        let parts = self.parts_of(transit)?;
        self.local_quiet = 0;
        Some(ask(self.local.as_mut(), &parts.inner()))
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
        let part = remote.part_for(self.scheme(Way::Local));
        self.local.fetch(owner, part.as_ref().unwrap_or(remote), offset, into)
    }

    /// Asks the local plugin for those that are its own.
    pub(crate) fn transfer_all_locally(
        &mut self,
        transits: &[Transit<'_>],
        most: u64,
        done: &mut [bool],
    ) {
        let done = &mut done[..transits.len()];
        done.fill(false);
        let parts: Vec<_> = transits.iter().map(|transit| self.parts_of(transit)).collect();
        let inner: Vec<_> = parts.iter().flatten().map(Parts::inner).collect();
        let mut inner_done = vec![false; inner.len()];
        self.local_quiet = 0;
        self.local.transfer_all(&inner, most, &mut inner_done);
        let places = done.iter_mut().zip(&parts).filter(|(_, part)| part.is_some());
        for ((place, _), is_done) in places.zip(inner_done) {
            *place = is_done;
        }
    }
}
