//! Processor time, memory and descriptors of this process.

use std::{fs, time::Duration};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike as _},
};

/// Seconds of processor time so far, of all threads.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let seconds = |time: TimeVal| {
        let micros = u64::try_from(time.num_microseconds()).unwrap_or(0);
        Duration::from_micros(micros).as_secs_f64()
    };
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// File descriptors that it has open.
#[must_use]
pub fn descriptors() -> u64 {
    // Not the one by which the folder is read.
    fs::read_dir("/proc/self/fd").map_or(0, |open| open.count().saturating_sub(1) as u64)
}

/// The high-water mark of its resident memory, in KiB.
#[must_use]
pub fn peak_rss_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
