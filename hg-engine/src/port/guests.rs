//! Futures of handlers that a runtime has: what is to be dropped when the engine closes.

use std::sync::Arc;

use hg_core::table::{Key, Table};

use crate::lock::Mutex;

/// What of a handler's goes when its engine closes.
pub(crate) trait ToClose: Send + Sync {
    /// Drops it. Not under a lock.
    fn close(&self);
}

/// The futures of one port that a runtime has.
#[derive(Default)]
pub(crate) struct Guests(Mutex<State>);

#[derive(Default)]
struct State {
    slots: Table<Arc<dyn ToClose>>,
    is_closed: bool,
}

impl Guests {
    pub(crate) fn insert(&self, slot: Arc<dyn ToClose>) -> Option<Key> {
        let mut state = self.0.lock();
        (!state.is_closed).then(|| state.slots.insert(slot))
    }

    pub(crate) fn remove(&self, key: Key) {
        let removed = self.0.lock().slots.remove(key);
        drop(removed);
    }

    /// The engine is closed: drops all futures. Not under a lock.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let slots = std::mem::take(&mut state.slots);
        drop(state);
        slots.into_values().for_each(|slot| slot.close());
    }
}
