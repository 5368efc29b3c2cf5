//! Whose turn it is with what several threads share, without waiting for it.
//!
//! Whoever has something for the others to see pushes it into a queue and [raises](Turn::raise) a number. Who has raised it from 0 has the turn: he
//! takes what is in the queue, again and again until nobody has raised the number meanwhile, which [`Turn::ends`] sets to 0. All others
//! go on with their own work: what they have pushed is taken by him. So a queue is emptied by one thread at a time, nothing stays in it,
//! and nobody waits. Who [tries](Turn::tries), and finds that nobody has the turn, finds an empty queue.
//!
//! # Protocol   (A: has the turn, B: pushes)
//! A1 load(Acquire): how far it was raised,     B1 push
//!    or compare_exchange(0, 1, Acquire)
//! A2 take all of the queue                     B2 fetch_add(1, Release)
//! A3 compare_exchange(what A1 saw, 0, Release)
//! - B2 -> A1: what has been counted is found in the queue.
//! - A3 -> A1 of the next one: he finds what was done before. Between them every change is made by a read-modify-write operation, which carries that on.
//!
//! `tests/loom.rs` checks both arrows: weaken any of the four and it fails.

#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicUsize);

impl Turn {
    /// Something was pushed. `true`: the caller has the turn.
    pub(crate) fn raise(&self) -> bool {
        self.0.fetch_add(1, Ordering::Release) == 0 // B2
    }

    /// `true`: nobody had the turn, and the caller has it.
    pub(crate) fn tries(&self) -> bool {
        // Relaxed: who fails does nothing.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() // A1
    }

    /// How far others have raised it: asked by the one with the turn before he does anything.
    pub(crate) fn seen(&self) -> usize {
        self.0.load(Ordering::Acquire) // A1
    }

    /// The turn is over. `false`: something was pushed since, and it is not.
    pub(crate) fn ends(&self, seen: usize) -> bool {
        // Relaxed: who fails looks again.
        self.0.compare_exchange(seen, 0, Ordering::Release, Ordering::Relaxed).is_ok() // A3
    }
}
