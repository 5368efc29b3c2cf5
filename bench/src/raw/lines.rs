//! Cache lines in memory that two processes share.
//!
//! # Layout of a [`Line`]
//! | offset | size | field      | meaning                                              |
//! |-------:|-----:|------------|------------------------------------------------------|
//! |      0 |    4 | `sequence` | its store publishes the rest of the line             |
//! |      4 |    4 | `spare`    | unused                                               |
//! |      8 |   56 | `words`    | the payload                                          |
//!
//! The memory is a sealed memfd: it has no name, and nobody can make it shorter.

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::{Context, Error};

/// One cache line; every field is an atomic, since another process writes it too.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    /// Its store (Release) publishes the rest, its load (Acquire) sees it.
    pub(crate) sequence: AtomicU32,
    spare: AtomicU32,
    /// The payload.
    pub(crate) words: [AtomicU64; WORDS],
}

/// Words of payload in a line.
pub(crate) const WORDS: usize = 7;

const _: () = {
    assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);
    assert!(offset_of!(Line, words) == 8);
};

/// A mapping of lines, zero at first.
#[derive(Debug)]
pub(crate) struct Lines {
    memory: OwnedFd,
    map: MmapRaw,
}

impl Lines {
    /// New memory for `count` lines.
    pub(crate) fn create(count: usize) -> Result<Lines, Error> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"hg-perf", flags).context("memfd_create")?);
        let bytes = u64::try_from(count * size_of::<Line>()).expect("a usize fits a u64");
        file.set_len(bytes).context("ftruncate")?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).context("fcntl F_ADD_SEALS")?;
        Lines::open(file.into())
    }

    /// The memory that another process created and sent; its length is the file's.
    pub(crate) fn open(memory: OwnedFd) -> Result<Lines, Error> {
        let map = MmapOptions::new().map_raw(&memory).context("mmap")?;
        Ok(Lines { memory, map })
    }

    /// What to send to the other process.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// All whole lines of the mapping.
    pub(crate) fn as_slice(&self) -> &[Line] {
        let count = self.map.len() / size_of::<Line>();
        // SAFETY:
        // - in bounds: `count` whole lines fit into the mapping's length.
        // - backed: the length is the file's, and the file is sealed against shrinking.
        // - aligned: a mapping starts at a page.
        // - valid: a line is atomics only, so every bit pattern is a line.
        // - shared: no `&mut` into the mapping is ever made, here or in the peer.
        // - alive: the borrow of `self` keeps the mapping until it ends.
        unsafe { slice::from_raw_parts(self.map.as_ptr().cast::<Line>(), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_one_memory_show_the_same_lines() {
        let here = Lines::create(3).unwrap();
        let there = Lines::open(here.memory().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((here.as_slice().len(), there.as_slice().len()), (3, 3));
        here.as_slice()[2].words[6].store(7, Relaxed);
        assert_eq!(there.as_slice()[2].words[6].load(Relaxed), 7);
    }

    #[test]
    fn the_memory_can_not_be_made_shorter() {
        let lines = Lines::create(1).unwrap();
        let file = File::from(lines.memory().try_clone_to_owned().unwrap());
        assert!(file.set_len(0).is_err());
    }
}
