//! `futex(2)` between processes: sleep while a word has a value, wake who sleeps on it.

use std::ptr;
use std::sync::atomic::AtomicU32;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Context, Error};

/// Sleeps while `word` is `value`, at most `limit_ms`. Returns early whenever it likes: look again.
pub(crate) fn wait(word: &AtomicU32, value: u32, limit_ms: u32) -> Result<(), Error> {
    let limit = libc::timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let limit = ptr::from_ref(&limit);
    // SAFETY:
    // - the word: aligned, mapped and readable as long as the borrow lives.
    // - the limit: a timespec on this stack frame; the kernel only reads it.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAIT, value, limit) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ETIMEDOUT) => Ok(()),
        error => error.map(drop).context("futex wait"),
    }
}

/// Wakes one sleeper on `word`, if there is one.
pub(crate) fn wake(word: &AtomicU32) -> Result<(), Error> {
    // SAFETY:
    // - the word: mapped as long as the borrow lives; the kernel only uses its address.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAKE, 1) };
    Errno::result(result).map(drop).context("futex wake")
}

/// Shared between processes, so without `FUTEX_PRIVATE_FLAG`.
const WAIT: libc::c_int = libc::FUTEX_WAIT;
const WAKE: libc::c_int = libc::FUTEX_WAKE;
