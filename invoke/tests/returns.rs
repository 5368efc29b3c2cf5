//! Calls whose results come back.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{
    cell::Cell,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use common::run;
use hg_invoke::{Error, Fabric, Failed, How, Limits, Packing, Place, Request, Returned, Room, rpc};
use serde::{Deserialize, Serialize, Serializer};

#[rpc(crate = hg_invoke)]
fn square(number: u64) -> u64 {
    number * number
}

#[rpc(crate = hg_invoke)]
fn divide(a: i64, b: i64) -> Result<i64, String> {
    a.checked_div(b).ok_or_else(|| format!("{a} / {b}"))
}

#[rpc(crate = hg_invoke)]
fn bytes(len: u32) -> Vec<u8> {
    assert_ne!(len, 0, "this one panics");
    vec![7; len as usize]
}

/// Calls on, and drops what comes of it.
#[rpc(crate = hg_invoke)]
fn ask_others(here: &Request, number: u64) -> u64 {
    for to in here.everybody() {
        drop(here.call_return(to, square, (number,)).unwrap());
    }
    number
}

thread_local! {
    /// How often this thread has written a [`Fragile`].
    static WRITTEN: Cell<u32> = const { Cell::new(0) };
}

/// Panics the so manieth time that it is written: first its size is asked for, then it is.
#[derive(Debug, PartialEq, Deserialize)]
struct Fragile(u32);

impl Fragile {
    fn new(panics_at: u32) -> Self {
        WRITTEN.set(0);
        Self(panics_at)
    }
}

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        WRITTEN.set(WRITTEN.get() + 1);
        assert_ne!(WRITTEN.get(), self.0, "it is not to be written");
        to.serialize_newtype_struct("Fragile", &self.0)
    }
}

#[rpc(crate = hg_invoke)]
fn fragile(panics_at: u32) -> Fragile {
    Fragile::new(panics_at)
}

#[rpc(crate = hg_invoke)]
fn take(value: Fragile) {
    assert_eq!(value, Fragile(9), "half of a call");
}

/// Calls with arguments that may panic when they are written.
#[rpc(crate = hg_invoke)]
fn give(here: &Request, panics_at: u32) {
    for to in here.everybody() {
        here.call(to, take, (Fragile::new(panics_at),)).unwrap();
    }
}

fn fabric() -> Fabric {
    let fabric = Fabric::new().register(square).unwrap().register(divide).unwrap();
    let fabric = fabric.register(fragile).unwrap().register(take).unwrap().register(give).unwrap();
    fabric.register(bytes).unwrap().register(ask_others).unwrap()
}

fn results(url: &str) {
    let small = fabric().limits(Limits::default().block(256).window(2048));
    for fabric in [small.clone(), small.packing(Packing::Ovfl)] {
        run(url, (2, 2), &fabric, |worker| {
            let mut results: Vec<(u64, Returned<square>)> = Vec::new();
            for number in 0..500 {
                for to in worker.everybody() {
                    let how = How::room(Room::Wait);
                    let result = worker.call_return_with(to, square, (number,), how).unwrap();
                    results.push((number, result));
                }
            }
            for (number, result) in results {
                assert_eq!(result.wait(&worker).unwrap(), number * number);
            }
            worker.quiesce().unwrap();
            worker.finish().unwrap();
        });
    }
}

fn failures(url: &str) {
    run(url, (2, 1), &fabric(), |worker| {
        let other = Place { process: 1 - worker.place().process, thread: 0 };
        let divided = worker.call_return(other, divide, (1, 0)).unwrap().wait(&worker);
        assert_eq!(divided, Err(Failed::Function("1 / 0".to_owned())));
        let panicked = worker.call_return(other, bytes, (0,)).unwrap().wait(&worker);
        assert_eq!(panicked, Err(Failed::Call(Error::Panicked(other))));
        let longest = worker.call_return(other, bytes, (1 << 20,)).unwrap().wait(&worker);
        let is_lost =
            matches!(longest, Err(Failed::Call(Error::Lost { from, .. })) if from == other);
        assert!(is_lost, "{longest:?}");
        assert_eq!(worker.call_return(other, divide, (6, 3)).unwrap().wait(&worker), Ok(2));
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

fn panics_while_it_is_written(url: &str) {
    let panicked = run(url, (2, 1), &fabric(), |worker| {
        let other = Place { process: 1 - worker.place().process, thread: 0 };
        for at in [1, 2, 9] {
            let returned = worker.call_return(other, fragile, (at,)).unwrap().wait(&worker);
            let panicked = Err(Failed::Call(Error::Panicked(other)));
            assert_eq!(returned, if at == 9 { Ok(Fragile(9)) } else { panicked });
            let given = worker.call_return(other, give, (at,)).unwrap().wait(&worker);
            let panicked = Err(Failed::Call(Error::Panicked(other)));
            assert_eq!(given, if at == 9 { Ok(()) } else { panicked });
        }
        worker.quiesce().unwrap();
        let panicked = worker.panicked();
        worker.finish().unwrap();
        panicked
    });
    // Those that were to be written, and none that has come.
    assert_eq!(panicked, [4, 4]);
}

/// A barrier waits for results, too: those of calls that calls make included.
fn barrier(url: &str) {
    run(url, (3, 1), &fabric(), |worker| {
        let all = worker.everybody();
        let mut results: Vec<_> =
            all.map(|to| worker.call_return(to, ask_others, (3,)).unwrap()).collect();
        worker.quiesce().unwrap();
        for result in &mut results {
            assert_eq!(result.take(), Some(Ok(3)));
            assert!(result.is_here() && result.take().is_none(), "it is taken once");
        }
        worker.finish().unwrap();
    });
}

fn death(url: &str) {
    let answered = AtomicU32::new(0);
    run(url, (3, 1), &fabric(), |worker| {
        let all: Vec<Place> = worker.everybody().collect();
        worker.quiesce().unwrap();
        if worker.place().process == 1 {
            return; // Without a goodbye to whoever waits.
        }
        let ended = loop {
            let called = worker.call_return(all[1], square, (1,)).map_err(Failed::Call);
            if let Err(error) = called.and_then(|result| result.wait(&worker)) {
                break error;
            }
        };
        assert!(matches!(ended, Failed::Call(Error::Gone { process: 1, .. })), "{ended:?}");
        // The others go on.
        let other = all[2 - worker.place().process as usize];
        assert_eq!(worker.call_return(other, square, (3,)).unwrap().wait(&worker), Ok(9));
        answered.fetch_add(1, Ordering::SeqCst);
        while answered.load(Ordering::SeqCst) < 2 {
            worker.progress().unwrap();
        }
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
        worker.finish().unwrap();
    });
}

over_each_transport! {
    each_result_comes_to_who_has_called => results,
    a_call_without_a_result_says_why => failures,
    what_panics_while_it_is_written_is_named_and_nobody_gets_half_of_it => panics_while_it_is_written,
    a_barrier_waits_for_results => barrier,
    a_worker_that_is_gone_ends_calls_for_results_by_name => death,
}

/// Four ask one for 80 results of 500 bytes, and take none before all have run; who takes what comes has all of its results meanwhile.
fn slow_callers(shape: (u32, u8)) {
    let few = fabric().queue_max(16_000).queue_total(20_000);
    let few = few.limits(Limits::default().block(256).window(2048).widest(2048));
    let [has_run, has_answered] = [const { AtomicBool::new(false) }; 2];
    let whole = run("sm://", shape, &few, |worker| {
        let all: Vec<Place> = worker.everybody().collect();
        // They are connected, and nothing waits.
        assert_eq!(worker.call_return(all[0], square, (2,)).unwrap().wait(&worker), Ok(4));
        worker.quiesce().unwrap();
        let ask = || worker.call_return(all[0], bytes, (500,)).unwrap();
        let mut whole = 0;
        match all.iter().position(|it| *it == worker.place()).unwrap() {
            0 => {
                let all_run = worker.calls().1 + 4 * 80;
                worker.wait_until(|| (worker.calls().1 >= all_run).then_some(Ok(()))).unwrap();
                has_run.store(true, Ordering::SeqCst);
            }
            5 => {
                let is_full = || has_run.load(Ordering::SeqCst).then_some(Ok(()));
                worker.wait_until(is_full).unwrap();
                for _ in 0..100 {
                    whole += usize::from(ask().wait(&worker).unwrap().len() == 500);
                }
                has_answered.store(true, Ordering::SeqCst);
            }
            _ => {
                let results: Vec<_> = (0..80).map(|_| ask()).collect();
                worker.flush();
                while !has_answered.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                for result in results {
                    match result.wait(&worker) {
                        Ok(result) => whole += usize::from(result.len() == 500),
                        Err(Failed::Call(Error::Lost { .. })) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
        let is_over = || has_answered.load(Ordering::SeqCst).then_some(Ok(()));
        worker.wait_until(is_over).unwrap();
        worker.quiesce().unwrap();
        worker.finish().unwrap();
        whole
    });
    assert_eq!(whole[5], 100, "who takes its results is not to be without");
    // Two blocks and a window for each; 20,000 bytes for all, and 16,000 for one.
    let free = |ends: usize| ends * (512 + 2048) / 500;
    let all = whole[1..5].iter().sum::<usize>();
    assert!((36..=40 + free(4)).contains(&all), "all have what is for all: {whole:?}");
}

#[test]
fn results_that_wait_for_all_are_bounded_and_who_takes_them_has_all() {
    slow_callers((6, 1));
    slow_callers((1, 6));
}

#[test]
fn results_that_nobody_takes_are_bounded_and_named() {
    // 100 results of 1000 bytes: 16 of them may wait.
    let fabric = fabric().queue_max(16_000).limits(Limits::default().block(256).window(8192));
    let ends = run("sm://", (1, 2), &fabric, |worker| {
        let other = Place { process: 0, thread: 1 - worker.place().thread };
        let called = (0..100).map(|_| worker.call_return(other, bytes, (1000,)).unwrap());
        let called: Vec<_> = called.collect();
        let ended: Vec<_> = called.into_iter().map(|it| it.wait(&worker)).collect();
        worker.quiesce().unwrap();
        ended
    });
    for ended in ends {
        let is_lost = |it: &_| matches!(it, Err(Failed::Call(Error::Lost { .. })));
        let whole = ended.iter().filter(|it| it.as_ref().is_ok_and(|it| it.len() == 1000)).count();
        let lost = ended.iter().filter(|it| is_lost(it)).count();
        assert!(whole >= 16 && lost > 0, "{whole} came, {lost} had no room");
        assert_eq!(whole + lost, 100);
    }
}

#[test]
fn whoever_panics_when_it_is_told_keeps_nobody_else_from_being_told() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("it does not want to be told");
        }
    }
    run("sm://", (1, 1), &fabric(), |worker| {
        let (told, tells) = (Arc::new(AtomicU32::new(0)), hg_invoke::Synchronizer::new());
        let how = How::default().when_run(&tells);
        worker.call_with(worker.place(), square, (5,), how).unwrap();
        let other = worker.call_return(worker.place(), square, (5,)).unwrap();
        tells.then(|_| panic!("it does not want to be told"));
        let count = Arc::clone(&told);
        tells.then(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let wakers = [Waker::from(Arc::new(Panics)), Waker::from(Arc::clone(&woken))];
        let (mut awaited, mut other) = (pin!(tells.clone()), pin!(other));
        for waker in &wakers {
            assert!(awaited.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        assert!(other.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        worker.quiesce().unwrap();
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert!(woken.0.load(Ordering::SeqCst));
        assert!(matches!(other.poll(&mut Context::from_waker(&wakers[1])), Poll::Ready(Ok(25))));
        // At once, too.
        let count = Arc::clone(&told);
        tells.then(|_| panic!("it does not want to be told"));
        tells.then(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(told.load(Ordering::SeqCst), 2);
        worker.finish().unwrap();
    });
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_result_is_awaited() {
    run("sm://", (1, 1), &fabric(), |worker| {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut result = pin!(worker.call_return(worker.place(), square, (5,)).unwrap());
        assert!(result.as_mut().poll(&mut context).is_pending());
        while !woken.0.load(Ordering::SeqCst) {
            worker.progress().unwrap();
        }
        assert!(matches!(result.poll(&mut context), Poll::Ready(Ok(25))));
    });
}

#[test]
fn whoever_waits_for_a_worker_that_is_dropped_is_told() {
    let mut results = run("sm://", (1, 1), &fabric(), |worker| {
        let ran = hg_invoke::Synchronizer::new();
        let how = How::default().when_run(&ran);
        (worker.call_return_with(worker.place(), square, (5,), how).unwrap(), ran)
    });
    let (mut result, ran) = results.pop().unwrap();
    let ended = result.take();
    assert!(matches!(ended, Some(Err(Failed::Call(Error::Gone { process: 0, .. })))), "{ended:?}");
    assert!(matches!(ran.result(), Some(Err(Error::Gone { process: 0, .. }))), "{ran:?}");
}
