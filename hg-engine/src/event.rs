//! For foreign event loops: one descriptor that fires for messages, wake-ups and deadlines.
//!
//! ```text
//! loop {
//!     while events.progress() {}             // until nothing moves
//!     if events.may_sleep()? {               // asked immediately before every sleep
//!         poll(events.as_fd(), ...)          // the loop's own sleep, with its own descriptors
//!     }
//! }
//! ```

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::{
    OpenError,
    inside::is_inside,
    lock::MutexGuard,
    platform::Timer,
    port::{Port, Role, Sleep, State},
};

/// The engine's place in a foreign event loop. One thread at a time, and one loop of a context.
///
/// While it lives, its rounds alone make progress for that context: other threads that wait for calls, and the engine's own
/// thread, leave it to the loop. Between two rounds the thread that the loop runs in may wait for a call itself; it makes
/// the progress then. A loop that goes round no more is to be dropped.
///
/// It is woken once when the engine is closed, and has nothing to go round for after that.
#[derive(Debug)]
pub struct EventLoop {
    port: Arc<Port>,
    epoll: Epoll,
    timer: Box<dyn Timer>,
    /// Whether the loop was told that it may sleep since it has looked.
    slept: AtomicBool,
    /// It has gone round since the engine was closed.
    has_heard: AtomicBool,
}

impl EventLoop {
    pub(crate) fn new(port: Arc<Port>) -> Result<Self, OpenError> {
        let os = |call| move |error: nix::Error| hg_na::Error::os(call, error);
        let Some(transport) = port.waiter.fd() else {
            return Err(hg_na::Error::Unsupported("a foreign event loop over this transport"));
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let timer = port.shared.platform.timer().map_err(os("timerfd_create"))?;
        epoll.add(timer.as_fd(), readable()).map_err(os("epoll_ctl"))?;
        epoll.add(transport, readable()).map_err(os("epoll_ctl"))?;
        port.keep_role_for_loop()?;
        let (slept, has_heard) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { port, epoll, timer, slept, has_heard })
    }

    /// One round of progress; says whether anything moved.
    pub fn progress(&self) -> bool {
        let Some((mut role, state)) = self.take_role() else { return false };
        // Relaxed, as everywhere here: one thread uses this at a time.
        let state = if self.slept.swap(false, Ordering::Relaxed) {
            drop(state);
            self.port.disarm(role.work());
            // Collects what made the descriptor readable, so that it is not readable for ever.
            if let Err(error) = self.port.waiter.wait(Some(Duration::ZERO)) {
                tracing::error!(%error, "the transport's wait set cannot be read");
            }
            self.port.enter_state()
        } else {
            Some(state)
        };
        let Some(state) = state else { return false };
        self.port.step(&mut role, state, &mut |_: &mut _| None::<()>).0
    }

    /// The role, for this thread: the loop may have come from another one, in a task that was awaiting something meanwhile.
    fn take_role(&self) -> Option<(Role<'_>, MutexGuard<'_, State>)> {
        let me = self.port.shared.platform.current();
        self.port.enter_state()?.followers.loop_runs_in(me, false);
        self.port.try_role()
    }

    /// Whether the loop may sleep on the descriptor now; the timer is set for the next deadline. Asked immediately before every
    /// sleep.
    ///
    /// # Errors
    /// [`hg_na::Error::Os`] when the timer cannot be set.
    pub fn may_sleep(&self) -> Result<bool, OpenError> {
        if self.port.is_forked() {
            return Ok(false); // The descriptors are the parent's, too.
        }
        let Some(until) = self.sleep_until() else { return Ok(false) };
        self.slept.store(true, Ordering::Relaxed);
        let left = until.map(|at| at.saturating_duration_since(self.port.now()));
        self.timer.set(left).map_err(|error| hg_na::Error::os("timerfd_settime", error))?;
        Ok(true)
    }

    /// Until when it may; `None`: it is to go round once more.
    fn sleep_until(&self) -> Option<Option<Instant>> {
        if is_inside(self.port.id) {
            return None;
        }
        // Acquire: what was told to callers when the engine was closed is seen in the round that comes.
        let is_closed = self.port.is_closed.load(Ordering::Acquire);
        let Some((mut role, state)) = self.take_role() else {
            return Some(None); // Whoever closes the engine has it, and wakes the loop.
        };
        if is_closed || !state.is_open() {
            // It may have looked after its own things before, and here afterwards.
            return self.has_heard.swap(true, Ordering::Relaxed).then_some(None);
        }
        // Relaxed: it is set before the loop is woken for it.
        if self.port.closing.load(Ordering::Relaxed) {
            return Some(None); // Whoever closes the engine wants the role, and wakes the loop afterwards.
        }
        drop(state);
        let until = self.port.arm(role.work(), Sleep::Whole)?;
        drop(role);
        let me = self.port.shared.platform.current();
        self.port.enter_state()?.followers.loop_runs_in(me, true);
        Some(until)
    }
}

fn readable() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, 0)
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let Some(mut state) = self.port.enter_state() else { return };
        state.followers.keep_for_nobody();
        if state.work.is_some() {
            self.port.pass_on(state);
        }
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Port {
    /// Keeps the role for a loop, which runs in this thread. Waits until whoever has it gives it up.
    fn keep_role_for_loop(self: &Arc<Self>) -> Result<(), OpenError> {
        if self.is_forked() {
            return Err(hg_na::Error::Forked); // Whoever had the role is not in this process.
        }
        if is_inside(self.id) {
            return Err(hg_na::Error::Unsupported("a foreign event loop made in a handler"));
        }
        let me = self.shared.platform.current();
        let mut state = self.enter_open()?;
        // Relaxed, here and below: only when it is seen matters.
        if !self.closing.load(Ordering::Relaxed) && !state.followers.keep_for_loop(&me) {
            let what = "a second event loop of a context: drop the first one";
            return Err(hg_na::Error::Unsupported(what));
        }
        self.yielding.store(state.work.is_none(), Ordering::Relaxed);
        drop(state);
        self.notify();
        let role = self.wait_for_role(None);
        self.yielding.store(false, Ordering::Relaxed);
        if let Some((role, mut state)) = role {
            state.followers.leave(&me, false);
            drop(state);
            drop(role);
        }
        Ok(())
    }
}
