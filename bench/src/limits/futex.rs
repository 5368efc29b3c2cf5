//! `futex_round_trip`: two wake-ups through futex, both sides blocking.
//!
//! One word per direction, in shared memory: its writer counts it up and wakes, its reader sleeps
//! while it is unchanged.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::round_trips::RoundTrips;
use crate::error::Error;
use crate::measure::{Subject, Wait};
use crate::pair::{Control, Cores, Peer};
use crate::raw::futex;
use crate::raw::lines::Lines;

/// This process and the one that answers.
#[derive(Debug)]
pub(crate) struct Pair {
    peer: Peer,
    lines: Lines,
    sequence: u32,
}

impl Pair {
    /// Starts the second process.
    pub(crate) fn start(cores: Cores) -> Result<Pair, Error> {
        let mut peer = Peer::start("futex", cores)?;
        let lines = Lines::create(LINES)?;
        peer.control().send_descriptors(&[lines.memory()])?;
        Ok(Pair { peer, lines, sequence: 0 })
    }
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 10;
    const BATCH: u32 = 100;

    fn subject(&self) -> Subject {
        Subject { size: None, ..Subject::round_trip("futex_round_trip", 0, Wait::Block) }
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        let (request, answer) = words(&self.lines);
        for _ in 0..count {
            self.sequence = self.sequence.wrapping_add(1);
            post(request, self.sequence)?;
            sleep(answer, self.sequence, || self.peer.check_alive())?;
        }
        Ok(())
    }
}

/// The second process: answers each wake-up with one, as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [memory] = control.receive_descriptors()?;
    let lines = Lines::open(memory)?;
    let (request, answer) = words(&lines);
    let mut sequence = 0_u32;
    while let Some(count) = control.next()? {
        for _ in 0..count {
            sequence = sequence.wrapping_add(1);
            sleep(request, sequence, || Ok(()))?;
            post(answer, sequence)?;
        }
    }
    Ok(())
}

fn words(lines: &Lines) -> (&AtomicU32, &AtomicU32) {
    (&lines.as_slice()[0].sequence, &lines.as_slice()[2].sequence)
}

fn post(word: &AtomicU32, sequence: u32) -> Result<(), Error> {
    word.store(sequence, Release);
    futex::wake(word)
}

/// Sleeps until `word` is `sequence`; asks now and then whether the other process lives.
fn sleep(
    word: &AtomicU32,
    sequence: u32,
    mut alive: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    while word.load(Acquire) != sequence {
        futex::wait(word, sequence.wrapping_sub(1), ALIVE_MS)?;
        if word.load(Acquire) != sequence {
            alive()?;
        }
    }
    Ok(())
}

const LINES: usize = 4;

/// How long a sleeper sleeps before it asks whether the other process lives.
const ALIVE_MS: u32 = 1000;
