//! What drives the hub's state machine: sockets, the clock, one thread.
//!
//! Strangers who connect and say nothing, or garbage, lose their connection and do nobody harm.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpListener, unix::SourceFd};
use slab::Slab;

use super::{
    Above, Config, Door, ENDS, Handle, LISTENER, OnBroken, Seat, WAKER,
    connection::{Connection, Filled, Frame, Who},
    state::{Effect, Hub},
};
use crate::{
    error::{Error, Ranks},
    frame::{Down, Hello, Up},
    host,
    meeting::Published,
    notice::Notice,
    stream::Stream,
    tree::SOCKETS_MAX,
};

/// A stranger says who it is within this time.
const GREETING: Duration = Duration::from_secs(10);
/// The longest sleep: deadlines of strangers are looked at this often.
const TICK: Duration = Duration::from_secs(1);
/// What is left to say when the hub ends is said within this time.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// Strangers at a time, beyond the ranks that are still awaited; more make the first ones go. With all that a process of the tree has
/// for the job these are 64 sockets.
const STRANGERS_MAX: usize = 64 - SOCKETS_MAX as usize;

pub(super) struct Server {
    poll: Poll,
    hub: Hub,
    listener: Option<TcpListener>,
    /// Where ranks that have not joined find this hub.
    published: Option<Published>,
    connections: Slab<Connection>,
    /// Watched until the hub ends.
    processes: Vec<OwnedFd>,
    /// The connection of each child.
    places: Vec<Option<usize>>,
    /// That to the hub above.
    above: Option<usize>,
    deadline: Option<Instant>,
    notice: Notice,
    on_broken: OnBroken,
    /// Of the reasons why the job is broken, how many it was told.
    told: usize,
    handle: Handle,
}

impl Server {
    pub(super) fn new(poll: Poll, config: Config, handle: Handle) -> Result<Self, Error> {
        let Config { hub, above, deadline, notice, door, seats, on_broken } = config;
        let children = hub.child_ranks().count();
        host::allow_descriptors(children as u64 + 128);
        let mut server = Self {
            poll,
            hub,
            listener: None,
            published: None,
            connections: Slab::new(),
            processes: Vec::new(),
            places: vec![None; children],
            above: None,
            deadline: Some(deadline),
            notice,
            on_broken,
            told: 0,
            handle,
        };
        if let Some(Door { listener, published }) = door {
            server.published = published;
            listener.set_nonblocking(true).map_err(Error::os("a listening socket"))?;
            let mut listener = TcpListener::from_std(listener);
            let registry = server.poll.registry();
            registry
                .register(&mut listener, LISTENER, Interest::READABLE)
                .map_err(Error::os("epoll"))?;
            server.listener = Some(listener);
        }
        for seat in seats {
            server.seat(seat)?;
        }
        above.map_or(Ok(()), |above| server.connect(above))?;
        Ok(server)
    }

    fn connect(&mut self, above: Above) -> Result<(), Error> {
        above.stream.set_nonblocking(true).map_err(Error::os("a socket"))?;
        let mut connection = Connection::new(Who::Above(above.rank), Stream::Tcp(above.stream));
        connection.push(Up::Hello(above.hello).encode().into());
        self.above = Some(self.add(connection).map_err(Error::os("epoll"))?);
        Ok(())
    }

    fn seat(&mut self, seat: Seat) -> Result<(), Error> {
        let Seat { rank, stream, process } = seat;
        stream.set_nonblocking(true).map_err(Error::os("a socket"))?;
        let connection = Connection::new(Who::Seat(rank), Stream::Unix(stream));
        let _ = self.add(connection).map_err(Error::os("epoll"))?;
        if let Some(process) = &process {
            let mut source = SourceFd(&process.as_raw_fd());
            let token = Token(ENDS + rank as usize);
            let registry = self.poll.registry();
            registry
                .register(&mut source, token, Interest::READABLE)
                .map_err(Error::os("epoll"))?;
        }
        self.processes.extend(process);
        Ok(())
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        while !self.hub.is_over() && !self.handle.is_stopped() {
            self.round(&mut events);
        }
        // Stopped, or with ranks that are gone, it is lost itself.
        if self.hub.is_over() && self.hub.broken().is_none() {
            self.send(self.above, &Up::Bye.encode().into());
        }
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until && self.connections.iter().any(|(_, one)| self.is_needed(one))
        {
            self.round(&mut events);
        }
    }

    /// A connection that is closed with something unread takes with it what was sent last: so whoever was told why the job is
    /// broken hangs up first. This process itself waits for nobody here.
    fn is_needed(&self, one: &Connection) -> bool {
        let is_other =
            matches!(one.who, Who::Rank(rank) | Who::Hub(rank) if rank != self.hub.head());
        !one.is_flushed() || (is_other && self.hub.broken().is_some())
    }

    fn round(&mut self, events: &mut Events) {
        let now = Instant::now();
        let notice = self.notice.at().filter(|_| self.deadline.is_some());
        let until = self.deadline.into_iter().chain(notice).min();
        let left = until.map_or(TICK, |until| until.saturating_duration_since(now));
        // Interrupted: the next round sleeps again.
        let _ = self.poll.poll(events, Some(left.min(TICK)));
        for event in events.iter() {
            match event.token() {
                WAKER => {}
                LISTENER => self.accept(),
                Token(end) if end >= ENDS => self.end(end - ENDS),
                Token(key) => self.serve(key),
            }
        }
        if events.is_empty() {
            // Descriptors may have run out when the last one knocked.
            self.accept();
        }
        self.look_at_the_clock(Instant::now());
        self.carry_out();
    }

    fn look_at_the_clock(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.hub.handle_deadline();
        }
        if self.deadline.is_some() {
            let (hub, size) = (&self.hub, self.places.len());
            self.notice.look(|| {
                let awaited = Ranks(hub.awaited().collect());
                format!("{awaited} of {size} did not join yet: still waiting")
            });
        }
        let is_late = |one: &Connection| matches!(one.who, Who::Stranger { until } if until <= now);
        let late: Vec<usize> =
            self.connections.iter().filter(|(_, one)| is_late(one)).map(|(key, _)| key).collect();
        for key in late {
            self.remove(key);
        }
    }

    fn accept(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            // Out of descriptors, or nobody there: the next event, or the next tick.
            let Ok((stream, _)) = listener.accept() else { return };
            let stream = std::net::TcpStream::from(stream);
            host::keep_alive(&stream);
            let until = Instant::now() + GREETING;
            if self.connections.len() >= self.places.len() + STRANGERS_MAX {
                self.part_with_a_stranger();
            }
            let _ = self.add(Connection::new(Who::Stranger { until }, Stream::Tcp(stream)));
        }
    }

    /// The one who has said nothing for longest makes room: a rank says at once who it is.
    fn part_with_a_stranger(&mut self) {
        let silence = |(key, one): (usize, &Connection)| match one.who {
            Who::Stranger { until } => Some((until, key)),
            Who::Seat(_) | Who::Rank(_) | Who::Hub(_) | Who::Above(_) => None,
        };
        let Some((_, key)) = self.connections.iter().filter_map(silence).min() else { return };
        // What it has said may have come since this round began.
        self.serve(key);
        if self.connections.get(key).is_some_and(|one| matches!(one.who, Who::Stranger { .. })) {
            self.remove(key);
        }
    }

    fn add(&mut self, connection: Connection) -> std::io::Result<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        connection.register(self.poll.registry(), Token(key))?;
        entry.insert(connection);
        Ok(key)
    }

    fn serve(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mut is_open = connection.flush();
        self.tell_room(key);
        let Some(connection) = self.connections.get(key) else { return };
        if !connection.closing {
            is_open &= self.read(key);
        }
        let is_done = |one: &Connection| one.closing && one.is_flushed();
        if !is_open || self.connections.get(key).is_some_and(is_done) {
            self.remove(key);
        }
    }

    /// Reads and handles whatever is there. `false`: the connection has to go.
    fn read(&mut self, key: usize) -> bool {
        loop {
            self.carry_out();
            let Some(connection) = self.connections.get_mut(key) else { return true };
            // A rank that takes no answers asks no more; it is read again when it has taken some.
            if matches!(connection.who, Who::Rank(_)) && connection.is_full() {
                return true;
            }
            let filled = connection.fill();
            if !self.take_frames(key) || filled == Filled::Closed {
                return false;
            }
            let is_closing = self.connections.get(key).is_none_or(|one| one.closing);
            if filled == Filled::All || is_closing {
                return true;
            }
        }
    }

    /// A rank's process has ended: what it said is there to be read, and no more will come, whoever holds its socket.
    fn end(&mut self, rank: usize) {
        let is_its = |one: &Connection| u32::try_from(rank).is_ok_and(|rank| one.is_of(rank));
        let found = self.connections.iter().find(|(_, one)| is_its(one));
        if let Some((key, _)) = found {
            self.serve(key);
            self.remove(key);
        }
    }

    /// `false`: the connection has to go.
    fn take_frames(&mut self, key: usize) -> bool {
        loop {
            let connection = &mut self.connections[key];
            let who = connection.who;
            let frame = match connection.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let is_well = match (who, frame) {
                (Who::Rank(rank) | Who::Hub(rank), Frame::Up(up)) => self.hub.handle(rank, up),
                (Who::Above(_), Frame::Down(down)) => self.hub.handle_above(down),
                (Who::Seat(rank), Frame::Up(Up::Hello(hello))) if hello.rank != rank => Err(()),
                (Who::Seat(_) | Who::Stranger { .. }, Frame::Up(Up::Hello(hello))) => {
                    self.greet(key, hello);
                    Ok(())
                }
                _ => Err(()),
            };
            if is_well.is_err() {
                return false;
            }
            if self.connections.get(key).is_none_or(|one| one.closing) {
                return true;
            }
        }
    }

    fn greet(&mut self, key: usize, hello: Hello) {
        match self.hub.handle_hello(hello) {
            Ok(rank) => {
                let is_hub = self.hub.is_hub(rank);
                self.connections[key].who = if is_hub { Who::Hub(rank) } else { Who::Rank(rank) };
                if let Some(place) = self.hub.place_of(rank) {
                    self.places[place] = Some(key);
                }
            }
            Err(why) => self.refuse(key, why),
        }
        self.carry_out();
    }

    fn refuse(&mut self, key: usize, why: String) {
        let connection = &mut self.connections[key];
        connection.push(Down::Refused { why }.encode().into());
        connection.closing = true;
        connection.flush();
    }

    fn remove(&mut self, key: usize) {
        let Some(connection) = self.connections.try_remove(key) else { return };
        connection.deregister(self.poll.registry());
        match connection.who {
            Who::Stranger { .. } => {}
            Who::Seat(rank) => self.hub.handle_hang_up(rank),
            Who::Rank(rank) | Who::Hub(rank) => {
                if let Some(place) = self.hub.place_of(rank) {
                    self.places[place] = None;
                }
                self.hub.handle_hang_up(rank);
            }
            Who::Above(rank) => {
                self.above = None;
                self.hub.handle_above_gone(rank);
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.hub.poll_effect() {
            match effect {
                Effect::One(rank, down) => {
                    let place = self.hub.place_of(rank).and_then(|place| self.places[place]);
                    self.send(place, &down.encode().into());
                }
                Effect::All(down) => {
                    let frame: Arc<[u8]> = down.encode().into();
                    for place in 0..self.places.len() {
                        self.send(self.places[place], &frame);
                    }
                }
                Effect::Up(up) => self.send(self.above, &up.encode().into()),
            }
        }
        for reason in self.hub.reasons().skip(self.told) {
            (self.on_broken)(reason);
            self.told += 1;
        }
        if self.deadline.is_some() && !self.hub.is_gathering() {
            self.deadline = None;
            self.published = None;
        }
    }

    fn send(&mut self, key: Option<usize>, frame: &Arc<[u8]>) {
        let Some(key) = key else { return };
        let connection = &mut self.connections[key];
        connection.push(Arc::clone(frame));
        if !connection.flush() {
            return self.remove(key);
        }
        self.tell_room(key);
    }

    /// Tells the hub whether a rank's connection has room for more.
    fn tell_room(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let is_full = connection.is_full();
        if let Who::Rank(rank) = connection.who
            && std::mem::replace(&mut connection.is_blocked, is_full) != is_full
        {
            self.hub.handle_room(rank, !is_full);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        sync::{Condvar, Mutex, atomic::AtomicBool},
    };

    use mio::Waker;

    use super::*;
    use crate::{hub::Control, tree::CHILDREN_MAX};

    #[test]
    fn a_hub_has_at_most_64_sockets_however_many_strangers_say_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), WAKER).unwrap();
        let (stop, ended) = (AtomicBool::new(false), Mutex::new(false));
        let control = Control { waker, stop, ended, changed: Condvar::new() };
        // As many places as one in the tree has.
        let config = Config {
            hub: Hub::star(CHILDREN_MAX + 1, Vec::new()),
            above: None,
            deadline: Instant::now() + GREETING,
            notice: Notice::new(None, GREETING),
            door: Some(Door { listener, published: None }),
            seats: Vec::new(),
            on_broken: Box::new(|_| {}),
        };
        let mut server = Server::new(poll, config, Handle(Arc::new(control))).unwrap();
        let mut crowd = Vec::new();
        for _ in 0..4 {
            crowd.extend((0..50).map(|_| TcpStream::connect(at).unwrap()));
            server.accept();
            // Beside them: the listener, the other end of the own rank's, a copy of it, and one that has just come.
            assert!(server.connections.len() + 4 <= 64, "{} connections", server.connections.len());
        }
        assert!(server.connections.len() > server.places.len(), "some may knock beside all ranks");
    }
}
