//! What this process has open, as the kernel lists it.

use std::{collections::BTreeSet, os::fd::RawFd};

/// All eventfds of this process.
pub(crate) fn eventfds() -> BTreeSet<RawFd> {
    let name = |number: &RawFd| std::fs::read_link(format!("/proc/self/fd/{number}"));
    let is_eventfd =
        |number: &RawFd| name(number).is_ok_and(|it| it.as_os_str() == "anon_inode:[eventfd]");
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse().unwrap()
    };
    entries.map(number).filter(is_eventfd).collect()
}
