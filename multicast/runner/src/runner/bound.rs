//! Processes that are bound to cores, as launchers of jobs do it.

use std::env;

use hg_job::Settings;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Set where that was asked for.
pub(crate) const ASKED: &str = "MULTICAST_RUNNER_BIND";

/// Binds this process, where that was asked for, to the core of its rank among those that it may use. It has one thread so far.
///
/// # Errors
/// The system's words.
pub(crate) fn bind() -> Result<(), String> {
    let Some(rank) = Settings::new().rank().filter(|_| env::var_os(ASKED).is_some()) else {
        return Ok(());
    };
    let failed = |errno: rustix::io::Errno| format!("a core for each process: {errno}");
    let usable = sched_getaffinity(None).map_err(failed)?;
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect();
    let mut own = CpuSet::new();
    own.set(cores[rank as usize % cores.len()]);
    sched_setaffinity(None, &own).map_err(failed)
}
