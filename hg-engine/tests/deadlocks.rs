//! A handler may wait for another engine, and is told at once where waiting would never end. Over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use hg_bulk::{Descriptor, TransferError};
use hg_core::error::CallError;
use hg_engine::{Builder, CallOptions, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::{Address, Rights};
use hg_na_conformance::Mem;
use watchdog::LIMIT;

mod hg;

/// Says what came of it.
#[rpc(crate = crate::hg)]
fn outer() -> String;

#[rpc(crate = crate::hg)]
fn inner() -> String;

#[rpc(crate = crate::hg)]
fn asked() -> u64;

#[rpc(crate = crate::hg)]
fn fetched(descriptor: Descriptor) -> String;

fn open(plugin: &Mem, progress: Progress) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).progress(progress);
    builder.contexts(2).listen(true).open("mem://").unwrap()
}

fn within() -> CallOptions {
    CallOptions::within(LIMIT)
}

/// What a call of `asked` from one engine to a context of another comes to, waited for.
fn ask(from: &Engine, to: &Address) -> String {
    let peer = from.lookup(to).unwrap();
    said(from.call_with(asked, &peer, (), within()).wait())
}

fn said(outcome: Result<u64, CallError<hg_core::rpc::NoError>>) -> String {
    match outcome {
        Ok(it) => it.to_string(),
        Err(CallError::WouldDeadlock) => "WouldDeadlock".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// An engine that makes progress by itself, and serves `asked`.
fn serving(plugin: &Mem, answer: u64) -> Engine {
    let engine = open(plugin, Progress::Background);
    engine.serve(asked, move |_, ()| Ok(answer)).unwrap();
    engine
}

struct Block(Thread);

impl Wake for Block {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls to the end.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Block(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(LIMIT);
    }
}

/// Calls `outer` at the first context of an engine, from one that has nothing to do with any.
fn call_outer(plugin: &Mem, target: &Engine) -> String {
    let origin = open(plugin, Progress::Background);
    // By the engine's address alone, the number of the thread would choose the context.
    let first = origin.address_at(target.address(), 0).unwrap();
    let peer = origin.lookup(&first).unwrap();
    origin.call_with(outer, &peer, (), within()).wait().unwrap()
}

/// One engine serves `outer` with a plain handler, then with an `async` one that does the same in a poll.
fn of_both_kinds(
    plugin: &Mem,
    run: impl Fn(&Request) -> String + Clone + Send + Sync + 'static,
) -> [String; 2] {
    let plain = open(plugin, Progress::Background);
    let mine = run.clone();
    plain.serve(outer, move |request: &Request, ()| Ok(mine(request))).unwrap();
    plain.serve(asked, |_, ()| Ok(1)).unwrap();
    let polled = open(plugin, Progress::Background);
    polled.serve(asked, |_, ()| Ok(1)).unwrap();
    let serve = move |request: Request, ()| {
        let run = run.clone();
        async move { Ok(run(&request)) }
    };
    polled.serve_async(outer, serve).unwrap();
    [&plain, &polled].map(|target| call_outer(plugin, target))
}

#[test]
fn a_handler_waits_for_an_engine_that_has_nothing_to_do_with_its_own() {
    let plugin = Mem::default();
    let other = serving(&plugin, 2);
    for progress in [Progress::Background, Progress::Own] {
        let through = open(&plugin, progress);
        let address = other.address().clone();
        let run = move |_: &Request| {
            let peer = through.lookup(&address).unwrap();
            through.notify(asked, &peer, ()).wait().unwrap();
            let awaited = through.call_with(asked, &peer, (), within());
            // Polled to its end it has nobody to make its progress but this thread.
            let awaited = match progress {
                Progress::Background => said(block_on(awaited)),
                _ => said(awaited.wait()),
            };
            awaited + &ask(&through, &address)
        };
        assert_eq!(of_both_kinds(&plugin, run), ["22", "22"]);
    }
}

#[test]
fn a_handler_fetches_over_an_engine_that_has_nothing_to_do_with_its_own() {
    let plugin = Mem::default();
    let (owner, through) = (open(&plugin, Progress::Background), open(&plugin, Progress::Own));
    let bulk = owner.expose(vec![7; 100_000], Rights::READ).unwrap();
    let address = owner.address().clone();
    let target = open(&plugin, Progress::Background);
    target
        .serve(fetched, move |request: &Request, (descriptor,)| {
            let from = through.lookup(&address).unwrap();
            let there = through.fetch(&from, &descriptor).wait().unwrap().len();
            let own = request.engine();
            let here = own.fetch(&own.lookup(&address).unwrap(), &descriptor).wait();
            assert!(matches!(here, Ok(_) | Err(TransferError::WouldDeadlock)), "{here:?}");
            Ok(there.to_string())
        })
        .unwrap();
    let origin = open(&plugin, Progress::Background);
    let peer = origin.lookup(target.address()).unwrap();
    let call = origin.call_with(fetched, &peer, (bulk.descriptor(),), within());
    assert_eq!(call.wait().unwrap(), "100000");
}

#[test]
fn a_handler_waits_for_another_context_of_its_engine_and_not_for_its_own() {
    let plugin = Mem::default();
    let other = serving(&plugin, 2);
    let address = other.address().clone();
    let run = move |request: &Request| ask(&request.engine(), &address);
    assert_eq!(of_both_kinds(&plugin, run), ["WouldDeadlock", "WouldDeadlock"]);
    let target = open(&plugin, Progress::Background);
    let (second, address) = (target.context(1).unwrap(), other.address().clone());
    target.serve(outer, move |_, ()| Ok(ask(&second, &address))).unwrap();
    assert_eq!(call_outer(&plugin, &target), "2");
    target.close(); // Its handler holds it.
}

/// An engine whose progress is made by whoever waits for it, with a handler that says what comes of calls of another
/// engine: `ask` by the plain one at its first context, `await` by the `async` one at its second.
fn nested(plugin: &Mem, answer: impl Fn(&Request) -> String + Send + Sync + 'static) -> Engine {
    let nested = open(plugin, Progress::Own);
    nested.serve(inner, move |request: &Request, ()| Ok(answer(request))).unwrap();
    nested
}

#[test]
fn a_handler_that_is_run_by_a_wait_in_another_one_is_refused_to_wait_for_that() {
    let plugin = Mem::default();
    let other = serving(&plugin, 2);
    for is_awaited in [false, true] {
        let (plugin, address) = (plugin.clone(), other.address().clone());
        let mems = plugin.clone();
        let run = move |request: &Request| {
            let (first, address) = (request.engine(), address.clone());
            let answer = move |_: &Request| {
                if is_awaited {
                    let peer = first.lookup(&address).unwrap();
                    return said(block_on(first.call_with(asked, &peer, (), within())));
                }
                ask(&first, &address)
            };
            let second = nested(&mems, answer);
            let to_itself = second.lookup(second.address()).unwrap();
            second.call_with(inner, &to_itself, (), within()).wait().unwrap()
        };
        assert_eq!(of_both_kinds(&plugin, run), ["WouldDeadlock", "WouldDeadlock"]);
    }
}

#[test]
fn an_async_handler_that_is_run_by_a_wait_in_another_one_is_refused_to_await_that() {
    let plugin = Mem::default();
    let other = serving(&plugin, 2);
    let (mems, address) = (plugin.clone(), other.address().clone());
    let run = move |request: &Request| {
        let (first, address) = (request.engine(), address.clone());
        let second = open(&mems, Progress::Own);
        let serve = move |_: Request, ()| {
            let (first, address) = (first.clone(), address.clone());
            async move {
                let peer = first.lookup(&address).unwrap();
                Ok(said(first.call_with(asked, &peer, (), within()).await))
            }
        };
        second.serve_async(inner, serve).unwrap();
        let to_itself = second.lookup(second.address()).unwrap();
        second.call_with(inner, &to_itself, (), within()).wait().unwrap()
    };
    assert_eq!(of_both_kinds(&plugin, run), ["WouldDeadlock", "WouldDeadlock"]);
}

#[test]
fn an_async_handler_that_goes_round_for_another_engine_keeps_nobody_from_awaiting_its_own() {
    let plugin = Mem::default();
    let other = serving(&plugin, 2);
    let (mems, address) = (plugin.clone(), other.address().clone());
    let target = open(&plugin, Progress::Background);
    let serve = move |request: Request, ()| {
        let second = open(&mems, Progress::Own);
        let (first, address) = (request.engine(), address.clone());
        let awaits = move |_: Request, ()| {
            let (first, address) = (first.clone(), address.clone());
            async move {
                let peer = first.lookup(&address).unwrap();
                Ok(said(first.call_with(asked, &peer, (), within()).await))
            }
        };
        second.serve_async(inner, awaits).unwrap();
        async move {
            let to_itself: Peer = second.lookup(second.address()).unwrap();
            let mut call = pin!(second.call_with(inner, &to_itself, (), within()));
            // Each poll makes rounds for the other engine, and comes again.
            let said = poll_fn(|context| {
                second.progress(Duration::ZERO);
                context.waker().wake_by_ref();
                call.as_mut().poll(context)
            });
            Ok(said.await.unwrap())
        }
    };
    target.serve_async(outer, serve).unwrap();
    assert_eq!(call_outer(&plugin, &target), "2");
}

#[test]
fn a_thread_that_has_waited_in_a_handler_is_as_free_as_before() {
    let plugin = Mem::default();
    let (other, own) = (serving(&plugin, 2), open(&plugin, Progress::Own));
    let address = other.address().clone();
    let through = open(&plugin, Progress::Own);
    own.serve(outer, move |_, ()| {
        let answer = ask(&through, &address);
        assert!(answer != "2", "a panic in the middle");
        Ok(answer)
    })
    .unwrap();
    // The handler runs in this thread, which waits for it.
    let to_itself = own.lookup(own.address()).unwrap();
    for _ in 0..3 {
        let error = own.call_with(outer, &to_itself, (), within()).wait().unwrap_err();
        assert!(matches!(error, CallError::Panicked(_)), "{error:?}");
    }
}
