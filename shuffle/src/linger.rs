//! The clock of a shuffle: batches that are not full leave after a while.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use crate::{
    inner::Inner,
    lock::{locked, wait},
};

/// Tells the clock's thread that something lingers.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    is_armed: AtomicBool,
    state: Mutex<bool>,
    changed: Condvar,
}

impl Linger {
    /// Something lingers.
    #[inline]
    pub(crate) fn arm(&self) {
        // The lock of the hop, or of the mail, orders this behind the `false` that came before the clock looked there.
        if !self.is_armed.load(Ordering::Relaxed) && !self.is_armed.swap(true, Ordering::SeqCst) {
            let _state = locked(&self.state);
            self.changed.notify_one();
        }
    }

    pub(crate) fn end(&self) {
        *locked(&self.state) = true;
        self.changed.notify_one();
    }

    /// Runs the clock of these hops until the end.
    pub(crate) fn run(&self, inner: &Inner) {
        let linger = inner.options.linger;
        let mut state = locked(&self.state);
        while !*state {
            if !self.is_armed.load(Ordering::SeqCst) {
                state = wait(&self.changed, state);
                continue;
            }
            drop(state);
            self.is_armed.store(false, Ordering::SeqCst);
            let now = Instant::now();
            let hops = inner.hops.iter().filter_map(|hop| hop.handle_timeout(now, linger));
            let next = hops.chain(inner.mail.handle_timeout(now, linger)).min();
            state = locked(&self.state);
            if let Some(next) = next {
                self.is_armed.store(true, Ordering::SeqCst);
                let left = next.saturating_duration_since(Instant::now());
                if !*state && !left.is_zero() {
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}
