//! The program `hg-visor`: how it ends, and what it is asked.

use std::{
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::Command,
};

use watchdog::Watchdog;

use crate::common::{Daemon, Process, echo, engine, listening, through};

fn program(arguments: &[&str]) -> (bool, String) {
    let (status, said) = program_status(arguments);
    (status == Some(0), said)
}

/// Its exit status, and all that it has said.
pub(crate) fn program_status(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(crate::common::program()).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_daemon_that_is_drained_takes_nothing_new_and_ends_when_nothing_is_left() {
    let _watchdog = Watchdog::start();
    let mut daemon = Daemon::start("one", 0);
    let name = daemon.name.clone();
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    let (is_well, said) = program(&["drain", "--name", &name]);
    assert!(is_well && said.contains("1 connections are left"), "{said}");
    assert_eq!(origin.call(echo, &peer, (2,)).wait().unwrap(), 2, "what is there goes on");
    let refused = through(&name, "visor://", false).unwrap_err().to_string();
    assert!(refused.contains("being drained"), "{refused}");
    let (is_well, said) = program(&["status", "--name", &name]);
    assert!(is_well && said.contains("\"draining\":true"), "{said}");
    drop((peer, origin));
    let status = daemon.process.child.wait().unwrap();
    assert!(status.success(), "{status}");
    drop(target);
}

#[test]
fn what_cannot_be_said_in_a_line_is_said_in_a_sentence() {
    let _watchdog = Watchdog::start();
    let (is_well, said) = program(&["status", "--name", "nobody-here"]);
    assert!(!is_well && said.contains("no daemon hg-visor at sm://nobody-here"), "{said}");
    let (is_well, said) = program(&["serve", "/no/such/file"]);
    assert!(!is_well && said.contains("/no/such/file"), "{said}");
    let daemon = Daemon::start("one", 0);
    let mut second = Command::new(crate::common::program());
    second.args(["serve", "/dev/stdin"]).stdin(std::process::Stdio::piped());
    second.stderr(std::process::Stdio::piped());
    let mut child = second.spawn().unwrap();
    let text = format!("name = \"{}\"\nnetwork = \"tcp://127.0.0.1:0\"\n", daemon.name);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("in use"), "{said}");
    let missing = through("nobody-here", "visor://", false).unwrap_err().to_string();
    assert!(missing.contains("no daemon hg-visor") && missing.contains("HG_VISOR"), "{missing}");
}

#[test]
fn whoever_starts_a_daemon_is_told_when_it_is_ready_and_its_figures_are_read_by_prometheus() {
    let _watchdog = Watchdog::start();
    let place = format!("visor-ready-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&place).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let name = format!("visor-{}-ready", std::process::id());
    let mut command = Command::new(crate::common::program());
    command.args(["serve", "/dev/stdin"]).env("NOTIFY_SOCKET", format!("@{place}"));
    let text = format!("name = \"{name}\"\nnetwork = \"tcp://127.0.0.1:0\"\n");
    let _daemon = Process::start(&mut command, &text);
    let mut word = [0; 32];
    let len = socket.recv(&mut word).unwrap();
    assert_eq!(&word[..len], b"READY=1");
    let (is_well, said) = program(&["metrics", "--name", &name]);
    assert!(is_well && said.contains("# TYPE hg_visor_frames_passed counter\n"), "{said}");
    assert!(said.contains("\nhg_visor_connections 0\n"), "{said}");
}

#[test]
fn an_application_has_as_many_connections_as_its_quota() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::with("one", 0, "connections = 2\n");
    let targets: Vec<_> = (0..3).map(|_| listening(&daemon, "visor://")).collect();
    let origin = engine(&daemon);
    let peers: Vec<_> = targets.iter().map(|it| origin.lookup(it.address()).unwrap()).collect();
    for peer in &peers[..2] {
        assert_eq!(origin.call(echo, peer, (1,)).wait().unwrap(), 1);
    }
    let said = origin.call(echo, &peers[2], (1,)).wait().unwrap_err().to_string();
    assert!(said.contains("as many as its daemon allows"), "{said}");
    assert_eq!(origin.call(echo, &peers[0], (2,)).wait().unwrap(), 2, "what was there goes on");
    // Another context of this process cannot know, and is told by its daemon.
    let other = engine(&daemon);
    let peer = other.lookup(targets[0].address()).unwrap();
    let said = other.call(echo, &peer, (3,)).wait().unwrap_err().to_string();
    assert!(said.contains("its process has as many connections as it may have"), "{said}");
}

#[test]
fn daemons_whose_applications_have_nothing_to_do_with_each_other_any_more_part_and_meet_again() {
    let _watchdog = Watchdog::start();
    let lines = "network-idle-ms = 100\n";
    let (here, there) = (Daemon::with("here", 0, lines), Daemon::with("there", 0, lines));
    let target = listening(&there, "visor://");
    for number in 0..3 {
        let origin = engine(&here);
        let peer = origin.lookup(target.address()).unwrap();
        assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
        for daemon in [&here, &there] {
            assert_eq!(daemon.status()["daemons"], 1, "it carries a connection");
        }
        drop((peer, origin));
        for daemon in [&here, &there] {
            daemon.until("they part", |status| status["daemons"] == 0);
        }
    }
}
