//! What an engine of a story has instead of the machine.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use hg_engine::platform::{Job, Platform, Spawned, Thread, Timer, Unpark};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::world::{self, Action, ProcessId, Source, ThreadId};

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
        world::pass();
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
        world::pass();
        let thread = Thread::Other(Arc::new(Parking(id)));
        Ok(Spawned { thread, join: Box::new(move || world::join(id)) })
    }

    fn current(&self) -> Thread {
        world::pass();
        world::name(|id| Thread::Other(Arc::new(Parking(id))))
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

    fn timer(&self) -> nix::Result<Box<dyn Timer>> {
        let (setting, has_rung) = (AtomicU64::new(0), AtomicBool::new(false));
        let source = Source::Timer(world::current().unwrap_or(usize::MAX));
        let ringing = Ringing { setting, has_rung, process: self.process, source };
        Ok(Box::new(Alarm { descriptor: descriptor()?, ringing: Arc::new(ringing) }))
    }
}

/// A descriptor for an event loop to watch. Nothing is ever written to it: see [`Source`].
pub(crate) fn descriptor() -> nix::Result<EventFd> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
}

/// A timer of virtual time.
#[derive(Debug)]
struct Alarm {
    descriptor: EventFd,
    ringing: Arc<Ringing>,
}

#[derive(Debug)]
struct Ringing {
    /// Times that it was set.
    setting: AtomicU64,
    has_rung: AtomicBool,
    process: ProcessId,
    source: Source,
}

/// One setting of it.
struct Due(Arc<Ringing>, u64);

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Timer for Alarm {
    fn set(&self, left: Option<Duration>) -> nix::Result<()> {
        let ringing = &self.ringing;
        // Relaxed, as below: logical threads share one of the machine's.
        if ringing.has_rung.swap(false, Ordering::Relaxed) {
            world::set_readable(ringing.process, ringing.source, false);
        }
        let setting = ringing.setting.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(left) = left {
            let due = Waker::from(Arc::new(Due(Arc::clone(ringing), setting)));
            world::at(world::now() + nanos(left), Action::Waker(due));
        }
        Ok(())
    }
}

impl Wake for Due {
    fn wake(self: Arc<Self>) {
        let Self(ringing, setting) = self.as_ref();
        if ringing.setting.load(Ordering::Relaxed) == *setting
            && !ringing.has_rung.swap(true, Ordering::Relaxed)
        {
            world::set_readable(ringing.process, ringing.source, true);
        }
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
        world::pass();
    }
}
