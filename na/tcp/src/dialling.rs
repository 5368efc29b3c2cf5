//! From the first post to a connection: a known way, a name's addresses, a new connection.

use std::{io, net::SocketAddr, os::fd::AsFd as _, time::Instant};

use hg_na::{GoneReason, Peer};
use hg_na_parts::{key::Exchange, limits::unreachable, regions::random};
use nix::libc::EINPROGRESS;
use socket2::{Domain, Socket, Type};

use crate::{
    address::{Host, Target},
    context::{TcpContext, Timer},
    greeting::{Greeting, Hello, PROTOCOL},
    inbox::Parcel,
    link::{State, pump},
    resolver::Question,
    wire::{Phase, Role, SPACE, Wire, WireKey},
};

impl TcpContext {
    /// Finds a way for every link that was posted to.
    pub(crate) fn start_links(&mut self, now: Instant) {
        for peer in std::mem::take(&mut self.starting) {
            self.start(peer, now);
        }
    }

    fn start(&mut self, peer: Peer, now: Instant) {
        let Some(link) = self.links.find(peer) else { return };
        match link.way.state {
            State::Starting => {}
            State::Awaiting { .. } => {
                self.untime_link(peer);
                return self.link_is_late(peer, now);
            }
            _ => return,
        }
        let Some(target) = link.target.clone() else { return };
        if let Some(key) = self.routes.get(&target).copied()
            && self.attach(peer, key)
        {
            return;
        }
        let Some(link) = self.links.find(peer) else { return };
        match (&target.host, target.numeric()) {
            (_, Some(address)) => self.dial(peer, vec![address], false, now),
            (Host::Name(name), None) => {
                link.way.state = State::Resolving;
                let (name, port) = (name.clone(), target.port);
                let inbox = std::sync::Arc::clone(&self.inbox);
                self.shared.resolver.ask(Question { name, port, peer, inbox });
                self.time_link(peer, now + self.shared.settings.bounds.connect_timeout);
            }
            (Host::Ip(_), None) => unreachable!("a numeric host has an address"),
        }
    }

    /// Opens a link on a connection that leads to its target; false when it is not free.
    pub(crate) fn attach(&mut self, peer: Peer, key: WireKey) -> bool {
        let Some(mut wire) = self.wires.take(key) else { return false };
        let side = wire.own_side();
        let is_free = wire.is_healthy() && wire.slots[side].peer.is_none();
        if is_free && let Some(link) = self.links.find(peer) {
            let epoch = wire.slots[side].epoch.wrapping_add(1);
            wire.slots[side] = crate::wire::Slot { peer: Some(peer), epoch };
            wire.send(crate::frame::Kind::Open, side, 0, &[]);
            link.way.open(&wire, side);
            pump(link, &mut wire, side, &mut self.finished);
            if let Some(target) = link.target.clone() {
                self.routes.insert(target, key);
            }
            self.soil(&mut wire);
        }
        self.wires.put(wire.key, wire);
        is_free
    }

    /// Connects to the first of some addresses.
    pub(crate) fn dial(
        &mut self,
        peer: Peer,
        addresses: Vec<SocketAddr>,
        insists: bool,
        now: Instant,
    ) {
        let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut others = addresses.into_iter();
        while let Some(address) = others.next() {
            match connect(address) {
                Ok(stream) => {
                    let others = others.collect();
                    return self.dialled(peer, stream, others, insists, now);
                }
                Err(error) => why = error,
            }
        }
        self.end_link(peer, &unreachable_by(&why));
    }

    fn dialled(
        &mut self,
        peer: Peer,
        stream: Socket,
        others: Vec<SocketAddr>,
        insists: bool,
        now: Instant,
    ) {
        let nonce = match random() {
            Ok(nonce) => nonce,
            Err(error) => {
                return self.end_link(peer, &GoneReason::Unreachable(error.to_string().into()));
            }
        };
        let key = self.wires.reserve();
        let mut wire = Box::new(Wire::new(key, stream, Role::Dialler));
        wire.nonce = Some(nonce);
        let added = self.waiter.add(wire.stream.as_fd(), key.number(), SPACE);
        if let Err(error) = added {
            self.wires.release(key);
            return self.end_link(peer, &unreachable_by(&error));
        }
        wire.slots[0].peer = Some(peer);
        (wire.others, wire.insists) = (others, insists);
        if let Some(link) = self.links.find(peer) {
            link.way.state = State::Dialling(key);
            wire.target = link.target.clone();
        }
        self.time(&mut wire, now + self.shared.settings.bounds.connect_timeout);
        self.wires.put(wire.key, wire);
    }

    /// The kernel told something of a connection that is being made.
    pub(crate) fn try_connected(&mut self, mut wire: Box<Wire>, now: Instant) {
        if let Ok(Some(error)) | Err(error) = wire.stream.take_error() {
            return self.try_next(wire, error, now);
        }
        match wire
            .connected(self.shared.settings.bounds.silence_bound, self.shared.settings.unsent_max)
        {
            // The kernel told of it together with what the peer has said already, and will not again.
            Ok(()) => {
                wire.is_readable = true;
                self.list(&mut wire);
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                return self.wires.put(wire.key, wire);
            }
            Err(error) => return self.try_next(wire, error, now),
        }
        if let Err(error) = wire.watch_space(&self.waiter, false) {
            return self.try_next(wire, error, now);
        }
        wire.phase = Phase::Greeting;
        match &self.shared.settings.bounds.key {
            None => {
                let hello = self.hello_for(&wire);
                wire.greet(&hello);
            }
            Some(key) => match Exchange::dialling(key, PROTOCOL).and_then(|mut exchange| {
                let first = exchange.write()?;
                Ok((exchange, first))
            }) {
                Ok((exchange, first)) => {
                    wire.exchange = Some(exchange);
                    wire.greet(&Greeting::NoiseFirst(first));
                }
                Err(error) => {
                    return self.lose(wire, &GoneReason::Unreachable(error.to_string().into()));
                }
            },
        }
        self.flush(&mut wire);
        self.wires.put(wire.key, wire);
    }

    /// This side's first word on a connection that it has dialled.
    pub(crate) fn hello_for(&self, wire: &Wire) -> Greeting {
        let claims = |other: &Wire| {
            other.role == Role::Acceptor && other.target == wire.target && other.is_healthy()
        };
        let knows = wire.target.is_some() && self.wires.iter().any(claims);
        let address = match self.listener {
            Some(_) => self.address.to_string(),
            None => String::new(),
        };
        Greeting::Hello(Hello {
            incarnation: self.incarnation,
            nonce: wire.nonce.expect("chosen when it was dialled"),
            context: wire.target.as_ref().map_or(0, |target| target.context),
            insists: wire.insists,
            knows,
            address,
        })
    }

    /// An address does not answer: the next one, if there is any.
    pub(crate) fn try_next(&mut self, mut wire: Box<Wire>, why: io::Error, now: Instant) {
        let others = std::mem::take(&mut wire.others);
        if others.is_empty() {
            let reason = match (unreachable_by(&why), &wire.target) {
                (GoneReason::Unreachable(why), Some(Target { host, port, .. })) => {
                    GoneReason::Unreachable(format!("{host}:{port}: {why}").into())
                }
                (reason, _) => reason,
            };
            return self.lose(wire, &reason);
        }
        let (peer, insists) = (wire.slots[0].peer.take(), wire.insists);
        self.lose(wire, &GoneReason::Closed);
        if let Some(peer) = peer {
            self.dial(peer, others, insists, now);
        }
    }

    /// What other threads have left.
    pub(crate) fn open_parcels(&mut self, now: Instant) {
        for parcel in self.inbox.take() {
            match parcel {
                Parcel::Resolved { peer, found } => {
                    let link = self.links.find(peer);
                    if link.is_none_or(|link| link.way.state != State::Resolving) {
                        continue;
                    }
                    self.untime_link(peer);
                    match found {
                        Ok(addresses) => self.dial(peer, addresses, false, now),
                        Err(why) => self.end_link(peer, &GoneReason::Unreachable(why.into())),
                    }
                }
                Parcel::Accepted { wire, hello, rest } => self.take_over(wire, hello, &rest, now),
            }
        }
    }

    /// What a link waits for has not come: the addresses of a name, which is the end, or the connection that
    /// the peer preferred, instead of which a new one is made in any case.
    pub(crate) fn link_is_late(&mut self, peer: Peer, now: Instant) {
        self.awaiting.retain(|awaiting| *awaiting != peer);
        match self.links.find(peer).map(|link| &link.way.state) {
            Some(State::Awaiting { via, .. }) => {
                let via = *via;
                self.dial(peer, vec![via], true, now);
            }
            Some(State::Resolving) => {
                let why = "its name was not resolved in time";
                self.end_link(peer, &GoneReason::Unreachable(why.into()));
            }
            _ => {}
        }
    }

    /// A connection that a peer has made has ended: whoever waits for it insists on one, and whoever is still to hear that it is
    /// preferred will.
    pub(crate) fn promised_has_ended(&mut self, wire: &Wire) {
        let (Role::Acceptor, Some(ended)) = (wire.role, wire.nonce) else { return };
        for peer in &self.awaiting {
            let state = self.links.find(*peer).map(|link| &link.way.state);
            if matches!(state, Some(State::Awaiting { promise, .. }) if promise.is_of(ended)) {
                self.starting.push(*peer);
            }
        }
        if let Some(target) = &wire.target
            && let Some(dialled) = self.dialled_to(target)
        {
            dialled.ended = Some(ended);
        }
    }

    /// Gives a link a time by which what it waits for shall have come.
    pub(crate) fn time_link(&mut self, peer: Peer, at: Instant) {
        self.timers.insert((at, Timer::Link(peer)));
    }

    fn untime_link(&mut self, peer: Peer) {
        self.timers.retain(|(_, timer)| *timer != Timer::Link(peer));
    }

    /// Links that wait for a connection look at one that has just been opened.
    #[cold]
    pub(crate) fn look_for_awaited(&mut self, opened: WireKey) {
        for peer in std::mem::take(&mut self.awaiting) {
            if self.take_promised(peer, Some(opened)) {
                self.untime_link(peer);
            } else {
                self.awaiting.push(peer);
            }
        }
    }

    /// Opens a link on the connection that it waits for, which is this one or any; false where that has not come. One that claims to come from elsewhere than it
    /// was promised is not used: another is insisted on.
    pub(crate) fn take_promised(&mut self, peer: Peer, opened: Option<WireKey>) -> bool {
        let Some(link) = self.links.find(peer) else { return true };
        let State::Awaiting { promise, via } = link.way.state else { return true };
        let is_it = |wire: &&Wire| {
            wire.role == Role::Acceptor
                && wire.is_healthy()
                && wire.nonce.is_some_and(|it| promise.is_of(it))
        };
        let found = match opened {
            Some(key) => self.wires.get(key).filter(is_it),
            None => self.wires.iter().find(is_it),
        };
        let Some(wire) = found else { return false };
        if wire.target.as_ref().and_then(Target::numeric) == Some(via) {
            let key = wire.key;
            return self.attach(peer, key);
        }
        self.starting.push(peer);
        true
    }
}

/// Begins to connect.
fn connect(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let stream = Socket::new(Domain::for_address(address), kind, None)?;
    match stream.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
        _ => Ok(stream),
    }
}

fn unreachable_by(error: &io::Error) -> GoneReason {
    match error.kind() {
        io::ErrorKind::TimedOut => GoneReason::TimedOut,
        _ => unreachable("connect", error),
    }
}
