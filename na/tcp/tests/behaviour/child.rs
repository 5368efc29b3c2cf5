//! Servers and clients in processes of their own: this test binary once more, with one test.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    sync::mpsc,
};

use hg_na::{Message, Op, QUIET};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::hear;

use crate::end::{End, LOOPBACK, Server, control, ended};

const URL: &str = "HG_TCP_TEST_URL";
/// Set in a client: whom it sends to.
const TARGET: &str = "HG_TCP_TEST_TARGET";
/// Requests of a client's.
pub(crate) const REQUESTS: u64 = 200;
const FILES: &str = "HG_TCP_TEST_FILES";

/// Another process; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
    words: mpsc::Receiver<String>,
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Process {
    /// Starts one; with so many descriptors at most.
    pub(crate) fn start(url: &str, files: Option<u64>) -> Self {
        let mut command = command("child::serves_when_it_is_told_to");
        command.env(URL, url);
        if let Some(files) = files {
            command.env(FILES, files.to_string());
        }
        Self::of(&mut command)
    }

    /// Starts a client, which says hello. Once it is told to by a control message, it sends its [`REQUESTS`] and a control
    /// message, and says so, which [`Process::await_word`] awaits.
    pub(crate) fn client(target: &str) -> Self {
        Self::of(command("child::sends_when_it_is_told_to").env(TARGET, target))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let is_it = |line: String| line.split_once("ADDRESS ").map(|(_, it)| it.to_owned());
        let address = lines.find_map(is_it).expect("it says where it listens");
        // There must be somebody who takes its further words.
        let (say, words) = mpsc::channel();
        std::thread::spawn(move || lines.for_each(|line| drop(say.send(line))));
        Self { child, address, words }
    }

    /// Waits until it has said that it is done.
    pub(crate) fn await_word(&self) {
        while !hear(&self.words).contains("DONE") {}
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of the other process; without being told to, it checks that a server answers at all.
#[test]
fn serves_when_it_is_told_to() {
    let told = std::env::var(URL).ok();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let files = std::env::var(FILES).map_or(hard, |files| files.parse().unwrap());
    if told.is_some() {
        setrlimit(Resource::RLIMIT_NOFILE, files, hard).unwrap();
    }
    let server = Server::start(told.as_deref().unwrap_or(LOOPBACK), &[]);
    if told.is_some() {
        say(&format!("ADDRESS {}", server.address));
        // Until the other process closes its end, or is gone.
        let _ = std::io::stdin().read(&mut [0; 1]);
    } else {
        let mut end = End::open(LOOPBACK, &[]);
        let peer = end.lookup(&server.address);
        assert_eq!(end.call(peer, 1, b"here").unwrap(), b"here");
    }
    drop(server.stop());
}

/// The role of a client; without being told to, it does nothing.
#[test]
fn sends_when_it_is_told_to() {
    let Ok(target) = std::env::var(TARGET) else { return };
    let mut end = End::open(LOOPBACK, &[]);
    let to = end.lookup(&target);
    end.send(QUIET, to, b"hello");
    say(&format!("ADDRESS {}", end.text()));
    end.until(control);
    for number in 0..REQUESTS {
        end.send(number, to, &number.to_le_bytes());
    }
    end.post(REQUESTS, Op::SendControl { to, message: Message::copied(b"the last") });
    (0..=REQUESTS).for_each(|token| drop(end.until(ended(token)).unwrap()));
    say("DONE");
    let _ = std::io::stdin().read(&mut [0; 1]);
}

fn say(words: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{words}").unwrap();
    out.flush().unwrap();
}

impl Process {
    /// Bytes of memory that it has in use.
    pub(crate) fn resident(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }
}
