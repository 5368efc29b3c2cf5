//! Who rings whom: a flag that says "I am not looking", and its mirror for a producer without space.
//!
//! A side that stops looking publishes it ([`Intent`]), alone on its line of its own segment; the
//! other side reads the flag after each step that it might wait for ([`Bell`]) and rings once.
//!
//! # Protocol
//! | acts (publishes a slot, or pops one) | stops looking (parks, or sleeps) |
//! |---|---|
//! | W1 the slot's sequence, the position, or a pin's word: `store(Release)` | S1 `flag.store(parked)` |
//! | W2 `fence(SeqCst)` | S2 `fence(SeqCst)` |
//! | W3 `flag.load`; parked: ring the doorbell | S3 look again; something there: back to looking |
//!
//! `SeqCst` is needed, not just acquire and release: each side stores to one place and then loads
//! from the other. Whichever fence comes second, its side sees the other's store: either the actor
//! sees the flag, or the sleeper sees the slot. Flag values count: odd is parked, and an actor rings
//! once per odd value, since one ring ends that state whatever came before it.
//! `tests/loom.rs`: without either fence a wake-up is lost.

use crate::sync::{AtomicU32, Ordering, fence};

/// The side that stops looking: state that is private to it.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    epoch: u32,
}

impl Intent {
    /// Whether the other side is asked to ring.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.epoch & 1 == 1
    }

    /// Asks to be rung. [`before_second_look`] must follow, then the second look.
    #[inline]
    pub(crate) fn park(&mut self, flag: &AtomicU32) {
        self.epoch |= 1;
        flag.store(self.epoch, Ordering::Relaxed); // S1; Relaxed: S2 orders it
    }

    /// Looks by itself again.
    #[inline]
    pub(crate) fn unpark(&mut self, flag: &AtomicU32) {
        if self.is_parked() {
            self.epoch = self.epoch.wrapping_add(1);
            // Relaxed: seen late it costs one needless ring.
            flag.store(self.epoch, Ordering::Relaxed);
        }
    }
}

/// Stands between all [`Intent::park`] of one sleep and the second looks.
#[inline]
pub(crate) fn before_second_look() {
    fence("S2"); // S2
}

/// The side that rings: state that is private to it.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: u32,
}

impl Bell {
    /// Whether to ring, asked after each step that the other side might wait for.
    #[inline]
    pub(crate) fn is_due(&mut self, flag: &AtomicU32) -> bool {
        fence("W2"); // W2
        let epoch = flag.load(Ordering::Relaxed); // W3; Relaxed: W2 orders it
        if epoch & 1 == 0 || epoch == self.rung {
            return false;
        }
        self.rung = epoch;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_rung_once_per_sleep() {
        let flag = AtomicU32::new(0);
        let (mut intent, mut bell) = (Intent::default(), Bell::default());
        assert!(!bell.is_due(&flag));
        intent.park(&flag);
        intent.park(&flag);
        assert!(bell.is_due(&flag));
        assert!(!bell.is_due(&flag));
        intent.unpark(&flag);
        assert!(!bell.is_due(&flag));
        intent.park(&flag);
        assert!(bell.is_due(&flag));
    }
}
