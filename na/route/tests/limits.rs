//! Limits of the operating system are told by name over routes, too, and cost nobody his process, his processor or his other peers.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs::File,
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Peer, Plugin as _, QUIET};
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id};
use hg_na_tcp::TcpPlugin;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::{Watchdog, alone, in_time};

fn limit(resource: Resource, soft: u64) {
    let (_, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, soft, hard).unwrap();
}

fn open() -> Box<dyn Context> {
    let route = Route::new(SmPlugin, TcpPlugin, node_id, &["uid", "tcp", "sm+tcp"]);
    let (url, options) = ("sm+tcp://127.0.0.1".parse().unwrap(), OpenOptions::listening());
    route.open(&url, &options).unwrap().context(0).unwrap()
}

fn request(from: &mut dyn Context, to: &dyn Context) -> Peer {
    let peer = from.lookup(to.address()).unwrap();
    from.post(QUIET, Op::SendUnexpected { to: peer, message: Message::copied(b"r") }).unwrap();
    peer
}

/// Rounds of both until the request has come, or its sender is told why it cannot.
fn outcome(origin: &mut dyn Context, target: &mut dyn Context) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        origin.progress(Instant::now(), &mut here).unwrap();
        target.progress(Instant::now(), &mut there).unwrap();
        if there.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
            return Ok(());
        }
        for told in here {
            if let Completion::Gone { reason, .. } = told {
                return Err(reason.to_string());
            }
        }
        in_time!(start, "nothing comes and nothing is told");
    }
}

/// A request of a newcomer comes, or is refused by the limit's name; one of somebody who is connected comes; and nobody spins.
fn is_told_by_name(lower: impl FnOnce() -> Vec<File>, name: &str) {
    let _watchdog = Watchdog::start();
    let (mut target, mut known, mut newcomer) = (open(), open(), open());
    let peer = request(&mut *known, &*target);
    outcome(&mut *known, &mut *target).unwrap();
    assert_eq!(known.way(peer), "sm");
    let taken = lower();
    request(&mut *newcomer, &*target);
    if let Err(why) = outcome(&mut *newcomer, &mut *target) {
        assert!(why.contains(name), "{why}");
    }
    request(&mut *known, &*target);
    outcome(&mut *known, &mut *target).unwrap();
    let (start, mut rounds) = (Instant::now(), 0_u32);
    while start.elapsed() < Duration::from_secs(1) {
        for context in [&mut target, &mut newcomer] {
            context.progress(Instant::now(), &mut Vec::new()).unwrap();
            if context.may_sleep() {
                let left = context.next_deadline().map(|at| at.duration_since(Instant::now()));
                let timeout = left.unwrap_or(Duration::MAX).min(Duration::from_millis(100));
                context.waiter().wait(Some(timeout)).unwrap();
            }
        }
        rounds += 1;
    }
    assert!(rounds < 10_000, "{rounds} rounds in a second without anything to do");
    drop(taken);
}

#[test]
fn descriptors_that_are_used_up_are_told_by_name() {
    alone(|| {
        let used_up = || {
            limit(Resource::RLIMIT_NOFILE, 256);
            std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
        };
        is_told_by_name(used_up, "RLIMIT_NOFILE");
    });
}

#[test]
fn address_space_that_is_used_up_is_told_by_name_or_done_without() {
    alone(|| {
        let used_up = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            // A megabyte for the heap: a connection by shared memory takes more.
            limit(Resource::RLIMIT_AS, pages * 4096 + (1 << 20));
            Vec::new()
        };
        is_told_by_name(used_up, "ulimit -v");
    });
}

#[test]
fn a_limit_of_the_size_of_files_is_told_by_name_or_done_without() {
    alone(|| {
        let lower = || {
            limit(Resource::RLIMIT_FSIZE, 4096);
            Vec::new()
        };
        is_told_by_name(lower, "RLIMIT_FSIZE");
    });
}
