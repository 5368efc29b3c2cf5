//! Limits of the operating system, in words that say what to do about them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
};

use hg_na::{Error, GoneReason};
use nix::{
    errno::Errno,
    sys::resource::{RLIM_INFINITY, Resource, getrlimit},
};

/// The number of descriptors that this process may have (`RLIMIT_NOFILE`, soft).
#[must_use]
pub fn nofile() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Whether a file, also one that is memory, may have so many bytes: making it longer ends the process by a signal (`SIGXFSZ`).
///
/// # Errors
/// [`Error::Limit`] where it may not.
pub fn file_size(bytes: u64) -> Result<(), Error> {
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(RLIM_INFINITY, |(soft, _)| soft);
    if bytes <= limit {
        return Ok(());
    }
    let remedy = "raise it with `ulimit -f`: what processes share counts as a file";
    Err(Error::Limit { what: "bytes of a file (RLIMIT_FSIZE)", limit, remedy })
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

/// Why there is no connection to a peer, from what the system said while one was made: what this process lacks is
/// not the peer's fault.
pub fn unreachable(call: &'static str, error: &io::Error) -> GoneReason {
    use Errno::{EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM, ETOOMANYREFS};
    match error.raw_os_error().map(Errno::from_raw) {
        Some(own @ (EMFILE | ENFILE | ENOMEM | ENOBUFS | ETOOMANYREFS)) => {
            GoneReason::Exhausted(os_error(call, own).to_string().into())
        }
        Some(EADDRNOTAVAIL) => GoneReason::Exhausted(
            format!("{error}: no local port is free, see net.ipv4.ip_local_port_range").into(),
        ),
        _ => GoneReason::Unreachable(error.to_string().into()),
    }
}

/// Whether `accept` had no descriptor, or no memory, for one more connection.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    let errors = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| errors.contains(&Errno::from_raw(number)))
}

/// Whether a descriptor that was just made, with the lowest number that was free, is among the last eighth that this process may
/// have: those are for what it does beside listening.
#[must_use]
pub fn is_scarce(made: impl AsFd) -> bool {
    let most = nofile();
    u64::try_from(made.as_fd().as_raw_fd()).is_ok_and(|number| number >= most - most / 8)
}

/// Another descriptor of the same, whose number is the lowest one that is free.
///
/// # Errors
/// Of the system's: there is none.
pub fn lowest(of: impl AsFd) -> io::Result<OwnedFd> {
    of.as_fd().try_clone_to_owned()
}

/// What one is told that comes while descriptors are scarce.
#[must_use]
pub fn descriptors_are_scarce() -> String {
    format!(
        "it can take no further connection (its RLIMIT_NOFILE is {}): raise what it lacks there, or connect fewer peers",
        nofile()
    )
}

/// The limit of memory that may be locked, which network cards do to what they reach; `None` where there is none.
#[must_use]
pub fn locked_memory() -> Option<Error> {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (limit != RLIM_INFINITY).then_some(Error::Limit {
        what: "memory, or memory that may be locked (RLIMIT_MEMLOCK)",
        limit,
        remedy: "raise it with `ulimit -l`, or register less",
    })
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
#[must_use]
pub fn number_in(path: &str) -> u64 {
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
    fn what_this_process_lacks_is_not_the_peer_s_fault() {
        for own in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EADDRNOTAVAIL] {
            let reason = unreachable("socket", &own.into());
            assert!(matches!(reason, GoneReason::Exhausted(_)), "{reason}");
        }
        let said = unreachable("socket", &Errno::EMFILE.into()).to_string();
        let limit = nofile();
        let start =
            "this process has no room for a connection (open files (RLIMIT_NOFILE) is at its";
        assert!(said.starts_with(&format!("{start} limit of {limit}; raise it with")), "{said}");
        let theirs = unreachable("connect", &Errno::ECONNREFUSED.into());
        assert!(matches!(theirs, GoneReason::Unreachable(_)), "{theirs}");
    }

    #[test]
    fn other_errors_keep_the_name_of_the_call() {
        let error = os_error("fstat", Errno::EBADF);
        assert!(matches!(error, Error::Os { call: "fstat", .. }), "{error}");
    }
}
