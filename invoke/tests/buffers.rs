//! Calls and broadcasts with buffers: with the call, written first, read first.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::RefCell,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use common::run;
use hg_invoke::{
    Buffer, Error, Fabric, How, Limits, Locator, Packing, Place, Refused, Request, Room,
    Synchronizer, Worker, Written, rpc,
};

thread_local! {
    /// What has run on this worker: (sender, number).
    static RUN: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
    static MINE: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// The bytes of a call.
fn filling(sender: u32, number: u64, len: usize) -> Vec<u8> {
    let first = sender.wrapping_mul(31).wrapping_add(u32::try_from(number).unwrap());
    (0..=u8::MAX).cycle().skip(first as usize % 251).take(len).collect()
}

#[rpc(crate = hg_invoke)]
fn note(sender: u32, number: u64) {
    RUN.with_borrow_mut(|run| run.push((sender, number)));
}

#[rpc(crate = hg_invoke)]
fn take(sender: u32, number: u64, bytes: &[u8]) {
    assert!(bytes == filling(sender, number, bytes.len()), "other bytes");
    RUN.with_borrow_mut(|run| run.push((sender, number)));
}

#[rpc(crate = hg_invoke)]
fn look(sender: u32, number: u64, written: Written) {
    let range = written.range();
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    MINE.with_borrow(|mine| {
        let mine = mine.as_ref().unwrap();
        assert_eq!(*written.locator(), mine.locator());
        mine.read(range.start, &mut bytes).unwrap();
    });
    assert!(bytes == filling(sender, number, bytes.len()), "other bytes");
    RUN.with_borrow_mut(|run| run.push((sender, number)));
}

/// The same, in memory that is everywhere.
#[rpc(crate = hg_invoke)]
fn find(here: &Request, sender: u32, number: u64, written: Written) {
    let range = written.range();
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    let buffer = here.memory_of(written.locator()).unwrap();
    buffer.read(range.start, &mut bytes).unwrap();
    assert!(bytes == filling(sender, number, bytes.len()), "other bytes");
    RUN.with_borrow_mut(|run| run.push((sender, number)));
}

#[rpc(crate = hg_invoke)]
fn only(bytes: &[u8]) {
    RUN.with_borrow_mut(|run| run.push((0, bytes.len() as u64)));
}

#[rpc(crate = hg_invoke)]
fn fail(_here: &Request, bytes: &[u8]) {
    assert_eq!(bytes.len(), 1 << 20, "this one panics in any case");
    panic!("this one panics");
}

/// Where this worker's memory is.
#[rpc(crate = hg_invoke)]
fn locate() -> Option<Locator> {
    MINE.with_borrow(|mine| mine.as_ref().map(Buffer::locator))
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(note).unwrap().register(take).unwrap();
    let fabric = fabric.register(look).unwrap().register(locate).unwrap();
    fabric
        .register(only)
        .unwrap()
        .register(fail)
        .unwrap()
        .register(look_anywhere)
        .unwrap()
        .register(find)
        .unwrap()
}

fn locate_all(worker: &Worker) -> Vec<Locator> {
    let all = worker.everybody();
    all.map(|to| worker.call_return(to, locate, ()).unwrap().wait(worker).unwrap().unwrap())
        .collect()
}

fn index(worker: &Worker) -> u32 {
    let me = worker.everybody().position(|it| it == worker.place());
    u32::try_from(me.unwrap()).unwrap()
}

const COUNT: u64 = 120;
/// Bytes of one call, and of those that travel with it.
const LEN: u64 = 5000;
const SHORT: usize = 700;

/// One call of each kind in turn.
fn call(
    worker: &Worker,
    own: &Buffer,
    (to, there): (Place, &Locator),
    (me, number): (u32, u64),
    how: How<'_>,
) -> Result<(), Error> {
    let part = || own.part(number * LEN..(number + 1) * LEN);
    let spot = there.at((u64::from(me) * COUNT + number) * LEN);
    let args = (me, number);
    match number % 4 {
        0 => worker.call_with(to, note, args, how).map_err(|it| it.error),
        1 => {
            let bytes = filling(me, number, SHORT);
            let called = worker.call_buffer(to, take, args, &bytes, how);
            called.map_err(|it| check_args(&it, args))
        }
        2 => {
            let called = worker.call_buffer_written(to, look, args, part(), spot, how);
            called.map_err(|it| check_args(&it, args))
        }
        _ => {
            let called = worker.call_buffer_read(to, take, args, part(), how);
            called.map_err(|it| check_args(&it, args))
        }
    }
}

fn check_args(refused: &Refused<(u32, u64)>, args: (u32, u64)) -> Error {
    assert_eq!(refused.args, args, "the arguments come back");
    refused.error.clone()
}

/// Every worker calls every one, itself included, in all ways mixed.
fn all_to_all(url: &str, fabric: &Fabric, room: Room) {
    let runs = run(url, (2, 2), fabric, |worker| {
        let me = index(&worker);
        MINE.set(Some(worker.allocate(usize::try_from(4 * COUNT * LEN).unwrap()).unwrap()));
        worker.quiesce().unwrap();
        let there = locate_all(&worker);
        let own = worker.allocate(usize::try_from(COUNT * LEN).unwrap()).unwrap();
        for number in 0..COUNT {
            let bytes = filling(me, number, usize::try_from(LEN).unwrap());
            own.write(number * LEN, &bytes).unwrap();
        }
        let (sent, ran) = (Synchronizer::new(), Synchronizer::new());
        for number in 0..COUNT {
            let how = How::room(room);
            let how = match number % 3 {
                0 => how.when_run(&ran),
                1 => how.when_sent(&sent),
                _ => how,
            };
            for to in worker.everybody().zip(&there) {
                while let Err(error) = call(&worker, &own, to, (me, number), how) {
                    assert!(room == Room::Return, "{error}");
                    assert!(matches!(error, Error::Full(place) if place == to.0), "{error}");
                    worker.progress().unwrap();
                }
            }
        }
        // Memory that is still to be read is kept.
        drop(own);
        worker.quiesce().unwrap();
        assert_eq!((worker.panicked(), worker.unmoved()), (0, 0));
        ran.wait(&worker).unwrap();
        sent.wait(&worker).unwrap();
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.quiesce().unwrap();
        drop(MINE.take());
        worker.finish().unwrap();
        run
    });
    for run in runs {
        for sender in 0..4 {
            let numbers: Vec<u64> = run.iter().filter(|it| it.0 == sender).map(|it| it.1).collect();
            assert!(numbers.iter().copied().eq(0..COUNT), "each once, in order: {numbers:?}");
        }
    }
}

fn with_each_choice(url: &str) {
    let small = fabric().limits(Limits::default().block(256).window(2048));
    for room in [Room::Return, Room::Wait, Room::Queue] {
        all_to_all(url, &small, room);
    }
    all_to_all(url, &fabric(), Room::Queue);
    all_to_all(url, &small.clone().packing(Packing::Ovfl), Room::Wait);
    all_to_all(url, &small.packing(Packing::Plain), Room::Queue);
}

/// More than a piece of some transports, parts without a byte, functions that panic, groups, and any thread of a process.
fn odd_ones(url: &str) {
    const LONG: usize = 3 << 20;
    run(url, (2, 2), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(4 * LONG).unwrap()));
        worker.quiesce().unwrap();
        let there = locate_all(&worker);
        let (me, own) = (index(&worker), worker.allocate(LONG).unwrap());
        own.write(0, &filling(me, 0, LONG)).unwrap();
        let all = || own.part(0..LONG as u64);
        for (to, there) in worker.everybody().zip(&there) {
            let how = How::default().of_group(7);
            let spot = there.at(u64::from(me) * LONG as u64);
            worker.call_buffer_read(to, take, (me, 0), all(), how).unwrap();
            worker.call_buffer_written(to, look, (me, 0), all(), spot, how).unwrap();
            worker.call_buffer_read(to, only, (), own.part(9..9), how).unwrap();
            worker.call_buffer_written(to, look, (me, 5), own.part(3..3), spot, how).unwrap();
            worker.call_buffer_read(to, fail, (), own.part(0..1 << 20), how).unwrap();
            worker.call_buffer(to, only, (), &[], how).unwrap();
        }
        worker.quiesce_group(7).unwrap();
        assert_eq!(RUN.with_borrow_mut(std::mem::take).len(), 4 * 5);
        assert_eq!((worker.panicked(), worker.unmoved()), (4, 0));
        // Others may be further: what they send next is not to be among those.
        worker.quiesce().unwrap();
        let any = Place::any_of(1 - worker.place().process);
        for _ in 0..8 {
            worker.call_buffer_read(any, take, (me, 0), all(), How::default()).unwrap();
            let spot = there[any.process as usize * 2].at(0);
            let one = own.part(0..1);
            worker.call_buffer_written(any, look_anywhere, (), one, spot, How::default()).unwrap();
        }
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

#[rpc(crate = hg_invoke)]
fn look_anywhere(here: &Request, written: Written) {
    assert_eq!(written.locator().place().process, here.place().process);
    assert_eq!(written.range(), 0..1);
}

fn mistakes(url: &str) {
    let small = fabric().buffer_max(1000).limits(Limits::default().block(256).window(2048));
    run(url, (2, 1), &small, |worker| {
        MINE.set(Some(worker.allocate(100).unwrap()));
        worker.quiesce().unwrap();
        let all: Vec<Place> = worker.everybody().collect();
        let there = locate_all(&worker);
        let me = worker.place().process as usize;
        let (to, there, elsewhere) = (all[1 - me], &there[1 - me], &there[me]);
        let (own, told) = (worker.allocate(2000).unwrap(), Synchronizer::new());
        let how = How::default().when_run(&told);
        for (range, spot) in [
            (0..101, there.at(0)),
            (0..1, there.at(100)),
            (1999..2001, there.at(0)),
            (0..9, there.at(u64::MAX)),
            (0..9, elsewhere.at(0)),
        ] {
            let part = own.part(range.clone());
            let refused = worker.call_buffer_written(to, look, (3, 4), part, spot, how);
            let refused = refused.unwrap_err();
            assert!(matches!(refused.error, Error::Memory(_)), "{range:?} {spot:?}: {refused:?}");
            assert_eq!(refused.args, (3, 4));
        }
        let refused = worker.call_buffer_read(to, take, (3, 4), own.part(0..2001), how);
        assert!(matches!(refused.unwrap_err().error, Error::Memory(_)));
        let refused = worker.call_buffer_read(to, take, (3, 4), own.part(0..1001), how);
        let error = refused.unwrap_err().error;
        let said = "a buffer of 1001 bytes is over the limit of 1000 bytes, which `Fabric::buffer_max` sets";
        assert_eq!(error.to_string(), said);
        let refused = worker.broadcast_buffer_read(take, (3, 4), own.part(0..1001), how);
        assert_eq!(refused.unwrap_err().error, error);
        let refused = worker.call_buffer(to, take, (3, 4), &[7; 2000], how).unwrap_err();
        assert!(matches!(refused.error, Error::TooLong { .. }) && refused.args == (3, 4));
        assert_eq!((told.left(), worker.unmoved()), (0, 0), "nobody is told of what was refused");
        worker.quiesce().unwrap();
        // The memory is gone, and its owner is not: those behind the call run.
        drop(MINE.take());
        worker.quiesce().unwrap();
        let sent = Synchronizer::new();
        let part = || own.part(0..100);
        let (spot, at_sent) = (there.at(0), How::default().when_sent(&sent));
        worker.call(to, note, (9, 0)).unwrap();
        worker.call_buffer_written(to, look, (9, 1), part(), spot, how).unwrap();
        worker.call(to, note, (9, 2)).unwrap();
        worker.call_buffer_written(to, look, (9, 3), part(), spot, at_sent.of_group(3)).unwrap();
        worker.call(to, note, (9, 4)).unwrap();
        worker.quiesce_group(3).unwrap();
        worker.quiesce().unwrap();
        for told in [told, sent] {
            let ended = told.wait(&worker);
            assert!(matches!(ended, Err(Error::Memory(_))), "{ended:?}");
        }
        assert_eq!(RUN.with_borrow_mut(std::mem::take), [(9, 0), (9, 2), (9, 4)]);
        assert_eq!((worker.panicked(), worker.unmoved()), (0, 2));
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// While the bytes of one sender do not come, since it does nothing, calls of others run.
fn others_go_on(url: &str) {
    let has_run = AtomicBool::new(false);
    run(url, (3, 1), &fabric(), |worker| {
        worker.quiesce().unwrap();
        let (me, to) = (worker.place().process, Place { process: 0, thread: 0 });
        let own = worker.allocate(1000).unwrap();
        own.write(0, &filling(me, 0, 1000)).unwrap();
        match me {
            1 => {
                let before = worker.stats().blocks;
                worker
                    .call_buffer_read(to, take, (1, 0), own.part(0..1000), How::default())
                    .unwrap();
                while worker.stats().blocks == before {
                    worker.progress().unwrap();
                }
                while !has_run.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
            2 => (0..100).for_each(|number| worker.call(to, note, (2, number)).unwrap()),
            _ => {
                let of_others = || RUN.with_borrow(|run| run.iter().filter(|it| it.0 == 2).count());
                while of_others() < 100 {
                    worker.progress().unwrap();
                }
                has_run.store(true, Ordering::SeqCst);
            }
        }
        worker.quiesce().unwrap();
        assert_eq!(RUN.with_borrow_mut(std::mem::take).len(), if me == 0 { 101 } else { 0 });
        worker.finish().unwrap();
    });
}

/// Whoever waits for a call with a buffer is told who is gone; the others go on.
fn death(url: &str) {
    let survivors = AtomicU32::new(0);
    run(url, (3, 1), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(1000).unwrap()));
        worker.quiesce().unwrap();
        let there = locate_all(&worker);
        worker.quiesce().unwrap();
        let (me, to) = (worker.place().process, Place { process: 1, thread: 0 });
        let own = worker.allocate(1000).unwrap();
        let (part, spot) = (|| own.part(0..0), there[1].at(0));
        if me == 1 {
            // Some of what it has called is never read.
            for process in [0, 2] {
                let to = Place { process, thread: 0 };
                worker.call_buffer_read(to, only, (), own.part(0..1000), How::default()).unwrap();
            }
            worker.flush();
            MINE.take();
            return; // Without a goodbye to whoever waits.
        }
        for way in 0..3 {
            let ended = loop {
                let told = Synchronizer::new();
                let how = How::default().when_run(&told);
                let called = match way {
                    0 => worker.call_buffer(to, only, (), b"1", how).map_err(|it| it.error),
                    1 => {
                        let called = worker.call_buffer_read(to, only, (), own.part(0..9), how);
                        called.map_err(|it| it.error)
                    }
                    _ => {
                        let called =
                            worker.call_buffer_written(to, look, (0, 0), part(), spot, how);
                        called.map_err(|it| it.error)
                    }
                };
                match called.and_then(|()| told.wait(&worker)) {
                    Ok(()) | Err(Error::Memory(_) | Error::Full(_)) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(ended, Error::Gone { process: 1, .. }), "{way}: {ended:?}");
        }
        // The others go on.
        let told = Synchronizer::new();
        let how = How::default().when_run(&told);
        let other = Place { process: 2 - me, thread: 0 };
        worker.call_buffer_read(other, only, (), own.part(0..777), how).unwrap();
        told.wait(&worker).unwrap();
        survivors.fetch_add(1, Ordering::SeqCst);
        while survivors.load(Ordering::SeqCst) < 2 {
            worker.progress().unwrap();
        }
        assert!(RUN.with_borrow(|run| run.contains(&(0, 777))));
        worker.finish().unwrap();
    });
}

/// One finishes before the others do anything for its calls, and so waits until they have read its bytes.
fn finished_before_it_is_read(url: &str) {
    let is_called = AtomicBool::new(false);
    run(url, (3, 1), &fabric(), |worker| {
        worker.quiesce().unwrap();
        let me = worker.place().process;
        if me == 0 {
            let own = worker.allocate(1000).unwrap();
            own.write(0, &filling(0, 0, 1000)).unwrap();
            let part = || own.part(0..1000);
            let to = Place { process: 1, thread: 0 };
            worker.call_buffer_read(to, take, (0, 0), part(), How::default()).unwrap();
            worker.broadcast_buffer_read(take, (0, 0), part(), How::default()).unwrap();
            is_called.store(true, Ordering::SeqCst);
        } else {
            while !is_called.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let calls = if me == 1 { 2 } else { 1 };
            while RUN.with_borrow(Vec::len) < calls {
                worker.progress().unwrap();
            }
        }
        worker.finish().unwrap();
    });
}

/// Of every root, in all ways, mixed with broadcasts without a buffer.
fn broadcasts(url: &str, shape: (u32, u8), len: usize) {
    const ROUNDS: u64 = 8;
    let runs = run(url, shape, &fabric(), |worker| {
        let (me, own) = (index(&worker), worker.allocate(len).unwrap());
        let everywhere = worker.allocate_everywhere(len as u64 + 9).unwrap();
        let ran = Synchronizer::new();
        for number in 0..ROUNDS {
            let how = How::room(Room::Wait).when_run(&ran);
            match number % 4 {
                0 => worker.broadcast_with(note, (me, number), how).unwrap(),
                1 => {
                    let bytes = filling(me, number, SHORT);
                    worker.broadcast_buffer(take, (me, number), &bytes, how).unwrap();
                }
                // From elsewhere, and from where they are to be.
                2 => {
                    let (from, to) = if number == 2 { (&own, 9) } else { (everywhere.own(), 0) };
                    from.write(0, &filling(me, number, len)).unwrap();
                    let (part, spot) = (from.part(0..len as u64), everywhere.at(to));
                    worker.broadcast_buffer_written(find, (me, number), part, spot, how).unwrap();
                    ran.wait(&worker).unwrap();
                }
                _ => {
                    let free = Synchronizer::new();
                    own.write(0, &filling(me, number, len)).unwrap();
                    let part = own.part(0..len as u64);
                    let how =
                        if number == 3 { how } else { How::room(Room::Wait).when_sent(&free) };
                    worker.broadcast_buffer_read(take, (me, number), part, how).unwrap();
                    if number == 3 { ran.wait(&worker) } else { free.wait(&worker) }.unwrap();
                }
            }
        }
        worker.broadcast_buffer_read(only, (), own.part(0..0), How::room(Room::Wait)).unwrap();
        ran.wait(&worker).unwrap();
        worker.quiesce().unwrap();
        assert_eq!((worker.panicked(), worker.unmoved()), (0, 0));
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.quiesce().unwrap();
        worker.finish().unwrap();
        run
    });
    let all = shape.0 * u32::from(shape.1);
    for run in runs {
        assert_eq!(run.len() as u64, u64::from(all) * (ROUNDS + 1));
        for root in 1..all {
            let numbers: Vec<u64> = run.iter().filter(|it| it.0 == root).map(|it| it.1).collect();
            assert!(numbers.iter().copied().eq(0..ROUNDS), "each once, in order: {numbers:?}");
        }
    }
}

fn broadcasts_of_buffers(url: &str) {
    broadcasts(url, (3, 2), 300_000);
}

/// A process is gone: the root is told, and the others have run it unless they stood behind it.
fn broken_broadcast(url: &str) {
    let (is_told, has_ended) = (AtomicBool::new(false), Barrier::new(2));
    run(url, (4, 1), &fabric(), |worker| {
        let me = worker.place().process;
        let everywhere = (me == 0).then(|| worker.allocate_everywhere(5).unwrap());
        worker.quiesce().unwrap();
        if me == 2 {
            drop(worker); // Without a goodbye to whoever waits.
            has_ended.wait();
            return;
        }
        if me == 0 {
            has_ended.wait();
            let own = worker.allocate(100_000).unwrap();
            let (ran, part) = (Synchronizer::new(), own.part(0..100_000));
            let how = How::default().when_run(&ran);
            worker.broadcast_buffer_read(only, (), part, how).unwrap();
            let ended = ran.wait(&worker);
            assert!(matches!(ended, Err(Error::Gone { process: 2, .. })), "{ended:?}");
            own.write(0, &filling(0, 5, 5)).unwrap();
            let (ran, part, spot) = (Synchronizer::new(), own.part(0..5), everywhere.unwrap());
            let how = How::default().when_run(&ran);
            worker.broadcast_buffer_written(find, (0, 5), part, spot.at(0), how).unwrap();
            let ended = ran.wait(&worker);
            assert!(matches!(ended, Err(Error::Gone { process: 2, .. })), "{ended:?}");
            is_told.store(true, Ordering::SeqCst);
        }
        while !is_told.load(Ordering::SeqCst) {
            worker.progress().unwrap();
        }
        assert_eq!(RUN.with_borrow_mut(std::mem::take), [(0, 100_000), (0, 5)]);
        worker.finish().unwrap();
    });
}

over_each_transport! {
    each_call_runs_once_with_its_bytes_in_order_among_others => with_each_choice,
    long_ones_empty_ones_and_functions_that_panic => odd_ones,
    bytes_that_cannot_be_moved_are_told_and_those_behind_run => mistakes,
    a_stream_that_waits_for_bytes_holds_up_no_other => others_go_on,
    whoever_waits_for_bytes_of_a_worker_that_is_gone_is_told => death,
    whoever_finishes_lets_others_read_its_bytes => finished_before_it_is_read,
    a_broadcast_brings_its_bytes_to_all => broadcasts_of_buffers,
    a_broadcast_whose_reader_is_gone_is_told => broken_broadcast,
}

#[test]
fn bytes_are_passed_on_among_threads() {
    broadcasts("sm://", (1, 25), 50_000);
}
