//! Many stories hold, and the same seed gives the same story.

use std::thread;

use sim::{
    Checks, Kind, Planted, Trace, Tracing, check_of,
    story::{Act, Call, Event, Manner, Story, What},
};

/// Stories that are run with every test command.
const SEEDS: u64 = 5000;

/// Threads that run them.
const THREADS: u64 = 2;

fn trace_of(seed: u64) -> Trace {
    sim::run(&Story::new(seed), Checks::default(), Tracing::Lines).trace
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_byte() {
    let mut told = 0;
    for seed in 0..40 {
        let (one, other) = (trace_of(seed), trace_of(seed));
        assert_eq!(one.hash(), other.hash(), "seed {seed}");
        assert_eq!(one.lines(), other.lines(), "seed {seed}");
        told += one.lines().len();
    }
    assert!(told > 5000, "{told} things happened in all");
}

/// Seeds within which a planted fault is found.
const PLANTED: u64 = 300;

#[test]
fn each_planted_fault_is_found_by_the_check_that_is_for_it() {
    for planted in Planted::ALL {
        let is_found = (0..PLANTED).any(|seed| {
            let mut story = Story::new(seed);
            story.rules.planted = Some(planted);
            let failure = sim::run(&story, Checks::default(), Tracing::Off).failure;
            failure.is_some_and(|failure| check_of(&failure) == planted.found_by())
        });
        assert!(is_found, "{planted} is not found by `{}`", planted.found_by());
    }
}

/// Stories that have failed once.
const ONCE_FAILED: [u64; 3] = [
    // A caller that stopped had claimed all the room for large arguments in one piece.
    9239,
    // One process connected three times, each time with a share of its own that it has never given back.
    1_100_672_516,
    // No thread was to be had once, and what waited later had its share already: the engine went round and round.
    2_000_076_587,
];

#[test]
fn what_has_failed_once_holds() {
    for seed in ONCE_FAILED {
        let report = sim::run(&Story::new(seed), Checks::default(), Tracing::Off);
        assert_eq!(report.failure, None, "seed {seed}");
    }
}

#[test]
fn whatever_happens_calls_between_healthy_processes_end_and_nothing_is_left() {
    let first_failure = |first: u64| {
        let checks = Checks::default();
        (first..SEEDS).step_by(usize::try_from(THREADS).unwrap()).find_map(|seed| {
            let story = Story::new(seed);
            let failure = sim::run(&story, checks.clone(), Tracing::Off).failure?;
            let (short, why) = sim::shrink(&story, &checks, &failure);
            Some(format!("seed {seed}: {failure}\nmade shorter:\n{short}{why}"))
        })
    };
    let runs: Vec<_> = (0..THREADS).map(|it| thread::spawn(move || first_failure(it))).collect();
    for run in runs {
        let failure = run.join().expect("a run does not panic");
        assert!(failure.is_none(), "{}", failure.unwrap_or_default());
    }
}

#[test]
fn who_has_filled_its_own_share_of_what_waits_for_a_peer_is_refused_until_some_was_taken() {
    // Whatever else is set, and in whatever order things happen.
    let refused: usize = (0..12).map(calls_refused_beyond_a_full_share).sum();
    assert!(refused > 0, "the first process's call to the second one comes too early");
}

fn calls_refused_beyond_a_full_share(seed: u64) -> usize {
    let mut story = Story::new(seed);
    story.rules = sim::net::Rules { credits: 4, queue_depth: 4, ..sim::net::Rules::plain() };
    story.processes.truncate(3);
    for settings in &mut story.processes {
        (settings.contexts, settings.in_service_max) = (1, 8);
        (settings.backlog_bytes_max, settings.calls_max) = (20_000, 65_536);
    }
    // Handlers that never end have all places of the first process at the second one.
    let stays = |len| Call {
        act: Act::Never,
        len,
        ..Call::plain(1, 2, Kind::Async, Manner::NotifyBlindly)
    };
    let calls = [vec![stays(3000); 20], vec![stays(0); 100]].concat();
    story.events = (0..)
        .zip(calls)
        .map(|(at, call)| Event { at: at * 1000, what: What::Call(call) })
        .collect();
    let report = sim::run(&story, Checks::default(), Tracing::Lines);
    assert_eq!(report.failure, None);
    let is_refused = |line: &&String| line.ends_with("has ended: NotMade");
    report.trace.lines().iter().filter(is_refused).count()
}

#[test]
fn bytes_of_a_call_whose_own_origin_keeps_the_threads_from_it_are_free_for_others() {
    let mut story = Story::new(0);
    story.rules = sim::net::Rules::plain();
    story.processes.truncate(3);
    for settings in &mut story.processes {
        (settings.contexts, settings.runtime) = (1, false);
        (settings.in_service_max, settings.calls_max) = (8, 65_536);
        (settings.pool_threads_max, settings.large_in_service_max) = (4, 20_000);
    }
    let call =
        |from, kind, act, len| Call { act, len, ..Call::plain(from, 2, kind, Manner::Await) };
    let calls = [
        // The two threads that the first process can have.
        call(1, Kind::Blocking, Act::Never, 0),
        call(1, Kind::Blocking, Act::Never, 0),
        call(1, Kind::Blocking, Act::Answer(0), 10_000),
        call(1, Kind::Blocking, Act::Answer(0), 0),
        // All places that the third process can have, as long as they wait for bytes.
        call(3, Kind::Async, Act::Answer(0), 10_000),
        call(3, Kind::Async, Act::Answer(0), 10_000),
        call(3, Kind::Plain, Act::Answer(0), 0),
    ];
    story.events = (1..)
        .zip(calls)
        .map(|(at, call)| Event { at: at * 1_000_000, what: What::Call(call) })
        .collect();
    let report = sim::run(&story, Checks::default(), Tracing::Off);
    assert_eq!(report.failure, None);
}
