//! One process of the run: its threads, and what becomes of them when a process dies.

use std::{
    cell::{Cell, RefCell},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use hg_invoke::{Error as InvokeError, How, Place, Stats, Worker};
use hg_job::{Job, Local};
use hg_job_runner::{
    Error as RunnerError, process,
    program::{Program as _, Verdict},
    say,
    watch::Watch,
};

use crate::{
    Error,
    aim::Aim,
    arguments::{Arguments, Kind},
    making::Writer,
    payload::{Counters, Numbering, Reader, Words},
    report, samples,
};

/// What came of one thread.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) thread: u32,
    /// Calls of the timed run.
    pub(crate) made: u64,
    pub(crate) seconds: f64,
    /// Calls that came back, or would have had to wait too long.
    pub(crate) came_back: u64,
    /// Calls made to each thread.
    pub(crate) numbers: Vec<u64>,
    pub(crate) stats: Stats,
    /// Of the process, when all calls had run.
    pub(crate) descriptors: u64,
    pub(crate) reader: Reader,
}

/// Runs this process; whether every call of every thread ran once and in order.
pub(crate) fn run(job: &Job, arguments: &Arguments) -> Result<Verdict, Error> {
    let wrong = check(job, arguments).err().map(|error| error.to_string());
    if !say::once(job, Arguments::NAME, wrong.as_deref())? {
        return Ok(Verdict::Told);
    }
    let opened = arguments.fabric()?.open(job, &arguments.url);
    let wrong = opened.as_ref().err().map(ToString::to_string);
    if !say::once(job, Arguments::NAME, wrong.as_deref())? {
        return Ok(Verdict::Told);
    }
    let workers = opened?;
    let watch = Watch::start(job, Arguments::NAME).map_err(RunnerError::Thread)?;
    let teller = Teller { job: job.clone(), is_asked: arguments.verbose };
    teller.tell("the workers are open");
    let all = job.size() * arguments.threads();
    let counters: Vec<Arc<Counters>> = workers.iter().map(|_| Arc::default()).collect();
    let sampler = samples::start(arguments, job.rank(), counters.clone())?;
    let (tell, told) = mpsc::channel();
    for (worker, counters) in workers.into_iter().zip(counters) {
        let (tell, teller) = (tell.clone(), teller.clone());
        // Whoever collects the results has the arguments, too, and does not end before this thread unless the process does.
        let mut thread = Thread::new(arguments, all, worker, teller, Arc::clone(&counters))?;
        let run = move || {
            Reader::begin(all, thread.first, counters);
            // Nobody listens once the run has failed.
            let _ = tell.send(thread.run());
            thread.worker.finish()
        };
        thread::Builder::new().name("worker".to_owned()).spawn(run).map_err(RunnerError::Thread)?;
    }
    drop(tell);
    let ended = collect(job, &told)?;
    let samples = sampler.end();
    let gathered = report::gather(job, arguments, ended, &samples);
    watch.end();
    gathered
}

/// Whether what was asked for can work; a runner that started the processes has seen to what is the same for all of them.
fn check(job: &Job, arguments: &Arguments) -> Result<(), Error> {
    if Local::is_rank() {
        return Ok(());
    }
    arguments.check(job.size())?;
    // What is opened by all processes of a machine at a time may find its port in use.
    if job.local_rank() == 0 {
        arguments.check_transport()?;
    }
    if job.rank() == 0 { arguments.check_plot() } else { Ok(()) }
}

/// What all threads of this process have come to. When one has failed or the job is broken, the others have a while to say so
/// themselves; then the process ends without them: one may wait for a process that nobody had a connection with.
fn collect(job: &Job, told: &mpsc::Receiver<Result<Ended, Error>>) -> Result<Vec<Ended>, Error> {
    let mut ended = Vec::new();
    let mut failed: Option<(Error, Instant)> = None;
    loop {
        match told.recv_timeout(TICK) {
            Ok(Ok(thread)) => ended.push(thread),
            Ok(Err(error)) => drop(failed.get_or_insert((error, Instant::now() + GRACE))),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(error) = job.check() {
                    failed.get_or_insert((error.into(), Instant::now() + GRACE));
                }
            }
        }
        if failed.as_ref().is_some_and(|(_, end)| *end <= Instant::now()) {
            break;
        }
    }
    match failed {
        None => Ok(ended),
        Some((error, _)) => Err(Error::Cut(job.rank(), why(job, error))),
    }
}

/// A process that ends because of another one may be the first that is missed: the job knows who ended first.
fn why(job: &Job, error: Error) -> String {
    let (words, end) = (error.to_string(), Instant::now() + GRACE);
    if !matches!(error, Error::Invoke(InvokeError::Gone { .. })) {
        return words;
    }
    while Instant::now() < end {
        if let Err(first) = job.check() {
            return format!("{first} ({words})");
        }
        thread::sleep(TICK);
    }
    words
}

/// Says how far this process is, where that is asked for.
#[derive(Debug, Clone)]
struct Teller {
    job: Job,
    is_asked: bool,
}

impl Teller {
    fn tell(&self, words: &str) {
        if self.is_asked {
            let (rank, process) = (self.job.rank(), std::process::id());
            let name = Arguments::NAME;
            say::say(&format!("{name}: rank {rank}, process {process}: {words}"));
        }
    }
}

/// One thread that calls and is called.
struct Thread {
    worker: Worker,
    teller: Teller,
    counters: Arc<Counters>,
    places: Vec<Place>,
    /// The number of each first call to this thread.
    first: u64,
    writer: Writer,
    aim: Aim,
    how: How<'static>,
    every: u64,
    warm_up: u64,
    count: u64,
    duration: Option<Duration>,
    came_back: u64,
    made: u64,
}

impl Thread {
    fn new(
        arguments: &Arguments,
        all: u32,
        worker: Worker,
        teller: Teller,
        counters: Arc<Counters>,
    ) -> Result<Self, Error> {
        let places: Vec<Place> = worker.everybody().collect();
        let me = places.iter().position(|place| *place == worker.place());
        let me = me.and_then(|me| u32::try_from(me).ok()).unwrap_or(0);
        let is_for_all = arguments.kind == Kind::Broadcast;
        let numbering = if is_for_all { Numbering::Same } else { Numbering::Apart };
        let words = Words::new(me, all, numbering);
        let writer = Writer::new(&worker, arguments.kind, arguments.size, words)?;
        Ok(Self {
            worker,
            teller,
            counters,
            places,
            first: numbering.first(me),
            writer,
            aim: Aim::new(arguments, me, all),
            how: How::room(arguments.full.into()),
            every: arguments.every,
            warm_up: arguments.warm_up(),
            count: arguments.count,
            duration: arguments.duration.map(Duration::from_secs_f64),
            came_back: 0,
            made: 0,
        })
    }

    fn run(&mut self) -> Result<Ended, Error> {
        self.tell("warms up");
        self.calls(false, self.warm_up, None)?;
        // Nobody's timed call is made before the last one of the warm-up has run.
        self.worker.quiesce()?;
        self.tell("calls");
        let start = Instant::now();
        let limit = self.duration.map(|duration| start + duration);
        let count = if limit.is_some() { u64::MAX } else { self.count };
        let made = self.calls(true, count, limit)?;
        self.tell("has made its calls");
        self.worker.quiesce()?;
        let seconds = start.elapsed().as_secs_f64();
        let wrong_results = self.writer.end_results()?;
        self.tell("all calls have run");
        let mut reader = Reader::end();
        reader.note_corrupted(wrong_results);
        Ok(Ended {
            thread: self.worker.place().thread,
            made,
            seconds,
            came_back: self.came_back,
            numbers: self.writer.made(),
            stats: self.worker.stats(),
            descriptors: process::descriptors(),
            reader,
        })
    }

    /// The first thread speaks for its process.
    fn tell(&self, words: &str) {
        if self.worker.place().thread == 0 {
            self.teller.tell(words);
        }
    }

    /// Makes so many calls, or as many as it can until then; how many are to run.
    fn calls(&mut self, is_timed: bool, count: u64, limit: Option<Instant>) -> Result<u64, Error> {
        let (mut made, each) = (0, self.writer.each());
        while made < count {
            let at = self.aim.next();
            let to = self.places[at as usize];
            if !self.writer.call(&self.worker, to, (at, is_timed), self.how)? {
                self.call_again(to, (at, is_timed))?;
            }
            made += 1;
            if made.is_multiple_of(self.every) {
                self.counters.note_made(self.made + made * each);
                self.worker.progress()?;
                self.writer.check_results()?;
                self.teller.job.check()?;
                if made == self.every * MILESTONE && is_timed {
                    self.tell("is in full swing");
                }
                if limit.is_some_and(|limit| Instant::now() >= limit) {
                    break;
                }
            }
        }
        self.made += made * each;
        self.counters.note_made(self.made);
        Ok(made * each)
    }

    /// Makes a call that has come back as soon as there is room for it.
    #[cold]
    fn call_again(&mut self, to: Place, word: (u32, bool)) -> Result<(), Error> {
        let (worker, job, how) = (&self.worker, &self.teller.job, self.how);
        let (writer, came_back) = (RefCell::new(&mut self.writer), Cell::new(1));
        let made = worker.wait_until(|| {
            if let Err(error) = job.check() {
                return Some(Ok(Err(error)));
            }
            match writer.borrow_mut().call(worker, to, word, how) {
                Ok(true) => Some(Ok(Ok(()))),
                Ok(false) => {
                    came_back.set(came_back.get() + 1);
                    None
                }
                Err(error) => Some(Err(error)),
            }
        });
        self.came_back += came_back.get();
        made?.map_err(Error::from)
    }
}

/// How often it is looked whether the job is broken, and how long threads may take to end then.
const TICK: Duration = Duration::from_millis(20);
const GRACE: Duration = Duration::from_secs(2);
/// A thread that has looked so often for calls is in full swing.
const MILESTONE: u64 = 16;
