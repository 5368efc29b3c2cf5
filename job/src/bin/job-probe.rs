//! What a launcher tells its processes: each rank prints one line of JSON. Also a way to break things.
//!
//! ```console
//! $ mpirun -n 4 job-probe
//! $ job-probe --local 4 --nodes 2x2
//! ```

use std::{
    collections::BTreeSet, fmt::Write as _, io::Write as _, process::ExitCode, time::Duration,
};

use nix::unistd::{ForkResult, alarm, close, fork, pause};

use hg_job::{Error, Job, Local, NodeMap, Settings};

const USAGE: &str = "\
job-probe [OPTION]...: joins the job that it was started in, tries it, prints what it sees as JSON
  --local N           start N ranks on this machine, and be their runner
  --nodes MAP         imitate nodes: 2x2, 3+1 or 0,0,1,1
  --timeout SECONDS   for joining
  --grace SECONDS     what ranks of --local may take to end after one died
  --wait SECONDS      for each collective call
  --rounds N          all-gathers and barriers (1)
  --exchange          instead of an all-gather: values between neighbours on a ring, and one of rank 0's to all
  --bytes N           length of a value (12)
  --die RANK@POINT    that rank kills itself: start, joined, round
  --quit RANK@POINT   that rank exits with status 0 there
  --stop RANK@POINT   that rank stops itself there
  --fork RANK@POINT   that rank forks a child there that goes on for 15 seconds
  --abort RANK        that rank aborts with status 7 after the rounds
  --leave-abort RANK  the same while another thread of it leaves
  --again             join once more, before and after leaving, and say what comes of it
  --pids              print `RANK PID` at once on standard error";

#[derive(Debug, Default, Clone)]
struct Options {
    local: Option<u32>,
    nodes: Option<NodeMap>,
    timeout: Option<Duration>,
    wait: Option<Duration>,
    grace: Option<Duration>,
    rounds: u32,
    exchange: bool,
    bytes: usize,
    die: Option<Act>,
    quit: Option<Act>,
    stop: Option<Act>,
    fork: Option<Act>,
    abort: Option<u32>,
    leave_abort: Option<u32>,
    again: bool,
    pids: bool,
}

/// A rank, and where it does something.
#[derive(Debug, Clone)]
struct Act {
    rank: u32,
    point: String,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            say(&format!("{why}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    let done = match options.local {
        Some(size) if !Local::is_rank() => run_ranks(size, &options),
        _ => be_a_rank(&options).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        say(&format!("job-probe: {error}"));
        ExitCode::FAILURE
    })
}

/// One write: lines of several ranks stay whole.
fn say(line: &str) {
    // Nobody may be there to read it.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { rounds: 1, bytes: 12, ..Options::default() };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let wrong = |value: &str| format!("{word}: `{value}` makes no sense");
        let number = |value: String| value.parse::<u32>().map_err(|_| wrong(&value));
        let seconds = |value: String| {
            let seconds = value.parse::<f64>().ok();
            let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            seconds.ok_or_else(|| wrong(&value))
        };
        let act = |value: String| {
            let (rank, point) = value.split_once('@').ok_or_else(|| wrong(&value))?;
            let rank = rank.parse().map_err(|_| wrong(&value))?;
            Ok::<_, String>(Act { rank, point: point.to_owned() })
        };
        match word.as_str() {
            "--local" => options.local = Some(number(value()?)?),
            "--nodes" => {
                options.nodes = Some(value()?.parse().map_err(|why| format!("--nodes: {why}"))?);
            }
            "--timeout" => options.timeout = Some(seconds(value()?)?),
            "--grace" => options.grace = Some(seconds(value()?)?),
            "--wait" => options.wait = Some(seconds(value()?)?),
            "--rounds" => options.rounds = number(value()?)?,
            "--exchange" => options.exchange = true,
            "--bytes" => options.bytes = number(value()?)? as usize,
            "--die" => options.die = Some(act(value()?)?),
            "--quit" => options.quit = Some(act(value()?)?),
            "--stop" => options.stop = Some(act(value()?)?),
            "--fork" => options.fork = Some(act(value()?)?),
            "--abort" => options.abort = Some(number(value()?)?),
            "--leave-abort" => options.leave_abort = Some(number(value()?)?),
            "--again" => options.again = true,
            "--pids" => options.pids = true,
            _ => return Err(format!("{word}: no such option")),
        }
    }
    Ok(options)
}

fn run_ranks(size: u32, options: &Options) -> Result<ExitCode, Error> {
    let mut local = Local::new(size);
    if let Some(nodes) = &options.nodes {
        local = local.nodes(nodes.clone());
    }
    if let Some(timeout) = options.timeout {
        local = local.timeout(timeout);
    }
    if let Some(grace) = options.grace {
        local = local.grace(grace);
    }
    let ended = local.run()?;
    if ended.code() != 0 {
        say(&format!("job-probe: {}", ended.report()));
    }
    Ok(ExitCode::from(ended.code()))
}

/// The rank as the environment has it, for what happens before there is a job.
fn early_rank() -> Option<u32> {
    let names = ["HG_JOB_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "PMI_ID"];
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

impl Options {
    fn act(&self, rank: Option<u32>, point: &str) {
        let is_now = |act: &Option<Act>| {
            act.as_ref().is_some_and(|act| Some(act.rank) == rank && act.point == point)
        };
        if is_now(&self.fork) {
            fork_and_go_on();
        }
        if is_now(&self.die) {
            signal_self(nix::sys::signal::Signal::SIGKILL);
        }
        if is_now(&self.stop) {
            signal_self(nix::sys::signal::Signal::SIGSTOP);
        }
        if is_now(&self.quit) {
            std::process::exit(0);
        }
    }
}

/// The child keeps every descriptor that it is not kept from, but lets go of the output, whose end somebody waits for.
#[expect(unsafe_code, reason = "a child that goes on without exec is made by no other call")]
fn fork_and_go_on() {
    // SAFETY:
    // - the child calls close, alarm and pause only, which are safe there, and returns nowhere.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        for output in 0..3 {
            // It may be closed already.
            let _ = close(output);
        }
        // Its default action ends it.
        alarm::set(15);
        loop {
            pause();
        }
    }
}

fn signal_self(signal: nix::sys::signal::Signal) {
    // It is this very process: it exists, and it may.
    let _ = nix::sys::signal::raise(signal);
}

fn be_a_rank(options: &Options) -> Result<(), Error> {
    let early = early_rank();
    if options.pids {
        say(&format!("{} {}", early.unwrap_or_default(), std::process::id()));
    }
    options.act(early, "start");
    let mut settings = Settings::new();
    if let Some(nodes) = &options.nodes {
        settings = settings.nodes(nodes.clone());
    }
    if let Some(timeout) = options.timeout {
        settings = settings.timeout(timeout);
    }
    if let Some(wait) = options.wait {
        settings = settings.wait(wait);
    }
    let job = settings.connect()?;
    options.act(Some(job.rank()), "joined");
    let mut agree = true;
    for round in 0..options.rounds {
        if round > 0 {
            options.act(Some(job.rank()), "round");
        }
        agree &= if options.exchange {
            exchange(&job, round, options.bytes)?
        } else {
            gather(&job, round, options.bytes)?
        };
        job.barrier()?;
    }
    if options.abort == Some(job.rank()) {
        job.abort(7, "asked to");
    }
    if options.abort.is_some() {
        // Waits for what will not come.
        job.barrier()?;
    }
    let sockets = sockets();
    // One write: lines of several ranks stay whole.
    let mut line = describe(&job, agree, sockets);
    line.push('\n');
    // Without a reader nobody is told.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
    if options.again {
        join_again();
    }
    options.act(Some(job.rank()), "leaving");
    if options.leave_abort == Some(job.rank()) {
        let leaving = job.clone();
        std::thread::spawn(move || leaving.leave());
        // Long enough for it to wait for the others; the outcome is the same where it does not yet.
        std::thread::sleep(Duration::from_millis(200));
        job.abort(7, "asked to");
    }
    job.leave()?;
    if options.again {
        join_again();
    }
    Ok(())
}

fn join_again() {
    match Job::connect() {
        Ok(_) => say("joined again"),
        Err(error) => say(&format!("not again: {error}")),
    }
}

/// Every rank's value is known to the others: rank, round and filling.
fn value(rank: u32, round: u32, bytes: usize) -> Vec<u8> {
    let text = format!("{rank}:{round}:");
    text.bytes().chain(std::iter::repeat(b'.')).take(bytes).collect()
}

fn gather(job: &Job, round: u32, bytes: usize) -> Result<bool, Error> {
    let values = job.all_gather(&value(job.rank(), round, bytes))?;
    let expected = (0..job.size()).map(|rank| value(rank, round, bytes));
    Ok(values.into_iter().eq(expected))
}

/// With those at both sides, and with one that is half the job away.
fn exchange(job: &Job, round: u32, bytes: usize) -> Result<bool, Error> {
    let (rank, size) = (job.rank(), job.size());
    let distances = [1, size / 2, size - size / 2, size - 1];
    let peers: BTreeSet<u32> = distances.iter().map(|far| (rank + far) % size).collect();
    let peers: Vec<u32> = peers.into_iter().filter(|peer| *peer != rank).collect();
    let channel = job.channel("probe");
    let came = channel.exchange(&peers, &value(rank, round, bytes))?;
    let expected = peers.iter().map(|peer| (*peer, value(*peer, round, bytes)));
    let is_well = came.into_iter().map(|(peer, value)| (peer, value.to_vec())).eq(expected);
    Ok(is_well && channel.share(&value(rank, round, bytes))? == value(0, round, bytes))
}

/// How many this process has.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

fn describe(job: &Job, agree: bool, sockets: usize) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        let comma = if text.is_empty() { "{" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}\"{name}\": {value}");
    };
    add("rank", &job.rank());
    add("size", &job.size());
    add("node", &job.node());
    add("nodes", &job.node_map().nodes());
    add("local_rank", &job.local_rank());
    add("local_size", &job.local_size());
    add("map", &format!("\"{}\"", job.node_map()));
    add("mates", &list(job.node_map().ranks_of(job.node())));
    add("via", &format!("\"{}\"", job.via()));
    add("gathered", &agree);
    add("sockets", &sockets);
    text.push('}');
    text
}

fn list(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("[{}]", words.join(", "))
}
