//! Ordinary memory that begins at a page: registered with an engine, and moved by the kernel without one.
//!
//! The kernel copies page by page, and where the two sides begin at different places of a cache line it is slower
//! by 5 to 16 %; a vector begins wherever the allocator had room. Which physical pages a buffer got makes another
//! 5 %, where both sides just fill a cache. So a transfer is held against the kernel's of the same two buffers.

use std::sync::Arc;

use hg::bulk::{Memory, Segment};
use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::Op;

/// Such memory. It lives as long as this, or what was made of it.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    bytes: Arc<Vec<u8>>,
    address: usize,
    len: usize,
}

impl Pages {
    /// `len` bytes, as `fill` leaves them.
    pub(crate) fn new(len: usize, fill: impl FnOnce(&mut [u8])) -> Pages {
        let mut bytes = vec![0; len + PAGE];
        let base = bytes.as_mut_ptr();
        let start = base.addr().next_multiple_of(PAGE) - base.addr();
        fill(&mut bytes[start..start + len]);
        let address = bytes.as_mut_ptr().expose_provenance() + start;
        Pages { bytes: Arc::new(bytes), address, len }
    }

    /// Where it begins in this process.
    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }

    /// To be registered.
    pub(crate) fn memory(&self) -> Memory {
        let segments = vec![Segment { address: self.address, len: self.len }];
        // SAFETY:
        // - in bounds and initialised: a page more than `len` was made, and the start is in the first one.
        // - stays: the vector's buffer does not move with the vector, and nobody can make it grow again.
        // - alive: the vector is the keeper.
        // - exposed: in `new`, from a mutable pointer.
        // - alone: the vector is never looked at again, so that nobody has a reference to a byte of it.
        unsafe { Memory::from_raw_parts(segments, true, self.bytes.clone()) }
    }

    /// Has the kernel move `len` bytes between `offset` here and `remote` in another process, all of them.
    ///
    /// # Panics
    /// When they are not all in here.
    pub(crate) fn transfer(
        &self,
        op: Op,
        (offset, len): (usize, usize),
        (pid, remote): (Pid, u64),
    ) -> Result<(), Error> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a range in here");
        let local = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(self.address + offset),
            iov_len: len,
        };
        let remote = usize::try_from(remote).expect("an address fits a usize");
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(remote), iov_len: len };
        let moved = if op == Op::Push {
            // SAFETY:
            // - read here: in bounds, checked above, of memory that lives as long as `self`.
            // - written there: the kernel checks the address; this program owns both processes.
            unsafe { libc::process_vm_writev(pid.as_raw(), &local, 1, &remote, 1, 0) }
        } else {
            // SAFETY:
            // - written here: in bounds, checked above, of memory that lives as long as `self`, and that
            //   nobody has a reference to; as any peer writes into registered memory.
            unsafe { libc::process_vm_readv(pid.as_raw(), &local, 1, &remote, 1, 0) }
        };
        let moved = Errno::result(moved).context("process_vm_readv or writev")?;
        if usize::try_from(moved) == Ok(len) {
            return Ok(());
        }
        let got = u64::try_from(moved).unwrap_or(0);
        Err(Error::WrongAnswer { figure: "cma", sent: len as u64, got })
    }
}

/// The size of a page, and of the place that the limits' buffers begin at.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page_and_holds_what_it_was_filled_with() {
        for len in [0, 1, 4096, 5000] {
            let memory = Pages::new(len, |bytes| bytes.fill(7)).memory();
            let [segment] = memory.segments() else { panic!("{memory:?}") };
            assert_eq!((segment.address % PAGE, segment.len), (0, len));
        }
        let engine = hg::open("sm://").expect("an engine of shared memory");
        let pages = Pages::new(3, |bytes| bytes.fill(7));
        let bulk = engine.expose(pages.memory(), hg::bulk::Rights::READ).expect("memory to expose");
        assert_eq!(bulk.to_vec().expect("its own memory"), [7; 3]);
    }

    #[test]
    fn the_kernel_moves_bytes_between_two_of_them() {
        let engine = hg::open("sm://").expect("an engine of shared memory");
        let (from, to) = (Pages::new(100, |bytes| bytes.fill(7)), Pages::new(100, |_| {}));
        let bulk = engine.expose(to.memory(), hg::bulk::Rights::READ).expect("memory to expose");
        to.transfer(Op::Pull, (1, 2), (Pid::this(), from.address())).expect("own pages");
        from.transfer(Op::Push, (0, 1), (Pid::this(), to.address() + 50)).expect("own pages");
        let bytes = bulk.to_vec().expect("its own memory");
        assert_eq!((&bytes[..4], bytes[50], bytes[51]), (&[0, 7, 7, 0][..], 7, 0));
        assert!(to.transfer(Op::Pull, (0, 1), (Pid::this(), 0)).is_err());
    }
}
