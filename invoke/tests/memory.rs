//! Memory of workers that others put into and get from.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::RefCell,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
};

use common::run;
use hg_invoke::{Buffer, Error, Fabric, Locator, Place, Synchronizer, Worker, rpc};

thread_local! {
    static MINE: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// Where this worker's memory is.
#[rpc(crate = hg_invoke)]
fn locate() -> Option<Locator> {
    MINE.with_borrow(|mine| mine.as_ref().map(Buffer::locator))
}

/// One byte of it.
#[rpc(crate = hg_invoke)]
fn look(at: u64) -> u8 {
    let mut byte = [0];
    MINE.with_borrow(|mine| mine.as_ref().unwrap().read(at, &mut byte).unwrap());
    byte[0]
}

fn fabric() -> Fabric {
    Fabric::new().register(locate).unwrap().register(look).unwrap()
}

/// More than a piece of some transports.
const LEN: usize = 3 << 20;

fn puts_and_gets(url: &str) {
    run(url, (2, 2), &fabric(), |worker| {
        let all: Vec<Place> = worker.everybody().collect();
        let me = all.iter().position(|it| *it == worker.place()).unwrap();
        MINE.set(Some(worker.allocate(all.len() * LEN).unwrap()));
        worker.quiesce().unwrap();
        // Each has a part of everybody's memory, its own included.
        let own = worker.allocate(2 * LEN).unwrap();
        let (tag, len) = (u8::try_from(me + 1).unwrap(), LEN as u64);
        own.write(0, &vec![tag; LEN]).unwrap();
        for to in &all {
            let there =
                worker.call_return(*to, locate, ()).unwrap().wait(&worker).unwrap().unwrap();
            assert_eq!(there.place(), *to);
            let (put, got) = (Synchronizer::new(), Synchronizer::new());
            let offset = me as u64 * len;
            worker.put(&own, 0..len, &there, offset, &put).unwrap();
            put.wait(&worker).unwrap();
            // What was put is found by a call that is made then.
            let seen = worker.call_return(*to, look, (offset + len - 1,)).unwrap();
            assert_eq!(seen.wait(&worker).unwrap(), tag);
            worker.get(&own, len..2 * len, &there, offset, &got).unwrap();
            got.wait(&worker).unwrap();
            let mut back = vec![0; LEN];
            own.read(len, &mut back).unwrap();
            assert!(back.iter().all(|it| *it == tag));
            own.write(len, &vec![0; LEN]).unwrap();
        }
        worker.quiesce().unwrap();
        let mine = MINE.take().unwrap();
        for from in 0..all.len() {
            let mut bytes = vec![0; LEN];
            mine.read((from * LEN) as u64, &mut bytes).unwrap();
            assert!(bytes.iter().all(|it| usize::from(*it) == from + 1));
        }
        worker.finish().unwrap();
    });
}

fn mistakes(url: &str) {
    run(url, (2, 1), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(100).unwrap()));
        worker.quiesce().unwrap();
        let other = Place { process: 1 - worker.place().process, thread: 0 };
        let there = worker.call_return(other, locate, ()).unwrap().wait(&worker).unwrap().unwrap();
        let (own, done) = (worker.allocate(200).unwrap(), Synchronizer::new());
        for (range, offset) in [(0..101, 0), (0..1, 100), (100..201, 0), (0..10, u64::MAX)] {
            let refused = worker.put(&own, range.clone(), &there, offset, &done);
            assert!(matches!(refused, Err(Error::Memory(_))), "{range:?} {offset}: {refused:?}");
        }
        assert_eq!(done.left(), 0, "nobody is told of what was refused");
        worker.put(&own, 7..7, &there, 0, &done).unwrap();
        assert_eq!(done.left(), 0, "nothing is there at once");
        // The memory is gone, and its owner is not.
        worker.quiesce().unwrap();
        drop(MINE.take());
        worker.quiesce().unwrap();
        worker.get(&own, 0..100, &there, 0, &done).unwrap();
        let ended = done.wait(&worker);
        assert!(matches!(ended, Err(Error::Memory(_))), "{ended:?}");
        assert_eq!(worker.call_return(other, locate, ()).unwrap().wait(&worker).unwrap(), None);
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

fn death(url: &str) {
    let survivors = AtomicU32::new(0);
    run(url, (3, 1), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(100).unwrap()));
        worker.quiesce().unwrap();
        let there = Place { process: 1, thread: 0 };
        let there = worker.call_return(there, locate, ()).unwrap().wait(&worker).unwrap().unwrap();
        worker.quiesce().unwrap();
        if worker.place().process == 1 {
            MINE.take();
            return; // Without a goodbye to whoever waits.
        }
        let own = worker.allocate(100).unwrap();
        let ended = loop {
            let done = Synchronizer::new();
            let put = worker.put(&own, 0..100, &there, 0, &done);
            match put.and_then(|()| done.wait(&worker)) {
                Ok(()) | Err(Error::Memory(_) | Error::Full(_)) => {}
                Err(error) => break error,
            }
            worker.progress().unwrap();
        };
        assert!(matches!(ended, Error::Gone { process: 1, .. }), "{ended:?}");
        survivors.fetch_add(1, Ordering::SeqCst);
        while survivors.load(Ordering::SeqCst) < 2 {
            worker.progress().unwrap();
        }
        worker.finish().unwrap();
    });
}

/// A worker that sleeps elsewhere, in a mutex say.
fn absence(url: &str) {
    let moved = Barrier::new(2);
    run(url, (2, 1), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(LEN).unwrap()));
        worker.quiesce().unwrap();
        let other = Place { process: 1 - worker.place().process, thread: 0 };
        let there = worker.call_return(other, locate, ()).unwrap().wait(&worker).unwrap().unwrap();
        worker.quiesce().unwrap();
        if worker.place().process == 0 {
            let (own, len) = (worker.allocate(2 * LEN).unwrap(), LEN as u64);
            own.write(0, &vec![7; LEN]).unwrap();
            for get in [false, true] {
                let done = Synchronizer::new();
                let move_all = if get { Worker::get } else { Worker::put };
                let range = if get { len..2 * len } else { 0..len };
                move_all(&worker, &own, range, &there, 0, &done).unwrap();
                done.wait(&worker).unwrap();
            }
            let mut back = vec![0; LEN];
            own.read(len, &mut back).unwrap();
            assert!(back.iter().all(|it| *it == 7));
        }
        moved.wait();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// Without a round of whoever puts.
fn many_small_ones(url: &str) {
    run(url, (2, 1), &fabric(), |worker| {
        MINE.set(Some(worker.allocate(64).unwrap()));
        worker.quiesce().unwrap();
        if worker.place().process == 0 {
            let there = Place { process: 1, thread: 0 };
            let there =
                worker.call_return(there, locate, ()).unwrap().wait(&worker).unwrap().unwrap();
            let (own, done) = (worker.allocate(64).unwrap(), Synchronizer::new());
            let put = || worker.put(&own, 0..64, &there, 0, &done);
            // It makes way for others.
            put().unwrap();
            done.wait(&worker).unwrap();
            let taken = (0..4 * 1024).take_while(|_| match put() {
                Ok(()) => true,
                Err(Error::Full(_)) => false,
                Err(other) => panic!("{other}"),
            });
            let taken = taken.count();
            assert!((1024..4 * 1024).contains(&taken), "{taken} are taken");
            done.wait(&worker).unwrap();
            put().unwrap();
            done.wait(&worker).unwrap();
        }
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

#[test]
fn puts_that_nobody_hears_the_end_of_are_refused_at_some_point() {
    for url in ["sm://", "sm+tcp://127.0.0.1"] {
        many_small_ones(url);
    }
}

#[test]
fn where_memory_is_shared_it_is_moved_without_its_owners_doing() {
    absence("sm://");
}

#[test]
fn where_a_route_shares_memory_it_is_moved_without_its_owners_doing() {
    absence("sm+tcp://127.0.0.1");
}

over_each_transport! {
    what_is_put_is_there_and_what_is_got_is_here => puts_and_gets,
    memory_that_is_not_there_is_refused => mistakes,
    memory_of_a_worker_that_is_gone_is_named => death,
}
