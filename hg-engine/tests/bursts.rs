//! Requests that come together, whose handlers run one after the other: their time counts from when they came.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use hg_core::error::CallError;
use hg_engine::{Builder, Call, CallOptions, Engine, Progress, Wait};
use hg_na_sm::SmPlugin;

mod hg;

use hg_macros::rpc;
use watchdog::in_time;

/// Keeps its thread: not at all, for a moment, or until its time is over.
#[rpc(crate = crate::hg)]
fn keep(how_long: u8) -> ();

const NOT: u8 = 0;
const A_MOMENT: u8 = 1;
const UNTIL_OVER: u8 = 2;

const MOMENT: Duration = Duration::from_millis(50);

/// When a handler has begun, and its deadline.
type Served = (Instant, Instant);

struct Pair {
    start: Instant,
    origin: Engine,
    target: Engine,
    told: Receiver<Served>,
}

impl Pair {
    /// The caller makes no progress while its target's handlers run.
    fn new() -> Self {
        let open = || {
            let builder = Builder::new().plugin(SmPlugin).listen(true).wait(Wait::Spin);
            builder.progress(Progress::Own).open("sm://").unwrap()
        };
        let (origin, target) = (open(), open());
        let (tell, told) = channel();
        let handler = move |request: &hg_engine::Request, (how_long,): (u8,)| {
            let (begun, deadline) = (Instant::now(), request.deadline().unwrap());
            tell.send((begun, deadline)).unwrap();
            let until = [begun, begun + MOMENT, deadline][usize::from(how_long)];
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok(())
        };
        target.serve(keep, handler).unwrap();
        Self { start: Instant::now(), origin, target, told }
    }

    /// Calls come together; gives how many were served, and the last one.
    fn serve<const N: usize>(&self, within: Duration, calls: [u8; N]) -> Vec<Served> {
        let peer = self.origin.lookup(self.target.address()).unwrap();
        let options = CallOptions::within(within);
        let call = |how_long| self.origin.call_with(keep, &peer, (how_long,), options);
        self.end(&mut call(NOT)).unwrap();
        self.told.try_recv().unwrap();
        let mut calls = calls.map(call);
        while !self.target.progress(Duration::ZERO) {
            in_time!(self.start, "they do not come");
        }
        while self.target.progress(Duration::ZERO) {
            in_time!(self.start, "they do not end");
        }
        let served: Vec<_> = self.told.try_iter().collect();
        let last = self.end(calls.last_mut().unwrap());
        let is_over = matches!(last, Err(CallError::DeadlineExceeded(_)));
        assert!(last.is_ok() || is_over && served.len() < N, "{last:?}");
        served
    }

    fn end(&self, call: &mut Call<'_, keep>) -> Result<(), CallError> {
        loop {
            in_time!(self.start, "it does not end");
            self.target.progress(Duration::ZERO);
            self.origin.progress(Duration::ZERO);
            if let Some(outcome) = call.try_wait() {
                return outcome;
            }
        }
    }
}

#[test]
fn handlers_that_run_one_after_the_other_are_told_deadlines_from_when_their_requests_came() {
    let within = Duration::from_secs(100);
    let served = Pair::new().serve(within, [NOT, A_MOMENT, NOT]);
    let [_, (begun, _), (_, last)] = served[..] else { panic!("{} are served", served.len()) };
    assert!(last <= begun + within, "it counts from when its handler has begun");
}

#[test]
fn a_request_whose_time_is_over_when_those_before_it_have_ended_is_not_begun() {
    let within = Duration::from_secs(1);
    let served = Pair::new().serve(within, [NOT, UNTIL_OVER, NOT]);
    assert_eq!(served.len(), 2);
}
