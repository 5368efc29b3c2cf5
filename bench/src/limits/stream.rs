//! `unix_round_trip`, `tcp_round_trip`: 8 bytes there and back through a stream socket.
//!
//! Both ends are made in this process and one is sent to the other: nobody has to listen or wait.
//! Spinning means that the sockets are non-blocking and read again and again.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use super::round_trips::RoundTrips;
use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::pair::{Control, Cores, Peer};

/// This process and the one that answers.
#[derive(Debug)]
pub(crate) struct Pair {
    figure: &'static str,
    wait: Wait,
    unit: Unit,
    peer: Peer,
    socket: File,
    sent: u64,
}

impl Pair {
    /// Over a pair of unix sockets.
    pub(crate) fn unix(cores: Cores, wait: Wait) -> Result<Pair, Error> {
        let (here, there) = UnixStream::pair().context("socketpair")?;
        let spin = wait == Wait::Spin;
        here.set_nonblocking(spin).context("fcntl O_NONBLOCK")?;
        there.set_nonblocking(spin).context("fcntl O_NONBLOCK")?;
        Pair::start("unix_round_trip", cores, wait, here.into(), there.into())
    }

    /// Over TCP on the loopback, without delay.
    pub(crate) fn tcp(cores: Cores, wait: Wait) -> Result<Pair, Error> {
        let (here, there) = tcp_pair()?;
        for socket in [&here, &there] {
            socket.set_nonblocking(wait == Wait::Spin).context("fcntl O_NONBLOCK")?;
        }
        Pair::start("tcp_round_trip", cores, wait, here.into(), there.into())
    }

    /// The same as round trips a second.
    pub(crate) fn counted(self) -> Pair {
        Pair { unit: Unit::PerSecond, ..self }
    }

    fn start(
        figure: &'static str,
        cores: Cores,
        wait: Wait,
        here: OwnedFd,
        there: OwnedFd,
    ) -> Result<Pair, Error> {
        let mut peer = Peer::start("stream", cores)?;
        peer.control().send_descriptors(&[there.as_fd()])?;
        Ok(Pair { figure, wait, unit: Unit::Microseconds, peer, socket: here.into(), sent: 0 })
    }
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 20;
    const BATCH: u32 = 100;

    fn subject(&self) -> Subject {
        Subject { unit: self.unit, ..Subject::round_trip(self.figure, 8, self.wait) }
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        for _ in 0..count {
            self.sent += 1;
            self.socket.write_all(&self.sent.to_le_bytes()).context("write to a socket")?;
            let got = receive(&mut self.socket)?.ok_or_else(|| self.peer.gone())?;
            if got != self.sent {
                let (figure, sent) = (self.figure, self.sent);
                return Err(Error::WrongAnswer { figure, sent, got });
            }
        }
        Ok(())
    }
}

/// Both ends of a TCP connection over the loopback, without delay.
pub(super) fn tcp_pair() -> Result<(TcpStream, TcpStream), Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind")?;
    let address = listener.local_addr().context("getsockname")?;
    let here = TcpStream::connect(address).context("connect")?;
    let (there, _) = listener.accept().context("accept")?;
    for socket in [&here, &there] {
        socket.set_nodelay(true).context("setsockopt TCP_NODELAY")?;
    }
    Ok((here, there))
}

/// The second process: echoes as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [socket] = control.receive_descriptors()?;
    let mut socket = File::from(socket);
    while let Some(count) = control.next()? {
        for _ in 0..count {
            let Some(word) = receive(&mut socket)? else { return Ok(()) };
            socket.write_all(&word.to_le_bytes()).context("write to a socket")?;
        }
    }
    Ok(())
}

/// The next word; `None` at the end. A non-blocking socket is read until something comes, with a
/// yield now and then, so that it works on a single core too.
fn receive(socket: &mut File) -> Result<Option<u64>, Error> {
    let mut bytes = [0; 8];
    let (mut filled, mut empty) = (0, 0_u32);
    while filled < bytes.len() {
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Ok(None),
            Ok(count) => filled += count,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                empty += 1;
                if empty.is_multiple_of(YIELD_AFTER) {
                    thread::yield_now();
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            error => return error.map(|_| None).context("read from a socket"),
        }
    }
    Ok(Some(u64::from_le_bytes(bytes)))
}

/// Reads without anything before a spinning side yields once: ten round trips or more.
const YIELD_AFTER: u32 = 512;
