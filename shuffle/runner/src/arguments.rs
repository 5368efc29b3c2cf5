//! What the program may be told.

use std::{path::PathBuf, time::Duration};

use hg_job::NodeMap;
use hg_shuffle::{MESSAGE_MAX, Options};

use crate::{Error, payload::PAYLOAD_MIN};

/// Every rank of a job sends messages to the others, and checks every one that it gets. Start it with `mpirun`, `srun`,
/// or with `--local`.
#[derive(Debug, clap::Parser)]
#[command(name = "shuffle-runner", version)]
pub(crate) struct Arguments {
    /// Starts N ranks on this machine, without a launcher.
    #[arg(long, value_name = "N")]
    pub(crate) local: Option<u32>,
    /// Imitates nodes: `2x2`, `3+1`, or the node of each rank, `0,0,1,1`.
    #[arg(long, value_name = "MAP")]
    pub(crate) nodes: Option<NodeMap>,
    /// Prints the queues, connections and bytes that each process of such a job needs, and ends.
    #[arg(long, value_name = "MAP")]
    pub(crate) plan: Option<NodeMap>,
    /// Messages that each rank sends.
    #[arg(long, default_value_t = 100_000, conflicts_with = "duration")]
    pub(crate) count: u64,
    /// Sends for so many seconds instead.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) duration: Option<f64>,
    /// Messages that each rank sends before the clock starts.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) warm_up: u64,
    /// Bytes of each payload, at least 16; from 24 on latency is measured, too.
    #[arg(long, default_value_t = 32)]
    pub(crate) size: usize,
    /// To whom messages go.
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) skew: Skew,
    /// The rank that gets everything, with `--skew single`.
    #[arg(long, default_value_t = 0)]
    pub(crate) target: u32,
    /// Exponent of `--skew zipf`.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) exponent: f64,
    /// Microseconds that each delivery takes.
    #[arg(long, default_value_t = 0)]
    pub(crate) delay: u64,
    /// Prints one JSON object a rank, and one for all of them last.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws the rate and the depths of the queues over time.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    shuffle: ShuffleArguments,
}

/// To whom messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Skew {
    /// Any rank, equally often.
    Uniform,
    /// One after the other, beginning with the next one.
    Loop,
    /// Always `--target`.
    Single,
    /// Rank r as often as 1 / (r + 1) to the power of `--exponent`.
    Zipf,
}

/// The options of the shuffle, by their own names.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of the shuffle")]
struct ShuffleArguments {
    /// Transport inside a node.
    #[arg(long, value_name = "URL")]
    local_url: Option<String>,
    /// Transport between nodes.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A setting of the transport between nodes: silence-bound-ms=5000, key-file=FILE, ...
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,
    /// Batches under way over all origin queues at which senders wait; 0: no limit.
    #[arg(long)]
    localsenderlimit: Option<u32>,
    /// The same over all network queues.
    #[arg(long)]
    remotesenderlimit: Option<u32>,
    /// Batches under way per origin queue.
    #[arg(long)]
    lomaxrpc: Option<u32>,
    /// Bytes of a batch of an origin queue; 0: each message by itself.
    #[arg(long)]
    lobuftarget: Option<usize>,
    /// Batches under way per relay queue.
    #[arg(long)]
    lrmaxrpc: Option<u32>,
    /// Bytes of a batch of a relay queue.
    #[arg(long)]
    lrbuftarget: Option<usize>,
    /// Batches under way per network queue.
    #[arg(long)]
    rmaxrpc: Option<u32>,
    /// Bytes of a batch of a network queue.
    #[arg(long)]
    rbuftarget: Option<usize>,
    /// Messages acknowledged before they are delivered.
    #[arg(long)]
    deliverq_max: Option<usize>,
    /// Messages that wait at which delivery begins.
    #[arg(long)]
    deliverq_threshold: Option<usize>,
    /// Microseconds that a partial batch waits for more.
    #[arg(long, value_name = "MICROSECONDS")]
    linger: Option<u64>,
    /// Every message by itself: all buffer targets are 0.
    #[arg(long, conflicts_with_all = ["lobuftarget", "lrbuftarget", "rbuftarget"])]
    unbatched: bool,
}

impl Arguments {
    /// Whether all of this makes sense for a job of so many ranks.
    pub(crate) fn check(&self, size: u32) -> Result<(), Error> {
        let bad = |name, why| Err(Error::Argument(name, why));
        if self.skew == Skew::Single && self.target >= size {
            return bad("target", format!("there is no rank {}: the job has {size}", self.target));
        }
        if self.duration.is_some_and(|seconds| !(0.0..=DURATION_MAX).contains(&seconds)) {
            return bad("duration", format!("not between 0 and {DURATION_MAX} seconds"));
        }
        if !self.exponent.is_finite() || self.exponent < 0.0 {
            return bad("exponent", format!("{} is not 0 or more", self.exponent));
        }
        if self.size > MESSAGE_MAX {
            return bad("size", format!("{} bytes are over the limit of {MESSAGE_MAX}", self.size));
        }
        self.nodes.as_ref().map_or(Ok(()), |nodes| nodes.check_size(size))?;
        Ok(self.options()?.check()?)
    }

    /// The shuffle's options.
    pub(crate) fn options(&self) -> Result<Options, Error> {
        if self.size < PAYLOAD_MIN {
            let why = format!(
                "{} bytes do not hold a number, an origin and a checksum: {PAYLOAD_MIN}",
                self.size
            );
            return Err(Error::Argument("size", why));
        }
        let given = &self.shuffle;
        let mut options = Options::default();
        let set = |place: &mut u32, value: Option<u32>| *place = value.unwrap_or(*place);
        set(&mut options.localsenderlimit, given.localsenderlimit);
        set(&mut options.remotesenderlimit, given.remotesenderlimit);
        set(&mut options.lomaxrpc, given.lomaxrpc);
        set(&mut options.lrmaxrpc, given.lrmaxrpc);
        set(&mut options.rmaxrpc, given.rmaxrpc);
        let targets = [given.lobuftarget, given.lrbuftarget, given.rbuftarget];
        let [lo, lr, r] = targets.map(|target| if given.unbatched { Some(0) } else { target });
        let set = |place: &mut usize, value: Option<usize>| *place = value.unwrap_or(*place);
        set(&mut options.lobuftarget, lo);
        set(&mut options.lrbuftarget, lr);
        set(&mut options.rbuftarget, r);
        set(&mut options.deliverq_max, given.deliverq_max);
        set(&mut options.deliverq_threshold, given.deliverq_threshold);
        if let Some(microseconds) = given.linger {
            options.linger = Duration::from_micros(microseconds);
        }
        if let Some(url) = &given.local_url {
            options.local_url.clone_from(url);
        }
        for setting in &given.setting {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(Error::Argument("setting", format!("`{setting}` is not NAME=VALUE")));
            };
            options.network_settings.push((name.to_owned(), value.to_owned()));
        }
        if let Some(url) = &given.url {
            options.network_url.clone_from(url);
        }
        Ok(options)
    }
}

/// A year.
const DURATION_MAX: f64 = 365.0 * 86_400.0;
