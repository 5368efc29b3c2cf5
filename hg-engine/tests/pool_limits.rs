//! What an engine does where the system gives it no thread. A test of its own process: the limit holds for all of it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    sync::{Arc, Barrier, Mutex, mpsc},
    thread,
    time::Instant,
};

use hg_engine::{Builder, Engine, OpenError, Request, Wait};
use hg_macros::rpc;
use hg_na::Error;
use hg_na_conformance::Mem;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::in_time;

mod hg;

#[rpc(crate = crate::hg)]
fn plain(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn meet(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn long() -> Vec<u8>;

/// Handlers that need a thread each.
const MEETING: usize = 16;
/// Memory that is left, in bytes: enough for calls, too little for a thread's stack.
const LEFT: u64 = 1 << 20;

fn open(plugin: &Mem) -> Result<Engine, OpenError> {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    builder.open("mem://")
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn address_space() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn without_a_thread_to_be_had_blocking_handlers_wait_and_everything_else_goes_on() {
    let plugin = Mem::default();
    let (target, origin) = (open(&plugin).unwrap(), open(&plugin).unwrap());
    let peer = origin.lookup(target.address()).unwrap();
    target.serve(plain, |_: &Request, (number,): (u64,)| Ok(number)).unwrap();
    target.serve(long, |_: &Request, (): ()| Ok(vec![7; 300_000])).unwrap();
    let barrier = Arc::new(Barrier::new(MEETING));
    let serve = move |_: &Request, (number,): (u64,)| {
        barrier.wait();
        Ok(number)
    };
    target.serve_blocking(meet, serve).unwrap();
    assert_eq!(origin.call(plain, &peer, (1,)).wait().unwrap(), 1);
    let calm = threads();
    assert_eq!(origin.call(long, &peer, ()).wait().unwrap().len(), 300_000);
    let start = Instant::now();
    while threads() > calm {
        in_time!(start, "a thread that was started for a transfer stays");
        thread::yield_now();
    }

    let (before, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, address_space() + LEFT, hard).unwrap();
    // Stacks of threads that have ended are used again.
    let mut last = Vec::new();
    let (_end, ends) = mpsc::channel::<()>();
    let ends = Arc::new(Mutex::new(ends));
    while let Ok(thread) = thread::Builder::new().spawn({
        let ends = Arc::clone(&ends);
        move || assert!(ends.lock().unwrap().recv().is_err())
    }) {
        last.push(thread);
        assert!(last.len() < 64, "there is room for a thread");
    }
    let meet_of = |number: usize| origin.call_owned(meet, &peer, (number as u64,));
    let calls: Vec<_> = (0..MEETING).map(meet_of).collect();
    // They have arrived, and hold nobody up.
    let start = Instant::now();
    while target.requests_in_service() < MEETING {
        in_time!(start, "requests do not arrive");
        thread::yield_now();
    }
    for number in 0..1000 {
        assert_eq!(origin.call(plain, &peer, (number,)).wait().unwrap(), number);
    }
    let error = open(&plugin).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    assert!(
        error.to_string().contains("RLIMIT_AS") && error.to_string().contains("ulimit -v"),
        "{error}"
    );

    setrlimit(Resource::RLIMIT_AS, before, hard).unwrap();
    // By the timer: nothing else asks for a thread.
    let start = Instant::now();
    for (mut call, number) in calls.into_iter().zip(0..) {
        loop {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            if let std::task::Poll::Ready(outcome) = call.poll_outcome(&mut context) {
                break assert_eq!(outcome.unwrap(), number);
            }
            in_time!(start, "the pool does not grow again");
            thread::yield_now();
        }
    }
    assert_eq!(origin.call(long, &peer, ()).wait().unwrap().len(), 300_000);
}
