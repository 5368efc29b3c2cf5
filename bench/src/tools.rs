//! Programs that count for this one: it runs itself under them.

pub(crate) mod callgrind;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Context, Error};

/// Calls of each system call in a run of this program and the processes that it starts.
pub(crate) fn system_calls(arguments: &[&str]) -> Result<Vec<(String, u64)>, Error> {
    counted(&[], arguments)
}

/// The same for some system calls, separated by commas: no other one is delayed.
pub(crate) fn some_system_calls(
    kinds: &str,
    arguments: &[&str],
) -> Result<Vec<(String, u64)>, Error> {
    counted(&["--seccomp-bpf", "-e", &format!("trace={kinds}")], arguments)
}

fn counted(filter: &[&str], arguments: &[&str]) -> Result<Vec<(String, u64)>, Error> {
    let out = Scratch::new("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(out.path()).args(filter);
    run_under("strace", command, &this()?, arguments)?;
    let text = fs::read_to_string(out.path()).context("read strace's file")?;
    let counts: Vec<_> = text.lines().filter_map(strace_line).collect();
    if counts.is_empty() {
        return Err(Error::NoCount { tool: "strace", said: text });
    }
    Ok(counts)
}

/// `% time, seconds, usecs/call, calls, errors or nothing, name`.
fn strace_line(line: &str) -> Option<(String, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, calls, .., name] = *words else { return None };
    if name == "total" || words.len() < 5 {
        return None;
    }
    Some((name.to_owned(), calls.parse().ok()?))
}

/// This program.
pub(crate) fn this() -> Result<PathBuf, Error> {
    std::env::current_exe().context("readlink /proc/self/exe")
}

/// Adds a program and its arguments to the tool's command line.
fn run_under(
    tool: &'static str,
    mut command: Command,
    program: &Path,
    arguments: &[&str],
) -> Result<(), Error> {
    command.arg(program).args(arguments);
    output(tool, command).map(drop)
}

fn output(tool: &'static str, mut command: Command) -> Result<Output, Error> {
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::NoTool { tool }),
        output => output.context("spawn")?,
    };
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(LINES_SHOWN).collect();
    let said = last.into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(Error::NoCount { tool, said })
}

/// A file of a tool's, removed at the end.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A name that nobody else has.
    pub(crate) fn new(what: &str) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number has to be different.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hg-perf-{}-{number}.{what}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A tool that failed has made none.
        let _ = fs::remove_file(&self.0);
    }
}

/// Lines of a tool's complaint that are passed on.
const LINES_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_strace_with_and_without_errors_are_read_and_others_are_not() {
        let line = |text| strace_line(text);
        let read = Some(("epoll_wait".to_owned(), 4006));
        assert_eq!(line(" 51.85    0.080671          20      4006           epoll_wait"), read);
        assert_eq!(line(" 51.85    0.080671          20      4006        12 epoll_wait"), read);
        assert_eq!(line("100.00    0.155573          19      8124        14 total"), None);
        assert_eq!(line("% time     seconds  usecs/call     calls    errors syscall"), None);
        assert_eq!(
            line("------ ----------- ----------- --------- --------- ----------------"),
            None
        );
    }

    #[test]
    fn a_tool_that_is_not_installed_is_named() {
        let error = output("no-such-tool", Command::new("/nowhere/no-such-tool")).unwrap_err();
        assert!(error.to_string().contains("`no-such-tool` is needed"), "{error}");
    }
}
