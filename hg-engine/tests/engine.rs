//! The engine over the in-process reference transport: every kind of handler, every way of progress, every
//! named failure. What needs processes is tested by the facade.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_core::error::{CallError, Started};
use hg_engine::{Builder, CallOptions, Engine, Progress, Wait};
use hg_na_conformance::Mem;

mod hg;

use hg_macros::rpc;
use watchdog::hear;

#[rpc(crate = crate::hg)]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[rpc(crate = crate::hg)]
fn divide(a: i64, b: i64) -> Result<i64, String> {
    a.checked_div(b).ok_or_else(|| format!("{a} cannot be divided by {b}"))
}

#[rpc(crate = crate::hg)]
fn reverse(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[rpc(crate = crate::hg)]
fn explode() {
    panic!("on purpose");
}

#[rpc(crate = crate::hg)]
async fn add_later(a: i64, b: i64) -> i64 {
    let (sender, receiver) = oneshot();
    thread::spawn(move || sender.send(a + b));
    receiver.await
}

#[rpc(crate = crate::hg, blocking)]
fn add_blocking(a: i64, b: i64) -> i64 {
    a + b
}

#[rpc(crate = crate::hg)]
fn unknown() -> u32;

#[rpc(crate = crate::hg)]
fn never() -> u32;

#[rpc(crate = crate::hg)]
fn count(by: u64);

/// A value that a future waits for.
fn oneshot() -> (Oneshot, Oneshot) {
    let shared: Oneshot = Oneshot(Arc::default());
    (shared.clone(), shared)
}

#[derive(Clone)]
struct Oneshot(Arc<std::sync::Mutex<(Option<i64>, Option<std::task::Waker>)>>);

impl Oneshot {
    fn send(&self, value: i64) {
        let mut state = self.0.lock().unwrap();
        state.0 = Some(value);
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

impl Future for Oneshot {
    type Output = i64;
    fn poll(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<i64> {
        let mut state = self.0.lock().unwrap();
        state.1 = Some(context.waker().clone());
        state.0.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    }
}

fn builder() -> Builder {
    Builder::new().plugin(Mem::default()).listen(true)
}

fn pair(wait: Wait) -> (Engine, Engine, hg_engine::Peer) {
    let plugin = Mem::default();
    let target =
        Builder::new().plugin(plugin.clone()).listen(true).wait(wait).open("mem://").unwrap();
    let origin = Builder::new().plugin(plugin).wait(wait).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    (target, origin, peer)
}

const WAITS: [Wait; 3] = [Wait::Block, Wait::Adaptive(Wait::ADAPTIVE_DEFAULT), Wait::Spin];

#[test]
fn a_call_gives_the_value_in_every_way_of_waiting() {
    for wait in WAITS {
        let (target, origin, peer) = pair(wait);
        target.register(add).unwrap();
        for number in 0..100 {
            assert_eq!(origin.call(add, &peer, (number, 1)).wait().unwrap(), number + 1);
        }
    }
}

#[test]
fn the_handlers_own_error_comes_back() {
    let (target, origin, peer) = pair(Wait::default());
    target.register(divide).unwrap();
    assert_eq!(origin.call(divide, &peer, (7, 2)).wait().unwrap(), 3);
    let error = origin.call(divide, &peer, (7, 0)).wait().unwrap_err();
    assert!(matches!(error, CallError::Handler(text) if text == "7 cannot be divided by 0"));
}

#[test]
fn payloads_up_to_the_transports_limit_travel() {
    let (target, origin, peer) = pair(Wait::default());
    target.register(reverse).unwrap();
    for len in [0, 1, 20, 100, 3000] {
        let bytes: Vec<u8> = (0..len).map(|at: usize| at.to_le_bytes()[0]).collect();
        let mut expected = bytes.clone();
        expected.reverse();
        assert_eq!(origin.call(reverse, &peer, (&bytes[..],)).wait().unwrap(), expected);
    }
}

#[test]
fn an_unknown_rpc_is_named_and_the_target_lives() {
    let (target, origin, peer) = pair(Wait::default());
    target.register(add).unwrap();
    let error = origin.call(unknown, &peer, ()).wait().unwrap_err();
    assert!(matches!(error, CallError::NoSuchRpc { name } if name.ends_with("unknown")));
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn a_panic_reaches_the_caller_and_the_target_lives() {
    let (target, origin, peer) = pair(Wait::default());
    target.register(add).unwrap();
    target.register(explode).unwrap();
    let error = origin.call(explode, &peer, ()).wait().unwrap_err();
    assert!(matches!(error, CallError::Panicked(text) if text == "on purpose"));
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn async_and_blocking_handlers_answer() {
    for wait in WAITS {
        let (target, origin, peer) = pair(wait);
        target.register(add_later).unwrap();
        target.register(add_blocking).unwrap();
        for _ in 0..20 {
            assert_eq!(origin.call(add_later, &peer, (1, 2)).wait().unwrap(), 3);
            assert_eq!(origin.call(add_blocking, &peer, (3, 4)).wait().unwrap(), 7);
        }
        assert_eq!(target.requests_in_service(), 0);
    }
}

#[test]
fn an_answer_can_be_given_later_and_dropping_it_is_an_answer() {
    let (target, origin, peer) = pair(Wait::Block);
    let (sender, receiver) = mpsc::channel::<hg_engine::Answer<never>>();
    target.serve_later(never, move |_, (), answer| sender.send(answer).unwrap()).unwrap();
    let call = origin.call(never, &peer, ());
    receiver.recv().unwrap().send(Ok(5));
    assert_eq!(call.wait().unwrap(), 5);
    let call = origin.call(never, &peer, ());
    drop(receiver.recv().unwrap());
    assert!(matches!(call.wait().unwrap_err(), CallError::Rejected(_)));
}

#[test]
fn a_deadline_ends_a_call_and_the_handler_sees_the_cancellation() {
    let (target, origin, peer) = pair(Wait::Block);
    let (sender, receiver) = mpsc::channel();
    target
        .serve_async(never, move |request, ()| {
            let sender = sender.clone();
            async move {
                assert!(request.deadline().is_some());
                request.cancelled().await;
                sender.send(()).unwrap();
                Ok(0)
            }
        })
        .unwrap();
    let begun = Instant::now();
    let options = CallOptions::within(Duration::from_millis(30));
    let error = origin.call_with(never, &peer, (), options).wait().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded(Started::Unknown)), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(30));
    hear(&receiver);
}

#[test]
fn a_handler_passes_on_what_is_left_of_its_time() {
    let (target, origin, peer) = pair(Wait::Block);
    let (sender, receiver) = mpsc::channel();
    target
        .serve_later(never, move |request, (), answer| {
            sender.send(CallOptions::of(request).deadline).unwrap();
            answer.send(Ok(0));
        })
        .unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(origin.call_with(never, &peer, (), CallOptions::within(hour)).wait().unwrap(), 0);
    let left = receiver.recv().unwrap().unwrap();
    assert!(left <= hour && left > hour / 2, "{left:?} are left of an hour");
    assert_eq!(origin.call(never, &peer, ()).wait().unwrap(), 0);
    assert_eq!(receiver.recv().unwrap(), None, "there was no limit");
}

#[test]
fn a_waker_that_outlives_its_handler_disturbs_no_other_handler() {
    let (target, origin, peer) = pair(Wait::Block);
    let (wakers, kept) = mpsc::channel();
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    target
        .serve_async(never, move |_, ()| {
            let (wakers, counted) = (wakers.clone(), Arc::clone(&counted));
            let mut left = counted.fetch_add(1, Ordering::Relaxed) % 3;
            std::future::poll_fn(move |context| {
                wakers.send(context.waker().clone()).unwrap();
                if left == 0 {
                    return Poll::Ready(Ok(7));
                }
                left -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            })
        })
        .unwrap();
    let mut wakers = Vec::new();
    for _ in 0..30 {
        let call = origin.call(never, &peer, ());
        wakers.iter().for_each(Waker::wake_by_ref);
        assert_eq!(call.wait().unwrap(), 7);
        wakers.extend(kept.try_iter());
    }
    assert_eq!((polls.load(Ordering::Relaxed), wakers.len()), (30, 60));
}

#[test]
fn dropping_and_cancelling_a_call_tells_the_handler() {
    let (target, origin, peer) = pair(Wait::Block);
    let (sender, receiver) = mpsc::channel();
    let (started, seen) = mpsc::channel();
    target
        .serve_blocking(never, move |request, ()| {
            started.send(()).unwrap();
            while !request.is_cancelled() {
                thread::yield_now();
            }
            sender.send(()).unwrap();
            Ok(0)
        })
        .unwrap();
    let call = origin.call(never, &peer, ());
    hear(&seen);
    drop(call);
    hear(&receiver);
    let call = origin.call(never, &peer, ());
    hear(&seen);
    call.cancel();
    assert!(matches!(call.wait().unwrap_err(), CallError::Cancelled));
    hear(&receiver);
    while origin.calls_under_way() > 0 || target.requests_in_service() > 0 {
        thread::yield_now();
    }
}

#[test]
fn one_way_calls_arrive() {
    let (target, origin, peer) = pair(Wait::Block);
    let (sender, receiver) = mpsc::channel();
    target
        .serve(count, move |request, (by,)| {
            assert!(!request.wants_answer());
            sender.send(by).unwrap();
            Ok(())
        })
        .unwrap();
    origin.notify(count, &peer, (1,)).wait().unwrap();
    drop(origin.notify(count, &peer, (2,)));
    assert_eq!(hear(&receiver), 1);
    assert_eq!(hear(&receiver), 2);
}

#[test]
fn waiting_in_a_plain_handler_fails_at_once_and_a_nested_call_from_a_blocking_one_works() {
    let (target, origin, peer) = pair(Wait::default());
    target.register(add).unwrap();
    let nested = |request: &hg_engine::Request| {
        let engine = request.engine();
        let this = engine.lookup(engine.address()).unwrap();
        engine.call(add, &this, (20, 1)).wait()
    };
    target
        .serve(unknown, move |request, ()| {
            assert!(matches!(nested(request), Err(CallError::WouldDeadlock)));
            Ok(1)
        })
        .unwrap();
    target
        .serve_blocking(never, move |request, ()| {
            Ok(u32::try_from(nested(request).unwrap()).unwrap())
        })
        .unwrap();
    assert_eq!(origin.call(unknown, &peer, ()).wait().unwrap(), 1);
    assert_eq!(origin.call(never, &peer, ()).wait().unwrap(), 21);
}

#[test]
fn many_threads_share_an_engine() {
    for wait in [Wait::Block, Wait::default()] {
        let (target, origin, peer) = pair(wait);
        target.register(add).unwrap();
        let threads = 8;
        let start = Barrier::new(threads);
        thread::scope(|scope| {
            for thread in 0..threads {
                let (origin, start) = (&origin, &start);
                scope.spawn(move || {
                    start.wait();
                    let thread = i64::try_from(thread).unwrap();
                    for number in 0..500 {
                        assert_eq!(
                            origin.call(add, &peer, (thread, number)).wait().unwrap(),
                            thread + number
                        );
                    }
                });
            }
        });
        assert_eq!(origin.calls_under_way(), 0);
    }
}

#[test]
fn own_progress_drives_both_sides_by_hand() {
    let plugin = Mem::default();
    let open = || {
        Builder::new()
            .plugin(plugin.clone())
            .listen(true)
            .progress(Progress::Own)
            .open("mem://")
            .unwrap()
    };
    let (target, origin) = (open(), open());
    target.register(add).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let mut call = origin.call(add, &peer, (1, 2));
    let value = loop {
        target.progress(Duration::ZERO);
        origin.progress(Duration::ZERO);
        if let Some(value) = call.try_wait() {
            break value;
        }
    };
    assert_eq!(value.unwrap(), 3);
}

#[test]
fn more_requests_than_a_target_takes_wait_and_all_are_served() {
    let plugin = Mem::default();
    let target = Builder::new()
        .plugin(plugin.clone())
        .listen(true)
        .in_service_max(4)
        .open("mem://")
        .unwrap();
    let origin = Builder::new().plugin(plugin).open("mem://").unwrap();
    target.register(add_blocking).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let calls: Vec<_> =
        (0..2000).map(|number| origin.call(add_blocking, &peer, (number, 1))).collect();
    for (call, number) in calls.into_iter().zip(0..) {
        assert_eq!(call.wait().unwrap(), number + 1);
    }
}

#[test]
fn above_its_own_limit_a_target_rejects() {
    let plugin = Mem::default();
    let target =
        Builder::new().plugin(plugin.clone()).listen(true).reject_above(1).open("mem://").unwrap();
    let origin = Builder::new().plugin(plugin).open("mem://").unwrap();
    let (sender, receiver) = mpsc::channel::<hg_engine::Answer<never>>();
    target.serve_later(never, move |_, (), answer| sender.send(answer).unwrap()).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let first = origin.call(never, &peer, ());
    let answer = receiver.recv().unwrap();
    let failure = origin.call(never, &peer, ()).wait().unwrap_err();
    assert!(matches!(failure, CallError::Overloaded(_)) && failure.is_retryable(), "{failure}");
    answer.send(Ok(1));
    assert_eq!(first.wait().unwrap(), 1);
}

#[test]
fn calls_to_a_target_that_closes_end_and_so_do_those_of_a_closed_engine() {
    let (target, origin, peer) = pair(Wait::Block);
    let taken = Arc::new(AtomicUsize::new(0));
    let answers = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (kept, counter) = (Arc::clone(&answers), Arc::clone(&taken));
    target
        .serve_later(never, move |_, (), answer| {
            kept.lock().unwrap().push(answer);
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    let call = origin.call(never, &peer, ());
    while taken.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    drop(target);
    let error = call.wait().unwrap_err();
    assert!(matches!(error, CallError::PeerGone { started: Started::Unknown, .. }), "{error}");
    let error = origin.call(never, &peer, ()).wait().unwrap_err();
    assert!(matches!(error, CallError::PeerGone { started: Started::No, .. }), "{error}");
}

#[test]
fn checksums_are_answered_with_checksums() {
    let plugin = Mem::default();
    let target = Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    let origin = Builder::new().plugin(plugin).checksum(true).open("mem://").unwrap();
    target.register(reverse).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(reverse, &peer, (b"abc",)).wait().unwrap(), b"cba");
}

#[test]
fn opening_says_what_is_wrong() {
    let error = builder().open("nothing://").unwrap_err();
    assert!(error.to_string().contains("takes `nothing://`: there are: mem"), "{error}");
    assert!(builder().open("mem").is_err());
    assert!(builder().contexts(0).open("mem://").is_err());
}

#[test]
fn a_peer_is_refused_by_another_engine_than_its_own() {
    let (target, origin, peer) = pair(Wait::Block);
    target.register(add).unwrap();
    let (_other_target, other, _) = pair(Wait::Block);
    let error = other.call(add, &peer, (1, 2)).wait().unwrap_err();
    assert!(matches!(error, CallError::NotMade(hg_na::Error::UnknownPeer)), "{error}");
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn a_deadline_beyond_all_time_is_none() {
    let (target, origin, peer) = pair(Wait::Block);
    target.register(add).unwrap();
    let options = CallOptions::within(Duration::MAX);
    assert_eq!(origin.call_with(add, &peer, (1, 2), options).wait().unwrap(), 3);
}

#[test]
fn limits_by_which_nothing_is_ever_done_are_refused() {
    let refused = [
        ("calls_max", Builder::new().calls_max(0)),
        ("in_service_max", Builder::new().in_service_max(0)),
        ("pool_threads_max", Builder::new().pool_threads_max(0)),
    ];
    for (limit, builder) in refused {
        let said = builder.plugin(Mem::default()).open("mem://").unwrap_err().to_string();
        assert!(said.contains(limit) && said.contains("at least 1"), "{said}");
    }
}
