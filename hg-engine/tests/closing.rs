//! What closing an engine lets go of: its handlers, whatever they hold, whoever closes it and when. Over the in-process
//! reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt::{self, Debug},
    future::poll_fn,
    panic::panic_any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    thread,
    time::Duration,
};

use alive::Alive;
use hg_core::{error::CallError, registry::RegisterError};
use hg_engine::{Answer, Builder, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::Address;
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};
use watchdog::{hear, until};

mod alive;
mod hg;

#[rpc(crate = crate::hg)]
fn plain(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn polled(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn blocking(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn later(number: u64) -> u64;

fn open(plugin: &Mem, progress: Progress, contexts: u8) -> Engine {
    let builder = Builder::new().plugin(plugin.clone()).wait(Wait::Block).progress(progress);
    builder.contexts(contexts.into()).listen(true).open("mem://").unwrap()
}

/// An engine that makes its own progress, one that calls it, and how much of handlers is alive.
fn pair() -> (Engine, Engine, Peer, Arc<AtomicUsize>) {
    let plugin = Mem::default();
    let (target, origin) =
        (open(&plugin, Progress::Background, 1), open(&plugin, Progress::Background, 1));
    let peer = origin.lookup(target.address()).unwrap();
    (target, origin, peer, Arc::default())
}

/// What a handler holds: a handle of its own engine; and it is counted.
struct Held(Engine, Alive);

impl Held {
    fn new(engine: &Engine, count: &Arc<AtomicUsize>) -> Self {
        Self(engine.clone(), Alive::new(count))
    }

    fn engine(&self) -> &Engine {
        let Self(engine, _alive) = self;
        engine
    }
}

/// Handlers of all kinds, each of which holds a handle of its own engine, and counts itself.
fn serve_all(engine: &Engine, count: &Arc<AtomicUsize>) {
    let held = || Held::new(engine, count);
    let mine = held();
    let serve = move |_: &Request, (number,): (u64,)| {
        assert_eq!(mine.engine().address().scheme(), "mem");
        Ok(number)
    };
    engine.serve(plain, serve).unwrap();
    let mine = held();
    let serve = move |_: Request, (number,): (u64,)| {
        assert_eq!(mine.engine().address().scheme(), "mem");
        async move { Ok(number) }
    };
    engine.serve_async(polled, serve).unwrap();
    let mine = held();
    let serve = move |_: &Request, (number,): (u64,)| {
        assert_eq!(mine.engine().address().scheme(), "mem");
        Ok(number)
    };
    engine.serve_blocking(blocking, serve).unwrap();
    let mine = held();
    let serve = move |_: &Request, (number,): (u64,), answer: Answer<later>| {
        assert_eq!(mine.engine().address().scheme(), "mem");
        answer.send(Ok(number));
    };
    engine.serve_later(later, serve).unwrap();
}

/// Calls a context, and makes progress for it.
fn call_all(target: &Engine, origin: &Engine) {
    let peer = origin.lookup(target.address()).unwrap();
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            for number in 0..20 {
                assert_eq!(origin.call(plain, &peer, (number,)).wait().unwrap(), number);
                assert_eq!(origin.call(polled, &peer, (number,)).wait().unwrap(), number);
                assert_eq!(origin.call(blocking, &peer, (number,)).wait().unwrap(), number);
                assert_eq!(origin.call(later, &peer, (number,)).wait().unwrap(), number);
            }
        });
        while !calls.is_finished() {
            target.progress(Duration::ZERO);
        }
        calls.join().unwrap();
    });
}

fn wait_for_end(count: &AtomicUsize) {
    until("something is never dropped", || count.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_closed_engine_keeps_no_handler_although_each_holds_a_handle_of_it() {
    for (progress, contexts) in [(Progress::Background, 1), (Progress::Own, 1), (Progress::Own, 3)]
    {
        for called in [false, true] {
            let plugin = Mem::default();
            let engine = open(&plugin, progress, contexts);
            let origin = open(&plugin, Progress::Background, 1);
            let count = Arc::new(AtomicUsize::new(0));
            serve_all(&engine, &count);
            assert_eq!(count.load(Ordering::SeqCst), 4);
            let ports: Vec<_> =
                (0..contexts).map(|it| engine.context(it.into()).unwrap()).collect();
            // Each port that was called has a copy, and places for futures.
            for port in ports.iter().filter(|_| called) {
                call_all(port, &origin);
            }
            engine.close();
            // What a blocking handler's thread has is dropped when that is done.
            wait_for_end(&count);
            engine.close();
        }
    }
}

/// Counts domains: they live as long as any context of an engine.
struct Counted(Alive);

impl Debug for Counted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(_alive) = self;
        out.write_str("Counted")
    }
}

#[derive(Debug)]
struct NoLayer;

impl Layer for NoLayer {}

impl Layers for Counted {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(NoLayer)
    }
}

#[test]
fn nothing_is_left_of_a_closed_engine_whose_handlers_have_held_it() {
    let (plugin, count) = (Mem::default(), Arc::new(AtomicUsize::new(0)));
    let counted = Layered::new(plugin.clone(), Counted(Alive::new(&count)));
    let engine = Builder::new().plugin(counted).listen(true).open("mem://").unwrap();
    serve_all(&engine, &Arc::default());
    call_all(&engine, &open(&plugin, Progress::Background, 1));
    engine.close();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    drop(engine);
    wait_for_end(&count);
}

#[test]
fn a_call_that_is_over_and_kept_keeps_nothing_of_its_engine() {
    let (plugin, count) = (Mem::default(), Arc::new(AtomicUsize::new(0)));
    let target = open(&plugin, Progress::Background, 1);
    target.serve(plain, |_: &Request, (number,): (u64,)| Ok(number)).unwrap();
    let counted = Layered::new(plugin, Counted(Alive::new(&count)));
    let origin = Builder::new().plugin(counted).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let mut call = origin.call_owned(plain, &peer, (3,));
    until("it is answered", || call.try_wait().is_some_and(|it| matches!(it, Ok(3))));
    drop(origin);
    wait_for_end(&count);
    drop(call);
}

#[test]
fn nothing_can_be_registered_at_a_closed_engine_and_what_is_refused_is_dropped() {
    let (engine, _origin, _peer, count) = pair();
    engine.close();
    let mine = Held::new(&engine, &count);
    let serve = move |_: &Request, (number,): (u64,)| {
        mine.engine();
        Ok(number)
    };
    let refused = engine.serve(plain, serve);
    assert_eq!(refused, Err(RegisterError::Closed { name: "closing::plain" }));
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert!(!engine.deregister(plain));
}

#[test]
fn a_handler_that_closes_its_engine_lives_until_it_has_ended() {
    for own in [false, true] {
        let (engine, origin, peer, count) = pair();
        serve_all(&engine, &count);
        engine.deregister(plain);
        let (mine, living) = (Held::new(&engine, &count), Arc::clone(&count));
        let serve = move |request: &Request, (_,): (u64,)| {
            if own {
                request.engine().close();
            } else {
                mine.engine().close();
            }
            // What it has captured is still there.
            assert!(living.load(Ordering::SeqCst) > 0);
            Ok(u64::from(mine.engine().requests_in_service() == 0))
        };
        engine.serve(plain, serve).unwrap();
        let error = origin.call(plain, &peer, (1,)).wait().unwrap_err();
        assert!(matches!(error, CallError::PeerGone { .. }), "{error}");
        wait_for_end(&count);
    }
}

#[test]
fn a_blocking_handler_and_an_async_one_that_run_while_the_engine_is_closed_are_dropped_at_their_end()
 {
    let (engine, origin, peer, count) = pair();
    let ((begun, begins), (ending, ends)) = (mpsc::channel(), mpsc::channel());
    let (mine, ends, says) = (Held::new(&engine, &count), Mutex::new(ends), begun.clone());
    let serve = move |_: &Request, (number,): (u64,)| {
        says.send(()).unwrap();
        hear(&ends.lock().unwrap());
        mine.engine();
        Ok(number)
    };
    engine.serve_blocking(blocking, serve).unwrap();
    let (engine_of, count_of) = (engine.clone(), Arc::clone(&count));
    let serve = move |_: Request, (number,): (u64,)| {
        let (held, begun) = (Held::new(&engine_of, &count_of), begun.clone());
        async move {
            let mut polls = 0;
            poll_fn(|_| {
                polls += 1;
                begun.send(()).unwrap();
                if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            drop(held);
            Ok(number)
        }
    };
    engine.serve_async(polled, serve).unwrap();
    let calls = (origin.call(blocking, &peer, (1,)), origin.call(polled, &peer, (1,)));
    (0..2).for_each(|_| hear(&begins));
    engine.close();
    // The future was dropped with the engine; the thread of the blocking one goes on.
    assert_eq!(count.load(Ordering::SeqCst), 1);
    ending.send(()).unwrap();
    wait_for_end(&count);
    drop(calls);
}

/// Dropped, it uses its engine, then panics.
struct Rude(Held);

impl Drop for Rude {
    fn drop(&mut self) {
        let engine = self.0.engine();
        let itself = engine.lookup(engine.address());
        assert!(itself.is_err(), "it is closed");
        let refused = engine.serve(plain, |_, (number,)| Ok(number));
        assert!(matches!(refused, Err(RegisterError::Closed { .. })), "{refused:?}");
        engine.close();
        engine.progress(Duration::ZERO);
        panic_any("on purpose");
    }
}

#[test]
fn handlers_that_use_the_engine_and_panic_when_they_are_dropped_concern_nobody_else() {
    for called in [false, true] {
        let (engine, origin, peer, count) = pair();
        let rude = || Rude(Held::new(&engine, &count));
        let mine = rude();
        let serve = move |_: &Request, (number,): (u64,)| {
            let _ = &mine;
            Ok(number)
        };
        engine.serve(plain, serve).unwrap();
        let mine = rude();
        let serve = move |_: Request, (number,): (u64,)| {
            let _ = &mine;
            async move { Ok(number) }
        };
        engine.serve_async(polled, serve).unwrap();
        let mine = rude();
        let serve = move |_: &Request, (number,): (u64,)| {
            let _ = &mine;
            Ok(number)
        };
        engine.serve_blocking(blocking, serve).unwrap();
        if called {
            assert_eq!(origin.call(plain, &peer, (1,)).wait().unwrap(), 1);
            assert_eq!(origin.call(polled, &peer, (1,)).wait().unwrap(), 1);
            assert_eq!(origin.call(blocking, &peer, (1,)).wait().unwrap(), 1);
        }
        engine.close();
        wait_for_end(&count);
    }
}

#[test]
fn handlers_go_with_the_last_context_that_is_closed() {
    const CONTEXTS: usize = 2;
    let plugin = Mem::default();
    let (engine, origin) =
        (open(&plugin, Progress::Background, 2), open(&plugin, Progress::Own, 1));
    let count = Arc::new(AtomicUsize::new(0));
    let mine = Held::new(&engine, &count);
    let serve = move |request: &Request, (closes,): (u64,)| {
        mine.engine();
        if closes > 0 {
            request.engine().close(); // Its own context only.
        }
        Ok(closes)
    };
    engine.serve(plain, serve).unwrap();
    for index in 0..CONTEXTS {
        let address = engine.context(index).unwrap().address().clone();
        let peer = origin.lookup(&address).unwrap();
        assert_eq!(origin.call(plain, &peer, (0,)).wait().unwrap(), 0, "context {index}");
        let error = origin.call(plain, &peer, (1,)).wait().unwrap_err();
        assert!(matches!(error, CallError::PeerGone { .. }), "{error}");
        if index + 1 < CONTEXTS {
            assert_eq!(count.load(Ordering::SeqCst), 1, "the others serve on");
        }
    }
    wait_for_end(&count);
    engine.close();
}

#[test]
fn an_engine_for_which_nobody_makes_progress_is_closed_in_a_handler_of_another_one() {
    let plugin = Mem::default();
    let (closed, count) = (open(&plugin, Progress::Own, 1), Arc::new(AtomicUsize::new(0)));
    serve_all(&closed, &count);
    let origin = open(&plugin, Progress::Background, 1);
    let peer = origin.lookup(closed.address()).unwrap();
    // It has served, and keeps its copy of the handlers.
    let mut call = origin.call(plain, &peer, (1,));
    let result = loop {
        closed.progress(Duration::ZERO);
        if let Some(result) = call.try_wait() {
            break result;
        }
    };
    assert_eq!(result.unwrap(), 1);
    let (engine, _, _, _) = pair();
    let other = closed.clone();
    let serve = move |_: &Request, (number,): (u64,)| {
        other.close();
        Ok(number)
    };
    engine.serve(plain, serve).unwrap();
    let itself = engine.lookup(engine.address()).unwrap();
    assert_eq!(engine.call(plain, &itself, (3,)).wait().unwrap(), 3);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn no_handler_begins_after_another_one_of_its_round_has_closed_the_engine() {
    let plugin = Mem::default();
    let (target, origin) = (open(&plugin, Progress::Own, 1), open(&plugin, Progress::Own, 1));
    let peer = origin.lookup(target.address()).unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let serve = move |request: &Request, (number,): (u64,)| {
        request.engine().close();
        Ok(number)
    };
    target.serve(plain, serve).unwrap();
    let begins = || {
        let begun = Arc::clone(&begun);
        move || begun.fetch_add(1, Ordering::SeqCst)
    };
    let begin = begins();
    let serve = move |_: Request, (number,): (u64,)| {
        begin();
        async move { Ok(number) }
    };
    target.serve_async(polled, serve).unwrap();
    let begin = begins();
    let serve = move |_: &Request, (number,): (u64,)| {
        begin();
        Ok(number)
    };
    target.serve_blocking(blocking, serve).unwrap();
    let begin = begins();
    let serve = move |_: &Request, (_,): (u64,), answer: Answer<later>| {
        begin();
        drop(answer);
    };
    target.serve_later(later, serve).unwrap();
    // Connected: what is called then comes in one round.
    let before = origin.call(polled, &peer, (1,));
    until("a first call is served", || {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
        begun.load(Ordering::SeqCst) == 1
    });
    let calls = (
        origin.call(plain, &peer, (1,)),
        origin.call(polled, &peer, (1,)),
        origin.call(blocking, &peer, (1,)),
        origin.call(later, &peer, (1,)),
    );
    origin.progress(Duration::ZERO);
    until("the engine is closed", || {
        target.progress(Duration::ZERO);
        target.lookup(origin.address()).is_err()
    });
    assert_eq!(Arc::strong_count(&begun), 1, "a handler is left");
    assert_eq!(begun.load(Ordering::SeqCst), 1, "a handler has begun in a closed engine");
    drop((before, calls));
}
