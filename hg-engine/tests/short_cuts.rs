//! Rounds that are left out for an answer or a request: nothing else waits for more of them than share a reading of the clock.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use hg_engine::{Builder, Call, Engine, Peer, Progress, Wait};
use hg_na_sm::SmPlugin;

mod hg;

use hg_macros::rpc;
use watchdog::in_time;

#[rpc(crate = crate::hg)]
fn count(number: u64) -> u64;

/// Those that a round is left out for, one after the other, at most.
const IN_A_ROW: u32 = 32;
/// Calls under way: more than that, and no more than a ring holds, since nobody makes progress for the other side meanwhile.
const MANY: u64 = 48;

/// An engine whose progress is the test's, and that counts what it serves.
struct Side {
    engine: Engine,
    served: Arc<AtomicU32>,
}

impl Side {
    fn new() -> Self {
        let builder = Builder::new().plugin(SmPlugin).listen(true).wait(Wait::Spin);
        let engine = builder.progress(Progress::Own).open("sm://").unwrap();
        let served = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&served);
        engine
            .serve(count, move |_, (number,)| {
                counter.fetch_add(1, Ordering::Relaxed);
                Ok(number)
            })
            .unwrap();
        Self { engine, served }
    }

    fn served(&self) -> u32 {
        self.served.load(Ordering::Relaxed)
    }

    /// Begins a call to this peer.
    fn call(&self, peer: &Peer, number: u64) -> Call<'_, count> {
        self.engine.call(count, peer, (number,))
    }

    /// A round; says whether it found anything.
    fn round(&self) -> bool {
        self.engine.progress(Duration::ZERO)
    }
}

/// Two that know each other, after a call each way.
fn pair() -> (Side, Side, Peer, Peer) {
    let start = Instant::now();
    let (one, other) = (Side::new(), Side::new());
    let to_other = one.engine.lookup(other.engine.address()).unwrap();
    let to_one = other.engine.lookup(one.engine.address()).unwrap();
    for (from, to, peer) in [(&one, &other, &to_other), (&other, &one, &to_one)] {
        let mut first = from.call(peer, 0);
        while first.try_wait().is_none() {
            in_time!(start, "rounds bring nothing");
            from.round();
            to.round();
        }
    }
    one.served.store(0, Ordering::Relaxed);
    other.served.store(0, Ordering::Relaxed);
    (one, other, to_other, to_one)
}

#[test]
fn a_request_waits_for_few_answers_that_are_there_already() {
    let start = Instant::now();
    let (caller, target, to_target, to_caller) = pair();
    let calls: Vec<_> = (0..MANY).map(|number| caller.call(&to_target, number)).collect();
    while u64::from(target.served()) < MANY {
        in_time!(start, "rounds bring nothing");
        target.round();
    }
    let request = target.call(&to_caller, 7);
    let mut answers = 0;
    for (number, call) in (0..).zip(calls) {
        assert_eq!(call.wait().unwrap(), number);
        answers += u32::from(caller.served() == 0);
    }
    assert!(caller.served() == 1 && answers <= IN_A_ROW, "{answers} answers came before it");
    assert_eq!(request.wait().unwrap(), 7);
}

#[test]
fn an_answer_waits_for_few_requests_that_are_there_already() {
    let start = Instant::now();
    let (target, caller, to_caller, to_target) = pair();
    let mut own = target.call(&to_caller, 7);
    while caller.served() == 0 {
        in_time!(start, "rounds bring nothing");
        caller.round();
    }
    // One is served by a round, so that the others are looked for alone.
    assert_eq!(target.served(), 0);
    let calls: Vec<_> = (0..MANY).map(|number| caller.call(&to_target, number)).collect();
    let mut rounds = 0;
    while own.try_wait().is_none() {
        in_time!(start, "rounds bring nothing");
        assert!(target.round(), "there are requests still");
        rounds += 1;
    }
    assert!(rounds <= IN_A_ROW + 1, "{rounds} rounds went before it");
    while u64::from(target.served()) < MANY {
        in_time!(start, "rounds bring nothing");
        target.round();
    }
    for (number, call) in (0..).zip(calls) {
        assert_eq!(call.wait().unwrap(), number);
    }
}

#[test]
fn requests_of_one_peer_keep_no_other_peers_waiting() {
    let start = Instant::now();
    let (target, busy, _, to_target) = pair();
    let quiet = Side::new();
    let there = quiet.engine.lookup(target.engine.address()).unwrap();
    let mut first = quiet.call(&there, 0);
    while first.try_wait().is_none() {
        in_time!(start, "rounds bring nothing");
        quiet.round();
        target.round();
    }
    let before = target.served();
    let calls: Vec<_> = (0..MANY).map(|number| busy.call(&to_target, number)).collect();
    let mut one = quiet.call(&there, 7);
    let mut rounds = 0;
    while one.try_wait().is_none() {
        in_time!(start, "rounds bring nothing");
        assert!(target.round(), "there are requests still");
        quiet.round();
        rounds += 1;
    }
    assert!(rounds <= IN_A_ROW + 1, "{rounds} rounds went before it");
    while u64::from(target.served() - before) <= MANY {
        in_time!(start, "rounds bring nothing");
        target.round();
    }
    for (number, call) in (0..).zip(calls) {
        assert_eq!(call.wait().unwrap(), number);
    }
}
