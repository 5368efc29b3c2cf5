//! One opened URL.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights, Waiter};
use hg_na_frames::{Common, FramesWaiter, Listener, Place};
use hg_na_parts::regions::ServedRegion;
use rdma_core_sys as sys;

use crate::{
    address::Asked,
    card::{Desk, Device, Hub},
    settings::Settings,
    shared::Shared,
    transport::{Verbs, VerbsContext},
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
        let listener = listen((ip, asked.port), options.listen, url)?;
        let hub = Hub::open(&device, (settings.signal_every, settings.shares))?;
        let bounds = settings.bounds.with_key(options.key.as_ref())?;
        let common = Common::new(bounds, true, options.listen)?;
        common.warn_of_strangers(&listener.place);
        Ok(Self(Arc::new(Shared {
            common: Arc::new(common),
            signal_every: settings.signal_every,
            rma_from: settings.rma_from,
            device,
            hub: settings.shares.then(|| Mutex::new(Arc::downgrade(&hub))),
            home: bound(&listener)?,
            first: Mutex::new(Some((hub, listener))),
        })))
    }

    fn parts(&self, id: u8) -> Result<(Arc<Hub>, Listener), Error> {
        let shared = &self.0;
        let place = (shared.ip(), if id == 0 { shared.home.port() } else { 0 });
        let listener = listen(place, shared.common.listen, &shared.address(place.into())?)?;
        Ok((shared.hub()?, listener))
    }
}

fn listen(place: (IpAddr, u16), listens: bool, own: &Address) -> Result<Listener, Error> {
    Listener::bind(&Place::Network(place.into()), listens, own)
}

/// Where a listener is.
fn bound(listener: &Listener) -> Result<SocketAddr, Error> {
    match &listener.place {
        Place::Network(place) => Ok(*place),
        Place::Local(_) => Err(Error::Unsupported("lifelines without an internet address")),
    }
}

impl Domain for VerbsDomain {
    fn caps(&self) -> &Caps {
        &self.0.common.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.0.common.same_process()?;
        Ok(Region::new(ServedRegion::register(&self.0.common.regions, memory, rights)?))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let shared = &self.0;
        shared.common.same_process()?;
        let mut ids = shared.common.ids();
        if ids.is_open(id) {
            return Err(Error::AddressInUse(shared.address(shared.home)?));
        }
        let kept = match id {
            0 => shared.first.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        let (hub, listener) = kept.map_or_else(|| self.parts(id), Ok)?;
        let address = shared.address(bound(&listener)?)?;
        let waiter = FramesWaiter::new(Arc::clone(&shared.common.guard), &[hub.fd()], true)?;
        let waiter = Arc::new(waiter);
        let desk = Desk::new(Arc::clone(&waiter) as Arc<dyn Waiter>);
        let transport = Verbs::new(Arc::clone(shared), (hub, desk));
        let common = Arc::clone(&shared.common);
        let context = VerbsContext::new(common, (id, address), (transport, waiter), listener)?;
        ids.opened(id);
        Ok(Box::new(context))
    }
}
