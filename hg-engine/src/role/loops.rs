//! The role and foreign loops ([`crate::EventLoop`]): who goes round by itself sleeps where somebody else can wake it.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Instant,
};

use super::{Bell, Follower, Role, pass_on};
use crate::{
    port::{Port, State},
    request::is_in_handler,
};

/// How a loop may sleep.
pub(crate) enum Rest {
    /// On the transport, until then.
    Armed(Option<Instant>),
    /// Beside whoever has the role.
    Beside,
}

impl Role<'_> {
    /// Gives it back at the end of a loop's round (L2). The loop goes round once more before it sleeps.
    pub(crate) fn give_back_awake(mut self, bell: &Arc<Bell>) {
        let Some(mut state) = self.port.enter_state() else { return };
        if !state.is_open() {
            return drop(state); // As always.
        }
        if let Some(work) = self.work.as_mut() {
            state.hand_in(work);
        }
        std::mem::forget(std::mem::replace(&mut state.work, self.work.take())); // H1
        // What this round has found, the loop sees.
        state.followers.look(bell);
        let next = state.followers.next_thread();
        drop(state);
        next.inspect(Follower::come); // H2
    }

    /// Gives it back for a loop's sleep on the transport (L4).
    fn give_back_to_sleep(mut self, bell: &Arc<Bell>) {
        let Some(mut state) = self.port.enter_state() else { return };
        if !state.is_open() {
            return drop(state); // As always.
        }
        std::mem::forget(std::mem::replace(&mut state.work, self.work.take())); // H1
        let next = state.followers.arm(Arc::clone(bell));
        drop(state);
        next.inspect(Follower::come); // H2
    }
}

impl Port {
    /// A loop looks for itself (L1): gives the role, if nobody has it, and the locked state for the first round.
    pub(crate) fn role_of_loop(
        self: &Arc<Self>,
        bell: &Arc<Bell>,
    ) -> Option<(Role<'_>, MutexGuard<'_, State>)> {
        let mut state = self.enter_state()?;
        state.followers.look(bell);
        let work = state.work.take()?;
        Some((Role::new(self, work), state))
    }

    /// A loop is about to sleep (L3); `None`: it is to go round once more.
    pub(crate) fn rest(self: &Arc<Self>, bell: &Arc<Bell>) -> Option<Rest> {
        let mut state = self.enter_state()?;
        // Relaxed: who closes tells everybody afterwards.
        if state.followers.has_news(bell) || self.closing.load(Ordering::Relaxed) {
            return None;
        }
        let Some(work) = state.work.take() else {
            // Nobody gives the role back to who sleeps inside its round.
            if is_in_handler() || !state.is_open() {
                return None;
            }
            state.followers.follow(Arc::clone(bell)); // L5
            return Some(Rest::Beside);
        };
        let mut role = Role::new(self, work);
        drop(state);
        match self.arm(role.work()) {
            Some(until) => {
                role.give_back_to_sleep(bell);
                Some(Rest::Armed(until))
            }
            None => {
                role.give_back_awake(bell);
                None
            }
        }
    }

    /// Something was found that may be for a loop's own callers (H3).
    #[cold]
    pub(crate) fn tell_loops(&self) {
        let Some(mut state) = self.enter_state() else { return };
        let loops = state.followers.tell_loops();
        drop(state);
        loops.iter().for_each(Follower::come);
    }

    /// There is no such loop any more. It may have been told that the role is free.
    pub(crate) fn remove_loop(&self, bell: &Arc<Bell>) {
        let Some(mut state) = self.enter_state() else { return };
        state.followers.remove_loop(bell);
        if state.work.is_some() {
            pass_on(state);
        }
    }
}
