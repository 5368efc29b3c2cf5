//! A hub: one thread that holds the connections of ranks, and of other hubs. It runs in rank 0 and in each other rank that heads
//! some, or in the runner.

mod connection;
mod serve;
pub(crate) mod state;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mio::{Poll, Token, Waker};

use crate::{
    error::Error,
    frame::{Broken, Hello},
    notice::Notice,
};

/// What a hub is made of.
pub(crate) struct Config {
    pub hub: state::Hub,
    /// The connection to the hub above.
    pub above: Option<Above>,
    /// Until when ranks may join.
    pub deadline: Instant,
    /// Told when some take long to do so.
    pub notice: Notice,
    /// Where ranks come from.
    pub listener: Option<TcpListener>,
    /// Ranks that are known before they speak.
    pub seats: Vec<Seat>,
    /// Told once, in the hub's thread, when the ranks cannot work together any more.
    pub on_broken: OnBroken,
}

/// The way to the hub above.
pub(crate) struct Above {
    /// Whose hub that is.
    pub rank: u32,
    pub stream: TcpStream,
    /// What is said there first.
    pub hello: Hello,
}

/// A connection that was made for a rank.
pub(crate) struct Seat {
    pub rank: u32,
    pub stream: UnixStream,
    /// The end of its process (`pidfd_open`), where this one is its parent and the system has such descriptors: what the
    /// process forks before it joins has a copy of the connection, so that no hang-up tells.
    pub process: Option<OwnedFd>,
}

pub(crate) type OnBroken = Box<dyn FnOnce(&Broken) + Send>;

/// A running hub. Ends by itself when every rank has left; dropping it cuts the rest off.
#[derive(Debug)]
pub(crate) struct Running {
    thread: Option<JoinHandle<()>>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    /// Hangs up when the thread ends.
    ended: Receiver<()>,
}

pub(crate) const WAKER: Token = Token(usize::MAX);
pub(crate) const LISTENER: Token = Token(usize::MAX - 1);
/// And above, up to those two: a rank's process has ended. Below: a connection.
pub(crate) const ENDS: usize = usize::MAX / 2;

impl Running {
    pub(crate) fn start(config: Config) -> Result<Self, Error> {
        let prepare = || -> io::Result<(Poll, Waker)> {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), WAKER)?;
            Ok((poll, waker))
        };
        let (poll, waker) = prepare().map_err(Error::os("an epoll set"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = serve::Server::new(poll, config, Arc::clone(&stop))?;
        let thread = std::thread::Builder::new().name("hg-job-hub".into());
        let (alive, ended): (Sender<()>, _) = channel();
        let thread = thread.spawn(move || {
            server.run();
            drop(alive);
        });
        let thread = Some(thread.map_err(Error::os("a thread"))?);
        Ok(Self { thread, waker, stop, ended })
    }

    /// Waits until every rank has left or gone; `false`: not within that time.
    pub(crate) fn wait(self, within: Duration) -> bool {
        self.ended.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed, and its ranks see their connections end.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // If it cannot be woken, it looks once a second.
        let _ = self.waker.wake();
        self.join();
    }
}
