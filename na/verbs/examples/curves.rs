//! What connections cost, over queue pairs that processes share and over one for each: message rate and memory by the number of connections, and
//! instructions per post.
//!
//! `curves rate REPETITIONS [NEAR FAR]`, `curves memory [NEAR FAR]`, `curves signals REPETITIONS [NEAR FAR]` for messages where one in 32 asks for its completion, and `curves moves [NEAR FAR]` for processor time of gets that are sent or written: NEAR and FAR are URLs of cards, without which the imitation of the tests stands for
//! them. `curves plot FILE REPETITIONS [NEAR FAR]` draws rate and memory as an SVG file. `curves posts EVERY LINES ROUNDS` posts so many rounds of messages over so many connections, of which each EVERY-th asks for its
//! completion, for callgrind:
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='curves::post' --toggle-collect='curves::step_poster' \
//!     target/release/examples/curves posts 32 1 500
//! ```
//! counts the posting side; `callgrind_annotate --inclusive=yes` says how much of it is the imitation's. Both processes are domains of this one, stepped by its only thread.

#![expect(unsafe_code, reason = "asks the allocator how much is in use")]
#![expect(clippy::print_stdout, reason = "what it is for")]

#[path = "../tests/imitated/imitation/mod.rs"]
#[expect(dead_code, reason = "some of it is for tests")]
mod imitation;
#[path = "../../../bench/src/plot.rs"]
mod plot;

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Memory, Message, Op, OpenOptions, Peer, Plugin as _,
    Rights,
};
use hg_na_verbs::VerbsPlugin;
use nix::{
    libc,
    time::{ClockId, clock_gettime},
};
use plot::{Panel, Plot};

/// Contexts of each process: each of one has a connection to each of the other.
const SIDE: usize = 16;
/// Messages of a connection in a round: half of its credits.
const BATCH: usize = 32;
/// Messages of all connections in a round.
const ROUND: usize = 256;
const QUEUE_PAIRS: [&str; 2] = ["shared", "own"];
const TIMED: Duration = Duration::from_millis(300);

struct Process {
    domain: Arc<dyn Domain>,
    contexts: Vec<Box<dyn Context>>,
}

struct World {
    near: Process,
    far: Process,
    peers: Vec<Vec<Peer>>,
}

/// The cards: real ones, or imitations.
fn urls(arguments: &[String]) -> [String; 2] {
    match arguments {
        [near, far] => [near.clone(), far.clone()],
        _ => ["verbs://imitated0".to_owned(), "verbs://imitated0".to_owned()],
    }
}

fn open(url: &str, settings: &[(&str, &str)], contexts: usize) -> Process {
    let plugin = match url.contains("imitated") {
        true => VerbsPlugin::over(&imitation::LIBRARY),
        false => VerbsPlugin::default(),
    };
    let options = settings
        .iter()
        .fold(OpenOptions::listening(), |options, (name, value)| options.with(name, value));
    let domain = plugin
        .open(&Address::new(url).expect("a measurement that fails ends"), &options)
        .expect("a measurement that fails ends");
    let ids = 0..u8::try_from(contexts).expect("a measurement that fails ends");
    let contexts =
        ids.map(|id| domain.context(id).expect("a measurement that fails ends")).collect();
    Process { domain, contexts }
}

/// How many messages have come.
fn step(context: &mut dyn Context) -> usize {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).expect("a measurement that fails ends");
    done.iter().filter(|it| matches!(it, Completion::Unexpected { .. })).count()
}

#[inline(never)]
fn post(context: &mut dyn Context, to: Peer) {
    let op = Op::SendUnexpected { to, message: Message::copied(&[7; 300]) };
    context.post(0, op).expect("a measurement that fails ends");
}

#[inline(never)]
fn step_poster(context: &mut dyn Context) {
    step(context);
}

impl World {
    fn open(urls: &[String; 2], settings: &[(&str, &str)], contexts: usize) -> Self {
        let near = open(&urls[0], settings, contexts);
        let far = open(&urls[1], settings, contexts);
        Self { near, far, peers: vec![Vec::new(); contexts] }
    }

    /// The ends of a connection: neighbours are of different contexts on both sides.
    fn ends(&self, line: usize) -> (usize, usize) {
        let side = self.near.contexts.len();
        (line % side, (line % side + line / side) % side)
    }

    /// Connections up to this one, used once.
    fn connect(&mut self, lines: usize) {
        for line in self.peers.iter().map(Vec::len).sum::<usize>()..lines {
            let (from, to) = self.ends(line);
            let address = self.far.contexts[to].address().clone();
            let peer =
                self.near.contexts[from].lookup(&address).expect("a measurement that fails ends");
            self.peers[from].push(peer);
            self.exchange(&[line], 1);
        }
    }

    /// So many messages of 300 bytes, which are not inline, on each of these connections.
    fn exchange(&mut self, lines: &[usize], each: usize) {
        let side = self.near.contexts.len();
        let ends: Vec<(usize, usize)> = lines.iter().map(|line| self.ends(*line)).collect();
        for (line, (from, _)) in lines.iter().zip(&ends) {
            let to = self.peers[*from][line / side];
            (0..each).for_each(|_| post(&mut *self.near.contexts[*from], to));
        }
        let used = lines.len().min(side);
        let mut missing = lines.len() * each;
        while missing > 0 {
            for (from, to) in &ends[..used] {
                step_poster(&mut *self.near.contexts[*from]);
                missing -= step(&mut *self.far.contexts[*to]);
            }
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Context>> {
        self.near.contexts.iter_mut().chain(&mut self.far.contexts)
    }

    /// When one of them has something to do though nothing comes.
    fn due(&mut self) -> Option<Instant> {
        self.all().filter_map(|context| context.next_deadline()).min()
    }

    /// A round of all, at this time.
    fn step(&mut self, now: Instant) {
        for context in self.all() {
            context.progress(now, &mut Vec::new()).expect("a measurement that fails ends");
        }
    }

    /// Messages in a second over so many connections.
    fn rate(&mut self, lines: usize) -> f64 {
        let all: Vec<usize> = (0..lines).collect();
        let each = (ROUND / lines).min(BATCH);
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < TIMED {
            self.exchange(&all, each);
            count += lines * each;
        }
        count as f64 / start.elapsed().as_secs_f64()
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn rates(repetitions: u32, urls: &[String; 2]) -> Panel {
    let counts = [1, 2, 4, 8, 16, 32, 64, 128, 256];
    let mut all = vec![[Vec::new(), Vec::new()]; counts.len()];
    for _ in 0..repetitions {
        for (mode, queue_pairs) in QUEUE_PAIRS.iter().enumerate() {
            let mut world = World::open(urls, &[("queue-pairs", queue_pairs)], SIDE);
            world.connect(SIDE * SIDE);
            world.rate(1);
            for (count, rates) in counts.iter().zip(&mut all) {
                rates[mode].push(world.rate(*count));
            }
        }
    }
    let mut panel = panel("messages a second, over connections");
    println!("connections  shared msg/s  of one  own msg/s  of one");
    let one = [median(&all[0][0]), median(&all[0][1])];
    for (count, rates) in counts.iter().zip(&all) {
        let [shared, own] = [median(&rates[0]), median(&rates[1])];
        let (of_shared, of_own) = (shared / one[0], own / one[1]);
        println!("{count:11} {shared:13.0} {of_shared:7.2} {own:10.0} {of_own:7.2}");
        panel.over.push(*count as f64);
        panel.curves[0].1.push(shared);
        panel.curves[1].1.push(own);
    }
    panel
}

/// Without points: one curve for each manner of queue pairs.
fn panel(title: &str) -> Panel {
    let curves = QUEUE_PAIRS.map(|name| (name.to_owned(), Vec::new())).into();
    Panel { title: title.to_owned(), over: Vec::new(), curves }
}

/// Bytes in use: of the allocator's, of this process, of the kernel's.
fn in_use() -> [u64; 3] {
    // SAFETY:
    // - no argument, and no precondition.
    let heap = unsafe { libc::mallinfo2() };
    let kilobytes = |file: &str, names: &[&str]| -> u64 {
        let text = fs::read_to_string(file).expect("a measurement that fails ends");
        let of = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            let number = rest.split_whitespace().next()?.parse::<u64>().ok()?;
            names.contains(&name).then_some(number)
        };
        text.lines().filter_map(of).sum::<u64>() * 1024
    };
    [
        (heap.uordblks + heap.hblkhd) as u64,
        kilobytes("/proc/self/status", &["VmRSS"]),
        kilobytes("/proc/meminfo", &["Slab", "VmallocUsed", "PageTables"]),
    ]
}

fn memory(urls: &[String; 2]) -> Panel {
    let mut panel = panel("bytes of memory in use for all connections, over their number");
    println!("bytes of both ends for each further connection");
    println!("queue pairs  connections     heap  resident  kernel");
    for (mode, queue_pairs) in QUEUE_PAIRS.into_iter().enumerate() {
        let mut world = World::open(urls, &[("queue-pairs", queue_pairs)], SIDE);
        world.connect(SIDE);
        let mut sum = 0.0;
        let (mut before, mut lines) = (in_use(), SIDE);
        while lines < SIDE * SIDE {
            world.connect(lines * 2);
            let now = in_use();
            let each = |place: usize| (now[place] as i64 - before[place] as i64) / lines as i64;
            let [heap, resident, kernel] = [each(0), each(1), each(2)];
            (before, lines) = (now, lines * 2);
            println!("{queue_pairs:11} {lines:12} {heap:8} {resident:9} {kernel:7}");
            sum += (resident + kernel) as f64 * (lines / 2) as f64;
            panel.curves[mode].1.push(sum);
            if mode == 0 {
                panel.over.push(lines as f64);
            }
        }
    }
    panel
}

/// Processor time of this thread, the kernel's part of it, too.
fn spent<T>(by: &mut Duration, work: impl FnOnce() -> T) -> T {
    let now = || {
        Duration::from(
            clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a measurement that fails ends"),
        )
    };
    let before = now();
    let result = work();
    *by += now() - before;
    result
}

/// Processor time of a get at each end: its initiator's, its owner's.
fn get_spends(urls: &[String; 2], settings: &[(&str, &str)], len: usize) -> [f64; 2] {
    const GETS: u32 = 200;
    let mut world = World::open(urls, settings, 1);
    world.connect(1);
    let peer = world.peers[0][0];
    let far = world
        .far
        .domain
        .register(Memory::from(vec![1; len]), Rights::all())
        .expect("a measurement that fails ends");
    let near = world
        .near
        .domain
        .register(Memory::from(vec![0; len]), Rights::empty())
        .expect("a measurement that fails ends");
    let bytes = len as u64;
    let mut times = [Duration::ZERO; 2];
    for token in 1..=GETS {
        let remote = far.descriptor().slice(0, bytes).expect("a measurement that fails ends");
        let op = Op::Get {
            from: peer,
            local: near.slice(0, bytes).expect("a measurement that fails ends"),
            remote,
        };
        let mut done = Vec::new();
        spent(&mut times[0], || {
            world.near.contexts[0].post(token.into(), op).expect("a measurement that fails ends")
        });
        while !done.iter().any(|it| matches!(it, Completion::Done(_))) {
            let ends = [&mut world.near.contexts[0], &mut world.far.contexts[0]];
            for (context, time) in ends.into_iter().zip(&mut times) {
                let mut round = Duration::ZERO;
                let moved = spent(&mut round, || context.progress(Instant::now(), &mut done));
                // Empty ones wait, for what the kernel does elsewhere.
                *time += if moved.expect("a measurement that fails ends") {
                    round
                } else {
                    Duration::ZERO
                };
            }
        }
    }
    times.map(|time| time.as_secs_f64() * 1e6 / f64::from(GETS))
}

fn moves(urls: &[String; 2]) {
    println!("microseconds of processor time for a get");
    println!("  bytes  sent: initiator   owner  written: initiator   owner");
    for len in (12..21).map(|bits| 1_usize << bits) {
        let [sent, written] = [[("rma", "off")], [("rma-from", "1")]].map(|settings| {
            let mut all: Vec<_> = (0..5).map(|_| get_spends(urls, &settings, len)).collect();
            all.sort_by(|one, other| one[1].total_cmp(&other[1]));
            all[2]
        });
        println!("{len:7} {:16.1} {:7.1} {:19.1} {:7.1}", sent[0], sent[1], written[0], written[1]);
    }
}

/// Messages a second over one connection where each post asks for its completion, and where one in 32 does, in turns; over the imitation
/// what was posted and has completed besides, with the pause that follows.
fn signals(repetitions: u32, urls: &[String; 2]) {
    let everies = ["1", "32"];
    let mut worlds = everies.map(|every| {
        let mut world = World::open(urls, &[("signal-every", every)], 1);
        world.connect(1);
        world.rate(1);
        world
    });
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..repetitions {
        for (world, rates) in worlds.iter_mut().zip(&mut rates) {
            rates.push(world.rate(1));
        }
    }
    let [all, some] = rates.map(|rates| median(&rates));
    println!(
        "messages a second: {all:.0} with H = 1, {some:.0} with H = 32: {:.2} times as many",
        some / all
    );
    println!("completions of 10,240 messages and of the pause behind them, over the imitation");
    for every in everies {
        let mut world = World::open(&self::urls(&[]), &[("signal-every", every)], 1);
        world.connect(1);
        let before = imitation::counts(0);
        (0..10_240 / BATCH).for_each(|_| world.exchange(&[0], BATCH));
        let busy = imitation::counts(0);
        // Whoever has something silent says when he asks for it.
        while let Some(due) = world.due() {
            world.step(due);
        }
        let idle = imitation::counts(0);
        println!(
            "H = {every}: {} posts, {} completions, {:.4} of a post; in the pause {} and {}",
            busy.0 - before.0,
            busy.1 - before.1,
            (busy.1 - before.1) as f64 / (busy.0 - before.0) as f64,
            idle.0 - busy.0,
            idle.1 - busy.1,
        );
    }
}

/// Posts messages over so many connections.
fn posts(every: &str, lines: usize, rounds: usize) {
    let mut world = World::open(&urls(&[]), &[("signal-every", every)], SIDE.min(lines));
    world.connect(lines);
    let all: Vec<usize> = (0..lines).collect();
    for _ in 0..rounds {
        world.exchange(&all, (ROUND / lines).min(BATCH));
    }
}

fn number(text: &str) -> u32 {
    text.parse().expect("a measurement that fails ends")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rate", repetitions, ..] => {
            rates(number(repetitions), &urls(&arguments[2..]));
        }
        ["signals", repetitions, ..] => signals(number(repetitions), &urls(&arguments[2..])),
        ["memory", ..] => drop(memory(&urls(&arguments[1..]))),
        ["plot", file, repetitions, ..] => {
            let urls = urls(&arguments[3..]);
            let plot = Plot(vec![rates(number(repetitions), &urls), memory(&urls)]);
            fs::write(file, plot.to_string()).expect("a measurement that fails ends");
        }
        ["moves", ..] => moves(&urls(&arguments[1..])),
        ["posts", every, lines, rounds] => {
            posts(
                every,
                lines.parse().expect("a measurement that fails ends"),
                rounds.parse().expect("a measurement that fails ends"),
            );
        }
        _ => println!(
            "curves rate|signals REPETITIONS [NEAR FAR], curves memory|moves [NEAR FAR], curves plot FILE REPETITIONS [NEAR FAR], curves posts EVERY LINES ROUNDS"
        ),
    }
}
