//! Users' weights, and contexts of one process: who sends how much where they have to share.

use std::io::Read as _;

use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};
use watchdog::Watchdog;

use crate::{
    common::{Daemon, Process, echo, engine},
    strangers::{DATA, INCOMING, Liar, OPEN, frame},
    users::OTHER,
};

/// Of the other user's; the daemon's own has 1.
const WEIGHT: usize = 3;
/// Frames of each, of 16,000 bytes: a window takes them.
const FRAMES: usize = 30;
/// Short ones, more than the ring to an application and its daemon's part of it take.
const PLUG: usize = 400;

#[test]
fn users_send_as_their_weights_say_where_they_have_to_share() {
    if !geteuid().is_root() {
        println!("SKIPPED: weights: only root can start a process of another user");
        return;
    }
    let _watchdog = Watchdog::start();
    let lines = format!("[[user]]\nuid = {OTHER}\nweight = {WEIGHT}\n");
    let daemon = Daemon::with("one", 0, &lines);
    // It takes nothing until all have sent.
    let mut target = Liar::greeted(&daemon.name, "target/0");
    let address = String::from_utf8(target.heard[0][16..].to_vec()).unwrap();
    let mut plug = Liar::greeted(&daemon.name, "plug/0");
    open(&mut plug, &address);
    (0..PLUG).for_each(|_| plug.say(&frame_of(1)));
    plug.flush();
    let all = |count: usize, waiting: usize| {
        daemon.until("what was sent is in the daemon", |status| {
            status["connections"] == count
                && status["bytes_waiting"].as_u64().unwrap() > waiting as u64
        });
    };
    all(1, 0);
    let mut light = Liar::greeted(&daemon.name, "light/0");
    open(&mut light, &address);
    (0..FRAMES).for_each(|_| light.say(&frame_of(16_000)));
    light.flush();
    all(2, FRAMES * 16_000);
    let mut heavy = Process::application("floods", &daemon.name, &address);
    heavy.hear("sent");
    all(3, 2 * FRAMES * 16_000);
    let of_heavy = taken_of_the_last(&mut target);
    let share = FRAMES * WEIGHT / (WEIGHT + 1);
    assert!(of_heavy.abs_diff(share) <= 4, "{of_heavy} of {FRAMES}, and not {share} or so");
}

/// Takes so many long frames; how many of them came over the connection that was opened last: its daemon counts up.
fn taken_of_the_last(target: &mut Liar) -> usize {
    let (mut ids, mut sent) = (Vec::new(), Vec::new());
    watchdog::until("enough has come", || {
        target.progress();
        for bytes in target.heard.drain(..) {
            let id = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            match bytes[0] {
                INCOMING => ids.push(id),
                DATA if bytes.len() > 1000 => sent.push(id),
                _ => {}
            }
        }
        sent.len() >= FRAMES
    });
    sent[..FRAMES].iter().filter(|id| Some(*id) == ids.iter().max()).count()
}

#[test]
fn the_contexts_of_a_process_send_no_more_than_those_of_another_that_has_one() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let mut target = Liar::greeted(&daemon.name, "target/0");
    let address = String::from_utf8(target.heard[0][16..].to_vec()).unwrap();
    let all = |count: usize, waiting: usize| {
        daemon.until("what was sent is in the daemon", |status| {
            status["connections"] == count
                && status["bytes_waiting"].as_u64().unwrap() > waiting as u64
        });
    };
    let mut plug = Liar::greeted(&daemon.name, "plug/0");
    open(&mut plug, &address);
    (0..PLUG).for_each(|_| plug.say(&frame_of(1)));
    plug.flush();
    all(1, 0);
    let contexts = (2..5).map(|count| {
        let mut context = Liar::greeted(&daemon.name, &format!("context/{count}"));
        open(&mut context, &address);
        (0..FRAMES).for_each(|_| context.say(&frame_of(16_000)));
        context.flush();
        all(count, (count - 1) * FRAMES * 16_000);
        context
    });
    let contexts: Vec<Liar> = contexts.collect();
    let mut other = Process::application("floods-too", &daemon.name, &address);
    other.hear("sent");
    all(5, 4 * FRAMES * 16_000);
    let of_other = taken_of_the_last(&mut target);
    assert!(of_other.abs_diff(FRAMES / 2) <= 4, "{of_other} of {FRAMES}, and not half of them");
    drop(contexts);
}

#[test]
fn the_contexts_of_a_process_have_one_quota_and_another_process_has_its_own() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::with("one", 0, "connections = 3\n");
    let mut targets = [(); 2].map(|()| Process::application("serve", &daemon.name, "visor://"));
    let addresses = targets.each_mut().map(|it| it.hear("address"));
    let (first, second) = (engine(&daemon), engine(&daemon));
    let call = |origin: &hg::Engine, to: &str| {
        let peer = origin.lookup(to).unwrap();
        origin.call(echo, &peer, (7,)).wait()
    };
    assert!(
        addresses.iter().all(|to| call(&first, to).is_ok()) && call(&second, &addresses[0]).is_ok()
    );
    let refused = call(&second, &addresses[1]).unwrap_err().to_string();
    assert!(refused.contains("its process has as many connections as it may have"), "{refused}");
    Process::application("load", &daemon.name, &addresses[1]).hear("busy");
    drop(first);
    watchdog::until("what its other context had is free", || call(&second, &addresses[1]).is_ok());
}

fn open(liar: &mut Liar, target: &str) {
    liar.say(&[frame(OPEN, 5, 0), target.into()].concat());
    liar.hears(2);
}

fn frame_of(len: usize) -> Vec<u8> {
    [frame(DATA, 5, 0), vec![7; len]].concat()
}

/// What the other user's process does.
pub(crate) fn other_user(daemon: &str, target: &str) {
    setgid(Gid::from_raw(OTHER)).unwrap();
    setuid(Uid::from_raw(OTHER)).unwrap();
    other_process(daemon, target);
}

/// The same as the test's user.
pub(crate) fn other_process(daemon: &str, target: &str) {
    let mut heavy = Liar::greeted(daemon, "heavy/0");
    open(&mut heavy, target);
    (0..FRAMES).for_each(|_| heavy.say(&frame_of(16_000)));
    heavy.flush();
    println!("\nsent");
    let _until_the_parent_ends = std::io::stdin().read(&mut [0]);
}
