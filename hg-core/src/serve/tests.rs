//! Admission, cancellation and the end of origins.

use std::cell::Cell;

use super::*;
use crate::rpc::RpcId;

const ORIGIN: Peer = Peer::new(1, 1);

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn some_instant() -> Instant {
    Instant::now()
}

fn request(id: u64) -> Vec<u8> {
    encoded(&Header::request(Kind::Request, id, RpcId(5)))
}

fn encoded(header: &Header) -> Vec<u8> {
    let mut bytes = vec![0; header.encoded_len()];
    header.encode(&mut bytes);
    bytes
}

/// A cancellation arrives, of a request of an earlier or later round.
fn cancel(serves: &mut Serves, id: u64) {
    serves.handle_cancel(ORIGIN, id, false, &mut Vec::new());
}

fn hung_up(serves: &mut Serves, arrived: &[u64]) {
    serves.handle_hung_up(ORIGIN, arrived.iter().copied(), &mut Vec::new());
}

/// A request arrives, and its handler goes on beyond its round.
fn begin(serves: &mut Serves, origin: Peer, id: u64) {
    assert!(matches!(serves.handle_message(origin, &request(id)), Arrival::Run { .. }));
    serves.keep_running(origin, id);
}

fn admissions(serves: &mut Serves) -> Vec<Admission> {
    std::iter::from_fn(|| serves.poll_admission(|_| true)).collect()
}

#[test]
fn admission_closes_at_the_limit_and_opens_again() {
    let mut serves = Serves::new(1, None);
    assert!(admissions(&mut serves).is_empty());
    assert!(matches!(serves.handle_message(ORIGIN, &request(0)), Arrival::Run { .. }));
    assert_eq!(admissions(&mut serves), [Admission::Of(false)]);
    serves.end_in_round(ORIGIN, 0);
    assert_eq!(admissions(&mut serves), [Admission::Of(true)]);
}

#[test]
fn an_origin_that_has_its_share_waits_and_others_are_served() {
    let (mut serves, other) = (Serves::new(8, None), Peer::new(2, 1));
    (0..4).for_each(|id| begin(&mut serves, ORIGIN, id));
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(ORIGIN, false)]);
    (0..2).for_each(|id| begin(&mut serves, other, id));
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(other, false)]);
    // One less of the one that has most is not enough for it, but for the other one.
    assert!(serves.end(ORIGIN, 0));
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(other, true)]);
    assert!(serves.end(ORIGIN, 1) && serves.end(ORIGIN, 2));
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(ORIGIN, true)]);
    assert_eq!(serves.in_service(), 3);
}

#[test]
fn an_origin_that_takes_no_answers_is_not_admitted_and_others_are() {
    let mut serves = Serves::new(2, None);
    (0..100).for_each(|_| serves.handle_change(ORIGIN));
    let takes = |takes: bool| move |_| takes;
    assert_eq!(serves.poll_admission(takes(false)), Some(Admission::OfPeer(ORIGIN, false)));
    assert_eq!(serves.poll_admission(takes(false)), None);
    serves.handle_change(ORIGIN);
    assert_eq!(serves.poll_admission(takes(false)), None);
    serves.handle_change(ORIGIN);
    assert_eq!(serves.poll_admission(takes(true)), Some(Admission::OfPeer(ORIGIN, true)));
    assert_eq!(serves.in_service(), 0);
}

#[test]
fn who_takes_no_answers_costs_the_others_nothing_when_something_of_theirs_ends() {
    let (mut serves, looks) = (Serves::new(8, None), Cell::new(0));
    let takes = |peer: Peer| {
        looks.set(looks.get() + 1);
        peer == ORIGIN
    };
    let poll = |serves: &mut Serves| {
        looks.set(0);
        let admissions = std::iter::from_fn(|| serves.poll_admission(takes)).count();
        (admissions, looks.get())
    };
    let hung = (0..1000).map(|index| Peer::new(10 + index, 1));
    hung.for_each(|peer| serves.handle_change(peer));
    assert_eq!(poll(&mut serves).0, 1000);
    for id in 0..10 {
        begin(&mut serves, ORIGIN, id);
        assert!(serves.end(ORIGIN, id));
        let (admissions, looks) = poll(&mut serves);
        assert!(admissions == 0 && looks <= 2, "{admissions} changes, {looks} looks");
    }
}

#[test]
fn what_comes_beyond_a_share_is_held_in_order_and_origins_take_turns() {
    let (mut serves, other) = (Serves::new(4, None), Peer::new(2, 1));
    let now = some_instant();
    (0..2).for_each(|id| begin(&mut serves, ORIGIN, id));
    for (origin, id) in [(ORIGIN, 2), (ORIGIN, 3), (other, 8)] {
        match serves.handle_message(origin, &request(id)) {
            Arrival::Hold => serves.hold(origin, Message::from(request(id)), now),
            arrival => {
                assert!(matches!(arrival, Arrival::Run { .. }) && origin == other);
                serves.keep_running(origin, id);
            }
        }
    }
    assert!(!serves.can_take_held() && serves.take_held(now).is_none());
    assert!(admissions(&mut serves).contains(&Admission::OfPeer(ORIGIN, false)));
    assert!(serves.end(other, 8) && !serves.can_take_held());
    for id in 2..4 {
        assert!(serves.end(ORIGIN, id - 2));
        let (from, message, arrival) = serves.take_held(now).unwrap();
        let Arrival::Run { header, .. } = arrival else { panic!("{arrival:?}") };
        assert_eq!((from, header.id, message.as_slice()), (ORIGIN, id, &request(id)[..]));
        serves.keep_running(ORIGIN, id);
        assert!(serves.take_held(now).is_none());
    }
    let opened = Admission::OfPeer(ORIGIN, true);
    assert!(!admissions(&mut serves).contains(&opened), "it has its share again");
    assert!(serves.end(ORIGIN, 2));
    assert_eq!(admissions(&mut serves), [opened]);
}

#[test]
fn time_that_a_request_is_held_is_not_left_to_it_any_more() {
    let mut serves = Serves::new(1, None);
    let (now, second) = (some_instant(), Duration::from_secs(1));
    let limited = |id, checksum| {
        let left = u64::try_from(second.as_nanos()).ok();
        let plain = Header::request(Kind::Request, id, RpcId(5));
        encoded(&Header { remaining_ns: left, checksum, ..plain })
    };
    begin(&mut serves, ORIGIN, 0);
    for (id, checksum) in [(1, false), (2, true), (3, false)] {
        let message = limited(id, checksum);
        assert!(matches!(serves.handle_message(ORIGIN, &message), Arrival::Hold));
        serves.hold(ORIGIN, Message::from(message), now);
    }
    assert!(serves.end(ORIGIN, 0));
    for (id, waited, expected) in [(1, second / 4, second * 3 / 4), (2, second / 2, second / 2)] {
        let (.., arrival) = serves.take_held(now + waited).unwrap();
        let Arrival::Run { header, .. } = arrival else { panic!("{arrival:?}") };
        let left = header.remaining_ns.map(Duration::from_nanos);
        assert_eq!((header.id, left), (id, Some(expected)));
        serves.end_in_round(ORIGIN, id);
    }
    let (.., arrival) = serves.take_held(now + second * 2).unwrap();
    let is_over =
        matches!(arrival, Arrival::Refuse { id: 3, status: Status::DeadlineExceeded, .. });
    assert!(is_over, "{arrival:?}");
}

#[test]
fn a_request_is_answered_once() {
    let mut serves = Serves::new(8, None);
    begin(&mut serves, ORIGIN, 1);
    assert!(serves.end(ORIGIN, 1));
    assert!(!serves.end(ORIGIN, 1));
    assert_eq!(serves.in_service(), 0);
}

#[test]
fn whoever_uses_the_id_of_a_running_request_again_is_disconnected_and_has_no_more_than_its_share() {
    let mut serves = Serves::new(8, None);
    (0..4).for_each(|_| begin(&mut serves, ORIGIN, 1));
    assert_eq!((serves.in_service(), serves.poll_repeating()), (4, Some(ORIGIN)));
    assert!(matches!(serves.handle_message(ORIGIN, &request(1)), Arrival::Hold));
    while serves.poll_repeating().is_some() {}
    for left in (0..4).rev() {
        assert!(serves.end(ORIGIN, 1));
        assert_eq!(serves.in_service(), left);
    }
    assert!(!serves.end(ORIGIN, 1));
    // One that ends at once leaves the one that runs its place.
    begin(&mut serves, ORIGIN, 2);
    assert!(matches!(serves.handle_message(ORIGIN, &request(2)), Arrival::Run { .. }));
    let _changed = admissions(&mut serves);
    assert!(!serves.has_chores());
    serves.end_in_round(ORIGIN, 2);
    assert!(serves.has_chores());
    assert_eq!((serves.in_service(), serves.poll_repeating()), (1, Some(ORIGIN)));
    assert!(serves.end(ORIGIN, 2));
    // Who uses one again that is over does no wrong.
    begin(&mut serves, ORIGIN, 2);
    assert_eq!((serves.in_service(), serves.poll_repeating()), (1, None));
}

#[test]
fn who_has_hung_up_is_served_one_way_calls_only() {
    let mut serves = Serves::new(6, None);
    begin(&mut serves, ORIGIN, 1);
    begin(&mut serves, ORIGIN, 2);
    let token = serves.token(ORIGIN, 1, false);
    hung_up(&mut serves, &[]);
    assert!(token.is_cancelled());
    assert!(matches!(serves.handle_message(ORIGIN, &request(3)), Arrival::Drop));
    let one_way = encoded(&Header::request(Kind::OneWay, 4, RpcId(5)));
    assert!(matches!(serves.handle_message(ORIGIN, &one_way), Arrival::Run { .. }));
    assert!(serves.token(ORIGIN, 4, true).is_cancelled(), "nobody waits for it");
    serves.end_in_round(ORIGIN, 4);
    assert!(serves.end(ORIGIN, 1) && serves.end(ORIGIN, 2));
    serves.handle_gone(ORIGIN, std::iter::empty());
    assert_eq!(serves.in_service(), 0);
}

/// Its last word comes before the handler is begun.
#[test]
fn the_handler_of_a_one_way_call_is_told_although_its_origin_is_gone_in_the_same_round() {
    let mut serves = Serves::new(6, None);
    hung_up(&mut serves, &[]);
    let one_way = encoded(&Header::request(Kind::OneWay, 4, RpcId(5)));
    assert!(matches!(serves.handle_message(ORIGIN, &one_way), Arrival::Run { .. }));
    serves.handle_gone(ORIGIN, [4].into_iter());
    serves.keep_running(ORIGIN, 4);
    let token = serves.token(ORIGIN, 4, false);
    assert!(token.is_cancelled());
    assert!(serves.end(ORIGIN, 4));
    // The same of the last one that was held.
    let now = some_instant();
    let mut serves = Serves::new(1, None);
    begin(&mut serves, ORIGIN, 1);
    serves.hold(ORIGIN, Message::copied(&one_way), now);
    hung_up(&mut serves, &[]);
    serves.handle_gone(ORIGIN, std::iter::empty());
    assert!(serves.end(ORIGIN, 1));
    let (_, _, arrival) = serves.take_held(now).unwrap();
    assert!(matches!(arrival, Arrival::Run { .. }));
    serves.keep_running(ORIGIN, 4);
    let token = serves.token(ORIGIN, 4, false);
    assert!(token.is_cancelled());
    assert!(serves.end(ORIGIN, 4));
    assert_eq!(serves.in_service(), 0);
}

#[test]
fn handlers_of_one_way_calls_that_were_held_are_told_that_their_origin_is_gone_however_many_start_in_a_round()
 {
    let (now, ids) = (some_instant(), [4, 5, 6]);
    let mut serves = Serves::new(16, None);
    for id in ids {
        let one_way = encoded(&Header::request(Kind::OneWay, id, RpcId(5)));
        serves.hold(ORIGIN, Message::copied(&one_way), now);
    }
    hung_up(&mut serves, &[]);
    serves.handle_gone(ORIGIN, std::iter::empty());
    for _ in ids {
        assert!(matches!(serves.take_held(now), Some((ORIGIN, _, Arrival::Run { .. }))));
    }
    for id in ids {
        serves.keep_running(ORIGIN, id);
        assert!(serves.is_cancelled(ORIGIN, id), "the handler of {id}");
        assert!(serves.end(ORIGIN, id));
    }
    assert_eq!(serves.in_service(), 0);
}

#[test]
fn a_cancellation_that_overtook_its_request_is_remembered() {
    let mut serves = Serves::new(8, None);
    cancel(&mut serves, 4);
    let arrival = serves.handle_message(ORIGIN, &request(4));
    assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }), "{arrival:?}");
    assert!(matches!(serves.handle_message(ORIGIN, &request(5)), Arrival::Run { .. }));
}

#[test]
fn a_cancellation_that_came_too_late_is_forgotten_with_the_next_request() {
    let mut serves = Serves::new(8, None);
    let (mut table, other) = (crate::table::Table::default(), Peer::new(2, 1));
    let ids: Vec<u64> = (0..6).map(|_| table.insert(()).to_bits()).collect();
    assert!(matches!(serves.handle_message(ORIGIN, &request(ids[1])), Arrival::Run { .. }));
    serves.end_in_round(ORIGIN, ids[1]);
    // Of one that is answered, one that never comes, and two that are still to come.
    [1, 2, 4, 5].into_iter().for_each(|at| cancel(&mut serves, ids[at]));
    assert!(matches!(serves.handle_message(other, &request(ids[3])), Arrival::Run { .. }));
    assert_eq!(
        *serves.early_cancels.of(ORIGIN),
        ids[1..3].iter().chain(&ids[4..]).copied().collect::<Vec<_>>()
    );
    assert!(matches!(serves.handle_message(ORIGIN, &request(ids[3])), Arrival::Run { .. }));
    assert_eq!(*serves.early_cancels.of(ORIGIN), &ids[4..]);
    let arrival = serves.handle_message(ORIGIN, &request(ids[5]));
    assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }));
    assert!(serves.early_cancels.is_empty());
}

#[test]
fn remembered_cancellations_are_bounded_for_each_origin_by_itself() {
    let mut serves = Serves::new(8, None);
    let other = Peer::new(2, 1);
    serves.handle_cancel(other, 4, false, &mut Vec::new());
    for id in 0..10 * EARLY_CANCELS_MAX as u64 {
        cancel(&mut serves, id);
    }
    assert_eq!(serves.early_cancels.of(ORIGIN).len(), EARLY_CANCELS_MAX);
    let arrival = serves.handle_message(other, &request(4));
    assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }));
    hung_up(&mut serves, &[]);
    assert!(serves.early_cancels.is_empty());
}

#[test]
fn of_more_cancellations_than_are_remembered_those_of_the_first_requests_are() {
    let mut serves = Serves::new(8, None);
    let id = |number: usize| (number as u64) << 28;
    // Those of requests that never come are told as well, in any order.
    for number in (EARLY_CANCELS_MAX..3 * EARLY_CANCELS_MAX).chain((0..EARLY_CANCELS_MAX).rev()) {
        cancel(&mut serves, id(number));
    }
    for number in 0..EARLY_CANCELS_MAX {
        let arrival = serves.handle_message(ORIGIN, &request(id(number)));
        assert!(matches!(arrival, Arrival::Refuse { status: Status::Cancelled, .. }), "{number}");
    }
    assert!(matches!(
        serves.handle_message(ORIGIN, &request(id(EARLY_CANCELS_MAX))),
        Arrival::Run { .. }
    ));
}

#[test]
fn running_handlers_see_cancellation_and_the_end_of_their_origin() {
    let mut serves = Serves::new(8, None);
    let others = Peer::new(2, 1);
    for (origin, id) in [(ORIGIN, 1), (ORIGIN, 2), (others, 1), (ORIGIN, 3), (ORIGIN, 4)] {
        begin(&mut serves, origin, id);
    }
    let cancelled = serves.token(ORIGIN, 1, false);
    let orphaned = serves.token(ORIGIN, 2, false);
    let other = serves.token(others, 1, false);
    cancel(&mut serves, 1);
    cancel(&mut serves, 4);
    assert!(serves.is_cancelled(ORIGIN, 4) && serves.token(ORIGIN, 4, false).is_cancelled());
    assert!(cancelled.is_cancelled() && !orphaned.is_cancelled());
    hung_up(&mut serves, &[]);
    assert!(orphaned.is_cancelled() && !other.is_cancelled());
    // Whoever asks later learns the same.
    assert!(
        serves.token(ORIGIN, 3, false).is_cancelled()
            && !serves.token(others, 1, false).is_cancelled()
    );
    serves.close(&mut Vec::new());
    assert!(other.is_cancelled());
}

#[test]
fn a_handler_that_starts_has_a_token_only_if_it_asks_or_goes_on() {
    let mut serves = Serves::new(8, None);
    for id in 1..3 {
        assert!(matches!(serves.handle_message(ORIGIN, &request(id)), Arrival::Run { .. }));
    }
    serves.end_in_round(ORIGIN, 1);
    assert!(serves.running.is_empty());
    let asked = serves.token(ORIGIN, 2, true);
    serves.keep_running(ORIGIN, 2);
    let kept = serves.token(ORIGIN, 2, false);
    cancel(&mut serves, 2);
    assert!(asked.is_cancelled() && kept.is_cancelled());
    assert!(serves.end(ORIGIN, 2));
    let late = serves.token(ORIGIN, 2, false);
    assert!(!late.is_cancelled() && serves.running.is_empty());
}

#[test]
fn a_handler_that_is_still_to_be_run_learns_of_what_came_after_its_request() {
    let mut serves = Serves::new(8, None);
    for id in 3..6 {
        assert!(matches!(serves.handle_message(ORIGIN, &request(id)), Arrival::Run { .. }));
    }
    serves.handle_cancel(ORIGIN, 3, true, &mut Vec::new());
    assert!(serves.is_cancelled(ORIGIN, 3) && serves.early_cancels.is_empty());
    assert!(serves.token(ORIGIN, 3, true).is_cancelled());
    hung_up(&mut serves, &[3, 4]);
    assert!(serves.token(ORIGIN, 4, true).is_cancelled());
    assert!(serves.token(ORIGIN, 5, true).is_cancelled(), "whoever asks later learns the same");
    (3..6).for_each(|id| serves.end_in_round(ORIGIN, id));
    assert_eq!((serves.running.len(), serves.in_service()), (0, 0));
    serves.close(&mut Vec::new());
    assert!(serves.token(ORIGIN, 6, true).is_cancelled());
    let other = Peer::new(2, 1);
    assert!(matches!(serves.handle_message(other, &request(7)), Arrival::Run { .. }));
    serves.keep_running(other, 7);
    assert!(serves.is_cancelled(other, 7));
}

#[test]
fn requests_above_the_rejection_limit_are_answered_so() {
    let mut serves = Serves::new(8, Some(1));
    assert!(matches!(serves.handle_message(ORIGIN, &request(0)), Arrival::Run { .. }));
    let arrival = serves.handle_message(ORIGIN, &request(1));
    assert!(matches!(arrival, Arrival::Refuse { status: Status::Overloaded, .. }));
    assert_eq!(serves.in_service(), 1);
}

#[test]
fn a_peer_that_does_not_speak_the_protocol_is_disconnected() {
    let mut serves = Serves::new(8, None);
    for bytes in [&b""[..], b"short", &[0xFF; 40]] {
        assert!(matches!(serves.handle_message(ORIGIN, bytes), Arrival::Disconnect(_)));
    }
    for version in [1, 77] {
        let mut foreign = request(9);
        foreign[2] = version;
        let arrival = serves.handle_message(ORIGIN, &foreign);
        let Arrival::Refuse { id: 9, status: Status::Incompatible, text } = arrival else {
            panic!("{arrival:?}")
        };
        assert!(
            text.contains(&format!("version {version} ")) && text.ends_with("version 2"),
            "{text}"
        );
    }
}

#[test]
fn that_nothing_ends_of_an_origin_that_has_its_share_is_told_once_and_after_twice_as_long_the_next_time()
 {
    let (mut serves, start) = (Serves::new(8, None), some_instant());
    let after = |seconds: u32| start + STALL_AFTER * seconds / 5;
    (0..3).for_each(|id| begin(&mut serves, ORIGIN, id));
    assert!(admissions(&mut serves).is_empty());
    assert_eq!((serves.handle_timeout(after(0)), serves.next_notice(after(0))), (None, None));

    begin(&mut serves, ORIGIN, 3);
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(ORIGIN, false)]);
    assert_eq!(serves.next_notice(after(1)), Some(after(6)));
    assert_eq!(serves.handle_timeout(after(5)), None);
    let told = serves.handle_timeout(after(6)).expect("nothing has ended for so long");
    assert_eq!((told.origin, told.requests, told.during), (ORIGIN, 4, STALL_AFTER));
    assert!(told.to_string().contains("`Builder::in_service_max`"), "{told}");
    assert_eq!((serves.handle_timeout(after(60)), serves.next_notice(after(60))), (None, None));

    // One ends, another comes, and again nothing ends.
    assert!(serves.end(ORIGIN, 0));
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(ORIGIN, true)]);
    assert_eq!(serves.next_notice(after(61)), None);
    begin(&mut serves, ORIGIN, 4);
    assert_eq!(admissions(&mut serves), [Admission::OfPeer(ORIGIN, false)]);
    assert_eq!(serves.next_notice(after(70)), Some(after(80)));
    assert!(serves.handle_timeout(after(80)).is_some());
}

#[test]
fn an_origin_whose_requests_end_now_and_then_is_not_told_to_stand_still() {
    let (mut serves, start) = (Serves::new(8, None), some_instant());
    (0..4).for_each(|id| begin(&mut serves, ORIGIN, id));
    for (id, round) in (4..).zip(0..20) {
        let _closed = admissions(&mut serves);
        assert_eq!(serves.handle_timeout(start + STALL_AFTER * round / 2), None);
        assert!(serves.end(ORIGIN, id - 4));
        begin(&mut serves, ORIGIN, id);
    }
}

mod any_order;
