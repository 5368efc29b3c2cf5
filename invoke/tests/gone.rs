//! Who was closed without a goodbye to those beside it in the barrier's tree, while its process lives, is told as gone to whoever misses it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::sync::Barrier;

use common::run;
use hg_invoke::{Error, Fabric, Failed, How, Place, Synchronizer, Worker, rpc};

#[rpc(crate = hg_invoke)]
fn twice(number: u64) -> u64 {
    2 * number
}

/// Of three processes, 2 drops its worker. 1 is not beside it in the tree, and misses it as `miss` says.
fn dropped(url: &str, miss: impl Fn(&Worker, Place) -> Error + Sync) {
    let (has_ended, is_missed) = (Barrier::new(3), Barrier::new(2));
    let fabric = Fabric::new().register(twice).unwrap();
    run(url, (3, 1), &fabric, |worker| {
        let dead = Place { process: 2, thread: 0 };
        if worker.place().process == 1 {
            assert_eq!(worker.call_return(dead, twice, (4,)).unwrap().wait(&worker).unwrap(), 8);
        }
        worker.quiesce().unwrap();
        if worker.place() == dead {
            drop(worker);
            has_ended.wait();
            return;
        }
        has_ended.wait();
        let missed = (worker.place().process == 1).then(|| miss(&worker, dead));
        let gone = worker.gone();
        // Neither is gone to the other before.
        is_missed.wait();
        if let Some(missed) = missed {
            assert!(matches!(missed, Error::Gone { process: 2, .. }), "{missed:?}");
            assert_eq!(gone, Some(missed));
        }
    });
}

fn its_result(url: &str) {
    dropped(url, |worker, dead| {
        let returned = match worker.call_return(dead, twice, (4,)) {
            Ok(returned) => returned.wait(worker),
            Err(refused) => return refused,
        };
        match returned {
            Err(Failed::Call(error)) => error,
            other => panic!("{other:?}"),
        }
    });
}

fn a_call(url: &str) {
    dropped(url, |worker, dead| {
        let called = || Some(Err(worker.call(dead, twice, (4,)).err()?));
        worker.wait_until::<()>(called).unwrap_err()
    });
}

fn notified(url: &str) {
    dropped(url, |worker, dead| {
        let done = Synchronizer::new();
        let told = How::default().when_run(&done);
        match worker.call_with(dead, twice, (4,), told) {
            Ok(()) => done.wait(worker).unwrap_err(),
            Err(refused) => refused.error,
        }
    });
}

over_each_transport! {
    who_was_dropped_is_gone_to_whom_it_owes_a_result => its_result,
    who_was_dropped_is_gone_to_whom_it_refuses_a_call => a_call,
    who_was_dropped_is_gone_to_whoever_waits_for_it_to_run_a_call => notified,
}
