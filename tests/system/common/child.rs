//! Processes: this test binary again, in a role.
//!
//! A child is started with its role and settings in the environment. It answers one line for each line
//! that it is told, and ends when its parent does. Lines that count begin with [`MARK`].

use std::{
    env,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Watchdog, process};
use crate::roles;

const ROLE: &str = "HG_TEST_ROLE";
const ARGUMENTS: &str = "HG_TEST_ARGUMENTS";
const PARENT: &str = "HG_TEST_PARENT";
const ENTRY: &str = "common::child::children_answer_and_end_when_they_are_told_or_killed";
const MARK: &str = "@ ";

/// A process in a role. Killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    commands: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts a role with its settings: words of the form `name=value`.
    pub(crate) fn start(role: &str, arguments: &str) -> Self {
        Self::start_with(role, arguments, &[])
    }

    /// The same, with variables in its environment.
    pub(crate) fn start_with(role: &str, arguments: &str, environment: &[(&str, &str)]) -> Self {
        let program = env::current_exe().expect("this program has a path");
        Self::start_by(Command::new(program), role, arguments, environment)
    }

    /// The same by a command that ends in this program, and becomes it.
    pub(crate) fn start_by(
        mut command: Command,
        role: &str,
        arguments: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut process = command
            .args(["--exact", ENTRY, "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments)
            .env(PARENT, std::process::id().to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("piped above")).lines();
        Self { process, commands, answers }
    }

    /// Starts a target; gives its address, too.
    pub(crate) fn target(arguments: &str) -> (Self, String) {
        let mut child = Self::start("target", arguments);
        let address = child.hear();
        (child, address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Tells a command and gives the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }

    /// Tells a command.
    pub(crate) fn tell(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("open until it is ended");
        writeln!(commands, "{command}").expect("the child listens");
    }

    /// Waits for a line.
    pub(crate) fn hear(&mut self) -> String {
        self.hear_or_end().expect("the child says another word")
    }

    /// Waits for a line, or `None` at its end.
    pub(crate) fn hear_or_end(&mut self) -> Option<String> {
        loop {
            let line = self.answers.next()?.ok()?;
            // The test harness may have begun a line of its own before.
            if let Some((_, line)) = line.split_once(MARK) {
                return Some(line.to_owned());
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a process id"));
        kill(pid, signal).expect("the child was not waited for");
    }

    /// SIGSTOP, and waits until it takes effect.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        super::until(|| process::is_stopped(self.pid()));
    }

    /// SIGKILL, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("the child was not waited for");
        self.process.wait().expect("the child can be waited for");
    }

    /// Closes its standard input, on which every role ends, and waits for that.
    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.commands.take());
        while self.hear_or_end().is_some() {}
        self.process.wait().expect("the child can be waited for")
    }

    /// Closes its standard input, on which every role ends.
    #[cfg(feature = "fail-points")]
    pub(crate) fn close_input(&mut self) {
        drop(self.commands.take());
    }

    /// Waits until it dies; by which signal?
    #[cfg(feature = "fail-points")]
    pub(crate) fn died_of(&mut self) -> Option<i32> {
        let status = self.process.wait().expect("the child can be waited for");
        std::os::unix::process::ExitStatusExt::signal(&status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have been waited for already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: says a line to the parent.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a parent nobody is told, and the process ends soon.
    let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
}

/// In a child: the next command, `None` at the end.
pub(crate) fn next_command() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(len) if len > 0 => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// In a child: dies with the parent, whatever else happens. Changing the user undoes it.
pub(crate) fn die_with_parent() {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("a signal of Linux");
    let parent = env::var(PARENT).expect("set by `start`");
    if nix::unistd::getppid().to_string() != parent {
        std::process::exit(3);
    }
}

/// The entry of every child, and a test of its own elsewhere.
#[test]
fn children_answer_and_end_when_they_are_told_or_killed() {
    if let Ok(role) = env::var(ROLE) {
        die_with_parent();
        watchdog::answer();
        roles::play(&role, &env::var(ARGUMENTS).unwrap_or_default());
        std::process::exit(0);
    }
    let _watchdog = Watchdog::start();
    let mut told = Child::start("parrot", "");
    assert_eq!(told.ask("hello"), "hello");
    assert!(process::is_alive(told.pid()) && process::fds(told.pid()) > 2);
    assert_eq!(told.end().code(), Some(0));
    let mut killed = Child::start("parrot", "");
    assert_eq!(killed.ask("hello again"), "hello again");
    killed.kill();
    assert!(!process::is_alive(killed.pid()));
}
