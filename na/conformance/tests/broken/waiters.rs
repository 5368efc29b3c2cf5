//! Broken ways to sleep.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{Error, Waiter};

/// Returns from every wait at once.
#[derive(Debug)]
pub(crate) struct Restless;

impl Waiter for Restless {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn wait(&self, _timeout: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }
    fn wake(&self) {}
}

/// Does not hear `wake`.
#[derive(Debug)]
pub(crate) struct Deaf(pub(crate) Arc<dyn Waiter>);

impl Waiter for Deaf {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.0.wait(timeout)
    }
    fn wake(&self) {}
}

/// Sleeps on, whoever rings, once its own side has posted something.
#[derive(Debug)]
pub(crate) struct Unmoved {
    pub(crate) inner: Arc<dyn Waiter>,
    pub(crate) posted: Arc<AtomicBool>,
}

impl Waiter for Unmoved {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            self.inner.wait(left)?;
            // Relaxed: the flag alone counts; the inner waiter's lock orders it before the ring.
            let sleeps_on = self.posted.load(Ordering::Relaxed);
            if !sleeps_on || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
        }
    }
    fn wake(&self) {
        // Relaxed: as above.
        self.posted.store(false, Ordering::Relaxed);
        self.inner.wake();
    }
}
