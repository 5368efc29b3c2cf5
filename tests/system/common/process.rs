//! What the kernel says about a process.

use std::{collections::BTreeSet, fs, path::Path};

use super::until;

/// Descriptors that a process has open.
pub(crate) fn fds(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Mappings of a process.
pub(crate) fn maps(pid: u32) -> usize {
    read(pid, "maps").lines().count()
}

/// Threads of a process.
pub(crate) fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Resident memory of a process in KiB.
pub(crate) fn rss_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// The part of it that is no file's: anonymous and shared memory.
pub(crate) fn own_rss_kib(pid: u32) -> u64 {
    status_kib(pid, "RssAnon:") + status_kib(pid, "RssShmem:")
}

/// The part of it that lies in shared memory: rings and arenas.
pub(crate) fn shared_rss_kib(pid: u32) -> u64 {
    status_kib(pid, "RssShmem:")
}

/// The most that it ever was.
pub(crate) fn peak_rss_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Processor time of all threads of a process, in clock ticks of 10 ms.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let stat = read(pid, "stat");
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    // Counted behind the name: state is 0, utime 11, stime 12.
    ticks(11) + ticks(12)
}

/// Processor time of the threads that a process has, in microseconds, unrounded (`/proc/PID/task/TID/schedstat`).
pub(crate) fn cpu_us(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_task = |path: &Path| {
        let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds.unwrap_or(0) / 1000
    };
    tasks.flatten().map(|task| of_task(&task.path())).sum()
}

/// Times that threads of a process went to sleep.
pub(crate) fn sleeps(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_task = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(|task| of_task(&task.path())).sum()
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    !matches!(state(Path::new(&format!("/proc/{pid}"))), None | Some('Z'))
}

/// Whether every thread of a process is stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    tasks.flatten().all(|task| state(&task.path()) == Some('T'))
}

fn state(place: &Path) -> Option<char> {
    let stat = fs::read_to_string(place.join("stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Abstract sockets of this library whose name begins so.
pub(crate) fn abstract_sockets(name: &str) -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").expect("/proc is mounted");
    let prefix = format!("@hydrargyrum/{name}");
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
}

/// Everything of this library in the places where shared memory and temporary files are left behind. Files of
/// `hg-perf` and of tests, which may run at the same time, are not the library's.
pub(crate) fn left_in_file_systems() -> BTreeSet<String> {
    let of = |place: &str| -> Vec<String> {
        let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path().display().to_string());
        let is_ours = |path: &String| path.contains("hydrargyrum") || path.contains("hg");
        let is_other = |path: &String| path.contains("hg-perf") || path.contains("test");
        paths.filter(|path| is_ours(path) && !is_other(path)).collect()
    };
    ["/dev/shm", "/tmp", "/run", "/var/tmp", "/dev/mqueue"].into_iter().flat_map(of).collect()
}

/// Waits until the library has left nothing there that was not there before. Tests of other packages run at the
/// same time and keep files there while they run: those go when their tests end.
pub(crate) fn until_nothing_is_left_but(before: &BTreeSet<String>) {
    until(|| left_in_file_systems().is_subset(before));
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}
