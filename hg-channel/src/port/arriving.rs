//! What arrives: blocks, acknowledgements, greetings, room, and ends.

use std::time::Instant;

use hg_na::{
    Completion, Done, Error as NaError, GoneReason, Message, Peer, QUIET, Reached, Returned,
};

use super::{
    Connection, Port, State, Way,
    leaving::{HELLO, TRANSFER},
};
use crate::{
    error::{Broken, Error},
    limits::WIDENED_MAX,
    near::Parcel,
    outgoing::Block,
    wire::{HEADER, Header, Kind, Positions, SIGNED, Told, half, header_of, word},
};

/// What a port's owner is told.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a, N> {
    /// Records have arrived. They are consumed in the order of their blocks, then [`Port::consumed`] is told.
    Block(Arrived<'a>),
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

/// What a round has found, apart from its port: whoever is given a part of it may use the port meanwhile. It is used again by the next round.
#[derive(Debug)]
pub struct Batch {
    /// What was found without a round, and of whom: used again.
    glimpse: Message,
    glimpsed: Option<Peer>,
    completions: Vec<Completion>,
    next_completion: usize,
    parcels: Vec<Parcel>,
    next_parcel: usize,
}

impl Default for Batch {
    fn default() -> Self {
        let (completions, parcels) = Default::default();
        let (next_completion, next_parcel, glimpsed) = (0, 0, None);
        let glimpse = Message::inline(0);
        Self { glimpse, glimpsed, completions, next_completion, parcels, next_parcel }
    }
}

impl Batch {
    /// Whether everything was taken.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.glimpsed.is_none()
            && self.next_completion == self.completions.len()
            && self.next_parcel == self.parcels.len()
    }

    /// Lets go of what was taken.
    #[inline]
    fn clear(&mut self) {
        self.completions.clear();
        self.parcels.clear();
        (self.next_completion, self.next_parcel) = (0, 0);
    }
}

/// A block of records that has arrived: private memory. It is read where the transport has put it, in the batch: a message is as long as
/// its records are short, so that moving it about costs more than running them.
#[derive(Debug)]
pub struct Arrived<'a> {
    link: u32,
    from: u32,
    asks: bool,
    memory: Place<'a>,
}

#[derive(Debug)]
enum Place<'a> {
    Message(&'a mut Message),
    Block(&'a mut Block),
}

impl<'a> Place<'a> {
    #[inline(always)]
    fn of_message(completion: &'a mut Completion) -> Option<Self> {
        let Completion::Unexpected { message, .. } = completion else { return None };
        Some(Self::Message(message))
    }

    #[inline(always)]
    fn of_block(parcel: &'a mut Parcel) -> Option<Self> {
        let Parcel::Records { block, .. } = parcel else { return None };
        Some(Self::Block(block))
    }
}

impl Arrived<'_> {
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
            Place::Message(message) => message.as_slice(),
            Place::Block(block) => block.message(),
        };
        message.get(HEADER..).unwrap_or(&[])
    }

    /// Takes it out of its batch, to be consumed later.
    #[must_use]
    pub fn keep(self) -> Kept {
        let Self { link, from, asks, memory } = self;
        let memory = match memory {
            Place::Message(message) => {
                Memory::Message(std::mem::replace(message, Message::inline(0)))
            }
            Place::Block(block) => Memory::Block(std::mem::take(block)),
        };
        Kept { link, from, asks, memory }
    }
}

/// A block that was taken out of its batch.
#[derive(Debug)]
pub struct Kept {
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

impl Kept {
    /// It, as it has arrived.
    #[must_use]
    pub fn arrived(&mut self) -> Arrived<'_> {
        let Self { link, from, asks, memory } = self;
        let memory = match memory {
            Memory::Message(message) => Place::Message(message),
            Memory::Block(block) => Place::Block(block),
        };
        Arrived { link: *link, from: *from, asks: *asks, memory }
    }
}

/// Whose records have come.
struct Sender {
    link: u32,
    from: u32,
    asks: bool,
}

impl<N> Port<N> {
    /// Makes progress once; what has come is taken by [`Port::next`] before this is called again. Says whether anything moved. Never waits.
    ///
    /// Before a round of the transport's it takes a *glimpse*: at the next short message of whoever has sent the last one. That finds what comes one
    /// by one the sooner; a few are taken between two rounds as long as they find something. Of many messages a round takes several, which costs less,
    /// so that none is taken then. Whatever is found so, a round is next.
    ///
    /// # Errors
    /// What makes the whole context useless.
    #[inline]
    pub fn advance(&mut self, now: Instant, batch: &mut Batch) -> Result<bool, Error> {
        debug_assert!(batch.is_empty(), "take what has come first");
        batch.clear();
        if self.glimpses > 0
            && let Some((from, _)) = self.latest
        {
            self.glimpses -= 1;
            if self.context.take_request(from, &mut batch.glimpse) {
                batch.glimpsed = Some(from);
                (self.glimpses, self.trust) = (0, TRUST);
                return Ok(true);
            }
            if self.glimpses > 0 {
                return Ok(false);
            }
        }
        let mut moved = self.context.progress(now, &mut batch.completions)?;
        self.near.take(self.me, &mut batch.parcels);
        moved |= !batch.parcels.is_empty();
        if self.idle_at.is_none_or(|at| at <= now) {
            // The best moment is a round that finds nothing; who has none is not to wait for it.
            self.late += 1;
            if !moved || self.late >= LATE_ROUNDS {
                self.look_for_idle(now);
            }
        }
        if !self.ending.is_empty() {
            moved |= self.end_those_ending(now, !moved);
        }
        if batch.completions.is_empty() && batch.parcels.is_empty() {
            self.rounds_in_vain += 1;
        }
        self.trust = if moved { 0 } else { self.trust.saturating_sub(1) };
        self.glimpses = match batch.completions.len() {
            0 if self.trust > 0 => GLIMPSES,
            0 | 1 => 1,
            _ => 0,
        };
        Ok(moved)
    }

    /// What has come; `None`: that was all.
    #[inline]
    pub fn next<'a>(&mut self, batch: &'a mut Batch) -> Option<Event<'a, N>> {
        loop {
            if let Some(event) = self.ended.pop_front() {
                return Some(event);
            }
            if let Some(from) = batch.glimpsed.take() {
                let Some(sender) = self.message(from, &batch.glimpse) else { continue };
                return Some(sender.arrived(Place::Message(&mut batch.glimpse)));
            }
            if batch.next_completion < batch.completions.len() {
                let at = batch.next_completion;
                batch.next_completion += 1;
                let event = match &mut batch.completions[at] {
                    Completion::Unexpected { from, message } => {
                        match self.message(*from, message) {
                            Some(sender) => {
                                let message = Place::of_message(&mut batch.completions[at]);
                                return message.map(|it| sender.arrived(it));
                            }
                            None => continue,
                        }
                    }
                    other => {
                        let nothing = Completion::Room { peer: Peer::new(0, 0) };
                        self.other(std::mem::replace(other, nothing))
                    }
                };
                if event.is_some() {
                    return event;
                }
            } else if batch.next_parcel < batch.parcels.len() {
                let at = batch.next_parcel;
                batch.next_parcel += 1;
                let Some(sender) = self.parcel(&batch.parcels[at]) else { continue };
                let block = Place::of_block(&mut batch.parcels[at]);
                return block.map(|it| sender.arrived(it));
            } else {
                batch.clear();
                return None;
            }
        }
    }

    /// A block was consumed, after those that had come before it from the same end.
    #[inline]
    pub fn consumed(&mut self, block: Arrived<'_>) {
        let bytes = block.bytes().len() as u64;
        let link = &mut self.links[block.link as usize];
        link.incoming.consume(bytes, block.asks);
        if link.incoming.owes() && !link.is_owing {
            link.is_owing = true;
            self.owing.push(block.link);
        }
        if let Place::Block(block) = block.memory {
            self.pool.take_back(std::mem::take(block));
        }
    }

    #[inline]
    fn message(&mut self, from: Peer, message: &Message) -> Option<Sender> {
        let Some(header) = header_of(Kind::Records, message.as_slice()) else {
            return self.other_message(from, message);
        };
        let at = match self.latest {
            Some((peer, at)) if peer == from => at,
            _ => match self.connections.get(&from) {
                Some(&Connection { link, state: State::Left(_), .. }) => {
                    self.go_on(from, link);
                    link
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
        let is_news = header.told != link.out.known();
        let waited_in_vain = self.rounds_in_vain - link.rounds_in_vain;
        link.rounds_in_vain = self.rounds_in_vain;
        if header.waited && waited_in_vain >= STARVED {
            self.widen(at, from, bytes);
        }
        if is_news && !self.heard(at, header.told) {
            return self.broken(from, Broken::Consumed);
        }
        Some(Sender { link: at, from: end, asks: header.asks })
    }

    /// A block has arrived that had waited for the window, while this end had nothing to do.
    #[cold]
    fn widen(&mut self, at: u32, from: Peer, block: u64) {
        if self.has_views && self.context.views(from) {
            return;
        }
        let incoming = &mut self.links[at as usize].incoming;
        let more = incoming.window();
        let is_bounded =
            2 * more <= self.limits.widest.into() && self.widened + more <= WIDENED_MAX;
        if is_bounded && incoming.is_too_narrow(block) {
            incoming.widen();
            self.widened += more;
            self.stats.widened += 1;
        }
    }

    /// The other end says how far it has come. `false`: that cannot be.
    #[inline]
    fn heard(&mut self, at: u32, told: Told) -> bool {
        let link = &mut self.links[at as usize];
        match link.out.consume(told) {
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
    #[inline(never)]
    fn other_message(&mut self, from: Peer, message: &Message) -> Option<Sender> {
        let bytes = message.as_slice();
        let consumed = header_of(Kind::Consumed, bytes).filter(|_| bytes.len() == HEADER);
        let Some(Header { told, .. }) = consumed else {
            return match Header::read(bytes) {
                Ok(header) => self.greeting(from, header.kind, message),
                Err(broken) => self.broken(from, broken),
            };
        };
        let at = match self.latest {
            Some((peer, at)) if peer == from => at,
            _ => match self.connections.get(&from) {
                Some(connection) => {
                    if connection.state == State::Open {
                        self.latest = Some((from, connection.link));
                    }
                    connection.link
                }
                None => return self.broken(from, Broken::Hello),
            },
        };
        if self.heard(at, told) { None } else { self.broken(from, Broken::Consumed) }
    }

    #[cold]
    fn greeting(&mut self, from: Peer, kind: Kind, message: &Message) -> Option<Sender> {
        let is_known = self.connections.contains_key(&from);
        let signer = self.signer(message.as_slice()).filter(|_| kind == Kind::Hello && !is_known);
        let Some(at) = signer else { return self.broken(from, Broken::Hello) };
        if self.connections.values().filter(|it| it.link == at).count() >= CONNECTIONS_MAX {
            return self.broken(from, Broken::Hello);
        }
        let link = &mut self.links[at as usize];
        match link.way {
            // It came back, under a number whose calls have failed already; or it lies.
            Way::Gone(_) | Way::Near | Way::Left => return self.broken(from, Broken::Hello),
            Way::None => link.way = Way::Peer(from),
            Way::Peer(_) => {}
        }
        self.set_state(from, at, State::Open);
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

    #[cold]
    fn broken<T>(&mut self, from: Peer, broken: Broken) -> Option<T> {
        self.misbehaved(from, broken);
        None
    }

    #[inline(never)]
    fn other<'a>(&mut self, completion: Completion) -> Option<Event<'a, N>> {
        match completion {
            Completion::Control { from, message } => self.control(from, message.as_slice()),
            Completion::Room { peer } => {
                if let Some(Connection { link, .. }) = self.connections.get(&peer) {
                    let at = *link;
                    let link = &mut self.links[at as usize];
                    link.is_blocked = false;
                    if let Some((_, left)) = link.stays.take_if(|it| it.0 == peer) {
                        self.stay(peer, at, left);
                    }
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

    fn done<'a>(&mut self, done: Done) -> Option<Event<'a, N>> {
        let Done { id, token, result, returned, .. } = done;
        if token & (TRANSFER | QUIET) == TRANSFER {
            let result = result.map_err(|failure| failure.error);
            return Some(Event::Moved { token: token & !TRANSFER, result, returned });
        }
        let Err(failure) = result else { return None };
        let Ok(at) = u32::try_from(token & !(QUIET | HELLO)) else { return None };
        if !matches!(failure.error, NaError::PeerGone(_) | NaError::Cancelled) {
            // A message that was lost although its peer is there: the stream has a hole.
            self.end_link(at, GoneReason::Exhausted(failure.error.to_string().into()));
        } else if token & HELLO != 0 && failure.reached == Reached::Never {
            self.came_back(at, id);
        }
        None
    }

    fn control<T>(&mut self, from: Peer, bytes: &[u8]) -> Option<T> {
        let header = match Header::read(bytes) {
            Ok(header) => header,
            Err(broken) => return self.broken(from, broken),
        };
        let known = self.connections.get(&from).map(|it| it.link);
        // Without a signature it is heard once its sender's greeting is, which it may have overtaken.
        let at = known.or_else(|| self.signer(bytes))?;
        if !self.heard(at, header.told) {
            return self.broken(from, Broken::Consumed);
        }
        let state = self.connections.get(&from).map_or(State::Forgotten, |it| it.state);
        match (header.kind, state) {
            (Kind::Consumed, _) => {}
            // Both sides have proposed it at once, and this one is done.
            (Kind::Leave | Kind::Left, State::Forgotten | State::Unaccepted) => {}
            (Kind::Leave, State::Open) => self.asked_to_leave(from, at, bytes),
            // It has said so already.
            (Kind::Leave, State::Left(_)) => {}
            // Neither side sends by it any more, whatever both have written since.
            (Kind::Left, State::Left(_)) => self.close_left(from, at),
            (Kind::Left, State::Open) if self.is_at(at, bytes) => self.close_left(from, at),
            (Kind::Left, State::Open) => match Positions::read(bytes) {
                Ok(left) => self.stay(from, at, left),
                Err(broken) => return self.broken(from, broken),
            },
            // Unless it answers an earlier one, after which this side has gone on anyway.
            (Kind::Stay, State::Left(said)) if Positions::read(bytes) == Ok(said) => {
                self.go_on(from, at);
            }
            (Kind::Stay, _) => {}
            (Kind::Hello | Kind::Records, _) => return self.broken(from, Broken::Kind),
        }
        None
    }

    #[inline]
    fn parcel(&mut self, parcel: &Parcel) -> Option<Sender> {
        match *parcel {
            Parcel::Records { from, ref block } => {
                let link = self.link_of(from).ok()?;
                if matches!(self.links[link as usize].way, Way::Gone(_)) {
                    return None;
                }
                let header = Header::read(block.message()).ok()?;
                let bytes = (block.message().len() - HEADER) as u64;
                let arrived = self.links[link as usize].incoming.arrive(bytes);
                debug_assert!(arrived.is_ok(), "threads of one process keep to the protocol");
                self.heard(link, header.told);
                Some(Sender { link, from, asks: header.asks })
            }
            Parcel::Consumed { from, told } => {
                let at = self.link_of(from).ok()?;
                self.heard(at, told);
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

impl Sender {
    #[inline(always)]
    fn arrived<N>(self, memory: Place<'_>) -> Event<'_, N> {
        let Self { link, from, asks } = self;
        Event::Block(Arrived { link, from, asks, memory })
    }
}

const _: () = assert!(half(1 << 32) == 0);

/// Connections with one end: each side makes one, beside those that are being closed.
const CONNECTIONS_MAX: usize = 8;
/// Rounds that find nothing, between two blocks of an end, after which it has lacked the second.
const STARVED: u64 = 8;
/// Glimpses between two rounds that have found nothing, ...
const GLIMPSES: u8 = 4;
/// ... and such rounds since a glimpse has found something, after which there is one between two.
const TRUST: u8 = 32;
/// Rounds that find something, after which idle connections are looked for all the same.
const LATE_ROUNDS: u32 = 64;
