//! Two processes' workers in one thread of this one, stepped in turns: what `hg-perf instructions` counts of a notified call.

use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use hg_invoke::{Group, How, Place, Room, Synchronizer, Worker};

use super::workers::{Packed, fabric, one, take_word};
use crate::error::Error;

/// Calls in batches, each of which is known to have run before the next one is made. What is counted happens in [`stepped`].
pub(crate) fn step(url: &str, batch: u32, calls: u32, warm_up: u32) -> Result<(), Error> {
    let meeting = Meeting { said: Mutex::default(), all: Barrier::new(2) };
    let open = |rank| -> Result<_, Error> {
        one(fabric(Packed::Trad)?.open(&Half { rank, meeting: &meeting }, url)?)
    };
    let (caller, called) = thread::scope(|scope| {
        let other = scope.spawn(|| open(1));
        let first = open(0);
        let other = other.join();
        other.map(|second| (first, second)).map_err(|_| Error::PeerGone("a thread that opens"))
    })?;
    let (caller, called) = (caller?, called?);
    stepped(&caller, &called, batch, warm_up)?;
    counted(&caller, &called, batch, calls)
}

/// What the profile is of.
#[inline(never)]
fn counted(caller: &Worker, called: &Worker, batch: u32, calls: u32) -> Result<(), Error> {
    stepped(caller, called, batch, calls)
}

#[inline(always)]
fn stepped(caller: &Worker, called: &Worker, batch: u32, calls: u32) -> Result<(), Error> {
    let (to, ran) = (Place { process: 1, thread: 0 }, Synchronizer::new());
    for number in 0..calls / batch {
        for _ in 0..batch {
            let how = How::room(Room::Return).when_run(&ran);
            let made = caller.call_with(to, take_word, (black_box(number.into()),), how);
            made.map_err(|refused| refused.error)?;
            caller.flush();
        }
        while ran.left() > 0 {
            called.progress()?;
            caller.progress()?;
        }
    }
    Ok(())
}

/// Two halves of a job, in two threads.
struct Meeting {
    said: Mutex<[Vec<u8>; 2]>,
    all: Barrier,
}

struct Half<'a> {
    rank: u32,
    meeting: &'a Meeting,
}

impl Group for Half<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        2
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let said = || self.meeting.said.lock().unwrap_or_else(PoisonError::into_inner);
        said()[self.rank as usize] = own.to_vec();
        self.meeting.all.wait();
        Ok(said().to_vec())
    }
}
