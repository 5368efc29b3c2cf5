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
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::{ptr, slice};

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

/// Bytes of a line.
pub(crate) const LINE: usize = size_of::<Line>();

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

    /// Copies bytes to the lines from `first` on.
    ///
    /// # Panics
    /// When they do not fit.
    pub(crate) fn copy_in(&self, first: usize, from: &[u8]) {
        let into = self.place(first, from.len());
        // SAFETY:
        // - in bounds: `place` checked it; `from` is this process's own, so they do not overlap.
        // - as opaque bytes through a raw pointer: what the other process makes of them meanwhile is its own affair,
        //   which reads them after they were published.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
    }

    /// Copies bytes out of the lines from `first` on.
    ///
    /// # Panics
    /// When there are not so many.
    pub(crate) fn copy_out(&self, first: usize, into: &mut [u8]) {
        let from = self.place(first, into.len());
        // SAFETY:
        // - as in `copy_in`.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn place(&self, first: usize, len: usize) -> *mut u8 {
        let start = first.checked_mul(LINE).expect("lines are in the address space");
        let end = start.checked_add(len).expect("so are bytes");
        assert!(end <= self.map.len(), "{end} is outside of {} bytes", self.map.len());
        self.map.as_mut_ptr().wrapping_add(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// Another mapping of the same memory.
    fn again(lines: &Lines) -> Lines {
        let memory = lines.memory().try_clone_to_owned().expect("a descriptor more");
        Lines::open(memory).expect("memory of lines")
    }

    #[test]
    fn two_mappings_of_one_memory_show_the_same_lines() {
        let here = Lines::create(3).expect("a few lines");
        let there = again(&here);
        assert_eq!((here.as_slice().len(), there.as_slice().len()), (3, 3));
        here.as_slice()[2].words[6].store(7, Relaxed);
        assert_eq!(there.as_slice()[2].words[6].load(Relaxed), 7);
    }

    #[test]
    fn bytes_that_one_mapping_copies_in_the_other_copies_out() {
        let here = Lines::create(4).expect("a few lines");
        let there = again(&here);
        here.copy_in(1, &[7; 2 * LINE + 1]);
        let mut seen = [9; 2 * LINE + 2];
        there.copy_out(1, &mut seen);
        assert_eq!((seen[2 * LINE], seen[2 * LINE + 1]), (7, 0));
    }

    #[test]
    #[should_panic(expected = "outside of")]
    fn bytes_outside_of_the_lines_are_a_bug() {
        Lines::create(1).expect("a few lines").copy_in(0, &[0; 4097]);
    }

    #[test]
    fn the_memory_can_not_be_made_shorter() {
        let lines = Lines::create(1).expect("a few lines");
        let file = File::from(lines.memory().try_clone_to_owned().expect("a descriptor more"));
        assert!(file.set_len(0).is_err());
    }
}
