//! Locks without poisoning: the standard library's without that part of them (`rustix-futex-sync`), which is 14 instructions of the
//! 21 that it takes to lock and unlock a mutex, some times a call.
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

use rustix_futex_sync as futex;

/// Looks for a lock before a thread of a user's sleeps for it: some microseconds.
const LOOKS_BEFORE_SLEEP: u32 = 200;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(futex::Mutex<T>);

pub(crate) type MutexGuard<'m, T> = futex::MutexGuard<'m, T>;

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(futex::Mutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        wait_in_simulation(|| self.0.try_lock()).unwrap_or_else(|| self.0.lock())
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        before();
        self.0.try_lock().inspect(|_| after())
    }

    /// Takes it for a thread of a user's; `None` in a forked child, where a thread that the child lacks holds it for ever.
    #[inline]
    pub(crate) fn enter(&self, is_child: impl FnOnce() -> bool) -> Option<MutexGuard<'_, T>> {
        self.try_lock().or_else(|| self.enter_contended(is_child))
    }

    /// Whoever has it, has it for a moment, and may take it again at once: who sleeps for it comes too late again and again.
    #[cold]
    fn enter_contended(&self, is_child: impl FnOnce() -> bool) -> Option<MutexGuard<'_, T>> {
        for _ in 0..LOOKS_BEFORE_SLEEP {
            spin();
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
        }
        (!is_child()).then(|| self.lock())
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
fn spin() {
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
