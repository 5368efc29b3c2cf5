//! Applications of another user than the daemon's: who may come, who they are told to be, and what they may have.

use hg_visor::{Question, ask};
use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};
use watchdog::Watchdog;

use crate::common::{Daemon, Process, echo, engine, listening, through, whoami};

/// No user of this machine, as far as anybody minds.
pub(crate) const OTHER: u32 = 47_113;

#[test]
fn another_user_may_what_the_configuration_says_and_is_who_the_kernel_says() {
    if !geteuid().is_root() {
        println!("SKIPPED: two users: only root can start a process of another user");
        return;
    }
    let _watchdog = Watchdog::start();
    let lines = format!("[[user]]\nuid = {OTHER}\nconnections = 1\n");
    let daemon = Daemon::with("one", 0, &lines);
    let (target, second) = (listening(&daemon, "visor://"), listening(&daemon, "visor://"));
    let both = format!("{},{}", target.address(), second.address());
    let mut other = Process::application("user", &daemon.name, &both);
    let address = other.hear("address");
    assert_eq!(other.hear("drain"), "only root and the daemon's own user may drain it");
    assert_eq!(other.hear("whoami"), format!("Some({OTHER})"));
    let refused = other.hear("second");
    assert!(refused.contains("as many as its daemon allows"), "{refused}");
    let origin = engine(&daemon);
    let peer = origin.lookup(&address).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    assert_eq!(origin.call(whoami, &peer, ()).wait().unwrap().0, Some(0));

    let strict = Daemon::start("strict", 0);
    let mut stranger = Process::application("user", &strict.name, &both);
    let refused = stranger.hear("refused");
    assert!(refused.contains("no daemon hg-visor") && refused.contains("allow-uid"), "{refused}");
}

/// What the other user's process does.
pub(crate) fn other_user(daemon: &str, targets: &str) {
    setgid(Gid::from_raw(OTHER)).unwrap();
    setuid(Uid::from_raw(OTHER)).unwrap();
    let engine = match through(daemon, "visor://", true) {
        Ok(engine) => engine,
        Err(error) => return println!("\nrefused {error}"),
    };
    println!("\naddress {}", engine.address());
    let answer = ask(daemon, Question::Drain { within: None }, crate::common::PATIENCE).unwrap();
    assert!(!answer.is_well);
    println!("drain {}", answer.text);
    let (first, second) = targets.split_once(',').unwrap();
    let peer = engine.lookup(first).unwrap();
    println!("whoami {:?}", engine.call(whoami, &peer, ()).wait().unwrap().0);
    let peer = engine.lookup(second).unwrap();
    println!("second {}", engine.call(echo, &peer, (1,)).wait().unwrap_err());
    let _until_the_parent_ends = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}
