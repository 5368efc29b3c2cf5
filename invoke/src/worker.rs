//! A worker: calls, runs what it is called, and waits.

use std::{
    cell::{Cell, RefCell},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use hg_channel::{
    Arrived, Error as ChannelError, Event, Limits, Port, RECORD, Stats, When, next_record,
};
use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};
use hg_na::{Domain, GoneReason};

use crate::{
    Error, Refused, Synchronizer,
    functions::Functions,
    quiet::{Out, Quiet},
};

/// A worker by name: a process of the job, and a thread there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Rank of the process.
    pub process: u32,
    /// Which of its workers, from 0.
    pub thread: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "thread {} of process {}", self.thread, self.process)
    }
}

/// What becomes of a call for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// It comes back: [`Error::Full`].
    Return,
    /// Progress is made until there is room. Not in a function that was called.
    Wait,
    /// It waits here, in its order, as long as that takes no more than [`Fabric::queue_max`](crate::Fabric::queue_max).
    #[default]
    Queue,
}

/// How calls are packed into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Into blocks, which leave when they are full, when the worker has nothing else to do, or by [`Worker::flush`].
    #[default]
    Trad,
    /// A message each; into blocks only while the transport takes none.
    Ovfl,
}

/// How one call is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct How<'a> {
    room: Room,
    notify: Option<(When, &'a Synchronizer)>,
}

impl<'a> How<'a> {
    /// With this choice, and nobody to be told.
    #[must_use]
    pub fn room(room: Room) -> Self {
        Self { room, notify: None }
    }

    /// Counts one event when the function has run, or cannot run any more.
    #[must_use]
    pub fn when_run(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Consumed, synchronizer)), ..self }
    }

    /// Counts one event when the call has left this worker.
    #[must_use]
    pub fn when_sent(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Sent, synchronizer)), ..self }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) packing: Packing,
    pub(crate) limits: Limits,
    pub(crate) queue_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { packing: Packing::Trad, limits: Limits::default(), queue_max: 16 << 20 }
    }
}

/// What the workers of a process share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) functions: Functions,
    pub(crate) settings: Settings,
    pub(crate) threads: u32,
    pub(crate) domain: Arc<dyn Domain>,
}

/// One thread of one process, for whoever calls from it: see the crate's page.
#[derive(Debug)]
pub struct Worker {
    me: u32,
    ends: u32,
    common: Arc<Common>,
    port: RefCell<Port<Synchronizer>>,
    quiet: RefCell<Quiet>,
    made: Cell<u64>,
    run: Cell<u64>,
    panicked: Cell<u64>,
    is_inside: Cell<bool>,
    /// The first process that was found gone.
    gone: RefCell<Option<Error>>,
    now: Cell<Instant>,
    rounds: Cell<u32>,
}

impl Worker {
    pub(crate) fn new(common: Arc<Common>, processes: u32, port: Port<Synchronizer>) -> Self {
        let (me, ends) = (port.end(), processes * common.threads);
        Self {
            me,
            ends,
            common,
            port: RefCell::new(port),
            quiet: RefCell::new(Quiet::new(me, ends)),
            made: Cell::new(0),
            run: Cell::new(0),
            panicked: Cell::new(0),
            is_inside: Cell::new(false),
            gone: RefCell::new(None),
            now: Cell::new(Instant::now()),
            rounds: Cell::new(0),
        }
    }

    /// Its own name.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place_of(self.me)
    }

    /// All workers of all processes, in the order of their names.
    pub fn everybody(&self) -> impl Iterator<Item = Place> + use<> {
        let threads = self.common.threads;
        (0..self.ends).map(move |end| Place { process: end / threads, thread: end % threads })
    }

    /// Runs a function at another worker, or at this one, some time. Without room, the call is queued here.
    ///
    /// # Errors
    /// Why it was not made; of [`Worker::call_with`], which gives the arguments back.
    #[inline]
    pub fn call<F: Rpc>(&self, to: Place, function: F, args: F::Args<'_>) -> Result<(), Error> {
        self.call_with(to, function, args, How::default()).map_err(|refused| refused.error)
    }

    /// The same with a choice for when there is no room, and with somebody to be told.
    ///
    /// # Errors
    /// The arguments, and why: [`Error::Full`], [`Error::Inside`], [`Error::TooLong`], [`Error::NoSuchPlace`],
    /// [`Error::NotRegistered`], [`Error::Unencodable`], [`Error::Gone`]. Nobody is told of a call that was not made.
    #[inline]
    pub fn call_with<'a, F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: F::Args<'a>,
        how: How<'_>,
    ) -> Result<(), Refused<F::Args<'a>>> {
        let _: F = function;
        let wire = F::pack(args);
        match self.write::<F>(to, &wire, how) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { args: F::unpack(wire), error }),
        }
    }

    #[inline]
    fn write<F: Rpc>(&self, to: Place, wire: &F::WireArgs<'_>, how: How<'_>) -> Result<(), Error> {
        let number = self.common.functions.number::<F>()?;
        let end = self.end_of(to)?;
        let size = codec::Default::size(wire).map_err(Error::Unencodable)?;
        let settings = &self.common.settings;
        let limit = match how.room {
            Room::Return | Room::Wait => 2 * settings.limits.block as u64,
            Room::Queue => settings.queue_max,
        };
        loop {
            let mut port = self.port.borrow_mut();
            match port.record(end, number, size, limit) {
                Ok(room) => {
                    // Its size was asked for: what fails now is a `Serialize` that changes its mind.
                    if let Err(error) = codec::Default::encode(wire, room) {
                        port.undo(end, size);
                        return Err(Error::Unencodable(error));
                    }
                    self.made.set(self.made.get() + 1);
                    if let Some((when, synchronizer)) = how.notify {
                        synchronizer.expect_one();
                        port.tell(end, when, synchronizer.clone());
                    }
                    if settings.packing == Packing::Ovfl {
                        port.flush(end);
                    }
                    if port.is_due() {
                        drop(port);
                        self.tell_due();
                    }
                    return Ok(());
                }
                Err(ChannelError::Full(_)) if how.room == Room::Wait => {
                    port.flush(end);
                    drop(port);
                    let room = (RECORD + size) as u64;
                    self.wait_until(|| {
                        let waiting = self.port.borrow().waiting(end);
                        (waiting == 0 || waiting + room <= limit).then_some(Ok(()))
                    })?;
                }
                Err(error) => {
                    port.flush(end);
                    return Err(self.error_of(to, error));
                }
            }
        }
    }

    /// What was called so far leaves, as far as there is room.
    pub fn flush(&self) {
        self.port.borrow_mut().flush_all();
        self.tell_due();
    }

    /// Makes progress once: runs what has come, sends what may leave. Says whether anything moved.
    ///
    /// # Errors
    /// [`Error::Inside`]; [`Error::Setup`] when the transport is of no use any more.
    pub fn progress(&self) -> Result<bool, Error> {
        if self.is_inside.get() {
            return Err(Error::Inside);
        }
        // The clock costs as much as a call.
        self.rounds.set(self.rounds.get().wrapping_add(1));
        if self.rounds.get().is_multiple_of(CLOCK_ROUNDS) {
            self.now.set(Instant::now());
        }
        let advanced = self.port.borrow_mut().advance(self.now.get());
        let mut moved = advanced.map_err(|error| Error::Setup(error.to_string()))?;
        loop {
            let event = self.port.borrow_mut().next();
            match event {
                None => break,
                Some(Event::Block(block)) => self.run(block),
                Some(Event::Gone { end, reason, notices }) => {
                    let process = end / self.common.threads;
                    let error = Error::Gone { process, why: reason.to_string().into() };
                    // Who has left in good order keeps up only those who report to it, or to whom it reports.
                    if reason != GoneReason::Closed || self.quiet.borrow().is_beside(end) {
                        self.gone.borrow_mut().get_or_insert_with(|| error.clone());
                    }
                    notices.into_iter().for_each(|it| it.count(Some(error.clone())));
                }
                Some(_) => {}
            }
        }
        let mut port = self.port.borrow_mut();
        port.acknowledge();
        if !moved {
            moved = port.flush_all();
        }
        drop(port);
        self.tell_due();
        Ok(moved)
    }

    /// Waits until every call that any worker has made has run, those included that were made by functions meanwhile. Collective: each worker
    /// of each process enters it.
    ///
    /// # Errors
    /// [`Error::Gone`] names a process without which it cannot end; [`Error::Inside`].
    pub fn quiesce(&self) -> Result<(), Error> {
        self.quiet.borrow_mut().enter();
        self.wait_until(|| {
            let out = self.quiet.borrow_mut().step(self.made.get(), self.run.get());
            if let Some(out) = out {
                self.send(out);
            }
            if self.quiet.borrow().is_over() {
                return Some(Ok(()));
            }
            self.gone.borrow().clone().map(|gone| {
                self.send_failure(&gone);
                Err(gone)
            })
        })
    }

    /// Sends everything that was called, and lets go. Who still waits for calls of others does so before ([`Worker::quiesce`]).
    ///
    /// # Errors
    /// As [`Worker::progress`].
    pub fn finish(self) -> Result<(), Error> {
        self.wait_until(|| {
            let mut port = self.port.borrow_mut();
            port.flush_all();
            (port.is_flushed() && port.is_sent()).then_some(Ok(()))
        })
    }

    /// How many functions have panicked here; each has told why on standard error, and counts as run.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.panicked.get()
    }

    /// Calls that were made and run here.
    #[must_use]
    pub fn calls(&self) -> (u64, u64) {
        (self.made.get(), self.run.get())
    }

    /// What its channels have done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.port.borrow().stats()
    }

    /// Makes progress until there is an answer; sleeps when nothing moves for long.
    pub(crate) fn wait_until<T>(
        &self,
        answer: impl Fn() -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut empty = 0;
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            if self.progress()? {
                empty = 0;
            } else if empty < SPIN_ROUNDS {
                empty += 1;
                if empty.is_multiple_of(YIELD_ROUNDS) {
                    std::thread::yield_now();
                }
            } else {
                let slept = self.port.borrow_mut().sleep(Some(SLEEP_MAX));
                slept.map_err(|error| Error::Setup(error.to_string()))?;
                self.now.set(Instant::now());
            }
        }
    }

    fn run(&self, block: Arrived) {
        self.is_inside.set(true);
        let (from, mut left) = (block.from(), block.bytes());
        // A function that panics is behind; those after it run.
        while catch_unwind(AssertUnwindSafe(|| self.run_records(from, &mut left))).is_err() {
            self.panicked.set(self.panicked.get() + 1);
        }
        self.is_inside.set(false);
        self.port.borrow_mut().consumed(block);
    }

    #[inline]
    fn run_records(&self, from: u32, left: &mut &[u8]) {
        loop {
            let record = match next_record(left) {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(broken) => {
                    tracing::error!(from, %broken, "calls are lost");
                    *left = &[];
                    return;
                }
            };
            if record.tag >= SYSTEM {
                self.hear(from, record.tag, record.bytes);
                continue;
            }
            self.run.set(self.run.get() + 1);
            let ran = self.common.functions.get(record.tag).map(|run| run(self, record.bytes));
            if !matches!(ran, Some(Ok(()))) {
                let function = self.common.functions.name(record.tag);
                tracing::error!(from, function, ?ran, "a call cannot be read, and does not run");
            }
        }
    }

    /// The barrier's own messages are no calls, and are not counted.
    #[cold]
    fn hear(&self, from: u32, tag: u32, bytes: &[u8]) {
        let number = |at: usize| {
            let word = bytes.get(8 * at..).and_then(<[u8]>::first_chunk);
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        match tag {
            REPORT => self.quiet.borrow_mut().reported(from, number(0), number(1)),
            AGAIN | DONE => {
                self.quiet.borrow_mut().decided(tag == DONE);
                self.send(if tag == DONE { Out::Done } else { Out::Again });
            }
            FAILED => {
                let process = u32::try_from(number(0)).unwrap_or(u32::MAX);
                let why = "so says another process".into();
                self.gone.borrow_mut().get_or_insert(Error::Gone { process, why });
            }
            _ => tracing::error!(from, tag, "a message of no known kind"),
        }
    }

    #[cold]
    fn send(&self, out: Out) {
        let quiet = self.quiet.borrow();
        match out {
            Out::Report(made, run) => self.send_to(quiet.above().into_iter(), REPORT, [made, run]),
            Out::Again => self.send_to(quiet.below(), AGAIN, [0, 0]),
            Out::Done => self.send_to(quiet.below(), DONE, [0, 0]),
        }
    }

    /// Whoever waits beside this worker in the barrier hears of it, too.
    #[cold]
    fn send_failure(&self, gone: &Error) {
        if let Error::Gone { process, .. } = gone {
            let quiet = self.quiet.borrow();
            let beside = quiet.above().into_iter().chain(quiet.below());
            self.send_to(beside, FAILED, [u64::from(*process), 0]);
        }
    }

    fn send_to(&self, ends: impl Iterator<Item = u32>, tag: u32, words: [u64; 2]) {
        let mut port = self.port.borrow_mut();
        for end in ends {
            // Who is gone is told by `Event::Gone`. There is always room: these wait behind calls that were let in.
            if let Ok(room) = port.record(end, tag, 16, u64::MAX) {
                room[..8].copy_from_slice(&words[0].to_le_bytes());
                room[8..].copy_from_slice(&words[1].to_le_bytes());
                port.flush(end);
            }
        }
    }

    fn tell_due(&self) {
        loop {
            let due = self.port.borrow_mut().due();
            match due {
                Some(synchronizer) => synchronizer.count(None),
                None => return,
            }
        }
    }

    fn place_of(&self, end: u32) -> Place {
        Place { process: end / self.common.threads, thread: end % self.common.threads }
    }

    #[inline]
    fn end_of(&self, place: Place) -> Result<u32, Error> {
        let threads = self.common.threads;
        if place.thread >= threads || place.process >= self.ends / threads {
            return Err(Error::NoSuchPlace(place));
        }
        Ok(place.process * threads + place.thread)
    }

    #[cold]
    fn error_of(&self, to: Place, error: ChannelError) -> Error {
        match error {
            ChannelError::Full(_) => Error::Full(to),
            ChannelError::TooLong { len, max } => Error::TooLong { len, max },
            ChannelError::NoSuchEnd { .. } => Error::NoSuchPlace(to),
            ChannelError::Gone { reason, .. } => {
                Error::Gone { process: to.process, why: reason.to_string().into() }
            }
            other => Error::Setup(other.to_string()),
        }
    }
}

/// Tags from here on are the fabric's own; those below are numbers of functions.
const SYSTEM: u32 = 1 << 31;
const REPORT: u32 = SYSTEM | 1;
const AGAIN: u32 = SYSTEM | 2;
const DONE: u32 = SYSTEM | 3;
const FAILED: u32 = SYSTEM | 4;

/// The clock is looked at so rarely.
const CLOCK_ROUNDS: u32 = 64;
/// Empty rounds until a wait sleeps, and until it lets others run.
const SPIN_ROUNDS: u32 = 2048;
const YIELD_ROUNDS: u32 = 64;
/// Longest sleep of a wait, after which it looks again.
const SLEEP_MAX: Duration = Duration::from_millis(100);
