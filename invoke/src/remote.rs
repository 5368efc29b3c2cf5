//! Memory that one worker has others allocate: the handles that its owner has.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use hg_na::Waiter;
use serde::{Deserialize, Serialize};

use crate::{Buffer, Error, Locator, Place};

/// Memory of another worker that this one has had allocated there: see [`Worker::allocate_at`](crate::Worker::allocate_at). Dropped, it is released once its
/// owner makes progress: within 64 rounds of that, or when it asks for more.
#[derive(Debug)]
pub struct Remote {
    pub(crate) locator: Locator,
    pub(crate) bytes: u64,
    pub(crate) _release: Release,
}

impl Remote {
    /// What names it: for puts, gets, and calls with buffers, of any worker.
    #[must_use]
    pub fn locator(&self) -> &Locator {
        &self.locator
    }

    /// Whose memory it is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.locator.place()
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// As much memory at every worker: see [`Worker::allocate_everywhere`](crate::Worker::allocate_everywhere). Dropped, it is released everywhere, once its
/// owner makes progress as with [`Remote`], behind what was broadcast to it before.
#[derive(Debug)]
pub struct Everywhere {
    pub(crate) number: u64,
    pub(crate) own: Arc<Buffer>,
    pub(crate) _release: Release,
}

impl Everywhere {
    /// Bytes of it at each worker.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.own.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// That of its owner. A part of it that is broadcast to the same place is not copied here.
    #[must_use]
    pub fn own(&self) -> &Buffer {
        &self.own
    }

    /// From an offset on, at each worker.
    #[must_use]
    pub fn at(&self, offset: u64) -> SpotEverywhere<'_> {
        SpotEverywhere { of: self, offset }
    }
}

/// Where at each worker bytes are to be written: see [`Everywhere::at`].
#[derive(Debug, Clone, Copy)]
pub struct SpotEverywhere<'a> {
    pub(crate) of: &'a Everywhere,
    pub(crate) offset: u64,
}

/// What is to be released, by its number at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Let {
    /// This end is to hear of it.
    Tell { end: u32, number: u64 },
    /// All are, behind what was broadcast before.
    Everywhere { number: u64 },
}

/// Releases when it is dropped, in whatever thread.
#[derive(Debug)]
pub(crate) struct Release {
    of: Option<Let>,
    dropped: Arc<Dropped>,
}

impl Release {
    pub(crate) fn new(of: Let, dropped: &Arc<Dropped>) -> Self {
        Self { of: Some(of), dropped: Arc::clone(dropped) }
    }

    /// There is nothing to release.
    pub(crate) fn disarm(mut self) {
        self.of = None;
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            self.dropped.add(of);
        }
    }
}

/// What was dropped since its owner has made progress.
#[derive(Debug)]
pub(crate) struct Dropped {
    is_any: AtomicBool,
    all: Mutex<Vec<Let>>,
    /// The owner's, which may sleep.
    waiter: Arc<dyn Waiter>,
}

impl Dropped {
    pub(crate) fn new(waiter: Arc<dyn Waiter>) -> Self {
        Self { is_any: AtomicBool::new(false), all: Mutex::default(), waiter }
    }

    /// The owner is to release it.
    pub(crate) fn add(&self, one: Let) {
        self.put_back(one);
        self.waiter.wake();
    }

    /// The owner could not, and tries again.
    pub(crate) fn put_back(&self, one: Let) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        // The list is behind its lock; who sees this too late looks again.
        self.is_any.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<Let> {
        self.is_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Characters of a reason that travels.
pub(crate) const REASON_MAX: usize = 96;

/// Why a worker allocates nothing for another one. It travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// Of what one worker may have there, or all together, so much is left.
    Over { left: u64, of_all: bool },
    /// There is none, or not on that node.
    None { why: String },
    /// Where it is, or why there is none, fits in no record.
    Unsaid,
}

impl Refusal {
    pub(crate) fn at(self, at: Place, bytes: u64) -> Error {
        match self {
            Self::Over { left, of_all } => Error::NotAllotted { at, bytes, left, of_all },
            Self::Unsaid => Error::Memory(
                format!("{at}: what names its memory fits in no record of these limits").into(),
            ),
            Self::None { why } => Error::Memory(format!("{at}: {why}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::BorrowedFd, sync::atomic::AtomicU32, time::Duration};

    use super::*;

    #[derive(Debug, Default)]
    struct Woken(AtomicU32);

    impl Waiter for Woken {
        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn wait(&self, _timeout: Option<Duration>) -> Result<(), hg_na::Error> {
            Ok(())
        }

        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_handle_that_is_dropped_wakes_its_owner_and_one_that_is_disarmed_does_not() {
        let woken = Arc::new(Woken::default());
        let dropped = Arc::new(Dropped::new(woken.clone()));
        let of = Let::Tell { end: 1, number: 2 };
        let (first, second) = (Release::new(of, &dropped), Release::new(of, &dropped));
        second.disarm();
        assert_eq!((woken.0.load(Ordering::Relaxed), dropped.is_any()), (0, false));
        drop(first);
        assert_eq!((woken.0.load(Ordering::Relaxed), dropped.take()), (1, vec![of]));
        dropped.put_back(of);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it knows");
    }
}
