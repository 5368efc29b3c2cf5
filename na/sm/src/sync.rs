//! Atomics of the shared segments, and labelled orderings.
//!
//! Every ordering that the protocol needs carries a label, `ord("P3", Release)` or `fence("W2")`, which costs nothing.
//! The models have the same names from `tests/common/loom_sync.rs`, where `HG_WEAKEN=LABEL` turns that one into `Relaxed`, or
//! into nothing for a fence: a model in `tests/loom.rs` must then fail.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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
