//! The hand-over of blocks between threads of one process: what others have put here, and whether its owner sleeps.
//!
//! A block is moved, never copied. List and sleep are under one lock, which is taken once a block, not once a record: so whoever puts
//! something in sees that the owner sleeps, or the owner sees that something is there. The flag beside it spares an owner who finds
//! nothing the lock; it may be late, since the lock is taken before a sleep.

use std::sync::PoisonError;

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// What other threads of this process have put here for one of them.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
    any: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    items: Vec<T>,
    is_asleep: bool,
    is_closed: bool,
}

/// The owner has gone: nothing is taken any more. What was to be handed over comes back.
#[derive(Debug)]
pub(crate) struct Closed<T>(pub(crate) T);

impl<T> Inbox<T> {
    pub(crate) fn new() -> Self {
        let state = State { items: Vec::new(), is_asleep: false, is_closed: false };
        Self { state: Mutex::new(state), any: AtomicBool::new(false) }
    }

    /// Hands over. `true`: the owner sleeps, and is to be woken.
    pub(crate) fn push(&self, item: T) -> Result<bool, Closed<T>> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Closed(item));
        }
        state.items.push(item);
        // Relaxed: a hint; the lock orders the list.
        self.any.store(true, Ordering::Relaxed);
        Ok(std::mem::take(&mut state.is_asleep))
    }

    /// Takes what is there; `into` is empty. One load when there is nothing.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        // Relaxed: a hint, as above.
        if self.any.load(Ordering::Relaxed) {
            let mut state = self.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::swap(&mut state.items, into);
        }
    }

    /// Asked before a sleep: `false`, something is there after all. The next one who hands over after `true` is told to wake.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut state = self.lock();
        state.is_asleep = state.items.is_empty();
        if !state.is_asleep {
            // It may have been late.
            self.any.store(true, Ordering::Relaxed);
        }
        state.is_asleep
    }

    /// The owner is awake.
    pub(crate) fn wake_up(&self) {
        self.lock().is_asleep = false;
    }

    /// Takes nothing any more; whatever is there is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.items.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Held for a few instructions: whoever spins a little makes no system call.
        for _ in 0..SPINS {
            if let Ok(state) = self.state.try_lock() {
                return state;
            }
            std::hint::spin_loop();
        }
        // A list of whole items: a panic in between cannot leave another one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at a lock that is held before its holder is waited for: it holds it for a push, or a swap.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };
