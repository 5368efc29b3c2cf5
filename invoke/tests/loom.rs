//! The synchronizer, searched exhaustively: whoever waits is told once, neither early nor never, and sees what was done before.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-invoke --test loom`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a model ends at the first surprise")]

#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/synchronizer.rs"]
#[expect(dead_code, unreachable_pub, reason = "the crate's interface; here it has one user")]
mod synchronizer;

use std::{
    pin::Pin,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};
use synchronizer::Synchronizer;

/// What the crate has under this name; a model has no workers.
#[derive(Debug)]
pub struct Worker;

/// The crate's errors, as far as they matter.
#[derive(Debug, Clone, PartialEq)]
pub struct Error;

impl Worker {
    #[expect(clippy::unused_self, reason = "as the crate's")]
    fn wait_until<T>(&self, _answer: impl Fn() -> Option<Result<T, Error>>) -> Result<T, Error> {
        Err(Error)
    }
}

/// Ends the sleep of who awaits.
struct Waiter(Mutex<bool>, Condvar);

impl Wake for Waiter {
    fn wake(self: std::sync::Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

fn wait_for(mut synchronizer: Synchronizer) -> Result<(), Error> {
    let waiter = std::sync::Arc::new(Waiter(Mutex::new(false), Condvar::new()));
    let waker = Waker::from(std::sync::Arc::clone(&waiter));
    loop {
        let polled = Future::poll(Pin::new(&mut synchronizer), &mut Context::from_waker(&waker));
        if let Poll::Ready(result) = polled {
            return result;
        }
        let mut woken = waiter.0.lock().unwrap();
        while !*woken {
            woken = waiter.1.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// Counts one event in a thread of its own, after a note that only the synchronizer orders.
fn counts(
    synchronizer: &Synchronizer,
    failed: Option<Error>,
) -> (Arc<AtomicU32>, thread::JoinHandle<()>) {
    let note = Arc::new(AtomicU32::new(0));
    synchronizer.expect_one();
    let counting = thread::spawn({
        let (synchronizer, note) = (synchronizer.clone(), Arc::clone(&note));
        move || {
            note.store(1, Relaxed);
            synchronizer.count(failed);
        }
    });
    (note, counting)
}

#[test]
fn whoever_awaits_is_woken_and_sees_what_was_done_before() {
    loom::model(|| {
        let synchronizer = Synchronizer::new();
        let (one, first) = counts(&synchronizer, None);
        let (two, second) = counts(&synchronizer, Some(Error));
        assert_eq!(wait_for(synchronizer), Err(Error));
        assert_eq!((one.load(Relaxed), two.load(Relaxed)), (1, 1));
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn whoever_polls_sees_what_was_done_before() {
    loom::model(|| {
        let synchronizer = Synchronizer::new();
        let (note, counting) = counts(&synchronizer, Some(Error));
        match synchronizer.result() {
            None => {}
            Some(result) => assert_eq!((result, note.load(Relaxed)), (Err(Error), 1)),
        }
        counting.join().unwrap();
        assert_eq!((synchronizer.left(), synchronizer.result()), (0, Some(Err(Error))));
    });
}

#[test]
fn two_who_await_the_same_are_both_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let synchronizer = Synchronizer::new();
        let (_, counting) = counts(&synchronizer, None);
        let other = thread::spawn({
            let synchronizer = synchronizer.clone();
            move || wait_for(synchronizer)
        });
        assert_eq!(wait_for(synchronizer), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
        counting.join().unwrap();
    });
}

#[test]
fn a_future_that_is_dropped_meanwhile_keeps_nobody_from_being_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let synchronizer = Synchronizer::new();
        let (note, counting) = counts(&synchronizer, None);
        let gives_up = thread::spawn({
            let mut future = synchronizer.clone();
            move || {
                let waiter = std::sync::Arc::new(Waiter(Mutex::new(false), Condvar::new()));
                let waker = Waker::from(std::sync::Arc::clone(&waiter));
                let polled = Future::poll(Pin::new(&mut future), &mut Context::from_waker(&waker));
                drop((future, waker));
                polled
            }
        });
        assert_eq!(wait_for(synchronizer), Ok(()));
        assert_eq!(note.load(Relaxed), 1);
        assert!(matches!(gives_up.join().unwrap(), Poll::Pending | Poll::Ready(Ok(()))));
        counting.join().unwrap();
    });
}

#[test]
fn a_closure_runs_once_and_not_before_the_last_event_that_came_before_it() {
    loom::model(|| {
        let synchronizer = Synchronizer::new();
        let (note, counting) = counts(&synchronizer, None);
        synchronizer.expect_one();
        let ran = Arc::new(AtomicU32::new(0));
        synchronizer.then({
            let (ran, note) = (Arc::clone(&ran), Arc::clone(&note));
            move |result| {
                assert_eq!((result, note.load(Relaxed)), (Ok(()), 1));
                ran.fetch_add(1, Relaxed);
            }
        });
        assert_eq!(ran.load(Relaxed), 0, "one event is to come");
        synchronizer.count(None);
        counting.join().unwrap();
        assert_eq!(ran.load(Relaxed), 1);
    });
}
