//! Figures for Prometheus, served over HTTP by a thread of their own.
//!
//! Whoever connects may be anybody, slow or hostile: one request a connection, a head of 4 KiB at most, [`PATIENCE`] for all of it, [`CLIENTS`] at a
//! time, of which the oldest makes room. The daemon is asked at most once in [`FRESH`], whatever they do.

mod request;

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hg_na::{Error, Waiter};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use request::prometheus;
use request::{HEAD_MAX, Request};

/// Connections at a time.
const CLIENTS: usize = 32;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// So long the same figures are given.
const FRESH: Duration = Duration::from_millis(100);
/// How long the daemon's answer is waited for.
const ANSWER: Duration = Duration::from_secs(2);
/// How long nobody is accepted once the kernel has refused, for want of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a client's that are read for nothing after the answer.
const LEFTOVER: usize = 64 << 10;

/// The daemon's half.
#[derive(Debug)]
pub(crate) struct Metrics {
    address: SocketAddr,
    is_asked: Arc<AtomicBool>,
    /// Where the thread waits for answers, and what it ends with.
    answers: Option<(SyncSender<String>, UnixStream)>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Listens, and wakes the daemon when somebody asks.
    ///
    /// # Errors
    /// [`Error::BadSetting`] where it cannot listen there, [`Error::Os`].
    pub(crate) fn serve(at: SocketAddr, daemon: Arc<dyn Waiter>) -> Result<Self, Error> {
        let bad =
            |error| Error::BadSetting { name: "metrics".to_owned(), why: format!("{at}: {error}") };
        let listener = TcpListener::bind(at).map_err(bad)?;
        listener.set_nonblocking(true).map_err(bad)?;
        let address = listener.local_addr().map_err(bad)?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "whoever reaches this port reads the daemon's figures");
        }
        let (alive, ends) = UnixStream::pair().map_err(|error| Error::os("socketpair", error))?;
        let is_asked = Arc::new(AtomicBool::new(false));
        let (answers, answered) = sync_channel(1);
        let desk = Desk { is_asked: Arc::clone(&is_asked), daemon, answered, last: None };
        let server =
            Server { listener, ends, desk, clients: VecDeque::new(), accepts_at: Instant::now() };
        let thread = thread::Builder::new().name("hg-visor metrics".to_owned());
        let thread =
            thread.spawn(move || server.run()).map_err(|error| Error::os("clone", error))?;
        Ok(Self { address, is_asked, answers: Some((answers, alive)), thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells how things are, if somebody has asked.
    #[inline]
    pub(crate) fn answer(&self, status: impl FnOnce() -> String) {
        // Relaxed: who finds nothing does nothing. Acquire: pairs with the store of whoever asks.
        if self.is_asked.load(Ordering::Relaxed)
            && self.is_asked.swap(false, Ordering::Acquire)
            && let Some((answers, _)) = &self.answers
        {
            // One that was not taken is as good.
            let _full = answers.try_send(status());
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.answers = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Where the thread gets the figures.
struct Desk {
    is_asked: Arc<AtomicBool>,
    daemon: Arc<dyn Waiter>,
    answered: Receiver<String>,
    /// What was answered last, and when.
    last: Option<(Instant, Vec<u8>)>,
}

impl Desk {
    fn figures(&mut self) -> Vec<u8> {
        if let Some((when, answer)) = &self.last
            && when.elapsed() < FRESH
        {
            return answer.clone();
        }
        // What came too late for the last question.
        let _late = self.answered.try_recv();
        // Release: pairs with the swap of the daemon.
        self.is_asked.store(true, Ordering::Release);
        self.daemon.wake();
        let answer = match self.answered.recv_timeout(ANSWER) {
            Ok(status) => request::answer("200 OK", &prometheus(&status)),
            Err(_) => request::answer("503 Service Unavailable", "the daemon does not answer\n"),
        };
        self.last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// The thread's.
struct Server {
    listener: TcpListener,
    ends: UnixStream,
    desk: Desk,
    /// The oldest first.
    clients: VecDeque<Client>,
    accepts_at: Instant,
}

impl Server {
    fn run(mut self) {
        loop {
            let Ok(told) = self.wait() else { return };
            if told[0] {
                return;
            }
            let now = Instant::now();
            let mut told = told[2..].iter();
            self.clients.retain_mut(|client| {
                let is_told = told.next().copied().unwrap_or(false);
                now < client.until && (!is_told || client.goes_on(&mut self.desk))
            });
            self.accept(now);
        }
    }

    /// Waits until something can be done: of the end, of the listener, of each client.
    fn wait(&self) -> Result<Vec<bool>, nix::errno::Errno> {
        let now = Instant::now();
        let paused = self.accepts_at > now;
        let listens = if paused { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds: Vec<PollFd<'_>> = vec![
            PollFd::new(self.ends.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), listens),
        ];
        fds.extend(
            self.clients.iter().map(|client| PollFd::new(client.stream.as_fd(), PollFlags::POLLIN)),
        );
        let due = self.clients.iter().map(|client| client.until);
        let due = due.chain(paused.then_some(self.accepts_at)).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            let millis = due.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(fds.iter().map(|fd| fd.any().unwrap_or(true)).collect())
    }

    fn accept(&mut self, now: Instant) {
        if self.accepts_at > now {
            return;
        }
        for _ in 0..CLIENTS {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    if self.clients.len() >= CLIENTS {
                        self.clients.pop_front();
                    }
                    let (until, head) = (now + PATIENCE, Vec::new());
                    self.clients.push_back(Client { stream, until, head, leftover: None });
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.accepts_at = now + PAUSE;
                    return;
                }
            }
        }
    }
}

/// One who has connected. What it still says after the answer is read for nothing, so that closing does not take that from it.
struct Client {
    stream: TcpStream,
    until: Instant,
    head: Vec<u8>,
    /// Bytes that are still read, once it was answered.
    leftover: Option<usize>,
}

impl Client {
    /// Does what can be done without waiting; says whether the connection goes on.
    fn goes_on(&mut self, desk: &mut Desk) -> bool {
        let mut bytes = [0; HEAD_MAX];
        let count = match self.stream.read(&mut bytes) {
            Ok(count) => count,
            Err(error) => {
                return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            }
        };
        if let Some(leftover) = &mut self.leftover {
            *leftover = leftover.saturating_sub(count);
            return count > 0 && *leftover > 0;
        }
        self.head.extend(&bytes[..count]);
        let answer = match request::read(&self.head) {
            Request::Unfinished => return count > 0,
            Request::Metrics => desk.figures(),
            Request::Refused(status) => request::answer(status, ""),
        };
        self.leftover = Some(LEFTOVER);
        // A socket that was sent nothing takes so little at once.
        let sent = self.stream.write_all(&answer);
        sent.and_then(|()| self.stream.shutdown(Shutdown::Write)).is_ok()
    }
}
