//! Accepting, and what a connection may cost before it has introduced itself.
//!
//! A stranger costs a descriptor, its link and a few kilobytes at most, for `connect-timeout-ms` at most, and counts as no peer; how
//! many there may be says [`hg_na_link::strangers`].

use std::{io, time::Instant};

use hg_na::GoneReason;
use hg_na_link::{
    Framed, Record,
    strangers::{ACCEPT_PAUSE, ACCEPTS, Turn},
};
use hg_na_parts::limits::{descriptors_are_scarce, is_scarce, is_shortage};
use nix::sys::epoll::EpollFlags;

use crate::{
    connection::{Connection, Phase},
    context::{FramedContext, Transport},
    lifeline::Lifeline,
    waiter::LISTENER,
};

impl<T: Transport> FramedContext<T> {
    /// Accepts what has come.
    pub(crate) fn accept(&mut self, now: Instant) {
        if let Some(mut lifeline) = self.scarcity.take_waiting() {
            // Of the numbers that were free, it has the last.
            lifeline.lower();
            self.has_come(lifeline, now);
        }
        (0..self.listeners.len()).for_each(|door| self.accept_at(door, now));
    }

    fn accept_at(&mut self, door: usize, now: Instant) {
        for _ in 0..ACCEPTS {
            if self.rests_until.is_some() {
                return;
            }
            match self.listeners[door].accept(self.common.bounds.silence_bound) {
                Ok(mut lifeline) => {
                    lifeline.door = door;
                    self.has_come(lifeline, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_shortage(&error) => {
                    if !self.shed_stranger(now) {
                        self.rest(&error.to_string(), now);
                    }
                }
                // The caller has gone meanwhile.
                Err(_) => {}
            }
        }
    }

    fn has_come(&mut self, mut lifeline: Lifeline, now: Instant) {
        let mut has_room = !is_scarce(lifeline.fd());
        if !has_room && self.shed_stranger(now) {
            lifeline.lower();
            has_room = true;
        }
        match self.scarcity.came(now, lifeline, has_room) {
            Turn::Welcomed(lifeline) => self.accepted(lifeline, now),
            Turn::Refused(lifeline) => lifeline.refuse::<T::Hello>(descriptors_are_scarce()),
            Turn::Waits => self.rest(&descriptors_are_scarce(), now),
        }
    }

    /// The listeners are heard again after a while.
    fn rest(&mut self, why: &str, now: Instant) {
        tracing::warn!("connections wait: {why}");
        self.rests_until = Some(now + ACCEPT_PAUSE);
        self.hear_listeners(EpollFlags::empty());
    }

    /// Whether the listeners are heard.
    pub(crate) fn hear_listeners(&self, what: EpollFlags) {
        for listener in &self.listeners {
            let changed = self.waiter.set.change(listener.fd(), LISTENER, what);
            debug_assert!(changed.is_ok(), "a descriptor of the set is changed");
        }
    }

    fn accepted(&mut self, mut lifeline: Lifeline, now: Instant) {
        if let Err(why) = self.transport.admits(&lifeline) {
            tracing::debug!(why, "a connection is refused");
            return lifeline.say(&Record::<T::Hello>::Refuse(why));
        }
        let key = self.common.bounds.key.as_ref();
        let sealed = key.map_or(Ok(()), |key| lifeline.seal_with::<T::Hello>(key, false));
        let (Ok(()), Ok(route)) = (sealed, self.transport.route()) else { return };
        let connection = Connection::new(Phase::Greeting { since: now }, route);
        let place = self.links.accept(Framed::new(connection)).index();
        self.at(now + self.common.bounds.connect_timeout, place);
        // Before it is watched: where that fails, it has come to nothing, and its place is another's.
        let is_crowded = self.strangers.came(now, place);
        self.watch(place, lifeline);
        if is_crowded {
            self.shed_stranger(now);
        }
    }

    /// Connections that have introduced themselves, or were looked up here.
    pub(crate) fn acquaintances(&self) -> usize {
        self.links.len() - self.strangers.len()
    }

    /// A connection is about to be known, or to come to nothing.
    pub(crate) fn no_stranger(&mut self, place: u32) {
        if let Some(link) = self.links.at(place)
            && let Phase::Greeting { since } = link.way.own.phase
        {
            self.strangers.went(since, place);
        }
    }

    /// Closes the stranger that has waited longest; says whether there was one to be closed.
    fn shed_stranger(&mut self, now: Instant) -> bool {
        let Some(place) = self.strangers.to_shed(now) else { return false };
        tracing::warn!("a connection that says nothing is closed: too many do");
        self.end_now(place, GoneReason::TimedOut);
        true
    }
}
