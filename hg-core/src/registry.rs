//! Which RPCs a process knows: by the hash of the full name and the fingerprint of the signature, collisions refused.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::{rpc::RpcId, signature::Signature};

/// RPCs with something of type `H` (a handler) behind each.
#[derive(Debug, Clone)]
pub struct Registry<H> {
    entries: Vec<Entry<H>>,
    places: FxHashMap<RpcId, usize>,
}

#[derive(Debug, Clone)]
struct Entry<H> {
    name: &'static str,
    signature: &'static Signature,
    handler: H,
}

/// Why an RPC cannot be registered.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name has a handler already. Deregister it first, or rename one of them.
    #[error(
        "`{name}` is registered already: register it once (an open engine can deregister it first), or rename one of them with #[hg::rpc(name = \"...\")]"
    )]
    Twice {
        /// Name of the RPC.
        name: &'static str,
    },
    /// Two names have the same hash. Rename one of them, with `#[hg::rpc(name = "...")]`.
    #[error(
        "`{name}` and `{other}` have the same hash: rename one of them with #[hg::rpc(name = \"...\")]"
    )]
    Collision {
        /// The new name.
        name: &'static str,
        /// The one that is registered.
        other: &'static str,
    },
    /// The engine was closed: it serves nothing any more.
    #[error("`{name}` cannot be registered: {}", hg_na::Error::Closed)]
    Closed {
        /// Name of the RPC.
        name: &'static str,
    },
}

impl fmt::Debug for RegisterError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Twice { .. } => "Twice",
            Self::Collision { .. } => "Collision",
            Self::Closed { .. } => "Closed",
        };
        write!(out, "{self} [{kind}]")
    }
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self { entries: Vec::new(), places: FxHashMap::default() }
    }
}

impl<H> Registry<H> {
    /// Adds an RPC.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn insert(
        &mut self,
        name: &'static str,
        signature: &'static Signature,
        handler: H,
    ) -> Result<(), RegisterError> {
        match self.named_like(signature.id()).map(|entry| entry.name) {
            Some(other) if other == name => Err(RegisterError::Twice { name }),
            Some(other) => Err(RegisterError::Collision { name, other }),
            None => {
                self.places.insert(signature.id(), self.entries.len());
                self.entries.push(Entry { name, signature, handler });
                Ok(())
            }
        }
    }

    /// The signature of the RPC of this name, whatever signature the id has.
    #[must_use]
    pub fn signature_of_name(&self, id: RpcId) -> Option<&'static Signature> {
        self.named_like(id).map(|entry| entry.signature)
    }

    fn named_like(&self, id: RpcId) -> Option<&Entry<H>> {
        self.entries.iter().find(|entry| entry.signature.id().has_name_of(id))
    }

    /// Takes an RPC away.
    pub fn remove(&mut self, id: RpcId) -> Option<H> {
        let place = self.places.remove(&id)?;
        let removed = self.entries.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.signature.id(), place);
        }
        Some(removed.handler)
    }

    /// Where an RPC is, until the registry changes.
    #[inline]
    #[must_use]
    pub fn place(&self, id: RpcId) -> Option<usize> {
        self.places.get(&id).copied()
    }

    /// What is at a place.
    ///
    /// # Panics
    /// When the place is not one of this registry's.
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> &H {
        &self.entries[place].handler
    }

    /// What is behind all RPCs, in no order.
    pub fn into_handlers(self) -> impl Iterator<Item = H> {
        self.entries.into_iter().map(|entry| entry.handler)
    }

    /// Names of all RPCs, in no order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(of: u64) -> RpcId {
        RpcId(of << 24)
    }

    fn signature(id: RpcId) -> &'static Signature {
        Box::leak(Box::new(Signature::new(id, "()")))
    }

    #[test]
    fn the_same_name_twice_and_two_names_of_one_hash_are_refused() {
        let mut registry = Registry::default();
        registry.insert("a", signature(id(1)), ()).unwrap();
        let twice = Err(RegisterError::Twice { name: "a" });
        assert_eq!(registry.insert("a", signature(id(1)), ()), twice);
        assert_eq!(registry.insert("a", signature(id(1).with_fingerprint(7)), ()), twice);
        let collision = RegisterError::Collision { name: "b", other: "a" };
        assert_eq!(registry.insert("b", signature(id(1)), ()), Err(collision));
        assert!(registry.remove(id(1)).is_some());
        registry.insert("b", signature(id(1)), ()).unwrap();
    }

    #[test]
    fn every_rpc_is_found_after_others_were_taken_away() {
        let mut registry = Registry::default();
        for of in 1..=4 {
            registry.insert("an RPC", signature(id(of)), of).unwrap();
        }
        assert_eq!(registry.remove(id(1)), Some(1));
        assert_eq!(registry.remove(id(4)), Some(4));
        assert_eq!(registry.remove(id(4)), None);
        let found = |of| registry.place(id(of)).map(|place| *registry.at(place));
        assert_eq!([1, 2, 3, 4].map(found), [None, Some(2), Some(3), None]);
    }

    #[test]
    fn an_rpc_of_another_signature_is_not_found_but_known() {
        let mut registry = Registry::default();
        registry.insert("a", signature(id(1).with_fingerprint(7)), ()).unwrap();
        assert_eq!(registry.place(id(1).with_fingerprint(8)), None);
        assert!(registry.signature_of_name(id(1).with_fingerprint(8)).is_some());
        assert!(registry.signature_of_name(id(2).with_fingerprint(7)).is_none());
    }
}
