//! What each frame of an open connection does. Everything in it is a claim until it was checked.

use hg_na::{Completion, GoneReason, Message, OpId, Peer, Returned};

use crate::{
    context::TcpContext,
    frame::{Header, Kind},
    link::{EXPECTED, UNEXPECTED},
    outbound::ended,
    reading::{Fate, misbehaved},
    wire::Wire,
};

impl TcpContext {
    /// A whole frame.
    pub(crate) fn frame(
        &mut self,
        wire: &mut Wire,
        header: Header,
        message: Message,
    ) -> Result<(), Fate> {
        match header.kind {
            Kind::Goodbye => {
                wire.is_closed = true;
                return Ok(());
            }
            Kind::Open => return self.open_link(wire, header),
            Kind::Close => return self.close_by_peer(wire, header),
            _ => {}
        }
        // Frames may be on their way while their link is closed.
        let Some(peer) = wire.peer_of(header.link) else { return Ok(()) };
        self.link_frame(wire, peer, header, message).map_err(misbehaved)
    }

    fn link_frame(
        &mut self,
        wire: &mut Wire,
        peer: Peer,
        header: Header,
        message: Message,
    ) -> Result<(), &'static str> {
        let side = usize::from(header.link.side);
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        match header.kind {
            Kind::Unexpected => {
                link.receive(UNEXPECTED, message.len())?;
                if self.admission && link.is_admitted && link.withheld.is_empty() {
                    link.release(UNEXPECTED, message.len(), Some((wire, side)));
                    self.finished.push(Completion::Unexpected { from: peer, message });
                } else {
                    link.withheld.push_back(message);
                    self.await_admission(peer);
                }
            }
            Kind::Expected => {
                link.receive(EXPECTED, message.len())?;
                link.release(EXPECTED, message.len(), Some((wire, side)));
                // One without a receive is late.
                if let Some(receive) = link.receives.take(header.word) {
                    let id = OpId { scope: peer.index(), serial: receive.serial };
                    let returned = Returned::Message(message);
                    self.finished.push(ended(id, receive.token, None, returned));
                }
            }
            Kind::Control => self.finished.push(Completion::Control { from: peer, message }),
            Kind::Credit => {
                link.refill(UNEXPECTED, header.word)?;
                link.pump(wire, side, &mut self.finished);
            }
            Kind::ExpectedCredit => {
                link.refill(EXPECTED, header.word)?;
                link.pump(wire, side, &mut self.finished);
            }
            Kind::Put | Kind::Get => {
                let regions = &self.shared.regions;
                link.transfers.asked(regions, header, message.as_slice(), (wire, side))?;
            }
            Kind::End => {
                let (serial, body) = (header.word, message.as_slice());
                let done = link.transfers.ended(peer, serial, body, (wire, side))?;
                self.finished.extend(done);
                link.tell_room(wire.outbound.controls(), &mut self.finished);
            }
            Kind::Cancel => link.transfers.withdrawn(header.word, wire, side),
            Kind::PutData | Kind::GetData | Kind::Open | Kind::Close | Kind::Goodbye => {}
        }
        Ok(())
    }

    /// Bytes of a transfer that could not be read to their place.
    pub(crate) fn data(
        &mut self,
        wire: &mut Wire,
        header: Header,
        bytes: &[u8],
    ) -> Result<(), Fate> {
        let Some(peer) = wire.peer_of(header.link) else { return Ok(()) };
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        let side = usize::from(header.link.side);
        let sink = link.transfers.sink(header, bytes.len()).map_err(misbehaved)?;
        if let Some((entry, offset)) = sink {
            let copied = entry.with(|memory| hg_na_memory::copy_in(memory, offset, bytes));
            if !matches!(copied, Some(Ok(()))) {
                link.transfers.lost_sink(header, wire, side);
            }
        }
        link.transfers.arrived(header, bytes.len(), wire, side);
        Ok(())
    }

    /// The peer opens its link on a connection that this side has made, or whose link was closed.
    fn open_link(&mut self, wire: &mut Wire, header: Header) -> Result<(), Fate> {
        let side = usize::from(header.link.side);
        if side == wire.own_side() {
            return Err(misbehaved("a link opened in the name of this side"));
        }
        if wire.slots[side].peer.is_some() {
            return Err(misbehaved("a second link of one side"));
        }
        if wire.is_retiring {
            wire.is_retiring = false;
            self.untime(wire);
            self.map(wire);
        }
        let peer = self.links.accept(wire, side);
        wire.slots[side] = crate::wire::Slot { peer: Some(peer), epoch: header.link.epoch };
        Ok(())
    }

    /// The peer closes a link; without any left, the connection.
    fn close_by_peer(&mut self, wire: &mut Wire, header: Header) -> Result<(), Fate> {
        if wire.peer_of(header.link).is_some() {
            self.close_link(wire, usize::from(header.link.side), GoneReason::Closed);
        }
        if wire.is_used() { Ok(()) } else { Err(Fate::Parted) }
    }
}
