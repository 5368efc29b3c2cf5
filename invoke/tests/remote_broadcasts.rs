//! Broadcasts that are put into memory everywhere, beside what a worker that passes them on does itself: its own puts, and its leaving.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use common::run;
use hg_invoke::{Error, Fabric, How, Place, Request, Synchronizer, Worker, Written, rpc};

thread_local! {
    /// Broadcasts that have run here, and those that follow one that was put.
    static RUN: Cell<u32> = const { Cell::new(0) };
    static FOLLOWED: Cell<u32> = const { Cell::new(0) };
}

#[rpc(crate = hg_invoke)]
fn look(here: &Request, first: u8, written: Written) {
    let buffer = here.memory_of(written.locator()).unwrap();
    let mut bytes = [0];
    buffer.read(written.range().start, &mut bytes).unwrap();
    assert_eq!(bytes, [first], "other bytes");
    RUN.set(RUN.get() + 1);
}

#[rpc(crate = hg_invoke)]
fn follow() {
    FOLLOWED.set(FOLLOWED.get() + 1);
}

#[rpc(crate = hg_invoke)]
fn run_here() -> u32 {
    RUN.get()
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(look).unwrap().register(run_here).unwrap();
    fabric.register(follow).unwrap()
}

fn at(process: u32) -> Place {
    Place { process, thread: 0 }
}

fn sleep_until(is_so: &AtomicBool) {
    while !is_so.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn progress_until(worker: &Worker, is_so: &AtomicBool) {
    worker.wait_until(|| is_so.load(Ordering::SeqCst).then_some(Ok(()))).unwrap();
}

fn wait_for(worker: &Worker, count: &AtomicU32, of: u32) {
    worker.wait_until(|| (count.load(Ordering::SeqCst) == of).then_some(Ok(()))).unwrap();
}

/// Asks a worker until it has run so many.
fn wait_for_run(worker: &Worker, there: Place, count: u32) {
    while worker.call_return(there, run_here, ()).unwrap().wait(worker).unwrap() < count {}
}

/// More than a worker may have waiting of its own, beside what a transport takes.
const MANY: u32 = 1500;

/// Process 5, to which process 1 passes on what process 0 broadcasts, takes nothing: process 1 puts elsewhere all the same.
fn passed_on(url: &str) {
    let (has_put, are_over) = (AtomicBool::new(false), AtomicU32::new(0));
    let [has_passed, is_still] = [const { AtomicBool::new(false) }; 2];
    run(url, (6, 1), &fabric(), |worker| {
        let me = worker.place().process;
        let everywhere = (me == 0).then(|| worker.allocate_everywhere(16).unwrap());
        let there = worker.allocate_at(at(2), 16).unwrap();
        worker.quiesce().unwrap();
        match me {
            0 => {
                progress_until(&worker, &is_still);
                let (everywhere, ran) = (everywhere.as_ref().unwrap(), Synchronizer::new());
                everywhere.own().write(0, &[7; 16]).unwrap();
                for _ in 0..MANY {
                    let (part, how) = (everywhere.own().part(0..16), How::default().when_run(&ran));
                    worker
                        .broadcast_buffer_written(look, (7,), part, everywhere.at(0), how)
                        .unwrap();
                }
                wait_for_run(&worker, at(1), MANY);
                has_passed.store(true, Ordering::SeqCst);
                ran.wait(&worker).unwrap();
            }
            1 => {
                progress_until(&worker, &has_passed);
                let (own, put) = (worker.allocate(16).unwrap(), Synchronizer::new());
                worker.put(&own, 0..16, there.locator(), 0, &put).unwrap();
                put.wait(&worker).unwrap();
                has_put.store(true, Ordering::SeqCst);
            }
            5 => {
                is_still.store(true, Ordering::SeqCst);
                sleep_until(&has_put);
                worker.wait_until(|| (RUN.get() == MANY).then_some(Ok(()))).unwrap();
            }
            _ => {}
        }
        are_over.fetch_add(1, Ordering::SeqCst);
        wait_for(&worker, &are_over, 6);
        assert_eq!((worker.panicked(), RUN.get()), (0, MANY));
        worker.finish().unwrap();
    });
}

/// Process 1 leaves, and process 5, to which it passes on, takes nothing until it has left. A broadcast that comes meanwhile runs at process 1, and goes no
/// further, nor does one that follows it: its root is told of both.
fn leaves_in_the_middle(url: &str) {
    let [leaves, has_run, has_left, is_over] = [const { AtomicBool::new(false) }; 4];
    let are_still = AtomicU32::new(0);
    run(url, (6, 1), &fabric(), |worker| {
        let me = worker.place().process;
        let everywhere = (me == 0).then(|| worker.allocate_everywhere(LEN as u64).unwrap());
        worker.quiesce().unwrap();
        match me {
            0 => {
                progress_until(&worker, &leaves);
                // Who answers now is inside `finish`.
                wait_for_run(&worker, at(1), 0);
                let (everywhere, ran) = (everywhere.unwrap(), Synchronizer::new());
                let followed = Synchronizer::new();
                everywhere.own().write(0, &[7; LEN]).unwrap();
                let how = How::default().when_run(&ran);
                let (part, spot) = (everywhere.own().part(0..LEN as u64), everywhere.at(0));
                worker.broadcast_buffer_written(look, (7,), part, spot, how).unwrap();
                let how = How::default().when_run(&followed);
                worker.broadcast_with(follow, (), how).unwrap();
                wait_for_run(&worker, at(1), 1);
                has_run.store(true, Ordering::SeqCst);
                for told in [ran, followed] {
                    let ended = told.wait(&worker);
                    assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
                }
                is_over.store(true, Ordering::SeqCst);
            }
            1 => {
                // They have a connection from here on.
                wait_for_run(&worker, at(2), 0);
                are_still.fetch_add(1, Ordering::SeqCst);
                wait_for(&worker, &are_still, 3);
                let ran = Synchronizer::new();
                worker.call_with(at(2), run_here, (), How::default().when_run(&ran)).unwrap();
                leaves.store(true, Ordering::SeqCst);
                worker.finish().unwrap();
                assert_eq!(ran.result(), Some(Ok(())), "what it has called is waited for");
                assert_eq!(RUN.get(), 1);
                has_left.store(true, Ordering::SeqCst);
            }
            2 => {
                wait_for(&worker, &are_still, 2);
                are_still.fetch_add(1, Ordering::SeqCst);
                sleep_until(&has_run);
                progress_until(&worker, &is_over);
            }
            5 => {
                are_still.fetch_add(1, Ordering::SeqCst);
                sleep_until(&has_left);
                progress_until(&worker, &is_over);
                assert_eq!((RUN.get(), FOLLOWED.get()), (0, 0));
            }
            _ => progress_until(&worker, &is_over),
        }
    });
}

/// More than a transport takes at once.
const LEN: usize = 1 << 20;

over_each_transport! {
    what_is_passed_on_keeps_no_room_from_own_puts => passed_on,
    whoever_leaves_is_not_kept_by_what_it_would_pass_on => leaves_in_the_middle,
}
