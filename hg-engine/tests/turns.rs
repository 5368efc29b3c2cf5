//! Threads that hand progress over to one another, calls that borrow nothing, and arguments written in place.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_core::error::CallError;
use hg_engine::{Answer, Builder, Engine, OwnedCall, Peer, Progress, Request, Wait};
use hg_na_conformance::Mem;

mod hg;

use hg_macros::rpc;
use watchdog::{LIMIT, in_time};

#[rpc(crate = crate::hg)]
fn twice(number: u64) -> u64 {
    2 * number
}

#[rpc(crate = crate::hg)]
fn filled(len: u64) -> Vec<u8> {
    vec![7; usize::try_from(len).unwrap()]
}

#[rpc(crate = crate::hg)]
fn forward(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn checked(number: u64, bytes: &[u8]) -> u64;

/// A target that makes its own progress, and an origin whose progress is the test's.
fn pair() -> (Engine, Engine, Peer) {
    let plugin = Mem::default();
    let target = Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    let builder = Builder::new().plugin(plugin).progress(Progress::Own).wait(Wait::Block);
    let origin = builder.open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    (target, origin, peer)
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Ends its engine when it is woken: by closing it, if it is not the last one to have a handle of it.
struct Ends(Mutex<Option<Engine>>, mpsc::Sender<bool>);

impl Wake for Ends {
    fn wake(self: Arc<Self>) {
        let engine = self.0.lock().unwrap().take().unwrap();
        // It cannot wait: the thread that wakes it is the one that makes progress.
        let address = engine.address().clone();
        let itself = engine.lookup(address).unwrap();
        let told = engine.call(twice, &itself, (1,)).wait();
        engine.close();
        drop(engine);
        self.1.send(matches!(told, Err(CallError::WouldDeadlock))).unwrap();
    }
}

#[test]
fn a_waker_may_end_the_engine_whose_progress_wakes_it() {
    for progress in [Progress::Background, Progress::Own] {
        let plugin = Mem::default();
        let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block);
        let target = builder().listen(true).progress(Progress::Own).open("mem://").unwrap();
        let origin = builder().progress(progress).open("mem://").unwrap();
        target.register(twice).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        let mut call: OwnedCall<twice> = origin.call_owned(twice, &peer, (21,));
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::from(Arc::new(Ends(Mutex::new(Some(origin.clone())), sender)));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut call).poll(&mut context).is_pending());
        drop(waker);
        // The background thread wakes the last one to have a handle; else this one has another.
        let origin = Some(origin).filter(|_| progress == Progress::Own);
        let start = Instant::now();
        let is_told = loop {
            target.progress(Duration::ZERO);
            if let Some(origin) = &origin {
                origin.progress(Duration::ZERO);
            }
            match receiver.try_recv() {
                Ok(is_told) => break is_told,
                Err(_) => in_time!(start, "{progress:?}: it is stuck"),
            }
        };
        assert!(is_told, "{progress:?}");
        let outcome = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(outcome) = outcome else { panic!("{progress:?}: it goes on") };
        assert!(matches!(outcome, Ok(42) | Err(CallError::Closed)), "{progress:?}: {outcome:?}");
    }
}

/// Answers when it is woken, as a task does that is polled at once or dropped with its last waker.
struct Gives(Mutex<Option<Answer<forward>>>);

impl Wake for Gives {
    fn wake(self: Arc<Self>) {
        let answer = self.0.lock().unwrap().take();
        answer.unwrap().send(Ok(8));
    }
}

#[test]
fn who_is_woken_by_a_cancellation_may_answer_at_once() {
    for closes in [false, true] {
        let (target, origin, peer) = pair();
        let (sender, receiver) = mpsc::channel();
        // Still awaited, by nobody who would poll it.
        let serve = move |request: &Request, _: (u64,), answer: Answer<forward>| {
            let waker = Waker::from(Arc::new(Gives(Mutex::new(Some(answer)))));
            let request = request.clone();
            let mut cancelled = Box::pin(async move { request.cancelled().await });
            assert!(cancelled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            sender.send(cancelled).unwrap();
        };
        target.serve_later(forward, serve).unwrap();
        let call = origin.call(forward, &peer, (7,));
        let _awaited = loop {
            if let Ok(awaited) = receiver.try_recv() {
                break awaited;
            }
            origin.progress(Duration::ZERO);
        };
        if closes {
            target.close();
        } else {
            call.cancel();
        }
        let start = Instant::now();
        while target.requests_in_service() > 0 {
            origin.progress(Duration::ZERO);
            in_time!(start, "it was never answered");
        }
    }
}

#[test]
fn a_handler_has_no_turn() {
    let (target, origin, peer) = pair();
    let serve = |request: Request, (number,): (u64,)| async move {
        Ok(number + u64::from(request.engine().progress(LIMIT)))
    };
    target.serve_async(forward, serve).unwrap();
    assert_eq!(origin.call(forward, &peer, (7,)).wait().unwrap(), 7);
}

#[test]
fn a_call_that_borrows_nothing_wakes_who_polled_it_and_is_taken_once() {
    let (target, origin, peer) = pair();
    target.register(twice).unwrap();
    target.register(filled).unwrap();
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let mut calls: Vec<OwnedCall<twice>> =
        (0..10).map(|number| origin.call_owned(twice, &peer, (number,))).collect();
    for (number, call) in (0..).zip(&mut calls) {
        let result = loop {
            match call.poll_outcome(&mut context) {
                Poll::Ready(result) => break result,
                Poll::Pending => {
                    while !flag.0.swap(false, Ordering::SeqCst) {
                        origin.progress(LIMIT);
                    }
                }
            }
        };
        assert_eq!(result.unwrap(), 2 * number);
        let again = || call.try_wait().map(drop);
        let panicked = panic::catch_unwind(AssertUnwindSafe(again)).unwrap_err();
        let said = panicked.downcast_ref::<&str>().unwrap();
        assert!(said.starts_with("the outcome was taken before"), "{said}");
    }
    // Longer than a message.
    let mut call = origin.call_owned(filled, &peer, (3_000_000,));
    let bytes = loop {
        match call.poll_outcome(&mut context) {
            Poll::Ready(result) => break result.unwrap(),
            Poll::Pending => {
                origin.progress(Duration::from_millis(10));
            }
        }
    };
    assert!(bytes.len() == 3_000_000 && bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_call_that_borrows_nothing_is_cancelled_when_it_is_dropped_and_fails_when_its_engine_closes() {
    let (target, origin, peer) = pair();
    let (saying, said) = mpsc::channel();
    target
        .serve_blocking(forward, move |request, _| {
            saying.send(()).unwrap();
            while !request.is_cancelled() {
                thread::yield_now();
            }
            saying.send(()).unwrap();
            Ok(0)
        })
        .unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let call = origin.call_owned(forward, &peer, (1,));
    let until_said = || {
        let begin = Instant::now();
        while said.try_recv().is_err() {
            origin.progress(Duration::from_millis(1));
            in_time!(begin);
        }
    };
    until_said();
    drop(call);
    until_said();
    let mut call = origin.call_owned(forward, &peer, (1,));
    assert!(call.poll_outcome(&mut context).is_pending());
    origin.close();
    let ended = call.poll_outcome(&mut context);
    assert!(matches!(ended, Poll::Ready(Err(CallError::Closed))), "{ended:?}");
}

#[test]
fn a_handler_begins_a_call_that_somebody_else_finishes() {
    let (target, origin, peer) = pair();
    target.register(twice).unwrap();
    let (begun, calls) = mpsc::channel();
    let caller = origin.clone();
    let server = Builder::new().plugin(Mem::default()).listen(true).open("mem://").unwrap();
    server
        .serve(forward, move |_, (number,)| {
            let mut call = caller.call_owned(twice, &peer, (number,));
            let polled = call.poll_outcome(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "nobody makes progress yet: {polled:?}");
            begun.send(call).unwrap();
            Ok(number)
        })
        .unwrap();
    let own = server.lookup(server.address()).unwrap();
    assert_eq!(server.call(forward, &own, (21,)).wait().unwrap(), 21);
    let mut call = calls.recv().unwrap();
    let result = loop {
        match call.poll_outcome(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => break result,
            Poll::Pending => {
                origin.progress(Duration::from_millis(10));
            }
        }
    };
    assert_eq!(result.unwrap(), 42);
}

#[test]
fn progress_that_is_interrupted_ends_whether_it_sleeps_or_has_not_begun() {
    let (_target, origin, _peer) = pair();
    origin.interrupt_progress();
    assert!(!origin.progress(LIMIT), "the interrupt came first");
    for _ in 0..100 {
        let sleeper = origin.clone();
        let thread = thread::spawn(move || sleeper.progress(LIMIT));
        origin.interrupt_progress();
        assert!(!thread.join().unwrap());
    }
}

#[test]
fn threads_take_turns_at_progress_by_interrupting_each_other() {
    const TURNS: u32 = 300;
    let (_target, origin, _peer) = pair();
    let turns = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while turns.fetch_add(1, Ordering::Relaxed) < TURNS {
                    // Whoever sleeps in its turn lets this thread have its own, which the next one ends.
                    origin.interrupt_progress();
                    origin.progress(Duration::from_millis(1));
                }
                origin.interrupt_progress();
            });
        }
    });
    assert!(turns.load(Ordering::Relaxed) >= TURNS);
}

fn finished<R: hg_core::rpc::Rpc>(
    origin: &Engine,
    mut call: OwnedCall<R>,
) -> Result<R::Output, CallError<R::Error>> {
    loop {
        match call.poll_outcome(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => return result,
            Poll::Pending => {
                origin.progress(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn arguments_that_were_written_in_place_arrive_whatever_their_length() {
    let (target, origin, peer) = pair();
    target
        .serve(checked, |_, (number, bytes)| {
            Ok(bytes.iter().fold(number, |sum, byte| (sum * 31 + u64::from(*byte)) % 1_000_003))
        })
        .unwrap();
    let room = origin.room_in_place(checked, (0, &[]));
    if cfg!(feature = "postcard") {
        return assert_eq!(room, None, "the length of its byte strings has no fixed place");
    }
    let room = room.unwrap();
    assert_eq!(origin.room_in_place(twice, (7,)), None, "its argument is no byte string");
    for len in [0, 1, 20, 100, 5000, 3_000_000] {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
        let message = [&vec![0xAA; room][..], &bytes].concat();
        let in_place = origin.call_in_place(checked, &peer, (5, &[]), message);
        let sum = finished(&origin, in_place).unwrap();
        let copied = origin.call_owned(checked, &peer, (5, &bytes));
        assert_eq!(sum, finished(&origin, copied).unwrap(), "{len} bytes");
    }
    let short = origin.call_in_place(checked, &peer, (5, &[]), vec![0; room - 1]);
    assert!(matches!(finished(&origin, short), Err(CallError::Decode(_))));
    let other = origin.call_in_place(twice, &peer, (5,), vec![0; 100]);
    assert!(matches!(finished(&origin, other), Err(CallError::Decode(_))));
}
