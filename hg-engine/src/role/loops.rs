//! The role and foreign loops ([`crate::EventLoop`]): who goes round by itself sleeps where somebody else can wake it.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{Ordering, fence},
    },
    time::Instant,
};

use super::{Bell, Follower, Role, pass_on};
use crate::{
    inside::is_inside,
    port::{Port, State},
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
    /// There is another loop; says whether there can be one here: not in a forked child.
    pub(crate) fn add_loop(&self, bell: &Arc<Bell>) -> bool {
        let Some(mut state) = self.enter_state() else { return false };
        state.followers.add_loop(Arc::clone(bell));
        drop(state);
        self.has_loops.store(true, Ordering::Relaxed);
        // What a round has woken without knowing of this loop, is seen when its caller looks next: see `Port::round`.
        fence(Ordering::SeqCst);
        true
    }

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
        if state.followers.has_news(bell) {
            return None;
        }
        if state.followers.know_of_end() {
            return if state.followers.hear_of_end(bell) { None } else { Some(Rest::Beside) }; // L6
        }
        // Relaxed: who closes tells everybody afterwards (L6).
        let is_ending = self.closing.load(Ordering::Relaxed) || !state.is_open();
        let work = if is_ending { None } else { state.work.take() };
        let Some(work) = work else {
            // Nobody gives the role back to who sleeps inside its round.
            if is_inside(self.id) {
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

    /// The engine was closed while nobody had the role (L6).
    pub(crate) fn tell_loops_of_end(&self) {
        let Some(mut state) = self.enter_state() else { return };
        let loops = state.followers.tell_loops_of_end();
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
