//! Handlers on runtimes of users': `tokio` with one thread and with several, and `smol`. Over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    thread::{self, JoinHandle, ThreadId},
    time::Duration,
};

use alive::Alive;
use hg_core::error::CallError;
use hg_engine::{Builder, CallOptions, Engine, Peer, Request, Spawn, Wait};
use hg_macros::rpc;
use hg_na::Frozen;
use hg_na_conformance::Mem;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use watchdog::{LIMIT, hear, until};

mod alive;
mod hg;

#[rpc(crate = crate::hg)]
fn served(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn told(bytes: Vec<u8>);

#[rpc(crate = crate::hg)]
fn shown(image: Frozen);

#[rpc(crate = crate::hg)]
fn refused(number: u64) -> Result<u64, String>;

#[rpc(crate = crate::hg)]
async fn slept(millis: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    millis
}

#[rpc(crate = crate::hg, blocking)]
fn is_in_tokio() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

#[rpc(crate = crate::hg)]
fn reversed(bytes: Vec<u8>) -> Vec<u8>;

#[rpc(crate = crate::hg, blocking)]
fn reversed_blocking(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().rev().collect()
}

/// What the feature `tokio` has, for builds without it.
#[cfg(not(feature = "tokio"))]
struct Tokio(tokio::runtime::Handle);

#[cfg(not(feature = "tokio"))]
impl Spawn for Tokio {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(self.0.spawn(future));
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        drop(self.0.spawn_blocking(job));
    }
}

#[cfg(not(feature = "tokio"))]
fn spawner(handle: tokio::runtime::Handle) -> Tokio {
    Tokio(handle)
}

#[cfg(feature = "tokio")]
fn spawner(handle: tokio::runtime::Handle) -> tokio::runtime::Handle {
    handle
}

struct Smol;

impl Spawn for Smol {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        smol::spawn(future).detach();
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        smol::unblock(job).detach();
    }
}

/// A runtime of one thread, which is this one's.
struct OneThread {
    handle: tokio::runtime::Handle,
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl OneThread {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = thread::spawn(move || {
            runtime.block_on(stopped).unwrap();
        });
        Self { handle, thread, stop }
    }

    fn id(&self) -> ThreadId {
        self.thread.thread().id()
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

fn several_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

struct Pair {
    target: Engine,
    origin: Engine,
    peer: Peer,
}

impl Pair {
    fn new(runtime: impl Spawn + 'static) -> Self {
        let plugin = Mem::default();
        let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
        let target = builder().runtime(runtime).open("mem://").unwrap();
        let origin = builder().open("mem://").unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        Self { target, origin, peer }
    }

    fn call(&self, number: u64) -> Result<u64, CallError<hg_core::rpc::NoError>> {
        let options = CallOptions::within(LIMIT);
        self.origin.call_with(served, &self.peer, (number,), options).wait()
    }
}

/// Gives back one number that it is sent.
async fn echo_once(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let number = stream.read_u64().await.unwrap();
    stream.write_u64(number).await.unwrap();
}

/// Sleeps, and asks somebody by a socket.
async fn over_tokio(number: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(1)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let echo = tokio::spawn(echo_once(listener));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_u64(number).await.unwrap();
    let number = stream.read_u64().await.unwrap();
    echo.await.unwrap();
    number
}

/// Handlers use timers and sockets of the runtime, also in the part before their future is made.
fn use_tokio(
    pair: &Pair,
    is_its_thread: impl Fn(ThreadId) -> bool + Send + Sync + Clone + 'static,
) {
    let serve = move |_: Request, (number,): (u64,)| {
        let sleep = tokio::time::sleep(Duration::from_millis(1));
        assert!(is_its_thread(thread::current().id()));
        let is_its_thread = is_its_thread.clone();
        async move {
            sleep.await;
            assert!(is_its_thread(thread::current().id()));
            Ok(over_tokio(number).await)
        }
    };
    pair.target.serve_async(served, serve).unwrap();
    pair.target.register(slept).unwrap();
    pair.target.register(is_in_tokio).unwrap();
    let calls: Vec<_> =
        (0..20).map(|number| pair.origin.call(served, &pair.peer, (number,))).collect();
    for (call, number) in calls.into_iter().zip(0..) {
        assert_eq!(call.wait().unwrap(), number);
    }
    assert_eq!(pair.origin.call(slept, &pair.peer, (1,)).wait().unwrap(), 1);
    assert!(pair.origin.call(is_in_tokio, &pair.peer, ()).wait().unwrap());
    until("nothing is left", || pair.target.requests_in_service() == 0);
}

#[test]
fn handlers_use_a_runtime_of_one_thread() {
    let runtime = OneThread::start();
    let pair = Pair::new(spawner(runtime.handle.clone()));
    let id = runtime.id();
    use_tokio(&pair, move |thread| thread == id);
    runtime.stop();
}

#[test]
fn handlers_use_a_runtime_of_several_threads() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let main = thread::current().id();
    use_tokio(&pair, move |thread| thread != main);
}

#[test]
fn handlers_use_smol() {
    let pair = Pair::new(Smol);
    let serve = |_: Request, (number,): (u64,)| async move {
        smol::Timer::after(Duration::from_millis(1)).await;
        let listener = smol::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = smol::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        smol::io::AsyncWriteExt::write_all(&mut near, &number.to_le_bytes()).await.unwrap();
        let mut bytes = [0; 8];
        smol::io::AsyncReadExt::read_exact(&mut far, &mut bytes).await.unwrap();
        Ok(u64::from_le_bytes(bytes))
    };
    pair.target.serve_async(served, serve).unwrap();
    pair.target.register(is_in_tokio).unwrap();
    for number in 0..20 {
        assert_eq!(pair.call(number).unwrap(), number);
    }
    assert!(!pair.origin.call(is_in_tokio, &pair.peer, ()).wait().unwrap());
}

#[test]
fn without_a_runtime_a_handler_that_needs_one_is_answered_for() {
    let plugin = Mem::default();
    let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    let (target, origin) = (builder().open("mem://").unwrap(), builder().open("mem://").unwrap());
    target.register(slept).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let error = origin.call(slept, &peer, (1,)).wait().unwrap_err();
    assert!(matches!(error, CallError::Panicked(_)), "{error:?}");
}

#[test]
fn long_arguments_and_results_go_both_ways() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let serve = |_: Request, (bytes,): (Vec<u8>,)| async move {
        tokio::task::yield_now().await;
        Ok(bytes.into_iter().rev().collect())
    };
    pair.target.serve_async(reversed, serve).unwrap();
    pair.target.register(reversed_blocking).unwrap();
    for len in [0, 8, 300, 5_000, 300_000] {
        let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let expected: Vec<u8> = bytes.iter().rev().copied().collect();
        let call = pair.origin.call(reversed, &pair.peer, (bytes.clone(),));
        assert_eq!(call.wait().unwrap(), expected);
        let call = pair.origin.call(reversed_blocking, &pair.peer, (bytes,));
        assert_eq!(call.wait().unwrap(), expected);
    }
    until("nothing is left", || pair.target.large_untaken() == 0);
}

#[test]
fn a_panic_becomes_an_answer_wherever_it_comes() {
    let runtime = OneThread::start();
    let pair = Pair::new(spawner(runtime.handle.clone()));
    let serve = |_: Request, (number,): (u64,)| {
        assert!(number != 0, "before its future");
        async move {
            assert!(number != 1, "in its first poll");
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(number != 2, "in a later poll");
            Err("an error of its own".to_owned())
        }
    };
    pair.target.serve_async(refused, serve).unwrap();
    let call = |number| pair.origin.call(refused, &pair.peer, (number,)).wait().unwrap_err();
    for (number, text) in [(0, "before its future"), (1, "first poll"), (2, "later poll")] {
        let error = call(number);
        assert!(matches!(&error, CallError::Panicked(why) if why.contains(text)), "{error:?}");
    }
    assert_eq!(
        call(3).to_string(),
        CallError::Handler("an error of its own".to_owned()).to_string()
    );
    runtime.stop();
}

/// A target whose handlers never end by themselves; counts their futures.
fn endless(pair: &Pair, is_cancellable: bool) -> Arc<AtomicUsize> {
    let alive = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&alive);
    let serve = move |request: Request, _: (u64,)| {
        let alive = Alive::new(&count);
        async move {
            let _alive = alive;
            if is_cancellable {
                request.cancelled().await;
                return Ok(0);
            }
            pending().await
        }
    };
    pair.target.serve_async(served, serve).unwrap();
    alive
}

#[test]
fn a_handler_is_told_that_nobody_waits_any_more() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let alive = endless(&pair, true);
    let calls: Vec<_> =
        (0..10).map(|number| pair.origin.call(served, &pair.peer, (number,))).collect();
    until("all are run", || alive.load(Ordering::SeqCst) == 10);
    drop(calls);
    until("all are over", || pair.target.requests_in_service() == 0);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn closing_drops_all_futures_although_their_runtime_has_stopped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let alive = endless(&pair, false);
    let calls: Vec<_> =
        (0..10).map(|number| pair.origin.call(served, &pair.peer, (number,))).collect();
    runtime.block_on(async {
        while alive.load(Ordering::SeqCst) < 10 {
            tokio::task::yield_now().await;
        }
    });
    // Nobody polls them now.
    pair.target.close();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    for call in calls {
        assert!(matches!(call.wait(), Err(CallError::PeerGone { .. })));
    }
}

#[test]
fn what_a_runtime_drops_is_answered_for() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let alive = endless(&pair, false);
    pair.target.register(reversed_blocking).unwrap();
    let begun = pair.origin.call(served, &pair.peer, (1,));
    until("it is run", || alive.load(Ordering::SeqCst) == 1);
    runtime.shutdown_timeout(LIMIT);
    let is_said =
        |error: &CallError<_>| matches!(error, CallError::Rejected(why) if why.contains("dropped"));
    assert!(is_said(&begun.wait().unwrap_err()));
    assert!(is_said(&pair.call(2).unwrap_err()));
    for len in [8, 300_000] {
        let call = pair.origin.call(reversed_blocking, &pair.peer, (vec![0; len],));
        assert!(is_said(&call.wait().unwrap_err()));
    }
    until("all are over", || pair.target.requests_in_service() == 0);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn what_a_runtime_drops_gives_memory_that_one_way_calls_lend_back() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    pair.target.serve_async(told, |_, (_,)| async { Ok(()) }).unwrap();
    pair.target.serve_async(shown, |_, (_,)| async { Ok(()) }).unwrap();
    runtime.shutdown_timeout(LIMIT);
    let bytes = vec![0; 1 << 20];
    pair.origin.notify(told, &pair.peer, (bytes.clone(),)).wait().unwrap();
    pair.origin.notify(shown, &pair.peer, (Frozen::from(bytes),)).wait().unwrap();
    until("the origin has its memory again", || pair.origin.large_untaken() == 0);
    pair.origin.drain(LIMIT).wait().unwrap();
}

#[test]
fn a_handler_may_close_its_engine_and_is_dropped_after_its_poll() {
    let runtime = OneThread::start();
    let pair = Pair::new(spawner(runtime.handle.clone()));
    let alive = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&alive);
    let (say, said) = mpsc::channel();
    let serve = move |request: Request, _: (u64,)| {
        let (alive, say) = (Alive::new(&count), say.clone());
        async move {
            tokio::task::yield_now().await;
            request.engine().close();
            say.send(()).unwrap();
            poll_fn(|_| Poll::<()>::Pending).await;
            drop(alive);
            Ok(0)
        }
    };
    pair.target.serve_async(served, serve).unwrap();
    let call = pair.origin.call(served, &pair.peer, (1,));
    hear(&said);
    until("it is dropped", || alive.load(Ordering::SeqCst) == 0);
    assert!(call.wait().is_err());
    runtime.stop();
}

#[test]
fn handlers_on_a_runtime_call_on_and_wait() {
    let runtime = several_threads();
    let pair = Pair::new(spawner(runtime.handle().clone()));
    let serve = |request: Request, (number,): (u64,)| async move {
        let Some(less) = number.checked_sub(1) else { return Ok(0) };
        let engine = request.engine();
        let peer = engine.lookup(engine.address()).unwrap();
        if number.is_multiple_of(2) {
            return Ok(engine.call(served, &peer, (less,)).await.unwrap() + 1);
        }
        // It holds up its thread, and nobody's progress.
        let wait = || engine.call(served, &peer, (less,)).wait();
        Ok(tokio::task::block_in_place(wait).unwrap() + 1)
    };
    pair.target.serve_async(served, serve).unwrap();
    assert_eq!(pair.call(6).unwrap(), 6);
}

#[test]
fn calls_are_awaited_by_tasks_of_any_runtime() {
    let pair = Arc::new(Pair::new(Smol));
    pair.target.serve(served, |_: &Request, (number,)| Ok(number + 1)).unwrap();
    let task = |pair: Arc<Pair>, number: u64| async move {
        for more in 0..50 {
            let call = pair.origin.call(served, &pair.peer, (number + more,));
            assert_eq!(call.await.unwrap(), number + more + 1);
        }
    };
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runtime in [one, several_threads()] {
        runtime.block_on(async {
            let tasks: Vec<_> =
                (0..8).map(|number| tokio::spawn(task(Arc::clone(&pair), number))).collect();
            for task in tasks {
                tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
            }
        });
    }
    let tasks: Vec<_> = (0..8).map(|number| smol::spawn(task(Arc::clone(&pair), number))).collect();
    tasks.into_iter().for_each(smol::block_on);
}
