//! `hg-perf faults`: how soon a caller learns that its target is dead, and how exact deadlines are.
//!
//! | figure               | what it is                                                                  |
//! |----------------------|-----------------------------------------------------------------------------|
//! | `death_to_error`     | from `waitid` in another thread, which the kernel ends at the target's      |
//! |                      | death, to the last call in flight ending with `PeerGone`                    |
//! | `deadline_late`      | how late a call to a stopped target (`SIGSTOP`) ends                        |
//! | `deadline_wait_cpu`  | processor time of the waiting caller meanwhile                              |

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::target::Target;
use crate::product::{call_once, hold, origin};
use crate::report::{self, Figure};
use crate::stats::{Better, Summary};

/// `hg-perf faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Targets to kill, for each way of waiting.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// Calls in flight at each kill.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    inflight: u32,
    /// Deadlines to run into, for each way of waiting.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    deadlines: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let mut figures = Vec::new();
    for wait in [Wait::Spin, Wait::Adaptive, Wait::Block] {
        let kills = (0..arguments.kills).map(|_| death(arguments, wait, cores));
        let values = kills.collect::<Result<Vec<f64>, Error>>()?;
        figures.push(figure("death_to_error", Unit::Microseconds, arguments, wait, &values));
    }
    for wait in [Wait::Spin, Wait::Adaptive, Wait::Block] {
        let (late, cpu) = deadlines(arguments, wait, cores)?;
        figures.push(figure("deadline_late", Unit::Microseconds, arguments, wait, &late));
        if wait != Wait::Spin {
            figures.push(figure("deadline_wait_cpu", Unit::Percent, arguments, wait, &cpu));
        }
    }
    report::print(json, &figures)
}

fn figure(
    name: &'static str,
    unit: Unit,
    arguments: &Arguments,
    wait: Wait,
    values: &[f64],
) -> Figure {
    let inflight = if name == "death_to_error" { arguments.inflight } else { 1 };
    let subject = Subject {
        url: Some(arguments.url.clone()),
        inflight: Some(u64::from(inflight)),
        wait: Some(wait),
        ..Subject::new(name, unit)
    };
    let summary = Summary::of(values, Better::Smaller).expect("at least one fault");
    Figure::new(subject, summary)
}

/// One target, killed with calls in flight; microseconds until all of them have failed.
fn death(arguments: &Arguments, wait: Wait, cores: Cores) -> Result<f64, Error> {
    let target = Target::start(&arguments.url, wait, cores)?;
    let engine = origin(&arguments.url, wait)?;
    let peer = engine.lookup(target.address())?;
    call_once(&engine, &peer, 1)?;
    let calls: Vec<_> = (0..arguments.inflight).map(|_| engine.call(hold, &peer, ())).collect();
    let pid = target.pid()?;
    let killer = thread::spawn(move || killed_at(pid, cores));
    for call in calls {
        match call.wait() {
            Err(hg::CallError::PeerGone { .. }) => {}
            other => return Err(Error::Failed(format!("a call to a dead target: {other:?}"))),
        }
    }
    let told = Instant::now();
    let died = killer.join().map_err(|_| Error::Failed("the killing thread panicked".into()))??;
    // The caller may hear of it before the thread in `waitid` runs.
    Ok(told.saturating_duration_since(died).as_secs_f64() * 1e6)
}

/// Kills, and says when the kernel reported the death. The target's core is free by then.
fn killed_at(pid: Pid, cores: Cores) -> Result<Instant, Error> {
    if let Some(core) = cores.target {
        crate::pair::pin(core)?;
    }
    kill(pid, Signal::SIGKILL).context("kill")?;
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(pid), flags).context("waitid")?;
    Ok(Instant::now())
}

/// Calls to a stopped target: how late each ended in microseconds, and the percentage of processor time.
fn deadlines(
    arguments: &Arguments,
    wait: Wait,
    cores: Cores,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let target = Target::start(&arguments.url, wait, cores)?;
    let engine = origin(&arguments.url, wait)?;
    let peer = engine.lookup(target.address())?;
    call_once(&engine, &peer, 1)?;
    kill(target.pid()?, Signal::SIGSTOP).context("kill")?;
    let (mut late, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..arguments.deadlines {
        let (used, start) = (used()?, Instant::now());
        let call = engine.call_with(hold, &peer, (), hg::CallOptions::within(DEADLINE));
        match call.wait() {
            Err(hg::CallError::DeadlineExceeded(_)) => {}
            other => return Err(Error::Failed(format!("a call to a stopped target: {other:?}"))),
        }
        let took = start.elapsed();
        if took < DEADLINE {
            return Err(Error::Failed(format!("a deadline of {DEADLINE:?} fired after {took:?}")));
        }
        late.push((took - DEADLINE).as_secs_f64() * 1e6);
        cpu.push((self::used()? - used).as_secs_f64() / took.as_secs_f64() * 100.0);
    }
    Ok((late, cpu))
}

/// Processor time of this process so far.
fn used() -> Result<Duration, Error> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(us.unsigned_abs()))
}

/// Time that a call to a stopped target is given.
const DEADLINE: Duration = Duration::from_millis(10);
