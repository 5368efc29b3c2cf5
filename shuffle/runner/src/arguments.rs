//! What the program may be told.

use std::{ffi::OsString, path::PathBuf, time::Duration};

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
    /// Starts them even if this machine seems too small for so many.
    #[arg(long, requires = "local")]
    pub(crate) force: bool,
    /// Imitates nodes: `2x2`, `3+1`, or the node of each rank, `0,0,1,1`.
    #[arg(long, value_name = "MAP")]
    pub(crate) nodes: Option<NodeMap>,
    /// Prints the queues, connections and bytes that each process of such a job needs, and ends; of the other options
    /// only those that size the shuffle's queues go with it.
    #[arg(long, value_name = "MAP", conflicts_with_all = [
        "local", "force", "nodes", "count", "duration", "warm_up", "size", "skew", "target", "exponent", "with_self",
        "delay", "strangers", "plot", "local_url", "url", "setting", "no_key", "localsenderlimit", "remotesenderlimit", "deliverq_max",
        "deliverq_bytes_max", "deliverq_threshold", "linger", "delivery",
    ])]
    pub(crate) plan: Option<NodeMap>,
    /// With --plan: also simulates the start of the job, and counts what its processes send.
    #[arg(long, requires = "plan", conflicts_with = "json")]
    pub(crate) simulate: bool,
    /// Prints what it costs to make and check a message of --size bytes, without a shuffle, and ends.
    #[arg(long, conflicts_with_all = ["local", "plan"])]
    pub(crate) self_check: bool,
    /// Messages that each rank sends.
    #[arg(long, default_value_t = 100_000, conflicts_with = "duration")]
    pub(crate) count: u64,
    /// Sends for so many seconds instead.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) duration: Option<f64>,
    /// Messages that each rank sends before the clock starts [default: 10000, but neither more than --count nor than
    /// 64 MiB of payload].
    #[arg(long, value_name = "COUNT")]
    warm_up: Option<u64>,
    /// Bytes of each payload, at least 16; from 24 on latency is measured, too.
    #[arg(long, default_value_t = 32)]
    pub(crate) size: usize,
    /// To whom messages go.
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) skew: Skew,
    /// The rank that gets everything, with `--skew single` [default: 0].
    #[arg(long, value_name = "RANK")]
    target: Option<u32>,
    /// Exponent of `--skew zipf` [default: 1].
    #[arg(long)]
    exponent: Option<f64>,
    /// Whether ranks send messages to themselves, too, which are counted as the others.
    #[arg(long = "self", value_enum, default_value = "yes")]
    pub(crate) with_self: WithSelf,
    /// Microseconds that each delivery takes.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub(crate) delay: u64,
    /// Who takes messages in: whoever makes progress, where they were received, or a thread of its own [default: inline,
    /// but a thread with `--delay`].
    #[arg(long, value_enum)]
    delivery: Option<DeliveryBy>,
    /// Beside the ranks, so many connections of strangers to the ports between nodes: silent, half said, and noise
    /// without end; `tcp` over IPv4. A run to which none came fails.
    #[arg(long, value_name = "N", requires_all = ["local", "nodes"])]
    pub(crate) strangers: Option<u32>,
    /// Prints one JSON object a rank, and one for all of them last; with --plan, one.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws the rate and the depths of the queues over time; also of another program, if one stands behind `--`.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// With --plot: runs this program instead, and draws what its ranks on this machine do. With --local it gets so many
    /// ranks; without, it may start its own, as the examples do, or be a launcher: `-- mpirun -n 4 PROGRAM`.
    #[arg(last = true, value_name = "PROGRAM", requires = "plot", conflicts_with_all = OF_THE_RUN)]
    pub(crate) program: Vec<OsString>,
    #[command(flatten)]
    shuffle: ShuffleArguments,
}

/// Who takes messages in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeliveryBy {
    /// Whoever makes progress.
    Inline,
    /// A thread, which may block.
    Thread,
}

/// Whether there are messages to oneself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WithSelf {
    /// As many as to any other rank.
    Yes,
    /// None.
    No,
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
    #[arg(long, value_name = "URL", default_value_t = usual().local_url)]
    local_url: String,
    /// Transport between nodes.
    #[arg(long, value_name = "URL", default_value_t = usual().network_url)]
    url: String,
    /// A setting of the transport between nodes: silence-bound-ms=5000, key-file=FILE, ...; of the one inside nodes, too, if it is the same.
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,
    /// No key between nodes: messages cross the network as they are, and whoever reaches a rank's port can disturb it.
    #[arg(long)]
    no_key: bool,
    /// Batches under way over all origin queues at which senders wait; 0: no limit.
    #[arg(long, value_name = "BATCHES", default_value_t = usual().localsenderlimit)]
    localsenderlimit: u32,
    /// The same over all network queues.
    #[arg(long, value_name = "BATCHES", default_value_t = usual().remotesenderlimit)]
    remotesenderlimit: u32,
    /// Batches under way per origin queue.
    #[arg(long, value_name = "BATCHES", default_value_t = usual().lomaxrpc)]
    lomaxrpc: u32,
    /// Bytes under way per origin queue, if that is less.
    #[arg(long, value_name = "BYTES", default_value_t = usual().lomaxbytes)]
    lomaxbytes: usize,
    /// Bytes of a batch of an origin queue; 0: each message at once.
    #[arg(long, value_name = "BYTES", default_value_t = usual().lobuftarget)]
    lobuftarget: usize,
    /// Batches under way per relay queue.
    #[arg(long, value_name = "BATCHES", default_value_t = usual().lrmaxrpc)]
    lrmaxrpc: u32,
    /// Bytes under way per relay queue, if that is less.
    #[arg(long, value_name = "BYTES", default_value_t = usual().lrmaxbytes)]
    lrmaxbytes: usize,
    /// Bytes of a batch of a relay queue.
    #[arg(long, value_name = "BYTES", default_value_t = usual().lrbuftarget)]
    lrbuftarget: usize,
    /// Batches under way per network queue.
    #[arg(long, value_name = "BATCHES", default_value_t = usual().rmaxrpc)]
    rmaxrpc: u32,
    /// Bytes under way per network queue, if that is less.
    #[arg(long, value_name = "BYTES", default_value_t = usual().rmaxbytes)]
    rmaxbytes: usize,
    /// Bytes of a batch of a network queue.
    #[arg(long, value_name = "BYTES", default_value_t = usual().rbuftarget)]
    rbuftarget: usize,
    /// Messages acknowledged before they are delivered.
    #[arg(long, value_name = "MESSAGES", default_value_t = usual().deliverq_max)]
    deliverq_max: usize,
    /// The same in bytes, if that is less.
    #[arg(long, value_name = "BYTES", default_value_t = usual().deliverq_bytes_max)]
    deliverq_bytes_max: usize,
    /// Messages that wait at which delivery begins.
    #[arg(long, value_name = "MESSAGES", default_value_t = usual().deliverq_threshold)]
    deliverq_threshold: usize,
    /// Microseconds that a partial batch waits for more.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = microseconds(usual().linger))]
    linger: u64,
    /// No message waits for others: all buffer targets are 0.
    #[arg(long, conflicts_with_all = ["lobuftarget", "lrbuftarget", "rbuftarget"])]
    unbatched: bool,
}

fn usual() -> Options {
    Options::default()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Arguments {
    /// Whether all of this makes sense for a job of so many ranks.
    pub(crate) fn check(&self, size: u32) -> Result<(), Error> {
        let bad = |name, why| Err(Error::Argument(name, why));
        if self.target.is_some() && self.skew != Skew::Single {
            return bad("target", "goes with `--skew single` only".to_owned());
        }
        if self.exponent.is_some() && self.skew != Skew::Zipf {
            return bad("exponent", "goes with `--skew zipf` only".to_owned());
        }
        if self.is_inline() && self.delay > 0 {
            return bad(
                "delivery",
                "what is taken in inline may not wait: no `--delay`".to_owned(),
            );
        }
        if self.skew == Skew::Single && self.target() >= size {
            return bad(
                "target",
                format!("there is no rank {}: the job has {size}", self.target()),
            );
        }
        if !self.has_self() && self.skew == Skew::Single {
            let why = "`--skew single` sends to one rank, also from itself";
            return bad("self", why.to_owned());
        }
        if !self.has_self() && size == 1 {
            return bad("self", "a rank alone has nobody else to send to".to_owned());
        }
        if self.duration.is_some_and(|seconds| !(0.0..=DURATION_MAX).contains(&seconds)) {
            return bad("duration", format!("not between 0 and {DURATION_MAX} seconds"));
        }
        if !self.exponent().is_finite() || self.exponent() < 0.0 {
            return bad("exponent", format!("{} is not 0 or more", self.exponent()));
        }
        self.nodes.as_ref().map_or(Ok(()), |nodes| nodes.check_size(size))?;
        Ok(self.options()?.check()?)
    }

    /// Whether the transports that were asked for can be opened here: also the one between nodes where there is one node.
    pub(crate) fn check_transports(&self) -> Result<(), Error> {
        let options = self.options()?;
        let usual = usual();
        let is_usual = options.local_url == usual.local_url
            && options.network_url == usual.network_url
            && options.network_settings == usual.network_settings;
        if is_usual {
            return Ok(());
        }
        options.check_transports().map_err(|error| match error {
            hg_shuffle::Error::BadOption { name: "local_url", why } => {
                Error::Argument("local-url", why)
            }
            hg_shuffle::Error::BadOption { name: "network_url", why } => {
                Error::Argument("url", why)
            }
            hg_shuffle::Error::BadOption { name: "network_settings", why } => {
                Error::Argument("setting", why)
            }
            other => other.into(),
        })
    }

    /// Whether ranks send messages to themselves.
    pub(crate) fn has_self(&self) -> bool {
        self.with_self == WithSelf::Yes
    }

    /// The rank that gets everything, with [`Skew::Single`].
    pub(crate) fn target(&self) -> u32 {
        self.target.unwrap_or(0)
    }

    /// Whether there is a message to be checked in.
    pub(crate) fn check_size(&self) -> Result<(), Error> {
        if self.size < PAYLOAD_MIN {
            let why = format!("at least {PAYLOAD_MIN} bytes: a number, an origin and a checksum");
            return Err(Error::Argument("size", why));
        }
        if self.size > MESSAGE_MAX {
            let why = format!("{} bytes are over the limit of {MESSAGE_MAX}", self.size);
            return Err(Error::Argument("size", why));
        }
        Ok(())
    }

    fn is_inline(&self) -> bool {
        let may_be = self.delay == 0 && self.shuffle.deliverq_threshold == 0;
        self.delivery.map_or(may_be, |by| by == DeliveryBy::Inline)
    }

    /// Of [`Skew::Zipf`].
    pub(crate) fn exponent(&self) -> f64 {
        self.exponent.unwrap_or(1.0)
    }

    /// Messages before the clock starts: long ones warm up sooner, and nobody who asks for ten messages waits for
    /// thousands.
    pub(crate) fn warm_up(&self) -> u64 {
        let count = if self.duration.is_some() { u64::MAX } else { self.count };
        let fitting = (WARM_UP_BYTES_MAX / self.size.max(1) as u64).max(1);
        self.warm_up.unwrap_or_else(|| WARM_UP.min(count).min(fitting))
    }

    /// The shuffle's options.
    pub(crate) fn options(&self) -> Result<Options, Error> {
        self.check_size()?;
        let given = &self.shuffle;
        let target = |target: usize| if given.unbatched { 0 } else { target };
        let mut options = usual();
        options.localsenderlimit = given.localsenderlimit;
        options.remotesenderlimit = given.remotesenderlimit;
        options.lomaxrpc = given.lomaxrpc;
        options.lomaxbytes = given.lomaxbytes;
        options.lobuftarget = target(given.lobuftarget);
        options.lrmaxrpc = given.lrmaxrpc;
        options.lrmaxbytes = given.lrmaxbytes;
        options.lrbuftarget = target(given.lrbuftarget);
        options.rmaxrpc = given.rmaxrpc;
        options.rmaxbytes = given.rmaxbytes;
        options.rbuftarget = target(given.rbuftarget);
        options.deliverq_max = given.deliverq_max;
        options.deliverq_bytes_max = given.deliverq_bytes_max;
        options.deliverq_threshold = given.deliverq_threshold;
        options.deliver_inline = self.is_inline();
        options.linger = Duration::from_micros(given.linger);
        options.local_url.clone_from(&given.local_url);
        options.network_url.clone_from(&given.url);
        options.network_key = !given.no_key;
        for setting in &given.setting {
            let Some((name, value)) = setting.split_once('=') else {
                return Err(Error::Argument("setting", format!("`{setting}` is not NAME=VALUE")));
            };
            options.network_settings.push((name.to_owned(), value.to_owned()));
        }
        Ok(options)
    }
}

/// What another program is not told: all but where its ranks are.
const OF_THE_RUN: [&str; 34] = [
    "simulate",
    "self_check",
    "count",
    "duration",
    "warm_up",
    "size",
    "skew",
    "target",
    "exponent",
    "with_self",
    "delay",
    "delivery",
    "strangers",
    "json",
    "local_url",
    "url",
    "setting",
    "no_key",
    "localsenderlimit",
    "remotesenderlimit",
    "lomaxrpc",
    "lomaxbytes",
    "lobuftarget",
    "lrmaxrpc",
    "lrmaxbytes",
    "lrbuftarget",
    "rmaxrpc",
    "rmaxbytes",
    "rbuftarget",
    "deliverq_max",
    "deliverq_bytes_max",
    "deliverq_threshold",
    "linger",
    "unbatched",
];
/// A year.
const DURATION_MAX: f64 = 365.0 * 86_400.0;
/// Messages of the warm-up, and their bytes at most, where nothing else is asked for.
const WARM_UP: u64 = 10_000;
const WARM_UP_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn what_a_run_is_told_does_not_go_with_another_program() {
        let command = Arguments::command();
        let of_the_run = command.get_arguments().map(|argument| argument.get_id().as_str());
        let of_others = ["local", "force", "nodes", "plan", "plot", "program"];
        let of_the_run: Vec<&str> = of_the_run.filter(|name| !of_others.contains(name)).collect();
        assert_eq!(of_the_run, OF_THE_RUN);
    }
}
