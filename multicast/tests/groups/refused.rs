//! A member that refuses an object, and those that go on without it.

use std::{sync::mpsc, thread, time::Duration};

use hg_multicast::{Destination, Error, Group, GroupId, Options};
use watchdog::Watchdog;

use crate::members::{Members, bytes, close, take};

#[test]
fn who_is_blamed_is_told_that_the_others_go_on_and_they_are_asked_for_no_place_again() {
    let _watchdog = Watchdog::start();
    let members = Members::open("sm://", 3);
    let (id, (asked, asks)) = (GroupId::random().unwrap(), mpsc::channel());
    let join = |own: u32| {
        let mut options = Options::default();
        if own == 2 {
            // Nobody leads it for so long.
            options.join_within = Duration::from_secs(5);
        }
        let asked = asked.clone();
        let incoming = move |incoming: hg_multicast::Incoming<'_>| {
            asked.send((own, incoming.number)).unwrap();
            if own == 2 { Err("no room".to_owned()) } else { Ok(Destination::Allocate) }
        };
        let process = &members.processes[own as usize];
        process.group(id, &members.addresses, own, options, incoming).unwrap()
    };
    let groups = [0, 1, 2].map(join);
    let first = groups[0].send(bytes(0, 300_000), b"").unwrap();
    assert_eq!(first.wait().unwrap_err().member, 2);
    groups.iter().for_each(|group| {
        while group.failure().is_none() {
            thread::yield_now();
        }
    });
    let [root, receiver, refuser] = groups.map(Group::reform);
    let [mut root, receiver] = [root, receiver].map(|it| it.wait().unwrap());
    let again = root.resent();
    let second = root.send(bytes(1, 300_000), b"").unwrap();
    for seed in [0, 1] {
        assert!(take(&receiver).data.into_vec().unwrap() == Some(bytes(seed, 300_000)));
    }
    again.into_iter().for_each(|it| it.1.wait().unwrap());
    second.wait().unwrap();
    close(vec![root, receiver]);
    let Err(Error::Failed(said)) = refuser.wait() else { panic!("it was left out") };
    let why = "it refused object 0: no room; and those that go on do so without it";
    assert_eq!((said.member, said.why.as_str()), (2, why));
    let mut asks: Vec<_> = asks.try_iter().collect();
    asks.sort_unstable();
    assert_eq!(asks, [(1, 0), (1, 1), (2, 0)]);
}
