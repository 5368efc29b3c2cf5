//! A story: who is there, and what happens when. Made from a seed before anything runs, so that it can be made shorter.

use std::fmt;

use hg_engine::Engine;
use hg_na::Address;

use crate::{interrupts::Interrupts, net::Rules, random::Random, rpcs::Kind};

mod machine;
mod make;

/// How the engine of one process is opened.
#[derive(Debug, Clone)]
pub struct Settings {
    /// [`hg_engine::Builder::in_service_max`].
    pub in_service_max: usize,
    /// [`hg_engine::Builder::contexts`].
    pub contexts: usize,
    /// [`hg_engine::Builder::calls_max`].
    pub calls_max: usize,
    /// [`hg_engine::Builder::large_max`].
    pub large_max: u64,
    /// [`hg_engine::Builder::large_in_service_max`].
    pub large_in_service_max: u64,
    /// [`hg_engine::Builder::backlog_bytes_max`].
    pub backlog_bytes_max: u64,
    /// [`hg_engine::Builder::pool_threads_max`].
    pub pool_threads_max: usize,
    /// [`hg_engine::Builder::eager_max`].
    pub eager_max: u64,
    /// [`hg_engine::Builder::checksum`].
    pub checksum: bool,
    /// Whether a thread of the engine's own makes progress; otherwise one of the story's does.
    pub background: bool,
    /// Whether a foreign event loop for each context makes it otherwise; if not, a thread that does nothing else.
    pub event_loops: bool,
    /// Whether handlers run on a runtime of the story's ([`hg_engine::Builder::runtime`]).
    pub runtime: bool,
    /// Microseconds of polling before each sleep; `None`: always.
    pub spin: Option<u64>,
}

/// What a handler does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Answers at once, by so many bytes.
    Answer(usize),
    /// Answers after this time in nanoseconds; a plain handler stands still meanwhile.
    After(u64),
    /// Answers with its own error.
    Refuse,
    /// Panics.
    Panic,
    /// Gives an answer that panics when it is encoded.
    Poison,
    /// Drops its answer unsent; only later ones can.
    Forget,
    /// Waits until nobody waits for it any more, then answers.
    UntilCancelled,
    /// Does not end before the story does.
    Never,
    /// Calls on to another process within this time, then answers.
    CallOn(usize, u64),
    /// Pulls so many bytes from its caller.
    Pull(u64),
    /// Pushes so many bytes to its caller.
    Push(u64),
    /// Fetches so many bytes from its caller.
    Fetch(u64),
    /// Looks at so many bytes of its caller's.
    View(u64),
}

impl Act {
    /// Whether it needs memory of the caller's.
    #[must_use]
    pub fn is_transfer(self) -> bool {
        matches!(self, Self::Pull(_) | Self::Push(_) | Self::Fetch(_) | Self::View(_))
    }
}

/// What a caller does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// `wait`.
    Wait,
    /// `try_wait`, again and again.
    Look,
    /// Awaits it.
    Await,
    /// Awaits one that owns what it needs (`call_owned`).
    AwaitOwned,
    /// `poll_outcome` until it ends.
    Poll,
    /// Awaits it for this time in nanoseconds, then drops it.
    Drop(u64),
    /// Awaits it for this time in nanoseconds, then cancels it and waits for its end.
    Cancel(u64),
    /// One way: lets it go, and looks whether it was accepted.
    Notify,
    /// One way: waits until it has left.
    NotifyAndWait,
    /// One way: does not look.
    NotifyBlindly,
}

impl Manner {
    /// Whether no answer is asked for.
    #[must_use]
    pub fn is_one_way(self) -> bool {
        matches!(self, Self::Notify | Self::NotifyAndWait | Self::NotifyBlindly)
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who calls.
    pub from: usize,
    /// Whom.
    pub to: usize,
    /// The kind of its handler.
    pub kind: Kind,
    /// What that does.
    pub act: Act,
    /// Bytes of its arguments beside the few that it always has.
    pub len: usize,
    /// Bytes of frozen memory among its arguments; 0: there is none.
    pub frozen: usize,
    /// Time that it may take in nanoseconds.
    pub deadline: Option<u64>,
    /// What its caller does.
    pub manner: Manner,
    /// Whether the caller waits for room first ([`Engine::ready`]).
    pub waits_for_room: bool,
    /// By which context it is made, and which one it asks; `None`: by the whole engine, which takes its thread's, and all of
    /// the other one's.
    pub contexts: Option<(usize, usize)>,
}

impl Call {
    /// A call that is answered at once.
    #[must_use]
    pub fn plain(from: usize, to: usize, kind: Kind, manner: Manner) -> Self {
        let (act, len, frozen, deadline) = (Act::Answer(0), 0, 0, None);
        let (waits_for_room, contexts) = (false, FIRST);
        Self { from, to, kind, act, len, frozen, deadline, manner, waits_for_room, contexts }
    }

    /// The engine, or the context of it, that makes the call.
    pub(crate) fn by(&self, engine: Engine) -> Option<Engine> {
        match self.contexts {
            Some((own, _)) => engine.context(own),
            None => Some(engine),
        }
    }

    /// Whether its target takes memory of its caller's before its handler runs.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.len >= 100 || self.frozen > 0
    }

    /// What its target takes of that, in bytes at most: encoded arguments are a little longer.
    #[must_use]
    pub fn lent_max(&self) -> u64 {
        (self.len + self.frozen + ENCODED_MORE) as u64
    }

    /// Whether its handler ends only with the story, or when its caller gives up at its end.
    #[must_use]
    pub fn stays(&self) -> bool {
        match self.act {
            Act::Never => true,
            Act::UntilCancelled => self.manner.is_one_way() || !self.may_be_given_up(),
            _ => false,
        }
    }

    /// Whether it may end without an answer because its caller waits no longer.
    #[must_use]
    pub fn may_be_given_up(&self) -> bool {
        self.deadline.is_some() || matches!(self.manner, Manner::Drop(_) | Manner::Cancel(_))
    }
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Somebody calls.
    Call(Call),
    /// A process stops; for so long in nanoseconds, or for ever.
    Stop(usize, Option<u64>),
    /// A process is killed.
    Kill(usize),
    /// A process closes its engine.
    Close(usize),
    /// A process drains its engine for at most so long in nanoseconds, then closes it.
    Drain(usize, u64),
    /// A process that has ended begins anew.
    Restart(usize),
    /// The first one closes its connection to the second one.
    Forget(usize, usize),
    /// Memory cannot be registered for so long.
    NoMemory(usize, u64),
    /// Its memory is not there for so long: whoever reads or writes it by the kernel waits.
    Away(usize, u64),
    /// There are no threads to be had for so long.
    NoThreads(usize, u64),
}

/// What happens when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the beginning.
    pub at: u64,
    /// What.
    pub what: What,
}

/// All of it.
#[derive(Debug, Clone)]
pub struct Story {
    /// Where it came from.
    pub seed: u64,
    /// In which order its threads run.
    pub order: u64,
    /// How often they are interrupted.
    pub interrupts: Interrupts,
    /// How the transport behaves.
    pub rules: Rules,
    /// The processes, numbered from 1 on.
    pub processes: Vec<Settings>,
    /// So many more hang from the beginning, numbered behind them.
    pub hung: usize,
    /// By time.
    pub events: Vec<Event>,
}

impl Story {
    /// The story of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        make::story(seed, &mut Random::new(seed))
    }

    /// Whether one process holds on for ever to what it can get of another one: it has its share, and waits for more.
    #[must_use]
    pub fn is_hog(&self, from: usize, to: usize) -> bool {
        self.events.iter().any(|event| match &event.what {
            What::Call(call) => call.from == from && call.to == to && call.stays(),
            What::Stop(it, None) => *it == from,
            _ => false,
        })
    }

    /// Whether what a call lends finds room at its target, whatever one other holds of that for ever: it has a half at most, and a half
    /// of the rest is there for each of the others. Of more than one nothing is said.
    #[must_use]
    pub fn is_room_for(&self, call: &Call) -> bool {
        let most = self.processes[call.to - 1].large_in_service_max;
        let hogs: Vec<_> =
            (1..=self.processes.len()).filter(|it| self.is_hog(*it, call.to)).collect();
        match hogs[..] {
            [] => true,
            [one] => most >= 1 << 30 || self.connects_once(one) && call.lent_max() <= most / 4,
            _ => most >= 1 << 30,
        }
    }

    /// Whether a process never has a second connection to another one, by which it would have a second share there.
    fn connects_once(&self, process: usize) -> bool {
        let breaks = |what: &What| match what {
            What::Forget(from, to) => *from == process || *to == process,
            What::Kill(it) | What::Close(it) | What::Drain(it, _) => *it == process,
            _ => false,
        };
        self.processes[process - 1].contexts == 1 && !self.events.iter().any(|it| breaks(&it.what))
    }

    /// Whether a process hangs from the beginning.
    #[must_use]
    pub fn hangs(&self, process: usize) -> bool {
        process > self.processes.len()
    }
}

/// So many bytes more than its parts are what a call lends, encoded.
pub(crate) const ENCODED_MORE: usize = 64;

/// The first contexts of both sides.
pub(crate) const FIRST: Option<(usize, usize)> = Some((0, 0));

/// The address of an engine, or of another context than the first one's.
pub(crate) fn address_for(call: &Call, first: &Address, settings: Option<&Settings>) -> Address {
    match call.contexts {
        Some((_, context)) => address_of(first, context),
        None => match settings.map_or(1, |settings| settings.contexts) {
            1 => first.clone(),
            count => first.with_contexts(count).expect("it is one context's"),
        },
    }
}

/// The address of another context than the first one's.
pub(crate) fn address_of(first: &Address, context: usize) -> Address {
    if context == 0 {
        return first.clone();
    }
    let text = first.as_str();
    let domain = text.strip_suffix("/0").unwrap_or(text);
    Address::new(&format!("{domain}/{context}")).expect("it is an address with another number")
}

/// All contexts of an engine.
pub(crate) fn contexts(handle: &Engine) -> impl Iterator<Item = Engine> {
    (0..).map_while(|index| handle.context(index))
}

fn time(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{} us", nanos / 1000),
        _ => format!("{} ms", nanos / 1_000_000),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.manner.is_one_way() { "notifies" } else { "calls" };
        let Self { from, to, kind, act, len, frozen, .. } = self;
        write!(out, "{from} {verb} {to}: {kind:?} {act:?}")?;
        if *len > 0 {
            write!(out, ", {len} bytes")?;
        }
        if *frozen > 0 {
            write!(out, ", {frozen} frozen")?;
        }
        if let Some(deadline) = self.deadline {
            write!(out, ", within {}", time(deadline))?;
        }
        match self.contexts {
            FIRST => {}
            Some((own, asked)) => write!(out, ", by context {own} to {asked}")?,
            None => write!(out, ", by any context")?,
        }
        if self.waits_for_room {
            write!(out, ", when there is room")?;
        }
        match self.manner {
            Manner::Drop(after) => write!(out, ", dropped after {}", time(after)),
            Manner::Cancel(after) => write!(out, ", cancelled after {}", time(after)),
            manner => write!(out, ", {manner:?}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call) => call.fmt(out),
            Self::Stop(it, Some(nanos)) => write!(out, "{it} stops for {}", time(*nanos)),
            Self::Stop(it, None) => write!(out, "{it} stops for ever"),
            Self::Kill(it) => write!(out, "{it} is killed"),
            Self::Close(it) => write!(out, "{it} closes its engine"),
            Self::Drain(it, nanos) => write!(out, "{it} drains for {}, then closes", time(*nanos)),
            Self::Restart(it) => write!(out, "{it} begins anew"),
            Self::Forget(it, other) => write!(out, "{it} forgets {other}"),
            Self::Away(it, nanos) => write!(out, "{it}'s memory is away for {}", time(*nanos)),
            Self::NoMemory(it, nanos) => write!(out, "{it} gets no memory for {}", time(*nanos)),
            Self::NoThreads(it, nanos) => write!(out, "{it} gets no threads for {}", time(*nanos)),
        }
    }
}

impl fmt::Display for Story {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { credits, queue_depth, batch, message_max, .. } = self.rules;
        let Rules { delay_min, delay_max, short_cuts, owner_moves, .. } = self.rules;
        writeln!(
            out,
            "seed {}: {credits} credits, queues of {queue_depth}, {batch} messages a round of at most {message_max} bytes, \
             {} to {} on the way{}{}",
            self.seed,
            time(delay_min),
            time(delay_max),
            if short_cuts { ", short cuts" } else { "" },
            if owner_moves { ", owners move" } else { "" },
        )?;
        if let Interrupts { every: every @ 1.., under_locks } = self.interrupts {
            let locks = if under_locks { ", with locks held, too" } else { "" };
            writeln!(out, "  threads are interrupted at one of {every} places{locks}")?;
        }
        for (settings, process) in self.processes.iter().zip(1..) {
            let Settings { in_service_max, calls_max, background, runtime, spin, .. } = settings;
            let (threads, contexts) = (settings.pool_threads_max, settings.contexts);
            let handlers = if *runtime { ", handlers on a runtime" } else { "" };
            let progress = match (*background, settings.event_loops) {
                (true, _) => "in the background",
                (false, false) => "of its own",
                (false, true) => "by an event loop for each context",
            };
            let wait = spin.map_or("spins".to_owned(), |spin| format!("spins {spin} us"));
            writeln!(
                out,
                "  {process}: {contexts} contexts, {in_service_max} in service, {calls_max} calls, {threads} threads, progress {progress}, {wait}{handlers}"
            )?;
        }
        if self.hung > 0 {
            let first = self.processes.len() + 1;
            writeln!(out, "  {first} to {}: hang", self.processes.len() + self.hung)?;
        }
        for Event { at, what } in &self.events {
            writeln!(out, "  {:>9} us  {what}", at / 1000)?;
        }
        Ok(())
    }
}
