//! Connections like Berkeley's sockets over any transport of Hydrargyrum, made for its daemon `hg-visor`: RDMAvisor's `connect`, `listen`, `accept`, `send`, `recv`, `recv_zero_copy`.
//!
//! | Berkeley | here |
//! |---|---|
//! | `socket(AF_UNIX, SOCK_SEQPACKET)` | [`Sockets::over`] a domain of `visor://` (or of any other transport): once a process |
//! | `bind` | the domain's URL (`visor://store`) and the port of [`Sockets::listen`]; [`Sockets::address`] is what others need |
//! | `listen`, `accept` | [`Sockets::listen`], [`Listener::accept`] |
//! | `connect` | [`Sockets::connect`] |
//! | `send`, `recv` | [`Connection::send`], [`Connection::recv`]; into registered memory [`Connection::recv_zero_copy`] |
//! | `O_NONBLOCK`, `SO_RCVTIMEO` | the last argument of each call that waits: [`Duration::ZERO`] does not, `None` has no limit |
//! | `EWOULDBLOCK`, `ETIMEDOUT` | [`Error::TimedOut`] |
//! | a read of 0 bytes, `EPIPE` | [`Error::Closed`]; a message of 0 bytes is a message |
//! | `ECONNREFUSED`, `ECONNRESET` | [`Error::Refused`], [`Error::Gone`] with whose end it was: the peer's or the daemon's |
//! | `close` with `SO_LINGER` | [`Connection::close`]; a drop does not wait |
//! | `SO_PEERCRED` | [`Connection::identity`] |
//!
//! What is sent in one call is received in one call, whole and in order, as with `SOCK_SEQPACKET`; a message for which there is no room
//! stays, and the error says how long it is. A peer that does not receive is sent 256 KiB, or 16 messages of memory that it is to fetch; then
//! `send` waits, and no other connection does.
//!
//! # How a message travels
//! What fits in a frame (16 KiB) is sent. For what is longer the sender's copy lies in registered memory until the receiver asks for the
//! message; then the receiver reads it, or the sender writes it where the receiver wants it: whoever has less to do, and the receiver where
//! both are alike ([`choose`]). [`Flags`] pin it. With a card, who reads or writes is the one whose processor works and
//! the other is spared. Over `tcp` nobody is: daemons carry the bytes either way, and the choice says only whose request begins the
//! transfer, and whose library has to be called to end it.
//!
//! ```
//! use hg_na::{Address, OpenOptions, Plugin as _};
//! use hg_sockets::{Error, Flags, Sockets};
//!
//! // `visor://` goes through the daemon; this is inside of a node, where none is needed.
//! let domain = hg_na_sm::SmPlugin.open(&Address::new("sm://")?, &OpenOptions::listening())?;
//! let server = Sockets::over(domain)?;
//! let (listener, address) = (server.listen(7, 16)?, server.address().clone());
//! let serves = std::thread::spawn(move || {
//!     let connection = listener.accept(Flags::RC, None)?;
//!     let mut bytes = [0; 64];
//!     let len = connection.recv(&mut bytes, Flags::empty(), None)?;
//!     connection.send(&bytes[..len], Flags::empty(), None)?;
//!     connection.close(None)
//! });
//!
//! let domain = hg_na_sm::SmPlugin.open(&Address::new("sm://")?, &OpenOptions::default())?;
//! let connection = Sockets::over(domain)?.connect(&address, 7, Flags::RC, None)?;
//! connection.send(b"hello", Flags::empty(), None)?;
//! let mut answer = [0; 64];
//! assert_eq!(connection.recv(&mut answer, Flags::empty(), None)?, 5);
//! // The server's `close` ends when this side has heard of it, in a call of its own.
//! let closed = connection.recv(&mut answer, Flags::empty(), None);
//! assert!(matches!(closed, Err(Error::Closed)));
//! serves.join().expect("it does not panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! Everything may be used by any thread, each connection by several. There is no thread of the library's own: whoever waits in a call makes
//! progress for all, and sleeps at once where nothing has come. So memory that was offered is moved while its sender is in some call, and where the way to a peer was full,
//! what was sent leaves then; [`Connection::close`] waits for both.
//!
//! # Cleanup
//! A dropped connection is closed, and what was sent before can be received as long as this process makes calls; who ends instead closes first.
//! A dropped listener closes what was not accepted. When a daemon has gone each connection says so; new ones go through its successor.

#![forbid(unsafe_code)]

mod choice;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use choice::Load;
pub use choice::{Flags, Operation, choose};
use hg_na::{
    Address, Completion, Context, Domain, GoneReason, Identity, Memory, Region, Rejected, Rights,
    Waiter,
};
use table::{Item, Key, Landing, OFFER_COST, Table, cost_of};
use wire::HEADER_LEN;

/// Longest message that is sent in a frame: of what is longer, one copy is saved.
const FRAME_MAX: usize = 16 << 10;

/// Why a call did not do what it was to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not within the time that it was given; nothing is lost, and it may be tried again.
    #[error("not within the time that it was given")]
    TimedOut,
    /// The buffer is too short for the next message, which stays.
    #[error("the next message has {len} bytes, and the buffer {room}")]
    NoRoom {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the buffer.
        room: u64,
    },
    /// The message is too long for what is pinned, or for the transport.
    #[error("a message of {len} bytes, where {max} can travel like this")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// Bytes that can.
        max: u64,
    },
    /// The peer has closed the connection, in good order.
    #[error("the peer has closed the connection")]
    Closed,
    /// There was nothing to connect to.
    #[error("the connection was refused: {0}")]
    Refused(&'static str),
    /// The peer's process, its daemon, or the one of this node has ended, or the way between.
    #[error("the peer is gone: {0}")]
    Gone(GoneReason),
    /// A message could not be fetched; the connection is of no use any more.
    #[error("the peer could not deliver a message: {0}")]
    Broken(Arc<str>),
    /// Another listener of this process has the port.
    #[error("port {0} is in use")]
    PortInUse(u32),
    /// The transport refuses.
    #[error(transparent)]
    Transport(hg_na::Error),
}

impl From<hg_na::Error> for Error {
    fn from(error: hg_na::Error) -> Self {
        match error {
            hg_na::Error::PeerGone(reason) => Self::Gone(reason),
            other => Self::Transport(other),
        }
    }
}

/// An endpoint: everything goes through one context of a transport.
#[derive(Debug, Clone)]
pub struct Sockets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    domain: Arc<dyn Domain>,
    address: Address,
    waiter: Arc<dyn Waiter>,
    state: Mutex<State>,
    moved: Condvar,
    /// Longest message that is sent.
    message_max: usize,
}

#[derive(Debug)]
struct State {
    context: Box<dyn Context>,
    table: Table,
    load: Load,
    batch: Vec<Completion>,
    /// A thread sleeps for all; so many wait for what it finds.
    is_driven: bool,
    waiting: usize,
}

/// A port where connections come in.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    port: u32,
}

/// A connection: messages in both directions.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    key: Key,
    flags: Flags,
}

/// Memory of the application's where messages land without another copy.
#[derive(Debug)]
pub struct Registered {
    region: Region,
    memory: Arc<Memory>,
}

impl Sockets {
    /// Over context 0 of a domain, which has to be opened as listening where others are to connect.
    ///
    /// # Errors
    /// Those of the transport; [`hg_na::Error::Unsupported`] for one without transfers between memories.
    pub fn over(domain: Arc<dyn Domain>) -> Result<Self, Error> {
        let caps = domain.caps();
        if !caps.one_sided {
            return Err(hg_na::Error::Unsupported("transfers between memories").into());
        }
        let message_max = caps.max_unexpected.min(FRAME_MAX) - HEADER_LEN;
        let context = domain.context(0)?;
        let (address, waiter) = (context.address().clone(), context.waiter());
        let state = State {
            context,
            table: Table::default(),
            load: Load::default(),
            batch: Vec::new(),
            is_driven: false,
            waiting: 0,
        };
        let (state, moved) = (Mutex::new(state), Condvar::new());
        Ok(Self(Arc::new(Shared { domain, address, waiter, state, moved, message_max })))
    }

    /// What others connect to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Listens at a port; `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// [`Error::PortInUse`].
    pub fn listen(&self, port: u32, backlog: usize) -> Result<Listener, Error> {
        let is_free = self.0.state().table.listen(port, backlog);
        let listener = || Listener { shared: Arc::clone(&self.0), port };
        is_free.then(listener).ok_or(Error::PortInUse(port))
    }

    /// Connects to a port of whoever has this address. The flags count for each call of the connection that pins nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Gone`], [`Error::TimedOut`], [`Error::Transport`].
    pub fn connect(
        &self,
        to: &Address,
        port: u32,
        flags: Flags,
        within: Option<Duration>,
    ) -> Result<Connection, Error> {
        let mut state = self.0.state();
        let peer = state.context.lookup(to)?;
        let key = state.table.connect(peer, port);
        state.flush();
        drop(state);
        let connection = Connection { shared: Arc::clone(&self.0), key, flags };
        self.0.wait(within, |state| {
            let link = state.table.links.get(&key)?;
            // One that was closed since was there, and what came before can be received.
            link.is_open.then_some(Ok(())).or(link.end.clone().map(Err))
        })?;
        Ok(connection)
    }

    /// Memory for [`Connection::recv_zero_copy`].
    ///
    /// # Errors
    /// Those of [`Domain::register`]; [`hg_na::Error::Denied`] for memory that cannot be written.
    pub fn register(&self, memory: impl Into<Memory>) -> Result<Registered, Error> {
        let memory = Arc::new(memory.into());
        let region = self.0.domain.register(Memory::alias(&memory), Rights::WRITE)?;
        Ok(Registered { region, memory })
    }
}

impl Registered {
    /// Copies bytes out.
    ///
    /// # Errors
    /// [`hg_na::Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.region.read(offset, into)?)
    }

    /// The memory again, if nothing else has a share of it: no message lands there.
    #[must_use]
    pub fn into_memory(self) -> Option<Memory> {
        drop(self.region);
        Arc::into_inner(self.memory)
    }
}

impl Listener {
    /// The next connection. The flags are as with [`Sockets::connect`].
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Transport`].
    pub fn accept(&self, flags: Flags, within: Option<Duration>) -> Result<Connection, Error> {
        let key = self.shared.wait(within, |state| state.table.accept(self.port).map(Ok))?;
        Ok(Connection { shared: Arc::clone(&self.shared), key, flags })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.table.unlisten(self.port);
        state.flush();
    }
}

impl Connection {
    /// Sends a message. It is handed over when this returns, and the bytes may be used again.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and nothing was sent; [`Error::TooLong`], [`Error::Closed`], [`Error::Gone`], [`Error::Transport`].
    pub fn send(&self, bytes: &[u8], flags: Flags, within: Option<Duration>) -> Result<(), Error> {
        let (shared, key) = (&self.shared, self.key);
        let (flags, len, message_max) = (flags.or(self.flags), bytes.len(), shared.message_max);
        match choose(len, message_max, flags, [0, 0]) {
            None => return Err(Error::TooLong { len, max: message_max as u64 }),
            Some(Operation::Send) => {
                return shared.wait(within, |state| state.send(key, bytes).transpose());
            }
            Some(Operation::Read | Operation::Write) => {}
        }
        let max = shared.domain.caps().max_transfer;
        if len as u64 > max {
            return Err(Error::TooLong { len, max });
        }
        let mut region = Some(shared.domain.register(bytes.to_vec().into(), Rights::READ)?);
        shared.wait(within, |state| match state.table.may_send(key, OFFER_COST) {
            Ok(false) => None,
            Err(error) => Some(Err(error)),
            Ok(true) => {
                let load = state.load.percent();
                let region = region.take()?;
                state.table.offer(key, region, flags, load);
                Some(Ok(()))
            }
        })
    }

    /// Receives the next message into a buffer, and says how long it is.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: a message that has begun to come goes on, and is received next time. [`Error::NoRoom`], [`Error::Closed`] once
    /// all that was sent before was received, [`Error::Gone`], [`Error::Broken`], [`Error::Transport`].
    pub fn recv(
        &self,
        into: &mut [u8],
        flags: Flags,
        within: Option<Duration>,
    ) -> Result<usize, Error> {
        match self.receive(None, into.len() as u64, flags, within)? {
            (Item::Bytes(frame), _) => {
                let bytes = &frame.as_slice()[HEADER_LEN..];
                into[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            }
            (item, landing) => {
                let len = usize::try_from(item.len()).expect("as long as the buffer at most");
                landing.map_or(Ok(()), |it| it.region.read(0, &mut into[..len]))?;
                Ok(len)
            }
        }
    }

    /// The same into registered memory, from its first byte on: what is read or written by a transfer lands there. After
    /// [`Error::TimedOut`] it may still do so.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn recv_zero_copy(
        &self,
        into: &Registered,
        flags: Flags,
        within: Option<Duration>,
    ) -> Result<u64, Error> {
        let (item, landing) = self.receive(Some(into), into.region.len(), flags, within)?;
        match (&item, landing) {
            (Item::Bytes(frame), _) => into.region.write(0, &frame.as_slice()[HEADER_LEN..])?,
            // It had begun to come when another call received.
            (_, Some(landing)) if !Arc::ptr_eq(&landing.memory, &into.memory) => {
                let mut bytes = vec![0; usize::try_from(item.len()).unwrap_or(0)];
                landing.region.read(0, &mut bytes)?;
                into.region.write(0, &bytes)?;
            }
            _ => {}
        }
        Ok(item.len())
    }

    fn receive(
        &self,
        into: Option<&Registered>,
        room: u64,
        flags: Flags,
        within: Option<Duration>,
    ) -> Result<(Item, Option<Landing>), Error> {
        let flags = flags.or(self.flags);
        self.shared.wait(within, |state| {
            state.receive((&self.shared, self.key), (into, room), flags).transpose()
        })
    }

    /// Closes it in good order: waits until the peer's process has everything that was sent, and its application the
    /// messages that it fetches.
    ///
    /// # Errors
    /// [`Error::TimedOut`] and [`Error::Gone`]: it may not have.
    pub fn close(self, within: Option<Duration>) -> Result<(), Error> {
        let key = self.key;
        let mut state = self.shared.state();
        state.table.finish(key);
        state.flush();
        drop(state);
        self.shared.wait(within, |state| {
            let link = state.table.links.get(&key)?;
            match &link.end {
                Some(Error::Closed) | None => {
                    (link.is_heard && link.offers.is_empty()).then_some(Ok(()))
                }
                Some(error) => Some(Err(error.clone())),
            }
        })
    }

    /// Who is at the other end, as far as the kernel and the daemon vouch for it.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.shared.state().context.identity(self.key.0)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.table.leave(self.key);
        state.flush();
    }
}

impl State {
    /// Sends a message in a frame; `None`: there is no room now.
    fn send(&mut self, key: Key, bytes: &[u8]) -> Result<Option<()>, Error> {
        if !self.table.may_send(key, cost_of(bytes.len()))? {
            return Ok(None);
        }
        let mut frame = self.context.message(key.0, HEADER_LEN + bytes.len())?;
        frame.as_mut_slice()[HEADER_LEN..].copy_from_slice(bytes);
        self.table.send(key, frame);
        Ok(Some(()))
    }

    /// Takes the next message, or sees to it that it comes.
    fn receive(
        &mut self,
        (shared, key): (&Shared, Key),
        (into, room): (Option<&Registered>, u64),
        flags: Flags,
    ) -> Result<Option<(Item, Option<Landing>)>, Error> {
        let link = self.table.links.get_mut(&key).ok_or(Error::Closed)?;
        let Some(item) = link.inbox.front() else { return link.end.clone().map_or(Ok(None), Err) };
        let len = item.len();
        if len > room {
            return Err(Error::NoRoom { len, room });
        }
        match (item, link.landing.as_ref().map(|it| &it.result)) {
            (Item::Bytes(_), _) | (_, Some(Some(Ok(())))) => Ok(self.table.taken(key)),
            (_, Some(Some(Err(error)))) => Err(link.end.insert(error.clone()).clone()),
            (Item::Offer { flags: pinned, load, .. }, landing) => {
                if let Some(end @ (Error::Gone(_) | Error::Broken(_))) = &link.end {
                    return Err(end.clone());
                }
                if landing.is_none() {
                    let pinned = pinned.narrowed(flags) - Flags::SEND;
                    let chosen = choose(usize::MAX, 0, pinned, [*load, self.load.percent()]);
                    let fresh = || Arc::new(vec![0; usize::try_from(len).unwrap_or(0)].into());
                    let memory = into.map_or_else(fresh, |into| Arc::clone(&into.memory));
                    let region = shared.domain.register(Memory::alias(&memory), Rights::WRITE)?;
                    let is_written = chosen == Some(Operation::Write);
                    self.table.land(key, (region, memory), is_written)?;
                }
                Ok(None)
            }
        }
    }

    /// One round of the transport; says whether anything has come.
    fn round(&mut self) -> Result<bool, Error> {
        let mut batch = std::mem::take(&mut self.batch);
        let found = self.context.progress(Instant::now(), &mut batch)?;
        for completion in batch.drain(..) {
            match completion {
                Completion::Unexpected { from, message } => {
                    if let Err(wrong) = self.table.handle(from, message) {
                        self.table.gone(from, &GoneReason::Misbehaved(wrong.into()));
                        self.context.forget(from);
                    }
                }
                Completion::Done(done) => {
                    self.table.ended(done.token, done.result.map_err(|failure| failure.error));
                }
                Completion::Room { peer } => self.table.has_room(peer),
                Completion::Gone { peer, reason } => self.table.gone(peer, &reason),
                _ => {}
            }
        }
        self.batch = batch;
        self.flush();
        Ok(found)
    }

    /// Posts what waits, as far as it is taken.
    fn flush(&mut self) {
        while let Some((token, op)) = self.table.next_op() {
            match self.context.post(token, op) {
                Ok(_) => {}
                Err(Rejected { op, error: hg_na::Error::Again }) => self.table.put_back(token, op),
                Err(Rejected { error, .. }) => self.table.ended(token, Err(error)),
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is an answer. Whoever comes first sleeps for all.
    fn wait<T>(
        &self,
        within: Option<Duration>,
        mut answer: impl FnMut(&mut State) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let end = within.and_then(|within| Instant::now().checked_add(within));
        let (mut state, mut has_looked) = (self.state(), false);
        loop {
            let mut answered = answer(&mut state);
            state.flush();
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let is_late = left == Some(Duration::ZERO);
            if answered.is_none() && is_late && std::mem::replace(&mut has_looked, is_late) {
                answered = Some(Err(Error::TimedOut));
            }
            let mut found = false;
            if answered.is_none() && !state.is_driven {
                match state.round() {
                    Ok(any) => found = any,
                    Err(error) => answered = Some(Err(error)),
                }
            }
            if (found || answered.is_some() && !state.is_driven) && state.waiting > 0 {
                // Something has come, or another one has to sleep for all.
                self.moved.notify_all();
            }
            if let Some(answered) = answered {
                return answered;
            }
            if !found && !is_late {
                state = self.sleep(state, left);
            }
        }
    }

    /// Sleeps for all, or waits for who does.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        if state.is_driven {
            state.waiting += 1;
            let woken = self.moved.wait_timeout(state, left.unwrap_or(Duration::MAX));
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        } else if state.context.may_sleep() {
            state.is_driven = true;
            let due = state.context.next_deadline();
            drop(state);
            let due = due.map(|due| due.saturating_duration_since(Instant::now()));
            // What makes the context useless, the next round says.
            let _useless = self.waiter.wait([due, left].into_iter().flatten().min());
            state = self.state();
            state.is_driven = false;
        }
        state
    }
}
