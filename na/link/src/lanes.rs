//! Credits of one connection, and the messages that its frames make.
//!
//! Each lane (control, expected, unexpected, transfers) has [`WINDOW`] frames of its own, so that whatever arrives has its place,
//! what is kept of a peer is bounded, and no lane waits for another. Every frame says how many of each lane its sender has taken; a
//! frame of its own says it when half a window was taken since.

use hg_na::{Message, Tag};

use crate::{
    frame::{CONTROL_MAX, Header, Kind, LANES, MESSAGE_MAX, WINDOW},
    sending::Lane,
};

/// A whole message that has arrived.
pub type Whole = (Lane, Tag, Message);

/// Frames of one lane, modulo 2^16.
#[derive(Debug, Clone, Copy, Default)]
struct Frames {
    sent: u16,
    /// Of those, taken by the other side.
    acknowledged: u16,
    received: u16,
    taken: u16,
}

/// All lanes of one connection.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: [Frames; LANES],
    told: [u16; LANES],
    /// By [`Lane::place`].
    partial: [Vec<u8>; 3],
    /// How far messages in part have come so far ([`Lanes::in_parts`]).
    in_parts: u64,
}

/// A message of several frames that is whole has come on by so much at least, however short it is.
const WHOLE: u64 = 4096;

impl Lanes {
    /// Whether a lane has a credit left.
    #[inline]
    #[must_use]
    pub fn has_credit(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        lane.sent.wrapping_sub(lane.acknowledged) < WINDOW
    }

    /// Whether the other side should be told what was taken, by a frame of its own if no other goes.
    #[inline]
    #[must_use]
    pub fn owes_credits(&self) -> bool {
        self.lanes
            .iter()
            .zip(self.told)
            .any(|(lane, told)| lane.taken.wrapping_sub(told) >= WINDOW / 2)
    }

    /// The header of the next frame.
    #[inline]
    #[must_use]
    pub fn header(&self, kind: Kind, tag: Tag, more: bool) -> Header {
        Header { kind, more, tag, taken: self.lanes.map(|lane| lane.taken) }
    }

    /// A frame has left.
    #[inline]
    pub fn left(&mut self, header: &Header) {
        self.told = header.taken;
        if let Some(lane) = header.kind.lane() {
            self.lanes[lane].sent = self.lanes[lane].sent.wrapping_add(1);
        }
    }

    /// A frame has arrived: checks its credits and counts it.
    ///
    /// # Errors
    /// What the other side has done wrong.
    #[inline]
    pub fn came(&mut self, header: &Header) -> Result<(), &'static str> {
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
    pub fn took(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        lane.taken = lane.taken.wrapping_add(1);
    }

    /// Puts a message together; each frame but the last is taken at once.
    ///
    /// # Errors
    /// What the other side has done wrong.
    #[inline]
    pub fn assemble(
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
            self.in_parts += content.len() as u64;
            self.took(lane.place());
            return Ok(None);
        }
        let message = if before.is_empty() {
            Message::copied(content)
        } else {
            let mut whole = std::mem::take(before);
            whole.extend(content);
            self.in_parts += WHOLE + content.len() as u64;
            Message::from(whole)
        };
        Ok(Some((lane, header.tag, message)))
    }

    /// Frames of each lane that have come and were not taken, and bytes of messages that are not whole: what this side keeps.
    #[must_use]
    pub fn held(&self) -> ([u16; LANES], usize) {
        (self.lanes.map(|lane| lane.received.wrapping_sub(lane.taken)), self.in_part())
    }

    /// Bytes of messages that are not whole.
    #[inline]
    #[must_use]
    pub fn in_part(&self) -> usize {
        self.partial.iter().map(Vec::len).sum()
    }

    /// How far messages of several frames have come: by their bytes, and by 4 KiB with each that is whole.
    #[must_use]
    pub fn in_parts(&self) -> u64 {
        self.in_parts
    }

    /// Whether this side alone keeps messages from being whole: the other one has no credit for the rest of any, and is owed none. What it
    /// is owed leaves at once, if it takes anything.
    #[must_use]
    pub fn are_kept_in_part(&self) -> bool {
        let is_kept = |place: usize| {
            let (Frames { received, taken, .. }, told) = (self.lanes[place], self.told[place]);
            received.wrapping_sub(told) >= WINDOW && taken.wrapping_sub(told) < WINDOW / 2
        };
        let mut in_part =
            self.partial.iter().enumerate().filter(|(_, partial)| !partial.is_empty()).peekable();
        in_part.peek().is_some() && in_part.all(|(place, _)| is_kept(place))
    }

    /// No message will be whole any more.
    pub fn drop_parts(&mut self) {
        self.partial = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_frames_leaves_and_no_more_until_they_are_taken() {
        let (mut one, mut other) = (Lanes::default(), Lanes::default());
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
        let (one, mut other) = (Lanes::default(), Lanes::default());
        let header = one.header(Kind::Expected, 0, false);
        (0..WINDOW).for_each(|_| other.came(&header).unwrap());
        assert!(other.came(&header).is_err());
        let (one, mut other) = (Lanes::default(), Lanes::default());
        let header = Header { taken: [0, 1, 0, 0], ..one.header(Kind::Credit, 0, false) };
        assert!(other.came(&header).is_err());
    }

    #[test]
    fn parts_are_put_together_by_lane_and_bounded() {
        let (one, mut other) = (Lanes::default(), Lanes::default());
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

    #[test]
    fn who_has_no_credit_for_the_rest_of_a_message_is_kept_from_ending_it() {
        let (one, mut other) = (Lanes::default(), Lanes::default());
        let last = one.header(Kind::Unexpected, 0, false);
        let part = one.header(Kind::Unexpected, 0, true);
        assert!(!other.are_kept_in_part());
        // Nobody takes what is whole.
        for _ in 1..WINDOW {
            other.came(&last).unwrap();
        }
        assert!(!other.are_kept_in_part());
        other.came(&part).unwrap();
        assert!(other.assemble(&part, b"x").unwrap().is_none());
        assert!(other.are_kept_in_part(), "that it was taken is not told");
        // For the rest of another one it has credits.
        let expected = one.header(Kind::Expected, 0, true);
        other.came(&expected).unwrap();
        assert!(other.assemble(&expected, b"x").unwrap().is_none());
        assert!(!other.are_kept_in_part());
        let expected = one.header(Kind::Expected, 0, false);
        assert!(other.assemble(&expected, b"x").unwrap().is_some());
        assert!(other.are_kept_in_part());
        // Who takes no credits is not kept.
        (0..WINDOW / 2).for_each(|_| other.took(2));
        assert!(!other.are_kept_in_part());
        let credit = other.header(Kind::Credit, 0, false);
        other.left(&credit);
        assert!(!other.are_kept_in_part());
    }
}
