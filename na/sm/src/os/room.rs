//! What the system leaves this process: mappings, and memory where the system counts what it has promised.
//!
//! Pages of a memfd come into being when they are touched. Where accounting is strict (`vm.overcommit_memory=2`), one that
//! cannot be had then ends the process. So pages are asked for before they are touched, there: the flags and rings of a
//! segment, a region table and a buffer of `shared::alloc` whole when they are made, an arena's range by range as it is reserved.
//! What a peer shares is read as it is: one that leaves holes in it, and uses up all memory, ends this process there.

use std::{
    num::NonZeroUsize,
    os::fd::OwnedFd,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_na::Error;
use hg_na_parts::limits::{number_in, os_error};
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::{
        mman::{MapFlags, ProtFlags, mmap_anonymous, munmap},
        resource::{RLIM_INFINITY, Resource, getrlimit},
    },
};

/// Address space that every mapping leaves where it is limited (`RLIMIT_AS`): a heap that finds none ends the process.
const SPARE: usize = 16 << 20;

/// Mappings of peers, and of what this process shares with them.
pub(crate) static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Whether one more peer leaves this process the mappings that others need in it: a new thread's stack, above all, without
/// which a program ends.
///
/// # Errors
/// [`Error::Limit`].
pub(crate) fn for_a_peer() -> Result<(), Error> {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    let limit = *LIMIT.get_or_init(|| number_in("/proc/sys/vm/max_map_count"));
    // Relaxed: a count that nothing is read by.
    leaves_some(MAPPED.load(Ordering::Relaxed), limit)
}

/// Four fifths are for peers. A limit that cannot be read is none.
fn leaves_some(mapped: u64, limit: u64) -> Result<(), Error> {
    if limit == 0 || mapped < limit / 5 * 4 {
        return Ok(());
    }
    Err(Error::Limit {
        what: "mappings of this process for peers, four fifths of all (vm.max_map_count)",
        limit: limit / 5 * 4,
        remedy: "raise it with sysctl, or connect to fewer peers",
    })
}

/// Looks whether a mapping of so many bytes leaves some address space to the heap and to threads' stacks, where it is limited.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn leave_space(len: usize) -> Result<(), Error> {
    let is_limited = getrlimit(Resource::RLIMIT_AS).is_ok_and(|(limit, _)| limit != RLIM_INFINITY);
    let size = NonZeroUsize::new(len.saturating_add(SPARE)).filter(|_| is_limited);
    let Some(size) = size else { return Ok(()) };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY:
    // - a new mapping at an address of the kernel's choice, of which nothing can be touched.
    let found = unsafe { mmap_anonymous(None, size, ProtFlags::PROT_NONE, flags) };
    let found = found.map_err(|_refused| Error::NoMemory { len: len as u64 })?;
    // SAFETY:
    // - mapped above, and known to nobody else.
    unsafe { munmap(found, size.get()) }.map_err(|e| os_error("munmap", e))
}

/// Whether a page that is touched may not be to be had. Read once.
pub(crate) fn is_strict() -> bool {
    static STRICT: OnceLock<bool> = OnceLock::new();
    *STRICT.get_or_init(|| number_in("/proc/sys/vm/overcommit_memory") == 2)
}

/// Has the pages of a memfd's first bytes made, where they may not be to be had later.
///
/// # Errors
/// [`Error::Limit`], [`Error::Os`].
pub(crate) fn set_aside(fd: &OwnedFd, len: usize) -> Result<(), Error> {
    if len > 0 && is_strict() { make_pages(fd, len) } else { Ok(()) }
}

fn make_pages(fd: &OwnedFd, len: usize) -> Result<(), Error> {
    let len = i64::try_from(len).map_err(|_| os_error("fallocate", Errno::EFBIG))?;
    loop {
        match fallocate(fd, FallocateFlags::empty(), 0, len) {
            Err(Errno::EINTR) => {}
            Err(Errno::ENOSPC | Errno::ENOMEM) => return Err(no_memory()),
            made => return made.map_err(|error| os_error("fallocate", error)),
        }
    }
}

/// The system has promised all that it may.
pub(crate) fn no_memory() -> Error {
    Error::Limit {
        what: "memory that the system may promise (vm.overcommit_memory=2), as vm.overcommit_ratio in percent,",
        limit: number_in("/proc/sys/vm/overcommit_ratio"),
        remedy: "raise it with sysctl, or move less at a time",
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;
    use crate::os::mapping::{Access, Mapping, TABLE_SEALS};

    #[test]
    fn a_peer_is_refused_by_name_while_a_fifth_of_all_mappings_is_left() {
        assert!(leaves_some(0, 65_530).is_ok() && leaves_some(52_423, 65_530).is_ok());
        let refused = leaves_some(52_424, 65_530).unwrap_err();
        assert!(matches!(refused, Error::Limit { limit: 52_424, .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("vm.max_map_count") && said.contains("sysctl"), "{said}");
        assert!(leaves_some(1_000_000, 0).is_ok(), "unknown");
    }

    #[test]
    fn pages_that_were_asked_for_are_there_and_those_that_cannot_be_are_an_error() {
        let (_mapping, fd) = Mapping::create(c"test", 1 << 20, TABLE_SEALS, 0).unwrap();
        make_pages(&fd, 65_536).unwrap();
        assert_eq!(fstat(&fd).unwrap().st_blocks * 512, 65_536);
        let read_only = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(make_pages(&read_only, 4096).is_err());
        assert!(no_memory().to_string().contains("vm.overcommit_memory=2"));
    }

    #[test]
    fn what_is_mapped_is_counted_for_as_long_as_it_lives() {
        // Others of this process may map meanwhile: a thousand are told from those.
        let before = MAPPED.load(Ordering::Relaxed);
        let fd = crate::os::mapping::new_memfd(c"test", 4096).unwrap();
        let map = |_| Mapping::map(&fd, 4096, Access::Write).unwrap();
        let counted: Vec<_> = (0..1000).map(map).collect();
        assert!(MAPPED.load(Ordering::Relaxed) >= before + 900);
        drop(counted);
        assert!(MAPPED.load(Ordering::Relaxed) < before + 900);
    }
}
