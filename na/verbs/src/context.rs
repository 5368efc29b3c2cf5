//! One context: what `na` calls, and the state behind it.
//!
//! | file | what it does for the context |
//! |---|---|
//! | [`crate::post`] | lookup, post, cancel, forget |
//! | [`crate::send`] | frames out: messages and transfers, as credits and the card allow |
//! | [`crate::arrive`] | frames in |
//! | [`crate::lent`] | memory that is lent to a peer, and moves that peers ask for |
//! | [`crate::chores`] | lifelines, timers, how connections begin and end |
//! | [`crate::strangers`] | accepting |

use std::{collections::BTreeSet, fmt, mem, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Error, Identity, Message, Op, OpId, Peer, Rejected, Token, Waiter,
};
use hg_na_link::{Strangers, sending::new_message};
use nix::sys::epoll::EpollFlags;

use crate::{
    card::{Endpoint, Event},
    lifeline::Listener,
    settings::{LIMITS, MESSAGE_MAX},
    shared::Shared,
    waiter::{LISTENER, VerbsWaiter},
    way::Links,
};

/// Batches of completions that one round takes.
const BATCHES: usize = 16;
/// Empty rounds after which the kernel is asked for news of lifelines.
const ASK_AFTER: u32 = 256;
/// So many rounds in any case: while one peer's messages leave no empty ones, others die, and new ones come.
const ASK_ROUNDS: u32 = 4096;

/// How far the flush of a context is.
#[derive(Debug, Clone, Copy, Default)]
enum Flush {
    /// None is under way.
    #[default]
    Idle,
    /// Messages up to this number are to get into send queues.
    Queues(u64),
    /// They are: each connection knows which post is waited for.
    Pairs,
}

/// A queue pair whose connection has ended here, and whose peer has not got everything.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) pair: u32,
    pub(crate) last: u64,
    /// When it is destroyed in any case.
    pub(crate) by: Instant,
}

/// A context of the verbs transport.
pub(crate) struct VerbsContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u8,
    pub(crate) address: Address,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) waiter: Arc<VerbsWaiter>,
    pub(crate) listener: Option<Listener>,
    pub(crate) links: Links,
    /// Connections that have not introduced themselves.
    pub(crate) strangers: Strangers<u32>,
    pub(crate) parting: Vec<Parting>,
    flush: Flush,
    /// Connections with something to send.
    pub(crate) busy: Vec<u32>,
    /// Draining connections, which are looked at in every round.
    pub(crate) draining: Vec<u32>,
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    pub(crate) finished: Vec<Completion>,
    pub(crate) accept_at: Option<Instant>,
    pub(crate) is_sleeping: bool,
    pub(crate) must_ask: bool,
    empty_rounds: u32,
    /// Since the kernel was asked.
    rounds: u32,
    pub(crate) told: Vec<(u64, EpollFlags)>,
    events: Vec<Event>,
    /// The card cannot be used any more.
    broken: Option<Error>,
}

impl VerbsContext {
    /// A context over an endpoint, listening at its place.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u8,
        address: Address,
        endpoint: Endpoint,
        listener: Listener,
    ) -> Result<Self, Error> {
        let waiter = VerbsWaiter::new(Arc::clone(&shared.guard), endpoint.fd())?;
        if shared.listen {
            waiter.add(listener.fd(), LISTENER, EpollFlags::EPOLLIN)?;
        }
        Ok(Self {
            shared,
            id,
            address,
            endpoint: Some(endpoint),
            waiter: Arc::new(waiter),
            listener: Some(listener),
            links: Links::new(0, LIMITS),
            strangers: Strangers::default(),
            parting: Vec::new(),
            flush: Flush::default(),
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
            events: Vec::new(),
            broken: None,
        })
    }

    /// The endpoint, which is there until the context is dropped.
    #[inline]
    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("taken only by drop")
    }

    /// There is something to do for this side's progress: ends a sleep, should another thread be in one.
    pub(crate) fn nudge(&mut self) {
        if self.is_sleeping {
            self.waiter.wake();
        }
    }

    /// One look at the completion queue; says whether there was something.
    fn take_events(&mut self) -> Result<bool, Error> {
        let (mut found, mut events) = (false, mem::take(&mut self.events));
        for _ in 0..BATCHES {
            match self.endpoint().poll(&mut events) {
                Ok(true) => found = true,
                Ok(false) => break,
                Err(fault) => {
                    let error = Error::from(fault);
                    self.broken = Some(error.clone());
                    return Err(error);
                }
            }
            for event in events.drain(..) {
                match event {
                    Event::Arrived { place, frame, len } => self.frame_came(place, frame, len),
                    Event::Moved { place, id } => self.was_read(place, id),
                    Event::Broken { place, fault } => self.way_broke(place, fault),
                }
            }
        }
        self.events = events;
        Ok(found)
    }

    fn round(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let before = done.len();
        done.append(&mut self.finished);
        let slept = mem::take(&mut self.is_sleeping);
        let mut moved = self.take_events()?;
        self.empty_rounds = if moved { 0 } else { self.empty_rounds + 1 };
        self.rounds += 1;
        let is_time = self.empty_rounds >= ASK_AFTER || self.rounds >= ASK_ROUNDS;
        if slept || self.must_ask || !self.draining.is_empty() || is_time {
            (self.empty_rounds, self.rounds) = (0, 0);
            moved |= self.attend_lifelines(now)?;
        }
        moved |= self.run_timers(now);
        moved |= self.admit();
        moved |= self.send_all();
        self.drain_all(now);
        done.append(&mut self.finished);
        Ok(moved || done.len() > before)
    }

    /// Whether a round would send something.
    fn can_send(&mut self) -> bool {
        let Self { busy, links, .. } = self;
        busy.iter().any(|place| links.at(*place).is_some_and(|link| !link.way.is_stalled))
    }

    /// Has each connection remember its last post, and has its completion asked for.
    fn mark_pairs(&mut self) {
        let open: Vec<_> =
            self.links.iter().filter_map(|link| Some((link.peer, link.way.pair?))).collect();
        for (peer, pair) in open {
            let last = self.endpoint().last(pair);
            if let Some(link) = self.links.find(peer) {
                link.way.flush_to = Some(last);
            }
        }
    }

    /// Whether all posts have ended that a flush waits for.
    fn pairs_are_through(&mut self) -> bool {
        let Self { links, endpoint, .. } = self;
        let Some(endpoint) = endpoint else { return true };
        let mut are_through = true;
        for link in links.iter() {
            let (Some(pair), Some(last)) = (link.way.pair, link.way.flush_to) else { continue };
            if !endpoint.is_over(pair, last) {
                endpoint.ask(pair);
                are_through = false;
            }
        }
        are_through
    }
}

impl Context for VerbsContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.shared.same_process()?;
        self.look_up(address)
    }

    fn forget(&mut self, peer: Peer) {
        if self.shared.same_process().is_ok() {
            self.forget_peer(peer);
        }
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        new_message(len, MESSAGE_MAX)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.post_op(token, op)
    }

    fn cancel(&mut self, id: OpId) {
        if self.shared.same_process().is_ok() {
            self.cancel_op(id);
        }
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
        self.shared.same_process()?;
        self.round(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(when, _)| *when);
        let parting = self.parting.iter().map(|it| it.by).min();
        [timer, self.accept_at, parting].into_iter().flatten().min()
    }

    fn may_sleep(&mut self) -> bool {
        if self.shared.same_process().is_err() || self.broken.is_some() {
            return false;
        }
        let is_idle = self.finished.is_empty() && self.draining.is_empty();
        if !is_idle || self.links.has_admissible() || self.can_send() {
            return false;
        }
        if let Err(fault) = self.endpoint().arm() {
            tracing::debug!(%fault, "a completion queue is not armed");
            return false;
        }
        // What came before it was armed does not wake.
        match self.take_events() {
            Ok(false) => {}
            Ok(true) | Err(_) => return false,
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
            Some(link) if self.shared.same_process().is_ok() => link.way.identity.clone(),
            _ => Identity::default(),
        }
    }

    fn flush(&mut self) -> bool {
        if matches!(self.flush, Flush::Idle) {
            self.flush = Flush::Queues(self.links.serial());
        }
        if let Flush::Queues(to) = self.flush {
            if !self.links.iter().all(|link| link.queues.has_passed_on(to)) {
                return false;
            }
            self.mark_pairs();
            self.flush = Flush::Pairs;
        }
        let is_over = self.pairs_are_through();
        if is_over {
            self.flush = Flush::Idle;
        }
        is_over
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.links.iter().filter(|link| link.way.is_open()).map(|link| link.peer).collect()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.links.find(peer).is_none_or(|link| link.way.was_open())
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl Drop for VerbsContext {
    fn drop(&mut self) {
        if self.shared.same_process().is_err() {
            // The parent's connections are not ours to close.
            mem::forget(self.endpoint.take());
            return;
        }
        self.close_all();
        drop(self.endpoint.take());
        drop(self.listener.take());
        self.shared.closed(self.id);
    }
}

impl fmt::Debug for VerbsContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "VerbsContext({}, {} peers)", self.address, self.links.len())
    }
}
