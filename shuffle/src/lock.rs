//! Locks whose holders do not panic in between: a panic elsewhere in such a thread leaves nothing half-changed.

use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
