//! What happens to a card under load: its port is down for five seconds, or it is removed. Every operation over it ends, and a peer on the other card does
//! not notice.
//!
//! Nobody else may use the cards meanwhile: run by itself.

use std::{
    env,
    process::{Child, Command},
    time::{Duration, Instant},
};

use hg_na::{Completion, Descriptor, Peer};
use watchdog::in_time;

use super::{
    DEVICES,
    side::{Side, told},
};

/// How long the port is down.
const DOWN: Duration = Duration::from_secs(5);
/// Operations of a peer that show that it is in use.
const SOME: u64 = 24;
/// Places of a side's counts.
const FAR: usize = 0;
const FRIEND: usize = 1;

/// A peer, and its memory.
type Known = (Peer, Descriptor);

/// One side on the first card, with a peer on either: all have operations under way with one another.
struct Scene {
    own: Side,
    friend: Side,
    far: Side,
    /// As `own` knows them.
    peers: [Known; 2],
    /// As they know it.
    back: [Known; 2],
    /// Whether `own`, and the far one, were told of the other's end.
    are_gone: [bool; 2],
}

/// Each tells the other of its memory.
fn meet(who: usize, own: &mut Side, other: &mut Side) -> (Known, Known) {
    let peer = own.lookup(other.end.1.address());
    own.tell(who, peer);
    let (start, mut near, mut far) = (Instant::now(), None, None);
    while near.is_none() || far.is_none() {
        in_time!(start, "they do not meet");
        near = near.or(told(&own.step()));
        if let Some(known) = told(&other.step()) {
            other.tell(0, known.0);
            far = Some(known);
        }
    }
    (near.unwrap(), far.unwrap())
}

fn is_gone(done: &[Completion], peer: Peer) -> bool {
    done.iter().any(|it| matches!(it, Completion::Gone { peer: gone, .. } if *gone == peer))
}

impl Scene {
    fn open() -> Self {
        let (mut own, mut friend, mut far) = (Side::open(0), Side::open(0), Side::open(1));
        let (far_known, from_far) = meet(FAR, &mut own, &mut far);
        let (friend_known, from_friend) = meet(FRIEND, &mut own, &mut friend);
        let (peers, back) = ([far_known, friend_known], [from_far, from_friend]);
        let mut scene = Self { own, friend, far, peers, back, are_gone: [false; 2] };
        let start = Instant::now();
        while scene.own.counts.iter().any(|it| it.ended < SOME) || scene.far.counts[0].ended < SOME
        {
            in_time!(start, "nothing ends: {:?}", scene.own.counts);
            scene.step(true);
        }
        assert_eq!(scene.are_gone, [false; 2]);
        scene
    }

    /// A round of all; `goes_on`: what has ended is posted again.
    fn step(&mut self, goes_on: bool) {
        let Self { own, friend, far, peers, back, are_gone } = self;
        let (done, far_done, friend_done) = (own.step(), far.step(), friend.step());
        are_gone[0] |= is_gone(&done, peers[FAR].0);
        are_gone[1] |= is_gone(&far_done, back[FAR].0);
        let is_touched = is_gone(&done, peers[FRIEND].0) || is_gone(&friend_done, back[FRIEND].0);
        assert!(!is_touched, "the peer on the other card is gone");
        let failed = own.counts[FRIEND].failed + friend.counts[0].failed;
        assert_eq!(failed, 0, "something with the peer on the other card has failed");
        if !goes_on {
            return;
        }
        own.fill(FRIEND, peers[FRIEND].0, &peers[FRIEND].1);
        friend.fill(0, back[FRIEND].0, &back[FRIEND].1);
        if !are_gone[0] {
            own.fill(FAR, peers[FAR].0, &peers[FAR].1);
        }
        if !are_gone[1] {
            far.fill(0, back[FAR].0, &back[FAR].1);
        }
    }

    /// Until some more has ended of what goes over the first card alone.
    fn goes_on(&mut self, why: &str) {
        let (start, before) = (Instant::now(), self.own.counts[FRIEND].ended);
        while self.own.counts[FRIEND].ended < before + SOME {
            in_time!(start, "{why}: {:?}", self.own.counts);
            self.step(true);
        }
    }

    /// Until all that was posted has ended, with peers that are there or gone.
    fn ends(&mut self) {
        let start = Instant::now();
        let all =
            |it: &Self| [it.own.counts[0], it.own.counts[1], it.far.counts[0], it.friend.counts[0]];
        while !all(self).iter().all(|it| it.is_over()) {
            in_time!(start, "{:?}", all(self));
            self.step(false);
        }
    }
}

fn card(place: usize) -> String {
    env::var(DEVICES).unwrap().split(',').nth(place).unwrap().to_owned()
}

fn run(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{line}");
}

#[test]
fn a_port_that_is_down_for_five_seconds_under_load_touches_nothing_else() {
    let mut scene = Scene::open();
    run("ip link set eth1 down");
    let down = Instant::now();
    scene.goes_on("while it is down");
    while down.elapsed() < DOWN {
        scene.step(true);
    }
    run("ip link set eth1 up");
    scene.goes_on("when it is up again");
    scene.ends();
    let Scene { mut own, .. } = scene;
    let mut anew = Side::open(1);
    meet(FAR, &mut own, &mut anew);
}

/// Whether the kernel still has a card for those who look for one.
fn is_listed(name: &str) -> bool {
    let shown = Command::new("rdma").args(["link", "show"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8(shown.stdout).unwrap().contains(&format!("link {name}/"))
}

/// A card that is being removed: there again when this is dropped, or the tests that follow would have none.
struct Removal {
    name: String,
    /// `rdma link delete`, which ends when nobody has the card open any more.
    command: Option<Child>,
}

impl Removal {
    fn begin(&mut self) {
        let command = Command::new("rdma").args(["link", "delete", &self.name]).spawn();
        self.command = Some(command.unwrap());
    }

    fn is_under_way(&mut self) -> bool {
        self.command.as_mut().is_some_and(|it| it.try_wait().unwrap().is_none())
    }

    /// Waits for its end, and adds the card; whether both went well.
    fn ends(&mut self) -> bool {
        let Some(mut command) = self.command.take() else { return true };
        let is_well = command.wait().is_ok_and(|it| it.success());
        let words = ["link", "add", &self.name, "type", "rxe", "netdev", "eth1"];
        is_well & Command::new("rdma").args(words).status().is_ok_and(|it| it.success())
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.ends();
    }
}

/// The kernel takes soft-RoCE's card from nobody who has it open, and tells them nothing.
#[test]
fn a_card_that_is_removed_under_load_works_until_it_is_closed_and_is_gone_then() {
    let name = card(1);
    // Dropped last: it waits until the card is closed.
    let mut removal = Removal { name: name.clone(), command: None };
    let mut scene = Scene::open();
    removal.begin();
    let start = Instant::now();
    while is_listed(&name) {
        in_time!(start, "it is not removed");
        scene.step(true);
    }
    let before = scene.own.counts[FAR].ended;
    while scene.own.counts[FAR].ended < before + SOME {
        in_time!(start, "while it is removed: {:?}", scene.own.counts);
        scene.step(true);
    }
    assert_eq!((scene.are_gone, scene.own.counts[FAR].failed), ([false; 2], 0));
    assert!(removal.is_under_way(), "it is open");
    assert!(!scene.own.counts[FAR].is_over(), "something is under way");
    let Scene { mut own, mut friend, far, .. } = scene;
    drop(far);
    let is_over = |own: &Side| own.counts.iter().all(|it| it.is_over());
    while removal.is_under_way() || !is_over(&own) {
        in_time!(start, "once it is closed: {:?}", own.counts);
        own.step();
        friend.step();
    }
    assert!(removal.ends(), "the card is removed, and added");
    assert_eq!((own.counts[FRIEND].failed, friend.counts[0].failed), (0, 0));
    // Opened anew it is there.
    meet(FAR, &mut own, &mut Side::open(1));
}
