//! How a context of the reference plugin sleeps: a flag that says so, and a condition variable.

use std::{
    os::fd::BorrowedFd,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hg_na::{Error, Waiter};

/// A peer rings only a sleeper; `wake` is remembered for the next wait.
#[derive(Debug, Default)]
pub(super) struct MemWaiter {
    flags: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flags {
    sleeping: bool,
    rung: bool,
    woken: bool,
}

impl MemWaiter {
    fn lock(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the intent to sleep. The caller holds the hub's lock and has found nothing to do,
    /// so whatever comes later finds `sleeping` set.
    pub(super) fn publish(&self) {
        self.lock().sleeping = true;
    }

    /// Ends the state that `publish` began.
    pub(super) fn polled(&self) {
        let mut flags = self.lock();
        (flags.sleeping, flags.rung) = (false, false);
    }

    /// Something arrived.
    pub(super) fn ring(&self) {
        let mut flags = self.lock();
        if flags.sleeping {
            flags.rung = true;
            self.changed.notify_all();
        }
    }
}

impl Waiter for MemWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let idle = |flags: &mut Flags| !flags.rung && !flags.woken;
        let flags = self.lock();
        let mut flags = match timeout {
            None => self.changed.wait_while(flags, idle).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.changed
                    .wait_timeout_while(flags, timeout, idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        (flags.rung, flags.woken) = (false, false);
        Ok(())
    }

    fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }
}
