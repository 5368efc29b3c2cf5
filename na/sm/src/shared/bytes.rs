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

use std::os::fd::OwnedFd;

use hg_na::{Error, Segment};
use nix::fcntl::SealFlag;

pub(crate) use crate::os::mapping::{Access, FUTURE_WRITE, seal, seals_of};
use crate::os::{
    mapping::{Mapping, new_memfd as sized_memfd},
    room,
};

/// A mapping of a whole memfd; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Bytes {
    mapping: Mapping,
    /// Bytes that are meant to be used; at least one is mapped.
    len: usize,
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
        Ok(Self { mapping: Mapping::map(fd, mapped_len(len), access)?, len })
    }

    /// Maps what a peer has sent, after its seals and its size were verified.
    ///
    /// # Errors
    /// As [`Mapping::open`].
    pub(crate) fn open(fd: &OwnedFd, len: usize, access: Access) -> Result<Self, Error> {
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | match access {
                Access::Write => SealFlag::empty(),
                Access::Read => FUTURE_WRITE,
                Access::Frozen => SealFlag::F_SEAL_WRITE,
            };
        Ok(Self { mapping: Mapping::open_sealed(fd, mapped_len(len), seals, access)?, len })
    }

    /// How it is mapped.
    pub(crate) fn access(&self) -> Access {
        self.mapping.access()
    }

    /// Where it lies; the address is exposed, from a pointer that may write when [`Access::Write`].
    pub(crate) fn segment(&self) -> Segment {
        Segment { address: self.mapping.base().as_ptr().expose_provenance(), len: self.len }
    }

    /// The bytes, when nobody can write them.
    pub(crate) fn frozen(&self) -> Option<&[u8]> {
        if self.access() != Access::Frozen {
            return None;
        }
        // SAFETY:
        // - in bounds, aligned and initialised: `len` bytes of the mapping, zeroes or what was written.
        // - not written while the slice lives: `F_SEAL_WRITE`, which the kernel grants only when nobody maps
        //   the file for writing and which nobody can take away (made by `Buffer::freeze`, or verified by
        //   `open`); the mapping itself is read-only.
        // - not truncated: `F_SEAL_SHRINK`. Alive: the borrow of `self` keeps the mapping.
        Some(unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) })
    }

    /// The bytes of memory that is in nobody else's hands.
    ///
    /// # Safety
    /// Nobody writes the bytes while the slice lives: neither this process nor another one.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`.
        // - not written meanwhile: the caller's word.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) }
    }

    /// The same for writing.
    ///
    /// # Safety
    /// Nobody else uses the bytes for writing while the slice lives, nor for reading in this process.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.access() == Access::Write, "mapped for reading only");
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`; writable: checked above.
        // - exclusive: `&mut self`, and the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use hg_na::GoneReason;

    use super::*;
    use crate::os::mapping::huge_memfd;

    fn why(opened: Result<Bytes, Error>) -> String {
        match opened {
            Err(Error::PeerGone(GoneReason::Misbehaved(why))) => why.to_string(),
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
        assert!(matches!(Bytes::open(&fd, 10_000, Access::Write), Err(Error::Os { .. })));
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
