//! Locks of the standard library without poisoning.
//!
//! They keep all their state in themselves. Locks with a table of waiting threads for the whole process (as
//! `parking_lot` has) are of no use to a forked child: it may inherit that table half-changed, and then even
//! the locks of an engine that it opens afresh fail.
//!
//! A panic under a lock poisons nothing: no handler of a user's runs under one, and what our own code leaves behind
//! is consistent between any two statements that can panic.
//!
//! With the feature `interrupts` a lock is a place where a simulation may run another of its threads
//! ([`crate::interrupts`]).

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        wait_in_simulation(|| taken(self.0.try_lock()))
            .unwrap_or_else(|| self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        before();
        taken(self.0.try_lock()).inspect(|_| after())
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        before();
        wait_in_simulation(|| taken(self.0.try_read()))
            .unwrap_or_else(|| self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        before();
        wait_in_simulation(|| taken(self.0.try_write()))
            .unwrap_or_else(|| self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was taken, if it was free.
#[inline(always)]
fn taken<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A lock is about to be taken.
#[inline(always)]
fn before() {
    #[cfg(feature = "interrupts")]
    crate::interrupts::before();
}

/// A lock was taken.
#[inline(always)]
fn after() {
    #[cfg(feature = "interrupts")]
    crate::interrupts::after();
}

/// A lock was found held, and is looked at again at once. In a simulation nobody else runs meanwhile.
#[inline(always)]
pub(crate) fn spin() {
    #[cfg(not(feature = "interrupts"))]
    std::hint::spin_loop();
}

/// Takes a lock that is held, where other threads of a simulation run meanwhile; otherwise `None`.
#[inline(always)]
fn wait_in_simulation<G>(_take: impl Fn() -> Option<G>) -> Option<G> {
    #[cfg(feature = "interrupts")]
    return crate::interrupts::wait(_take);
    #[cfg(not(feature = "interrupts"))]
    None
}
