//! Asks for cache lines before they are read, or written.

/// Has the processor fetch the line where this value begins, without waiting for it. A hint, which changes no value.
#[inline(always)]
pub(crate) fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        // SAFETY:
        // - it reads nothing that the program could see, and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The same for a line that is to be written: nobody else has it then, and the write waits for nothing.
///
/// The compiler's own hint is one to read. `prefetchw`: Intel SDM volume 2, AMD APM volume 3.
#[inline(always)]
pub(crate) fn own<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY:
    // - it changes nothing that the program could see, and never faults, whatever the address.
    // - processors of this architecture know it, or do nothing for it; one from before 2006 may stop the program there.
    unsafe {
        core::arch::asm!(
            "prefetchw [{line}]",
            line = in(reg) std::ptr::from_ref(value),
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
