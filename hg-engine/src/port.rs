//! A port: one context of the transport with its calls, its requests and its tasks.
//!
//! [`State`] is what anybody may touch for a moment: post a call, hand in an answer. [`Work`] belongs
//! to whoever holds the role and makes progress; a round of it is [`Port::step`]:
//!
//! ```text
//! state locked:   transport's progress -> calls and requests -> deadlines -> effects
//! state unlocked: wake waiting callers -> run handlers -> poll tasks
//! ```
//! So no handler runs inside the transport's progress, and none while a lock is held.

mod answer;
mod contexts;
mod guests;
mod handler;
mod held;
mod moving;
mod request;
mod state;
mod step;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::{Duration, Instant},
};

use hg_bulk::Local;
use hg_core::{
    deferred::Deferred,
    protocol::{Protocol, Ticket},
    registry::Registry,
};
use hg_na::{Address, Caps, Completion, Context, Domain, Memory, Message, Rights, Waiter};

pub(crate) use self::moving::Whose;
use self::moving::{Movers, PATIENCE};
pub use self::request::Request;
pub(crate) use self::{
    answer::{encode_error, encode_value},
    contexts::Contexts,
    guests::{Guests, ToClose},
    handler::{Handler, Run, Running, Task, no_message},
    held::Role,
    request::Due,
    state::State,
    step::{Look, OutcomeOf},
};
use crate::{
    background::Background,
    contain::contain,
    followers::Followers,
    lock::{Mutex, MutexGuard},
    platform::Platform,
    pool::Pool,
    settings::Settings,
};

/// What the ports of one engine have in common.
pub(crate) struct Shared {
    /// Of all engines of this process, to tell their memory apart.
    pub(crate) id: u64,
    pub(crate) settings: Settings,
    pub(crate) caps: Caps,
    /// Kept so that memory can be registered while any port lives.
    pub(crate) domain: Arc<dyn Domain>,
    /// Clock and threads.
    pub(crate) platform: Arc<dyn Platform>,
    /// Threads for what may block; closed with the last port.
    pub(crate) pool: Arc<Pool>,
    /// Threads for pieces of transfers: what runs in the other ones may wait for those.
    pub(crate) movers: Arc<Pool>,
    pub(crate) contexts: Contexts,
    /// `None` once all ports were closed.
    handlers: Mutex<Option<Arc<Registry<Handler>>>>,
    /// Counts changes of `handlers`, so that a port's copy is refreshed without a lock.
    handlers_version: AtomicUsize,
    /// Ports that were not closed.
    open_ports: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        domain: Arc<dyn Domain>,
        settings: Settings,
        platform: Arc<dyn Platform>,
        handlers: Registry<Handler>,
        contexts: usize,
    ) -> Self {
        let caps = domain.caps().clone();
        let threads_max = settings.pool_threads_max;
        let [pool, movers] = [("hg-pool", Duration::ZERO), ("hg-mover", PATIENCE)]
            .map(|kind| Arc::new(Pool::new(kind, Arc::clone(&platform), threads_max)));
        Self {
            // Relaxed: only that it is another one each time matters.
            id: ENGINES.fetch_add(1, Ordering::Relaxed),
            settings,
            caps,
            domain,
            platform,
            pool,
            movers,
            contexts: Contexts::new(contexts),
            handlers: Mutex::new(Some(Arc::new(handlers))),
            handlers_version: AtomicUsize::new(0),
            open_ports: AtomicUsize::new(0),
        }
    }

    /// The handlers, as they are now; none once all ports were closed.
    pub(crate) fn handlers(&self) -> Arc<Registry<Handler>> {
        self.handlers.lock().clone().unwrap_or_default()
    }

    /// Which version of them that is.
    #[inline]
    pub(crate) fn handlers_version(&self) -> usize {
        // Acquire: pairs with the Release in `change_handlers`.
        self.handlers_version.load(Ordering::Acquire)
    }

    /// Changes the handlers; ports see it in their next round. `None`: all were closed.
    pub(crate) fn change_handlers<T>(
        &self,
        change: impl FnOnce(&mut Registry<Handler>) -> T,
    ) -> Option<T> {
        let mut handlers = self.handlers.lock();
        let result = change(Arc::make_mut(handlers.as_mut()?));
        // Release: pairs with the Acquire in `handlers_version`; the lock orders the map itself.
        self.handlers_version.fetch_add(1, Ordering::Release);
        Some(result)
    }

    /// All threads that are started when they are needed.
    #[inline]
    pub(crate) fn pools(&self) -> [&Arc<Pool>; 2] {
        [&self.pool, &self.movers]
    }

    /// A port was closed; with the last one go the pools and the handlers. Not under a lock.
    pub(crate) fn port_closed(&self) {
        // AcqRel: the last one comes after all others have closed.
        if self.open_ports.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.pools().into_iter().for_each(|pool| pool.close());
            let handlers = self.handlers.lock().take();
            handlers.into_iter().for_each(drop_handlers);
        }
    }
}

/// Lets go of handlers. Whoever is the last to have them drops each by itself: one that panics concerns no other.
pub(crate) fn drop_handlers(handlers: Arc<Registry<Handler>>) {
    for handler in Arc::into_inner(handlers).into_iter().flat_map(Registry::into_handlers) {
        contain("a handler that was dropped", || drop(handler));
    }
}

/// What serves the requests of a port: its handlers, and their futures.
pub(crate) trait Service: Send {
    /// Runs the handler of one request. When it has ended, the state is still locked from its answer.
    fn serve_one<'p>(
        &mut self,
        port: &'p Arc<Port>,
        request: &Ticket,
        message: &mut Message,
    ) -> Option<MutexGuard<'p, State>>;

    /// The same of these requests, which lie among what is done; the state is locked from the last one's answer.
    fn serve<'p>(
        &mut self,
        port: &'p Arc<Port>,
        requests: &mut Vec<Ticket>,
        done: &mut [Completion],
    ) -> Option<MutexGuard<'p, State>>;

    /// Polls the futures that are ready; those that end are answered.
    fn poll_ready(&mut self, port: &Port);

    /// Whether there are such futures: written with Release.
    fn is_ready(&self) -> &Arc<AtomicBool>;

    /// Forgets everything; what users have to do with is dropped by what it gives, not under a lock.
    fn clear(&mut self) -> Leftovers;
}

/// Drops what of users' a closed port has kept: it may do anything.
pub(crate) type Leftovers = Box<dyn FnOnce() + Send>;

/// What the holder of the role works with.
pub(crate) struct Work {
    /// A request that was taken out of turn.
    request: Message,
    done: Vec<Completion>,
    requests: Vec<Ticket>,
    deferred: Deferred,
    service: Box<dyn Service>,
    /// Whether the service has something to do beside new requests.
    is_ready: Arc<AtomicBool>,
    now: Instant,
    rounds_since_clock: u32,
    /// Those who wait for the role are told of nothing ([`Work::end_patience`]).
    pub(crate) is_busy: bool,
}

/// Rounds that share one reading of the clock while nobody sleeps.
const ROUNDS_PER_CLOCK: u32 = 32;

/// Engines that this process ever had.
static ENGINES: AtomicU64 = AtomicU64::new(0);

/// One context of an engine.
#[doc(hidden)]
pub struct Port {
    pub(crate) index: u8,
    /// Of all ports of this process, to tell their peers apart.
    pub(crate) id: u64,
    /// Who opened the engine.
    process: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) address: Address,
    /// Of the address, at hand.
    pub(crate) scheme: Box<str>,
    pub(crate) state: Mutex<State>,
    /// The handler whose future is made or polled for the first time, by its number; 0: none is. Written by the holder of
    /// the role, and taken back under the state's lock.
    pub(crate) starting: AtomicU64,
    pub(crate) waiter: Arc<dyn Waiter>,
    pub(crate) background: Background,
    /// Futures of handlers that a runtime has.
    pub(crate) guests: Guests,
    /// Whether the holder of the role sleeps, or is about to.
    sleeping: AtomicBool,
    /// Pieces of transfers that are being moved.
    pub(crate) movers: Movers,
    /// A foreign loop has come: whoever has the role is to give it up.
    pub(crate) yielding: AtomicBool,
    /// Progress that nobody waits in shall end.
    interrupted: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// It was closed, and has told the others of its engine.
    pub(crate) is_closed: AtomicBool,
}

impl Port {
    pub(crate) fn new(
        index: u8,
        shared: Arc<Shared>,
        context: Box<dyn Context>,
        service: Box<dyn Service>,
    ) -> Self {
        // Relaxed: nobody closes one yet.
        shared.open_ports.fetch_add(1, Ordering::Relaxed);
        let waiter = context.waiter();
        let address = context.address().clone();
        let scheme = address.scheme().into();
        let work = Work {
            request: Message::inline(0),
            done: Vec::new(),
            requests: Vec::new(),
            deferred: Deferred::default(),
            is_ready: Arc::clone(service.is_ready()),
            service,
            now: shared.platform.now(),
            rounds_since_clock: 0,
            is_busy: false,
        };
        let (limits, max_control) = (&shared.settings.limits, shared.caps.max_control);
        let state = State {
            protocol: Protocol::new(context, limits, max_control, shared.platform.now()),
            work: Some(Box::new(work)),
            followers: Followers::default(),
        };
        Self {
            index,
            id: shared.contexts.number_of(index),
            process: shared.platform.process(),
            shared,
            address,
            scheme,
            state: Mutex::new(state),
            starting: AtomicU64::new(0),
            waiter,
            background: Background::default(),
            guests: Guests::default(),
            sleeping: AtomicBool::new(false),
            movers: Movers::default(),
            yielding: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The state, for threads of users; `None` in a forked child, where a thread that the child lacks holds it
    /// for ever.
    #[inline]
    pub(crate) fn enter_state(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.enter_at_rest()?;
        state.protocol.is_at_rest = false;
        Some(state)
    }

    /// The same to call, to take an answer, or to make a round: what leaves nothing for a round to do, or knows that it does.
    #[inline]
    pub(crate) fn enter_at_rest(&self) -> Option<MutexGuard<'_, State>> {
        self.state.enter(|| self.is_forked())
    }

    /// The same of an engine that is open.
    ///
    /// # Errors
    /// [`hg_na::Error::Closed`], [`hg_na::Error::Forked`], and what has broken the transport.
    pub(crate) fn enter_open(&self) -> Result<MutexGuard<'_, State>, hg_na::Error> {
        let mut state = self.enter_state().ok_or(hg_na::Error::Forked)?;
        state.protocol.context()?;
        Ok(state)
    }

    /// Registers memory with this engine.
    pub(crate) fn register(&self, memory: Memory, rights: Rights) -> Result<Local, hg_na::Error> {
        Local::register(self.shared.domain.as_ref(), self.shared.id, memory, rights)
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.shared.platform.now()
    }

    /// Whether this process is a child of the one that opened the engine.
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.platform.process() != self.process
    }

    /// One round of progress, unless somebody else makes it already; says whether anything moved.
    #[inline]
    pub(crate) fn progress_once(self: &Arc<Self>) -> bool {
        let Some((mut role, state)) = self.try_role() else { return false };
        self.round(&mut role, state, &mut |_: &mut _| Some(())).0
    }

    /// Whether the holder of the role sleeps, as far as can be told without a lock.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Ends the sleep of whoever holds the role. The caller has made its change before.
    pub(crate) fn notify(&self) {
        // SeqCst on both sides (here and in `arm`): either the sleeper sees the change
        // after it has published its intent, or the intent is seen here.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.waiter.wake();
        }
    }

    /// Ends the progress that is made for nobody in particular, or the next one.
    pub(crate) fn interrupt_progress(&self) {
        // Release: pairs with `take_interrupt`.
        self.interrupted.store(true, Ordering::Release);
        self.notify();
    }

    /// Whether it was asked for; that is forgotten.
    pub(crate) fn take_interrupt(&self) -> bool {
        // Acquire: what the other thread did before is seen.
        self.interrupted.load(Ordering::Relaxed) && self.interrupted.swap(false, Ordering::Acquire)
    }

    /// Publishes the intent to sleep and checks once more; gives the time until which to sleep. A foreign event loop sleeps by
    /// itself then, on its descriptor.
    pub(crate) fn arm(&self, work: &mut Work, how: Sleep) -> Option<Option<Instant>> {
        work.end_patience(self);
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_interrupted =
            how == Sleep::Interruptible && self.interrupted.load(Ordering::Relaxed);
        let sleep = !is_interrupted
            && !work.is_ready()
            && !self.closing.load(Ordering::Relaxed)
            && !self.yielding.load(Ordering::Relaxed);
        let state = if sleep { self.enter_state() } else { None };
        let until = state.and_then(|mut state| state.protocol.may_sleep());
        let Some(until) = until else {
            self.sleeping.store(false, Ordering::Relaxed);
            return None;
        };
        let [pool, movers] = self.shared.pools().map(|pool| pool.next_try());
        Some([until, pool, movers].into_iter().flatten().min())
    }

    /// Sleeps unless there is something to do; not beyond `limit`.
    pub(crate) fn sleep(
        &self,
        work: &mut Work,
        limit: Option<Instant>,
        how: Sleep,
    ) -> Result<(), hg_na::Error> {
        let Some(until) = self.arm(work, how) else { return Ok(()) };
        let until = [until, limit].into_iter().flatten().min();
        let timeout = until.map(|until| until.saturating_duration_since(self.now()));
        let result = if timeout.is_some_and(|timeout| timeout.is_zero()) {
            Ok(())
        } else {
            self.waiter.wait(timeout)
        };
        self.disarm(work);
        result
    }

    /// The sleep is over.
    pub(crate) fn disarm(&self, work: &mut Work) {
        self.sleeping.store(false, Ordering::Relaxed);
        work.rounds_since_clock = ROUNDS_PER_CLOCK;
    }
}

/// What ends a sleep beside what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Nothing.
    Whole,
    /// [`Port::interrupt_progress`].
    Interruptible,
}

impl Work {
    #[inline]
    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// This thread waits itself: those who wait for it are to be told of what it finds.
    #[inline]
    pub(crate) fn end_patience(&mut self, port: &Port) {
        if std::mem::take(&mut self.is_busy) {
            port.end_patience();
        }
    }

    /// Forgets everything; what users have to do with is to be dropped without a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub(crate) fn clear(&mut self) -> Leftovers {
        self.requests.clear();
        self.service.clear()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Port({} at {})", self.index, self.address)
    }
}

#[cfg(test)]
mod tests;
