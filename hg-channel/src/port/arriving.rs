//! What arrives: blocks, acknowledgements, greetings, room, and ends.

use std::time::Instant;

use hg_na::{Completion, Done, Error as NaError, GoneReason, Message, Op, Peer, QUIET, Returned};

use super::{
    Connection, Port, State, Way,
    leaving::{TRANSFER, positions},
};
use crate::{
    error::{Broken, Error},
    near::Parcel,
    outgoing::Block,
    wire::{HEADER, Header, Kind, SIGNED, half, word},
};

/// What a port's owner is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<N> {
    /// Records have arrived. They are consumed in the order of their blocks, then [`Port::consumed`] is told.
    Block(Arrived),
    /// A transfer has ended.
    Moved {
        /// Its poster's.
        token: u64,
        /// How.
        result: Result<(), NaError>,
        /// The local memory.
        returned: Returned,
    },
    /// The other end is there no more: nothing comes from it, and nothing goes there.
    Gone {
        /// Which one.
        end: u32,
        /// Why.
        reason: GoneReason,
        /// Those who will not be told otherwise, the ones of being sent first.
        notices: Vec<N>,
    },
}

/// A block of records that has arrived: private memory.
#[derive(Debug)]
pub struct Arrived {
    link: u32,
    from: u32,
    asks: bool,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Message(Message),
    Block(Block),
}

impl Arrived {
    /// Who has sent it.
    #[inline]
    #[must_use]
    pub fn from(&self) -> u32 {
        self.from
    }

    /// The records, for [`crate::next_record`].
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let message = match &self.memory {
            Memory::Message(message) => message.as_slice(),
            Memory::Block(block) => block.message(),
        };
        message.get(HEADER..).unwrap_or(&[])
    }
}

impl<N> Port<N> {
    /// Makes progress once, and appends what has come. Says whether anything moved. Never waits.
    ///
    /// # Errors
    /// What makes the whole context useless.
    pub fn progress(&mut self, now: Instant, events: &mut Vec<Event<N>>) -> Result<bool, Error> {
        let moved = self.advance(now)?;
        while let Some(event) = self.next() {
            events.push(event);
        }
        Ok(moved)
    }

    /// Makes progress once; what has come is taken by [`Port::next`] before this is called again. Says whether anything moved.
    ///
    /// # Errors
    /// What makes the whole context useless.
    #[inline]
    pub fn advance(&mut self, now: Instant) -> Result<bool, Error> {
        debug_assert!(self.next_completion == self.completions.len(), "take what has come first");
        self.completions.clear();
        self.next_completion = 0;
        let mut moved = self.context.progress(now, &mut self.completions)?;
        if self.next_parcel == self.parcels.len() {
            self.parcels.clear();
            self.next_parcel = 0;
            self.near.take(self.me, &mut self.parcels);
            moved |= !self.parcels.is_empty();
        }
        if !moved && self.idle_at.is_none_or(|at| at <= now) {
            self.look_for_idle(now);
        }
        Ok(moved)
    }

    /// What has come; `None`: that was all.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "it ends and goes on again, and is no iterator"
    )]
    pub fn next(&mut self) -> Option<Event<N>> {
        loop {
            if !self.ended.is_empty() {
                return Some(self.ended.remove(0));
            }
            if let Some(completion) = self.completions.get_mut(self.next_completion) {
                self.next_completion += 1;
                let nothing = Completion::Room { peer: Peer::new(0, 0) };
                let event = match std::mem::replace(completion, nothing) {
                    Completion::Unexpected { from, message } => self.message(from, message),
                    other => self.other(other),
                };
                if event.is_some() {
                    return event;
                }
            } else if self.next_parcel < self.parcels.len() {
                let nothing = Parcel::Gone { from: self.me };
                let parcel = std::mem::replace(&mut self.parcels[self.next_parcel], nothing);
                self.next_parcel += 1;
                let event = self.parcel(parcel);
                if event.is_some() {
                    return event;
                }
            } else {
                return None;
            }
        }
    }

    /// A block was consumed, after those that had come before it from the same end.
    #[inline]
    pub fn consumed(&mut self, block: Arrived) {
        let bytes = block.bytes().len() as u64;
        let link = &mut self.links[block.link as usize];
        link.incoming.consume(bytes, block.asks);
        if link.incoming.owes() && !link.is_owing {
            link.is_owing = true;
            self.owing.push(block.link);
        }
        if let Memory::Block(block) = block.memory {
            self.pool.take_back(block);
        }
    }

    #[inline]
    fn message(&mut self, from: Peer, message: Message) -> Option<Event<N>> {
        let header = match Header::read(message.as_slice()) {
            Ok(header) => header,
            Err(broken) => return self.broken(from, broken),
        };
        if header.kind != Kind::Records {
            return self.other_message(from, header, &message);
        }
        let at = match self.latest {
            Some((peer, at)) if peer == from => at,
            _ => match self.connections.get(&from) {
                Some(connection) if connection.state == State::Left => {
                    let at = connection.link;
                    self.go_on(from, at);
                    at
                }
                Some(connection) => {
                    self.latest = Some((from, connection.link));
                    connection.link
                }
                None => return self.broken(from, Broken::Hello),
            },
        };
        let bytes = (message.len() - HEADER) as u64;
        let link = &mut self.links[at as usize];
        link.is_active = true;
        // No records take nothing of the window, so that there could be any number of such messages.
        let arrived = if bytes == 0 { Err(Broken::TooShort) } else { link.incoming.arrive(bytes) };
        if let Err(broken) = arrived {
            return self.broken(from, broken);
        }
        let end = link.end;
        if header.consumed != link.out.known() && !self.heard(at, header.consumed) {
            return self.broken(from, Broken::Consumed);
        }
        let memory = Memory::Message(message);
        Some(Event::Block(Arrived { link: at, from: end, asks: header.asks, memory }))
    }

    /// The other end says how far it has come. `false`: that cannot be.
    #[inline]
    fn heard(&mut self, at: u32, consumed: u32) -> bool {
        let link = &mut self.links[at as usize];
        match link.out.consume(consumed) {
            Ok(false) => true,
            Ok(true) => {
                link.is_active = true;
                while let Some(notice) = link.out.due() {
                    self.due.push(notice);
                }
                if link.out.front().is_some() {
                    self.push(at);
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Anything but records.
    fn other_message(&mut self, from: Peer, header: Header, message: &Message) -> Option<Event<N>> {
        if header.kind != Kind::Consumed || message.len() != HEADER {
            return self.greeting(from, header.kind, message);
        }
        let at = match self.latest {
            Some((peer, at)) if peer == from => Some(at),
            _ => self.connections.get(&from).map(|connection| connection.link),
        };
        let Some(at) = at else { return self.broken(from, Broken::Hello) };
        if self.heard(at, header.consumed) { None } else { self.broken(from, Broken::Consumed) }
    }

    #[cold]
    fn greeting(&mut self, from: Peer, kind: Kind, message: &Message) -> Option<Event<N>> {
        let is_known = self.connections.contains_key(&from);
        let signer = self.signer(message.as_slice()).filter(|_| kind == Kind::Hello && !is_known);
        let Some(at) = signer else { return self.broken(from, Broken::Hello) };
        let link = &mut self.links[at as usize];
        match link.way {
            // It came back, under a number whose calls have failed already; or it lies.
            Way::Gone(_) | Way::Near => return self.broken(from, Broken::Hello),
            Way::None => link.way = Way::Peer(from),
            Way::Peer(_) => {}
        }
        self.connections.insert(from, Connection { link: at, state: State::Open });
        self.push(at);
        None
    }

    /// The link of whoever has signed a message.
    fn signer(&mut self, bytes: &[u8]) -> Option<u32> {
        let is_ours = bytes.len() == SIGNED
            && bytes[HEADER..HEADER + 16] == self.directory.token
            && word(bytes, HEADER + 20) == Ok(self.limits.window);
        let end = word(bytes, HEADER + 16).ok().filter(|_| is_ours)?;
        self.link_of(end).ok()
    }

    fn broken(&mut self, from: Peer, broken: Broken) -> Option<Event<N>> {
        self.misbehaved(from, broken);
        None
    }

    #[inline(never)]
    fn other(&mut self, completion: Completion) -> Option<Event<N>> {
        match completion {
            Completion::Control { from, message } => self.control(from, message.as_slice()),
            Completion::Room { peer } => {
                if let Some(Connection { link, .. }) = self.connections.get(&peer) {
                    let at = *link;
                    self.links[at as usize].is_blocked = false;
                    self.acknowledge_one(at);
                    self.push(at);
                }
                None
            }
            Completion::Gone { peer, reason } => {
                self.gone(peer, reason);
                None
            }
            Completion::Done(done) => self.done(done),
            _ => None,
        }
    }

    fn done(&mut self, done: Done) -> Option<Event<N>> {
        let Done { token, result, returned, .. } = done;
        if token & (TRANSFER | QUIET) == TRANSFER {
            let result = result.map_err(|failure| failure.error);
            return Some(Event::Moved { token: token & !TRANSFER, result, returned });
        }
        // A message that was lost although its peer is there: the stream has a hole.
        if let Err(failure) = result
            && !matches!(failure.error, NaError::PeerGone(_) | NaError::Cancelled)
            && let Ok(at) = u32::try_from(token & !QUIET)
        {
            self.end_link(at, GoneReason::Exhausted(failure.error.to_string().into()));
        }
        None
    }

    fn control(&mut self, from: Peer, bytes: &[u8]) -> Option<Event<N>> {
        let header = match Header::read(bytes) {
            Ok(header) => header,
            Err(broken) => return self.broken(from, broken),
        };
        let known = self.connections.get(&from).map(|connection| connection.link);
        // Without a signature it is heard once its sender's greeting is, which it may have overtaken.
        let at = known.or_else(|| self.signer(bytes))?;
        if !self.heard(at, header.consumed) {
            return self.broken(from, Broken::Consumed);
        }
        let is_forgotten =
            self.connections.get(&from).is_none_or(|it| it.state == State::Forgotten);
        match header.kind {
            Kind::Consumed => {}
            // Both sides have proposed it at once, and this one is done.
            Kind::Leave | Kind::Left if is_forgotten => {}
            Kind::Leave => self.asked_to_leave(from, at, bytes),
            Kind::Left if self.is_at(at, bytes) => {
                self.forget_idle(from, at, State::Forgotten);
                self.context.forget(from);
                self.stats.reclaimed += 1;
            }
            Kind::Left => {}
            Kind::Hello | Kind::Records => return self.broken(from, Broken::Kind),
        }
        None
    }

    /// Whether nothing is on its way, and both streams are still where the other side says that they are.
    fn is_at(&self, at: u32, bytes: &[u8]) -> bool {
        let link = &self.links[at as usize];
        link.is_quiet()
            && word(bytes, HEADER) == Ok(link.incoming.consumed())
            && word(bytes, HEADER + 4) == Ok(link.out.written())
    }

    /// The other side would close an idle connection.
    fn asked_to_leave(&mut self, from: Peer, at: u32, bytes: &[u8]) {
        if !self.is_at(at, bytes) {
            return;
        }
        let message = positions(Kind::Left, &self.links[at as usize]);
        let op = Op::SendControl { to: from, message };
        if self.context.post(QUIET | u64::from(at), op).is_ok() {
            self.links[at as usize].incoming.tell();
            self.forget_idle(from, at, State::Left);
        }
    }

    /// The other side has sent something after all: the connection is as good as before.
    fn go_on(&mut self, peer: Peer, at: u32) {
        self.connections.insert(peer, Connection { link: at, state: State::Open });
        let link = &mut self.links[at as usize];
        if matches!(link.way, Way::None) {
            link.way = Way::Peer(peer);
        }
    }

    /// This side sends by this connection no more.
    fn forget_idle(&mut self, peer: Peer, at: u32, state: State) {
        self.latest = None;
        self.connections.insert(peer, Connection { link: at, state });
        let link = &mut self.links[at as usize];
        if matches!(link.way, Way::Peer(way) if way == peer) {
            let mut open =
                self.connections.iter().filter(|(_, it)| it.link == at && it.state == State::Open);
            link.way = open.next().map_or(Way::None, |(other, _)| Way::Peer(*other));
            link.is_blocked = false;
        }
    }

    fn gone(&mut self, peer: Peer, reason: GoneReason) {
        self.latest = None;
        let Some(connection) = self.connections.remove(&peer) else { return };
        let at = connection.link;
        let was_agreed = match connection.state {
            State::Open => false,
            State::Left => reason == GoneReason::Closed,
            State::Forgotten => true,
        };
        if was_agreed {
            // What was written meanwhile has waited for this.
            self.push(at);
        } else {
            self.end_link(at, reason);
        }
    }

    fn parcel(&mut self, parcel: Parcel) -> Option<Event<N>> {
        match parcel {
            Parcel::Records { from, block } => {
                let at = self.link_of(from).ok()?;
                if matches!(self.links[at as usize].way, Way::Gone(_)) {
                    return None;
                }
                let header = Header::read(block.message()).ok()?;
                let bytes = (block.message().len() - HEADER) as u64;
                let arrived = self.links[at as usize].incoming.arrive(bytes);
                debug_assert!(arrived.is_ok(), "threads of one process keep to the protocol");
                self.heard(at, header.consumed);
                let memory = Memory::Block(block);
                Some(Event::Block(Arrived { link: at, from, asks: header.asks, memory }))
            }
            Parcel::Consumed { from, consumed } => {
                let at = self.link_of(from).ok()?;
                self.heard(at, consumed);
                None
            }
            Parcel::Gone { from } => {
                if from != self.me
                    && let Ok(at) = self.link_of(from)
                {
                    self.end_link(at, GoneReason::Closed);
                }
                None
            }
        }
    }
}

const _: () = assert!(half(1 << 32) == 0);
