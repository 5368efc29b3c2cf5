//! An open connection's shared memory: both sides' segments, arenas and doorbells, and the private
//! state that goes with them.

use std::{ops::Range, sync::Arc};

use hg_na::{Error, GoneReason, Message, Op, Peer, Tag};

use crate::{
    arena::{FERRY_OFFSET, LANES, Lane, MESSAGE_MAX, Reservation},
    body::{OwnArena, received},
    fail,
    layout::{ANSWERS_SLOTS, REQUESTS_SLOTS, RINGS, Slot},
    os::event::{Doorbell, PeerBell},
    region::table::PeerTable,
    rendezvous::{packet::Packet, socket::Socket},
    ring::{Broken, Consumer, Payload, Producer, Word},
    segment::Rings,
    sync::{AtomicBool, Ordering},
    wake::{Bell, Intent},
};

pub(crate) use crate::layout::{ANSWERS, REQUESTS};

/// Longest message inside a slot of each ring; an expected one spends eight bytes on its tag.
pub(crate) const SHORT: [usize; RINGS] = [56, 48];
/// Longest control message: it lies in its slot.
pub(crate) const CONTROL_MAX: usize = 56;

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unexpected.
    Request,
    /// Expected.
    Answer(Tag),
    Control,
}

impl Kind {
    /// The ring that it travels in.
    #[inline(always)]
    pub(crate) const fn ring(self) -> usize {
        match self {
            Self::Request => REQUESTS,
            Self::Answer(_) | Self::Control => ANSWERS,
        }
    }

    /// Longest message of its kind inside a slot.
    #[inline(always)]
    pub(crate) const fn short(self) -> usize {
        match self {
            Self::Request => SHORT[REQUESTS],
            Self::Answer(_) => SHORT[ANSWERS],
            Self::Control => CONTROL_MAX,
        }
    }

    /// The operation that sends such a message.
    pub(crate) fn op(self, to: Peer, message: Message) -> Op {
        match self {
            Self::Request => Op::SendUnexpected { to, message },
            Self::Answer(tag) => Op::SendExpected { to, tag, message },
            Self::Control => Op::SendControl { to, message },
        }
    }
}

/// Longest message in slots of the ring of requests: in the arena a longer one costs less.
pub(crate) const WIDE_MAX: usize = 4 * SHORT[REQUESTS];

const _: () = assert!(WIDE_MAX <= hg_na::WIDE_MAX); // Its memory is used again.

/// Slots of a message of that ring that has so many bytes; `None`: it lies in the arena.
#[inline]
pub(crate) fn slots_of(len: usize) -> Option<u32> {
    let count = u32::try_from(len.div_ceil(SHORT[REQUESTS])).ok()?.max(1);
    (len <= WIDE_MAX).then_some(count)
}

/// Has the pages of a range of an arena made.
pub(crate) type MakePages = fn(&Rings, Range<u32>) -> Result<(), Error>;

/// What this side has made for a connection.
#[derive(Debug)]
pub(crate) struct OwnSide {
    pub(crate) rings: Rings,
    pub(crate) arena: Arc<OwnArena>,
    pub(crate) lanes: [Lane; LANES],
    /// Where pages are asked for before they are touched ([`crate::os::room`]).
    pub(crate) make_pages: Option<MakePages>,
    pub(crate) bell: Doorbell,
    /// Its context's: some peer is to be rung again.
    pub(crate) unrung: Arc<AtomicBool>,
}

/// What the peer has sent, checked and mapped.
#[derive(Debug)]
pub(crate) struct TheirSide {
    pub(crate) rings: Arc<Rings>,
    pub(crate) bell: PeerBell,
    /// Its connection's, and closed with that.
    pub(crate) socket: std::sync::Weak<Socket>,
    /// One for all connections with that domain.
    pub(crate) table: Arc<PeerTable>,
}

impl TheirSide {
    /// Wakes the peer; never waits for it. `false`: the system refused. A socket that is full wakes it, too.
    pub(crate) fn ring(&self) -> bool {
        let send = |socket: Arc<Socket>| socket.send(&Packet::Ring.encode(), &[]).is_ok();
        self.bell.ring() || self.socket.upgrade().is_none_or(send)
    }
}

/// Both.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) own: OwnSide,
    pub(crate) theirs: TheirSide,
    pub(crate) tx: [Producer; RINGS],
    pub(crate) rx: [Consumer; RINGS],
    /// Whether this side looks at the peer's rings.
    attention: Intent,
    /// Whether this side sleeps for want of space.
    space: Intent,
    attention_bell: Bell,
    space_bell: Bell,
    /// The last body found space, and no memory.
    lacks_pages: bool,
    /// The peer was to be rung, and the system refused.
    is_unrung: bool,
}

/// Where a body lies in the peer's arena; checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyClaim {
    offset: u32,
    len: u32,
}

impl BodyClaim {
    /// Checks what a slot claims.
    pub(crate) fn check(offset: u64, len: u32) -> Result<Self, Broken> {
        if len > MESSAGE_MAX {
            return Err(Broken::TooLong);
        }
        let offset = u32::try_from(offset).map_err(|_| Broken::OutsideOfArena)?;
        match offset.checked_add(len) {
            Some(end) if end <= FERRY_OFFSET => Ok(Self { offset, len }),
            _ => Err(Broken::OutsideOfArena),
        }
    }
}

impl Link {
    /// A connection that neither side looks at yet: both doorbells are wanted.
    pub(crate) fn new(own: OwnSide, theirs: TheirSide) -> Self {
        let mut attention = Intent::default();
        attention.park(&own.rings.attention.0);
        Self {
            own,
            theirs,
            tx: [Producer::new(REQUESTS_SLOTS), Producer::new(ANSWERS_SLOTS)],
            rx: [Consumer::new(REQUESTS_SLOTS), Consumer::new(ANSWERS_SLOTS)],
            attention,
            space: Intent::default(),
            attention_bell: Bell::default(),
            space_bell: Bell::default(),
            lacks_pages: false,
            is_unrung: false,
        }
    }

    /// Whether so many slots are free in a ring.
    #[inline]
    pub(crate) fn has_room(&mut self, ring: usize, slots: u32) -> Result<bool, Broken> {
        self.tx[ring].has_room(slots, &self.theirs.rings.popped[ring].0)
    }

    /// Publishes a slot, and rings when the peer does not look.
    pub(crate) fn push(&mut self, ring: usize, word: Word, payload: &Payload) {
        if self.publish(ring, word, |at| payload[at]) {
            self.ring();
        }
    }

    /// Publishes a slot; `true`: [`Link::ring`] must follow.
    #[inline(always)]
    pub(crate) fn publish(
        &mut self,
        ring: usize,
        word: Word,
        payload: impl Fn(usize) -> u64,
    ) -> bool {
        fail::point("publish");
        self.tx[ring].push(self.own.rings.ring(ring), word, payload);
        fail::point("published");
        self.attention_bell.is_due(&self.theirs.rings.attention.0)
    }

    /// Publishes a request of several slots; `true`: [`Link::ring`] must follow.
    #[inline]
    pub(crate) fn publish_wide(&mut self, bytes: &[u8], slots: u32) -> bool {
        fail::point("publish");
        let mut padded = [0; WIDE_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        let (words, _) = padded.as_chunks::<8>();
        let word = Word::new(Word::INLINE, u32::try_from(bytes.len()).unwrap_or(0));
        let payload = |at: usize| {
            fail::point("part");
            u64::from_ne_bytes(words[at])
        };
        self.tx[REQUESTS].push_wide(self.own.rings.ring(REQUESTS), (word, slots), payload);
        fail::point("published");
        self.attention_bell.is_due(&self.theirs.rings.attention.0)
    }

    /// The next message will follow soon, and the peer does not look for it yet: its line is fetched meanwhile.
    #[inline(always)]
    pub(crate) fn own_next(&self, ring: usize) {
        self.tx[ring].own(self.own.rings.ring(ring), 0);
    }

    /// The same for the message after the next one, where its slot is known to be free: of a stream of them.
    #[inline(always)]
    pub(crate) fn own_after_next(&self, ring: usize) {
        if self.tx[ring].has_known_room(2) {
            self.tx[ring].own(self.own.rings.ring(ring), 1);
        }
    }

    /// Rings the peer, which does not look.
    #[cold]
    pub(crate) fn ring(&mut self) {
        fail::point("ring");
        self.is_unrung = !self.theirs.ring();
        self.own.unrung.fetch_or(self.is_unrung, Ordering::Relaxed); // Read by the thread that makes progress, as this is.
    }

    /// Rings the peer if that has failed.
    pub(crate) fn ring_again(&mut self) {
        if self.is_unrung {
            self.ring();
        }
    }

    /// Publishes a message whose bytes lie in the own arena.
    pub(crate) fn push_body(&mut self, kind: Kind, lane: usize, place: Reservation, len: u32) {
        let (ring, offset) = (kind.ring(), u64::from(place.offset));
        let payload = match kind {
            Kind::Answer(tag) => [tag, offset, 0, 0, 0, 0, 0],
            Kind::Request | Kind::Control => [offset, 0, 0, 0, 0, 0, 0],
        };
        self.own.lanes[lane].posted(place.entry, ring, self.tx[ring].position());
        self.push(ring, Word::new(Word::BODY, len), &payload);
    }

    /// Finds space for a body.
    pub(crate) fn reserve(&mut self, lane: usize, len: u32) -> Result<Option<Reservation>, Broken> {
        self.refresh()?;
        let place =
            self.own.lanes[lane].reserve(len, |ring, position| self.tx[ring].is_popped(position));
        self.lacks_pages = false;
        if let (Some(make_pages), Some(place)) = (self.own.make_pages, place)
            && make_pages(&self.own.arena.bytes, place.offset..place.offset + len).is_err()
        {
            self.lacks_pages = true;
            self.own.lanes[lane].undo();
            return Ok(None);
        }
        fail::point("reserve");
        Ok(place)
    }

    /// Whether an arena that had no space lacks memory, and nothing is on its way in a ring whose end would make space.
    pub(crate) fn lacks_memory(&self, ring: usize) -> bool {
        self.lacks_pages && self.tx[ring].is_drained()
    }

    /// Learns what the peer has taken.
    pub(crate) fn refresh(&mut self) -> Result<(), Broken> {
        for (producer, popped) in self.tx.iter_mut().zip(&self.theirs.rings.popped) {
            producer.refresh(&popped.0)?;
        }
        Ok(())
    }

    /// Gives unused pages of the arena back; `true`: some are still in use.
    pub(crate) fn trim(&mut self) -> Result<bool, Broken> {
        self.refresh()?;
        let mut in_use = false;
        for lane in &mut self.own.lanes {
            lane.reclaim(|ring, position| self.tx[ring].is_popped(position));
            if let Some((offset, len)) = lane.take_touched() {
                let _kept_when_refused = self.own.arena.bytes.discard(offset, len);
            }
            in_use |= lane.is_touched();
        }
        Ok(in_use)
    }

    /// Copies a body into private memory.
    pub(crate) fn copy_out(&self, BodyClaim { offset, len }: BodyClaim) -> Result<Message, Broken> {
        let bytes = self.theirs.rings.copy_out(offset, len);
        bytes.map(received).map_err(|_refused| Broken::NoMemory(len))
    }

    /// Tells the producer of a ring what was taken, and rings when it sleeps for that.
    #[cold]
    pub(crate) fn write_back(&mut self, ring: usize) {
        fail::point("write-back");
        self.rx[ring].write_back(&self.own.rings.popped[ring].0);
        if self.space_bell.is_due(&self.theirs.rings.space_wanted.0) {
            self.ring();
        }
    }

    /// The next slot of a ring of the peer, when it is published.
    #[inline(always)]
    pub(crate) fn peek(&self, ring: usize) -> Option<&Slot> {
        self.rx[ring].peek(self.theirs.rings.ring(ring))
    }

    /// A further slot of the wide message that begins with the next one.
    #[inline(always)]
    pub(crate) fn part(&self, ring: usize, part: u32) -> &Slot {
        self.rx[ring].part(self.theirs.rings.ring(ring), part)
    }

    /// Writes back what is owed on all rings.
    pub(crate) fn write_back_all(&mut self) {
        for ring in 0..RINGS {
            if self.rx[ring].owes() {
                self.write_back(ring);
            }
        }
    }

    /// Whether the peer's rings hold only what the protocol produces, where nothing was found.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let mut rings = self.rx.iter().zip(0..);
        rings.try_for_each(|(consumer, ring)| consumer.check(self.theirs.rings.ring(ring)))
    }

    /// Stops looking: S1. [`crate::wake::before_second_look`] must follow.
    pub(crate) fn park(&mut self) {
        self.write_back_all();
        self.attention.park(&self.own.rings.attention.0);
        fail::point("park");
    }

    /// Looks by itself again.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        self.attention.unpark(&self.own.rings.attention.0);
    }

    /// Asks to be rung when the peer has taken something.
    pub(crate) fn want_space(&mut self) {
        // The last request may still be open, and rung already: each has a number of its own.
        self.look_for_space();
        self.space.park(&self.own.rings.space_wanted.0);
    }

    /// Looks for space by itself again.
    pub(crate) fn look_for_space(&mut self) {
        self.space.unpark(&self.own.rings.space_wanted.0);
    }

    /// Whether a ring of the peer holds something.
    #[inline]
    pub(crate) fn is_ready(&self, ring: usize) -> bool {
        self.rx[ring].is_ready(self.theirs.rings.ring(ring))
    }
}

/// The reason for which a connection ends whose rings cannot be read on.
#[cold]
pub(crate) fn misbehaved(broken: Broken) -> GoneReason {
    match broken {
        Broken::NoMemory(len) => {
            GoneReason::Exhausted(Error::NoMemory { len: len.into() }.to_string().into())
        }
        broken => GoneReason::Misbehaved(Arc::from(broken.why())),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bodies_outside_of_the_arena_are_broken() {
        let end = u64::from(FERRY_OFFSET);
        assert!(BodyClaim::check(end - 10, 10).is_ok());
        assert!(BodyClaim::check(end - 10, 11).is_err());
        assert!(BodyClaim::check(u64::from(u32::MAX), 1).is_err());
        assert!(BodyClaim::check(u64::MAX, 1).is_err());
        assert!(BodyClaim::check(0, MESSAGE_MAX + 1).is_err());
    }
}
