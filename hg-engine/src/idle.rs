//! Between polling on and sleeping.
//!
//! `Wait::Adaptive` polls for a while before it sleeps. That pays where the peer has a core of its own. Where both sides share one, or
//! others keep the cores busy, the peer answers only when this side sleeps: so a poll in vain for all that time, and then a sleep that
//! ends soon, is taken for a sign that the peer waits for this core ([`Spins`]). After some such signs in
//! a row the next sleeps begin at once. Then it polls again, once; more sleeps begin at once each time that this ends as before.
//! Some polls in a row that find something end that. One alone may find something where both sides share a core, too: the system has
//! given it to the peer meanwhile.
//!
//! A long sleep is no sign: there was nothing to do. A peer that answers a little later than the time that is polled gives
//! the sign, too, and loses nothing: its answers end a sleep either way.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::{platform::Platform, settings::Wait};

/// Idle rounds between two looks at the clock.
const ROUNDS_PER_LOOK: u32 = 64;
/// A call that is answered within so many rounds costs less than to wake another thread.
const ROUNDS_OF_A_SHORT_CALL: u32 = 32;
/// Signs in a row after which the next sleeps begin at once.
const SIGNS: u32 = 2;
/// Polls in a row that have found something, after which the signs are forgotten.
const FINDS: u32 = 4;
/// How many sleeps begin at once at first, and at most.
const AT_ONCE: u32 = 16;
const AT_ONCE_MAX: u32 = 512;

/// What polling has brought a port lately. Only who has the role writes it.
#[derive(Debug)]
pub(crate) struct Spins {
    /// Signs in a row that a peer waits for this core.
    signs: AtomicU32,
    /// Polls that have found something since the last one.
    finds: AtomicU32,
    /// Sleeps that begin at once from now on.
    at_once: AtomicU32,
    /// How many do after the next sign.
    next: AtomicU32,
}

impl Default for Spins {
    fn default() -> Self {
        Self { signs: 0.into(), finds: 0.into(), at_once: 0.into(), next: AT_ONCE.into() }
    }
}

// Relaxed: whoever has the role next has taken it under a lock.
impl Spins {
    /// Something came while it was polled.
    fn add_find(&self) {
        let finds = self.finds.load(Ordering::Relaxed) + 1;
        self.finds.store(finds, Ordering::Relaxed);
        if finds >= FINDS {
            self.forget();
        }
    }

    /// Polling pays, or nothing came for long.
    fn forget(&self) {
        self.signs.store(0, Ordering::Relaxed);
        self.next.store(AT_ONCE, Ordering::Relaxed);
    }

    /// A short sleep has followed on polling in vain.
    fn add_sign(&self) {
        let signs = (self.signs.load(Ordering::Relaxed) + 1).min(SIGNS);
        self.signs.store(signs, Ordering::Relaxed);
        self.finds.store(0, Ordering::Relaxed);
        if signs == SIGNS {
            let next = self.next.load(Ordering::Relaxed);
            self.at_once.store(next, Ordering::Relaxed);
            self.next.store((next * 2).min(AT_ONCE_MAX), Ordering::Relaxed);
        }
    }

    /// Whether the sleep that is due now begins at once.
    fn take_at_once(&self) -> bool {
        let left = self.at_once.load(Ordering::Relaxed);
        if left > 0 {
            self.at_once.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }
}

/// Decides between polling on and sleeping.
pub(crate) struct Idle<'p> {
    platform: &'p dyn Platform,
    /// Whether the platform is to be told that nothing was found.
    yields: bool,
    wait: Wait,
    /// Rounds in vain since something moved, or since it has slept.
    rounds: u32,
    since: Option<Instant>,
    spins: &'p Spins,
    /// When it had been polled in vain for as long as is to be polled.
    vain: Option<Instant>,
}

impl<'p> Idle<'p> {
    pub(crate) fn new(wait: Wait, platform: &'p dyn Platform, spins: &'p Spins) -> Self {
        let yields = platform.yields();
        Self { platform, yields, wait, rounds: 0, since: None, spins, vain: None }
    }

    #[inline]
    pub(crate) fn may_poll_on(&mut self, moved: bool) -> bool {
        if moved {
            self.has_found();
            self.rounds = 0;
            self.since = None;
            return true;
        }
        self.rounds = self.rounds.wrapping_add(1);
        match self.wait {
            Wait::Spin => true,
            Wait::Block => false,
            Wait::Adaptive(_) if self.rounds == 1 => !self.spins.take_at_once(),
            Wait::Adaptive(_) if !self.rounds.is_multiple_of(ROUNDS_PER_LOOK) => true,
            Wait::Adaptive(spin) => self.may_spin_on(spin),
        }
    }

    /// Something moved: found by polling on, unless that was the first round after a sleep.
    #[inline]
    pub(crate) fn has_found(&self) {
        if self.rounds > 0 && self.spins.signs.load(Ordering::Relaxed) > 0 {
            self.spins.add_find();
        }
    }

    fn may_spin_on(&mut self, spin: Duration) -> bool {
        let now = self.platform.now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < spin {
            return true;
        }
        self.since = None;
        self.vain = Some(now);
        false
    }

    /// After a sleep.
    pub(crate) fn has_slept(&mut self) {
        self.rounds = 0;
        if let (Wait::Adaptive(spin), Some(vain)) = (self.wait, self.vain.take()) {
            let slept = self.platform.now().saturating_duration_since(vain);
            // The peer has polled in vain meanwhile, too.
            if slept < spin * 4 { self.spins.add_sign() } else { self.spins.forget() }
        }
    }

    #[inline]
    pub(crate) fn relax(&self) {
        if self.yields {
            self.platform.relax();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Whether nothing has come for so many rounds that whoever waits for this thread's is to be told itself.
    #[inline]
    pub(crate) fn takes_long(&self) -> bool {
        self.rounds == ROUNDS_OF_A_SHORT_CALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps that begin at once until it is polled again.
    fn at_once(spins: &Spins) -> u32 {
        let mut count = 0;
        while spins.take_at_once() {
            count += 1;
        }
        count
    }

    #[test]
    fn signs_in_a_row_make_ever_more_sleeps_begin_at_once() {
        let spins = Spins::default();
        spins.add_sign();
        assert_eq!(at_once(&spins), 0, "one may be by chance");
        spins.add_sign();
        assert_eq!(at_once(&spins), AT_ONCE);
        spins.add_sign();
        assert_eq!(at_once(&spins), 2 * AT_ONCE, "one poll more was in vain");
        (0..20).for_each(|_| spins.add_sign());
        assert_eq!(at_once(&spins), AT_ONCE_MAX);
    }

    #[test]
    fn a_poll_that_has_found_something_by_chance_takes_no_sign_back() {
        let spins = Spins::default();
        (0..3).for_each(|_| spins.add_sign());
        at_once(&spins);
        for more in [4, 8] {
            (1..FINDS).for_each(|_| spins.add_find());
            spins.add_sign();
            assert_eq!(at_once(&spins), more * AT_ONCE);
        }
    }

    #[test]
    fn what_polls_in_a_row_have_found_takes_the_signs_back() {
        let spins = Spins::default();
        (0..5).for_each(|_| spins.add_sign());
        at_once(&spins);
        (0..FINDS).for_each(|_| spins.add_find());
        spins.add_sign();
        assert_eq!(at_once(&spins), 0);
        spins.add_sign();
        assert_eq!(at_once(&spins), AT_ONCE);
    }
}
