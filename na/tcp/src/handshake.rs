//! Accepting, greetings, and which of two connections between one pair is used.
//!
//! # One connection per pair
//! An address in a Hello is a claim: it would let one process speak for another. So an accepted
//! connection is never used for what this side looks up, until the looked-up address itself, dialled by
//! this side, has answered *Superseded*: "a connection between us exists, from this socket address of
//! mine to that one of yours". The kernel vouches that an accepted connection comes from there; a
//! stranger cannot have the same two addresses. The link is then opened on that connection
//! ([`crate::frame::Kind::Open`]), and the new one is dropped. Where addresses are translated on the way
//! the two ends do not agree about them: then, after [`AWAIT`], a second connection is insisted on.
//!
//! Who says Superseded, on a Hello that does not insist:
//! | this side has, of the same incarnation | answer |
//! |---|---|
//! | an open connection with the sender's side free | Superseded |
//! | a connection to the claimed address that is being dialled, and the sender knows it, or the sender's incarnation is the lesser | Superseded |
//! | otherwise | Welcome |
//!
//! With both dialling at once, exactly one answer is Superseded: the greater incarnation's connection
//! stays. Nothing was sent on either before, so nothing is lost or reordered.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use hg_na::{Address, GoneReason};
use mio::{Interest, net::TcpStream};

use crate::{
    address::Target,
    context::{TcpContext, Timer},
    greeting::{Greeting, Hello, Incarnation},
    inbox::Parcel,
    link::State,
    reading::{Fate, misbehaved},
    rounds::ACCEPT_PAUSE,
    seal::Exchange,
    wire::{Phase, Role, Slot, Wire},
};

/// Connections accepted in a round.
const ACCEPTS: usize = 64;
/// How long a connection of the peer's choice is waited for.
const AWAIT: Duration = Duration::from_secs(1);

impl TcpContext {
    /// Accepts what has come; says whether anything has.
    pub(crate) fn accept(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { break };
            match listener.accept() {
                Ok((stream, _)) => {
                    moved = true;
                    self.accepted(stream, now);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.accepts = false;
                    return moved;
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("connections cannot be accepted for now: {error}");
                    self.accepts = false;
                    self.timers.insert((now + ACCEPT_PAUSE, Timer::Accept));
                    return true;
                }
            }
        }
        moved
    }

    fn accepted(&mut self, stream: TcpStream, now: Instant) {
        let mut wire = self.wires.add(stream, Role::Acceptor);
        let (key, registry) = (wire.key, self.waiter.registry());
        let watched = wire
            .connected(self.shared.settings.silence_bound)
            .and_then(|()| registry.register(&mut wire.stream, key.token(), Interest::READABLE));
        if let Err(error) = watched {
            tracing::debug!("a connection was gone before it was accepted: {error}");
            return self.wires.release(key);
        }
        self.time(&mut wire, now + self.shared.settings.connect_timeout);
        // Its first word has mostly come with it.
        wire.is_readable = true;
        self.list(&mut wire);
        self.wires.put(wire);
    }

    /// Takes one greeting off the input; false when it is not whole.
    pub(crate) fn feed_greeting(
        &mut self,
        wire: &mut Wire,
        input: &mut &[u8],
        now: Instant,
    ) -> Result<bool, Fate> {
        let before = wire.greeting.len();
        wire.greeting.extend_from_slice(input);
        let decoded = Greeting::decode(&wire.greeting).map_err(misbehaved)?;
        let Some((greeting, used)) = decoded else {
            *input = &[];
            return Ok(false);
        };
        // What came behind the greeting is still in the input.
        *input = &input[used - before..];
        wire.greeting.clear();
        let rest = *input;
        match wire.role {
            Role::Acceptor => self.greeted_by_dialler(wire, greeting, rest, now)?,
            Role::Dialler => self.greeted_by_acceptor(wire, greeting, now)?,
        }
        Ok(true)
    }

    fn greeted_by_dialler(
        &mut self,
        wire: &mut Wire,
        greeting: Greeting,
        rest: &[u8],
        now: Instant,
    ) -> Result<(), Fate> {
        let key = self.shared.settings.key.clone();
        match (greeting, key, wire.sealing.is_some()) {
            (Greeting::NoiseFirst(first), Some(key), false) => {
                let failed = |_| misbehaved("the key exchange failed");
                let mut exchange = Exchange::accepting(&key).map_err(failed)?;
                if !exchange.read(&first) {
                    return Err(refuse(wire, "the keys of the two ends differ"));
                }
                let second = exchange.write().map_err(failed)?;
                wire.greet(&Greeting::NoiseSecond(second));
                // The answer itself is not sealed.
                self.flush(wire);
                wire.seal_with(exchange.finish().map_err(failed)?);
                Ok(())
            }
            (Greeting::NoiseFirst(_), None, _) => {
                Err(refuse(wire, "only the end that connects has a key"))
            }
            (Greeting::Hello(_), Some(_), false) => {
                Err(refuse(wire, "only the end that is connected to has a key"))
            }
            (Greeting::Hello(hello), _, _) if hello.context != self.id => {
                // Kept for the context that it is handed to.
                wire.greeting = rest.to_vec();
                Err(Fate::Moved(hello))
            }
            (Greeting::Hello(hello), _, _) => self.hello(wire, &hello, now),
            _ => Err(misbehaved("a greeting out of turn")),
        }
    }

    /// Somebody wants to talk to this context.
    fn hello(&mut self, wire: &mut Wire, hello: &Hello, _now: Instant) -> Result<(), Fate> {
        if self.wires.len() > self.shared.settings.max_peers {
            return Err(refuse(wire, "this context has as many peers as it may have"));
        }
        let claimed = Address::new(&hello.address).ok();
        wire.target = claimed.and_then(|address| Target::parse(&address).ok());
        if let Some((local, remote)) = self.better(wire, hello) {
            wire.greet(&Greeting::Superseded { local, remote });
            return Err(Fate::Parted);
        }
        wire.incarnation = hello.incarnation;
        wire.greet(&Greeting::Welcome(self.incarnation));
        let peer = self.links.add(None, State::Open { wire: wire.key, side: 0 });
        wire.slots[0] = Slot { peer: Some(peer), epoch: 0 };
        self.opened(wire);
        Ok(())
    }

    /// The connection that is to be used instead, as two socket addresses.
    fn better(&self, wire: &Wire, hello: &Hello) -> Option<(SocketAddr, SocketAddr)> {
        if hello.insists || hello.incarnation == self.incarnation {
            return None;
        }
        let open = self.by_incarnation.get(&hello.incarnation);
        let suits = |other: &&Wire| {
            let of_sender = 1 - other.own_side();
            let is_open = open == Some(&other.key)
                && other.is_healthy()
                && other.slots[of_sender].peer.is_none();
            let is_dialled = other.role == Role::Dialler
                && other.phase != Phase::Open
                && !other.insists
                && other.target.is_some()
                && other.target == wire.target
                && (hello.knows || self.incarnation > hello.incarnation);
            is_open || is_dialled
        };
        let other = self.wires.iter().find(suits)?;
        let local = other.local.or_else(|| other.stream.local_addr().ok())?;
        let remote = other.remote.or_else(|| other.target.as_ref()?.numeric())?;
        Some((local, remote))
    }

    fn greeted_by_acceptor(
        &mut self,
        wire: &mut Wire,
        greeting: Greeting,
        now: Instant,
    ) -> Result<(), Fate> {
        let is_ready = self.shared.settings.key.is_none() || wire.sealing.is_some();
        match greeting {
            Greeting::Refuse(sentence) => Err(Fate::Lost(GoneReason::Refused(sentence.into()))),
            Greeting::NoiseSecond(second) => {
                let Some(mut exchange) = wire.exchange.take() else {
                    return Err(misbehaved("a greeting out of turn"));
                };
                if !exchange.read(&second) {
                    let why = "the keys of the two ends differ";
                    return Err(Fate::Lost(GoneReason::Refused(why.into())));
                }
                let failed = |_| misbehaved("the key exchange failed");
                wire.seal_with(exchange.finish().map_err(failed)?);
                let hello = self.hello_for(wire);
                wire.greet(&hello);
                Ok(())
            }
            Greeting::Welcome(incarnation) if is_ready => {
                self.welcome(wire, incarnation);
                Ok(())
            }
            Greeting::Superseded { local, remote } if is_ready => {
                self.superseded(wire, remote, local, now);
                Err(Fate::Lost(GoneReason::Closed))
            }
            _ => Err(misbehaved("a greeting out of turn")),
        }
    }

    fn welcome(&mut self, wire: &mut Wire, incarnation: Incarnation) {
        wire.incarnation = incarnation;
        self.opened(wire);
        let Some(peer) = wire.slots[0].peer else { return };
        let Some(link) = self.links.find(peer) else { return };
        link.state = State::Open { wire: wire.key, side: 0 };
        link.pump(wire, 0);
    }

    fn opened(&mut self, wire: &mut Wire) {
        wire.phase = Phase::Open;
        self.untime(wire);
        self.map(wire);
    }

    /// The connection can be found for new links.
    pub(crate) fn map(&mut self, wire: &Wire) {
        if wire.incarnation != self.incarnation {
            self.by_incarnation.entry(wire.incarnation).or_insert(wire.key);
        }
        if wire.role == Role::Dialler
            && let Some(target) = &wire.target
        {
            self.routes.insert(target.clone(), wire.key);
        }
    }

    /// The peer prefers another connection between the two.
    fn superseded(&mut self, wire: &mut Wire, local: SocketAddr, remote: SocketAddr, now: Instant) {
        let Some(peer) = wire.slots[0].peer.take() else { return };
        let Some(link) = self.links.find(peer) else { return };
        link.state = State::Awaiting { local, remote };
        if let Some(key) = self.wire_between(local, remote)
            && self.attach(peer, key)
        {
            return;
        }
        self.awaiting.push(peer);
        self.timers.insert((now + AWAIT, Timer::Awaited(peer)));
    }

    /// Hands a connection to the context that it was meant for.
    pub(crate) fn hand_over(&mut self, mut wire: Box<Wire>, hello: Hello) {
        let Some(inbox) = self.shared.inbox(hello.context) else {
            let why = format!("no context {} is open here", hello.context);
            let fate = refuse(&mut wire, &why);
            return self.dispose(wire, fate);
        };
        self.untime(&mut wire);
        self.wires.release(wire.key);
        // It is registered where it goes; a failure shows there.
        let _ = self.waiter.registry().deregister(&mut wire.stream);
        let rest = std::mem::take(&mut wire.greeting);
        inbox.push(Parcel::Accepted { wire, hello, rest });
    }

    /// Takes a connection over from another context, with what came behind its greeting.
    pub(crate) fn take_over(&mut self, from: Box<Wire>, hello: Hello, rest: &[u8], now: Instant) {
        let Wire { stream, sealing, local, remote, .. } = *from;
        let mut wire = self.wires.add(stream, Role::Acceptor);
        (wire.sealing, wire.local, wire.remote) = (sealing, local, remote);
        let (key, registry) = (wire.key, self.waiter.registry());
        if registry.register(&mut wire.stream, key.token(), Interest::READABLE).is_err() {
            return self.wires.release(key);
        }
        let taken = self.hello(&mut wire, &hello, now).and_then(|()| {
            // Of a sealed connection it was opened already.
            let mut sealing = wire.sealing.take();
            let fed = self.feed(&mut wire, rest, now);
            wire.sealing = sealing.take();
            fed
        });
        match taken {
            Ok(()) => {
                wire.is_readable = true;
                self.list(&mut wire);
                self.flush(&mut wire);
                self.wires.put(wire);
                self.look_for_awaited();
            }
            Err(fate) => self.dispose(wire, fate),
        }
    }
}

/// Says no in a sentence.
fn refuse(wire: &mut Wire, why: &str) -> Fate {
    tracing::warn!(peer = ?wire.remote, "a connection is refused: {why}");
    wire.greet(&Greeting::Refuse(why.to_owned()));
    Fate::Parted
}
