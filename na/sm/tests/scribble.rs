//! A process that connects properly, and then writes random bytes over everything that it shares, while it
//! rings every doorbell that it has: the target goes on or disconnects it, serves an honest peer all the
//! time, and has all descriptors and mappings back in the end.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::{BorrowedFd, RawFd},
        unix::fs::FileExt as _,
    },
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{Wait, call, next};
use hg_na::{
    Completion, Context, Descriptor, Domain, Done, GoneReason, Memory, Message, Op, Peer,
    Plugin as _, Region, Rights,
};
use watchdog::{LIMIT, in_time};

/// What a process of this test is; then an address and a seed, for a liar.
const ROLE: &str = "HG_SM_SCRIBBLE_ROLE";
const ADDRESS: &str = "HG_SM_SCRIBBLE_ADDRESS";
const SEED: &str = "HG_SM_SCRIBBLE_SEED";

/// Processes that lie, one after the other, each in its own way; and how often each does.
const SEEDS: u64 = 30;
const LIES: u32 = 60;

/// Bytes of a segment: 56 slots of answers from 512 on and 64 of requests from 4096 on, of 64 bytes, each of which begins
/// with the sequence that publishes it, its word, and (of a long message) its offset (`src/layout.rs`, `src/ring.rs`); then
/// the arena.
const SEGMENT: u64 = 2 * 4096 + (8 << 20) + (512 << 10);

/// Bytes of a region.
const REGION: usize = 4096;

/// Behind its tag, a request says what it is: to be answered with the same bytes, ...
const ECHO: u8 = 1;
/// ... to be answered with the target's [`Counts`], ...
const REPORT: u8 = 2;
/// ... or a descriptor of memory to be read.
const FETCH: u8 = 3;

fn domain() -> Arc<dyn Domain> {
    let options = hg_na::OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap()
}

/// This program again, in a role. Killed when dropped.
struct Process(Child, BufReader<ChildStdout>);

impl Process {
    fn start(role: &str, address: &str, seed: u64) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "process_of_the_test_below", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ADDRESS, address)
            .env(SEED, seed.to_string())
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

    fn fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap().count()
    }

    /// Mappings of shared memory.
    fn maps(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        maps.lines().filter(|line| line.contains("memfd:")).count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[expect(clippy::print_stdout, reason = "tells the parent")]
fn say(words: &str) {
    println!("\n{words}");
    std::io::stdout().flush().unwrap();
}

/// Not a test of its own: the other processes of the one below.
#[test]
fn process_of_the_test_below() {
    match env::var(ROLE).as_deref() {
        Ok("target") => target(),
        Ok("liar") => liar(&env::var(ADDRESS).unwrap(), env::var(SEED).unwrap().parse().unwrap()),
        _ => {}
    }
}

#[test]
fn a_peer_that_overwrites_what_it_shares_hurts_nobody_but_itself() {
    let mut target = Process::start("target", "", 0);
    let address = target.hear("address ");
    let domain = domain();
    let mut honest = Honest { context: domain.context(0).unwrap(), tag: 0, wait: Wait::Sleep };
    let to = honest.context.lookup(&address.parse().unwrap()).unwrap();
    honest.report(to);
    let (fds, maps) = (target.fds(), target.maps());
    for seed in 0..SEEDS {
        honest.wait = if seed % 4 == 3 { Wait::Spin } else { Wait::Sleep };
        let mut liar = Process::start("liar", &address, seed);
        let start = Instant::now();
        while liar.0.try_wait().unwrap().is_none() {
            honest.is_served(to);
            in_time!(start, "seed {seed}: the liar does not end");
        }
        assert_eq!(liar.hear("lies "), LIES.to_string(), "seed {seed}");
        honest.is_served(to);
    }
    let counts = honest.report(to);
    assert!(counts.misbehaved >= SEEDS, "{counts:?}: most liars are found out");
    assert!(counts.closed >= 1, "{counts:?}: some are not");
    assert!(counts.fetched > 0 && counts.not_fetched > 0, "{counts:?}: regions were looked at");
    let start = Instant::now();
    while (target.fds(), target.maps()) != (fds, maps) {
        let now = (target.fds(), target.maps());
        in_time!(start, "descriptors and mappings: {now:?}, not {fds}, {maps}");
        honest.is_served(to);
    }
}

/// A peer that keeps the protocol.
struct Honest {
    context: Box<dyn Context>,
    tag: u64,
    wait: Wait,
}

impl Honest {
    fn call(&mut self, to: Peer, kind: u8, len: usize) -> Vec<u8> {
        self.tag += 1;
        let mut request = vec![self.tag.to_le_bytes()[0] ^ 0x5a; len.max(9)];
        request[..8].copy_from_slice(&self.tag.to_le_bytes());
        request[8] = kind;
        let answer = call(&mut *self.context, to, self.tag, &request, self.wait);
        assert!(kind != ECHO || answer == request, "call {} came back changed", self.tag);
        answer
    }

    fn is_served(&mut self, to: Peer) {
        for len in [9, 48, 56, 57, 224, 225, 3000, 70_000] {
            self.call(to, ECHO, len);
        }
    }

    fn report(&mut self, to: Peer) -> Counts {
        let answer = self.call(to, REPORT, 9);
        let mut numbers =
            answer.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
        let mut number = || numbers.next().unwrap();
        Counts { misbehaved: number(), closed: number(), fetched: number(), not_fetched: number() }
    }
}

/// What the target has seen.
#[derive(Debug, Default)]
struct Counts {
    /// Peers that were disconnected for what they wrote, and that left in another way.
    misbehaved: u64,
    closed: u64,
    /// Reads of a peer's memory that went well, and others.
    fetched: u64,
    not_fetched: u64,
}

struct Target {
    domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
    local: Region,
    counts: Counts,
}

/// Serves until it is killed, or its parent has ended.
fn target() {
    let domain = domain();
    let context = domain.context(0).unwrap();
    let local = domain.register(Memory::from(vec![0; REGION]), Rights::READ).unwrap();
    say(&format!("address {}", context.address()));
    let mut target = Target { domain, context, local, counts: Counts::default() };
    let mut done = Vec::new();
    let start = Instant::now();
    while start.elapsed() < 5 * LIMIT {
        next(&mut *target.context, Wait::Sleep, &mut done);
        for completion in done.drain(..) {
            target.take(completion);
        }
    }
}

impl Target {
    fn take(&mut self, completion: Completion) {
        match completion {
            Completion::Unexpected { from, message } => self.serve(from, message.as_slice()),
            Completion::Done(Done { token: 1, result, .. }) => match result {
                Ok(()) => self.counts.fetched += 1,
                Err(_) => self.counts.not_fetched += 1,
            },
            Completion::Gone { reason: GoneReason::Misbehaved(_), .. } => {
                self.counts.misbehaved += 1;
            }
            Completion::Gone { .. } => self.counts.closed += 1,
            // Answers that were sent or not, and control messages.
            _ => {}
        }
    }

    fn serve(&mut self, from: Peer, request: &[u8]) {
        let Some((tag, [kind, rest @ ..])) = request.split_first_chunk() else { return };
        let tag = u64::from_le_bytes(*tag);
        match *kind {
            ECHO => self.answer(from, tag, request),
            REPORT => {
                let Counts { misbehaved, closed, fetched, not_fetched } = self.counts;
                let numbers = [misbehaved, closed, fetched, not_fetched];
                self.answer(from, tag, numbers.map(u64::to_le_bytes).as_flattened());
            }
            FETCH => self.fetch(from, rest),
            _ => {}
        }
    }

    fn answer(&mut self, to: Peer, tag: u64, bytes: &[u8]) {
        let Ok(mut message) = self.context.message(to, bytes.len()) else { return };
        message.as_mut_slice().copy_from_slice(bytes);
        // A liar that takes no answers gets none.
        let _accepted_or_not = self.context.post(0, Op::SendExpected { to, tag, message });
    }

    /// Reads a peer's memory; and takes memory back, which the peer may claim to be using.
    fn fetch(&mut self, from: Peer, descriptor: &[u8]) {
        let region = self.domain.register(Memory::from(vec![1; 64]), Rights::READ).unwrap();
        drop(region);
        let Ok(descriptor) = Descriptor::decode(descriptor) else { return };
        let len = descriptor.len().min(REGION as u64);
        let local = self.local.slice(0, len).unwrap();
        let remote = descriptor.slice(0, len).unwrap();
        let _accepted_or_not = self.context.post(1, Op::Get { from, local, remote });
    }
}

/// Xorshift: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Values at which checks could be wrong by one, and any.
    fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] =
            [0, 1, 2, 3, 56, 57, 64, 65, 0x8000_1000, 8 << 20, u32::MAX as u64, u64::MAX];
        match self.below(14) {
            at @ 0..12 => EDGES[usize::try_from(at).unwrap()],
            _ => self.next(),
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect()
    }
}

/// A process that lies.
struct Liar {
    context: Box<dyn Context>,
    descriptor: Descriptor,
    address: hg_na::Address,
    /// Until it is disconnected.
    target: Option<Peer>,
    random: Random,
    memory: File,
    tag: u64,
}

fn liar(address: &str, seed: u64) {
    let domain = domain();
    let region = domain.register(Memory::from(vec![7; REGION]), Rights::READ).unwrap();
    let mut liar = Liar {
        context: domain.context(0).unwrap(),
        descriptor: region.descriptor(),
        address: address.parse().unwrap(),
        target: None,
        random: Random(0x9E37_79B9_7F4A_7C15 ^ (seed + 1)),
        memory: OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap(),
        tag: 0,
    };
    for _ in 0..LIES {
        liar.exchange();
        let shared = shared_memory();
        match seed % 3 {
            0 => shared.iter().for_each(|place| liar.overwrite(*place)),
            1 if liar.random.below(2) == 0 => liar.publish_slots(&shared),
            1 => (0..8).for_each(|_| liar.change_a_word(&shared)),
            _ => (0..8).for_each(|_| liar.change_a_page(&shared)),
        }
        doorbells().into_iter().for_each(ring);
        // Gives the target a chance to look before honest slots take the place of what was written.
        for _ in 0..20 {
            std::thread::yield_now();
            liar.progress();
        }
        liar.talk();
        doorbells().into_iter().for_each(ring);
    }
    say(&format!("lies {LIES}"));
}

impl Liar {
    /// Connects when it has to, and talks properly until it has been answered or disconnected.
    fn exchange(&mut self) {
        let to = match self.target {
            Some(to) => to,
            None => self.context.lookup(&self.address).unwrap(),
        };
        self.target = Some(to);
        let tag = self.tag + 1;
        let accepted = self.context.post(1, Op::RecvExpected { from: to, tag }).is_ok();
        self.talk();
        let start = Instant::now();
        let mut is_answered = !accepted;
        while self.target.is_some() && !is_answered && start.elapsed() < Duration::from_millis(100)
        {
            is_answered = self.progress();
        }
    }

    /// Requests of every kind, an answer and a control message.
    fn talk(&mut self) {
        for (kind, len) in [(ECHO, 9), (ECHO, 150), (ECHO, 3000), (FETCH, 0)] {
            let Some(to) = self.target else { return };
            self.tag += 1;
            let mut request = self.tag.to_le_bytes().to_vec();
            request.push(kind);
            request.resize(len.max(9), 5);
            if kind == FETCH {
                request.extend(self.descriptor.encode());
            }
            let message = Message::copied(&request);
            let _accepted_or_not = self.context.post(0, Op::SendUnexpected { to, message });
            let (tag, message) = (self.tag, Message::copied(&request[..9]));
            let _accepted_or_not = self.context.post(0, Op::SendExpected { to, tag, message });
            let message = Message::copied(b"control");
            let _accepted_or_not = self.context.post(0, Op::SendControl { to, message });
            self.progress();
        }
    }

    /// Some rounds; says whether a receive has ended, and notices the end of the connection.
    fn progress(&mut self) -> bool {
        let (mut done, mut is_answered) = (Vec::new(), false);
        for _ in 0..300 {
            self.context.progress(Instant::now(), &mut done).unwrap();
        }
        for completion in done {
            match completion {
                Completion::Done(Done { token: 1, .. }) => is_answered = true,
                Completion::Gone { .. } => self.target = None,
                _ => {}
            }
        }
        is_answered
    }

    fn write(&self, bytes: &[u8], at: u64) {
        // Once the connection is over, its memory is gone.
        let _written_or_not = self.memory.write_at(bytes, at);
    }

    fn overwrite(&mut self, (begin, len): (u64, u64)) {
        let bytes = self.random.bytes(len.min(1 << 16));
        self.write(&bytes, begin);
    }

    fn change_a_page(&mut self, shared: &[(u64, u64)]) {
        let Some((begin, len)) = self.one_of(shared) else { return };
        let page = self.page_of(len.min(1 << 18));
        let bytes = self.random.bytes(4096);
        self.write(&bytes, begin + page * 4096);
    }

    /// One of the pages of so many bytes; the first two, where the rings are, as often as all others.
    fn page_of(&mut self, len: u64) -> u64 {
        let pages = len / 4096;
        let most = if self.random.below(2) == 0 { 2 } else { pages };
        self.random.below(pages.min(most))
    }

    /// One word, mostly where it matters: near the begin of a page.
    fn change_a_word(&mut self, shared: &[(u64, u64)]) {
        let Some((begin, len)) = self.one_of(shared) else { return };
        let page = self.page_of(len.min(70 * 4096)) * 4096;
        let word = page + 4 * self.random.below(128);
        let value = self.random.value().to_le_bytes();
        let size = if self.random.below(2) == 0 { 4 } else { 8 };
        self.write(&value[..size], begin + word);
    }

    /// Messages that no library would send, in the slots that the target looks at next.
    fn publish_slots(&mut self, shared: &[(u64, u64)]) {
        for (begin, _) in shared.iter().filter(|(_, len)| *len == SEGMENT) {
            let (ring, count) = if self.random.below(2) == 0 { (512, 56) } else { (4096, 64) };
            let slots: Vec<_> = (0..count).map(|at| begin + ring + 64 * at).collect();
            let lap = self.word(slots[0]);
            // The first one that is a lap behind; all are in the same: the first, in the next lap.
            let behind = slots.iter().find(|slot| self.word(**slot) != lap);
            let (slot, lap) = behind.map_or((slots[0], lap.wrapping_add(1)), |slot| (*slot, lap));
            // Of one slot, of several that were not published, of more than any has; bodies; nonsense.
            let words = [3_u32, 57, 224, 225, 0x8000_1000, 0x8000_0000, u32::MAX];
            let len = words[usize::try_from(self.random.below(7)).unwrap()];
            self.write(&len.to_le_bytes(), slot + 4);
            for at in [8, 16] {
                // Around the end of an arena, for the most.
                let end = (8 << 20) - 4096 + self.random.below(3);
                let value = if self.random.below(4) == 0 { self.random.value() } else { end };
                self.write(&value.to_le_bytes(), slot + at);
            }
            self.write(&lap.to_le_bytes(), slot);
        }
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read_at(&mut bytes, at).map_or(0, |_| u32::from_le_bytes(bytes))
    }

    fn one_of(&mut self, shared: &[(u64, u64)]) -> Option<(u64, u64)> {
        let count = u64::try_from(shared.len()).unwrap();
        (count > 0).then(|| shared[usize::try_from(self.random.below(count)).unwrap()])
    }
}

/// Mappings of this process that others see and that it writes: begin and length.
fn shared_memory() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("memfd:"));
    let range = |line: &str| {
        let (begin, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(begin)?, number(end)? - number(begin)?))
    };
    shared.filter_map(range).collect()
}

/// Every eventfd that this process holds: its own, and those of its peer.
fn doorbells() -> Vec<RawFd> {
    let is_eventfd = |fd: &RawFd| {
        let name = fs::read_link(format!("/proc/self/fd/{fd}"));
        name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
    };
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let fds = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    fds.filter(is_eventfd).collect()
}

#[expect(unsafe_code, reason = "descriptors that the library keeps to itself")]
fn ring(fd: RawFd) {
    // SAFETY:
    // - open: /proc said so, and no other thread of this process closes descriptors meanwhile.
    let bell = unsafe { BorrowedFd::borrow_raw(fd) };
    let _full_or_done = nix::unistd::write(bell, &1_u64.to_ne_bytes());
}
