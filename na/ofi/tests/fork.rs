//! A process that forks with an open context: the child's copy is inert, and nobody takes the child for its parent.

#![expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    env,
    io::{BufRead as _, BufReader},
    os::fd::AsFd as _,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use hg_na::{Address, Completion, Context, Domain, GoneReason, Op, OpenOptions, Peer, Plugin as _};
use hg_na_conformance::is_inert;
use hg_na_ofi::OfiPlugin;
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::{ForkResult, Pid, fork},
};
use watchdog::in_time;

/// The address that a process of its own greets.
const TARGET: &str = "HG_TEST_TARGET";
/// What begins its lines; the rest of its output is the test harness's.
const MARK: &str = "@ ";
const URLS: [&str; 2] = ["ofi+tcp://127.0.0.1", "ofi+shm://"];

fn open(url: &str) -> Arc<dyn Domain> {
    OfiPlugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap()
}

/// A context, and what it has told but nobody has asked for.
struct Told(Box<dyn Context>, Vec<Completion>);

impl Told {
    fn until(&mut self, mut holds: impl FnMut(&Completion) -> bool) {
        let start = Instant::now();
        loop {
            if let Some(place) = self.1.iter().position(&mut holds) {
                drop(self.1.drain(..=place));
                return;
            }
            in_time!(start, "it did not happen: {:?}", self.1);
            self.0.progress(Instant::now(), &mut self.1).unwrap();
        }
    }
}

fn hello(to: Peer) -> Op {
    Op::SendUnexpected { to, message: b"hello".to_vec().into() }
}

/// Greets its target, forks, greets it again, and waits to be killed; its child says what its copies answer, and lives on
/// until its input ends.
#[test]
#[expect(clippy::print_stdout, reason = "what it says to its parent")]
fn a_process_of_its_own() {
    let Ok(target) = env::var(TARGET) else { return };
    let url = URLS.iter().find(|url| url.split(':').next() == target.split(':').next()).unwrap();
    let domain = open(url);
    let mut context = Told(domain.context(0).unwrap(), Vec::new());
    let peer = context.0.lookup(&Address::new(&target).unwrap()).unwrap();
    let dropped = domain.context(1).unwrap();
    let sent = |it: &Completion| matches!(it, Completion::Done(done) if done.result.is_ok());
    context.0.post(1, hello(peer)).unwrap();
    context.until(sent);
    // SAFETY:
    // - nobody else runs in this process but the test harness, which holds no lock of ours.
    let forked = unsafe { fork() }.unwrap();
    let input = std::io::stdin();
    let mut end = [PollFd::new(input.as_fd(), PollFlags::empty())];
    if matches!(forked, ForkResult::Child) {
        println!("{MARK}{} {}", std::process::id(), is_inert(&domain, context.0, dropped, peer));
        while poll(&mut end, PollTimeout::NONE).is_err() {}
        // SAFETY:
        // - ends the child at once, without running anything of the parent's.
        unsafe { libc::_exit(0) }
    }
    context.0.post(2, hello(peer)).unwrap();
    context.until(sent);
    while poll(&mut end, PollTimeout::NONE).is_err() {}
}

#[test]
fn a_forked_childs_copies_are_inert_and_its_parents_death_is_seen_while_it_lives() {
    for url in URLS {
        let domain = open(url);
        let mut context = Told(domain.context(0).unwrap(), Vec::new());
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_process_of_its_own", "--nocapture", "--test-threads", "1"])
            .env(TARGET, context.0.address().as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Before the fork, and after it.
        for _ in 0..2 {
            context.until(|it| matches!(it, Completion::Unexpected { .. }));
        }
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let said = lines.find_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned())).unwrap();
        let (child, is_inert) = said.split_once(' ').unwrap();
        assert_eq!(is_inert, "true", "{url}: the child's copies are not inert");
        // Its input stays open: the child lives on.
        let input = process.stdin.take();
        process.kill().unwrap();
        process.wait().unwrap();
        context.until(|it| matches!(it, Completion::Gone { reason: GoneReason::Exited, .. }));
        let child = Pid::from_raw(child.parse().unwrap());
        assert!(kill(child, None::<Signal>).is_ok(), "{url}: the child has ended before");
        drop(input);
    }
}
