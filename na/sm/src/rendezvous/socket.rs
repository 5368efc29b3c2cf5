//! Abstract sockets (`SOCK_SEQPACKET`): one packet is one message of the handshake, and the end of the
//! connection is the end of the peer. Nothing here blocks.
//!
//! Packets are looked at by `rustix`: `nix` gives no control messages at all when some were cut off (`MSG_CTRUNC`), and the descriptors
//! that did arrive stay open for ever.
//!
//! A process at its limit of descriptors cannot accept, and so could not even refuse. [`Listener`] keeps
//! one in reserve for that: it is closed, the connection accepted into its place, refused with a
//! sentence, closed, and the reserve taken back.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
};

use hg_na::{Error, GoneReason};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
        bind, connect, getsockname, getsockopt, listen, recv, sendmsg, setsockopt, shutdown,
        socket, sockopt,
    },
    unistd::geteuid,
};

use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, SocketFlags,
        accept_with, recvmsg,
    },
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};

use hg_na_memory::{ForkGuard, NotInherited};
use hg_na_parts::limits::{nofile, os_error};

use super::{
    name::Name,
    packet::{GOODBYE, Packet},
};
use crate::os::{
    closing::close_elsewhere, errno, event::is_eventfd, mapping::seals_of, misbehaved,
    signals::guard,
};

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
///
/// Whoever closes a descriptor for the last time may have to wait for as long as its maker likes: so do a receiver that drops it, and who
/// closes a socket in which it waits. So it is looked at before it is taken, and what is neither memory nor an eventfd, and a
/// socket that still holds descriptors, is closed by [`close_elsewhere`].
#[derive(Debug)]
pub(crate) struct Socket {
    /// There until it is dropped.
    end: Option<(NotInherited, OwnedFd)>,
    /// A child that was not forked by libc has the connection itself, and leaves it alone.
    guard: Option<&'static Arc<ForkGuard>>,
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { end: Some((NotInherited::new(fd.as_fd()), fd)), guard: guard().ok() }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some((kept, fd)) = self.end.take() else { return };
        drop(kept);
        if self.guard.is_some_and(|it| !it.is_child()) {
            // From now on nothing comes.
            let _hung_up_already = shutdown(fd.as_raw_fd(), Shutdown::Both);
            if holds_descriptors(&fd) {
                close_elsewhere(vec![fd]);
            }
        }
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
        match sendmsg::<()>(self.fd().as_raw_fd(), &pieces, control, flags, None) {
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
    /// `PeerGone(Misbehaved)` when it does not fit into the buffer, or carries too many descriptors or wrong ones. It is left where it
    /// was.
    pub(crate) fn recv(&self, buffer: &mut [u8]) -> Result<Received, Error> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PACKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = buffer.len();
        let RecvMsg { bytes: len, flags, .. } = match peek(self.fd(), buffer, &mut control) {
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
        let are_lost = flags.contains(ReturnFlags::CTRUNC);
        let wrong = if flags.contains(ReturnFlags::TRUNC) {
            misbehaved(format!("it sent a packet of more than {room} bytes"))
        } else if fds.len() > PACKET_FDS_MAX || are_lost && fds.len() == PACKET_FDS_MAX {
            misbehaved("it sent more descriptors than a packet may carry")
        } else if let Err(error) = fds.iter().try_for_each(check_kind) {
            error
        } else if !are_lost {
            take(self.fd());
            // From a closed end this is what recvmsg returns for ever.
            let is_end = len == 0 && fds.is_empty();
            let packet = Received::Message { len, fds: Ok(fds) };
            return Ok(if is_end { Received::Closed } else { packet });
        } else {
            // There was room in the buffer, so the kernel could not install them. To take it drops them: those of another user wait.
            let no_place = os_error("recvmsg", Errno::EMFILE);
            if !self.is_of_own_user() {
                return Err(no_place);
            }
            take(self.fd());
            return Ok(Received::Message { len, fds: Err(no_place) });
        };
        close_elsewhere(fds);
        Err(wrong)
    }

    /// Refuses who has connected. What one of this user has said is heard first, so that nothing is left in the socket whose close might
    /// wait: malice of this user's own is no concern here.
    pub(crate) fn refuse(&self, sentence: String) {
        // The sentence is a courtesy: a peer that does not take it sees the hang-up.
        let _sent = self.send(&Packet::Refuse(sentence).encode(), &[]);
        if self.is_of_own_user() {
            let _unheard = self.recv(&mut [0; super::packet::PACKET_MAX]);
        }
    }

    fn is_of_own_user(&self) -> bool {
        self.peer_credentials().is_ok_and(|other| other.uid == geteuid().as_raw())
    }

    /// Who is at the other end: who connected, or who listened.
    pub(crate) fn peer_credentials(&self) -> Result<Credentials, Error> {
        let credentials = getsockopt(&self.fd(), sockopt::PeerCredentials)
            .map_err(|e| os_error("getsockopt(SO_PEERCRED)", e))?;
        Ok(Credentials { pid: credentials.pid(), uid: credentials.uid() })
    }

    /// For the epoll set.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.end.as_ref().expect("it is not dropped").1.as_fd()
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
    /// Whoever has made it keeps it, and serves who waits.
    is_adopted: bool,
}

impl Listener {
    /// Listens at a name.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] when somebody else does, [`Error::Limit`].
    pub(crate) fn bind(name: &Name, context: u8) -> Result<Self, Error> {
        let socket = new_socket()?;
        match bind(socket.as_raw_fd(), &abstract_address(name, context)?) {
            Ok(()) => Self::listen(socket, false),
            Err(Errno::EADDRINUSE) => Err(Error::AddressInUse(name.address(context))),
            Err(error) => Err(os_error("bind", error)),
        }
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
        Self::listen(socket, true)
    }

    /// Who connects from now on is told that this process listens (`SO_PEERCRED`), whoever did before.
    fn listen(socket: OwnedFd, is_adopted: bool) -> Result<Self, Error> {
        let reserve = Some(new_socket()?);
        listen(&socket, BACKLOG).map_err(|e| os_error("listen", e))?;
        let kept = NotInherited::new(socket.as_fd());
        Ok(Self { _kept: kept, reserve, socket, is_adopted })
    }

    /// The next connection that waits; `None` when there is none (any more).
    ///
    /// At the limit of descriptors the ones that wait are refused, up to a bound a call: watch the
    /// listener level-triggered, and the rest is told again.
    ///
    /// # Errors
    /// [`Error::Again`] when not even the reserve is left, [`Error::Os`].
    pub(crate) fn accept(&mut self) -> Result<Option<Socket>, Error> {
        for _ in 0..REFUSALS_MAX {
            if self.reserve.is_none() {
                // Somebody else took its place, or who was refused before is not closed yet; without it nothing can be refused.
                self.reserve = Some(new_socket().map_err(|_| Error::Again)?);
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

    /// Listens no more. Whoever waits to be accepted hears a goodbye; a hang-up without a word would be a death.
    pub(crate) fn close(mut self) {
        if self.is_adopted {
            return;
        }
        // Nobody comes any more.
        let _closed_it_is_too = shutdown(self.socket.as_raw_fd(), Shutdown::Read);
        drop(self.reserve.take());
        loop {
            match self.accept_now() {
                Ok(socket) => Socket::from(socket).refuse(GOODBYE.to_owned()),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN | Errno::EINVAL) => return,
                Err(error) => {
                    return tracing::warn!(%error, "who waits to be accepted hears no goodbye");
                }
            }
        }
    }

    fn accept_now(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(errno)
    }

    fn refuse_one(&mut self) -> Result<(), Error> {
        drop(self.reserve.take());
        let refused = self.accept_now().map(|socket| {
            let sentence = format!(
                "it has no file descriptor left for another peer (its RLIMIT_NOFILE is {}): raise that \
                 with `ulimit -n` there, or connect fewer peers",
                nofile()
            );
            Socket::from(socket).refuse(sentence);
            tracing::warn!("no file descriptor left: a peer was refused");
        });
        match refused {
            Ok(()) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(()),
            Err(error) => Err(os_error("accept4", error)),
        }
    }

    /// For the epoll set, level-triggered.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Looks at the next packet, and leaves it there: descriptors that are not kept are not closed for good.
fn peek(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> Result<RecvMsg, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    let mut bytes = [IoSliceMut::new(into)];
    let mut look = || recvmsg(socket, &mut bytes, control, flags).map_err(errno);
    // A peer that closed before it had read everything leaves ECONNRESET, which comes once, and
    // in front of what it had sent: the reason why it refused, for example.
    match look() {
        Err(Errno::ECONNRESET) => look(),
        other => other,
    }
}

/// Memory and eventfds are taken.
fn check_kind(fd: &OwnedFd) -> Result<(), Error> {
    if seals_of(fd).is_some() || is_eventfd(fd)? {
        return Ok(());
    }
    Err(misbehaved("it sent a descriptor that is neither memory nor an eventfd"))
}

/// Takes the packet that was looked at, without descriptors.
fn take(socket: BorrowedFd<'_>) {
    while recv(socket.as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT) == Err(Errno::ECONNRESET) {}
}

/// Whether descriptors wait in a socket at whose end nothing comes any more.
fn holds_descriptors(socket: &OwnedFd) -> bool {
    // The name of its sender tells a packet from the end, which is as empty as some are.
    let _it_is_a_unix_socket = setsockopt(socket, sockopt::PassCred, &true);
    let mut space = nix::cmsg_space!(libc::ucred);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    loop {
        let packet =
            nix::sys::socket::recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(&mut space), flags);
        match packet.map(|it| it.cmsgs().map(|mut all| all.next().is_some())) {
            Ok(Ok(true)) => take(socket.as_fd()),
            Err(Errno::ECONNRESET) => {}
            // There was no room for more than the name.
            Ok(Err(_)) => return true,
            Ok(Ok(false)) | Err(_) => return false,
        }
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
