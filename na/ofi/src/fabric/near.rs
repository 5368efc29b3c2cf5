//! Endpoints of one process know when one another is closed.
//!
//! libfabric's shm writes straight into the memory of an endpoint of the same process, and does not notice that it
//! was closed and its memory unmapped. So a send to one is made while it is certainly open: [`hold`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak},
};

/// Whether an endpoint is open; written once, under the lock that its senders hold.
pub(crate) type Alive = Arc<RwLock<bool>>;

/// By address.
type Names = HashMap<Vec<u8>, Weak<RwLock<bool>>>;

fn names() -> MutexGuard<'static, Names> {
    static NAMES: OnceLock<Mutex<Names>> = OnceLock::new();
    NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fresh endpoint.
pub(crate) fn announce(name: &[u8]) -> Alive {
    let alive = Arc::new(RwLock::new(true));
    let mut names = names();
    names.retain(|_, other| other.strong_count() > 0);
    names.insert(name.to_vec(), Arc::downgrade(&alive));
    alive
}

/// The endpoint of this process with this address.
pub(crate) fn find(name: &[u8]) -> Option<Alive> {
    names().get(name).and_then(Weak::upgrade)
}

/// Keeps an endpoint from being closed. `None`: it was.
pub(crate) fn hold(alive: &RwLock<bool>) -> Option<RwLockReadGuard<'_, bool>> {
    let held = alive.read().unwrap_or_else(PoisonError::into_inner);
    if *held { Some(held) } else { None }
}

/// An endpoint is about to be closed: waits for the sends that hold it.
pub(crate) fn closes(alive: &RwLock<bool>) {
    *alive.write().unwrap_or_else(PoisonError::into_inner) = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_endpoint_cannot_be_held() {
        let alive = announce(b"near-test");
        let found = find(b"near-test").unwrap();
        assert!(hold(&found).is_some());
        closes(&alive);
        assert!(hold(&found).is_none());
        drop((alive, found));
        assert!(find(b"near-test").is_none());
    }
}
