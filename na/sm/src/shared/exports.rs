//! The memfds of a domain's registered regions, for peers that ask.
//!
//! The lock is held while a descriptor is sent: once [`Exports::remove`] has returned, none is on its way out of this
//! side any more. (One that is on its way to a peer finds the region's generation changed.)

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

use super::wire::Name;
use crate::region::descriptor::RegionClaim;

/// Memfds by place in the region table.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<FxHashMap<u32, Export>>);

#[derive(Debug)]
struct Export {
    claim: RegionClaim,
    fd: Arc<OwnedFd>,
}

impl Exports {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u32, Export>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region is published.
    pub(crate) fn insert(&self, claim: RegionClaim, fd: Arc<OwnedFd>) {
        self.lock().insert(claim.index, Export { claim, fd });
    }

    /// It is no more.
    pub(crate) fn remove(&self, claim: &RegionClaim) {
        self.lock().remove(&claim.index);
    }

    /// Hands the memfd of a region to `send`; `None` when the name or the token is wrong.
    pub(crate) fn give<T>(
        &self,
        name: Name,
        token: [u8; 16],
        send: impl FnOnce(BorrowedFd<'_>) -> T,
    ) -> Option<T> {
        let exports = self.lock();
        let export = exports.get(&name.index)?;
        let is_it = export.claim.generation == name.generation && export.claim.token == token;
        is_it.then(|| send(export.fd.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_name_and_token_get_a_descriptor() {
        let exports = Exports::default();
        let claim = RegionClaim { domain: [1; 16], index: 3, generation: 5, token: [7; 16] };
        exports.insert(claim, Arc::new(super::super::bytes::new_memfd(1).unwrap()));
        let ask = |index, generation, token| {
            exports.give(Name { index, generation }, token, |_fd| ()).is_some()
        };
        assert!(ask(3, 5, [7; 16]));
        assert!(!ask(2, 5, [7; 16]) && !ask(3, 7, [7; 16]) && !ask(3, 5, [8; 16]));
        exports.remove(&claim);
        assert!(!ask(3, 5, [7; 16]));
    }
}
