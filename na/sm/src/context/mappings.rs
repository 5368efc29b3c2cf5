//! A context's part in mappings: it asks, answers and lets go, over the sockets of its connections.

use std::os::fd::OwnedFd;

use hg_na::{Error, Peer};

use super::SmContext;
use crate::{
    descriptor::{RegionClaim, RegionName},
    maps::MAPS,
    os::misbehaved,
    rendezvous::{
        packet::{Packet, Status},
        socket::Sent,
    },
};

impl SmContext {
    /// A peer asks for the memory of a region of this domain.
    ///
    /// # Errors
    /// What ends the connection.
    pub(super) fn serve_map(
        &mut self,
        peer: Peer,
        name: RegionName,
        proof: [u8; 16],
    ) -> Result<(), Error> {
        let socket = self.peers.find(peer).and_then(|it| it.socket.clone());
        let Some(socket) = socket else { return Ok(()) };
        let answer = |status| Packet::Mapped(name, status).encode();
        let sent = match self.shared.regions.give(name, proof, &socket, &answer(Status::Given)) {
            None => socket.send(&answer(Status::NoSuch), &[]),
            Some(Err(error)) => {
                tracing::warn!(%error, "a peer that asks for shared memory cannot be sent its descriptor");
                socket.send(&answer(Status::NoDescriptor), &[])
            }
            Some(sent) => sent,
        };
        match sent? {
            Sent::Done | Sent::Closed => Ok(()),
            Sent::Full => Err(misbehaved("it asks for mappings and does not read its socket")),
        }
    }

    /// The owner answers, with descriptors or an error in place of them.
    ///
    /// # Errors
    /// What ends the connection.
    pub(super) fn mapped(
        &mut self,
        peer: Peer,
        name: RegionName,
        status: Status,
        fds: &Result<Vec<OwnedFd>, Error>,
    ) -> Result<(), Error> {
        let Some(connection) = self.peers.find(peer) else { return Ok(()) };
        if !connection.maps.answered(name) {
            return Err(misbehaved("it answers about a mapping that was not asked for"));
        }
        let Some(link) = connection.link.as_ref() else { return Ok(()) };
        let mapped = match (status, fds) {
            (Status::Given, Ok(fds)) => match fds.first() {
                Some(fd) => connection.maps.map(&link.theirs.table, name, fd),
                None => Err(misbehaved("it gives memory without a descriptor")),
            },
            (Status::Given, Err(no_place)) => {
                tracing::warn!(error = %no_place, "shared memory of a peer is not mapped");
                Err(no_place.clone())
            }
            (Status::NoSuch, _) => Err(Error::StaleDescriptor),
            (Status::NoDescriptor, _) => Err(Error::Limit {
                what: "descriptors that the owner may have in flight (its RLIMIT_NOFILE)",
                limit: 0,
                remedy: "raise it there with `ulimit -n`, or get the bytes instead",
            }),
        };
        if mapped.is_err() {
            connection.maps.refused(name);
        }
        if let Err(error @ Error::PeerGone(_)) = mapped {
            return Err(error);
        }
        self.answer_views(peer, name, mapped);
        Ok(())
    }

    /// Asks a region's owner for its memory, if that is worth it: for a transfer of `len` bytes, or for a view.
    ///
    /// # Errors
    /// [`Error::Again`] when too many answers are open; [`Error::Limit`] when the owner does not read its socket;
    /// [`Error::Os`].
    pub(crate) fn ask_for_mapping(
        &mut self,
        peer: Peer,
        claim: &RegionClaim,
        len: Option<u64>,
    ) -> Result<(), Error> {
        let Some(connection) = self.peers.find(peer) else { return Err(Error::UnknownPeer) };
        let Some(socket) = &connection.socket else { return Err(Error::UnknownPeer) };
        if !connection.maps.is_worth_asking(claim, len) {
            return Ok(());
        }
        if !connection.maps.may_ask() {
            return Err(Error::Again);
        }
        let name = claim.name();
        match socket.send(&Packet::Map(name, claim.proof()).encode(), &[])? {
            Sent::Done => connection.maps.asked(name),
            Sent::Full => {
                return Err(Error::Limit {
                    what: "messages about mappings that wait at their receiver",
                    limit: MAPS as u64,
                    remedy: "let it make progress",
                });
            }
            Sent::Closed => {} // The hang-up is told by an event.
        }
        Ok(())
    }
}
