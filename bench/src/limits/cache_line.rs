//! `cache_line_round_trip`: one cache line to another core and one back, both sides spinning.
//!
//! # Layout
//! | line | writer | meaning             |
//! |-----:|--------|---------------------|
//! |    0 | origin | the request         |
//! |    2 | target | the answer: an echo |
//!
//! Two lines apart, since a core fetches lines in pairs.
//!
//! # Protocol
//! O1 payload, request.sequence.store(Release)     T1 request.sequence.load(Acquire), payload
//! O2 answer.sequence.load(Acquire), payload       T2 payload, answer.sequence.store(Release)
//! - O1 -> T1 and T2 -> O2: who sees the sequence sees the payload of the same round trip.
//! - Nobody overwrites a line before it was read: each waits for the other's next line.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::round_trips::RoundTrips;
use super::spin;
use crate::error::Error;
use crate::measure::{Subject, Wait};
use crate::pair::{Control, Cores, Peer};
use crate::raw::lines::{Line, Lines, WORDS};

/// How much of the line carries payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// 8 bytes.
    Word,
    /// All that fits beside the sequence: the whole line moves and is read.
    Line,
}

/// This process and the one that echoes.
#[derive(Debug)]
pub(crate) struct Pair {
    peer: Peer,
    lines: Lines,
    payload: Payload,
    sequence: u32,
}

impl Pair {
    /// Starts the second process.
    pub(crate) fn start(cores: Cores, payload: Payload) -> Result<Pair, Error> {
        let mut peer = Peer::start("cache-line", cores)?;
        let lines = Lines::create(LINES)?;
        peer.control().send_descriptors(&[lines.memory()])?;
        peer.control().send(payload.words() as u64)?;
        Ok(Pair { peer, lines, payload, sequence: 0 })
    }

    fn echoes<const N: usize>(&mut self, count: u32) -> Result<(), Error> {
        let (request, answer) = (&self.lines.as_slice()[REQUEST], &self.lines.as_slice()[ANSWER]);
        for _ in 0..count {
            let sequence = self.sequence.wrapping_add(1);
            self.sequence = sequence;
            let sent = [u64::from(sequence) << 7; N];
            write(request, sequence, sent); // O1
            let got = spin::until(|| read(answer, sequence), || self.peer.check_alive())?; // O2
            if got != sent {
                let (sent, got) = (sent[0], got[0]);
                return Err(Error::WrongAnswer { figure: FIGURE, sent, got });
            }
        }
        Ok(())
    }
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 500;
    const BATCH: u32 = 2000;

    fn subject(&self) -> Subject {
        Subject::round_trip(FIGURE, 8 * self.payload.words() as u64, Wait::Spin)
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        match self.payload {
            Payload::Word => self.echoes::<1>(count),
            Payload::Line => self.echoes::<WORDS>(count),
        }
    }
}

impl Payload {
    fn words(self) -> usize {
        match self {
            Payload::Word => 1,
            Payload::Line => WORDS,
        }
    }
}

/// The second process: echoes as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [memory] = control.receive_descriptors()?;
    let lines = Lines::open(memory)?;
    let words = control.next()?;
    let mut sequence = 0;
    while let Some(count) = control.next()? {
        if words == Some(1) {
            echo::<1>(&lines, &mut sequence, count)?;
        } else {
            echo::<WORDS>(&lines, &mut sequence, count)?;
        }
    }
    Ok(())
}

fn echo<const N: usize>(lines: &Lines, sequence: &mut u32, count: u64) -> Result<(), Error> {
    let (request, answer) = (&lines.as_slice()[REQUEST], &lines.as_slice()[ANSWER]);
    for _ in 0..count {
        *sequence = sequence.wrapping_add(1);
        let words = spin::until(|| read::<N>(request, *sequence), || Ok(()))?; // T1
        write(answer, *sequence, words); // T2
    }
    Ok(())
}

/// Payload first, then the sequence that publishes it.
#[inline]
fn write<const N: usize>(line: &Line, sequence: u32, payload: [u64; N]) {
    for (word, value) in line.words.iter().zip(payload) {
        word.store(value, Relaxed); // published by the next store
    }
    line.sequence.store(sequence, Release); // O1, T2
}

/// The payload, once the line carries this sequence.
#[inline]
fn read<const N: usize>(line: &Line, sequence: u32) -> Option<[u64; N]> {
    if line.sequence.load(Acquire) != sequence {
        return None; // O2, T1
    }
    Some(std::array::from_fn(|n| line.words[n].load(Relaxed))) // seen by the load above
}

const FIGURE: &str = "cache_line_round_trip";
const REQUEST: usize = 0;
const ANSWER: usize = 2;
const LINES: usize = 4;
