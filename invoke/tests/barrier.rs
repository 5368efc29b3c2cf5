//! Barriers of which somebody does not report: who was never called, who was and is idle since, who is late.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::run;
use hg_invoke::{Error, Fabric, Limits, Place, Worker};

/// Of two processes, 1 ends when both are so far, and 0 enters a barrier.
fn without_the_other(url: &str, fabric: &Fabric, so_far: impl Fn(&Worker) + Sync) {
    let has_ended = Barrier::new(2);
    run(url, (2, 1), fabric, |worker| {
        so_far(&worker);
        if worker.place().process == 1 {
            drop(worker);
            has_ended.wait();
            return;
        }
        has_ended.wait();
        for _ in 0..2 {
            let ended = worker.quiesce();
            assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
        }
        worker.finish().unwrap();
    });
}

fn never_called(url: &str) {
    without_the_other(url, &Fabric::new(), |_| {});
}

/// As above; it ends while the barrier waits for it.
fn ends_meanwhile(url: &str) {
    run(url, (2, 1), &Fabric::new(), |worker| {
        if worker.place().process == 1 {
            // The other one has made a connection.
            worker.wait_until(|| (worker.stats().channels > 0).then_some(Ok(()))).unwrap();
            return;
        }
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
    });
}

/// All leave in good order, one after the others: nobody is gone for it, until it enters a barrier without them.
fn leave_one_by_one(url: &str) {
    let (first, have_left) = (Place { process: 0, thread: 0 }, AtomicU64::new(0));
    run(url, (2, 2), &Fabric::new(), |worker| {
        worker.quiesce().unwrap();
        if worker.place() != first {
            worker.finish().unwrap();
            have_left.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let all = || (have_left.load(Ordering::SeqCst) == 3).then_some(Ok(()));
        worker.wait_until(all).unwrap();
        // What they have sent and closed is there by now.
        for _ in 0..1000 {
            worker.progress().unwrap();
        }
        assert_eq!(worker.gone(), None);
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { .. })), "{ended:?}");
        assert_eq!(worker.gone(), ended.err());
        worker.finish().unwrap();
    });
}

fn idle_since(url: &str) {
    let reclaimed = AtomicU64::new(0);
    let limits = Limits::default().idle(Duration::from_millis(1));
    without_the_other(url, &Fabric::new().limits(limits), |worker| {
        worker.quiesce().unwrap();
        let before = std::cell::Cell::new(0);
        let all = || {
            let own = worker.stats().reclaimed;
            reclaimed.fetch_add(own - before.replace(own), Ordering::SeqCst);
            (reclaimed.load(Ordering::SeqCst) > 0).then_some(Ok(()))
        };
        worker.wait_until(all).unwrap();
    });
}

fn fails_again(url: &str) {
    let is_over = AtomicBool::new(false);
    run(url, (3, 1), &Fabric::new(), |worker| {
        match worker.place().process {
            0 => {
                worker.quiesce().unwrap_err();
                let told = worker.stats().blocks;
                for _ in 0..100 {
                    worker.quiesce().unwrap_err();
                }
                assert_eq!(worker.stats().blocks, told, "those beside it are told once");
                is_over.store(true, Ordering::SeqCst);
            }
            1 => {}
            _ => {
                let is_over = || is_over.load(Ordering::SeqCst).then_some(Ok(()));
                worker.wait_until(is_over).unwrap();
            }
        }
        // What was said of it is heard by whoever lives.
        assert!(worker.place().process != 2 || worker.quiesce().is_err());
    });
}

/// Whoever has left it makes no progress any more, until all have.
fn left_by_all(url: &str) {
    let have_left = Barrier::new(6);
    run(url, (3, 2), &Fabric::new(), |worker| {
        for _ in 0..3 {
            worker.quiesce().unwrap();
            have_left.wait();
        }
        worker.finish().unwrap();
    });
}

over_each_transport! {
    the_barrier_ends_for_all_though_whoever_has_left_it_makes_no_progress => left_by_all,
    those_that_leave_in_good_order_are_not_gone_until_a_barrier_misses_them => leave_one_by_one,
    whoever_enters_barriers_that_cannot_end_tells_others_once => fails_again,
    the_barrier_hears_of_who_has_ended_before_anybody_called_it => never_called,
    the_barrier_hears_of_who_ends_while_it_waits => ends_meanwhile,
    the_barrier_hears_of_who_has_ended_since_its_connection_was_closed => idle_since,
}
