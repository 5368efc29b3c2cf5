//! What happens to one peer is nobody else's business: one that is dead, hung or greedy, and handlers that panic.
//!
//! All engines are stepped by hand, over shared memory inside one process: one that is not stepped is hung.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hg_core::error::{CallError, Failure, Started};
use hg_engine::{Answer, Builder, Call, CallOptions, Engine, Peer, Progress, Request};
use hg_macros::rpc;
use hg_na_sm::SmPlugin;
use serde::{Deserialize, Serialize, Serializer};
use watchdog::{LIMIT, in_time};

mod hg;

/// Ends when it is told that nobody waits.
#[rpc(crate = crate::hg)]
fn patient();
#[rpc(crate = crate::hg)]
fn echo(number: u64) -> u64;
#[rpc(crate = crate::hg)]
fn take(bytes: &[u8]);
#[rpc(crate = crate::hg)]
fn rude(number: u64) -> u64;
#[rpc(crate = crate::hg)]
fn careless(number: u64) -> u64;
#[rpc(crate = crate::hg)]
fn unwritable() -> Unwritable;
/// Is answered when the test says so.
#[rpc(crate = crate::hg)]
fn late() -> Vec<u8>;

/// Panics when it is encoded.
#[derive(Debug, Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("the test's own panic");
    }
}

fn builder() -> Builder {
    Builder::new().plugin(SmPlugin).progress(Progress::Own).listen(true)
}

fn open(builder: Builder) -> Engine {
    builder.open("sm://").unwrap()
}

/// A target that serves all of the above.
fn target(builder: Builder) -> Engine {
    let target = open(builder);
    let patiently = |request: Request, ()| async move {
        request.cancelled().await;
        Ok(())
    };
    target.serve_async(patient, patiently).unwrap();
    target.serve(echo, |_, (number,)| Ok(number)).unwrap();
    target.serve(take, |_, (_,)| Ok(())).unwrap();
    target.serve_later(rude, |_, (_,), _answer| panic!("the test's own panic")).unwrap();
    target.serve_later(unwritable, |_, (), answer| answer.send(Ok(Unwritable))).unwrap();
    target
}

fn step(engines: &[&Engine]) {
    while engines.iter().fold(false, |moved, engine| moved | engine.progress(Duration::ZERO)) {}
}

/// Steps these until `done` says so.
fn until(engines: &[&Engine], what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        for engine in engines {
            engine.progress(Duration::ZERO);
        }
        in_time!(start, "{what}");
    }
}

fn outcome<R: hg_core::rpc::Rpc>(
    engines: &[&Engine],
    mut call: Call<'_, R>,
) -> Result<R::Output, CallError<R::Error>> {
    let mut outcome = None;
    until(engines, "a call never ends", || {
        outcome = call.try_wait();
        outcome.is_some()
    });
    outcome.unwrap()
}

fn assert_serves(target: &Engine, others: &[&Engine]) {
    let fresh = open(builder());
    let peer = fresh.lookup(target.address()).unwrap();
    let engines: Vec<_> = others.iter().copied().chain([target, &fresh]).collect();
    assert_eq!(outcome(&engines, fresh.call(echo, &peer, (7,))).unwrap(), 7);
}

#[test]
fn an_origin_that_ends_with_more_calls_than_are_served_at_a_time_leaves_the_target_serving() {
    for limit in [1, 8, 64] {
        let target = target(builder().in_service_max(limit));
        let origin = open(builder());
        let peer = origin.lookup(target.address()).unwrap();
        let calls: Vec<_> = (0..limit + 300).map(|_| origin.call(patient, &peer, ())).collect();
        until(&[&target, &origin], "nothing is in service", || target.requests_in_service() > 0);
        step(&[&target, &origin]);
        std::mem::forget(calls);
        drop(origin);
        assert_serves(&target, &[]);
        until(&[&target], "requests of a dead origin stay in service", || {
            target.requests_in_service() == 0
        });
    }
}

#[test]
fn a_call_that_expires_before_any_connection_stood_was_certainly_not_started() {
    let (origin, hung) = (open(builder()), target(builder()));
    let to_hung = origin.lookup(hung.address()).unwrap();
    let expired = || {
        let options = CallOptions::within(Duration::from_millis(1));
        outcome(&[&origin], origin.call_with(echo, &to_hung, (1,), options)).unwrap_err()
    };
    for _ in 0..3 {
        let error = expired();
        assert!(matches!(error, CallError::DeadlineExceeded(Started::No)), "{error}");
        assert!(error.is_retryable(), "{error}");
    }
    assert_eq!(outcome(&[&origin, &hung], origin.call(echo, &to_hung, (7,))).unwrap(), 7);
    let error = expired();
    assert!(matches!(error, CallError::DeadlineExceeded(Started::Unknown)), "{error}");
    assert!(!error.is_retryable(), "{error}");
}

#[test]
fn calls_to_a_hung_peer_that_expire_keep_nobody_from_being_served() {
    let (target, hung) = (target(builder().in_service_max(8)), open(builder()));
    let to_hung = target.lookup(hung.address()).unwrap();
    let expired = |target: &Engine| {
        let call =
            target.call_with(echo, &to_hung, (1,), CallOptions::within(Duration::from_micros(1)));
        assert!(matches!(outcome(&[target], call), Err(CallError::DeadlineExceeded(_))));
    };
    // Connected, then hung.
    step(&[&target, &hung]);
    drop(target.call(echo, &to_hung, (1,)));
    until(&[&target, &hung], "it never connects", || target.calls_under_way() == 0);
    step(&[&target, &hung]);
    (0..2_000).for_each(|_| expired(&target));
    assert_serves(&target, &[]);
    let left = target.calls_under_way();
    assert!(left <= 300, "{left} expired calls are kept for a hung peer");
}

#[test]
fn a_target_that_stood_still_while_calls_expired_serves_their_origin_again() {
    let (target, origin) = (target(builder()), open(builder()));
    let peer = origin.lookup(target.address()).unwrap();
    let both = [&target, &origin];
    assert_eq!(outcome(&both, origin.call(echo, &peer, (1,))).unwrap(), 1);
    // More than any table of cancelled receives ever held.
    for _ in 0..6_000 {
        let within = CallOptions::within(Duration::from_micros(1));
        let call = origin.call_with(echo, &peer, (1,), within);
        assert!(matches!(outcome(&[&origin], call), Err(CallError::DeadlineExceeded(_))));
    }
    for number in 0..200 {
        assert_eq!(outcome(&both, origin.call(echo, &peer, (number,))).unwrap(), number);
    }
    step(&both);
    assert_eq!((target.requests_in_service(), origin.calls_under_way()), (0, 0));
}

#[test]
fn an_origin_that_takes_no_answers_has_its_share_and_others_are_served() {
    let target = target(builder().in_service_max(8));
    let origin = open(builder());
    let peer = origin.lookup(target.address()).unwrap();
    // Far more than all queues hold, while the origin reads nothing.
    let mut calls = Vec::new();
    for _ in 0..50 {
        calls.extend((0..40).map(|number| origin.call(echo, &peer, (number,))));
        let call = origin.call(echo, &peer, (1,));
        step(&[&target]);
        calls.push(call);
    }
    origin.progress(Duration::ZERO);
    step(&[&target]);
    assert_serves(&target, &[]);
    for call in calls {
        assert!(outcome(&[&target, &origin], call).is_ok());
    }
    step(&[&target, &origin]);
    assert_eq!((target.requests_in_service(), origin.calls_under_way()), (0, 0));
}

#[test]
fn an_origin_whose_handlers_never_end_has_its_share_and_others_are_served() {
    let target = target(builder().in_service_max(8));
    let origin = open(builder());
    let peer = origin.lookup(target.address()).unwrap();
    let calls: Vec<_> = (0..300).map(|_| origin.call(patient, &peer, ())).collect();
    until(&[&target, &origin], "nothing is in service", || target.requests_in_service() > 0);
    step(&[&target, &origin]);
    assert_serves(&target, &[&origin]);
    drop(calls);
    until(&[&target, &origin], "requests stay in service", || target.requests_in_service() == 0);
    assert_eq!(outcome(&[&target, &origin], origin.call(echo, &peer, (3,))).unwrap(), 3);
}

#[test]
fn a_handler_that_panics_with_its_answer_to_be_given_is_answered_once() {
    let target = target(builder());
    let origin = open(builder());
    let peer = origin.lookup(target.address()).unwrap();
    for number in 0..200 {
        let call = origin.call(rude, &peer, (number,));
        let result = outcome(&[&target, &origin], call);
        assert!(
            matches!(&result, Err(CallError::Panicked(text)) if text.contains("the test's own panic")),
            "{result:?}"
        );
        assert_eq!(target.requests_in_service(), 0);
    }
    assert_eq!(outcome(&[&target, &origin], origin.call(echo, &peer, (3,))).unwrap(), 3);
}

#[test]
fn an_answer_that_is_lost_in_a_panic_which_its_handler_catches_is_given_for_it() {
    let target = target(builder());
    let lose = |_: &Request, (_,): (u64,), answer: Answer<careless>| {
        let lose = || {
            let _answer = answer;
            panic!("the test's own panic");
        };
        drop(catch_unwind(AssertUnwindSafe(lose)));
    };
    target.serve_later(careless, lose).unwrap();
    let origin = open(builder());
    let peer = origin.lookup(target.address()).unwrap();
    let result = outcome(&[&target, &origin], origin.call(careless, &peer, (1,)));
    assert!(matches!(&result, Err(CallError::Panicked(_))), "{result:?}");
    assert_eq!(target.requests_in_service(), 0);
    target.drain(LIMIT).wait().unwrap();
}

#[test]
fn an_answer_that_panics_while_it_is_encoded_leaves_nothing_in_service() {
    let target = target(builder());
    let origin = open(builder());
    let peer = origin.lookup(target.address()).unwrap();
    for _ in 0..10 {
        let result = outcome(&[&target, &origin], origin.call(unwritable, &peer, ()));
        assert!(
            matches!(&result, Err(CallError::Panicked(text)) if text.contains("the test's own panic")),
            "{result:?}"
        );
        assert_eq!(target.requests_in_service(), 0);
    }
}

/// Sends until it is refused; says how many bytes were accepted.
fn fill(origin: &Engine, hung: &Peer, bytes: &[u8]) -> usize {
    let mut accepted = 0;
    loop {
        match origin.notify(take, hung, (bytes,)).accepted() {
            Ok(()) => accepted += bytes.len(),
            Err(Failure::NotMade(hg_na::Error::Limit { remedy, .. })) => {
                assert!(remedy.contains("`Builder::"), "{remedy}");
                return accepted;
            }
            Err(other) => panic!("{other}"),
        }
        assert!(accepted < 64 << 20, "without bound");
        origin.progress(Duration::ZERO);
    }
}

#[test]
fn bytes_for_a_hung_peer_are_bounded_and_others_are_reached() {
    let origin = open(builder().backlog_bytes_max(4 << 20).large_in_service_max(16 << 20));
    let (target, hung) = (target(builder()), open(builder()));
    let (peer, to_hung) =
        (origin.lookup(target.address()).unwrap(), origin.lookup(hung.address()).unwrap());
    drop(origin.call(echo, &to_hung, (1,)));
    until(&[&hung, &origin], "it never connects", || origin.calls_under_way() == 0);
    step(&[&hung, &origin]);
    for len in [10_000, 100_000, 1 << 20] {
        let accepted = fill(&origin, &to_hung, &vec![1; len]);
        assert!(accepted <= 24 << 20, "{accepted} bytes in messages of {len}");
    }
    let call = origin.call(echo, &peer, (5,));
    assert_eq!(outcome(&[&target, &origin], call).unwrap(), 5);
    // Once it goes on all of it arrives, and nothing is kept.
    until(&[&hung, &origin], "one-way calls stay under way", || {
        origin.calls_under_way() == 0 && origin.large_untaken() == 0
    });
    assert!(fill(&origin, &to_hung, &[1; 100_000]) > 0);
}

#[test]
fn calls_that_have_expired_take_no_share_of_what_may_wait_for_a_hung_peer() {
    let origin = open(builder().backlog_bytes_max(4 << 20));
    let hung = target(builder());
    let to_hung = origin.lookup(hung.address()).unwrap();
    assert_eq!(outcome(&[&hung, &origin], origin.call(echo, &to_hung, (1,))).unwrap(), 1);
    let bytes = vec![1; 100_000];
    // Fills all queues of the transport, and waits behind them.
    let mut open_ones: Vec<_> = Vec::new();
    while origin.calls_under_way() < 150 {
        open_ones.push(origin.call(take, &to_hung, (&bytes[..1_000],)));
    }
    open_ones.extend((0..80).map(|_| origin.call(take, &to_hung, (&bytes[..1_000],))));
    for _ in 0..200 {
        let within = CallOptions::within(Duration::from_micros(1));
        let expired = outcome(&[&origin], origin.call_with(take, &to_hung, (&bytes,), within));
        assert!(matches!(expired, Err(CallError::DeadlineExceeded(_))), "{expired:?}");
    }
    drop(open_ones);
}

#[test]
fn short_calls_that_wait_for_a_hung_peer_leave_places_for_calls_to_others() {
    const CALLS: usize = 2_000;
    let origin = open(builder().calls_max(CALLS));
    let (target, hung) = (target(builder()), target(builder()));
    let (peer, to_hung) =
        (origin.lookup(target.address()).unwrap(), origin.lookup(hung.address()).unwrap());
    assert_eq!(outcome(&[&hung, &origin], origin.call(echo, &to_hung, (1,))).unwrap(), 1);
    let share = CALLS / 3..CALLS * 2 / 3;
    let accepted = fill(&origin, &to_hung, &[1]);
    assert!(share.contains(&accepted), "{accepted} of {CALLS}");
    for number in 0..10 {
        let call = origin.call(echo, &peer, (number,));
        assert_eq!(outcome(&[&target, &origin], call).unwrap(), number);
    }
    until(&[&hung, &origin], "calls stay under way", || origin.calls_under_way() == 0);
    let accepted = fill(&origin, &to_hung, &[1]);
    assert!(share.contains(&accepted), "{accepted} of {CALLS}, once all has arrived");
}

#[test]
fn answers_that_nobody_takes_are_bounded_in_bytes_and_leave_calls_to_others_alone() {
    const CALLS: usize = 300;
    const LEN: usize = 200_000;
    let serving = open(builder().backlog_bytes_max(1_000_000));
    let answers = Arc::new(Mutex::new(Vec::<Answer<late>>::new()));
    let kept = Arc::clone(&answers);
    serving.serve_later(late, move |_, (), answer| kept.lock().unwrap().push(answer)).unwrap();
    let (origin, other) = (open(builder()), target(builder()));
    let peer = origin.lookup(serving.address()).unwrap();
    let to_other = serving.lookup(other.address()).unwrap();
    let calls: Vec<_> = (0..CALLS).map(|_| origin.call(late, &peer, ())).collect();
    until(&[&serving, &origin], "not all calls are in service", || {
        serving.requests_in_service() == CALLS
    });
    // From now on the origin stands still: what its transport has no room for waits.
    for answer in std::mem::take(&mut *answers.lock().unwrap()) {
        answer.send(Ok(vec![7; LEN]));
    }
    step(&[&serving]);
    let accepted = fill(&serving, &to_other, &[1; 100]);
    assert!(accepted >= 100_000, "{accepted} bytes of calls to somebody else");
    let all = [&serving, &origin, &other];
    let (mut taken, mut refused) = (0, 0);
    for call in calls {
        match outcome(&all, call) {
            Ok(bytes) => taken += usize::from(bytes.len() == LEN),
            Err(CallError::Rejected(why)) => refused += usize::from(why.contains("backlog_bytes")),
            Err(failure) => panic!("{failure}"),
        }
    }
    assert_eq!(taken + refused, CALLS);
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    let call = origin.call(late, &peer, ());
    until(&all, "its origin is not served any more", || !answers.lock().unwrap().is_empty());
    for answer in std::mem::take(&mut *answers.lock().unwrap()) {
        answer.send(Ok(vec![7; LEN]));
    }
    assert_eq!(outcome(&all, call).unwrap().len(), LEN);
}
