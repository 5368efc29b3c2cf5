//! Frames in, and what becomes of the daemon.

use hg_na::{GoneReason, Message, Peer};
use hg_na_link::{Access, Lane, Verdict};

use crate::{
    context::{Place, VisorContext},
    session::Event,
    settings::{MESSAGE_MAX, TRANSFERS_MAX},
    way::{Link, Sort, State, Way},
    wire::{self, FRAME_MAX, Header, Kind, YOURS, decode_identity, frame_len},
};

/// What the other side has done wrong.
type Wrong = &'static str;

impl VisorContext {
    /// Something has come of the session.
    pub(crate) fn happened(&mut self, event: Event) {
        match event {
            Event::Ready(address, quota) => {
                if address != self.address {
                    tracing::warn!(%address, was = %self.address, "the daemon is at another address now");
                }
                self.quota = quota;
                self.ask();
            }
            Event::Lost(reason) => self.lost(&reason),
            Event::Left => self.left(),
            Event::Refused(_, sentence) => {
                tracing::warn!(daemon = %self.session.daemon(), sentence, "refused by the daemon");
            }
            Event::Frame(frame) => {
                if let Err(wrong) = self.take(frame) {
                    tracing::warn!(daemon = %self.session.daemon(), wrong, "hung up on the daemon");
                    self.session.hang_up();
                }
            }
        }
    }

    /// The daemon has gone, and with it every connection.
    fn lost(&mut self, reason: &GoneReason) {
        let daemon = self.session.daemon();
        let why = format!("the daemon hg-visor of this node, {daemon}: {reason}");
        let why = GoneReason::Unreachable(why.into());
        let used = |link: &&Link| link.way.state != State::Idle && !link.has_ended();
        let peers: Vec<Peer> = self.links.iter().filter(used).map(|link| link.peer).collect();
        self.places.clear();
        self.opened = 0;
        self.asking.clear();
        self.busy.clear();
        for peer in peers {
            self.end(peer, &why);
        }
        self.handed.clear();
    }

    /// A frame of the daemon's.
    ///
    /// # Errors
    /// What the daemon has done wrong.
    fn take(&mut self, frame: Message) -> Result<(), Wrong> {
        let (header, body) = Header::decode(frame.as_slice())?;
        let id = header.id ^ YOURS;
        if header.kind == Kind::Incoming {
            return self.incoming((id, header.word), body);
        }
        let place = *self.places.get(&id).ok_or("a frame of no connection")?;
        match (header.kind, place) {
            (Kind::Close, place) => {
                self.closed(id, place, &wire::reason(header.word, body));
                Ok(())
            }
            (Kind::Opened | Kind::Window | Kind::Data, Place::Closing) => Ok(()),
            (Kind::Opened, Place::Link(peer)) => self.opened(peer, header.word, body),
            (Kind::Window, Place::Link(peer)) => {
                if let Some(link) = self.links.find(peer) {
                    link.way.refill(header.word)?;
                }
                self.mark_busy(peer);
                Ok(())
            }
            (Kind::Data, Place::Link(peer)) => {
                if let Err(wrong) = self.data(peer, header, body) {
                    self.misbehaved(peer, wrong);
                } else if let Some(link) = self.links.find(peer)
                    && let Some(word) = link.way.taken(frame.len())
                {
                    self.session.say(word);
                }
                Ok(())
            }
            _ => Err("a frame that is not a daemon's to send"),
        }
    }

    /// Somebody has opened a connection to this context.
    fn incoming(&mut self, (id, word): (u32, u64), body: &[u8]) -> Result<(), Wrong> {
        let frame_max = frame_len(word, FRAME_MAX)?;
        let identity = decode_identity(body).ok_or("an identity that makes no sense")?;
        if id & YOURS == 0 || self.places.contains_key(&id) {
            return Err("a connection whose id is not free");
        }
        let mut way = Way::new(State::Open, id, identity);
        way.frame_max = frame_max;
        let peer = self.links.accept(way);
        self.places.insert(id, Place::Link(peer));
        Ok(())
    }

    fn opened(&mut self, peer: Peer, word: u64, body: &[u8]) -> Result<(), Wrong> {
        let identity = decode_identity(body).ok_or("an identity that makes no sense")?;
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        if link.way.state != State::Opening {
            return Err("a connection that is open already");
        }
        link.way.frame_max = frame_len(word, FRAME_MAX)?;
        (link.way.state, link.way.identity) = (State::Open, identity);
        self.mark_busy(peer);
        Ok(())
    }

    /// A connection is over, or is to be.
    fn closed(&mut self, id: u32, place: Place, reason: &GoneReason) {
        self.places.remove(&id);
        if id & YOURS == 0 {
            self.opened -= 1;
        }
        if let Place::Link(peer) = place {
            self.session.say(wire::close(id, &GoneReason::Closed));
            self.end(peer, reason);
        }
        self.ask();
    }

    /// A peer has broken the protocol between applications.
    fn misbehaved(&mut self, peer: Peer, wrong: Wrong) {
        let reason = GoneReason::Misbehaved(wrong.into());
        self.close(peer);
        self.end(peer, &reason);
    }

    /// A frame of a peer's.
    ///
    /// # Errors
    /// What the peer has done wrong.
    fn data(&mut self, peer: Peer, header: Header, body: &[u8]) -> Result<(), Wrong> {
        let admission = self.links.admission();
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        let sort = Sort::of(header.lane).ok_or("a frame of an unknown sort")?;
        let serial = header.word;
        match sort {
            Sort::Control | Sort::Expected | Sort::Unexpected => {
                let lane = match sort {
                    Sort::Control => Lane::Control,
                    Sort::Expected => Lane::Expected,
                    _ => Lane::Unexpected,
                };
                if body.len() > MESSAGE_MAX {
                    return Err("a message that is too long");
                }
                if lane == Lane::Unexpected {
                    link.way.unexpected.receive(u32::try_from(body.len()).unwrap_or(u32::MAX))?;
                }
                let message = Message::copied(body);
                let is_free =
                    link.deliver((lane, header.word), message, admission, &mut self.finished);
                if lane == Lane::Unexpected && is_free {
                    link.way.release(body.len());
                }
                if lane == Lane::Unexpected && !is_free {
                    self.links.await_admission(peer);
                }
            }
            Sort::Credit if body.is_empty() => link.way.credited(header.word)?,
            Sort::Put | Sort::Get => {
                let access = Access::decode(body).ok_or("a transfer that makes no sense")?;
                let named = (sort == Sort::Put, serial);
                link.owner.asked(&self.shared.regions, named, access, (0, TRANSFERS_MAX))?;
            }
            Sort::PutData | Sort::GetData => return self.piece(peer, sort, serial, body),
            Sort::End => {
                let verdict = Verdict::decode(body).ok_or("a verdict that makes no sense")?;
                let ended = link.initiator.ended(serial, verdict)?;
                if ended.is_cut {
                    link.way.cancels.push_back(serial);
                }
                self.finished.extend(ended.completion);
            }
            Sort::Cancel if body.is_empty() => {
                link.owner.withdrawn(serial);
            }
            Sort::Credit | Sort::Cancel => return Err("bytes where there are none"),
        }
        self.mark_busy(peer);
        Ok(())
    }

    /// Bytes of a transfer.
    fn piece(&mut self, peer: Peer, sort: Sort, serial: u64, body: &[u8]) -> Result<(), Wrong> {
        let Some(link) = self.links.find(peer) else { return Ok(()) };
        let len = body.len() as u64;
        let sink = match sort {
            Sort::PutData => link.owner.sink(serial, len)?,
            _ => link.initiator.sink(serial, len)?,
        };
        if len == 0 {
            return Err("a piece without bytes");
        }
        let place = sink.as_ref();
        let copied = place.map(|(entry, at)| {
            entry.with(|memory| hg_na_memory::copy_in(memory, *at, body).is_ok()) == Some(true)
        });
        if sort == Sort::PutData {
            if copied == Some(false) {
                link.owner.lost_sink(serial);
            }
            link.owner.arrived(serial, len);
        } else if link.initiator.arrived(serial, len) {
            self.finished.extend(link.initiator.finish(serial));
        }
        self.mark_busy(peer);
        Ok(())
    }
}
