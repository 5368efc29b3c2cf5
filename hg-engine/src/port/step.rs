//! One round of progress.

use std::sync::Arc;

use hg_core::{
    deferred::Action,
    operations::{OperationId, Outcome},
};

use super::{Port, ROUNDS_PER_CLOCK, Role, Shared, State, Whose, Work};
use crate::{deferred, lock::MutexGuard};

/// What the holder of the role makes progress for.
pub(crate) trait Look {
    /// What it waits for.
    type Found;

    /// Asked in each round, after the transport's completions were dealt with.
    fn look(&mut self, state: &mut State) -> Option<Self::Found>;

    /// Whose pieces of transfers this thread moves itself (`moving.rs`).
    fn whose_moves(&self, _state: &mut State) -> Whose {
        Whose::Nobodys
    }

    /// Whether somebody sees to pieces that its last round leaves.
    fn is_followed(&self) -> bool {
        false
    }

    /// Asked before a round that may be left out, if it waits for one thing alone: finding that, the round is.
    #[inline(always)]
    fn collect(&mut self, _state: &mut State) -> Option<Self::Found> {
        None
    }
}

impl<T, F: FnMut(&mut State) -> Option<T>> Look for F {
    type Found = T;

    #[inline(always)]
    fn look(&mut self, state: &mut State) -> Option<T> {
        self(state)
    }
}

/// Waits for the outcome of a call.
pub(crate) struct OutcomeOf<'a> {
    pub(crate) id: OperationId,
    /// Where to put it.
    pub(crate) outcome: &'a mut Option<Outcome>,
    /// This thread waits for that, however long it takes.
    pub(crate) waits: bool,
}

impl Look for OutcomeOf<'_> {
    type Found = ();

    #[inline(always)]
    fn look(&mut self, state: &mut State) -> Option<()> {
        state.protocol.operations.take_into(self.id, self.outcome).then_some(())
    }

    fn whose_moves(&self, state: &mut State) -> Whose {
        let peer = state.protocol.operations.moves_without_deadline(self.id);
        peer.filter(|_| self.waits).map_or(Whose::Nobodys, Whose::Of)
    }

    /// Whoever waits tells the background thread when it leaves.
    fn is_followed(&self) -> bool {
        self.waits
    }

    #[inline(always)]
    fn collect(&mut self, state: &mut State) -> Option<()> {
        state.protocol.collect(self.id, self.outcome).then_some(())
    }
}

impl Port {
    /// One round, from the locked state on. `look` is asked once, after the transport's completions were dealt with;
    /// when it finds something, this was the holder's last round. Says whether anything moved. Where a piece of a transfer was moved,
    /// the role is lost.
    #[inline(always)]
    pub(crate) fn round<'p, L: Look + ?Sized>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        mut state: MutexGuard<'p, State>,
        look: &mut L,
    ) -> (bool, Option<L::Found>) {
        let work = role.work();
        if work.may_leave_out(&state) {
            if let Some(found) = look.collect(&mut state) {
                work.rounds_since_clock += 1;
                role.give_back(state);
                return (true, Some(found));
            }
            let Work { request, done, requests, .. } = work;
            if let Some(ticket) = state.protocol.take_request(request, done, requests) {
                work.rounds_since_clock += 1;
                let found = look.look(&mut state);
                drop(state);
                let locked = work.service.serve_one(self, &ticket, &mut work.request);
                self.end_serving(role, locked, found.is_some(), look);
                return (true, found);
            }
        }
        let mut moved = self.progress_transport(&mut state, work);
        let found = look.look(&mut state);
        if found.is_some() {
            state.protocol.tell_waiting(); // What was found has made room.
        }
        state.protocol.end_round();
        let has_moves = state.protocol.operations.has_moves();
        let is_over = work.requests.is_empty()
            && state.protocol.deferred.is_empty()
            && state.is_open()
            && !has_moves;
        if is_over && !work.is_ready() {
            work.done.clear();
            if found.is_some() {
                role.give_back(state);
            }
            return (moved, found);
        }
        let is_last = found.is_some() && work.requests.is_empty() && !has_moves;
        if is_last && state.is_open() && !work.is_ready() {
            self.end_round(role, state);
            return (true, found);
        }
        if !state.protocol.deferred.is_empty() {
            std::mem::swap(&mut work.deferred, &mut state.protocol.deferred);
        }
        drop(state);

        if !work.deferred.is_empty() {
            moved = true;
            deferred::run(&mut work.deferred, self.id, &self.shared.pool);
        }
        let Work { service, requests, done, .. } = work;
        let locked = service.serve(self, requests, done);
        done.clear();
        let has_moved = self.end_serving(role, locked, found.is_some(), look);
        (moved | has_moved, found)
    }

    /// Handlers have been run: polls what they have left, and moves pieces of transfers. Says whether that was anything.
    #[inline(always)]
    fn end_serving<'p, L: Look + ?Sized>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        mut locked: Option<MutexGuard<'p, State>>,
        is_last: bool,
        look: &mut L,
    ) -> bool {
        let work = role.work();
        let is_ready = work.is_ready();
        if is_ready {
            locked = None;
            work.service.poll_ready(self);
        }
        let Some(state) = locked.or_else(|| self.enter_state()) else { return is_ready };
        if state.protocol.operations.has_moves()
            && !(is_last && look.is_followed() && self.has_background())
        {
            drop(state);
            self.move_pieces(role, look, is_last);
            return true;
        }
        if is_last && state.is_open() {
            role.give_back(state);
        }
        is_ready
    }

    /// The holder's last round leaves nothing but wakers to be woken: whoever is woken finds the role free.
    #[cold]
    fn end_round(&self, role: &mut Role<'_>, mut state: MutexGuard<'_, State>) {
        role.work().done.clear();
        let mut deferred = std::mem::take(&mut state.protocol.deferred);
        role.give_back(state);
        deferred::run(&mut deferred, self.id, &self.shared.pool);
    }

    /// [`Port::round`], not part of its caller.
    #[inline(never)]
    pub(crate) fn step<'p, L: Look + ?Sized>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        state: MutexGuard<'p, State>,
        look: &mut L,
    ) -> (bool, Option<L::Found>) {
        self.round(role, state, look)
    }

    #[inline(always)]
    fn progress_transport(&self, state: &mut State, work: &mut Work) -> bool {
        let is_clock_read = work.read_clock(&self.shared);
        if is_clock_read {
            state.protocol.handle_clock(work.now);
            for pool in self.shared.pools() {
                if pool.is_retry_due(work.now) {
                    state.protocol.deferred.push(Action::Drop(pool.retry_later()));
                }
            }
        }
        if state.protocol.serves.has_held() {
            state.protocol.take_held(&mut work.done, &mut work.requests);
        }
        let mut at = work.done.len();
        let Some(context) = &mut state.protocol.context else { return false };
        let moved = match context.progress(work.now, &mut work.done) {
            Ok(moved) => moved,
            Err(error) => {
                state.protocol.fail(&error);
                return true;
            }
        };
        let any = !work.done.is_empty();
        while let Some(completion) = work.done.get_mut(at) {
            at += 1;
            state.protocol.handle_completion(completion, at - 1, &mut work.requests);
        }
        let moved = moved | any;
        if is_clock_read {
            state.protocol.handle_timeout();
        }
        if state.protocol.has_chores() {
            state.protocol.do_chores();
        }
        moved
    }
}

impl Work {
    /// Whether a round may be left out, of those that share a reading of the clock: nothing else is known to be due.
    #[inline]
    fn may_leave_out(&self, state: &State) -> bool {
        self.rounds_since_clock < ROUNDS_PER_CLOCK && state.protocol.may_rest() && !self.is_ready()
    }

    /// Says whether the clock was read in this round; others go by the last reading.
    #[inline]
    fn read_clock(&mut self, shared: &Shared) -> bool {
        let is_due = self.rounds_since_clock >= ROUNDS_PER_CLOCK;
        if is_due {
            self.now = shared.platform.now();
            self.rounds_since_clock = 0;
        }
        self.rounds_since_clock += 1;
        is_due
    }
}
