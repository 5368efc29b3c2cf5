//! Ends the process when a test hangs, and says why it may: the stacks of all its processes, and what its engines are doing.
//! Its children end with it.
//!
//! A file that stands alone, so that the tests of other packages take it in by `#[path]`. Whoever does has a function
//! `dump_engines` beside it, which says what the engines of this process are doing; without engines it says nothing.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    process::Command,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use super::dump_engines;

/// How long a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// How long the stacks of one process may take, in seconds.
const STACKS: &str = "30";

/// Watches over a test until it is dropped.
pub(crate) struct Watchdog(
    #[expect(dead_code, reason = "dropping it is what it is for")] Sender<()>,
);

impl Watchdog {
    /// Aborts the process unless it is dropped in time.
    pub(crate) fn start() -> Self {
        Self::within(LIMIT)
    }

    /// The same after another time.
    pub(crate) fn within(limit: Duration) -> Self {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                say(&format!("{test} takes longer than {limit:?}: aborting\n"));
                say(&report());
                std::process::abort();
            }
        });
        Self(sender)
    }
}

fn say(text: &str) {
    // There may be nobody to tell.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// What this process and those that it has started are doing.
pub(crate) fn report() -> String {
    let mut text = format!("engines of process {}:\n{}", std::process::id(), dump_engines());
    for process in family() {
        // Writing to a string does not fail.
        let _ = write!(text, "stacks of process {process}:\n{}\n", stacks(process));
    }
    text
}

/// This process, and its descendants.
fn family() -> Vec<u32> {
    let numbers = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let all: Vec<u32> =
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(numbers).collect();
    let mut family = vec![std::process::id()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(all.iter().copied().filter(|process| parent_of(*process) == Some(parent)));
        at += 1;
    }
    family
}

fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn stacks(process: u32) -> String {
    let mut gdb = Command::new("timeout");
    gdb.args([
        "--signal=KILL",
        STACKS,
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
    ]);
    gdb.args(["-p", &process.to_string(), "-ex", "thread apply all bt"]);
    let Ok(output) = gdb.output() else { return "there is no `timeout`".to_owned() };
    let stacks = String::from_utf8_lossy(&output.stdout);
    if stacks.contains("Thread ") {
        return stacks.into_owned();
    }
    let why = String::from_utf8_lossy(&output.stderr);
    format!("none; gdb has to be installed, and allowed to look: {}", why.trim())
}
