//! Calls between workers of several processes, each of them imitated by threads of this one with a domain of their own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::{Cell, RefCell},
    sync::Barrier,
};

use common::{VISOR, run};
use hg_invoke::{Error, Fabric, How, Limits, Packing, Place, Request, Room, Synchronizer, rpc};

thread_local! {
    /// What has run on this worker: (sender, number).
    static RUN: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
}

#[rpc(crate = hg_invoke)]
fn note(sender: u32, number: u64) {
    RUN.with_borrow_mut(|run| run.push((sender, number)));
}

/// Calls two others, `depth` deep.
#[rpc(crate = hg_invoke)]
fn spread(here: &Request, depth: u32, seed: u64) {
    RUN.with_borrow_mut(|run| run.push((depth, seed)));
    if depth > 0 {
        let all: Vec<Place> = here.everybody().collect();
        for step in 1..3 {
            let next = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let to = all[usize::try_from(next >> 33).unwrap() % all.len()];
            here.call(to, spread, (depth - 1, next)).unwrap();
        }
    }
}

#[rpc(crate = hg_invoke)]
fn fail(number: u64) {
    assert_eq!(number, 0, "this one panics");
}

/// The caller is who it says that it is.
#[rpc(crate = hg_invoke)]
fn ask(here: &Request, sender: u32) {
    assert_eq!(here.caller(), here.everybody().nth(sender as usize));
}

#[rpc(crate = hg_invoke)]
fn measure(sender: u32, bytes: &[u8]) {
    assert!(bytes.iter().all(|byte| *byte == 7));
    RUN.with_borrow_mut(|run| run.push((sender, bytes.len() as u64)));
}

#[rpc(crate = hg_invoke)]
fn waits(here: &Request) {
    let full = here.progress();
    assert!(matches!(full, Err(Error::Inside)));
    // A barrier that this worker is in goes on.
    assert!(matches!(here.quiesce(), Err(Error::Inside)));
    assert!(matches!(here.quiesce_group(7), Err(Error::Inside)));
    RUN.with_borrow_mut(|run| run.push((0, 0)));
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(note).unwrap().register(spread).unwrap();
    fabric
        .register(fail)
        .unwrap()
        .register(waits)
        .unwrap()
        .register(ask)
        .unwrap()
        .register(measure)
        .unwrap()
}

/// Every worker calls every one, itself included.
fn all_to_all(url: &str, fabric: &Fabric, how: How<'_>, count: u64) {
    const SHAPE: (u32, u8) = (2, 2);
    let room_is_returned = format!("{how:?}").contains("Return");
    let runs = run(url, SHAPE, fabric, |worker| {
        let me = worker.everybody().position(|it| it == worker.place()).unwrap();
        let me = u32::try_from(me).unwrap();
        for number in 0..count {
            for to in worker.everybody() {
                while let Err(refused) = worker.call_with(to, note, (me, number), how) {
                    assert!(room_is_returned, "{refused}");
                    assert_eq!(refused.args, (me, number));
                    assert!(matches!(refused.error, Error::Full(place) if place == to));
                    worker.progress().unwrap();
                }
            }
        }
        for to in worker.everybody() {
            worker.call(to, ask, (me,)).unwrap();
        }
        worker.quiesce().unwrap();
        assert_eq!((worker.panicked(), worker.caller()), (0, None));
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.finish().unwrap();
        run
    });
    for run in runs {
        for sender in 0..4 {
            let numbers: Vec<u64> = run.iter().filter(|it| it.0 == sender).map(|it| it.1).collect();
            assert!(numbers.iter().copied().eq(0..count), "each once, in order: {}", numbers.len());
        }
    }
}

fn with_each_choice(url: &str) {
    let small = fabric().limits(Limits::default().block(256).window(2048));
    for room in [Room::Return, Room::Wait, Room::Queue] {
        all_to_all(url, &small, How::room(room), 300);
    }
    all_to_all(url, &small.clone().packing(Packing::Ovfl), How::room(Room::Wait), 300);
    all_to_all(url, &small.packing(Packing::Plain), How::default(), 300);
}

/// One stream in which each call has another choice than the one before.
fn with_mixed_choices(url: &str) {
    const COUNT: u64 = 900;
    let small = fabric().limits(Limits::default().block(256).window(2048)).queue_max(8192);
    for packing in [Packing::Trad, Packing::Ovfl, Packing::Plain] {
        let runs = run(url, (2, 2), &small.clone().packing(packing), |worker| {
            let (me, mut full) = (worker.place(), 0);
            for number in 0..COUNT {
                // Runs of queued calls stand before those that come back and those that wait.
                let room = match number % 60 {
                    0..40 => Room::Queue,
                    40..50 => Room::Return,
                    _ => Room::Wait,
                };
                for to in worker.everybody().filter(|to| to.process != me.process) {
                    let args = (me.thread, number);
                    while let Err(refused) = worker.call_with(to, note, args, How::room(room)) {
                        assert!(room != Room::Wait && refused.args == args, "{refused}");
                        assert!(matches!(refused.error, Error::Full(place) if place == to));
                        full += 1;
                        worker.progress().unwrap();
                    }
                }
            }
            worker.quiesce().unwrap();
            let run = RUN.with_borrow_mut(std::mem::take);
            worker.finish().unwrap();
            (run, full)
        });
        assert!(runs.iter().any(|(_, full)| *full > 0), "there was no room for some");
        for ((run, _), sender) in runs.iter().flat_map(|run| [(run, 0), (run, 1)]) {
            let numbers = run.iter().filter(|it| it.0 == sender).map(|it| it.1);
            assert!(numbers.eq(0..COUNT), "each once, in order");
        }
    }
}

/// Of more bytes than a message may have.
fn long_blocks(url: &str) {
    const COUNT: u64 = 30_000;
    let runs = run(
        url,
        (2, 1),
        &fabric().limits(Limits::default().block(1 << 20).window(3 << 20)),
        |worker| {
            let other = Place { process: 1 - worker.place().process, thread: 0 };
            for number in 0..COUNT {
                worker.call(other, note, (0, number)).unwrap();
            }
            worker.quiesce().unwrap();
            let run = RUN.with_borrow_mut(std::mem::take);
            worker.finish().unwrap();
            run
        },
    );
    for run in runs {
        assert!(run.into_iter().eq((0..COUNT).map(|number| (0, number))), "each once, in order");
    }
}

fn calls_that_call(url: &str) {
    let runs = run(url, (3, 2), &fabric(), |worker| {
        for round in 0..3_u64 {
            worker.call(worker.place(), spread, (6, round)).unwrap();
            worker.quiesce().unwrap();
        }
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.finish().unwrap();
        run.len()
    });
    // A binary tree of depth 6 from each of 6 workers, 3 times.
    assert_eq!(runs.iter().sum::<usize>(), 127 * 6 * 3);
}

/// Arguments that fill a block, are longer than one, or longer than half of a window.
fn long_arguments(url: &str) {
    const LENGTHS: [usize; 4] = [4_000, 4_096, 5_000, 16_000];
    let runs = run(url, (2, 1), &fabric(), |worker| {
        let to = Place { process: 1 - worker.place().process, thread: 0 };
        for room in [Room::Return, Room::Wait, Room::Queue] {
            for len in LENGTHS {
                let bytes = vec![7; len];
                while let Err(refused) =
                    worker.call_with(to, measure, (0, &bytes[..]), How::room(room))
                {
                    assert!(room == Room::Return, "{refused}");
                    assert!(matches!(refused.error, Error::Full(_)), "{refused}");
                    worker.progress().unwrap();
                }
            }
            let bytes = vec![7; 131_072];
            let refused =
                worker.call_with(to, measure, (0, &bytes[..]), How::room(room)).unwrap_err();
            assert!(matches!(refused.error, Error::TooLong { .. }), "{refused}");
        }
        worker.quiesce().unwrap();
        let run = RUN.with_borrow_mut(std::mem::take);
        worker.finish().unwrap();
        run
    });
    let lengths = LENGTHS.map(|len| (0, len as u64)).repeat(3);
    assert_eq!(runs, [lengths.clone(), lengths]);
}

/// One call after the other, each known to have run, every second one of which panics.
fn panics_elsewhere(url: &str) {
    let runs = run(url, (2, 1), &fabric(), |worker| {
        if worker.place().process == 0 {
            let (to, ran) = (Place { process: 1, thread: 0 }, Synchronizer::new());
            for number in 0..20 {
                worker.call_with(to, fail, (number % 2,), How::default().when_run(&ran)).unwrap();
                ran.wait(&worker).unwrap();
                worker.call_with(to, note, (0, number), How::default().when_run(&ran)).unwrap();
                ran.wait(&worker).unwrap();
            }
        }
        worker.quiesce().unwrap();
        let run = RUN.with_borrow_mut(std::mem::take);
        let panicked = worker.panicked();
        worker.finish().unwrap();
        (panicked, run)
    });
    assert_eq!(runs[1], (10, (0..20).map(|number| (0, number)).collect()));
}

fn notifications(url: &str) {
    run(url, (2, 1), &fabric(), |worker| {
        let other = Place { process: 1 - worker.place().process, thread: 0 };
        let (sent, ran, both) = (Synchronizer::new(), Synchronizer::new(), Synchronizer::new());
        for number in 0..100 {
            worker.call_with(other, note, (0, number), How::default().when_sent(&sent)).unwrap();
            worker.call_with(other, note, (1, number), How::default().when_run(&ran)).unwrap();
            worker.call_with(other, note, (2, number), How::default().when_run(&both)).unwrap();
        }
        let (tell, told) = std::sync::mpsc::channel();
        both.then(move |result| tell.send(result.is_ok()).unwrap());
        ran.wait(&worker).unwrap();
        sent.wait(&worker).unwrap();
        worker.block_on(both.clone()).unwrap().unwrap();
        let mut returned = worker.call_return(other, note, (3, 0)).unwrap();
        worker.block_on(&mut returned).unwrap().unwrap();
        assert!(watchdog::hear(&told));
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// Nobody waits for it before `finish`, and it is told as it is: barriers say that calls have run, and not who knows of it.
fn told_late(url: &str) {
    for _ in 0..5 {
        let told = run(url, (2, 2), &fabric(), |worker| {
            worker.quiesce().unwrap();
            let (ran, everywhere) = (Synchronizer::new(), Synchronizer::new());
            for to in worker.everybody() {
                worker.call_with(to, note, (0, 0), How::default().when_run(&ran)).unwrap();
                worker.broadcast_with(note, (1, 1), How::default().when_run(&everywhere)).unwrap();
            }
            worker.quiesce().unwrap();
            worker.finish().unwrap();
            (ran.result(), everywhere.result())
        });
        assert!(told.iter().all(|it| *it == (Some(Ok(())), Some(Ok(())))), "{told:?}");
    }
}

fn told_in_the_end(url: &str) {
    run(url, (2, 1), &fabric(), |worker| {
        let ran = Synchronizer::new();
        if worker.place().process == 0 {
            let to = Place { process: 1, thread: 0 };
            worker.call_with(to, note, (0, 0), How::default().when_run(&ran)).unwrap();
        } else {
            worker.wait_until(|| (worker.calls().1 == 1).then_some(Ok(()))).unwrap();
        }
        worker.finish().unwrap();
        assert_eq!(ran.result(), Some(Ok(())));
    });
}

fn a_death(url: &str) {
    run(url, (3, 1), &fabric(), |worker| {
        let all: Vec<Place> = worker.everybody().collect();
        for to in &all {
            worker.call(*to, note, (0, 0)).unwrap();
        }
        worker.quiesce().unwrap();
        if worker.place().process == 1 {
            return; // Without a goodbye to whoever waits.
        }
        // What it still ran is told as run; then its end is.
        let ended = loop {
            let lost = Synchronizer::new();
            let how = How::default().when_run(&lost);
            let called = worker.call_with(all[1], note, (0, 1), how);
            if let Err(error) = called.map_err(|it| it.error).and_then(|()| lost.wait(&worker)) {
                break error;
            }
        };
        assert!(matches!(ended, Error::Gone { process: 1, .. }), "{ended:?}");
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
        assert!(matches!(worker.gone(), Some(Error::Gone { process: 1, .. })));
        // The others go on.
        let other = all[2 - worker.place().process as usize];
        let run = Synchronizer::new();
        worker.call_with(other, note, (0, 2), How::default().when_run(&run)).unwrap();
        run.wait(&worker).unwrap();
        while !RUN.with_borrow(|run| run.contains(&(0, 2))) {
            worker.progress().unwrap();
        }
        worker.finish().unwrap();
    });
}

/// One that is there makes no progress, so that nobody gets a connection with it; but through daemons, which take it in its place: then it is
/// waited for until it ends.
fn an_end(url: &str) {
    let has_ended = Barrier::new(2);
    let fabric = fabric().services(1).setting("connect-timeout-ms", "300");
    run(url, (2, 1), &fabric, |worker| {
        if worker.place().process == 1 {
            has_ended.wait();
            return;
        }
        let ran = Synchronizer::new();
        let to = Place { process: 1, thread: 0 };
        worker.call_with(to, note, (0, 0), How::default().when_run(&ran)).unwrap();
        if url == VISOR {
            has_ended.wait();
        }
        worker.finish().unwrap();
        assert!(matches!(ran.result(), Some(Err(Error::Gone { process: 1, .. }))));
        if url != VISOR {
            has_ended.wait();
        }
    });
}

over_each_transport! {
    every_call_runs_once_and_in_order_whatever_is_chosen_for_full_receivers => with_each_choice,
    calls_stay_in_order_with_all_choices_for_full_receivers_in_one_stream => with_mixed_choices,
    blocks_that_are_asked_to_be_longer_than_messages_end_nothing => long_blocks,
    the_barrier_waits_for_calls_that_calls_make => calls_that_call,
    arguments_of_any_length_are_run_or_refused => long_arguments,
    a_function_that_panics_has_run_and_those_behind_it_run => panics_elsewhere,
    whoever_waits_is_told => notifications,
    whoever_waits_is_told_what_has_become_of_it_before_a_worker_has_finished => told_late,
    finish_waits_until_another_one_has_run_what_somebody_waits_for => told_in_the_end,
    a_worker_that_is_gone_is_named_to_all_that_wait_for_it => a_death,
    finish_waits_no_longer_for_who_makes_no_progress_than_a_connection_may_take => an_end,
}

#[test]
fn a_function_that_panics_keeps_nobody() {
    let panicked = run("sm://", (1, 1), &fabric(), |worker| {
        for number in 0..10 {
            worker.call(worker.place(), fail, (number % 2,)).unwrap();
        }
        worker.call(worker.place(), waits, ()).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(RUN.with_borrow(Vec::len), 1, "a function may not wait, and is told so");
        worker.panicked()
    });
    assert_eq!(panicked, [5]);
}

/// Is written the first time it is asked, when its size is, and not the second time.
#[derive(Debug, Default, serde::Deserialize)]
struct Moody(#[serde(skip)] Cell<u32>);

impl serde::Serialize for Moody {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > 1 {
            return Err(serde::ser::Error::custom("not now"));
        }
        to.serialize_u64(7)
    }
}

#[rpc(crate = hg_invoke)]
fn take(_moody: Moody) {
    panic!("it was never written");
}

#[test]
fn arguments_that_fail_while_they_are_written_leave_no_call() {
    run("sm://", (1, 1), &fabric().register(take).unwrap(), |worker| {
        worker.call(worker.place(), note, (0, 1)).unwrap();
        let failed = worker.call(worker.place(), take, (Moody::default(),));
        assert!(matches!(failed, Err(Error::Unencodable(_))), "{failed:?}");
        worker.call(worker.place(), note, (0, 2)).unwrap();
        worker.quiesce().unwrap();
        assert_eq!(RUN.with_borrow(Vec::clone), [(0, 1), (0, 2)]);
        assert_eq!((worker.calls(), worker.panicked()), ((2, 2), 0));
    });
}

#[test]
fn what_cannot_be_called_is_refused_with_its_arguments() {
    run("sm://", (1, 1), &Fabric::new().register(note).unwrap(), |worker| {
        let (process, thread) = (Place { process: 1, thread: 0 }, Place { process: 0, thread: 1 });
        for nowhere in
            [process, thread, Place::any_of(1), Place { process: 0, thread: u32::MAX - 1 }]
        {
            for room in [Room::Return, Room::Wait, Room::Queue] {
                let refused = worker.call_with(nowhere, note, (7, 8), How::room(room)).unwrap_err();
                assert_eq!(refused.args, (7, 8));
                assert!(matches!(refused.error, Error::NoSuchPlace(place) if place == nowhere));
            }
        }
        let unknown = worker.call(worker.place(), fail, (0,));
        assert!(matches!(unknown, Err(Error::NotRegistered(_))), "{unknown:?}");
    });
}
