//! How one peer is reached: a connection through the daemon, and what may be sent over it.

use std::collections::VecDeque;

use hg_na::Identity;
use hg_na_link::Lane;
use hg_na_parts::credits::{Amount, Credits};

use crate::{
    address::Target,
    settings::UNEXPECTED,
    wire::{FRAME_MIN, HEADER_LEN, Header, Kind, RETURN_MIN, WINDOW, cost, numbered},
};

/// One peer of a context.
pub(crate) type Link = hg_na_link::Link<Target, Way>;
/// All of them.
pub(crate) type Links = hg_na_link::Links<Target, Way>;

/// So far messages get ahead of transfers that wait. Windows come back in lots of so many bytes at least, in which any piece has room.
const AHEAD_MAX: u32 = RETURN_MIN;

/// Whether frames come and go. A peer that has ended, and of whose messages some still wait for admission, is sent nothing: its id may
/// be another one's by now.
pub(crate) fn is_open(link: &Link) -> bool {
    link.way.state == State::Open && !link.has_ended()
}

numbered! {
    /// What a `Data` frame is to the applications: its `lane`.
    ///
    /// | lane | word | body |
    /// |---|---|---|
    /// | `Control`, `Unexpected` | 0 | the message |
    /// | `Expected` | tag | the message |
    /// | `Credit` | messages in the upper half, bytes in the lower | |
    /// | `Put`, `Get` | the initiator's number of the transfer | [`hg_na_link::Access`] |
    /// | `PutData`, `GetData` | the same | bytes in order; the last of a get end it |
    /// | `End` | the same | [`hg_na_link::Verdict`]: of every put, of a get that failed or had no byte |
    /// | `Cancel` | the same | |
    Sort {
        Control = 1,
        Expected,
        Unexpected,
        Credit,
        Put,
        Get,
        PutData,
        GetData,
        End,
        Cancel,
    }
}

impl Sort {
    pub(crate) fn of_message(lane: Lane) -> Self {
        match lane {
            Lane::Control => Self::Control,
            Lane::Expected => Self::Expected,
            Lane::Unexpected => Self::Unexpected,
        }
    }
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing was posted.
    Idle,
    /// It waits for the daemon, or for a connection that is to be free.
    Asking,
    /// The daemon was asked.
    Opening,
    Open,
}

/// What a context keeps of a peer.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) state: State,
    /// In frames of this side's.
    pub(crate) id: u32,
    /// Longest frame in bytes, once it is open.
    pub(crate) frame_max: usize,
    /// What frames may cost that are sent; what those did that are to be given back.
    left: u32,
    owed: u32,
    /// What messages have cost that have left before bytes of transfers; beyond [`AHEAD_MAX`] they do not count.
    ahead: u32,
    pub(crate) unexpected: Credits,
    /// Credits that the peer is to be given back.
    returned: Amount,
    /// Transfers that were given up, of which the owner is to be told.
    pub(crate) cancels: VecDeque<u64>,
    pub(crate) identity: Identity,
    /// It is in the list of those with something to send.
    pub(crate) is_busy: bool,
    /// The owner's turn, of two that send pieces.
    pub(crate) owners_turn: bool,
}

impl Way {
    pub(crate) fn new(state: State, id: u32, identity: Identity) -> Self {
        Self {
            state,
            id,
            frame_max: FRAME_MIN,
            left: WINDOW,
            owed: 0,
            ahead: 0,
            unexpected: Credits::new(UNEXPECTED),
            returned: Amount::default(),
            cancels: VecDeque::new(),
            identity,
            is_busy: false,
            owners_turn: false,
        }
    }

    /// Longest piece of a put or a get in bytes.
    pub(crate) fn piece_max(&self) -> u64 {
        (self.frame_max - HEADER_LEN) as u64
    }

    /// Whether a frame of this length may be sent.
    pub(crate) fn has_window(&self, len: usize) -> bool {
        self.state == State::Open && cost(len) <= self.left
    }

    /// It was.
    pub(crate) fn spend(&mut self, sort: Sort, len: usize) {
        let cost = cost(len);
        self.left -= cost;
        match sort {
            Sort::Control | Sort::Expected | Sort::Unexpected if self.is_transfers_turn() => {}
            Sort::Control | Sort::Expected | Sort::Unexpected => self.ahead += cost,
            Sort::Put | Sort::Get | Sort::PutData | Sort::GetData => {
                self.ahead = self.ahead.saturating_sub(cost);
            }
            Sort::Credit | Sort::End | Sort::Cancel => {}
        }
    }

    /// Whether it is a transfer's turn, if one waits. Messages come first, but so that of both that always wait as many bytes leave.
    pub(crate) fn is_transfers_turn(&self) -> bool {
        self.ahead >= AHEAD_MAX
    }

    /// The peer has taken some.
    ///
    /// # Errors
    /// What the peer has done wrong.
    pub(crate) fn refill(&mut self, word: u64) -> Result<(), &'static str> {
        let sum = u32::try_from(word).ok().and_then(|word| self.left.checked_add(word));
        let sum = sum.filter(|sum| *sum <= WINDOW);
        self.left = sum.ok_or("bytes given back that were not sent")?;
        Ok(())
    }

    /// A frame of this length was taken; gives what tells the peer, when it is time.
    pub(crate) fn taken(&mut self, len: usize) -> Option<hg_na::Message> {
        self.owed += cost(len);
        (self.owed >= RETURN_MIN).then(|| {
            let word = u64::from(std::mem::take(&mut self.owed));
            Header::new(Kind::Window, self.id, word).frame(&[])
        })
    }

    /// An unexpected message was handed out.
    pub(crate) fn release(&mut self, len: usize) {
        if let Some(amount) = self.unexpected.release(u32::try_from(len).unwrap_or(0)) {
            self.returned.messages += amount.messages;
            self.returned.bytes += amount.bytes;
        }
    }

    /// What the peer is to be given back.
    pub(crate) fn returned(&self) -> Option<u64> {
        let Amount { messages, bytes } = self.returned;
        (messages > 0).then(|| u64::from(messages) << 32 | u64::from(bytes))
    }

    /// It was.
    pub(crate) fn has_returned(&mut self) {
        self.returned = Amount::default();
    }

    /// The peer gives credits back.
    ///
    /// # Errors
    /// What the peer has done wrong.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(crate) fn credited(&mut self, word: u64) -> Result<(), &'static str> {
        let messages = u32::try_from(word >> 32).unwrap_or(u32::MAX);
        self.unexpected.refill(Amount { messages, bytes: word as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_first_and_of_both_that_always_wait_as_many_bytes_leave() {
        let mut way = Way::new(State::Open, 1, Identity::default());
        let mut sent = [0; 2];
        let mut first = None;
        while sent[0] + sent[1] < 100 * WINDOW {
            let is_piece = way.is_transfers_turn();
            let (sort, len) =
                if is_piece { (Sort::GetData, FRAME_MIN) } else { (Sort::Expected, 1000) };
            if !way.has_window(len) {
                way.refill(RETURN_MIN.into()).unwrap();
            }
            way.spend(sort, len);
            sent[usize::from(is_piece)] += cost(len);
            if is_piece {
                first.get_or_insert(sent[0]);
            }
        }
        assert!(sent[0].abs_diff(sent[1]) <= 2 * AHEAD_MAX, "{sent:?}");
        assert!(first.is_some_and(|it| it >= AHEAD_MAX), "{first:?}");
        // Before transfers nobody is ahead who was alone.
        while !way.is_transfers_turn() {
            way.refill(cost(1000).into()).unwrap();
            way.spend(Sort::Expected, 1000);
        }
    }
}
