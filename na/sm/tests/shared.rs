//! Memory that peers map, between processes: owners and viewers that are killed, a thousand connections, no descriptor
//! left, fork. What is counted is counted in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Descriptor, Domain, Done, Error, Memory, Op, OpenOptions, Peer,
    Plugin as _, Region, Returned, Rights, SharedBytes,
};
use hg_na_sm::{SmPlugin, shared::alloc};
use nix::{
    libc,
    sys::{
        resource::{Resource, setrlimit},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, fork},
};
use watchdog::{LIMIT, in_time};

/// What a process of this test is; then what it needs to know.
const ROLE: &str = "HG_SM_SHARED_ROLE";
const ADDRESS: &str = "HG_SM_SHARED_ADDRESS";
const DESCRIPTORS: &str = "HG_SM_SHARED_DESCRIPTORS";

const SIZE: usize = 64 * 1024;
const CYCLES: usize = 1000;

/// This program again, in a role. Killed when dropped.
struct Process(Child, BufReader<ChildStdout>);

impl Process {
    fn start(role: &str, address: &str, descriptors: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "process_of_the_tests_below", "--nocapture", "--test-threads=1"])
            .envs([(ROLE, role), (ADDRESS, address), (DESCRIPTORS, descriptors)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    /// What follows a word that it says.
    fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "it ended without a word: {word}");
            if let Some((_, rest)) = line.trim_end().split_once(word) {
                return rest.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn ends_well(&mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn say(word: &str, rest: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}{rest}").unwrap();
    out.flush().unwrap();
}

struct Side {
    domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
    done: Vec<Completion>,
}

impl Side {
    fn open() -> Self {
        let domain = SmPlugin.open(&"sm://".parse().unwrap(), &OpenOptions::listening()).unwrap();
        let context = domain.context(0).unwrap();
        Self { domain, context, done: Vec::new() }
    }

    /// Waits, asleep when it may be.
    fn until(&mut self, mut holds: impl FnMut(&mut Vec<Completion>) -> bool) {
        let start = Instant::now();
        loop {
            self.context.progress(Instant::now(), &mut self.done).unwrap();
            if holds(&mut self.done) {
                return;
            }
            in_time!(start, "it never happened");
            if self.context.may_sleep() {
                self.context.waiter().wait(Some(Duration::from_millis(100))).unwrap();
            }
        }
    }

    fn finish(&mut self, op: Op) -> Done {
        self.context.post(7, op).unwrap();
        let mut found = None;
        self.until(|done| {
            found = done.drain(..).find_map(|it| match it {
                Completion::Done(done) => Some(done),
                _ => None,
            });
            found.is_some()
        });
        found.unwrap()
    }

    fn view(&mut self, from: Peer, far: &Descriptor) -> Result<SharedBytes, Error> {
        let done = self.finish(Op::View { from, remote: far.slice(0, far.len()).unwrap() });
        match (done.result, done.returned) {
            (Ok(()), Returned::View(bytes)) => Ok(bytes),
            (Err(failure), _) => Err(failure.error),
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, from: Peer, local: &Region, far: &Descriptor) -> Result<(), Error> {
        let (local, remote) =
            (local.slice(0, far.len()).unwrap(), far.slice(0, far.len()).unwrap());
        self.finish(Op::Get { from, local, remote }).result.map_err(|failure| failure.error)
    }

    fn local(&self) -> Region {
        self.domain.register(Memory::from(vec![0; SIZE]), Rights::empty()).unwrap()
    }

    /// A buffer with rights to read, one frozen, one with all rights.
    fn three(&self) -> (Vec<Region>, String) {
        let mut buffers: Vec<_> = (1..=3).map(|_| alloc(SIZE).unwrap()).collect();
        (1..).zip(&mut buffers).for_each(|(byte, buffer)| buffer.fill(byte));
        let [plain, frozen, writable] = buffers.try_into().unwrap();
        let memories: [(Memory, Rights); 3] = [
            (plain.into(), Rights::READ),
            (frozen.freeze().unwrap().into(), Rights::READ),
            (writable.into(), Rights::all()),
        ];
        let register = |(memory, rights)| self.domain.register(memory, rights).unwrap();
        let regions: Vec<Region> = memories.into_iter().map(register).collect();
        let texts: Vec<String> = regions.iter().map(|it| hex(&it.descriptor().encode())).collect();
        (regions, texts.join(","))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn descriptors(text: &str) -> Vec<Descriptor> {
    let byte = |text: &str, at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let decode = |text: &str| {
        let bytes: Vec<u8> = (0..text.len() / 2).map(|at| byte(text, at)).collect();
        Descriptor::decode(&bytes).unwrap()
    };
    text.split(',').map(decode).collect()
}

/// An owner in a process of its own, with its three regions.
fn owner() -> (Process, Address, Vec<Descriptor>, String) {
    let mut owner = Process::start("owner", "", "");
    let address = owner.hear("address ");
    let text = owner.hear("descriptors ");
    let far = descriptors(&text);
    (owner, Address::new(&address).unwrap(), far, text)
}

/// The other processes. As a test by itself it does nothing.
#[test]
fn process_of_the_tests_below() {
    let Ok(role) = env::var(ROLE) else { return };
    // A child must never outlive its test run.
    std::thread::spawn(|| {
        std::thread::sleep(2 * LIMIT);
        std::process::exit(3);
    });
    let mut side = Side::open();
    if role == "owner" {
        let (_regions, text) = side.three();
        say("address ", side.context.address().as_str());
        say("descriptors ", &text);
        loop {
            side.until(|done| !done.is_empty());
            side.done.clear();
        }
    }
    let address = Address::new(&env::var(ADDRESS).unwrap()).unwrap();
    let far = descriptors(&env::var(DESCRIPTORS).unwrap());
    match role.as_str() {
        "viewer" => view_and_stop(&mut side, &address, &far),
        "cycles" => connect_map_and_close(&mut side, &address, &far),
        _ => view_without_descriptors(&mut side, &address, &far),
    }
}

fn view_and_stop(side: &mut Side, address: &Address, far: &[Descriptor]) {
    let to = side.context.lookup(address).unwrap();
    let views: Vec<_> = far.iter().map(|far| side.view(to, far).unwrap()).collect();
    say("viewing ", &views.len().to_string());
    loop {
        std::thread::park();
    }
}

#[test]
fn views_outlive_an_owner_that_is_killed_and_transfers_end() {
    let (mut owner, address, far, _) = owner();
    let mut side = Side::open();
    let to = side.context.lookup(&address).unwrap();
    let local = side.local();
    let views: Vec<_> = far.iter().map(|far| side.view(to, far).unwrap()).collect();
    side.get(to, &local, &far[0]).unwrap();
    owner.kill();
    for (byte, view) in (1..).zip(&views) {
        assert_eq!(view.to_vec().unwrap(), vec![byte; SIZE]);
    }
    side.until(|done| done.drain(..).any(|it| matches!(it, Completion::Gone { .. })));
    let (near, remote) = (local.slice(0, 8).unwrap(), far[0].slice(0, 8).unwrap());
    let refused = side.context.post(1, Op::Get { from: to, local: near, remote }).unwrap_err();
    assert!(matches!(refused.error, Error::UnknownPeer | Error::PeerGone(_)), "{refused:?}");
    drop(side);
    for (byte, view) in (1..).zip(&views) {
        assert_eq!(view.to_vec().unwrap(), vec![byte; SIZE]);
    }
    assert_eq!(views[1].as_slice(), Some(&[2; SIZE][..]));
}

#[test]
fn an_owner_gets_its_memory_back_when_its_viewer_is_killed() {
    let mut side = Side::open();
    let (regions, text) = side.three();
    let mut viewer = Process::start("viewer", side.context.address().as_str(), &text);
    // It sleeps between the questions that the viewer asks.
    let (tell, told) = std::sync::mpsc::channel();
    let hearing = std::thread::spawn(move || {
        let count = viewer.hear("viewing ");
        tell.send(()).unwrap();
        (viewer, count)
    });
    side.until(|done| {
        done.clear();
        told.try_recv().is_ok()
    });
    let (mut viewer, count) = hearing.join().unwrap();
    assert_eq!(count, "3");
    viewer.kill();
    side.until(|done| done.drain(..).any(|it| matches!(it, Completion::Gone { .. })));
    for (byte, region) in (1..).zip(regions) {
        let start = Instant::now();
        let again = region.unregister().unwrap();
        assert!(start.elapsed() < Duration::from_millis(250), "a dead process is waited for");
        assert_eq!(again.len(), SIZE as u64);
        let again = side.domain.register(again, Rights::READ).unwrap();
        let mut seen = [0; 8];
        again.read(SIZE as u64 - 8, &mut seen).unwrap();
        assert_eq!(seen, [byte; 8]);
    }
}

#[test]
fn a_thousand_connections_that_map_leave_nothing() {
    let (mut owner, address, _, text) = owner();
    let pid = owner.0.id();
    let before = (count_descriptors(pid), count_maps(pid));
    let mut cycles = Process::start("cycles", address.as_str(), &text);
    cycles.hear("done");
    cycles.ends_well();
    let start = Instant::now();
    while (count_descriptors(pid), count_maps(pid)) != before {
        in_time!(start, "the owner keeps what its peers had: {before:?}");
        std::thread::yield_now();
    }
    owner.kill();
}

fn count_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Mappings of memfds.
fn count_maps(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("memfd:hg")).count()
}

/// Bytes of files and shared memory that are resident here.
fn resident_shared() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}

fn connect_map_and_close(side: &mut Side, address: &Address, far: &[Descriptor]) {
    let local = side.local();
    let threads = count_threads();
    let mut before = None;
    for cycle in 0..CYCLES + 1 {
        let to = side.context.lookup(address).unwrap();
        let view = side.view(to, &far[cycle % 3]).unwrap();
        side.get(to, &local, &far[(cycle + 1) % 3]).unwrap();
        side.get(to, &local, &far[(cycle + 1) % 3]).unwrap();
        side.context.forget(to);
        drop(view);
        side.until(|done| done.drain(..).any(|it| matches!(it, Completion::Gone { .. })));
        // The first round has what stays: buffers of the epoll set, say.
        before.get_or_insert_with(|| what_is_left(threads));
    }
    assert_eq!(before, Some(what_is_left(threads)), "descriptors, mappings, shared memory");
    say("done", "");
}

/// Descriptors, mappings and shared memory, when no thread closes any more: a socket to which the owner's last answer had come with its
/// memfd is closed by a thread of its own.
fn what_is_left(threads: usize) -> (usize, usize, u64) {
    let (pid, start) = (std::process::id(), Instant::now());
    while count_threads() != threads {
        in_time!(start, "a thread that closes does not end");
        std::thread::yield_now();
    }
    (count_descriptors(pid), count_maps(pid), resident_shared())
}

fn count_threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn without_a_descriptor_left_a_view_fails_with_the_limit_and_transfers_go_on() {
    let (mut owner, address, _, text) = owner();
    let mut full = Process::start("full", address.as_str(), &text);
    full.hear("done");
    full.ends_well();
    owner.kill();
}

fn view_without_descriptors(side: &mut Side, address: &Address, far: &[Descriptor]) {
    let to = side.context.lookup(address).unwrap();
    let local = side.local();
    side.get(to, &local, &far[0]).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    let mut filler = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        filler.push(file);
    }
    let refused = side.view(to, &far[1]).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, Error::Limit { limit: 64, .. }) && text.contains("NOFILE"), "{text}");
    for far in far {
        for _ in 0..3 {
            side.get(to, &local, far).unwrap();
        }
    }
    filler.truncate(filler.len() - 1);
    let view = side.view(to, &far[1]).unwrap();
    assert_eq!(view.as_slice(), Some(&[2; SIZE][..]));
    say("done", "");
}

#[test]
#[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
fn a_forked_child_sees_nothing_through_its_parents_views_and_harms_nobody() {
    let (mut owner, address, far, _) = owner();
    let mut side = Side::open();
    let to = side.context.lookup(&address).unwrap();
    let view = side.view(to, &far[1]).unwrap();
    let own = side.domain.register(Memory::from(alloc(8).unwrap()), Rights::READ).unwrap();
    // SAFETY:
    // - the child asks, drops a view and exits, without unwinding.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let mut byte = [0];
            let refused = matches!(view.read(0, &mut byte), Err(Error::Forked))
                && view.as_slice().is_none()
                && matches!(own.read(0, &mut byte), Err(Error::Forked));
            drop(view);
            // SAFETY:
            // - ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(view.as_slice(), Some(&[2; SIZE][..]));
    owner.kill();
}

#[test]
#[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
fn a_forked_child_may_drop_its_copy_of_what_is_open_and_connected() {
    let (mut owner, address, far, _) = owner();
    let mut side = Side::open();
    let to = side.context.lookup(&address).unwrap();
    let local = side.local();
    side.get(to, &local, &far[0]).unwrap();
    // SAFETY:
    // - the child drops what it has, and exits without unwinding.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            drop(side.context);
            drop(local);
            drop(side.domain);
            // SAFETY:
            // - ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    side.get(to, &local, &far[0]).unwrap();
    owner.kill();
}
