//! What the callers and handlers of a real process stand on.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    os::fd::AsFd as _,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use hg_engine::{Engine, EventLoop};
use hg_na::Address;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{actor::say, now};
use crate::{
    ended::Ended,
    rpcs::Kind,
    stage::Stage,
    story::{Act, Call, Manner, Story, What, address_for},
};

/// Numbers from here on are of calls that are no events of the story: each is asked for a plain answer.
pub(super) const BEYOND: u64 = 1 << 40;

/// One process.
pub(super) struct Machine {
    pub(super) story: Story,
    pub(super) process: usize,
    pub(super) handle: OnceLock<Engine>,
    /// Of all processes, by number; the first place is empty.
    pub(super) addresses: OnceLock<Vec<Address>>,
    pub(super) probes: Mutex<BTreeMap<usize, Call>>,
    pub(super) threads: Threads,
    /// Its engine is being closed.
    pub(super) is_closed: AtomicBool,
    is_over: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    timers: Timers,
    called_on: AtomicU64,
}

impl Machine {
    pub(super) fn new(story: Story, process: usize) -> Arc<Self> {
        let machine = Arc::new(Self {
            story,
            process,
            handle: OnceLock::new(),
            addresses: OnceLock::new(),
            probes: Mutex::default(),
            threads: Threads::default(),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            waiting: Mutex::default(),
            timers: Timers::default(),
            // Those of another incarnation are others.
            called_on: AtomicU64::new(BEYOND + (u64::from(std::process::id()) << 41)),
        });
        let timed = Arc::clone(&machine);
        thread::spawn(move || timed.timers.run());
        machine
    }

    /// Nothing is kept from ending any more.
    pub(super) fn be_over(&self) {
        // Under the lock, so that whoever is not woken sees it.
        let mut waiting = lock(&self.waiting);
        self.is_over.store(true, Ordering::Release);
        let woken = std::mem::take(&mut *waiting);
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Stage for Machine {
    fn now(&self) -> u64 {
        now()
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(Unpark(thread::current())))
    }

    fn park(&self, until: Option<u64>) {
        match until {
            None => thread::park(),
            Some(until) => {
                thread::park_timeout(Duration::from_nanos(until.saturating_sub(now())));
            }
        }
    }

    fn wake_at(&self, at: u64, waker: Waker) {
        self.timers.add(at, waker);
    }

    fn stand_still(&self, nanos: u64) {
        thread::sleep(Duration::from_nanos(nanos));
    }

    fn yield_now(&self) {
        thread::yield_now();
    }

    fn sleep_on(&self, events: &EventLoop, _context: u8) {
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        // It is readable when the engine is closed, too. A signal ends the wait early, as may anything.
        let _ready = poll(&mut polled, PollTimeout::NONE);
    }

    fn is_closed(&self) -> bool {
        // Relaxed: whoever is to see it is woken afterwards.
        self.is_closed.load(Ordering::Relaxed)
    }

    fn spawn(&self, job: Box<dyn FnOnce() + Send>) {
        self.threads.spawn(job);
    }

    fn fail(&self, why: String) {
        say(&format!("fail {why}"));
    }

    fn opening(&self, number: usize) -> Option<(Call, Engine, Address)> {
        let call = match self.story.events.get(number).map(|event| &event.what) {
            Some(What::Call(call)) => call.clone(),
            _ => lock(&self.probes).get(&number)?.clone(),
        };
        let first = self.addresses.wait().get(call.to)?;
        let address = address_for(&call, first, self.story.processes.get(call.to - 1));
        let handle = call.by(self.handle.get()?.clone())?;
        Some((call, handle, address))
    }

    fn begun(&self, number: usize) {
        say(&format!("begun {number} {}", now()));
    }

    fn ended(&self, number: usize, _call: &Call, ended: Ended) {
        let now = now();
        say(&match ended {
            Ended::Failed(kind, text) => format!("ended {number} {now} {kind} {text}"),
            ended => format!("ended {number} {now} {ended:?}"),
        });
    }

    fn serving(&self, number: u64) -> Option<Call> {
        say(&format!("serves {number}"));
        if number < BEYOND {
            let event = self.story.events.get(usize::try_from(number).ok()?)?;
            return if let What::Call(call) = &event.what { Some(call.clone()) } else { None };
        }
        Some(Call::plain(0, self.process, Kind::Plain, Manner::Wait))
    }

    fn calling_on(&self, to: usize, _nanos: u64) -> (u64, Address) {
        // Relaxed: all that counts is that no two are the same.
        let number = self.called_on.fetch_add(1, Ordering::Relaxed);
        (number, self.addresses.wait()[to].clone())
    }

    fn is_given_up(&self, call: &Call) -> bool {
        let hangs = |event: &crate::story::Event| matches!(event.what, What::Stop(it, None) if it == call.to);
        let to_hung = || self.story.hangs(call.to) || self.story.events.iter().any(hangs);
        self.is_over() && (matches!(call.act, Act::UntilCancelled) || to_hung())
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn wake_when_over(&self, waker: Waker) {
        let mut waiting = lock(&self.waiting);
        if self.is_over() {
            drop(waiting);
            return waker.wake();
        }
        waiting.push(waker);
    }
}

/// Threads that were started and have not ended.
#[derive(Default)]
pub(super) struct Threads(Arc<(Mutex<usize>, Condvar)>);

impl Threads {
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let here = Arc::clone(&self.0);
        *lock(&here.0) += 1;
        thread::spawn(move || {
            // One that panics counts for ever, so that its process does not close.
            job();
            *lock(&here.0) -= 1;
            here.1.notify_all();
        });
    }

    pub(super) fn wait_for_all(&self) {
        let mut count = lock(&self.0.0);
        while *count > 0 {
            count = self.0.1.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Wakers by their times.
#[derive(Default)]
struct Timers {
    queue: Mutex<BinaryHeap<Reverse<Timer>>>,
    changed: Condvar,
}

struct Timer(u64, Waker);

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl Timers {
    fn add(&self, at: u64, waker: Waker) {
        lock(&self.queue).push(Reverse(Timer(at, waker)));
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut queue = lock(&self.queue);
        loop {
            let first = queue.peek().map(|Reverse(timer)| timer.0);
            let left = first.map(|at| at.saturating_sub(now()));
            if left == Some(0) {
                let timer = queue.pop();
                drop(queue);
                timer.into_iter().for_each(|Reverse(timer)| timer.1.wake());
                queue = lock(&self.queue);
                continue;
            }
            let left = Duration::from_nanos(left.unwrap_or(u64::MAX / 4));
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
