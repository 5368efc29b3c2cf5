//! Two drivers without their threads, which hear each other when they are told to: watches end whenever a test says so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use watchdog::Watchdog;

use super::super::{Driver, acquaintance::KNOWN_MAX};
use crate::{
    Destination, GroupId, Options,
    completion::Completion,
    inbox::{Closing, Inbox, Input, Opening},
    machine::{Event, Message},
    multicast::serve,
    shared::Shared,
    wire::{Meeting, Source},
};
use hg::Address;

struct Process {
    engine: hg::Engine,
    inbox: Arc<Inbox>,
}

fn processes() -> [Process; 2] {
    [(); 2].map(|()| {
        let inbox = Arc::new(Inbox::new());
        let builder = serve(hg::builder(), &inbox).unwrap();
        Process { engine: builder.listen(true).open("sm://").unwrap(), inbox }
    })
}

fn drivers(of: &[Process; 2]) -> [Driver<'_>; 2] {
    [0, 1].map(|it: usize| Driver::new(&of[it].engine, &of[it].inbox))
}

/// Both are receivers of a root that is nobody, or one is the root.
fn addresses(of: &[Process; 2], is_one_root: bool) -> Vec<Address> {
    let nobody = (!is_one_root).then(|| Address::new("sm://nobody").unwrap());
    nobody.into_iter().chain(of.iter().map(|it| it.engine.address().clone())).collect()
}

fn open(driver: &mut Driver<'_>, number: u64, members: &[Address]) -> (GroupId, Arc<Shared>) {
    let (id, shared) = (GroupId([number, 0]), Arc::new(Shared::default()));
    let own = members.iter().position(|it| it == driver.engine.address()).unwrap();
    driver.inbox.add(id);
    driver.open(Opening {
        id,
        own: u32::try_from(own).unwrap(),
        nodes: (0..).take(members.len()).collect(),
        members: members.into(),
        options: Options::default(),
        incoming: Box::new(|_| Ok(Destination::Allocate)),
        shared: Arc::clone(&shared),
    });
    (id, shared)
}

fn progress(all: &[Process; 2]) {
    for process in all {
        let _ = process.engine.progress(Duration::ZERO);
    }
}

/// What has come to one of them, once anything has.
fn inputs(of: &Driver<'_>, all: &[Process; 2]) -> Vec<Input> {
    loop {
        progress(all);
        let inputs = of.inbox.take();
        if !inputs.is_empty() {
            return inputs;
        }
    }
}

fn hear(driver: &mut Driver<'_>, inputs: Vec<Input>) {
    inputs.into_iter().for_each(|it| driver.handle(it));
    std::mem::take(&mut driver.touched).into_iter().for_each(|it| driver.act(it));
}

/// Both go on, until this is so.
fn run(both: &mut [Driver<'_>; 2], all: &[Process; 2], is_so: impl Fn(&[Driver<'_>; 2]) -> bool) {
    let mut context = Context::from_waker(Waker::noop());
    while !is_so(both) {
        for driver in &mut *both {
            progress(all);
            hear(driver, driver.inbox.take());
            driver.poll_watches(&mut context);
            driver.forget_watchers();
        }
    }
}

/// The watch of that process ends, as when the connection breaks: there is one, of some group.
fn watch_ends(driver: &mut Driver<'_>, of: &Address, group: GroupId) {
    let own = driver.members[&group].own;
    driver.watch_process(of, (group, own)).unwrap();
    let place = driver.watches.iter().position(|it| it.address == *of).unwrap();
    let watch = driver.watches.remove(place);
    driver.watch_ended(watch, Ok(()));
}

fn waiting(driver: &Driver<'_>, address: &Address) -> Vec<Message<Source>> {
    driver.acquaintances.waiting(address).iter().map(|it| it.2.clone()).collect()
}

fn has_failed(shared: &Shared) -> Option<u32> {
    shared.lock().ended.clone().and_then(Result::err).map(|it| it.member)
}

/// Whoever leaves tells the others, and is not interested in how they are.
fn leaves(driver: &mut Driver<'_>, id: GroupId) {
    driver.give(id, Event::Own { why: "it has left the group".to_owned() });
}

#[test]
fn what_waits_for_a_process_when_a_watch_of_another_group_ends_is_said_when_it_is_met() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members = addresses(&all, false);
    let [id, _] = [&mut one, &mut other].map(|it| open(it, 1, &members).0);
    let shared = Arc::clone(&other.members[&id].shared);
    leaves(&mut one, id);
    assert_eq!(waiting(&one, &members[2]).len(), 1);
    let lost = inputs(&other, &all);
    assert!(matches!(lost[..], [Input::Met { meeting: Meeting::Meet { .. }, .. }]));
    watch_ends(&mut one, &members[2], id);
    assert_eq!(waiting(&one, &members[2]).len(), 1, "nobody was told that it is lost");
    while has_failed(&shared).is_none() {
        for driver in [&mut one, &mut other] {
            progress(&all);
            hear(driver, driver.inbox.take());
        }
    }
    assert_eq!(has_failed(&shared), Some(1));
}

#[test]
fn who_was_told_a_number_is_known_by_it_though_a_watch_of_it_ends_meanwhile() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members = addresses(&all, false);
    let [id, _] = [&mut one, &mut other].map(|it| open(it, 1, &members).0);
    let shared = Arc::clone(&other.members[&id].shared);
    leaves(&mut one, id);
    let asked = inputs(&other, &all);
    hear(&mut other, asked);
    // The end of an earlier connection, which the other side has heard of before it has asked.
    watch_ends(&mut other, &members[1], id);
    while !waiting(&one, &members[2]).is_empty() {
        let proven = inputs(&one, &all);
        hear(&mut one, proven);
    }
    while has_failed(&shared).is_none() {
        let told = inputs(&other, &all);
        let is_last = told.iter().any(|it| matches!(it, Input::Told { .. }));
        hear(&mut other, told);
        assert_eq!(has_failed(&shared).is_some(), is_last, "what it says is dropped");
    }
}

#[test]
fn words_of_a_connection_that_was_asked_on_before_count_beside_those_of_the_next_one() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [_, mut other] = drivers(&all);
    let members = addresses(&all, false);
    let (id, _) = open(&mut other, 1, &members);
    // Of one that has asked twice, which hears the same number twice.
    other.handle(Input::Met { group: id, origin: peer(&all, 0), meeting: asks(1) });
    other.handle(Input::Met { group: id, origin: peer(&all, 1), meeting: asks(2) });
    let nonce = other.acquaintances.number_of(&members[1]).unwrap();
    for origin in [peer(&all, 0), peer(&all, 1)] {
        other.handle(Input::Met { group: id, origin, meeting: Meeting::Proof { nonce } });
        assert!(other.acquaintances.is_speaker(&members[1], origin));
    }
    // Who asks again is told another number, and who knows the first one is heard until that is said.
    other.handle(Input::Met { group: id, origin: peer(&all, 1), meeting: asks(3) });
    let next = other.acquaintances.number_of(&members[1]).unwrap();
    assert_ne!(next, nonce);
    assert!(other.acquaintances.is_speaker(&members[1], peer(&all, 0)));
    let proof = Meeting::Proof { nonce: next };
    other.handle(Input::Met { group: id, origin: peer(&all, 1), meeting: proof });
    let first = Meeting::Proof { nonce };
    assert!(!other.inbox.is_wanted(id, &first));
    other.handle(Input::Met { group: id, origin: peer(&all, 0), meeting: first });
    assert!(!other.acquaintances.is_speaker(&members[1], peer(&all, 0)));
    assert!(other.acquaintances.is_speaker(&members[1], peer(&all, 1)));
}

fn asks(challenge: u128) -> Meeting {
    Meeting::Meet { from: 1, challenge }
}

fn peer(all: &[Process; 2], of: usize) -> hg::Peer {
    all[1].engine.lookup(all[of].engine.address()).unwrap()
}

#[test]
fn a_call_is_said_again_when_the_connection_has_ended_on_which_it_was_said() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members = addresses(&all, true);
    let [id, _] = [&mut one, &mut other].map(|it| open(it, 1, &members).0);
    let asked = inputs(&other, &all);
    hear(&mut other, asked);
    while !waiting(&one, &members[1]).is_empty() {
        let proven = inputs(&one, &all);
        hear(&mut one, proven);
    }
    watch_ends(&mut one, &members[1], id);
    assert!(matches!(waiting(&one, &members[1])[..], [Message::Call]));
    let mut both = [one, other];
    let has_joined = |it: &Driver<'_>| it.members[&id].has_joined;
    run(&mut both, &all, |both| both.iter().all(has_joined));
}

fn close(driver: &mut Driver<'_>, id: GroupId) {
    let ended = Completion::new().1;
    driver.close(id, Closing { ended, keeps: Arc::new(()) });
}

#[test]
fn who_watches_this_process_is_not_forgotten_however_many_are_known() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let mut both = drivers(&all);
    let members = addresses(&all, true);
    let [id, _] = both.each_mut().map(|it| open(it, 1, &members).0);
    run(&mut both, &all, |both| both.iter().all(|it| it.members[&id].has_joined));
    let (next, _) = open(&mut both[1], 2, &members);
    both.iter_mut().for_each(|it| close(it, id));
    run(&mut both, &all, |both| both.iter().all(|it| !it.members.contains_key(&id)));
    let many = |it: usize| Address::new(&format!("sm://nobody-{it}")).unwrap();
    let strangers: Vec<_> = (0..=KNOWN_MAX).map(many).collect();
    let one = &mut both[0];
    one.acquaintances.add(&strangers);
    one.acquaintances.remove(&strangers, &one.watchers, one.inbox);
    assert!(!one.acquaintances.knows(&strangers[0]), "the others are");
    open(one, 2, &members);
    run(&mut both, &all, |both| both.iter().all(|it| it.members[&next].has_joined));
}

fn is_watched(other: &mut Driver<'_>, all: &[Process; 2]) {
    while other.watchers.is_empty() {
        let asked = inputs(other, all);
        hear(other, asked);
    }
}

/// The watch of the other one by the first ends as with a connection: whoever was polled for it is woken, and the first driver has not looked at it.
fn lose_watch(woken: &Count, other: &mut Driver<'_>, all: &[Process; 2]) {
    other.watchers.clear();
    while woken.0.load(Ordering::Relaxed) == 0 {
        progress(all);
    }
}

/// Who is woken when a watch of this driver ends.
fn polled(one: &mut Driver<'_>) -> Arc<Count> {
    let woken = Arc::new(Count::default());
    one.poll_watches(&mut Context::from_waker(&Waker::from(Arc::clone(&woken))));
    woken
}

#[test]
fn a_watch_that_has_ended_tells_those_that_had_it_and_no_group_that_asks_afterwards() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members: Vec<_> = addresses(&all, true).into_iter().rev().collect();
    let [id, _] = [&mut other, &mut one].map(|it| open(it, 1, &members).0);
    let had_it = Arc::clone(&one.members[&id].shared);
    is_watched(&mut other, &all);
    let woken = polled(&mut one);
    lose_watch(&woken, &mut other, &all);
    let (next, asks) = open(&mut one, 2, &members);
    open(&mut other, 2, &members);
    let mut both = [one, other];
    run(&mut both, &all, |both| both.iter().all(|it| it.members[&next].has_joined));
    assert_eq!((has_failed(&had_it), has_failed(&asks)), (Some(0), None));
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        // Relaxed: one thread does all.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_has_polled_a_watch_is_woken_by_its_end_though_another_group_has_asked_for_it_meanwhile() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members: Vec<_> = addresses(&all, true).into_iter().rev().collect();
    [&mut other, &mut one].into_iter().for_each(|it| drop(open(it, 1, &members)));
    is_watched(&mut other, &all);
    let woken = polled(&mut one);
    open(&mut one, 2, &members);
    assert_eq!(one.watches.len(), 1);
    lose_watch(&woken, &mut other, &all);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

/// The root's watch of it was asked for in a group that it has not begun: what is said behind that may be lost, and nothing else tells of it.
#[test]
fn a_call_is_said_again_when_the_watch_was_refused_behind_which_it_was_said() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members = addresses(&all, true);
    let [id, _] = [&mut one, &mut other].map(|it| open(it, 1, &members).0);
    let asked = inputs(&other, &all);
    hear(&mut other, asked);
    let proven = inputs(&one, &all);
    // As a receiver of the other one, which it watches.
    let never: Vec<_> = members.iter().rev().cloned().collect();
    open(&mut one, 2, &never);
    hear(&mut one, proven);
    while !waiting(&one, &members[1]).is_empty() {
        let proven = inputs(&one, &all);
        hear(&mut one, proven);
    }
    let is_call = |it: &Input| matches!(it, Input::Told { message: Message::Call, .. });
    while !inputs(&other, &all).iter().any(is_call) {}
    let mut context = Context::from_waker(Waker::noop());
    while !one.poll_watches(&mut context) {
        progress(&all);
    }
    assert!(matches!(waiting(&one, &members[1])[..], [Message::Call]));
    let mut both = [one, other];
    run(&mut both, &all, |both| both.iter().all(|it| it.members[&id].has_joined));
}

#[test]
fn a_process_is_watched_in_the_group_in_which_it_has_answered() {
    let _watchdog = Watchdog::start();
    let all = processes();
    let [mut one, mut other] = drivers(&all);
    let members = addresses(&all, true);
    let [id, _] = [&mut one, &mut other].map(|it| open(it, 1, &members).0);
    // Nobody else knows of this one, and its call is what was asked for last.
    open(&mut one, 2, &members);
    let asked = inputs(&other, &all);
    hear(&mut other, asked);
    while !waiting(&one, &members[1]).is_empty() {
        let is_proof = |it: &Input| matches!(it, Input::Met { meeting: Meeting::Prove { .. }, .. });
        let proven = inputs(&one, &all).into_iter().filter(is_proof).collect();
        hear(&mut one, proven);
    }
    let mut told = Vec::new();
    while !told.iter().any(|it| matches!(it, Input::Told { group, .. } if *group == id)) {
        told.extend(inputs(&other, &all));
    }
    assert!(told.iter().any(|it| matches!(it, Input::Watched(_))), "it was refused");
}
