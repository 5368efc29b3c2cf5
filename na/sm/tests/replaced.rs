//! A process that goes on as another program, or without its first thread.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Instant,
};

use hg_na::{
    Address, Begun, Completion, Context, Descriptor, Direction, Domain, Error, GoneReason, Memory,
    Op, OpenOptions, Peer, Plugin as _, Region, Rights, Transit,
};
use hg_na_sm::SmPlugin;
use nix::{
    libc,
    sys::signal::{Signal, kill},
    unistd::{ForkResult, Pid, fork, pause},
};
use watchdog::{LIMIT, Watchdog, in_time};

const ROLE: &str = "HG_TEST_REPLACED";
const LEN: u64 = 100_000;

struct Side {
    _domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
    memory: Region,
    /// Whether a peer's end was told.
    was_told: bool,
}

impl Side {
    fn open(url: &str, byte: u8) -> Result<Self, Error> {
        let domain = SmPlugin.open(&url.parse().unwrap(), &OpenOptions::listening())?;
        let memory = Memory::from(vec![byte; usize::try_from(LEN).unwrap()]);
        let memory = domain.register(memory, Rights::all())?;
        Ok(Self { context: domain.context(0)?, _domain: domain, memory, was_told: false })
    }

    /// Its address and its memory, in words.
    fn words(&self) -> String {
        let bytes = self.memory.descriptor().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {hex}", self.context.address())
    }

    fn serve(&mut self) -> ! {
        loop {
            self.context.progress(Instant::now(), &mut Vec::new()).unwrap();
            if self.context.may_sleep() {
                self.context.waiter().wait(Some(LIMIT)).unwrap();
            }
        }
    }

    /// Gets all bytes, or puts them.
    fn transfer(&mut self, peer: Peer, far: &Descriptor, is_put: bool) -> Result<(), Error> {
        let (local, remote) = (self.memory.slice(0, LEN).unwrap(), far.slice(0, LEN).unwrap());
        let op = match is_put {
            true => Op::Put { to: peer, local, remote },
            false => Op::Get { from: peer, local, remote },
        };
        if let Err(rejected) = self.context.post(1, op) {
            return Err(rejected.error);
        }
        let start = Instant::now();
        loop {
            if let Some(result) = self.round() {
                return result;
            }
            in_time!(start, "a transfer never ended");
        }
    }

    /// The end of a transfer, if it was told.
    fn round(&mut self) -> Option<Result<(), Error>> {
        let (mut done, mut result) = (Vec::new(), None);
        self.context.progress(Instant::now(), &mut done).unwrap();
        for completion in done {
            match completion {
                Completion::Done(done) => {
                    result = Some(done.result.map_err(|failure| failure.error));
                }
                Completion::Gone { .. } => self.was_told = true,
                _ => {}
            }
        }
        result
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    /// Progress until a peer's end is told.
    fn hears_of_the_end(&mut self) {
        let start = Instant::now();
        while !self.was_told {
            assert!(self.round().is_none());
            in_time!(start, "nobody tells that the peer is gone");
        }
    }
}

fn parse(words: &str) -> (Address, Descriptor) {
    let (address, hex) = words.trim().split_once(' ').unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
    (address.parse().unwrap(), Descriptor::decode(&bytes).unwrap())
}

#[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
fn forked() -> ForkResult {
    // SAFETY:
    // - the children here go on with one thread, in code that the C library lets run after a fork.
    unsafe { fork() }.unwrap()
}

/// Kills a process when it is dropped.
struct Killed(Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone_is_fine = kill(self.0, Signal::SIGKILL);
    }
}

fn say(words: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{words}").unwrap();
}

/// Opens a context; on a word of its parent it goes on as another program, while a child of it lives.
fn be_replaced(url: &str) {
    let mut side = Side::open(url, 7).unwrap();
    say(&format!("{} {}", std::process::id(), side.words()));
    std::thread::spawn(|| {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        match forked() {
            ForkResult::Child => loop {
                pause();
            },
            ForkResult::Parent { child } => say(&format!("{child} is the child")),
        }
        let failed = Command::new("sleep").arg("100").exec();
        panic!("{failed}");
    });
    side.serve()
}

/// Such a process.
struct Replaced {
    process: Child,
    said: BufReader<ChildStdout>,
    _end: Killed,
}

impl Replaced {
    /// Starts it in the role of this test; gives its address and its memory, too.
    fn start(test: &str, url: &str) -> (Self, (Address, Descriptor)) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let _end = Killed(Pid::from_raw(i32::try_from(process.id()).unwrap()));
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let words = line(&mut said);
        let (_, words) = words.split_once(' ').unwrap();
        (Self { process, said, _end }, parse(words))
    }

    /// It goes on as another program, and its child lives.
    fn go(&mut self) -> Killed {
        self.process.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let child = line(&mut self.said);
        Killed(Pid::from_raw(child.split(' ').next().unwrap().parse().unwrap()))
    }
}

fn line(from: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    while !line.contains(" sm://") && !line.contains("is the child") {
        line.clear();
        assert!(from.read_line(&mut line).unwrap() > 0, "the other process has ended");
    }
    line
}

#[test]
fn a_process_that_executes_another_program_is_gone_although_a_child_of_it_lives() {
    const SELF: &str =
        "a_process_that_executes_another_program_is_gone_although_a_child_of_it_lives";
    if let Ok(url) = std::env::var(ROLE) {
        return be_replaced(&url);
    }
    let _watchdog = Watchdog::start();
    let url = format!("sm://replaced-{}", std::process::id());
    let (mut other, (address, far)) = Replaced::start(SELF, &url);
    let mut side = Side::open("sm://", 1).unwrap();
    let peer = side.context.lookup(&address).unwrap();
    side.transfer(peer, &far, false).unwrap();
    assert_eq!(side.bytes(), vec![7; usize::try_from(LEN).unwrap()]);
    let _end_of_the_child = other.go();
    let start = Instant::now();
    let failed = (0..).find_map(|number| {
        in_time!(start, "the process never is another program");
        side.transfer(peer, &far, number % 2 == 1).err()
    });
    // While it is being replaced, its memory is gone before its socket is.
    assert!(matches!(failed, Some(Error::PeerGone(_) | Error::Os { .. })), "{failed:?}");
    side.hears_of_the_end();
    assert!(other.process.try_wait().unwrap().is_none(), "it lives on as another program");
    // Its name is free, too.
    Side::open(&url, 2).unwrap();
    other.process.kill().unwrap();
    other.process.wait().unwrap();
}

#[test]
fn what_was_begun_before_its_peer_was_replaced_does_not_touch_the_other_program() {
    const SELF: &str =
        "what_was_begun_before_its_peer_was_replaced_does_not_touch_the_other_program";
    if let Ok(url) = std::env::var(ROLE) {
        return be_replaced(&url);
    }
    let _watchdog = Watchdog::start();
    for direction in [Direction::Put, Direction::Get] {
        let url = format!("sm://begun-{direction:?}-{}", std::process::id());
        let (mut other, (address, far)) = Replaced::start(SELF, &url);
        let mut side = Side::open("sm://", 1).unwrap();
        let peer = side.context.lookup(&address).unwrap();
        side.transfer(peer, &far, false).unwrap();
        let (local, local_offset, remote_offset) = (side.memory.state(), 0, 0);
        let (remote, len, may_wait) = (&far, LEN, true);
        let transit =
            Transit { direction, peer, local, local_offset, remote, remote_offset, len, may_wait };
        let Begun::Ready(mover) = side.context.begin(&transit) else {
            return skip(SELF, "the kernel moves nothing between these processes");
        };
        let _end_of_the_child = other.go();
        let start = Instant::now();
        let mut done = Vec::new();
        while !done.iter().any(|it| matches!(it, Completion::Gone { .. })) {
            in_time!(start, "nobody tells that the peer is gone");
            side.context.progress(Instant::now(), &mut done).unwrap();
        }
        assert!(other.process.try_wait().unwrap().is_none(), "it lives on as another program");
        let moved = mover.run();
        let is_gone = matches!(moved, Err(Error::PeerGone(GoneReason::Exited)));
        assert!(is_gone, "what it moved is another program's: {moved:?}");
        other.process.kill().unwrap();
        other.process.wait().unwrap();
    }
}

#[test]
fn memory_of_a_process_whose_first_thread_has_ended_is_reached() {
    let _watchdog = Watchdog::start();
    let (near, far) = UnixStream::pair().unwrap();
    let child = match forked() {
        ForkResult::Child => {
            std::thread::spawn(move || {
                let mut side = Side::open("sm://", 7).unwrap();
                writeln!(&far, "{}", side.words()).unwrap();
                side.serve()
            });
            #[expect(unsafe_code, reason = "ends one thread, which nothing else does")]
            // SAFETY:
            // - nothing of this thread is used by the other one: what that one needs was moved into it.
            unsafe {
                libc::syscall(libc::SYS_exit, 0)
            };
            unreachable!("the thread has ended")
        }
        ForkResult::Parent { child } => Killed(child),
    };
    drop(far);
    let mut words = String::new();
    BufReader::new(&near).read_line(&mut words).unwrap();
    let start = Instant::now();
    loop {
        let mut stat = String::new();
        let mut file = std::fs::File::open(format!("/proc/{}/stat", child.0)).unwrap();
        file.read_to_string(&mut stat).unwrap();
        // The first thread is a zombie, while the process lives.
        if stat.rsplit(')').next().unwrap().trim_start().starts_with('Z') {
            break;
        }
        in_time!(start, "the first thread does not end: {stat}");
    }
    let (address, far) = parse(&words);
    let mut side = Side::open("sm://", 1).unwrap();
    let peer = side.context.lookup(&address).unwrap();
    for is_put in [false, true] {
        side.transfer(peer, &far, is_put).unwrap();
    }
    assert_eq!(side.bytes(), vec![7; usize::try_from(LEN).unwrap()]);
}

/// Gets and puts memory of an owner that has no number here.
fn be_inside(words: &str) {
    let (address, far) = parse(words);
    let mut side = Side::open("sm://", 1).unwrap();
    let peer = side.context.lookup(&address).unwrap();
    for is_put in [false, true] {
        side.transfer(peer, &far, is_put).unwrap();
    }
    assert_eq!(side.bytes(), vec![7; usize::try_from(LEN).unwrap()]);
    assert_eq!(side.context.identity(peer).pid, None);
    say("all was moved sm://");
}

#[test]
fn a_process_of_another_pid_namespace_is_reached() {
    const SELF: &str = "a_process_of_another_pid_namespace_is_reached";
    if let Ok(words) = std::env::var(ROLE) {
        return be_inside(&words);
    }
    let _watchdog = Watchdog::start();
    let mut side = Side::open("sm://", 7).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", SELF, "--nocapture"]);
    command.env(ROLE, side.words()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(inside) = command.spawn() else { return skip(SELF, "unshare is not installed") };
    std::thread::scope(|threads| {
        let inside = threads.spawn(move || inside.wait_with_output().unwrap());
        while !inside.is_finished() {
            assert!(side.round().is_none());
        }
        let output = inside.join().unwrap();
        let [said, wrong] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        if wrong.contains("Operation not permitted") && !output.status.success() {
            return skip(SELF, "no right to make pid namespaces");
        }
        assert!(said.contains("all was moved"), "{said}{wrong}");
    });
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED: {test}: {why}");
}
