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

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use crate::{OpenError, port::Port};

/// The engine's place in a foreign event loop. One thread at a time.
#[derive(Debug)]
pub struct EventLoop {
    port: Arc<Port>,
    epoll: Epoll,
    timer: TimerFd,
    /// Whether the loop was told that it may sleep since the last round.
    armed: AtomicBool,
}

impl EventLoop {
    pub(crate) fn new(port: Arc<Port>) -> Result<Self, OpenError> {
        let os = |call| move |error: nix::Error| hg_na::Error::os(call, error);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(os("timerfd_create"))?;
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        {
            let Some(transport) = port.waiter.fd() else {
                return Err(hg_na::Error::Unsupported("a foreign event loop over this transport"));
            };
            epoll.add(transport, readable).map_err(os("epoll_ctl"))?;
            epoll.add(timer.as_fd(), readable).map_err(os("epoll_ctl"))?;
        }
        Ok(Self { port, epoll, timer, armed: AtomicBool::new(false) })
    }

    /// One round of progress; says whether anything moved.
    pub fn progress(&self) -> bool {
        let Some((mut role, mut state)) = self.port.try_role() else { return false };
        // Relaxed: one thread uses this at a time.
        if self.armed.swap(false, Ordering::Relaxed) {
            state.unfollow_loop();
            drop(state);
            self.port.disarm(role.work());
            // Collects what made the descriptor readable, so that it is not readable for ever.
            if let Err(error) = self.port.waiter.wait(Some(Duration::ZERO)) {
                tracing::error!(%error, "the transport's wait set cannot be read");
            }
            let Some(again) = self.port.enter_state() else { return false };
            state = again;
        }
        self.port.step(&mut role, state, &mut |_: &mut _| Some(())).0
    }

    /// Whether the loop may sleep on the descriptor now; the timer is set for the next deadline. It may not while another
    /// thread waits for a call of this engine: a loop beside such threads goes round until they have their answers.
    ///
    /// # Errors
    /// [`hg_na::Error::Os`] when the timer cannot be set.
    pub fn may_sleep(&self) -> Result<bool, OpenError> {
        let Some((mut role, state)) = self.port.try_role() else { return Ok(false) };
        drop(state);
        let Some(until) = self.port.arm(role.work()) else { return Ok(false) };
        if !self.armed.swap(true, Ordering::Relaxed) {
            role.give_back_to_sleep();
        } else {
            drop(role); // It follows already.
        }
        let result = match until {
            None => self.timer.unset(),
            Some(at) => {
                // Zero would disarm the timer instead of firing it.
                let left =
                    at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
                let once = Expiration::OneShot(TimeSpec::from_duration(left));
                self.timer.set(once, TimerSetTimeFlags::empty())
            }
        };
        result.map_err(|error| hg_na::Error::os("timerfd_settime", error))?;
        Ok(true)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if *self.armed.get_mut()
            && let Some(mut state) = self.port.enter_state()
        {
            state.unfollow_loop();
        }
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
