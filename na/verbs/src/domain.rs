//! One opened URL.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion};
use rdma_core_sys as sys;

use crate::{
    address::Asked,
    card::{Device, Endpoint},
    context::VerbsContext,
    lifeline::Listener,
    settings::{Settings, caps},
    shared::{Ids, Shared},
};

/// One opened URL.
#[derive(Debug)]
pub(crate) struct VerbsDomain(Arc<Shared>);

impl VerbsDomain {
    /// Opens a URL.
    ///
    /// # Errors
    /// As [`hg_na::Plugin::open`].
    pub(crate) fn open(
        library: &'static sys::Library,
        url: &Address,
        options: &OpenOptions,
    ) -> Result<Self, Error> {
        let settings = Settings::read(&options.settings)?;
        let asked = Asked::parse(url)?;
        let device = Device::open(library, &asked.card)?;
        let ip = asked.card.ip.or(device.ip()).ok_or_else(|| {
            Error::missing(format!(
                "the GID of port {}:{} is no internet address: name one of this machine's, on which connections are made, \
                 as in verbs://{0}@10.0.0.1",
                device.found.device, device.found.port
            ))
        })?;
        let home = SocketAddr::new(ip, asked.port);
        let listener = Listener::bind(home, options.listen, url)?;
        let endpoint = Endpoint::open(&device, settings.signal_every)?;
        let guard = Arc::new(ForkGuard::new()?);
        Ok(Self(Arc::new(Shared {
            caps: caps(&settings),
            settings,
            listen: options.listen,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            device,
            home: listener.place,
            ids: Mutex::new(Ids { first: Some((endpoint, listener)), open: [false; 256] }),
        })))
    }

    fn endpoint(&self, id: u8) -> Result<(Endpoint, Listener), Error> {
        let shared = &self.0;
        let port = if id == 0 { shared.home.port() } else { 0 };
        let place = SocketAddr::new(shared.ip(), port);
        let listener = Listener::bind(place, shared.listen, &shared.address(place)?)?;
        Ok((Endpoint::open(&shared.device, shared.settings.signal_every)?, listener))
    }
}

impl Domain for VerbsDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.0.same_process()?;
        Ok(Region::new(ServedRegion::register(&self.0.regions, memory, rights)?))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let shared = &self.0;
        shared.same_process()?;
        let mut ids = shared.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.open[usize::from(id)] {
            return Err(Error::AddressInUse(shared.address(shared.home)?));
        }
        let kept = if id == 0 { ids.first.take() } else { None };
        let (endpoint, listener) = kept.map_or_else(|| self.endpoint(id), Ok)?;
        let address = shared.address(listener.place)?;
        let context = VerbsContext::new(Arc::clone(shared), id, address, endpoint, listener)?;
        ids.open[usize::from(id)] = true;
        Ok(Box::new(context))
    }
}
