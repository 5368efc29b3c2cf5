//! A daemon is drained with a deadline, and its successor takes over: what calls see of it; sockets that systemd has made.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
};

use hg_sockets::Sockets;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use watchdog::Watchdog;

use crate::{
    common::{Daemon, Process, echo, engine, hang, listening, through},
    daemons::program_status,
    sockets::{NONE, PORT, connect, sockets},
};

#[hg::rpc]
fn keep(number: u64) -> u64;

#[test]
fn what_is_left_at_the_deadline_is_ended_in_words_and_the_exit_status_says_so() {
    let _watchdog = Watchdog::start();
    let mut daemon = Daemon::start("one", 0);
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    let open = origin.call(hang, &peer, ());
    daemon.until("it is called", |status| status["connections"] == 1);
    let (status, said) = program_status(&["drain", "--within", "300ms", "--name", &daemon.name]);
    assert_eq!((status, said.trim()), (Some(3), "ended: 1 connections were left"));
    let error = open.wait().unwrap_err().to_string();
    assert!(error.contains("its daemon was drained"), "{error}");
    assert!(daemon.process.child.wait().unwrap().success());
    let (status, said) = program_status(&["drain", "--within", "soon", "--name", &daemon.name]);
    assert!(status == Some(2) && said.contains("30s"), "{said}");
}

#[test]
fn what_has_ended_by_itself_before_the_deadline_is_another_status() {
    let _watchdog = Watchdog::start();
    let mut daemon = Daemon::start("one", 0);
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    let name = daemon.name.clone();
    let drain =
        std::thread::spawn(move || program_status(&["drain", "--within", "10m", "--name", &name]));
    daemon.until("it is drained", |status| status["draining"] == true);
    assert_eq!(origin.call(echo, &peer, (2,)).wait().unwrap(), 2, "what is there goes on");
    drop((peer, origin));
    let (status, said) = drain.join().unwrap();
    assert_eq!((status, said.trim()), (Some(0), "drained: every connection had ended"));
    assert!(daemon.process.child.wait().unwrap().success());
}

#[test]
fn no_call_that_was_answered_is_lost_by_an_upgrade_and_none_is_done_twice() {
    let _watchdog = Watchdog::start();
    let mut daemon = Daemon::start("one", 0);
    let port = daemon.address.rsplit(':').next().unwrap().parse().unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    let plugin = hg_visor::VisorPlugin::through(&daemon.name);
    let target = hg::builder().plugin(plugin).listen(true).open("visor://store").unwrap();
    let record = Arc::clone(&done);
    let keeps = move |_request: &hg::Request, (number,): (u64,)| {
        record.lock().unwrap().push(number);
        Ok(number)
    };
    target.serve(keep, keeps).unwrap();
    let origin = engine(&daemon);
    let (stop, address) = (Arc::new(AtomicBool::new(false)), target.address().to_string());
    let (says, hears) = mpsc::channel();
    let is_over = Arc::clone(&stop);
    let caller = std::thread::spawn(move || {
        let (mut number, mut answered, mut errors) = (0, Vec::new(), 0_u32);
        // Relaxed: only that it ends.
        while !is_over.load(Ordering::Relaxed) {
            let peer = origin.lookup(&address).unwrap();
            let calls: Vec<_> =
                (number..number + 8).map(|it| (it, origin.call(keep, &peer, (it,)))).collect();
            number += 8;
            for (number, call) in calls {
                match call.wait() {
                    Ok(said) => {
                        assert_eq!(said, number);
                        answered.push(number);
                        let _nobody_waits = says.send(number);
                    }
                    Err(error) => {
                        // Or the handle is looked up anew, or the target claims its name after the caller has found the successor.
                        let known = ["daemon", "nobody has this name", "had ended before"];
                        let said = error.to_string();
                        assert!(known.iter().any(|it| said.contains(it)), "{said}");
                        errors += 1;
                    }
                }
            }
        }
        (answered, errors)
    });
    watchdog::hear(&hears);
    let (status, said) = program_status(&["drain", "--within", "200ms", "--name", &daemon.name]);
    assert_eq!(status, Some(3), "{said}");
    assert!(daemon.process.child.wait().unwrap().success());
    drop(daemon);
    while hears.try_recv().is_ok() {}
    let _successor = Daemon::start("one", port);
    watchdog::hear(&hears);
    stop.store(true, Ordering::Relaxed);
    let (answered, errors) = caller.join().unwrap();
    assert!(errors > 0, "calls were under way");
    let mut done = done.lock().unwrap().clone();
    let count = done.len();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), count, "none is done twice");
    for number in answered {
        assert!(done.binary_search(&number).is_ok(), "{number} was answered, and is not there");
    }
}

/// Counts the messages of a connection after the other, and says how many each had.
fn counts(sockets: &Sockets, came: &AtomicU64, says: &mpsc::Sender<u64>) {
    let listener = sockets.listen(PORT, 4).unwrap();
    loop {
        let Ok(connection) = listener.accept(NONE, None) else { continue };
        let (mut bytes, mut number, mut is_last) = (vec![0; 100_000], 0, false);
        while let Ok(len) = connection.recv(&mut bytes, NONE, None) {
            if len == 0 {
                is_last = true;
                continue;
            }
            assert_eq!(bytes[..8], u64::to_le_bytes(number), "in order, each once");
            number += 1;
            // Relaxed: a number alone.
            came.fetch_add(1, Ordering::Relaxed);
        }
        if is_last {
            return;
        }
        says.send(number).unwrap();
    }
}

#[test]
fn what_was_sent_before_a_close_that_went_well_has_come_although_either_daemon_was_drained() {
    let _watchdog = Watchdog::start();
    let mut daemons = ["near", "far"].map(|name| Daemon::start(name, 0));
    let far = sockets(&daemons[1].name, "visor://store");
    let (came, (says, hears), address) =
        (AtomicU64::new(0), mpsc::channel(), far.address().to_string());
    let stops = [const { AtomicBool::new(false) }; 2];
    let connected = |daemon: &Daemon| {
        let near = sockets(&daemon.name, "visor://");
        let mut connection = None;
        watchdog::until("there is a connection", || {
            connection = connect(&near, &address).ok();
            connection.is_some()
        });
        (near, connection.unwrap())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| counts(&far, &came, &says));
        for (at, name) in ["near", "far"].into_iter().enumerate() {
            let ((near, connection), stop) = (connected(&daemons[0]), &stops[at]);
            let sends = move || {
                let mut number: u64 = 0;
                // Relaxed: only that it ends.
                while !stop.load(Ordering::Relaxed) {
                    let len = if number % 10 == 9 { 60_000 } else { 100 };
                    let bytes = [&number.to_le_bytes()[..], &vec![7; len]].concat();
                    connection.send(&bytes, NONE, None).unwrap();
                    number += 1;
                }
                connection.close(None).unwrap();
                number
            };
            let sender = scope.spawn(sends);
            let has_come = |more: u64| {
                let first = came.load(Ordering::Relaxed);
                watchdog::until("it comes", || came.load(Ordering::Relaxed) >= first + more);
            };
            has_come(100);
            let (status, said) = program_status(&["drain", "--name", &daemons[at].name]);
            assert!(status == Some(0) && said.contains("1 connections are left"), "{said}");
            has_come(100);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(watchdog::hear(&hears), sender.join().unwrap());
            drop(near);
            assert!(daemons[at].process.child.wait().unwrap().success());
            let port = daemons[at].address.rsplit(':').next().unwrap().parse().unwrap();
            daemons[at] = Daemon::start(name, port);
        }
        // A message without bytes is the last one.
        let (_near, connection) = connected(&daemons[0]);
        connection.send(&[], NONE, None).unwrap();
        // It has the message when it ends; whether it answers then is open, since it makes no progress any more.
        let _answered = connection.close(Some(std::time::Duration::from_secs(20)));
    });
}

/// A socket as systemd makes it: applications may come before the daemon is there.
fn made_socket(name: &str) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let place = format!("hydrargyrum/{name}/0");
    bind(made.as_raw_fd(), &UnixAddr::new_abstract(place.as_bytes()).unwrap()).unwrap();
    listen(&made, Backlog::new(8).unwrap()).unwrap();
    made
}

/// The daemon, started as systemd starts it, with a socket as descriptor 3.
fn activated(name: &str, socket: &OwnedFd) -> Process {
    Process::start_with(&mut with_socket(name), socket.try_clone().unwrap().into())
}

fn with_socket(name: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve /dev/fd/4 3<&0 4<<END\n$1\nEND";
    let text = format!("name = \"{name}\"\nnetwork = \"tcp://127.0.0.1:0\"");
    command.args(["-c", script, env!("CARGO_BIN_EXE_hg-visor"), &text]);
    command
}

#[test]
fn a_socket_that_systemd_has_made_is_taken_and_outlives_the_daemon() {
    let _watchdog = Watchdog::start();
    let name = format!("visor-{}-made", std::process::id());
    let socket = made_socket(&name);
    // It comes before there is a daemon, and waits.
    let early = std::thread::spawn({
        let name = name.clone();
        move || through(&name, "visor://early", true).unwrap()
    });
    let mut daemon = activated(&name, &socket);
    daemon.hear("");
    let (early, late) = (early.join().unwrap(), through(&name, "visor://", false).unwrap());
    let peer = late.lookup(early.address()).unwrap();
    assert_eq!(late.call(echo, &peer, (1,)).wait().unwrap(), 1);
    let open = late.call(hang, &peer, ());
    daemon.kill();
    let said = open.wait().unwrap_err().to_string();
    assert!(said.contains("the daemon hg-visor of this node"), "{said}");
    let mut successor = activated(&name, &socket);
    let node = successor.hear("");
    watchdog::until("both have found the successor", || {
        let address = format!("visor://early/0@{node}");
        let peer = late.lookup(&address).unwrap();
        late.call(echo, &peer, (2,)).wait().is_ok_and(|said| said == 2)
    });
}

#[test]
fn a_socket_that_is_another_one_is_refused_in_a_sentence() {
    let _watchdog = Watchdog::start();
    let name = format!("visor-{}-wrong", std::process::id());
    let socket = made_socket(&format!("{name}-other"));
    let output = with_socket(&name).stdin(socket).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let wanted = format!("@hydrargyrum/{name}/0");
    assert!(!output.status.success() && said.contains(&wanted), "{said}");
}
