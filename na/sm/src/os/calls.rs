//! `epoll_pwait2`, which `nix` does not offer.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    time::Duration,
};

use nix::{errno::Errno, libc, sys::epoll::EpollEvent};

/// Events of one `epoll_wait`.
pub(crate) const EVENTS_MAX: usize = 64;

/// What the kernel fills in.
pub(crate) type EventBuffer = [EpollEvent; EVENTS_MAX];

/// `epoll_pwait2` (Linux 5.11): waits with the resolution of nanoseconds. Returns the number of events.
pub(crate) fn epoll_wait_precise(
    epoll: BorrowedFd<'_>,
    events: &mut EventBuffer,
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let timeout = timeout.map(|left| libc::timespec {
        tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(left.subsec_nanos()),
    });
    let time: *const libc::timespec = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let signals: *const libc::sigset_t = ptr::null();
    // SAFETY:
    // - `events` is EVENTS_MAX events to be overwritten, laid out as the kernel's (`repr(transparent)`); `time` is null or a timespec that lives on.
    // - no signal mask: a null pointer, whose size is not looked at.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            EVENTS_MAX,
            time,
            signals,
            0_usize,
        )
    };
    Ok(usize::try_from(Errno::result(count)?).unwrap_or(0))
}
