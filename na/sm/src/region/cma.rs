//! Transfers between this process and another one by the kernel (cross memory attach):
//! `process_vm_readv` and `process_vm_writev`, many segments a call, one copy.
//!
//! Numbers of processes are reused, so the peer's pidfd is asked before and after: a transfer that ran
//! into its end is an error, whatever the kernel said about it.

use std::ptr;

use hg_na::{Error, GoneReason};
use nix::{errno::Errno, libc};

use super::{
    plan::{Plan, Run, total},
    state::SmRegion,
};
use crate::os::{death::ProcessWatch, limits::os_error};

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the peer's memory into ours.
    Get,
    /// From our memory into the peer's.
    Put,
}

/// Why a transfer failed. Some bytes may have moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CmaError {
    /// The system does not let this process reach the other one's memory (Yama, seccomp, containers,
    /// `PR_SET_DUMPABLE`).
    Denied,
    /// The process has ended.
    Gone,
    /// Memory that the peer had registered is not mapped there, or not accessible.
    Fault,
    /// Anything else.
    Os(Errno),
}

impl From<CmaError> for Error {
    fn from(error: CmaError) -> Self {
        match error {
            CmaError::Denied => Self::Unsupported(
                "this system forbids process_vm_readv/writev between these processes \
                 (kernel.yama.ptrace_scope, seccomp, a container, or PR_SET_DUMPABLE)",
            ),
            CmaError::Gone => Self::PeerGone(GoneReason::Exited),
            CmaError::Fault => os_error("process_vm_readv/writev", Errno::EFAULT),
            CmaError::Os(errno) => os_error("process_vm_readv/writev", errno),
        }
    }
}

/// Moves bytes between a range of local memory and the runs of a remote range.
///
/// `remote` comes from [`super::table::PeerTable::resolve`] of the table of the process behind `peer`,
/// and is pinned meanwhile. The local range starts at `offset` and is as long as `remote`.
///
/// # Errors
/// [`Error::OutOfRange`] or [`Error::Denied`] for the local range; those of [`CmaError`].
pub(crate) fn transfer(
    direction: Direction,
    peer: &ProcessWatch,
    local: &SmRegion,
    offset: u64,
    remote: &[Run],
) -> Result<(), Error> {
    let mut runs = Vec::new();
    local.runs(offset, total(remote), direction == Direction::Get, &mut runs)?;
    if !peer.alive() {
        return Err(CmaError::Gone.into());
    }
    let moved = move_all(direction, peer.pid(), &runs, remote);
    if !peer.alive() {
        return Err(CmaError::Gone.into());
    }
    moved.map_err(Error::from)
}

fn move_all(direction: Direction, pid: i32, local: &[Run], remote: &[Run]) -> Result<(), CmaError> {
    let mut plan = Plan::new(local, remote);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while plan.next_call(&mut ours, &mut theirs) {
        match one_call(direction, pid, &ours, &theirs) {
            // No error and no progress: the kernel found nothing to copy where there must be.
            Ok(0) => return Err(CmaError::Fault),
            Ok(bytes) => plan.advance(bytes),
            Err(Errno::EINTR) => {}
            Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS) => return Err(CmaError::Denied),
            Err(Errno::ESRCH) => return Err(CmaError::Gone),
            Err(Errno::EFAULT) => return Err(CmaError::Fault),
            Err(error) => return Err(CmaError::Os(error)),
        }
    }
    Ok(())
}

fn one_call(direction: Direction, pid: i32, ours: &[Run], theirs: &[Run]) -> Result<u64, Errno> {
    let ours: Vec<libc::iovec> = ours.iter().map(vector).collect();
    let theirs: Vec<libc::iovec> = theirs.iter().map(vector).collect();
    let (our_count, their_count) = (count(&ours), count(&theirs));
    let moved = match direction {
        Direction::Get => {
            // SAFETY:
            // - `ours` lies in registered memory that is writable (`SmRegion::runs` checked both), which
            //   stays alive and where it is through the borrow in `transfer`; nothing in this process
            //   holds a reference to its bytes.
            // - `theirs` is only looked at by the kernel, which checks it against the other process.
            unsafe {
                libc::process_vm_readv(
                    pid,
                    ours.as_ptr(),
                    our_count,
                    theirs.as_ptr(),
                    their_count,
                    0,
                )
            }
        }
        Direction::Put => {
            // SAFETY:
            // - `ours` is only read, from memory that stays alive as above.
            // - `theirs` lies in the other process: memory that its owner has registered for this, or
            //   nothing of this process. When the peer is this process, the runs come from its own table.
            unsafe {
                libc::process_vm_writev(
                    pid,
                    ours.as_ptr(),
                    our_count,
                    theirs.as_ptr(),
                    their_count,
                    0,
                )
            }
        }
    };
    Ok(u64::try_from(Errno::result(moved)?).unwrap_or(0))
}

fn vector(run: &Run) -> libc::iovec {
    let address = usize::try_from(run.address).unwrap_or(0);
    let len = usize::try_from(run.len).unwrap_or(0);
    libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address), iov_len: len }
}

fn count(vectors: &[libc::iovec]) -> libc::c_ulong {
    libc::c_ulong::try_from(vectors.len()).unwrap_or(0)
}
