//! Threads are numbered as they come: which context of several each one takes.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering},
};

/// Threads of this process that have called by a whole engine.
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Exchanges this thread's number with that of another one, for a platform whose threads share one of the machine's.
pub(crate) fn swap(other: &mut Option<u32>) {
    *other = THREAD.replace(*other);
}

/// This thread's number: the first to ask has 0, the next one 1.
pub(crate) fn of_this_one() -> u32 {
    THREAD.get().unwrap_or_else(|| {
        // Relaxed: only that it is another one each time matters.
        let number = THREADS.fetch_add(1, Ordering::Relaxed);
        THREAD.set(Some(number));
        number
    })
}
