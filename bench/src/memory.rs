//! `hg-perf memory`: what a target's peers cost it.
//!
//! | figure                     | what it is                                                          |
//! |----------------------------|---------------------------------------------------------------------|
//! | `empty_rss`                | a Rust program that does nothing (`hg-perf-empty`)                  |
//! | `first_peer_rss`           | a target of `hg-perf-served` with one peer that made one call, above that |
//! | `further_peer_rss`         | each further peer that has made one call and is idle                |
//! | `further_peer_fds`         | its descriptors in the target                                       |
//! | `large_messages_rss`       | what a burst of large messages adds                                 |
//! | `large_messages_kept_rss`  | what of it is left once the peer is idle                            |
//!
//! Each target lives in a process of its own; shared pages count in full.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::process::Held;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::crowd::Crowd;
use crate::product::direct;
use crate::product::target::Target;
use crate::report::{self, Figure};

/// `hg-perf memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Further idle peers.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    peers: u32,
    /// Bytes of a large message.
    #[arg(long, default_value_t = 256 << 10)]
    large: usize,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    let url = &arguments.url;
    let empty = empty_rss()?;
    let (_served, pid, target) = serve(url)?;
    let word = Shape { url: url.clone(), size: WORD, inflight: 1, wait: Wait::Block, peers: 1 };
    let first = Caller::connect(word.clone(), &target)?;
    let one = Held::by(pid)?;
    let crowd = Crowd::start(url, &target, arguments.peers as usize, cores)?;
    let many = Held::by(pid)?;
    drop(crowd);
    drop(first);

    let target = Rc::new(Target::start(url, Wait::Block, cores)?);
    let pid = target.pid()?;
    let large = Caller::connect(Shape { size: arguments.large, inflight: 16, ..word }, &target)?;
    let calm = Held::by(pid)?.rss_kib;
    large.calls(LARGE_CALLS)?;
    let burst = Held::by(pid)?.rss_kib;
    let kept = lowest(&large, pid, calm)?;

    let named = |name, unit| Subject { url: Some(url.clone()), ..Subject::new(name, unit) };
    let kib = |name, value: f64| Figure::counted(named(name, Unit::Kibibytes), value);
    let more = |now: u64, then: u64| now as f64 - then as f64;
    let peers = f64::from(arguments.peers);
    let fds = more(many.fds, one.fds) / peers;
    report::print(
        json,
        &[
            kib("empty_rss", empty as f64),
            kib("first_peer_rss", more(one.rss_kib, empty)),
            kib("further_peer_rss", more(many.rss_kib, one.rss_kib) / peers),
            Figure::counted(named("further_peer_fds", Unit::Descriptors), fds),
            kib("large_messages_rss", more(burst, calm)),
            kib("large_messages_kept_rss", more(kept, calm)),
        ],
    )
}

/// The least that the target holds while both sides are idle, until it is no more than before or
/// [`PATIENCE`] is over.
fn lowest(origin: &Caller, pid: Pid, before: u64) -> Result<u64, Error> {
    let limit = Instant::now() + PATIENCE;
    let mut least = u64::MAX;
    while least > before && Instant::now() < limit {
        // An idle engine makes progress, too: it sleeps until there is something to do.
        origin.idle_for(LOOK_EVERY);
        least = least.min(Held::by(pid)?.rss_kib);
    }
    Ok(least)
}

/// A program that lies beside this one; it ends with its standard input.
fn beside(name: &str) -> Result<Command, Error> {
    let this = std::env::current_exe().context("readlink /proc/self/exe")?;
    let program: PathBuf = this.with_file_name(name);
    if !program.exists() {
        let (program, how) = (program.display(), "build it with `cargo build -p bench --release`");
        return Err(Error::Impossible(format!("{program} is missing: {how}")));
    }
    let mut command = Command::new(program);
    command.stdin(Stdio::piped());
    Ok(command)
}

fn pid_of(child: &Killed) -> Pid {
    Pid::from_raw(i32::try_from(child.0.id()).expect("a pid fits an i32"))
}

/// A target that holds nothing of this program's, and how to call it.
fn serve(url: &str) -> Result<(Killed, Pid, Rc<Target>), Error> {
    let mut command = beside("hg-perf-served")?;
    command.arg(url).args(direct(url).map(|(name, value)| format!("{name}={value}")));
    let child = command.stdout(Stdio::piped()).spawn().context("spawn")?;
    let mut child = Killed(child);
    let mut address = String::new();
    let out = child.0.stdout.take().expect("it was asked for");
    BufReader::new(out).read_line(&mut address).context("read")?;
    let address = address.trim_end();
    if address.is_empty() {
        return Err(Error::Impossible(format!("hg-perf-served does not serve {url}")));
    }
    let target = Rc::new(Target::at(address.to_owned(), Wait::Block));
    let pid = pid_of(&child);
    Ok((child, pid, target))
}

/// Memory of the program that does nothing.
fn empty_rss() -> Result<u64, Error> {
    let child = beside("hg-perf-empty")?.spawn().context("spawn")?;
    let mut child = Killed(child);
    let pid = pid_of(&child);
    // It has started once it sleeps in the read of its standard input.
    let limit = Instant::now() + PATIENCE;
    while !reads(pid) && Instant::now() < limit {
        child.0.try_wait().context("waitpid")?;
        std::thread::yield_now();
    }
    Ok(Held::by(pid)?.rss_kib)
}

/// Whether the program's first thread sleeps in `read(0, ...)`.
fn reads(pid: Pid) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.starts_with("0 0x0 ")
}

/// Killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls with a large argument.
const LARGE_CALLS: u32 = 200;
/// How long an idle target may take to give pages back.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);
