//! What is refused before it begins, what would never end, and the end of an engine: over the in-process
//! reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use hg_core::error::{CallError, Started};
use hg_engine::{Builder, CallOptions, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na_conformance::Mem;
use watchdog::{LIMIT, in_time};

mod hg;

#[rpc(crate = crate::hg)]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[rpc(crate = crate::hg)]
fn never() -> u32;

#[rpc(crate = crate::hg)]
fn nested() -> String;

#[rpc(crate = crate::hg)]
fn nested_long(bytes: Vec<u8>) -> String;

#[rpc(crate = crate::hg)]
fn count(by: u64);

fn builder() -> Builder {
    Builder::new().wait(Wait::Block)
}

/// A target that counts, and never answers `never`; an origin; and how many requests were served.
fn pair(origin: Builder) -> (Engine, Engine, Peer, Arc<AtomicUsize>) {
    let plugin = Mem::default();
    let target = builder().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    let origin = origin.plugin(plugin).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&served);
    let counted = move |_: &Request, (_,): (u64,)| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    target.serve(count, counted).unwrap();
    target.serve_async(never, |_, ()| std::future::pending()).unwrap();
    target.register(add).unwrap();
    (target, origin, peer, served)
}

/// The simplest executor: what users have in mind when they write `block_on`.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park_timeout(LIMIT),
        }
    }
}

#[test]
fn a_one_way_call_beyond_the_limit_is_refused_in_words_and_not_sent() {
    let (_target, origin, peer, served) = pair(builder().calls_max(1));
    let open = origin.call(never, &peer, ());
    let refused = [
        origin.notify(count, &peer, (1,)).accepted().unwrap_err(),
        origin.notify(count, &peer, (1,)).wait().unwrap_err(),
        block_on(origin.notify(count, &peer, (1,))).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, CallError::NotMade(hg_na::Error::Limit { .. })), "{error}");
        assert!(error.to_string().contains("Builder::calls_max"), "{error}");
    }
    drop(origin.notify(count, &peer, (1,)));
    drop(open);
    let settle = || {
        while origin.calls_under_way() > 0 {
            thread::yield_now();
        }
    };
    settle();
    origin.notify(count, &peer, (1,)).accepted().unwrap();
    settle();
    // Served in the order in which they were sent.
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    assert_eq!(served.load(Ordering::SeqCst), 1);
}

#[test]
fn a_call_that_may_take_no_time_is_not_sent() {
    let (target, origin, peer, _) = pair(builder());
    let (sender, receiver) = mpsc::channel();
    target
        .serve(nested, move |_, ()| {
            sender.send(()).unwrap();
            Ok(String::new())
        })
        .unwrap();
    let options = CallOptions::within(Duration::ZERO);
    let error = origin.call_with(nested, &peer, (), options).wait().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded(Started::No)), "{error}");
    assert_eq!(origin.calls_under_way(), 0);
    // What was sent before this one would have been served before it.
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    assert!(receiver.try_recv().is_err());
}

/// Calls the engine's own `add` and waits for it in a handler; what came of it.
fn call_oneself(request: &Request, block: bool) -> String {
    let engine = request.engine();
    let this = engine.lookup(engine.address()).unwrap();
    let call = engine.call(add, &this, (20, 1));
    let result = if block { block_on(call) } else { call.wait() };
    match result {
        Err(error @ CallError::WouldDeadlock) => error.to_string(),
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn whoever_waits_where_that_would_never_end_is_told_what_to_do() {
    for (block, is_async) in [(false, false), (true, false), (false, true)] {
        let (target, origin, peer, _) = pair(builder());
        if is_async {
            let serve =
                move |request: Request, ()| async move { Ok(call_oneself(&request, block)) };
            target.serve_async(nested, serve).unwrap();
        } else {
            target.serve(nested, move |request, ()| Ok(call_oneself(request, block))).unwrap();
        }
        let said = origin.call(nested, &peer, ()).wait().unwrap();
        assert!(said.contains("async fn") && said.contains("blocking"), "{said}");
    }
}

#[test]
fn whoever_waits_so_is_told_whatever_the_size_of_the_arguments() {
    for block in [false, true] {
        let (target, origin, peer, _) = pair(builder());
        let serve = move |request: &Request, (_,): (Vec<u8>,)| Ok(call_oneself(request, block));
        target.serve(nested_long, serve).unwrap();
        let options = CallOptions::within(LIMIT);
        for len in [0, 1 << 20] {
            let call = origin.call_with(nested_long, &peer, (vec![0; len],), options);
            assert!(call.wait().unwrap().contains("blocking"), "{len} bytes");
        }
    }
}

/// How the engine ends in [`an_async_handler_can_end_the_engine_that_runs_it`].
#[derive(Debug, Clone, Copy)]
struct Ending {
    progress: Progress,
    /// Its last handle is dropped; else it is closed.
    by_drop: bool,
    /// The handler never ends.
    goes_on: bool,
}

#[test]
fn an_async_handler_can_end_the_engine_that_runs_it() {
    let ways =
        [(Progress::Background, true), (Progress::Background, false), (Progress::Own, false)];
    for (progress, by_drop) in ways {
        for goes_on in [false, true] {
            end_in_handler(Ending { progress, by_drop, goes_on });
        }
    }
}

fn end_in_handler(how: Ending) {
    let plugin = Mem::default();
    let builder = || builder().plugin(plugin.clone());
    let target = builder().progress(how.progress).listen(true).open("mem://").unwrap();
    let origin = builder().open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let (last, living) = (Arc::new(Mutex::new(Some(target.clone()))), Arc::new(()));
    let (handle, alive) = (Arc::clone(&last), Arc::downgrade(&living));
    let serve = move |_: Request, ()| {
        let (handle, living) = (Arc::clone(&handle), Arc::clone(&living));
        async move {
            let engine: Option<Engine> = handle.lock().unwrap().take();
            if !how.by_drop {
                engine.iter().for_each(Engine::close);
            }
            drop(engine);
            if how.goes_on {
                std::future::pending::<()>().await;
            }
            drop(living);
            Ok(String::new())
        }
    };
    target.serve_async(nested, serve).unwrap();
    let target = Some(target).filter(|_| !how.by_drop);
    let mut call = origin.call(nested, &peer, ());
    let error = loop {
        if let Some(target) = &target {
            target.progress(Duration::ZERO);
        }
        if let Some(outcome) = call.try_wait() {
            break outcome.unwrap_err();
        }
    };
    assert!(matches!(error, CallError::PeerGone { .. }), "{how:?}: {error}");
    drop(target);
    let start = Instant::now();
    while alive.strong_count() > 0 {
        in_time!(start, "{how:?}: the handler or its future is never dropped");
        thread::yield_now();
    }
}

#[test]
fn closing_ends_what_is_under_way_and_closing_again_does_nothing() {
    for progress in [Progress::Background, Progress::Own] {
        let (target, origin, peer, _) = pair(builder().progress(progress));
        let other = origin.clone();
        let waiting = thread::scope(|scope| {
            let waiter = scope.spawn(|| origin.call(never, &peer, ()).wait().unwrap_err());
            while target.requests_in_service() == 0 {
                thread::yield_now();
            }
            other.close();
            waiter.join().unwrap()
        });
        assert!(matches!(waiting, CallError::Closed), "{waiting}");
        origin.close();
        let error = origin.call(add, &peer, (1, 2)).wait().unwrap_err();
        assert!(matches!(error, CallError::Closed), "{error}");
        assert!(matches!(origin.notify(count, &peer, (1,)).accepted(), Err(CallError::Closed)));
        assert!(origin.lookup(target.address()).is_err());
        assert!(!origin.progress(Duration::ZERO));
    }
}

#[test]
fn peers_of_a_closed_engine_are_told_although_a_handle_is_left() {
    let (target, origin, peer, _) = pair(builder());
    let call = origin.call(never, &peer, ());
    while target.requests_in_service() == 0 {
        thread::yield_now();
    }
    target.close();
    let error = call.wait().unwrap_err();
    assert!(matches!(error, CallError::PeerGone { .. }), "{error}");
    for _ in 0..2 {
        let error = origin.call(add, &peer, (1, 2)).wait().unwrap_err();
        assert!(matches!(error, CallError::PeerGone { started: Started::No, .. }), "{error}");
        assert!(error.to_string().contains("look the address up again"), "{error}");
    }
}

#[test]
fn a_handler_can_close_the_engine_that_runs_it() {
    for own in [false, true] {
        let (target, origin, peer, _) = pair(builder());
        let handle = target.clone();
        let close = move |request: &Request, ()| {
            if own {
                request.engine().close()
            } else {
                handle.close()
            }
            Ok(String::new())
        };
        target.serve(nested, close).unwrap();
        let error = origin.call(nested, &peer, ()).wait().unwrap_err();
        assert!(matches!(error, CallError::PeerGone { .. }), "{error}");
    }
}

#[test]
fn a_looked_up_peer_is_shown_by_its_address() {
    let (target, origin, peer, _) = pair(builder());
    assert_eq!(origin.address_of(&peer).as_ref(), Some(target.address()));
    assert_eq!(target.address_of(&peer), None, "another engine's");
    origin.forget(peer);
    assert_eq!(origin.address_of(&peer), None);
}
