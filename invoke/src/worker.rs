//! A worker: makes progress, and waits. What it calls, what it runs and what it answers are below.

mod ahead;
mod allotting;
mod answering;
mod barrier;
mod broadcasting;
mod buffering;
mod calling;
mod moving;
mod putting;
mod reading;
mod running;
mod settling;
mod spreading;

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake},
    time::{Duration, Instant},
};

use hg_channel::{Batch, Event, Limits, Port, Stats};
use hg_na::{Domain, GoneReason, Waiter};

pub(crate) use self::{allotting::reserve, settling::settle};
use self::{moving::Moves, reading::Stalled, running::Malformed};
use crate::{
    Error, Packing, Place, Synchronizer,
    bounds::Bounds,
    broadcasts::{Broadcasts, Name},
    buffers::Unread,
    functions::{Functions, Reply},
    groups::Groups,
    held::{self, Held},
    numa::Node,
    owed::Owed,
    patience::{Next, Patience},
    quiet::{Quiet, Shape},
    remote::Dropped,
    returned::Answers,
    service::Services,
};

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) packing: Packing,
    pub(crate) limits: Limits,
    pub(crate) queue_max: u64,
    pub(crate) queue_total: u64,
    pub(crate) buffer_max: u64,
    pub(crate) remote_max: held::Limits,
}

impl Default for Settings {
    fn default() -> Self {
        let (packing, limits) = (Packing::Trad, Limits::default());
        let remote_max = held::Limits { each: 64 << 20, all: 256 << 20 };
        let (queue_max, queue_total) = (16 << 20, 64 << 20);
        Self { packing, limits, queue_max, queue_total, buffer_max: 64 << 20, remote_max }
    }
}

/// What the workers of a process share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) functions: Functions,
    pub(crate) settings: Settings,
    pub(crate) shape: Shape,
    /// Of each end, the number of its NUMA node.
    pub(crate) nodes: Vec<Option<u32>>,
    /// Those of this machine on which the process may run; none where threads have none.
    pub(crate) nodes_here: Vec<Node>,
    pub(crate) domain: Arc<dyn Domain>,
    /// Bytes that its workers have allocated for others.
    pub(crate) allotted: Arc<AtomicU64>,
}

/// What follows the end of a function.
#[derive(Debug, Clone, Copy, Default)]
enum Then {
    #[default]
    Nothing,
    /// It was to return something, and has not yet.
    Answer(Reply),
    /// It is a broadcast whose arguments are being read, before it is passed on.
    Reading(Name),
    /// It was a broadcast.
    Ran(Name),
}

/// One thread of one process, for whoever calls from it: see the crate's page.
#[derive(Debug)]
pub struct Worker {
    me: u32,
    ends: u32,
    bounds: Bounds,
    /// Bytes that wait where a caller does not queue, or where all that waits is over its bound.
    two_blocks: u64,
    common: Arc<Common>,
    /// Streams that wait for what is being read: let go before what they have come by.
    stalled: RefCell<Stalled>,
    port: RefCell<Port<Synchronizer>>,
    /// What has come: used by one round at a time, which no function that runs can begin.
    batch: RefCell<Batch>,
    quiet: RefCell<Quiet>,
    /// A service thread is inside a barrier.
    is_asked: Cell<bool>,
    /// A barrier has failed here, and those beside this worker were told.
    has_failed: Cell<bool>,
    made: Cell<u64>,
    run: Cell<u64>,
    panicked: Cell<u64>,
    is_inside: Cell<bool>,
    /// It has begun to finish.
    is_leaving: Cell<bool>,
    /// Roots of which it has passed on a broadcast no more since: nor does it what follows, which would run before its bytes are there.
    cut_off: RefCell<Vec<u32>>,
    /// Whose block runs, and why that one is not believed any more.
    running: Cell<Option<u32>>,
    blamed: Cell<Option<Malformed>>,
    /// What was heard last is being read: what stands behind it waits.
    is_reading: Cell<bool>,
    /// What is to be done when the function that runs has returned, or panicked.
    then: Cell<Then>,
    /// Of which the function that runs is, and what it calls.
    group: Cell<Option<u32>>,
    groups: RefCell<Groups>,
    answers: RefCell<Answers>,
    broadcasts: RefCell<Broadcasts>,
    owed: RefCell<Owed>,
    moves: RefCell<Moves>,
    unread: RefCell<Unread>,
    held: RefCell<Held>,
    dropped: Arc<Dropped>,
    /// Calls whose buffers could not be moved.
    unmoved: Cell<u64>,
    /// Which thread of a process is asked first, when all have as much to do.
    turn: Cell<u32>,
    /// Whose calls run, or ran last.
    caller: Cell<u32>,
    /// The first process that was found gone.
    gone: RefCell<Option<Error>>,
    /// The first that was missed here, by a call, a result, or whoever was to be told: named where `gone` is none. No barrier fails for it: it may have
    /// left behind its end.
    missed: RefCell<Option<Error>>,
    /// Of `gone`: its process has ended, as was found here.
    has_died: Cell<bool>,
    /// Of `gone`, when another process has told of it: that one.
    heard: Cell<Option<u32>>,
    /// Ends beside this one in the barrier that have said that they leave in good order.
    leaving: RefCell<Vec<u32>>,
    /// The first of them that has left: no barrier ends without it.
    has_left: RefCell<Option<Error>>,
    now: Cell<Instant>,
    rounds: Cell<u32>,
    /// Waits that are to sleep at once, since others want the core for long.
    crowded: Cell<u32>,
    /// Where its thread is to run.
    node: Option<Node>,
    /// Of a worker, not of one of them: dropped last.
    services: Option<Arc<Services>>,
}

impl Worker {
    pub(crate) fn new(common: Arc<Common>, port: Port<Synchronizer>) -> Self {
        let shape = common.shape;
        let (me, ends) = (port.end(), shape.processes * shape.threads());
        let Settings { packing, queue_max, queue_total, .. } = common.settings;
        let bounds = Bounds::new(queue_max, queue_total, ends);
        let bounds = if packing == Packing::Plain { bounds.of_plain() } else { bounds };
        let two_blocks = 2 * port.block() as u64;
        Self {
            me,
            ends,
            bounds,
            two_blocks,
            dropped: Arc::new(Dropped::new(port.waiter())),
            port: RefCell::new(port),
            batch: RefCell::default(),
            quiet: RefCell::new(Quiet::new(me, shape)),
            is_asked: Cell::new(false),
            has_failed: Cell::new(false),
            node: None,
            services: None,
            made: Cell::new(0),
            run: Cell::new(0),
            panicked: Cell::new(0),
            is_inside: Cell::new(false),
            is_leaving: Cell::new(false),
            cut_off: RefCell::default(),
            running: Cell::new(None),
            blamed: Cell::new(None),
            is_reading: Cell::new(false),
            then: Cell::new(Then::Nothing),
            group: Cell::new(None),
            groups: RefCell::default(),
            owed: RefCell::new(Owed::new(bounds)),
            moves: RefCell::default(),
            unread: RefCell::default(),
            held: RefCell::new(Held::new(common.settings.remote_max, Arc::clone(&common.allotted))),
            unmoved: Cell::new(0),
            stalled: RefCell::default(),
            broadcasts: RefCell::new(Broadcasts::new(bounds.broadcasts)),
            answers: RefCell::new(Answers::new()),
            turn: Cell::new(0),
            caller: Cell::new(me),
            gone: RefCell::new(None),
            missed: RefCell::new(None),
            has_died: Cell::new(false),
            heard: Cell::new(None),
            leaving: RefCell::default(),
            has_left: RefCell::new(None),
            now: Cell::new(Instant::now()),
            rounds: Cell::new(0),
            crowded: Cell::new(0),
            common,
        }
    }

    /// The last of those with these ends them.
    pub(crate) fn with_services(mut self, services: &Arc<Services>) -> Self {
        self.services = Some(Arc::clone(services));
        self
    }

    pub(crate) fn on_node(mut self, node: Option<Node>) -> Self {
        self.node = node;
        self
    }

    /// Its own name.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place_of(self.me)
    }

    /// All workers of all processes, in the order of their names; no service thread.
    pub fn everybody(&self) -> impl Iterator<Item = Place> + use<> {
        let Shape { processes, workers, .. } = self.common.shape;
        let of = move |process| (0..workers).map(move |thread| Place { process, thread });
        (0..processes).flat_map(of)
    }

    /// Whether this is a service thread: [`Fabric::services`](crate::Fabric::services).
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.place().thread >= self.common.shape.workers
    }

    /// The NUMA node of a thread of the job, by its number there. None where its process may run on one node alone and
    /// [`Fabric::numa`](crate::Fabric::numa) was not asked for, or its system tells of no nodes, or there is no such thread; [`Place::any_of`] names no thread.
    #[must_use]
    pub fn numa_node(&self, of: Place) -> Option<u32> {
        let end = self.end_of_thread(of).ok()?;
        *self.common.nodes.get(end as usize)?
    }

    /// Binds the calling thread, which is to be this worker's, to the cores of its NUMA node; nothing where it has none.
    ///
    /// # Errors
    /// [`Error::Setup`]: the system refuses.
    pub fn bind(&self) -> Result<(), Error> {
        self.node.as_ref().map_or(Ok(()), Node::bind).map_err(Error::of_node)
    }

    /// Who has made the call that runs (of a broadcast: who has begun it); outside of functions nobody has.
    #[must_use]
    pub fn caller(&self) -> Option<Place> {
        self.is_inside.get().then(|| self.place_of(self.caller.get()))
    }

    /// A process that was found gone: [`Error::Gone`]. A worker that was closed while its process lives, in good order ([`Worker::finish`]) or by a
    /// drop or a panic, counts once it is missed here: by a call or a broadcast, by whoever waits for a result or to be told (of a broadcast: of those whom this
    /// worker tells), or by a barrier that was entered without it. Another process is named in place of one that was missed so, once it is found to have ended.
    #[must_use]
    pub fn gone(&self) -> Option<Error> {
        self.gone.borrow().clone().or_else(|| self.missed.borrow().clone())
    }

    /// What this worker has asked for has failed: somebody was to do it who is gone, where that is why.
    #[cold]
    fn miss(&self, error: &Error) {
        if let Error::Gone { .. } = error {
            self.missed.borrow_mut().get_or_insert_with(|| error.clone());
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
        let rounds = self.rounds.get() + 1;
        let is_turn = rounds >= CLOCK_ROUNDS;
        self.rounds.set(if is_turn { 0 } else { rounds });
        if is_turn {
            self.now.set(Instant::now());
            self.release_dropped();
        }
        let mut batch = self.batch.borrow_mut();
        let mut port = self.port.borrow_mut();
        let advanced = port.advance(self.now.get(), &mut batch);
        let mut moved = advanced.map_err(|error| Error::Setup(error.to_string()))?;
        // Whoever spins finds what comes the sooner, the shorter a round without anything is.
        if !moved && batch.is_empty() && port.is_idle() && !self.has_to_move() {
            // And the less the processor has read ahead, which it throws away when something comes.
            std::hint::spin_loop();
            return Ok(false);
        }
        drop(port);
        self.owed.borrow_mut().begin_round();
        loop {
            let event = self.port.borrow_mut().next(&mut batch);
            match event {
                None => break,
                Some(Event::Block(block)) => self.run(block),
                Some(Event::Gone { end, reason, notices }) => self.lose(end, &reason, notices),
                Some(Event::Moved { token, result, returned, .. }) => {
                    self.moved(token, result, returned);
                    moved = true;
                }
                Some(_) => {}
            }
        }
        drop(batch);
        if self.has_to_move() {
            moved |= self.move_on();
        }
        let mut port = self.port.borrow_mut();
        port.acknowledge();
        if moved {
            self.rounds.set(self.rounds.get() + BUSY_ROUND);
        }
        // Who has always something to do keeps nobody waiting for what it has to say.
        if !moved || is_turn {
            moved |= port.flush_all();
        }
        drop(port);
        self.tell_due();
        Ok(moved)
    }

    /// Sends everything that was called, and lets go once others have read the buffers that they are to read here
    /// ([`Worker::call_buffer_read`], [`Worker::broadcast_buffer_read`]), and each [`Synchronizer`] that a call, a put or a get of this worker was given
    /// was told; or those who are to do so are gone. Who still waits for calls of others, or for results, does so before ([`Worker::quiesce`]).
    ///
    /// Broadcasts of others that this worker has passed on are waited for likewise, since their roots hear by it alone what has run behind it. Those that
    /// come after this began are not: to their roots it is as if this worker had left before. They run here meanwhile, and those whose bytes are put
    /// ([`Worker::broadcast_buffer_written`]) go no further, nor does what follows them of that root: it is told [`Error::Gone`] and the number of
    /// this process at once.
    ///
    /// So it waits for those who are to run, or to read, what was called, and these have to make progress meanwhile. Workers that one thread finishes
    /// in turn may wait for one another for ever: each is finished in a thread of its own, or by [`Worker::finish_within`]. A barrier before that is not
    /// enough, as it does not say who was told.
    ///
    /// With the last worker of a process its service threads end; what they have called leaves first. Whoever was called for the first time, and
    /// makes no progress, is waited for as long as the transport tries to connect (`connect-timeout-ms`, 30 s), and is gone then.
    /// Through `visor://` daemons connect in its place: it is waited for as one that has a connection.
    ///
    /// # Errors
    /// As [`Worker::progress`].
    pub fn finish(self) -> Result<(), Error> {
        self.finish_until(None).map(|_| ())
    }

    /// The same, and lets go after `most` whatever is left: somebody who takes nothing, or whose memory does not come, keeps nobody here.
    /// Says whether everything was sent.
    ///
    /// # Errors
    /// As [`Worker::progress`].
    pub fn finish_within(self, most: Duration) -> Result<bool, Error> {
        self.finish_until(Instant::now().checked_add(most))
    }

    fn finish_until(mut self, end: Option<Instant>) -> Result<bool, Error> {
        end.inspect(|_| self.port.borrow_mut().wait_for_no_memory());
        self.release_dropped();
        self.say_goodbye();
        let has_left = self.leave_or(|| end.is_some_and(|end| end <= Instant::now()))?;
        let services = self.services.take();
        drop(self);
        let last = services.and_then(Arc::into_inner);
        Ok(last.is_none_or(|services| services.finish(end)) && has_left)
    }

    /// Makes progress until everything that was called has left, or it is `over`; says which.
    fn leave_or(&self, is_over: impl Fn() -> bool) -> Result<bool, Error> {
        self.is_leaving.set(true);
        // Of these others wait to be told; a root that never stops does not keep this worker.
        let of_others = self.broadcasts.borrow().of_others(self.me);
        self.wait_until(|| {
            let has_left = self.has_left(&of_others);
            (has_left || is_over()).then_some(Ok(has_left))
        })
    }

    /// Whether everything that was called has left, nobody is to read bytes of here any more, and whoever waits for this worker, or for these
    /// broadcasts of others, was told.
    fn has_left(&self, of_others: &[Name]) -> bool {
        let mut port = self.port.borrow_mut();
        port.flush_all();
        let is_read = self.unread.borrow().is_empty() && !self.moves.borrow().tells();
        let broadcasts = self.broadcasts.borrow();
        let is_done = is_read
            && !broadcasts.are_awaited(self.me)
            && !of_others.iter().any(|name| broadcasts.is_under_way(*name));
        is_done && port.is_flushed() && port.is_told() && port.is_sent()
    }

    /// How many functions have panicked here; each has told why on standard error, and counts as run.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.panicked.get()
    }

    /// How many calls that were made here have not run because their buffers could not be written or read; they count as run.
    #[must_use]
    pub fn unmoved(&self) -> u64 {
        self.unmoved.get()
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

    /// Makes progress until there is an answer; sleeps when nothing moves for long. Asks again after each round, and at least every 100 ms.
    ///
    /// # Errors
    /// The answer's, and as [`Worker::progress`].
    pub fn wait_until<T>(&self, answer: impl Fn() -> Option<Result<T, Error>>) -> Result<T, Error> {
        let mut patience = Patience::new(&self.crowded);
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            if self.progress()? {
                patience.found();
                continue;
            }
            match patience.found_nothing() {
                Next::Poll => {}
                Next::GiveWay => {
                    let given = Instant::now();
                    std::thread::yield_now();
                    patience.came_back(given.elapsed());
                }
                Next::Sleep => self.sleep()?,
            }
        }
    }

    fn sleep(&self) -> Result<(), Error> {
        let slept = self.port.borrow_mut().sleep(Some(SLEEP_MAX));
        slept.map_err(|error| Error::Setup(error.to_string()))?;
        self.now.set(Instant::now());
        self.release_dropped();
        Ok(())
    }

    /// Makes progress until a future is ready: a [`Synchronizer`], a [`Returned`](crate::Returned), or any that somebody wakes.
    ///
    /// # Errors
    /// As [`Worker::progress`].
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        let future = std::pin::pin!(future);
        let future = RefCell::new(future);
        let woken = Woken { is_woken: true.into(), waiter: self.port.borrow().waiter() };
        let woken = Arc::new(woken);
        let waker = Arc::clone(&woken).into();
        self.wait_until(|| {
            // Acquire: what was done before the wake is seen by the poll.
            if !woken.is_woken.swap(false, Ordering::Acquire) {
                return None;
            }
            match future.borrow_mut().as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => Some(Ok(value)),
                Poll::Pending => None,
            }
        })
    }

    /// What was written to an end leaves as the packing says.
    #[inline]
    fn send_as_packed(&self, port: &mut Port<Synchronizer>, end: u32) {
        match self.common.settings.packing {
            Packing::Trad => {}
            Packing::Ovfl => port.flush(end),
            Packing::Plain => port.flush_alone(end),
        }
    }

    /// An end is there no more: whoever waits for it is told.
    #[cold]
    fn lose(&self, end: u32, reason: &GoneReason, notices: Vec<Synchronizer>) {
        let process = self.place_of(end).process;
        let error = Error::Gone { process, why: reason.to_string().into() };
        // Who has closed its worker keeps up only those who report to it, or to whom it reports; a death is named before that.
        let is_leaving = self.leaving.borrow().contains(&end);
        if !is_leaving && *reason != GoneReason::Closed {
            self.find_gone(&error, *reason == GoneReason::Exited);
        } else if self.quiet.borrow().is_beside(end) {
            self.has_left.borrow_mut().get_or_insert_with(|| error.clone());
            if !is_leaving {
                self.miss(&error);
            }
        }
        let waiting = self.answers.borrow_mut().remove_all(end);
        let unread = self.unread.borrow_mut().remove_all(end);
        let waits_for_read = unread.iter().any(|it| it.told.is_some());
        if !notices.is_empty() || !waiting.is_empty() || waits_for_read {
            self.miss(&error);
        }
        notices.into_iter().for_each(|it| it.count(Some(error.clone())));
        waiting.into_iter().for_each(|it| it.fail(error.clone()));
        unread.into_iter().for_each(|it| self.tell_of_buffer(it.told, Some(error.clone())));
        self.owed.borrow_mut().lose(end);
        self.lose_broadcasts(end, &error);
        self.lose_allotted(end);
    }

    #[inline]
    fn tell_due(&self) {
        if self.port.borrow().is_due() {
            self.tell_all_due();
        }
    }

    fn tell_all_due(&self) {
        let next = || self.port.borrow_mut().due();
        std::iter::from_fn(next).for_each(|it| it.count(None));
    }

    fn processes(&self) -> u32 {
        self.common.shape.processes
    }

    fn place_of(&self, end: u32) -> Place {
        let threads = self.common.shape.threads();
        Place { process: end / threads, thread: end % threads }
    }
}

impl Drop for Worker {
    /// Whoever waits for its calls, in other threads, waits no more.
    fn drop(&mut self) {
        self.say_why();
        let why = "its worker has ended".into();
        let error = Error::Gone { process: self.place().process, why };
        self.port.get_mut().notices().into_iter().for_each(|it| it.count(Some(error.clone())));
        self.broadcasts.get_mut().close().for_each(|it| it.count(Some(error.clone())));
        self.moves.get_mut().close().for_each(|it| it.count(Some(error.clone())));
        self.unread.get_mut().close().for_each(|it| it.count(Some(error.clone())));
        self.answers.get_mut().close().for_each(|it| it.fail(error.clone()));
    }
}

/// A future that a worker awaits is to be polled.
#[derive(Debug)]
struct Woken {
    is_woken: AtomicBool,
    waiter: Arc<dyn Waiter>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Release: as in the swap.
        self.is_woken.store(true, Ordering::Release);
        self.waiter.wake();
    }
}

/// After so many rounds the clock is looked at, and open blocks of a worker that is never idle leave: one that moved something, which may
/// have run a thousand calls, counts for more.
const CLOCK_ROUNDS: u32 = 64;
const BUSY_ROUND: u32 = 15;
/// Longest sleep of a wait, after which it looks again.
const SLEEP_MAX: Duration = Duration::from_millis(100);
