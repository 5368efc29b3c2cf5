//! Views that wait: for their connection, or for the owner to give its memory.

use std::sync::Arc;

use hg_na::{Error, Op, OpId, Peer, Rejected, Rights, SharedBytes, Token};

use super::SmContext;
use crate::{
    connection::{Connection, VIEWS},
    descriptor::{RegionClaim, RegionName},
    maps::{VIEWS_MAX, Viewing},
};

impl SmContext {
    pub(crate) fn post_view(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        match self.check_view(&op) {
            Ok((claim, range)) => {
                let peer = op.peer();
                let id = self.next_id(peer);
                self.start(peer);
                self.view(peer, Viewing { id, token, claim, range });
                Ok(id)
            }
            Err(error) => Err(Rejected { op, error }),
        }
    }

    fn check_view(&mut self, op: &Op) -> Result<(RegionClaim, (u64, u64)), Error> {
        let Op::View { from, remote } = op else {
            return Err(Error::Unsupported("this operation"));
        };
        let connection = self.peers.find(*from).ok_or(Error::UnknownPeer)?;
        connection.takes_posts()?;
        if connection.views.len() >= VIEWS_MAX {
            connection.refusals.add(VIEWS);
            return Err(Error::Again);
        }
        let claim = RegionClaim::decode(remote.descriptor().opaque())?;
        Ok((claim, (remote.offset(), remote.len())))
    }

    /// Makes the views that can be made, and asks for what the others need: the connection is open, or an answer has come.
    pub(crate) fn try_views(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        for viewing in std::mem::take(&mut connection.views) {
            self.view(peer, viewing);
        }
        if let Some(connection) = self.peers.find(peer) {
            connection.tell_room(&mut self.finished);
        }
    }

    /// The owner has answered about one region.
    pub(crate) fn answer_views(&mut self, peer: Peer, name: RegionName, mapped: Result<(), Error>) {
        if let Err(error) = mapped
            && let Some(connection) = self.peers.find(peer)
        {
            let ended = connection.views.extract_if(.., |it| it.claim.name() == name);
            self.finished.extend(ended.map(|it| it.ended(Err(error.clone()))));
            self.has_leftovers = true;
        }
        self.try_views(peer);
    }

    /// Makes one, or lets it wait.
    fn view(&mut self, peer: Peer, viewing: Viewing) {
        if let Some(result) = self.try_view(peer, &viewing) {
            self.finished.push(viewing.ended(result));
            self.has_leftovers = true;
        } else if let Some(connection) = self.peers.find(peer) {
            connection.views.push(viewing);
        }
    }

    /// Makes a view; `None`: it waits for the connection, or for the owner.
    fn try_view(&mut self, peer: Peer, viewing: &Viewing) -> Option<Result<SharedBytes, Error>> {
        let Viewing { claim, range, .. } = viewing;
        let connection = self.peers.find(peer).filter(|it| it.is_open())?;
        let Connection { maps, link, .. } = connection;
        let link = link.as_ref()?;
        // Not pinned: an owner that takes the memory back now leaves these pages to the view.
        let said = link.theirs.table.look(claim);
        let said = match said.and_then(|said| said.grants(Rights::READ, *range).map(|()| said)) {
            Ok(said) => said,
            Err(error) => return Some(Err(error)),
        };
        if said.sharing.is_none() {
            return Some(Err(Error::Unsupported("a view of memory that its owner does not share")));
        }
        if let Some(pages) = maps.find(claim) {
            let (offset, len) = *range;
            return Some(SharedBytes::new(Arc::clone(pages) as _).slice(offset, len));
        }
        match self.ask_for_mapping(peer, claim, None) {
            // The answers that are open try this one again.
            Ok(()) | Err(Error::Again) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
