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
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use hg_channel::{Batch, Directory, Error, Event, Limits, Near, Port, When, next_record};
use hg_na::{Address, Caps, Context, OpenOptions, Plugin};
use nix::sys::signal::{Signal, raise};
use watchdog::Watchdog;
use world::{TOKEN, World, is_there};

/// Three ends that write to one another, come to rest, and write again, of which one dies after so many steps: a record was written, or is held, gets another
/// tag, is released; something has come, a block was consumed, something was acknowledged, something has left.
struct Steps {
    world: World,
    left: u32,
    die: fn(&mut World),
    taken: u32,
    /// Who are to be told, of each end; and those whose records were refused.
    expected: [Vec<u64>; 3],
}

const VICTIM: usize = 1;
/// Who writes to whom.
const PAIRS: [(u32, u32); 5] = [(0, 1), (1, 0), (2, 1), (0, 2), (1, 2)];
/// A bit of the tags of what is held.
const HELD: u32 = 1 << 16;

impl Steps {
    fn new(world: World, left: u32, die: fn(&mut World)) -> Self {
        Self { world, left, die, taken: 0, expected: Default::default() }
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
        self.release_all(phase);
    }

    /// What is held leaves in its place, after more has come and gone.
    fn release_all(&mut self, phase: u64) {
        for at in 0..3 {
            let _dead = self.round(at);
        }
        for (from, to) in PAIRS {
            let Some(port) = &mut self.world.ports[from as usize] else { continue };
            port.retag(to, phase, |tag| tag & !HELD);
            self.taken();
            // The one that has died meanwhile may be this one.
            if let Some(port) = &mut self.world.ports[from as usize] {
                port.release(to, phase);
            }
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
                other => panic!("{other:?}"),
            }
            self.taken();
        }
        while !self.world.waiting[at].is_empty() {
            let mut block = self.world.waiting[at].remove(0);
            let block = block.arrived();
            let mut bytes = block.bytes();
            while let Some(record) = next_record(&mut bytes).unwrap() {
                self.world.consumed[at].push((block.from(), record.tag, record.bytes.len()));
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

fn an_end_at_every_step(plugin: &dyn Plugin, url: &str) {
    let (mut left, mut has_died) = (0, true);
    while has_died {
        let _watchdog = Watchdog::start();
        left += 1;
        let world = World::new(plugin, url, 3, limits());
        let mut steps = Steps::new(world, left, |world| world.ports[VICTIM] = None);
        steps.both_phases();
        has_died = steps.world.ports[VICTIM].is_none();
        steps.verify(has_died);
    }
    assert!(left > 40, "there are so many steps at least: {left}");
}

fn limits() -> Limits {
    Limits::default().block(128).window(512).idle(Duration::from_millis(1))
}

/// The context of an end, and what its transport can do.
type Opened = (Box<dyn Context>, Caps);

fn open(url: &str) -> Opened {
    let plugin = plugin_of(url);
    let domain = plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap();
    (domain.context(0).unwrap(), domain.caps().clone())
}

/// Of all ends, those that are here.
fn world_of(addresses: Vec<Address>, here: Vec<(usize, Opened)>) -> World {
    let directory = Arc::new(Directory::new(TOKEN, addresses.clone()));
    let mut ports: Vec<Option<Port<u64>>> = addresses.iter().map(|_| None).collect();
    for (at, (context, caps)) in here {
        let end = u32::try_from(at).unwrap();
        let near = Near::new(end, 1);
        let port = Port::new(end, context, Arc::clone(&directory), near, limits());
        ports[at] = Some(port.over(&caps));
    }
    World::with(ports, addresses)
}

/// What the process does that the tests start: the victim, which kills itself after so many steps. If it takes fewer, it goes on until its parent is done.
#[test]
fn process() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let [left, url, first, last] = words.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{words}")
    };
    let here = open(url);
    let address = |text| Address::new(text).unwrap();
    say(&*here.0);
    let addresses = vec![address(first), here.0.address().clone(), address(last)];
    let world = world_of(addresses, vec![(VICTIM, here)]);
    let mut steps = Steps::new(world, left.parse().unwrap(), |_| raise(Signal::SIGKILL).unwrap());
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
fn say(context: &dyn Context) {
    println!("\n{SAYS}{}", context.address());
}

/// Starts the victim; it, and where it is.
fn start(left: u32, url: &str, others: &[Address; 2]) -> (Child, Address) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process", "--nocapture"]);
    command.env(VARIABLE, format!("{left} {url} {} {}", others[0], others[1]));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let address = lines.find_map(|line| line.strip_prefix(SAYS).map(str::to_owned)).unwrap();
    (child, Address::new(&address).unwrap())
}

/// A transport that takes long to open is tried with one step of `stride`, with others in each run.
fn a_process_at_every_step(url: &str, stride: u32) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first = u32::try_from(now.as_secs() % u64::from(stride)).unwrap() + 1;
    let (mut left, mut has_died) = (0, true);
    while has_died {
        let _watchdog = Watchdog::start();
        left = if left == 0 { first } else { left + stride };
        let (first, last) = (open(url), open(url));
        let others = [&first, &last].map(|it| it.0.address().clone());
        let (mut child, victim) = start(left, url, &others);
        let [at_first, at_last] = others;
        let addresses = vec![at_first, victim, at_last];
        let world = world_of(addresses, vec![(0, first), (2, last)]);
        let mut steps = Steps::new(world, 0, |_| {});
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
        has_died = ended.signal() == Some(Signal::SIGKILL as i32);
        assert!(has_died || ended.success(), "killed or served, after {left}: {ended}");
        steps.verify(has_died);
    }
    assert!(left > 20, "there are so many steps at least: {left}");
}

/// The same tests over each transport.
macro_rules! suite {
    ($name:ident, $plugin:expr, $url:expr, $stride:expr) => {
        mod $name {
            #[test]
            fn an_end_may_die_after_any_step_and_the_others_hear_of_each_record_once() {
                if super::is_there(&$plugin, $url, module_path!()) {
                    super::an_end_at_every_step(&$plugin, $url);
                }
            }

            #[test]
            fn a_process_may_be_killed_after_any_step_and_the_others_hear_of_each_record_once() {
                if super::is_there(&$plugin, $url, module_path!()) {
                    super::a_process_at_every_step($url, $stride);
                }
            }
        }
    };
}

suite!(sm, hg_na_sm::SmPlugin, "sm://", 1);
suite!(tcp, hg_na_tcp::TcpPlugin, "tcp://127.0.0.1", 1);
suite!(ofi_tcp, hg_na_ofi::OfiPlugin, "ofi+tcp://127.0.0.1", 7);

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
