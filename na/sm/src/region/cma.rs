//! Transfers between this process and another one by the kernel (cross memory attach):
//! `process_vm_readv` and `process_vm_writev`, many segments a call, one copy.
//!
//! Numbers of processes are reused, so the peer's pidfd is asked after a get and before a put: a get that ran into its
//! end is an error, whatever the kernel said about it.
//! (Random bytes of the peer's own, read by one more vector of the same call, would tell as well who it was. They cost 0.14 us of a get of
//! 64 KiB where the question costs 0.18, of 2.5, and a put could not do without the question.)
//! One short run needs no question: once such a call went well, it is read from the peer's address space, or written
//! to it ([`crate::rendezvous::address_space`]), which is no other process's, ever. What goes wrong there is tried by
//! number, which tells.

use std::{marker::PhantomData, mem::offset_of, os::fd::AsRawFd as _};

pub(crate) use hg_na::Direction;
use hg_na::{Error, GoneReason};
use nix::{errno::Errno, libc};

use super::{
    plan::{Run, behind, of_a_call, total},
    state::SmRegion,
};
use hg_na_parts::limits::os_error;

use crate::rendezvous::process::ProcessWatch;

/// Why the system does not let this process reach the other one's memory.
pub(crate) const DENIED: &str = "this system forbids process_vm_readv/writev between these processes \
    (kernel.yama.ptrace_scope, seccomp, a container, or PR_SET_DUMPABLE)";

/// The memory of this side in a transfer, and which way it goes.
#[derive(Debug)]
pub(crate) enum Near<'near> {
    /// A get into a region, from this offset on.
    Into(&'near SmRegion, u64),
    /// A put from one.
    From(&'near SmRegion, u64),
    /// A get into memory that is not registered.
    Slice(&'near mut [u8]),
}

impl Near<'_> {
    #[inline(always)]
    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Into(..) | Self::Slice(_) => Direction::Get,
            Self::From(..) => Direction::Put,
        }
    }

    /// Appends its runs.
    #[inline(always)]
    fn runs(self, len: u64, into: &mut Vec<Run>) -> Result<(), Error> {
        match self {
            Self::Into(region, offset) => region.runs(offset, len, true, into),
            Self::From(region, offset) => region.runs(offset, len, false, into),
            Self::Slice(slice) => {
                let address = slice.as_mut_ptr().expose_provenance();
                into.push(Run { address, len: slice.len() });
                Ok(())
            }
        }
    }
}

/// What is to be moved: a range of a local region or a slice, which is borrowed meanwhile, and as many bytes of one peer.
#[derive(Debug)]
pub(crate) struct Call<'near> {
    direction: Direction,
    /// Runs of both sides, to be moved one to the other in order.
    local: Vec<Run>,
    remote: Vec<Run>,
    _near: PhantomData<(&'near SmRegion, &'near mut [u8])>,
}

impl<'near> Call<'near> {
    /// `far` appends `len` bytes of the peer's memory, from [`super::table::PeerTable::append_runs`]; they are pinned until
    /// [`Call::transfer`] ends.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::Denied`] for the local range; those of `far`.
    #[inline(always)]
    pub(crate) fn new(
        near: Near<'near>,
        len: u64,
        far: impl FnOnce(&mut Vec<Run>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let direction = near.direction();
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        near.runs(len, &mut local)?;
        far(&mut remote)?;
        Ok(Self { direction, local, remote, _near: PhantomData })
    }

    /// Moves everything, or fails in the middle.
    ///
    /// A process that is itself afterwards was so all the time, so a get looks at it then. A put looks before it: it
    /// shall not write into a stranger's memory, nor into another program's. What it has written may be lost with
    /// the peer at any time, so that nobody is asked after it.
    ///
    /// # Errors
    /// [`DENIED`], from then on ([`ProcessWatch::is_reachable`]); `PeerGone(Exited)`; [`Error::Os`].
    pub(crate) fn transfer(&mut self, peer: &ProcessWatch) -> Result<(), Error> {
        let gone = || Err(Error::PeerGone(GoneReason::Exited));
        let Some(pid) = peer.pid() else { return Err(Error::Unsupported(DENIED)) };
        if let Some(moved) = self.move_short(peer) {
            return moved;
        }
        if self.direction == Direction::Put && !peer.is_itself() {
            return gone();
        }
        let moved = self.move_all(pid);
        let must_ask = self.direction == Direction::Get || moved.is_err();
        if must_ask && !peer.is_itself() {
            return gone();
        }
        match moved {
            Ok(()) => {
                peer.was_reached();
                Ok(())
            }
            // ESRCH: it lives, and its first thread has ended, by whose number the kernel looks for its memory.
            Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::ESRCH) => {
                if peer.deny() {
                    tracing::warn!(pid, "{DENIED}: transfers are copied through shared memory");
                }
                Err(Error::Unsupported(DENIED))
            }
            // EFAULT: memory that the peer had registered is not mapped there, or not accessible.
            Err(other) => Err(os_error("process_vm_readv/writev", other)),
        }
    }

    /// One short run, where the peer's address space is at hand; `None`: it is not, or has not given or taken it all.
    fn move_short(&self, peer: &ProcessWatch) -> Option<Result<(), Error>> {
        let ([ours], [theirs]) = (&self.local[..], &self.remote[..]) else { return None };
        if !(1..=SHORT_MAX).contains(&ours.len) || ours.len != theirs.len {
            return None;
        }
        let space = peer.space()?;
        let near: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(ours.address);
        let place = i64::try_from(theirs.address).ok()?;
        let fd = libc::c_long::from(space.as_raw_fd());
        let call = match self.direction {
            Direction::Get => libc::SYS_pread64,
            Direction::Put => libc::SYS_pwrite64,
        };
        // By number: the functions of these names are points of cancellation, which a process with threads pays for twice.
        // SAFETY:
        // - descriptor, address, length, offset: as pread(2) and pwrite(2) have them, each of the width of a register.
        // - `ours` lies in registered memory, for a get one that is writable (`SmRegion::runs` checked both), which stays
        //   alive and where it is through the borrow in [`Call`], and to whose bytes nothing in this process holds a
        //   reference that a get would break; or is a slice that is borrowed there for writing, by nobody else. Their
        //   addresses are exposed.
        // - `theirs` lies in the other process: memory that its owner has registered for this, or nothing of this
        //   process. When the peer is this process, the run comes from its own table.
        let moved = unsafe { libc::syscall(call, fd, near, ours.len, place) };
        match usize::try_from(moved) {
            // The end of an address space is that of its process, or of what it was: it has executed another program.
            Ok(0) => Some(Err(Error::PeerGone(GoneReason::Exited))),
            Ok(moved) if moved == ours.len => Some(Ok(())),
            _ => None,
        }
    }

    fn move_all(&mut self, pid: i32) -> Result<(), Errno> {
        let Self { direction, local, remote, .. } = self;
        assert_eq!(total(local), total(remote), "both sides of a transfer are of equal length");
        let (mut ours, mut theirs) = (behind(local, 0), behind(remote, 0));
        while !ours.is_empty() {
            match one_call(*direction, pid, ours, theirs) {
                // No error and no progress: the kernel found nothing to copy where there must be.
                Ok(0) => return Err(Errno::EFAULT),
                Ok(moved) => (ours, theirs) = (behind(ours, moved), behind(theirs, moved)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Bytes up to which copying them twice costs less than a call that looks everything up: measured, one run that is
/// not aligned to a page: a get of 4 KiB takes 1.5 us against 2.4 with the question, one of 8 KiB 2.2 against 2.7, one of 16 KiB
/// 3.7 against 3.4.
const SHORT_MAX: usize = 8192;

/// Both lists are read from their beginnings, up to the end of the shorter one.
fn one_call(direction: Direction, pid: i32, ours: &[Run], theirs: &[Run]) -> Result<usize, Errno> {
    let [our_count, their_count] =
        [ours, theirs].map(|runs| libc::c_ulong::try_from(of_a_call(runs)).unwrap_or(0));
    // A run is laid out as the kernel's vector.
    let [ours, theirs] = [ours, theirs].map(|runs| runs.as_ptr().cast::<libc::iovec>());
    let moved = match direction {
        Direction::Get => {
            // SAFETY:
            // - `ours` lies in registered memory that is writable (`SmRegion::runs` checked both), which
            //   stays alive and where it is through the borrow in [`Call`], and to whose bytes nothing in
            //   this process holds a reference; or in slices that are borrowed there for writing, by nobody
            //   else. Their addresses are exposed.
            // - `theirs` is only looked at by the kernel, which checks it against the other process.
            unsafe { libc::process_vm_readv(pid, ours, our_count, theirs, their_count, 0) }
        }
        Direction::Put => {
            // SAFETY:
            // - `ours` is only read, from memory that stays alive as above.
            // - `theirs` lies in the other process: memory that its owner has registered for this, or
            //   nothing of this process. When the peer is this process, the runs come from its own table.
            unsafe { libc::process_vm_writev(pid, ours, our_count, theirs, their_count, 0) }
        }
    };
    Ok(usize::try_from(Errno::result(moved)?).unwrap_or(0))
}

const _: () = {
    assert!(size_of::<Run>() == size_of::<libc::iovec>());
    assert!(align_of::<Run>() == align_of::<libc::iovec>());
    assert!(offset_of!(Run, address) == offset_of!(libc::iovec, iov_base));
    assert!(offset_of!(Run, len) == offset_of!(libc::iovec, iov_len));
};
