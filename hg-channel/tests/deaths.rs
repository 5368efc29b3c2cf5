//! An end that dies after each step of the protocol, between others that live: dropped, and as a process of its own that is killed.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "a part of it is needed here")]
mod world;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use hg_channel::{Batch, Directory, Error, Event, Limits, Near, Port, When, next_record};
use hg_na::{Address, Context, Descriptor, Domain, Memory, OpenOptions, Plugin, Region, Rights};
use nix::sys::signal::{Signal, raise};
use watchdog::Watchdog;
use world::{TOKEN, World, is_there};

/// Three ends that write to one another, come to rest, and write again, of which one dies after so many steps: a record was written, or is held, a put
/// was begun that it tells of, the put has ended, the record gets another tag, is released; something has come, a block was consumed, something was
/// acknowledged, something has left.
struct Steps {
    world: World,
    areas: [Area; 3],
    /// Puts that the transport has not taken yet.
    puts: Vec<Put>,
    left: u32,
    die: fn(&mut World),
    taken: u32,
    /// Who are to be told, of each end; and those whose records were refused.
    expected: [Vec<u64>; 3],
}

const VICTIM: usize = 1;
/// Who writes to whom.
const PAIRS: [(u32, u32); 5] = [(0, 1), (1, 0), (2, 1), (0, 2), (1, 2)];
/// A bit of the tags of what is held, and one of those whose bytes were not put.
const HELD: u32 = 1 << 16;
const WITHDRAWN: u32 = 1 << 17;
/// Bytes of a put.
const LEN: u64 = 20_000;

/// Memory of an end: what each puts there in each phase, and what it puts itself.
struct Area {
    descriptor: Descriptor,
    /// None: it is another process's.
    region: Option<Region>,
}

#[derive(Clone, Copy)]
struct Put {
    from: u32,
    to: u32,
    phase: u64,
}

impl Put {
    fn byte(self) -> u8 {
        u8::try_from(u64::from(self.from) * 2 + self.phase + 1).unwrap()
    }

    /// Where it is put to.
    fn offset(self) -> u64 {
        (u64::from(self.from) * 2 + self.phase) * LEN
    }

    /// Where it is put from: behind what others put here.
    fn source(self) -> u64 {
        (6 + self.phase) * LEN
    }

    fn token(self) -> u64 {
        u64::from(self.to) * 2 + self.phase
    }

    fn of_token(from: u32, token: u64) -> Self {
        Self { from, to: u32::try_from(token / 2).unwrap(), phase: token % 2 }
    }
}

impl Area {
    fn new(domain: &dyn Domain, end: usize) -> Self {
        let from = u32::try_from(end).unwrap();
        let memory = Memory::from(vec![0; usize::try_from(8 * LEN).unwrap()]);
        let region = domain.register(memory, Rights::all()).unwrap();
        for phase in 0..2 {
            let put = Put { from, to: 0, phase };
            region.write(put.source(), &vec![put.byte(); usize::try_from(LEN).unwrap()]).unwrap();
        }
        Self { descriptor: region.descriptor(), region: Some(region) }
    }

    fn elsewhere(hex: &str) -> Self {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        Self { descriptor: Descriptor::decode(&bytes).unwrap(), region: None }
    }

    fn hex(&self) -> String {
        self.descriptor.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn has(&self, put: Put) -> bool {
        let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
        self.region.as_ref().unwrap().read(put.offset(), &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == put.byte())
    }
}

impl Steps {
    fn new(ends: [End; 3], left: u32, die: fn(&mut World)) -> Self {
        let addresses: Vec<Address> = ends.iter().map(|it| it.address.clone()).collect();
        let directory = Arc::new(Directory::new(TOKEN, addresses.clone()));
        let mut ports = Vec::new();
        let mut number = 0..;
        let areas = ends.map(|End { area, opened, .. }| {
            let end = number.next().unwrap();
            ports.push(opened.map(|(context, domain)| {
                let near = Near::new(end, 1);
                let port = Port::new(end, context, Arc::clone(&directory), near, limits());
                port.over(domain.caps())
            }));
            area
        });
        let (world, (puts, expected)) = (World::with(ports, addresses), Default::default());
        Self { world, areas, puts, left, die, taken: 0, expected }
    }

    fn taken(&mut self) {
        self.taken += 1;
        if self.taken == self.left {
            (self.die)(&mut self.world);
        }
    }

    fn write_all(&mut self, phase: u64) {
        for number in 0..2_u32 {
            for (from, to) in PAIRS {
                let notice = phase * 1000 + u64::from(100 * from + 10 * to + number);
                let Some(port) = &mut self.world.ports[from as usize] else { continue };
                // The second one waits for bytes, and is something else until they are there.
                let is_held = number == 1;
                let tag = if is_held { number | HELD } else { number };
                if is_held {
                    port.seal(to);
                }
                let written = port.record(to, tag, 100, 1 << 20).map(|room| room.fill(7));
                match written {
                    Ok(()) => {
                        if is_held {
                            port.hold(to, phase);
                            self.puts.push(Put { from, to, phase });
                        }
                        let when = if number % 2 == 0 { When::Consumed } else { When::Sent };
                        port.tell(to, when, notice);
                        self.expected[from as usize].push(notice);
                    }
                    Err(error) => assert!(matches!(error, Error::Gone { end: 1, .. }), "{error}"),
                }
                self.taken();
            }
        }
    }

    /// What an end is to put, as soon as there is a connection and the transport has room.
    fn put_all(&mut self, at: usize) {
        for put in std::mem::take(&mut self.puts) {
            let Put { from, to, phase } = put;
            if from as usize != at {
                self.puts.push(put);
                continue;
            }
            let Some(port) = &mut self.world.ports[at] else { continue };
            let source = self.areas[at].region.as_ref().unwrap().slice(put.source(), LEN).unwrap();
            let there = self.areas[to as usize].descriptor.slice(put.offset(), LEN).unwrap();
            match port.put(to, put.token(), source, there) {
                Ok(()) => self.taken(),
                Err(Error::Full(_)) => self.puts.push(put),
                Err(Error::Gone { .. }) => assert_eq!(to as usize, VICTIM),
                Err(error) => {
                    assert_eq!(to as usize, VICTIM, "phase {phase}: {error}");
                    self.release(put, WITHDRAWN);
                }
            }
        }
    }

    /// What is held leaves in its place, after more has come and gone.
    fn release(&mut self, Put { from, to, phase }: Put, tag: u32) {
        let at = from as usize;
        let Some(port) = &mut self.world.ports[at] else { return };
        port.retag(to, phase, |it| it & !HELD | tag);
        self.taken();
        // The one that has died meanwhile may be this one.
        if let Some(port) = &mut self.world.ports[at] {
            port.release(to, phase);
        }
    }

    /// What the end does once; `None`: it is dead.
    fn round(&mut self, at: usize) -> Option<()> {
        let mut batch = Batch::default();
        if self.world.ports[at].as_mut()?.advance(Instant::now(), &mut batch).unwrap() {
            self.taken();
        }
        while let Some(event) = self.world.ports[at].as_mut()?.next(&mut batch) {
            match event {
                Event::Block(block) => self.world.waiting[at].push(block.keep()),
                Event::Gone { end, notices, .. } => self.world.gone[at].push((end, notices)),
                Event::Moved { token, result, .. } => {
                    let put = Put::of_token(u32::try_from(at).unwrap(), token);
                    assert!(result.is_ok() || put.to as usize == VICTIM, "{result:?}");
                    self.taken();
                    self.release(put, if result.is_ok() { 0 } else { WITHDRAWN });
                }
                other => panic!("{other:?}"),
            }
            self.taken();
        }
        self.put_all(at);
        while !self.world.waiting[at].is_empty() {
            let mut block = self.world.waiting[at].remove(0);
            let block = block.arrived();
            let mut bytes = block.bytes();
            while let Some(record) = next_record(&mut bytes).unwrap() {
                let (from, consumed) = (block.from(), &mut self.world.consumed[at]);
                let tells = |it: &(u32, u32, usize)| (it.0, it.1) == (from, 1);
                let phase = consumed.iter().filter(|it| tells(it)).count() as u64;
                let put = Put { from, to: 0, phase };
                assert!(record.tag != 1 || self.areas[at].has(put), "it tells of bytes");
                consumed.push((from, record.tag, record.bytes.len()));
            }
            self.world.ports[at].as_mut()?.consumed(block);
            self.taken();
        }
        let before = self.world.ports[at].as_ref()?.stats();
        self.world.ports[at].as_mut()?.acknowledge();
        if self.world.ports[at].as_ref()?.stats() != before {
            self.taken();
        }
        if self.world.ports[at].as_mut()?.flush_all() {
            self.taken();
        }
        let port = self.world.ports[at].as_mut()?;
        self.world.told[at].extend(std::iter::from_fn(|| port.due()));
        Some(())
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        watchdog::until(what, || {
            for at in 0..3 {
                let _dead = self.round(at);
            }
            holds(self)
        });
    }

    fn both_phases(&mut self) {
        for phase in 0..2 {
            self.write_all(phase);
            self.until("everybody is told", Self::all_told);
            let none = |it: &Self| it.world.ports.iter().flatten().all(|it| it.connections() == 0);
            self.until("nothing is left of it", none);
        }
    }

    /// What those that live have got of one another, and have heard of the one that may have died.
    fn verify(&self, has_died: bool) {
        let tags = |at: usize, from: u32| -> Vec<u32> {
            let got = self.world.consumed[at].iter().filter(|it| it.0 == from);
            got.map(|it| it.1).collect()
        };
        let (all, left) = ([0, 1, 0, 1], self.left);
        assert_eq!(tags(2, 0), all, "those that live go on, after step {left}");
        for at in [0, 2] {
            let got = tags(at, 1);
            assert!(all.starts_with(&got), "in order, once, until step {left}: {got:?}");
            assert!(has_died || got == all, "nothing is lost: {got:?}");
        }
        for gone in &self.world.gone {
            assert!(gone.len() <= 1 && gone.iter().all(|(end, _)| *end == 1), "{gone:?}");
            assert!(has_died || gone.is_empty(), "nobody is gone: {gone:?}");
        }
    }

    /// Each of those that live has heard of each of its records once, though of some that their end is gone.
    fn all_told(&self) -> bool {
        (0..3).filter(|at| self.world.ports[*at].is_some()).all(|at| {
            let of_gone = self.world.gone[at].iter().flat_map(|(_, notices)| notices);
            let mut heard: Vec<u64> = self.world.told[at].iter().chain(of_gone).copied().collect();
            heard.sort_unstable();
            let mut expected = self.expected[at].clone();
            expected.sort_unstable();
            assert!(heard.len() <= expected.len(), "{heard:?} of {expected:?}");
            heard == expected
        })
    }
}

/// A transport that takes long to open is tried with one step of `stride`, with others in each run.
fn steps_of(stride: u32) -> impl Iterator<Item = u32> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first = u32::try_from(now.as_secs() % u64::from(stride)).unwrap() + 1;
    (first..).step_by(stride as usize)
}

fn an_end_at_every_step(url: &str, stride: u32) {
    for left in steps_of(stride) {
        let _watchdog = Watchdog::start();
        let all = [0, 1, 2].map(|end| End::open(url, end));
        let mut steps = Steps::new(all, left, |world| world.ports[VICTIM] = None);
        steps.both_phases();
        let has_died = steps.world.ports[VICTIM].is_none();
        steps.verify(has_died);
        if !has_died {
            assert!(left > 100, "there are so many steps at least: {left}");
            return;
        }
    }
}

fn limits() -> Limits {
    Limits::default().block(128).window(512).idle(Duration::from_millis(1))
}

/// An end, before it has a port.
struct End {
    address: Address,
    area: Area,
    /// None: it is another process's.
    opened: Option<(Box<dyn Context>, Arc<dyn Domain>)>,
}

impl End {
    fn open(url: &str, end: usize) -> Self {
        let plugin = plugin_of(url);
        let domain = plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap();
        let (context, area) = (domain.context(0).unwrap(), Area::new(&*domain, end));
        Self { address: context.address().clone(), area, opened: Some((context, domain)) }
    }

    /// What another process needs to reach it.
    fn words(&self) -> String {
        format!("{} {}", self.address, self.area.hex())
    }

    fn elsewhere(address: &str, area: &str) -> Self {
        let (address, area) = (Address::new(address).unwrap(), Area::elsewhere(area));
        Self { address, area, opened: None }
    }
}

/// What the process does that the tests start: the victim, which kills itself after so many steps. If it takes fewer, it goes on until its parent is done.
#[test]
fn process() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let [left, url, first, first_area, last, last_area] = words.split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{words}")
    };
    let here = End::open(url, VICTIM);
    say(&here);
    let all = [End::elsewhere(first, first_area), here, End::elsewhere(last, last_area)];
    let mut steps = Steps::new(all, left.parse().unwrap(), |_| raise(Signal::SIGKILL).unwrap());
    steps.both_phases();
    steps.left = 0;
    let is_over = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            is_over.store(true, Ordering::SeqCst);
        }
    });
    steps.until("the others are done", |_| is_over.load(Ordering::SeqCst));
    let World { consumed, gone, .. } = &steps.world;
    for from in [0, 2] {
        let tags = consumed[VICTIM].iter().filter(|it| it.0 == from).map(|it| it.1);
        assert!(tags.eq([0, 1, 0, 1]), "in order, once: {:?}", consumed[VICTIM]);
    }
    assert!(gone.iter().all(Vec::is_empty), "nobody is gone: {gone:?}");
}

#[expect(clippy::print_stdout, reason = "a process tells its parent")]
fn say(here: &End) {
    println!("\n{SAYS}{}", here.words());
}

/// Starts the victim; it, and where it is.
fn start(left: u32, url: &str, others: [&End; 2]) -> (Child, End) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process", "--nocapture"]);
    let [first, last] = others.map(End::words);
    command.env(VARIABLE, format!("{left} {url} {first} {last}"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let words = lines.find_map(|line| line.strip_prefix(SAYS).map(str::to_owned)).unwrap();
    let (address, area) = words.split_once(' ').unwrap();
    (child, End::elsewhere(address, area))
}

/// Some at a time: to start a process is to wait, over libfabric.
fn a_process_at_every_step(url: &str, stride: u32) {
    let (steps, has_survived) = (Mutex::new(steps_of(stride)), AtomicBool::new(false));
    let next = || steps.lock().unwrap().next().unwrap();
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while !has_survived.load(Ordering::Relaxed) {
                    let left = next();
                    if !is_killed(url, left) {
                        assert!(left > 40, "there are so many steps at least: {left}");
                        has_survived.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Whether there was such a step.
fn is_killed(url: &str, left: u32) -> bool {
    let _watchdog = Watchdog::start();
    let (first, last) = (End::open(url, 0), End::open(url, 2));
    let (mut child, victim) = start(left, url, [&first, &last]);
    let mut steps = Steps::new([first, victim, last], 0, |_| {});
    steps.both_phases();
    drop(child.stdin.take());
    let mut ended = None;
    // It may wait for what the others have to say still.
    watchdog::until("the victim has ended", || {
        for at in 0..3 {
            let _dead = steps.round(at);
        }
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    let ended = ended.unwrap();
    let has_died = ended.signal() == Some(Signal::SIGKILL as i32);
    assert!(has_died || ended.success(), "killed or served, after {left}: {ended}");
    steps.verify(has_died);
    has_died
}

const LANES: usize = 4;

/// The same tests over each transport.
macro_rules! suite {
    ($name:ident, $plugin:expr, $url:expr, $strides:expr) => {
        mod $name {
            #[test]
            fn an_end_may_die_after_any_step_and_the_others_hear_of_each_record_once() {
                if super::is_there(&$plugin, $url, module_path!()) {
                    super::an_end_at_every_step($url, $strides.0);
                }
            }

            #[test]
            fn a_process_may_be_killed_after_any_step_and_the_others_hear_of_each_record_once() {
                if super::is_there(&$plugin, $url, module_path!()) {
                    super::a_process_at_every_step($url, $strides.1);
                }
            }
        }
    };
}

suite!(sm, hg_na_sm::SmPlugin, "sm://", (1, 1));
suite!(tcp, hg_na_tcp::TcpPlugin, "tcp://127.0.0.1", (1, 1));
suite!(ofi_tcp, hg_na_ofi::OfiPlugin, "ofi+tcp://127.0.0.1", (2, 3));

/// The plugin of a process, by the address that it is told.
fn plugin_of(url: &str) -> Box<dyn Plugin> {
    match url.split(':').next() {
        Some("sm") => Box::new(hg_na_sm::SmPlugin),
        Some("tcp") => Box::new(hg_na_tcp::TcpPlugin),
        _ => Box::new(hg_na_ofi::OfiPlugin),
    }
}

/// What a process is told: its last step, the transport, and where the others are.
const VARIABLE: &str = "HG_CHANNEL_VICTIM";
/// Behind it stands where it is.
const SAYS: &str = "address ";
