//! Full rings, stopped targets, deadlines, and what waiting costs.

use std::{
    thread,
    time::{Duration, Instant},
};

use hg::{
    CallError, CallOptions, Wait,
    na::{Completion, Message, Op, OpenOptions},
};
use nix::sys::signal::Signal;

use crate::{
    common::{
        Child, Random, Watchdog,
        child::say,
        falls_to,
        process::{cpu_ticks, cpu_us, peak_rss_kib, rss_kib, shared_rss_kib, sleeps},
    },
    input::Raw,
    roles::{Settings, add, arrive, arrived, echo, never, relay, serve_all, toil},
    transports::{PLAIN_TCP, open_over, urls, witness_over},
};

/// Processor time of an idle process in 5 s: less than a tick, 0.2 %.
const IDLE_US: u64 = 10_000;
/// Calls that are over before their requests could leave.
const PILE: u64 = 10_000;
/// Calls of one flood, unless the role is told otherwise.
const FLOOD: u64 = 100_000;
/// What a flood may cost either side, in KiB.
const FLOOD_KIB: u64 = 64 * 1024;

/// One-way calls as fast as they are taken, in a process of its own; says what they cost it in KiB.
pub(crate) fn one_way_flood(settings: &Settings) {
    let me = std::process::id();
    let engine = settings.open(false).expect("an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    engine.call(add, &peer, (1, 2)).wait().expect("the target serves");
    let before = rss_kib(me);
    let mut random = Random::new(3);
    let padding = random.bytes(3000);
    for number in 0..settings.number("calls").unwrap_or(FLOOD) {
        if number % 5000 == 0 {
            drop(engine.notify(toil, &peer, (50_000,)));
        }
        let len = if number % 50 == 0 { random.size_below(padding.len()) } else { 0 };
        // Ends when the request was handed over: here the caller waits for room.
        engine.notify(arrive, &peer, (number, &padding[..len])).wait().expect("it is handed over");
    }
    let (count, misplaced) = engine.call(arrived, &peer, ()).wait().expect("the target serves");
    say(&format!("{count} {misplaced} {}", peak_rss_kib(me).saturating_sub(before)));
}

/// Calls without waiting for the answers, nearly as many as one peer's share is; the same report.
pub(crate) fn two_way_flood(settings: &Settings) {
    let me = std::process::id();
    let engine = settings.open(false).expect("an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    engine.call(add, &peer, (1, 2)).wait().expect("the target serves");
    let before = rss_kib(me);
    let calls = settings.number("calls").unwrap_or(FLOOD);
    let quarter = calls / 4;
    for begin in (0..4).map(|it| it * quarter) {
        drop(engine.notify(toil, &peer, (100_000,)));
        let numbers = begin..begin + quarter;
        let calls: Vec<_> =
            numbers.map(|number| engine.call(arrive, &peer, (number, &[]))).collect();
        for (call, number) in calls.into_iter().zip(begin..) {
            assert_eq!(call.wait().expect("nothing is dropped"), number);
        }
    }
    let (count, misplaced) = engine.call(arrived, &peer, ()).wait().expect("the target serves");
    say(&format!("{count} {misplaced} {}", peak_rss_kib(me).saturating_sub(before)));
}

/// Floods a slow target; all arrive, and neither side needs more than it may.
fn flood(url: &str, role: &str, calls: u64) {
    let (target, address) = Child::target(&format!("url={url} wait=block in-service=512"));
    let before = rss_kib(target.pid());
    let mut origin = Child::start(role, &format!("url={url} to={address} calls={calls}"));
    let report = origin.hear();
    let numbers: Vec<u64> = report.split(' ').map(|word| word.parse().unwrap()).collect();
    let [count, misplaced, ours] = numbers[..] else { panic!("{report}") };
    assert_eq!((count, misplaced), (calls, 0), "{role}");
    let theirs = peak_rss_kib(target.pid()).saturating_sub(before);
    assert!(ours < FLOOD_KIB && theirs < FLOOD_KIB, "{role}: {ours} KiB here, {theirs} there");
}

#[test]
fn a_hundred_thousand_calls_at_a_slow_target_arrive_in_order_and_in_bounded_memory() {
    let _watchdog = Watchdog::start();
    flood("sm://", "one-way-flood", FLOOD);
    flood("sm://", "two-way-flood", FLOOD);
}

#[test]
fn floods_arrive_in_order_and_in_bounded_memory_over_any_transport() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        flood(url, "one-way-flood", FLOOD / 10);
        flood(url, "two-way-flood", FLOOD / 10);
    }
}

#[test]
fn a_sender_that_sleeps_for_room_is_woken_each_time() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("wait=block");
    let engine = hg::builder().wait(Wait::Block).open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    let mut number = 0;
    for burst in 0..4000 {
        // A few more than a ring holds; nothing comes back that could wake the sender by chance.
        for _ in 0..66 + burst % 7 {
            engine.notify(arrive, &peer, (number, &[])).wait().unwrap();
            number += 1;
        }
    }
    assert_eq!(engine.call(arrived, &peer, ()).wait().unwrap(), (number, 0));
}

#[test]
fn a_message_in_private_memory_is_not_kept_waiting_by_those_queued_behind_it() {
    const LEN: usize = 200_000;
    let _watchdog = Watchdog::start();
    let (mut target, mut origin) =
        (Raw::open(&OpenOptions::listening()), Raw::open(&OpenOptions::default()));
    let to = origin.lookup(target.address().as_str());
    let taken = |target: &mut Raw| {
        let is_message = |it: &Completion| matches!(it, Completion::Unexpected { .. });
        target.take().into_iter().filter(is_message).count()
    };
    origin.post(Op::SendUnexpected { to, message: Message::inline(8) });
    while taken(&mut target) == 0 {
        origin.take();
    }
    // Until the transport has no memory left, and a message in private memory is queued.
    let mut in_transport = 0;
    loop {
        let message = origin.message(to, LEN);
        let is_private = message.body().is_none();
        origin.post(Op::SendUnexpected { to, message });
        if is_private {
            break;
        }
        in_transport += 1;
    }
    while in_transport > 0 {
        in_transport -= taken(&mut target);
    }
    // These take all of the memory that has become free, and are queued behind it.
    let behind: Vec<_> = (0..30).map(|_| origin.message(to, LEN)).collect();
    let mut missing = behind.len() + 1;
    for message in behind {
        origin.post(Op::SendUnexpected { to, message });
    }
    while missing > 0 {
        origin.take();
        missing -= taken(&mut target);
    }
}

#[test]
fn two_processes_that_flood_each_other_both_finish() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("url={url} in-service=16"));
        let engine = open_over(hg::builder().listen(true).in_service_max(16), url).unwrap();
        serve_all(&engine);
        let peer = engine.lookup(&address).unwrap();
        let me = engine.address().to_string();
        let mut flooders: Vec<_> = (0..2)
            .map(|seed| Child::start("flooder", &format!("url={url} to={me} seed={seed}")))
            .collect();
        flooders.iter_mut().for_each(|flooder| assert_eq!(flooder.hear(), "ready"));
        let big = vec![1; 40_000];
        for _ in 0..10 {
            let relays: Vec<_> =
                (0..100).map(|number| engine.call(relay, &peer, (me.clone(), number, 1))).collect();
            let echoes: Vec<_> = (0..100).map(|_| engine.call(echo, &peer, (&big,))).collect();
            for (call, number) in relays.into_iter().zip(0..) {
                assert_eq!(call.wait().unwrap(), number + 1);
            }
            echoes.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), big));
        }
    }
}

#[test]
fn deadlines_fire_while_the_target_is_stopped_and_it_serves_on_afterwards() {
    let _watchdog = Watchdog::start();
    let waits = [Wait::Block, Wait::default(), Wait::Spin];
    for (url, wait) in urls().flat_map(|url| waits.map(|wait| (url, wait))) {
        let (target, address) = Child::target(&format!("url={url}"));
        let engine = open_over(hg::builder().wait(wait), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        target.stop();
        let (begun, deadline) = (Instant::now(), Duration::from_millis(120));
        // More than the rings hold: most of them never leave.
        let calls: Vec<_> = (0..500)
            .map(|_| engine.call_with(add, &peer, (1, 2), CallOptions::within(deadline)))
            .collect();
        for call in calls {
            let result = call.wait();
            assert!(matches!(result, Err(CallError::DeadlineExceeded(_))), "{result:?}");
        }
        assert!(begun.elapsed() >= deadline);
        let waiting = engine.call(add, &peer, (20, 22));
        target.signal(Signal::SIGCONT);
        assert_eq!(waiting.wait().unwrap(), 42);
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    }
}

#[test]
fn a_stopped_process_that_nobody_knows_yet_cannot_hold_a_caller_beyond_its_deadline() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (target, address) = Child::target(&format!("url={url}"));
        target.stop();
        let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let options = CallOptions::within(Duration::from_millis(100));
        let error = engine.call_with(add, &peer, (1, 2), options).wait().unwrap_err();
        assert!(matches!(error, CallError::DeadlineExceeded(_)), "{error}");
        let waiting = engine.call(add, &peer, (20, 22));
        target.signal(Signal::SIGCONT);
        assert_eq!(waiting.wait().unwrap(), 42);
    }
}

#[test]
fn requests_of_calls_that_are_over_do_not_pile_up_behind_those_that_wait() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (target, address) = Child::target(&format!("url={url}"));
        let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        target.stop();
        let waiting: Vec<_> = (0..1000).map(|_| engine.call(add, &peer, (20, 22))).collect();
        let before = rss_kib(std::process::id());
        let argument = vec![1; 4096];
        for _ in 0..PILE {
            drop(engine.call(echo, &peer, (&argument,)));
        }
        let more = rss_kib(std::process::id()).saturating_sub(before);
        assert!(more < PILE / 2 * 4, "{url}: {more} KiB for {PILE} calls that are over");
        target.signal(Signal::SIGCONT);
        for call in waiting {
            assert_eq!(call.wait().unwrap(), 42);
        }
    }
}

#[test]
fn callers_that_wait_for_a_stopped_target_do_not_spin() {
    let _watchdog = Watchdog::start();
    for (url, setting) in [
        ("sm://", "wait=block"),
        ("sm://", "wait=adaptive"),
        ("sm://", "wait=block progress=own"),
        #[cfg(feature = "tcp")]
        (PLAIN_TCP, "wait=adaptive"),
        #[cfg(feature = "sm-routing")]
        ("tcp://127.0.0.1:0", "wait=adaptive"),
    ] {
        let (target, address) = Child::target(&format!("url={url}"));
        let mut origin = Child::start("origin", &format!("url={url} to={address} {setting}"));
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call 10"), "ok");
        target.stop();
        let report = origin.ask("deadline 1000");
        let [kind, cpu_us, took_us] = report.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{report}")
        };
        assert_eq!(kind, "DeadlineExceeded");
        let (cpu_us, took_us): (u64, u64) = (cpu_us.parse().unwrap(), took_us.parse().unwrap());
        assert!(took_us >= 1_000_000);
        assert!(cpu_us * 5 < took_us, "{setting}: {cpu_us} us of {took_us} us were burnt");
        target.signal(Signal::SIGCONT);
        assert_eq!(origin.ask("call 10"), "ok");
    }
}

#[test]
fn a_blocking_call_costs_each_side_one_sleep() {
    const CALLS: u64 = 2000;
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (target, address) = Child::target(&format!("url={url} wait=block"));
        let settings = format!("url={url} to={address} wait=block");
        let mut origin = Child::start("origin", &settings);
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call 100"), "ok");
        let pids = [target.pid(), origin.pid()];
        let read = || pids.map(sleeps);
        let mut sleeps_in_calls = || {
            let before = read();
            assert_eq!(origin.ask(&format!("call {CALLS}")), "ok");
            std::array::from_fn::<_, 2, _>(|side| read()[side] - before[side])
        };
        // A few besides: the origin waits for commands, and either side looks after its memory. A second sleep in each call would
        // make it twice as many, every time; on a busy machine whoever holds a lock may lose the processor, now and then.
        let is_one = |slept: &[u64; 2]| slept.iter().all(|times| *times <= CALLS + CALLS / 2);
        let rounds: Vec<_> =
            (0..5).map(|_| sleeps_in_calls()).take_while(|it| !is_one(it)).collect();
        assert!(rounds.len() < 5, "{rounds:?} sleeps over {url}");
    }
}

#[test]
fn idle_processes_that_are_connected_use_no_processor_time() {
    let _watchdog = Watchdog::start();
    let mut idle = Vec::new();
    let settings = ["wait=block", "wait=adaptive", "wait=adaptive progress=own"];
    for setting in urls().flat_map(|url| settings.map(|it| format!("url={url} {it}"))) {
        let (target, address) = Child::target(&setting);
        // An origin with progress of its own sleeps in nobody's loop.
        let mut origin = Child::start("origin", &format!("to={address} {setting}"));
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call 1000"), "ok");
        idle.push((format!("target {setting}"), target));
        idle.push((format!("origin {setting}"), origin));
    }
    let read = |idle: &[(String, Child)]| -> Vec<(u64, u64)> {
        idle.iter().map(|(_, child)| (cpu_us(child.pid()), sleeps(child.pid()))).collect()
    };
    // Memory is given back some time after it was used, on a busy machine later.
    let mut last = Vec::new();
    for _ in 0..10 {
        thread::sleep(Duration::from_secs(2));
        let ticks: Vec<_> = idle.iter().map(|(_, child)| cpu_ticks(child.pid())).collect();
        if std::mem::replace(&mut last, ticks.clone()) == ticks {
            break;
        }
    }
    // What is given back still, on a busy machine, is in one of these alone.
    let mut busy = None;
    for _ in 0..3 {
        let before = read(&idle);
        thread::sleep(Duration::from_secs(5));
        busy = idle.iter().zip(before).zip(read(&idle)).find_map(|(((who, _), before), after)| {
            let (used, woken) = (after.0.saturating_sub(before.0), after.1 - before.1);
            assert!(before.0 > 0, "the kernel does not tell what {who} has used");
            // The loop of the target with progress of its own asks once a second.
            let is_busy = used >= IDLE_US || woken > 12;
            is_busy.then(|| {
                format!("the idle {who} has used {used} us and woken {woken} times in 5 s")
            })
        });
        if busy.is_none() {
            break;
        }
    }
    assert_eq!(busy, None);
}

#[test]
fn pages_of_large_messages_are_given_back_when_idle() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block");
    let mut origin = Child::start("flooder", &format!("to={address}"));
    let engine = hg::builder().wait(Wait::Block).open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    let calm = (shared_rss_kib(target.pid()), rss_kib(target.pid()));
    assert_eq!(origin.hear(), "ready");
    let body = vec![5; 200_000];
    let calls: Vec<_> = (0..200).map(|_| engine.call(echo, &peer, (&body,))).collect();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), body));
    origin.kill();
    let shared = falls_to(calm.0 + 128, || shared_rss_kib(target.pid()));
    assert!(shared <= calm.0 + 128, "shared: {} KiB became {shared} KiB", calm.0);
    // Of the private memory, in which 40 MB were received, the allocator keeps some.
    let all = falls_to(calm.1 + 16_384, || rss_kib(target.pid()));
    assert!(all <= calm.1 + 16_384, "{} KiB became {all} KiB", calm.1);
}

#[test]
fn a_caller_of_a_busy_target_waits_and_is_served_in_the_end() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("url={url} wait=block in-service=8"));
        let witness = witness_over(url, &address);
        let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        // One less than the share of one origin.
        let open: Vec<_> = (0..3).map(|_| engine.call(never, &peer, ())).collect();
        let calls: Vec<_> = (0..50).map(|_| engine.call(toil, &peer, (2000,))).collect();
        for call in calls {
            call.wait().unwrap();
        }
        drop(open);
        witness.testifies();
    }
}
