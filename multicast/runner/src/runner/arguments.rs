//! What the program may be told.

use std::{cell::OnceCell, path::PathBuf, str::FromStr};

use hg_job_runner::plot;
use hg_multicast::{
    Options,
    schedule::{Choice, block_size},
};

use crate::{Error, given::Given, network::Network, pause::Pause, report};

/// Sends objects from one process of a job to all others, checks every byte where it arrives, and says how long it took. Start it with
/// `mpirun`, `srun`, or with `--local`.
#[derive(Debug, clap::Parser)]
#[command(name = "multicast-runner", version)]
pub(crate) struct Arguments {
    /// First, since each of the others takes its own value out of what was read.
    #[command(flatten)]
    given: Given,
    /// Starts N processes on this machine, without a launcher.
    #[arg(long, value_name = "N")]
    pub(crate) local: Option<u32>,
    /// Gives each of them an emulated link of this rate both ways, in a network namespace of its own: 200mbit, 1gbit. Takes root.
    #[arg(long, value_name = "RATE", requires = "local")]
    pub(crate) link: Option<Rate>,
    /// What is sent by whom to whom.
    #[arg(long, value_enum, default_value = "one")]
    pub(crate) pattern: Pattern,
    /// Bytes of an object: 1, 16M, 1G; several are measured one after the other.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64M")]
    pub(crate) size: Vec<Bytes>,
    /// Bytes of a block [default: by the size].
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',')]
    pub(crate) block_size: Vec<Bytes>,
    /// Who passes blocks on to whom.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub(crate) schedule: Vec<Scheduled>,
    /// Objects that are measured for each combination; with `--pattern trace`, all of them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Objects before the clock starts.
    #[arg(long, default_value_t = 1)]
    pub(crate) warm_up: u32,
    /// Objects under way at a time, where several may be.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) queue: u32,
    /// Blocks that a member offers at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) in_flight: u32,
    /// Receivers on the root's node see its memory where it is instead of having a copy each.
    #[arg(long)]
    pub(crate) mapped: bool,
    /// This member stops so long before it sends this block, in every other object: the time with that and without.
    #[arg(long, value_name = "MEMBER:BLOCK:MICROSECONDS", conflicts_with = "mapped")]
    pub(crate) stall: Option<Pause>,
    /// Leaves out the checksums of blocks.
    #[arg(long)]
    no_checksum: bool,
    /// Sizes of the trace are multiplied by this.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Transport between processes: sm://, tcp://, ofi+... [default: sm://, and tcp:// over emulated links].
    #[arg(long)]
    url: Option<String>,
    /// A setting of the transport.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,
    /// Binds each process to a core, one after the other, and those of MPI_Bcast in the same way.
    #[arg(long, requires = "local", conflicts_with = "link")]
    pub(crate) bind: bool,
    /// Measures MPI_Bcast of each MPI that is installed beside it, between the same links.
    #[arg(long, requires = "local")]
    pub(crate) mpi: bool,
    /// Measures `multicast-cp` of a file of --size to all, and a loop of copies to one after the other.
    #[arg(long, requires = "link")]
    pub(crate) copy: bool,
    /// Prints one JSON object a line for each combination, and with `--pattern one` a last one for all of them.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws when each member got each block of the last object.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Writes when each block of the last object was offered, taken, begun to come and came: one JSON object a line.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) trace: Option<PathBuf>,
    /// Says on standard error how far it is.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Emulated links, as long as this program runs.
    #[arg(skip)]
    pub(crate) network: OnceCell<Network>,
}

/// What is sent by whom to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Rank 0 to all others, one object after the other.
    One,
    /// Every rank to all others, at the same time.
    All,
    /// Every other rank to all others, at the same time.
    Half,
    /// Rank 0 to groups of three others, all that there are, objects of log-normal sizes: median 12 MB, mean 29 MB.
    Trace,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all",
            Self::Half => "half",
            Self::Trace => "trace",
        }
    }
}

/// A schedule by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scheduled {
    /// By size, members and nodes.
    Auto,
    /// To one member after the other.
    Sequential,
    /// Each member to the next one.
    Chain,
    /// A binomial tree of whole objects.
    Tree,
    /// The binomial pipeline.
    Pipeline,
    /// A pipeline among nodes, and readers of one writer inside.
    Hybrid,
}

impl Scheduled {
    pub(crate) fn choice(self) -> Choice {
        match self {
            Self::Auto => Choice::Auto,
            Self::Sequential => Choice::Sequential,
            Self::Chain => Choice::Chain,
            Self::Tree => Choice::Tree,
            Self::Pipeline => Choice::Pipeline,
            Self::Hybrid => Choice::Hybrid,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sequential => "sequential",
            Self::Chain => "chain",
            Self::Tree => "tree",
            Self::Pipeline => "pipeline",
            Self::Hybrid => "hybrid",
        }
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let shift = match unit {
            "" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            _ => return Err("a number, perhaps with K, M or G behind it".to_owned()),
        };
        let number: u64 = digits.parse().map_err(|_| "no number".to_owned())?;
        let bytes = number.checked_mul(1 << shift).filter(|bytes| (1..=BYTES_MAX).contains(bytes));
        bytes.map(Self).ok_or_else(|| format!("not between 1 and {BYTES_MAX} bytes"))
    }
}

/// Bits a second of an emulated link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let each = match unit {
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            _ => return Err("a number with kbit, mbit or gbit behind it".to_owned()),
        };
        let number: u64 = digits.parse().map_err(|_| "no number".to_owned())?;
        let rate = number.checked_mul(each).filter(|rate| RATES.contains(rate));
        rate.map(Self).ok_or_else(|| "not between 100kbit and 100gbit".to_owned())
    }
}

impl Arguments {
    /// Whether all of this makes sense for a job of so many processes.
    pub(crate) fn check(&self, size: u32) -> Result<(), Error> {
        let bad = |name, why: String| Err(Error::Argument(name, why));
        if size < 2 {
            return bad(
                "local",
                "a group needs two processes or more: `--local 4`, or under mpirun".to_owned(),
            );
        }
        self.check_pattern(size)?;
        self.check_sizes()?;
        if !(self.scale > 0.0 && self.scale <= 1000.0) {
            return bad("scale", format!("{} is not above 0", self.scale));
        }
        self.check_stall(size)?;
        self.builder().map(drop)
    }

    /// Nothing is refused that was left at its default; what was asked for is not dropped.
    fn check_pattern(&self, size: u32) -> Result<(), Error> {
        let bad = |name, why: String| Err(Error::Argument(name, why));
        for (name, patterns) in OF_PATTERNS {
            if self.given.has(name) && !patterns.contains(&self.pattern) {
                let names: Vec<String> =
                    patterns.iter().map(|it| format!("`--pattern {}`", it.name())).collect();
                return bad(name, format!("goes with {} only", names.join(" or ")));
            }
        }
        if let Some(name) = NOT_OF_COPIES.iter().find(|it| self.copy && self.given.has(it)) {
            return bad(name, "does not go with `--copy`".to_owned());
        }
        if self.pattern != Pattern::Trace {
            return Ok(());
        }
        if size < 4 {
            return bad(
                "pattern",
                format!("a trace needs 4 processes or more, and the job has {size}"),
            );
        }
        if self.block_size.len() > 1 {
            return bad("block-size", "a trace takes one, not several".to_owned());
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let bad = |name, why: String| Err(Error::Argument(name, why));
        if let Some(block) = self.block_size.iter().find(|block| block.0 > u64::from(u32::MAX)) {
            return bad("block-size", format!("{} bytes are over 4 GiB", block.0));
        }
        if self.copy && self.size.len() > 1 {
            return bad("size", "`--copy` takes one, not several".to_owned());
        }
        if let Some(size) = self.size.iter().find(|size| self.mpi && size.0 > MPI_BYTES_MAX) {
            let why = format!("MPI_Bcast sends {MPI_BYTES_MAX} bytes at most, not {}", size.0);
            return bad("size", why);
        }
        Ok(())
    }

    /// Whether the member sends what it is to stop before, as far as the schedules tell.
    fn check_stall(&self, size: u32) -> Result<(), Error> {
        let Some(stall) = self.stall else { return Ok(()) };
        let Pause { member, block, .. } = stall;
        let bad = |why: String| Err(Error::Argument("stall", why));
        if member >= size {
            return bad(format!("there is no member {member} among {size}"));
        }
        let stepped =
            self.schedule.iter().filter_map(|it| Some((it.name(), report::stepped(*it)?)));
        for (name, schedule) in stepped {
            for (bytes, blocks) in self.size.iter().flat_map(|it| self.counts(it.0, size)) {
                let mut senders: Vec<u32> =
                    blocks.iter().flat_map(|it| stall.senders(schedule, size, *it)).collect();
                if senders.is_empty() {
                    return bad(format!("an object of {bytes} bytes has no block {block}"));
                }
                if !senders.contains(&member) {
                    senders.sort_unstable();
                    senders.dedup();
                    let who: Vec<String> =
                        senders.iter().take(NAMED_MAX).map(u32::to_string).collect();
                    let who = who.join(", ");
                    return bad(format!(
                        "{stall}: it sends that to nobody by `--schedule {name}`; these do: {who}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// An object of so many bytes, and the blocks that it may have, for each size of a block: by default it is cut by how many hosts the members
    /// share. Those with many blocks are left out, of which it would take long to say who sends which.
    fn counts(&self, bytes: u64, members: u32) -> Vec<(u64, Vec<u64>)> {
        let mut of_hosts: Vec<u64> = (1..=members).map(|it| block_size(bytes, it)).collect();
        of_hosts.dedup();
        let cut = |sizes: &[u64]| sizes.iter().map(|it| bytes.div_ceil(*it)).collect::<Vec<_>>();
        let counts: Vec<_> = if self.block_size.is_empty() {
            vec![cut(&of_hosts)]
        } else {
            self.block_size.iter().map(|it| cut(&[it.0])).collect()
        };
        let is_short = |counts: &Vec<u64>| counts.iter().all(|it| *it <= LOOKED_AT_MAX);
        counts.into_iter().filter(is_short).map(|counts| (bytes, counts)).collect()
    }

    /// What the engine is opened with.
    pub(crate) fn builder(&self) -> Result<hg::Builder, Error> {
        let mut builder = hg::builder();
        if self.link.is_some() {
            // All of them are on one machine, and should not notice.
            builder = builder.setting("routing", "off");
            if self.url().starts_with("tcp://") {
                // Words of members pass blocks.
                builder = builder.setting("unsent-kib", "64");
            }
        }
        for setting in &self.setting {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(Error::Argument("setting", format!("`{setting}` is not NAME=VALUE")));
            };
            builder = builder.setting(name, value);
        }
        Ok(builder)
    }

    pub(crate) fn url(&self) -> &str {
        let default = if self.link.is_some() { "tcp://" } else { "sm://" };
        self.url.as_deref().unwrap_or(default)
    }

    /// Blocks of each size that was asked for.
    pub(crate) fn blocks(&self) -> Vec<Option<u64>> {
        if self.block_size.is_empty() {
            return vec![None];
        }
        self.block_size.iter().map(|block| Some(block.0)).collect()
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.plot.is_some() || self.trace.is_some()
    }

    /// Whether the files can be written that are to be.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        let files = [("plot", &self.plot), ("trace", &self.trace)];
        files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?))).try_for_each(
            |(name, file)| {
                plot::check(file).map_err(|error| Error::File(name, file.clone(), error))
            },
        )
    }

    pub(crate) fn options(&self, schedule: Scheduled, block: Option<u64>) -> Options {
        let mut options = Options::default();
        options.schedule = schedule.choice();
        options.block_size = block;
        options.in_flight = self.in_flight;
        options.checksum = !self.no_checksum;
        options.trace = self.is_traced();
        options
    }
}

/// Options that not every pattern has a use for, and those that have.
const OF_PATTERNS: [(&str, &[Pattern]); 10] = [
    ("plot", &[Pattern::One]),
    ("trace", &[Pattern::One]),
    ("mapped", &[Pattern::One]),
    ("mpi", &[Pattern::One]),
    ("stall", &[Pattern::One]),
    ("copy", &[Pattern::One]),
    ("warm-up", &[Pattern::One]),
    ("size", &[Pattern::One, Pattern::All, Pattern::Half]),
    ("queue", &[Pattern::All, Pattern::Half, Pattern::Trace]),
    ("scale", &[Pattern::Trace]),
];
/// Options that `multicast-cp` has no use for.
const NOT_OF_COPIES: [&str; 13] = [
    "block-size",
    "schedule",
    "count",
    "warm-up",
    "in-flight",
    "mapped",
    "stall",
    "no-checksum",
    "url",
    "setting",
    "mpi",
    "plot",
    "trace",
];
/// Of an object.
const BYTES_MAX: u64 = 1 << 40;
/// Blocks of an object up to which a schedule is asked who sends one of them.
const LOOKED_AT_MAX: u64 = 1 << 16;
/// Members that are named.
const NAMED_MAX: usize = 8;
/// What is counted by an `int`.
const MPI_BYTES_MAX: u64 = i32::MAX as u64;
/// Of a link.
const RATES: std::ops::RangeInclusive<u64> = 100_000..=100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_nonsense_is_refused() {
        let bytes = |text: &str| text.parse::<Bytes>().map(|it| it.0);
        assert_eq!((bytes("1"), bytes("64M"), bytes("2KiB")), (Ok(1), Ok(64 << 20), Ok(2048)));
        for wrong in ["", "M", "0", "-1", "1X", "99999999G", "1.5M"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!("200mbit".parse::<Rate>(), Ok(Rate(200_000_000)));
        for wrong in ["", "200", "1kbit", "200gbit", "mbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
