//! `handover_rate`: bytes that one process writes and the other reads, through memory that both have mapped.
//!
//! A request of [`super::ring`] says that its chunk is written; the answer is its first word, once all of it was
//! copied out. There are as many chunks as requests in flight: one is written again only after its answer. Each byte is
//! copied twice, and its cache lines go from core to core in between: this is what bytes inside a message cost at
//! least, before anything is done with them.

use super::ring;
use super::round_trips::RoundTrips;
use super::spin;
use crate::error::Error;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::{Control, Cores, Peer};
use crate::product::store::to_usize;
use crate::raw::lines::{LINE, Lines, WORDS};

/// This process and the one that reads.
#[derive(Debug)]
pub(crate) struct Pair {
    peer: Peer,
    lines: Lines,
    size: usize,
    /// What is handed over; as many as in flight.
    buffers: Vec<Vec<u8>>,
    done: u64,
}

impl Pair {
    /// Starts the second process, for chunks of `size` bytes, at least 8.
    pub(crate) fn start(cores: Cores, size: usize, inflight: u32) -> Result<Pair, Error> {
        let mut peer = Peer::start("handover", cores)?;
        let size = size.max(size_of::<u64>());
        let chunks = size.div_ceil(LINE) * inflight as usize;
        let lines = Lines::create(2 * ring::slots(inflight as usize) + chunks)?;
        peer.control().send_descriptors(&[lines.memory()])?;
        peer.control().send(size as u64)?;
        peer.control().send(u64::from(inflight))?;
        let buffers = vec![vec![1; size]; inflight as usize];
        Ok(Pair { peer, lines, size, buffers, done: 0 })
    }

    fn inflight(&self) -> u64 {
        self.buffers.len() as u64
    }
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 200;
    const BATCH: u32 = 2_000;

    fn subject(&self) -> Subject {
        Subject {
            size: Some(self.size as u64),
            inflight: Some(self.inflight()),
            wait: Some(Wait::Spin),
            ..Subject::new(FIGURE, Unit::PerSecond)
        }
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        let Pair { peer, lines, size, buffers, done: first } = self;
        let (requests, answers) = ring::rings(&lines.as_slice()[..2 * ring::slots(buffers.len())]);
        let (end, inflight) = (*first + u64::from(count), buffers.len() as u64);
        let (mut sent, mut done) = (*first, *first);
        while done < end {
            while sent < end && sent - done < inflight {
                let chunk = to_usize(sent % inflight);
                buffers[chunk][..8].copy_from_slice(&sent.to_le_bytes());
                lines.copy_in(place(chunk, *size, buffers.len()), &buffers[chunk]);
                requests.push(sent, [sent; WORDS]);
                sent += 1;
            }
            let [got, ..] = spin::until(|| answers.pop(done), || peer.check_alive())?;
            if got != done {
                return Err(Error::WrongAnswer { figure: FIGURE, sent: done, got });
            }
            done += 1;
        }
        self.done = done;
        Ok(())
    }
}

/// The second process: copies out as often as it is told, and answers what came first.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [memory] = control.receive_descriptors()?;
    let lines = Lines::open(memory)?;
    let (Some(size), Some(inflight)) = (control.next()?, control.next()?) else { return Ok(()) };
    let (size, inflight) = (to_usize(size), to_usize(inflight));
    let mut buffer = vec![0; size];
    let (requests, answers) = ring::rings(&lines.as_slice()[..2 * ring::slots(inflight)]);
    let mut done = 0;
    while let Some(count) = control.next()? {
        for number in done..done + count {
            let _said = spin::until(|| requests.pop(number), || Ok(()))?;
            let chunk = to_usize(number % inflight as u64);
            lines.copy_out(place(chunk, size, inflight), &mut buffer);
            let first = buffer.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            answers.push(number, [first; WORDS]);
        }
        done += count;
    }
    Ok(())
}

/// Where a chunk begins, in lines: behind both rings.
fn place(chunk: usize, size: usize, inflight: usize) -> usize {
    2 * ring::slots(inflight) + chunk * size.div_ceil(LINE)
}

const FIGURE: &str = "handover_rate";
