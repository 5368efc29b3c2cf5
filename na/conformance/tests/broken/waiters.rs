//! Broken ways to sleep.

use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

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
