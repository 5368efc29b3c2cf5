//! Registered memory of the reference plugin.

use std::sync::{Arc, Mutex, PoisonError};

use hg_na::{Descriptor, Error, Memory, RegionState, Rights, SharedBytes, ViewState};

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
    /// The bytes, when nobody can write them: views are of these alone.
    frozen: Option<Arc<[u8]>>,
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
        let frozen = memory.shared().cloned();
        Self { domain, key, rights, writable, size, hub, frozen, memory: Mutex::new(Some(memory)) }
    }

    /// All of it, for as long as anybody looks.
    pub(super) fn view(&self) -> Result<SharedBytes, Error> {
        let frozen =
            self.frozen.as_ref().ok_or(Error::Unsupported("views of memory that may change"))?;
        Ok(SharedBytes::new(Arc::new(MemView(Arc::clone(frozen)))))
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

#[derive(Debug)]
struct MemView(Arc<[u8]>);

impl ViewState for MemView {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
}
