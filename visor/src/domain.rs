//! One opened URL.

use std::sync::{Arc, Mutex};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion, random};

use crate::{
    address::{SCHEME, Target, asked_name, full_name},
    context::VisorContext,
    session::local_domain,
    settings::{Settings, caps},
    shared::{Ids, Shared},
};

/// The domain.
#[derive(Debug)]
pub(crate) struct VisorDomain(Arc<Shared>);

impl VisorDomain {
    /// Opens a URL.
    ///
    /// # Errors
    /// As [`hg_na::Plugin::open`].
    pub(crate) fn open(
        url: &Address,
        options: &OpenOptions,
        daemon: Option<&str>,
    ) -> Result<Self, Error> {
        let settings = Settings::read(&options.settings, daemon)?;
        let name = match asked_name(url)? {
            Some(name) => name.to_owned(),
            None => fresh_name()?,
        };
        let guard = Arc::new(ForkGuard::new()?);
        let shared = Shared {
            caps: caps(),
            name,
            listen: options.listen,
            local: local_domain(&settings)?,
            settings,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            ids: Mutex::new(Ids { first: None, open: [false; 256] }),
        };
        let first = shared.greet(0)?;
        shared.ids().first = Some(Box::new(first));
        Ok(Self(Arc::new(shared)))
    }
}

/// A name that nobody else has.
fn fresh_name() -> Result<String, Error> {
    let bytes = random()?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{digits}", std::process::id()))
}

impl Domain for VisorDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.0.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(Region::new(ServedRegion::register(&self.0.regions, memory, rights)?))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let shared = &self.0;
        if shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let kept = {
            let mut ids = shared.ids();
            if std::mem::replace(&mut ids.open[usize::from(id)], true) {
                let name = full_name(&shared.name, id);
                return Err(Error::AddressInUse(Address::new(&format!("{SCHEME}://{name}"))?));
            }
            if id == 0 { ids.first.take() } else { None }
        };
        let taken = kept.map_or_else(|| shared.greet(id), |kept| Ok(*kept));
        let taken = taken.inspect_err(|_| shared.closed(id))?;
        Ok(Box::new(VisorContext::new(Arc::clone(shared), id, taken)))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        Target::parse(context).ok()?.beside(id)
    }
}
