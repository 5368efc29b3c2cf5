//! Service threads: they run what is called while workers do something else, and barriers count what they call.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use common::run;
use hg_invoke::{Error, Fabric, How, Place, Request, Synchronizer, rpc};

/// Runs of a test, one for each address that the tests run over.
static RUNS: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

fn runs(test: u8) -> &'static AtomicU64 {
    &RUNS[usize::from(test)]
}

#[rpc(crate = hg_invoke)]
fn who(here: &Request) -> (Place, bool) {
    (here.place(), here.is_service())
}

#[rpc(crate = hg_invoke)]
fn count(here: &Request, test: u8) {
    let _ = here;
    runs(test).fetch_add(1, Ordering::SeqCst);
}

/// Calls each process and each worker, and asks one, `depth` deep.
#[rpc(crate = hg_invoke)]
fn spread(here: &Request, test: u8, depth: u32) -> u32 {
    runs(test).fetch_add(1, Ordering::SeqCst);
    if depth > 0 {
        for to in here.everybody() {
            here.call(to, spread, (test, depth - 1)).unwrap();
            let to = Place::any_of(to.process);
            drop(here.call_return(to, spread, (test, depth - 1)).unwrap());
        }
    }
    depth
}

/// Calls a worker more often than there is room on the way to it.
#[rpc(crate = hg_invoke)]
fn flood(here: &Request, test: u8, to: Place) {
    for _ in 0..FLOOD {
        here.call(to, count_long, (test, &[0; 4000])).unwrap();
    }
}

#[rpc(crate = hg_invoke)]
fn count_long(test: u8, bytes: &[u8]) {
    runs(test).fetch_add(u64::from(bytes.len() == 4000), Ordering::SeqCst);
}

const FLOOD: u64 = 300;

fn fabric() -> Fabric {
    let fabric = Fabric::new().services(2).register(who).unwrap();
    let fabric = fabric.register(flood).unwrap().register(count_long).unwrap();
    fabric.register(count).unwrap().register(spread).unwrap()
}

/// Workers of the other process make no progress meanwhile.
fn not_interrupted(url: &str) {
    let is_over = AtomicBool::new(false);
    run(url, (2, 2), &fabric(), |worker| {
        let me = worker.place();
        if me == (Place { process: 0, thread: 0 }) {
            let mut seen = [false; 2];
            for _ in 0..50 {
                assert_eq!(worker.numa_node(Place::any_of(1)), None, "a question moves no turn");
                let result = worker.call_return(Place::any_of(1), who, ()).unwrap();
                let (place, is_service) = result.wait(&worker).unwrap();
                assert!(place.process == 1 && is_service, "{place}");
                seen[place.thread as usize - 2] = true;
            }
            assert_eq!(seen, [true; 2], "they take turns");
            let named = Place { process: 1, thread: 3 };
            let result = worker.call_return(named, who, ()).unwrap();
            assert_eq!(result.wait(&worker).unwrap(), (named, true));
            let nobody = worker.call(Place { process: 1, thread: 4 }, count, (0,));
            assert!(matches!(nobody, Err(Error::NoSuchPlace(_))), "{nobody:?}");
            is_over.store(true, Ordering::SeqCst);
        }
        while me.process == 1 && !is_over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(worker.everybody().count(), 4);
        assert!(!worker.is_service());
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// All barriers end after all that service threads have called.
fn barriers(url: &str) {
    let test = u8::try_from(url.len()).unwrap();
    for (processes, workers) in [(1, 1), (2, 1), (3, 2)] {
        runs(test).store(0, Ordering::SeqCst);
        let all = u64::from(processes) * u64::from(workers);
        // Each worker begins with one for all, and one call makes two for each worker.
        let of_depth = 1 + 2 * all * (1 + 2 * all);
        run(url, (processes, workers), &fabric(), |worker| {
            for round in 1..=3 {
                let group = (round == 2).then_some(7);
                let how = group.map_or(How::default(), |group| How::default().of_group(group));
                let to = Place::any_of((worker.place().process + 1) % processes);
                drop(worker.call_return_with(to, spread, (test, 2), how).unwrap());
                group.map_or_else(|| worker.quiesce(), |it| worker.quiesce_group(it)).unwrap();
                assert_eq!(runs(test).load(Ordering::SeqCst), round * all * of_depth);
                // Nobody begins the next round before all have looked.
                worker.quiesce().unwrap();
            }
            worker.finish().unwrap();
        });
    }
}

/// Barriers of one group, each with another one right behind it: a service thread hears of both in one round.
fn one_after_another(url: &str) {
    let test = u8::try_from(url.len()).unwrap() + 3;
    run(url, (1, 1), &fabric(), |worker| {
        for _ in 0..300 {
            let how = How::default().of_group(7);
            for thread in 1..3 {
                worker.call_with(Place { process: 0, thread }, count, (test,), how).unwrap();
            }
            worker.quiesce_group(7).unwrap();
            worker.quiesce_group(8).unwrap();
        }
        worker.finish().unwrap();
    });
}

/// A broadcast runs at them, too.
fn broadcasts(url: &str) {
    let test = u8::try_from(url.len()).unwrap() + 1;
    runs(test).store(0, Ordering::SeqCst);
    run(url, (3, 2), &fabric(), |worker| {
        let ran = Synchronizer::new();
        worker.broadcast_with(count, (test,), How::default().when_run(&ran)).unwrap();
        ran.wait(&worker).unwrap();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
    assert_eq!(runs(test).load(Ordering::SeqCst), 6 * 3 * (2 + 2));
}

/// With the last worker of a process its service threads are gone, whether it has finished or not; the others' barrier says so.
fn gone(url: &str) {
    for finishes in [true, false] {
        let has_left = AtomicBool::new(false);
        run(url, (2, 1), &fabric(), |worker| {
            let to = Place::any_of(1 - worker.place().process);
            worker.call_return(to, who, ()).unwrap().wait(&worker).unwrap();
            worker.quiesce().unwrap();
            if worker.place().process == 1 {
                if finishes {
                    worker.finish().unwrap();
                } else {
                    drop(worker);
                }
                has_left.store(true, Ordering::SeqCst);
                return;
            }
            while !has_left.load(Ordering::SeqCst) {
                worker.progress().unwrap();
            }
            let failed = worker.quiesce();
            assert!(matches!(failed, Err(Error::Gone { process: 1, .. })), "{failed:?}");
            let result = worker.wait_until(|| {
                let refused = worker.call_return(to, who, ());
                refused.err().map(Ok)
            });
            let error = result.unwrap();
            assert!(matches!(error, Error::Gone { process: 1, .. }), "{error}");
        });
    }
}

/// Somebody takes nothing of what a service thread calls. Whoever is dropped does not wait for that, though another one has finished;
/// nor does who finishes within a time, beyond that; who finishes waits.
fn ends(url: &str) {
    let test = u8::try_from(url.len()).unwrap() + 2;
    for way in 0..3 {
        runs(test).store(0, Ordering::SeqCst);
        let (has_finished, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        run(url, (2, 2), &fabric(), |worker| {
            let until = |flag: &AtomicBool| {
                while !flag.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            };
            let calls = || runs(test).load(Ordering::SeqCst);
            match (worker.place().process, worker.place().thread) {
                (0, 0) => {
                    let to = Place { process: 1, thread: 0 };
                    let flooded = worker.call_return(Place::any_of(0), flood, (test, to)).unwrap();
                    flooded.wait(&worker).unwrap();
                    worker.finish().unwrap();
                    has_finished.store(true, Ordering::SeqCst);
                }
                (0, _) => {
                    until(&has_finished);
                    match way {
                        0 => drop(worker),
                        1 => assert!(!worker.finish_within(Duration::from_millis(1)).unwrap()),
                        _ => worker.finish().unwrap(),
                    }
                    has_ended.store(true, Ordering::SeqCst);
                }
                // Takes nothing of what is called until the others have ended, or one of them waits for that.
                (_, 0) if way < 2 => until(&has_ended),
                (_, 0) => {
                    until(&has_finished);
                    worker.wait_until(|| (calls() == FLOOD).then_some(Ok(()))).unwrap();
                }
                _ => {}
            }
        });
    }
}

over_each_transport! {
    dropping_the_last_worker_waits_for_nobody_and_finishing_it_does => ends,
    service_threads_run_what_is_called_while_workers_do_something_else => not_interrupted,
    barriers_end_after_what_service_threads_have_called => barriers,
    barriers_of_service_threads_follow_one_another => one_after_another,
    broadcasts_run_at_service_threads_too => broadcasts,
    service_threads_end_with_the_last_worker => gone,
    threads_have_numa_nodes => nodes,
}

/// A machine has one node at least, if its system tells of nodes.
fn nodes(url: &str) {
    run(url, (2, 2), &fabric().numa(), |worker| {
        worker.bind().unwrap();
        let of = |process, thread| worker.numa_node(Place { process, thread });
        let Some(node) = of(0, 0) else { return };
        for (process, thread) in [(0, 1), (0, 2), (1, 0), (1, 3)] {
            assert!(of(process, thread).is_some(), "all are told");
        }
        assert_eq!((of(2, 0), of(0, 4)), (None, None), "there is no such thread");
        let buffer = worker.allocate_on(node, 1 << 20).unwrap();
        buffer.write(7, &[1]).unwrap();
        let refused = worker.allocate_on(u32::MAX, 1).unwrap_err().to_string();
        assert!(refused.starts_with("this process may not run on NUMA node "), "{refused}");
        let to = Place::any_of(1 - worker.place().process);
        worker.call_return(to, who, ()).unwrap().wait(&worker).unwrap();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

#[test]
fn a_node_that_was_not_asked_for_is_refused() {
    let group = common::Meeting::default();
    let workers = Fabric::new().open(&common::Process(0, 1, &group), "sm://").unwrap();
    let refused = workers[0].allocate_on(0, 1).unwrap_err().to_string();
    assert_eq!(refused, "no NUMA nodes are known: Fabric::numa asks for them");
}

#[test]
fn more_threads_than_there_are_numbers_are_refused() {
    let opened = Fabric::new().threads(200).services(56);
    let opened = opened.open(&common::Process(0, 1, &common::Meeting::default()), "sm://");
    assert_eq!(opened.unwrap_err().to_string(), "more than 255 threads");
}
