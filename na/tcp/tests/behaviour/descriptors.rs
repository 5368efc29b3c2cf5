//! What becomes of a process that has hardly a descriptor left.

use std::{
    fs::File,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    os::fd::AsRawFd as _,
    process::Command,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use watchdog::{LIMIT, in_time};

use crate::{
    end::{End, LOOPBACK, arrived},
    raw::{UNEXPECTED, frame, hello, place, read_greeting, read_to_the_end},
};

/// Set in a process that may have few descriptors.
const IS_POOR: &str = "HG_TCP_TEST_IS_POOR";
const WELCOME: u8 = 2;
const REFUSE: u8 = 3;
/// How soon a listener is looked at again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long somebody waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connects a socket that there is already, and says hello.
fn calls(socket: Socket, address: SocketAddr) -> TcpStream {
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&hello(0)).unwrap();
    stream
}

/// Whether something has come.
fn is_told(raw: &TcpStream) -> bool {
    raw.set_nonblocking(true).unwrap();
    let is_told = raw.peek(&mut [0]).is_ok();
    raw.set_nonblocking(false).unwrap();
    is_told
}

/// What one is told at a time.
fn told(end: &mut End, raw: &mut TcpStream, now: Instant) -> (u8, String) {
    let start = Instant::now();
    while !is_told(raw) {
        in_time!(start, "it is told nothing");
        end.round_at(now);
    }
    let (kind, words) = read_greeting(raw);
    (kind, String::from_utf8_lossy(&words).into_owned())
}

/// Rounds of one time until the context sleeps: a few, or it is busy with nothing.
fn rounds_until_it_sleeps(end: &mut End, now: Instant) {
    let waiter = end.context.waiter();
    let slept = (0..100).any(|_| {
        end.round_at(now);
        // What the kernel has to tell ends a sleep.
        end.context.may_sleep()
            && waiter.wait(Some(Duration::ZERO)).is_ok()
            && end.context.may_sleep()
    });
    assert!(slept, "it does not sleep");
    assert!(end.context.next_deadline().is_none_or(|at| at > now));
}

fn is_served(end: &mut End, raw: &mut TcpStream, now: Instant) {
    let start = Instant::now();
    raw.write_all(&frame(UNEXPECTED, 0, b"still here")).unwrap();
    while end.take(arrived).is_none() {
        in_time!(start, "it is not served");
        end.round_at(now);
    }
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
    let mut end = End::open(LOOPBACK, &[]);
    let address: SocketAddr = place(&end.text()).parse().unwrap();
    // Those of others happen to be of this process, and are made before there are no more.
    let mut sockets = (0..30).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
    let mut sockets = sockets.by_ref().collect::<Vec<_>>().into_iter();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let line = 112;
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let mut taken: Vec<_> = files().take_while(|file| file.as_raw_fd() < line - 3).collect();
    let mut now = Instant::now();
    let mut next = || calls(sockets.next().unwrap(), address);

    let mut peers = [next(), next(), next()];
    for peer in &mut peers {
        assert_eq!(told(&mut end, peer, now).0, WELCOME);
    }
    // The others wait, asleep, and are refused later.
    let mut late: Vec<_> = (0..20).map(|_| next()).collect();
    let until = now + PATIENCE;
    while now < until {
        rounds_until_it_sleeps(&mut end, now);
        assert!(!late.iter().any(is_told));
        now += PAUSE;
    }
    assert!(files().take(4).count() == 4, "there are some left for the process itself");
    for raw in &mut late {
        let (kind, words) = told(&mut end, raw, now);
        assert!(kind == REFUSE && words.contains("RLIMIT_NOFILE is 128"), "{words}");
        assert!(read_to_the_end(raw).is_empty());
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
    assert!(!is_told(&last));
    drop(taken);
    assert_eq!(told(&mut end, &mut last, now).0, WELCOME);
    is_served(&mut end, &mut last, now);
}
