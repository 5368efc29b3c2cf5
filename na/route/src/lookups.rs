//! Handles of peers, by the scheme of their address.

use hg_na::{Address, Error, Peer, UID};

use crate::{
    Way,
    context::RouteContext,
    marks::Mark,
    names::outer,
    trials::Candidate,
    uid::{Uid, bad},
};

impl RouteContext {
    /// A handle of the peer at an address of either plugin, or of both.
    pub(crate) fn lookup_by_scheme(&mut self, address: &Address) -> Result<Peer, Error> {
        let scheme = address.scheme();
        if scheme == UID {
            self.lookup_uid(Uid::parse(address)?, address)
        } else if scheme == self.scheme(Way::Network) {
            self.lookup_network(address)
        } else if scheme == self.scheme(Way::Local) {
            let peer = self.lookup_local(address)?;
            if self.marks.of(peer) == Mark::None {
                self.marks.set(peer, Mark::Settled);
            }
            Ok(peer)
        } else {
            let [local, network] = &self.schemes;
            let why = format!(
                "this engine reaches {UID}://, {local}:// and {network}://; open one with {scheme}://"
            );
            Err(bad(address, &why))
        }
    }

    fn lookup_uid(&mut self, uid: Uid, address: &Address) -> Result<Peer, Error> {
        if uid.local.scheme() != self.scheme(Way::Local)
            || uid.network.scheme() != self.scheme(Way::Network)
        {
            let [local, network] = &self.schemes;
            let wanted = uid.network.scheme();
            let why = format!(
                "this engine reaches {local}:// and {network}://; open one with {wanted}://"
            );
            return Err(bad(address, &why));
        }
        if uid.node != self.node || uid.is_elsewhere() {
            return self.lookup_network(&uid.network);
        }
        if let Some((peer, network)) = self.moves.find(&uid.local) {
            return if *network == uid.network {
                Ok(peer)
            } else {
                self.lookup_network(&uid.network)
            };
        }
        let peer = self.lookup_local(&uid.local)?;
        // Who wrote the first address with this local part may have had no right to it.
        if self.candidates.get(&peer).is_some_and(|first| first.uid.network != uid.network) {
            return self.lookup_network(&uid.network);
        }
        if self.marks.of(peer) == Mark::None {
            self.marks.set(peer, Mark::Candidate);
            self.candidates.insert(peer, Candidate::new(uid));
        }
        Ok(peer)
    }

    fn lookup_local(&mut self, address: &Address) -> Result<Peer, Error> {
        let peer = self.local.lookup(address)?;
        debug_assert!(peer.index() & Peer::SECOND == 0, "a plugin leaves that bit clear");
        Ok(peer)
    }

    fn lookup_network(&mut self, address: &Address) -> Result<Peer, Error> {
        let peer = self.network.context.lookup(address)?;
        let is_marked = peer.index() & Peer::SECOND != 0;
        debug_assert!(is_marked == self.network.is_marked, "that bit is as was asked for");
        self.moves.show(peer);
        Ok(outer(peer))
    }
}
