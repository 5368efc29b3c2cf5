//! The processes of a story, as their parent sees them.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{FLAG, Transport};

/// What a process has said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) process: usize,
    pub(super) incarnation: u32,
    /// `None`: its output has ended.
    pub(super) line: Option<String>,
}

/// Which process is to be started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role<'a> {
    pub(super) program: &'a Path,
    pub(super) transport: Transport,
    pub(super) seed: u64,
    pub(super) process: usize,
    pub(super) incarnation: u32,
    /// The event from which on it makes its calls.
    pub(super) first: usize,
}

/// One incarnation of a process. Killed when dropped.
#[derive(Debug)]
pub(super) struct Player {
    process: std::process::Child,
    commands: ChildStdin,
    pub(super) incarnation: u32,
}

impl Player {
    pub(super) fn start(role: Role<'_>, url: &str, told: &Sender<Said>) -> Result<Self, String> {
        let Role { program, transport, seed, process, incarnation, first } = role;
        let numbers = [seed.to_string(), process.to_string(), first.to_string()];
        let mut child = Command::new(program)
            .args([FLAG, transport.name(), url])
            .args(numbers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("start: {}: {error}", program.display()))?;
        let commands = child.stdin.take().expect("piped above");
        let lines = BufReader::new(child.stdout.take().expect("piped above")).lines();
        let told = told.clone();
        thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok).map(Some).chain([None]);
            // Nobody listens once the story has failed.
            let _ = lines.all(|line| told.send(Said { process, incarnation, line }).is_ok());
        });
        Ok(Self { process: child, commands, incarnation })
    }

    /// Says a line; one that is dead does not hear it.
    pub(super) fn tell(&mut self, line: &str) {
        let _ = writeln!(self.commands, "{line}");
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        // It may have ended.
        let _ = kill(Pid::from_raw(pid), signal);
    }

    /// Waits for its end, which is near.
    pub(super) fn wait(mut self) -> Option<ExitStatus> {
        self.process.wait().ok()
    }

    pub(super) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}
