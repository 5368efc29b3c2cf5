//! One peer: a link over a connection, with queues, credits and receives of its own.
//!
//! A connection carries a link for each end that looked the other up. So there is one connection per
//! pair, and still an address in a greeting is believed by nobody: an end sends on the other's
//! connection only after the address that it looked up, dialled by itself, has pointed to that very
//! connection ([`crate::handshake`]).
//!
//! ```text
//! lookup -> Idle -first post-> Starting -> Resolving -> Dialling -Welcome----------> Open -> ended
//!                                 |                        +-Superseded-> Awaiting ---^
//!                                 +-- a connection to that target is open ------------^
//! ```

use std::net::SocketAddr;

use hg_na::{Completion, Message, OpId, Token};
use hg_na_link::Lane;
use hg_na_parts::credits::{Amount, Credits};

use crate::{
    address::Target,
    frame::{
        EXPECTED_WINDOW, Header, Kind, TRANSFERS_MAX, WINDOW, WINDOW_BYTES, credit_of, credit_word,
    },
    greeting::Promise,
    settings::LIMITS,
    wire::{Wire, WireKey},
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
        promise: Promise,
        /// Where it said so.
        via: SocketAddr,
    },
    Open {
        wire: WireKey,
        side: usize,
    },
    Ended,
}

/// How a peer is reached.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) state: State,
    /// The other end of the connection that it was opened on; kept when that has ended.
    pub(crate) remote: Option<SocketAddr>,
    /// Of expected messages, and of unexpected ones.
    credits: [Credits; 2],
}

/// One peer.
pub(crate) type Link = hg_na_link::Link<Target, Way>;
/// All peers of a context.
pub(crate) type Links = hg_na_link::Links<Target, Way>;

impl Way {
    /// Whether frames can be sent, or could be.
    pub(crate) fn was_open(&self) -> bool {
        match self.state {
            State::Idle
            | State::Starting
            | State::Resolving
            | State::Dialling(_)
            | State::Awaiting { .. } => false,
            State::Open { .. } | State::Ended => true,
        }
    }

    /// Nothing was posted.
    pub(crate) fn new() -> Self {
        let credits = |messages| Credits::new(Amount { messages, bytes: WINDOW_BYTES });
        let credits = [credits(EXPECTED_WINDOW), credits(WINDOW)];
        Self { state: State::Idle, remote: None, credits }
    }

    /// It is open, on one side of a connection.
    pub(crate) fn over(wire: &Wire, side: usize) -> Self {
        let mut way = Self::new();
        way.open(wire, side);
        way
    }

    /// It is open, on one side of a connection.
    pub(crate) fn open(&mut self, wire: &Wire, side: usize) {
        self.state = State::Open { wire: wire.key, side };
        self.remote = wire.remote;
    }

    /// Of the messages of a kind that has any: control messages have none.
    #[inline]
    fn credits(&mut self, lane: Lane) -> &mut Credits {
        &mut self.credits[usize::from(lane == Lane::Unexpected)]
    }

    /// Counts a message that has come.
    pub(crate) fn receive(&mut self, lane: Lane, len: usize) -> Result<(), &'static str> {
        self.credits(lane).receive(checked(len))
    }

    /// A message was handed out or dropped: gives its credits back, in time.
    pub(crate) fn release(&mut self, lane: Lane, len: usize, wire: Option<(&mut Wire, usize)>) {
        let kind = if lane == Lane::Unexpected { Kind::Credit } else { Kind::ExpectedCredit };
        if let Some(amount) = self.credits(lane).release(checked(len))
            && let Some((wire, side)) = wire
        {
            wire.send(kind, side, credit_word(amount), &[]);
        }
    }

    /// Credits came back.
    pub(crate) fn refill(&mut self, lane: Lane, word: u64) -> Result<(), &'static str> {
        self.credits(lane).refill(credit_of(word))
    }
}

/// Whether a message of this length goes before all others, and has credits.
#[inline]
pub(crate) fn is_free(link: &mut Link, lane: Lane, len: usize) -> bool {
    let credits = link.way.credits(lane);
    link.queues.len(lane) == 0 && u32::try_from(len).is_ok_and(|len| credits.are_enough(len))
}

/// Moves what has credits into the connection, which is open. Room that this makes is told.
pub(crate) fn pump(link: &mut Link, wire: &mut Wire, side: usize, finished: &mut Vec<Completion>) {
    let (peer, id) = (link.peer, wire.link_id(side));
    for lane in Lane::ALL {
        while let Some(sending) = link.queues.front(lane)
            && let len = checked(sending.message.len())
            && (lane == Lane::Control || link.way.credits(lane).spend(len))
            && let Some(sending) = link.queues.pop(lane)
        {
            let header = Header { len, kind: kind_of(lane), link: id, word: sending.tag };
            wire.outbound.message(header, peer, sending);
        }
    }
    announce(link, wire, side);
    link.tell_room(&LIMITS, wire.outbound.controls(), finished);
}

/// Tells the owner of what was posted.
fn announce(link: &mut Link, wire: &mut Wire, side: usize) {
    while let Some(transfer) = link.initiator.next(TRANSFERS_MAX) {
        let kind = if transfer.is_put { Kind::Put } else { Kind::Get };
        wire.send(kind, side, transfer.id.serial, &transfer.access.encode());
        link.initiator.announced(0);
    }
}

/// Copies a short message into the connection, for which its lane is free ([`is_free`]).
#[inline]
pub(crate) fn put(
    link: &mut Link,
    (wire, side): (&mut Wire, usize),
    (lane, word): (Lane, u64),
    op: (OpId, Token),
    message: &Message,
) {
    let len = checked(message.len());
    let has_credits = link.way.credits(lane).spend(len);
    debug_assert!(has_credits, "its lane is free");
    let header = Header { len, kind: kind_of(lane), link: wire.link_id(side), word };
    wire.outbound.copy(header, link.peer, op, message.as_slice());
}

fn kind_of(lane: Lane) -> Kind {
    match lane {
        Lane::Control => Kind::Control,
        Lane::Expected => Kind::Expected,
        Lane::Unexpected => Kind::Unexpected,
    }
}

/// The length of a message, which is at most [`crate::frame::MESSAGE_MAX`].
#[inline]
fn checked(len: usize) -> u32 {
    u32::try_from(len).expect("MESSAGE_MAX fits")
}
