//! What an engine keeps for others, and for those who wait, over transports and origins that do not behave.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context as Polling, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_core::{
    codec::{self, Codec as _},
    error::{CallError, Status},
    header::{Header, Kind},
    rpc::{NoError, Responder, Rpc, Serve, ServeKind, SignatureCell},
};
use hg_engine::{Answer, Builder, CallOptions, Engine, Progress, Request};
use hg_macros::rpc;
use hg_na::{
    Address, Completion, Context, Error, Frozen, Message, Op, OpId, OpenOptions, Peer, Plugin,
    Rejected, Returned, SharedBytes, Token, ViewState,
};
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};
use serde::{Deserialize, Serialize};
use watchdog::{LIMIT, Watchdog, hear, in_time, until};

mod hg;

#[rpc(crate = crate::hg)]
fn make(len: u64) -> Vec<u8> {
    vec![5; usize::try_from(len).unwrap()]
}

#[rpc(crate = crate::hg)]
fn never();

/// Bytes that cannot be dropped.
#[derive(Serialize, Deserialize)]
struct Fragile(Vec<u8>);

impl Drop for Fragile {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic_any("bytes that cannot be dropped");
        }
    }
}

#[rpc(crate = crate::hg)]
fn take_fragile(bytes: Fragile);

#[rpc(crate = crate::hg)]
fn give_fragile(len: usize) -> Fragile {
    Fragile(vec![5; len])
}

/// What does not fit in a message of this transport.
const LARGE: u64 = 300_000;

/// Answers find no room at first, and no taker afterwards; on demand progress panics.
#[derive(Debug, Clone, Default)]
struct Unhelpful {
    answers: Arc<AtomicUsize>,
    panics: Arc<AtomicBool>,
    /// Whose answer found no room.
    refused: Option<Peer>,
}

impl Layers for Unhelpful {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Layer for Unhelpful {
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        if !matches!(op, Op::SendExpected { .. }) {
            return inner.post(token, op);
        }
        let error = match self.answers.fetch_add(1, Ordering::Relaxed) {
            0 => {
                self.refused = Some(op.peer());
                Error::Again
            }
            _ => Error::UnknownPeer,
        };
        Err(Rejected { op, error })
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        if self.panics.load(Ordering::Relaxed) {
            panic_any("a transport that is wrong");
        }
        let room = self.refused.take().map(|peer| Completion::Room { peer });
        let any = room.is_some();
        done.extend(room);
        Ok(inner.progress(now, done)? || any)
    }
}

fn stepped(plugin: impl Plugin + 'static) -> Builder {
    Builder::new().plugin(plugin).progress(Progress::Own).listen(true)
}

#[test]
fn a_large_result_that_finds_no_taker_in_a_later_round_is_not_kept() {
    let (plugin, unhelpful) = (Mem::default(), Unhelpful::default());
    let layered = Layered::new(plugin.clone(), unhelpful.clone());
    let target = stepped(layered).open("mem://").unwrap();
    target.register(make).unwrap();
    let origin = stepped(plugin).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let call = origin.call(make, &peer, (LARGE,));
    // Its first try is in the round that runs the handler.
    while unhelpful.answers.load(Ordering::Relaxed) == 0 {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
    }
    assert_eq!(target.large_untaken(), 1, "it waits for room");
    drop(origin.notify(never, &peer, ()));
    while unhelpful.answers.load(Ordering::Relaxed) == 1 {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
    }
    assert_eq!(target.large_untaken(), 0);
    drop(call);
}

/// An origin that is not an engine.
struct Raw {
    context: Box<dyn Context>,
    peer: hg_na::Peer,
}

impl Raw {
    fn new(plugin: &Mem, target: &Engine) -> Self {
        let address = Address::new("mem://").unwrap();
        let domain = plugin.open(&address, &OpenOptions::default()).unwrap();
        let mut context = domain.context(0).unwrap();
        let peer = context.lookup(target.address()).unwrap();
        Self { context, peer }
    }

    fn send(&mut self, header: Header, payload: &[u8]) {
        let start = header.encoded_len();
        let mut bytes = vec![0; start + payload.len()];
        bytes[start..].copy_from_slice(payload);
        header.encode(&mut bytes);
        let message = Message::copied(&bytes);
        let op = match header.kind {
            Kind::Request => Op::SendUnexpected { to: self.peer, message },
            _ => Op::SendControl { to: self.peer, message },
        };
        self.context.post(0, op).unwrap();
    }

    /// Asks for a large result.
    fn ask(&mut self, id: u64) {
        let mut arguments = [0; 8];
        codec::Default::encode(&(LARGE,), &mut arguments).unwrap();
        let len = codec::Default::size(&(LARGE,)).unwrap();
        self.context.post(0, Op::RecvExpected { from: self.peer, tag: id }).unwrap();
        self.send(Header::request(Kind::Request, id, make::wire_id()), &arguments[..len]);
    }

    /// The status of the next answer.
    fn answer(&mut self, target: &Engine) -> Option<Status> {
        let mut done = Vec::new();
        loop {
            target.progress(Duration::ZERO);
            self.context.progress(Instant::now(), &mut done).unwrap();
            for completion in done.drain(..) {
                if let Completion::Done(done) = completion
                    && let Returned::Message(answer) = done.returned
                    && !answer.as_slice().is_empty()
                    && let Ok((header, _)) = Header::decode(answer.as_slice())
                    && header.kind == Kind::Answer
                {
                    return Status::from_wire(header.code);
                }
            }
        }
    }
}

#[test]
fn results_of_an_id_that_was_used_twice_count_once() {
    let plugin = Mem::default();
    let builder = stepped(plugin.clone()).large_in_service_max(4 * LARGE + 1_000);
    let target = builder.open("mem://").unwrap();
    target.register(make).unwrap();
    let mut origin = Raw::new(&plugin, &target);
    for _ in 0..2 {
        origin.ask(1);
        assert_eq!(origin.answer(&target), Some(Status::Ok));
    }
    assert_eq!(target.large_untaken(), 1);
    origin.send(Header::control(Kind::ResultTaken, 1), &[]);
    // Both fit into the share of one origin, for nothing else is kept.
    for id in [2, 3] {
        origin.ask(id);
        assert_eq!(origin.answer(&target), Some(Status::Ok));
    }
    assert_eq!(target.large_untaken(), 2);
}

#[test]
fn an_origin_that_uses_the_id_of_a_running_request_again_is_disconnected() {
    let plugin = Mem::default();
    let target = stepped(plugin.clone()).open("mem://").unwrap();
    let cancelled = |request: Request, ()| async move {
        request.cancelled().await;
        Ok(())
    };
    target.serve_async(never, cancelled).unwrap();
    let mut origin = Raw::new(&plugin, &target);
    let (mut done, start) = (Vec::new(), Instant::now());
    while !done.iter().any(|it| matches!(it, Completion::HungUp { .. })) {
        if target.requests_in_service() < 2 {
            origin.send(Header::request(Kind::Request, 1, never::wire_id()), &[]);
        }
        target.progress(Duration::ZERO);
        done.clear();
        origin.context.progress(start, &mut done).unwrap();
        in_time!(start, "it is connected still");
    }
    while target.requests_in_service() > 0 {
        target.progress(Duration::ZERO);
        in_time!(start, "a handler is left");
    }
}

struct Tells(mpsc::Sender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _gone: Result<(), _> = self.0.send(());
    }
}

#[test]
fn an_engine_whose_background_thread_has_ended_is_closed_and_nobody_waits_for_it() {
    let (plugin, unhelpful) = (Mem::default(), Unhelpful::default());
    let target = stepped(plugin.clone()).open("mem://").unwrap();
    let layered = Layered::new(plugin, unhelpful.clone());
    let builder = Builder::new().plugin(layered).progress(Progress::Background);
    let origin = builder.open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let mut call = origin.call(never, &peer, ());
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Tells(sender)));
    let mut polling = Polling::from_waker(&waker);
    assert!(Pin::new(&mut call).poll(&mut polling).is_pending());
    unhelpful.panics.store(true, Ordering::Relaxed);
    // Ends the thread's sleep.
    drop(origin.notify(never, &peer, ()));
    hear(&woken);
    let outcome = Pin::new(&mut call).poll(&mut polling);
    assert!(matches!(outcome, Poll::Ready(Err(CallError::Closed))), "{outcome:?}");
    assert!(matches!(origin.call(never, &peer, ()).wait(), Err(CallError::Closed)));
}

/// Written by hand: what it says of itself is wrong.
#[derive(Clone, Copy)]
struct Wrong<const BLOCKS: bool>;

impl<const BLOCKS: bool> Rpc for Wrong<BLOCKS> {
    const NAME: &'static str = if BLOCKS { "wrong blocking" } else { "wrong plain" };
    type Args<'a> = (Vec<u8>,);
    type WireArgs<'a> = (Vec<u8>,);
    type Output = ();
    type WireOutput = ();
    type Error = NoError;

    fn pack<'a>(args: Self::Args<'a>) -> Self::WireArgs<'a> {
        args
    }
    fn unpack<'a>(args: Self::WireArgs<'a>) -> Self::Args<'a> {
        args
    }
    fn pack_output((): ()) {}
    fn unpack_output((): ()) {}
    fn signature_cell() -> &'static SignatureCell {
        static CELLS: [SignatureCell; 2] = [SignatureCell::new(), SignatureCell::new()];
        &CELLS[usize::from(BLOCKS)]
    }
}

impl<const BLOCKS: bool> Serve<Request> for Wrong<BLOCKS> {
    const KIND: ServeKind = if BLOCKS { ServeKind::Blocking } else { ServeKind::Plain };

    fn serve<A: Responder<(), NoError>>(_: &Request, _: Self::WireArgs<'_>, to: A) -> A::Done {
        to.later(async { Ok(()) })
    }
}

/// Calls it with short and with large arguments.
fn call_wrong<const BLOCKS: bool>(target: &Engine, origin: &Engine) {
    target.register(Wrong::<BLOCKS>).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    for len in [1, usize::try_from(LARGE).unwrap()] {
        let options = CallOptions::within(LIMIT);
        let call = origin.call_with(Wrong::<BLOCKS>, &peer, (vec![1; len],), options);
        let outcome = call.wait();
        let Err(CallError::Rejected(text)) = outcome else { panic!("{len} bytes: {outcome:?}") };
        assert!(text.contains(Wrong::<BLOCKS>::NAME) && text.contains("gave a future"), "{text}");
    }
}

#[test]
fn a_handler_that_gives_a_future_without_being_async_is_answered_for() {
    let plugin = Mem::default();
    let target = Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    let origin = Builder::new().plugin(plugin).open("mem://").unwrap();
    call_wrong::<false>(&target, &origin);
    call_wrong::<true>(&target, &origin);
    assert_eq!(target.requests_in_service(), 0);
}

#[test]
fn arguments_and_results_that_panic_when_they_are_dropped_leave_nothing_behind() {
    let plugin = Mem::default();
    let target: Engine = Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    target.register(give_fragile).unwrap();
    let origin: Engine = Builder::new().plugin(plugin).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    // One for each way to a message, and one beyond it.
    for len in [5, 100, 1000, usize::try_from(LARGE).unwrap()] {
        let take = || origin.call(take_fragile, &peer, (Fragile(vec![5; len]),)).wait().is_ok();
        assert!(catch_unwind(AssertUnwindSafe(take)).is_err(), "{len}");
        assert_eq!(origin.calls_under_way(), 0, "{len}");
        let given = origin.call(give_fragile, &peer, (len,)).wait();
        assert!(matches!(given, Err(CallError::Panicked(_))), "{len}");
        assert_eq!(target.large_untaken(), 0, "{len}");
    }
    target.drain(LIMIT).wait().unwrap();
}

/// Requests go nowhere.
#[derive(Debug)]
struct Refusing;

impl Layers for Refusing {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(Self)
    }
}

impl Layer for Refusing {
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        match op {
            Op::SendUnexpected { .. } => Err(Rejected { op, error: Error::UnknownPeer }),
            op => inner.post(token, op),
        }
    }
}

/// Memory that tells when it goes.
#[derive(Debug)]
struct Told(Arc<AtomicBool>);

impl ViewState for Told {
    fn len(&self) -> u64 {
        1
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(&[7])
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[rpc(crate = crate::hg)]
fn see(memory: Frozen);

#[test]
fn arguments_of_a_call_that_was_refused_go_with_it_although_nobody_makes_progress() {
    let plugin = Mem::default();
    let target = stepped(plugin.clone()).open("mem://").unwrap();
    let origin = stepped(Layered::new(plugin, Refusing)).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    for is_one_way in [true, false] {
        let is_gone = Arc::<AtomicBool>::default();
        let memory = SharedBytes::new(Arc::new(Told(Arc::clone(&is_gone))));
        let args = (Frozen::try_from(memory).unwrap(),);
        let is_refused = if is_one_way {
            origin.notify(see, &peer, args).accepted().is_err()
        } else {
            origin.call(see, &peer, args).try_wait().unwrap().is_err()
        };
        assert!(is_refused);
        assert!(is_gone.load(Ordering::SeqCst), "one way: {is_one_way}");
    }
}

/// Memory whose owner asks the engine when it goes.
#[derive(Debug)]
struct Asks(Engine);

impl ViewState for Asks {
    fn len(&self) -> u64 {
        1
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(&[7])
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let _bytes = self.0.backlog_bytes();
    }
}

#[test]
fn arguments_of_one_call_too_many_go_behind_the_engine_s_lock() {
    let _watchdog = Watchdog::start();
    let plugin = Mem::default();
    let target = stepped(plugin.clone()).open("mem://").unwrap();
    let origin = stepped(plugin).calls_max(1).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let _only = origin.call(never, &peer, ());
    for is_one_way in [true, false] {
        let memory = SharedBytes::new(Arc::new(Asks(origin.clone())));
        let args = (Frozen::try_from(memory).unwrap(),);
        let is_refused = if is_one_way {
            origin.notify(see, &peer, args).accepted().is_err()
        } else {
            origin.call(see, &peer, args).try_wait().unwrap().is_err()
        };
        assert!(is_refused, "one way: {is_one_way}");
    }
}

/// Whether its handler, which says that it does not ask, finds a deadline or a cancellation.
#[rpc(crate = crate::hg)]
fn asks_all_the_same() -> bool;

impl Serve<Request> for asks_all_the_same {
    const KIND: ServeKind = ServeKind::Plain;
    const TAKES_CONTEXT: bool = false;

    fn serve<A>(request: &Request, (): Self::WireArgs<'_>, to: A) -> A::Done
    where
        A: Responder<bool, NoError>,
    {
        to.now(Ok(request.deadline().is_some() || request.is_cancelled()))
    }
}

#[test]
fn a_handler_that_says_it_does_not_ask_finds_nothing_of_another_request() {
    let plugin = Mem::default();
    let target = Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    let origin = Builder::new().plugin(plugin).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let answers = Arc::<Mutex<Vec<Answer<never>>>>::default();
    let given = Arc::clone(&answers);
    let keep = move |request: &Request, (), answer| {
        assert!(request.deadline().is_some() && !request.is_cancelled());
        given.lock().unwrap().push(answer);
    };
    target.serve_later(never, keep).unwrap();
    target.register(asks_all_the_same).unwrap();
    let call = origin.call_with(never, &peer, (), CallOptions::within(LIMIT));
    until("it is served", || !answers.lock().unwrap().is_empty());
    call.cancel();
    let is_cancelled = |it: &Answer<never>| it.request().unwrap().is_cancelled();
    until("it is cancelled", || answers.lock().unwrap().iter().all(is_cancelled));
    assert!(!origin.call(asks_all_the_same, &peer, ()).wait().unwrap());
}
