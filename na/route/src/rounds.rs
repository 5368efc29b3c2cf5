//! Rounds and sleep: which of the two plugins a round looks at.
//!
//! | round | when |
//! |---|---|
//! | of the local plugin alone | the network sleeps, and nothing waits here: [`PLAIN_ROUNDS`] between two of both |
//! | of the network alone | it is busy, and the local plugin has been silent for long: [`LOCAL_SHARE`] less one between two of both |
//! | the same | the local plugin sleeps on, after a sleep that ended for something else: [`NAP`] rounds, and the next sleep |
//! | the same | it is busy, and the local plugin was put to sleep ([`LOCAL_IDLE`]): until something comes for it |
//! | of both | otherwise; [`crate::network`] says when it looks at the network |
//!
//! The local plugin can sleep on where both have one wait set: it has agreed to ([`hg_na::Context::may_sleep`]), what comes
//! for it is kept and known, and nothing was posted to it. A thread that sleeps for each message of the network does not
//! ask it again and again.

use std::time::Instant;

use hg_na::{Completion, Error};

use crate::context::RouteContext;

/// Rounds between two looks at whether the network has something to say. It is asked before every sleep; and a thread
/// that spins hears of an idle network when the local plugin asks the kernel, which takes many times as many rounds.
const PLAIN_ROUNDS: u32 = 64;
/// Rounds that have found nothing local after which, while the network is busy, only every [`LOCAL_SHARE`]th one looks
/// at the local plugin: what comes first by it then waits for some more looks at a socket, a microsecond or two.
const LOCAL_QUIET: u32 = 128;
const LOCAL_SHARE: u32 = 4;
/// Looks at the local plugin in a row that have found nothing, beside a busy network, after which it is asked to sleep where
/// the network, asking the kernel, is told what comes for it: that is done every 32 to 2,048 rounds.
const LOCAL_IDLE: u32 = 1024;
/// Rounds after a sleep that the local plugin is left asleep in. Who spins looks at it after that, and is not rung any more.
const NAP: u32 = 4;

impl RouteContext {
    /// Something is asked for that a round of one plugin's alone would not do.
    #[inline(always)]
    pub(crate) fn disturb(&mut self) {
        self.plain_rounds = 0;
        self.local_quiet = 0;
    }

    /// The network is about to be given something to do.
    #[inline(always)]
    pub(crate) fn touch_network(&mut self) {
        self.plain_rounds = 0;
        self.network.touch();
    }

    /// One round.
    #[inline(always)]
    pub(crate) fn round(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        if self.plain_rounds > 0 && !self.network.is_late(now) {
            self.plain_rounds -= 1;
            return self.local.progress(now, done);
        }
        self.round_with_network(now, done)
    }

    /// A round that is not the local plugin's alone.
    #[inline(never)]
    fn round_with_network(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let passes = self.local_quiet > LOCAL_QUIET && !self.waiter.local_is_ready();
        if passes && self.local_due.is_none_or(|due| now < due) {
            if self.network.is_engaged() {
                self.local_quiet -= u32::from(!self.local_sleeps);
                return self.round_of_network(now, done);
            }
            self.local_quiet -= 1;
            return self.round_of_both(now, done, false);
        }
        self.round_of_both(now, done, true)
    }

    /// A round of a busy network's alone.
    #[inline(always)]
    fn round_of_network(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let start = done.len();
        // Taken apart and said anew: the result is long, and to hand it on would copy all of it.
        match self.network.context.progress(now, done) {
            Ok(false) if done.len() == start => Ok(false),
            Ok(moved) => {
                self.heard_network(start, now, moved, done);
                Ok(moved)
            }
            Err(error) => {
                self.heard_network(start, now, false, done);
                Err(error)
            }
        }
    }

    /// A round of both plugins. Where it leaves nothing to do but for one of them, those that follow are its alone.
    #[inline(never)]
    fn round_of_both(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
        looks: bool,
    ) -> Result<bool, Error> {
        self.is_sleeping = false;
        let start = done.len();
        let mut moved = false;
        if looks {
            moved = self.local.progress(now, done)?;
            if self.local_quiet < LOCAL_QUIET {
                self.idle_looks = 0;
            }
            self.local_quiet = if moved { 0 } else { LOCAL_QUIET.min(self.local_quiet + 1) };
            (self.local_sleeps, self.local_due) = (false, None);
            moved |= self.look_at_trials();
        }
        if done.len() > start {
            if !self.slices.is_empty() {
                self.slices.restore(&mut done[start..]);
            }
            if self.is_trying() {
                self.sift(start, done);
                // Before anything that the network has to say about the same peers.
                done.append(&mut self.ended);
            }
        }
        let is_due = self.network.is_due(now, moved, &self.waiter);
        if is_due {
            moved |= self.progress_network(now, done)?;
        }
        if !self.ended.is_empty() {
            moved = true;
            done.append(&mut self.ended);
        }
        if looks && !self.is_trying() {
            if !is_due && self.network.is_asleep() && self.slices.is_empty() {
                self.plain_rounds = PLAIN_ROUNDS;
            } else if self.local_quiet == LOCAL_QUIET && self.network.is_engaged() {
                self.local_quiet += LOCAL_SHARE - 1;
                self.idle_looks += 1;
                if self.idle_looks >= LOCAL_IDLE && self.waiter.is_shared() {
                    self.idle_looks = 0;
                    self.local_sleeps = self.local.may_sleep();
                    self.local_due = self.local.next_deadline();
                }
            }
        }
        Ok(moved)
    }

    /// Whether a completion of the local plugin's may be one of a trial.
    fn is_trying(&self) -> bool {
        !self.candidates.is_empty()
            || !self.names.is_empty()
            || !self.trials.is_empty()
            || !self.leaving.is_empty()
    }

    /// Whether a sleep would be ended by whatever comes, by either way.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let naps = self.local_sleeps && self.local_quiet > LOCAL_QUIET;
        self.disturb();
        if !self.waiter.sleeps() || !self.ended.is_empty() {
            return false;
        }
        // The network may have asked the kernel: what that has told of the local plugin, once, makes no descriptor readable any more.
        let sleeps = self.network.may_sleep(&self.waiter)
            && !self.waiter.network_is_ready()
            && ((naps && !self.waiter.local_is_ready()) || self.local.may_sleep());
        self.is_sleeping = sleeps;
        self.local_sleeps = sleeps && self.waiter.is_shared();
        if self.local_sleeps && !self.is_trying() {
            self.local_quiet = LOCAL_QUIET + NAP;
            self.local_due = self.local.next_deadline();
        }
        sleeps
    }
}
