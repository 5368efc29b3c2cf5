//! System calls with raw pointers that `nix` does not offer, or offers with a leak.
//!
//! `nix` gives no control messages at all when some were cut off (`MSG_CTRUNC`), and the descriptors
//! that did arrive stay open for ever: [`receive_packet`] reads the control buffer itself.

use std::{
    mem::offset_of,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        epoll::EpollEvent,
        socket::{SockFlag, accept4},
    },
    unistd::Pid,
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

/// `pidfd_open`: a descriptor for the process that has this number now.
pub(crate) fn pidfd_open(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY:
    // - takes two numbers and no memory. Close-on-exec is always set.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = RawFd::try_from(Errno::result(fd)?).map_err(|_| Errno::EBADF)?;
    // SAFETY:
    // - just opened, and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `accept4`: the next connection, close-on-exec and non-blocking.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let number = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
    // SAFETY:
    // - just opened, and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
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

/// Control buffer: one header and the descriptors, aligned like the header.
const CONTROL_WORDS: usize = size_of::<libc::cmsghdr>() / 8 + PACKET_FDS_MAX.div_ceil(2);

/// `recvmsg` without blocking; every descriptor that arrives is owned, whatever else went wrong.
pub(crate) fn receive_packet(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Packet, Errno> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut bytes = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut header = libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::from_mut(&mut bytes),
        msg_iovlen: 1,
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: size_of_val(&control),
        msg_flags: 0,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY:
    // - `header` points to one iovec over `buffer` and to `control`, each with its true length, and
    //   both are borrowed mutably here and nowhere else.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let len = usize::try_from(Errno::result(len)?).unwrap_or(0);
    Ok(Packet {
        len: len.min(buffer.len()),
        fds: owned_descriptors(&control, header.msg_controllen),
        bytes_lost: header.msg_flags & libc::MSG_TRUNC != 0,
        fds_lost: header.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

const _: () = {
    assert!(size_of::<libc::cmsghdr>() == 16 && align_of::<libc::cmsghdr>() <= 8);
    assert!(offset_of!(libc::cmsghdr, cmsg_len) == 0);
    assert!(offset_of!(libc::cmsghdr, cmsg_level) == 8);
    assert!(offset_of!(libc::cmsghdr, cmsg_type) == 12);
};

/// Takes the descriptors out of a control buffer that the kernel has just filled.
///
/// The kernel puts all descriptors of a packet into one header, which is the first: nothing else was
/// asked for on these sockets (no credentials, no time stamps).
fn owned_descriptors(control: &[u64; CONTROL_WORDS], control_len: usize) -> Vec<OwnedFd> {
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let bytes = &bytes[..control_len.min(bytes.len())];
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return Vec::new() };
    let Some((level, rest)) = rest.split_first_chunk::<4>() else { return Vec::new() };
    let Some((kind, rest)) = rest.split_first_chunk::<4>() else { return Vec::new() };
    let is_rights = i32::from_ne_bytes(*level) == libc::SOL_SOCKET
        && i32::from_ne_bytes(*kind) == libc::SCM_RIGHTS;
    if !is_rights {
        return Vec::new();
    }
    let data = usize::from_ne_bytes(*len).saturating_sub(size_of::<libc::cmsghdr>());
    rest[..data.min(rest.len())].chunks_exact(4).map(owned_descriptor).collect()
}

fn owned_descriptor(number: &[u8]) -> OwnedFd {
    let number = RawFd::from_ne_bytes(number.try_into().expect("chunks of four bytes"));
    // SAFETY:
    // - the kernel has just installed it for this process and told nobody else; each number of a
    //   control message is taken once.
    unsafe { OwnedFd::from_raw_fd(number) }
}
