//! What `src/sync.rs` is to the transport, for its models: `loom`'s atomics, and orderings that can be weakened.
//!
//! The environment variable `HG_WEAKEN=LABEL` turns the ordering of that label into `Relaxed`, a fence into nothing.

use std::sync::OnceLock;

use loom::cell::UnsafeCell;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

fn weakened(label: &str) -> bool {
    static LABEL: OnceLock<Option<String>> = OnceLock::new();
    LABEL.get_or_init(|| std::env::var("HG_WEAKEN").ok()).as_deref() == Some(label)
}

pub(crate) fn ord(label: &'static str, order: Ordering) -> Ordering {
    if weakened(label) { Ordering::Relaxed } else { order }
}

pub(crate) fn fence(label: &'static str) {
    if !weakened(label) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A plain cell: the model fails when the protocol does not order its accesses.
macro_rules! plain {
    ($name:ident, $word:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(UnsafeCell<$word>);

        // SAFETY:
        // - loom checks each access against all others and fails the model on a race.
        #[expect(unsafe_code, reason = "plain cells between loom's threads")]
        unsafe impl Sync for $name {}

        #[expect(unsafe_code, reason = "loom's cells hand out raw pointers")]
        impl $name {
            pub(crate) fn load(&self) -> $word {
                // SAFETY:
                // - loom has checked that nobody writes meanwhile.
                self.0.with(|cell| unsafe { *cell })
            }
            pub(crate) fn store(&self, value: $word) {
                // SAFETY:
                // - loom has checked that nobody else is here.
                self.0.with_mut(|cell| unsafe { *cell = value });
            }
        }
    };
}

plain!(Plain32, u32);
plain!(Plain64, u64);
