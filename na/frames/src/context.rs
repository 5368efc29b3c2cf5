//! One context: what `na` calls, and the state behind it.

use std::{collections::BTreeSet, fmt, mem, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Identity, Message, Op, OpId, Peer, Rejected,
    Token, Waiter,
};
use hg_na_link::{
    Cancelled, Framed, Lane, Links, Strangers,
    exchange::{self, Came, Step},
    frame::MESSAGE_MAX,
    lanes::Whole,
    sending::new_message,
};
use nix::sys::epoll::EpollFlags;

use crate::{
    common::{Common, LIMITS},
    connection::{Connection, Phase},
    lifeline::Listener,
    transport::Transport,
    waiter::{FramesWaiter, LISTENER},
};

/// Looks at the endpoint in one round.
const LOOKS: usize = 16;
/// Empty rounds after which the kernel is asked for news of lifelines.
const ASK_AFTER: u32 = 256;
/// So many rounds in any case: while one peer's messages leave no empty ones, others die, and new ones come.
const ASK_ROUNDS: u32 = 4096;
/// Frames that one connection sends before the next has its turn.
const TURN: usize = 64;
/// Withheld messages handed out in a round.
const ADMITTED_MAX: usize = 4096;

/// What is under way with one peer of a context.
type Way<T> = Framed<Connection<<T as Transport>::Route>>;
/// One peer of a context.
pub type Link<T> = hg_na_link::Link<<T as Transport>::Place, Way<T>>;

/// A context over a transport.
pub struct FramedContext<T: Transport> {
    pub(crate) common: Arc<Common>,
    id: u8,
    address: Address,
    /// How frames go out and come in.
    pub transport: T,
    pub(crate) waiter: Arc<FramesWaiter>,
    pub(crate) listener: Option<Listener>,
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
    pub(crate) accept_at: Option<Instant>,
    is_sleeping: bool,
    pub(crate) must_ask: bool,
    empty_rounds: u32,
    /// Since the kernel was asked.
    rounds: u32,
    pub(crate) told: Vec<(u64, EpollFlags)>,
    /// The endpoint cannot be used any more.
    broken: Option<Error>,
}

impl<T: Transport> FramedContext<T> {
    /// A context over an endpoint, listening at its place.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn new(
        common: Arc<Common>,
        (id, address): (u8, Address),
        (transport, waiter): (T, FramesWaiter),
        listener: Listener,
    ) -> Result<Self, Error> {
        if common.listen {
            waiter.add(listener.fd(), LISTENER, EpollFlags::EPOLLIN)?;
        }
        Ok(Self {
            common,
            id,
            address,
            transport,
            waiter: Arc::new(waiter),
            listener: Some(listener),
            links: Links::new(0, LIMITS),
            strangers: Strangers::default(),
            busy: Vec::new(),
            draining: Vec::new(),
            timers: BTreeSet::new(),
            finished: Vec::new(),
            accept_at: None,
            is_sleeping: false,
            must_ask: true,
            empty_rounds: 0,
            rounds: 0,
            told: Vec::new(),
            broken: None,
        })
    }

    /// Whether the endpoint can still be used.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// There is something to do for this side's progress: ends a sleep, should another thread be in one.
    fn nudge(&mut self) {
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    fn round(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let before = done.len();
        done.append(&mut self.finished);
        let slept = mem::take(&mut self.is_sleeping);
        let mut moved = self.look()?;
        self.empty_rounds = if moved { 0 } else { self.empty_rounds + 1 };
        self.rounds += 1;
        let is_time = self.empty_rounds >= ASK_AFTER || self.rounds >= ASK_ROUNDS;
        if slept || self.must_ask || !self.draining.is_empty() || is_time {
            (self.empty_rounds, self.rounds) = (0, 0);
            moved |= self.attend_lifelines(now)?;
        }
        moved |= self.run_timers(now);
        moved |= self.admit();
        moved |= self.send_all(now);
        if !self.draining.is_empty() {
            self.drain_all(now);
        }
        done.append(&mut self.finished);
        Ok(moved || done.len() > before)
    }

    /// Looks at the endpoint; says whether there was something.
    ///
    /// # Errors
    /// The endpoint cannot be used any more.
    pub fn look(&mut self) -> Result<bool, Error> {
        for look in 0..LOOKS {
            match T::poll(self) {
                Ok(true) => {}
                Ok(false) => return Ok(look > 0),
                Err(error) => {
                    self.broken = Some(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(true)
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
        let Self { links, busy, .. } = self;
        let Some(link) = links.at(place) else { return };
        if !link.way.own.is_busy && exchange::has_work(link) {
            list_busy(&mut link.way.own, place, busy);
        }
    }

    fn deliver(&mut self, place: u32, (lane, tag, message): Whole) {
        let Self { links, finished, .. } = self;
        let admission = links.admission();
        let Some(link) = links.at(place) else { return };
        if link.deliver((lane, tag), message, admission, finished) {
            link.way.lanes.took(lane.place());
        } else {
            let peer = link.peer;
            links.await_admission(peer);
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
    fn tell_room(&mut self, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if link.tell_room(&LIMITS, 0, &mut self.finished) {
            self.nudge();
        }
    }

    /// Connects, or sends what can be sent; what cannot needs progress, which ends a sleep.
    fn get_under_way(&mut self, peer: Peer) {
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

impl<T: Transport> Context for FramedContext<T> {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.common.same_process()?;
        let place = self.transport.target(address)?;
        if let Some(peer) = self.links.looked_up(&place) {
            return Ok(peer);
        }
        let route = self.transport.route()?;
        let way = || Framed::new(Connection::new(Phase::Idle, route));
        Ok(self.links.look_up(place, way))
    }

    fn forget(&mut self, peer: Peer) {
        if self.common.same_process().is_err() || self.links.find(peer).is_none() {
            return;
        }
        // What had arrived is nobody's any more.
        if !self.links.forget(peer, &mut self.finished) {
            self.say_goodbye(peer.index());
            self.end_now(peer.index(), GoneReason::Forgotten);
        }
        self.nudge();
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        new_message(len, MESSAGE_MAX)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.common.same_process() {
            return Err(Rejected { op, error });
        }
        let peer = op.peer();
        let id = self.links.post(token, op, |_| 0)?;
        self.get_under_way(peer);
        Ok(id)
    }

    fn cancel(&mut self, id: OpId) {
        if self.common.same_process().is_err() {
            return;
        }
        let Self { links, finished, busy, .. } = self;
        if let Some(ended) = links.cancel(id, finished) {
            if let Cancelled::Transfer { serial, is_told, written } = ended {
                if let Some(entry) = written {
                    entry.abandon();
                }
                if is_told && let Some(link) = links.at(id.scope) {
                    link.way.aborts.push_back(serial);
                    list_busy(&mut link.way.own, id.scope, busy);
                }
            }
            self.nudge();
        }
        self.tell_room(id.scope);
    }

    fn set_admission(&mut self, open: bool) {
        if self.links.set_admission(open) {
            self.nudge();
        }
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        if self.links.set_admission_of(peer, open) {
            self.nudge();
        }
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.common.same_process()?;
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(when, _)| *when);
        [timer, self.accept_at, self.transport.deadline()].into_iter().flatten().min()
    }

    fn may_sleep(&mut self) -> bool {
        if self.common.same_process().is_err() || self.broken.is_some() {
            return false;
        }
        let is_idle = self.finished.is_empty() && self.draining.is_empty();
        if !is_idle || self.links.has_admissible() || T::can_send(self) || !T::arms(self) {
            return false;
        }
        let mut told = mem::take(&mut self.told);
        let asked = self.waiter.ask(&mut told);
        self.told = told;
        self.is_sleeping = asked.is_ok() && self.told.is_empty();
        self.must_ask = !self.is_sleeping;
        self.is_sleeping
    }

    fn identity(&self, peer: Peer) -> Identity {
        match self.links.get(peer) {
            Some(link) if self.common.same_process().is_ok() => link.way.own.identity.clone(),
            _ => Identity::default(),
        }
    }

    fn flush(&mut self) -> bool {
        T::flush(self)
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.links.iter().filter(|link| link.way.own.is_open()).map(|link| link.peer).collect()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.links.find(peer).is_none_or(|link| link.way.own.was_open())
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl<T: Transport> Drop for FramedContext<T> {
    fn drop(&mut self) {
        if self.common.same_process().is_err() {
            // The parent's connections are not ours to close.
            return self.transport.forget();
        }
        T::close(self);
        drop(self.listener.take());
        self.common.closed(self.id);
    }
}

impl<T: Transport> fmt::Debug for FramedContext<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}({}, {} peers)", T::NAME, self.address, self.links.len())
    }
}

/// Puts an open connection on the list of those with something to send.
fn list_busy<R>(connection: &mut Connection<R>, place: u32, busy: &mut Vec<u32>) {
    if !connection.is_busy && connection.is_open() {
        connection.is_busy = true;
        busy.push(place);
    }
}
