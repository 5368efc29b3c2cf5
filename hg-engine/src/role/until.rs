//! Waiting for something else than the answer of a call: a transfer.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use super::{Follower, Parked};
use crate::port::{Port, State};

impl Port {
    /// Waits until `look` finds something, making progress meanwhile or letting somebody else do it. Given a
    /// waker, `look` leaves it to be woken when there is something. `None` when nothing will ever be found:
    /// the engine closes, or is the copy of a forked child.
    pub(crate) fn wait_until<T>(
        self: &Arc<Self>,
        look: impl FnMut(&mut State, Option<&Waker>) -> Option<T>,
    ) -> Option<T> {
        // Relaxed: set before anybody waits.
        let background = self.background.is_there.load(Ordering::Relaxed);
        if background {
            self.enter();
        }
        let found = self.drive_or_follow_until(look);
        if background {
            self.leave();
        }
        found
    }

    fn drive_or_follow_until<T>(
        self: &Arc<Self>,
        mut look: impl FnMut(&mut State, Option<&Waker>) -> Option<T>,
    ) -> Option<T> {
        let platform = self.shared.platform.as_ref();
        let me = Parked::here(platform);
        let waker = me.waker();
        loop {
            if let Some((mut role, mut state)) = self.try_role() {
                state.followers.unfollow(&me);
                if let Some(found) = look(&mut state, None) {
                    role.give_back(state); // H1, H2
                    return Some(found);
                }
                return self.drive(&mut role, state, None, &mut |state: &mut _| look(state, None)); // F2
            }
            if self.is_forked() {
                // Whoever has the role is not in this process.
                return None;
            }
            let mut state = self.enter_state()?;
            state.followers.unfollow(&me);
            if let Some(found) = look(&mut state, Some(&waker)) {
                let next = if state.work.is_some() { state.followers.next() } else { None };
                drop(state);
                next.inspect(Follower::come);
                return Some(found); // F1
            }
            if state.work.is_none() {
                state.followers.push(me.clone());
                drop(state);
                platform.park(); // F3
            }
        }
    }
}
