//! Accepting, and what a connection may cost before it has introduced itself.
//!
//! A stranger costs a descriptor, its link and a few kilobytes at most, for `connect-timeout-ms` at most, and counts as no peer; how
//! many there may be says [`hg_na_link::strangers`].

use std::{io, time::Instant};

use hg_na::GoneReason;
use hg_na_link::strangers::{ACCEPT_PAUSE, ACCEPTS};
use hg_na_parts::limits::is_shortage;
use nix::sys::epoll::EpollFlags;

use crate::{
    context::VerbsContext,
    lifeline::Lifeline,
    waiter::LISTENER,
    way::{Phase, Way},
};

impl VerbsContext {
    /// Accepts what has come.
    pub(crate) fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match listener.accept(self.shared.settings.silence_bound) {
                Ok(lifeline) => self.accepted(lifeline, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_shortage(&error) => {
                    if self.shed_stranger(now) {
                        continue;
                    }
                    tracing::warn!(%error, "no connection is accepted for a while");
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    let Some(listener) = &self.listener else { return };
                    let paused = self.waiter.change(listener.fd(), LISTENER, EpollFlags::empty());
                    debug_assert!(paused.is_ok(), "a descriptor of the set is changed");
                    return;
                }
                // The caller has gone meanwhile.
                Err(_) => {}
            }
        }
    }

    fn accepted(&mut self, lifeline: Lifeline, now: Instant) {
        let place = self.links.accept(Way::new(Phase::Greeting { since: now })).index();
        self.at(now + self.shared.settings.connect_timeout, place);
        self.watch(place, lifeline);
        if self.strangers.came(now, place) {
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
            && let Phase::Greeting { since } = link.way.phase
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
