//! One connection of the hub: bytes in, frames out, and the other way round.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::Arc,
    time::Instant,
};

use hg_na_memory::NotInherited;
use mio::{Interest, Registry, Token, unix::SourceFd};

use crate::{
    frame::{DOWN_MAX, Down, FRAME_HEAD, Garbage, HELLO_MAX, UP_MAX, Up, split},
    stream::Stream,
};

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Somebody who has to say a `Hello` by then.
    Stranger { until: Instant },
    /// The runner made this connection for that rank, which has not spoken.
    Seat(u32),
    /// A member.
    Rank(u32),
    /// A member that is a hub: it speaks for several ranks.
    Hub(u32),
    /// The hub above this one, which is that rank's.
    Above(u32),
}

/// A frame, by who it is of.
#[derive(Debug)]
pub(crate) enum Frame {
    Up(Up),
    Down(Down),
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub who: Who,
    /// A forked child's copy would keep the connection open when this process dies. Dropped before it is closed.
    _kept: NotInherited,
    stream: Stream,
    input: Vec<u8>,
    output: VecDeque<Arc<[u8]>>,
    /// Bytes of the first output that have gone.
    sent: usize,
    /// Bytes of all output.
    waiting: usize,
    /// The hub was told that there is no room for more.
    pub is_blocked: bool,
    /// No more is read, and it ends when the output has gone.
    pub closing: bool,
}

/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// Bytes that wait for one connection at which it is given no more values of exchanges, and, if it is a rank's, not read.
const OUTPUT_FULL: usize = 4 << 20;

/// What came of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// There is no more for now.
    All,
    /// There may be more, once the frames that are here were handled.
    Some,
    /// The other end has closed; what it said before is here.
    Closed,
}

impl Connection {
    /// Its stream must not block.
    pub(crate) fn new(who: Who, stream: Stream) -> Self {
        let kept = NotInherited::new(stream.as_fd());
        let (input, output) = Default::default();
        Self {
            who,
            _kept: kept,
            stream,
            input,
            output,
            sent: 0,
            waiting: 0,
            is_blocked: false,
            closing: false,
        }
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut SourceFd(&self.stream.as_fd().as_raw_fd()), token, both)
    }

    pub(crate) fn deregister(&self, registry: &Registry) {
        // It is closed next, which does the same.
        let _ = registry.deregister(&mut SourceFd(&self.stream.as_fd().as_raw_fd()));
    }

    /// Is it that rank's?
    pub(crate) fn is_of(&self, rank: u32) -> bool {
        matches!(self.who, Who::Seat(one) | Who::Rank(one) | Who::Hub(one) if one == rank)
    }

    /// Reads what is there, until there is at least a frame of those that are allowed: whoever sends more waits until they were handled.
    pub(crate) fn fill(&mut self) -> Filled {
        let mut chunk = [0; CHUNK];
        while self.input.len() < self.wanted() {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Filled::Closed,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Filled::All,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Filled::Closed,
            }
        }
        Filled::Some
    }

    /// How much is read before what is there is handled: the frame that it begins with, or some.
    fn wanted(&self) -> usize {
        let announced = self.input.first_chunk::<FRAME_HEAD>();
        let frame = announced.map_or(0, |length| u32::from_le_bytes(*length) as usize);
        (frame.min(self.frame_max()) + FRAME_HEAD).max(CHUNK)
    }

    fn frame_max(&self) -> usize {
        match self.who {
            Who::Stranger { .. } | Who::Seat(_) => HELLO_MAX,
            Who::Rank(_) => UP_MAX,
            Who::Hub(_) | Who::Above(_) => DOWN_MAX,
        }
    }

    /// The next whole frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, Garbage> {
        let max = self.frame_max();
        let Some((body, used)) = split(&self.input, max)? else { return Ok(None) };
        let frame = match self.who {
            Who::Above(_) => Frame::Down(Down::decode(body)?),
            _ => Frame::Up(Up::decode(body)?),
        };
        self.input.drain(..used);
        Ok(Some(frame))
    }

    pub(crate) fn push(&mut self, frame: Arc<[u8]>) {
        self.waiting += frame.len();
        self.output.push_back(frame);
    }

    /// So much waits here that no more is to come.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting > OUTPUT_FULL
    }

    /// Writes what goes. `false`: the connection is broken.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(first) = self.output.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            if self.sent == first.len() {
                self.waiting -= self.sent;
                self.sent = 0;
                self.output.pop_front();
            }
        }
        true
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_stranger_is_read_as_far_as_its_first_frame_may_go_and_a_member_as_far_as_one_of_its() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        // Frames of one byte: none is too long.
        let frames = [1, 0, 0, 0, 7].repeat(CHUNK);
        let mut send = || while sender.write(&frames).is_ok() {};
        send();
        let who = Who::Stranger { until: Instant::now() };
        let mut connection = Connection::new(who, Stream::Tcp(stream));
        let mut most = 0;
        let mut fill = |connection: &mut Connection| {
            let filled = connection.fill();
            most = most.max(connection.input.len());
            filled
        };
        assert_eq!(fill(&mut connection), Filled::Some);
        assert!(connection.input.len() <= HELLO_MAX + FRAME_HEAD + CHUNK);
        connection.who = Who::Rank(0);
        for _ in 0..20 {
            while fill(&mut connection) == Filled::Some {
                connection.input.clear();
            }
            send();
        }
        assert!(most <= UP_MAX + FRAME_HEAD + CHUNK, "{most}");
    }
}
