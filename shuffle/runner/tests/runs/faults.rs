//! What is left when a rank dies or stands still in the middle of its work, and what a rank says of its state.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStderr, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::common::{Outcome, RUNNER, command};

/// A run that is under way.
struct Running {
    runner: Child,
    /// The process of each rank.
    pids: BTreeMap<u32, Pid>,
    lines: mpsc::Receiver<String>,
    reading: JoinHandle<()>,
    said: String,
}

impl Running {
    /// Starts it and waits until every rank has delivered something of the timed run.
    fn start(ranks: u32, arguments: &str) -> Self {
        let size = ranks.to_string();
        let own = ["--local", &size, "--json", "--url", "tcp://127.0.0.1", "--warm-up", "1"];
        let given: Vec<&str> = arguments.split_whitespace().collect();
        let mut command = command(RUNNER, &[&own[..], &given].concat());
        let mut runner = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, reading) = read(runner.stderr.take().unwrap());
        let pids = pids_of_ranks(runner.id(), ranks);
        let mut running = Self { runner, pids, lines, reading, said: String::new() };
        for rank in 0..ranks {
            while running.delivered(rank) < 1000 {}
        }
        running
    }

    fn signal(&self, rank: u32, signal: Signal) {
        kill(self.pids[&rank], signal).unwrap();
    }

    /// Asks a rank for its state; the lines of it.
    fn state(&mut self, rank: u32) -> Vec<String> {
        self.signal(rank, Signal::SIGUSR1);
        let head = format!("rank {rank} of {}", self.pids.len());
        let mut state = Vec::new();
        loop {
            let line = self.lines.recv().expect("the rank lives");
            let is_its = if state.is_empty() { line.contains(&head) } else { true };
            if is_its {
                state.push(line);
            }
            if state.last().is_some_and(|line| line.starts_with("delivery: ")) {
                return state;
            }
        }
    }

    fn delivered(&mut self, rank: u32) -> u64 {
        let state = self.state(rank);
        let line = state.last().unwrap();
        line.split_whitespace().nth(1).unwrap().parse().expect(line)
    }

    fn end(mut self) -> Outcome {
        let mut out = String::new();
        std::io::Read::read_to_string(&mut self.runner.stdout.take().unwrap(), &mut out).unwrap();
        let code = self.runner.wait().unwrap().code();
        self.reading.join().unwrap();
        let rest: Vec<String> = self.lines.iter().collect();
        self.said.push_str(&rest.join("\n"));
        assert_ne!(code, Some(124), "still ran after a minute:\n{out}{}", self.said);
        Outcome { code, out, err: self.said }
    }
}

fn read(from: ChildStderr) -> (mpsc::Receiver<String>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        BufReader::new(from).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
    };
    (receiver, thread::spawn(run))
}

/// The ranks below a process, once all are there.
fn pids_of_ranks(top: u32, ranks: u32) -> BTreeMap<u32, Pid> {
    loop {
        let mut found = BTreeMap::new();
        let mut below = vec![top];
        while let Some(pid) = below.pop() {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&environment);
            let rank = text.split('\0').find_map(|variable| variable.strip_prefix("HG_JOB_RANK="));
            if let Some(rank) = rank {
                found.insert(rank.parse().unwrap(), Pid::from_raw(pid.try_into().unwrap()));
            }
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
            for task in tasks.flatten() {
                let children = std::fs::read_to_string(task.path().join("children"));
                let children = children.unwrap_or_default();
                below.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
            }
        }
        if found.len() == ranks as usize && found.values().all(|pid| holds_signal(*pid)) {
            return found;
        }
        thread::yield_now();
    }
}

/// Whether `SIGUSR1` does not end the process any more.
fn holds_signal(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (Signal::SIGUSR1 as u64 - 1)) != 0
}

/// What each survivor said: who failed, and that nothing arrived twice, changed or out of its turn.
fn assert_accounts(outcome: &Outcome, dead: u32, ranks: u32) {
    // A rank that exits counts before the one that was killed.
    assert_eq!(outcome.code, Some(1), "{}", outcome.all());
    let others = ranks as usize - 1;
    let mut accounts: BTreeMap<u64, Value> = BTreeMap::new();
    for line in outcome.lines() {
        accounts.insert(line["rank"].as_u64().expect("a rank's line"), line);
    }
    assert_eq!(accounts.len(), others, "{}", outcome.all());
    for account in accounts.values() {
        assert_eq!(account["failed_rank"], dead, "{account}");
        assert!(account["hop"].as_str().is_some_and(|hop| !hop.is_empty()), "{account}");
        let wrong = ["lost", "repeated", "corrupted"].map(|name| account[name].as_u64());
        assert_eq!(wrong, [Some(0); 3], "{account}");
        // Everything that this rank sent to the dead one is in doubt.
        let to_dead = account["sent"][dead as usize].as_u64().unwrap();
        assert!(account["in_doubt"].as_u64().unwrap() + 2 >= to_dead, "{account}");
    }
    for (from, sent) in &accounts {
        for (to, received) in &accounts {
            let sent = sent["sent"][usize::try_from(*to).unwrap()].as_u64();
            let received = received["received"][usize::try_from(*from).unwrap()].as_u64();
            assert!(received <= sent, "from {from} to {to}: {received:?} of {sent:?}");
        }
    }
    let sentence = format!("rank {dead} failed (");
    assert_eq!(outcome.err.matches(&sentence).count(), others, "{}", outcome.all());
    assert_eq!(outcome.err.matches("are in doubt").count(), others, "{}", outcome.all());
}

#[test]
fn a_rank_killed_under_load_is_named_by_all_others_with_what_is_in_doubt() {
    // One node; the sender's representative; the receiver's; batched and not.
    let cases = [
        (3, "--nodes 1x3", 1),
        (4, "--nodes 2x2", 0),
        (4, "--nodes 2x2 --unbatched", 3),
        (3, "--nodes 1+1+1", 2),
    ];
    for (ranks, arguments, dead) in cases {
        let running = Running::start(ranks, &format!("{arguments} --duration 600"));
        running.signal(dead, Signal::SIGKILL);
        assert_accounts(&running.end(), dead, ranks);
    }
}

#[test]
fn a_rank_that_stands_still_for_a_while_loses_nothing() {
    // The representative of the other rank of its node.
    let mut running = Running::start(3, "--nodes 2+1 --duration 7");
    running.signal(0, Signal::SIGSTOP);
    let mut wait = std::process::Command::new("sleep").arg("5").spawn().unwrap();
    running.state(1);
    wait.wait().unwrap();
    running.signal(0, Signal::SIGCONT);
    running.end().total(3);
}

#[test]
fn a_rank_whose_deliveries_are_stuck_says_its_state() {
    // Each delivery takes a minute, so that every queue is full; the state is asked for nevertheless.
    let stuck = "--delay 60000000 --warm-up 100000 --deliverq-max 1 --skew single --target 1";
    let own: Vec<&str> = ["--local", "2"].into_iter().chain(stuck.split_whitespace()).collect();
    let mut command = command(RUNNER, &own);
    let mut runner = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (lines, reading) = read(runner.stderr.take().unwrap());
    let pids = pids_of_ranks(runner.id(), 2);
    let mut running = Running { runner, pids, lines, reading, said: String::new() };
    loop {
        let state = running.state(0);
        let queue = running.lines.recv().unwrap();
        assert!(state[0].starts_with("shuffle `shuffle-runner`, rank 0 of 2"), "{state:?}");
        assert!(queue.starts_with("Origin to rank 1: "), "{queue}");
        if queue.contains(", 8 under way,") && queue.contains(", 1 threads wait;") {
            break;
        }
    }
    for rank in 0..2 {
        running.signal(rank, Signal::SIGKILL);
    }
    assert_eq!(running.end().code, Some(137));
}
