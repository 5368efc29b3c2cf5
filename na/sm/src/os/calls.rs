//! System calls that `nix` does not offer, or offers with a leak: it gives no control messages at all when some were cut off
//! (`MSG_CTRUNC`), and the descriptors that did arrive stay open for ever. `rustix` gives them.

use std::{
    io::IoSliceMut,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    time::Duration,
};

use nix::{errno::Errno, libc, sys::epoll::EpollEvent};
use rustix::{
    cmsg_space,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg},
};

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

/// Descriptors that one packet may carry here. More are cut off by the kernel, and that is an error.
pub(crate) const PACKET_FDS_MAX: usize = 8;

/// One packet of a socket.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Bytes of it in the buffer.
    pub(crate) len: usize,
    /// Descriptors that came with it.
    pub(crate) fds: Vec<OwnedFd>,
    /// Bytes did not fit and are lost.
    pub(crate) bytes_lost: bool,
    /// Descriptors did not fit, or this process may have no more, and some are lost.
    pub(crate) fds_lost: bool,
}

/// `recvmsg` without blocking; every descriptor that arrives is owned, whatever else went wrong.
pub(crate) fn receive_packet(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Packet, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PACKET_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags);
    let received = received.map_err(errno)?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(Packet {
        len: received.bytes,
        fds: fds.flatten().collect(),
        bytes_lost: received.flags.contains(ReturnFlags::TRUNC),
        fds_lost: received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// The same error, as the rest of this crate has it.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
