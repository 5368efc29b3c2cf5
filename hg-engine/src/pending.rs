//! What is under way for a user, of whatever kind: waited for, polled, cancelled or dropped in one way.

use std::{
    fmt,
    ops::{ControlFlow, Deref},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use hg_core::{
    error::Failure,
    operations::{OperationId, Outcome},
};

use crate::{
    deferred,
    inside::{is_in_handler, is_inside, is_waited_for, waiting},
    lock::MutexGuard,
    port::{Port, State},
};

/// The port, borrowed from a handle or kept.
pub(crate) enum PortRef<'e> {
    Borrowed(&'e Arc<Port>),
    Owned(Arc<Port>),
    /// It was kept until all was over.
    Released,
}

impl PortRef<'_> {
    #[inline]
    fn release(&mut self) {
        if matches!(self, Self::Owned(_)) {
            *self = Self::Released;
        }
    }
}

impl Deref for PortRef<'_> {
    type Target = Arc<Port>;

    #[inline(always)]
    fn deref(&self) -> &Arc<Port> {
        match self {
            Self::Borrowed(port) => port,
            Self::Owned(port) => port,
            Self::Released => was_taken(),
        }
    }
}

/// What is under way for its user: a future that needs no particular runtime, or `wait`. It was started when it was made; waiting and
/// awaiting only collect what comes of it. Dropping it cancels it.
///
/// | of this type | comes |
/// |---|---|
/// | [`Call`](crate::Call), [`OwnedCall`](crate::OwnedCall) | `Result<R::Output, CallError<R::Error>>` |
/// | [`Transfer`](crate::Transfer) | `Result<(), TransferError>` |
/// | [`Fetch`](crate::Fetch) | `Result<Vec<u8>, TransferError>` |
/// | [`View`](crate::View) | `Result<SharedBytes, TransferError>` |
/// | [`Ready`](crate::Ready) | `Result<(), Failure>` |
#[must_use = "dropping it cancels it: `wait` or await it"]
pub struct Pending<'e, T> {
    // Ends first: a peer frees its memory as soon as it is told by what follows.
    pub(crate) operation: Operation<'e>,
    pub(crate) then: T,
    /// Whether it is to end, whatever goes on instead.
    is_cancelled: AtomicBool,
}

/// What comes of it.
pub trait Then: Sized {
    /// What its user gets.
    type Output;

    /// What it is, for people to read.
    #[doc(hidden)]
    const NAME: &'static str;

    /// Makes an outcome what its user gets, or what is to be waited for next, until when at the latest. `waits`: its user's thread waits,
    /// rather than polls.
    #[doc(hidden)]
    fn end(&mut self, port: &Arc<Port>, outcome: Outcome, waits: bool) -> Step<Self::Output>;

    /// Whether a short answer is [read](Self::read) where it has come to: what most calls end with.
    #[doc(hidden)]
    const READS: bool = false;

    /// Whether something else is waited for already.
    #[doc(hidden)]
    #[inline]
    fn goes_on(&self) -> bool {
        false
    }

    /// A short answer.
    #[doc(hidden)]
    fn read(_payload: &[u8]) -> Self::Output {
        unreachable!("asked of what reads alone")
    }
}

/// What an outcome gives, or what goes on instead.
pub(crate) type Step<T> = ControlFlow<T, (Made, Option<Instant>)>;

/// What moves bytes.
pub trait Moves: Then {
    /// When it ends at the latest.
    #[doc(hidden)]
    fn ends_at(&mut self, _: Instant) {}
}

impl<'e, T: Then> Pending<'e, T> {
    #[inline(always)]
    pub(crate) fn new(port: PortRef<'e>, made: impl Into<Made>, then: T) -> Self {
        let is_cancelled = AtomicBool::new(false);
        Self { operation: Operation::new(port, made), then, is_cancelled }
    }

    /// Waits for the end, making progress in this thread: the fastest way. An engine that serves runs its plain handlers on this thread
    /// meanwhile, and polls its `async` ones; so does a thread that awaits it.
    ///
    /// # Errors
    /// [`CallError`](hg_core::error::CallError) or [`TransferError`](hg_bulk::TransferError). `WouldDeadlock` at once inside a plain or
    /// `async` handler of the same engine (of the same context), which cancels it, unless it is over already, as short transfers over
    /// shared memory are and others are not: `.await` it in an `async` handler, or `wait` in a blocking one. A handler may wait for another
    /// engine's call; its own engine makes no progress meanwhile. Handlers of two engines that wait for each other in two threads wait
    /// until their deadlines.
    #[inline]
    pub fn wait(mut self) -> T::Output {
        if !T::READS || is_in_handler() || self.then.goes_on() {
            let outcome = self.operation.wait();
            return self.go_on(outcome);
        }
        let mut outcome = None;
        self.operation.wait_into(&mut outcome);
        if let Some(Outcome::Answered { message, payload, handler_error: false }) = &outcome
            && let Some((bytes, len)) = message.slot()
        {
            if matches!(self.operation.port, PortRef::Borrowed(_)) {
                std::mem::forget(self); // Owns nothing, since its outcome was taken.
            } else {
                self.operation.made = Made::Taken;
                drop(self);
            }
            let output = T::read(&bytes[*payload..len]);
            std::mem::forget(outcome); // The same.
            return output;
        }
        let outcome = self.operation.taken(outcome);
        self.go_on(outcome)
    }

    /// With this outcome, until the end.
    #[inline]
    fn go_on(mut self, outcome: Outcome) -> T::Output {
        match self.end(outcome, true) {
            Some(output) => output,
            None => self.wait_longer(),
        }
    }

    #[cold]
    fn wait_longer(mut self) -> T::Output {
        let outcome = self.operation.wait();
        self.go_on(outcome)
    }

    /// `None`: something else goes on.
    #[inline]
    fn end(&mut self, outcome: Outcome, waits: bool) -> Option<T::Output> {
        match self.then.end(&self.operation.port, outcome, waits) {
            ControlFlow::Break(output) => Some(output),
            ControlFlow::Continue((made, deadline)) => {
                self.operation.made = made;
                deadline.inspect(|at| self.operation.end_at(*at));
                if *self.is_cancelled.get_mut() {
                    self.operation.cancel();
                }
                None
            }
        }
    }

    /// What comes of it, if that is there; `None`: it is still under way. Makes no progress. It leaves whoever has polled it to be woken,
    /// unless that one was woken already: then poll it again after `None`, since something else may go on now, as the pull of a large
    /// result.
    ///
    /// # Panics
    /// When that was taken before, here or by a poll: it is there once. So do waiting and polling then.
    pub fn try_wait(&mut self) -> Option<T::Output> {
        match self.poll_by(None, false) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Cancels it; it ends so unless it has ended already, or what is left to be moved is moved at once. A wait for room that has got it
    /// has ended, and keeps the room until it was taken or dropped.
    pub fn cancel(&self) {
        // Relaxed: whoever looks at it has this for itself.
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.operation.cancel();
    }

    /// What comes of it, if that is there; otherwise the context's waker is woken when it is worth another look. Polling it as a
    /// future is the same, except that this is allowed in a plain handler, too: nobody waits here.
    pub fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<T::Output> {
        self.poll_by(Some(context.waker()), false)
    }

    #[inline]
    fn poll_by(&mut self, waker: Option<&Waker>, is_awaited: bool) -> Poll<T::Output> {
        loop {
            let outcome = ready!(self.operation.poll(waker, is_awaited));
            if let Some(output) = self.end(outcome, false) {
                if !self.operation.is_open() {
                    self.operation.port.release(); // Whoever keeps what is over keeps no engine.
                }
                return Poll::Ready(output);
            }
        }
    }
}

impl<T: Moves> Pending<'_, T> {
    /// Ends the transfer after this time, counted from now, one way or the other. A deadline beyond all time is none.
    pub fn within(mut self, deadline: Duration) -> Self {
        if let Some(at) = self.operation.port.now().checked_add(deadline) {
            self.then.ends_at(at);
            self.operation.end_at(at);
        }
        self
    }
}

impl<T: Then> Future for Pending<'_, T> {
    type Output = T::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        self.poll_by(Some(context.waker()), true)
    }
}

impl<T> Unpin for Pending<'_, T> {}

impl<T: Then> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pending({}, {:?})", T::NAME, self.operation)
    }
}

/// An entry of the table of operations. Dropped, it is abandoned: what is open is cancelled.
pub(crate) struct Operation<'e> {
    pub(crate) port: PortRef<'e>,
    made: Made,
}

/// Whoever has a reference cancels it, in whatever thread.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Operation<'_>>();
};

/// What was made, as far as its outcome was not taken.
#[doc(hidden)]
#[derive(Debug)]
pub enum Made {
    /// An entry of the table of operations, which taking the outcome frees.
    Open(OperationId),
    /// It was over when it began.
    Over(Box<Outcome>),
    /// The same of a transfer: there was nothing to move, or it was moved at once.
    Done,
    /// The same, and whoever waits for it is to make a round of progress.
    Due,
    /// There is nothing any more.
    Taken,
}

impl Made {
    #[cold]
    pub(crate) fn over(outcome: impl Into<Outcome>) -> Self {
        Self::Over(Box::new(outcome.into()))
    }
}

impl<E: Into<Outcome>> From<Result<OperationId, E>> for Made {
    #[inline(always)]
    fn from(begun: Result<OperationId, E>) -> Self {
        match begun {
            Ok(id) => Self::Open(id),
            Err(over) => Self::over(over),
        }
    }
}

impl<'e> Operation<'e> {
    #[inline(always)]
    pub(crate) fn new(port: PortRef<'e>, made: impl Into<Made>) -> Self {
        Self { port, made: made.into() }
    }

    /// Waits outside of handlers; the outcome is put to its place once, and is not there if there is none. Then this is to be
    /// told that it was [taken](Self::taken), or forgotten.
    #[inline(always)]
    pub(crate) fn wait_into(&mut self, outcome: &mut Option<Outcome>) {
        match self.made {
            Made::Open(id) => self.port.wait_for(id, outcome),
            _ => *outcome = Some(self.take_over()),
        }
    }

    /// What was waited for, or why there is nothing.
    fn taken(&mut self, outcome: Option<Outcome>) -> Outcome {
        if outcome.is_some() {
            self.made = Made::Taken;
        }
        outcome.unwrap_or_else(|| self.port.no_outcome())
    }

    /// Waits for the outcome, making progress in this thread.
    ///
    /// # Panics
    /// It was taken before: the caller's bug, as polling a future that is over.
    #[inline]
    pub(crate) fn wait(&mut self) -> Outcome {
        if matches!(self.made, Made::Done | Made::Due) {
            self.take_moved()
        } else {
            self.wait_for()
        }
    }

    fn wait_for(&mut self) -> Outcome {
        if is_inside(self.port.id) {
            return match self.poll(None, false) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Outcome::Failed(Failure::WouldDeadlock),
            };
        }
        let mut outcome = None;
        waiting(|| self.wait_into(&mut outcome));
        self.taken(outcome)
    }

    /// The outcome, once it is there; until then the waker is left to be woken, or the one that was left before. Somebody who
    /// awaits it makes progress first.
    #[inline]
    pub(crate) fn poll(&mut self, waker: Option<&Waker>, is_awaited: bool) -> Poll<Outcome> {
        if matches!(self.made, Made::Done | Made::Due) {
            self.made = Made::Taken;
            return Poll::Ready(Outcome::Sent);
        }
        self.poll_for(waker, is_awaited)
    }

    fn poll_for(&mut self, waker: Option<&Waker>, is_awaited: bool) -> Poll<Outcome> {
        let Made::Open(id) = self.made else { return Poll::Ready(self.take_over()) };
        let mut found = None;
        if is_awaited {
            self.port.progress_for_poll(id, &mut found);
        }
        let polled = match found {
            Some(outcome) => Poll::Ready(outcome),
            None => self.port.poll_operation(id, waker),
        };
        match polled {
            Poll::Ready(_) => self.made = Made::Taken,
            // Whoever polls there blocks on it: nothing else would poll again.
            Poll::Pending if is_awaited && is_waited_for(self.port.id) => {
                return Poll::Ready(Outcome::Failed(Failure::WouldDeadlock));
            }
            Poll::Pending => {}
        }
        polled
    }

    /// The outcome of what was over when it began.
    #[cold]
    fn take_over(&mut self) -> Outcome {
        match std::mem::replace(&mut self.made, Made::Taken) {
            Made::Over(outcome) => *outcome,
            Made::Done | Made::Due => Outcome::Sent,
            Made::Open(_) | Made::Taken => was_taken(),
        }
    }

    /// Leaves it to itself: it goes on although nobody will take its outcome. Gives that of what was over when it began.
    pub(crate) fn detach(&mut self) -> Option<Box<Outcome>> {
        match std::mem::replace(&mut self.made, Made::Taken) {
            Made::Open(id) => {
                let mut state = self.port.enter_state()?;
                let waker = state.protocol.operations.detach(id);
                self.port.pass_room_on(state);
                drop(waker);
                self.port.leave_to_background();
                None
            }
            Made::Over(outcome) => Some(outcome),
            Made::Done | Made::Due | Made::Taken => None,
        }
    }

    /// The outcome of a transfer that was over when it began; whoever waits for it makes the round that is due.
    #[inline]
    fn take_moved(&mut self) -> Outcome {
        if matches!(self.made, Made::Due) && !is_inside(self.port.id) {
            self.port.progress_once();
        }
        self.made = Made::Taken;
        Outcome::Sent
    }

    /// Whether it is under way still, as one that would have waited for itself.
    fn is_open(&self) -> bool {
        matches!(self.made, Made::Open(_))
    }

    /// Whether it was over when it began, and its outcome was not taken.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.made, Made::Over(_) | Made::Done | Made::Due)
    }

    pub(crate) fn cancel(&self) {
        if let Made::Open(id) = self.made
            && let Some(mut state) = self.port.enter_state()
        {
            state.protocol.cancel(id);
            drop(state);
            self.port.notify();
        }
    }

    /// Ends it at this time, one way or the other.
    pub(crate) fn end_at(&self, at: Instant) {
        if let Made::Open(id) = self.made
            && let Some(mut state) = self.port.enter_state()
        {
            state.protocol.operations.set_deadline(id, at);
            drop(state);
            self.port.notify();
        }
    }
}

/// Whoever asks again has a bug, as one that polls a future that is over.
#[cold]
pub(crate) fn was_taken() -> ! {
    panic!("the outcome was taken before: it is there once, so ask no more")
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Made::Open(id) = self.made {
            self.port.abandon(id);
        }
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.made {
            Made::Open(_) => "under way",
            Made::Over(_) | Made::Done | Made::Due => "over",
            Made::Taken => "taken",
        })
    }
}

impl Port {
    /// The outcome of what is under way, once it is there. A waker is a user's: it is cloned and dropped without the lock, and
    /// only where it is to be kept.
    fn poll_operation(&self, id: OperationId, waker: Option<&Waker>) -> Poll<Outcome> {
        let mut clone = None;
        loop {
            let Some(mut state) = self.enter_at_rest() else {
                return Poll::Ready(self.no_outcome());
            };
            if let Some(outcome) = state.protocol.operations.take(id) {
                self.pass_room_on(state);
                return Poll::Ready(outcome);
            }
            let mut before = None;
            if let Some(waker) = waker.filter(|it| !state.protocol.operations.is_to_wake(id, it)) {
                let Some(clone) = clone.take() else {
                    drop(state);
                    clone = Some(waker.clone());
                    continue;
                };
                before = state.protocol.operations.set_waker(id, clone);
            }
            drop(state);
            drop(before);
            self.leave_to_background();
            return Poll::Pending;
        }
    }

    /// Nobody will take the outcome.
    #[cold]
    pub(crate) fn abandon(&self, id: OperationId) {
        let Some(mut state) = self.enter_state() else { return };
        let left = state.protocol.abandon(id);
        self.pass_room_on(state);
        self.notify();
        drop(left);
    }

    /// What is told of something that was waited for in vain.
    #[cold]
    pub(crate) fn no_outcome(&self) -> Outcome {
        let forked = Failure::NotMade(hg_na::Error::Forked);
        Outcome::Failed(if self.is_forked() { forked } else { Failure::Closed })
    }

    /// Unlocks the state, outside of a round in which a call may have ended: who waits for its room is told.
    #[inline]
    pub(crate) fn pass_room_on(&self, state: MutexGuard<'_, State>) {
        if state.protocol.operations.waits_for_room() {
            self.grant_room(state);
        }
    }

    #[cold]
    fn grant_room(&self, mut state: MutexGuard<'_, State>) {
        state.protocol.tell_waiting();
        if state.work.is_none() {
            // Whoever makes the progress may wait for room itself: what it has to wake keeps it from sleeping.
            drop(state);
            return self.notify();
        }
        let mut woken = std::mem::take(&mut state.protocol.deferred);
        drop(state);
        deferred::run(&mut woken, self.id, &self.shared.pool);
    }
}
