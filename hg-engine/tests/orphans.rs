//! Requests whose origin ends at every possible moment: nothing of them stays at the target. Over the in-process
//! reference transport, both engines stepped by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hg_engine::{Builder, Engine, Peer, Progress, Request};
use hg_macros::rpc;
use hg_na_conformance::Mem;

mod hg;

/// Is answered when nobody wants it any more.
#[rpc(crate = crate::hg)]
fn never(bytes: &[u8]) -> Vec<u8>;

/// The same, said to nobody.
#[rpc(crate = crate::hg)]
fn never_told();

#[rpc(crate = crate::hg)]
fn echo(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

#[rpc(crate = crate::hg)]
fn echo_later(bytes: &[u8]) -> Vec<u8>;

/// What does not fit in a message of this transport.
const LARGE: usize = 300_000;

struct Pair {
    target: Engine,
    /// `None` when it has ended.
    origin: Option<Engine>,
    peer: Peer,
    ended: Arc<AtomicUsize>,
}

impl Pair {
    fn new() -> Self {
        let plugin = Mem::default();
        let open = || {
            let builder = Builder::new().plugin(plugin.clone()).progress(Progress::Own);
            builder.listen(true).open("mem://").unwrap()
        };
        let (target, origin) = (open(), open());
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        target.register(echo).unwrap();
        let pending = move |request: Request, (bytes,): (&[u8],)| {
            let (bytes, count) = (bytes.to_vec(), Arc::clone(&count));
            async move {
                request.cancelled().await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok(bytes)
            }
        };
        target.serve_async(never, pending).unwrap();
        let count = Arc::clone(&ended);
        let pending = move |request: Request, ()| {
            let count = Arc::clone(&count);
            async move {
                request.cancelled().await;
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        target.serve_async(never_told, pending).unwrap();
        let later = |_: Request, (bytes,): (&[u8],)| {
            let bytes = bytes.to_vec();
            async move { Ok(bytes) }
        };
        target.serve_async(echo_later, later).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        Self { target, origin: Some(origin), peer, ended }
    }

    fn origin(&self) -> &Engine {
        self.origin.as_ref().expect("it has not ended")
    }

    /// Rounds of both until nothing moves any more.
    fn settle(&self) {
        let step = |engine: &Engine| engine.progress(Duration::ZERO);
        while step(&self.target) | self.origin.as_ref().is_some_and(step) {}
    }

    fn assert_nothing_is_left(&self, when: &str) {
        self.settle();
        assert_eq!(self.target.requests_in_service(), 0, "in service, {when}");
        assert_eq!(self.target.large_untaken(), 0, "kept, {when}");
        assert_eq!(self.target.transfers_under_way(), 0, "transfers, {when}");
    }
}

#[test]
fn in_the_round_that_loses_its_origin_one_way_calls_are_served_and_others_are_not_begun() {
    let mut pair = Pair::new();
    std::mem::forget(pair.origin().call(never, &pair.peer, (&[1],)));
    drop(pair.origin().notify(never_told, &pair.peer, ()));
    while pair.origin().progress(Duration::ZERO) {}
    pair.origin = None;
    pair.assert_nothing_is_left("after the origin's end");
    assert_eq!(pair.ended.load(Ordering::Relaxed), 1, "the one-way call was run, and told");
}

#[test]
fn a_cancellation_that_came_with_the_end_of_its_origin_is_not_forgotten() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        drop(pair.origin().call(never, &pair.peer, (&[1],)));
        std::mem::forget(pair.origin().call(echo, &pair.peer, (&[1],)));
    }
    while pair.origin().progress(Duration::ZERO) {}
    pair.origin = None;
    pair.assert_nothing_is_left("after the origin's end");
}

#[test]
fn an_origin_that_ends_after_any_number_of_rounds_leaves_nothing_of_large_calls() {
    for len in [8, LARGE] {
        for rounds in 0..24 {
            let mut pair = Pair::new();
            let bytes = vec![7; len];
            let origin = pair.origin();
            std::mem::forget(origin.call(echo, &pair.peer, (&bytes,)));
            drop(origin.call(never, &pair.peer, (&bytes,)));
            std::mem::forget(origin.call(never, &pair.peer, (&bytes,)));
            std::mem::forget(origin.call(echo_later, &pair.peer, (&bytes,)));
            for round in 0..rounds {
                let engine = if round % 2 == 0 { origin } else { &pair.target };
                engine.progress(Duration::ZERO);
            }
            pair.origin = None;
            pair.assert_nothing_is_left(&format!("{len} bytes, {rounds} rounds"));
        }
    }
}
