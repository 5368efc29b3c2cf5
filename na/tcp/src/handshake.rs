//! Greetings, and which of two connections between one pair is used.
//!
//! # One connection per pair
//! All of a Hello is a claim: it would let one process speak for another. So an accepted
//! connection is never used for what this side looks up, until the looked-up address itself, dialled by
//! this side, has answered *Superseded*: "a connection between us exists, this one". That names it to who has it and to nobody
//! else ([`Promise`]): by a hash of the asking Hello's nonce, whose key is the promised connection's nonce. Both are random, and
//! stand in one Hello each. So who asks in another's name learns no nonce, and who knows none names nothing.
//!
//! A target may pass on what it is asked, and be answered by whom it asks in turn; and it may say in a Welcome that it is another.
//! So addresses count, too: Superseded is said of a connection that was dialled to where the asking end listens, and
//! believed of one whose own Hello says that it comes from where this side has asked. Where one of two ends is reached at another
//! address than the one that it announces, each end has a connection.
//!
//! The link is then
//! opened on that connection ([`crate::frame::Kind::Open`]), and the new one is dropped. A connection that has ended, or has
//! not come after [`AWAIT`], is not waited for: a second one is insisted on.
//!
//! Who says Superseded, on a Hello that does not insist:
//! | this side has, of the same incarnation | answer |
//! |---|---|
//! | an open connection with the sender's side free, dialled to the claimed address | Superseded |
//! | a connection to the claimed address that is being dialled, and the sender knows it, or the sender's incarnation is the lesser | Superseded |
//! | otherwise | Welcome |
//!
//! With both dialling at once, exactly one answer is Superseded: the greater incarnation's connection
//! stays. Nothing was sent on either before, so nothing is lost or reordered.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use hg_na::{Address, GoneReason};
use hg_na_parts::key::{self, Exchange, RECORD_MAX};

use crate::{
    address::Target,
    context::TcpContext,
    greeting::{BODY_MAX, Greeting, Hello, Incarnation, Nonce, PREFIX, PROTOCOL, Promise},
    inbox::Parcel,
    link::{State, Way, pump},
    reading::{Fate, misbehaved},
    wire::{ARRIVALS, Phase, Role, Slot, Wire},
};

/// How long a connection of the peer's choice is waited for.
const AWAIT: Duration = Duration::from_secs(1);

impl TcpContext {
    /// Takes one greeting off the input; false when it is not whole.
    pub(crate) fn feed_greeting(
        &mut self,
        wire: &mut Wire,
        input: &mut &[u8],
        now: Instant,
    ) -> Result<bool, Fate> {
        let before = wire.greeting.len();
        // The longest greeting that makes sense, so that no stranger costs more.
        let take = input.len().min(PREFIX + BODY_MAX - before);
        wire.greeting.extend_from_slice(&input[..take]);
        let decoded = match Greeting::decode(&wire.greeting) {
            Ok(decoded) => decoded,
            // One that is built of other code should learn why.
            Err(why) if wire.greeting.len() >= PREFIX && wire.role == Role::Acceptor => {
                return Err(refuse(wire, why));
            }
            Err(why) => return Err(misbehaved(why)),
        };
        let Some((greeting, used)) = decoded else {
            *input = &[];
            return Ok(false);
        };
        // What came behind the greeting is still in the input.
        *input = &input[used - before..];
        wire.greeting = Vec::new();
        let rest = *input;
        match wire.role {
            Role::Acceptor => self.greeted_by_dialler(wire, greeting, rest)?,
            Role::Dialler => self.greeted_by_acceptor(wire, greeting, now)?,
        }
        Ok(true)
    }

    fn greeted_by_dialler(
        &mut self,
        wire: &mut Wire,
        greeting: Greeting,
        rest: &[u8],
    ) -> Result<(), Fate> {
        let key = self.shared.settings.bounds.key.clone();
        match (greeting, key, wire.sealing.is_some()) {
            (Greeting::NoiseFirst(first), Some(key), false) => {
                let failed = |_| misbehaved("the key exchange failed");
                let mut exchange = Exchange::accepting(&key, PROTOCOL);
                exchange.read(&first).map_err(|why| refuse(wire, why))?;
                let second = exchange.write().map_err(failed)?;
                wire.greet(&Greeting::NoiseSecond(second));
                // The answer itself is not sealed.
                self.flush(wire);
                let mut seal = exchange.finish().map_err(failed)?;
                // Its first word can be another's, said again.
                seal.limit(PREFIX + BODY_MAX);
                wire.seal_with(seal);
                Ok(())
            }
            (Greeting::NoiseFirst(_), None, _) => Err(refuse(wire, key::ONLY_DIALLER)),
            (Greeting::Hello(_), Some(_), false) => Err(refuse(wire, key::ONLY_ACCEPTOR)),
            (Greeting::Hello(hello), _, _) if hello.context != self.id => {
                // Kept for the context that it is handed to.
                wire.greeting = rest.to_vec();
                Err(Fate::Moved(hello))
            }
            (Greeting::Hello(hello), _, _) => self.hello(wire, &hello),
            _ => Err(misbehaved("a greeting out of turn")),
        }
    }

    /// Somebody wants to talk to this context.
    fn hello(&mut self, wire: &mut Wire, hello: &Hello) -> Result<(), Fate> {
        let max = self.shared.settings.bounds.max_peers;
        // What those withhold that have hung up costs as much as what the others may send.
        if self.open + self.links.hung_up() >= max {
            return Err(refuse(wire, &format!("it has {max} peers, its `max-peers`")));
        }
        let claimed = Address::new(&hello.address).ok();
        wire.target = claimed.and_then(|address| Target::parse(&address).ok());
        wire.nonce = Some(hello.nonce);
        if let Some(nonce) = self.better(wire, hello) {
            wire.greet(&Greeting::Superseded(Promise::of(nonce, hello.nonce).proof));
            return Err(Fate::Parted);
        }
        wire.incarnation = hello.incarnation;
        wire.greet(&Greeting::Welcome(self.incarnation));
        let peer = self.links.accept(Way::over(wire, 0));
        wire.slots[0] = Slot { peer: Some(peer), epoch: 0 };
        self.opened(wire);
        Ok(())
    }

    /// The connection that is to be used instead.
    fn better(&mut self, wire: &Wire, hello: &Hello) -> Option<Nonce> {
        if hello.insists || hello.incarnation == self.incarnation {
            return None;
        }
        let claimed = wire.target.as_ref()?;
        let open = self.by_incarnation.get(&hello.incarnation).copied();
        if let Some(other) = open.and_then(|key| self.wires.find(key))
            && other.role == Role::Dialler
            && other.is_healthy()
            && other.remote == claimed.numeric()
            && other.slots[1 - other.own_side()].peer.is_none()
        {
            return other.nonce;
        }
        let is_ours = hello.knows || self.incarnation > hello.incarnation;
        let other = self.dialled_to(claimed)?;
        if other.insists || !is_ours {
            return None;
        }
        other.nonce
    }

    /// The connection to a target that is being made.
    pub(crate) fn dialled_to(&mut self, target: &Target) -> Option<&mut Wire> {
        let peer = self.links.looked_up(target)?;
        let State::Dialling(key) = self.links.find(peer)?.way.state else { return None };
        self.wires.find(key)
    }

    fn greeted_by_acceptor(
        &mut self,
        wire: &mut Wire,
        greeting: Greeting,
        now: Instant,
    ) -> Result<(), Fate> {
        let is_ready = self.shared.settings.bounds.key.is_none() || wire.sealing.is_some();
        match greeting {
            Greeting::Refuse(sentence) => Err(Fate::Lost(GoneReason::Refused(sentence.into()))),
            Greeting::NoiseSecond(second) => {
                let Some(mut exchange) = wire.exchange.take() else {
                    return Err(misbehaved("a greeting out of turn"));
                };
                let lost = |why: &'static str| Fate::Lost(GoneReason::Refused(why.into()));
                exchange.read(&second).map_err(lost)?;
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
            Greeting::Superseded(proof) if is_ready => {
                self.superseded(wire, proof, now);
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
        link.way.open(wire, 0);
        pump(link, wire, 0, &mut self.finished);
    }

    fn opened(&mut self, wire: &mut Wire) {
        wire.phase = Phase::Open;
        if let Some(sealing) = &mut wire.sealing {
            sealing.seal.limit(RECORD_MAX);
        }
        self.open += 1;
        self.no_stranger(wire);
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
    fn superseded(&mut self, wire: &mut Wire, proof: [u8; 8], now: Instant) {
        let Some(peer) = wire.slots[0].peer.take() else { return };
        let Some(link) = self.links.find(peer) else { return };
        let (Some(via), Some(asking)) = (wire.remote, wire.nonce) else { return };
        let promise = Promise { asking, proof };
        link.way.state = State::Awaiting { promise, via };
        if self.take_promised(peer, None) {
            return;
        }
        if wire.ended.is_some_and(|ended| promise.is_of(ended)) {
            // Its end was seen first.
            return self.starting.push(peer);
        }
        self.awaiting.push(peer);
        self.time_link(peer, now + AWAIT);
    }

    /// Hands a connection to the context that it was meant for.
    pub(crate) fn hand_over(&mut self, mut wire: Box<Wire>, hello: Hello) {
        let Some(inbox) = self.shared.inbox(hello.context) else {
            let why = format!("no context {} is open here", hello.context);
            let fate = refuse(&mut wire, &why);
            return self.dispose(wire, fate);
        };
        let max = self.shared.settings.bounds.max_peers;
        if !inbox.reserve(max) {
            let why = format!("{max} wait for context {} already, its `max-peers`", hello.context);
            let fate = refuse(&mut wire, &why);
            return self.dispose(wire, fate);
        }
        self.untime(&mut wire);
        self.no_stranger(&mut wire);
        self.wires.release(wire.key);
        self.waiter.remove(wire.stream.as_fd());
        let rest = std::mem::take(&mut wire.greeting);
        inbox.push(Parcel::Accepted { wire, hello, rest });
    }

    /// Takes a connection over from another context, with what came behind its greeting.
    pub(crate) fn take_over(&mut self, from: Box<Wire>, hello: Hello, rest: &[u8], now: Instant) {
        let key = self.wires.reserve();
        let mut wire = Box::new(from.moved(key));
        if self.waiter.add(wire.stream.as_fd(), key.number(), ARRIVALS).is_err() {
            return self.wires.release(key);
        }
        let taken = self.hello(&mut wire, &hello).and_then(|()| {
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
                self.wires.put(wire.key, wire);
                self.look_for_awaited(key);
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
