//! Connections like Berkeley's sockets through daemons: the example, deaths, and processes that do nothing.

use std::time::Duration;

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_sockets::{Connection, Error, Flags, Sockets};
use hg_visor::VisorPlugin;
use watchdog::Watchdog;

use crate::common::{Daemon, Process};

#[expect(dead_code, reason = "its main is the program's")]
#[path = "../../examples/sockets.rs"]
mod example;

pub(crate) const NONE: Flags = Flags::empty();
const NOW: Option<Duration> = Some(Duration::ZERO);
pub(crate) const PORT: u32 = 7;

pub(crate) fn sockets(daemon: &str, url: &str) -> Sockets {
    let url = Address::new(url).unwrap();
    let domain = VisorPlugin::through(daemon).open(&url, &OpenOptions::listening()).unwrap();
    Sockets::over(domain).unwrap()
}

pub(crate) fn connect(from: &Sockets, to: &str) -> Result<Connection, Error> {
    from.connect(&Address::new(to).unwrap(), PORT, Flags::RC, None)
}

#[test]
fn the_example_runs_through_one_daemon_and_through_two() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    for from in [&far, &near] {
        let (says, hears) = std::sync::mpsc::channel();
        let plugin = VisorPlugin::through(&far.name);
        let server = std::thread::spawn(move || {
            let ready = |address: &Address| says.send(address.to_string()).unwrap();
            example::serve(&plugin, ready).map_err(|error| error.to_string())
        });
        let address = watchdog::hear(&hears);
        example::call(&VisorPlugin::through(&from.name), &address).unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn a_process_that_is_killed_is_a_named_error_after_what_it_had_sent() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    for from in [&far, &near] {
        let sockets = sockets(&from.name, "visor://");
        let mut target = Process::application("greets", &far.name, "visor://");
        let connection = connect(&sockets, &target.hear("address")).unwrap();
        let mut into = [0; 64];
        let len = connection.recv(&mut into, NONE, None).unwrap();
        assert_eq!(&into[..len], b"welcome");
        if from.name == far.name {
            assert_eq!(connection.identity().pid, Some(target.child.id()));
        }
        let waits = std::thread::spawn(move || {
            let said = connection.recv(&mut into, NONE, None).unwrap_err();
            assert!(matches!(connection.send(b"?", NONE, None), Err(Error::Gone(_))));
            said.to_string()
        });
        target.kill();
        let said = waits.join().unwrap();
        assert!(said.contains("its process has ended"), "{said}");
    }
}

#[test]
fn a_daemon_that_is_killed_is_a_named_error_and_its_successor_is_gone_through() {
    let _watchdog = Watchdog::start();
    let mut daemon = Daemon::start("one", 0);
    let port = daemon.address.rsplit(':').next().unwrap().parse().unwrap();
    let (near, far) = (sockets(&daemon.name, "visor://"), sockets(&daemon.name, "visor://store"));
    let listener = far.listen(PORT, 4).unwrap();
    let address = far.address().to_string();
    std::thread::scope(|scope| {
        let serves = scope.spawn(|| {
            let first = listener.accept(NONE, None).unwrap();
            let said = first.recv(&mut [0], NONE, None).unwrap_err();
            // The same listener, through the next daemon.
            let second = listener.accept(NONE, None).unwrap();
            second.send(b"again", NONE, None).unwrap();
            (said.to_string(), second.close(None))
        });
        let connection = connect(&near, &address).unwrap();
        daemon.process.kill();
        let said = connection.recv(&mut [0], NONE, None).unwrap_err().to_string();
        assert!(said.contains("the daemon hg-visor of this node"), "{said}");
        let _successor = Daemon::start("one", port);
        let mut again = None;
        watchdog::until("there is a connection again", || {
            again = connect(&near, &address).ok();
            again.is_some()
        });
        let mut into = [0; 8];
        let again = again.unwrap();
        let len = again.recv(&mut into, NONE, None).unwrap();
        assert_eq!(&into[..len], b"again");
        assert!(matches!(again.recv(&mut into, NONE, None), Err(Error::Closed)));
        let (said, closed) = serves.join().unwrap();
        assert!(said.contains("the daemon hg-visor of this node"), "{said}");
        closed.unwrap();
    });
}

#[test]
fn a_process_that_does_nothing_is_not_waited_for_by_anybody_else() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let sockets = sockets(&near.name, "visor://");
    let mut idle = Process::application("greets", &far.name, "visor://");
    let mut lively = Process::application("echoes", &far.name, "visor://");
    let idle = connect(&sockets, &idle.hear("address")).unwrap();
    let lively = connect(&sockets, &lively.hear("address")).unwrap();
    let full = std::iter::repeat_with(|| idle.send(&[7; 8000], NONE, NOW)).find(Result::is_err);
    assert!(matches!(full, Some(Err(Error::TimedOut))), "{full:?}");
    for len in [100, 8000, 200_000] {
        let (sent, mut came) = (vec![3; len], vec![0; len]);
        lively.send(&sent, NONE, None).unwrap();
        assert_eq!(lively.recv(&mut came, NONE, None).unwrap(), len);
        assert_eq!(sent, came);
    }
    assert!(matches!(idle.send(&[7; 8000], NONE, NOW), Err(Error::TimedOut)));
}

/// What a child does.
pub(crate) fn child(role: &str, daemon: &str, url: &str) {
    let sockets = sockets(daemon, url);
    let listener = sockets.listen(PORT, 4).unwrap();
    println!("\naddress {}", sockets.address());
    let connection = listener.accept(NONE, None).unwrap();
    match role {
        "greets" => connection.send(b"welcome", NONE, None).unwrap(),
        "echoes" => {
            let mut bytes = vec![0; 1 << 20];
            while let Ok(len) = connection.recv(&mut bytes, NONE, None) {
                connection.send(&bytes[..len], NONE, None).unwrap();
            }
        }
        other => panic!("{other}"),
    }
    let _until_the_parent_ends = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}
