//! What an engine asks of the machine beside its transport: clock, threads, parking, process.
//!
//! [`Machine`] is the machine. A simulation gives something else ([`crate::Builder::platform`]), where time is a number and
//! threads take turns. So nothing else in this crate reads the clock, starts a thread or waits in the operating system; the one
//! exception is [`hg_na::Waiter::wait`], which is the transport's. `scripts/lint-tree` looks for breaches.
//!
//! # Parking
//! As in the standard library: a thread has one token. [`Thread::unpark`] puts it there, [`Platform::park`] takes it, and waits for
//! it if it is not there. A park may end without a token, so whoever parks looks again. What was written before an `unpark`
//! is seen after the `park` that it ends.

use std::{
    fmt, io,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hg_na_memory::ForkGuard;
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use crate::{inside::Levels, memory, thread_number};

/// What a new thread runs.
pub type Job = Box<dyn FnOnce() + Send>;

/// Clock, threads and process of an engine.
pub trait Platform: Send + Sync + fmt::Debug {
    /// The time. Never goes back.
    fn now(&self) -> Instant;

    /// The process that this runs in. In a forked child it is another one than in its parent.
    fn process(&self) -> u32;

    /// Starts a thread. It ends with its job; nobody need join it.
    ///
    /// # Errors
    /// There is no thread to be had. The job was dropped.
    fn spawn(&self, name: String, job: Job) -> io::Result<Spawned>;

    /// The thread that runs this.
    fn current(&self) -> Thread;

    /// Waits for this thread's token, and takes it.
    fn park(&self);

    /// The same for at most this time.
    fn park_timeout(&self, limit: Duration);

    /// Whether [`Platform::relax`] is to be called in polling loops. Asked once per loop: the machine's own threads spin
    /// without it.
    fn yields(&self) -> bool {
        false
    }

    /// A polling loop has found nothing, and is about to look again.
    fn relax(&self) {
        std::hint::spin_loop();
    }

    /// The same, and others that wait for this core come first.
    fn give_way(&self) {
        thread::yield_now();
    }

    /// Bytes of memory that there are for this process and its neighbours: as good as without end here.
    fn memory(&self) -> u64 {
        u64::MAX
    }

    /// A timer for a foreign event loop.
    ///
    /// # Errors
    /// The system has none to give.
    fn timer(&self) -> nix::Result<Box<dyn Timer>> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Box::new(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?))
    }
}

/// A descriptor that becomes readable at a time.
pub trait Timer: AsFd + Send + Sync + fmt::Debug {
    /// It is not readable until this time has passed; `None`: not at all.
    ///
    /// # Errors
    /// The system refuses.
    fn set(&self, left: Option<Duration>) -> nix::Result<()>;
}

impl Timer for TimerFd {
    fn set(&self, left: Option<Duration>) -> nix::Result<()> {
        let Some(left) = left else { return self.unset() };
        // Zero would disarm the timer instead of firing it.
        let left = TimeSpec::from_duration(left.max(Duration::from_nanos(1)));
        TimerFd::set(self, Expiration::OneShot(left), TimerSetTimeFlags::empty())
    }
}

/// A thread that was started.
pub struct Spawned {
    /// Its name for others.
    pub thread: Thread,
    /// Waits for its end, and says whether its job has returned; otherwise it has panicked.
    pub join: Box<dyn FnOnce() -> bool + Send>,
}

impl fmt::Debug for Spawned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Spawned({:?})", self.thread)
    }
}

/// A thread, to be unparked.
#[derive(Debug, Clone)]
pub enum Thread {
    /// One of the machine's.
    Machine(thread::Thread),
    /// One of another platform's.
    Other(Arc<dyn Unpark>),
}

/// A thread of a platform other than the machine.
pub trait Unpark: Send + Sync + fmt::Debug {
    /// Which one it is: never the same for two that live at a time.
    fn id(&self) -> u64;

    /// Gives it its token.
    fn unpark(&self);
}

impl Thread {
    /// Gives it its token: its present park ends, or its next one.
    pub fn unpark(&self) {
        match self {
            Self::Machine(thread) => thread.unpark(),
            Self::Other(thread) => thread.unpark(),
        }
    }
}

impl PartialEq for Thread {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Machine(one), Self::Machine(other)) => one.id() == other.id(),
            (Self::Other(one), Self::Other(other)) => one.id() == other.id(),
            _ => false,
        }
    }
}

impl Eq for Thread {}

/// The machine itself.
#[derive(Debug)]
pub struct Machine {
    /// The process that it was made in, and what tells that one from a forked child without a system call; `None` where the kernel
    /// has none to give.
    made_in: Option<(ForkGuard, u32)>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { made_in: ForkGuard::new().ok().map(|guard| (guard, std::process::id())) }
    }
}

impl Platform for Machine {
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn memory(&self) -> u64 {
        memory::of_machine()
    }

    #[inline]
    fn process(&self) -> u32 {
        match &self.made_in {
            Some((guard, process)) if !guard.is_child() => *process,
            _ => std::process::id(),
        }
    }

    fn spawn(&self, name: String, job: Job) -> io::Result<Spawned> {
        let handle = thread::Builder::new().name(name).spawn(job)?;
        let thread = Thread::Machine(handle.thread().clone());
        Ok(Spawned { thread, join: Box::new(move || handle.join().is_ok()) })
    }

    fn current(&self) -> Thread {
        Thread::Machine(thread::current())
    }

    fn park(&self) {
        thread::park();
    }

    fn park_timeout(&self, limit: Duration) {
        thread::park_timeout(limit);
    }
}

/// What this thread keeps for the engine from one call to the next, for a platform whose threads share one of the machine's.
#[derive(Debug, Default)]
pub struct Locals {
    inside: Levels,
    thread: Option<u32>,
}

impl Locals {
    /// Of a thread whose number is given to it, where those of all threads are to be the same each time. By it an engine with
    /// several contexts chooses one.
    #[must_use]
    pub fn numbered(thread: u32) -> Self {
        Self { thread: Some(thread), ..Self::default() }
    }

    /// Exchanges these with the machine thread's.
    pub fn swap(&mut self) {
        self.inside.swap();
        thread_number::swap(&mut self.thread);
    }
}
