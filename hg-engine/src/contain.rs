//! Panics of what users have given: they end where they concern nobody else.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Runs something of a user's for which nobody waits. Its panic is logged, and concerns nobody else.
#[cold]
pub(crate) fn contain(what: &str, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        tracing::error!(panic = panic_text(panic.as_ref()), "{what} has panicked");
        discard(panic);
    }
}

/// Drops what somebody has panicked with, which may panic once more.
#[cold]
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

/// What somebody has panicked with, in words.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
