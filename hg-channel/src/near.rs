//! The threads of one process: the inbox of each, and what ends the sleep of its owner.

use std::sync::{Arc, OnceLock};

use hg_na::Waiter;

use crate::{
    inbox::{Closed, Inbox},
    outgoing::Block,
    wire::Told,
};

/// What one thread hands over to another one.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// Records of end `from`.
    Records { from: u32, block: Block },
    /// End `from` has consumed so much.
    Consumed { from: u32, told: Told },
    /// End `from` is there no more.
    Gone { from: u32 },
}

/// The ends of this process, which hand blocks over without a transport.
#[derive(Debug)]
pub struct Near {
    first: u32,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    inbox: Inbox<Parcel>,
    waiter: OnceLock<Arc<dyn Waiter>>,
}

impl Near {
    /// Of `count` ends from `first` on.
    #[must_use]
    pub fn new(first: u32, count: u32) -> Arc<Self> {
        let place = |_| Place { inbox: Inbox::new(), waiter: OnceLock::new() };
        Arc::new(Self { first, places: (0..count).map(place).collect() })
    }

    /// Whether an end is one of this process.
    #[inline]
    pub(crate) fn has(&self, end: u32) -> bool {
        self.place(end).is_some()
    }

    /// The ends.
    pub(crate) fn ends(&self) -> impl Iterator<Item = u32> {
        self.first..self.first.saturating_add(u32::try_from(self.places.len()).unwrap_or(0))
    }

    #[inline]
    fn place(&self, end: u32) -> Option<&Place> {
        self.places.get(end.checked_sub(self.first)? as usize)
    }

    /// From now on whoever hands something over wakes the owner of this end.
    pub(crate) fn join(&self, end: u32, waiter: Arc<dyn Waiter>) {
        if let Some(place) = self.place(end) {
            let _first_come = place.waiter.set(waiter);
        }
    }

    pub(crate) fn push(&self, to: u32, parcel: Parcel) -> Result<(), Closed<Parcel>> {
        let Some(place) = self.place(to) else { return Err(Closed(parcel)) };
        if place.inbox.push(parcel)?
            && let Some(waiter) = place.waiter.get()
        {
            waiter.wake();
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn take(&self, end: u32, into: &mut Vec<Parcel>) {
        if let Some(place) = self.place(end) {
            place.inbox.take(into);
        }
    }

    pub(crate) fn may_sleep(&self, end: u32) -> bool {
        self.place(end).is_none_or(|place| place.inbox.may_sleep())
    }

    pub(crate) fn wake_up(&self, end: u32) {
        if let Some(place) = self.place(end) {
            place.inbox.wake_up();
        }
    }

    /// Ends a sleep of this end, from any thread.
    pub fn wake(&self, end: u32) {
        if let Some(waiter) = self.place(end).and_then(|place| place.waiter.get()) {
            waiter.wake();
        }
    }

    /// This end takes nothing any more, and the others hear of it.
    pub(crate) fn leave(&self, end: u32) {
        if let Some(place) = self.place(end) {
            place.inbox.close();
        }
        for other in self.ends().filter(|other| *other != end) {
            // Who has left hears nothing.
            let _left = self.push(other, Parcel::Gone { from: end });
        }
    }
}
