//! Transfers that are plain copies, because the peer's memory is mapped here; and views.
//!
//! As with CMA each piece pins the region and re-checks it. No system call: a mapping belongs to its memfd, and no
//! other process can ever be behind it.

use hg_na::{
    Completion, Done, Error, GoneReason, Op, OpId, Peer, Reached, Rejected, Returned, Rights,
    SharedBytes, Token, Transit,
};

use super::{
    Sharing,
    maps::{PeerPages, name_of},
    view::view_of,
    wire::Name,
};
use crate::{
    connection::{Connection, failed},
    context::SmContext,
    fail,
    link::Link,
    region::{cma::Direction, descriptor::RegionClaim, state::SmRegion},
    space,
    transfers::region_of,
};

/// Bytes that are copied inside `post`; longer transfers wait for the next round.
const AT_ONCE: u64 = 64 * 1024;
/// Completions that may wait to be collected before transfers queue up instead.
const COLLECTED_LATER_MAX: usize = 1024;
/// Views of one context that wait.
const VIEWS_MAX: usize = 1024;

/// One piece of a transfer, through a mapping.
#[derive(Debug)]
pub(crate) struct Piece<'near, 'far> {
    pub(crate) direction: Direction,
    pub(crate) claim: &'far RegionClaim,
    /// Offset in the remote region, and length.
    pub(crate) range: (u64, u64),
    pub(crate) local: &'near SmRegion,
    pub(crate) local_offset: u64,
}

impl Piece<'_, '_> {
    /// Moves it; `None`: the region is not mapped so that this could be done.
    #[inline]
    pub(crate) fn copy(&self, connection: &mut Connection) -> Option<Result<(), Error>> {
        let Connection { maps, link, .. } = connection;
        let pages = maps.find(self.claim)?;
        let link = link.as_ref().filter(|_| self.is_served_by(pages))?;
        Some(self.copy_with(link, pages))
    }

    /// Whether this mapping allows it.
    pub(crate) fn is_served_by(&self, pages: &PeerPages) -> bool {
        self.direction == Direction::Get || pages.memory().writable()
    }

    fn copy_with(&self, link: &Link, pages: &PeerPages) -> Result<(), Error> {
        let (needed, pins) = (needed_for(self.direction), &link.own.rings.pins.0);
        let admitted = link.theirs.table.admit(self.claim, needed, self.range, pins)?;
        fail::point("pinned");
        let copied =
            copy_through(pages, self.direction, (self.local, self.local_offset), self.range);
        drop(admitted);
        copied
    }
}

/// The right that a transfer needs at the peer.
pub(crate) fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

/// Copies a range of a region that is pinned.
pub(crate) fn copy_through(
    pages: &PeerPages,
    direction: Direction,
    (local, local_offset): (&SmRegion, u64),
    (offset, len): (u64, u64),
) -> Result<(), Error> {
    let (far, near) = ((pages.memory(), offset), (local.present()?, local_offset));
    match direction {
        Direction::Get => hg_na_memory::copy_between(far, near, len),
        Direction::Put => hg_na_memory::copy_between(near, far, len),
    }
}

/// Copies bytes of a region into a slice; `None`: it is not mapped.
#[inline]
pub(crate) fn copy_out(
    connection: &mut Connection,
    claim: &RegionClaim,
    offset: u64,
    into: &mut [u8],
) -> Option<Result<(), Error>> {
    let Connection { maps, link, .. } = connection;
    let pages = maps.find(claim)?;
    let link = link.as_ref()?;
    let (range, pins) = ((offset, into.len() as u64), &link.own.rings.pins.0);
    let admitted = match link.theirs.table.admit(claim, Rights::READ, range, pins) {
        Ok(admitted) => admitted,
        Err(error) => return Some(Err(error)),
    };
    fail::point("pinned");
    let copied = hg_na_memory::copy_out(pages.memory(), offset, into);
    drop(admitted);
    Some(copied)
}

/// A view that waits for its connection, or for the owner's answer.
#[derive(Debug)]
struct Viewing {
    id: OpId,
    token: Token,
    peer: Peer,
    claim: RegionClaim,
    range: (u64, u64),
}

/// All views of one context that wait.
#[derive(Debug, Default)]
pub(crate) struct Views(Vec<Viewing>);

impl Views {
    /// How many more may wait.
    pub(crate) fn free(&self) -> usize {
        VIEWS_MAX.saturating_sub(self.0.len())
    }

    /// Takes one out.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        let at = self.0.iter().position(|it| it.id == id)?;
        Some(self.0.swap_remove(at).ended(Err(Error::Cancelled)))
    }

    /// Ends those of one peer.
    pub(crate) fn fail(&mut self, peer: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let gone = self.0.extract_if(.., |it| it.peer == peer);
        done.extend(gone.map(|it| it.ended(Err(Error::PeerGone(reason.clone())))));
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
    /// Does a short transfer at once, when the memory is mapped; its completion is collected by the next round.
    #[inline]
    pub(crate) fn copy_at_once(&mut self, token: Token, op: Op) -> Result<OpId, Op> {
        if self.finished.len() >= COLLECTED_LATER_MAX || !self.copied_now(&op) {
            return Err(op);
        }
        let id = self.next_id(op.peer());
        let (Op::Put { local, .. } | Op::Get { local, .. }) = op else {
            unreachable!("only transfers are copied")
        };
        let returned = Returned::Slice(local);
        self.finished.push(Completion::Done(Done { id, token, result: Ok(()), returned }));
        self.has_leftovers = true;
        Ok(id)
    }

    /// Does a short transfer at once, when the memory is mapped; says whether it did.
    pub(crate) fn copied_now(&mut self, op: &Op) -> bool {
        let Some(transit) = op.transit() else { return false };
        let Transit { direction, peer, local, local_offset, remote, remote_offset, len } = transit;
        if len > AT_ONCE {
            return false;
        }
        let Ok(local) = region_of(local) else { return false };
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return false };
        let connection = self.peers.find(peer).filter(|it| it.is_open());
        let Some(connection) = connection else { return false };
        let range = (remote_offset, len);
        let piece = Piece { direction, claim: &claim, range, local, local_offset };
        // What goes wrong goes wrong again in a round, which tells it.
        matches!(piece.copy(connection), Some(Ok(())))
    }

    /// A transfer that was not done at once: asks for a mapping where one would serve it, and is worth it.
    pub(crate) fn wish_for_mapping(
        &mut self,
        peer: Peer,
        direction: Direction,
        claim: &RegionClaim,
        len: u64,
    ) {
        let Some(connection) = self.peers.find(peer).filter(|it| it.is_open()) else { return };
        let Some(link) = &connection.link else { return };
        let sharing = link.theirs.table.sharing(claim);
        let would_serve = match direction {
            Direction::Get => sharing != Sharing::No,
            Direction::Put => sharing == Sharing::Write,
        };
        // By both sides' copies any transfer costs more than a mapping does.
        let len = if connection.ferry.is_chosen { u64::MAX } else { len };
        if would_serve {
            // Without it the transfer goes on by other means.
            let _next_time = self.ask_for_mapping(peer, claim, Some(len));
        }
    }

    pub(crate) fn post_view(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        match self.check_view(&op) {
            Ok((claim, range)) => {
                let peer = op.peer();
                let id = self.next_id(peer);
                self.views.0.push(Viewing { id, token, peer, claim, range });
                self.start(peer);
                self.views_opened(peer);
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
        if self.views.free() == 0 {
            self.refuse_shared(*from, space::VIEWS);
            return Err(Error::Again);
        }
        let claim = RegionClaim::decode(remote.descriptor().opaque())?;
        Ok((claim, (remote.offset(), remote.len())))
    }

    /// The connection is open: makes the views that can be made, and asks for what the others need.
    pub(crate) fn views_opened(&mut self, peer: Peer) {
        self.try_views(|viewing| viewing.peer == peer);
    }

    /// The owner has answered about one region.
    pub(crate) fn settle_views(&mut self, peer: Peer, name: Name, mapped: Result<(), Error>) {
        let concerns = |it: &Viewing| it.peer == peer && name_of(&it.claim) == name;
        match mapped {
            Ok(()) => {}
            Err(error) => {
                let ended = self.views.0.extract_if(.., |it| concerns(it));
                self.finished.extend(ended.map(|it| it.ended(Err(error.clone()))));
                self.has_leftovers = true;
            }
        }
        self.views_opened(peer);
    }

    fn try_views(&mut self, concerns: impl Fn(&Viewing) -> bool) {
        let mut at = 0;
        while at < self.views.0.len() {
            if !concerns(&self.views.0[at]) {
                at += 1;
                continue;
            }
            let viewing = self.views.0.swap_remove(at);
            match self.try_view(&viewing) {
                Some(result) => {
                    self.finished.push(viewing.ended(result));
                    self.has_leftovers = true;
                }
                None => {
                    // Back to its place; the one that was moved there goes back to the end.
                    self.views.0.push(viewing);
                    let last = self.views.0.len() - 1;
                    self.views.0.swap(at, last);
                    at += 1;
                }
            }
        }
    }

    /// Makes a view; `None`: it waits for the connection, or for the owner.
    fn try_view(&mut self, viewing: &Viewing) -> Option<Result<SharedBytes, Error>> {
        let Viewing { peer, claim, range, .. } = viewing;
        let connection = self.peers.find(*peer).filter(|it| it.is_open())?;
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
        match self.ask_for_mapping(*peer, claim, None) {
            // The answers that are open try this one again.
            Ok(()) | Err(Error::Again) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
