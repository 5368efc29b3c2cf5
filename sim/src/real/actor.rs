//! A process of a story: it makes its own calls, serves those of others, and tells its parent.
//!
//! | the parent says | it |
//! |---|---|
//! | `begin TIME ADDRESS ...` | makes its calls from then on; the addresses of all processes |
//! | `over` | lets end what would not end by itself |
//! | `probe NUMBER:TARGET ...` | makes these calls |
//! | `left` | says what has not returned to zero |
//! | `drain NANOS` | drains its engine for so long at most, then closes it |
//! | `close` | closes its engine, and ends |
//!
//! | it says | |
//! |---|---|
//! | `open ADDRESS ...` | it listens |
//! | `begun CALL TIME`, `ended CALL TIME HOW ...` | of its calls |
//! | `serves CALL` | a handler begins |
//! | `fail CHECK: WHY` | something is not as it should be |
//! | `left COUNTS ...` | it was asked |
//!
//! On `SIGUSR1` it writes to its error stream what its engine is doing.

use std::{
    io::{BufRead as _, Write as _},
    process::exit,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};

use hg_engine::{Builder, Engine, Progress};
use hg_na::{Address, Error};
use nix::sys::signal::Signal;

use super::{
    Transport,
    counted::{Counted, Regions},
    machine::Machine,
    now,
};
use crate::{
    caller, drive,
    rpcs::Kind,
    serve,
    stage::Stage,
    story::{Call, Event, Manner, Story, What, contexts},
};

/// The first argument of this program where it is a process of a story.
pub const FLAG: &str = "--actor";

/// Plays the process that the arguments behind [`FLAG`] name: transport, URL, seed, process, and from which event on.
pub fn play(arguments: &[String]) -> ! {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("a signal of Linux");
    let [transport, url, numbers @ ..] = arguments else { exit(2) };
    let transport: Transport = transport.parse().unwrap_or_else(|_| exit(2));
    let numbers: Vec<usize> = numbers.iter().map_while(|text| text.parse().ok()).collect();
    let [seed, process, first] = numbers[..] else { exit(2) };
    let story = Story::for_machine(seed as u64);
    if story.hangs(process) {
        hang(transport, url, story.hung);
    }
    watchdog::answer();
    let actor = Actor::open(transport, url, Machine::new(story, process));
    while let Some(line) = next_line() {
        actor.follow(&line, first);
    }
    // The parent has ended.
    exit(3);
}

/// Says a line to the parent.
pub(super) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a parent nobody is told, and the process ends soon.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn next_line() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(len) if len > 0 => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// Opens an engine, maybe at an address that the one before is still leaving.
fn open(builder: impl Fn() -> Builder, url: &str) -> Engine {
    loop {
        match builder().open(url) {
            Ok(handle) => return handle,
            Err(Error::AddressInUse(_)) => thread::yield_now(),
            Err(error) => {
                say(&format!("fail open: {url}: {error}"));
                exit(1);
            }
        }
    }
}

/// Processes that hang: engines that nobody makes progress for. The parent stops this process, too.
fn hang(transport: Transport, url: &str, count: usize) -> ! {
    let builder = || {
        let plugin = Counted { plugin: transport.plugin(), regions: Regions::default() };
        Builder::new().plugin(plugin).listen(true).progress(Progress::Own)
    };
    let url_of = |at| match transport {
        Transport::Sm => format!("{url}-{at}"),
        Transport::Tcp => url.to_owned(),
    };
    let engines: Vec<_> = (0..count).map(|at| open(builder, &url_of(at))).collect();
    let addresses: Vec<_> = engines.iter().map(|it| it.address().to_string()).collect();
    say(&format!("open {}", addresses.join(" ")));
    while next_line().is_some() {}
    exit(3);
}

struct Actor {
    machine: Arc<Machine>,
    handle: Engine,
    regions: Regions,
}

impl Actor {
    fn open(transport: Transport, url: &str, machine: Arc<Machine>) -> Self {
        let settings = &machine.story.processes[machine.process - 1];
        let regions = Regions::default();
        let plugin = || Counted { plugin: transport.plugin(), regions: regions.clone() };
        let stage: Arc<dyn Stage> = machine.clone();
        let builder = || serve::builder(settings, machine.process, &stage).plugin(plugin());
        let handle = open(builder, url);
        drive::start(&stage, &handle, settings);
        machine.handle.get_or_init(|| handle.clone());
        say(&format!("open {}", handle.address()));
        Self { machine, handle, regions }
    }

    fn follow(&self, line: &str, first: usize) {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "begin" => self.begin(rest, first),
            "over" => self.machine.be_over(),
            "probe" => rest.split(' ').for_each(|probe| self.probe(probe)),
            "left" => say(&format!("left {}", self.left().map(|it| it.to_string()).join(" "))),
            "drain" => {
                let nanos = rest.parse().expect("a time");
                // It may not have come to an end by then.
                let _ = self.handle.drain(Duration::from_nanos(nanos)).wait();
                self.close();
            }
            "close" => self.close(),
            _ => say(&format!("fail actor: {line}")),
        }
    }

    fn left(&self) -> [usize; 5] {
        let sum = |count: fn(&Engine) -> usize| contexts(&self.handle).map(|it| count(&it)).sum();
        let (requests, calls) = (sum(Engine::requests_in_service), sum(Engine::calls_under_way));
        let (transfers, kept) = (sum(Engine::transfers_under_way), sum(Engine::large_untaken));
        [requests, calls, transfers, kept, self.regions.alive()]
    }

    /// Makes the calls of the story from its event `first` on.
    fn begin(&self, words: &str, first: usize) {
        let (time, addresses) = words.split_once(' ').unwrap_or((words, ""));
        let begun: u64 = time.parse().expect("a time");
        let addresses = addresses.split(' ').map(|it| it.parse().expect("an address"));
        // Nobody has the number 0.
        let own = self.handle.address().clone();
        let addresses: Vec<Address> = std::iter::once(own).chain(addresses).collect();
        self.machine.addresses.get_or_init(|| addresses);
        let machine = self.machine.clone();
        self.machine.threads.spawn(move || make_calls(&machine, begun, first));
    }

    fn probe(&self, words: &str) {
        let (number, to) = words.split_once(':').unwrap_or_default();
        let number: usize = number.parse().expect("a number");
        let to: usize = to.parse().expect("a process");
        let plain = number.is_multiple_of(2);
        let kind = if plain { Kind::Plain } else { Kind::Async };
        let manner = if plain { Manner::Wait } else { Manner::Await };
        let call = Call::plain(self.machine.process, to, kind, manner);
        let mut probes = self.machine.probes.lock().unwrap_or_else(PoisonError::into_inner);
        probes.insert(number, call);
        drop(probes);
        start_call(&self.machine, number);
    }

    /// Every thread of the story ends, then this process.
    fn close(&self) -> ! {
        self.machine.is_closed.store(true, Ordering::Relaxed);
        self.machine.be_over();
        contexts(&self.handle).for_each(|it| it.interrupt_progress());
        self.handle.close();
        self.machine.threads.wait_for_all();
        exit(0);
    }
}

fn start_call(machine: &Arc<Machine>, number: usize) {
    let stage = machine.clone();
    machine.threads.spawn(move || caller::call(stage.as_ref(), number));
}

fn make_calls(machine: &Arc<Machine>, begun: u64, first: usize) {
    for (number, Event { at, what }) in machine.story.events.iter().enumerate().skip(first) {
        let left = (begun + at).saturating_sub(now());
        thread::sleep(Duration::from_nanos(left));
        match *what {
            What::Call(ref call) if call.from == machine.process => start_call(machine, number),
            What::Forget(from, to) if from == machine.process => {
                let (machine, threads) = (machine.clone(), &machine.threads);
                threads.spawn(move || forget(&machine, to));
            }
            What::Close(it) | What::Kill(it) | What::Drain(it, _) if it == machine.process => {
                return;
            }
            _ => {}
        }
    }
}

fn forget(machine: &Machine, to: usize) {
    let (Some(handle), addresses) = (machine.handle.get(), machine.addresses.wait()) else {
        return;
    };
    if let Ok(peer) = handle.lookup(&addresses[to]) {
        handle.forget(peer);
    }
}
