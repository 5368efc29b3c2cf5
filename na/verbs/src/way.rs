//! How one peer is reached: phase, credits, and what has arrived in part. No I/O.
//!
//! Each lane (control, expected, unexpected, transfers) has [`WINDOW`] frames of its own, so that what is kept of a peer is bounded and no lane
//! waits for another. Every frame says how many of each lane its sender has taken; a frame of its own says it when half a window
//! was taken since.
//!
//! ```text
//!  look_up -> Idle -first post-> Connecting -Welcome-> Open -goodbye, hang-up-> Draining -> Ended -> (gone)
//!                                    |                  |  forget, bad input                  ^
//!                                    +- refused, late --+-------------------------------------+
//!  accept -> Greeting -Hello-> Awaiting -Ready, a frame-> Open
//! ```

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use hg_na::{Identity, Message, Tag};
use hg_na_link::Lane;

use crate::{
    card::FRAME,
    lifeline::Lifeline,
    moves::Moves,
    settings::{CONTROL_MAX, MESSAGE_MAX},
    wire::{HEADER, Header, Kind, LANES, WINDOW},
};

/// Where a connection stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Looked up, not used.
    Idle,
    /// The lifeline is being made, or the Welcome is not here.
    Connecting,
    /// Accepted; the Hello is not here.
    Greeting { since: Instant },
    /// Welcomed; whether it is ready to receive is not known.
    Awaiting,
    /// In use.
    Open,
    /// The other side has ended; what it had sent may still come. `until`: so many frames, where it said.
    Draining { until: Option<u64>, since: Instant, seen: u64, quiet: u32 },
    /// Nothing comes any more; messages that wait for admission are still to be handed out.
    Ended,
}

/// Frames of one lane, modulo 2^16.
#[derive(Debug, Clone, Copy, Default)]
struct Frames {
    sent: u16,
    /// Of those, taken by the other side.
    acknowledged: u16,
    received: u16,
    taken: u16,
}

/// How a peer is reached.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) phase: Phase,
    pub(crate) lifeline: Option<Lifeline>,
    /// The number of its queue pair.
    pub(crate) pair: Option<u32>,
    /// Who was at the other end of the lifeline when it was opened; kept when that has ended.
    pub(crate) identity: Identity,
    lanes: [Frames; LANES],
    told: [u16; LANES],
    /// By [`Lane::place`].
    partial: [Vec<u8>; 3],
    /// Own transfers that were given up, and of which the owner is to be told.
    pub(crate) aborts: VecDeque<u64>,
    /// Transfers of the peer's over memory that it has lent.
    pub(crate) moves: Moves,
    /// In the context's list of connections with something to send.
    pub(crate) is_busy: bool,
    /// Frames that were sent, and that have arrived.
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    /// The card, or the pool of frames, takes nothing for it until a completion has come.
    pub(crate) is_stalled: bool,
    /// A flush waits for this post.
    pub(crate) flush_to: Option<u64>,
    pub(crate) timer: Option<Instant>,
}

/// One peer.
pub(crate) type Link = hg_na_link::Link<SocketAddr, Way>;
/// All peers of a context.
pub(crate) type Links = hg_na_link::Links<SocketAddr, Way>;

/// A whole message that has arrived.
pub(crate) type Whole = (Lane, Tag, Message);

/// Content that fits in one frame.
pub(crate) const ROOM: usize = FRAME - HEADER;

/// The lane of transfers, behind those of messages.
pub(crate) const TRANSFERS: usize = 3;

impl Way {
    pub(crate) fn new(phase: Phase) -> Self {
        Self {
            phase,
            lifeline: None,
            pair: None,
            identity: Identity::default(),
            lanes: [Frames::default(); LANES],
            told: [0; LANES],
            partial: Default::default(),
            aborts: VecDeque::new(),
            moves: Moves::default(),
            is_busy: false,
            frames_sent: 0,
            frames_received: 0,
            is_stalled: false,
            flush_to: None,
            timer: None,
        }
    }

    /// Whether frames can be sent.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether frames are taken.
    pub(crate) fn listens(&self) -> bool {
        matches!(self.phase, Phase::Awaiting | Phase::Open | Phase::Draining { .. })
    }

    /// Whether they can, or could.
    pub(crate) fn was_open(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Connecting => false,
            Phase::Greeting { .. }
            | Phase::Awaiting
            | Phase::Open
            | Phase::Draining { .. }
            | Phase::Ended => true,
        }
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

    /// The header of the next frame.
    #[inline]
    pub(crate) fn header(&self, kind: Kind, tag: Tag, more: bool) -> Header {
        Header { kind, more, tag, taken: self.lanes.map(|lane| lane.taken) }
    }

    /// A frame has left.
    #[inline]
    pub(crate) fn left(&mut self, header: &Header) {
        self.told = header.taken;
        self.frames_sent += 1;
        if let Some(lane) = header.kind.lane() {
            self.lanes[lane].sent = self.lanes[lane].sent.wrapping_add(1);
        }
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
            Kind::Control => (Lane::Control, CONTROL_MAX),
            Kind::Expected => (Lane::Expected, MESSAGE_MAX),
            Kind::Unexpected => (Lane::Unexpected, MESSAGE_MAX),
            _ => return Err("a frame that is no part of a message"),
        };
        let before = &mut self.partial[lane.place()];
        if before.len() + content.len() > longest {
            return Err("a message that is too long");
        }
        if header.more {
            if content.is_empty() {
                return Err("an empty part of a message");
            }
            before.extend(content);
            self.took(lane.place());
            return Ok(None);
        }
        let message = if before.is_empty() {
            Message::copied(content)
        } else {
            let mut whole = std::mem::take(before);
            whole.extend(content);
            Message::from(whole)
        };
        Ok(Some((lane, header.tag, message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Way, Way) {
        (Way::new(Phase::Open), Way::new(Phase::Open))
    }

    #[test]
    fn a_window_of_frames_leaves_and_no_more_until_they_are_taken() {
        let (mut one, mut other) = pair();
        for _ in 0..3 {
            for _ in 0..WINDOW {
                assert!(one.has_credit(2));
                let header = one.header(Kind::Unexpected, 0, false);
                one.left(&header);
                other.came(&header).unwrap();
            }
            assert!(!one.has_credit(2) && one.has_credit(1));
            assert!(!other.owes_credits());
            (0..WINDOW).for_each(|_| other.took(2));
            assert!(other.owes_credits());
            let credit = other.header(Kind::Credit, 0, false);
            other.left(&credit);
            assert!(!other.owes_credits());
            one.came(&credit).unwrap();
        }
        assert!(one.has_credit(2));
    }

    #[test]
    fn frames_without_credit_and_credits_without_frames_are_refused() {
        let (one, mut other) = pair();
        let header = one.header(Kind::Expected, 0, false);
        (0..WINDOW).for_each(|_| other.came(&header).unwrap());
        assert!(other.came(&header).is_err());
        let (one, mut other) = pair();
        let header = Header { taken: [0, 1, 0, 0], ..one.header(Kind::Credit, 0, false) };
        assert!(other.came(&header).is_err());
    }

    #[test]
    fn parts_are_put_together_by_lane_and_bounded() {
        let (one, mut other) = pair();
        let part = one.header(Kind::Unexpected, 0, true);
        let last = one.header(Kind::Unexpected, 0, false);
        let control = one.header(Kind::Control, 0, false);
        assert!(other.assemble(&part, b"ab").unwrap().is_none());
        assert!(matches!(other.assemble(&control, b"c"), Ok(Some((Lane::Control, ..)))));
        let whole = other.assemble(&last, b"cd");
        assert!(matches!(whole, Ok(Some((Lane::Unexpected, _, it))) if it.as_slice() == b"abcd"));
        assert!(other.assemble(&part, b"").is_err());
        assert!(other.assemble(&control, &[0; CONTROL_MAX + 1]).is_err());
        let full = vec![0; MESSAGE_MAX];
        assert!(other.assemble(&part, &full).unwrap().is_none());
        assert!(other.assemble(&last, b"x").is_err());
    }
}
