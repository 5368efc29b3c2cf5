//! What other threads leave for a context: resolved names, and connections that were meant for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use hg_na::{Peer, Waiter as _};

use crate::{greeting::Hello, waiter::TcpWaiter, wire::Wire};

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
    parcels: Mutex<Vec<Parcel>>,
    has_any: AtomicBool,
    waiter: Arc<TcpWaiter>,
}

impl Inbox {
    pub(crate) fn new(waiter: Arc<TcpWaiter>) -> Self {
        Self { parcels: Mutex::default(), has_any: AtomicBool::new(false), waiter }
    }

    /// Leaves something, and ends the context's sleep.
    pub(crate) fn push(&self, parcel: Parcel) {
        let mut parcels = self.parcels.lock().unwrap_or_else(PoisonError::into_inner);
        parcels.push(parcel);
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
        let mut parcels = self.parcels.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_any.store(false, Ordering::Release);
        std::mem::take(&mut *parcels)
    }
}
