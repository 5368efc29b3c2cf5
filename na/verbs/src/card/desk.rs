//! Where a context finds what has come for it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crossbeam_queue::SegQueue;
use hg_na::Waiter;

use crate::{
    bell::Bell,
    card::{Fault, Frame},
};

/// Frames of one line in an inbox that is not emptied: more than credits allow a peer that keeps to them, which has 64 in each of four lanes, and
/// as many that tell of credits.
pub(super) const UNREAD_MAX: u32 = 1024;

/// The connection that an event is of: its place, as long as that has this line of this port. By the time that the event is handled it may have another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) place: u32,
    pub(crate) port: usize,
    pub(crate) line: u32,
}

/// What has happened to a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message has come.
    Arrived { of: Target, bytes: Bytes },
    /// It may be sent on.
    Joined { of: Target },
    /// Memory was moved, for the transfer of this number.
    Moved { of: Target, id: u64 },
    /// Nothing can be sent any more.
    Broken { of: Target, fault: Fault },
    /// There is room in some queue, of which there was none.
    Room,
}

/// Bytes that have arrived.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// In their frame: their reader was there.
    Frame(Frame, usize),
    /// Their reader was not.
    Copy(Box<[u8]>),
}

impl Bytes {
    pub(crate) fn read(&self) -> &[u8] {
        match self {
            Self::Frame(frame, len) => frame.bytes(*len),
            Self::Copy(bytes) => bytes,
        }
    }
}

/// Where a context finds what has come for it; others put it there.
pub(crate) struct Desk {
    inbox: SegQueue<Event>,
    /// How often the inbox was emptied.
    emptied: AtomicU64,
    sleep: Bell,
    pub(super) room: Bell,
    waiter: Arc<dyn Waiter>,
}

impl Desk {
    /// Of a context that sleeps on this.
    pub(crate) fn new(waiter: Arc<dyn Waiter>) -> Self {
        let (sleep, room) = (Bell::default(), Bell::default());
        Self { inbox: SegQueue::new(), emptied: AtomicU64::new(0), sleep, room, waiter }
    }

    /// Another thread has something for it.
    pub(super) fn put(&self, event: Event) {
        self.inbox.push(event);
        self.wake();
    }

    /// Another thread wakes it, if it sleeps.
    pub(super) fn wake(&self) {
        if self.sleep.answers() {
            self.waiter.wake();
        }
    }

    /// Its own thread takes everything.
    pub(super) fn take(&self, events: &mut Vec<Event>) {
        if self.inbox.is_empty() {
            return;
        }
        while let Some(event) = self.inbox.pop() {
            events.push(event);
        }
        // Relaxed: it bounds what a peer may leave here, and one time more or less does no harm.
        self.emptied.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn emptied(&self) -> u64 {
        // Relaxed: as above.
        self.emptied.load(Ordering::Relaxed)
    }

    /// Its own thread waits for posts to end, and looks once more: an [`Event::Room`] follows when some have, whoever has found that.
    pub(crate) fn awaits_room(&self) {
        self.room.asks();
    }

    /// Its own thread is about to sleep, and looks once more: from now on [`Self::put`] wakes it.
    pub(super) fn sleeps(&self) {
        self.sleep.asks();
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Desk({} events)", self.inbox.len())
    }
}
