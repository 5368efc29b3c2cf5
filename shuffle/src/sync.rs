//! Locks and atomics of the standard library, or `loom`'s under `cfg(loom)`; labelled fences.
//!
//! Every fence that a protocol needs carries a label. Under `cfg(loom)` the environment variable `HG_WEAKEN=LABEL` takes
//! that one away: a model in `tests/loom.rs` must then fail.

#[cfg(not(loom))]
mod imp {
    use std::{sync::PoisonError, time::Duration};
    pub(crate) use std::{
        sync::{
            Condvar, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        },
        thread::{self, ThreadId},
    };

    /// A `SeqCst` fence.
    #[inline(always)]
    pub(crate) fn fence(_label: &'static str) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Waits, but not for longer than this.
    pub(crate) fn wait_for<'a, T>(
        condition: &Condvar,
        (_, guard): (&'a Mutex<T>, MutexGuard<'a, T>),
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        condition.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for what comes soon, or never: the limit is for something else, that nobody tells.
    pub(crate) fn wait_idle<'a, T>(
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        condition.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(loom)]
mod imp {
    use std::{
        sync::{OnceLock, PoisonError},
        time::Duration,
    };

    pub(crate) use loom::{
        sync::{
            Condvar, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        },
        thread::{self, ThreadId},
    };

    pub(crate) fn fence(label: &'static str) {
        static WEAKENED: OnceLock<Option<String>> = OnceLock::new();
        let weakened = WEAKENED.get_or_init(|| std::env::var("HG_WEAKEN").ok());
        if weakened.as_deref() != Some(label) {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// The limit passes at once: a notification may come before, or be missed.
    pub(crate) fn wait_for<'a, T>(
        _condition: &Condvar,
        (mutex, guard): (&'a Mutex<T>, MutexGuard<'a, T>),
        _limit: Duration,
    ) -> MutexGuard<'a, T> {
        drop(guard);
        loom::thread::yield_now();
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a limit: who is not woken is found.
    pub(crate) fn wait_idle<'a, T>(
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        _limit: Duration,
    ) -> MutexGuard<'a, T> {
        condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) use imp::{
    AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, ThreadId, fence,
    thread, wait_for, wait_idle,
};
