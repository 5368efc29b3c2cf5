//! One opened URL, and what its contexts share.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion};
use rdma_core_sys as sys;

use crate::{
    address::{Asked, address_of},
    card::{Device, Endpoint},
    context::VerbsContext,
    lifeline::Listener,
    settings::{Settings, caps},
};

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) listen: bool,
    pub(crate) regions: Arc<Regions>,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) device: Arc<Device>,
    /// Where context 0 takes its lifelines; each other one has a port of its own.
    home: SocketAddr,
    ids: Mutex<Ids>,
}

/// Which contexts are open.
#[derive(Debug)]
struct Ids {
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    first: Option<(Endpoint, Listener)>,
    open: [bool; 256],
}

impl Shared {
    /// Refuses a forked child.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn same_process(&self) -> Result<(), Error> {
        if self.guard.is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Where lifelines come from, too.
    pub(crate) fn ip(&self) -> IpAddr {
        self.home.ip()
    }

    /// A context has closed: its id is free.
    pub(crate) fn closed(&self, id: u8) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.open[usize::from(id)] = false;
    }

    fn address(&self, place: SocketAddr) -> Result<Address, Error> {
        let found = &self.device.found;
        address_of((&found.device, found.port), place)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.guard.is_child() {
            // What the parent has of the card is not ours to free: its descriptors are shared.
            let ids = self.ids.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(ids.first.take());
            mem::forget(Arc::clone(&self.device));
        }
    }
}

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
