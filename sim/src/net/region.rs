//! Registered memory of the simulated transport.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hg_na::{Descriptor, Error, Memory, RegionState, Rights};
use rustc_hash::FxHashMap;

use crate::random::Random;

/// All registered memory of a story, by its number. Its lock is taken last.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    random: Random,
    regions: FxHashMap<u64, Weak<Registered>>,
    /// Registered and not yet unregistered, by process.
    alive: FxHashMap<usize, usize>,
}

impl Regions {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        (process, domain): (usize, u64),
        memory: Memory,
        rights: Rights,
    ) -> Arc<Registered> {
        let mut table = self.lock();
        // Nobody guesses another one's key, nor a part of it.
        table.last += 1 + table.random.below(1 << 40);
        *table.alive.entry(process).or_default() += 1;
        let key = table.last;
        let (size, is_writable) = (memory.len(), memory.writable());
        let memory = Mutex::new(Some(memory));
        let regions = Arc::clone(self);
        let region =
            Registered { regions, process, domain, key, rights, is_writable, size, memory };
        let region = Arc::new(region);
        table.regions.insert(key, Arc::downgrade(&region));
        region
    }

    /// Those of one process.
    pub(crate) fn alive(&self, process: usize) -> usize {
        self.lock().alive.get(&process).copied().unwrap_or(0)
    }

    /// The memory that a peer describes, as far as it may do this with it.
    pub(crate) fn find(
        &self,
        owner: u64,
        descriptor: &Descriptor,
        needed: Rights,
        (offset, len): (u64, u64),
    ) -> Result<Arc<Registered>, Error> {
        let key = <[u8; 8]>::try_from(descriptor.opaque()).map(u64::from_le_bytes);
        let key = key.map_err(|_| Error::BadDescriptor("it is no simulated memory"))?;
        let region = self.lock().regions.get(&key).and_then(Weak::upgrade);
        let region = region.filter(|region| region.domain == owner);
        let region = region.ok_or(Error::StaleDescriptor)?;
        if !region.rights.contains(needed) {
            return Err(Error::Denied { granted: region.rights, needed });
        }
        match offset.checked_add(len) {
            Some(end) if end <= region.size => Ok(region),
            _ => Err(Error::OutOfRange { offset, len, size: region.size }),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Registered {
    regions: Arc<Regions>,
    process: usize,
    domain: u64,
    key: u64,
    rights: Rights,
    is_writable: bool,
    size: u64,
    /// `None` once unregistered.
    memory: Mutex<Option<Memory>>,
}

impl Registered {
    fn lock(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether peers may see it without a copy: half of all memory.
    pub(super) fn is_shareable(&self) -> bool {
        self.key.is_multiple_of(2)
    }

    fn leave(&self) -> Option<Memory> {
        let memory = self.lock().take();
        if memory.is_some() {
            let mut table = self.regions.lock();
            table.regions.remove(&self.key);
            if let Some(alive) = table.alive.get_mut(&self.process) {
                *alive -= 1;
            }
        }
        memory
    }
}

impl RegionState for Registered {
    fn len(&self) -> u64 {
        self.size
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.size, self.rights, &self.key.to_le_bytes())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let memory = self.lock();
        hg_na_memory::copy_out(memory.as_ref().ok_or(Error::StaleDescriptor)?, offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if !self.is_writable {
            return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        let memory = self.lock();
        hg_na_memory::copy_in(memory.as_ref().ok_or(Error::StaleDescriptor)?, offset, from)
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        let region = Arc::try_unwrap(self).map_err(|_| Error::RegionBusy)?;
        region.leave().ok_or(Error::StaleDescriptor)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        drop(self.leave());
    }
}
