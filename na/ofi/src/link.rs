//! One connection: its credits, what waits for them, and what has arrived. No I/O.
//!
//! Each lane (control, expected, unexpected, transfers) has [`WINDOW`] frames of its own, so that whatever arrives has
//! its place and no lane waits for another. Every frame says how many of each lane its sender has taken; a frame
//! of its own says it when half a window was taken since.
//!
//! ```text
//!  lookup -> Idle -first post-> Connecting -Welcome-> Open -goodbye, hang-up-> Draining -> Ended -> (gone)
//!                                   |                  |  forget, bad input                  ^
//!                                   +- refused, late --+-------------------------------------+
//!  accept -> Greeting -Hello-> Open
//! ```

use std::{collections::VecDeque, time::Instant};

use hg_na::{GoneReason, Identity, Message, Peer, Tag, Token};

use crate::{
    lifeline::{Lifeline, Place},
    settings::{CONTROL_MAX, MESSAGE_MAX, QUEUE_DEPTH},
    transfer::Work,
    wire::{HEADER, Header, Kind, LANES, WINDOW},
};
use hg_na_parts::{Refusals, receives::Receives};

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) serial: u64,
    pub(crate) token: Token,
    pub(crate) tag: Tag,
    pub(crate) message: Message,
    /// Bytes that have left in earlier frames.
    pub(crate) offset: usize,
}

/// The other side, as its greeting described it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) link: u32,
    pub(crate) key: u64,
    /// What sends name its endpoint by.
    pub(crate) address: u64,
    /// The address of its endpoint.
    pub(crate) name: Vec<u8>,
    /// Longest frame.
    pub(crate) frame: usize,
    /// It moves memory that is lent to it.
    pub(crate) one_sided: bool,
}

/// Where a connection stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Looked up, not used.
    Idle,
    /// The lifeline is being made, or the Welcome is not here.
    Connecting { deadline: Instant },
    /// Accepted; the Hello is not here.
    Greeting,
    /// In use.
    Open,
    /// The other side has ended; what it had sent may still come. `until`: so many frames, where it said.
    Draining { reason: GoneReason, until: Option<u64>, since: Instant, seen: u64, quiet: u32 },
    /// Nothing comes any more; messages that wait for admission are still to be handed out.
    Ended { reason: GoneReason },
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    sent: u16,
    /// Of those, taken by the other side.
    acknowledged: u16,
    received: u16,
    taken: u16,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Peer,
    pub(crate) phase: Phase,
    pub(crate) target: Option<Place>,
    pub(crate) lifeline: Option<Lifeline>,
    /// What the other side's frames carry.
    pub(crate) key: u64,
    pub(crate) remote: Option<Remote>,
    /// Who was at the other end of the lifeline when it was opened; kept when that has ended.
    pub(crate) identity: Identity,
    lanes: [Lane; LANES],
    told: [u16; LANES],
    /// Control, expected, unexpected.
    pub(crate) waiting: [VecDeque<Sending>; 3],
    partial: [Vec<u8>; 3],
    /// Whether admission is open to it, where it is open to all.
    pub(crate) is_admitted: bool,
    /// Unexpected messages that wait for admission; whether it is in the context's list of those with any.
    pub(crate) withheld: VecDeque<Message>,
    pub(crate) is_withholding: bool,
    pub(crate) receives: Receives,
    pub(crate) work: Work,
    /// What was refused: by the queues of [`Link::waiting`], and transfers.
    pub(crate) refusals: Refusals,
    /// In the context's list of connections with something to send.
    pub(crate) is_busy: bool,
    /// Frames that were certainly sent, and that have arrived.
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    /// Since when libfabric takes nothing for it, and whether it has answered a ping since.
    pub(crate) stalled: Option<(Instant, bool)>,
    pub(crate) timer: Option<Instant>,
}

/// A whole message that has arrived.
#[derive(Debug)]
pub(crate) enum Whole {
    Control(Message),
    Expected(Tag, Message),
    Unexpected(Message),
}

impl Link {
    pub(crate) fn new(peer: Peer, phase: Phase, key: u64) -> Self {
        Self {
            peer,
            phase,
            target: None,
            lifeline: None,
            key,
            remote: None,
            identity: Identity::default(),
            lanes: [Lane::default(); LANES],
            told: [0; LANES],
            waiting: Default::default(),
            partial: Default::default(),
            is_admitted: true,
            withheld: VecDeque::new(),
            is_withholding: false,
            receives: Receives::default(),
            work: Work::default(),
            refusals: Refusals::default(),
            is_busy: false,
            frames_sent: 0,
            frames_received: 0,
            stalled: None,
            timer: None,
        }
    }

    /// Whether it takes operations; else why not.
    pub(crate) fn usable(&self) -> Result<(), &GoneReason> {
        match &self.phase {
            Phase::Idle | Phase::Connecting { .. } | Phase::Greeting | Phase::Open => Ok(()),
            Phase::Draining { reason, .. } | Phase::Ended { reason } => Err(reason),
        }
    }

    /// Takes those refusals out whose queues have come down to half; says whether any has.
    pub(crate) fn take_room(&mut self) -> bool {
        let Self { waiting, work, refusals, .. } = self;
        let len = |kind: usize| waiting.get(kind).map_or(work.asks.len(), VecDeque::len);
        refusals.take(|kind| len(kind) <= QUEUE_DEPTH / 2)
    }

    /// Whether frames can be sent.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether a lane has a credit left.
    #[inline]
    pub(crate) fn has_credit(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        lane.sent.wrapping_sub(lane.acknowledged) < WINDOW
    }

    /// Whether the other side should be told what was taken, by a frame of its own if no other goes.
    pub(crate) fn owes_credits(&self) -> bool {
        self.lanes
            .iter()
            .zip(self.told)
            .any(|(lane, told)| lane.taken.wrapping_sub(told) >= WINDOW / 2)
    }

    /// The header of the next frame; `None` without another side.
    #[inline]
    pub(crate) fn header(&self, kind: Kind, tag: Tag, more: bool) -> Option<Header> {
        let remote = self.remote.as_ref()?;
        let taken = self.lanes.map(|lane| lane.taken);
        Some(Header { link: remote.link, kind, more, key: remote.key, tag, taken })
    }

    /// A frame has left.
    #[inline]
    pub(crate) fn left(&mut self, header: &Header) {
        self.told = header.taken;
        if let Some(lane) = header.kind.lane() {
            self.lanes[lane].sent = self.lanes[lane].sent.wrapping_add(1);
        }
    }

    /// Content that fits in one frame.
    pub(crate) fn room(&self) -> usize {
        self.remote.as_ref().map_or(0, |remote| remote.frame.saturating_sub(HEADER))
    }

    /// A frame has arrived: checks its credits and counts it.
    ///
    /// # Errors
    /// What the other side has done wrong.
    #[inline]
    pub(crate) fn came(&mut self, header: &Header) -> Result<(), &'static str> {
        self.frames_received += 1;
        for (lane, taken) in self.lanes.iter_mut().zip(header.taken) {
            let fresh = taken.wrapping_sub(lane.acknowledged);
            if fresh > lane.sent.wrapping_sub(lane.acknowledged) {
                return Err("it took more frames than were sent");
            }
            lane.acknowledged = taken;
        }
        let Some(lane) = header.kind.lane() else { return Ok(()) };
        let lane = &mut self.lanes[lane];
        if lane.received.wrapping_sub(lane.taken) >= WINDOW {
            return Err("it sent more frames than it had credits");
        }
        lane.received = lane.received.wrapping_add(1);
        Ok(())
    }

    /// The frame's place is free again.
    #[inline]
    pub(crate) fn took(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        lane.taken = lane.taken.wrapping_add(1);
    }

    /// Puts a message together; each frame but the last is taken at once.
    ///
    /// # Errors
    /// What the other side has done wrong.
    #[inline]
    pub(crate) fn assemble(
        &mut self,
        header: &Header,
        content: &[u8],
    ) -> Result<Option<Whole>, &'static str> {
        let (lane, longest) = match header.kind {
            Kind::Control => (0, CONTROL_MAX),
            Kind::Expected => (1, MESSAGE_MAX),
            Kind::Unexpected => (2, MESSAGE_MAX),
            _ => return Err("a frame that is no part of a message"),
        };
        let before = &mut self.partial[lane];
        if before.len() + content.len() > longest {
            return Err("a message that is too long");
        }
        if header.more {
            if content.is_empty() {
                return Err("an empty part of a message");
            }
            before.extend(content);
            self.took(lane);
            return Ok(None);
        }
        let message = if before.is_empty() {
            Message::copied(content)
        } else {
            let mut whole = std::mem::take(before);
            whole.extend(content);
            Message::from(whole)
        };
        Ok(Some(match header.kind {
            Kind::Control => Whole::Control(message),
            Kind::Expected => Whole::Expected(header.tag, message),
            _ => Whole::Unexpected(message),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        let link = |link: u32, key: u64| {
            let mut it = Link::new(Peer::new(0, 0), Phase::Open, 0);
            let name = Vec::new();
            it.remote = Some(Remote { link, key, address: 0, name, frame: 64, one_sided: false });
            it
        };
        (link(1, 2), link(3, 4))
    }

    #[test]
    fn a_window_of_frames_leaves_and_no_more_until_they_are_taken() {
        let (mut one, mut other) = pair();
        for _ in 0..3 {
            for _ in 0..WINDOW {
                assert!(one.has_credit(2));
                let header = one.header(Kind::Unexpected, 0, false).unwrap();
                one.left(&header);
                other.came(&header).unwrap();
            }
            assert!(!one.has_credit(2) && one.has_credit(1));
            assert!(!other.owes_credits());
            (0..WINDOW).for_each(|_| other.took(2));
            assert!(other.owes_credits());
            let credit = other.header(Kind::Credit, 0, false).unwrap();
            other.left(&credit);
            assert!(!other.owes_credits());
            one.came(&credit).unwrap();
        }
        assert!(one.has_credit(2));
    }

    #[test]
    fn frames_without_credit_and_credits_without_frames_are_refused() {
        let (one, mut other) = pair();
        let header = one.header(Kind::Expected, 0, false).unwrap();
        (0..WINDOW).for_each(|_| other.came(&header).unwrap());
        assert!(other.came(&header).is_err());
        let (one, mut other) = pair();
        let header = Header { taken: [0, 1, 0, 0], ..one.header(Kind::Credit, 0, false).unwrap() };
        assert!(other.came(&header).is_err());
    }

    #[test]
    fn parts_are_put_together_by_lane_and_bounded() {
        let (one, mut other) = pair();
        let part = one.header(Kind::Unexpected, 0, true).unwrap();
        let last = one.header(Kind::Unexpected, 0, false).unwrap();
        let control = one.header(Kind::Control, 0, false).unwrap();
        assert!(other.assemble(&part, b"ab").unwrap().is_none());
        assert!(matches!(other.assemble(&control, b"c"), Ok(Some(Whole::Control(_)))));
        let whole = other.assemble(&last, b"cd");
        assert!(matches!(whole, Ok(Some(Whole::Unexpected(it))) if it.as_slice() == b"abcd"));
        assert!(other.assemble(&part, b"").is_err());
        assert!(other.assemble(&control, &[0; CONTROL_MAX + 1]).is_err());
        let full = vec![0; MESSAGE_MAX];
        assert!(other.assemble(&part, &full).unwrap().is_none());
        assert!(other.assemble(&last, b"x").is_err());
    }
}
