//! A stream socket beside each connection: the kernel's word for whether the other process lives.
//!
//! Endpoints of libfabric and queue pairs do not say when a peer is gone, and answer nothing while nobody makes progress. This socket carries the greeting and the goodbye, and then nothing: the kernel closes it when its process
//! dies, however it dies, and probes it when the other machine falls silent.
//!
//! Anybody may connect. One look takes `READS` reads at most, and a lifeline whose own words are not read is not read either, so that
//! nobody's words cost more than a few kilobytes.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, BorrowedFd},
    time::Duration,
};

use hg_na::{Address, Error, Identity};
use hg_na_link::{Greeting, Record, record::RECORD_MAX};
use hg_na_memory::NotInherited;
use hg_na_parts::{
    bounds::probes,
    key::Key,
    limits::{self, os_error},
};
use nix::{
    sys::{
        epoll::EpollFlags,
        socket::{getsockopt, sockopt},
    },
    unistd::geteuid,
};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

pub use crate::cut::Cut;
use crate::secrecy::Secrecy;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Reads of one look, of a longest record each.
const READS: usize = 4;
/// Bytes that may wait to be written; while more do, nothing is read.
const OUT_MAX: usize = 4096;
/// What the kernel takes for a timeout: milliseconds in an `int`.
const SILENCE_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// Where a lifeline leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// Providers that cross a network.
    Network(SocketAddr),
    /// Providers that stay on the machine: an abstract socket, whose name the kernel forgets with its last user.
    Local(Box<str>),
}

impl Place {
    fn socket(&self) -> io::Result<(Socket, SockAddr)> {
        let (domain, address) = match self {
            Self::Network(address) => (Domain::for_address(*address), SockAddr::from(*address)),
            Self::Local(name) => {
                (Domain::UNIX, SockAddr::unix(format!("\0hydrargyrum-ofi/{name}"))?)
            }
        };
        Ok((Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?, address))
    }
}

/// Takes connections.
#[derive(Debug)]
pub struct Listener {
    /// Before its socket: a forked child would take connections that nobody serves.
    _kept: NotInherited,
    socket: Socket,
    /// What was bound: with the port that the kernel chose.
    pub place: Place,
}

impl Listener {
    /// Binds a place; `listens` or only holds it.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] with `own`, [`Error::Os`].
    pub fn bind(place: &Place, listens: bool, own: &Address) -> Result<Self, Error> {
        let (socket, address) = place.socket().map_err(|error| os_error("socket", error))?;
        if matches!(place, Place::Network(_)) {
            // A predecessor's closed connections do not keep its port.
            socket.set_reuse_address(true).map_err(|error| Error::os("setsockopt", error))?;
        }
        let in_use = |error: io::Error, call| match error.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse(own.clone()),
            _ => Error::os(call, error),
        };
        socket.bind(&address).map_err(|error| in_use(error, "bind"))?;
        if listens {
            socket.listen(BACKLOG).map_err(|error| in_use(error, "listen"))?;
        }
        let bound = socket.local_addr().map_err(|error| Error::os("getsockname", error))?;
        let place = match bound.as_socket() {
            Some(address) => Place::Network(address),
            None => place.clone(),
        };
        Ok(Self { _kept: NotInherited::new(socket.as_fd()), socket, place })
    }

    /// One connection, when there is one.
    ///
    /// # Errors
    /// Of the kernel's.
    pub fn accept(&self, silence: Duration) -> io::Result<Lifeline> {
        let (socket, from) =
            self.socket.accept4(nix::libc::SOCK_NONBLOCK | nix::libc::SOCK_CLOEXEC)?;
        Lifeline::over(socket, &from, false, silence)
    }

    /// For the wait set.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One lifeline.
#[derive(Debug)]
pub struct Lifeline {
    /// Before its socket: a forked child would keep it open when this process dies.
    _kept: NotInherited,
    socket: Socket,
    /// Who is at its other end, by the kernel's word, once it is connected.
    pub peer: Identity,
    /// Its address, over a network.
    pub ip: Option<IpAddr>,
    /// At which of its context's listeners it was accepted.
    pub door: usize,
    is_connecting: bool,
    /// What the kernel was asked to tell of.
    watched: Option<EpollFlags>,
    secrecy: Secrecy,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Lifeline {
    /// Begins to connect; over a network from an address of this machine's, where one is named.
    ///
    /// # Errors
    /// Of the kernel's.
    pub fn connect(place: &Place, from: Option<IpAddr>, silence: Duration) -> io::Result<Self> {
        let (socket, address) = place.socket()?;
        if let (Some(from), Place::Network(to)) = (from, place)
            && from.is_ipv4() == to.is_ipv4()
        {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        let is_connecting = match socket.connect(&address) {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => true,
            Err(error) => return Err(error),
        };
        Self::over(socket, &address, is_connecting, silence)
    }

    fn over(
        socket: Socket,
        to: &SockAddr,
        is_connecting: bool,
        silence: Duration,
    ) -> io::Result<Self> {
        let ip = to.as_socket().map(|to| to.ip().to_canonical());
        let peer = match to.as_socket() {
            Some(to) => Identity::network(SocketAddr::new(to.ip().to_canonical(), to.port())),
            None => {
                let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
                Identity::process(credentials.pid(), credentials.uid())
            }
        };
        if socket.domain()? != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
            let (idle, interval, retries) = probes(silence);
            let probes =
                TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(retries);
            socket.set_tcp_keepalive(&probes)?;
            socket.set_tcp_user_timeout(Some(silence.min(SILENCE_MAX)))?;
        }
        Ok(Self {
            _kept: NotInherited::new(socket.as_fd()),
            socket,
            peer,
            ip,
            door: 0,
            is_connecting,
            watched: None,
            secrecy: Secrecy::Clear,
            out: Vec::new(),
            input: Vec::new(),
        })
    }

    /// Whoever is at the other end has to prove that it has this key, and what is said is sealed. First of all, by both ends.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn seal_with<G: Greeting>(&mut self, key: &Key, dials: bool) -> Result<(), Error> {
        self.secrecy = Secrecy::new::<G>(key, dials, &mut self.out)?;
        Ok(())
    }

    /// The user at the other end, if that is another one than this process's. Nobody knows over a network.
    #[must_use]
    pub fn other_user(&self) -> Option<u32> {
        self.peer.uid.filter(|uid| *uid != geteuid().as_raw())
    }

    /// What it waits for, if that is not what was said last.
    pub fn changed_interest(&mut self) -> Option<EpollFlags> {
        let interest = self.interest();
        let before = self.watched.replace(interest);
        (before != Some(interest)).then_some(interest)
    }

    fn interest(&self) -> EpollFlags {
        let mut flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        if self.is_stuffed() {
            flags = EpollFlags::empty();
        }
        flags.set(EpollFlags::EPOLLOUT, self.is_connecting || !self.out.is_empty());
        flags
    }

    /// The other side does not read.
    fn is_stuffed(&self) -> bool {
        self.out.len() > OUT_MAX
    }

    /// For the wait set.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Says no to one that was just accepted. What it has said is read first: otherwise the kernel might reset the connection.
    pub(crate) fn refuse<G: Greeting>(mut self, why: String) {
        let _greeting = self.socket.read(&mut [0; RECORD_MAX]);
        self.say(&Record::<G>::Refuse(why));
    }

    /// Goes on by the lowest number of a descriptor that is free, where there is one.
    pub(crate) fn lower(&mut self) {
        if let Ok(lowest) = limits::lowest(&self.socket) {
            self._kept = NotInherited::new(lowest.as_fd());
            self.socket = lowest.into();
        }
    }

    /// Says something, now or as soon as the kernel takes it.
    pub fn say<G: Greeting>(&mut self, record: &Record<G>) {
        self.say_soon(record);
        self.flush();
    }

    /// Says something with the next [`Lifeline::flush`].
    pub fn say_soon<G: Greeting>(&mut self, record: &Record<G>) {
        self.secrecy.say(record, &mut self.out);
    }

    /// Writes what waits. Errors show when it is read, which nothing that waits keeps it from then.
    pub fn flush(&mut self) {
        while !self.is_connecting && !self.out.is_empty() {
            // Without a signal when the other side has gone.
            match self.socket.send_with_flags(&self.out, nix::libc::MSG_NOSIGNAL) {
                Ok(len) => drop(self.out.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.out.clear(),
            }
        }
    }

    /// Takes what the kernel has told of: finishes connecting, writes, reads.
    ///
    /// # Errors
    /// It has ended; what was said before it ended is in `said`.
    pub fn attend<G: Greeting>(&mut self, said: &mut Vec<Record<G>>) -> Result<(), Cut> {
        if self.is_connecting {
            match self.socket.take_error() {
                Ok(Some(error)) | Err(error) => return Err(Cut::NotThere(error)),
                Ok(None) => {}
            }
            match self.socket.peer_addr() {
                Ok(_) => self.is_connecting = false,
                Err(_) => return Ok(()),
            }
        }
        self.flush();
        let read = self.read(said);
        if let Err(Cut::Refused(_)) = read {
            // The other end is told before it is hung up on.
            self.flush();
        }
        read
    }

    fn read<G: Greeting>(&mut self, said: &mut Vec<Record<G>>) -> Result<(), Cut> {
        let mut bytes = [0; RECORD_MAX];
        for _ in 0..READS {
            if self.is_stuffed() {
                break;
            }
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(Cut::Exited),
                Ok(len) => {
                    let Self { secrecy, input, out, .. } = self;
                    secrecy.hear(&bytes[..len], input, out, said)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    return Err(match error.raw_os_error() {
                        Some(
                            nix::libc::ETIMEDOUT | nix::libc::EHOSTUNREACH | nix::libc::ENETUNREACH,
                        ) => Cut::Silent,
                        _ => Cut::Exited,
                    });
                }
            }
        }
        Ok(())
    }
}
