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
    frame::{Garbage, HELLO_MAX, UP_MAX, Up, split},
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
    /// No more is read, and it ends when the output has gone.
    pub closing: bool,
}

/// How much is read at once.
const CHUNK: usize = 64 << 10;

impl Connection {
    /// Its stream must not block.
    pub(crate) fn new(who: Who, stream: Stream) -> Self {
        let kept = NotInherited::new(stream.as_fd());
        let (input, output) = Default::default();
        Self { who, _kept: kept, stream, input, output, sent: 0, closing: false }
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
        matches!(self.who, Who::Seat(one) | Who::Rank(one) if one == rank)
    }

    /// Reads what is there. `false`: the other end has closed.
    pub(crate) fn fill(&mut self) -> bool {
        let mut chunk = [0; CHUNK];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.input.len() > UP_MAX + CHUNK && self.oversized() {
                return false;
            }
        }
    }

    /// Would its first frame be refused for its length?
    fn oversized(&self) -> bool {
        split(&self.input, self.frame_max()).is_err()
    }

    fn frame_max(&self) -> usize {
        match self.who {
            Who::Stranger { .. } | Who::Seat(_) => HELLO_MAX,
            Who::Rank(_) => UP_MAX,
        }
    }

    /// The next whole frame.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Up>, Garbage> {
        let max = self.frame_max();
        let Some((body, used)) = split(&self.input, max)? else { return Ok(None) };
        let up = Up::decode(body)?;
        self.input.drain(..used);
        Ok(Some(up))
    }

    pub(crate) fn push(&mut self, frame: Arc<[u8]>) {
        self.output.push_back(frame);
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
