//! Entry points of the fuzz targets: a peer that writes whatever it likes into everything it shares.
//!
//! [`fuzz_rings`]: two contexts of this process are connected. The *target* is honest, and is asked to
//! do what its user might; the *liar* publishes slots, overwrites its positions, flags, pins,
//! arena and region table, and sends messages about mappings, with descriptors and without. The input is a list of commands: one byte, then operands. Checked: nothing panics;
//! messages are no longer than any may be; every operation completes once, before `HungUp`; that comes once, after it
//! nothing but requests and then `Gone`, for the same reason, and nothing after that; requests are taken while both
//! admissions are open; with nothing more to do the context sleeps; at the end all registered memory
//! is given back.
//!
//! [`fuzz_regions`]: a region table is overwritten, then read. What is accepted is what a plain reading
//! of the table, as its layout says, accepts.
//!
//! Only gets are asked for, never puts: the liar's table would send them anywhere in this process.

use std::{
    collections::HashSet,
    hint::black_box,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use hg_na::{
    Completion, Context as _, Descriptor, GoneReason, Memory, Message, Op, OpId, OpenOptions, Peer,
    Region, Returned, Rights,
};

use crate::{
    arena::{ARENA_BYTES, MESSAGE_MAX},
    context::{SmContext, TRIM_AFTER},
    descriptor::{RegionClaim, RegionName},
    domain::Shared,
    layout::{PINS, RINGS},
    link::{CONTROL_MAX, Link},
    region::{
        plan::{Run, total},
        state::SmRegion,
        table::{OwnedTable, PeerTable, REGIONS_MAX, SEGMENTS_MAX, TABLE_LEN},
    },
    rendezvous::packet::{Packet, Status},
    ring::Word,
    shared::alloc,
};

/// Commands of one input.
const COMMANDS: usize = 256;
/// Rounds in which everything that ends has ended.
const ROUNDS: usize = 2000;
/// Bytes of each registered region.
const REGION_BYTES: u64 = 4096;
/// Tags that receives and answers use: few, so that they meet.
const TAGS: u8 = 80;

/// A connection of two contexts, one of which has its memory overwritten.
pub fn fuzz_rings(data: &[u8]) {
    let Some(mut pair) = Pair::connected() else { return };
    let mut input = Input(data);
    for _ in 0..COMMANDS {
        if pair.obey(&mut input).is_none() {
            break;
        }
    }
    pair.finish();
}

/// The fuzzer's bytes; `None` when there are no more.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// An index below a bound.
    fn below(&mut self, bound: usize) -> Option<usize> {
        Some(usize::try_from(self.u32()?).ok()? % bound)
    }
}

/// The honest side, and what it was promised.
struct Target {
    context: SmContext,
    liar: Peer,
    now: Instant,
    done: Vec<Completion>,
    /// Accepted operations that have not completed.
    posted: HashSet<OpId>,
    /// The same and those that have, to cancel them too late.
    ids: Vec<OpId>,
    reserved: Vec<Message>,
    local: Region,
    registered: Vec<Region>,
    /// Of everything that was ever in `registered`.
    memories: Vec<Weak<[u8]>>,
    /// Whether admission is open to all, and to the liar.
    admits: [bool; 2],
    hung_up: Option<GoneReason>,
    is_gone: bool,
}

/// The other side.
struct Liar {
    context: SmContext,
    target: Peer,
    /// True descriptions of its memory: private, and such as can be mapped.
    descriptors: [Descriptor; 2],
    _regions: [Region; 2],
}

struct Pair {
    target: Target,
    liar: Liar,
}

fn open() -> Option<(Arc<Shared>, SmContext)> {
    let shared = Shared::open(&"sm://".parse().ok()?, &OpenOptions::listening()).ok()?;
    let context = SmContext::open(&shared, 0, None).ok()?;
    Some((shared, context))
}

fn region(shared: &Shared, memory: Memory) -> Option<Region> {
    let rights = if memory.writable() { Rights::READ | Rights::WRITE } else { Rights::READ };
    Some(Region::new(SmRegion::register(&shared.regions, memory, rights).ok()?))
}

impl Pair {
    /// Nothing when the system refuses something: that is not the fuzzer's doing.
    fn connected() -> Option<Self> {
        let (shared, mut context) = open()?;
        let (liars, mut liar) = open()?;
        let local = region(&shared, Memory::from(vec![0; REGION_BYTES.try_into().ok()?]))?;
        let owned = region(&liars, Memory::from(vec![7; REGION_BYTES.try_into().ok()?]))?;
        let shared_memory = Memory::from(alloc(REGION_BYTES.try_into().ok()?).ok()?);
        let lent = region(&liars, shared_memory)?;
        let descriptors = [owned.descriptor(), lent.descriptor()];
        let to = liar.lookup(context.address()).ok()?;
        liar.post(0, Op::SendUnexpected { to, message: Message::copied(b"hello") }).ok()?;
        let mut liar = Liar { context: liar, target: to, descriptors, _regions: [owned, lent] };
        let now = Instant::now();
        let from = greeted(&mut context, &mut liar, now)?;
        let target = Target {
            context,
            liar: from,
            now,
            done: Vec::new(),
            posted: HashSet::new(),
            ids: Vec::new(),
            reserved: Vec::new(),
            local,
            registered: Vec::new(),
            memories: Vec::new(),
            admits: [true; 2],
            hung_up: None,
            is_gone: false,
        };
        Some(Self { target, liar })
    }

    /// One command of the input.
    fn obey(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.u8()? {
            command @ 0..128 => self.liar.lie(command % 8, input),
            command => self.target.act(command % 13, input, &self.liar.descriptors),
        }
    }

    /// The liar says no more, and then leaves: everything has to end.
    fn finish(self) {
        let Self { mut target, liar } = self;
        target.comes_to_rest();
        drop(liar);
        target.until(|target| target.hung_up.is_some());
        target.comes_to_rest();
        target.admit(true, true);
        target.until(|target| target.is_gone);
        target.context.shared.regions.boards.end_processes(); // The liar's is this one, which lives on.
        target.registered.clear();
        // What the chores do once they have found a process ended.
        target.context.shared.regions.sweep();
        let kept = target.memories.iter().filter(|memory| memory.strong_count() > 0).count();
        assert_eq!(kept, 0, "regions that a dead peer had pinned were not given back");
    }
}

/// Connects both, and takes the liar's first message.
fn greeted(context: &mut SmContext, liar: &mut Liar, now: Instant) -> Option<Peer> {
    let mut done = Vec::new();
    for _ in 0..ROUNDS {
        liar.round(now);
        round(context, now, &mut done);
        if let Some(Completion::Unexpected { from, .. }) = done.pop() {
            return Some(from);
        }
    }
    None
}

/// Asks the kernel, then makes progress.
fn round(context: &mut SmContext, now: Instant, done: &mut Vec<Completion>) {
    context.waiter.ask(|_| true).expect("epoll works");
    context.progress(now, done).expect("a round works");
}

impl Liar {
    fn round(&mut self, now: Instant) {
        round(&mut self.context, now, &mut Vec::new());
    }

    /// Writes something. Once it was found out its memory is gone, and nothing happens.
    fn lie(&mut self, what: u8, input: &mut Input<'_>) -> Option<()> {
        if what == 7 {
            self.round(Instant::now());
            return Some(());
        }
        let (at, value) = (usize::from(input.u8()?), input.u32()?);
        let wide = |low: u32, high: u32| (u64::from(high) << 32) | u64::from(low);
        let connection = self.context.peers.find(self.target);
        let Some(link) = connection.and_then(|it| it.link.as_mut()) else { return Some(()) };
        match what {
            0 | 1 => publish(link, at % RINGS, Word(value), input)?,
            2 => {
                let slots = link.own.rings.ring(at % RINGS);
                let slot = &slots[input.below(slots.len())?];
                slot.sequence.store(value, Ordering::Relaxed);
            }
            3 => link.own.rings.popped[at % RINGS].0.store(value, Ordering::Relaxed),
            4 => match at % 4 {
                0 => link.own.rings.attention.0.store(value, Ordering::Relaxed),
                1 => link.own.rings.space_wanted.0.store(value, Ordering::Relaxed),
                2 => link.own.rings.heed.0.store(value, Ordering::Relaxed),
                _ => _ = link.theirs.ring(),
            },
            5 => {
                let word = &link.own.rings.pins.0[at % PINS];
                word.store(wide(value, input.u32()?), Ordering::Relaxed);
            }
            _ if at % 3 == 0 => return self.speak_of_mappings(value, input),
            _ if at % 3 == 1 => {
                let words = TABLE_LEN / size_of::<u64>();
                let table = &self.context.shared.regions.table;
                let word = table.word(usize::try_from(value).ok()? % words);
                word.store(input.u64()?, Ordering::Relaxed);
            }
            _ => {
                let bytes = input.bytes::<8>()?;
                link.own.arena.bytes.copy_in(value % (ARENA_BYTES - 8), &bytes);
            }
        }
        Some(())
    }
}

impl Liar {
    /// A question, an answer, or a demand to unmap, about a region that may exist.
    fn speak_of_mappings(&mut self, value: u32, input: &mut Input<'_>) -> Option<()> {
        let name = RegionName { index: value % 8, generation: u32::from(input.u8()?) };
        let message = match input.u8()? % 5 {
            0 => Packet::Map(name, input.bytes()?),
            1 => Packet::Mapped(name, Status::Given),
            2 => Packet::Mapped(name, Status::NoSuch),
            3 => Packet::Mapped(name, Status::NoDescriptor),
            _ => Packet::Unmap(name),
        };
        let table = self.context.shared.regions.table.fd()?;
        let fds = [table; 2];
        let count = usize::from(input.u8()? % 3);
        let connection = self.context.peers.find(self.target)?;
        if let Some(socket) = &connection.socket {
            let _full_is_fine = socket.send(&message.encode(), &fds[..count]);
        }
        Some(())
    }
}

/// Publishes any word and payload in a slot that is free.
fn publish(link: &mut Link, ring: usize, word: Word, input: &mut Input<'_>) -> Option<()> {
    let payload = [input.u64()?, input.u64()?, 3, 4, 5, 6, 7];
    // The target's position is honest.
    if link.has_room(ring, 1).unwrap_or(false) {
        link.push(ring, word, &payload);
    }
    Some(())
}

impl Target {
    /// Does what a user might.
    fn act(&mut self, what: u8, input: &mut Input<'_>, remotes: &[Descriptor; 2]) -> Option<()> {
        let (small, to) = (input.u8()?, self.liar);
        let tag = u64::from(small % TAGS);
        match what {
            0 | 1 => (0..=small).for_each(|_| self.round()),
            2 => {
                let message = self.message(input)?;
                self.post(Op::SendUnexpected { to, message });
            }
            3 => {
                let message = self.message(input)?;
                self.post(Op::SendExpected { to, tag, message });
            }
            4 => {
                let message = Message::inline(usize::from(small) % (CONTROL_MAX + 1));
                self.post(Op::SendControl { to, message });
            }
            5 => self.post(Op::RecvExpected { from: to, tag }),
            6 => {
                let message = self.message(input)?;
                self.reserved.push(message);
            }
            7 => self.get(&remotes[usize::from(small % 2)], input)?,
            8 => {
                if let Some(id) = self.ids.get(usize::from(small)) {
                    self.context.cancel(*id);
                }
            }
            9 if small & 2 == 0 => self.admit(small.is_multiple_of(2), self.admits[1]),
            9 => self.admit(self.admits[0], small.is_multiple_of(2)),
            10 => self.sleep(),
            11 => {
                let remote = remotes[usize::from(small % 2)].slice(0, REGION_BYTES).ok()?;
                self.post(Op::View { from: to, remote });
            }
            _ => self.change_regions(small)?,
        }
        Some(())
    }

    fn admit(&mut self, all: bool, liar: bool) {
        self.admits = [all, liar];
        self.context.set_admission(all);
        self.context.set_admission_of(self.liar, liar);
    }

    /// The peer has left, which is to be told.
    fn until(&mut self, is_told: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS {
            self.round();
            if is_told(self) {
                return;
            }
        }
        panic!("the peer has left, and its end was not told: {:?}", self.hung_up);
    }

    fn round(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        round(&mut self.context, self.now, &mut done);
        for completion in done.drain(..) {
            self.check(completion);
        }
        self.done = done;
    }

    /// Whatever a peer has written, in the end the context sleeps.
    fn comes_to_rest(&mut self) {
        for _ in 0..ROUNDS {
            self.round();
            if self.context.may_sleep() {
                return;
            }
        }
        panic!("a peer that does nothing keeps the context awake");
    }

    fn check(&mut self, completion: Completion) {
        assert!(!self.is_gone, "{completion:?} after Gone");
        match completion {
            Completion::Unexpected { from, message } => {
                assert!(from == self.liar && message.len() <= MESSAGE_MAX as usize);
                assert_eq!(self.admits, [true; 2], "a request that was not admitted");
                read(&message);
            }
            Completion::Control { from, message } => {
                assert!(from == self.liar && message.len() <= CONTROL_MAX);
                assert!(self.hung_up.is_none(), "a control message after the hang-up");
                read(&message);
            }
            Completion::Done(done) => {
                assert!(self.posted.remove(&done.id), "{done:?} was not posted, or not once");
                match done.returned {
                    Returned::Message(message) => {
                        assert!(message.len() <= MESSAGE_MAX as usize);
                        read(&message);
                    }
                    Returned::View(bytes) => {
                        assert_eq!(bytes.len(), REGION_BYTES);
                        black_box(bytes.to_vec().expect("a view can be read"));
                    }
                    _ => {}
                }
            }
            Completion::HungUp { peer, reason } => {
                assert!(peer == self.liar && self.hung_up.is_none(), "another hang-up: {reason}");
                assert!(self.posted.is_empty(), "{reason}, and {:?} never ended", self.posted);
                self.hung_up = Some(reason);
            }
            Completion::Gone { peer, reason } => {
                assert!(peer == self.liar, "somebody else is gone");
                assert_eq!(self.hung_up, Some(reason), "gone, and hung up otherwise");
                self.is_gone = true;
            }
            Completion::Room { peer } => {
                assert!(peer == self.liar && self.hung_up.is_none(), "room at somebody else");
            }
            other => panic!("{other:?} is unheard of"),
        }
    }

    fn post(&mut self, op: Op) {
        if let Ok(id) = self.context.post(0, op) {
            assert!(self.hung_up.is_none(), "{id:?} after the hang-up");
            assert!(self.posted.insert(id), "{id:?} twice");
            self.ids.push(id);
        }
    }

    /// A message in place, in the poster's own memory, or one that was reserved before.
    fn message(&mut self, input: &mut Input<'_>) -> Option<Message> {
        let (kind, len) = (input.u8()?, input.below(MESSAGE_MAX as usize + 2)?);
        // Most are short: long ones are soon waiting for space.
        let len = if kind & 4 == 0 { len % 200 } else { len };
        let own = Message::from(vec![kind; len]);
        Some(match kind % 4 {
            0 => own,
            1 => self.reserved.pop().unwrap_or(own),
            _ => match self.context.message(self.liar, len) {
                Ok(mut message) => {
                    message.as_mut_slice().fill(kind);
                    message
                }
                Err(_) => own,
            },
        })
    }

    /// Reads the liar's memory, where its table says that it is.
    fn get(&mut self, remote: &Descriptor, input: &mut Input<'_>) -> Option<()> {
        let offset = u64::from(input.u32()?) % REGION_BYTES;
        let len = u64::from(input.u32()?) % (REGION_BYTES - offset + 1);
        let local = self.local.slice(0, len).ok()?;
        self.post(Op::Get { from: self.liar, local, remote: remote.slice(offset, len).ok()? });
        Some(())
    }

    fn sleep(&mut self) {
        if self.context.may_sleep() {
            self.context.waiter().wait(Some(Duration::ZERO)).expect("a wait ends");
        }
        // Pages that were not used for this long are given back in one of the next rounds.
        self.now += TRIM_AFTER;
    }

    /// Registers memory, or takes some back, which the liar may claim to be using.
    fn change_regions(&mut self, small: u8) -> Option<()> {
        if small.is_multiple_of(7) {
            let shared = Memory::from(alloc(64).ok()?);
            self.registered.push(region(&self.context.shared, shared)?);
        } else if small.is_multiple_of(2) {
            let bytes: Arc<[u8]> = Arc::from(&[small; 64][..]);
            self.memories.push(Arc::downgrade(&bytes));
            self.registered.push(region(&self.context.shared, Memory::from(bytes))?);
        } else {
            self.registered.pop();
        }
        Some(())
    }
}

fn read(message: &Message) {
    black_box(message.as_slice().iter().fold(0_u8, |sum, byte| sum ^ byte));
}

/// A table of regions that is overwritten, and read.
pub fn fuzz_regions(data: &[u8]) {
    let Some((owned, theirs)) = table([9; 16]) else { return };
    let mut input = Input(data);
    let words: [_; PINS] = Default::default();
    let mut runs = Vec::new();
    for _ in 0..COMMANDS {
        let Some(command) = input.u8() else { return };
        if command < 192 {
            let Some((at, value)) = place(command, &mut input) else { return };
            owned.word(at).store(value, Ordering::Relaxed);
            continue;
        }
        let Some((claim, needed, range)) = question(&mut input) else { return };
        runs.clear();
        runs.push(BEFORE);
        let answer = theirs.resolve(&claim, needed, range, &words, &mut runs);
        let expected = plainly(&owned, &claim, needed, range);
        assert_eq!(answer.is_ok(), expected.is_some(), "{answer:?} for {claim:?}");
        drop(answer);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0), "a pin is left");
        assert_eq!(runs[0], BEFORE);
        assert_eq!(runs[1..], expected.unwrap_or_default());
    }
}

/// What the caller had in its list before.
const BEFORE: Run = Run { address: 1, len: 1 };

/// Words of an entry, and where segments begin: the layout of `table.rs`.
const ENTRY_WORDS: usize = 8;
const SEGMENTS_AT: usize = REGIONS_MAX as usize * ENTRY_WORDS;

fn table(domain: [u8; 16]) -> Option<(OwnedTable, PeerTable)> {
    let owned = OwnedTable::create(domain).ok()?;
    let theirs = PeerTable::open(domain, &owned.fd()?.try_clone_to_owned().ok()?).ok()?;
    Some((owned, theirs))
}

/// A word of the first entries, of the first segments, or any; and its new value.
fn place(command: u8, input: &mut Input<'_>) -> Option<(usize, u64)> {
    let at = input.below(TABLE_LEN / size_of::<u64>())?;
    let at = match command % 4 {
        0 | 1 => at % (2 * ENTRY_WORDS),
        2 => SEGMENTS_AT + at % 16,
        _ => at,
    };
    Some((at, input.u64()?))
}

fn question(input: &mut Input<'_>) -> Option<(RegionClaim, Rights, (u64, u64))> {
    let flags = input.u8()?;
    let domain = if flags & 1 == 0 { [9; 16] } else { input.bytes()? };
    let index = if flags & 2 == 0 { 0 } else { input.u32()? };
    let (generation, token) = (input.u32()?, input.bytes()?);
    let needed = if flags & 4 == 0 { Rights::READ } else { Rights::WRITE };
    let range = if flags & 8 == 0 {
        (u64::from(input.u8()?), u64::from(input.u8()?))
    } else {
        (input.u64()?, input.u64()?)
    };
    Some((RegionClaim { domain, index, generation, token }, needed, range))
}

/// The naive reading.
fn plainly(
    table: &OwnedTable,
    claim: &RegionClaim,
    needed: Rights,
    (offset, len): (u64, u64),
) -> Option<Vec<Run>> {
    let word = |at: usize| table.word(at).load(Ordering::Relaxed);
    let half = |at: usize, which: usize| -> u32 {
        let [a, b, c, d, e, f, g, h] = word(at).to_le_bytes();
        u32::from_le_bytes(if which == 0 { [a, b, c, d] } else { [e, f, g, h] })
    };
    if claim.domain != [9; 16] || claim.index >= REGIONS_MAX {
        return None;
    }
    let entry = usize::try_from(claim.index).ok()? * ENTRY_WORDS;
    let token = [word(entry + 3).to_le_bytes(), word(entry + 4).to_le_bytes()].concat();
    let is_live = claim.generation % 2 == 1 && half(entry, 0) == claim.generation;
    let rights = u8::try_from(half(entry, 1)).map_or(Rights::empty(), Rights::from_bits_truncate);
    if !is_live || token != claim.token || !rights.contains(needed) {
        return None;
    }
    let (first, count) = (u64::from(half(entry + 1, 0)), u64::from(half(entry + 1, 1)));
    let end = u128::from(offset) + u128::from(len);
    if end > u128::from(word(entry + 2)) || first + count > u64::from(SEGMENTS_MAX) {
        return None;
    }
    let (mut runs, mut before) = (Vec::new(), 0_u128);
    for at in first..first + count {
        let at = SEGMENTS_AT + 2 * usize::try_from(at).ok()?;
        let (address, size) = (word(at), word(at + 1));
        let size = if address.checked_add(size).is_some() { u128::from(size) } else { 0 };
        let from = u128::from(offset).max(before);
        let to = end.min(before + size);
        if from < to {
            let start = usize::try_from(u128::from(address) + from - before).ok()?;
            runs.push(Run { address: start, len: usize::try_from(to - from).ok()? });
        }
        before += size;
    }
    (total(&runs) as u64 == len).then_some(runs)
}
