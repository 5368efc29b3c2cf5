//! The background thread stands aside for a while after the last caller that has waited, but not when something is under way that
//! nobody waits for. Here that while never ends, so that a call which nobody makes progress for never does, either.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_engine::{
    Builder, Engine, Peer, Wait,
    platform::{Job, Machine, Platform, Spawned, Thread},
};
use hg_macros::rpc;
use hg_na::Rights;
use hg_na_conformance::Mem;
use watchdog::{LIMIT, in_time};

mod hg;

#[rpc(crate = crate::hg)]
fn twice(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn counted();

/// The machine, but that no pause ends by itself.
#[derive(Debug)]
struct Patient(Machine);

impl Platform for Patient {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn process(&self) -> u32 {
        self.0.process()
    }

    fn spawn(&self, name: String, job: Job) -> io::Result<Spawned> {
        self.0.spawn(name, job)
    }

    fn current(&self) -> Thread {
        self.0.current()
    }

    fn park(&self) {
        self.0.park();
    }

    fn park_timeout(&self, _: Duration) {
        self.0.park();
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls to the end.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        in_time!(start, "nobody makes its progress");
        thread::park_timeout(LIMIT);
    }
}

fn pair() -> (Engine, Engine, Peer, Arc<AtomicUsize>) {
    let plugin = Mem::default();
    let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    let target = builder().open("mem://").unwrap();
    let origin = builder().platform(Arc::new(Patient(Machine::default()))).open("mem://").unwrap();
    target.serve(twice, |_, (number,)| Ok(2 * number)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let count_one = move |_: &hg_engine::Request, ()| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    target.serve(counted, count_one).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    (target, origin, peer, count)
}

#[test]
fn what_is_awaited_after_a_wait_ends_without_one() {
    let (target, origin, peer, _) = pair();
    let bulk = target.expose(vec![7; 300_000], Rights::READ).unwrap();
    for number in 0..200 {
        assert_eq!(origin.call(twice, &peer, (number,)).wait().unwrap(), 2 * number);
        match number % 3 {
            0 => assert_eq!(block_on(origin.call(twice, &peer, (7,))).unwrap(), 14),
            1 => assert_eq!(block_on(origin.call_owned(twice, &peer, (7,))).unwrap(), 14),
            _ => {
                let fetched = block_on(origin.fetch(&peer, bulk.descriptor())).unwrap();
                assert_eq!(fetched, vec![7; 300_000]);
            }
        }
    }
}

#[test]
fn awaiting_beside_those_who_wait_ends_when_they_have_left() {
    let (_target, origin, peer, _) = pair();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 0..500 {
                    assert_eq!(origin.call(twice, &peer, (number,)).wait().unwrap(), 2 * number);
                }
            });
        }
        scope.spawn(|| {
            for number in 0..500 {
                assert_eq!(block_on(origin.call(twice, &peer, (number,))).unwrap(), 2 * number);
            }
        });
    });
}

#[test]
fn one_way_calls_that_are_left_to_themselves_arrive() {
    let (_target, origin, peer, count) = pair();
    for number in 1..=200 {
        assert_eq!(origin.call(twice, &peer, (7,)).wait().unwrap(), 14);
        origin.notify(counted, &peer, ()).accepted().unwrap();
        let start = Instant::now();
        while count.load(Ordering::SeqCst) < number || origin.calls_under_way() > 0 {
            in_time!(start, "nobody makes its progress");
            thread::yield_now();
        }
    }
}
