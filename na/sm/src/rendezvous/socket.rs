//! Abstract sockets (`SOCK_SEQPACKET`): one packet is one message of the handshake, and the end of the
//! connection is the end of the peer. Nothing here blocks.
//!
//! Packets are received by `rustix`: `nix` gives no control messages at all when some were cut off (`MSG_CTRUNC`), and the descriptors
//! that did arrive stay open for ever.
//!
//! A process at its limit of descriptors cannot accept, and so could not even refuse. [`Listener`] keeps
//! one in reserve for that: it is closed, the connection accepted into its place, refused with a
//! sentence, closed, and the reserve taken back.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use hg_na::{Error, GoneReason};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind,
        connect, getsockname, getsockopt, listen, sendmsg, socket, sockopt,
    },
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, SocketFlags,
        accept_with, recvmsg,
    },
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};

use hg_na_memory::NotInherited;
use hg_na_parts::limits::{nofile, os_error};

use super::{name::Name, packet::Packet};
use crate::os::{errno, misbehaved};

/// Setting: the number of a descriptor of this process, a socket that whoever has started it bound to the address of context 0. Only
/// with `regions` off: who connected before this process listened is told of whoever did.
pub(crate) const LISTEN_FD: &str = "listen-fd";

/// Descriptors that one packet may carry here.
const PACKET_FDS_MAX: usize = 8;

/// Connections that may wait to be accepted.
const BACKLOG: Backlog = Backlog::MAXCONN;

/// Connections refused in one call of [`Listener::accept`], so that it ends.
const REFUSALS_MAX: u32 = 64;

/// What is wrong with the socket that was handed in.
pub(crate) fn bad_listen_fd(why: &str) -> Error {
    Error::BadSetting { name: LISTEN_FD.to_owned(), why: why.to_owned() }
}

/// Who is at the other end, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Process id; 0 when it is not visible from this pid namespace.
    pub(crate) pid: i32,
    /// Effective user id.
    pub(crate) uid: u32,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Done,
    /// The other end has not read the ones before. Try again when it has.
    Full,
    /// The other end is closed. It may have sent a last word: receive it.
    Closed,
}

/// What a socket had to say.
#[derive(Debug)]
pub(crate) enum Received {
    /// Nothing yet.
    Nothing,
    /// The other end is closed, and nothing comes any more.
    Closed,
    /// A packet of `len` bytes, and the descriptors that came with it.
    Message {
        /// Bytes of it in the buffer.
        len: usize,
        /// At most [`PACKET_FDS_MAX`]; [`Error::Limit`]: this process has no place for them.
        fds: Result<Vec<OwnedFd>, Error>,
    },
}

/// One end of a connection. A forked child has none of it: it would keep the connection open when this process is gone.
#[derive(Debug)]
pub(crate) struct Socket {
    _kept: NotInherited,
    fd: OwnedFd,
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { _kept: NotInherited::new(fd.as_fd()), fd }
    }
}

impl Socket {
    /// Connects to a listener. Never blocks: it is connected at once, or not at all.
    ///
    /// # Errors
    /// `PeerGone(Unreachable)` when nobody listens there, [`Error::Again`] when too many wait there
    /// to be accepted, [`Error::Limit`].
    pub(crate) fn connect(name: &Name, context: u8) -> Result<Self, Error> {
        let socket = new_socket()?;
        match connect(socket.as_raw_fd(), &abstract_address(name, context)?) {
            Ok(()) => Ok(Self::from(socket)),
            Err(Errno::ECONNREFUSED) => Err(Error::PeerGone(GoneReason::Unreachable(
                format!("nobody listens at {}", name.address(context)).into(),
            ))),
            // EINTR: a signal came before the non-blocking connection was made.
            Err(Errno::EAGAIN | Errno::EINTR) => Err(Error::Again),
            Err(error) => Err(os_error("connect", error)),
        }
    }

    /// Sends one packet with descriptors; the receiver gets copies of them.
    ///
    /// # Errors
    /// [`Error::Limit`] when too many descriptors are in flight, [`Error::Os`].
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent, Error> {
        let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let pieces = [IoSlice::new(bytes)];
        match sendmsg::<()>(self.fd.as_raw_fd(), &pieces, control, flags, None) {
            Ok(_all_of_it) => Ok(Sent::Done),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Sent::Full),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(Sent::Closed),
            Err(error) => Err(os_error("sendmsg", error)),
        }
    }

    /// Sends a packet that may be lost, unless others wait to be read. The kernel says that there is room
    /// (`POLLOUT`) while a quarter of the buffer is used at most: the rest is left for answers, which a peer is owed however many
    /// of these it has not read.
    pub(crate) fn send_courtesy(&self, bytes: &[u8]) {
        let room = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
        if room.is_ok_and(|told| told > 0) {
            let _unheard_is_fine = self.send(bytes, &[]);
        }
    }

    /// Receives one packet.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when it does not fit into the buffer or carries too many descriptors. What did
    /// arrive is closed.
    pub(crate) fn recv(&self, buffer: &mut [u8]) -> Result<Received, Error> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (flags, room) = (RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC, buffer.len());
        let mut bytes = [IoSliceMut::new(buffer)];
        let mut receive = || recvmsg(&self.fd, &mut bytes, &mut control, flags).map_err(errno);
        // A peer that closed before it had read everything leaves ECONNRESET, which comes once, and
        // in front of what it had sent: the reason why it refused, for example.
        let received = match receive() {
            Err(Errno::ECONNRESET) => receive(),
            other => other,
        };
        let RecvMsg { bytes: len, flags, .. } = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Received::Nothing),
            Err(Errno::ECONNRESET | Errno::EPIPE) => return Ok(Received::Closed),
            Err(error) => return Err(os_error("recvmsg", error)),
        };
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = rights.flatten().collect();
        if flags.contains(ReturnFlags::TRUNC) {
            return Err(misbehaved(format!("it sent a packet of more than {room} bytes")));
        }
        let are_lost = flags.contains(ReturnFlags::CTRUNC);
        if fds.len() > PACKET_FDS_MAX || are_lost && fds.len() == PACKET_FDS_MAX {
            return Err(misbehaved("it sent more descriptors than a packet may carry"));
        }
        if are_lost {
            // There was room in the buffer, so the kernel could not install them.
            return Ok(Received::Message { len, fds: Err(os_error("recvmsg", Errno::EMFILE)) });
        }
        // An empty packet is no message of ours; from a closed end it is what recvmsg returns for ever.
        Ok(if len == 0 { Received::Closed } else { Received::Message { len, fds: Ok(fds) } })
    }

    /// Who is at the other end: who connected, or who listened.
    pub(crate) fn peer_credentials(&self) -> Result<Credentials, Error> {
        let credentials = getsockopt(&self.fd, sockopt::PeerCredentials)
            .map_err(|e| os_error("getsockopt(SO_PEERCRED)", e))?;
        Ok(Credentials { pid: credentials.pid(), uid: credentials.uid() })
    }

    /// For the epoll set.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where one context is looked up.
#[derive(Debug)]
pub(crate) struct Listener {
    /// A forked child's would keep the name, and take connections that nobody serves.
    _kept: NotInherited,
    socket: OwnedFd,
    /// Any descriptor, to be given up for a refusal.
    reserve: Option<OwnedFd>,
    refused: u64,
}

impl Listener {
    /// Listens at a name.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] when somebody else does, [`Error::Limit`].
    pub(crate) fn bind(name: &Name, context: u8) -> Result<Self, Error> {
        let socket = new_socket()?;
        match bind(socket.as_raw_fd(), &abstract_address(name, context)?) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => return Err(Error::AddressInUse(name.address(context))),
            Err(error) => return Err(os_error("bind", error)),
        }
        Self::listen(socket)
    }

    /// Listens at a socket that this process was started with, bound to context 0 of the name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when it is none.
    pub(crate) fn adopt(name: &Name, fd: RawFd) -> Result<Self, Error> {
        let process = pidfd_open(getpid(), PidfdFlags::empty());
        // A descriptor of its own, of whatever the number stands for.
        let socket = process.and_then(|it| pidfd_getfd(it, fd, PidfdGetfdFlags::empty()));
        let socket = socket.map_err(|error| bad_listen_fd(&error.to_string()))?;
        let bound = getsockname::<UnixAddr>(socket.as_raw_fd());
        let sort = getsockopt(&socket, sockopt::SockType);
        if bound != Ok(abstract_address(name, 0)?) || sort != Ok(SockType::SeqPacket) {
            let wanted = name.socket_name(0);
            return Err(bad_listen_fd(&format!("it is no SOCK_SEQPACKET at @{wanted}")));
        }
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|e| os_error("fcntl", e))?;
        Self::listen(socket)
    }

    /// Who connects from now on is told that this process listens (`SO_PEERCRED`), whoever did before.
    fn listen(socket: OwnedFd) -> Result<Self, Error> {
        listen(&socket, BACKLOG).map_err(|e| os_error("listen", e))?;
        let kept = NotInherited::new(socket.as_fd());
        Ok(Self { _kept: kept, reserve: Some(new_socket()?), socket, refused: 0 })
    }

    /// The next connection that waits; `None` when there is none (any more).
    ///
    /// At the limit of descriptors the ones that wait are refused, up to a bound a call: watch the
    /// listener level-triggered, and the rest is told again.
    ///
    /// # Errors
    /// [`Error::Limit`] when not even the reserve is left, [`Error::Os`].
    pub(crate) fn accept(&mut self) -> Result<Option<Socket>, Error> {
        for _ in 0..REFUSALS_MAX {
            if self.reserve.is_none() {
                // Somebody else took its place before; without it nothing can be refused.
                self.reserve = Some(new_socket()?);
            }
            match self.accept_now() {
                Ok(socket) => return Ok(Some(Socket::from(socket))),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EMFILE | Errno::ENFILE) => self.refuse_one()?,
                Err(error) => return Err(os_error("accept4", error)),
            }
        }
        Ok(None)
    }

    fn accept_now(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(errno)
    }

    fn refuse_one(&mut self) -> Result<(), Error> {
        drop(self.reserve.take());
        let refused = match self.accept_now() {
            Ok(socket) => {
                self.refuse(&Socket::from(socket));
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(()),
            Err(error) => Err(os_error("accept4", error)),
        };
        // The refused one is closed by now, and its place free, unless another thread took it.
        self.reserve = new_socket().ok();
        refused
    }

    fn refuse(&mut self, socket: &Socket) {
        let sentence = format!(
            "it has no file descriptor left for another peer (its RLIMIT_NOFILE is {}): raise that \
             with `ulimit -n` there, or connect fewer peers",
            nofile()
        );
        // The sentence is a courtesy: a peer that does not take it sees the hang-up.
        let _sent = socket.send(&Packet::Refuse(sentence).encode(), &[]);
        self.refused += 1;
        tracing::warn!(refused = self.refused, "no file descriptor left: a peer was refused");
    }

    /// Connections that were refused for want of descriptors; each was logged.
    #[cfg(test)]
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// For the epoll set, level-triggered.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn new_socket() -> Result<OwnedFd, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(|e| os_error("socket", e))
}

fn abstract_address(name: &Name, context: u8) -> Result<UnixAddr, Error> {
    UnixAddr::new_abstract(name.socket_name(context).as_bytes())
        .map_err(|e| os_error("sockaddr_un", e))
}

#[cfg(test)]
mod tests;
