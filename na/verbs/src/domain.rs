//! One opened URL.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize},
};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights, Waiter};
use hg_na_frames::{Common, FramesWaiter, Listener, Place, waiter::DEVICE};
use hg_na_parts::{Reader, regions::ServedRegion};
use nix::sys::epoll::EpollFlags;
use rdma_core_sys as sys;

use crate::{
    address::Asked,
    card::{Desk, Device, Hub, Wanted},
    health::Health,
    settings::{DEVICE as DEVICES, Settings},
    shared::{Parts, Port, Shared},
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
        let bounds = settings.bounds.with_key(options.key.as_ref())?;
        let common = Common::new(bounds, true, options.listen)?;
        let (mut ports, mut first) = (Vec::new(), Parts::new());
        for (place, wanted) in wanted(asked.card, settings.devices)?.into_iter().enumerate() {
            let device = Device::open(library, &wanted)?;
            let ip = ip_of(&wanted, &device)?;
            let listener = listen((ip, asked.port), options.listen, url)?;
            let hub = Hub::open((place, &device), (settings.signal_every, settings.shares))?;
            let health = Health::new(common.bounds.silence_bound);
            common.warn_of_strangers(&listener.place);
            ports.push(Port::new((place, device), (bound(&listener)?, &hub), health));
            first.push((hub, listener));
        }
        Ok(Self(Arc::new(Shared {
            common: Arc::new(common),
            signal_every: settings.signal_every,
            moves: settings.moves,
            shares: settings.shares,
            ports,
            dialled: AtomicUsize::new(0),
            first: Mutex::new(Some(first)),
        })))
    }

    fn parts(&self, id: u8) -> Result<Parts, Error> {
        let shared = &self.0;
        let each = |port: &Port| {
            let place = (port.ip(), if id == 0 { port.home.port() } else { 0 });
            let listener = listen(place, shared.common.listen, &self.home()?)?;
            Ok((shared.hub(port)?, listener))
        };
        shared.ports.iter().map(each).collect()
    }

    /// The address of context 0.
    fn home(&self) -> Result<Address, Error> {
        let places: Vec<_> = self.0.ports.iter().map(|port| port.home).collect();
        self.0.address(&places)
    }
}

/// The ports that are to be used: the URL's one, or those of the setting.
fn wanted(of_url: Wanted, of_setting: Vec<Wanted>) -> Result<Vec<Wanted>, Error> {
    if of_setting.is_empty() {
        return Ok(vec![of_url]);
    }
    if of_url != Wanted::default() {
        return Err(Reader::bad(
            DEVICES,
            "the URL names a device or an address, too: use one of both",
        ));
    }
    Ok(of_setting)
}

/// The address at which connections over a port are made.
fn ip_of(wanted: &Wanted, device: &Device) -> Result<IpAddr, Error> {
    wanted.ip.or(device.ip()).ok_or_else(|| {
        Error::missing(format!(
            "the GID of port {}:{} is no internet address: name one of this machine's, on which connections are made, \
             as in verbs://{0}@10.0.0.1",
            device.found.device, device.found.port
        ))
    })
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
        if ids.contains(&id) {
            return Err(Error::AddressInUse(self.home()?));
        }
        let kept = match id {
            0 => shared.first.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        let (hubs, listeners): (Vec<_>, Vec<_>) =
            kept.map_or_else(|| self.parts(id), Ok)?.into_iter().unzip();
        let places: Vec<_> = listeners.iter().map(bound).collect::<Result<_, _>>()?;
        let address = shared.address(&places)?;
        let fds: Vec<_> = hubs.iter().map(|hub| hub.fd()).collect();
        let waiter = Arc::new(FramesWaiter::new(Arc::clone(&shared.common.guard), &fds, true)?);
        for port in shared.ports.iter().filter(|port| !port.health().is_gone()) {
            waiter.add(port.device.event_fd(), DEVICE, EpollFlags::EPOLLIN)?;
        }
        let desk = Desk::new(Arc::clone(&waiter) as Arc<dyn Waiter>);
        let transport = Verbs::new(Arc::clone(shared), (hubs, desk), Arc::clone(&waiter));
        let common = Arc::clone(&shared.common);
        let context = VerbsContext::new(common, (id, address), (transport, waiter), listeners)?;
        ids.insert(id);
        Ok(Box::new(context))
    }
}
