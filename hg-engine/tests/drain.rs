//! Draining an engine before it is closed: what is in service is answered, and nothing new is begun. Over the in-process
//! reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hg_core::error::CallError;
use hg_engine::{Answer, Builder, DrainError, Engine, Peer, Progress, Request, Wait};
use hg_macros::rpc;
use hg_na_conformance::Mem;
use watchdog::{LIMIT, in_time};

mod hg;

#[rpc(crate = crate::hg)]
fn held(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn counted();

#[rpc(crate = crate::hg)]
fn drained_here() -> bool;

const AT_ONCE: Duration = Duration::from_millis(1);

type Answers = Arc<Mutex<Vec<Answer<held>>>>;

struct Pair {
    target: Engine,
    origin: Engine,
    peer: Peer,
    answers: Answers,
    count: Arc<AtomicUsize>,
}

impl Pair {
    fn new(progress: Progress, contexts: usize) -> Self {
        let plugin = Mem::default();
        let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
        let target = builder().progress(progress).contexts(contexts).open("mem://").unwrap();
        let origin = builder().open("mem://").unwrap();
        let last = target.context(contexts - 1).unwrap();
        let peer = origin.lookup(last.address()).unwrap();
        let (answers, count): (Answers, Arc<AtomicUsize>) = Default::default();
        let kept = Arc::clone(&answers);
        target.serve_later(held, move |_, _, answer| kept.lock().unwrap().push(answer)).unwrap();
        let counter = Arc::clone(&count);
        let count_one = move |_: &Request, ()| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        target.serve(counted, count_one).unwrap();
        Self { target, origin, peer, answers, count }
    }

    fn progress(&self) {
        for context in (0..).map_while(|index| self.target.context(index)) {
            context.progress(Duration::ZERO);
        }
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            in_time!(start, "in vain: {what}");
            self.progress();
            thread::yield_now();
        }
    }
}

#[test]
fn what_is_in_service_is_answered_and_what_comes_then_is_refused_as_not_started() {
    for (progress, contexts) in [(Progress::Own, 1), (Progress::Background, 2)] {
        let pair = Pair::new(progress, contexts);
        let under_way = pair.origin.call(held, &pair.peer, (1,));
        pair.until("it is served", || pair.answers.lock().unwrap().len() == 1);
        let failed = pair.target.drain(AT_ONCE).wait().unwrap_err();
        assert!(matches!(failed, DrainError::OutOfTime), "{failed:?}");

        let late = thread::scope(|scope| {
            let late = scope.spawn(|| pair.origin.call(held, &pair.peer, (2,)).wait().unwrap_err());
            pair.until("it is refused", || late.is_finished());
            late.join().unwrap()
        });
        assert!(matches!(late, CallError::Draining) && late.is_retryable(), "{late:?}");
        pair.origin.notify(counted, &pair.peer, ()).accepted().unwrap();

        thread::scope(|scope| {
            let drained = scope.spawn(|| pair.target.drain(LIMIT).wait());
            let answer = pair.answers.lock().unwrap().pop().unwrap();
            answer.send(Ok(7));
            drained.join().unwrap().unwrap();
        });
        pair.target.drain(AT_ONCE).wait().unwrap();
        pair.target.close();
        assert_eq!(under_way.wait().unwrap(), 7);
        assert!(pair.answers.lock().unwrap().is_empty());
        assert_eq!(pair.count.load(Ordering::SeqCst), 0, "a one-way call is dropped");
    }
}

#[test]
fn an_engine_that_drains_still_calls_others() {
    let pair = Pair::new(Progress::Background, 1);
    pair.origin.drain(AT_ONCE).wait().unwrap();
    pair.origin.call(counted, &pair.peer, ()).wait().unwrap();
    assert_eq!(pair.count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_handler_cannot_wait_for_its_own_end_and_a_closed_engine_has_nothing_to_drain() {
    let pair = Pair::new(Progress::Background, 1);
    let drains = |request: &Request, ()| {
        let drained = request.engine().drain(LIMIT).wait();
        Ok(matches!(drained, Err(DrainError::InHandler)))
    };
    pair.target.serve(drained_here, drains).unwrap();
    assert!(pair.origin.call(drained_here, &pair.peer, ()).wait().unwrap());
    pair.target.drain(LIMIT).wait().unwrap();
    pair.target.close();
    let closed = pair.target.drain(LIMIT).wait().unwrap_err();
    assert!(matches!(closed, DrainError::Closed), "{closed:?}");
}

#[test]
fn an_rpc_that_shuts_its_service_down_is_answered() {
    let pair = Pair::new(Progress::Background, 1);
    let (stop, told) = std::sync::mpsc::channel();
    let shut_down = move |_: &Request, ()| Ok(stop.send(()).is_ok());
    pair.target.serve(drained_here, shut_down).unwrap();
    let call = pair.origin.call(drained_here, &pair.peer, ());
    told.recv_timeout(LIMIT).unwrap();
    pair.target.drain(LIMIT).wait().unwrap();
    pair.target.close();
    assert!(call.wait().unwrap());
}

#[test]
fn a_drain_that_fails_says_what_to_do_and_speaks_of_no_call() {
    let pair = Pair::new(Progress::Background, 1);
    let (say, heard) = std::sync::mpsc::channel();
    let drains = move |request: &Request, ()| {
        let drained = request.engine().drain(LIMIT).wait();
        Ok(say.send(drained.unwrap_err().to_string()).is_ok())
    };
    pair.target.serve(drained_here, drains).unwrap();
    pair.origin.call(drained_here, &pair.peer, ()).wait().unwrap();
    let other = Pair::new(Progress::Background, 1);
    let _held = other.origin.call(held, &other.peer, (1,));
    other.until("it is served", || other.answers.lock().unwrap().len() == 1);
    let late = other.target.drain(AT_ONCE).wait().unwrap_err();
    assert!(format!("{late:?}").ends_with(" [OutOfTime]"), "{late:?}");
    other.target.close();
    let closed = other.target.drain(AT_ONCE).wait().unwrap_err().to_string();
    for (said, what, remedy) in [
        (late.to_string(), "the time is over", "drain it again with more time"),
        (heard.recv().unwrap(), "draining has begun", "wait for its end outside of handlers"),
        (closed, "the engine was closed", "open a new one"),
    ] {
        assert!(said.contains(what) && said.contains(remedy), "{said}");
        assert!(!said.contains("call"), "{said}");
    }
}

#[test]
fn a_drain_ends_when_answers_that_were_given_before_have_left() {
    let pair = Pair::new(Progress::Own, 1);
    let call = pair.origin.call(counted, &pair.peer, ());
    // The answer is posted in the round that serves the call, and leaves in the next one.
    pair.until("it is served", || pair.count.load(Ordering::SeqCst) == 1);
    pair.target.drain(LIMIT).wait().unwrap();
    pair.target.close();
    call.wait().unwrap();
}

#[test]
fn calls_between_the_end_of_a_drain_and_the_close_were_certainly_not_started() {
    let plugin = Mem::default();
    let builder = || Builder::new().plugin(plugin.clone()).wait(Wait::Block).listen(true);
    let origin = builder().open("mem://").unwrap();
    let mut ends = Vec::new();
    for drains in [true, false, true] {
        let target = builder().progress(Progress::Own).open("mem://restarted").unwrap();
        target.serve(counted, |_, ()| Ok(())).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| origin.call(counted, &peer, ()).wait());
            while !first.is_finished() {
                target.progress(Duration::ZERO);
            }
            first.join().unwrap().unwrap();
        });
        if drains {
            target.drain(LIMIT).wait().unwrap();
        }
        // The target makes no progress any more.
        let late = origin.call(counted, &peer, ());
        origin.progress(Duration::ZERO);
        target.close();
        ends.push(late.wait().unwrap_err());
    }
    let [first, second, third] = &ends[..] else { panic!("{ends:?}") };
    assert!(matches!(first, CallError::Draining) && first.is_retryable(), "{first:?}");
    assert!(matches!(second, CallError::PeerGone { .. }), "who comes next has not drained");
    assert!(matches!(third, CallError::Draining), "{third:?}");
}
