//! What an engine of a story has instead of the machine.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use hg_engine::platform::{Job, Join, Platform, Spawned, Thread, Unpark};

use crate::world::{self, ProcessId, ThreadId};

/// The platform of one process.
#[derive(Debug)]
pub(crate) struct Virtual {
    pub(crate) process: ProcessId,
}

/// When all stories begin.
static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// A virtual time as an instant.
pub(crate) fn instant(nanos: u64) -> Instant {
    *BEGINNING.get_or_init(Instant::now) + Duration::from_nanos(nanos)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

impl Platform for Virtual {
    fn now(&self) -> Instant {
        instant(world::tick())
    }

    fn process(&self) -> u32 {
        1
    }

    fn spawn(&self, _name: String, job: Job) -> io::Result<Spawned> {
        if world::has_no_threads(self.process) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        let id = world::spawn(self.process, job);
        Ok(Spawned { thread: Thread::Other(Arc::new(Parking(id))), join: Box::new(Joining(id)) })
    }

    fn current(&self) -> Thread {
        world::maybe_interrupt();
        Thread::Other(Arc::new(Parking(world::current().unwrap_or(usize::MAX))))
    }

    fn park(&self) {
        world::park(None);
    }

    fn park_timeout(&self, limit: Duration) {
        world::park(Some(world::now() + nanos(limit)));
    }

    fn yields(&self) -> bool {
        true
    }

    fn relax(&self) {
        world::relax();
    }
}

#[derive(Debug)]
struct Parking(ThreadId);

impl Unpark for Parking {
    fn id(&self) -> u64 {
        self.0 as u64
    }

    fn unpark(&self) {
        world::unpark(self.0);
    }
}

struct Joining(ThreadId);

impl Join for Joining {
    fn join(self: Box<Self>) -> bool {
        world::join(self.0)
    }
}
