//! Simulated groups: seeds choose members, objects, schedules, deaths, stalls, overlapping groups.
//!
//! `MULTICAST_SEEDS=1000000 cargo test --release -p hydrargyrum-multicast --lib simulated` runs a million; `MULTICAST_SEED=7` one, and says
//! what happens in it.

#![expect(clippy::print_stderr, reason = "a run that was asked for says what happens in it")]

mod faults;
mod story;
mod taking;
mod users;
mod world;

use super::*;
use crate::schedule::{Choice, Kind};
use story::Story;
use world::World;

fn done_by(machine: &mut Machine<u64>) -> Vec<Action<u64>> {
    std::iter::from_fn(|| machine.poll_action()).collect()
}

/// Of an object of two blocks.
fn header_of_two(kind: Kind) -> Header {
    Header { size: 100_000, block_size: 50_000, kind, among: None, metadata: vec![] }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|it| it.parse().expect("a number"))
}

#[test]
fn simulated_groups_lose_nothing_deliver_once_and_close_rightly() {
    if let Some(seed) = number("MULTICAST_SEED") {
        World::new(Story::of(seed), true).run();
        return;
    }
    let mut fates = [0u64; 5];
    for seed in 0..number("MULTICAST_SEEDS").unwrap_or(5000) {
        let run = std::panic::catch_unwind(|| World::new(Story::of(seed), false).run());
        let Ok(run) = run else { panic!("seed {seed}") };
        fates.iter_mut().zip(run).for_each(|(sum, it)| *sum += it);
    }
    let [closed, failed, reformed, resumed, ahead] = fates;
    eprintln!(
        "groups closed {closed}, failed {failed}, formed again {reformed}; blocks that were there {resumed}; \
         events with a block ahead {ahead}"
    );
    assert!(fates.iter().all(|it| *it > 0), "every fate is met");
}

/// Each of eight members, after each event of the transfer.
#[test]
fn whoever_dies_at_whatever_step_every_survivor_knows_and_nobody_closes() {
    let quiet = World::new(Story::plain(8, 5, Choice::Pipeline), false).events_of_run();
    for member in 0..8 {
        for event in 0..quiet {
            let story =
                Story { deaths: vec![(event, member)], ..Story::plain(8, 5, Choice::Pipeline) };
            World::new(story, false).run();
        }
    }
}

#[test]
fn whoever_does_not_receive_holds_up_its_own_group_only_in_bounded_memory() {
    for seed in 0..200 {
        let story = Story { deaf: Some(1), deaths: vec![], cuts: vec![], ..Story::of(seed) };
        World::new(story, false).run();
    }
}

#[test]
fn whoever_closes_without_having_received_holds_up_nothing() {
    for seed in 0..200 {
        let story = Story {
            deaf: Some(1),
            deaf_closes: true,
            deaths: vec![],
            reforms: false,
            ..Story::of(seed)
        };
        World::new(story, false).run();
    }
}

#[test]
fn more_offers_than_a_lane_has_are_a_breach() {
    let config = Config { own: 1, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    for block in 0..=OFFERS_MAX as u64 {
        let message = Message::Offer { object: 5, block, header: None, source: 0 };
        machine.handle(Event::Message { from: 0, message });
    }
    let failed = std::iter::from_fn(|| machine.poll_action()).find_map(|it| match it {
        Action::Failed { member, why } => Some((member, why)),
        _ => None,
    });
    let (member, why) = failed.expect("it is over");
    assert!(member == 0 && why.contains("more than it was let"), "{why}");
}

#[test]
fn members_that_were_told_different_things_do_not_begin() {
    let config =
        |own, digest| Config { own, nodes: vec![0, 1], digest, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config(0, 1), Carried::default());
    let message = Message::Join { digest: 2, whole: 0 };
    root.handle(Event::Message { from: 1, message });
    assert!(root.is_over());
}

#[test]
fn a_root_is_watched_from_the_first_and_again_when_it_is_there() {
    let config = Config { own: 1, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    let mut watches = |event: Option<Event<u64>>| {
        event.into_iter().for_each(|it| machine.handle(it));
        let actions = done_by(&mut machine);
        assert!(!machine.is_over());
        actions.iter().filter(|it| matches!(it, Action::Watch { member: 0 })).count()
    };
    let unknown = || Some(Event::Unknown { member: 0, why: String::new() });
    let call = || Some(Event::Message { from: 0, message: Message::Call });
    assert_eq!(watches(None), 1);
    assert_eq!(watches(unknown()), 0, "it is not there yet");
    assert_eq!(watches(call()), 1, "now it is");
    assert_eq!(watches(unknown()), 1, "what was asked before it was there");
    assert_eq!(watches(unknown()), 0, "asked once for each call");
}

#[test]
fn who_is_blamed_and_may_live_is_told_by_whoever_blames_it_and_by_the_root() {
    let config = |own| Config { own, nodes: vec![0; 3], digest: 0, in_flight: 1, untaken_max: 1 };
    let told = |own, event: Event<u64>| {
        let mut machine = Machine::new(config(own), Carried::default());
        done_by(&mut machine);
        machine.handle(event);
        let is_told = |it| match it {
            Action::Tell { to, message: Message::Failed { .. } } => Some(to),
            _ => None,
        };
        done_by(&mut machine).into_iter().filter_map(is_told).collect::<Vec<_>>()
    };
    let why = String::new;
    let failed = |member| Message::Failed { member, why: why() };
    assert_eq!(told(1, Event::Wrong { from: 0, why: why() }), [0, 2]);
    assert_eq!(told(1, Event::Gone { member: 0, why: why() }), [0, 2], "it may live");
    assert_eq!(told(0, Event::Message { from: 1, message: failed(2) }), [1, 2]);
    let by_others = told(2, Event::Message { from: 1, message: failed(0) });
    assert!(by_others.is_empty(), "{by_others:?}");
}

/// The member in the middle of a chain of three, which is open.
fn relay() -> Machine<u64> {
    let config = Config { own: 1, nodes: vec![0, 1, 2], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    machine
}

#[test]
fn receivers_watch_those_that_they_pass_blocks_to_or_take_them_from_once() {
    let header = header_of_two(Kind::Chain);
    let mut machine = relay();
    for object in 0..2 {
        let header = Some(header.clone());
        let message = Message::Offer { object, block: 0, header, source: 0 };
        machine.handle(Event::Message { from: 0, message });
        machine.handle(Event::Ready { object, bytes: 0 });
        machine.handle(Event::Arrived { object, block: 0 });
    }
    let actions = done_by(&mut machine);
    let watches = actions.iter().filter(|it| matches!(it, Action::Watch { member: 2 }));
    assert_eq!(watches.count(), 1);
    let message = Message::Offer { object: 9, block: 0, header: None, source: 0 };
    let mut last = Machine::<u64>::new(Config { own: 2, ..relay().config }, Carried::default());
    last.handle(Event::Message { from: 1, message });
    assert!(done_by(&mut last).contains(&Action::Watch { member: 1 }));
}

#[test]
fn a_root_judges_where_one_receiver_does_not_reach_another_one() {
    let mut machine = relay();
    done_by(&mut machine);
    machine.handle(Event::Gone { member: 2, why: "no route".to_owned() });
    let message = Message::Unreachable { member: 2, why: "no route".to_owned() };
    let told = Action::Tell { to: 0, message: message.clone() };
    assert_eq!(done_by(&mut machine), [told], "it may have closed before, and ended");
    let config = Config { own: 0, ..relay().config };
    for is_closing in [false, true] {
        let mut root = Machine::<u64>::new(config.clone(), Carried::default());
        for from in [1, 2] {
            root.handle(Event::Message { from, message: Message::Join { digest: 0, whole: 0 } });
        }
        if is_closing {
            root.handle(Event::Close);
        }
        done_by(&mut root);
        root.handle(Event::Message { from: 1, message: message.clone() });
        let failed = done_by(&mut root).into_iter().find_map(|it| match it {
            Action::Failed { member, why } => Some((member, why)),
            _ => None,
        });
        let why = "member 1 does not reach it: no route".to_owned();
        assert_eq!(failed, (!is_closing).then_some((2, why)));
    }
    let mut other = relay();
    other.handle(Event::Message { from: 2, message });
    assert!(other.is_over(), "nobody else is told that");
}

#[test]
fn who_goes_on_without_anybody_missing_breaks_the_protocol_and_nobody_follows() {
    let config = Config { own: 2, nodes: vec![0; 3], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    let all = Message::Reform { id: [1, 2], members: vec![0, 1, 2] };
    machine.handle(Event::Message { from: 0, message: all });
    let actions = done_by(&mut machine);
    assert!(actions.iter().any(|it| matches!(it, Action::Failed { member: 0, .. })));
    // The survivors may still form a group of their own.
    let survivors = Message::Reform { id: [3, 4], members: vec![1, 2] };
    machine.handle(Event::Message { from: 1, message: survivors });
    let reformed = Action::Reformed { id: [3, 4], members: vec![1, 2] };
    assert_eq!(done_by(&mut machine), [reformed], "and not as what was said before");
}

#[test]
fn whoever_hears_first_who_goes_on_tells_the_others_once() {
    let config = Config { own: 2, nodes: vec![0; 4], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Gone { member: 0, why: String::new() });
    let reform = Message::Reform { id: [1, 2], members: vec![1, 2, 3] };
    for from in [3, 1] {
        machine.handle(Event::Message { from, message: reform.clone() });
    }
    let actions = done_by(&mut machine);
    let told = |to| {
        let it = Action::Tell { to, message: reform.clone() };
        actions.iter().filter(|action| **action == it).count()
    };
    assert_eq!([0, 1, 3].map(told), [0, 0, 1]);
    assert!(actions.contains(&Action::Reformed { id: [1, 2], members: vec![1, 2, 3] }));
}

#[test]
fn an_offer_of_what_is_everywhere_holds_up_nothing() {
    let config = Config { own: 0, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config, Carried::default());
    root.handle(Event::Message { from: 1, message: Message::Join { digest: 0, whole: 0 } });
    let offered = |root: &mut Machine<u64>| {
        let actions = done_by(root);
        let offers = actions.into_iter().filter_map(|it| match it {
            Action::Offer { object, block, .. } => Some((object, block)),
            Action::Failed { why, .. } => panic!("{why}"),
            _ => None,
        });
        offers.collect::<Vec<_>>()
    };
    for object in 0..2 {
        root.send(Choice::Sequential, (100_000, 50_000), true, Vec::new());
        assert_eq!(offered(&mut root), [(object, 0)], "the one before is everywhere");
        root.handle(Event::Message { from: 1, message: Message::Whole { count: object + 1 } });
    }
    // Its driver had loaded the block in time, after all.
    let message = Message::Took { object: 0, block: 0 };
    root.handle(Event::Message { from: 1, message });
    assert!(offered(&mut root).is_empty() && !root.is_over());
}

#[test]
fn what_only_the_root_says_is_not_taken_from_others() {
    let config = Config { own: 2, nodes: vec![0, 1, 2], digest: 0, in_flight: 1, untaken_max: 1 };
    for message in [Message::Closed { count: 0 }, Message::Begin { next: 0 }, Message::Call] {
        let mut machine = Machine::<u64>::new(config.clone(), Carried::default());
        machine.handle(Event::Message { from: 1, message });
        let actions = done_by(&mut machine);
        assert!(actions.iter().any(|it| matches!(it, Action::Failed { member: 1, .. })));
        assert!(!actions.contains(&Action::Closed));
    }
}

#[test]
fn numbers_that_nobody_comes_to_end_no_member_but_the_one_that_says_them() {
    let config = |own| Config { own, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config(0), Carried::default());
    let message = Message::Join { digest: 0, whole: u64::MAX };
    root.handle(Event::Message { from: 1, message });
    let object = root.send(Choice::Auto, (10, 10), true, vec![]);
    let actions = done_by(&mut root);
    let is_offer =
        |it: &Action<u64>| matches!(it, Action::Offer { object: of, .. } if *of == object);
    assert!(actions.iter().any(is_offer), "{actions:?}");
    let mut receiver = Machine::<u64>::new(config(1), Carried::default());
    let message = Message::Begin { next: u64::MAX };
    receiver.handle(Event::Message { from: 0, message });
    let actions = done_by(&mut receiver);
    assert!(actions.iter().any(|it| matches!(it, Action::Failed { member: 0, .. })));
}

#[test]
fn a_block_that_two_members_offer_is_pulled_once() {
    let config = Config { own: 1, nodes: vec![0, 1, 2], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    let header = header_of_two(Kind::Sequential);
    for from in [0, 2] {
        let message =
            Message::Offer { object: 0, block: 1, header: Some(header.clone()), source: 0 };
        machine.handle(Event::Message { from, message });
    }
    machine.handle(Event::Ready { object: 0, bytes: 0 });
    machine.handle(Event::Arrived { object: 0, block: 1 });
    let actions = done_by(&mut machine);
    assert_eq!(actions.iter().filter(|it| matches!(it, Action::Pull { .. })).count(), 1);
    let took = Message::Took { object: 0, block: 1 };
    for to in [0, 2] {
        assert!(actions.contains(&Action::Tell { to, message: took.clone() }), "both can go on");
    }
}

#[test]
fn few_blocks_inside_a_node_are_offered_at_once_and_taken_whole() {
    let config = Config { own: 0, nodes: vec![0, 0], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config, Carried::default());
    root.handle(Event::Message { from: 1, message: Message::Join { digest: 0, whole: 0 } });
    let sizes = (8 * 65_536, 65_536);
    root.send(Choice::Auto, sizes, true, Vec::new());
    let offers = |actions: Vec<Action<u64>>| {
        actions.iter().filter(|it| matches!(it, Action::Offer { .. })).count()
    };
    assert_eq!(offers(done_by(&mut root)), 8, "nothing of it is waited for");
    root.handle(Event::Message { from: 1, message: Message::Whole { count: 1 } });
    assert!(done_by(&mut root).contains(&Action::Everywhere { object: 0 }));
    // It had it before, and answered for a block as for one of many.
    let message = Message::Took { object: 0, block: 7 };
    root.handle(Event::Message { from: 1, message });
    assert!(!root.is_over());
}

#[test]
fn who_has_an_object_whole_may_answer_for_its_blocks_although_others_have_it_not() {
    let config = Config { own: 0, nodes: vec![0; 3], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config, Carried::default());
    for from in [1, 2] {
        root.handle(Event::Message { from, message: Message::Join { digest: 0, whole: 0 } });
    }
    root.send(Choice::Auto, (8 * 65_536, 65_536), true, Vec::new());
    root.handle(Event::Message { from: 1, message: Message::Whole { count: 1 } });
    let message = Message::Took { object: 0, block: 7 };
    root.handle(Event::Message { from: 1, message });
    assert!(!root.is_over());
    let message = Message::Took { object: 1, block: 0 };
    root.handle(Event::Message { from: 1, message });
    assert!(root.is_over(), "that was not offered");
}

#[test]
fn a_receiver_says_that_it_has_an_object_before_its_user_gets_it_and_nothing_of_few_blocks() {
    let config = Config { own: 1, nodes: vec![0, 0], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    let header = header_of_two(Kind::Direct);
    for block in 0..2 {
        let header = (block == 0).then(|| header.clone());
        let message = Message::Offer { object: 0, block, header, source: block };
        machine.handle(Event::Message { from: 0, message });
    }
    machine.handle(Event::Ready { object: 0, bytes: 0 });
    for block in 0..2 {
        machine.handle(Event::Arrived { object: 0, block });
    }
    machine.handle(Event::Finished { object: 0 });
    let mut all = done_by(&mut machine);
    all.retain(|it| matches!(it, Action::Tell { .. } | Action::Deliver { .. }));
    let whole = Action::Tell { to: 0, message: Message::Whole { count: 1 } };
    let told = all.split_off(1);
    assert_eq!(told, [whole, Action::Deliver { object: 0 }], "after it has joined");
}

/// Offers of objects of one block, from the root, of which all that can begin have come.
fn comes(machine: &mut Machine<u64>, objects: std::ops::Range<u64>, size: u64) -> Vec<Action<u64>> {
    let header = Header { size, block_size: size, ..header_of_two(Kind::Direct) };
    for object in objects.clone() {
        let message = Message::Offer { object, block: 0, header: Some(header.clone()), source: 0 };
        machine.handle(Event::Message { from: 0, message });
    }
    for object in objects.filter(|it| machine.header(*it).is_some()).collect::<Vec<_>>() {
        machine.handle(Event::Ready { object, bytes: size });
        machine.handle(Event::Arrived { object, block: 0 });
        machine.handle(Event::Finished { object });
    }
    done_by(machine)
}

#[test]
fn what_was_not_received_before_a_reform_counts_in_the_group_that_follows() {
    let config = |own, members| {
        let nodes = vec![0; members];
        Config { own, nodes, digest: 0, in_flight: 1, untaken_max: 1_500_000 }
    };
    let mut before = Machine::<u64>::new(config(2, 3), Carried::default());
    before.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    let actions = comes(&mut before, 0..1, 1_000_000);
    assert!(actions.contains(&Action::Deliver { object: 0 }));
    // The next one is half here.
    let header = Header { size: 2_000_000, block_size: 1_000_000, ..header_of_two(Kind::Chain) };
    let message = Message::Offer { object: 1, block: 0, header: Some(header), source: 0 };
    before.handle(Event::Message { from: 0, message });
    before.handle(Event::Ready { object: 1, bytes: 2_000_000 });
    before.handle(Event::Arrived { object: 1, block: 0 });
    before.handle(Event::Gone { member: 0, why: String::new() });
    let mut machine = Machine::new(config(1, 2), before.carry());
    // The user receives the first one, and the root that follows has nothing of the second one.
    machine.handle(Event::Received { bytes: 1_000_000 });
    let next = 1 << 32;
    machine.handle(Event::Message { from: 0, message: Message::Begin { next } });
    assert!(done_by(&mut machine).contains(&Action::Lost { object: 1 }));
    let actions = comes(&mut machine, next..next + 1, 1000);
    assert!(actions.contains(&Action::Deliver { object: next }), "there is room: {actions:?}");
}

#[test]
fn a_root_that_closes_does_not_wait_for_those_whose_group_has_failed() {
    let config = Config { own: 0, nodes: vec![0; 3], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut root = Machine::<u64>::new(config, Carried::default());
    for from in [1, 2] {
        root.handle(Event::Message { from, message: Message::Join { digest: 0, whole: 0 } });
    }
    root.handle(Event::Close);
    let closed = Message::Closed { count: 0 };
    assert!(done_by(&mut root).contains(&Action::Tell { to: 2, message: closed }));
    // It has left, and the other one has heard that first: neither says that it has heard of the end.
    let message = Message::Failed { member: 1, why: "it has left the group".to_owned() };
    root.handle(Event::Message { from: 1, message });
    assert_eq!(done_by(&mut root), [Action::Closed], "everything is everywhere");
}

#[test]
fn whoever_hears_that_all_is_closed_and_is_over_for_another_reason_says_that_it_has_heard() {
    let mut machine = relay();
    let message = Message::Failed { member: 2, why: "it has left the group".to_owned() };
    machine.handle(Event::Message { from: 2, message });
    done_by(&mut machine);
    for from in [2, 0] {
        let message = Message::Closed { count: 0 };
        machine.handle(Event::Message { from, message });
        let bye = Action::Tell { to: 0, message: Message::Bye };
        let told: &[_] = if from == 0 { &[bye] } else { &[] };
        assert_eq!(done_by(&mut machine), told, "it does not close, and the root need not wait");
    }
}

#[test]
fn a_receiver_that_closes_holds_up_nothing_by_what_it_has_not_received() {
    let config = Config { own: 1, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 1 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    comes(&mut machine, 0..1, 1000);
    let prepared = |actions: Vec<Action<u64>>| {
        let is_it = |it: &Action<u64>| match it {
            Action::Prepare { object } => Some(*object),
            _ => None,
        };
        actions.iter().filter_map(is_it).collect::<Vec<_>>()
    };
    assert!(prepared(comes(&mut machine, 1..4, 1000)).is_empty(), "nobody has received the first");
    machine.handle(Event::Close);
    for object in 1..4 {
        assert_eq!(prepared(done_by(&mut machine)), [object], "one at a time");
        machine.handle(Event::Ready { object, bytes: 1000 });
        machine.handle(Event::Arrived { object, block: 0 });
        machine.handle(Event::Finished { object });
    }
    done_by(&mut machine);
    machine.handle(Event::Message { from: 0, message: Message::Closed { count: 4 } });
    assert!(done_by(&mut machine).contains(&Action::Closed));
}

#[test]
fn objects_without_a_byte_count_among_those_that_nobody_has_received() {
    let config = Config { own: 1, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max: 10_000 };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    let metadata = vec![0; METADATA_MAX];
    let header = Header { size: 0, metadata, ..header_of_two(Kind::Direct) };
    let mut prepared = 0;
    for object in 0..50 {
        let header = Some(header.clone());
        let message = Message::Offer { object, block: 0, header, source: 0 };
        machine.handle(Event::Message { from: 0, message });
        let actions = done_by(&mut machine);
        prepared += actions.iter().filter(|it| matches!(it, Action::Prepare { .. })).count();
    }
    assert_eq!(prepared, 3);
}

/// Objects that the driver is asked for a place for, where all comes of what was offered.
fn prepared(machine: &mut Machine<u64>) -> usize {
    let mut prepared = 0;
    while let Some(action) = machine.poll_action() {
        match action {
            Action::Prepare { object } => {
                prepared += 1;
                machine.handle(Event::Ready { object, bytes: 0 });
            }
            Action::Pull { object, block, .. } => machine.handle(Event::Arrived { object, block }),
            Action::Finish { object } => machine.handle(Event::Finished { object }),
            _ => {}
        }
    }
    prepared
}

#[test]
fn objects_that_are_whole_and_not_passed_on_count_among_those_that_have_begun() {
    let mut machine = relay();
    let header = Header { size: 1, block_size: 1, ..header_of_two(Kind::Chain) };
    let mut begun = 0;
    for object in 0..100 {
        let header = Some(header.clone());
        let message = Message::Offer { object, block: 0, header, source: 0 };
        machine.handle(Event::Message { from: 0, message });
        begun += prepared(&mut machine);
    }
    assert_eq!(begun, BEGUN_MAX, "the last of the chain takes nothing");
    let message = Message::Took { object: 0, block: 0 };
    machine.handle(Event::Message { from: 2, message });
    assert_eq!(prepared(&mut machine), 1, "one was delivered");
}

#[test]
fn what_is_kept_of_each_block_counts_among_the_bytes_of_an_object() {
    let untaken_max = 64 << 20;
    let config = Config { own: 1, nodes: vec![0, 1], digest: 0, in_flight: 1, untaken_max };
    let mut machine = Machine::<u64>::new(config, Carried::default());
    machine.handle(Event::Message { from: 0, message: Message::Begin { next: 0 } });
    let header = Header { size: BLOCKS_MAX, block_size: 1, ..header_of_two(Kind::Chain) };
    for object in 0..3 {
        let header = Some(header.clone());
        let message = Message::Offer { object, block: 0, header, source: 0 };
        machine.handle(Event::Message { from: 0, message });
    }
    let actions = done_by(&mut machine);
    assert_eq!(actions.iter().filter(|it| matches!(it, Action::Prepare { .. })).count(), 1);
}

#[test]
fn an_object_is_given_on_before_the_one_before_it_is_whole_anywhere_else() {
    let offers = |machine: &mut Machine<u64>| {
        let offers = done_by(machine).into_iter().filter_map(|it| match it {
            Action::Offer { to, object, block, .. } => Some((to, object, block)),
            Action::Everywhere { .. } | Action::Failed { .. } => panic!("{it:?}"),
            _ => None,
        });
        offers.collect::<Vec<_>>()
    };
    let took = |object, block| Message::Took { object, block };
    let mut root = Machine::<u64>::new(Config { own: 0, ..relay().config }, Carried::default());
    for from in [1, 2] {
        root.handle(Event::Message { from, message: Message::Join { digest: 0, whole: 0 } });
    }
    for number in 0..2 {
        assert_eq!(root.send(Choice::Chain, (100_000, 50_000), true, Vec::new()), number);
    }
    assert_eq!(offers(&mut root), [(1, 0, 0)]);
    root.handle(Event::Message { from: 1, message: took(0, 0) });
    assert_eq!(offers(&mut root), [(1, 0, 1)]);
    root.handle(Event::Message { from: 1, message: took(0, 1) });
    assert_eq!(offers(&mut root), [(1, 1, 0)]);
    let mut relay = relay();
    for (object, block) in [(0, 0), (0, 1), (1, 0)] {
        let header = (block == 0).then(|| header_of_two(Kind::Chain));
        let message = Message::Offer { object, block, header, source: 0 };
        relay.handle(Event::Message { from: 0, message });
        relay.handle(Event::Ready { object, bytes: 0 });
        relay.handle(Event::Arrived { object, block });
    }
    let actions = done_by(&mut relay);
    let is_taken = Action::Tell { to: 0, message: took(1, 0) };
    let is_offered = |it: &&Action<u64>| matches!(it, Action::Offer { to: 2, .. });
    assert!(actions.contains(&is_taken), "{actions:?}");
    assert_eq!(actions.iter().filter(is_offered).count(), 1, "the last one has taken nothing");
}
