//! Without a descriptor for one more connection: who comes waits in the kernel's backlog for [`PATIENCE`], since some may be closed
//! meanwhile. Then it is accepted in the place of a descriptor that is kept for that, and refused in words: otherwise nobody
//! would tell it why it waits.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::Shutdown,
    time::Instant,
};

use hg_na_link::strangers::PATIENCE;
use hg_na_parts::limits::{is_shortage, nofile};
use mio::net::{TcpListener, TcpStream};
use socket2::{Domain, Socket, Type};

use crate::greeting::Greeting;

#[derive(Debug)]
pub(crate) struct Shortage {
    reserve: Option<Socket>,
    /// Nothing was accepted since.
    since: Option<Instant>,
    refused: u64,
}

/// What became of whoever comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It was told.
    Refused,
    /// There is nobody.
    Nobody,
    /// It is to wait for better times.
    Waits,
}

impl Shortage {
    /// There is none.
    pub(crate) fn new(listens: bool) -> Self {
        let reserve = if listens { spare() } else { None };
        Self { reserve, since: None, refused: 0 }
    }

    /// Something was accepted.
    pub(crate) fn is_over(&mut self) {
        if self.since.take().is_some() && self.reserve.is_none() {
            self.reserve = spare();
        }
    }

    /// Refuses the next connection, after `error` of `accept`, once it has lasted.
    pub(crate) fn refuse_next(
        &mut self,
        listener: &TcpListener,
        error: &io::Error,
        now: Instant,
    ) -> Next {
        let since = *self.since.get_or_insert(now);
        let has_lasted = now.saturating_duration_since(since) >= PATIENCE;
        if !is_shortage(error) || !has_lasted || self.reserve.take().is_none() {
            return Next::Waits;
        }
        let next = match listener.accept() {
            Ok((stream, _)) => {
                self.refuse(stream, error);
                Next::Refused
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Next::Nobody,
            Err(_) => Next::Waits,
        };
        // The refused one is closed by now, and its place free, unless another thread took it.
        self.reserve = spare();
        next
    }

    /// The sentence is a courtesy: a peer that does not take it sees the hang-up.
    fn refuse(&mut self, mut stream: TcpStream, error: &io::Error) {
        let sentence = format!(
            "it can take no further connection ({error}; its RLIMIT_NOFILE is {}): raise what it lacks there, or connect fewer peers",
            nofile()
        );
        // What is left unread would have the kernel reset the connection.
        let _greeting = stream.read(&mut [0; 2048]);
        let _written = stream.write(&Greeting::Refuse(sentence).encode());
        let _shut = stream.shutdown(Shutdown::Write);
        self.refused += 1;
        if self.refused.is_power_of_two() {
            tracing::warn!(refused = self.refused, "connections are refused for now: {error}");
        }
    }
}

/// A descriptor that is good for nothing else.
fn spare() -> Option<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, None).ok()
}
