//! Transfers that are posted, since nobody could move their bytes from memory to memory: copied twice, through the arenas,
//! by both sides at the same time.
//!
//! ```text
//! get: initiator                   owner                    put: initiator                  owner
//!      ask (place of the owner's)->                              fill an own place, ask ---->
//!                                  check, fill the place                                    check, take the bytes
//!      take the bytes    <-------- answer                        free the place    <------- answer
//! ```
//! A transfer goes in pieces of [`wire::PIECE`] bytes, [`wire::WINDOW`] of each direction on the way at a time, so that both
//! sides copy at once, out of and into caches. Transfers take turns piece by piece. All memory is bounded by the places;
//! nothing waits behind a transfer but other transfers: notes are taken out of their ring at once, whatever becomes of
//! them, and of their work at most [`ROUND_MAX`] bytes are done in one round.
//!
//! The owner trusts nothing: each ask carries the region's proof, the piece and the whole range, and the region is looked up anew,
//! so that taking it back in the middle ends the transfer with `StaleDescriptor`. A note that cannot be costs its sender
//! the connection. A transfer that was cancelled, or has failed, leaves its open pieces behind: their places are free when they
//! are answered, and what a get brought then is not looked at.
//!
//! | file | what |
//! |---|---|
//! | `wire` | notes in slots |
//! | `ask` | the initiator |
//! | `serve` | the owner |

mod ask;
mod serve;
pub(crate) mod wire;

use std::collections::VecDeque;

use hg_na::{Completion, Error, GoneReason, Memory};

use self::wire::{Answer, HALF, Note, PLACES, places_of};
use crate::{
    arena::FERRY_OFFSET,
    link::{ANSWERS, Link},
    region::{cma::Direction, state::Regions},
    ring::{Broken, Payload, Word},
    transfer::Transfer,
};

/// Bytes that one round copies for one peer: about as long as a piece that the kernel moves.
const ROUND_MAX: u64 = 512 * 1024;
/// What a note costs that copies nothing.
const NOTE_COST: u64 = 256;
/// Notes that a peer which keeps the protocol can have on the way: an ask and an answer a place, and two rests.
const NOTES_MAX: usize = 2 * PLACES + 2;

/// One connection's transfers of this kind, both ways.
#[derive(Debug, Default)]
pub(crate) struct Ferry {
    /// Something of this side could not be published for want of a slot.
    pub(crate) is_waiting: bool,
    /// Notes that came in.
    notes: VecDeque<Note>,
    /// Answers that wait for a slot.
    answers: VecDeque<Answer>,
    /// By direction: of those with pieces that were not asked for yet, the first one is next. Few have none: each of them has
    /// a place.
    transfers: [VecDeque<Transfer>; 2],
    /// What was asked for and is not answered, by place.
    open: [Option<ask::Open>; PLACES],
    /// The places of both arenas.
    places: Option<Places>,
    /// Pages that were touched since they were last given back: of this side's arena, and of the peer's.
    has_served: bool,
    has_put: bool,
    has_got: bool,
}

/// Both arenas' places, from the first use on.
#[derive(Debug)]
struct Places {
    own: Memory,
    theirs: Memory,
}

impl Ferry {
    /// A note came in.
    pub(crate) fn arrived(&mut self, word: Word, payload: Payload) -> Result<(), Broken> {
        if self.notes.len() >= NOTES_MAX {
            return Err(Broken::Note);
        }
        self.notes.push_back(Note::decode(word, payload)?);
        Ok(())
    }

    /// A transfer was posted.
    pub(crate) fn take(&mut self, transfer: Transfer) {
        self.transfers[transfer.direction as usize].push_back(transfer);
    }

    /// Transfers under way.
    pub(crate) fn len(&self) -> usize {
        self.transfers.iter().map(VecDeque::len).sum()
    }

    /// Whether there is more to do at once.
    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Handles notes, answers and asks, as far as there is space, and at most [`ROUND_MAX`] bytes; says whether there were any.
    pub(crate) fn round(
        &mut self,
        link: &mut Link,
        regions: &Regions,
        finished: &mut Vec<Completion>,
    ) -> Result<bool, Broken> {
        self.places.get_or_insert_with(|| Places {
            own: link.own.arena.bytes.places(),
            theirs: link.theirs.rings.places(),
        });
        let (mut moved, mut room) = (false, ROUND_MAX);
        while room > 0
            && let Some(note) = self.notes.pop_front()
        {
            moved = true;
            let cost = match note {
                Note::Ask(ask) => self.serve(ask, regions)?,
                Note::Answer(answer) => self.answered(answer, finished)?,
                Note::Rest => self.rest(link),
            };
            room = room.saturating_sub(cost.max(NOTE_COST));
            // At once, so that the other side copies while this one does.
            self.publish(link)?;
        }
        Ok(self.publish(link)? || moved)
    }

    /// Publishes answers, then asks, as far as there are slots and places.
    pub(crate) fn publish(&mut self, link: &mut Link) -> Result<bool, Broken> {
        let mut moved = false;
        self.is_waiting = false;
        while let Some(answer) = self.answers.front() {
            if !send(link, &Note::Answer(*answer))? {
                self.is_waiting = true;
                return Ok(moved);
            }
            self.answers.pop_front();
            moved = true;
        }
        Ok(self.ask(link)? || moved)
    }

    /// Ends all transfers, with the peer; what came in is not looked at any more.
    pub(crate) fn fail(&mut self, reason: &GoneReason, finished: &mut Vec<Completion>) {
        let all = std::mem::take(self).transfers.into_iter().flatten();
        finished.extend(all.map(|it| it.ended(Err(Error::PeerGone(reason.clone())))));
    }

    /// Gives unused pages back, and says that the peer's are not used; `true`: some are still in use.
    pub(crate) fn trim(&mut self, link: &mut Link) -> Result<bool, Broken> {
        let is_open = |direction| self.open[places_of(direction)].iter().any(Option::is_some);
        if self.has_put && !is_open(Direction::Put) {
            self.has_put = false;
            let _kept_when_refused = link.own.arena.bytes.discard(FERRY_OFFSET + HALF, HALF);
        }
        if self.has_got && !is_open(Direction::Get) && send(link, &Note::Rest)? {
            self.has_got = false;
        }
        Ok(self.has_put || self.has_got)
    }

    /// The peer has taken all that it asked for.
    fn rest(&mut self, link: &Link) -> u64 {
        if std::mem::take(&mut self.has_served) {
            let _kept_when_refused = link.own.arena.bytes.discard(FERRY_OFFSET, HALF);
        }
        0
    }
}

/// Publishes a note; `false`: no slot is free.
fn send(link: &mut Link, note: &Note) -> Result<bool, Broken> {
    if !link.has_room(ANSWERS, 1)? {
        return Ok(false);
    }
    let (word, payload) = note.encode();
    link.push(ANSWERS, word, &payload);
    Ok(true)
}
