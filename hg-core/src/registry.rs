//! Which RPCs a process knows: by the 64-bit hash of the full name, collisions refused.

use rustc_hash::FxHashMap;

use crate::rpc::RpcId;

/// RPCs with something of type `H` (a handler) behind each.
#[derive(Debug, Clone)]
pub struct Registry<H> {
    entries: FxHashMap<u64, (&'static str, H)>,
}

/// Why an RPC cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name has a handler already. Deregister it first.
    #[error("`{name}` is registered already: deregister it first")]
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
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        Self { entries: FxHashMap::default() }
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
        id: RpcId,
        handler: H,
    ) -> Result<(), RegisterError> {
        match self.entries.get(&id.0) {
            Some((other, _)) if *other == name => Err(RegisterError::Twice { name }),
            Some((other, _)) => Err(RegisterError::Collision { name, other }),
            None => {
                self.entries.insert(id.0, (name, handler));
                Ok(())
            }
        }
    }

    /// Takes an RPC away.
    pub fn remove(&mut self, id: RpcId) -> Option<H> {
        self.entries.remove(&id.0).map(|(_, handler)| handler)
    }

    /// Finds an RPC.
    #[inline]
    #[must_use]
    pub fn find(&self, id: RpcId) -> Option<(&'static str, &H)> {
        self.entries.get(&id.0).map(|(name, handler)| (*name, handler))
    }

    /// Names of all RPCs, in no order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.values().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_twice_and_two_names_of_one_hash_are_refused() {
        let mut registry = Registry::default();
        registry.insert("a", RpcId(1), ()).unwrap();
        assert_eq!(registry.insert("a", RpcId(1), ()), Err(RegisterError::Twice { name: "a" }));
        let collision = RegisterError::Collision { name: "b", other: "a" };
        assert_eq!(registry.insert("b", RpcId(1), ()), Err(collision));
        assert!(registry.remove(RpcId(1)).is_some());
        registry.insert("b", RpcId(1), ()).unwrap();
    }
}
