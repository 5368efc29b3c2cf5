//! One endpoint of an application.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Identity, Message, Op, OpId, Peer, Rejected,
    Token, Waiter,
};
use hg_na_link::{Sending, sending::new_message};
use hg_na_parts::Flush;
use rustc_hash::FxHashMap;

use crate::{
    address::Target,
    session::{Event, Session},
    settings::{LIMITS, MESSAGE_MAX},
    shared::{Shared, Taken},
    way::{Links, State, Way, is_open},
    wire::{self, Header, Kind, next_id},
};

/// Messages that were withheld and are handed out in one round.
const ADMITTED: usize = 256;

/// What an id is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Link(Peer),
    /// It was closed here; the daemon has not answered.
    Closing,
}

/// A context.
#[derive(Debug)]
pub(crate) struct VisorContext {
    pub(crate) shared: Arc<Shared>,
    id: u8,
    pub(crate) address: Address,
    pub(crate) session: Session,
    waiter: Arc<dyn Waiter>,
    pub(crate) links: Links,
    /// By ids in this side's frames.
    pub(crate) places: FxHashMap<u32, Place>,
    /// Ids of those that this side has chosen, the last one, and how many there may be.
    pub(crate) opened: u32,
    last_id: u32,
    pub(crate) quota: u32,
    /// Peers that wait for the daemon, or for a free connection.
    pub(crate) asking: VecDeque<Peer>,
    /// Peers with something to send.
    pub(crate) busy: VecDeque<Peer>,
    /// Messages that the daemon's ring may not have taken, in their order. None: one that has ended meanwhile.
    pub(crate) handed: VecDeque<(Peer, Option<Sending>)>,
    /// What is to be collected.
    pub(crate) finished: Vec<Completion>,
    flush: Flush,
    /// The queues' part of the flush is over.
    is_flushed_here: bool,
    /// What came with the welcome; then memory for those of a round.
    events: Vec<Event>,
}

impl VisorContext {
    /// Of a session that is ready.
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u8,
        (session, address, quota, events): Taken,
    ) -> Self {
        Self {
            shared,
            id,
            address,
            waiter: session.local().waiter(),
            session,
            links: Links::new(0, LIMITS),
            places: FxHashMap::default(),
            opened: 0,
            last_id: 0,
            quota,
            asking: VecDeque::new(),
            busy: VecDeque::new(),
            handed: VecDeque::new(),
            finished: Vec::new(),
            flush: Flush::default(),
            is_flushed_here: false,
            events,
        }
    }

    /// Ends a wait, present or next.
    pub(crate) fn wake(&self) {
        self.waiter.wake();
    }

    /// Moves what was posted, or sees to it that there will be a connection.
    fn get_under_way(&mut self, peer: Peer, is_receive: bool) {
        let Some(link) = self.links.find(peer) else { return };
        match link.way.state {
            State::Open if !is_receive => {
                self.send_link(peer);
            }
            State::Idle => {
                link.way.state = State::Asking;
                self.asking.push_back(peer);
                // A daemon whose name is none was refused when the context was opened.
                let _unreachable = self.session.greet();
                self.ask();
                if self.session.is_ready() && !self.asking.is_empty() {
                    // There are too many connections, of which the next round tells.
                    self.wake();
                }
            }
            State::Asking | State::Opening | State::Open => {}
        }
    }

    /// Asks the daemon for the connections that wait, as far as it allows any.
    pub(crate) fn ask(&mut self) {
        while self.session.is_ready()
            && let Some(peer) = self.asking.pop_front()
        {
            let Some(link) = self.links.find(peer).filter(|it| it.way.state == State::Asking)
            else {
                continue;
            };
            if self.opened >= self.quota {
                return self.asking.push_front(peer);
            }
            let target = link.target.as_ref().and_then(|target| target.address().ok());
            link.way.state = State::Opening;
            let id = next_id(self.last_id, |id| self.places.contains_key(&id));
            self.last_id = id;
            if let Some(link) = self.links.find(peer) {
                link.way.id = id;
            }
            self.places.insert(id, Place::Link(peer));
            self.opened += 1;
            let target = target.as_ref().map_or("", Address::as_str);
            self.session.say(Header::new(Kind::Open, id, 0).frame(target.as_bytes()));
        }
    }

    /// Ends those for which there are too many connections, unless one is about to be free.
    fn refuse_asking(&mut self) {
        let is_full = self.session.is_ready() && self.opened >= self.quota;
        if !is_full || self.places.values().any(|place| matches!(place, Place::Closing)) {
            return;
        }
        while let Some(peer) = self.asking.pop_front() {
            let why = format!("it has {} of them, as many as its daemon allows", self.quota);
            self.end(peer, &GoneReason::Exhausted(why.into()));
        }
    }

    /// Closes a peer's connection, where it has one.
    pub(crate) fn close(&mut self, peer: Peer) {
        let Some(link) = self.links.find(peer) else { return };
        if let State::Opening | State::Open = link.way.state
            && let Some(place) = self.places.get_mut(&link.way.id)
            && matches!(place, Place::Link(of) if *of == peer)
        {
            *place = Place::Closing;
            let frame = wire::close(link.way.id, &GoneReason::Closed);
            self.session.say(frame);
        }
    }
}

impl Context for VisorContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        if self.shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let target = Target::parse(address)?;
        Ok(self.links.look_up(target, || Way::new(State::Idle, 0, Identity::default())))
    }

    fn forget(&mut self, peer: Peer) {
        if self.shared.guard.is_child() || self.links.get(peer).is_none() {
            return;
        }
        self.close(peer);
        if !self.links.forget(peer, &mut self.finished) {
            self.end(peer, &GoneReason::Forgotten);
        }
        self.wake();
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        new_message(len, MESSAGE_MAX)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if self.shared.guard.is_child() {
            return Err(Rejected { op, error: Error::Forked });
        }
        let (peer, is_receive) = (op.peer(), matches!(op, Op::RecvExpected { .. }));
        let id = self.links.post(token, op, |_| 0)?;
        self.get_under_way(peer, is_receive);
        Ok(id)
    }

    fn cancel(&mut self, id: OpId) {
        if self.shared.guard.is_child() {
            return;
        }
        // Too late for what was handed over: that ends when it has left.
        let Some(cancelled) = self.links.cancel(id, &mut self.finished) else { return };
        if let Some(link) = self.links.at(id.scope) {
            let peer = link.peer;
            if cancelled.is_told {
                link.way.cancels.push_back(id.serial);
                self.mark_busy(peer);
            }
            self.tell_room(peer);
        }
        self.wake();
    }

    fn set_admission(&mut self, open: bool) {
        if self.links.set_admission(open) {
            self.wake();
        }
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        if self.links.set_admission_of(peer, open) {
            self.wake();
        }
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        let mut events = std::mem::take(&mut self.events);
        let mut found = self.session.progress(now, &mut events)?;
        for event in events.drain(..) {
            self.happened(event);
        }
        self.events = events;
        if !self.asking.is_empty() {
            self.refuse_asking();
        }
        if self.links.has_admissible() {
            let mut released = Vec::new();
            self.links.admit(ADMITTED, &mut self.finished, |link, len| {
                link.way.release(len);
                if released.last() != Some(&link.peer) {
                    released.push(link.peer);
                }
            });
            for peer in released {
                self.mark_busy(peer);
            }
        }
        found |= self.send_all();
        found |= !self.finished.is_empty();
        done.append(&mut self.finished);
        Ok(found)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.session.next_deadline()
    }

    fn may_sleep(&mut self) -> bool {
        let has_work = !self.busy.is_empty() && !self.session.is_blocked();
        let is_idle = self.finished.is_empty() && !self.links.has_admissible() && !has_work;
        is_idle && self.events.is_empty() && self.session.may_sleep()
    }

    fn identity(&self, peer: Peer) -> Identity {
        if self.shared.guard.is_child() {
            return Identity::default();
        }
        self.links.get(peer).map(|link| link.way.identity.clone()).unwrap_or_default()
    }

    fn views(&self, _peer: Peer) -> bool {
        false
    }

    fn flush(&mut self) -> bool {
        if self.shared.guard.is_child() {
            return true;
        }
        if !self.is_flushed_here {
            let links = &self.links;
            let have_left = |to| links.iter().all(|link| link.queues.has_passed_on(to));
            self.is_flushed_here = self.flush.ask(links.serial(), have_left);
        }
        let is_over = self.is_flushed_here && self.session.flush();
        if is_over {
            self.is_flushed_here = false;
        }
        is_over
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.links.iter().filter(|link| is_open(link)).map(|link| link.peer).collect()
    }

    fn is_connected(&mut self, peer: Peer) -> bool {
        self.links.get(peer).is_some_and(is_open)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter)
    }
}

impl Drop for VisorContext {
    fn drop(&mut self) {
        self.shared.closed(self.id);
    }
}
