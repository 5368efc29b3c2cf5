//! `tcp_stream`: bandwidth of a bare TCP stream over the loopback, one process sending, one receiving.
//!
//! One repetition is a number of messages of one size; the receiver answers the last with a byte, so that
//! the clock stops when everything has arrived. Both block in the kernel: nothing that polls is faster.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Instant;

use super::memory::FILL;
use super::stream;
use crate::error::{Context, Error};
use crate::measure::{Measure, Op, Subject};
use crate::pair::{Control, Cores, Peer};

/// This process and the one at the other end of the stream.
#[derive(Debug)]
pub(crate) struct Stream {
    peer: Peer,
    socket: TcpStream,
    op: Op,
    buffer: Vec<u8>,
}

impl Stream {
    /// Messages of `size` bytes; with [`Op::Push`] this process sends them, otherwise it receives.
    pub(crate) fn start(cores: Cores, op: Op, size: usize) -> Result<Stream, Error> {
        let (here, there) = stream::tcp_pair()?;
        let mut peer = Peer::start("tcp-stream", cores)?;
        peer.control().send_descriptors(&[there.as_fd()])?;
        peer.control().send(size as u64)?;
        peer.control().send(u64::from(op == Op::Push))?;
        Ok(Stream { peer, socket: here, op, buffer: vec![FILL; size] })
    }

    fn messages(&mut self, count: u64) -> Result<(), Error> {
        self.peer.control().send(count)?;
        let moved = match self.op {
            Op::Push => send(&mut self.socket, &self.buffer, count),
            Op::Pull | Op::View => receive(&mut self.socket, &mut self.buffer, count),
        };
        // Whatever happened to the socket, it happened because the other process is gone.
        moved.map_err(|error| self.peer.check_alive().err().unwrap_or(error))
    }
}

impl Measure for Stream {
    fn subject(&self) -> Subject {
        Subject { op: Some(self.op), ..Subject::bandwidth(FIGURE, self.buffer.len()) }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let size = self.buffer.len() as u64;
        let count = (BATCH_BYTES / size).max(MIN_MESSAGES);
        self.messages(MIN_MESSAGES)?;
        let start = Instant::now();
        self.messages(count)?;
        let mebibytes = (count * size) as f64 / f64::from(1 << 20);
        Ok(mebibytes / start.elapsed().as_secs_f64())
    }
}

/// The second process: receives, or sends, as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [socket] = control.receive_descriptors()?;
    let mut socket = TcpStream::from(socket);
    let (Some(size), Some(receives)) = (control.next()?, control.next()?) else { return Ok(()) };
    let size = usize::try_from(size).map_err(|_| Error::PeerGone("the parent"))?;
    let mut buffer = vec![FILL; size];
    while let Some(count) = control.next()? {
        if receives == 1 {
            receive(&mut socket, &mut buffer, count)?;
        } else {
            send(&mut socket, &buffer, count)?;
        }
    }
    Ok(())
}

fn send(socket: &mut TcpStream, buffer: &[u8], count: u64) -> Result<(), Error> {
    for _ in 0..count {
        socket.write_all(buffer).context("write to a socket")?;
    }
    socket.read_exact(&mut [0]).context("read from a socket")
}

fn receive(socket: &mut TcpStream, buffer: &mut [u8], count: u64) -> Result<(), Error> {
    for _ in 0..count {
        socket.read_exact(buffer).context("read from a socket")?;
    }
    match buffer.last() {
        Some(&got) if got != FILL => {
            Err(Error::WrongAnswer { figure: FIGURE, sent: FILL.into(), got: got.into() })
        }
        _ => socket.write_all(&[0]).context("write to a socket"),
    }
}

const FIGURE: &str = "tcp_stream";

/// Bytes of one repetition, or a few messages where that is more.
const BATCH_BYTES: u64 = 32 << 20;
const MIN_MESSAGES: u64 = 4;
