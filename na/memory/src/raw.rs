//! The operations that follow addresses. Every caller in this crate has cut the runs out of the memory's own
//! segments with `pieces`, and holds its exclusion.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use hg_na::{Memory, Segment};
use nix::libc;

/// Copies a run of `memory` out.
pub(crate) fn copy_out(memory: &Memory, run: Segment, into: &mut [u8]) {
    check(memory, run, into.len());
    // SAFETY:
    // - in bounds, alive, exposed: `check`; the borrow of `memory` keeps it so until the end.
    // - disjoint: nobody holds a reference into a `Memory`, so `into` is elsewhere.
    // - nobody in this process writes the bytes now: the caller holds the exclusion, or was promised that.
    unsafe { ptr::copy_nonoverlapping(pointer(run), into.as_mut_ptr(), run.len) };
}

/// Copies into a run of `memory`.
pub(crate) fn copy_in(memory: &Memory, run: Segment, from: &[u8]) {
    check(memory, run, from.len());
    assert!(memory.writable(), "checked by the caller");
    // SAFETY:
    // - as in `copy_out`; exposed from a mutable pointer: the memory is writable.
    // - nobody else in this process reads or writes the bytes: the caller holds the exclusion for writing.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), pointer_mut(run), run.len) };
}

/// Copies a run of one memory to a run of another, or of the same.
pub(crate) fn copy(from: &Memory, source: Segment, into: &Memory, target: Segment) {
    check(from, source, target.len);
    check(into, target, source.len);
    assert!(into.writable(), "checked by the caller");
    // SAFETY:
    // - as in `copy_out` and `copy_in`; the runs may overlap.
    unsafe { ptr::copy(pointer(source), pointer_mut(target), source.len) };
}

/// `sendmsg(2)` of a slice, runs of memory and another slice: `writev(2)` that raises no `SIGPIPE`.
pub(crate) fn write(
    fd: BorrowedFd<'_>,
    (before, after): (&[u8], &[u8]),
    memory: &Memory,
    runs: &[Segment],
) -> io::Result<usize> {
    let head = vector(before.as_ptr().cast_mut(), before.len());
    let tail = vector(after.as_ptr().cast_mut(), after.len());
    let mut vectors = vectors(Some(head), memory, runs, Some(tail));
    // SAFETY:
    // - zeroes are a header without address, data or control messages (sendmsg(2)).
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    // SAFETY:
    // - every vector is alive and in bounds: the slices are borrowed, the runs were checked by `vectors`.
    // - the kernel only reads them, and the header.
    let written = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// `readv(2)` into runs of memory and a slice.
pub(crate) fn read(
    fd: BorrowedFd<'_>,
    memory: &Memory,
    runs: &[Segment],
    after: &mut [u8],
) -> io::Result<usize> {
    assert!(memory.writable(), "checked by the caller");
    let tail = vector(after.as_mut_ptr(), after.len());
    let vectors = vectors(None, memory, runs, Some(tail));
    let count = libc::c_int::try_from(vectors.len()).expect("IOV_MAX fits");
    // SAFETY:
    // - every vector is alive, in bounds and writable: `after` is borrowed mutably, the runs were checked by
    //   `vectors`, the memory is writable and its exclusion is held for writing by the caller.
    let read = unsafe { libc::readv(fd.as_raw_fd(), vectors.as_ptr(), count) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// As many as one call takes; the kernel moves a prefix anyway.
fn vectors(
    head: Option<libc::iovec>,
    memory: &Memory,
    runs: &[Segment],
    tail: Option<libc::iovec>,
) -> Vec<libc::iovec> {
    let middle = runs.iter().map(|run| {
        check(memory, *run, run.len);
        vector(pointer_mut(*run), run.len)
    });
    head.into_iter().chain(middle).chain(tail).take(VECTORS_MAX).collect()
}

fn vector(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// The run lies in one of the memory's segments and is as long as the other side.
fn check(memory: &Memory, run: Segment, len: usize) {
    let end = run.address.checked_add(run.len);
    let within = |segment: &Segment| {
        run.address >= segment.address && end.is_some_and(|it| it <= segment.address + segment.len)
    };
    assert!(run.len == len, "both sides of a copy are of equal length");
    debug_assert!(memory.segments().iter().any(within), "`pieces` cuts runs out of the memory");
}

fn pointer(run: Segment) -> *const u8 {
    ptr::with_exposed_provenance(run.address)
}

fn pointer_mut(run: Segment) -> *mut u8 {
    ptr::with_exposed_provenance_mut(run.address)
}

/// `IOV_MAX` of Linux (readv(2)).
const VECTORS_MAX: usize = 1024;
