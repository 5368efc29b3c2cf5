//! Groups of calls, each with its barrier.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use common::run;
use hg_invoke::{Error, Fabric, How, Limits, Place, Request, rpc};

thread_local! {
    static RUN: Cell<u64> = const { Cell::new(0) };
}

/// One for each address that the tests run over.
static STOP: [AtomicBool; 32] = [const { AtomicBool::new(false) }; 32];

/// Calls another, until it is stopped.
#[rpc(crate = hg_invoke)]
fn bounce(here: &Request, test: u8) {
    if !STOP[usize::from(test)].load(Ordering::SeqCst) {
        let to = Place { process: 1 - here.place().process, thread: 0 };
        here.call(to, bounce, (test,)).unwrap();
    }
}

/// Calls everybody, and asks everybody, `depth` deep; the deepest ones broadcast.
#[rpc(crate = hg_invoke)]
fn spread(here: &Request, depth: u32) -> u32 {
    RUN.set(RUN.get() + 1);
    if depth == 0 {
        here.broadcast(count, ()).unwrap();
    } else {
        for to in here.everybody() {
            here.call(to, spread, (depth - 1,)).unwrap();
            drop(here.call_return(to, spread, (depth - 1,)).unwrap());
        }
    }
    depth
}

#[rpc(crate = hg_invoke)]
fn count() {
    RUN.set(RUN.get() + 1);
}

fn fabric() -> Fabric {
    Fabric::new().register(bounce).unwrap().register(spread).unwrap().register(count).unwrap()
}

/// Calls of one group go on for ever, until the barriers of another one have ended.
fn apart(url: &str) {
    let test = u8::try_from(url.len()).unwrap();
    let stop = &STOP[usize::from(test)];
    let runs = run(url, (2, 1), &fabric(), |worker| {
        let me = worker.place();
        worker.call_with(me, bounce, (test,), How::default().of_group(7)).unwrap();
        let mut results = Vec::new();
        for _ in 0..3 {
            let how = How::default().of_group(1);
            worker.call_with(me, spread, (2,), how).unwrap();
            results.push(worker.call_return_with(me, spread, (2,), how).unwrap());
            worker.quiesce_group(1).unwrap();
            assert!(results.iter().all(hg_invoke::Returned::is_here), "results count, too");
        }
        let ran = RUN.get();
        // Nobody stops before both have seen that.
        worker.quiesce_group(1).unwrap();
        stop.store(true, Ordering::SeqCst);
        worker.quiesce_group(7).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(ran, RUN.get(), "all had run");
        let calls = worker.calls();
        worker.finish().unwrap();
        (ran, calls)
    });
    // Each of two, three times, twice: 1 and 4 and 16 calls, and 16 broadcasts that two run.
    assert_eq!(runs.iter().map(|it| it.0).sum::<u64>(), 2 * 3 * 2 * (1 + 4 + 16 + 32));
    let (made, run) = runs.iter().fold((0, 0), |sum, (_, it)| (sum.0 + it.0, sum.1 + it.1));
    assert_eq!(made, run);
}

fn differing(url: &str) {
    run(url, (3, 1), &fabric(), |worker| {
        let ended = match worker.place().process {
            2 => worker.quiesce(),
            _ => worker.quiesce_group(1),
        };
        assert!(
            matches!(&ended, Err(Error::Differ(why)) if why.contains(" that of group ")),
            "{ended:?}"
        );
        // Whoever is told hears it from those beside it.
        worker.finish().unwrap();
    });
}

/// Records of 64 bytes at most, which why it fails is longer than; whoever has found it stays until all were told.
fn differing_in_small_windows(url: &str) {
    let (small, told) = (Limits::default().block(64).window(160), AtomicU64::new(0));
    run(url, (3, 1), &fabric().limits(small), |worker| {
        let ended = match worker.place().process {
            2 => worker.quiesce(),
            _ => worker.quiesce_group(1),
        };
        assert!(
            matches!(&ended, Err(Error::Differ(why)) if why.contains(" that of ")),
            "{ended:?}"
        );
        told.fetch_add(1, Ordering::SeqCst);
        let all = || (told.load(Ordering::SeqCst) == 3).then_some(Ok(()));
        worker.wait_until(all).unwrap();
    });
}

over_each_transport! {
    the_barrier_of_a_group_waits_for_what_its_calls_call_and_for_no_others => apart,
    barriers_of_different_groups_are_a_mistake_that_all_hear_of => differing,
    why_a_barrier_fails_is_cut_to_what_a_record_holds => differing_in_small_windows,
}

#[test]
fn groups_are_bounded_and_forgotten_when_their_barriers_have_ended() {
    run("sm://", (1, 1), &fabric(), |worker| {
        let call =
            |group| worker.call_with(worker.place(), count, (), How::default().of_group(group));
        for group in 0..1024 {
            call(group).unwrap();
        }
        let refused = call(1024).unwrap_err();
        assert!(matches!(refused.error, Error::TooManyGroups(1024)), "{refused:?}");
        worker.quiesce_group(17).unwrap();
        call(1024).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(RUN.get(), 1025);
    });
}

/// Each calls one of them in as many groups as a worker may, no two in the same ones; and one passes on the broadcasts of others in as many.
#[test]
fn groups_of_many_workers_are_nobodys_fault() {
    const EACH: u32 = 1024;
    run("sm://", (1, 7), &fabric(), |worker| {
        let me = worker.place();
        let own = |of: u32| (0..EACH).map(move |at| of * EACH + at);
        for group in own(me.thread) {
            let how = How::default().of_group(group);
            if me.thread > 4 {
                worker.broadcast_with(count, (), how).unwrap();
            } else {
                worker.call_with(Place { thread: 0, ..me }, count, (), how).unwrap();
            }
        }
        worker.quiesce().unwrap();
        let calls = if me.thread == 0 { 5 * EACH } else { 0 };
        assert_eq!(RUN.get(), u64::from(calls + 2 * EACH));
        for group in own(0).chain(own(5)) {
            worker.quiesce_group(group).unwrap();
        }
        if me.thread == 0 {
            let how = How::default().of_group(9999);
            worker.call_with(me, count, (), how).unwrap();
        }
        worker.quiesce().unwrap();
    });
}
