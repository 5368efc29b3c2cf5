//! Calls that come back: handlers that wait for calls of their own, many at a time, between two engines. Over the in-process
//! reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use hg_core::error::CallError;
use hg_engine::{Builder, Call, CallOptions, Engine, Peer, Request, Wait};
use hg_macros::rpc;
use hg_na_conformance::Mem;
use watchdog::{LIMIT, until};

mod hg;

/// Calls its origin back, so often; says how often it was.
#[rpc(crate = crate::hg)]
fn nested(depth: u64) -> u64;

/// Requests that are served at a time; of one origin half of them.
const IN_SERVICE: usize = 16;
const HALF: usize = IN_SERVICE / 2;

fn open(plugin: &Mem) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    let engine = builder.in_service_max(IN_SERVICE).open("mem://").unwrap();
    let back = move |request: Request, (depth,): (u64,)| async move {
        let Some(less) = depth.checked_sub(1) else { return Ok(0) };
        let (engine, origin) = (request.engine(), request.origin());
        let call = engine.call_with(nested, &origin, (less,), CallOptions::of(&request));
        Ok(call.await.map_or(0, |it| it + 1))
    };
    engine.serve_async(nested, back).unwrap();
    engine
}

/// So many calls at a time, of which each comes back so often.
fn chains<'c>(
    origin: &'c Engine,
    peer: &'c Peer,
    count: usize,
    depth: u64,
    within: Duration,
) -> Vec<Call<'c, nested>> {
    let options = || CallOptions::within(within);
    (0..count).map(|_| origin.call_with(nested, peer, (depth,), options())).collect()
}

#[test]
fn calls_that_come_back_to_their_origin_only_go_on_however_many_they_are() {
    let plugin = Mem::default();
    let (origin, target) = (open(&plugin), open(&plugin));
    let peer = origin.lookup(target.address()).unwrap();
    for call in chains(&origin, &peer, 1_000, 1, LIMIT) {
        assert_eq!(call.wait().unwrap(), 1);
    }
}

#[test]
fn chains_that_need_fewer_places_than_their_origin_has_never_hold_each_other_up() {
    let plugin = Mem::default();
    let (origin, target) = (open(&plugin), open(&plugin));
    let peer = origin.lookup(target.address()).unwrap();
    // At the target each has `k` requests, and `n * (k - 1) < HALF`.
    for (n, k) in [(HALF - 1, 2), ((HALF - 1) / 2, 3), (1, HALF)] {
        let depth = 2 * (k as u64 - 1);
        for _ in 0..20 {
            for call in chains(&origin, &peer, n, depth, LIMIT) {
                assert_eq!(call.wait().unwrap(), depth);
            }
        }
    }
}

#[test]
fn chains_that_hold_each_other_up_end_by_their_deadlines_and_leave_nothing() {
    let plugin = Mem::default();
    let (origin, target) = (open(&plugin), open(&plugin));
    let peer = origin.lookup(target.address()).unwrap();
    let deep = 2 * IN_SERVICE as u64;
    let calls = chains(&origin, &peer, 1, deep, Duration::from_millis(50));
    for call in calls {
        let outcome = call.wait();
        let is_short = |it: &u64| *it < deep;
        assert!(
            matches!(&outcome, Err(CallError::DeadlineExceeded(_)))
                || outcome.as_ref().is_ok_and(is_short),
            "{outcome:?}"
        );
    }
    until("nothing is in service", || {
        [&origin, &target].iter().all(|it| it.requests_in_service() + it.calls_under_way() == 0)
    });
    assert_eq!(chains(&origin, &peer, 1, 2, LIMIT).remove(0).wait().unwrap(), 2);
}
