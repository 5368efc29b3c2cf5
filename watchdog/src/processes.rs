//! Processes below this one, what their threads do, and how they are asked for the states of their engines: by
//! `SIGUSR1` to the thread of this name, which [`answer`] starts, and `shuffle-runner` of its own accord. The signal goes
//! to that thread only, so that nobody's system call is interrupted, and nobody who does not wait for it is ended.

use std::{
    collections::VecDeque, fmt::Write as _, fs, path::PathBuf, process::Command, time::Duration,
};

use nix::{
    libc,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The thread that answers.
const ANSWERS: &str = "state dump";
/// How long the stacks of all processes may take: nextest ends the test after three minutes.
pub(crate) const STACKS: Duration = Duration::from_secs(40);

/// All processes below one, those next to it first.
#[must_use]
pub fn below(process: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut parents = VecDeque::from([process]);
    while let Some(parent) = parents.pop_front() {
        for task in tasks(parent) {
            let children = fs::read_to_string(task.join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|it| it.parse::<u32>().ok());
            parents.extend(children.clone());
            all.extend(children);
        }
    }
    all
}

fn tasks(process: u32) -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path())
}

fn read(task: &std::path::Path, file: &str) -> String {
    fs::read_to_string(task.join(file)).unwrap_or_default().trim_end().to_owned()
}

/// Its number and what it was started as.
pub(crate) fn name(process: u32) -> String {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    format!("process {process} ({})", words.trim_end())
}

/// In a process that a test starts: tells the states of its engines, whenever it is asked.
///
/// # Panics
/// There is no thread to be had.
#[cfg(feature = "engines")]
pub fn answer() {
    use nix::sys::signal::SigSet;
    let signals = SigSet::from_iter([Signal::SIGUSR1]);
    // The thread inherits it, so that it is never without.
    let before = signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let run = move || {
        while signals.wait().is_ok() {
            super::say(&engines());
        }
    };
    let thread = std::thread::Builder::new().name(ANSWERS.to_owned()).spawn(run);
    before.and_then(|before| before.thread_set_mask()).expect("a signal of Linux");
    thread.expect("a thread can be started");
}

/// The engines of this process.
#[cfg(feature = "engines")]
pub(crate) fn engines() -> String {
    format!("engines of process {}:\n{}", std::process::id(), hg_engine::dump_engines())
}

/// Asks every process below this one that answers.
pub(crate) fn ask_all() {
    for process in below(std::process::id()) {
        let answers = tasks(process).find(|task| read(task, "comm") == ANSWERS);
        let thread = answers.and_then(|task| task.file_name()?.to_str()?.parse::<i64>().ok());
        if let Some(thread) = thread {
            ask(i64::from(process), thread);
        }
    }
}

/// Ends every process below this one.
pub(crate) fn kill_all() {
    for process in below(std::process::id()).into_iter().filter_map(|it| i32::try_from(it).ok()) {
        // It may have ended.
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
}

#[expect(unsafe_code, reason = "a signal for one thread of another process has no safe wrapper")]
fn ask(process: i64, thread: i64) {
    let signal = i64::from(Signal::SIGUSR1 as i32);
    // SAFETY: numbers only; the kernel refuses those of processes and threads that do not exist.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}

/// The stacks of all threads of a process: gdb's where it comes to them in time, else what the kernel knows.
pub(crate) fn stacks(process: u32, within: Duration) -> String {
    let why = match with_gdb(process, within) {
        Ok(stacks) => return stacks,
        Err(why) => why,
    };
    let mut text = format!("gdb has to be installed, and allowed to look: {why}\n");
    for task in tasks(process) {
        let [comm, wchan, syscall, stack] =
            ["comm", "wchan", "syscall", "stack"].map(|file| read(&task, file));
        let thread = task.file_name().unwrap_or_default().display();
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "Thread {thread} {comm}: in {wchan}, system call {syscall}\n{stack}");
    }
    text
}

fn with_gdb(process: u32, within: Duration) -> Result<String, String> {
    if within.is_zero() {
        return Err("no time is left".to_owned());
    }
    let mut gdb = Command::new("timeout");
    gdb.args(["--signal=KILL", &within.as_secs_f64().to_string(), "gdb", "-nx", "-batch"]);
    gdb.args(["-iex", "set debuginfod enabled off", "-p", &process.to_string()]);
    let output = gdb.args(["-ex", "thread apply all bt"]).output();
    let output = output.map_err(|error| format!("no `timeout`: {error}"))?;
    let stacks = String::from_utf8_lossy(&output.stdout);
    if stacks.contains("Thread ") {
        return Ok(stacks.into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
