//! `ring_rate`: requests and answers through two bare rings of cache lines, several in flight.
//!
//! # Layout   (two rings of 64 slots, a page each: requests, then answers)
//! A slot is a [`Line`]: `sequence` is the lap that its payload belongs to, from 1.
//!
//! # Protocol   (of one ring)
//! P1 payload                           C1 sequence.load(Acquire)
//! P2 sequence.store(Release)           C2 payload
//! - P2 -> C1: the consumer sees the payload of the lap that it reads. One line moves per message.
//! - A slot is free when its next lap comes: a request's answer was received before the 64th
//!   request after it is sent, since fewer than 64 are in flight; so no position is written back.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

use super::spin;
use crate::error::Error;
use crate::measure::{Measure, Subject, Unit, Wait};
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
    ///
    /// # Panics
    /// When `inflight` is 0 or not below the ring's 64 slots.
    pub(crate) fn start(cores: Cores, inflight: u32) -> Result<Pair, Error> {
        assert!(inflight > 0 && u64::from(inflight) < SLOTS as u64, "1 to 63 in flight");
        let mut peer = Peer::start("ring", cores)?;
        let lines = Lines::create(2 * SLOTS)?;
        peer.control().send_descriptors(&[lines.memory()])?;
        Ok(Pair { peer, lines, inflight, done: 0 })
    }

    /// `count` requests, each answered.
    fn call(&mut self, count: u64) -> Result<(), Error> {
        let (requests, answers) = rings(&self.lines);
        let (end, inflight) = (self.done + count, u64::from(self.inflight));
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

/// An answer echoes its request.
#[inline]
fn check(sent: u64, answer: [u64; WORDS]) -> Result<(), Error> {
    if answer == [sent; WORDS] {
        return Ok(());
    }
    Err(Error::WrongAnswer { figure: FIGURE, sent, got: answer[0] })
}

impl Measure for Pair {
    fn subject(&self) -> Subject {
        Subject {
            size: Some(64),
            inflight: Some(u64::from(self.inflight)),
            wait: Some(Wait::Spin),
            ..Subject::new(FIGURE, Unit::PerSecond)
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.peer.control().send(u64::from(WARM_UP + BATCH))?;
        self.call(u64::from(WARM_UP))?;
        let start = Instant::now();
        self.call(u64::from(BATCH))?;
        Ok(f64::from(BATCH) / start.elapsed().as_secs_f64())
    }
}

/// The second process: echoes as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [memory] = control.receive_descriptors()?;
    let lines = Lines::open(memory)?;
    let (requests, answers) = rings(&lines);
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
struct Ring<'a> {
    slots: &'a [Line; SLOTS],
}

impl Ring<'_> {
    #[inline]
    fn push(self, number: u64, payload: [u64; WORDS]) {
        let (slot, lap) = self.slot(number);
        for (word, value) in slot.words.iter().zip(payload) {
            word.store(value, Relaxed); // P1: published by P2
        }
        slot.sequence.store(lap, Release); // P2
    }

    #[inline]
    fn pop(self, number: u64) -> Option<[u64; WORDS]> {
        let (slot, lap) = self.slot(number);
        if slot.sequence.load(Acquire) != lap {
            return None; // C1
        }
        Some(std::array::from_fn(|n| slot.words[n].load(Relaxed))) // C2: seen by C1
    }

    /// Slot and lap of a message; laps wrap long after every slot has been used.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a lap wraps, a remainder is below 64")]
    fn slot(&self, number: u64) -> (&Line, u32) {
        let lap = (number / SLOTS as u64) as u32;
        (&self.slots[(number % SLOTS as u64) as usize], lap.wrapping_add(1))
    }
}

fn rings(lines: &Lines) -> (Ring<'_>, Ring<'_>) {
    let (rings, _) = lines.as_slice().as_chunks();
    let [requests, answers] = rings else { panic!("the mapping holds two rings") };
    (Ring { slots: requests }, Ring { slots: answers })
}

const FIGURE: &str = "ring_rate";
const SLOTS: usize = 64;

/// Calls that wake the second process up and fetch the lines.
const WARM_UP: u32 = 2000;
/// Calls in one repetition.
const BATCH: u32 = 20_000;
