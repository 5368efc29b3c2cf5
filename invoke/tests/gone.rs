//! Who was closed without a goodbye to those beside it in the barrier's tree, while its process lives, is told as gone to whoever misses it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::sync::{
    Barrier, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use common::run;
use hg_invoke::{Error, Fabric, Failed, How, Locator, Place, Synchronizer, Worker, rpc};

#[rpc(crate = hg_invoke)]
fn twice(number: u64) -> u64 {
    2 * number
}

#[rpc(crate = hg_invoke)]
fn only(_bytes: &[u8]) {}

#[rpc(crate = hg_invoke)]
fn nothing() {}

/// Of three processes, 2 drops its worker, and keeps its memory. 1 is not beside it in the tree, and misses it as `miss` says.
fn dropped(url: &str, miss: impl Fn(&Worker, Place, &Locator) -> Error + Sync) {
    let (has_ended, is_missed) = (Barrier::new(3), Barrier::new(3));
    let locator = OnceLock::new();
    let fabric = Fabric::new().register(twice).unwrap().register(only).unwrap();
    run(url, (3, 1), &fabric, |worker| {
        let dead = Place { process: 2, thread: 0 };
        if worker.place().process == 1 {
            assert_eq!(worker.call_return(dead, twice, (4,)).unwrap().wait(&worker).unwrap(), 8);
        }
        worker.quiesce().unwrap();
        if worker.place() == dead {
            let memory = worker.allocate(8).unwrap();
            locator.set(memory.locator()).unwrap();
            drop(worker);
            has_ended.wait();
            is_missed.wait();
            return;
        }
        has_ended.wait();
        let missed =
            (worker.place().process == 1).then(|| miss(&worker, dead, locator.get().unwrap()));
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
    dropped(url, |worker, dead, _| {
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
    dropped(url, |worker, dead, _| {
        let called = || Some(Err(worker.call(dead, twice, (4,)).err()?));
        worker.wait_until::<()>(called).unwrap_err()
    });
}

fn notified(url: &str) {
    dropped(url, |worker, dead, _| {
        let done = Synchronizer::new();
        let told = How::default().when_run(&done);
        match worker.call_with(dead, twice, (4,), told) {
            Ok(()) => done.wait(worker).unwrap_err(),
            Err(refused) => refused.error,
        }
    });
}

fn a_buffer(url: &str) {
    dropped(url, |worker, dead, _| {
        let (bytes, done) = (worker.allocate(8).unwrap(), Synchronizer::new());
        let told = How::default().when_sent(&done);
        match worker.call_buffer_read(dead, only, (), bytes.part(0..8), told) {
            Ok(()) => done.wait(worker).unwrap_err(),
            Err(refused) => refused.error,
        }
    });
}

fn a_put(url: &str) {
    dropped(url, |worker, _, memory| {
        let own = worker.allocate(8).unwrap();
        loop {
            let done = Synchronizer::new();
            worker.put(&own, 0..8, memory, 0, &done).unwrap();
            if let Err(error) = done.wait(worker) {
                return error;
            }
        }
    });
}

/// 5 is below 1 in the tree of what 0 broadcasts.
#[test]
fn who_has_left_in_good_order_is_not_missed_for_what_another_one_broadcasts() {
    let [has_left, is_told] = [const { AtomicBool::new(false) }; 2];
    let (has_heard, is_over) = (Barrier::new(5), Barrier::new(5));
    let until = |worker: &Worker, it: &AtomicBool| {
        worker.wait_until(|| it.load(Ordering::Acquire).then_some(Ok(()))).unwrap();
    };
    let fabric = Fabric::new().register(twice).unwrap().register(nothing).unwrap();
    run("sm://", (6, 1), &fabric, |worker| {
        let (me, last) = (worker.place().process, Place { process: 5, thread: 0 });
        if me == 1 {
            assert_eq!(worker.call_return(last, twice, (4,)).unwrap().wait(&worker).unwrap(), 8);
        }
        worker.quiesce().unwrap();
        if me == 5 {
            worker.finish().unwrap();
            return has_left.store(true, Ordering::Release);
        }
        until(&worker, &has_left);
        while worker.progress().unwrap() {}
        has_heard.wait();
        if me == 0 {
            let done = Synchronizer::new();
            worker.broadcast_with(nothing, (), How::default().when_run(&done)).unwrap();
            let told = done.wait(&worker);
            assert!(matches!(told, Err(Error::Gone { process: 5, .. })), "{told:?}");
            is_told.store(true, Ordering::Release);
        }
        until(&worker, &is_told);
        let gone = worker.gone();
        is_over.wait();
        assert_eq!(gone, None, "in process {me}");
    });
}

over_each_transport! {
    who_was_dropped_is_gone_to_whom_it_owes_a_result => its_result,
    who_was_dropped_is_gone_to_whom_it_refuses_a_call => a_call,
    who_was_dropped_is_gone_to_whoever_waits_for_it_to_run_a_call => notified,
    who_was_dropped_is_gone_to_whoever_waits_for_it_to_read_a_buffer => a_buffer,
    who_was_dropped_is_gone_to_whoever_puts_into_its_memory => a_put,
}
