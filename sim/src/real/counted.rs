//! A transport that counts the memory registered with it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hg_na::{
    Address, Caps, Context, Domain, Error, Memory, OpenOptions, Plugin, Region, RegionState, Rights,
};

/// Registered and not yet unregistered.
#[derive(Debug, Clone, Default)]
pub(super) struct Regions(Arc<Mutex<Vec<Weak<dyn RegionState>>>>);

impl Regions {
    pub(super) fn alive(&self) -> usize {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|region| region.strong_count() > 0);
        all.len()
    }

    fn add(&self, region: &Region) -> Result<(), Error> {
        let whole = region.slice(0, region.len())?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|region| region.strong_count() > 0);
        }
        all.push(Arc::downgrade(whole.region()));
        Ok(())
    }
}

/// Another plugin, counted.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) plugin: Arc<dyn Plugin>,
    pub(super) regions: Regions,
}

impl Plugin for Counted {
    fn schemes(&self) -> &[&str] {
        self.plugin.schemes()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let domain = self.plugin.open(url, options)?;
        Ok(Arc::new(CountedDomain { domain, regions: self.regions.clone() }))
    }
}

struct CountedDomain {
    domain: Arc<dyn Domain>,
    regions: Regions,
}

impl fmt::Debug for CountedDomain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.domain.fmt(out)
    }
}

impl Domain for CountedDomain {
    fn caps(&self) -> &Caps {
        self.domain.caps()
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        let region = self.domain.register(memory, rights)?;
        self.regions.add(&region)?;
        Ok(region)
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        self.domain.context(id)
    }
}
