//! Accepting, and what a connection may cost before it has introduced itself.
//!
//! A stranger costs a descriptor, its link and a few kilobytes at most, for `connect-timeout-ms` at most, and counts as no peer. Past
//! [`STRANGERS_MAX`] of them, or when descriptors run out, the one that has waited longest makes room, unless all have come within
//! [`PATIENCE`]: a crowd of peers that all start at once is no attack. Inside the machine a process of another user is refused:
//! libfabric's shm trusts whatever lies in a peer's memory.

use std::{
    io,
    time::{Duration, Instant},
};

use hg_na::GoneReason;
use nix::sys::epoll::EpollFlags;

use crate::{context::OfiContext, lifeline::Lifeline, link::Phase, waiter::LISTENER, wire::Record};

/// Connections accepted at a time.
const ACCEPTS: usize = 64;
/// How long nothing is accepted after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that have not introduced themselves, before the oldest are closed.
const STRANGERS_MAX: usize = 1024;
/// How long a stranger is let alone in any case.
const PATIENCE: Duration = Duration::from_secs(1);

impl OfiContext {
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

    fn accepted(&mut self, mut lifeline: Lifeline, now: Instant) {
        if let Some(uid) = lifeline.other_user() {
            tracing::debug!(uid, "a process of another user is refused");
            return lifeline.say(&Record::Refuse(of_other_user(uid)));
        }
        let Ok(way) = Self::new_way(Phase::Greeting) else { return };
        let place = self.links.accept(way).index();
        self.strangers += 1;
        self.at(now + self.shared.settings.connect_timeout, place);
        self.watch(place, lifeline);
        if self.strangers > STRANGERS_MAX {
            self.shed_stranger(now);
        }
    }

    /// Connections that have introduced themselves, or were looked up here.
    pub(crate) fn acquaintances(&self) -> usize {
        self.links.len() - self.strangers
    }

    /// A connection is about to be known, or to come to nothing.
    pub(crate) fn no_stranger(&mut self, place: u32) {
        if self.links.at(place).is_some_and(|link| matches!(link.way.phase, Phase::Greeting)) {
            self.strangers -= 1;
        }
    }

    /// Closes the stranger that has waited longest; says whether there was one to be closed.
    fn shed_stranger(&mut self, now: Instant) -> bool {
        // Strangers all wait equally long, so the one that came first ends first.
        let wait = self.shared.settings.connect_timeout;
        let before = now + wait.saturating_sub(PATIENCE);
        let Self { timers, links, .. } = self;
        let early = timers.iter().take_while(|(at, _)| *at <= before);
        let mut places = early.map(|(_, place)| *place);
        let is_stranger = |place: &u32| {
            links.at(*place).is_some_and(|it| matches!(it.way.phase, Phase::Greeting))
        };
        let Some(place) = places.find(is_stranger) else { return false };
        tracing::warn!("a connection that says nothing is closed: too many do");
        self.end_now(place, GoneReason::TimedOut);
        true
    }
}

/// Why a process of another user is no peer.
pub(crate) fn of_other_user(uid: u32) -> String {
    format!(
        "ofi+shm is for processes of one user, and the other side is user {uid}'s: use sm with its setting allow-uid, or ofi+tcp"
    )
}

fn is_shortage(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM))
}
