//! Foreign event loops beside threads that wait for calls of the same engine, over shared memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::poll_fn,
    os::fd::AsFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use hg_core::error::CallError;
use hg_engine::{Answer, Builder, CallOptions, Engine, EventLoop, Peer, Progress, Wait};
use hg_macros::rpc;
use hg_na::{Address, Completion, Context as Transport};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_sm::SmPlugin;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use watchdog::{LIMIT, hear};

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

/// Times that a loop goes round for one thing that happens, at most.
const PASSES_MAX: u32 = 20;

/// An engine with a loop, and another one that calls it and is called by it.
struct Pair {
    engine: Engine,
    other: Engine,
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
        let (engine, other) = (open(progress), open(Progress::Background));
        let (there, back) =
            (engine.lookup(other.address()).unwrap(), other.lookup(engine.address()).unwrap());
        let (begun, open) = mpsc::channel();
        other.serve_later(long, move |_, (), answer| begun.send(answer).unwrap()).unwrap();
        other.register(twice).unwrap();
        engine.register(twice).unwrap();
        Self { engine, other, there, back, open: Mutex::new(open) }
    }

    /// Serves `held` by telling which threads have run it.
    fn serve_held(&self) -> mpsc::Receiver<thread::ThreadId> {
        let (ran, runs) = mpsc::channel();
        let serve = move |_: &_, ()| {
            ran.send(thread::current().id()).unwrap();
            Ok(1)
        };
        self.engine.serve(held, serve).unwrap();
        runs
    }

    /// Has the other one call `held` so many times, while this thread goes round.
    fn is_served_by(&self, events: &EventLoop, calls: u32) {
        let (over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..calls {
                    assert_eq!(self.other.call(held, &self.back, ()).wait().unwrap(), 1);
                }
                over.store(true, Ordering::SeqCst);
                self.has_seen(&seen);
            });
            while !over.load(Ordering::SeqCst) {
                while events.progress() {}
                if events.may_sleep().unwrap() {
                    sleep_until_woken(events);
                }
            }
            seen.store(true, Ordering::SeqCst);
        });
    }

    /// Has the loop go round until it has seen something.
    fn has_seen(&self, seen: &AtomicBool) {
        while !seen.load(Ordering::SeqCst) {
            drop(self.other.notify(twice, &self.back, (1,)));
            thread::yield_now();
        }
    }

    /// A call of `long` that was begun.
    fn begun(&self) -> Answer<long> {
        hear(&self.open.lock().unwrap())
    }
}

/// A test that has failed waits for nobody.
struct ClosesOnPanic<'a>(&'a Engine, &'a AtomicBool);

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
    assert!(sleep(events, PollTimeout::try_from(LIMIT).unwrap()), "nobody wakes the loop");
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
fn whoever_has_the_role_gives_it_up_to_a_loop_that_comes() {
    for (wait, progress) in [
        (Wait::Block, Progress::Own),
        (Wait::Spin, Progress::Own),
        (Wait::default(), Progress::Background),
    ] {
        let pair = Pair::with(wait, progress);
        let runs = pair.serve_held();
        thread::scope(|scope| {
            let _closes = ClosesOnPanic(&pair.engine, &AtomicBool::new(false));
            for _ in 0..2 {
                scope.spawn(|| {
                    assert_eq!(pair.engine.call(long, &pair.there, ()).wait().unwrap(), 7)
                });
            }
            // They have begun, and make progress or follow.
            let answers = [pair.begun(), pair.begun()];
            let events = pair.engine.event_loop().unwrap();
            pair.is_served_by(&events, 50);
            let me = thread::current().id();
            assert!(runs.try_iter().all(|ran| ran == me), "another thread has made progress");
            for answer in answers {
                answer.send(Ok(7));
            }
            drop(events);
        });
    }
}

#[test]
fn threads_that_wait_are_told_what_a_loop_finds_for_them() {
    let pair = Pair::new(Wait::Block);
    let events = pair.engine.event_loop().unwrap();
    let (left, seen) = (AtomicU32::new(3), AtomicBool::new(false));
    thread::scope(|scope| {
        let _closes = ClosesOnPanic(&pair.engine, &AtomicBool::new(false));
        for _ in 0..3 {
            scope.spawn(|| {
                for number in 0..50 {
                    let call = pair.engine.call(twice, &pair.there, (number,));
                    assert_eq!(call.wait().unwrap(), 2 * number);
                }
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    pair.has_seen(&seen);
                }
            });
        }
        while left.load(Ordering::SeqCst) > 0 {
            while events.progress() {}
            if events.may_sleep().unwrap() {
                sleep_until_woken(&events);
            }
        }
        seen.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_loop_that_has_moved_since_its_last_round_is_woken_from_its_sleep() {
    let pair = Pair::new(Wait::Block);
    let runs = pair.serve_held();
    let events = pair.engine.event_loop().unwrap();
    pair.is_served_by(&events, 1);
    hear(&runs);
    until_it_rests(&events);
    events.progress();
    // As a task does that awaits something between its round and the question, on a runtime of several threads.
    let may_sleep = || thread::scope(|scope| scope.spawn(|| events.may_sleep().unwrap()).join());
    while !may_sleep().unwrap() {
        events.progress();
    }
    let call = pair.other.call(held, &pair.back, ());
    sleep_until_woken(&events);
    events.progress();
    hear(&runs);
    assert_eq!(call.wait().unwrap(), 1);
}

#[test]
fn the_thread_of_a_loop_may_wait_between_two_rounds_and_a_loop_may_move() {
    let pair = Pair::new(Wait::default());
    let events = pair.engine.event_loop().unwrap();
    let go_round = |events: &EventLoop| {
        until_it_rests(events);
        for number in 0..20 {
            let call = pair.engine.call(twice, &pair.there, (number,));
            assert_eq!(call.wait().unwrap(), 2 * number);
            events.progress();
        }
        until_it_rests(events);
    };
    go_round(&events);
    let events = thread::scope(|scope| {
        let moved = scope.spawn(|| {
            let events = events;
            go_round(&events);
            events
        });
        moved.join().unwrap()
    });
    go_round(&events);
}

#[test]
fn deadlines_are_kept_while_a_loop_does_not_go_round() {
    let pair = Pair::new(Wait::Block);
    let events = pair.engine.event_loop().unwrap();
    // From another thread: the loop's own one would go round itself.
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let within = CallOptions::within(Duration::from_millis(20));
            pair.engine.call_with(long, &pair.there, (), within).wait()
        });
        let outcome = waits.join().unwrap();
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded(_))), "{outcome:?}");
        let _unsent = pair.engine.call(long, &pair.there, ()); // A drain waits until it has left.
        let drains = scope.spawn(|| pair.engine.drain(Duration::from_millis(20)).wait());
        assert!(drains.join().unwrap().is_err(), "the loop has not gone round");
    });
    drop(events);
}

#[test]
fn a_context_has_one_loop_at_a_time_and_none_made_in_a_handler() {
    let pair = Pair::new(Wait::Block);
    let events = pair.engine.event_loop().unwrap();
    let refused = pair.engine.event_loop().unwrap_err().to_string();
    assert!(refused.contains("drop the first one"), "{refused}");
    drop(events);
    let (said, says) = mpsc::channel();
    let serve = move |request: &hg_engine::Request, ()| {
        said.send(request.engine().event_loop().map(drop)).unwrap();
        Ok(1)
    };
    pair.engine.serve(held, serve).unwrap();
    let events = pair.engine.event_loop().unwrap();
    pair.is_served_by(&events, 1);
    assert!(hear(&says).is_err());
}

#[test]
fn a_loop_that_ends_leaves_the_progress_to_whoever_waits() {
    for progress in [Progress::Own, Progress::Background] {
        let pair = Pair::with(Wait::Block, progress);
        let events = pair.engine.event_loop().unwrap();
        thread::scope(|scope| {
            let _closes = ClosesOnPanic(&pair.engine, &AtomicBool::new(false));
            let callers = [(); 2].map(|()| {
                scope.spawn(|| {
                    assert_eq!(pair.engine.call(long, &pair.there, ()).wait().unwrap(), 7)
                })
            });
            let answers = [(); 2].map(|()| {
                loop {
                    events.progress();
                    if let Ok(answer) = pair.open.lock().unwrap().try_recv() {
                        break answer;
                    }
                }
            });
            drop(events);
            answers.into_iter().for_each(|answer| answer.send(Ok(7)));
            callers.into_iter().for_each(|caller| caller.join().unwrap());
        });
        if progress == Progress::Background {
            assert_eq!(pair.other.call(twice, &pair.back, (4,)).wait().unwrap(), 8);
        }
    }
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
                    if let Some(result) = call.try_wait() {
                        break result;
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
fn a_loop_of_an_engine_that_ends_is_told_once_and_sleeps_on() {
    for (progress, how) in [
        (Progress::Own, "closed"),
        (Progress::Background, "closed"),
        (Progress::Own, "closed in a handler"),
        (Progress::Background, "closed in a handler"),
        (Progress::Own, "broken"),
    ] {
        let failing = Failing::default();
        let builder = Builder::new().plugin(Layered::new(SmPlugin, failing.clone()));
        let engine = builder.progress(progress).wait(Wait::Block).open("sm://").unwrap();
        let pair = Pair::new(Wait::Block);
        let there = engine.lookup(pair.other.address()).unwrap();
        let events = engine.event_loop().unwrap();
        let mut call = engine.call(long, &there, ());
        let mut ended = || call.try_wait().is_some_and(|result| result.is_err());
        assert!(!ended());
        until_it_rests(&events);
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
                drop(pair.other.notify(twice, &pair.other.lookup(engine.address()).unwrap(), (1,)));
                engine.interrupt_progress();
            }
        }
        sleep_until_woken(&events);
        until_it_rests(&events);
        assert!(ended(), "{how}");
    }
}

#[test]
fn a_loop_that_looks_for_the_first_time_after_the_end_goes_round_once_more() {
    let pair = Pair::new(Wait::Block);
    let events = pair.engine.event_loop().unwrap();
    pair.engine.close();
    // It may be over for its caller, too, who has looked just before that.
    events.progress();
    assert!(!events.may_sleep().unwrap());
    events.progress();
    assert!(events.may_sleep().unwrap());
}

#[test]
fn a_loop_of_a_closed_engine_rests_although_futures_of_its_handlers_are_woken() {
    let pair = Pair::new(Wait::Block);
    let (lend, lent) = mpsc::channel();
    let keep = move |_, ()| {
        let lend = lend.clone();
        poll_fn(move |context| {
            lend.send(context.waker().clone()).unwrap();
            Poll::Pending
        })
    };
    pair.engine.serve_async(held, keep).unwrap();
    let events = pair.engine.event_loop().unwrap();
    let call = pair.other.notify(held, &pair.back, ());
    let waker = loop {
        while events.progress() {}
        match lent.try_recv() {
            Ok(waker) => break waker,
            Err(_) if events.may_sleep().unwrap() => sleep_until_woken(&events),
            Err(_) => {}
        }
    };
    drop(call);
    pair.engine.close();
    until_it_rests(&events);
    waker.wake();
    until_it_rests(&events);
}

#[test]
fn a_loop_sleeps_while_whoever_closes_the_engine_waits_for_a_handler_of_another_context() {
    let open = |contexts| {
        let builder = Builder::new().plugin(SmPlugin).contexts(contexts).listen(true);
        builder.open("sm://").unwrap()
    };
    let (engine, other): (Engine, Engine) = (open(2), open(1));
    let (ran, runs) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let ended = Mutex::new(ended);
    let serve = move |_: &_, ()| {
        ran.send(()).unwrap();
        hear(&ended.lock().unwrap());
        Ok(1)
    };
    engine.serve(held, serve).unwrap();
    let second = other.lookup(engine.address_at(engine.address(), 1).unwrap()).unwrap();
    let events = engine.context(0).unwrap().event_loop().unwrap();
    thread::scope(|scope| {
        let (other, second) = (&other, &second);
        scope.spawn(move || drop(other.call(held, second, ()).wait()));
        hear(&runs);
        until_it_rests(&events);
        let closes = scope.spawn(|| engine.close());
        sleep_until_woken(&events);
        for _ in 0..PASSES_MAX {
            events.progress();
            assert!(events.may_sleep().unwrap(), "it goes round while the handler runs");
        }
        end.send(()).unwrap();
        closes.join().unwrap();
    });
    until_it_rests(&events);
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
            {
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
