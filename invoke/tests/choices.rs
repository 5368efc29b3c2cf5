//! How calls are packed, and which thread of a process takes one.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use common::run;
use hg_invoke::{
    Error, Fabric, Failed, How, Limits, Packing, Place, Request, Room, Synchronizer, rpc,
};

#[rpc(crate = hg_invoke)]
fn nothing(number: u64) {
    let _ = number;
}

#[rpc(crate = hg_invoke)]
fn who(here: &Request) -> u32 {
    here.place().thread
}

/// Takes longer than calling it.
#[rpc(crate = hg_invoke)]
fn work(bytes: &[u8]) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(20) {}
    let _ = bytes;
}

fn fabric() -> Fabric {
    Fabric::new().register(nothing).unwrap().register(who).unwrap().register(work).unwrap()
}

/// Blocks that calls of 16 bytes make: the first 120, which the window takes before the receiver begins, and 1001.
fn blocks(url: &str, packing: Packing) -> (u64, u64) {
    let small = fabric().packing(packing).limits(Limits::default().block(1024).window(2080));
    let has_called = AtomicBool::new(false);
    let blocks = run(url, (2, 1), &small, |worker| {
        // They are connected before.
        worker.quiesce().unwrap();
        let begin = worker.stats().blocks;
        let blocks = || worker.stats().blocks - begin;
        let mut first = 0;
        if worker.place().process == 0 {
            let ran = Synchronizer::new();
            let to = Place { process: 1, thread: 0 };
            for number in 0..1000 {
                if number == 120 {
                    first = blocks();
                }
                worker.call(to, nothing, (number,)).unwrap();
            }
            worker.call_with(to, nothing, (1000,), How::default().when_run(&ran)).unwrap();
            has_called.store(true, Ordering::SeqCst);
            ran.wait(&worker).unwrap();
        }
        while !has_called.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let all = blocks();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
        (first, all)
    });
    blocks[0]
}

fn packings(url: &str) {
    let [trad, ovfl, plain] =
        [Packing::Trad, Packing::Ovfl, Packing::Plain].map(|packing| blocks(url, packing));
    // Some packets more, where the last one of a window is cut, or the transport is full for a moment.
    assert!(trad.0 <= 2 && (16..=40).contains(&trad.1), "filled: {trad:?}");
    let is_filled_late = (100..=120).contains(&ovfl.0) && ovfl.1 <= 400;
    assert!(is_filled_late, "a message each, until there is no room: {ovfl:?}");
    assert!((100..=120).contains(&plain.0), "{plain:?}");
    assert_eq!(plain.1, 1001, "a message each");
}

fn all_queues(url: &str) {
    fill_queues(url, Packing::Trad, 8192);
    // Of those that are a block each an eighth may wait.
    fill_queues(url, Packing::Plain, 1024);
}

/// Calls to four that stand still, each until there is no room; then they run.
fn fill_queues(url: &str, packing: Packing, most: u64) {
    let few = fabric().limits(Limits::default().block(256).window(2048).widest(2048));
    let few = few.packing(packing).queue_max(8192).queue_total(16_384);
    let ran = AtomicU32::new(0);
    let has_called = [const { AtomicBool::new(false) }; 2];
    run(url, (5, 1), &few, |worker| {
        let me = worker.place().process;
        let fill = |process, room| -> u64 {
            let to = Place { process, thread: 0 };
            let calls = (0..).map(|_| worker.call_with(to, nothing, (0,), How::room(room)));
            calls
                .take_while(|made| match made.as_ref().map_err(|it| &it.error) {
                    Ok(()) => true,
                    Err(Error::Full(full)) if *full == to => false,
                    Err(other) => panic!("{other}"),
                })
                .count() as u64
        };
        let mut called = 0;
        for (round, has_called) in has_called.iter().enumerate() {
            // They are connected, and nothing waits.
            worker.quiesce().unwrap();
            if me == 0 {
                let of_queue: Vec<u64> = (1..=4).map(|to| fill(to, Room::Queue)).collect();
                let bytes: Vec<u64> = of_queue.iter().map(|calls| calls * 16).collect();
                let is_full = |bytes: u64| (most - 16..=most + 2048).contains(&bytes);
                assert!(bytes[..2].iter().all(|it| is_full(*it)), "round {round}: {bytes:?}");
                let is_bounded = bytes[2..].iter().all(|it| (512..=512 + 2048).contains(it));
                assert!(is_bounded, "two blocks and a window each, in all: {bytes:?}");
                assert_eq!(fill(4, Room::Return), 0, "the bound of the other choices is the same");
                called += of_queue.iter().sum::<u64>();
                has_called.store(true, Ordering::SeqCst);
                // Who waits has room in time.
                for process in 1..=4 {
                    let to = Place { process, thread: 0 };
                    worker.call_with(to, nothing, (0,), How::room(Room::Wait)).unwrap();
                    called += 1;
                }
            }
            while !has_called.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            worker.quiesce().unwrap();
        }
        let of_worker = u32::try_from(worker.calls().1).unwrap();
        ran.fetch_add(of_worker, Ordering::SeqCst);
        worker.quiesce().unwrap();
        if me == 0 {
            assert_eq!(u64::from(ran.load(Ordering::SeqCst)), called, "each call ran once");
        }
        worker.finish().unwrap();
    });
}

/// One of two threads does nothing but stand there: the other one takes what comes.
fn any_thread(url: &str) {
    let [is_over, has_left, is_done] = [const { AtomicBool::new(false) }; 3];
    let of_busy = AtomicU32::new(0);
    run(url, (2, 2), &fabric(), |worker| {
        let me = worker.place();
        if me == (Place { process: 0, thread: 0 }) {
            let mut waiting: Vec<Synchronizer> = Vec::new();
            let mut results = Vec::new();
            for _ in 0..50 {
                let ran = Synchronizer::new();
                let how = How::default().when_run(&ran);
                results.push(worker.call_return_with(Place::any_of(1), who, (), how).unwrap());
                waiting.push(ran);
                while waiting.len() > 1 {
                    worker.progress().unwrap();
                    waiting.retain(|it| it.result().is_none());
                }
            }
            is_over.store(true, Ordering::SeqCst);
            let busy = results.into_iter().map(|it| it.wait(&worker).unwrap());
            of_busy.store(
                u32::try_from(busy.filter(|it| *it == 0).count()).unwrap(),
                Ordering::SeqCst,
            );
        }
        while me.process == 1 && !is_over.load(Ordering::SeqCst) {
            if me.thread == 1 {
                worker.progress().unwrap();
            }
        }
        worker.quiesce().unwrap();
        assert!(of_busy.load(Ordering::SeqCst) <= 1, "{of_busy:?} waited for who stands there");
        // Who has left is passed over, once that is known.
        if me == (Place { process: 1, thread: 0 }) {
            worker.finish().unwrap();
            has_left.store(true, Ordering::SeqCst);
            return;
        }
        while !has_left.load(Ordering::SeqCst) {
            worker.progress().unwrap();
        }
        let to = Place::any_of(1);
        let mut taken = 0;
        while taken < 10 && me.process == 0 && me.thread == 0 {
            let result = worker.call_return(to, who, ()).map_err(Failed::Call);
            match result.and_then(|it| it.wait(&worker)) {
                Ok(thread) => {
                    assert_eq!(thread, 1);
                    taken += 1;
                }
                Err(Failed::Call(Error::Gone { process: 1, .. })) => {
                    assert_eq!(taken, 0, "known once it is known");
                }
                Err(other) => panic!("{other}"),
            }
        }
        if me == (Place { process: 0, thread: 0 }) {
            is_done.store(true, Ordering::SeqCst);
        }
        while !is_done.load(Ordering::SeqCst) {
            worker.progress().unwrap();
        }
        let nobody = worker.call(Place::any_of(2), who, ());
        assert!(matches!(nobody, Err(Error::NoSuchPlace(_))), "{nobody:?}");
    });
}

/// 0 calls 1 until 2 has heard from 1 what it waits for: 1 always has something else to do.
fn busy(packing: Packing) {
    let (is_over, has_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
    run("sm://", (3, 1), &fabric().packing(packing), |worker| {
        let to = Place { process: 1, thread: 0 };
        // All are connected before.
        assert_eq!(worker.call_return(to, who, ()).unwrap().wait(&worker), Ok(0));
        worker.quiesce().unwrap();
        match worker.place().process {
            0 => {
                while !is_over.load(Ordering::SeqCst) {
                    worker.call_with(to, work, (&[],), How::room(Room::Wait)).unwrap();
                }
                has_stopped.store(true, Ordering::SeqCst);
            }
            2 => {
                let told = Synchronizer::new();
                let how = How::default().when_run(&told);
                assert_eq!(worker.call_return(to, who, ()).unwrap().wait(&worker), Ok(0));
                let bytes = worker.allocate(9).unwrap();
                worker.call_buffer_read(to, work, (), bytes.part(0..9), how).unwrap();
                told.wait(&worker).unwrap();
                worker.broadcast_with(nothing, (1,), how).unwrap();
                told.wait(&worker).unwrap();
                is_over.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
        worker.wait_until(|| has_stopped.load(Ordering::SeqCst).then_some(Ok(()))).unwrap();
        worker.finish().unwrap();
    });
}

#[test]
fn results_and_news_reach_whoever_waits_while_another_one_floods() {
    busy(Packing::Trad);
    busy(Packing::Ovfl);
}

over_each_transport! {
    calls_are_packed_as_it_was_chosen => packings,
    what_waits_for_all_threads_is_bounded_and_each_has_two_blocks => all_queues,
    a_call_to_a_process_is_taken_by_a_thread_that_has_the_least_to_do => any_thread,
}
