//! Views that wait: for their connection, or for the owner to give its memory.

use hg_na::{
    Completion, Done, Error, GoneReason, Op, OpId, Peer, Reached, Rejected, Returned, Rights,
    SharedBytes, Token,
};

use super::{Sharing, maps::name_of, view::view_of, wire::Name};
use crate::{
    connection::{Connection, failed},
    context::SmContext,
    region::descriptor::RegionClaim,
    space,
};

/// Views of one peer's memory that wait.
pub(crate) const VIEWS_MAX: usize = 1024;

/// A view that waits for its connection, or for the owner's answer.
#[derive(Debug)]
pub(crate) struct Viewing {
    id: OpId,
    token: Token,
    claim: RegionClaim,
    range: (u64, u64),
}

impl Connection {
    /// Takes a view out that is cancelled.
    pub(crate) fn cancel_view(&mut self, serial: u64) -> Option<Completion> {
        let at = self.views.iter().position(|it| it.id.serial == serial)?;
        Some(self.views.swap_remove(at).ended(Err(Error::Cancelled)))
    }

    /// Ends all that wait.
    pub(crate) fn fail_views(&mut self, reason: &GoneReason, done: &mut Vec<Completion>) {
        let ended = self.views.drain(..);
        done.extend(ended.map(|it| it.ended(Err(Error::PeerGone(reason.clone())))));
    }
}

impl Viewing {
    fn ended(self, result: Result<SharedBytes, Error>) -> Completion {
        let Self { id, token, .. } = self;
        match result {
            Ok(bytes) => {
                let returned = Returned::View(bytes);
                Completion::Done(Done { id, token, result: Ok(()), returned })
            }
            Err(error) => failed(id, token, error, Reached::Never, Returned::Nothing),
        }
    }
}

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
        if let Some(error) = connection.refusal() {
            return Err(error);
        }
        if connection.views.len() >= VIEWS_MAX {
            connection.refusals.add(space::VIEWS);
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
    pub(crate) fn settle_views(&mut self, peer: Peer, name: Name, mapped: Result<(), Error>) {
        if let Err(error) = mapped
            && let Some(connection) = self.peers.find(peer)
        {
            let ended = connection.views.extract_if(.., |it| name_of(&it.claim) == name);
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
        if said.sharing == Sharing::No {
            return Some(Err(Error::Unsupported("a view of memory that its owner does not share")));
        }
        if let Some(pages) = maps.find(claim) {
            let (offset, len) = *range;
            return Some(view_of(pages).slice(offset, len));
        }
        match self.ask_for_mapping(peer, claim, None) {
            // The answers that are open try this one again.
            Ok(()) | Err(Error::Again) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
