//! What becomes of a process that has hardly a descriptor left.

use std::{
    fs::File,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    process::Command,
    time::{Duration, Instant},
};

use hg_na::Context as _;
use hg_na_link::Record;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};
use watchdog::in_time;

use crate::nowhere::{End, Name, Raw, named, open, round_at};

/// Set in a process that may have few descriptors.
const IS_POOR: &str = "HG_FRAMES_TEST_IS_POOR";
/// How soon a listener is heard again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long somebody waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// What one is told at a time.
fn told(end: &mut End, raw: &mut Raw, now: Instant) -> Record<Name> {
    let start = Instant::now();
    loop {
        if let Some(record) = raw.heard() {
            return record;
        }
        in_time!(start, "it is told nothing");
        round_at(end, now);
    }
}

/// Rounds of one time until the context sleeps: a few, or it is busy with nothing.
fn rounds_until_it_sleeps(end: &mut End, now: Instant) {
    let slept = (0..100).any(|_| {
        round_at(end, now);
        end.may_sleep()
    });
    assert!(slept, "it does not sleep");
    assert!(end.next_deadline().is_none_or(|at| at > now));
}

fn is_served(end: &mut End, raw: &mut Raw, now: Instant) {
    raw.say(&[Record::Ping]);
    assert_eq!(told(end, raw, now), Record::Pong);
}

fn files() -> impl Iterator<Item = File> {
    std::iter::from_fn(|| File::open("/dev/null").ok())
}

#[test]
fn peers_leave_descriptors_to_the_process_and_without_any_it_sleeps_and_serves_those_it_has() {
    if std::env::var_os(IS_POOR).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "descriptors::peers_leave_descriptors_to_the_process_and_without_any_it_sleeps_and_serves_those_it_has"]);
        assert!(child.arg("--nocapture").env(IS_POOR, "1").status().unwrap().success());
        return;
    }
    let name = named("scarce");
    let mut end = open(&name, 100);
    // Those of others happen to be of this process, and are made before there are no more.
    let sockets: Vec<_> =
        (0..30).map(|_| Socket::new(Domain::UNIX, Type::STREAM, None).unwrap()).collect();
    let mut sockets = sockets.into_iter();
    let address = SockAddr::unix(format!("\0hydrargyrum-ofi/{name}")).unwrap();
    let mut next = || {
        let socket = sockets.next().unwrap();
        socket.connect(&address).unwrap();
        let mut raw = Raw::of(UnixStream::from(socket));
        raw.say(&[Record::Hello(Name)]);
        raw
    };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let line = 112;
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let mut taken: Vec<_> = files().take_while(|file| file.as_raw_fd() < line - 3).collect();
    let mut now = Instant::now();

    let mut peers = [next(), next(), next()];
    for peer in &mut peers {
        assert_eq!(told(&mut end, peer, now), Record::Welcome(Name));
    }
    // The others wait, asleep, and are refused later.
    let mut late: Vec<_> = (0..20).map(|_| next()).collect();
    let until = now + PATIENCE;
    while now < until {
        rounds_until_it_sleeps(&mut end, now);
        assert!(late.iter_mut().all(|raw| raw.heard().is_none()));
        now += PAUSE;
    }
    assert!(files().take(4).count() == 4, "there are some left for the process itself");
    for raw in &mut late {
        let Record::Refuse(words) = told(&mut end, raw, now) else { panic!("it is refused") };
        assert!(words.contains("RLIMIT_NOFILE is 128"), "{words}");
    }
    rounds_until_it_sleeps(&mut end, now);
    peers.iter_mut().for_each(|peer| is_served(&mut end, peer, now));
    // The process takes the rest itself.
    taken.extend(files());
    let mut last = next();
    for _ in 0..20 {
        rounds_until_it_sleeps(&mut end, now);
        peers.iter_mut().for_each(|peer| is_served(&mut end, peer, now));
        now += PAUSE;
    }
    assert!(last.heard().is_none());
    drop(taken);
    assert_eq!(told(&mut end, &mut last, now), Record::Welcome(Name));
    is_served(&mut end, &mut last, now);
}
