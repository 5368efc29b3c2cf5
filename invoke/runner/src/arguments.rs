//! What the program may be told.

use std::{num::NonZeroU8, path::PathBuf};

use hg_invoke::{Fabric, Group, Limits, Packing, Room};
use hg_job_runner::{Error as RunnerError, plot, room::Need};

use crate::{Error, payload};

/// The threads of a job's processes call one another, and check every call where it runs. Start it with `mpirun`, `srun`, or with
/// `--local`.
#[derive(Debug, clap::Parser)]
#[command(name = "invoke-runner", version)]
pub(crate) struct Arguments {
    /// Starts N processes on this machine, without a launcher.
    #[arg(long, value_name = "N")]
    pub(crate) local: Option<u32>,
    /// Starts them even if this machine seems too small for so many.
    #[arg(long, requires = "local")]
    pub(crate) force: bool,
    /// Threads of each process that call and are called.
    #[arg(long, value_name = "T", default_value = "1")]
    threads: NonZeroU8,
    /// Who calls whom.
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) pattern: Pattern,
    /// What a call is.
    #[arg(long, value_enum, default_value = "call")]
    pub(crate) kind: Kind,
    /// The process whose first thread gets everything, with `--pattern hot-spot` [default: 0].
    #[arg(long, value_name = "RANK")]
    target: Option<u32>,
    /// Calls that each thread makes.
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "duration")]
    pub(crate) count: u64,
    /// Calls for so many seconds instead.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) duration: Option<f64>,
    /// Calls that each thread makes before the clock starts [default: 10000, but no more than --count].
    #[arg(long, value_name = "COUNT")]
    warm_up: Option<u64>,
    /// Bytes of the arguments of each call: 8, or at least 16.
    #[arg(long, default_value_t = 8)]
    pub(crate) size: usize,
    /// How calls are packed into messages.
    #[arg(long, value_enum, default_value = "trad")]
    packing: Packed,
    /// What becomes of a call for which there is no room.
    #[arg(long, value_enum, default_value = "queue")]
    pub(crate) full: Full,
    /// A thread looks for what it is called after so many calls of its own.
    #[arg(long, default_value_t = 256, value_name = "CALLS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Transport between processes: sm://, tcp://HOST, sm+tcp://HOST (shared memory inside a machine), ofi+...; without a port or a name, which several
    /// processes of a machine cannot share.
    #[arg(long, default_value = "sm://")]
    pub(crate) url: String,
    /// A setting of the transport.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,
    /// Bytes that a block of calls is filled up to.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().block)]
    block: usize,
    /// Bytes of calls that are on their way to one thread.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().window)]
    window: u32,
    /// What that is doubled up to, at a receiver that has run all that came while its sender has more; nothing where they share memory (sm://).
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().widest)]
    widest: u32,
    /// Bytes of calls that wait for one thread, with `--full queue`.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    queue_max: u64,
    /// Bytes of calls that wait for all threads, with `--full queue`; --queue-max at least.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    queue_total: u64,
    /// Prints one JSON object a thread, and one for all of them last.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws over time how many calls run, and how many are under way.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Says on standard error how far each process is.
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Who calls whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Each thread the same thread of the next process or of the one before, which calls back.
    Pairwise,
    /// Each thread all threads, itself too, one after the other.
    All,
    /// Each thread any, equally often.
    Random,
    /// Each thread the first thread of `--target`.
    HotSpot,
}

/// What a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A function runs.
    Call,
    /// The same, and its result comes back, and is checked.
    Return,
    /// The same with a buffer that travels with the call.
    Buffer,
    /// The same with a buffer that the receiver reads first.
    Read,
    /// It runs at every thread.
    Broadcast,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Packed {
    /// Into blocks, which leave when they are full, or when there is nothing else to do.
    Trad,
    /// A message each; into blocks only while the transport takes none.
    Ovfl,
    /// A message each, always.
    Plain,
}

/// What becomes of a call for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Full {
    /// It comes back, and is made again.
    Back,
    /// The caller waits.
    Wait,
    /// It waits in order, up to `--queue-max`.
    Queue,
}

impl From<Full> for Room {
    fn from(full: Full) -> Self {
        match full {
            Full::Back => Self::Return,
            Full::Wait => Self::Wait,
            Full::Queue => Self::Queue,
        }
    }
}

impl Arguments {
    /// Whether all of this makes sense for a job of so many processes.
    pub(crate) fn check(&self, size: u32) -> Result<(), Error> {
        let bad = |name, why| Err(RunnerError::Argument(name, why).into());
        if self.target.is_some() && self.pattern != Pattern::HotSpot {
            return bad("target", "goes with `--pattern hot-spot` only".to_owned());
        }
        if self.pattern == Pattern::HotSpot && self.target() >= size {
            let why = format!("there is no rank {}: the job has {size}", self.target());
            return bad("target", why);
        }
        if self.duration.is_some_and(|seconds| !(0.0..=DURATION_MAX).contains(&seconds)) {
            return bad("duration", format!("not between 0 and {DURATION_MAX} seconds"));
        }
        if u64::from(size) * u64::from(self.threads()) > payload::SENDERS_MAX {
            let why = format!("all processes together have at most {}", payload::SENDERS_MAX);
            return bad("threads", why);
        }
        if self.size != 8 && self.size < payload::LONG {
            return bad("size", format!("{} bytes: 8, or at least {}", self.size, payload::LONG));
        }
        if self.kind == Kind::Broadcast && self.pattern != Pattern::All {
            return bad(
                "kind",
                "broadcast goes to all threads: with `--pattern all` only".to_owned(),
            );
        }
        if self.size < payload::LONG && matches!(self.kind, Kind::Buffer | Kind::Read) {
            return bad("size", format!("at least {} bytes of a buffer", payload::LONG));
        }
        let default = Limits::default();
        let each = [
            ("block", default.block(self.block).window(1 << 30)),
            ("window", default.block(self.block).window(self.window)),
            ("widest", default.widest(self.widest)),
        ];
        for (name, limits) in each {
            if let Err(why) = limits.check() {
                return bad(name, why.to_string());
            }
        }
        let longest = (self.window as usize / 2).saturating_sub(BESIDE);
        if self.size > longest && self.kind != Kind::Read {
            let why = format!("{} bytes are over half of a window: --window", self.size);
            return bad("size", why);
        }
        self.fabric().map(drop)
    }

    /// Whether the transport can be opened here: without anybody else.
    pub(crate) fn check_transport(&self) -> Result<(), Error> {
        let opened = self.fabric()?.threads(1).open(&Alone, &self.url);
        opened.map(drop).map_err(|error| RunnerError::Argument("url", error.to_string()).into())
    }

    /// Whether what is to be drawn can be written.
    pub(crate) fn check_plot(&self) -> Result<(), Error> {
        let Some(file) = &self.plot else { return Ok(()) };
        plot::check(file).map_err(|error| RunnerError::Plot(file.clone(), error).into())
    }

    fn limits(&self) -> Limits {
        Limits::default().block(self.block).window(self.window).widest(self.widest)
    }

    /// How the workers of this process are opened.
    pub(crate) fn fabric(&self) -> Result<Fabric, Error> {
        let packing = match self.packing {
            Packed::Trad => Packing::Trad,
            Packed::Ovfl => Packing::Ovfl,
            Packed::Plain => Packing::Plain,
        };
        let fabric = Fabric::new().threads(self.threads.get()).packing(packing);
        let fabric = fabric.limits(self.limits());
        let fabric = fabric.queue_max(self.queue_max).queue_total(self.queue_total);
        let fabric = fabric.buffer_max(self.size as u64);
        let mut fabric = payload::register(fabric, self.size)?;
        for setting in &self.setting {
            let Some((name, value)) = setting.split_once('=') else {
                let why = format!("`{setting}` is not NAME=VALUE");
                return Err(RunnerError::Argument("setting", why).into());
            };
            fabric = fabric.setting(name, value);
        }
        Ok(fabric)
    }

    /// Of each process.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.get().into()
    }

    /// The process that gets everything.
    pub(crate) fn target(&self) -> u32 {
        self.target.unwrap_or(0)
    }

    /// Calls before the clock starts.
    pub(crate) fn warm_up(&self) -> u64 {
        let count = if self.duration.is_some() { u64::MAX } else { self.count };
        self.warm_up.unwrap_or_else(|| WARM_UP.min(count))
    }

    /// What so many processes need of one machine, about.
    pub(crate) fn need(&self, ranks: u64) -> Need {
        let threads = u64::from(self.threads());
        let others = match self.pattern {
            Pattern::Pairwise => 1,
            _ => ranks.saturating_sub(1).saturating_mul(threads),
        };
        let pairs = threads.saturating_mul(others);
        let descriptors = DESCRIPTORS.saturating_add(DESCRIPTORS_PER_PAIR.saturating_mul(pairs));
        let memory = MEMORY.saturating_add(MEMORY_PER_PAIR.saturating_mul(pairs));
        Need {
            tasks: (TASKS + threads).saturating_mul(ranks),
            // The process that starts the others has a connection to each.
            descriptors: descriptors.max(DESCRIPTORS + ranks),
            memory: memory.saturating_mul(ranks),
        }
    }
}

/// A group of one process.
struct Alone;

impl Group for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        Ok(vec![own.to_vec()])
    }
}

/// A year.
const DURATION_MAX: f64 = 365.0 * 86_400.0;
/// Calls of the warm-up where nothing else is asked for.
const WARM_UP: u64 = 10_000;
/// What a message has beside the arguments of its only call.
const BESIDE: usize = 16;
// Of a process, counted in one that runs: its threads beside those that call; descriptors and memory of its own alone, and for each
// pair of threads that are connected, by two connections where both have begun.
const TASKS: u64 = 6;
const DESCRIPTORS: u64 = 32;
const DESCRIPTORS_PER_PAIR: u64 = 8;
const MEMORY: u64 = 4 << 20;
const MEMORY_PER_PAIR: u64 = 48 << 10;
