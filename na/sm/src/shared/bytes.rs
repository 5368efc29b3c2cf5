//! Bytes in a memfd of their own, mapped: by their owner, or by a peer that was sent the memfd.
//!
//! | access | mapping | who | what keeps others from writing |
//! |---|---|---|---|
//! | [`Access::Write`] | shared, writable | the owner; peers of a writable region | nothing: they are meant to |
//! | [`Access::Read`] | shared, read-only | peers of a read-only region | nothing: the owner may be writing |
//! | [`Access::Frozen`] | private, read-only | anybody, once `F_SEAL_WRITE` is set | the kernel, for good |
//!
//! A private mapping of pages that nobody can write is those pages; a shared one of a write-sealed memfd is
//! refused by kernels before 6.7.

use std::{
    ffi::c_void,
    fmt,
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
};

use hg_na::{Error, Segment};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap},
        stat::fstat,
    },
};

use hg_na_parts::limits::os_error;

use crate::os::{
    mapping::{has_huge_pages, new_memfd as sized_memfd},
    room,
};

/// `F_SEAL_FUTURE_WRITE` (Linux 5.1), which `nix` has no name for.
pub(crate) const FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// How bytes are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read and write.
    Write,
    /// Read what others may be writing.
    Read,
    /// Read what nobody can write any more.
    Frozen,
}

/// A mapping of a whole memfd; unmapped when dropped.
pub(crate) struct Bytes {
    base: NonNull<u8>,
    /// Bytes that are meant to be used; at least one is mapped.
    len: usize,
    access: Access,
    /// The process that mapped it; a forked child has other things at that address.
    process: u32,
}

/// A new memfd of `len` bytes that can neither shrink nor grow. Pages come into being when they are touched.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
pub(crate) fn new_memfd(len: usize) -> Result<OwnedFd, Error> {
    let fd = sized_memfd(c"hg-sm-shared", mapped_len(len))?;
    room::set_aside(&fd, 0..mapped_len(len))?;
    seal(&fd, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)?;
    Ok(fd)
}

/// Adds seals; those that are there stay.
///
/// # Errors
/// [`Error::Os`]: `EBUSY` for `F_SEAL_WRITE` while anybody maps it for writing.
pub(crate) fn seal(fd: &OwnedFd, seals: SealFlag) -> Result<(), Error> {
    let added = fcntl(fd, FcntlArg::F_ADD_SEALS(seals));
    added.map(drop).map_err(|error| os_error("fcntl(F_ADD_SEALS)", error))
}

/// The seals of a memfd; `None` for any other descriptor.
pub(crate) fn seals_of(fd: &OwnedFd) -> Option<SealFlag> {
    fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_retain)
}

/// Bytes of the file behind `len` bytes: an empty file cannot be mapped.
fn mapped_len(len: usize) -> usize {
    len.max(1)
}

impl Bytes {
    /// Maps a memfd of this process's own, as long as [`new_memfd`] made it.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
    pub(crate) fn map(fd: &OwnedFd, len: usize, access: Access) -> Result<Self, Error> {
        let size = NonZeroUsize::new(mapped_len(len)).expect("at least one byte");
        let (protection, flags) = match access {
            Access::Write => (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED),
            Access::Read => (ProtFlags::PROT_READ, MapFlags::MAP_SHARED),
            Access::Frozen => (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE),
        };
        // SAFETY:
        // - a new mapping at an address of the kernel's choice: touches no memory in use.
        let mapped = unsafe { mmap(None, size, protection, flags, fd.as_fd(), 0) };
        let base: NonNull<c_void> = mapped.map_err(|error| match error {
            // One page can be mapped: it is the size, not the number of mappings.
            Errno::ENOMEM if len > 1 && Self::map(fd, 1, access).is_ok() => {
                Error::NoMemory { len: len as u64 }
            }
            error => os_error("mmap", error),
        })?;
        let bytes = Self { base: base.cast(), len, access, process: std::process::id() };
        // SAFETY:
        // - the range is the mapping that was just made; a forked child shall not have it.
        let advised = unsafe { madvise(base, size.get(), MmapAdvise::MADV_DONTFORK) };
        advised.map_err(|error| os_error("madvise(MADV_DONTFORK)", error))?;
        Ok(bytes)
    }

    /// Maps what a peer has sent, after its seals and its size were verified.
    ///
    /// # Errors
    /// A sentence about what is wrong with the descriptor, in [`Refused::Lie`].
    pub(crate) fn open(fd: &OwnedFd, len: usize, access: Access) -> Result<Self, Refused> {
        let seals = seals_of(fd).ok_or(Refused::Lie("it sent a descriptor that is no memfd"))?;
        let needed = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | match access {
                Access::Write => SealFlag::empty(),
                Access::Read => FUTURE_WRITE,
                Access::Frozen => SealFlag::F_SEAL_WRITE,
            };
        if !seals.contains(needed) {
            return Err(Refused::Lie("it sent shared memory without the seals that it needs"));
        }
        if has_huge_pages(fd).map_err(Refused::System)? {
            return Err(Refused::Lie("it sent shared memory of huge pages, which may run out"));
        }
        // Sealed: the size that is read here is the size for ever.
        let stat = fstat(fd).map_err(|error| Refused::System(os_error("fstat", error)))?;
        if usize::try_from(stat.st_size).ok() != Some(mapped_len(len)) {
            return Err(Refused::Lie("it sent shared memory of another size than it published"));
        }
        Self::map(fd, len, access).map_err(Refused::System)
    }

    /// How it is mapped.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Where it lies; the address is exposed, from a pointer that may write when [`Access::Write`].
    pub(crate) fn segment(&self) -> Segment {
        Segment { address: self.base.as_ptr().expose_provenance(), len: self.len }
    }

    /// The bytes, when nobody can write them.
    pub(crate) fn frozen(&self) -> Option<&[u8]> {
        if self.access != Access::Frozen {
            return None;
        }
        // SAFETY:
        // - in bounds, aligned and initialised: `len` bytes of the mapping, zeroes or what was written.
        // - not written while the slice lives: `F_SEAL_WRITE`, which the kernel grants only when nobody maps
        //   the file for writing and which nobody can take away (made by `Buffer::freeze`, or verified by
        //   `open`); the mapping itself is read-only.
        // - not truncated: `F_SEAL_SHRINK`. Alive: the borrow of `self` keeps the mapping.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) })
    }

    /// The bytes of memory that is in nobody else's hands.
    ///
    /// # Safety
    /// Nobody writes the bytes while the slice lives: neither this process nor another one.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`.
        // - not written meanwhile: the caller's word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The same for writing.
    ///
    /// # Safety
    /// Nobody else uses the bytes for writing while the slice lives, nor for reading in this process.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.access == Access::Write, "mapped for reading only");
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`; writable: checked above.
        // - exclusive: `&mut self`, and the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// Why a peer's memfd was not mapped.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It is not what the peer has published.
    Lie(&'static str),
    /// This process cannot have it.
    System(Error),
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // MADV_DONTFORK: nothing of ours is mapped in a forked child.
        }
        // SAFETY:
        // - mapped by `map` in this process with this length, and unmapped only here.
        // - every reference into it borrows `self`.
        let unmapped = unsafe { munmap(self.base.cast(), mapped_len(self.len)) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Bytes({}, {:?})", self.len, self.access)
    }
}

// SAFETY:
// - it owns the mapping like a box; the bytes are reached through borrows and raw addresses only.
unsafe impl Send for Bytes {}
// SAFETY:
// - as above: what `&self` gives safely is bytes that nobody can write.
unsafe impl Sync for Bytes {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapping::huge_memfd;

    fn why(opened: Result<Bytes, Refused>) -> String {
        match opened {
            Err(Refused::Lie(why)) => why.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_sealed_memfds_of_the_published_size_are_mapped() {
        let fd = new_memfd(10_000).unwrap();
        assert!(Bytes::open(&fd, 10_000, Access::Write).is_ok());
        assert!(why(Bytes::open(&fd, 10_001, Access::Write)).contains("size"));
        assert!(why(Bytes::open(&fd, 10_000, Access::Read)).contains("seals"));
        seal(&fd, FUTURE_WRITE).unwrap();
        assert!(Bytes::open(&fd, 10_000, Access::Read).is_ok());
        assert!(matches!(Bytes::open(&fd, 10_000, Access::Write), Err(Refused::System(_))));
        assert!(why(Bytes::open(&fd, 10_000, Access::Frozen)).contains("seals"));
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
        assert_eq!(Bytes::open(&fd, 10_000, Access::Frozen).unwrap().frozen().unwrap()[9_999], 0);
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(why(Bytes::open(&file, 10_000, Access::Read)).contains("no memfd"));
        let loose = sized_memfd(c"x", 10_000).unwrap();
        assert!(why(Bytes::open(&loose, 10_000, Access::Write)).contains("seals"));
        let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        if let Some((huge, len)) = huge_memfd(sealed) {
            for access in [Access::Write, Access::Frozen] {
                assert!(why(Bytes::open(&huge, len, access)).contains("huge pages"));
            }
        }
    }

    #[test]
    fn memory_that_somebody_writes_is_not_sealed() {
        let fd = new_memfd(1).unwrap();
        let writer = Bytes::map(&fd, 1, Access::Write).unwrap();
        assert!(seal(&fd, SealFlag::F_SEAL_WRITE).is_err());
        assert!(writer.frozen().is_none());
        drop(writer);
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
    }
}
