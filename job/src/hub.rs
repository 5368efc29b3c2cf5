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
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use mio::{Poll, Token, Waker};

use crate::{
    error::Error,
    frame::{Broken, Hello},
    meeting::Published,
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
    pub door: Option<Door>,
    /// Ranks that are known before they speak.
    pub seats: Vec<Seat>,
    /// Told, in the hub's thread, when the ranks cannot work together any more; and of an abort that comes after another reason.
    pub on_broken: OnBroken,
}

/// A port that ranks connect to.
pub(crate) struct Door {
    pub listener: TcpListener,
    /// Where they find it: taken away when all are there, or when the hub ends.
    pub published: Option<Published>,
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

pub(crate) type OnBroken = Box<dyn FnMut(&Broken) + Send>;

/// A running hub. Ends by itself when every rank has left; dropping it cuts the rest off.
#[derive(Debug)]
pub(crate) struct Running {
    thread: Option<JoinHandle<()>>,
    handle: Handle,
}

/// Cuts a hub off from elsewhere, and waits for its end.
#[derive(Debug, Clone)]
pub(crate) struct Handle(Arc<Control>);

#[derive(Debug)]
struct Control {
    waker: Waker,
    stop: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// Says so when the hub's thread ends, however it does.
struct Ending(Handle);

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
        let (stop, ended, changed) = Default::default();
        let handle = Handle(Arc::new(Control { waker, stop, ended, changed }));
        let server = serve::Server::new(poll, config, handle.clone())?;
        let thread = std::thread::Builder::new().name("hg-job-hub".into());
        let ending = Ending(handle.clone());
        let thread = thread.spawn(move || {
            let _ending = ending;
            server.run();
        });
        let thread = Some(thread.map_err(Error::os("a thread"))?);
        Ok(Self { thread, handle })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until every rank has left or gone; `false`: not within that time.
    pub(crate) fn wait(self, within: Duration) -> bool {
        self.handle.wait(within)
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
        self.handle.stop();
        self.join();
    }
}

impl Handle {
    /// Waits until those who were told why the job is broken have heard it and gone, for at most so long: this process may end
    /// then.
    pub(crate) fn part(&self) {
        self.stop();
        self.wait(serve::FAREWELL);
    }

    fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        // If it cannot be woken, it looks once a second.
        let _ = self.0.waker.wake();
    }

    fn wait(&self, within: Duration) -> bool {
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.changed.wait_timeout_while(ended, within, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Control { ended, changed, .. } = &*self.0.0;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}
