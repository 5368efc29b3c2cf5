//! What the kernel knows about a connection, and no safe interface tells.
//!
//! Options and `tcp_info` of `<linux/tcp.h>`, `SIOCOUTQ` of `<linux/sockios.h>`.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use nix::{
    getsockopt_impl, libc, setsockopt_impl, sockopt_impl,
    sys::socket::{getsockopt, setsockopt},
};

const TCP_RTO_MAX_MS: libc::c_int = 44;

/// The front of `tcp_info`, which every kernel fills. `sockopt_impl!` takes no other length than that of its type, and an older kernel
/// has less to tell than the whole.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(unreachable_pub, reason = "the macro makes a public option of it")]
pub struct Front {
    states: [u8; 2],
    retransmits: u8,
    probes: u8,
    options: [u8; 4],
    times_and_counts: [u32; 12],
    last_ack_recv: u32,
}

const _: () = {
    use std::mem::offset_of;

    assert!(offset_of!(Front, retransmits) == offset_of!(libc::tcp_info, tcpi_retransmits));
    assert!(offset_of!(Front, probes) == offset_of!(libc::tcp_info, tcpi_probes));
    assert!(offset_of!(Front, last_ack_recv) == offset_of!(libc::tcp_info, tcpi_last_ack_recv));
    assert!(size_of::<Front>() == offset_of!(Front, last_ack_recv) + size_of::<u32>());
};

sockopt_impl!(
    /// How a connection stands.
    Info,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Front
);
sockopt_impl!(
    /// Longest pause of the kernel's between two attempts, in milliseconds; since Linux 6.15.
    LongestPause,
    SetOnly,
    libc::IPPROTO_TCP,
    TCP_RTO_MAX_MS,
    libc::c_int
);
nix::ioctl_read_bad!(
    /// Bytes that were written and not acknowledged (`SIOCOUTQ`).
    unacknowledged,
    libc::TIOCOUTQ,
    libc::c_int
);

/// How a connection stands with its peer's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Bytes that were written and not acknowledged.
    pub(crate) unacknowledged: u64,
    /// The kernel has repeated something, or asked for space, and nothing has come since.
    pub(crate) is_waiting: bool,
    /// Since the peer's kernel was last heard.
    pub(crate) silence: Duration,
}

/// Asks how a connection stands.
///
/// # Errors
/// What the system says.
pub(crate) fn answers(socket: BorrowedFd<'_>) -> io::Result<Answers> {
    let mut queued = 0;
    // SAFETY:
    // - the request writes one `int`, and `queued` is one, alive until the call returns.
    // - the descriptor is borrowed, so it is open.
    unsafe { unacknowledged(socket.as_raw_fd(), &raw mut queued) }?;
    let Front { retransmits, probes, last_ack_recv, .. } = getsockopt(&socket, Info)?;
    Ok(Answers {
        unacknowledged: u64::try_from(queued).unwrap_or(0),
        is_waiting: retransmits > 0 || probes > 0,
        silence: Duration::from_millis(u64::from(last_ack_recv)),
    })
}

/// Has the kernel repeat at least so often what is not acknowledged, where it can be told.
pub(crate) fn repeat_within(socket: BorrowedFd<'_>, pause: Duration) {
    let pause = libc::c_int::try_from(pause.as_millis()).unwrap_or(libc::c_int::MAX);
    // An older kernel does not know the option, and goes on pausing for two minutes at most.
    let _ = setsockopt(&socket, LongestPause, &pause);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::fd::AsFd as _,
    };

    use super::*;

    #[test]
    fn what_was_written_is_counted_until_it_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        repeat_within(one.as_fd(), Duration::from_secs(1));
        one.set_nonblocking(true).unwrap();
        while one.write(&[7; 65_536]).is_ok() {}
        let full = answers(one.as_fd()).unwrap();
        assert!(full.unacknowledged > 0, "the other end's buffer is full: {full:?}");
        let mut buffer = vec![0; 1 << 20];
        let start = std::time::Instant::now();
        while answers(one.as_fd()).unwrap().unacknowledged > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it is never acknowledged");
            let _ = other.read(&mut buffer).unwrap();
        }
        assert!(answers(std::io::stdin().as_fd()).is_err(), "no socket");
    }
}
