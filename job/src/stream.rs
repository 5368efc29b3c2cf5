//! A stream socket of either family, with deadlines.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use nix::{
    libc::{MSG_DONTWAIT, MSG_NOSIGNAL},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use socket2::SockRef;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Stream {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Ends both directions, whoever else holds the descriptor.
    pub(crate) fn shutdown(&self) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Writes until the deadline. How many bytes have left, and why not all; [`is_timeout`] knows the deadline.
    pub(crate) fn write_before(&self, bytes: &[u8], deadline: Instant) -> (usize, io::Result<()>) {
        let mut sent = 0;
        while sent < bytes.len() {
            match SockRef::from(self).send_with_flags(&bytes[sent..], MSG_NOSIGNAL | MSG_DONTWAIT) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) && Instant::now() < deadline => {
                    self.wait_for_room(deadline.saturating_duration_since(Instant::now()));
                }
                Err(error) => return (sent, Err(error)),
            }
        }
        (sent, Ok(()))
    }

    fn wait_for_room(&self, within: Duration) {
        let mut stream = [PollFd::new(self.as_fd(), PollFlags::POLLOUT)];
        let within = within.saturating_add(Duration::from_millis(1));
        // If it fails, the next attempt to write tells.
        let _ = poll(&mut stream, PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX));
    }

    /// Reads and writes fail with `TimedOut` from then on.
    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| left.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                stream.set_write_timeout(left)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.set_write_timeout(left)
            }
        }
    }
}

/// Did the deadline of a stream pass?
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            // Not `write(2)`, which raises SIGPIPE in processes that have not turned it off.
            Self::Unix(stream) => SockRef::from(&*stream).send_with_flags(bytes, MSG_NOSIGNAL),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
