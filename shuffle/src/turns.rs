//! Who makes the progress of an engine: its own thread, or one that waits for room there and is on a processor already.
//!
//! # Protocol
//! One thread at a time *helps*. The engine's thread stands aside meanwhile, and for [`GRACE`] after the last one has left, so
//! that waits one after the other never wake it. When other threads wait too, the last helper calls it back.
//!
//! | helper | engine's thread |
//! |---|---|
//! | H1 `helper.store(true)` | S1 `is_aside.store(false)` |
//! | H2 `is_aside.load`: unless it is, interrupt the progress | S2 `helper.load`: stand aside again, or make progress |
//! | H3 `helper.store(false)`, fence | S3 `is_deep.store(true)`, fence |
//! | H4 `others.load`, `is_deep.load`: call it back | S4 `helper.load`: sleep |
//!
//! H3 to S4 lose no wake-up: either the leaving helper sees that the thread sleeps without a limit, or that one sees that it
//! has left. H1 to S2 are for speed: where a helper and the thread miss each other, both make progress, one after the other,
//! until something comes. An interrupt that comes before the progress which it means ends that one's first round; one
//! that was taken by somebody else delays a helper until the next message, and loses nothing: whoever makes room that a
//! helper waits for interrupts the progress itself.
//!
//! `tests/loom.rs` searches it together with `room.rs`: without either fence it finds threads that nobody wakes.

use std::time::Duration;

use crate::{
    lock::{locked, wait},
    sync::{AtomicBool, AtomicU32, Condvar, Mutex, Ordering, fence, wait_for},
};

/// Who makes progress.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    helper: AtomicBool,
    /// Threads that sleep until somebody else makes room.
    others: AtomicU32,
    /// Helpers that have left.
    departures: AtomicU32,
    is_aside: AtomicBool,
    is_deep: AtomicBool,
    /// The engine's thread was called back.
    is_called: Mutex<bool>,
    called: Condvar,
}

/// A turn at helping; dropped, it is over.
#[derive(Debug)]
pub(crate) struct Turn<'t>(&'t Turns);

/// A thread that sleeps; dropped, it does not.
#[derive(Debug)]
pub(crate) struct Sleeper<'t>(&'t Turns);

impl Turns {
    /// Begins to help; `interrupt` ends the progress of the engine's thread. `None`: somebody does already.
    #[inline]
    pub(crate) fn help(&self, interrupt: impl FnOnce()) -> Option<Turn<'_>> {
        // H1
        let taken = self.helper.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed);
        taken.ok()?;
        // H2
        if !self.is_aside.load(Ordering::SeqCst) {
            interrupt();
        }
        Some(Turn(self))
    }

    /// Notes a thread that sleeps until somebody else makes room.
    pub(crate) fn sleep(&self) -> Sleeper<'_> {
        // Relaxed: a helper that misses it leaves the engine's thread aside for a grace.
        self.others.fetch_add(1, Ordering::Relaxed);
        Sleeper(self)
    }

    /// Whether the engine's thread is to stand aside.
    pub(crate) fn is_helped(&self) -> bool {
        self.helper.load(Ordering::SeqCst) // S2
    }

    /// Calls the engine's thread back.
    pub(crate) fn call_back(&self) {
        // Relaxed: a thread that is about to stand aside looks again after a grace.
        if self.is_aside.load(Ordering::Relaxed) {
            *locked(&self.is_called) = true;
            self.called.notify_one();
        }
    }

    /// Waits until nobody helps, and nobody has for a while.
    pub(crate) fn stand_aside(&self) {
        let mut is_called = locked(&self.is_called);
        self.is_aside.store(true, Ordering::SeqCst);
        let mut unchanged = 0;
        while !std::mem::take(&mut *is_called) {
            if unchanged == GRACES_UNTIL_DEEP {
                // Relaxed: the fence orders it.
                self.is_deep.store(true, Ordering::Relaxed);
                fence("S3");
                // S4
                if self.is_helped() {
                    is_called = wait(&self.called, is_called);
                }
                self.is_deep.store(false, Ordering::Relaxed);
                unchanged = 0;
                continue;
            }
            let before = self.departures.load(Ordering::Relaxed);
            is_called = wait_for(&self.called, (&self.is_called, is_called), GRACE);
            let is_quiet = self.departures.load(Ordering::Relaxed) == before;
            if !self.is_helped() && is_quiet {
                break;
            }
            unchanged = if is_quiet { unchanged + 1 } else { 0 };
        }
        self.is_aside.store(false, Ordering::SeqCst); // S1
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        let turns = self.0;
        turns.departures.fetch_add(1, Ordering::Relaxed);
        // Relaxed, here and in H4: the fence orders them.
        turns.helper.store(false, Ordering::Relaxed);
        fence("H3");
        // H4
        if turns.others.load(Ordering::Relaxed) > 0 {
            turns.call_back();
        } else if turns.is_deep.load(Ordering::Relaxed) {
            drop(locked(&turns.is_called));
            turns.called.notify_one();
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the engine's thread stays aside after the last helper has left.
const GRACE: Duration = Duration::from_millis(1);
/// Times of [`GRACE`] that one helper takes before the thread stops looking.
const GRACES_UNTIL_DEEP: u32 = if cfg!(loom) { 1 } else { 8 };

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn one_thread_helps_at_a_time_and_interrupts_one_that_is_not_aside() {
        let turns = Turns::default();
        let mut interrupts = 0;
        let turn = turns.help(|| interrupts += 1);
        assert!(turn.is_some() && turns.is_helped() && turns.help(|| {}).is_none());
        drop(turn);
        assert!(!turns.is_helped());
        turns.is_aside.store(true, Ordering::SeqCst);
        assert!(turns.help(|| interrupts += 1).is_some());
        assert_eq!(interrupts, 1);
    }

    #[test]
    fn a_thread_that_stands_aside_comes_back_when_nobody_helps_or_when_it_is_called() {
        let turns = Turns::default();
        let (aside, back) = mpsc::channel();
        thread::scope(|scope| {
            let turn = turns.help(|| {});
            scope.spawn(|| {
                for _ in 0..3 {
                    turns.stand_aside();
                    aside.send(()).unwrap();
                }
            });
            // It stops looking after a while, and is called all the same.
            while !turns.is_deep.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            assert!(back.try_recv().is_err());
            turns.call_back();
            back.recv().unwrap();
            while !turns.is_deep.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            drop(turn);
            back.recv().unwrap();
            // Nobody helps any more: it comes back by itself.
            back.recv().unwrap();
        });
    }

    #[test]
    fn a_helper_that_leaves_others_asleep_calls_the_thread_back() {
        let turns = Turns::default();
        let turn = turns.help(|| {});
        turns.is_aside.store(true, Ordering::SeqCst);
        let sleeper = turns.sleep();
        drop(turn);
        assert!(*locked(&turns.is_called));
        drop(sleeper);
        assert_eq!(turns.others.load(Ordering::Relaxed), 0);
    }
}
