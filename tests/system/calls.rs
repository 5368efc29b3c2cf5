//! Every kind of call, of waiting and of progress; names; payloads of all sizes.

use std::{
    os::fd::AsFd as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use hg::{CallError, CallOptions, Engine, Error, EventLoop, Progress, Wait};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    common::{Child, Random, Watchdog},
    roles::{add, echo, explode, nap, never, relay, serve_all},
    transports::{open_over, urls},
};

fn listening(wait: Wait) -> Engine {
    let engine = hg::builder().listen(true).wait(wait).open("sm://").unwrap();
    serve_all(&engine);
    engine
}

#[test]
fn spinning_adaptive_and_blocking_processes_call_each_other() {
    let _watchdog = Watchdog::start();
    for target_waits in ["spin", "adaptive", "block"] {
        let (_target, address) = Child::target(&format!("wait={target_waits}"));
        let mut origins: Vec<_> = ["spin", "adaptive", "block"]
            .iter()
            .map(|waits| Child::start("origin", &format!("to={address} wait={waits}")))
            .collect();
        for origin in &mut origins {
            assert_eq!(origin.hear(), "ready");
            origin.tell("call 300");
        }
        for origin in &mut origins {
            assert_eq!(origin.hear(), "ok");
        }
    }
}

#[test]
fn an_own_loop_and_a_background_thread_serve_the_same() {
    let _watchdog = Watchdog::start();
    for progress in ["own", "background"] {
        for wait in ["adaptive", "block"] {
            let (_target, address) = Child::target(&format!("progress={progress} wait={wait}"));
            let to = format!("to={address} progress={progress} wait={wait}");
            let mut origin = Child::start("origin", &to);
            assert_eq!(origin.hear(), "ready");
            assert_eq!(origin.ask("call 200"), "ok");
        }
    }
}

/// A foreign event loop: sleeps in poll(2) until `enough`.
fn run_event_loop(engine: &Engine, mut enough: impl FnMut() -> bool) -> u32 {
    let events = engine.event_loop().unwrap();
    let mut sleeps = 0;
    while !enough() {
        while events.progress() {}
        if !enough() && events.may_sleep().unwrap() {
            sleeps += 1;
            let descriptor = PollFd::new(events.as_fd(), PollFlags::POLLIN);
            assert_eq!(poll(&mut [descriptor], PollTimeout::NONE).unwrap(), 1);
        }
    }
    sleeps
}

#[test]
fn a_foreign_event_loop_is_woken_by_answers_and_by_deadlines() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("wait=block");
    let engine = hg::builder().progress(Progress::Own).open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    for number in 0..100 {
        let mut call = engine.call(nap, &peer, (number % 3,));
        let mut value = None;
        run_event_loop(&engine, || {
            value = value.take().or_else(|| call.try_wait());
            value.is_some()
        });
        assert_eq!(value.unwrap().unwrap(), number % 3);
    }
    let begun = Instant::now();
    let deadline = Duration::from_millis(100);
    let mut call = engine.call_with(never, &peer, (), CallOptions::within(deadline));
    let mut outcome = None;
    let sleeps = run_event_loop(&engine, || {
        outcome = outcome.take().or_else(|| call.try_wait());
        outcome.is_some()
    });
    let error = outcome.unwrap().unwrap_err();
    assert!(matches!(error, CallError::DeadlineExceeded(_)), "{error}");
    assert!(begun.elapsed() >= deadline);
    assert!(sleeps < 50, "the loop slept {sleeps} times instead of until the deadline");
}

#[test]
fn a_foreign_event_loop_serves_other_processes() {
    let _watchdog = Watchdog::start();
    let builder = hg::builder().listen(true).progress(Progress::Own);
    let engine = builder.open("sm://").unwrap();
    serve_all(&engine);
    let mut origins: Vec<_> = ["spin", "block"]
        .iter()
        .map(|wait| Child::start("origin", &format!("to={} wait={wait}", engine.address())))
        .collect();
    for origin in &mut origins {
        assert_eq!(origin.hear(), "ready");
        origin.tell("call 500");
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let loops = scope.spawn(|| run_event_loop(&engine, || over.load(Ordering::SeqCst)));
        for origin in &mut origins {
            assert_eq!(origin.hear(), "ok");
        }
        over.store(true, Ordering::SeqCst);
        // One more request wakes the loop, which then sees that it is over.
        origins[0].tell("call");
        assert!(loops.join().unwrap() > 0, "the loop never slept");
    });
}

/// Whether a sleep on it would end now.
fn fires(events: &EventLoop) -> bool {
    let descriptor = PollFd::new(events.as_fd(), PollFlags::POLLIN);
    poll(&mut [descriptor], PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn a_foreign_event_loop_that_sleeps_is_woken_by_whoever_has_made_progress_meanwhile() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("wait=block url={url}"));
        let builder = hg::builder().progress(Progress::Own).wait(Wait::Block);
        let engine = open_over(builder, url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let events = engine.event_loop().unwrap();
        for round in 0..20 {
            while events.progress() || !events.may_sleep().unwrap() {}
            // The one call's sleep takes what the loop's would be ended by.
            assert_eq!(engine.call(nap, &peer, (round % 3,)).wait().unwrap(), round % 3);
            assert!(fires(&events), "nobody makes progress any more, and the loop sleeps on");
        }
    }
}

#[test]
fn an_engine_calls_itself_however_it_waits() {
    let _watchdog = Watchdog::start();
    for wait in [Wait::Block, Wait::default(), Wait::Spin] {
        let engine = listening(wait);
        let itself = engine.lookup(engine.address()).unwrap();
        for number in 0..200 {
            assert_eq!(engine.call(add, &itself, (number, 1)).wait().unwrap(), number + 1);
        }
        let body = Random::new(1).bytes(50_000);
        assert_eq!(engine.call(echo, &itself, (&body,)).wait().unwrap(), body);
        assert_eq!(engine.call(nap, &itself, (1,)).wait().unwrap(), 1);
        let address = engine.address().to_string();
        assert_eq!(engine.call(relay, &itself, (address, 4, 5)).wait().unwrap(), 9);
    }
    let own = hg::builder().listen(true).progress(Progress::Own).open("sm://").unwrap();
    serve_all(&own);
    let itself = own.lookup(own.address()).unwrap();
    assert_eq!(own.call(add, &itself, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn a_handler_calls_a_third_process_and_its_own_caller() {
    let _watchdog = Watchdog::start();
    let (_middle, middle) = Child::target("wait=block");
    let (_third, third) = Child::target("");
    for wait in [Wait::Block, Wait::default()] {
        let engine = listening(wait);
        let peer = engine.lookup(&middle).unwrap();
        let me = engine.address().to_string();
        let calls: Vec<_> = (0..200)
            .map(|number| {
                let to = if number % 2 == 0 { &me } else { &third };
                engine.call(relay, &peer, (to.clone(), number, 1))
            })
            .collect();
        for (call, number) in calls.into_iter().zip(0..) {
            assert_eq!(call.wait().unwrap(), number + 1);
        }
        let nobody = "sm://nobody-is-there".to_owned();
        let error = engine.call(relay, &peer, (nobody, 1, 1)).wait().unwrap_err();
        assert!(
            matches!(&error, CallError::Handler(text) if text.contains("no connection")),
            "{error}"
        );
    }
}

#[test]
fn every_context_of_an_engine_calls_and_serves() {
    let _watchdog = Watchdog::start();
    let (_target, first) = Child::target("contexts=3");
    let body = first.strip_suffix("/0*3").unwrap();
    let engine = hg::builder().contexts(3).listen(true).open("sm://").unwrap();
    serve_all(&engine);
    for theirs in 0..3 {
        let mut origin = Child::start("origin", &format!("to={body}/{theirs} contexts=2"));
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call 20"), "ok");
        for ours in 0..3 {
            let context = engine.context(ours).unwrap();
            let peer = context.lookup(format!("{body}/{theirs}")).unwrap();
            assert_eq!(context.call(add, &peer, (20, 22)).wait().unwrap(), 42);
            let back = engine.context((ours + 1) % 3).unwrap().address().to_string();
            assert_eq!(context.call(relay, &peer, (back, 1, 2)).wait().unwrap(), 3);
        }
    }
    assert!(engine.context(3).is_none());
    let stranger = engine.context(1).unwrap().lookup(&first).unwrap();
    assert_eq!(engine.call(add, &stranger, (1, 2)).wait().unwrap(), 3);
    let error = engine.context(0).unwrap().call(add, &stranger, (1, 2)).wait().unwrap_err();
    assert!(matches!(error, CallError::NotMade(Error::UnknownPeer)), "{error}");
}

#[test]
fn payloads_of_every_size_arrive_whole_from_many_threads() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("");
    let engine = hg::open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    let edges = [0, 55, 56, 57, 63, 64, 65, 127, 128, 4095, 4096, 4097, 32_768, 65_000, 65_480];
    thread::scope(|scope| {
        for seed in 1..=4 {
            let engine = &engine;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let sizes = (0..130).chain(edges);
                for size in sizes.chain((0..300).map(|_| random.size_below(65_000))) {
                    let body = Random::new(seed + size as u64).bytes(size);
                    assert_eq!(engine.call(echo, &peer, (&body,)).wait().unwrap(), body);
                }
            });
        }
    });
}

#[test]
fn a_name_in_use_is_a_clear_error_and_is_free_after_kill_9() {
    let _watchdog = Watchdog::start();
    let name = format!("metadata-{}", std::process::id());
    let (mut first, address) = Child::target(&format!("name={name}"));
    assert!(address.contains(&name), "{address}");
    let (_second, refused) = Child::target(&format!("name={name}"));
    assert!(refused.contains("in use by another process") && refused.contains(&name), "{refused}");
    let error = hg::listen(&format!("sm://{name}")).unwrap_err();
    assert!(matches!(error, Error::AddressInUse(_)), "{error}");
    first.kill();
    let (_third, again) = Child::target(&format!("name={name}"));
    assert_eq!(again, address);
    let engine = hg::open("sm://").unwrap();
    let peer = engine.lookup(format!("sm://{name}")).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn a_handler_that_panics_costs_its_caller_an_error_and_nobody_else_anything() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("");
    let witness = crate::common::Witness::of(&address);
    let engine = hg::open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    for round in 0..20 {
        let why = format!("on purpose, {round}");
        let error = engine.call(explode, &peer, (&why,)).wait().unwrap_err();
        assert!(matches!(&error, CallError::Panicked(text) if *text == why), "{error}");
        drop(engine.notify(explode, &peer, ("one-way",)));
    }
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    witness.testifies();
}
