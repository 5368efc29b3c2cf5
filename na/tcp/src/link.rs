//! One peer: a link over a connection, with queues, credits and receives of its own.
//!
//! A connection carries a link for each end that looked the other up. So there is one connection per
//! pair, and still an address in a greeting is believed by nobody: an end sends on the other's
//! connection only after the address that it looked up, dialled by itself, has pointed to that very
//! connection ([`crate::handshake`]).
//!
//! ```text
//! lookup -> Idle -first post-> Starting -> Resolving -> Dialling -Welcome----------> Open -> Ended
//!                                 |                        +-Superseded-> Awaiting ---^
//!                                 +-- a connection to that target is open ------------^
//! ```

use std::{collections::VecDeque, net::SocketAddr};

use hg_na::{Completion, Error, GoneReason, Message, OpId, Peer, Reached, Tag, Token};

use crate::{
    address::Target,
    frame::{EXPECTED_WINDOW, Header, Kind, WINDOW, WINDOW_BYTES, credit_of, credit_word},
    greeting::Nonce,
    outbound::{Outbound, Sending, ended, given_back},
    settings::QUEUE_DEPTH,
    transfers::Transfers,
    wire::{Wire, WireKey},
};
use hg_na_parts::{
    Refusals,
    credits::{Amount, Credits},
    receives::Receives,
};

/// Where a link stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Looked up; nothing was posted.
    Idle,
    /// Something was posted: the next round looks for a way.
    Starting,
    /// The host's name is being resolved.
    Resolving,
    /// Over a connection that is being made.
    Dialling(WireKey),
    /// The peer prefers this connection, which has not come yet.
    Awaiting {
        nonce: Nonce,
        /// Where it said so.
        via: SocketAddr,
    },
    Open {
        wire: WireKey,
        side: usize,
    },
    Ended(GoneReason),
}

/// Messages of one kind, both ways, under credits.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Wait for credits or a connection.
    pub(crate) waiting: VecDeque<(Tag, Sending)>,
    credits: Credits,
}

impl Lane {
    fn new(messages: u32) -> Self {
        let window = Amount { messages, bytes: WINDOW_BYTES };
        Self { waiting: VecDeque::new(), credits: Credits::new(window) }
    }

    /// Whether a message of this length goes before all others, and has credits.
    #[inline]
    pub(crate) fn is_free(&self, len: usize) -> bool {
        self.waiting.is_empty() && u32::try_from(len).is_ok_and(|len| self.credits.are_enough(len))
    }
}

/// Place of a lane.
pub(crate) const UNEXPECTED: usize = 0;
pub(crate) const EXPECTED: usize = 1;
/// Places beside those, of refusals.
pub(crate) const CONTROL: usize = 2;
pub(crate) const TRANSFERS: usize = 3;

/// One peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Peer,
    pub(crate) target: Option<Target>,
    pub(crate) state: State,
    pub(crate) lanes: [Lane; 2],
    /// Control messages wait for a connection only.
    pub(crate) controls: VecDeque<Sending>,
    /// The other end of the connection that it was opened on; kept when that has ended.
    pub(crate) remote: Option<SocketAddr>,
    /// Whether admission is open to it, where it is open to all.
    pub(crate) is_admitted: bool,
    /// Unexpected messages that wait for admission; whether the link is in the context's list of those with any.
    pub(crate) withheld: VecDeque<Message>,
    pub(crate) is_withholding: bool,
    pub(crate) receives: Receives,
    pub(crate) transfers: Transfers,
    /// What was refused: by lane, of control messages, of transfers.
    pub(crate) refusals: Refusals,
}

impl Link {
    pub(crate) fn new(peer: Peer, target: Option<Target>, state: State) -> Self {
        Self {
            peer,
            target,
            state,
            lanes: [Lane::new(WINDOW), Lane::new(EXPECTED_WINDOW)],
            controls: VecDeque::new(),
            remote: None,
            is_admitted: true,
            withheld: VecDeque::new(),
            is_withholding: false,
            receives: Receives::default(),
            transfers: Transfers::default(),
            refusals: Refusals::default(),
        }
    }

    /// It is open, on one side of a connection.
    pub(crate) fn open(&mut self, wire: &Wire, side: usize) {
        self.state = State::Open { wire: wire.key, side };
        self.remote = wire.remote;
    }

    /// Moves what has credits into the connection, which is open. Room that this makes is told.
    pub(crate) fn pump(&mut self, wire: &mut Wire, side: usize, finished: &mut Vec<Completion>) {
        let (peer, link) = (self.peer, wire.link_id(side));
        while let Some(sending) = self.controls.pop_front() {
            let len = u32::try_from(sending.message.len()).expect("CONTROL_MAX fits");
            wire.outbound.message(
                Header { len, kind: Kind::Control, link, word: 0 },
                peer,
                sending,
            );
        }
        for (lane, kind) in [(EXPECTED, Kind::Expected), (UNEXPECTED, Kind::Unexpected)] {
            let lane = &mut self.lanes[lane];
            while let Some(len) = lane.waiting.front().map(|(_, sending)| sending.message.len())
                && let len = checked(len)
                && lane.credits.spend(len)
                && let Some((word, sending)) = lane.waiting.pop_front()
            {
                wire.outbound.message(Header { len, kind, link, word }, peer, sending);
            }
        }
        self.transfers.announce(wire, side);
        self.tell_room(wire.outbound.controls(), finished);
    }

    /// Tells once that queues which were full have room; says whether any has. `controls`: those that its connection holds.
    #[inline]
    pub(crate) fn tell_room(&mut self, controls: usize, finished: &mut Vec<Completion>) -> bool {
        if !self.refusals.any() {
            return false;
        }
        let Self { lanes, transfers, refusals, .. } = self;
        let controls = self.controls.len() + controls;
        let has_room = refusals.take(|kind| match kind {
            CONTROL => controls <= QUEUE_DEPTH / 2,
            TRANSFERS => transfers.has_room(),
            lane => lanes[lane].waiting.len() <= QUEUE_DEPTH / 2,
        });
        if has_room {
            finished.push(Completion::Room { peer: self.peer });
        }
        has_room
    }

    /// Copies a short message into the connection, for which its lane is free ([`Lane::is_free`]).
    #[inline]
    pub(crate) fn put(
        &mut self,
        (wire, side): (&mut Wire, usize),
        (kind, word): (Kind, u64),
        op: (OpId, Token),
        message: &Message,
    ) {
        let lane = if kind == Kind::Unexpected { UNEXPECTED } else { EXPECTED };
        let len = checked(message.len());
        let has_credits = self.lanes[lane].credits.spend(len);
        debug_assert!(has_credits, "its lane is free");
        let header = Header { len, kind, link: wire.link_id(side), word };
        wire.outbound.copy(header, self.peer, op, message.as_slice());
    }

    /// Counts a message that has come.
    pub(crate) fn receive(&mut self, lane: usize, len: usize) -> Result<(), &'static str> {
        self.lanes[lane].credits.receive(checked(len))
    }

    /// A message was handed out or dropped: gives its credits back, in time.
    pub(crate) fn release(&mut self, lane: usize, len: usize, wire: Option<(&mut Wire, usize)>) {
        let kind = if lane == UNEXPECTED { Kind::Credit } else { Kind::ExpectedCredit };
        if let Some(amount) = self.lanes[lane].credits.release(checked(len))
            && let Some((wire, side)) = wire
        {
            wire.send(kind, side, credit_word(amount), &[]);
        }
    }

    /// Credits came back.
    pub(crate) fn refill(&mut self, lane: usize, word: u64) -> Result<(), &'static str> {
        self.lanes[lane].credits.refill(credit_of(word))
    }

    /// Whether posts to it are accepted.
    pub(crate) fn gone(&self) -> Option<&GoneReason> {
        match &self.state {
            State::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether no message up to this number waits for credits or a connection.
    pub(crate) fn has_passed_on(&self, serial: u64) -> bool {
        let waiting = self.lanes.iter().filter_map(|lane| lane.waiting.front()).map(|(_, it)| it);
        waiting.chain(self.controls.front()).all(|sending| sending.id.serial > serial)
    }

    /// Takes back a message that has not left; it never will.
    pub(crate) fn cancel_send(&mut self, serial: u64) -> Option<Completion> {
        // Each queue is in the order of posting, so of serials.
        let control = self.controls.binary_search_by_key(&serial, |it| it.id.serial);
        let sending = if let Ok(at) = control {
            self.controls.remove(at)
        } else {
            self.lanes.iter_mut().find_map(|lane| {
                let at = lane.waiting.binary_search_by_key(&serial, |(_, it)| it.id.serial).ok()?;
                lane.waiting.remove(at).map(|(_, sending)| sending)
            })
        };
        let Sending { id, token, message } = sending?;
        let failure = Some((Error::Cancelled, Reached::Never));
        Some(ended(id, token, failure, given_back(message)))
    }

    /// Ends every operation: sends, transfers, then receives.
    pub(crate) fn end(
        &mut self,
        why: GoneReason,
        outbound: Option<&mut Outbound>,
        done: &mut Vec<Completion>,
    ) {
        if let Some(outbound) = outbound {
            outbound.fail(self.peer, &why, done);
        }
        let gone = |reached| Some((Error::PeerGone(why.clone()), reached));
        let waiting = self.lanes.iter_mut().flat_map(|lane| lane.waiting.drain(..));
        let waiting = waiting.map(|(_, sending)| sending).chain(self.controls.drain(..));
        for Sending { id, token, message } in waiting {
            done.push(ended(id, token, gone(Reached::Never), given_back(message)));
        }
        self.transfers.fail(&why, done);
        for receive in self.receives.take_all() {
            let id = hg_na::OpId { scope: self.peer.index(), serial: receive.serial };
            let failure = gone(Reached::Unknown);
            done.push(ended(id, receive.token, failure, hg_na::Returned::Nothing));
        }
        self.refusals = Refusals::default();
        self.state = State::Ended(why);
    }
}

/// The length of a message, which is at most [`crate::frame::MESSAGE_MAX`].
#[inline]
fn checked(len: usize) -> u32 {
    u32::try_from(len).expect("MESSAGE_MAX fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_waits_is_taken_back_from_among_all_others() {
        let mut link = Link::new(hg_na::Peer::new(0, 1), None, State::Idle);
        let sending = |serial| Sending {
            id: hg_na::OpId { scope: 0, serial },
            token: serial,
            message: Message::inline(0),
        };
        for serial in (0..300).step_by(3) {
            link.controls.push_back(sending(serial));
            link.lanes[UNEXPECTED].waiting.push_back((0, sending(serial + 1)));
            link.lanes[EXPECTED].waiting.push_back((0, sending(serial + 2)));
        }
        for serial in (0..300).map(|at| at * 7 % 300) {
            let Some(Completion::Done(done)) = link.cancel_send(serial) else {
                panic!("{serial} waits")
            };
            assert_eq!((done.id.serial, done.token), (serial, serial));
            assert!(link.cancel_send(serial).is_none());
        }
        assert!(link.controls.is_empty() && link.lanes.iter().all(|it| it.waiting.is_empty()));
    }
}
