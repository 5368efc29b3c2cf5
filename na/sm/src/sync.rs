//! Atomics of the shared segments: `core`'s, or `loom`'s under `cfg(loom)`; and labelled orderings.
//!
//! Every ordering that the protocol needs carries a label, `ord("P3", Release)` or `fence("W2")`.
//! Under `cfg(loom)` the environment variable `HG_WEAKEN=LABEL` turns that one into `Relaxed`, or
//! into nothing for a fence: a model in `tests/loom.rs` must then fail. Elsewhere a label costs nothing.

#[cfg(not(loom))]
mod imp {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// The ordering itself.
    #[inline(always)]
    pub(crate) const fn ord(_label: &'static str, order: Ordering) -> Ordering {
        order
    }

    /// A `SeqCst` fence, of which each message and each transfer has one.
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    #[inline(always)]
    pub(crate) fn fence(_label: &'static str) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    /// The same: a locked instruction orders memory as `mfence` does, in half of the time (7 ns against 13).
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    #[expect(unsafe_code, reason = "an instruction that the compiler does not choose for a fence")]
    pub(crate) fn fence(_label: &'static str) {
        // SAFETY:
        // - ORs nothing into the word at the top of this thread's stack, which is mapped, writable and aligned: it
        //   keeps its value.
        // - no other effect than `fence(SeqCst)`: a locked instruction is a full fence of the processor (Intel SDM
        //   volume 3, 9.2.5; AMD APM volume 2, 7.4.2), and assembly that may touch memory is one of the compiler.
        unsafe { core::arch::asm!("lock or dword ptr [rsp], 0") };
    }

    /// A word that only its own protocol orders: never raced for, but in memory that a peer that
    /// breaks the protocol writes at any time, hence an atomic.
    macro_rules! plain {
        ($name:ident, $atomic:ty, $word:ty) => {
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name($atomic);

            // Relaxed: the ring's sequence orders these words; that they are atomic only keeps a hostile
            // peer's writes from being undefined behaviour here.
            impl $name {
                #[inline(always)]
                pub(crate) fn load(&self) -> $word {
                    self.0.load(Ordering::Relaxed)
                }
                #[inline(always)]
                pub(crate) fn store(&self, value: $word) {
                    self.0.store(value, Ordering::Relaxed);
                }
            }
        };
    }

    plain!(Plain32, AtomicU32, u32);
    plain!(Plain64, AtomicU64, u64);
}

#[cfg(loom)]
mod imp {
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
}

pub(crate) use imp::{AtomicU32, AtomicU64, Ordering, Plain32, Plain64, fence, ord};
