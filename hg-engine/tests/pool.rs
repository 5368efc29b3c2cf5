//! The pool of blocking handlers: as many threads as are needed, none that nobody needs, and a share for everybody. Over the
//! in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use hg_core::error::CallError;
use hg_engine::{Builder, Engine, Peer, Wait};
use hg_macros::rpc;
use hg_na_conformance::Mem;
use watchdog::{LIMIT, until};

mod hg;

#[rpc(crate = crate::hg)]
fn held(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn nested(depth: u64) -> u64;

#[rpc(crate = crate::hg)]
fn broken(number: u64) -> u64;

fn open(plugin: &Mem, threads_max: usize) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    builder.pool_threads_max(threads_max).open("mem://").unwrap()
}

/// Threads that have run handlers: other tests of this process have others.
#[derive(Clone, Default)]
struct Threads(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Threads {
    /// This one is one.
    fn note(&self) {
        let this = fs::read_link("/proc/thread-self").unwrap();
        self.0.lock().unwrap().insert(Path::new("/proc").join(this));
    }

    /// How many of them live.
    fn living(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|thread| thread.exists()).count()
    }
}

/// Handlers wait here.
#[derive(Default)]
struct Gate {
    /// How many wait, and whether it is open.
    state: Mutex<(usize, bool)>,
    opened: Condvar,
    threads: Threads,
}

impl Gate {
    fn pass(&self) {
        self.threads.note();
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        let (mut state, timeout) =
            self.opened.wait_timeout_while(state, LIMIT, |(_, is_open)| !*is_open).unwrap();
        assert!(!timeout.timed_out(), "the gate is never opened");
        state.0 -= 1;
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.opened.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().0
    }
}

fn serve_held(engine: &Engine) -> Arc<Gate> {
    let gate = Arc::new(Gate::default());
    let mine = Arc::clone(&gate);
    let serve = move |_: &hg_engine::Request, (number,): (u64,)| {
        mine.pass();
        Ok(number)
    };
    engine.serve_blocking(held, serve).unwrap();
    gate
}

fn peer_of(origin: &Engine, target: &Engine) -> Peer {
    origin.lookup(target.address()).unwrap()
}

#[test]
fn after_four_hundred_blocking_calls_there_are_no_more_threads_than_before() {
    let plugin = Mem::default();
    let (target, origin) = (open(&plugin, 800), open(&plugin, 1));
    let peer = peer_of(&origin, &target);
    let gate = serve_held(&target);
    let calls: Vec<_> = (0..400).map(|number| origin.call(held, &peer, (number,))).collect();
    until("all are run at once", || gate.waiting() == 400);
    assert_eq!(gate.threads.living(), 400);
    gate.open();
    for (call, number) in calls.into_iter().zip(0..) {
        assert_eq!(call.wait().unwrap(), number);
    }
    until("threads that have nothing to do end", || gate.threads.living() == 0);
    // And they come again.
    assert_eq!(origin.call(held, &peer, (7,)).wait().unwrap(), 7);
    assert_eq!(gate.threads.living(), 1);
}

#[test]
fn a_caller_whose_handlers_never_end_leaves_threads_to_others() {
    let plugin = Mem::default();
    let target = open(&plugin, 8);
    let gate = serve_held(&target);
    let origins: Vec<_> = (0..3).map(|_| open(&plugin, 1)).collect();
    let serve = |_: &hg_engine::Request, (number,): (u64,)| Ok(number + 1);
    target.serve_blocking(nested, serve).unwrap();
    let peers: Vec<_> = origins.iter().map(|origin| peer_of(origin, &target)).collect();
    let call = |number: u64| origins[0].call_owned(held, &peers[0], (number,));
    let held_up: Vec<_> = (0..100).map(call).collect();
    until("it has its share", || gate.waiting() == 4);
    for (origin, peer) in origins.iter().zip(&peers).skip(1) {
        for number in 0..100 {
            assert_eq!(origin.call(nested, peer, (number,)).wait().unwrap(), number + 1);
        }
    }
    assert_eq!(gate.waiting(), 4);
    gate.open();
    drop(held_up);
    until("all are over", || target.requests_in_service() == 0);
}

#[test]
fn handlers_of_two_engines_that_call_each_other_have_threads_of_their_own() {
    let plugin = Mem::default();
    let (one, other, origin) = (open(&plugin, 8), open(&plugin, 8), open(&plugin, 1));
    let serve = |to: &Engine| {
        let address = to.address().clone();
        move |request: &hg_engine::Request, (depth,): (u64,)| {
            let engine = request.engine();
            let Some(less) = depth.checked_sub(1) else { return Ok(0) };
            let peer = engine.lookup(&address).unwrap();
            Ok(engine.call(nested, &peer, (less,)).wait().unwrap() + 1)
        }
    };
    one.serve_blocking(nested, serve(&other)).unwrap();
    other.serve_blocking(nested, serve(&one)).unwrap();
    let peer = peer_of(&origin, &one);
    // There and back and there again, more of them than both have threads.
    let calls: Vec<_> = (0..40).map(|_| origin.call(nested, &peer, (2,))).collect();
    for call in calls {
        assert_eq!(call.wait().unwrap(), 2);
    }
    // As deep as half of the threads of both allow.
    assert_eq!(origin.call(nested, &peer, (7,)).wait().unwrap(), 7);
    one.close();
    other.close();
}

#[test]
fn a_blocking_handler_that_panics_is_answered_for_and_costs_no_thread() {
    let plugin = Mem::default();
    let (target, origin) = (open(&plugin, 2), open(&plugin, 1));
    let peer = peer_of(&origin, &target);
    target.serve_blocking(broken, |_, (number,)| panic!("number {number}")).unwrap();
    for number in 0..50 {
        let error = origin.call(broken, &peer, (number,)).wait().unwrap_err();
        let is_said = |text: &str| text.contains(&format!("number {number}"));
        assert!(matches!(&error, CallError::Panicked(text) if is_said(text)), "{error:?}");
    }
}

#[test]
fn closing_an_engine_waits_for_no_blocking_handler_and_drops_what_waits_for_a_thread() {
    let plugin = Mem::default();
    let (target, origin) = (open(&plugin, 4), open(&plugin, 1));
    let peer = peer_of(&origin, &target);
    let gate = serve_held(&target);
    let own = gate.threads.clone();
    let serve = move |_: &hg_engine::Request, (number,): (u64,)| {
        own.note();
        Ok(number)
    };
    target.serve(nested, serve).unwrap();
    assert_eq!(origin.call(nested, &peer, (1,)).wait().unwrap(), 1);
    let calls: Vec<_> = (0..50).map(|number| origin.call_owned(held, &peer, (number,))).collect();
    until("two are run", || gate.waiting() == 2);
    assert_eq!(gate.threads.living(), 3, "those two, and the one that makes progress");
    assert!(Arc::strong_count(&gate) > 1);
    target.close();
    assert_eq!(gate.waiting(), 2);
    gate.open();
    until("nobody has the handler any more", || Arc::strong_count(&gate) == 1);
    // Of the target's threads none is left.
    until("its threads have ended", || gate.threads.living() == 0);
    drop(calls);
}
