//! What the kernel tells about a process: memory, descriptors, mappings, processor time.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::Pid;

use crate::error::{Context, Error};

/// What a process holds at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// Resident memory, in KiB, exact (`smaps_rollup`).
    pub(crate) rss_kib: u64,
    /// Open file descriptors.
    pub(crate) fds: u64,
    /// Memory mappings.
    pub(crate) mappings: u64,
}

impl Held {
    /// What a process holds now.
    pub(crate) fn by(pid: Pid) -> Result<Held, Error> {
        let fds = fs::read_dir(path(pid, "fd")).context("read /proc/PID/fd")?.count();
        Ok(Held {
            rss_kib: rollup(pid, "Rss:")?,
            fds: fds as u64,
            mappings: read(pid, "maps")?.lines().count() as u64,
        })
    }
}

/// Memory of a process in KiB; of what several have mapped, its share.
pub(crate) fn share_kib(pid: Pid) -> Result<u64, Error> {
    rollup(pid, "Pss:")
}

fn rollup(pid: Pid, name: &str) -> Result<u64, Error> {
    let text = read(pid, "smaps_rollup")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.ok_or_else(|| unreadable("smaps_rollup"))
}

/// Processor time of all threads so far.
pub(crate) fn cpu_time(pid: Pid) -> Result<Duration, Error> {
    let mut ns = 0;
    for task in fs::read_dir(path(pid, "task")).context("read /proc/PID/task")? {
        let file = task.context("read /proc/PID/task")?.path().join("schedstat");
        let text = fs::read_to_string(file).context("read schedstat")?;
        let time = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        ns += time.ok_or_else(|| unreadable("schedstat"))?;
    }
    Ok(Duration::from_nanos(ns))
}

/// Threads of a process, and how often they have slept and were woken, all together.
pub(crate) fn threads_and_sleeps(pid: Pid) -> Result<(u64, u64), Error> {
    let (mut threads, mut sleeps) = (0, 0);
    for task in fs::read_dir(path(pid, "task")).context("read /proc/PID/task")? {
        let file = task.context("read /proc/PID/task")?.path().join("status");
        // It may have ended meanwhile.
        let Ok(text) = fs::read_to_string(file) else { continue };
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count = line.and_then(|number| number.trim().parse::<u64>().ok());
        sleeps += count.ok_or_else(|| unreadable("status"))?;
        threads += 1;
    }
    Ok((threads, sleeps))
}

fn read(pid: Pid, file: &str) -> Result<String, Error> {
    fs::read_to_string(path(pid, file)).context("read /proc/PID")
}

fn path(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

fn unreadable(file: &str) -> Error {
    Error::Failed(format!("/proc/PID/{file} does not read as expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_memory_mappings_and_descriptors() -> Result<(), Error> {
        let file = fs::File::open("/proc/self/stat").context("open /proc/self/stat")?;
        let held = Held::by(Pid::this())?;
        drop(file);
        assert!(held.rss_kib > 0 && held.mappings > 0 && held.fds > 0);
        Ok(())
    }

    #[test]
    fn processor_time_grows_with_work() -> Result<(), Error> {
        let before = cpu_time(Pid::this())?;
        let start = std::time::Instant::now();
        let mut sum = 0_u64;
        while start.elapsed() < Duration::from_millis(20) {
            sum = std::hint::black_box(sum).wrapping_add(1);
        }
        assert!(cpu_time(Pid::this())? > before);
        Ok(())
    }
}
