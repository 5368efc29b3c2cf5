//! The interface that all tests share, and the roles that processes play.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use hg::{Builder, CallError, CallOptions, Engine, Peer, Progress, Request, Wait};
use nix::{
    sys::resource::{Resource, setrlimit},
    time::{ClockId, clock_gettime},
    unistd::{Gid, Uid, setgid, setuid},
};

use crate::{
    away, bulk,
    common::{
        Random,
        child::{die_with_parent, next_command, say},
        process,
    },
    denied, drains, fork, large, pressure, strangers,
    transports::open_over,
    watched,
};

#[hg::rpc]
pub(crate) fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[hg::rpc]
pub(crate) fn echo(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// Declared only, and served by a future that ends when nobody waits any more.
#[hg::rpc]
pub(crate) fn never() -> u32;

#[hg::rpc]
pub(crate) fn explode(why: &str) {
    panic!("{why}");
}

/// Keeps the thread that makes progress busy.
#[hg::rpc]
pub(crate) fn toil(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

#[hg::rpc(blocking)]
pub(crate) fn nap(millis: u64) -> u64 {
    thread::sleep(Duration::from_millis(millis));
    millis
}

/// Calls `add` at somebody else, and answers with that answer.
#[hg::rpc]
pub(crate) async fn relay(request: &Request, to: String, a: i64, b: i64) -> Result<i64, String> {
    let engine = request.engine();
    let peer = engine.lookup(&to).map_err(|error| error.to_string())?;
    engine.call(add, &peer, (a, b)).await.map_err(|error| error.to_string())
}

/// The address of the context that serves it.
#[hg::rpc]
pub(crate) fn served_by(request: &Request) -> String {
    request.engine().address().to_string()
}

/// Numbers that arrived, and those of them that did not follow their predecessor.
static ARRIVED: AtomicU64 = AtomicU64::new(0);
static MISPLACED: AtomicU64 = AtomicU64::new(0);

/// Counts numbers that should come as 0, 1, 2, ...
#[hg::rpc]
pub(crate) fn arrive(number: u64, _padding: &[u8]) -> u64 {
    // Relaxed: one thread at a time makes progress.
    if ARRIVED.fetch_add(1, Ordering::Relaxed) != number {
        MISPLACED.fetch_add(1, Ordering::Relaxed);
    }
    number
}

#[hg::rpc]
pub(crate) fn arrived() -> (u64, u64) {
    (ARRIVED.load(Ordering::Relaxed), MISPLACED.load(Ordering::Relaxed))
}

/// Settings of a role: words of the form `name=value`.
pub(crate) struct Settings(BTreeMap<String, String>);

impl Settings {
    fn read(arguments: &str) -> Self {
        let words = arguments.split_whitespace().filter_map(|word| word.split_once('='));
        Self(words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).map(|text| text.parse().expect("a number"))
    }

    pub(crate) fn target(&self) -> &str {
        self.text("to").expect("this role needs `to=ADDRESS`")
    }

    /// Limits and user of the process; a builder with the rest.
    pub(crate) fn builder(&self) -> Builder {
        if let Some(limit) = self.number("nofile") {
            setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("a lower limit, or root");
        }
        if let Some(uid) = self.number("uid") {
            let uid = u32::try_from(uid).expect("a user id");
            setgid(Gid::from_raw(uid)).expect("root may");
            setuid(Uid::from_raw(uid)).expect("root may");
            die_with_parent();
        }
        let mut builder = hg::builder();
        builder = match self.text("wait") {
            Some("spin") => builder.wait(Wait::Spin),
            Some("block") => builder.wait(Wait::Block),
            _ => builder,
        };
        if self.text("progress") == Some("own") {
            builder = builder.progress(Progress::Own);
        }
        if let Some(contexts) = self.number("contexts") {
            builder = builder.contexts(usize::try_from(contexts).expect("a few"));
        }
        if let Some(bytes) = self.number("large-max") {
            builder = builder.large_max(bytes);
        }
        if let Some(requests) = self.number("in-service") {
            builder = builder.in_service_max(usize::try_from(requests).expect("a few"));
        }
        for (name, value) in &self.0 {
            if let Some(name) = name.strip_prefix("sm.").or_else(|| name.strip_prefix("tcp.")) {
                builder = builder.setting(name, value);
            }
        }
        builder
    }

    /// An engine over `url=URL`, or over `sm`, with `name=NAME`.
    pub(crate) fn open(&self, listen: bool) -> Result<Engine, hg::Error> {
        let named = || format!("sm://{}", self.text("name").unwrap_or_default());
        let url = self.text("url").map_or_else(named, str::to_owned);
        open_over(self.builder().listen(listen), &url)
    }
}

/// Serves the whole interface.
pub(crate) fn serve_all(engine: &Engine) {
    engine.register(add).expect("a fresh registry");
    engine.register(echo).expect("a fresh registry");
    engine.register(explode).expect("a fresh registry");
    engine.register(toil).expect("a fresh registry");
    engine.register(nap).expect("a fresh registry");
    engine.register(relay).expect("a fresh registry");
    engine.register(served_by).expect("a fresh registry");
    engine.register(large::make).expect("a fresh registry");
    engine.register(arrive).expect("a fresh registry");
    engine.register(arrived).expect("a fresh registry");
    let pending = |request: Request, ()| async move {
        request.cancelled().await;
        Ok(0)
    };
    engine.serve_async(never, pending).expect("a fresh registry");
}

/// Plays a role to its end.
pub(crate) fn play(role: &str, arguments: &str) {
    let settings = Settings::read(arguments);
    match role {
        "parrot" => {
            while let Some(line) = next_command() {
                say(&line);
            }
        }
        "target" => target(&settings),
        "hangs" => watched::hangs(),
        "origin" => origin(&settings),
        "flooder" => flooder(&settings),
        "visitor" => visitor(&settings),
        "greedy" => greedy(&settings),
        "soak" => soak(&settings),
        "forker" => fork::forker(&settings),
        "one-way-flood" => pressure::one_way_flood(&settings),
        "two-way-flood" => pressure::two_way_flood(&settings),
        "away" => away::play(&settings),
        "reader" => away::play_reader(&settings),
        "denied" => denied::play(&settings),
        "patient" => drains::patient(&settings),
        "frozen-forker" => bulk::play_forker(&settings),
        "mover" => bulk::play_mover(&settings),
        "bulk-owner" => bulk::play_owner(&settings),
        "lender" => bulk::play_lender(&settings),
        "bulk-mover" => bulk::play_bulk_mover(&settings),
        #[cfg(feature = "sm-routing")]
        "node" => crate::routing::play_node(&settings),
        "scribbler" => strangers::scribbler(&settings),
        #[cfg(feature = "fail-points")]
        "worker" => crate::fail_points::worker(&settings),
        #[cfg(feature = "fail-points")]
        "getter" => crate::fail_points::getter(&settings),
        _ => panic!("no role is called {role}"),
    }
}

/// Serves everything; says its address, or why it has none. Commands: `in-service`, `kept`.
fn target(settings: &Settings) {
    let engine = match settings.open(true) {
        Ok(engine) => engine,
        Err(error) => return say(&format!("error: {error}")),
    };
    serve_all(&engine);
    say(engine.address().as_str());
    if settings.text("progress") == Some("own") {
        let engine = engine.clone();
        thread::spawn(move || {
            loop {
                engine.progress(Duration::from_secs(1));
            }
        });
    }
    while let Some(command) = next_command() {
        match command.as_str() {
            "in-service" => say(&engine.requests_in_service().to_string()),
            "kept" => say(&engine.large_untaken().to_string()),
            other => panic!("a target knows no `{other}`"),
        }
    }
}

/// Calls when it is told to, from each of its contexts. Says `ready`.
fn origin(settings: &Settings) {
    let engine = match settings.open(false) {
        Ok(engine) => engine,
        Err(error) => return say(&format!("error: {error}")),
    };
    let contexts: Vec<Engine> = (0..).map_while(|index| engine.context(index)).collect();
    say("ready");
    while let Some(command) = next_command() {
        let lookup = |handle: &Engine| handle.lookup(settings.target()).expect("an address");
        let (name, number) = command.split_once(' ').unwrap_or((&command, "1"));
        let number: u64 = number.parse().expect("a number");
        match name {
            "call" => {
                let failed = contexts
                    .iter()
                    .flat_map(|handle| (0..number).map(move |_| handle))
                    .find_map(|handle| call_once(handle, &lookup(handle)).err());
                say(&failed.unwrap_or_else(|| "ok".to_owned()));
            }
            "deadline" => {
                let options = CallOptions::within(Duration::from_millis(number));
                say(&call_never(&engine, &lookup(&engine), options));
            }
            "wait" => {
                say("waiting");
                say(&call_never(&engine, &lookup(&engine), CallOptions::default()));
            }
            other => panic!("an origin knows no `{other}`"),
        }
    }
}

fn call_once(handle: &Engine, peer: &Peer) -> Result<(), String> {
    let sum = handle.call(add, peer, (20, 22)).wait().map_err(|error| error.to_string())?;
    if sum == 42 { Ok(()) } else { Err(format!("20 + 22 became {sum}")) }
}

/// Kind of the error in which it ends, processor and real time that it took in microseconds.
fn call_never(handle: &Engine, peer: &Peer, options: CallOptions) -> String {
    let (begun, cpu) = (Instant::now(), own_cpu());
    let result = handle.call_with(never, peer, (), options).wait();
    let (took, cpu) = (begun.elapsed().as_micros(), (own_cpu() - cpu).as_micros());
    format!("{} {cpu} {took}", result.err().map_or("a value", |error| kind_of(&error)))
}

/// Calls in every way and size, as much as it can, until it is killed. Says `ready` after its first answer.
fn flooder(settings: &Settings) {
    let engine = settings.open(false).expect("this process can open an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    let mut random = Random::new(settings.number("seed").unwrap_or(1));
    if settings.text("quiet").is_none() {
        engine.call(add, &peer, (0, 0)).wait().expect("the target lives");
        say("ready");
    }
    let big = settings.number("big").unwrap_or(60_000);
    let big = random.bytes(usize::try_from(big).expect("a length"));
    loop {
        let calls: Vec<_> = (0..random.below(40))
            .map(|_| {
                let len = if random.below(4) == 0 { random.size_below(big.len()) } else { 8 };
                drop(engine.notify(add, &peer, (1, 2)));
                drop(engine.call(never, &peer, ()));
                engine.call(echo, &peer, (&big[..len],))
            })
            .collect();
        for call in calls {
            call.wait().expect("the target outlives its flooders");
        }
    }
}

/// Has so many `calls` under way that end only when this process does. Says `ready` when they have begun.
fn greedy(settings: &Settings) {
    let engine = settings.open(false).expect("this process can open an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    let calls = settings.number("calls").expect("how many");
    let calls: Vec<_> = (0..calls).map(|_| engine.call(never, &peer, ())).collect();
    say("ready");
    for call in calls {
        assert!(call.wait().is_err(), "the target answers nothing of that");
    }
}

/// Connects, calls once, ends in good order.
fn visitor(settings: &Settings) {
    let engine = settings.open(false).expect("this process can open an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    say(&call_once(&engine, &peer).err().unwrap_or_else(|| "ok".to_owned()));
}

/// Opens, calls and closes again and again in one process; says what it had before and has afterwards.
fn soak(settings: &Settings) {
    let me = std::process::id();
    let cycles = settings.number("cycles").expect("how often");
    let cycle = || {
        let engine = settings.open(false).expect("nothing leaks");
        let peer = engine.lookup(settings.target()).expect("an address");
        call_once(&engine, &peer).expect("the target serves");
    };
    let measure = || format!("{} {} {}", process::fds(me), process::maps(me), process::rss_kib(me));
    (0..200).for_each(|_| cycle());
    say("warm");
    let before = measure();
    (0..cycles).for_each(|_| cycle());
    say(&format!("{before} {}", measure()));
}

/// Processor time of this process.
pub(crate) fn own_cpu() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock of Linux"))
}

/// The name of an error's kind.
pub(crate) fn kind_of<E: std::fmt::Display>(error: &CallError<E>) -> &'static str {
    match error {
        CallError::Handler(_) => "Handler",
        CallError::DeadlineExceeded(_) => "DeadlineExceeded",
        CallError::Cancelled => "Cancelled",
        CallError::PeerGone { .. } => "PeerGone",
        CallError::NoSuchRpc { .. } => "NoSuchRpc",
        CallError::SignatureMismatch(_) => "SignatureMismatch",
        CallError::Incompatible(_) => "Incompatible",
        CallError::Rejected(_) => "Rejected",
        CallError::Overloaded(_) => "Overloaded",
        CallError::Decode(_) => "Decode",
        CallError::Panicked(_) => "Panicked",
        CallError::NotMade(_) => "NotMade",
        CallError::WouldDeadlock => "WouldDeadlock",
        CallError::Closed => "Closed",
        _ => "another kind",
    }
}
