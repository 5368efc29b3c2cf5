//! Calls that are polled make progress themselves, where nobody else does.
//!
//! | whoever polls, in vain so far | the background thread |
//! |---|---|
//! | P1 a caller for a moment: the thread gives a role back that it spins with | |
//! | P2 the role is free: some rounds; a few looks for it otherwise | |
//! | P3 in vain: *want* the role, leave the call to the thread | P4 wanted, and nothing is under way: stand aside for a while |
//!
//! - P3 to P4: the thread settles the call and wakes who awaits it. It would spin with the role when the next call is polled, on
//!   the same core perhaps. Standing aside, it leaves the role to that one (P2), and then no second thread is woken any more.
//! - A peer that takes its time is polled in vain. After some such polls in a row only a few try (`Polls`): the others cost what
//!   they always did.
//! - Inside of a handler nobody polls for progress: the role is in use around it, or the handler is to end soon.

use std::sync::{Arc, atomic::Ordering};

use hg_core::operations::{OperationId, Outcome};

use crate::{
    background::Progress,
    inside::is_in_handler,
    lock::MutexGuard,
    port::{OutcomeOf, Port, Role, State},
    settings::Wait,
};

/// Rounds that one poll makes at most: some microseconds of shared memory, some tens of a network.
const ROUNDS_OF_A_POLL: u32 = 128;
/// Looks for a role that somebody has.
const LOOKS_FOR_THE_ROLE: u32 = 16;

impl Port {
    /// A call is polled: makes progress for it, for some rounds, and puts its outcome to its place if it comes.
    #[inline]
    pub(crate) fn progress_for_poll(
        self: &Arc<Self>,
        id: OperationId,
        outcome: &mut Option<Outcome>,
    ) {
        let polls = &self.background.polls;
        let blocks = self.shared.settings.wait == Wait::Block;
        if blocks || !self.has_background() || is_in_handler() || !polls.is_worth_while() {
            return;
        }
        // Whoever sleeps with the role is woken by what arrives.
        let mut progress = Progress::None;
        if !self.has_sleeper() {
            self.enter(); // P1
            progress = self.look_or_make_rounds(id, outcome);
            self.leave();
        }
        polls.was(if outcome.is_some() { Progress::Found } else { progress }); // P3
    }

    #[inline]
    fn look_or_make_rounds(
        self: &Arc<Self>,
        id: OperationId,
        outcome: &mut Option<Outcome>,
    ) -> Progress {
        for _ in 0..LOOKS_FOR_THE_ROLE {
            let Some(mut state) = self.enter_at_rest() else { break };
            if state.protocol.operations.any_settled()
                && state.protocol.operations.take_into(id, outcome)
            {
                self.pass_room_on(state);
                return Progress::Found;
            }
            let Some(work) = state.take_work(self.shared.platform.as_ref(), false) else {
                drop(state);
                self.shared.platform.relax();
                continue;
            };
            let begun = self.begin_driving(Role::new(self, work), state);
            let Some((role, state)) = begun else { break };
            self.make_rounds(role, state, OutcomeOf { id, outcome, waits: false }); // P2
            return Progress::Vain; // Unless there is an outcome.
        }
        Progress::None
    }

    #[inline]
    fn make_rounds<'p>(
        self: &'p Arc<Self>,
        mut role: Role<'p>,
        mut state: MutexGuard<'p, State>,
        mut look: OutcomeOf<'_>,
    ) {
        for _ in 1..ROUNDS_OF_A_POLL {
            let (_, found) = self.round(&mut role, state, &mut look);
            if found.is_some() || role.is_lost() || self.closing.load(Ordering::Relaxed) {
                return;
            }
            self.shared.platform.relax();
            let Some(next) = self.enter_at_rest() else { return };
            state = next;
        }
        self.round(&mut role, state, &mut look);
    }
}
