//! Daemons and applications as processes, and what they are asked.

use std::{
    cell::Cell,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use hg::{Engine, Error};
use hg_visor::{Question, VisorPlugin, ask};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// What a child is, and through which daemon.
const ROLE: &str = "VISOR_ROLE";

#[hg::rpc]
pub(crate) fn echo(number: u64) -> u64 {
    number
}

#[hg::rpc]
pub(crate) fn length(bytes: Vec<u8>) -> (u64, u64) {
    (bytes.len() as u64, bytes.iter().map(|byte| u64::from(*byte)).sum())
}

#[hg::rpc]
pub(crate) fn whoami(request: &hg::Request) -> (Option<u32>, Option<u32>) {
    (request.caller().uid, request.caller().pid)
}

/// Never answers.
#[hg::rpc(blocking)]
pub(crate) fn hang() {
    loop {
        std::thread::park();
    }
}

/// Killed and reaped when it is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(command: &mut Command, input: &str) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        if input.is_empty() {
            child.stdin = Some(stdin);
        }
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// With this as its input.
    pub(crate) fn start_with(command: &mut Command, input: Stdio) -> Self {
        let mut child = command.stdin(input).stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// An application of this test binary.
    pub(crate) fn application(role: &str, daemon: &str, target: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "common::application", "--nocapture", "--test-threads", "1"]);
        command.env(ROLE, format!("{role} {daemon} {target}"));
        Self::start(&mut command, "")
    }

    /// The rest of the next line that begins so.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended before it said {word}");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Whether its first thread waits for something: one that polls does not.
    pub(crate) fn is_asleep(&self) -> bool {
        // The second word, in brackets, may have spaces in it.
        self.file("stat").rsplit_once(") ").unwrap().1.starts_with('S')
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }

    fn entries(&self, of: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{of}", self.child.id())).unwrap().count()
    }

    /// Memory that it has alone, and its part of what it shares with others, without files.
    pub(crate) fn memory_kib(&self) -> u64 {
        let text = self.file("smaps_rollup");
        let part = |line: &str| -> Option<u64> {
            let rest =
                line.strip_prefix("Pss_Anon:").or_else(|| line.strip_prefix("Pss_Shmem:"))?;
            rest.trim().trim_end_matches("kB").trim().parse().ok()
        };
        text.lines().filter_map(part).sum()
    }

    /// SIGKILL, and waits until the kernel says that it is dead.
    pub(crate) fn kill(&mut self) {
        let _dead_already = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A number of the test that runs: tests of one process may run at a time, and a daemon that comes back has the same name.
fn test() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! { static OWN: u32 = NEXT.fetch_add(1, Ordering::Relaxed); }
    OWN.with(|own| *own)
}

/// What the daemons of a test own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Tcp,
    /// libfabric's.
    Ofi,
    /// The same, polled in steps.
    Polled,
    /// The first card for daemons called `near`, the second for those called `far`: `HG_VERBS_DEVICES`.
    #[cfg(feature = "verbs")]
    Verbs,
}

thread_local! { static NETWORK: Cell<Network> = const { Cell::new(Network::Tcp) }; }

impl Network {
    /// Of all daemons that this thread starts from now on.
    pub(crate) fn choose(self) {
        NETWORK.set(self);
    }

    #[cfg_attr(not(feature = "verbs"), expect(unused_variables, reason = "cards alone differ"))]
    pub(crate) fn url(self, name: &str, port: u16) -> String {
        match self {
            Self::Tcp => format!("tcp://127.0.0.1:{port}"),
            Self::Ofi | Self::Polled => format!("ofi+tcp://127.0.0.1:{port}"),
            #[cfg(feature = "verbs")]
            Self::Verbs => {
                let cards = std::env::var("HG_VERBS_DEVICES").expect("two cards are named");
                let (first, second) = cards.split_once(',').expect("two cards are named");
                let card = if name == "far" { second } else { first };
                format!("verbs://{card}@0.0.0.0:{port}")
            }
        }
    }

    fn settings(self) -> &'static str {
        if self == Self::Polled { "[network-settings]\nsleep = \"off\"\n" } else { "" }
    }
}

/// The program, where it is not beside this one: in a virtual machine.
pub(crate) fn program() -> String {
    std::env::var("VISOR_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_hg-visor").to_owned())
}

/// A process `hg-visor`.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) name: String,
    /// In the network.
    pub(crate) address: String,
}

impl Daemon {
    pub(crate) fn start(name: &str, port: u16) -> Self {
        Self::with(name, port, "")
    }

    /// With more lines in its configuration.
    pub(crate) fn with(name: &str, port: u16, lines: &str) -> Self {
        let network = NETWORK.get();
        let (url, settings) = (network.url(name, port), network.settings());
        let name = format!("visor-{}-{}-{name}", std::process::id(), test());
        let mut command = Command::new(program());
        command.args(["serve", "/dev/stdin"]);
        let text = format!("name = \"{name}\"\nnetwork = \"{url}\"\n{lines}{settings}");
        let mut process = Process::start(&mut command, &text);
        let address = process.hear("");
        let scheme = url.split("//").next().unwrap();
        assert!(address.starts_with(scheme) && !address.ends_with(":0"), "{address}");
        Self { process, name, address }
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let answer = ask(&self.name, Question::Status, PATIENCE).unwrap();
        serde_json::from_str(&answer.text).unwrap()
    }

    /// Asks until it is so.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&serde_json::Value) -> bool) {
        watchdog::until(what, || holds(&self.status()));
    }

    /// Descriptors that it has.
    pub(crate) fn descriptors(&self) -> usize {
        self.process.entries("fd")
    }

    pub(crate) fn threads(&self) -> usize {
        self.process.entries("task")
    }

    /// Mappings of shared memory.
    pub(crate) fn mappings(&self) -> usize {
        self.process.file("maps").lines().filter(|line| line.contains("memfd:")).count()
    }

    /// Pages that the kernel had to find for it, so far.
    pub(crate) fn page_faults(&self) -> u64 {
        let text = self.process.file("stat");
        // The tenth word; the second one, in brackets, may have spaces in it.
        let behind_name = text.rsplit_once(") ").unwrap().1;
        behind_name.split(' ').nth(7).unwrap().parse().unwrap()
    }

    /// As of [`Process::memory_kib`].
    pub(crate) fn memory_kib(&self) -> u64 {
        self.process.memory_kib()
    }
}

/// An engine that calls, through a daemon.
pub(crate) fn engine(daemon: &Daemon) -> Engine {
    through(&daemon.name, "visor://", false).unwrap()
}

/// One that is called.
pub(crate) fn listening(daemon: &Daemon, url: &str) -> Engine {
    through(&daemon.name, url, true).unwrap()
}

pub(crate) fn through(daemon: &str, url: &str, listen: bool) -> Result<Engine, Error> {
    // A machine that is busy, or paused, is no daemon that does not answer.
    let patience = PATIENCE.as_millis().to_string();
    let builder = hg::builder().plugin(VisorPlugin::through(daemon)).listen(listen);
    let builder = builder.setting("connect-timeout-ms", &patience);
    let builder = builder.register(echo).unwrap().register(length).unwrap();
    builder.register(whoami).unwrap().register(hang).unwrap().open(url)
}

/// What each process does that [`Process::application`] starts.
#[test]
fn application() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [role, daemon, target] = words[..] else { panic!("{role}") };
    match role {
        "serve" => {
            let engine = through(daemon, target, true).unwrap();
            println!("\naddress {}", engine.address());
            let _until_the_parent_ends = std::io::stdin().read(&mut [0]);
        }
        "load" => {
            let engine = through(daemon, "visor://", true).unwrap();
            let peer = engine.lookup(target).unwrap();
            let mut number = 0;
            loop {
                let calls: Vec<_> =
                    (number..number + 8).map(|it| engine.call(echo, &peer, (it,))).collect();
                let large = engine.call(length, &peer, (vec![1; 100_000],));
                assert_eq!(large.wait().unwrap(), (100_000, 100_000));
                for (call, number) in calls.into_iter().zip(number..) {
                    assert_eq!(call.wait().unwrap(), number);
                }
                if number == 0 {
                    println!("\nbusy");
                }
                number += 8;
            }
        }
        "user" => crate::users::other_user(daemon, target),
        "floods" => crate::shares::other_user(daemon, target),
        "floods-too" => crate::shares::other_process(daemon, target),
        "costs" => crate::costs::applications(daemon, target),
        role if role.starts_with("scribble") => {
            crate::scribble::liar(&role["scribble".len()..], daemon, target);
        }
        other => crate::sockets::child(other, daemon, target),
    }
}
