//! Users' weights: who sends how much where they have to share.

use std::io::Read as _;

use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};
use watchdog::Watchdog;

use crate::{
    common::{Daemon, Process},
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
    let of_heavy = sent[..FRAMES].iter().filter(|id| **id == ids[2]).count();
    let share = FRAMES * WEIGHT / (WEIGHT + 1);
    assert!(of_heavy.abs_diff(share) <= 4, "{of_heavy} of {FRAMES}, and not {share} or so");
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
    let mut heavy = Liar::greeted(daemon, "heavy/0");
    open(&mut heavy, target);
    (0..FRAMES).for_each(|_| heavy.say(&frame_of(16_000)));
    heavy.flush();
    println!("\nsent");
    let _until_the_parent_ends = std::io::stdin().read(&mut [0]);
}
