//! Tells a forked child's copy from the original, by one load.
//!
//! A page of its own (`MADV_WIPEONFORK`, Linux 4.14) holds a mark; the kernel clears it in a child.

use std::{
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use hg_na::Error;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes mapped; the kernel rounds up to its page size.
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not 0");

/// What the page holds in the process that made the guard.
const MARK: u32 = 1;

/// Knows whether the process has forked since it was made, and this is the child.
#[derive(Debug)]
pub struct ForkGuard(NonNull<AtomicU32>);

impl ForkGuard {
    /// A guard for the present process.
    ///
    /// # Errors
    /// [`Error::Os`] when there is no memory for a page, or the kernel is older.
    pub fn new() -> Result<Self, Error> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping at an address of the kernel's choice: touches no memory in use.
        let page = unsafe { mmap_anonymous(None, PAGE, protection, MapFlags::MAP_PRIVATE) }
            .map_err(|e| Error::os("mmap", e))?;
        let guard = Self(page.cast());
        // SAFETY:
        // - the page is ours alone and holds nothing yet.
        let advised = unsafe { madvise(page, PAGE.get(), MmapAdvise::MADV_WIPEONFORK) };
        advised.map_err(|e| Error::os("madvise(MADV_WIPEONFORK)", e))?;
        // Relaxed: one thread reads what it, or a thread it handed the guard to, has written.
        guard.mark().store(MARK, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this is a forked child's copy.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        // Relaxed: written once before the guard was shared, and by no running thread again.
        self.mark().load(Ordering::Relaxed) != MARK
    }

    #[inline]
    fn mark(&self) -> &AtomicU32 {
        // SAFETY:
        // - in bounds and aligned: the start of a page that is mapped until the guard is dropped.
        // - valid: zeroes or the mark, and any bit pattern is an AtomicU32.
        // - shared: no `&mut` to it exists.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY:
        // - mapped by `new`, unmapped only here; a child has a page of its own at the same place.
        let unmapped = unsafe { munmap(self.0.cast(), PAGE.get()) };
        debug_assert!(unmapped.is_ok(), "a page of our own can be unmapped");
    }
}

// SAFETY:
// - it owns its page like a box, and what is in it is an atomic.
unsafe impl Send for ForkGuard {}
// SAFETY:
// - as above.
unsafe impl Sync for ForkGuard {}

#[cfg(test)]
mod tests {
    use nix::{
        libc,
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one_and_the_parent_that_it_is_not() {
        let guard = ForkGuard::new().unwrap();
        // SAFETY:
        // - the child loads one word and exits, without allocating or unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let code = i32::from(!guard.is_child());
                // SAFETY:
                // - ends the child at once, without running anything of the parent's.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        assert!(!guard.is_child());
    }
}
