//! What the process does at a signal stays its own business while the library is loaded.
//!
//! libfabric of many distributions is linked with libpsm2, whose initialiser sets handlers for signals that end a process: they write
//! `NAME-PID.btr` into its working directory. `HFI_NO_BACKTRACE` and `IPATH_NO_BACKTRACE` would keep them away, but no library can set
//! a variable while other threads may read some. So what was there before is put back. Another thread that sets a handler at that very
//! moment may lose it.

use std::mem::MaybeUninit;

use nix::libc::{self, c_int, sigaction};

/// Signals that such handlers are set for.
const SIGNALS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGINT,
    libc::SIGTERM,
];

/// What the process does at each of them; put back when dropped.
pub(crate) struct Kept([Option<sigaction>; SIGNALS.len()]);

impl Kept {
    pub(crate) fn now() -> Self {
        Self(SIGNALS.map(action_at))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.into_iter().zip(&self.0) {
            let (Some(before), Some(now)) = (before, action_at(signal)) else { continue };
            if before.sa_sigaction != now.sa_sigaction || before.sa_flags != now.sa_flags {
                // SAFETY:
                // - it was in force before: sigaction(2) has given it.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

fn action_at(signal: c_int) -> Option<sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY:
    // - asks only, and fills the structure when it succeeds.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY:
    // - as above.
    (result == 0).then(|| unsafe { action.assume_init() })
}
