//! What the kernel knows about a connection, and no safe interface tells.
//!
//! Options and `tcp_info` of `<linux/tcp.h>`, `SIOCOUTQ` of `<linux/sockios.h>`.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use nix::libc;

/// Longest pause of the kernel's between two attempts, in milliseconds; since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

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
    let mut queued: libc::c_int = 0;
    // SAFETY:
    // - the request (`SIOCOUTQ`) writes one `int`, and `queued` is one, alive until the call returns.
    // - the descriptor is borrowed, so it is open.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
    done(asked)?;
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).expect("some 100 bytes");
    // SAFETY:
    // - the kernel writes `len` bytes at most, which is the size of `info`; both are alive until it returns.
    // - the descriptor is borrowed, so it is open.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    done(asked)?;
    // SAFETY:
    // - integers only: zeros, and whatever the kernel wrote over them, are a value of the type.
    let info = unsafe { info.assume_init() };
    Ok(Answers {
        unacknowledged: u64::try_from(queued).unwrap_or(0),
        is_waiting: info.tcpi_retransmits > 0 || info.tcpi_probes > 0,
        silence: Duration::from_millis(u64::from(info.tcpi_last_ack_recv)),
    })
}

/// Has the kernel repeat at least so often what is not acknowledged, where it can be told.
pub(crate) fn repeat_within(socket: BorrowedFd<'_>, pause: Duration) {
    let pause = libc::c_int::try_from(pause.as_millis()).unwrap_or(libc::c_int::MAX);
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("4");
    // SAFETY:
    // - the kernel reads one `int`, and `pause` is one, alive until the call returns.
    // - the descriptor is borrowed, so it is open.
    // An older kernel does not know the option, and goes on pausing for two minutes at most.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const pause).cast(),
            len,
        )
    };
}

/// Has the kernel take no more than this of what it cannot send yet: the rest waits here, where messages pass it.
///
/// # Errors
/// What the system says.
pub(crate) fn unsent_at_most(socket: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("4");
    // SAFETY:
    // - the kernel reads one `int`, and `bytes` is one, alive until the call returns.
    // - the descriptor is borrowed, so it is open.
    done(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            len,
        )
    })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
