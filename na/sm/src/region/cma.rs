//! Transfers between this process and another one by the kernel (cross memory attach):
//! `process_vm_readv` and `process_vm_writev`, many segments a call, one copy.
//!
//! Numbers of processes are reused, so the peer's pidfd is asked afterwards (and before a put): a transfer that ran
//! into its end is an error, whatever the kernel said about it. Several transfers to one peer share a call, and the
//! question: most of what a short one costs is neither its bytes nor ours.
//! A get of one short run needs no question: once such a call went well, it is read from the peer's address space
//! ([`crate::os::space`]), which is no other process's, ever. What goes wrong there is tried by number, which tells.

use std::{fmt, marker::PhantomData, mem::offset_of, os::fd::AsRawFd as _};

pub(crate) use hg_na::Direction;
use hg_na::{Error, GoneReason};
use nix::{errno::Errno, libc};

use super::{
    plan::{CALL_MAX, Plan, RUNS_MAX, Run, total},
    state::SmRegion,
};
use hg_na_parts::limits::os_error;

use crate::os::death::ProcessWatch;

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

impl From<Errno> for CmaError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS => Self::Denied,
            Errno::ESRCH => Self::Gone,
            Errno::EFAULT => Self::Fault,
            other => Self::Os(other),
        }
    }
}

impl fmt::Display for CmaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(*self).fmt(out)
    }
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

/// Runs of both sides, to be moved one to the other in order; kept from transfer to transfer for their memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    local: Vec<Run>,
    remote: Vec<Run>,
    ours: Vec<Run>,
    theirs: Vec<Run>,
}

/// What is moved together: ranges of local regions or slices, which are kept alive meanwhile, and as many bytes of one peer.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    direction: Direction,
    runs: &'a mut Scratch,
    _alive: PhantomData<(&'a SmRegion, &'a mut [u8])>,
}

impl<'a> Batch<'a> {
    /// Nothing yet.
    pub(crate) fn new(direction: Direction, runs: &'a mut Scratch) -> Self {
        runs.local.clear();
        runs.remote.clear();
        Self { direction, runs, _alive: PhantomData }
    }

    /// What was added to another one, whose regions are kept alive for as long, too.
    pub(crate) fn of(direction: Direction, runs: &'a mut Scratch) -> Self {
        Self { direction, runs, _alive: PhantomData }
    }

    /// Adds `len` bytes of `local` from `offset` on. `far` appends as many bytes of the peer's memory to the list, from
    /// [`super::table::PeerTable::resolve`], and gives what keeps them; they are pinned until [`Batch::transfer`] ends.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::Denied`] for the local range; those of `far`.
    pub(crate) fn add<T>(
        &mut self,
        local: &'a SmRegion,
        (offset, len): (u64, u64),
        far: impl FnOnce(&mut Vec<Run>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let for_writing = self.direction == Direction::Get;
        self.add_both(|ours| local.runs(offset, len, for_writing, ours), far)
    }

    /// The same, of a slice.
    ///
    /// # Errors
    /// Those of `far`.
    pub(crate) fn add_slice<T>(
        &mut self,
        local: &'a mut [u8],
        far: impl FnOnce(&mut Vec<Run>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (address, len) = (local.as_mut_ptr().expose_provenance(), local.len() as u64);
        let run = Run { address: address as u64, len };
        let near = |ours: &mut Vec<Run>| {
            ours.push(run);
            Ok(())
        };
        self.add_both(near, far)
    }

    #[inline(always)]
    fn add_both<T>(
        &mut self,
        near: impl FnOnce(&mut Vec<Run>) -> Result<(), Error>,
        far: impl FnOnce(&mut Vec<Run>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (ours, theirs) = (self.runs.local.len(), self.runs.remote.len());
        let added = near(&mut self.runs.local).and_then(|()| far(&mut self.runs.remote));
        if added.is_err() {
            self.runs.local.truncate(ours);
            self.runs.remote.truncate(theirs);
        }
        added
    }

    /// Moves everything; says how many bytes were moved, which is less only with an error.
    ///
    /// A process that is itself afterwards was so all the time, so for a get one look at it is enough. A put looks
    /// before it, too: it shall not write into a stranger's memory, nor into another program's.
    pub(crate) fn transfer(self, peer: &ProcessWatch) -> (u64, Result<(), CmaError>) {
        let Some(pid) = peer.pid() else { return (0, Err(CmaError::Denied)) };
        if self.direction == Direction::Put && !peer.is_itself() {
            return (0, Err(CmaError::Gone));
        }
        if self.direction == Direction::Get
            && let Some(read) = read_short(peer, self.runs)
        {
            return read;
        }
        let (moved, result) = move_all(self.direction, pid, self.runs);
        if !peer.is_itself() {
            return (0, Err(CmaError::Gone));
        }
        if result == Err(CmaError::Gone) {
            // It lives, and its first thread has ended, by whose number the kernel looks for its memory.
            return (moved, Err(CmaError::Denied));
        }
        if result.is_ok() && moved > 0 && self.direction == Direction::Get {
            peer.was_reached();
        }
        (moved, result)
    }
}

/// A get of one short run, where the peer's address space is at hand; `None`: it is not, or has not given it all.
fn read_short(peer: &ProcessWatch, runs: &Scratch) -> Option<(u64, Result<(), CmaError>)> {
    let ([ours], [theirs]) = (runs.local.as_slice(), runs.remote.as_slice()) else { return None };
    if !(1..=SHORT_MAX).contains(&ours.len) || ours.len != theirs.len {
        return None;
    }
    let space = peer.space()?;
    let (address, len) = (usize::try_from(ours.address).ok()?, usize::try_from(ours.len).ok()?);
    let into: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
    let place = i64::try_from(theirs.address).ok()?;
    let fd = libc::c_long::from(space.fd().as_raw_fd());
    // By number: the function of this name is a point of cancellation, which a process with threads pays for twice.
    // SAFETY:
    // - descriptor, address, length, offset: as pread(2) has them, each of the width of a register.
    // - `ours` lies in registered memory that is writable (`SmRegion::runs` checked both), which stays alive and where
    //   it is through the borrow in [`Batch`], and to whose bytes nothing in this process holds a reference; or is a
    //   slice that is borrowed there for writing, by nobody else. Their addresses are exposed.
    let read = unsafe { libc::syscall(libc::SYS_pread64, fd, into, len, place) };
    match u64::try_from(read) {
        // The end of an address space is that of its process, or of what it was: it has executed another program.
        Ok(0) => Some((0, Err(CmaError::Gone))),
        Ok(read) if read == ours.len => Some((read, Ok(()))),
        _ => None,
    }
}

/// Bytes up to which copying them twice costs less than a call that looks everything up: measured, one run that is
/// not aligned to a page: at 4 KiB 0.52 us against 0.62 with the question, at 8 KiB 0.88 against 0.78.
const SHORT_MAX: u64 = 4096;

fn move_all(direction: Direction, pid: i32, runs: &mut Scratch) -> (u64, Result<(), CmaError>) {
    let Scratch { local, remote, ours, theirs } = runs;
    let all = total(local);
    let mut plan = Plan::new(local, remote);
    let mut moved = 0;
    while moved < all {
        // Most transfers are one call: the lists as they are.
        let fits = all <= CALL_MAX && local.len().max(remote.len()) <= RUNS_MAX;
        let call = if moved == 0 && fits {
            one_call(direction, pid, local, remote)
        } else {
            plan.next_call(ours, theirs);
            one_call(direction, pid, ours, theirs)
        };
        match call.map_err(CmaError::from) {
            // No error and no progress: the kernel found nothing to copy where there must be.
            Ok(0) => return (moved, Err(CmaError::Fault)),
            Ok(bytes) => {
                moved += bytes;
                plan.advance(bytes);
            }
            Err(CmaError::Os(Errno::EINTR)) => {}
            Err(error) => return (moved, Err(error)),
        }
    }
    (moved, Ok(()))
}

fn one_call(direction: Direction, pid: i32, ours: &[Run], theirs: &[Run]) -> Result<u64, Errno> {
    let (our_count, their_count) = (count(ours), count(theirs));
    // A run is laid out as the kernel's vector.
    let (ours, theirs): (*const libc::iovec, *const libc::iovec) =
        (ours.as_ptr().cast(), theirs.as_ptr().cast());
    let moved = match direction {
        Direction::Get => {
            // SAFETY:
            // - `ours` lies in registered memory that is writable (`SmRegion::runs` checked both), which
            //   stays alive and where it is through the borrow in [`Batch`], and to whose bytes nothing in
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
    Ok(u64::try_from(Errno::result(moved)?).unwrap_or(0))
}

fn count(runs: &[Run]) -> libc::c_ulong {
    libc::c_ulong::try_from(runs.len()).unwrap_or(0)
}

const _: () = {
    assert!(size_of::<Run>() == size_of::<libc::iovec>());
    assert!(align_of::<Run>() == align_of::<libc::iovec>());
    assert!(offset_of!(Run, address) == offset_of!(libc::iovec, iov_base));
    assert!(offset_of!(Run, len) == offset_of!(libc::iovec, iov_len));
};
