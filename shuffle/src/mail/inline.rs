//! Deliveries on whichever thread makes progress, from where messages were received if nothing waits before them.
//!
//! The callback lies in the state. Who takes it out delivers, and looks again under the lock before it puts it back: so
//! whoever finds it gone leaves what it has put in to that thread, which sees it.

use std::fmt;

use super::{End, Mail, Rest, State};
use crate::{
    inbox::{Amount, Chunk},
    lock::locked,
    sync::{AtomicU64, MutexGuard, thread},
};

/// Hands the messages of a batch to the application, and counts each; `false`: it panicked.
type Deliver = dyn FnMut(&[u8], &AtomicU64) -> bool + Send;

/// What delivers inline.
pub(crate) struct Callback(Box<Deliver>);

impl Callback {
    pub(crate) fn new(deliver: impl FnMut(&[u8], &AtomicU64) -> bool + Send + 'static) -> Self {
        Self(Box::new(deliver))
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Callback")
    }
}

impl State {
    /// Takes the callback; `None`: somebody has it.
    fn take_callback(&mut self) -> Option<Callback> {
        let callback = self.callback.take()?;
        self.thread = Some(thread::current().id());
        self.rest = Rest::None;
        Some(callback)
    }
}

impl Mail {
    /// Deliveries are inline, by this.
    pub(crate) fn begin_inline(&self, callback: Callback) {
        let mut state = locked(&self.state);
        state.rest = Rest::Empty;
        state.callback = Some(callback);
    }

    /// Delivers a batch from where it lies, and then what is due. `false`: something waits before it, or somebody
    /// delivers.
    pub(crate) fn deliver_now(&self, bytes: &[u8], messages: u32) -> bool {
        if !self.is_inline {
            return false;
        }
        let mut state = locked(&self.state);
        if state.inbox.len() > 0 || state.end.is_some() {
            return false;
        }
        let Some(mut callback) = state.take_callback() else { return false };
        let amount = Amount { messages: u64::from(messages), bytes: bytes.len() as u64 };
        state.inbox.begin_passing(amount);
        drop(state);
        let is_well = callback.0(bytes, &self.delivered.0);
        let mut state = locked(&self.state);
        state.inbox.end_passing(amount);
        self.go_on(state, callback, is_well);
        true
    }

    /// Delivers what is due, unless somebody does.
    pub(super) fn deliver_due(&self) {
        let mut state = locked(&self.state);
        if let Some(callback) = state.take_callback() {
            self.go_on(state, callback, true);
        }
    }

    /// Delivers until nothing is due, and puts the callback back; one that has panicked is gone.
    fn go_on<'m>(
        &'m self,
        mut state: MutexGuard<'m, State>,
        mut callback: Callback,
        mut is_well: bool,
    ) {
        while is_well && let Some(chunk) = state.take_due() {
            drop(state);
            is_well = callback.0(&chunk.bytes, &self.delivered.0);
            state = self.finish(locked(&self.state), chunk);
        }
        if !is_well {
            drop(state);
            drop(callback);
            self.end(false);
            self.clear();
            return;
        }
        state.thread = None;
        state.rest = Rest::Empty;
        state.callback = Some(callback);
        let is_ending = state.end.is_some();
        drop(state);
        if is_ending {
            self.room.notify_all();
        }
    }

    /// Drops the callback, which nobody has any more.
    pub(crate) fn end_inline(&self) {
        let callback = locked(&self.state).callback.take();
        drop(callback);
    }
}

impl State {
    /// The next chunk for inline deliveries.
    fn take_due(&mut self) -> Option<Chunk> {
        if self.end == Some(End::Now) {
            return None;
        }
        let all = self.flushes > 0 || self.end.is_some();
        self.inbox.take(all)
    }
}
