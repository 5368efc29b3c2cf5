//! What the thread that makes progress in the background, callers that wait and futures that are polled tell each other.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use crate::{idle::Spins, platform::Thread};

/// Polls in vain, one after the other, after which few try.
const VAIN_MAX: u32 = 8;
/// One poll of so many tries all the same.
const TRIED: u32 = 16;

/// What the background thread and the callers tell each other.
#[derive(Default)]
pub(crate) struct Background {
    /// Callers in `wait` right now; counted only where there is a background thread.
    pub(crate) callers: AtomicUsize,
    /// Callers that have left since the background thread looked.
    pub(crate) departures: AtomicUsize,
    pub(crate) is_there: AtomicBool,
    /// Whether the background thread waits without a limit, because one call takes long.
    pub(crate) deep: AtomicBool,
    /// There is something under way that nobody waits for.
    pub(crate) come_back: AtomicBool,
    /// The thread stands aside, and was not called.
    pub(crate) is_aside: AtomicBool,
    /// How it went with futures that were polled.
    pub(crate) polls: Polls,
    /// What polling before sleeping has brought, whoever did it.
    pub(crate) spins: Spins,
    /// The thread itself, once it was started.
    pub(crate) thread: OnceLock<Thread>,
}

impl Background {
    /// Ends its present park, or the next one.
    pub(crate) fn unpark(&self) {
        self.thread.get().inspect(|thread| thread.unpark());
    }

    /// The thread has given the role back: it stands aside as after a caller, if a poll is to have it (P4).
    pub(crate) fn make_way_for_polls(&self) {
        if self.polls.want.swap(false, Ordering::Relaxed) {
            self.departures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What a poll has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Found,
    Vain,
    /// Somebody else had the role.
    None,
}

/// What the polls of a port have brought.
#[derive(Default)]
pub(crate) struct Polls {
    /// In vain since one has found something.
    vain: AtomicU32,
    /// The next call is likely to be polled for progress.
    want: AtomicBool,
}

// Relaxed: these are hints, and nothing else depends on them.
impl Polls {
    pub(crate) fn is_worth_while(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        if (VAIN_MAX..VAIN_MAX + TRIED).contains(&vain) {
            self.vain.store(vain + 1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// What rounds have come to.
    pub(crate) fn was(&self, progress: Progress) {
        let vain = self.vain.load(Ordering::Relaxed);
        match progress {
            Progress::Found if vain > 0 => self.vain.store(0, Ordering::Relaxed),
            Progress::Found => {}
            Progress::Vain => self.vain.store((vain + 1).min(VAIN_MAX), Ordering::Relaxed),
            Progress::None => {}
        }
        if progress != Progress::Found {
            self.want.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn want_the_role(&self) -> bool {
        self.want.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_polls_in_vain_few_try_until_one_finds_something() {
        let polls = Polls::default();
        for _ in 0..VAIN_MAX {
            assert!(polls.is_worth_while());
            polls.was(Progress::Vain);
        }
        let skipped =
            |polls: &Polls| (0..2 * TRIED).take_while(|_| !polls.is_worth_while()).count();
        assert_eq!(skipped(&polls), TRIED as usize);
        assert!(polls.is_worth_while(), "it has not made its rounds yet");
        polls.was(Progress::None);
        assert!(polls.is_worth_while(), "somebody else had the role");
        polls.was(Progress::Vain);
        assert_eq!(skipped(&polls), TRIED as usize);
        polls.was(Progress::Found);
        assert_eq!(skipped(&polls), 0);
    }
}
