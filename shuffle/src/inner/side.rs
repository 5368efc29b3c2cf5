//! The engine of a process, for shared memory inside its node and the network between nodes, and the thread that makes its
//! progress.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use hg::{Peer, Request};
use rustc_hash::FxHashMap;

use super::Inner;
use crate::{
    Error,
    hop::{Gone, Ready},
    lock::locked,
    rpc::{From, Refused, arrive, batch, failed, over, watch},
    secret::{Id, Secret},
    transport::{self, Transport},
    turns::Turns,
};

/// The connections by which the ranks that may call here do so: each by that of its first call with the id that it has for this
/// rank.
struct Callers(FxHashMap<u32, (Id, OnceLock<Peer>)>);

impl Callers {
    fn of(inner: &Inner, secret: &Secret) -> Self {
        let hops = inner.hops.iter().map(|hop| hop.rank);
        // The leader of a node calls itself.
        let ranks = hops.chain([inner.routes.me()]);
        let id = |rank| secret.id(rank, inner.routes.me());
        Self(ranks.map(|rank| (rank, (id(rank), OnceLock::new()))).collect())
    }

    /// Whether this is the rank's connection.
    fn is(&self, from: From, peer: Peer) -> bool {
        let bound = self.0.get(&from.rank).filter(|(id, _)| *id == from.shuffle);
        bound.is_some_and(|(_, bound)| *bound.get_or_init(|| peer) == peer)
    }
}

/// Lets others run, as long as those are ranks, which soon wait in their turn. A program that does not keeps the processor for
/// its whole slice, hundreds of batches long: after that nobody gives way here for a while, which doubles each time.
#[derive(Debug, Default)]
struct Yields {
    /// Times not to give way, and how many those were last. Relaxed: of one thread at a time, or one more or less.
    kept: AtomicU32,
    penalty: AtomicU32,
}

impl Yields {
    /// Whether another look is worth while.
    fn give_way(&self) -> bool {
        let kept = self.kept.load(Ordering::Relaxed);
        if kept > 0 {
            self.kept.store(kept - 1, Ordering::Relaxed);
            return false;
        }
        let before = Instant::now();
        thread::yield_now();
        self.note(before.elapsed())
    }

    /// The processor was gone for so long.
    fn note(&self, gone: Duration) -> bool {
        let penalty = self.penalty.load(Ordering::Relaxed);
        let is_late = gone > LATE;
        let next =
            if is_late { (penalty * 2).clamp(PENALTY_MIN, PENALTY_MAX) } else { penalty / 2 };
        self.penalty.store(next, Ordering::Relaxed);
        if is_late {
            self.kept.store(next, Ordering::Relaxed);
        }
        !is_late
    }
}

/// Something that ends when a call does.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An engine, and what its thread looks after.
pub(crate) struct Side {
    pub(crate) engine: hg::Engine,
    pub(crate) turns: Turns,
    /// Whoever finds nothing here lets others run before it sleeps.
    yields: Option<Yields>,
    ready: Arc<Ready>,
    tasks: Mutex<Vec<(Option<Task>, Waker)>>,
}

impl Side {
    /// `requests`: how many may be in service at a time; `yields`: a sleep is dear, and processors are shared.
    pub(crate) fn open(
        transport: Transport<'_>,
        requests: usize,
        (wait, yields): (hg::Wait, bool),
    ) -> Result<Self, Error> {
        let url = transport.url;
        let builder = transport::builder(transport)
            .wait(wait)
            .in_service_max(requests)
            .calls_max(requests)
            .large_max(LARGE_MAX)
            .large_in_service_max(LARGE_IN_SERVICE_MAX);
        let why = |error| Error::Setup(transport::not_opened(url, &error));
        let engine = builder.open(url).map_err(why)?;
        let yields = yields.then(Yields::default);
        let (turns, ready, tasks) = Default::default();
        Ok(Self { engine, turns, yields, ready, tasks })
    }

    pub(crate) fn ready(&self) -> &Arc<Ready> {
        &self.ready
    }

    /// Serves what the ranks call that this one is connected to.
    pub(crate) fn serve(&self, inner: &Arc<Inner>, secret: &Secret) -> Result<(), Error> {
        let engine = &self.engine;
        let callers = Arc::new(Callers::of(inner, secret));
        let of = || {
            let (weak, callers) = (Arc::downgrade(inner), Arc::clone(&callers));
            move |request: &Request, from: From| {
                let inner = weak.upgrade().ok_or(Refused::Unknown)?;
                callers.is(from, request.origin()).then_some(inner).ok_or(Refused::Unknown)
            }
        };
        let (batches, arrivals, watches, failures, ends) = (of(), of(), of(), of(), of());
        let registered = engine
            .serve_later(batch, move |request, (from, lane, number, bytes), answer| {
                match batches(request, from) {
                    Ok(inner) => inner.arrived((from.rank, lane), number, bytes, answer),
                    Err(refused) => answer.send(Err(refused)),
                }
            })
            .and_then(|()| {
                engine.serve_async(arrive, move |request, (from,)| {
                    let inner = arrivals(&request, from);
                    async move { inner?.meet().await.map_err(|Gone| Refused::Closed) }
                })
            })
            .and_then(|()| {
                engine.serve_later(watch, move |request, (from,), answer| {
                    match watches(request, from) {
                        Ok(inner) => inner.watched(answer),
                        Err(refused) => answer.send(Err(refused)),
                    }
                })
            })
            .and_then(|()| {
                engine.serve(failed, move |request, (from, rank, lane, why)| {
                    if let Ok(inner) = failures(request, from) {
                        inner.fail_and_tell(rank, lane, why);
                    }
                    Ok(())
                })
            })
            .and_then(|()| {
                engine.serve(over, move |request, (from, lane)| {
                    if let Ok(inner) = ends(request, from) {
                        inner.settled.note(from.rank, lane);
                    }
                    Ok(())
                })
            });
        registered.map_err(|error| Error::Setup(error.to_string()))
    }

    /// Begins something that ends when a call does.
    pub(crate) fn spawn(&self, mut task: Task, first: u32) {
        let mut tasks = locked(&self.tasks);
        let index = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        let waker = self.ready.waker(first.saturating_add(index));
        let ended = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        tasks.push(((!ended).then_some(task), waker));
    }

    /// Makes progress until the shuffle ends, unless others do.
    pub(crate) fn run(&self, inner: &Inner) {
        while !inner.is_over() {
            if self.turns.is_helped() {
                // An interrupt that ended the last round may have been the helper's.
                self.engine.interrupt_progress();
                self.turns.stand_aside();
            } else {
                self.turn(inner);
            }
        }
    }

    /// Makes progress once.
    pub(crate) fn turn(&self, inner: &Inner) {
        self.look(|limit| self.engine.progress(limit));
        self.look_after(inner);
    }

    /// Makes progress once, without waiting for anything.
    pub(crate) fn poll(&self, inner: &Inner) {
        self.engine.progress(Duration::ZERO);
        self.look_after(inner);
    }

    /// Makes progress until something has moved. Who shares a processor lets others run before it sleeps: they bring
    /// more at a time, and need not wake it.
    fn look(&self, progress: impl Fn(Duration) -> bool) {
        if let Some(yields) = &self.yields {
            for _ in 0..LOOKS {
                if progress(Duration::ZERO) {
                    return;
                }
                if !yields.give_way() {
                    break;
                }
            }
        }
        progress(IDLE);
    }

    pub(crate) fn gives_way(&self) -> bool {
        self.yields.is_some()
    }

    /// What is to be done after a round.
    fn look_after(&self, inner: &Inner) {
        self.collect(inner);
        // After all that came in this round: whoever is woken may take this thread's processor at once.
        inner.mail.wake_up();
    }

    /// Takes the answers that have come.
    fn collect(&self, inner: &Inner) {
        for index in self.ready.take() {
            let index = index as usize;
            match inner.hops.get(index) {
                Some(hop) => inner.collect(hop),
                None => self.go_on(index - inner.hops.len()),
            }
        }
    }

    fn go_on(&self, index: usize) {
        // Taken out meanwhile: a task may look at this side.
        let (task, waker) = match locked(&self.tasks).get_mut(index) {
            Some((task, waker)) => (task.take(), waker.clone()),
            None => return,
        };
        if let Some(mut task) = task
            && task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
        {
            locked(&self.tasks)[index].0 = Some(task);
        }
    }

    /// Makes `run` look whether it shall end.
    pub(crate) fn interrupt(&self) {
        self.engine.interrupt_progress();
        self.turns.call_back();
    }

    /// Closes the engine, and drops what has not ended: calls to this process end with it, whoever makes them.
    pub(crate) fn close(&self) {
        self.engine.close();
        let tasks = std::mem::take(&mut *locked(&self.tasks));
        drop(tasks);
    }
}

/// Sleeps until a call has ended, of which the engine's thread makes the progress.
pub(crate) fn block_on<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            // Woken before it sleeps, it does not sleep; woken by somebody else, it looks again.
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Longest batch in bytes: the largest target and one message.
const LARGE_MAX: u64 = 2 << 30;
const LARGE_IN_SERVICE_MAX: u64 = 4 << 30;
/// Looks of a thread that gives way, before it sleeps.
const LOOKS: u32 = 4;
/// Ranks that share a processor give it back sooner (one run of 700 takes longer); the kernel's slices are as long as a tick, 4 ms.
const LATE: Duration = Duration::from_millis(2);
/// Sleeps before a thread gives way again to those that keep the processor for long.
const PENALTY_MIN: u32 = 16;
const PENALTY_MAX: u32 = 4096;
/// How long a thread without work sleeps at most.
const IDLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gives_way_for_a_while_to_who_kept_the_processor_and_for_longer_the_next_time() {
        let yields = Yields::default();
        assert!(yields.note(Duration::ZERO), "ranks give it back");
        for kept in [PENALTY_MIN, 2 * PENALTY_MIN, 4 * PENALTY_MIN] {
            assert!(!yields.note(2 * LATE));
            assert_eq!(yields.kept.load(Ordering::Relaxed), kept);
            assert!((0..kept).all(|_| !yields.give_way()));
            assert_eq!(yields.kept.load(Ordering::Relaxed), 0);
        }
        for _ in 0..32 {
            yields.note(2 * LATE);
        }
        assert_eq!(yields.kept.load(Ordering::Relaxed), PENALTY_MAX);
        // Forgotten step by step.
        (0..32).for_each(|_| assert!(yields.note(Duration::ZERO)));
        assert!(!yields.note(2 * LATE));
        assert_eq!(yields.penalty.load(Ordering::Relaxed), PENALTY_MIN);
    }
}
