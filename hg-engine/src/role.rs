//! Who makes progress: one thread at a time, and never one that nobody needs.
//!
//! The *role* is the possession of [`Work`], which lies in the state while nobody has it. A caller in `wait` takes it if
//! it is there; otherwise it becomes a *follower*: it parks until its call has settled or the role is handed to it.
//!
//! # Protocol (no follower is forgotten)
//! Everything is decided under the state's lock:
//!
//! | follower | holder |
//! |---|---|
//! | F1 its call has settled: take the outcome, leave the line | H1 put the work back, tell the first in line |
//! | F2 the role is free, and kept for nobody else: take it | H2 calls have settled: wake those who wait for them |
//! | F3 join the line, unlock, park | H3 busy: neither, until its turn is over; then keep the role for the first in line |
//! | F4 its call's deadline has passed: keep time itself | |
//!
//! A follower that joins before H1 is told there or later; one that comes after it finds the role free. One that was told, and whose
//! call has settled meanwhile, tells the next one in its stead, if the role is free (F1); one that finds the role taken again
//! follows the new holder.
//!
//! # Threads that call back to back
//! A thread that takes the role several times in a row while others are in line is *busy*: to wake a follower for each
//! call would cost more than the call. So those who join the line of a busy holder are *patient*: nobody tells them of anything (H3), and
//! they park for [`GRACE`] at most. When the holder's turn is over, the role is kept for the first in line, which is told; nobody
//! else can take it before. Where a busy holder waits itself, patience ends: it wakes those whose calls have settled, and the others
//! by H2 from then on; so it is where a call is not answered within some rounds, as over a network. Where it does not come back, the first one that has parked for so long takes the role.
//! So threads that share a core get equal turns, and each call costs few switches between them.
//!
//! # Foreign loops ([`crate::EventLoop`])
//! A loop has the role for itself while it lives: it lies in the state between the loop's rounds, and nobody else takes it but the
//! thread that the loop runs in, which may wait for a call between two rounds. All others follow. Who has the role when the loop comes
//! gives it up as soon as it can (`Port::yielding`); when the loop ends, it goes to the first in line; when the engine closes,
//! to whoever comes first.
//!
//! `followers.rs` is the table of those who wait; its unit test searches all orders, and finds each of these rules needed.
//!
//! # The background thread
//! It steps aside while a caller waits, and for [`GRACE`] after the last one has left, so that calls
//! back to back never wake a second thread. When something else is under way, the last caller wakes it; so does whoever
//! polls a future in vain, or leaves a call to itself.
//!
//! # Futures that are polled
//! `poll.rs`: whoever polls a call takes a role that is free and makes progress for some rounds. So an awaited call to a peer
//! that answers soon wakes no second thread either.

mod poll;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use hg_core::operations::{OperationId, Outcome};

use crate::{
    background::Background,
    contain::{discard, panic_text},
    deferred,
    failure::no_thread,
    idle::Idle,
    inside::{is_in_handler, is_inside, waiting},
    lock::MutexGuard,
    platform::{Spawned, Thread},
    port::{Look, OutcomeOf, Port, Role, Sleep, State, Whose, Work},
    settings::Wait,
};

/// How long the background thread stays aside after the last caller has left.
const GRACE: Duration = Duration::from_millis(1);
/// Times of [`GRACE`] that one call takes before the background thread stops looking.
const GRACES_UNTIL_DEEP: u32 = 8;

impl Port {
    /// The role, if nobody has it, and the locked state for the first round.
    #[inline(always)]
    pub(crate) fn try_role(self: &Arc<Self>) -> Option<(Role<'_>, MutexGuard<'_, State>)> {
        let mut state = self.enter_at_rest()?;
        let is_contended = state.followers.any();
        let role = Role::new(self, state.take_work(self.shared.platform.as_ref(), false)?);
        if is_contended { self.begin_driving(role, state) } else { Some((role, state)) }
    }

    /// Whoever makes progress for others has taken the role: they are told of what it finds.
    #[inline(always)]
    pub(super) fn begin_driving<'p>(
        &'p self,
        mut role: Role<'p>,
        state: MutexGuard<'p, State>,
    ) -> Option<(Role<'p>, MutexGuard<'p, State>)> {
        if !role.work().is_busy {
            return Some((role, state));
        }
        drop(state);
        role.work().end_patience(self);
        let state = self.enter_state()?;
        Some((role, state))
    }

    /// The role is free, and somebody waits for it (H1).
    #[cold]
    pub(crate) fn pass_on(&self, mut state: MutexGuard<'_, State>) {
        let Some(now) = state.last_clock() else { return };
        let next = state.followers.give_back(now);
        let is_loop_asleep = state.followers.is_loop_asleep();
        drop(state);
        next.inspect(Thread::unpark);
        if is_loop_asleep {
            // Its thread has waited for a call, and taken what the loop's sleep would end by.
            self.waiter.wake();
        }
    }

    /// This thread waits no longer; where it was to take the role, the next one is.
    fn leave_line(&self, mut state: MutexGuard<'_, State>, me: &Thread) {
        let is_free = state.work.is_some();
        let next = state.followers.leave(me, is_free);
        self.pass_room_on(state);
        next.inspect(Thread::unpark);
    }

    /// Whoever has the role waits itself: those who were not told of anything are from now on.
    #[cold]
    pub(crate) fn end_patience(&self) {
        let Some(mut state) = self.enter_state() else { return };
        let State { protocol, followers, .. } = &mut *state;
        let (mut settled, mut before) = (Vec::new(), Vec::new());
        for (thread, id) in followers.end_patience() {
            if protocol.operations.is_settled(id) {
                settled.push(thread.clone());
            } else {
                before.push(protocol.operations.set_waker(id, waker_of(thread)));
            }
        }
        drop(state);
        drop(before); // Of whoever has polled those calls.
        settled.iter().for_each(Thread::unpark);
    }

    /// The same, however long that takes, but until `limit` at most; `None` in a forked child, too.
    pub(crate) fn wait_for_role(
        self: &Arc<Self>,
        limit: Option<Instant>,
    ) -> Option<(Role<'_>, MutexGuard<'_, State>)> {
        let platform = self.shared.platform.as_ref();
        let me = platform.current();
        loop {
            let left = limit.map(|limit| limit.saturating_duration_since(platform.now()));
            let mut state = self.enter_state()?;
            if let Some(work) = state.take_work(platform, false) {
                return self.begin_driving(Role::new(self, work), state);
            }
            // In a forked child nobody gives it back.
            if left.is_some_and(|left| left.is_zero()) || self.is_forked() {
                self.leave_line(state, &me);
                return None;
            }
            state.followers.follow(&me, None);
            drop(state);
            match left {
                Some(left) => platform.park_timeout(left),
                None => platform.park(),
            }
        }
    }

    /// Waits for a call, making progress meanwhile or letting somebody else do it. Its outcome is put to its place
    /// once, and not moved through every return value on the way; nothing is there in a forked child, or when
    /// the engine closes ([`Port::no_outcome`]).
    #[inline]
    pub(crate) fn wait_for(self: &Arc<Self>, id: OperationId, outcome: &mut Option<Outcome>) {
        // Relaxed: set before anybody waits.
        let background = self.background.is_there.load(Ordering::Relaxed);
        if background {
            self.enter();
        }
        self.drive_or_follow(id, outcome);
        if background {
            self.leave();
        }
    }

    #[inline]
    fn drive_or_follow(self: &Arc<Self>, id: OperationId, outcome: &mut Option<Outcome>) {
        let Some(mut state) = self.enter_at_rest() else { return };
        // With several calls under way the outcome is often there already.
        if state.protocol.operations.any_settled()
            && state.protocol.operations.take_into(id, outcome)
        {
            self.pass_room_on(state);
            return;
        }
        let mut look = OutcomeOf { id, outcome, waits: true };
        let is_over = match state.take_work(self.shared.platform.as_ref(), true) {
            Some(work) => self.drive(&mut Role::new(self, work), state, &mut look).is_some(),
            None => {
                drop(state);
                false
            }
        };
        if !is_over {
            self.follow(look.id, look.outcome);
        }
    }

    #[cold]
    fn follow(self: &Arc<Self>, id: OperationId, outcome: &mut Option<Outcome>) {
        if self.is_forked() {
            return; // Whoever held the role is not in this process.
        }
        let platform = self.shared.platform.as_ref();
        let me = platform.current();
        loop {
            let now = platform.now();
            let mut state = self.state.lock();
            if state.protocol.operations.is_settled(id) {
                *outcome = state.protocol.operations.take(id); // F1
                return self.leave_line(state, &me);
            }
            if let Some(work) = state.take_work(platform, true) {
                let look = &mut OutcomeOf { id, outcome, waits: true };
                let found = self.drive(&mut Role::new(self, work), state, look); // F2
                if found.is_some() || self.closing.load(Ordering::Relaxed) {
                    return;
                }
                continue;
            }
            let deadline = state.protocol.operations.deadline(id);
            let left = deadline.map(|at| at.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                if !self.expire(state, now, id) {
                    platform.park_timeout(GRACE); // A transfer.
                }
                continue; // F4
            }
            let is_patient = state.followers.follow(&me, Some(id));
            let operations = &mut state.protocol.operations;
            let before = if is_patient { None } else { operations.set_waker(id, waker_of(&me)) };
            drop(state);
            drop(before); // Of whoever has polled the call.
            match [left, is_patient.then_some(GRACE)].into_iter().flatten().min() {
                Some(limit) => platform.park_timeout(limit), // F3, F4
                None => platform.park(),
            }
        }
    }

    /// Keeps time in place of whoever has the role, and may be held up: by a handler, or a loop that does not go round. Says whether
    /// the call has settled.
    #[cold]
    fn expire(&self, mut state: MutexGuard<'_, State>, now: Instant, id: OperationId) -> bool {
        let is_settled = state.protocol.expire(id, now);
        drop(state);
        self.notify();
        is_settled
    }

    /// Makes progress until `look` finds something.
    #[inline]
    pub(crate) fn drive<'p, L: Look>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        state: MutexGuard<'p, State>,
        look: &mut L,
    ) -> Option<L::Found> {
        let (moved, found) = self.round(role, state, look);
        if found.is_some() { found } else { self.drive_on(role, moved, look, None).1 }
    }

    /// The rounds after the first one, until `look` finds something; of progress for nobody in particular, until anything moves, or
    /// its time is over. Says whether anything has moved in the last one.
    #[inline(never)]
    fn drive_on<'p, T>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        mut moved: bool,
        look: &mut dyn Look<Found = T>,
        for_nobody: Option<(Wait, Option<Instant>)>,
    ) -> (bool, Option<T>) {
        let platform = self.shared.platform.as_ref();
        let (wait, limit) = for_nobody.unwrap_or((self.shared.settings.wait, None));
        let how = if for_nobody.is_some() { Sleep::Interruptible } else { Sleep::Whole };
        let mut idle = Idle::new(wait, platform, &self.background.spins);
        loop {
            let is_out_of_time = || limit.is_some_and(|limit| limit <= platform.now());
            let is_over = for_nobody.is_some()
                && (self.take_interrupt() || moved || is_out_of_time())
                || self.closing.load(Ordering::Relaxed)
                || self.yielding.load(Ordering::Relaxed)
                || role.is_lost();
            if is_over {
                return (moved, None);
            }
            if idle.may_poll_on(moved) {
                if idle.takes_long() {
                    role.work().end_patience(self);
                }
                idle.relax();
            } else {
                if let Err(error) = self.sleep(role.work(), limit, how) {
                    // Whoever makes progress for nobody comes again, and would say so each time.
                    if for_nobody.is_none() {
                        tracing::error!(%error, "sleeping failed");
                    }
                    return (false, None);
                }
                idle.has_slept();
            }
            let Some(state) = self.enter_at_rest() else { return (false, None) };
            let found;
            (moved, found) = self.step(role, state, look);
            if found.is_some() {
                idle.has_found();
                return (moved, found);
            }
        }
    }

    /// Makes progress until something moved, or for so long; says which. In a handler it does nothing.
    #[inline(never)]
    pub(crate) fn progress_for(self: &Arc<Self>, wait: Wait, timeout: Duration) -> bool {
        if is_inside(self.id) {
            return false;
        }
        let limit = self.now().checked_add(timeout);
        waiting(|| {
            let Some((mut role, state)) = self.wait_for_role(limit) else { return false };
            let look = &mut |_: &mut _| None::<()>;
            let (moved, _) = self.step(&mut role, state, look);
            self.drive_on(&mut role, moved, look, Some((wait, limit))).0
        })
    }

    /// Ends everything: open calls fail, handlers are told, peers see the connection close.
    pub(crate) fn close(self: &Arc<Self>) {
        // A handler that drops the last handle runs inside the round of whoever has the role.
        let role = if is_in_handler() { None } else { self.role_to_close() };
        let (role, state) = match role {
            Some((role, state)) => (Some(role), Some(state)),
            None => (None, self.enter_state()),
        };
        let Some(mut state) = state else { return };
        let mut deferred = state.protocol.close();
        // Whoever has the role clears the work when it gives that back, and tells the loops.
        let leftovers = state.work.as_deref_mut().map(Work::clear);
        drop(state);
        deferred::run(&mut deferred, self.id, &self.shared.pool);
        drop(role);
        self.guests.end();
        leftovers.into_iter().for_each(|end| end());
        // Release: pairs with the Acquire of a loop, which looks once more then.
        if !self.is_closed.swap(true, Ordering::Release) {
            self.shared.port_closed();
            self.waiter.wake();
        }
    }

    fn enter(&self) {
        // SeqCst: the background thread reads the count after it has published that it sleeps.
        self.background.callers.fetch_add(1, Ordering::SeqCst);
        self.notify();
    }

    fn leave(&self) {
        self.background.departures.fetch_add(1, Ordering::Relaxed);
        // SeqCst: `deep` is read after the count was lowered; the background thread raises `deep` before
        // it reads the count.
        let last = self.background.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        let is_busy = || self.enter_at_rest().is_some_and(|state| state.protocol.is_busy());
        if last && (self.background.deep.load(Ordering::SeqCst) || is_busy()) && !self.is_forked() {
            // Release: pairs with `callers_left`.
            self.background.come_back.store(true, Ordering::Release);
            self.background.unpark();
        }
    }

    /// Something is under way that nobody waits for: a future was polled in vain, or a call was left to itself. The background
    /// thread stands aside no longer, unless a caller makes progress.
    #[inline]
    pub(crate) fn leave_to_background(&self) {
        let background = &self.background;
        if !background.is_there.load(Ordering::Relaxed) {
            return;
        }
        background.come_back.store(true, Ordering::Relaxed);
        // SeqCst on both sides (here and in `callers_left`): either the thread sees it before it parks, or it is seen aside here.
        fence(Ordering::SeqCst);
        if background.is_aside.load(Ordering::Relaxed) {
            self.call_background();
        }
    }

    #[cold]
    fn call_background(&self) {
        let background = &self.background;
        // A caller that waits looks for what it leaves behind when it leaves.
        let is_driven = background.callers.load(Ordering::SeqCst) > 0;
        if !is_driven && background.is_aside.swap(false, Ordering::Relaxed) && !self.is_forked() {
            background.unpark();
        }
    }

    /// The background thread. Nothing of a user's can end it; whatever does all the same, the engine ends with it, so that
    /// nobody waits for ever.
    fn run_in_background_to_the_end(self: &Arc<Self>) {
        let run = AssertUnwindSafe(|| self.run_in_background());
        if let Err(panic) = catch_unwind(run) {
            let why = panic_text(panic.as_ref());
            tracing::error!(why, "progress has panicked; the engine is closed");
            discard(panic);
            self.interrupt();
            self.close();
        }
    }

    /// Progress whenever no caller makes it.
    pub(crate) fn run_in_background(self: &Arc<Self>) {
        while !self.closing.load(Ordering::Relaxed) {
            if self.callers_left() {
                while let Some((mut role, state)) = self.wait_for_role(None) {
                    let found = self.drive(&mut role, state, &mut Others(&self.background));
                    if found.is_some() || !role.is_lost() {
                        break;
                    }
                }
                self.background.make_way_for_polls();
            }
        }
    }

    /// Waits until no caller waits, and none has for a while, or there is something that nobody waits for.
    fn callers_left(&self) -> bool {
        let is_over = self.stand_aside();
        self.background.is_aside.store(false, Ordering::Relaxed);
        is_over
    }

    fn stand_aside(&self) -> bool {
        let platform = self.shared.platform.as_ref();
        let background = &self.background;
        let mut unchanged = 0;
        loop {
            if self.closing.load(Ordering::Relaxed) {
                return false;
            }
            let before = background.departures.load(Ordering::Relaxed);
            if unchanged == GRACES_UNTIL_DEEP {
                background.deep.store(true, Ordering::SeqCst);
                if background.callers.load(Ordering::SeqCst) > 0 {
                    platform.park();
                }
                background.deep.store(false, Ordering::SeqCst);
                unchanged = 0;
                continue;
            }
            background.is_aside.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst); // As in `leave_to_background`.
            let is_wanted = background.come_back.load(Ordering::Relaxed);
            if !is_wanted || background.callers.load(Ordering::SeqCst) > 0 {
                platform.park_timeout(GRACE);
            }
            // Acquire: what the last caller left is seen.
            let is_called = background.come_back.swap(false, Ordering::Acquire);
            let quiet = background.departures.load(Ordering::Relaxed) == before;
            if background.callers.load(Ordering::SeqCst) > 0 {
                unchanged = if quiet { unchanged + 1 } else { 0 };
            } else if is_called || quiet {
                return true;
            }
        }
    }

    /// Whether a thread of the engine's own makes progress when nobody else does.
    #[inline]
    pub(crate) fn has_background(&self) -> bool {
        // Relaxed: set before the engine is handed out.
        self.background.is_there.load(Ordering::Relaxed)
    }

    pub(crate) fn start_background(self: &Arc<Self>) -> Result<Spawned, hg_na::Error> {
        self.background.is_there.store(true, Ordering::Relaxed);
        let port = Arc::clone(self);
        let name = format!("hg-progress-{}", self.index);
        let job = Box::new(move || port.run_in_background_to_the_end());
        let spawned = self.shared.platform.spawn(name, job);
        let spawned = spawned.map_err(no_thread)?;
        // It is set once: a port has one such thread.
        let _first = self.background.thread.set(spawned.thread.clone());
        Ok(spawned)
    }

    /// Tells everybody who drives or waits that the engine closes.
    pub(crate) fn interrupt(&self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(mut state) = self.enter_state() {
            state.followers.keep_for_nobody();
        }
        self.waiter.wake();
        self.background.unpark();
    }
}

/// What the background thread makes progress for: until others do, or want to.
struct Others<'p>(&'p Background);

impl Look for Others<'_> {
    type Found = ();

    fn look(&mut self, state: &mut State) -> Option<()> {
        let Background { callers, polls, .. } = self.0;
        let ends = callers.load(Ordering::SeqCst) > 0
            || polls.want_the_role() && !state.protocol.is_busy();
        ends.then_some(())
    }

    fn whose_moves(&self, _: &mut State) -> Whose {
        Whose::Everybodys
    }

    /// By the caller that it makes way for.
    fn is_followed(&self) -> bool {
        true
    }
}

/// Wakes a thread that is parked.
fn waker_of(thread: &Thread) -> Waker {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(Arc::new(Unpark(thread.clone())))
}
