//! Memory that workers have others allocate: at one other, and everywhere.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::run;
use hg_invoke::{
    Error, Fabric, How, Limits, Locator, Place, Remote, Request, Synchronizer, Worker, Written, rpc,
};

/// Bytes that were allocated here for others.
#[rpc(crate = hg_invoke)]
fn allotted(here: &Request) -> u64 {
    here.allotted()
}

/// The last byte of what was allocated here for others by this name.
#[rpc(crate = hg_invoke)]
fn last(here: &Request, locator: Locator) -> Option<u8> {
    let buffer = here.memory_of(&locator)?;
    let mut byte = [0];
    buffer.read(buffer.len() - 1, &mut byte).unwrap();
    Some(byte[0])
}

#[rpc(crate = hg_invoke)]
fn look(here: &Request, first: u8, written: Written) {
    let buffer = here.memory_of(written.locator()).unwrap();
    let range = written.range();
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    buffer.read(range.start, &mut bytes).unwrap();
    assert!(bytes.iter().all(|it| *it == first), "other bytes");
}

#[rpc(crate = hg_invoke)]
fn try_inside(here: &Request) -> bool {
    let refused = here.allocate_at(here.place(), 1);
    let everywhere = here.allocate_everywhere(1);
    matches!(refused, Err(Error::Inside)) && matches!(everywhere, Err(Error::Inside))
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(allotted).unwrap().register(last).unwrap();
    fabric.register(look).unwrap().register(try_inside).unwrap()
}

fn ask(worker: &Worker, at: Place) -> u64 {
    worker.call_return(at, allotted, ()).unwrap().wait(worker).unwrap()
}

/// Asks until it is so: what was released is so some time.
fn wait_for(worker: &Worker, at: Place, bytes: u64) {
    while ask(worker, at) != bytes {}
}

const PAGE: u64 = 4096;
/// More than a piece of some transports.
const LEN: usize = 3 << 20;

/// Each worker has all allocate for it, puts there, gets, calls with a buffer that is written there, and releases.
fn puts_and_gets(url: &str) {
    let fabric = fabric().services(1);
    run(url, (2, 2), &fabric, |worker| {
        let me = worker.everybody().position(|it| it == worker.place()).unwrap();
        let (tag, len) = (u8::try_from(me + 1).unwrap(), LEN as u64);
        let own = worker.allocate(2 * LEN).unwrap();
        own.write(0, &vec![tag; LEN]).unwrap();
        let service = |process| Place { process, thread: 2 };
        let mut all: Vec<Remote> = Vec::new();
        for at in worker.everybody().chain([service(0), service(1), Place::any_of(0)]) {
            let there = worker.allocate_at(at, len).unwrap();
            assert!(there.place() == at || at == Place::any_of(0) && there.place() == service(0));
            assert_eq!((there.len(), there.is_empty()), (len, false));
            let (put, got, ran) = (Synchronizer::new(), Synchronizer::new(), Synchronizer::new());
            worker.get(&own, len..2 * len, there.locator(), 0, &got).unwrap();
            got.wait(&worker).unwrap();
            let mut back = vec![9; LEN];
            own.read(len, &mut back).unwrap();
            assert!(back.iter().all(|it| *it == 0), "it is zeroed");
            worker.put(&own, 0..len, there.locator(), 0, &put).unwrap();
            put.wait(&worker).unwrap();
            let seen = worker.call_return(there.place(), last, (there.locator().clone(),)).unwrap();
            assert_eq!(seen.wait(&worker).unwrap(), Some(tag));
            let (part, spot) = (own.part(len..len + 9), there.locator().at(7));
            let how = How::default().when_run(&ran);
            worker.call_buffer_written(there.place(), look, (0,), part, spot, how).unwrap();
            ran.wait(&worker).unwrap();
            all.push(there);
        }
        worker.quiesce().unwrap();
        assert_eq!(worker.panicked(), 0);
        assert_eq!(worker.allotted(), 4 * len, "all four workers have asked for it");
        worker.quiesce().unwrap();
        // What is dropped is there no more: put to it fails, and it counts no more.
        let (gone, put) = (all[0].locator().clone(), Synchronizer::new());
        drop(all);
        for at in worker.everybody().chain([service(0), service(1)]) {
            wait_for(&worker, at, 0);
        }
        worker.put(&own, 0..9, &gone, 0, &put).unwrap();
        let ended = put.wait(&worker);
        assert!(matches!(ended, Err(Error::Memory(_))), "{ended:?}");
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// Each has so many pages at one worker, all have so many in a process.
fn limits(url: &str) {
    let fabric = fabric().remote_max(3 * PAGE, 5 * PAGE);
    run(url, (2, 2), &fabric, |worker| {
        let (at, beside) = (Place { process: 1, thread: 0 }, Place { process: 1, thread: 1 });
        let is_first = worker.place() == Place { process: 0, thread: 0 };
        let mut mine = Vec::new();
        if is_first {
            mine.push(worker.allocate_at(at, 1).unwrap());
            mine.push(worker.allocate_at(at, PAGE + 1).unwrap());
            let refused = worker.allocate_at(at, 1).unwrap_err();
            assert_eq!(refused, Error::NotAllotted { at, bytes: 1, left: 0, of_all: false });
            let said = "thread 0 of process 1 allocates no 1 bytes for another worker: 0 are left of what \
                        `Fabric::remote_max` allows each";
            assert_eq!(refused.to_string(), said);
            // Another thread there has a limit for this one of its own, and shares that of all.
            let refused = worker.allocate_at(beside, 2 * PAGE + 1).unwrap_err();
            let expected = Error::NotAllotted {
                at: beside,
                bytes: 2 * PAGE + 1,
                left: 2 * PAGE,
                of_all: true,
            };
            assert_eq!(refused, expected);
            mine.push(worker.allocate_at(beside, 2 * PAGE).unwrap());
            // A worker that has none keeps nobody else's.
            let refused = worker.allocate_everywhere(1).unwrap_err();
            let Error::NotAllotted { at: refused, .. } = refused else { panic!("{refused}") };
            assert_eq!(refused.process, 1);
            for to in worker.everybody().filter(|it| it.process == 0) {
                wait_for(&worker, to, 0);
            }
        }
        worker.quiesce().unwrap();
        if worker.place() == (Place { process: 0, thread: 1 }) {
            let refused = worker.allocate_at(at, 1).unwrap_err();
            assert_eq!(refused, Error::NotAllotted { at, bytes: 1, left: 0, of_all: true });
            assert!(worker.allocate_at(Place { process: 0, thread: 9 }, 1).is_err());
        }
        worker.quiesce().unwrap();
        if is_first {
            // What is dropped makes room for what is asked for next.
            mine.remove(1);
            mine.push(worker.allocate_at(at, 2 * PAGE).unwrap());
            let inside = worker.call_return(at, try_inside, ()).unwrap();
            assert!(inside.wait(&worker).unwrap());
        }
        worker.quiesce().unwrap();
        drop(mine);
        worker.finish().unwrap();
    });
}

/// Workers that end without a goodbye, and some in good order with their handles: what was allocated for them is released, by those behind others in a
/// tree as well, and what others have is not.
fn ends(url: &str) {
    let over = AtomicU32::new(0);
    run(url, (4, 2), &fabric(), |worker| {
        let there = worker.allocate_at(Place { process: 0, thread: 0 }, 1).unwrap();
        let ends = matches!(worker.place().process, 1 | 2);
        let everywhere = ends.then(|| worker.allocate_everywhere(1).unwrap());
        worker.quiesce().unwrap();
        match worker.place() {
            Place { process: 1, .. } => worker.finish().unwrap(),
            Place { process: 2, .. } => {} // Without a goodbye.
            at => {
                let is_asked = at == Place { process: 0, thread: 0 };
                while worker.allotted() != if is_asked { 4 * PAGE } else { 0 } {
                    worker.progress().unwrap();
                }
                over.fetch_add(1, Ordering::SeqCst);
                while over.load(Ordering::SeqCst) < 4 {
                    worker.progress().unwrap();
                }
                worker.finish().unwrap();
            }
        }
        drop((there, everywhere));
    });
}

/// A worker has memory everywhere 16 times; each time that it lets go of one, there is room for another.
fn everywhere_again(url: &str) {
    run(url, (3, 2), &fabric(), |worker| {
        worker.quiesce().unwrap();
        if worker.place() == (Place { process: 1, thread: 1 }) {
            let mut all: Vec<_> =
                (0..16).map(|_| worker.allocate_everywhere(100).unwrap()).collect();
            let refused = worker.allocate_everywhere(1).unwrap_err();
            assert!(refused.to_string().contains("16 times at most"), "{refused}");
            for _ in 0..40 {
                all.remove(0);
                all.push(worker.allocate_everywhere(100).unwrap());
                let (own, ran) = (all[15].own(), Synchronizer::new());
                own.write(0, &[7; 100]).unwrap();
                let how = How::default().when_run(&ran);
                let (part, spot) = (own.part(0..100), all[15].at(0));
                worker.broadcast_buffer_written(look, (7,), part, spot, how).unwrap();
                ran.wait(&worker).unwrap();
            }
            for to in worker.everybody() {
                assert_eq!(ask(&worker, to), 16 * PAGE);
            }
            let (part, how) = (all[0].own().part(0..100), How::default());
            let refused = worker.broadcast_buffer_written(look, (7,), part, all[1].at(1), how);
            assert!(matches!(refused.unwrap_err().error, Error::Memory(_)), "there is no room");
            drop(all);
            for to in worker.everybody() {
                wait_for(&worker, to, 0);
            }
        }
        worker.quiesce().unwrap();
        assert_eq!(worker.panicked(), 0);
        worker.finish().unwrap();
    });
}

/// One that passes broadcasts on is gone: those behind it let go of what they have, the owner is told, and the others have run it.
fn broken_tree(url: &str) {
    let over = AtomicU32::new(0);
    run(url, (6, 1), &fabric(), |worker| {
        let me = worker.place().process;
        let everywhere = (me == 0).then(|| worker.allocate_everywhere(100).unwrap());
        worker.quiesce().unwrap();
        let is_over = || over.fetch_add(1, Ordering::SeqCst);
        match me {
            // Process 5 hears by this one of what process 0 broadcasts.
            1 => return, // Without a goodbye.
            5 => {
                while worker.allotted() > 0 {
                    worker.progress().unwrap();
                }
                is_over();
            }
            0 => {
                let (everywhere, ran) = (everywhere.unwrap(), Synchronizer::new());
                everywhere.own().write(0, &[7; 100]).unwrap();
                let (part, how) = (everywhere.own().part(0..100), How::default().when_run(&ran));
                worker.broadcast_buffer_written(look, (7,), part, everywhere.at(0), how).unwrap();
                let ended = ran.wait(&worker);
                assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
                for process in [2, 3, 4] {
                    assert_eq!(ask(&worker, Place { process, thread: 0 }), PAGE);
                }
                let refused = worker.allocate_everywhere(1).unwrap_err();
                assert!(matches!(refused, Error::Gone { process: 1, .. }), "{refused}");
                drop(everywhere);
                for process in [2, 3, 4] {
                    wait_for(&worker, Place { process, thread: 0 }, 0);
                }
                is_over();
            }
            _ => {}
        }
        while over.load(Ordering::SeqCst) < 2 {
            worker.progress().unwrap();
        }
        assert_eq!((worker.panicked(), worker.allotted()), (0, 0));
        worker.finish().unwrap();
    });
}

/// Records of 64 bytes at most, which what names memory is longer than: it is said so, and nothing stays allocated.
fn small_windows(url: &str) {
    let small = Limits::default().block(64).window(160);
    run(url, (2, 2), &fabric().limits(small), |worker| {
        let others = || worker.everybody().filter(|it| *it != worker.place());
        worker.quiesce().unwrap();
        if worker.place() == (Place { process: 0, thread: 0 }) {
            for at in others() {
                let refused = worker.allocate_at(at, 1).unwrap_err();
                assert!(matches!(refused, Error::Lost { .. }), "{refused}");
                wait_for(&worker, at, 0);
            }
            let refused = worker.allocate_at(Place::any_of(1), 1).unwrap_err();
            assert!(matches!(refused, Error::Lost { .. }), "{refused}");
            let refused = worker.allocate_everywhere(1).unwrap_err();
            assert!(matches!(refused, Error::Memory(_)), "{refused}");
            for at in worker.everybody() {
                wait_for(&worker, at, 0);
            }
        }
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// A handle is dropped behind a broadcast to its memory, whose bytes are still being put there: it runs everywhere.
fn dropped_behind(url: &str) {
    let (is_over, len) = (AtomicU32::new(0), LEN as u64);
    run(url, (2, 2), &fabric().remote_max(2 * len, 4 * len), |worker| {
        worker.quiesce().unwrap();
        if worker.place() == (Place { process: 1, thread: 1 }) {
            let own = worker.allocate(LEN).unwrap();
            own.write(0, &vec![5; LEN]).unwrap();
            let told = [(); 2].map(|()| Synchronizer::new());
            for told in &told {
                let everywhere = worker.allocate_everywhere(len).unwrap();
                let (part, how) = (own.part(0..len), How::default().when_run(told));
                worker.broadcast_buffer_written(look, (5,), part, everywhere.at(0), how).unwrap();
            }
            worker.finish().unwrap();
            assert_eq!(told.map(|it| it.result()), [Some(Ok(())), Some(Ok(()))]);
            is_over.store(1, Ordering::SeqCst);
        } else {
            while is_over.load(Ordering::SeqCst) == 0 {
                worker.progress().unwrap();
            }
            assert_eq!(worker.panicked(), 0);
        }
    });
}

over_each_transport! {
    a_handle_that_is_dropped_does_not_overtake_its_broadcast => dropped_behind,
    memory_whose_name_fits_in_no_record_is_refused_and_released => small_windows,
    memory_that_another_worker_has_allocated_is_reached_until_it_is_dropped => puts_and_gets,
    memory_beyond_the_limits_is_refused_and_says_which => limits,
    memory_of_whoever_has_ended_is_released => ends,
    memory_behind_a_worker_that_is_gone_is_released => broken_tree,
    memory_everywhere_is_released_and_allocated_again => everywhere_again,
}
