//! Broadcasts: every worker runs them once, in the order of their roots, and whoever waits is told.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
};

use common::run;
use hg_invoke::{
    Error, Fabric, How, Limits, Packing, Place, Request, Room, Synchronizer, Worker, rpc,
};

thread_local! {
    /// What has run on this worker: (root, number).
    static RUN: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

#[rpc(crate = hg_invoke)]
fn note(root: u32, number: u64, more: Vec<u8>) {
    RUN.with_borrow_mut(|run| run.push((root, number)));
    assert!(more.iter().all(|it| *it == 7));
}

/// Panics at one worker.
#[rpc(crate = hg_invoke)]
fn note_but(here: &Request, thread: u32) {
    RUN.with_borrow_mut(|run| run.push((0, 0)));
    assert_ne!(here.place().thread, thread, "this one panics");
}

/// Broadcasts from a function.
#[rpc(crate = hg_invoke)]
fn spread(here: &Request, number: u64) {
    here.broadcast(note, (9, number, Vec::new())).unwrap();
}

/// The caller is who has begun it, whoever has passed it on.
#[rpc(crate = hg_invoke)]
fn ask(here: &Request, root: u32) {
    assert_eq!(here.caller(), here.everybody().nth(root as usize));
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(note).unwrap().register(note_but).unwrap();
    fabric.register(spread).unwrap().register(ask).unwrap()
}

fn number_of(worker: &Worker) -> u32 {
    u32::try_from(worker.everybody().position(|it| it == worker.place()).unwrap()).unwrap()
}

/// Every worker broadcasts, all at once.
fn everybody(url: &str, shape: (u32, u8), fabric: &Fabric, how: How<'_>, count: u64) {
    let runs = run(url, shape, fabric, |worker| {
        let me = number_of(&worker);
        for number in 0..count {
            let more = vec![7; usize::try_from(number % 90).unwrap()];
            while let Err(refused) = worker.broadcast_with(note, (me, number, more.clone()), how) {
                assert_eq!(refused.args, (me, number, more.clone()));
                assert!(matches!(refused.error, Error::Full(place) if place == worker.place()));
                worker.progress().unwrap();
            }
        }
        worker.quiesce().unwrap();
        worker.broadcast(ask, (me,)).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(worker.panicked(), 0);
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.finish().unwrap();
        run
    });
    for run in &runs {
        for root in (0..).take(runs.len()) {
            let numbers = run.iter().filter(|it| it.0 == root).map(|it| it.1);
            assert!(numbers.eq(0..count), "each once, in order");
        }
    }
}

fn all_at_once(url: &str) {
    let small = fabric().limits(Limits::default().block(256).window(2048)).queue_max(4096);
    everybody(url, (5, 2), &small, How::room(Room::Wait), 40);
    everybody(url, (2, 2), &small, How::default(), 40);
    everybody(url, (2, 2), &small.packing(Packing::Ovfl), How::room(Room::Return), 40);
}

fn told(url: &str) {
    run(url, (6, 1), &fabric(), |worker| {
        let (ran, sent) = (Synchronizer::new(), Synchronizer::new());
        for number in 0..10 {
            let how = How::default().when_run(&ran);
            worker.broadcast_with(note, (number_of(&worker), number, vec![7]), how).unwrap();
        }
        let how = How::default().when_sent(&sent);
        worker.broadcast_with(note, (number_of(&worker), 10, vec![7]), how).unwrap();
        sent.wait(&worker).unwrap();
        ran.wait(&worker).unwrap();
        worker.quiesce().unwrap();
        // Those of functions.
        worker.call(Place { process: 0, thread: 0 }, spread, (3,)).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(RUN.with_borrow_mut(std::mem::take).len(), 6 * 11 + 6);
        worker.finish().unwrap();
    });
}

/// One of seven is gone: 0 tells 1 to 4, and 1 tells 5 and 6.
fn death(url: &str) {
    for victim in [1, 5] {
        let is_over = AtomicBool::new(false);
        run(url, (7, 1), &fabric(), |worker| {
            worker.quiesce().unwrap();
            let me = worker.place().process;
            if me == victim {
                return; // Without a goodbye to whoever waits.
            }
            if me == 0 {
                // What it still ran is told as run; then its end is.
                let ended = loop {
                    let ran = Synchronizer::new();
                    let how = How::default().when_run(&ran);
                    worker.broadcast_with(note, (0, 0, Vec::new()), how).unwrap();
                    if let Err(error) = ran.wait(&worker) {
                        break error;
                    }
                };
                assert!(
                    matches!(ended, Error::Gone { process, .. } if process == victim),
                    "{ended:?}"
                );
                // All but those behind it ran the last one: each says so before the root is told.
                is_over.store(true, Ordering::SeqCst);
            }
            while !is_over.load(Ordering::SeqCst) {
                worker.progress().unwrap();
            }
            if victim == 5 || me < 5 {
                assert!(!RUN.with_borrow_mut(std::mem::take).is_empty());
            }
        });
    }
}

/// 0 tells 1, and 1 tells 5, who makes no progress meanwhile. The root broadcasts when 1 has called it, who hears of it inside `finish`: before it is told
/// that its call has run, since what is broadcast leaves at once.
fn leaves_in_the_middle(url: &str) {
    let (is_still, has_left) = (AtomicBool::new(false), AtomicBool::new(false));
    let work = |worker: Worker| match number_of(&worker) {
        1 => {
            let is_still = || is_still.load(Ordering::SeqCst).then_some(Ok(()));
            worker.wait_until(is_still).unwrap();
            let ran = Synchronizer::new();
            let root = Place { process: 0, thread: 0 };
            worker.call_with(root, spread, (0,), How::default().when_run(&ran)).unwrap();
            worker.finish().unwrap();
            assert_eq!(ran.result(), Some(Ok(())));
            assert_eq!(RUN.with_borrow_mut(std::mem::take), [(0, 0), (9, 0)], "it came meanwhile");
            has_left.store(true, Ordering::SeqCst);
        }
        5 => {
            is_still.store(true, Ordering::SeqCst);
            while !has_left.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        _ => {
            let has_left = || has_left.load(Ordering::SeqCst).then_some(Ok(()));
            worker.wait_until(has_left).unwrap();
        }
    };
    run(url, (6, 1), &fabric().packing(Packing::Ovfl), |worker| {
        // From here on all have their connections, and nobody waits for anything.
        if number_of(&worker) == 0 {
            let ran = Synchronizer::new();
            let how = How::default().when_run(&ran);
            worker.broadcast_with(note, (0, 0, Vec::new()), how).unwrap();
            ran.wait(&worker).unwrap();
        }
        worker.quiesce().unwrap();
        work(worker);
    });
}

/// So many workers, of several processes: from the first, one in the middle, and the last.
fn reached(url: &str, shape: (u32, u8)) {
    let all = shape.0 * u32::from(shape.1);
    let roots = [0, all / 2, all - 1];
    let runs = run(url, shape, &fabric(), |worker| {
        let ran = Synchronizer::new();
        for (number, root) in (0..).zip(roots) {
            if number_of(&worker) == root {
                let how = How::default().when_run(&ran);
                worker.broadcast_with(note, (root, number, vec![7; 9]), how).unwrap();
            }
        }
        ran.wait(&worker).unwrap();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
        let mut run = RUN.with_borrow_mut(std::mem::take);
        run.sort_unstable();
        run
    });
    let each: Vec<(u32, u64)> = roots.into_iter().zip(0..).collect();
    assert_eq!(runs, vec![each; all as usize], "{shape:?}");
}

/// Trees of one level, of a full one, and of more.
fn sizes(url: &str) {
    [(1, 1), (2, 1), (5, 1), (7, 3), (5, 13)].into_iter().for_each(|shape| reached(url, shape));
}

over_each_transport! {
    any_number_of_workers_of_several_processes_is_reached => sizes,
    a_root_that_goes_on_keeps_nobody_who_leaves => leaves_in_the_middle,
    each_worker_runs_each_broadcast_once_and_in_order => all_at_once,
    whoever_waits_is_told => told,
    a_process_that_is_gone_is_named_and_nobody_hangs => death,
}

#[test]
fn any_number_of_workers_is_reached() {
    for threads in 1..=65 {
        reached("sm://", (1, threads));
    }
    everybody("sm://", (13, 5), &fabric(), How::default(), 3);
}

#[test]
fn a_function_that_panics_somewhere_counts_as_run() {
    let panicked = run("sm://", (1, 7), &fabric(), |worker| {
        if worker.place().thread == 3 {
            let ran = Synchronizer::new();
            worker.broadcast_with(note_but, (1,), How::default().when_run(&ran)).unwrap();
            ran.wait(&worker).unwrap();
        }
        worker.quiesce().unwrap();
        assert_eq!(RUN.with_borrow_mut(std::mem::take).len(), 1);
        worker.panicked()
    });
    assert_eq!(panicked, [0, 1, 0, 0, 0, 0, 0]);
}
