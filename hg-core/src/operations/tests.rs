//! The table of operations against every order of events.

use std::{sync::Arc, time::Duration};

use hg_bulk::{Limits, Local, Plan};
use hg_na::{
    Address, Context, Domain, Failure as NaFailure, GoneReason, Message, Op, OpenOptions,
    Plugin as _, Reached, Returned, Rights,
};
use hg_na_conformance::Mem;
use proptest::prelude::*;

use super::*;
use crate::{
    error::{Started, Status},
    header::Header,
};

const PEER: Peer = Peer::new(3, 1);

fn op(serial: u64) -> OpId {
    OpId { scope: 3, serial }
}

fn answer_to(id: OperationId, status: Status) -> Message {
    let header = Header::answer(id.to_bits(), status as u8, false);
    let mut bytes = vec![0; header.encoded_len()];
    header.encode(&mut bytes);
    Message::from(bytes)
}

fn gone(reached: Reached) -> NaFailure {
    NaFailure { error: hg_na::Error::PeerGone(GoneReason::Exited), reached }
}

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
fn some_instant() -> Instant {
    Instant::now()
}

fn posted(calls: &mut Operations, deadline: Option<Instant>) -> OperationId {
    let id = calls.begin_call((PEER, "test"), true, deadline, None).unwrap();
    calls.handle_posted(id, Half::Send, op(2));
    calls.handle_posted(id, Half::Receive, op(1));
    id
}

fn done(
    calls: &mut Operations,
    id: OperationId,
    half: Half,
    result: Result<(), NaFailure>,
    message: Option<Message>,
) {
    let mut result = result.map_err(Box::new);
    let mut returned = message.map_or(Returned::Nothing, Returned::Message);
    calls.handle_done(id, half, &mut result, &mut returned);
}

fn drain(calls: &mut Operations) -> Vec<Effect> {
    std::iter::from_fn(|| calls.poll_effect()).collect()
}

#[test]
fn an_answer_is_collected_where_nobody_else_is_to_be_told() {
    let mut calls = Operations::new(8);
    let answer = |id, status| {
        move |_, message: &mut Message| {
            *message = Message::copied(answer_to(id, status).as_slice());
            true
        }
    };
    let begin = |calls: &mut Operations, serials: [u64; 2]| {
        let id = calls.next_id().unwrap();
        let ops = (op(serials[0]), op(serials[1]));
        calls.begin_exchanged(id, (PEER, "test"), None, ops);
        id
    };
    let id = begin(&mut calls, [2, 1]);
    let mut place = None;
    assert!(!calls.collect(id, &mut place, |_, _| false) && place.is_none());
    assert!(calls.set_waker(id, Waker::noop().clone()).is_none());
    let never =
        |_: Peer, _: &mut Message| unreachable!("somebody else is to be told, or it is over");
    assert!(!calls.collect(id, &mut place, never));
    assert!(calls.abandon(id, some_instant()).is_some());
    assert!(!calls.collect(id, &mut place, never));
    done(&mut calls, id, Half::Receive, Ok(()), Some(answer_to(id, Status::Ok)));
    let id = begin(&mut calls, [4, 3]);
    assert!(calls.collect(id, &mut place, answer(id, Status::Ok)));
    assert!(matches!(place.take(), Some(Outcome::Answered { handler_error: false, .. })));
    let id = begin(&mut calls, [6, 5]);
    assert!(!calls.collect(id, &mut place, answer(id, Status::NoSuchRpc)));
    assert!(calls.read_collected(id, &mut place));
    assert!(matches!(place, Some(Outcome::Failed(_))));
    assert!(calls.is_empty() && !calls.any_settled());
}

#[test]
fn an_answered_call_leaves_nothing_behind() {
    let mut calls = Operations::new(8);
    let id = posted(&mut calls, None);
    done(&mut calls, id, Half::Send, Ok(()), None);
    done(&mut calls, id, Half::Receive, Ok(()), Some(answer_to(id, Status::Ok)));
    assert!(matches!(calls.take(id), Some(Outcome::Answered { handler_error: false, .. })));
    assert!(calls.is_empty() && calls.poll_effect().is_none());
}

#[test]
fn a_deadline_cancels_the_receive_and_tells_the_target() {
    let mut calls = Operations::new(8);
    let now = some_instant();
    let id = posted(&mut calls, Some(now + Duration::from_secs(1)));
    done(&mut calls, id, Half::Send, Ok(()), None);
    calls.handle_timeout(now, |_| true);
    assert!(!calls.is_settled(id));
    calls.handle_timeout(now + Duration::from_secs(1), |_| true);
    let effects = drain(&mut calls);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::CancelOp(id) if *id == op(1))));
    let outcome = calls.take(id);
    assert!(matches!(outcome, Some(Outcome::Failed(Failure::DeadlineExceeded(Started::Unknown)))));
    assert_eq!(calls.calls(), 1, "the cancelled receive is still open");
    let cancelled = NaFailure { error: hg_na::Error::Cancelled, reached: Reached::Unknown };
    done(&mut calls, id, Half::Receive, Err(cancelled), None);
    assert!(calls.is_empty());
}

#[test]
fn a_request_that_never_left_was_certainly_not_started() {
    let mut calls = Operations::new(8);
    let id = posted(&mut calls, None);
    done(&mut calls, id, Half::Send, Err(gone(Reached::Never)), None);
    done(&mut calls, id, Half::Receive, Err(gone(Reached::Unknown)), None);
    let outcome = calls.take(id);
    let Some(Outcome::Failed(Failure::PeerGone { started: Started::No, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(calls.is_empty());
}

#[test]
fn a_request_that_waits_here_when_its_peer_ends_was_certainly_not_started() {
    for is_fault in [false, true] {
        let mut calls = Operations::new(8);
        let waits = calls.begin_call((PEER, "test"), true, None, None).unwrap();
        calls.handle_waits(waits, 7);
        calls.handle_posted(waits, Half::Receive, op(3));
        let left = posted(&mut calls, None);
        if is_fault {
            calls.handle_fault(PEER, "it has had enough");
        } else {
            for id in [waits, left] {
                done(&mut calls, id, Half::Receive, Err(gone(Reached::Unknown)), None);
            }
        }
        for (id, expected) in [(waits, Started::No), (left, Started::Unknown)] {
            let outcome = calls.take(id);
            assert!(
                matches!(&outcome, Some(Outcome::Failed(Failure::PeerGone { started, .. })) if *started == expected),
                "{outcome:?}"
            );
        }
        let is_dropped = |it: &Effect| matches!(it, Effect::DropRequest { peer: PEER, number: 7 });
        assert!(drain(&mut calls).iter().any(is_dropped));
    }
}

fn is_told(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Tell { what: header::Kind::Cancel, .. }))
}

#[test]
fn a_target_is_told_of_a_cancellation_a_round_later_unless_the_request_never_left() {
    for was_taken_back in [false, true] {
        let mut calls = Operations::new(8);
        let id = posted(&mut calls, None);
        calls.cancel(id, some_instant());
        let effects = drain(&mut calls);
        assert!(effects.len() == 2 && !is_told(&effects), "{effects:?}");
        calls.handle_round();
        assert!(!is_told(&drain(&mut calls)) && calls.needs_round());
        if was_taken_back {
            let cancelled = NaFailure { error: hg_na::Error::Cancelled, reached: Reached::Never };
            done(&mut calls, id, Half::Send, Err(cancelled), None);
        }
        calls.handle_round();
        assert_eq!(is_told(&drain(&mut calls)), !was_taken_back);
        assert!(!calls.needs_round());
    }
}

#[test]
fn a_call_whose_requests_success_is_never_told_leaves_nothing_behind() {
    let mut calls = Operations::new(8);
    let id = posted(&mut calls, None);
    done(&mut calls, id, Half::Receive, Ok(()), Some(answer_to(id, Status::Ok)));
    assert!(matches!(calls.take(id), Some(Outcome::Answered { .. })));
    assert!(calls.is_empty() && calls.poll_effect().is_none());
}

#[test]
fn an_answer_to_another_request_is_refused() {
    let mut calls = Operations::new(8);
    let id = posted(&mut calls, None);
    let other = OperationId::from_bits(id.to_bits() + 1);
    done(&mut calls, id, Half::Receive, Ok(()), Some(answer_to(other, Status::Ok)));
    assert!(matches!(calls.take(id), Some(Outcome::Failed(Failure::Decode(_)))));
}

#[test]
fn a_waker_is_dropped_by_whoever_takes_its_place_and_kept_by_open_calls_only() {
    let mut calls = Operations::new(8);
    let waker = || Waker::noop().clone();
    let id = calls.begin_call((PEER, "test"), false, None, None).unwrap();
    assert!(calls.set_waker(id, waker()).is_none());
    assert!(calls.set_waker(id, waker()).is_some(), "the one before");
    assert!(calls.detach(id).is_some() && calls.detach(id).is_none());
    calls.cancel(id, some_instant());
    assert!(calls.is_empty());
    let id = calls.begin_call((PEER, "test"), true, None, None).unwrap();
    assert!(calls.set_waker(id, waker()).is_none());
    calls.cancel(id, some_instant());
    assert!(matches!(calls.poll_effect(), Some(Effect::Defer(Action::Wake(_)))));
    assert!(calls.set_waker(id, waker()).is_some(), "nobody would wake it");
    assert!(calls.abandon(id, some_instant()).is_none() && calls.set_waker(id, waker()).is_some());
}

#[test]
fn one_more_than_the_limit_is_not_begun() {
    let mut calls = Operations::new(1);
    let id = calls.begin_call((PEER, "test"), true, None, None).unwrap();
    assert!(calls.begin_call((PEER, "test"), true, None, None).is_none());
    assert!(calls.abandon(id, some_instant()).is_none());
    assert!(calls.begin_call((PEER, "test"), true, None, None).is_some());
}

#[test]
fn room_is_granted_once_for_each_place_and_waits_that_were_left_are_forgotten() {
    let now = some_instant();
    let mut calls = Operations::new(1);
    let call = calls.begin_call((PEER, "test"), true, None, None).unwrap();
    for _ in 0..1000 {
        let id = calls.begin_room();
        assert!(calls.abandon(id, now).is_none());
        let id = calls.begin_drain();
        assert!(calls.abandon(id, now).is_none());
    }
    assert!(calls.waiting.len() < 10 && calls.drains.len() < 10, "{calls:?}");
    let waits = [calls.begin_room(), calls.begin_room()];
    calls.grant_room();
    assert!(!calls.is_settled(waits[0]), "there is no room");
    assert!(calls.abandon(call, now).is_none());
    calls.grant_room();
    calls.grant_room();
    assert_eq!(waits.map(|id| calls.is_settled(id)), [true, false]);
    assert!(matches!(calls.take(waits[0]), Some(Outcome::Sent)));
    calls.grant_room();
    assert!(calls.is_settled(waits[1]), "nobody has taken the place");
    assert!(calls.abandon(waits[1], now).is_none());
    assert!(calls.is_empty() && calls.granted == 0 && calls.others == 0);
}

/// A domain with a context whose peer is itself: this side moves the bytes of their transfers.
fn own_peer() -> (Arc<dyn Domain>, Box<dyn Context>, Peer) {
    let address = Address::new("mem://").unwrap();
    let domain = Mem::default().open(&address, &OpenOptions::listening()).unwrap();
    let mut context = domain.context(0).unwrap();
    let own = context.address().clone();
    let peer = context.lookup(&own).unwrap();
    let (to, message) = (peer, Message::inline(0));
    context.post(0, Op::SendUnexpected { to, message }).unwrap();
    while !context.moves(peer) {
        context.progress(some_instant(), &mut Vec::new()).unwrap();
    }
    (domain, context, peer)
}

/// Begins a pull from its own memory.
fn pull(
    calls: &mut Operations,
    (domain, context, peer): &mut (Arc<dyn Domain>, Box<dyn Context>, Peer),
) -> OperationId {
    let register = || Local::register(domain.as_ref(), 0, vec![1; 100].into(), Rights::all());
    let [near, far] = [(); 2].map(|()| Arc::new(register().unwrap()));
    let far = far.descriptor(context.address().scheme()).range(..).unwrap();
    let plan = Plan::new(Near::Pull(near.all()), far, Limits::whole());
    calls.begin_transfer(*peer, plan, context.as_mut())
}

#[test]
fn a_transfer_that_has_settled_while_its_bytes_are_moved_has_no_timer_any_more() {
    let mut calls = Operations::new(8);
    let mut own = own_peer();
    let id = pull(&mut calls, &mut own);
    calls.set_deadline(id, some_instant());
    let moving = calls.next_move(own.1.as_mut()).unwrap();
    calls.close(&Failure::Closed, &TransferError::Closed);
    assert!(calls.is_settled(id) && !calls.timers.any());
    // Whoever waited for it learns of that, and does not take it.
    assert!(calls.abandon(id, some_instant()).is_none());
    assert!(!calls.timers.any() && !calls.is_empty(), "its memory is in use");
    calls.handle_moved(moving, Came::Over, None);
    assert!(calls.is_empty());
}

#[test]
fn after_the_close_no_piece_is_to_be_moved_although_some_have_waited_for_one_that_ends() {
    let mut calls = Operations::new(8);
    let mut own = own_peer();
    let [first, second] = [(); 2].map(|()| pull(&mut calls, &mut own));
    let moving = calls.next_move(own.1.as_mut()).unwrap();
    assert!(moving.id == first && calls.next_move(own.1.as_mut()).is_none());
    calls.close(&Failure::Closed, &TransferError::Closed);
    calls.handle_moved(moving, Came::Over, None);
    assert!(!calls.has_moves(), "a round would follow the other for ever");
    assert!([first, second].iter().all(|id| calls.take(*id).is_some()) && calls.is_empty());
}

#[test]
fn transfers_that_end_before_their_turn_with_a_peer_are_forgotten_however_long_a_piece_takes() {
    let mut calls = Operations::new(8);
    let mut own = own_peer();
    let first = pull(&mut calls, &mut own);
    let moving = calls.next_move(own.1.as_mut()).unwrap();
    for _ in 0..1000 {
        let id = pull(&mut calls, &mut own);
        assert!(calls.next_move(own.1.as_mut()).is_none(), "one at a time");
        assert!(calls.abandon(id, some_instant()).is_none());
    }
    assert!(calls.moving[&own.2].len() < 10, "{} in turn", calls.moving[&own.2].len());
    let last = pull(&mut calls, &mut own);
    assert!(calls.next_move(own.1.as_mut()).is_none());
    calls.handle_moved(moving, Came::Over, Some(own.1.as_mut()));
    assert!(calls.is_settled(first) && !calls.is_settled(last));
    assert_eq!(calls.next_move(own.1.as_mut()).map(|it| it.id), Some(last));
}

#[derive(Debug, Clone, Copy)]
enum Event {
    SendOk,
    SendFails,
    Answer,
    ReceiveFails,
    Cancel,
    Timeout,
    Abandon,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::SendOk),
        Just(Event::SendFails),
        Just(Event::Answer),
        Just(Event::ReceiveFails),
        Just(Event::Cancel),
        Just(Event::Timeout),
        Just(Event::Abandon)
    ]
}

proptest! {
    #[test]
    fn every_order_of_events_settles_once_and_frees_the_call(events in prop::collection::vec(any_event(), 0..12)) {
        let now = some_instant();
        let mut calls = Operations::new(8);
        let id = posted(&mut calls, Some(now));
        let (mut send_open, mut receive_open, mut outcomes, mut abandoned) = (true, true, 0, false);
        let closing = [Event::SendFails, Event::ReceiveFails];
        for event in events.into_iter().chain(closing) {
            match event {
                Event::SendOk if std::mem::take(&mut send_open) => done(&mut calls, id, Half::Send, Ok(()), None),
                Event::SendFails if std::mem::take(&mut send_open) => {
                    done(&mut calls, id, Half::Send, Err(gone(Reached::Unknown)), None);
                }
                Event::Answer if std::mem::take(&mut receive_open) => {
                    done(&mut calls, id, Half::Receive, Ok(()), Some(answer_to(id, Status::Ok)));
                }
                Event::ReceiveFails if std::mem::take(&mut receive_open) => {
                    done(&mut calls, id, Half::Receive, Err(gone(Reached::Unknown)), None);
                }
                Event::Cancel => calls.cancel(id, some_instant()),
                Event::Timeout => calls.handle_timeout(now, |_| true),
                Event::Abandon => { let _: Option<Waker> = calls.abandon(id, some_instant()); abandoned = true; }
                _ => {}
            }
            outcomes += usize::from(calls.take(id).is_some());
        }
        prop_assert!(outcomes <= 1);
        prop_assert!(outcomes == 1 || abandoned);
        prop_assert!(calls.is_empty() && !calls.any_settled() && !calls.timers.any());
        prop_assert!(drain(&mut calls).len() <= 4);
    }
}

mod transfers;
