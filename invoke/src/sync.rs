//! The atomics and locks, or those of a model; and labelled orderings.
//!
//! Every ordering that the synchronizer needs carries a label, which costs nothing. Under `cfg(loom)` the environment variable `HG_WEAKEN=LABEL` turns
//! that one into `Relaxed`: a model in `tests/loom.rs` must then fail.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// The ordering itself.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn ord(_label: &'static str, order: Ordering) -> Ordering {
    order
}

/// The ordering, unless it is to be weakened.
#[cfg(loom)]
pub(crate) fn ord(label: &'static str, order: Ordering) -> Ordering {
    static WEAKENED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let weakened = WEAKENED.get_or_init(|| std::env::var("HG_WEAKEN").ok());
    if weakened.as_deref() == Some(label) { Ordering::Relaxed } else { order }
}
