//! Several contexts behind one address: a call takes its thread's, and is served by the one of the target's that is meant. Over the
//! in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use hg_bulk::Descriptor;
use hg_core::error::CallError;
use hg_engine::{Answer, Builder, CallOptions, Engine, OpenError, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na::{Address, Rights};
use hg_na_conformance::Mem;

mod hg;

/// The address of the context that serves it, and how that one knows the caller.
#[rpc(crate = crate::hg)]
fn seen() -> (String, String);

/// Calls back, from its whole engine, and says the address of the context that was reached.
#[rpc(crate = crate::hg)]
fn call_back() -> String;

/// Calls the engine of this address by the handle of the whole engine, and waits for it.
#[rpc(crate = crate::hg)]
fn call_on(to: Address) -> String;

#[rpc(crate = crate::hg)]
fn held();

/// Gets all bytes of the caller's, and puts them back in reverse.
#[rpc(crate = crate::hg)]
fn reversed(memory: Descriptor);

async fn reverse(request: Request, memory: Descriptor) {
    let mut bytes = request.fetch(&memory).await.unwrap();
    bytes.reverse();
    let local = request.engine().expose(bytes, Rights::READ).unwrap();
    request.push(&local, &memory).await.unwrap();
}

const WATCHDOG: Duration = Duration::from_secs(60);
const AT_ONCE: Duration = Duration::from_millis(1);

/// Threads have numbers of the whole process: tests that count on them run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn builder(plugin: &Mem) -> Builder {
    Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true)
}

fn open(plugin: &Mem, contexts: usize) -> Engine {
    builder(plugin).contexts(contexts).open("mem://").unwrap()
}

/// A target that serves everything.
fn target_at(plugin: &Mem, url: &str, contexts: usize) -> (Engine, Arc<Mutex<Vec<Answer<held>>>>) {
    let target = builder(plugin).contexts(contexts).open(url).unwrap();
    let say = |request: &Request, ()| {
        Ok((request.engine().address().to_string(), format!("{:?}", request.origin())))
    };
    target.serve(seen, say).unwrap();
    let reverse = |request, (memory,)| async move {
        reverse(request, memory).await;
        Ok(())
    };
    target.serve_async(reversed, reverse).unwrap();
    let held_answers = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&held_answers);
    target.serve_later(held, move |_, (), answer| keep.lock().unwrap().push(answer)).unwrap();
    (target, held_answers)
}

fn target(plugin: &Mem, contexts: usize) -> Engine {
    target_at(plugin, "mem://", contexts).0
}

/// Which context has served a call.
fn server(engine: &Engine, peer: &Peer) -> String {
    engine.call_with(seen, peer, (), within()).wait().unwrap().0
}

fn within() -> CallOptions {
    CallOptions::within(WATCHDOG)
}

fn contexts(engine: &Engine) -> Vec<Engine> {
    (0..).map_while(|index| engine.context(index)).collect()
}

fn addresses(engine: &Engine) -> Vec<String> {
    contexts(engine).iter().map(|it| it.address().to_string()).collect()
}

#[test]
fn threads_that_share_a_peer_have_a_context_each_on_both_sides() {
    let _alone = alone();
    let plugin = Mem::default();
    let (target, origin) = (target(&plugin, 4), open(&plugin, 4));
    assert_eq!(target.address().as_str(), format!("{}*4", addresses(&target)[0]));
    let peer = origin.lookup(target.address()).unwrap();
    let call = || {
        let mut seen_by: Vec<_> =
            (0..50).map(|_| origin.call_with(seen, &peer, (), within()).wait().unwrap()).collect();
        seen_by.dedup();
        assert_eq!(seen_by.len(), 1, "a thread stays with its context");
        seen_by.remove(0)
    };
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let servers: HashSet<_> = all.iter().map(|(server, _)| server.clone()).collect();
    let callers: HashSet<_> = all.iter().map(|(_, caller)| caller.clone()).collect();
    assert_eq!(servers, HashSet::from_iter(addresses(&target)));
    assert_eq!(callers.len(), 4);
}

#[test]
fn a_context_calls_the_one_of_the_same_place_counted_in_turn() {
    let plugin = Mem::default();
    for (ours, theirs) in [(3, 1), (3, 2), (2, 3), (2, 2)] {
        let (target, origin) = (target(&plugin, theirs), open(&plugin, ours));
        let peer = origin.lookup(target.address()).unwrap();
        assert_eq!(origin.lookup(target.address()).unwrap(), peer);
        assert_eq!(origin.address_of(&peer).as_ref(), Some(target.address()));
        for (index, context) in contexts(&origin).into_iter().enumerate() {
            let expected = &addresses(&target)[index % theirs];
            assert_eq!(server(&context, &peer), *expected);
            assert_eq!(context.address_of(&peer).as_ref(), Some(target.address()));
            let own = context.lookup(target.address()).unwrap();
            assert_eq!(server(&context, &own), *expected);
            assert_eq!(server(&origin, &own), *expected, "the context that has looked it up");
        }
    }
}

#[test]
fn a_context_alone_calls_the_one_of_its_own_place() {
    let plugin = Mem::default();
    let (target, origin) = (target(&plugin, 3), open(&plugin, 1));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(server(&origin, &peer), addresses(&target)[0]);
    assert_eq!(origin.lookup(&addresses(&target)[0]).unwrap(), peer);
    assert_eq!(origin.address().as_str(), addresses(&origin)[0]);
}

#[test]
fn a_targets_context_is_chosen_by_its_address() {
    let plugin = Mem::default();
    let (target, origin) = (target(&plugin, 4), open(&plugin, 2));
    for (index, expected) in addresses(&target).iter().enumerate() {
        let chosen = origin.address_at(target.address(), index).unwrap();
        assert_eq!(chosen.as_str(), expected);
        let peer = origin.lookup(chosen).unwrap();
        for context in contexts(&origin) {
            assert_eq!(server(&context, &peer), *expected);
        }
    }
    let refused = origin.address_at(target.address(), 4).unwrap_err().to_string();
    assert!(refused.contains("names 4 contexts"), "{refused}");
    assert!(origin.address_at(&addresses(&target)[1], 1).is_err());
}

#[test]
fn who_has_called_is_called_back_by_the_whole_engine() {
    let plugin = Mem::default();
    let (target, origin) = (target(&plugin, 3), target(&plugin, 3));
    let whole = target.clone();
    let back = move |request: &Request, ()| Ok(server(&whole, &request.origin()));
    target.serve_blocking(call_back, back).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    for (context, own) in contexts(&origin).iter().zip(addresses(&origin)) {
        let reached = context.call_with(call_back, &peer, (), within()).wait().unwrap();
        assert_eq!(reached, own);
    }
    target.close();
}

#[test]
fn a_handler_calls_by_its_own_context() {
    let _alone = alone();
    let plugin = Mem::default();
    let (first, second, origin) = (target(&plugin, 3), target(&plugin, 3), open(&plugin, 3));
    let (whole, next) = (first.clone(), first.lookup(second.address()).unwrap());
    // Whichever thread runs it: it cannot wait for the context whose progress it keeps from going on.
    first
        .serve(call_on, move |_, (to,)| {
            let other = whole.lookup(to).unwrap();
            let outcome = whole.call(seen, &other, ()).wait();
            Ok(outcome.map_or_else(|error| error.to_string(), |(server, _)| server))
        })
        .unwrap();
    first
        .serve_async(call_back, move |request, ()| async move {
            Ok(request
                .engine()
                .call(seen, &next, ())
                .await
                .map_or_else(|it| it.to_string(), |it| it.0))
        })
        .unwrap();
    let peer = origin.lookup(first.address()).unwrap();
    // This thread takes a number, so that those of the threads that run handlers are not their contexts'.
    server(&origin, &peer);
    for (context, expected) in contexts(&origin).iter().zip(addresses(&second)) {
        let to = (second.address().clone(),);
        let outcome = context.call_with(call_on, &peer, to, within()).wait().unwrap();
        assert_eq!(outcome, CallError::<hg_core::rpc::NoError>::WouldDeadlock.to_string());
        let reached = context.call_with(call_back, &peer, (), within()).wait().unwrap();
        assert_eq!(reached, expected);
    }
    first.close();
}

#[test]
fn what_all_contexts_do_is_counted_together_and_a_forgotten_peer_ends_it() {
    let plugin = Mem::default();
    let (target, answers) = target_at(&plugin, "mem://", 3);
    let origin = open(&plugin, 3);
    let peer = origin.lookup(target.address()).unwrap();
    let all = contexts(&origin);
    let calls: Vec<_> = all.iter().map(|it| it.call_with(held, &peer, (), within())).collect();
    while answers.lock().unwrap().len() < 3 {
        thread::yield_now();
    }
    assert_eq!((origin.calls_under_way(), all[1].calls_under_way()), (3, 1));
    assert_eq!(target.requests_in_service(), 3);
    origin.forget(peer);
    for call in calls {
        let ended = call.wait().unwrap_err();
        assert!(matches!(ended, CallError::PeerGone { .. }), "{ended:?}");
    }
    assert_eq!(origin.address_of(&peer), None);
    let again = origin.lookup(target.address()).unwrap();
    assert_ne!(again, peer);
    for context in all {
        let gone = context.call_with(seen, &peer, (), within()).wait().unwrap_err();
        assert!(matches!(gone, CallError::PeerGone { .. }), "{gone:?}");
        server(&context, &again);
    }
}

#[test]
fn the_peer_of_a_target_that_has_restarted_is_gone_for_each_context() {
    let plugin = Mem::default();
    let origin = open(&plugin, 3);
    let mut before = Vec::new();
    for _ in 0..5 {
        let (target, _) = target_at(&plugin, "mem://restarts", 3);
        let peer = origin.lookup(target.address()).unwrap();
        assert!(!before.contains(&peer));
        for context in contexts(&origin) {
            server(&context, &peer);
            for old in &before {
                let gone = context.call_with(seen, old, (), within()).wait().unwrap_err();
                assert!(matches!(gone, CallError::PeerGone { .. }), "{gone:?}");
            }
        }
        target.close();
        // One of the contexts hears of it by a call; the others need not have.
        let gone = origin.call_with(seen, &peer, (), within()).wait().unwrap_err();
        assert!(matches!(gone, CallError::PeerGone { .. }), "{gone:?}");
        before.push(peer);
    }
}

#[test]
fn memory_is_moved_by_each_threads_context_and_found_by_a_bound_descriptor() {
    let plugin = Mem::default();
    let (target, origin, third) = (target(&plugin, 2), open(&plugin, 4), open(&plugin, 3));
    let peer = origin.lookup(target.address()).unwrap();
    let bytes: Vec<u8> = (0..200_000_u32).map(|it| it.to_le_bytes()[0]).collect();
    let source = target.expose(bytes.clone(), Rights::READ).unwrap();
    let (descriptor, bound) = (source.descriptor(), source.bound_descriptor());
    assert_eq!(bound.owner(), Some(target.address()));
    let work = || {
        assert_eq!(origin.fetch(&peer, &descriptor).wait().unwrap(), bytes);
        assert_eq!(origin.fetch_into(&peer, &descriptor, Vec::new()).wait().unwrap(), bytes);
        assert_eq!(origin.view(&peer, &descriptor).wait().unwrap().to_vec().unwrap(), bytes);
        let local = origin.expose(bytes.clone(), Rights::READ | Rights::WRITE).unwrap();
        origin.call_with(reversed, &peer, (local.descriptor(),), within()).wait().unwrap();
        assert!(local.to_vec().unwrap().iter().eq(bytes.iter().rev()));
        origin.pull(&peer, &descriptor, &local).wait().unwrap();
        assert_eq!(local.into_vec().unwrap(), bytes);
        let owner = third.owner_of(&bound).unwrap();
        assert_eq!(third.fetch(&owner, &bound).wait().unwrap(), bytes);
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(origin.transfers_under_way(), 0);
}

#[test]
fn a_peer_of_another_engine_is_refused() {
    let plugin = Mem::default();
    let (target, one, other) = (target(&plugin, 2), open(&plugin, 2), open(&plugin, 2));
    for strange in [one.lookup(target.address()), one.context(1).unwrap().lookup(target.address())]
    {
        let strange = strange.unwrap();
        let refused = other.call(seen, &strange, ()).wait().unwrap_err();
        assert!(matches!(refused, CallError::NotMade(hg_na::Error::UnknownPeer)), "{refused:?}");
        assert_eq!((other.address_of(&strange), other.way_of(&strange).as_str()), (None, ""));
        other.forget(strange);
        let memory = target.expose(vec![0; 9000], Rights::READ).unwrap();
        assert!(other.fetch(&strange, memory.descriptor()).wait().is_err());
    }
    let second = one.context(1).unwrap().lookup(target.address()).unwrap();
    let refused = one.context(0).unwrap().call(seen, &second, ()).wait().unwrap_err();
    assert!(matches!(refused, CallError::NotMade(hg_na::Error::UnknownPeer)), "{refused:?}");
}

#[test]
fn an_address_with_a_wrong_number_of_contexts_is_refused() {
    let plugin = Mem::default();
    let engine = open(&plugin, 2);
    for count in ["*0", "*999", "*x", "*", "*02"] {
        for engine in [engine.clone(), engine.context(1).unwrap(), open(&plugin, 1)] {
            let refused: OpenError = engine.lookup(format!("mem://a/0{count}")).unwrap_err();
            let why = refused.to_string();
            assert!(why.contains("how many contexts there are, 1 to 256"), "{why}");
        }
    }
    // One that promises more than there are: those contexts are not there.
    let (target, _) = target_at(&plugin, "mem://", 1);
    let peer = engine.lookup(target.address().with_contexts(2).unwrap()).unwrap();
    server(&engine.context(0).unwrap(), &peer);
    let gone = engine.context(1).unwrap().call_with(seen, &peer, (), within()).wait().unwrap_err();
    assert!(matches!(gone, CallError::PeerGone { .. }), "{gone:?}");
}

#[test]
fn who_makes_progress_himself_makes_that_of_his_threads_context() {
    let _alone = alone();
    let plugin = Mem::default();
    let (target, _) = target_at(&plugin, "mem://", 2);
    let origin =
        builder(&plugin).contexts(2).calls_max(1).progress(Progress::Own).open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let work = || {
        let first = origin.call(seen, &peer, ());
        let refused = origin.call(seen, &peer, ()).wait().unwrap_err();
        assert!(matches!(refused, CallError::NotMade(hg_na::Error::Limit { .. })), "{refused:?}");
        let mut made = first;
        let answer = loop {
            origin.progress(AT_ONCE);
            if let Some(answer) = made.try_wait() {
                break answer;
            }
        };
        answer.unwrap();
        drop(made);
        origin.ready().wait().unwrap();
        server(&origin, &peer);
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
}
