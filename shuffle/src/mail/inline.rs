//! Deliveries on whichever thread makes progress, from where messages were received if nothing waits before them.
//!
//! The callback lies in the state. Who takes it out delivers, and looks again under the lock before it puts it back: so
//! whoever finds it gone leaves what it has put in to that thread, which sees it.

use std::{fmt, time::Instant};

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
        let state = self.tell_of_room(state);
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
        let is_ending = state.end.is_some();
        // Whoever has it at the end drops it, without the lock.
        let over = match state.end {
            Some(End::Now) => Some(callback),
            _ => state.callback.replace(callback),
        };
        drop(state);
        drop(over);
        if is_ending {
            self.room.notify_all();
        }
    }

    /// Waits until whoever delivers has ended, but not beyond a moment. Nothing is delivered any more then: the callback is dropped, here or by
    /// whoever has it.
    pub(crate) fn end_inline(&self, limit: Instant) {
        self.wait_until_ended(limit);
        let mut state = locked(&self.state);
        state.end = Some(End::Now);
        let callback = state.callback.take();
        drop(state);
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

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc::channel},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::{
        inbox::Amount,
        mail::deliver_all,
        message::Message,
        sync::{AtomicU64, Ordering},
    };

    fn inline() -> Arc<Mail> {
        let max = Amount { messages: 8, bytes: 1 << 20 };
        Arc::new(Mail::new((max, 0, 0), (0, Duration::ZERO), (false, true)))
    }

    #[test]
    fn a_callback_that_somebody_has_when_deliveries_end_is_dropped_by_that_one() {
        for drain in [false, true] {
            dropped_by_who_has_it(drain);
        }
    }

    fn dropped_by_who_has_it(drain: bool) {
        let (mail, held) = (inline(), Arc::new(()));
        let (ends, alive) = (Arc::downgrade(&mail), Arc::downgrade(&held));
        let mut deliver = move |_: crate::Delivery<'_>| {
            let (_held, mail) = (&held, ends.upgrade().unwrap());
            mail.end(drain);
            // The callback takes longer than it is waited for.
            mail.end_inline(Instant::now());
        };
        mail.begin_inline(Callback::new(move |bytes, delivered| {
            deliver_all(bytes, 0, &mut deliver, delivered)
        }));
        let message = Message { kind: 0, source: 0, to: 0, bytes: b"the last one" };
        mail.push_own(&message, Some(&AtomicU64::new(0))).unwrap();
        assert_eq!((mail.delivered(), alive.strong_count()), (1, 0));
        assert_eq!(mail.undelivered(), 0);
    }

    #[test]
    fn a_flush_that_waits_for_a_message_that_is_delivered_from_where_it_lies_ends_with_it() {
        let _watchdog = watchdog::Watchdog::start();
        let (mail, (begins, begun), (release, released)) = (inline(), channel(), channel());
        mail.begin_inline(Callback::new(move |_, delivered| {
            begins.send(()).unwrap();
            released.recv().unwrap();
            delivered.fetch_add(1, Ordering::Relaxed);
            true
        }));
        thread::scope(|scope| {
            scope.spawn(|| assert!(mail.deliver_now(b"the only one", 1)));
            begun.recv().unwrap();
            scope.spawn(|| mail.flush());
            watchdog::until("it waits", || !locked(&mail.state).targets.is_empty());
            release.send(()).unwrap();
        });
        assert_eq!((mail.delivered(), mail.undelivered()), (1, 0));
    }
}
