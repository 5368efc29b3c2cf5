//! One context: its state, its rounds, and what a plugin has of its own: how its endpoint is made known, polled, waited on and closed.

use std::{collections::BTreeSet, fmt, hash::Hash, io, mem, net::IpAddr, sync::Arc, time::Instant};

use hg_na::{Address, Completion, Error, GoneReason, Peer, Waiter as _};
use hg_na_link::{
    Carrier, Framed, Greeting, Lane, Links, Strangers,
    exchange::{self, Came, Step},
    lanes::Whole,
    strangers::Scarcity,
};
use nix::sys::epoll::EpollFlags;

use crate::{
    common::{Common, LIMITS},
    connection::{Connection, Phase},
    lifeline::{Lifeline, Listener},
    parts::Parts,
    waiter::{FramesWaiter, LISTENER},
};

/// Empty rounds after which the kernel is asked for news of lifelines.
const ASK_AFTER: u32 = 256;
/// So many rounds in any case: while one peer's messages leave no empty ones, others die, and new ones come.
pub(crate) const ASK_ROUNDS: u32 = 4096;
/// Frames that one connection sends before the next has its turn.
const TURN: usize = 64;
/// Withheld messages handed out in a round.
const ADMITTED_MAX: usize = 4096;

/// Why somebody who has introduced himself is no peer.
#[derive(Debug)]
pub enum Unmet {
    /// He broke the protocol.
    Misbehaved(&'static str),
    /// He is told this, and his operations end with that.
    Refused(String, GoneReason),
}

/// A transport whose frames stand alone.
pub trait Transport: Carrier<Own = Connection<Self::Route>> + Send + Sized + 'static {
    /// Where a peer is looked up.
    type Place: Clone + Eq + Hash + fmt::Debug + Send;
    /// How frames find their way to one peer.
    type Route: fmt::Debug + Send;
    /// What one end tells the other of itself.
    type Hello: Greeting;

    /// The plugin's name in logs and errors.
    const NAME: &'static str;
    /// Whether the end that accepts may send only when the other one has said that it receives.
    const AWAITS_READY: bool;

    /// What an address names.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    fn target(&self, address: &Address) -> Result<Self::Place, Error>;

    /// The beginning of a way to a peer.
    ///
    /// # Errors
    /// [`Error::Os`].
    fn route(&self) -> Result<Self::Route, Error>;

    /// Begins a lifeline.
    ///
    /// # Errors
    /// Of the kernel's; `WouldBlock` is tried again.
    fn dial(&mut self, to: &Self::Place, route: &mut Self::Route) -> io::Result<Lifeline>;

    /// Nobody has answered where this was dialled last, or he has refused: whether the next [`Transport::dial`] leads elsewhere.
    fn dials_elsewhere(&mut self, _route: &mut Self::Route) -> bool {
        false
    }

    /// The kernel has told of the descriptor that was named [`crate::waiter::DEVICE`].
    fn hear_device(&mut self, _now: Instant) {}

    /// Whether the process at the other end of a lifeline may be a peer.
    ///
    /// # Errors
    /// Why not.
    fn admits(&self, _lifeline: &Lifeline) -> Result<(), String> {
        Ok(())
    }

    /// What the other end of the connection of a place, at this address, is told of this one; made when it is asked for first.
    ///
    /// # Errors
    /// What it needs cannot be had.
    fn introduce(
        &mut self,
        place: u32,
        route: &mut Self::Route,
        ip: Option<IpAddr>,
    ) -> Result<Self::Hello, Error>;

    /// The other end has introduced itself: from now on frames find their way to it.
    ///
    /// # Errors
    /// It is no peer.
    fn meet(
        &mut self,
        place: u32,
        connection: &mut Connection<Self::Route>,
        hello: Self::Hello,
    ) -> Result<(), Unmet>;

    /// A connection has ended: ends what is held of the peer's messages, and lets go of its way.
    fn part(
        &mut self,
        peer: Peer,
        route: &mut Self::Route,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    );

    /// Whether a peer that has ended like this certainly reaches no memory any more that is lent to it.
    fn reaches_nothing(&self, reason: &GoneReason) -> bool;

    /// The end of a peer whose way is broken.
    fn unreachable(fault: Self::Fault) -> GoneReason;

    /// The transport takes nothing for this peer: when is it tried again?
    ///
    /// # Errors
    /// Never: the way counts as broken.
    fn stalls(
        &mut self,
        connection: &mut Connection<Self::Route>,
        now: Instant,
    ) -> Result<(), Self::Fault>;

    /// It takes something again, or there is nothing to be taken.
    fn flows(&mut self, route: &mut Self::Route);

    /// The peer has answered a ping.
    fn answered(&mut self, _route: &mut Self::Route) {}

    /// One look at the endpoint: tells the context what has come. Says whether there was something.
    ///
    /// # Errors
    /// The endpoint cannot be used any more.
    fn poll(context: &mut FramedContext<Self>) -> Result<bool, Error>;

    /// A round goes on to sending; says whether something is due.
    fn begins_sending(&mut self, _now: Instant) -> bool {
        false
    }

    /// Does what is due; says whether anything was.
    fn run_timers(&mut self, now: Instant) -> bool;

    /// When something is due.
    fn deadline(&self) -> Option<Instant>;

    /// Whether a round would send something.
    fn can_send(context: &mut FramedContext<Self>) -> bool;

    /// A post has left nothing to be sent; whether a sleeping thread has to look at the endpoint all the same.
    fn needs_a_look(&self) -> bool {
        false
    }

    /// Prepares a sleep. `false`: there is something to be looked at first.
    fn arms(context: &mut FramedContext<Self>) -> bool;

    /// Whether everything that was posted before the first question is as far as its poster needs no longer be there.
    fn flush(context: &mut FramedContext<Self>) -> bool;

    /// Says goodbye to everybody ([`FramedContext::say_goodbye`]), sees off what is under way, for a bounded time, and closes the endpoint.
    fn close(context: &mut FramedContext<Self>);

    /// This is a forked child's copy: it lets go of the endpoint without closing it.
    fn forget(&mut self);
}

/// What is under way with one peer of a context.
type Way<T> = Framed<Connection<<T as Transport>::Route>>;
/// One peer of a context.
pub type Link<T> = hg_na_link::Link<<T as Transport>::Place, Way<T>>;

/// A context over a transport.
pub struct FramedContext<T: Transport> {
    pub(crate) common: Arc<Common>,
    pub(crate) id: u8,
    pub(crate) address: Address,
    /// How frames go out and come in.
    pub transport: T,
    pub(crate) waiter: Arc<FramesWaiter>,
    pub(crate) listeners: Vec<Listener>,
    /// All peers.
    pub links: Links<T::Place, Way<T>>,
    /// Connections that have not introduced themselves.
    pub(crate) strangers: Strangers<u32>,
    /// Connections with something to send.
    pub busy: Vec<u32>,
    /// Draining connections, which are looked at in every round.
    pub(crate) draining: Vec<u32>,
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    /// Completions that the next round hands out.
    pub finished: Vec<Completion>,
    /// Somebody who has come while descriptors are scarce, and until when nobody else is accepted.
    pub(crate) scarcity: Scarcity<Lifeline>,
    pub(crate) rests_until: Option<Instant>,
    pub(crate) is_sleeping: bool,
    pub(crate) must_ask: bool,
    empty_rounds: u32,
    /// Since the kernel was asked.
    rounds: u32,
    pub(crate) told: Vec<u64>,
    /// Messages that have come in part.
    pub(crate) parts: Parts,
    /// The endpoint cannot be used any more.
    pub(crate) broken: Option<Error>,
}

impl<T: Transport> FramedContext<T> {
    /// A context over an endpoint, listening at its places.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn new(
        common: Arc<Common>,
        (id, address): (u8, Address),
        (transport, waiter): (T, Arc<FramesWaiter>),
        listeners: Vec<Listener>,
    ) -> Result<Self, Error> {
        if common.listen {
            let watch = |it: &Listener| waiter.add(it.fd(), LISTENER, EpollFlags::EPOLLIN);
            listeners.iter().try_for_each(watch)?;
        }
        Ok(Self {
            common,
            id,
            address,
            transport,
            waiter,
            listeners,
            links: Links::new(0, LIMITS),
            strangers: Strangers::default(),
            busy: Vec::new(),
            draining: Vec::new(),
            timers: BTreeSet::new(),
            finished: Vec::new(),
            scarcity: Scarcity::default(),
            rests_until: None,
            is_sleeping: false,
            must_ask: true,
            empty_rounds: 0,
            rounds: 0,
            told: Vec::new(),
            parts: Parts::default(),
            broken: None,
        })
    }

    /// Whether the endpoint can still be used.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// There is something to do for this side's progress: ends a sleep, should another thread be in one.
    pub(crate) fn nudge(&mut self) {
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    pub(crate) fn round(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let before = done.len();
        done.append(&mut self.finished);
        let slept = mem::take(&mut self.is_sleeping);
        let has_come = self.look()?;
        let mut moved = has_come;
        self.empty_rounds = if moved { 0 } else { self.empty_rounds + 1 };
        if moved {
            self.waiter.begins_again();
        }
        self.rounds += 1;
        let is_time = self.empty_rounds >= ASK_AFTER || self.rounds >= ASK_ROUNDS;
        let is_told = self.must_ask || self.waiter.set.has_told();
        if slept || is_told || is_time || self.must_drain() {
            (self.empty_rounds, self.rounds) = (0, 0);
            moved |= self.attend_lifelines(now)?;
        }
        moved |= self.run_timers(now) | self.run_parts(now, has_come);
        moved |= self.admit();
        moved |= self.send_all(now);
        if !self.draining.is_empty() {
            self.drain_all(now);
        }
        done.append(&mut self.finished);
        Ok(moved || done.len() > before)
    }

    /// Looks at the endpoint once; says whether there was something. What is answered leaves before the next look, which may cost
    /// system calls of its own, and finds what has come meanwhile.
    ///
    /// # Errors
    /// The endpoint cannot be used any more.
    pub fn look(&mut self) -> Result<bool, Error> {
        let looked = T::poll(self);
        if let Err(error) = &looked {
            self.broken = Some(error.clone());
        }
        looked
    }

    /// A frame of the connection of a place has come to this ([`exchange::take`]).
    #[inline]
    pub fn came(&mut self, place: u32, came: Result<Came, &'static str>) {
        if T::AWAITS_READY {
            self.is_ready(place);
        }
        match came {
            Ok(Came::Nothing) => {}
            Ok(Came::Message(whole)) => self.deliver(place, whole),
            Ok(Came::Ended(lent, completion)) => {
                if let Some(number) = lent {
                    self.transport.revoke(number);
                }
                self.finished.extend(completion);
                self.tell_room(place);
            }
            Err(why) => return self.misbehaved(place, why),
        }
        // Credits have come, or are owed, or something is to be served.
        let Self { links, busy, parts, .. } = self;
        let Some(link) = links.at(place) else { return };
        if !link.way.own.is_busy && exchange::has_work(link) {
            list_busy(&mut link.way.own, place, busy);
        }
        parts.count(&mut link.way.own.part, link.way.lanes.in_part());
        self.mind_parts();
    }

    fn deliver(&mut self, place: u32, (lane, tag, message): Whole) {
        let Self { links, finished, .. } = self;
        let admission = links.admission();
        let Some(link) = links.at(place) else { return };
        let len = message.len();
        if link.deliver((lane, tag), message, admission, finished) {
            return link.way.lanes.took(lane.place());
        }
        let (peer, most) = (link.peer, self.common.bounds.max_held);
        if let Some(greedy) = links.withhold(peer, len, most, finished) {
            let why = "its requests took too much memory while they waited";
            self.refuse(greedy.index(), why);
            self.end_now(greedy.index(), GoneReason::Exhausted(why.into()));
        }
    }

    /// Hands out what waited for admission; says whether there was any.
    fn admit(&mut self) -> bool {
        if !self.links.has_admissible() {
            return false;
        }
        let Self { links, finished, busy, .. } = self;
        links.admit(ADMITTED_MAX, finished, |link, _| {
            link.way.lanes.took(Lane::Unexpected.place());
            if link.way.lanes.owes_credits() {
                list_busy(&mut link.way.own, link.peer.index(), busy);
            }
        });
        true
    }

    /// A move for a peer's transfer is over, and has failed perhaps.
    pub fn moved(&mut self, peer: Peer, id: u64, is_failed: bool) {
        let Some(link) = self.links.find(peer) else { return };
        link.way.moves.moved(id, is_failed, &mut link.owner);
        self.mark_busy(peer.index());
    }

    /// Puts a connection on the list of those with something to send.
    pub(crate) fn mark_busy(&mut self, place: u32) {
        if let Some(link) = self.links.at(place) {
            list_busy(&mut link.way.own, place, &mut self.busy);
        }
    }

    /// Gives every connection on the list its turn; says whether a frame has left.
    fn send_all(&mut self, now: Instant) -> bool {
        let mut moved = self.transport.begins_sending(now);
        for place in mem::take(&mut self.busy) {
            if let Some(link) = self.links.at(place) {
                link.way.own.is_busy = false;
                moved |= self.send_link(place, Some(now));
            }
        }
        moved
    }

    /// One connection's turn; it goes on the list when it has more to send. Says whether a frame has left.
    fn send_link(&mut self, place: u32, now: Option<Instant>) -> bool {
        let Self { links, transport, finished, .. } = self;
        let Some(link) = links.at(place).filter(|link| link.way.own.is_open()) else {
            return false;
        };
        let mut moved = false;
        for _ in 0..TURN {
            match exchange::step(link, transport, finished) {
                Step::Left => moved = true,
                Step::Idle => {
                    self.flows(place);
                    return moved;
                }
                Step::Stalled => {
                    if moved {
                        self.flows(place);
                    }
                    self.stalls(place, now);
                    return moved;
                }
                Step::Broken(fault) => {
                    self.way_broke(place, fault);
                    return true;
                }
            }
        }
        // There is more: the next round goes on.
        self.flows(place);
        self.mark_busy(place);
        moved
    }

    fn flows(&mut self, place: u32) {
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return };
        transport.flows(&mut link.way.own.route);
        self.tell_room(place);
    }

    fn stalls(&mut self, place: u32, now: Option<Instant>) {
        self.mark_busy(place);
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return };
        let now = now.unwrap_or_else(Instant::now);
        if let Err(fault) = transport.stalls(&mut link.way.own, now) {
            self.way_broke(place, fault);
        }
    }

    /// Tells once that queues which were full have room.
    pub(crate) fn tell_room(&mut self, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if link.tell_room(&LIMITS, 0, &mut self.finished) {
            self.nudge();
        }
    }

    /// Connects, or sends what can be sent; what cannot needs progress, which ends a sleep.
    pub(crate) fn get_under_way(&mut self, peer: Peer) {
        self.waiter.begins_again();
        let Some(link) = self.links.find(peer) else { return };
        match link.way.own.phase {
            Phase::Idle => {
                self.connect(peer);
                self.nudge();
            }
            Phase::Open => {
                if !link.way.own.is_busy {
                    self.send_link(peer.index(), None);
                }
                if self.is_sleeping && (!self.busy.is_empty() || self.transport.needs_a_look()) {
                    self.nudge();
                }
            }
            Phase::Connecting { .. }
            | Phase::Greeting { .. }
            | Phase::Awaiting
            | Phase::Draining { .. }
            | Phase::Ended => {}
        }
    }
}

/// Puts an open connection on the list of those with something to send.
pub(crate) fn list_busy<R>(connection: &mut Connection<R>, place: u32, busy: &mut Vec<u32>) {
    if !connection.is_busy && connection.is_open() {
        connection.is_busy = true;
        busy.push(place);
    }
}
