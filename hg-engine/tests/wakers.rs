//! Wakers and other things of users' that use the engine when they are cloned, woken or dropped, or that panic: over the
//! in-process reference transport. What stands still is found by a watchdog.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    panic::panic_any,
    pin::{Pin, pin},
    ptr::null,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use hg_bulk::TransferError;
use hg_core::{error::CallError, rpc::Rpc};
use hg_engine::{Answer, Builder, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::{Memory, Rights, Segment};
use hg_na_conformance::Mem;
use watchdog::{Watchdog, until};

mod hg;

#[rpc(crate = crate::hg)]
fn twice(number: u64) -> u64 {
    2 * number
}

#[rpc(crate = crate::hg)]
fn long() -> Vec<u8> {
    vec![3; 1 << 20]
}

/// Its requests are kept until somebody takes them.
#[rpc(crate = crate::hg)]
fn kept(number: u64) -> u64;

/// Runs it in a thread of its own, which must come to its end.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let _watchdog = Watchdog::start();
    thread::spawn(run).join().unwrap()
}

fn target(plugin: &Mem, progress: Progress) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).progress(progress);
    let target = builder.eager_max(0).listen(true).open("mem://").unwrap();
    target.register(twice).unwrap();
    target.register(long).unwrap();
    target
}

/// What the wakers of this test call, and whatever else has to be able to.
static USED: OnceLock<(Engine, Peer)> = OnceLock::new();
static USES: AtomicUsize = AtomicUsize::new(0);

/// Uses the engine: asks for its lock, calls, and drops a call.
fn use_engine() {
    let Some((engine, peer)) = USED.get() else { return };
    USES.fetch_add(1, Ordering::Relaxed);
    let mut call = engine.call(twice, peer, (1,));
    assert!(Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn advise(_: &str, _: &[String]) -> Option<String> {
    use_engine();
    None
}

/// Cloned, woken and dropped, it uses the engine.
static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, used, used, used);

fn clone(data: *const ()) -> RawWaker {
    used(data);
    RawWaker::new(data, &VTABLE)
}

fn used(_: *const ()) {
    use_engine();
}

#[expect(unsafe_code, reason = "a waker that does something when it is cloned")]
fn meddler() -> Waker {
    // SAFETY:
    // - the functions use no data, and any thread may run them.
    unsafe { Waker::new(null(), &VTABLE) }
}

/// Uses the engine when it is dropped.
struct Meddles;

impl Drop for Meddles {
    fn drop(&mut self) {
        use_engine();
    }
}

#[expect(unsafe_code, reason = "memory with a keeper of its own")]
fn kept_memory() -> Memory {
    let bytes = vec![0_u8; 64].leak();
    let segment = Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
    // SAFETY:
    // - the bytes live for ever, and nobody else has them.
    unsafe { Memory::from_raw_parts(vec![segment], true, Arc::new(Meddles)) }
}

/// Polls it twice by the meddling waker, the second time by another one that replaces it.
fn polled<F: Future + Unpin>(mut future: F) -> F {
    for _ in 0..2 {
        let waker = meddler();
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    future
}

#[test]
fn wakers_memory_and_handlers_may_use_the_engine_when_they_are_cloned_woken_and_dropped() {
    in_time(|| {
        let plugin = Mem::default();
        let target = target(&plugin, Progress::Own);
        let builder = Builder::new().plugin(plugin).progress(Progress::Own).eager_max(0);
        let engine = builder.advice(advise).listen(true).open("mem://").unwrap();
        let peer = engine.lookup(target.address()).unwrap();
        assert!(USED.set((engine.clone(), peer)).is_ok());
        let settle = || while target.progress(Duration::ZERO) | engine.progress(Duration::ZERO) {};

        drop(polled(engine.call(twice, &peer, (1,))));
        drop(polled(engine.call_owned(twice, &peer, (1,))));
        drop(polled(engine.notify(twice, &peer, (1,))));
        let mut call = polled(engine.call(twice, &peer, (21,)));
        let mut one_way = polled(engine.notify(twice, &peer, (1,)));
        settle();
        let context = &mut Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut call).poll(context), Poll::Ready(Ok(42))));
        assert!(matches!(Pin::new(&mut one_way).poll(context), Poll::Ready(Ok(()))));

        let theirs = target.expose(vec![7; 64], Rights::READ).unwrap();
        for round in 0..3 {
            let ours = engine.expose(kept_memory(), Rights::empty()).unwrap();
            let mut pull = polled(engine.pull(&peer, theirs.descriptor(), &ours));
            drop(ours);
            match round {
                0 => drop(pull),
                1 => {
                    pull.cancel();
                    settle();
                    let end = Pin::new(&mut pull).poll(context);
                    assert!(matches!(end, Poll::Ready(Err(TransferError::Cancelled))), "{end:?}");
                }
                _ => loop {
                    settle();
                    if let Poll::Ready(pulled) = Pin::new(&mut pull).poll(context) {
                        break pulled.unwrap();
                    }
                },
            }
        }
        settle();
        assert_eq!((engine.transfers_under_way(), engine.calls_under_way()), (0, 0));
        assert!(engine.lookup("nowhere://x").is_err(), "and somebody was asked for advice");
        handlers(&target, &engine, settle);
        assert!(USES.load(Ordering::Relaxed) > 20, "each of them has used it");
    });
}

/// The same for handlers of the engine that is used, and for wakers that await a cancellation.
fn handlers(target: &Engine, engine: &Engine, settle: impl Fn()) {
    let context = &mut Context::from_waker(Waker::noop());
    let itself = target.lookup(engine.address()).unwrap();
    let keeper = Meddles;
    let serve = move |_: &Request, (number,): (u64,)| {
        let _: &Meddles = &keeper;
        Ok(number)
    };
    engine.serve(twice, serve).unwrap();
    let keeper = Meddles;
    let refused = move |_: &Request, (number,): (u64,)| {
        let _: &Meddles = &keeper;
        Ok(number)
    };
    assert!(engine.serve(twice, refused).is_err());
    let mut call = target.call(twice, &itself, (1,));
    settle();
    assert!(matches!(Pin::new(&mut call).poll(context), Poll::Ready(Ok(1))));
    // It goes in the next round that looks for a handler.
    assert!(engine.deregister(twice));
    let mut call = target.call(twice, &itself, (1,));
    settle();
    assert!(matches!(
        Pin::new(&mut call).poll(context),
        Poll::Ready(Err(CallError::NoSuchRpc { .. }))
    ));

    let (sender, receiver) = mpsc::channel();
    let serve = move |request: &Request, _: (u64,), answer: Answer<kept>| {
        sender.send((request.clone(), answer)).unwrap();
    };
    engine.serve_later(kept, serve).unwrap();
    for is_cancelled in [false, true] {
        let call = target.call(kept, &itself, (1,));
        settle();
        let (request, answer) = receiver.recv().unwrap();
        let dropped = request.clone();
        drop(polled(Box::pin(async move { dropped.cancelled().await })));
        let mut awaited = polled(Box::pin(async move { request.cancelled().await }));
        if is_cancelled {
            drop(call);
            settle();
            assert!(awaited.as_mut().poll(context).is_ready());
        }
        answer.send(Ok(1));
        settle();
        drop(awaited);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Panics with something that panics again.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic_any(Again);
    }
}

struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        panic!("the test's own panic");
    }
}

fn poll_panicking<F: Future + Unpin>(future: &mut F) {
    let waker = Waker::from(Arc::new(Panics));
    assert!(Pin::new(future).poll(&mut Context::from_waker(&waker)).is_pending());
}

#[test]
fn a_waker_that_panics_ends_nobodys_progress_and_keeps_no_other_from_being_woken() {
    for progress in [Progress::Background, Progress::Own] {
        in_time(move || {
            let plugin = Mem::default();
            // The test's, so that the answers come together.
            let target = target(&plugin, Progress::Own);
            let builder = Builder::new().plugin(plugin).wait(Wait::Block).progress(progress);
            let origin = builder.open("mem://").unwrap();
            let peer = origin.lookup(target.address()).unwrap();
            let mut first = origin.call_owned(twice, &peer, (1,));
            let second = origin.call_owned(twice, &peer, (2,));
            let mut third = origin.call_owned(twice, &peer, (3,));
            poll_panicking(&mut first);
            poll_panicking(&mut third);
            let waits = {
                let (origin, waits_itself) = (origin.clone(), progress == Progress::Own);
                thread::spawn(move || {
                    if waits_itself {
                        // This thread makes the progress that wakes the others.
                        assert_eq!(origin.call(twice, &peer, (4,)).wait().unwrap(), 8);
                    }
                    block_on(second)
                })
            };
            while !waits.is_finished() {
                target.progress(Duration::ZERO);
            }
            assert_eq!(waits.join().unwrap().unwrap(), 4);
            let goes_on = thread::spawn(move || {
                if progress == Progress::Own {
                    return origin.call(twice, &peer, (5,)).wait();
                }
                block_on(origin.call_owned(twice, &peer, (5,)))
            });
            while !goes_on.is_finished() {
                target.progress(Duration::ZERO);
            }
            assert_eq!(goes_on.join().unwrap().unwrap(), 10);
        });
    }
}

#[test]
fn a_waker_that_panics_keeps_no_target_from_serving_and_no_handler_from_being_told() {
    in_time(|| {
        let plugin = Mem::default();
        let target = target(&plugin, Progress::Background);
        let (sender, receiver) = mpsc::channel();
        let serve = move |request: &Request, _: (u64,), answer: Answer<kept>| {
            sender.send((request.clone(), answer)).unwrap();
        };
        target.serve_later(kept, serve).unwrap();
        let origin = Builder::new().plugin(plugin).open("mem://").unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        let awaited: Vec<_> = (0..3)
            .map(|number| {
                let call = origin.call(kept, &peer, (number,));
                let (request, answer) = receiver.recv().unwrap();
                let told = request.clone();
                let mut awaited = Box::pin(async move { request.cancelled().await });
                if number != 1 {
                    poll_panicking(&mut awaited);
                }
                drop(call);
                (awaited, told, answer)
            })
            .collect();
        for (awaited, told, answer) in awaited {
            block_on(awaited);
            assert!(told.is_cancelled());
            answer.send(Ok(1));
        }
        assert_eq!(origin.call(twice, &peer, (5,)).wait().unwrap(), 10);
    });
}

static CLONES: AtomicUsize = AtomicUsize::new(0);

/// Counts its clones.
static COUNTING: RawWakerVTable = RawWakerVTable::new(clone_counted, nothing, nothing, nothing);

fn clone_counted(data: *const ()) -> RawWaker {
    CLONES.fetch_add(1, Ordering::Relaxed);
    RawWaker::new(data, &COUNTING)
}

fn nothing(_: *const ()) {}

#[expect(unsafe_code, reason = "a waker that counts its clones")]
fn counting() -> Waker {
    // SAFETY:
    // - the functions use no data, and any thread may run them.
    unsafe { Waker::new(null(), &COUNTING) }
}

#[test]
fn a_waker_is_cloned_only_when_it_is_to_be_kept() {
    let plugin = Mem::default();
    let target = target(&plugin, Progress::Own);
    let builder = Builder::new().plugin(plugin).progress(Progress::Own);
    let origin = builder.open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let settle = || while target.progress(Duration::ZERO) | origin.progress(Duration::ZERO) {};
    let waker = counting();
    let context = &mut Context::from_waker(&waker);
    let clones = || CLONES.load(Ordering::Relaxed);

    let mut call = origin.call(twice, &peer, (21,));
    settle();
    assert!(matches!(Pin::new(&mut call).poll(context), Poll::Ready(Ok(42))));
    assert_eq!(clones(), 0, "the outcome was there");

    let mut call = origin.call(twice, &peer, (21,));
    for _ in 0..3 {
        assert!(Pin::new(&mut call).poll(context).is_pending());
    }
    assert_eq!(clones(), 1);
    settle();
    assert!(matches!(Pin::new(&mut call).poll(context), Poll::Ready(Ok(42))));
    assert_eq!(clones(), 1);

    let theirs = target.expose(vec![7; 64], Rights::READ).unwrap();
    let ours = origin.expose(vec![0; 64], Rights::empty()).unwrap();
    let mut pull = origin.pull(&peer, theirs.descriptor(), &ours);
    for _ in 0..3 {
        assert!(Pin::new(&mut pull).poll(context).is_pending());
    }
    assert_eq!(clones(), 2, "a transfer keeps one, too");
    // One that wakes the same otherwise is another one.
    let other = Waker::noop();
    assert!(other.data() == waker.data() && !other.will_wake(&waker));
    assert!(Pin::new(&mut pull).poll(&mut Context::from_waker(other)).is_pending());
    assert!(Pin::new(&mut pull).poll(context).is_pending());
    assert_eq!(clones(), 3, "it was replaced, and is kept again");
    loop {
        settle();
        if let Poll::Ready(pulled) = Pin::new(&mut pull).poll(context) {
            break pulled.unwrap();
        }
    }
    assert_eq!(clones(), 3, "the same one is kept");
}

#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_look_at_a_call_leaves_whoever_has_polled_it_to_be_woken() {
    let plugin = Mem::default();
    let target = target(&plugin, Progress::Own);
    let origin = Builder::new().plugin(plugin).progress(Progress::Own).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let woken = Arc::<Counts>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let context = &mut Context::from_waker(&waker);
    let until_woken = |times| {
        until("it is woken", || {
            target.progress(Duration::ZERO);
            origin.progress(Duration::ZERO);
            woken.0.load(Ordering::Relaxed) == times
        });
    };

    let mut call = origin.call(twice, &peer, (21,));
    assert!(call.poll_outcome(context).is_pending());
    assert!(call.try_wait().is_none());
    until_woken(1);
    assert!(matches!(call.try_wait(), Some(Ok(42))));

    let mut call = origin.call(long, &peer, ());
    assert!(call.poll_outcome(context).is_pending());
    until_woken(2);
    assert!(call.poll_outcome(context).is_pending(), "the result is pulled");
    assert!(call.try_wait().is_none());
    until_woken(3);
    assert_eq!(call.try_wait().unwrap().unwrap().len(), 1 << 20);
}

#[test]
fn a_call_that_is_cancelled_before_its_large_result_is_pulled_ends_so() {
    let plugin = Mem::default();
    let target = target(&plugin, Progress::Own);
    let origin = Builder::new().plugin(plugin).progress(Progress::Own).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let woken = Arc::<Counts>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let progress = || {
        target.progress(Duration::ZERO);
        origin.progress(Duration::ZERO);
    };

    let mut call = origin.call(long, &peer, ());
    assert_eq!(format!("{call:?}"), format!("Pending({}, under way)", long::NAME));
    assert!(call.poll_outcome(&mut Context::from_waker(&waker)).is_pending());
    until("it is answered", || {
        progress();
        woken.0.load(Ordering::Relaxed) == 1
    });
    call.cancel();
    let mut outcome = None;
    until("it ends", || {
        progress();
        outcome = call.try_wait();
        outcome.is_some()
    });
    assert!(matches!(outcome, Some(Err(CallError::Cancelled))), "{outcome:?}");
    until("the target keeps nothing", || {
        progress();
        target.large_untaken() == 0
    });
}
