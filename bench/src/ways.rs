//! `hg-perf ways`: calls as programs make them beside the plainest way, and the system calls that they cost.
//!
//! | figure                     | what it is                                                                       |
//! |----------------------------|----------------------------------------------------------------------------------|
//! | `call_waited`              | `Call::wait` in one thread; the engine has its thread for progress               |
//! | `call_awaited_tokio`       | `.await` on tokio's runtime of one thread, beside it                             |
//! | `call_awaited_small`       | `.await` on `smol::future::block_on`, beside it                                  |
//! | `calls_of_threads`         | calls per second of N threads on one engine together, beside those of one thread |
//! | `calls_of_contexts`        | calls per second of N threads on one engine of N contexts, beside those of N threads on an engine each; both call a target of N contexts that waits as they do |
//! | `slowest_thread_to_mean`   | the slowest of them beside the mean                                              |
//! | `sleeps_...`               | how often a thread of the origin's has slept, per call, in the run of the times  |
//! | `switching_calls_...`      | system calls that wait, wake or yield, per call, counted by strace               |
//! | `getpid_calls_...`         | calls of `getpid`, per call                                                      |
//!
//! The target of one context spins. Its process has a core, and the origin's threads have one together; with `--free` all go where the system
//! puts them. strace delays every system call that it counts, and on a loaded machine each that waits makes others wait: such counts
//! are worth something on an idle machine only. `sleeps_...` are not affected.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::error::{Context, Error};
use crate::measure::{Measure, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::WORD;
use crate::product::origin::{By, Crew, Origin};
use crate::product::target::Target;
use crate::report::{self, Figure};
use crate::stats::{Better, Summary};
use crate::tools;
use crate::turns::{Turns, derived};

/// `hg-perf ways`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How the origin waits; the target spins.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: Wait,
    /// Numbers of threads that call together.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    threads: Vec<usize>,
    /// Pins nobody to a core.
    #[arg(long)]
    free: bool,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Calls of a thread in the shorter of the two runs under strace; 0: system calls are not counted.
    #[arg(long, default_value_t = 2_000)]
    calls: u64,
}

/// `hg-perf way`: what is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct WayArguments {
    #[arg(long)]
    url: String,
    #[arg(long, value_enum)]
    wait: Wait,
    #[arg(long, value_enum)]
    by: By,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    free: bool,
    #[arg(long)]
    calls: u64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let origin = Rc::new(origin(&arguments.url, arguments.wait, arguments.free)?);
    let mut turns = Turns::default();
    let one = |by| OneThread {
        origin: Rc::clone(&origin),
        by,
        subject: arguments.subject_of(by),
        sleeps: Rc::default(),
    };
    let waited = turns.add(one(By::Wait));
    turns.line(move |taken| taken.figure(waited));
    for by in [By::Tokio, By::Small] {
        let awaited = one(by);
        let sleeps = Rc::clone(&awaited.sleeps);
        let awaited = turns.add(awaited);
        turns.line(move |taken| taken.beside(awaited, waited));
        let name = format!("sleeps_{}", by.as_str());
        let subject = arguments.subject(name, 1, Unit::Sleeps);
        turns.line(move |_| derived(subject.clone(), sleeps.borrow()[1..].iter().copied()));
    }
    let together = |threads| Together {
        origin: Rc::clone(&origin),
        threads,
        subject: arguments.subject("calls_of_threads", threads, Unit::PerSecond),
        slowest: Rc::default(),
        sleeps: Rc::default(),
    };
    let alone = turns.add(together(1));
    turns.line(move |taken| taken.figure(alone));
    for &threads in &arguments.threads {
        let together = together(threads);
        let (slowest, sleeps) = (Rc::clone(&together.slowest), Rc::clone(&together.sleeps));
        let together = turns.add(together);
        turns.line(move |taken| taken.beside(together, alone));
        let subject = arguments.subject("slowest_thread_to_mean", threads, Unit::Ratio);
        // The first round has only warmed up.
        turns.line(move |_| derived(subject.clone(), slowest.borrow()[1..].iter().copied()));
        let subject = arguments.subject("sleeps_of_threads", threads, Unit::Sleeps);
        turns.line(move |_| derived(subject.clone(), sleeps.borrow()[1..].iter().copied()));
    }
    for &threads in &arguments.threads {
        let cores = if arguments.free { Cores::default() } else { Cores::choose()? };
        let target = Target::start_with(&arguments.url, arguments.wait, cores, threads)?;
        let target = Rc::new(target);
        let crew = |name, open: OpenCrew| {
            let crew = open(&arguments.url, arguments.wait, &target, threads)?;
            let subject = arguments.subject(name, threads, Unit::PerSecond);
            Ok::<_, Error>(OfCrew { crew, target: Rc::clone(&target), subject })
        };
        let engines = turns.add(crew("calls_of_engines", Crew::of_engines)?);
        let contexts = turns.add(crew("calls_of_contexts", Crew::of_contexts)?);
        turns.line(move |taken| taken.beside(contexts, engines));
    }
    let mut figures = turns.take(arguments.repetitions)?;
    drop(origin);
    if arguments.calls > 0 {
        let ways = [By::Wait, By::Tokio, By::Small].map(|by| (by, 1));
        let threads = arguments.threads.iter().map(|&threads| (By::Wait, threads));
        for (by, threads) in ways.into_iter().chain(threads) {
            figures.extend(arguments.counted(by, threads)?);
        }
    }
    report::print(json, &figures)
}

impl Arguments {
    fn subject(
        &self,
        name: impl Into<std::borrow::Cow<'static, str>>,
        threads: usize,
        unit: Unit,
    ) -> Subject {
        Subject {
            url: Some(self.url.clone()),
            size: Some(WORD as u64),
            inflight: Some(threads as u64),
            wait: Some(self.wait),
            ..Subject::new(name, unit)
        }
    }

    fn subject_of(&self, by: By) -> Subject {
        let name = match by {
            By::Wait => "call_waited",
            By::Tokio => "call_awaited_tokio",
            By::Small => "call_awaited_small",
        };
        self.subject(name, 1, Unit::Microseconds)
    }

    /// The system calls of one way, per call; two runs of different length are counted each time.
    fn counted(&self, by: By, threads: usize) -> Result<[Figure; 2], Error> {
        let kinds = [&SWITCHING[..], &["getpid"]].concat().join(",");
        let count = |calls: u64| {
            let (threads, calls) = (threads.to_string(), calls.to_string());
            let mut words = vec!["way", "--url", &self.url, "--wait", self.wait.as_str()];
            words.extend(["--by", by.as_str(), "--threads", &threads, "--calls", &calls]);
            words.extend(self.free.then_some("--free"));
            tools::some_system_calls(&kinds, &words)
        };
        let of = |kinds: &[&str], counts: &[(String, u64)]| {
            let chosen = counts.iter().filter(|(name, _)| kinds.contains(&name.as_str()));
            chosen.map(|(_, number)| *number as f64).sum::<f64>()
        };
        let made = self.calls as f64 * threads as f64;
        let (mut switching, mut getpid) = (Vec::new(), Vec::new());
        for _ in 0..COUNTS {
            let (short, long) = (count(self.calls)?, count(2 * self.calls)?);
            let per_call = |kinds: &[&str]| (of(kinds, &long) - of(kinds, &short)) / made;
            switching.push(per_call(&SWITCHING));
            getpid.push(per_call(&["getpid"]));
        }
        let figure = |name: &str, values: Vec<f64>| {
            let name = format!("{name}_{}", by.as_str());
            let subject = self.subject(name, threads, Unit::SystemCalls);
            derived(subject, values.into_iter())
        };
        Ok([figure("switching_calls", switching), figure("getpid_calls", getpid)])
    }
}

/// The calls that are counted.
pub(crate) fn way(arguments: &WayArguments) -> Result<(), Error> {
    let origin = origin(&arguments.url, arguments.wait, arguments.free)?;
    origin.target().resume()?;
    match arguments.threads {
        1 => origin.calls(arguments.by, arguments.calls),
        threads => origin.count_together(threads, arguments.calls),
    }
}

fn origin(url: &str, wait: Wait, free: bool) -> Result<Origin, Error> {
    let cores = if free { Cores::default() } else { Cores::choose()? };
    cores.pin_origin()?;
    let target = Rc::new(Target::start(url, Wait::Spin, cores)?);
    Origin::connect(url, wait, &target)
}

/// One thread that calls.
struct OneThread {
    origin: Rc<Origin>,
    by: By,
    subject: Subject,
    /// How often this process has slept in each round, for each call.
    sleeps: Rc<RefCell<Vec<f64>>>,
}

impl Measure for OneThread {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.origin.target().running(|| {
            self.origin.calls(self.by, BATCH / 4)?;
            let before = sleeps()?;
            let start = Instant::now();
            self.origin.calls(self.by, BATCH)?;
            let time = start.elapsed();
            let after = sleeps()?;
            self.sleeps.borrow_mut().push((after - before) as f64 / BATCH as f64);
            Ok(time.as_secs_f64() * 1e6 / BATCH as f64)
        })
    }
}

/// Several threads that call by one engine.
struct Together {
    origin: Rc<Origin>,
    threads: usize,
    subject: Subject,
    /// The slowest thread of each round in proportion to the mean.
    slowest: Rc<RefCell<Vec<f64>>>,
    /// How often this process has slept in each round, for each call.
    sleeps: Rc<RefCell<Vec<f64>>>,
}

impl Measure for Together {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let target = self.origin.target();
        let before = sleeps()?;
        let rates = target.running(|| self.origin.together(self.threads, SLICE))?;
        let after = sleeps()?;
        let sum: f64 = rates.iter().sum();
        let summary = Summary::of(&rates, Better::Larger).expect("at least one thread");
        self.slowest.borrow_mut().push(summary.min * rates.len() as f64 / sum);
        let sleeps = (after - before) as f64;
        self.sleeps.borrow_mut().push(sleeps / (sum * SLICE.as_secs_f64()));
        Ok(sum)
    }
}

/// How a crew is put together.
type OpenCrew = fn(&str, Wait, &Target, usize) -> Result<Crew, Error>;

/// Several threads with a context each.
struct OfCrew {
    crew: Crew,
    target: Rc<Target>,
    subject: Subject,
}

impl Measure for OfCrew {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.target.running(|| self.crew.together(SLICE))
    }
}

/// How often threads of this process have slept, those included that have ended.
fn sleeps() -> Result<i64, Error> {
    Ok(getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?.voluntary_context_switches())
}

/// Calls of one repetition.
const BATCH: u64 = 1_000;
/// How often system calls are counted.
const COUNTS: u32 = 3;
/// How long threads call together in one repetition: many turns of the system's scheduler.
const SLICE: Duration = Duration::from_millis(40);

/// System calls that wait for another thread, wake one, or give the core away.
const SWITCHING: [&str; 12] = [
    "futex",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "poll",
    "ppoll",
    "sched_yield",
    "nanosleep",
    "clock_nanosleep",
    "read",
    "write",
    "writev",
];
