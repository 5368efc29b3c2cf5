//! What is said between two contexts about transfers that are copied through their arenas.
//!
//! Notes travel in slots of the answers' ring, marked in the slot's word ([`Word::NOTE`]); no user sees them.
//!
//! | kind | words of the slot | meaning |
//! |---|---|---|
//! | 1 get | place and length, index and generation, proof (2), offset, start and length of the whole transfer | fill a place of your arena |
//! | 2 put | the same | take these bytes from a place of my arena |
//! | 3 answer | place and status, argument | done, or why not |
//! | 4 rest | | all that I asked for is answered and taken: the memory may be given back |
//!
//! A place is a piece of the last part of an arena ([`FERRY_OFFSET`]): the first [`WINDOW`] are filled by the owner for gets, the
//! others by the initiator for puts. The initiator of a transfer chooses the place, and uses it again after the answer.

use hg_na::{Error, Rights};

use crate::{
    arena::{ARENA_BYTES, FERRY_OFFSET},
    descriptor::{RegionName, halves, joined, pair, split},
    region::cma::Direction,
    ring::{Broken, Payload, Word},
};

/// Bytes of a place: what one side copies while the other copies the piece before.
pub(crate) const PIECE: u32 = 32 * 1024;
/// Places of one direction.
pub(crate) const WINDOW: usize = 8;
/// Places of both directions.
pub(crate) const PLACES: usize = 2 * WINDOW;
/// Bytes of the places of one direction.
pub(crate) const HALF: u32 = PIECE * 8;

const _: () = {
    assert!(HALF as usize == PIECE as usize * WINDOW);
    assert!(FERRY_OFFSET + 2 * HALF == ARENA_BYTES);
};

const GET: u32 = 1;
const PUT: u32 = 2;
const ANSWER: u32 = 3;
const REST: u32 = 4;

/// One piece of a transfer, asked of the owner of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) direction: Direction,
    /// Below [`PLACES`], on the side of its direction.
    pub(crate) place: usize,
    /// At most [`PIECE`].
    pub(crate) len: u32,
    /// A region of the domain at the other end: a claim.
    pub(crate) name: RegionName,
    pub(crate) proof: [u8; 16],
    pub(crate) offset: u64,
    /// Start and length of the whole transfer, which is refused as a whole.
    pub(crate) whole: (u64, u64),
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) place: usize,
    pub(crate) verdict: Verdict,
}

/// The owner's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bytes are where they were asked for.
    Done,
    /// No such region, or not any more.
    Stale,
    /// It grants less.
    Denied(Rights),
    /// It has fewer bytes: this many.
    Outside(u64),
}

impl Verdict {
    /// The error of a whole transfer.
    pub(crate) fn into_result(self, needed: Rights, range: (u64, u64)) -> Result<(), Error> {
        match self {
            Self::Done => Ok(()),
            Self::Stale => Err(Error::StaleDescriptor),
            Self::Denied(granted) => Err(Error::Denied { granted, needed }),
            Self::Outside(size) => Err(Error::OutOfRange { offset: range.0, len: range.1, size }),
        }
    }
}

/// One slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Ask(Ask),
    Answer(Answer),
    Rest,
}

impl Note {
    /// What stands in the slot.
    pub(crate) fn encode(&self) -> (Word, Payload) {
        match self {
            Self::Ask(ask) => {
                let kind = if ask.direction == Direction::Get { GET } else { PUT };
                let [low, high] = halves(ask.proof);
                let (start, len) = ask.whole;
                let place = pair(ask.place as u64, ask.len);
                let name = pair(ask.name.index.into(), ask.name.generation);
                (Word::new(Word::NOTE, kind), [place, name, low, high, ask.offset, start, len])
            }
            Self::Answer(Answer { place, verdict }) => {
                let (status, argument) = match verdict {
                    Verdict::Done => (0, 0),
                    Verdict::Stale => (1, 0),
                    Verdict::Denied(granted) => (2, u64::from(granted.bits())),
                    Verdict::Outside(size) => (3, *size),
                };
                let place = pair(*place as u64, status);
                (Word::new(Word::NOTE, ANSWER), [place, argument, 0, 0, 0, 0, 0])
            }
            Self::Rest => (Word::new(Word::NOTE, REST), [0; 7]),
        }
    }

    /// Reads a claim, and checks all that can be checked without knowing the memory that it is about.
    ///
    /// # Errors
    /// [`Broken::Note`].
    pub(crate) fn decode(word: Word, payload: Payload) -> Result<Self, Broken> {
        let [first, second, low, high, offset, start, len] = payload;
        let (place, rest) = split(first);
        let place = usize::try_from(place).map_err(|_| Broken::Note)?;
        let direction = match word.len() {
            GET => Direction::Get,
            PUT => Direction::Put,
            ANSWER if place < PLACES => {
                let verdict = verdict_of(rest, second)?;
                return Ok(Self::Answer(Answer { place, verdict }));
            }
            REST => return Ok(Self::Rest),
            _ => return Err(Broken::Note),
        };
        let (index, generation) = split(second);
        let ends = (offset.checked_add(u64::from(rest)), start.checked_add(len));
        let (Some(end), Some(whole_end)) = ends else { return Err(Broken::Note) };
        let is_within = start <= offset && end <= whole_end;
        if !is_within || rest > PIECE || !places_of(direction).contains(&place) {
            return Err(Broken::Note);
        }
        let (name, proof) = (RegionName { index, generation }, joined([low, high]));
        Ok(Self::Ask(Ask { direction, place, len: rest, name, proof, offset, whole: (start, len) }))
    }
}

/// The places of one direction.
pub(crate) fn places_of(direction: Direction) -> std::ops::Range<usize> {
    match direction {
        Direction::Get => 0..WINDOW,
        Direction::Put => WINDOW..PLACES,
    }
}

/// First byte of a place, counted from the first place.
pub(crate) fn offset_of_place(place: usize) -> u64 {
    place as u64 * u64::from(PIECE)
}

fn verdict_of(status: u32, argument: u64) -> Result<Verdict, Broken> {
    Ok(match status {
        0 => Verdict::Done,
        1 => Verdict::Stale,
        2 => {
            let bits = u8::try_from(argument).map_err(|_| Broken::Note)?;
            Verdict::Denied(Rights::from_bits(bits).ok_or(Broken::Note)?)
        }
        3 => Verdict::Outside(argument),
        _ => return Err(Broken::Note),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_ask_survives_its_slot(
            get: bool, at in 0..WINDOW, len in 0..=PIECE, index: u32, generation: u32, proof: [u8; 16],
            start in 0..u64::MAX / 4, before in 0..u64::MAX / 4, behind in 0..u64::MAX / 4,
        ) {
            let direction = if get { Direction::Get } else { Direction::Put };
            let place = places_of(direction).start + at;
            let whole = (start, before + u64::from(len) + behind);
            let name = RegionName { index, generation };
            let ask = Ask { direction, place, len, name, proof, offset: start + before, whole };
            let (word, payload) = Note::Ask(ask).encode();
            prop_assert_eq!(Note::decode(word, payload), Ok(Note::Ask(ask)));
        }

        #[test]
        fn every_answer_survives_its_slot(place in 0..PLACES, size: u64, rights in 0..4_u8) {
            let granted = Rights::from_bits(rights).unwrap();
            for verdict in
                [Verdict::Done, Verdict::Stale, Verdict::Denied(granted), Verdict::Outside(size)]
            {
                let note = Note::Answer(Answer { place, verdict });
                let (word, payload) = note.encode();
                prop_assert_eq!(Note::decode(word, payload), Ok(note));
            }
        }

        #[test]
        fn what_is_accepted_lies_in_its_place_and_in_its_range(word: u32, payload in any::<[u64; 7]>()) {
            for kind in [word, Word::new(Word::NOTE, word % 6).0] {
                if let Ok(Note::Ask(ask)) = Note::decode(Word(kind), payload) {
                    prop_assert!(places_of(ask.direction).contains(&ask.place) && ask.len <= PIECE);
                    let (start, len) = ask.whole;
                    prop_assert!(start <= ask.offset && ask.offset + u64::from(ask.len) <= start + len);
                }
            }
        }
    }
}
