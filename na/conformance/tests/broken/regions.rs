//! A region that stays reachable after it was unregistered.

use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use hg_na::{Descriptor, Error, LocalSlice, Memory, Region, RegionState, Rights};

/// Covers a region; unregistering gives a copy back and leaves the region where it is.
#[derive(Debug)]
pub(crate) struct LeakyRegion {
    inner: Mutex<Option<Region>>,
    len: u64,
    rights: Rights,
    descriptor: Descriptor,
    leaked: Arc<Mutex<Vec<Region>>>,
}

impl LeakyRegion {
    pub(crate) fn cover(region: Region, leaked: Arc<Mutex<Vec<Region>>>) -> Region {
        let (len, rights, descriptor) = (region.len(), region.rights(), region.descriptor());
        Region::new(Arc::new(Self {
            inner: Mutex::new(Some(region)),
            len,
            rights,
            descriptor,
            leaked,
        }))
    }

    fn with<T>(&self, act: impl FnOnce(&Region) -> Result<T, Error>) -> Result<T, Error> {
        self.inner
            .lock()
            .expect("nobody panics with this lock")
            .as_ref()
            .map_or(Err(Error::StaleDescriptor), act)
    }
}

impl RegionState for LeakyRegion {
    fn len(&self) -> u64 {
        self.len
    }
    fn rights(&self) -> Rights {
        self.rights
    }
    fn descriptor(&self) -> Descriptor {
        self.descriptor.clone()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.with(|region| region.read(offset, into))
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.with(|region| region.write(offset, from))
    }
    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        let mut copy = vec![0; usize::try_from(self.len).expect("it fits in memory")];
        self.read(0, &mut copy)?;
        self.leaked
            .lock()
            .expect("nobody panics with this lock")
            .extend(self.inner.lock().expect("nobody panics with this lock").take());
        Ok(Memory::from(copy))
    }
}

/// The slice of the covered region.
pub(crate) fn unwrapped(slice: &LocalSlice) -> LocalSlice {
    let region = Arc::clone(slice.region()) as Arc<dyn Any + Send + Sync>;
    let region = region.downcast::<LeakyRegion>().expect("this plugin registered it");
    region.with(|inner| inner.slice(slice.offset(), slice.len())).expect("as long as before")
}
