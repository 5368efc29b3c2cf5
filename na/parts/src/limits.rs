//! Limits of the operating system, in words that say what to do about them.

use std::io;

use hg_na::Error;
use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};

/// The number of descriptors that this process may have (`RLIMIT_NOFILE`, soft).
#[must_use]
pub fn nofile() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Wraps the error of a system call; a limit that is reached is named with its remedy.
pub fn os_error(call: &'static str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EMFILE => nofile_limit(),
        Errno::ENFILE => Error::Limit {
            what: "open files of the whole system (fs.file-max)",
            limit: number_in("/proc/sys/fs/file-max"),
            remedy: "raise it with sysctl, or close files of other processes",
        },
        Errno::ETOOMANYREFS => Error::Limit {
            what: "descriptors in flight between processes (RLIMIT_NOFILE)",
            limit: nofile(),
            remedy: "raise it with `ulimit -n`, or let the peers accept first",
        },
        Errno::ENOMEM if call == "mmap" => Error::Limit {
            what: "memory, or mappings of this process (vm.max_map_count)",
            limit: number_in("/proc/sys/vm/max_map_count"),
            remedy: "raise it with sysctl, or connect to fewer peers",
        },
        _ => Error::os(call, error),
    }
}

/// The same for a system call that another crate made.
#[must_use]
pub fn named(error: Error) -> Error {
    match &error {
        Error::Os { call, source } => match source.raw_os_error() {
            Some(code) => os_error(call, io::Error::from_raw_os_error(code)),
            None => error,
        },
        _ => error,
    }
}

/// The error for a process that has no descriptor left.
fn nofile_limit() -> Error {
    Error::Limit {
        what: "open files (RLIMIT_NOFILE)",
        limit: nofile(),
        remedy: "raise it with `ulimit -n`, or connect to fewer peers",
    }
}

/// The number in a file of /proc; 0 when it cannot be read.
fn number_in(path: &str) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_descriptors_is_told_the_limit_and_the_remedy() {
        let text = os_error("accept4", Errno::EMFILE).to_string();
        assert!(text.contains("RLIMIT_NOFILE") && text.contains("ulimit"), "{text}");
        assert!(text.contains(&nofile().to_string()), "{text}");
    }

    #[test]
    fn other_errors_keep_the_name_of_the_call() {
        let error = os_error("fstat", Errno::EBADF);
        assert!(matches!(error, Error::Os { call: "fstat", .. }), "{error}");
    }
}
