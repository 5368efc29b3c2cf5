//! What each frame of an open connection does. Everything in it is a claim until it was checked.

use hg_na::{GoneReason, Message, Peer};
use hg_na_link::Lane;

use crate::{
    context::TcpContext,
    frame::{Header, Kind},
    link::{State, Way, pump},
    reading::{Fate, misbehaved},
    settings::LIMITS,
    transfers::{arrived, asked, ended, lost_sink, sink, withdrawn},
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
        if header.kind == Kind::Unexpected {
            return self.unexpected(wire, peer, header, message);
        }
        self.link_frame(wire, peer, header, message).map_err(misbehaved)
    }

    fn unexpected(
        &mut self,
        wire: &mut Wire,
        peer: Peer,
        header: Header,
        message: Message,
    ) -> Result<(), Fate> {
        let (side, len) = (usize::from(header.link.side), message.len());
        let admission = self.links.admission();
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        link.way.receive(Lane::Unexpected, len).map_err(misbehaved)?;
        if link.deliver((Lane::Unexpected, 0), message, admission, &mut self.finished) {
            link.way.release(Lane::Unexpected, len, Some((wire, side)));
            return Ok(());
        }
        let most = self.shared.settings.bounds.max_held;
        let Some(greedy) = self.links.withhold(peer, len, most, &mut self.finished) else {
            return Ok(());
        };
        let why =
            GoneReason::Exhausted("its requests took too much memory while they waited".into());
        if wire.slots.iter().any(|slot| slot.peer == Some(greedy)) {
            return Err(Fate::Lost(why));
        }
        let state = self.links.find(greedy).map(|link| &link.way.state);
        if let Some(State::Open { wire, .. }) = state
            && let Some(other) = self.wires.take(*wire)
        {
            self.lose(other, &why);
        }
        Ok(())
    }

    fn link_frame(
        &mut self,
        wire: &mut Wire,
        peer: Peer,
        header: Header,
        message: Message,
    ) -> Result<(), &'static str> {
        let (side, admission) = (usize::from(header.link.side), self.links.admission());
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        let done = &mut self.finished;
        match header.kind {
            Kind::Expected => {
                link.way.receive(Lane::Expected, message.len())?;
                link.way.release(Lane::Expected, message.len(), Some((wire, side)));
                link.deliver((Lane::Expected, header.word), message, admission, done);
            }
            Kind::Control => {
                link.deliver((Lane::Control, 0), message, admission, done);
            }
            Kind::Credit => {
                link.way.refill(Lane::Unexpected, header.word)?;
                pump(link, wire, side, done);
            }
            Kind::ExpectedCredit => {
                link.way.refill(Lane::Expected, header.word)?;
                pump(link, wire, side, done);
            }
            Kind::Put | Kind::Get => {
                let regions = &self.shared.regions;
                asked(link, regions, (header, message.as_slice()), (wire, side))?;
            }
            Kind::End => {
                ended(link, (header.word, message.as_slice()), (wire, side), done)?;
                link.tell_room(&LIMITS, wire.outbound.controls(), done);
            }
            Kind::Cancel => withdrawn(link, header.word, wire, side),
            Kind::Unexpected
            | Kind::PutData
            | Kind::GetData
            | Kind::Open
            | Kind::Close
            | Kind::Goodbye => {}
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
        let place = sink(link, header, bytes.len()).map_err(misbehaved)?;
        if let Some((entry, offset)) = place {
            let copied = entry.with(|memory| hg_na_memory::copy_in(memory, offset, bytes));
            if !matches!(copied, Some(Ok(()))) {
                lost_sink(link, header, wire, side);
            }
        }
        arrived(link, header, bytes.len(), wire, side);
        Ok(())
    }

    /// The peer opens its link on a connection that this side has made, or whose link was closed. Where as many have hung up and
    /// withhold messages as there may be peers, it is closed at once.
    fn open_link(&mut self, wire: &mut Wire, header: Header) -> Result<(), Fate> {
        let side = usize::from(header.link.side);
        if side == wire.own_side() {
            return Err(misbehaved("a link opened in the name of this side"));
        }
        if wire.slots[side].peer.is_some() {
            return Err(misbehaved("a second link of one side"));
        }
        wire.slots[side].epoch = header.link.epoch;
        let max = self.shared.settings.bounds.max_peers;
        // The connection itself was counted when it was opened.
        if self.links.hung_up() >= max {
            tracing::warn!(peer = ?wire.remote, "a link is refused: messages of {max} that have ended wait, its `max-peers`");
            wire.send(Kind::Close, side, 0, &[]);
            return Ok(());
        }
        if wire.is_retiring {
            wire.is_retiring = false;
            self.untime(wire);
            self.map(wire);
        }
        let peer = self.links.accept(Way::over(wire, side));
        wire.slots[side].peer = Some(peer);
        Ok(())
    }

    /// The peer closes a link; without any left, the connection.
    fn close_by_peer(&mut self, wire: &mut Wire, header: Header) -> Result<(), Fate> {
        if wire.peer_of(header.link).is_some() {
            self.close_link(wire, usize::from(header.link.side), &GoneReason::Closed);
        }
        if wire.is_used() { Ok(()) } else { Err(Fate::Parted) }
    }
}
