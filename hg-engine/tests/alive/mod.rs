//! Counts what lives: what a handler's future holds, say.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts itself while it lives.
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
