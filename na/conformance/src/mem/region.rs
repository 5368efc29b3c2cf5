//! Registered memory of the reference plugin.

use std::sync::{Arc, Mutex, PoisonError};

use hg_na::{Descriptor, Error, Memory, RegionState, Rights};

use super::hub::Hub;

/// Bytes of a descriptor's plugin part: domain, serial number, token.
pub(super) type Key = [u8; 24];

#[derive(Debug)]
pub(super) struct MemRegion {
    pub(super) domain: u64,
    pub(super) key: Key,
    pub(super) rights: Rights,
    pub(super) writable: bool,
    size: u64,
    hub: Arc<Hub>,
    /// `None` once unregistered.
    memory: Mutex<Option<Memory>>,
}

impl MemRegion {
    pub(super) fn new(
        hub: Arc<Hub>,
        domain: u64,
        key: Key,
        memory: Memory,
        rights: Rights,
    ) -> Self {
        let (size, writable) = (memory.len(), memory.writable());
        Self { domain, key, rights, writable, size, hub, memory: Mutex::new(Some(memory)) }
    }

    fn with_memory<T>(&self, act: impl FnOnce(&Memory) -> Result<T, Error>) -> Result<T, Error> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.as_ref().map_or(Err(Error::StaleDescriptor), act)
    }
}

impl RegionState for MemRegion {
    fn len(&self) -> u64 {
        self.size
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.size, self.rights, &self.key)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.with_memory(|memory| hg_na_memory::copy_out(memory, offset, into))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if !self.writable {
            return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        self.with_memory(|memory| hg_na_memory::copy_in(memory, offset, from))
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        let mut state = self.hub.lock();
        // One reference is this call's own. The hub holds a weak one and peers upgrade it only
        // under the lock taken above, so any other is an operation of this process.
        if Arc::strong_count(&self) > 1 {
            return Err(Error::RegionBusy);
        }
        state.regions.remove(&self.key);
        drop(state);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take().ok_or(Error::StaleDescriptor)
    }
}
