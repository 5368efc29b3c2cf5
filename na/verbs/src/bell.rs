//! Telling one that waits that what it waits for has happened, without a lock.
//!
//! # Protocol   (W: waits for a fact, D: makes it so)
//! W1 swap(true, AcqRel)              D1 makes it so
//! W2 looks whether it is so          D2 swap(false, AcqRel): it was true: D tells W
//! - Both swaps change the same word, so one of them comes second. If that is D2, it finds `true`. If it is W1, it finds what D2 has left, and
//!   W2 finds what D1 has done.
//!
//! `tests/loom.rs` checks it.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody waits.
#[derive(Debug, Default)]
pub(crate) struct Bell(AtomicBool);

impl Bell {
    /// The caller looks once more, then waits.
    pub(crate) fn asks(&self) {
        self.0.swap(true, Ordering::AcqRel); // W1
    }

    /// It is so now. `true`: whoever waits is to be told.
    pub(crate) fn answers(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel) // D2
    }
}
