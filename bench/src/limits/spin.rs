//! Spinning on something that another process writes, without spinning forever.

use std::hint;
use std::thread;

use crate::error::Error;

/// Looks until `ready` has something; asks `alive` now and then, so that nobody spins for a
/// process that has died, and yields, so that it works on a single core too.
#[inline]
pub(super) fn until<T>(
    mut ready: impl FnMut() -> Option<T>,
    alive: impl FnMut() -> Result<(), Error>,
) -> Result<T, Error> {
    for _ in 0..POLLS {
        if let Some(found) = ready() {
            return Ok(found);
        }
        hint::spin_loop();
    }
    patiently(ready, alive)
}

/// The rare case, kept out of the loop above.
#[cold]
fn patiently<T>(
    mut ready: impl FnMut() -> Option<T>,
    mut alive: impl FnMut() -> Result<(), Error>,
) -> Result<T, Error> {
    loop {
        alive()?;
        thread::yield_now();
        for _ in 0..POLLS {
            if let Some(found) = ready() {
                return Ok(found);
            }
            hint::spin_loop();
        }
    }
}

/// Looks before the other process is asked whether it lives: some tens of microseconds.
const POLLS: u32 = 1 << 11;
