//! What `na` calls of a context.

use std::{fmt, mem, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Identity, Message, Op, OpId, Peer, Rejected,
    Token, Waiter,
};
use hg_na_link::{Cancelled, Framed, frame::MESSAGE_MAX, sending::new_message};

use crate::{
    connection::{Connection, Phase},
    context::{FramedContext, Transport, list_busy},
};

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
        let Self { links, finished, busy, transport, .. } = self;
        if let Some(Cancelled { is_told, written, lent }) = links.cancel(id, finished) {
            lent.into_iter().for_each(|lent| transport.revoke(lent));
            if let Some(entry) = written {
                entry.abandon();
            }
            if is_told && let Some(link) = links.at(id.scope) {
                link.way.aborts.push_back(id.serial);
                list_busy(&mut link.way.own, id.scope, busy);
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
        // Of what a child posted the parent would hear nothing.
        self.common.same_process().ok()?;
        let timer = self.timers.first().map(|(when, _)| *when);
        [timer, self.rests_until, self.parts.due, self.transport.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn may_sleep(&mut self) -> bool {
        if self.common.same_process().is_err() || self.broken.is_some() {
            return false;
        }
        let is_idle = self.finished.is_empty() && !self.must_drain();
        if !is_idle || self.links.has_admissible() || T::can_send(self) || !T::arms(self) {
            return false;
        }
        let mut told = mem::take(&mut self.told);
        let asked = self.waiter.ask(&mut told);
        self.told = told;
        if matches!(asked, Ok(true)) {
            // It is told once, and meant for the sleep that follows: also for one on the descriptor.
            self.waiter.wake();
        }
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
        self.common.same_process().is_err() || T::flush(self)
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
        self.listeners.clear();
        self.common.closed(self.id);
    }
}

impl<T: Transport> fmt::Debug for FramedContext<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}({}, {} peers)", T::NAME, self.address, self.links.len())
    }
}
