//! Servers in processes of their own: this test binary once more, with one test.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::end::{End, LOOPBACK, Server};

const URL: &str = "HG_TCP_TEST_URL";
const FILES: &str = "HG_TCP_TEST_FILES";

/// A server process; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
}

impl Process {
    /// Starts one; with so many descriptors at most.
    pub(crate) fn start(url: &str, files: Option<u64>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::serves_when_it_is_told_to", "--nocapture"]);
        command.env(URL, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(files) = files {
            command.env(FILES, files.to_string());
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let is_it = |line: String| line.split_once("ADDRESS ").map(|(_, it)| it.to_owned());
        let address = lines.find_map(is_it).expect("it says where it listens");
        // Its further words are nobody's business, but there must be somebody who takes them.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
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
        say(&server.address);
        // Until the other process closes its end, or is gone.
        let _ = std::io::stdin().read(&mut [0; 1]);
    } else {
        let mut end = End::open(LOOPBACK, &[]);
        let peer = end.lookup(&server.address);
        assert_eq!(end.call(peer, 1, b"here").unwrap(), b"here");
    }
    drop(server.stop());
}

fn say(address: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ADDRESS {address}").unwrap();
    out.flush().unwrap();
}

impl Process {
    /// Bytes of memory that it has in use.
    pub(crate) fn resident(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }
}
