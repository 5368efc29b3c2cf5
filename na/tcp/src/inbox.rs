//! What other threads leave for a context: resolved names, and connections that were meant for it.
//!
//! A context that makes no progress takes nothing out. So a connection is left only where a place was reserved for it
//! ([`Inbox::reserve`]), of which there are as many as the context may have peers.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use hg_na::{Peer, Waiter as _};
use hg_na_parts::WaitSet;

use crate::{greeting::Hello, wire::Wire};

/// Something for a context.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// The addresses of a link's host, or why there are none.
    Resolved { peer: Peer, found: Result<Vec<SocketAddr>, String> },
    /// A connection that another context of the domain accepted, and what it said.
    Accepted { wire: Box<Wire>, hello: Hello, rest: Vec<u8> },
}

/// A context's inbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    parcels: Mutex<Parcels>,
    has_any: AtomicBool,
    waiter: Arc<WaitSet>,
}

#[derive(Debug, Default)]
struct Parcels {
    list: Vec<Parcel>,
    /// Connections in the list, and places reserved for others.
    connections: usize,
}

impl Inbox {
    pub(crate) fn new(waiter: Arc<WaitSet>) -> Self {
        Self { parcels: Mutex::default(), has_any: AtomicBool::new(false), waiter }
    }

    /// Reserves a place for a connection, which has to be left here then; false where `most` wait already.
    pub(crate) fn reserve(&self, most: usize) -> bool {
        let mut parcels = self.parcels();
        let has_room = parcels.connections < most;
        parcels.connections += usize::from(has_room);
        has_room
    }

    /// Leaves something, and ends the context's sleep.
    pub(crate) fn push(&self, parcel: Parcel) {
        let mut parcels = self.parcels();
        parcels.list.push(parcel);
        // Release: pairs with the load in `has_any`; the lock carries the parcels themselves.
        self.has_any.store(true, Ordering::Release);
        drop(parcels);
        self.waiter.wake();
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        // Acquire: pairs with the store in `push`. A sleeper that reads too early is woken.
        self.has_any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Parcel> {
        let mut parcels = self.parcels();
        self.has_any.store(false, Ordering::Release);
        let taken = std::mem::take(&mut parcels.list);
        // A place may be reserved for one that has not come yet.
        let is_connection = |parcel: &&Parcel| matches!(parcel, Parcel::Accepted { .. });
        parcels.connections -= taken.iter().filter(is_connection).count();
        taken
    }

    fn parcels(&self) -> MutexGuard<'_, Parcels> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
