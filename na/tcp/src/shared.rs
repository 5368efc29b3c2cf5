//! What the contexts of one domain share.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hg_na::{Address, Caps, Error, OpenOptions};
use hg_na_memory::{ForkGuard, NotInherited};
use hg_na_parts::{key, limits::os_error, regions::Regions};
use socket2::{Protocol, Socket, Type};

use crate::{
    address::{Host, Place, address_of, bad_address, unspecified},
    inbox::Inbox,
    interfaces::{announced, own_addresses},
    resolver::Resolver,
    settings::{INTERFACE, SUBNET, Settings, caps},
};

/// Connections that wait to be accepted; the kernel has a limit of its own.
const BACKLOG: i32 = 4096;

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) resolver: Arc<Resolver>,
    /// Where it listens; `None`: it does not.
    listens_at: Option<SocketAddr>,
    /// Every context accepts from it, for every other. Closed with the last one: what nobody accepts any more would have its
    /// end here for as long as the domain lives, and its peer would wait for an answer.
    listener: Mutex<Option<Listening>>,
    host: Host,
    port: u16,
    contexts: Mutex<HashMap<u8, Arc<Inbox>>>,
}

impl Shared {
    /// Opens a URL.
    pub(crate) fn open(url: &Address, options: &OpenOptions) -> Result<Arc<Self>, Error> {
        let place = Place::parse(url)?;
        let mut settings = Settings::read(&options.settings)?;
        settings.bounds = settings.bounds.with_key(options.key.as_ref())?;
        let (bound, shown) = addresses(url, &place, &settings)?;
        let listener = if options.listen { Some(listen(url, bound)?) } else { None };
        let listens_at = listener.as_ref().map(Socket::local_addr).transpose();
        let listens_at = listens_at.map_err(|error| Error::os("getsockname", error))?;
        let listens_at = listens_at.and_then(|at| at.as_socket());
        if listener.is_some() && settings.bounds.key.is_none() && !bound.ip().is_loopback() {
            tracing::warn!(address = %bound.ip(), "{}", key::WHOEVER);
        }
        let guard = Arc::new(ForkGuard::new()?);
        Ok(Arc::new(Self {
            caps: caps(&settings),
            settings,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            resolver: Arc::default(),
            listens_at,
            listener: Mutex::new(listener.map(Listening::new)),
            host: Host::Ip(shown),
            port: listens_at.map_or(0, |at| at.port()),
            contexts: Mutex::default(),
        }))
    }

    /// The address of one of its contexts.
    pub(crate) fn address(&self, id: u8) -> Result<Address, Error> {
        address_of(&self.host, self.port, id)
    }

    /// Another context's inbox, when it is open.
    pub(crate) fn inbox(&self, id: u8) -> Option<Arc<Inbox>> {
        self.contexts().get(&id).cloned()
    }

    /// A context's own descriptor of the listener; after the end of all contexts it listens there again.
    pub(crate) fn listener(&self) -> Result<Option<Listening>, Error> {
        let Some(at) = self.listens_at else { return Ok(None) };
        let mut listener = self.listening();
        let listening = match listener.take() {
            Some(listening) => listening,
            None => Listening::new(listen(&self.address(0)?, at)?),
        };
        let socket = &listener.insert(listening).socket;
        let socket = socket.try_clone().map_err(|error| os_error("dup", error))?;
        Ok(Some(Listening::new(socket)))
    }

    /// A context is closed, and its descriptor of the listener; its id may be opened again.
    pub(crate) fn closed(&self, id: u8) {
        let mut contexts = self.contexts();
        contexts.remove(&id);
        if contexts.is_empty() {
            *self.listening() = None;
        }
    }

    /// Locked after the contexts.
    fn listening(&self) -> MutexGuard<'_, Option<Listening>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contexts(&self) -> MutexGuard<'_, HashMap<u8, Arc<Inbox>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where connections come in.
#[derive(Debug)]
pub(crate) struct Listening {
    // Before the listener, so that it is dropped first.
    _kept: NotInherited,
    pub(crate) socket: Socket,
}

impl Listening {
    fn new(socket: Socket) -> Self {
        Self { _kept: NotInherited::new(socket.as_fd()), socket }
    }
}

/// Where to listen, and the address to announce.
fn addresses(
    url: &Address,
    place: &Place,
    settings: &Settings,
) -> Result<(SocketAddr, IpAddr), Error> {
    let (interface, subnet) = (settings.interface.as_deref(), settings.subnet);
    let is_chosen = interface.is_some() || subnet.is_some();
    let ip = match &place.host {
        None => None,
        Some(Host::Ip(ip)) if ip.is_unspecified() => None,
        Some(Host::Ip(ip)) => Some(*ip),
        Some(Host::Name(name)) => {
            let found = (&**name, place.port).to_socket_addrs();
            let found = found.map_err(|error| {
                // Asked only now: a host may be called like an interface.
                let is_interface = own_addresses().is_ok_and(|all| all.iter().any(|own| own.interface == **name));
                let why = if is_interface {
                    format!("{name} is no host but an interface: leave the host empty and give the setting `{INTERFACE}`, `{name}`")
                } else {
                    format!("its host: {error}")
                };
                bad_address(url, &why)
            })?;
            let mut found = found.map(|address| address.ip());
            Some(found.next().ok_or_else(|| bad_address(url, "its host has no address"))?)
        }
    };
    match ip {
        Some(_) if is_chosen => {
            let name = if interface.is_some() { INTERFACE } else { SUBNET };
            let why = "the URL names a host already: leave it empty".to_owned();
            Err(Error::BadSetting { name: name.to_owned(), why })
        }
        Some(ip) => Ok((SocketAddr::new(ip, place.port), ip)),
        None => {
            let shown = announced(interface, subnet)?;
            // Whoever wants every address says so.
            let bound = match &place.host {
                // `[::]` asks for IPv6, `0.0.0.0` for any.
                Some(Host::Ip(any @ IpAddr::V6(_))) => *any,
                Some(_) => unspecified(shown),
                None => shown,
            };
            Ok((SocketAddr::new(bound, place.port), shown))
        }
    }
}

fn listen(url: &Address, at: SocketAddr) -> Result<Socket, Error> {
    let failed = |call| move |error| os_error(call, error);
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(socket2::Domain::for_address(at), kind, Some(Protocol::TCP))
        .map_err(failed("socket"))?;
    // Connections of a process before this one may still be closing.
    socket.set_reuse_address(true).map_err(failed("setsockopt(SO_REUSEADDR)"))?;
    if at.ip().is_ipv6() && at.ip().is_unspecified() {
        // Every address is announced by one of either family, whatever the system's default is.
        socket.set_only_v6(false).map_err(failed("setsockopt(IPV6_V6ONLY)"))?;
    }
    let in_use = |call| {
        move |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::AddressInUse(url.clone()),
            std::io::ErrorKind::AddrNotAvailable => {
                bad_address(url, "its host is no address of this machine")
            }
            _ => os_error(call, error),
        }
    };
    socket.bind(&at.into()).map_err(in_use("bind"))?;
    socket.listen(BACKLOG).map_err(in_use("listen"))?;
    Ok(socket)
}
