//! Deadline and checksum are options of calls of every kind and length. Over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hg_core::{
    error::{CallError, Started},
    header::Header,
};
use hg_engine::{Builder, CallOptions, Engine, OwnedCall, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::{Address, Context, Error, Op, OpId, Rejected, Token};
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};
use watchdog::{LIMIT, in_time, until};

mod hg;

#[rpc(crate = crate::hg)]
fn length(number: u64, bytes: &[u8]) -> u64 {
    number + bytes.len() as u64
}

#[rpc(crate = crate::hg)]
fn never() -> u64;

const SOON: Duration = Duration::from_millis(20);

/// Whether each request had a deadline, and a checksum.
type Seen = Arc<Mutex<Vec<(bool, bool)>>>;

#[derive(Debug, Clone, Default)]
struct Watching {
    seen: Seen,
    /// Takes no requests.
    is_full: Arc<AtomicBool>,
}

impl Layers for Watching {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Layer for Watching {
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Op::SendUnexpected { message, .. } = &op {
            if self.is_full.load(Ordering::SeqCst) {
                return Err(Rejected { error: Error::Again, op });
            }
            let (header, _) = Header::decode(message.as_slice()).unwrap();
            self.seen.lock().unwrap().push((header.remaining_ns.is_some(), header.checksum));
        }
        inner.post(token, op)
    }
}

struct Pair {
    target: Engine,
    origin: Engine,
    peer: Peer,
    watching: Watching,
}

impl Pair {
    fn new(checksum: bool, progress: Progress) -> Self {
        let (plugin, watching) = (Mem::default(), Watching::default());
        let builder = || Builder::new().wait(Wait::Block).listen(true);
        let target = builder().plugin(plugin.clone()).progress(progress);
        let target = target.open("mem://").unwrap();
        let origin = builder().plugin(Layered::new(plugin, watching.clone())).checksum(checksum);
        let origin = origin.open("mem://").unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        Self { target, origin, peer, watching }
    }

    /// What the last request had.
    fn seen(&self) -> (bool, bool) {
        self.watching.seen.lock().unwrap().pop().unwrap()
    }
}

/// The outcome of a call that borrows nothing.
fn outcome<R: hg_core::rpc::Rpc>(call: OwnedCall<R>) -> Result<R::Output, CallError<R::Error>> {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut call, mut context) = (call, std::task::Context::from_waker(&waker));
    let start = Instant::now();
    loop {
        if let std::task::Poll::Ready(outcome) = call.poll_outcome(&mut context) {
            return outcome;
        }
        in_time!(start, "the call does not end");
        thread::park_timeout(LIMIT);
    }
}

#[test]
fn every_kind_of_call_takes_a_deadline_and_a_checksum() {
    for checksum in [false, true] {
        let pair = Pair::new(checksum, Progress::Background);
        let Pair { target, origin, peer, .. } = &pair;
        target.register(length).unwrap();
        let within = CallOptions::within(LIMIT);
        let none = CallOptions::default();
        let cases = [
            (none, (false, checksum)),
            (none.with_checksum(true), (false, true)),
            (none.with_checksum(false), (false, false)),
            (within, (true, checksum)),
            (within.with_checksum(!checksum), (true, !checksum)),
        ];
        for (options, expected) in cases {
            for len in [0, 8, 300, 5_000, 300_000] {
                let bytes = vec![7; len];
                let sum = 3 + len as u64;
                let call = origin.call_with(length, peer, (3, &bytes), options);
                assert_eq!((call.wait().unwrap(), pair.seen()), (sum, expected));
                let call = origin.call_owned_with(length, peer, (3, &bytes), options);
                assert_eq!((outcome(call).unwrap(), pair.seen()), (sum, expected));
                origin.notify_with(length, peer, (3, &bytes), options).wait().unwrap();
                assert_eq!(pair.seen(), expected);
                if cfg!(feature = "postcard") {
                    continue; // The length of its byte strings has no fixed place.
                }
                let room = origin.room_in_place_with(length, (3, &[]), options).unwrap();
                let message = [vec![0; room], bytes].concat();
                let call = origin.call_in_place_with(length, peer, (3, &[]), message, options);
                assert_eq!((outcome(call).unwrap(), pair.seen()), (sum, expected));
            }
        }
    }
}

#[test]
fn a_call_that_borrows_nothing_ends_at_its_deadline() {
    let pair = Pair::new(false, Progress::Background);
    let serve = |request: Request, (): ()| async move {
        assert!(request.deadline().is_some());
        request.cancelled().await;
        Ok(0)
    };
    pair.target.serve_async(never, serve).unwrap();
    let options = CallOptions::within(SOON);
    let error = outcome(pair.origin.call_owned_with(never, &pair.peer, (), options)).unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded(Started::Unknown)), "{error:?}");
    until("the handler is told", || pair.target.requests_in_service() == 0);
    // No time is too little.
    let none = CallOptions::within(Duration::ZERO);
    let error = outcome(pair.origin.call_owned_with(never, &pair.peer, (), none)).unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded(Started::No)), "{error:?}");
}

#[test]
fn a_one_way_call_that_finds_no_room_ends_at_its_deadline() {
    let pair = Pair::new(false, Progress::Background);
    pair.watching.is_full.store(true, Ordering::SeqCst);
    let options = CallOptions::within(SOON);
    for len in [8, 300_000] {
        let bytes = vec![7; len];
        let call = pair.origin.notify_with(length, &pair.peer, (3, &bytes), options);
        let error = call.wait().unwrap_err();
        assert!(matches!(error, CallError::DeadlineExceeded(Started::No)), "{error:?}");
        // Nobody looks at this one.
        drop(pair.origin.notify_with(length, &pair.peer, (3, &bytes), options));
    }
    until("none is left", || pair.origin.calls_under_way() == 0);
    until("no arguments are left", || pair.origin.large_untaken() == 0);
}

#[test]
fn arguments_that_nobody_takes_are_kept_until_their_deadline() {
    // It makes no progress.
    let pair = Pair::new(false, Progress::Own);
    let bytes = vec![7; 300_000];
    let notify = |options| pair.origin.notify_with(length, &pair.peer, (3, &bytes), options);
    notify(CallOptions::within(LIMIT)).wait().unwrap();
    notify(CallOptions::default()).wait().unwrap();
    for _ in 0..10 {
        notify(CallOptions::within(SOON)).wait().unwrap();
    }
    until("arguments are kept for ever", || pair.origin.large_untaken() == 2);
    // The others are served, all the same.
    pair.target.register(length).unwrap();
    until("the rest is taken", || {
        pair.target.progress(Duration::ZERO);
        pair.origin.large_untaken() == 0 && pair.target.requests_in_service() == 0
    });
}
