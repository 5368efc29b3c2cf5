//! A run that is under way: its ranks are found, asked for their state, and signalled.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Command},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use watchdog::Watchdog;

use crate::{
    RUNNER,
    common::{Outcome, command},
};

pub(crate) struct Running {
    runner: Child,
    /// The process of each rank.
    pids: BTreeMap<u32, Pid>,
    lines: mpsc::Receiver<String>,
    reading: JoinHandle<()>,
    said: String,
    _watchdog: Watchdog,
}

impl Running {
    /// Starts ranks by the program itself, and waits until each has delivered something of the timed run.
    pub(crate) fn local(ranks: u32, arguments: &str) -> Self {
        let size = ranks.to_string();
        let own = ["--local", &size, "--json", "--url", "tcp://127.0.0.1", "--warm-up", "1"];
        let given: Vec<&str> = arguments.split_whitespace().collect();
        Self::start(command(RUNNER, &[&own[..], &given].concat()), ranks).delivering()
    }

    /// Starts a command below which there will be so many ranks, and finds them.
    pub(crate) fn start(mut command: Command, ranks: u32) -> Self {
        let mut runner = command.spawn().unwrap();
        let watchdog = Watchdog::start();
        let (lines, reading) = read(runner.stderr.take().unwrap());
        let Some(pids) = pids_of_ranks(&mut runner, ranks) else {
            let mut out = String::new();
            runner.stdout.take().unwrap().read_to_string(&mut out).unwrap();
            let said: Vec<String> = lines.iter().collect();
            panic!("it ended before all ranks had begun:\n{out}\n{}", said.join("\n"));
        };
        Self { runner, pids, lines, reading, said: String::new(), _watchdog: watchdog }
    }

    /// Waits until every rank has delivered something.
    pub(crate) fn delivering(mut self) -> Self {
        for rank in 0..u32::try_from(self.pids.len()).unwrap() {
            while self.delivered(rank) < 1000 {}
        }
        self
    }

    pub(crate) fn signal(&self, rank: u32, signal: Signal) {
        kill(self.pids[&rank], signal).unwrap();
    }

    /// Of a rank.
    pub(crate) fn pid(&self, rank: u32) -> Pid {
        self.pids[&rank]
    }

    /// To the process that has started the ranks.
    pub(crate) fn signal_runner(&self, signal: Signal) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pids[&0])).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        kill(Pid::from_raw(parent.trim().parse().unwrap()), signal).unwrap();
    }

    /// The next line on standard error.
    pub(crate) fn line(&self) -> String {
        self.lines.recv().expect("the rank lives")
    }

    /// Asks a rank for its state; the lines of it.
    pub(crate) fn state(&mut self, rank: u32) -> Vec<String> {
        self.signal(rank, Signal::SIGUSR1);
        let head = format!("rank {rank} of {}", self.pids.len());
        let mut state = Vec::new();
        loop {
            let line = self.line();
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

    pub(crate) fn end(mut self) -> Outcome {
        let mut out = String::new();
        self.runner.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let code = self.runner.wait().unwrap().code();
        self.reading.join().unwrap();
        let rest: Vec<String> = self.lines.iter().collect();
        self.said.push_str(&rest.join("\n"));
        Outcome { code, out, err: self.said }
    }
}

fn read(from: ChildStderr) -> (mpsc::Receiver<String>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        for line in lines {
            watchdog::relay(&line);
            // Nobody listens once the test has failed.
            let _ = sender.send(line);
        }
    };
    (receiver, thread::spawn(run))
}

/// The ranks below a process, once all are there; `None` when it has ended.
fn pids_of_ranks(top: &mut Child, ranks: u32) -> Option<BTreeMap<u32, Pid>> {
    while top.try_wait().unwrap().is_none() {
        let mut found = BTreeMap::new();
        for pid in watchdog::below(top.id()) {
            if let Some(rank) = rank_of(pid) {
                found.insert(rank, Pid::from_raw(pid.try_into().unwrap()));
            }
        }
        if found.len() == ranks as usize && found.values().all(|pid| holds_signal(*pid)) {
            return Some(found);
        }
        thread::yield_now();
    }
    None
}

/// Which rank a process is, whatever launcher says so; not a shell around one.
fn rank_of(pid: u32) -> Option<u32> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if !program.ends_with("shuffle-runner") {
        return None;
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&environment);
    let names = ["HG_JOB_RANK=", "PMI_RANK=", "OMPI_COMM_WORLD_RANK="];
    let said = text.split('\0').find_map(|it| names.iter().find_map(|name| it.strip_prefix(name)));
    said?.parse().ok()
}

/// Whether `SIGUSR1` does not end the process any more.
fn holds_signal(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (Signal::SIGUSR1 as u64 - 1)) != 0
}
