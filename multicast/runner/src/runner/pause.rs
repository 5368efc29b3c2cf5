//! A member that stops for a while before it passes a certain block on: what that costs all of them.
//!
//! The member has its object behind a thread that reads and writes it by blocks, stalled or not; that thread stops. So nothing of the
//! member's comes or goes meanwhile that is not on its way already.

use std::{
    fmt, io,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use hg::bulk::Bulk;
use hg_multicast::{
    Blocks,
    schedule::{Schedule, Steps},
};

/// Who stops, before which block of every other object, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) member: u32,
    pub(crate) block: u64,
    micros: u64,
}

impl FromStr for Pause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("three numbers, MEMBER:BLOCK:MICROSECONDS, up to {MICROS_MAX} us");
        let parts: Vec<&str> = text.split(':').collect();
        let [member, block, micros] = parts[..] else { return Err(wrong()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let member = u32::try_from(number(member)?).map_err(|_| wrong())?;
        let micros = number(micros).ok().filter(|it| (1..=MICROS_MAX).contains(it));
        Ok(Self { member, block: number(block)?, micros: micros.ok_or_else(wrong)? })
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, block, micros } = self;
        write!(out, "member {member} stops for {micros} us before it sends block {block}")
    }
}

impl Pause {
    /// Who sends that block, where an object has so many.
    pub(crate) fn senders(&self, schedule: Schedule, members: u32, blocks: u64) -> Vec<u32> {
        let sends = |member: &u32| {
            let hops = Steps::new(schedule, members, blocks, *member).filter_map(|it| it.send);
            hops.into_iter().any(|hop| hop.block == self.block)
        };
        (0..members).filter(sends).collect()
    }

    /// Whether it stops at this object: at every other one, so that what else changes meanwhile changes both.
    pub(crate) fn is_at(number: u64) -> bool {
        number % 2 == 1
    }
}

/// At the member that stops.
#[derive(Debug, Clone)]
pub(crate) struct Stops {
    pause: Pause,
    count: Arc<AtomicU64>,
}

impl Stops {
    /// `None`: this rank does not.
    pub(crate) fn of(pause: Option<Pause>, rank: u32) -> Option<Self> {
        let pause = pause.filter(|it| it.member == rank)?;
        Some(Self { pause, count: Arc::default() })
    }

    /// How often it has stopped so far.
    pub(crate) fn count(&self) -> u64 {
        // Relaxed: whoever asks has waited for the objects by other means.
        self.count.load(Ordering::Relaxed)
    }

    /// An object's memory by blocks.
    pub(crate) fn blocks(
        &self,
        memory: &Arc<Bulk>,
        block_size: u64,
        number: u64,
    ) -> Box<dyn Blocks> {
        let Pause { block, micros, .. } = self.pause;
        let length = Pause::is_at(number).then_some(Duration::from_micros(micros));
        Box::new(Stopping {
            memory: Arc::clone(memory),
            at: block.saturating_mul(block_size),
            length,
            count: Arc::clone(&self.count),
        })
    }
}

/// Memory that is read and written by blocks.
struct Stopping {
    memory: Arc<Bulk>,
    at: u64,
    /// `None`: it has stopped, or is not to.
    length: Option<Duration>,
    count: Arc<AtomicU64>,
}

impl Blocks for Stopping {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if let Some(length) = self.length.take_if(|_| offset == self.at) {
            thread::sleep(length);
            // Relaxed: see above.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.memory.read(offset, into).map_err(io::Error::other)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write(offset, bytes).map_err(io::Error::other)
    }
}

/// A minute.
const MICROS_MAX: u64 = 60_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_three_numbers() {
        let pause = Pause { member: 1, block: 2, micros: 100 };
        assert_eq!("1:2:100".parse(), Ok(pause));
        for wrong in ["", "1:2", "1:2:0", "1:2:3:4", "-1:2:3", "1:x:3", "1:2:60000001"] {
            assert!(wrong.parse::<Pause>().is_err(), "{wrong}");
        }
    }
}
