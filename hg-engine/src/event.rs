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
    time::Duration,
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::{
    OpenError,
    platform::Timer,
    port::Port,
    role::{Bell, Rest},
};

/// The engine's place in a foreign event loop. One thread at a time.
///
/// Other threads may wait for calls of the same engine, or make its progress: the loop sleeps meanwhile, and is woken when
/// nobody does any more, or when something has come that the loop's own callers have polled (or tried to take). It is woken
/// once when the engine is closed, and has nothing to go round for after that.
///
/// Loops of the same context rely on one another: while one is awake, the others sleep. One that goes round no more is to be
/// dropped.
#[derive(Debug)]
pub struct EventLoop {
    port: Arc<Port>,
    epoll: Epoll,
    timer: Box<dyn Timer>,
    /// What others wake the loop by.
    bell: Arc<Bell>,
    /// Whether the transport is told that somebody sleeps on it, since the last round.
    armed: AtomicBool,
    /// Whether a sleep on `epoll` ends by what comes to the transport.
    watches_transport: AtomicBool,
    /// Whether the loop was told that it may sleep since it has looked.
    slept: AtomicBool,
}

impl EventLoop {
    pub(crate) fn new(port: Arc<Port>) -> Result<Self, OpenError> {
        let os = |call| move |error: nix::Error| hg_na::Error::os(call, error);
        if port.waiter.fd().is_none() {
            return Err(hg_na::Error::Unsupported("a foreign event loop over this transport"));
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let timer = port.shared.platform.timer().map_err(os("timerfd_create"))?;
        let bell = Arc::new(Bell::new(Arc::clone(&port.shared.platform)).map_err(os("eventfd"))?);
        epoll.add(timer.as_fd(), readable()).map_err(os("epoll_ctl"))?;
        epoll.add(bell.event.as_fd(), readable()).map_err(os("epoll_ctl"))?;
        if !port.add_loop(&bell) {
            return Err(hg_na::Error::Forked);
        }
        let (armed, slept) = (AtomicBool::new(false), AtomicBool::new(false));
        let watches_transport = AtomicBool::new(false);
        Ok(Self { port, epoll, timer, bell, armed, watches_transport, slept })
    }

    /// One round of progress; says whether anything moved. Nothing does while another thread makes progress.
    pub fn progress(&self) -> bool {
        // Relaxed, as everywhere here: one thread uses this at a time.
        if self.slept.swap(false, Ordering::Relaxed) {
            self.bell.silence();
        }
        let Some((mut role, mut state)) = self.port.role_of_loop(&self.bell) else { return false };
        if self.armed.swap(false, Ordering::Relaxed) {
            drop(state);
            self.port.disarm(role.work());
            // Collects what made the descriptor readable, so that it is not readable for ever.
            if let Err(error) = self.port.waiter.wait(Some(Duration::ZERO)) {
                tracing::error!(%error, "the transport's wait set cannot be read");
            }
            let Some(again) = self.port.enter_state() else { return false };
            state = again;
        }
        let (moved, _) = self.port.step(&mut role, state, &mut |_: &mut _| None::<()>);
        role.give_back_awake(&self.bell);
        moved
    }

    /// Whether the loop may sleep on the descriptor now; the timer is set for the next deadline. While another thread waits
    /// for a call of this engine, that one makes the progress, and the loop sleeps until it stops, or has found something for
    /// what was polled.
    ///
    /// # Errors
    /// [`hg_na::Error::Os`] when the timer or the descriptor cannot be set.
    pub fn may_sleep(&self) -> Result<bool, OpenError> {
        if self.port.is_forked() {
            return Ok(false); // The descriptors are the parent's, too.
        }
        let Some(rest) = self.port.rest(&self.bell) else { return Ok(false) };
        self.slept.store(true, Ordering::Relaxed);
        let until = match rest {
            Rest::Armed(until) => {
                self.armed.store(true, Ordering::Relaxed);
                self.watch_transport(true)?;
                until
            }
            Rest::Beside => {
                // What comes there, the other thread looks after.
                self.watch_transport(false)?;
                None
            }
        };
        let left = until.map(|at| at.saturating_duration_since(self.port.now()));
        self.timer.set(left).map_err(|error| hg_na::Error::os("timerfd_settime", error))?;
        Ok(true)
    }

    fn watch_transport(&self, watch: bool) -> Result<(), OpenError> {
        if self.watches_transport.load(Ordering::Relaxed) == watch {
            return Ok(());
        }
        let Some(transport) = self.port.waiter.fd() else { return Ok(()) };
        let set = if watch {
            self.epoll.add(transport, readable())
        } else {
            self.epoll.delete(transport)
        };
        set.map_err(|error| hg_na::Error::os("epoll_ctl", error))?;
        self.watches_transport.store(watch, Ordering::Relaxed);
        Ok(())
    }
}

fn readable() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, 0)
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.port.remove_loop(&self.bell);
    }
}

impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
