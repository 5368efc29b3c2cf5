//! Waiting for room for another call, at an engine that may have few under way. Over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_core::error::CallError;
use hg_engine::{Answer, Builder, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::Error;
use hg_na_conformance::Mem;
use watchdog::{in_time, until};

mod hg;

#[rpc(crate = crate::hg)]
fn held(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn counted();

#[rpc(crate = crate::hg)]
fn asked() -> bool;

const CALLS_MAX: usize = 4;

type Answers = Arc<Mutex<Vec<Answer<held>>>>;

struct Pair {
    target: Engine,
    origin: Engine,
    peer: Peer,
    answers: Answers,
    count: Arc<AtomicUsize>,
}

impl Pair {
    fn new(progress: Progress) -> Self {
        let plugin = Mem::default();
        let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
        let target = builder().open("mem://").unwrap();
        let origin = builder().progress(progress).calls_max(CALLS_MAX).open("mem://").unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        let (answers, count): (Answers, Arc<AtomicUsize>) = Default::default();
        let kept = Arc::clone(&answers);
        target.serve_later(held, move |_, _, answer| kept.lock().unwrap().push(answer)).unwrap();
        let counter = Arc::clone(&count);
        let count_one = move |_: &Request, ()| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        target.serve(counted, count_one).unwrap();
        Self { target, origin, peer, answers, count }
    }

    /// As many calls as there may be, at their target.
    fn fill(&self) -> Vec<hg_engine::Call<'_, held>> {
        let call = |number| self.origin.call(held, &self.peer, (number,));
        let calls: Vec<_> = (0..CALLS_MAX as u64).map(call).collect();
        until("they have arrived", || {
            self.origin.progress(Duration::ZERO);
            self.answers.lock().unwrap().len() == CALLS_MAX
        });
        let beyond = self.origin.call(held, &self.peer, (9,)).wait().unwrap_err();
        assert!(matches!(beyond, CallError::NotMade(Error::Limit { .. })), "{beyond:?}");
        calls
    }

    fn answer_one(&self) {
        self.answers.lock().unwrap().pop().unwrap().send(Ok(7));
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll_by<F: Future>(future: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    future.poll(&mut Context::from_waker(&waker))
}

#[test]
fn whoever_waits_is_woken_when_a_call_has_ended_and_its_outcome_was_taken() {
    for progress in [Progress::Background, Progress::Own] {
        let pair = Pair::new(progress);
        let mut calls = pair.fill();
        let [one, other]: [Arc<Woken>; 2] = Default::default();
        let mut ready = pin!(pair.origin.ready());
        let mut next = pin!(pair.origin.ready());
        for _ in 0..3 {
            assert!(poll_by(ready.as_mut(), &one).is_pending());
        }
        assert!(poll_by(next.as_mut(), &other).is_pending());
        assert_eq!((one.times(), other.times()), (0, 0));
        (0..CALLS_MAX).for_each(|_| pair.answer_one());
        assert_eq!(calls.pop().unwrap().wait().unwrap(), 7);
        until("the first one is woken", || one.times() == 1);
        assert!(matches!(poll_by(ready.as_mut(), &one), Poll::Ready(Ok(()))));
        // The second one has room, too, as soon as there is more.
        for call in calls {
            assert_eq!(call.wait().unwrap(), 7);
        }
        until("the next one is woken", || other.times() == 1);
        assert!(matches!(poll_by(next.as_mut(), &other), Poll::Ready(Ok(()))));
    }
}

#[test]
fn a_call_that_is_dropped_makes_room_and_who_is_woken_in_vain_passes_it_on() {
    let pair = Pair::new(Progress::Own);
    let mut calls = pair.fill();
    let [one, other]: [Arc<Woken>; 2] = Default::default();
    let mut ready = Box::pin(pair.origin.ready());
    let mut next = Box::pin(pair.origin.ready());
    assert!(
        poll_by(ready.as_mut(), &one).is_pending() && poll_by(next.as_mut(), &other).is_pending()
    );
    drop(calls.pop());
    until("the first one is woken", || {
        pair.origin.progress(Duration::ZERO);
        one.times() == 1
    });
    drop(ready);
    assert_eq!(other.times(), 1);
    assert!(matches!(poll_by(next.as_mut(), &other), Poll::Ready(Ok(()))));
}

#[test]
fn a_wait_that_is_cancelled_and_kept_takes_no_room_from_who_waits() {
    let pair = Pair::new(Progress::Own);
    let mut calls = pair.fill();
    let woken = Arc::<Woken>::default();
    let mut left = pair.origin.ready();
    let mut next = pair.origin.ready();
    assert!(poll_by(Pin::new(&mut next), &woken).is_pending());
    left.cancel();
    drop(calls.pop());
    until("whoever waits is woken", || {
        pair.origin.progress(Duration::ZERO);
        woken.times() == 1
    });
    assert!(matches!(poll_by(Pin::new(&mut next), &woken), Poll::Ready(Ok(()))));
    assert!(matches!(left.try_wait(), Some(Err(CallError::Cancelled))));
}

#[test]
fn waiting_ends_with_room_and_with_the_engine() {
    for progress in [Progress::Background, Progress::Own] {
        let pair = Pair::new(progress);
        let mut calls = pair.fill();
        thread::scope(|scope| {
            let waiting: Vec<_> =
                (0..4).map(|_| scope.spawn(|| pair.origin.ready().wait())).collect();
            pair.answer_one();
            // Which one, nobody knows: all are taken.
            (1..CALLS_MAX).for_each(|_| pair.answer_one());
            while let Some(call) = calls.pop() {
                assert_eq!(call.wait().unwrap(), 7);
            }
            for thread in waiting {
                thread.join().unwrap().unwrap();
            }
        });
        let calls = pair.fill();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pair.origin.ready().wait());
            let woken = Arc::new(Woken::default());
            let mut awaited = pin!(pair.origin.ready());
            assert!(poll_by(awaited.as_mut(), &woken).is_pending());
            pair.origin.close();
            assert!(matches!(waiting.join().unwrap(), Err(CallError::Closed)));
            until("it is woken", || woken.times() == 1);
            let ended = poll_by(awaited.as_mut(), &woken);
            assert!(matches!(ended, Poll::Ready(Err(CallError::Closed))));
        });
        drop(calls);
    }
}

#[test]
fn a_thread_that_makes_the_progress_sees_room_that_another_one_makes() {
    for progress in [Progress::Background, Progress::Own] {
        for _ in 0..20 {
            let pair = Pair::new(progress);
            let mut calls = pair.fill();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| pair.origin.ready().wait());
                // The only call that ends is taken without any progress.
                pair.answer_one();
                let start = Instant::now();
                while calls.len() == CALLS_MAX {
                    in_time!(start, "the answer does not come");
                    calls.retain_mut(|call| match call.try_wait() {
                        Some(outcome) => {
                            assert_eq!(outcome.unwrap(), 7);
                            false
                        }
                        None => true,
                    });
                }
                waiting.join().unwrap().unwrap();
            });
        }
    }
}

#[test]
fn in_a_handler_it_says_at_once_whether_there_is_room() {
    let pair = Pair::new(Progress::Background);
    let serve = |request: &Request, ()| match request.engine().ready().wait() {
        Ok(()) => Ok(true),
        Err(CallError::WouldDeadlock) => Ok(false),
        Err(error) => panic!("{error}"),
    };
    pair.origin.serve(asked, serve).unwrap();
    let ask = || {
        let back = pair.target.lookup(pair.origin.address()).unwrap();
        pair.target.call(asked, &back, ()).wait().unwrap()
    };
    assert!(ask());
    let calls = pair.fill();
    assert!(!ask());
    drop(calls);
}

#[test]
fn many_that_wait_for_room_send_more_than_there_is_room_for() {
    const EACH: usize = 300;
    let pair = Pair::new(Progress::Background);
    let pair = &pair;
    let notify = &|| match pair.origin.notify(counted, &pair.peer, ()).accepted() {
        Ok(()) => true,
        Err(CallError::NotMade(Error::Limit { .. })) => false, // Somebody else was sooner.
        Err(error) => panic!("{error}"),
    };
    thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                for _ in 0..EACH {
                    loop {
                        if number % 2 == 0 {
                            pair.origin.ready().wait().unwrap();
                        } else {
                            smol::block_on(pair.origin.ready()).unwrap();
                        }
                        if notify() {
                            break;
                        }
                    }
                }
            });
        }
    });
    until("all have arrived", || pair.count.load(Ordering::SeqCst) == 6 * EACH);
}
