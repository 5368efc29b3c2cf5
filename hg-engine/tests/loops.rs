//! Foreign event loops beside threads that wait for calls of the same engine, over shared memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_engine::{Answer, Builder, EventLoop, Handle, Peer, Progress, Wait};
use hg_macros::rpc;
use hg_na::{Address, Completion, Context as Transport};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_sm::SmPlugin;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

mod hg;

#[rpc(crate = crate::hg)]
fn twice(number: u64) -> u64 {
    2 * number
}

/// Is answered when the test says so.
#[rpc(crate = crate::hg)]
fn long() -> u64;

/// Runs until the test says that it may end.
#[rpc(crate = crate::hg)]
fn held() -> u64;

const WATCHDOG: Duration = Duration::from_secs(60);
/// Times that a loop goes round for one thing that happens, at most.
const PASSES_MAX: u32 = 20;

/// An engine with a loop, and another one that calls it and is called by it.
struct Pair {
    engine: Handle,
    other: Handle,
    /// To the other one, and back.
    there: Peer,
    back: Peer,
    /// Calls of `long` that wait for their answer.
    open: Mutex<mpsc::Receiver<Answer<long>>>,
}

impl Pair {
    fn new(wait: Wait) -> Self {
        Self::with(wait, Progress::Own)
    }

    fn with(wait: Wait, progress: Progress) -> Self {
        let open = |progress| {
            let builder = Builder::new().plugin(SmPlugin).progress(progress).wait(wait);
            builder.listen(true).open("sm://").unwrap()
        };
        let (engine, other): (Handle, Handle) = (open(progress), open(Progress::Background));
        let (there, back) =
            (engine.lookup(other.address()).unwrap(), other.lookup(engine.address()).unwrap());
        let (begun, open) = mpsc::channel();
        other.serve_later(long, move |_, (), answer| begun.send(answer).unwrap()).unwrap();
        other.register(twice).unwrap();
        engine.register(twice).unwrap();
        Self { engine, other, there, back, open: Mutex::new(open) }
    }

    /// Runs `test` while a thread that waits for `long` makes the engine's progress: certainly, for it is inside of a
    /// handler, until `test` lets that end. It has the role on until [`Pair::end`].
    fn beside_a_holder<T: Send>(&self, test: impl FnOnce(&dyn Fn()) -> T + Send) -> T {
        let ((entering, entered), (leaving, left)) = (mpsc::channel(), mpsc::channel());
        let left = Mutex::new(left);
        let serve = move |_: &_, ()| {
            entering.send(()).unwrap();
            left.lock().unwrap().recv_timeout(WATCHDOG).unwrap();
            Ok(1)
        };
        self.engine.serve(held, serve).unwrap();
        let result = thread::scope(|scope| {
            scope.spawn(|| assert_eq!(self.engine.call(long, &self.there, ()).wait().unwrap(), 7));
            scope.spawn(|| assert_eq!(self.other.call(held, &self.back, ()).wait().unwrap(), 1));
            entered.recv_timeout(WATCHDOG).unwrap();
            let _closes = ClosesOnPanic(&self.engine, &AtomicBool::new(false));
            let leave = move || leaving.send(()).unwrap();
            test(&leave)
        });
        self.engine.deregister(held);
        result
    }

    /// Nobody else makes progress any more: a request is served by this loop, which it wakes.
    fn is_served_by(&self, events: &EventLoop) {
        let served = Arc::new(AtomicBool::new(false));
        let serving = Arc::clone(&served);
        let serve = move |_: &_, ()| {
            serving.store(true, Ordering::SeqCst);
            Ok(1)
        };
        self.engine.serve(held, serve).unwrap();
        until_it_rests(events);
        thread::scope(|scope| {
            let call = scope.spawn(|| self.other.call(held, &self.back, ()).wait());
            while !served.load(Ordering::SeqCst) {
                sleep_until_woken(events);
                until_it_rests(events);
            }
            assert_eq!(call.join().unwrap().unwrap(), 1);
        });
        self.engine.deregister(held);
    }

    /// Ends the call of the thread that has the role.
    fn end(&self) {
        self.open.lock().unwrap().recv_timeout(WATCHDOG).unwrap().send(Ok(7));
    }
}

/// A test that has failed waits for nobody.
struct ClosesOnPanic<'a>(&'a Handle, &'a AtomicBool);

impl Drop for ClosesOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.1.store(true, Ordering::SeqCst);
            self.0.close();
        }
    }
}

/// Sleeps on a loop's descriptor; says whether it was woken.
fn sleep(events: &EventLoop, timeout: impl Into<PollTimeout>) -> bool {
    poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], timeout.into()).unwrap() > 0
}

fn sleep_until_woken(events: &EventLoop) {
    assert!(sleep(events, PollTimeout::try_from(WATCHDOG).unwrap()), "nobody wakes the loop");
}

/// Goes round until the loop may sleep, and nothing is there that would end that.
fn until_it_rests(events: &EventLoop) {
    let mut passes = 0;
    while events.progress() || !events.may_sleep().unwrap() || sleep(events, PollTimeout::ZERO) {
        passes += 1;
        assert!(passes < PASSES_MAX, "the loop goes round for nothing");
    }
}

#[test]
fn a_loop_sleeps_while_another_thread_makes_progress_and_is_woken_when_that_stops() {
    for wait in [Wait::Block, Wait::default()] {
        let pair = Pair::new(wait);
        let events = pair.engine.event_loop().unwrap();
        pair.beside_a_holder(|leave| {
            until_it_rests(&events);
            // What comes meanwhile concerns the other thread: the loop is not woken by it.
            leave();
            for number in 0..200 {
                assert_eq!(
                    pair.other.call(twice, &pair.back, (number,)).wait().unwrap(),
                    2 * number
                );
            }
            until_it_rests(&events);
            pair.end();
            sleep_until_woken(&events);
        });
        pair.is_served_by(&events);
    }
}

#[test]
fn a_loop_beside_a_waiting_thread_goes_round_a_few_times_however_much_that_one_serves() {
    let pair = Pair::new(Wait::Block);
    let (over, passes) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let _closes = ClosesOnPanic(&pair.engine, &over);
        let events = pair.engine.event_loop().unwrap();
        let (over, passes) = (&over, &passes);
        let looping = scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                passes.fetch_add(1, Ordering::SeqCst);
                while events.progress() {}
                if events.may_sleep().unwrap() {
                    sleep_until_woken(&events);
                }
            }
        });
        let passed = pair.beside_a_holder(|leave| {
            let before = passes.load(Ordering::SeqCst);
            leave();
            for number in 0..1000 {
                assert_eq!(
                    pair.other.call(twice, &pair.back, (number,)).wait().unwrap(),
                    2 * number
                );
            }
            let passed = passes.load(Ordering::SeqCst) - before;
            pair.end();
            passed
        });
        assert!(passed < PASSES_MAX, "the loop went round {passed} times");
        // The loop serves again, and sees with it that it is over.
        assert_eq!(pair.other.call(twice, &pair.back, (1,)).wait().unwrap(), 2);
        over.store(true, Ordering::SeqCst);
        while !looping.is_finished() {
            drop(pair.other.call(twice, &pair.back, (1,)));
            thread::yield_now();
        }
    });
}

#[test]
fn a_loop_that_sleeps_beside_another_thread_is_woken_for_the_calls_that_it_has_polled() {
    let pair = Pair::new(Wait::Block);
    let events = pair.engine.event_loop().unwrap();
    pair.beside_a_holder(|leave| {
        let mut leave = Some(leave);
        for number in 0..50 {
            // The first one cannot settle before the loop rests: whoever has the role is in a handler.
            let mut call = Some(pair.engine.call(twice, &pair.there, (number,)));
            let mut passes = 0;
            let result = loop {
                while events.progress() {}
                match call.take().unwrap().try_take() {
                    Ok(result) => break result,
                    Err(open) => call = Some(open),
                }
                if events.may_sleep().unwrap() {
                    leave.take().inspect(|leave| leave());
                    sleep_until_woken(&events);
                    passes = 0;
                }
                passes += 1;
                assert!(passes < PASSES_MAX, "the loop goes round for nothing");
            };
            assert_eq!(result.unwrap(), 2 * number);
        }
        pair.end();
    });
}

#[test]
fn loops_of_one_engine_let_each_other_sleep() {
    let pair = Pair::new(Wait::Block);
    let loops = [pair.engine.event_loop().unwrap(), pair.engine.event_loop().unwrap()];
    let rest = || {
        let mut passes = 0;
        while loops.iter().any(|events| {
            events.progress() || !events.may_sleep().unwrap() || sleep(events, PollTimeout::ZERO)
        }) {
            passes += 1;
            assert!(passes < PASSES_MAX, "the loops wake each other for ever");
        }
    };
    rest();
    pair.beside_a_holder(|leave| {
        rest();
        leave();
        pair.end();
        // One of them is; if that one ends, the other.
        let woken = |events: &&EventLoop| sleep(events, 10u8);
        let start = Instant::now();
        while !loops.iter().any(|events| woken(&events)) {
            assert!(start.elapsed() < WATCHDOG, "nobody wakes either loop");
        }
    });
    rest();
    let [first, second] = loops;
    drop(first);
    pair.is_served_by(&second);
}

#[test]
fn no_wake_up_is_lost_while_threads_call_and_a_loop_serves() {
    const ROUNDS: u64 = 300;
    let pair = Pair::new(Wait::default());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _closes = ClosesOnPanic(&pair.engine, &over);
        let events = pair.engine.event_loop().unwrap();
        let over = &over;
        let looping = scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                while events.progress() {}
                if events.may_sleep().unwrap() {
                    sleep_until_woken(&events);
                }
            }
        });
        for round in 0..ROUNDS {
            thread::scope(|calls| {
                for caller in 0..2 {
                    let pair = &pair;
                    calls.spawn(move || {
                        for number in 0..=round % 3 + caller {
                            let call = pair.engine.call(twice, &pair.there, (number,));
                            assert_eq!(call.wait().unwrap(), 2 * number);
                        }
                    });
                }
                // Served by whoever has the role; at the end by the loop, or by nobody.
                assert_eq!(pair.other.call(twice, &pair.back, (round,)).wait().unwrap(), 2 * round);
            });
            assert_eq!(pair.other.call(twice, &pair.back, (round,)).wait().unwrap(), 2 * round);
        }
        over.store(true, Ordering::SeqCst);
        while !looping.is_finished() {
            drop(pair.other.call(twice, &pair.back, (1,)));
            thread::yield_now();
        }
    });
}

#[test]
fn what_a_loop_has_polled_ends_in_time_whoever_makes_progress() {
    const CALLS: u64 = 300;
    for progress in [Progress::Own, Progress::Background] {
        let pair = Pair::with(Wait::default(), progress);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _closes = ClosesOnPanic(&pair.engine, &over);
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in (0..).take_while(|_| !over.load(Ordering::SeqCst)) {
                        let call = pair.engine.call(twice, &pair.there, (number,));
                        assert_eq!(call.wait().unwrap(), 2 * number);
                    }
                });
            }
            let events = pair.engine.event_loop().unwrap();
            for number in 0..CALLS {
                let mut call = pair.engine.call(twice, &pair.there, (number,));
                let result = loop {
                    while events.progress() {}
                    match call.try_take() {
                        Ok(result) => break result,
                        Err(open) => call = open,
                    }
                    if events.may_sleep().unwrap() {
                        sleep_until_woken(&events);
                    }
                };
                assert_eq!(result.unwrap(), 2 * number);
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}

/// Woken, it says so, and remembers it only when it may.
struct SlowWaker {
    begins: mpsc::Sender<()>,
    ends: Mutex<mpsc::Receiver<()>>,
    is_woken: AtomicBool,
}

impl Wake for SlowWaker {
    fn wake(self: Arc<Self>) {
        self.begins.send(()).unwrap();
        self.ends.lock().unwrap().recv_timeout(WATCHDOG).unwrap();
        self.is_woken.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_loop_that_is_made_while_its_caller_is_being_woken_is_woken_too() {
    for closes in [false, true] {
        let pair = Pair::with(Wait::Block, Progress::Background);
        let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let is_woken = AtomicBool::new(false);
        let slow = Arc::new(SlowWaker { begins, ends: Mutex::new(ends), is_woken });
        let waker = Waker::from(Arc::clone(&slow));
        let mut call = pair.engine.call(long, &pair.there, ());
        assert!(Pin::new(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
        let result = thread::scope(|scope| {
            if closes {
                scope.spawn(|| pair.engine.close());
            } else {
                pair.end();
            }
            begun.recv_timeout(WATCHDOG).unwrap();
            // Whoever wakes has looked for loops before, if at all.
            let events = pair.engine.event_loop().unwrap();
            until_it_rests(&events);
            assert!(!slow.is_woken.load(Ordering::SeqCst));
            end.send(()).unwrap();
            sleep_until_woken(&events);
            assert!(slow.is_woken.load(Ordering::SeqCst));
            call.wait()
        });
        assert_eq!(result.ok(), (!closes).then_some(7));
    }
}

/// A transport that fails when it is told to.
#[derive(Debug, Clone, Default)]
struct Failing(Arc<AtomicBool>);

impl Layers for Failing {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Layer for Failing {
    fn progress(
        &mut self,
        inner: &mut dyn Transport,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, hg_na::Error> {
        if self.0.load(Ordering::SeqCst) {
            return Err(hg_na::Error::Unsupported("anything any more"));
        }
        inner.progress(now, done)
    }
}

#[test]
fn loops_of_an_engine_that_ends_are_told_once_and_sleep_on() {
    for (progress, how) in [
        (Progress::Own, "closed"),
        (Progress::Background, "closed"),
        (Progress::Own, "closed in a handler"),
        (Progress::Background, "closed in a handler"),
        (Progress::Own, "broken"),
    ] {
        let failing = Failing::default();
        let builder = Builder::new().plugin(Layered::new(SmPlugin, failing.clone()));
        let engine: Handle = builder.progress(progress).wait(Wait::Block).open("sm://").unwrap();
        let pair = Pair::new(Wait::Block);
        let there = engine.lookup(pair.other.address()).unwrap();
        let loops = [engine.event_loop().unwrap(), engine.event_loop().unwrap()];
        let mut call = Some(engine.call(long, &there, ()));
        let mut ended = || match call.take().unwrap().try_take() {
            Ok(result) => result.is_err(),
            Err(open) => {
                call = Some(open);
                false
            }
        };
        assert!(!ended());
        let rest = |loops: &[EventLoop]| {
            let mut passes = 0;
            while loops.iter().any(|events| {
                let moved = events.progress();
                moved || !events.may_sleep().unwrap() || sleep(events, PollTimeout::ZERO)
            }) {
                passes += 1;
                assert!(passes < 3 * PASSES_MAX, "{how}: the loops go round for ever");
            }
        };
        rest(&loops);
        match how {
            "closed" => engine.close(),
            "closed in a handler" => {
                let closed = engine.clone();
                let serve = move |_: &_, ()| {
                    closed.close();
                    Ok(1)
                };
                pair.other.serve(held, serve).unwrap();
                assert_eq!(pair.engine.call(held, &pair.there, ()).wait().unwrap(), 1);
            }
            _ => {
                failing.0.store(true, Ordering::SeqCst);
                assert!(engine.progress(Duration::ZERO), "it has seen that");
            }
        }
        loops.iter().for_each(sleep_until_woken);
        rest(&loops);
        assert!(ended(), "{how}");
        drop(loops);
    }
}

#[test]
fn a_loop_that_looks_for_the_first_time_after_the_end_goes_round_once_more() {
    let pair = Pair::new(Wait::Block);
    let loops = [pair.engine.event_loop().unwrap(), pair.engine.event_loop().unwrap()];
    pair.engine.close();
    for events in &loops {
        // It may be over for its caller, too, who has looked just before that.
        events.progress();
        assert!(!events.may_sleep().unwrap());
        events.progress();
        assert!(events.may_sleep().unwrap());
    }
}

#[test]
fn loops_and_threads_end_whoever_closes_the_engine_and_when() {
    for round in 0..60 {
        let progress = if round % 2 == 0 { Progress::Own } else { Progress::Background };
        let wait = if round % 4 < 2 { Wait::Block } else { Wait::default() };
        let pair = Pair::with(wait, progress);
        let (over, closed) = (AtomicBool::new(false), pair.engine.clone());
        let serve = move |_: &_, ()| {
            closed.close();
            Ok(1)
        };
        pair.other.serve(held, serve).unwrap();
        let itself = pair.other.lookup(pair.other.address()).unwrap();
        thread::scope(|scope| {
            for _ in 0..1 + round % 2 {
                let (events, over) = (pair.engine.event_loop().unwrap(), &over);
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        while events.progress() {}
                        if events.may_sleep().unwrap() {
                            sleep_until_woken(&events);
                        }
                    }
                });
            }
            for _ in 0..2 {
                let call = || pair.engine.call(twice, &pair.there, (1,)).wait();
                scope.spawn(move || while call().is_ok() {});
            }
            for number in 0..round * 7 % 50 {
                let call = pair.other.call(twice, &pair.back, (number,));
                assert_eq!(call.wait().unwrap(), 2 * number);
            }
            over.store(true, Ordering::SeqCst);
            match round % 3 {
                0 => pair.engine.close(),
                1 => drop(pair.other.call(held, &itself, ()).wait()),
                _ => drop(pair.engine.call(held, &pair.there, ()).wait()),
            }
        });
    }
}
