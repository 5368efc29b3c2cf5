//! Buffers that their receivers read: what that takes of their callers.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, unused_macros, reason = "a part of it is needed here")]
mod common;

use std::{cell::RefCell, sync::Barrier};

use common::{Meeting, Process, run};
use hg_invoke::{Buffer, Fabric, How, Place, Synchronizer, Worker, rpc};

thread_local! {
    static RUN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[rpc(crate = hg_invoke)]
fn take(number: u64, bytes: &[u8]) {
    assert_eq!(bytes, filling(number), "other bytes");
    RUN.with_borrow_mut(|run| run.push(number));
}

/// Between those with buffers.
#[rpc(crate = hg_invoke)]
fn note(number: u64) {
    RUN.with_borrow_mut(|run| run.push(number));
}

const LEN: usize = 1000;
/// Calls with a buffer, each followed by one without.
const COUNT: u64 = 64;

fn filling(number: u64) -> Vec<u8> {
    vec![u8::try_from(number).unwrap(); LEN]
}

fn fabric() -> Fabric {
    Fabric::new().register(take).unwrap().register(note).unwrap()
}

/// The calls leave. What they read, and is to stay.
fn call(worker: &Worker, to: Place, read: &Synchronizer) -> Buffer {
    let own = worker.allocate(LEN * usize::try_from(COUNT).unwrap()).unwrap();
    for number in 0..COUNT {
        let first = number * LEN as u64;
        own.write(first, &filling(2 * number)).unwrap();
        let (part, how) = (own.part(first..first + LEN as u64), How::default().when_sent(read));
        worker.call_buffer_read(to, take, (2 * number,), part, how).unwrap();
        worker.call(to, note, (2 * number + 1,)).unwrap();
    }
    worker.flush();
    own
}

fn all_have_run() -> bool {
    RUN.with_borrow(|run| {
        assert!(run.iter().copied().eq(0..run.len() as u64), "each once, in order: {run:?}");
        run.len() as u64 == 2 * COUNT
    })
}

fn without_their_caller(url: &str) {
    let have_run = Barrier::new(2);
    run(url, (2, 1), &fabric(), |worker| {
        // The barrier connects them.
        worker.quiesce().unwrap();
        let read = Synchronizer::new();
        let _own = (worker.place().process == 0)
            .then(|| call(&worker, Place { process: 1, thread: 0 }, &read));
        if worker.place().process == 1 {
            worker.wait_until(|| all_have_run().then_some(Ok(()))).unwrap();
        }
        // Until then the caller makes no progress.
        have_run.wait();
        read.wait(&worker).unwrap();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

#[test]
fn where_memory_is_shared_buffers_are_read_without_their_callers_doing() {
    without_their_caller("sm://");
}

#[test]
fn where_a_route_shares_memory_buffers_are_read_without_their_callers_doing() {
    without_their_caller("sm+tcp://127.0.0.1");
}

/// Both ends take turns, in one thread. How often the caller has had something to do until all of its calls have run.
fn rounds_of_the_caller(url: &str, fabric: &Fabric) -> u64 {
    let _watchdog = watchdog::Watchdog::start();
    let meeting = Meeting::default();
    let workers: Vec<Worker> = std::thread::scope(|scope| {
        let open = |rank| {
            let meeting = &meeting;
            scope.spawn(move || fabric.clone().open(&Process(rank, 2, meeting), url).unwrap())
        };
        let opened = [open(0), open(1)];
        opened.into_iter().flat_map(|it| it.join().unwrap()).collect()
    });
    let [caller, reader] = workers.try_into().unwrap();
    // The connection is there.
    let ran = Synchronizer::new();
    caller.call_with(reader.place(), note, (0,), How::default().when_run(&ran)).unwrap();
    while ran.left() > 0 {
        caller.progress().unwrap();
        reader.progress().unwrap();
        caller.flush();
    }
    RUN.with_borrow_mut(Vec::clear);
    let read = Synchronizer::new();
    let _own = call(&caller, reader.place(), &read);
    let mut rounds = 0;
    while !all_have_run() {
        // As long as it finds something: what it has asked for before is on its way.
        while reader.progress().unwrap() {}
        rounds += u64::from(caller.progress().unwrap());
    }
    while read.left() > 0 {
        caller.progress().unwrap();
        reader.progress().unwrap();
    }
    read.result().unwrap().unwrap();
    rounds
}

#[test]
fn buffers_are_read_many_at_a_time() {
    let rounds = rounds_of_the_caller("tcp://127.0.0.1", &fabric());
    assert!(rounds < COUNT / 2, "{rounds} rounds of the caller for {COUNT} buffers");
}

#[test]
fn buffers_are_read_many_at_a_time_where_the_kernel_reads_no_memory() {
    let rounds = rounds_of_the_caller("sm://", &fabric().setting("cma", "off"));
    assert!(rounds < COUNT / 2, "{rounds} rounds of the caller for {COUNT} buffers");
}
