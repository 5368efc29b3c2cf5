//! `ring_rate`: requests and answers through two bare rings of cache lines, several in flight.
//!
//! # Layout   (two rings, requests, then answers)
//! A slot is a [`Line`]: `sequence` is the lap that its payload belongs to, from 1. There are [`SLOTS`] in
//! a ring, or the next power of two above what is in flight.
//!
//! # Protocol   (of one ring)
//! P1 payload                           C1 sequence.load(Acquire)
//! P2 sequence.store(Release)           C2 payload
//! - P2 -> C1: the consumer sees the payload of the lap that it reads. One line moves per message.
//! - A slot is free when its next lap comes: its answer was received before, since fewer requests are in
//!   flight than there are slots; so no position is written back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::round_trips::RoundTrips;
use super::spin;
use crate::error::Error;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::{Control, Cores, Peer};
use crate::raw::lines::{Line, Lines, WORDS};

/// This process and the one that answers.
#[derive(Debug)]
pub(crate) struct Pair {
    peer: Peer,
    lines: Lines,
    inflight: u32,
    done: u64,
}

impl Pair {
    /// Starts the second process.
    pub(crate) fn start(cores: Cores, inflight: u32) -> Result<Pair, Error> {
        let mut peer = Peer::start("ring", cores)?;
        let lines = Lines::create(2 * slots(inflight as usize))?;
        peer.control().send_descriptors(&[lines.memory()])?;
        Ok(Pair { peer, lines, inflight, done: 0 })
    }
}

/// An answer echoes its request.
#[inline]
fn check(sent: u64, answer: [u64; WORDS]) -> Result<(), Error> {
    if answer == [sent; WORDS] {
        return Ok(());
    }
    Err(Error::WrongAnswer { figure: FIGURE, sent, got: answer[0] })
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 2000;
    const BATCH: u32 = 20_000;

    fn subject(&self) -> Subject {
        Subject {
            size: Some(64),
            inflight: Some(u64::from(self.inflight)),
            wait: Some(Wait::Spin),
            ..Subject::new(FIGURE, Unit::PerSecond)
        }
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        let (requests, answers) = rings(self.lines.as_slice());
        let (end, inflight) = (self.done + u64::from(count), u64::from(self.inflight));
        let (mut sent, mut done) = (self.done, self.done);
        while done < end {
            while sent < end && sent - done < inflight {
                requests.push(sent, [sent; WORDS]);
                sent += 1;
            }
            let answer = spin::until(|| answers.pop(done), || self.peer.check_alive())?;
            check(done, answer)?;
            done += 1;
            while done < sent
                && let Some(answer) = answers.pop(done)
            {
                check(done, answer)?;
                done += 1;
            }
        }
        self.done = done;
        Ok(())
    }
}

/// The second process: echoes as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [memory] = control.receive_descriptors()?;
    let lines = Lines::open(memory)?;
    let (requests, answers) = rings(lines.as_slice());
    let mut done = 0;
    while let Some(count) = control.next()? {
        for number in done..done + count {
            let request = spin::until(|| requests.pop(number), || Ok(()))?;
            answers.push(number, request);
        }
        done += count;
    }
    Ok(())
}

/// One direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring<'a> {
    /// A power of two of them.
    slots: &'a [Line],
}

impl Ring<'_> {
    /// Publishes a message.
    #[inline]
    pub(super) fn push(self, number: u64, payload: [u64; WORDS]) {
        let (slot, lap) = self.slot(number);
        for (word, value) in slot.words.iter().zip(payload) {
            word.store(value, Relaxed); // P1: published by P2
        }
        slot.sequence.store(lap, Release); // P2
    }

    /// The message of this number, once it is there.
    #[inline]
    pub(super) fn pop(self, number: u64) -> Option<[u64; WORDS]> {
        let (slot, lap) = self.slot(number);
        if slot.sequence.load(Acquire) != lap {
            return None; // C1
        }
        Some(std::array::from_fn(|n| slot.words[n].load(Relaxed))) // C2: seen by C1
    }

    /// Slot and lap of a message; laps wrap long after every slot has been used.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a lap wraps, and so does a place in the ring"
    )]
    fn slot(&self, number: u64) -> (&Line, u32) {
        let bits = self.slots.len().trailing_zeros();
        let lap = (number >> bits) as u32;
        (&self.slots[number as usize & (self.slots.len() - 1)], lap.wrapping_add(1))
    }
}

/// Slots that a ring needs with so many requests in flight.
pub(super) fn slots(inflight: usize) -> usize {
    (inflight + 1).next_power_of_two().max(SLOTS)
}

/// Requests and answers, half of the lines each.
pub(super) fn rings(lines: &[Line]) -> (Ring<'_>, Ring<'_>) {
    let (requests, answers) = lines.split_at(lines.len() / 2);
    (Ring { slots: requests }, Ring { slots: answers })
}

const FIGURE: &str = "ring_rate";
/// The least that a ring has: with few requests in flight, each slot rests for some laps.
const SLOTS: usize = 64;
