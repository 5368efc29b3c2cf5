//! Between polling on and sleeping.
//!
//! `Wait::Adaptive` polls for a while before it sleeps. That pays where the peer has a core of its own. Where both sides share one, or
//! others keep the cores busy, the peer answers only when this side gives the core away: so a poll in vain for all that time, and then a
//! sleep that ends soon, is taken for a sign that the peer waits for this core ([`Spins`]). After some such signs in
//! a row the next polls give the core away after each look (`sched_yield(2)`): whoever waits for it runs at once, and no core falls
//! asleep, of which waking it would take longer than the call. Where the core comes back late,
//! others want it for long: the next sleeps begin at once, since who is woken has it before them. Such a poll that ends in vain, while the
//! core has come back each time, tells of a slow answer, and of nobody else: through two daemons (`hg-visor`) one in many takes so long.
//! Where every answer takes one to five times what is polled, each wait gives the core away for that time before it sleeps: processor time
//! that nobody else has asked for.
//! Then it polls again, once; more polls are of that kind each time that this ends as before.
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
/// How many polls give the core away at first, and at most.
const YIELDS: u32 = 16;
const YIELDS_MAX: u32 = 512;
/// Batches of such polls that sleep at once instead, after one in which others wanted the core for long.
const CROWDED: u32 = 16;
/// A core that comes back after so many times what is polled was wanted for long.
const LATE: u32 = 4;

/// What polling has brought a port lately. Only who has the role writes it.
#[derive(Debug)]
pub(crate) struct Spins {
    /// Signs in a row that a peer waits for this core.
    signs: AtomicU32,
    /// Polls that have found something since the last one.
    finds: AtomicU32,
    /// Polls that give the core away from now on.
    yields: AtomicU32,
    /// How many do after the next sign.
    next: AtomicU32,
    /// Batches of them that sleep at once instead.
    crowded: AtomicU32,
}

/// How a wait begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It polls.
    Poll,
    /// It polls, and gives the core away after each look.
    Yield,
    /// It sleeps.
    Sleep,
}

impl Default for Spins {
    fn default() -> Self {
        let next = YIELDS.into();
        Self { signs: 0.into(), finds: 0.into(), yields: 0.into(), next, crowded: 0.into() }
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
        self.next.store(YIELDS, Ordering::Relaxed);
        self.crowded.store(0, Ordering::Relaxed);
    }

    /// A short sleep has followed on polling in vain.
    fn add_sign(&self) {
        let signs = (self.signs.load(Ordering::Relaxed) + 1).min(SIGNS);
        self.signs.store(signs, Ordering::Relaxed);
        self.finds.store(0, Ordering::Relaxed);
        if signs == SIGNS {
            let next = self.next.load(Ordering::Relaxed);
            self.yields.store(next, Ordering::Relaxed);
            self.next.store((next * 2).min(YIELDS_MAX), Ordering::Relaxed);
            let crowded = self.crowded.load(Ordering::Relaxed);
            self.crowded.store(crowded.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// The core was given away, and others wanted it for long.
    fn add_crowd(&self) {
        self.crowded.store(CROWDED, Ordering::Relaxed);
    }

    /// How the wait that is due now begins.
    fn take(&self) -> Manner {
        let left = self.yields.load(Ordering::Relaxed);
        if left == 0 {
            return Manner::Poll;
        }
        self.yields.store(left - 1, Ordering::Relaxed);
        if self.crowded.load(Ordering::Relaxed) > 0 { Manner::Sleep } else { Manner::Yield }
    }
}

/// Decides between polling on and sleeping.
pub(crate) struct Idle<'p> {
    platform: &'p dyn Platform,
    /// Whether the platform is to be told that nothing was found.
    yields: bool,
    wait: Wait,
    manner: Manner,
    /// Rounds in vain since something moved, or since it has slept.
    rounds: u32,
    since: Option<Instant>,
    /// When the core was given away last.
    given: Option<Instant>,
    spins: &'p Spins,
    /// When it had been polled in vain for as long as is to be polled.
    vain: Option<Instant>,
}

impl<'p> Idle<'p> {
    pub(crate) fn new(wait: Wait, platform: &'p dyn Platform, spins: &'p Spins) -> Self {
        let (yields, manner) = (platform.yields(), Manner::Poll);
        let (since, given, vain) = (None, None, None);
        Self { platform, yields, wait, manner, rounds: 0, since, given, spins, vain }
    }

    #[inline]
    pub(crate) fn may_poll_on(&mut self, moved: bool) -> bool {
        if moved {
            self.has_found();
            self.begin();
            return true;
        }
        self.rounds = self.rounds.wrapping_add(1);
        match self.wait {
            Wait::Spin => true,
            Wait::Block => false,
            Wait::Adaptive(_) if self.rounds == 1 => {
                self.manner = self.spins.take();
                self.manner != Manner::Sleep
            }
            Wait::Adaptive(_)
                if self.manner == Manner::Poll && !self.rounds.is_multiple_of(ROUNDS_PER_LOOK) =>
            {
                true
            }
            Wait::Adaptive(spin) => self.may_go_on(spin),
        }
    }

    fn begin(&mut self) {
        self.rounds = 0;
        self.manner = Manner::Poll;
        (self.since, self.given) = (None, None);
    }

    /// Something moved: found by polling on, unless that was the first round after a sleep.
    #[inline]
    pub(crate) fn has_found(&self) {
        let polled = self.rounds > 0 && self.manner == Manner::Poll;
        if polled && self.spins.signs.load(Ordering::Relaxed) > 0 {
            self.spins.add_find();
        }
    }

    /// Whether it is polled for less than this time so far; where the core was given away, it has come back.
    fn may_go_on(&mut self, spin: Duration) -> bool {
        let now = self.platform.now();
        let given = self.given.replace(now).unwrap_or(now);
        let yields = self.manner == Manner::Yield;
        let is_late = yields && now.saturating_duration_since(given) > spin * LATE;
        if !is_late && now.saturating_duration_since(*self.since.get_or_insert(now)) < spin {
            return true;
        }
        if is_late {
            self.spins.add_crowd();
        }
        self.vain = Some(now);
        false
    }

    /// After a sleep.
    pub(crate) fn has_slept(&mut self) {
        self.begin();
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
        } else if self.manner == Manner::Yield {
            self.platform.give_way();
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

    /// Waits of one manner, until they begin in another one.
    fn in_a_row(spins: &Spins, manner: Manner) -> u32 {
        let mut count = 0;
        while spins.yields.load(Ordering::Relaxed) > 0 {
            assert_eq!(spins.take(), manner);
            count += 1;
        }
        assert_eq!(spins.take(), Manner::Poll);
        count
    }

    #[test]
    fn signs_in_a_row_make_ever_more_polls_give_the_core_away() {
        let spins = Spins::default();
        spins.add_sign();
        assert_eq!(in_a_row(&spins, Manner::Yield), 0, "one may be by chance");
        spins.add_sign();
        assert_eq!(in_a_row(&spins, Manner::Yield), YIELDS);
        spins.add_sign();
        assert_eq!(in_a_row(&spins, Manner::Yield), 2 * YIELDS, "one poll more was in vain");
        (0..20).for_each(|_| spins.add_sign());
        assert_eq!(in_a_row(&spins, Manner::Yield), YIELDS_MAX);
    }

    #[test]
    fn a_core_that_others_want_for_long_is_slept_on_at_once_for_some_batches() {
        let spins = Spins::default();
        (0..2).for_each(|_| spins.add_sign());
        assert_eq!(spins.take(), Manner::Yield);
        spins.add_crowd();
        assert_eq!(in_a_row(&spins, Manner::Sleep), YIELDS - 1);
        for _ in 1..CROWDED {
            spins.add_sign();
            in_a_row(&spins, Manner::Sleep);
        }
        spins.add_sign();
        in_a_row(&spins, Manner::Yield);
        spins.add_crowd();
        spins.forget();
        (0..2).for_each(|_| spins.add_sign());
        assert_eq!(in_a_row(&spins, Manner::Yield), YIELDS, "what is forgotten is forgotten whole");
    }

    #[test]
    fn a_poll_that_has_found_something_by_chance_takes_no_sign_back() {
        let spins = Spins::default();
        (0..3).for_each(|_| spins.add_sign());
        in_a_row(&spins, Manner::Yield);
        for more in [4, 8] {
            (1..FINDS).for_each(|_| spins.add_find());
            spins.add_sign();
            assert_eq!(in_a_row(&spins, Manner::Yield), more * YIELDS);
        }
    }

    #[test]
    fn what_polls_in_a_row_have_found_takes_the_signs_back() {
        let spins = Spins::default();
        (0..5).for_each(|_| spins.add_sign());
        in_a_row(&spins, Manner::Yield);
        (0..FINDS).for_each(|_| spins.add_find());
        spins.add_sign();
        assert_eq!(in_a_row(&spins, Manner::Yield), 0);
        spins.add_sign();
        assert_eq!(in_a_row(&spins, Manner::Yield), YIELDS);
    }

    /// A machine on which nothing passes but time, as it is told.
    #[derive(Debug)]
    struct Clock(std::sync::Mutex<Instant>);

    impl Clock {
        fn pass(&self, time: Duration) {
            *self.0.lock().unwrap() += time;
        }
    }

    impl Platform for Clock {
        fn now(&self) -> Instant {
            *self.0.lock().unwrap()
        }

        fn process(&self) -> u32 {
            unreachable!()
        }

        fn spawn(
            &self,
            _: String,
            _: crate::platform::Job,
        ) -> std::io::Result<crate::platform::Spawned> {
            unreachable!()
        }

        fn current(&self) -> crate::platform::Thread {
            unreachable!()
        }

        fn park(&self) {
            unreachable!()
        }

        fn park_timeout(&self, _: Duration) {
            unreachable!()
        }
    }

    #[test]
    fn a_slow_answer_is_no_crowd_and_a_late_core_is() {
        let spin = Duration::from_micros(50);
        for (away, expected) in [(spin / 10, Manner::Yield), (spin * (LATE + 1), Manner::Sleep)] {
            let clock = Clock(std::sync::Mutex::new(crate::platform::Machine::default().now()));
            let spins = Spins::default();
            (0..2).for_each(|_| spins.add_sign());
            let mut idle = Idle::new(Wait::Adaptive(spin), &clock, &spins);
            while idle.may_poll_on(false) {
                assert_eq!(idle.manner, Manner::Yield);
                clock.pass(away);
            }
            assert_eq!(spins.take(), expected, "its core came back after {away:?}");
        }
    }
}
