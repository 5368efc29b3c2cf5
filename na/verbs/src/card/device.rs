//! Cards: what there is to open, and an opened one with its protection domain, a port, and the port's address.

use std::{
    ffi::{CStr, c_int},
    fs,
    net::{IpAddr, Ipv6Addr},
    os::fd::BorrowedFd,
    ptr,
    sync::Arc,
};

use hg_na::Error;
use hg_na_parts::limits::os_error;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_core_sys as sys;

use crate::card::{Fault, chunk::node_of};

/// Which card, port and address. `None`: the first that will do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) device: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) ip: Option<IpAddr>,
}

/// A port of a card of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) attr: sys::PortAttr,
    /// Its addresses, in their order, and their places.
    pub(crate) gids: Vec<(u8, sys::Gid)>,
}

impl Found {
    /// The internet address of a GID, if it is one's.
    pub(crate) fn ip_of(gid: &sys::Gid) -> Option<IpAddr> {
        Ipv6Addr::from(gid.0).to_ipv4_mapped().map(IpAddr::V4)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.attr.state == sys::PORT_ACTIVE
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.attr.link_layer == sys::LINK_LAYER_ETHERNET
    }

    /// Gigabits in a second, as far as the codes are known.
    pub(crate) fn gigabits(&self) -> Option<f64> {
        let lanes = match self.attr.active_width {
            1 => 1.0,
            2 => 4.0,
            4 => 8.0,
            8 => 12.0,
            16 => 2.0,
            _ => return None,
        };
        let each = match self.attr.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => return None,
        };
        Some(lanes * each)
    }

    /// The address that is used: with a wanted internet address that one's, on Ethernet the first internet address.
    fn gid(&self, wanted: Option<IpAddr>) -> Option<(u8, sys::Gid)> {
        if !self.is_ethernet() {
            return self.gids.first().copied();
        }
        let fits = |gid: &sys::Gid| match wanted {
            Some(ip) => Self::ip_of(gid) == Some(ip) || IpAddr::V6(gid.0.into()) == ip,
            None => Self::ip_of(gid).is_some(),
        };
        let of_kind = |is_v2: bool| {
            let mut all = self.gids.iter().filter(|(_, gid)| fits(gid));
            all.find(|(place, _)| self.is_v2(*place) == is_v2).copied()
        };
        of_kind(true).or_else(|| of_kind(false))
    }

    /// RoCE of version 2 can be routed; the kernel says of which version a GID is.
    fn is_v2(&self, place: u8) -> bool {
        let Self { device, port, .. } = self;
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{place}");
        fs::read_to_string(path).is_ok_and(|kind| kind.trim() == "RoCE v2")
    }
}

/// An opened card. Freed when its last user is.
pub(crate) struct Device {
    pub(super) library: &'static sys::Library,
    context: *mut sys::Context,
    pub(super) pd: *mut sys::Pd,
    pub(crate) found: Found,
    pub(crate) gid: sys::Gid,
    pub(super) gid_place: u8,
    pub(super) limits: sys::DeviceAttr,
    /// Of the machine's NUMA nodes, the one that it is at.
    pub(super) node: Option<u32>,
}

// SAFETY:
// - libibverbs takes calls for a card from any thread (ibv_open_device(3)); the fields are not changed.
unsafe impl Send for Device {}
// SAFETY:
// - as above.
unsafe impl Sync for Device {}

/// All ports of all cards.
///
/// # Errors
/// [`Fault`] of the list; a card that cannot be opened is left out.
pub(crate) fn found(library: &'static sys::Library) -> Result<Vec<Found>, Fault> {
    let mut all = Vec::new();
    each_card(library, |name, context| {
        all.extend(ports(library, name, context));
        false
    })?;
    Ok(all)
}

/// Opens each card in turn until one is kept; answers that one.
fn each_card(
    library: &'static sys::Library,
    mut keep: impl FnMut(&str, *mut sys::Context) -> bool,
) -> Result<Option<*mut sys::Context>, Fault> {
    let mut count: c_int = 0;
    // SAFETY:
    // - as in its manual page: one number is filled.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return match Fault::last("ibv_get_device_list") {
            // The kernel has no part for it: no driver is loaded.
            Fault::Call(_, nix::libc::ENOSYS) => Ok(None),
            fault => Err(fault),
        };
    }
    let mut kept = None;
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY:
        // - in bounds: the list has so many.
        let entry = unsafe { list.add(place) };
        // SAFETY:
        // - as above.
        let card = unsafe { *entry };
        // SAFETY:
        // - of the list, which is freed below.
        let name = unsafe { (library.get_device_name)(card) };
        // SAFETY:
        // - a name that ends with a zero, kept by the card.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY:
        // - of the list.
        let context = unsafe { (library.open_device)(card) };
        if context.is_null() {
            tracing::debug!(name, fault = %Fault::last("ibv_open_device"), "a card is not opened");
            continue;
        }
        if keep(&name, context) {
            kept = Some(context);
            break;
        }
        // SAFETY:
        // - opened above, and nothing of it is kept.
        unsafe { (library.close_device)(context) };
    }
    // SAFETY:
    // - from `ibv_get_device_list`; opened cards stay open.
    unsafe { (library.free_device_list)(list) };
    Ok(kept)
}

fn limits_of(
    library: &'static sys::Library,
    context: *mut sys::Context,
) -> Result<sys::DeviceAttr, Fault> {
    let mut attr = std::mem::MaybeUninit::<sys::DeviceAttr>::zeroed();
    // SAFETY:
    // - open; one structure is filled.
    let result = unsafe { (library.query_device)(context, attr.as_mut_ptr()) };
    Fault::check("ibv_query_device", result)?;
    // SAFETY:
    // - numbers only: zeros are as good.
    Ok(unsafe { attr.assume_init() })
}

fn attr_of(
    library: &'static sys::Library,
    context: *mut sys::Context,
    port: u8,
) -> Option<sys::PortAttr> {
    let mut attr = sys::PortAttr::default();
    // SAFETY:
    // - open; one structure is filled, for which there is room in every version.
    let result = unsafe { (library.query_port)(context, port, &raw mut attr) };
    Fault::check("ibv_query_port", result).ok().map(|()| attr)
}

fn ports(library: &'static sys::Library, name: &str, context: *mut sys::Context) -> Vec<Found> {
    let count = limits_of(library, context).map_or(0, |attr| attr.phys_port_cnt);
    let of_port = |port| {
        let attr = attr_of(library, context, port)?;
        let places = 0..u8::try_from(attr.gid_tbl_len.clamp(0, 255)).unwrap_or(0);
        let gids = places.filter_map(|place| {
            let mut gid = sys::Gid::default();
            // SAFETY:
            // - open; one address is filled.
            let result = unsafe { (library.query_gid)(context, port, place.into(), &raw mut gid) };
            (result == 0 && gid != sys::Gid::default()).then_some((place, gid))
        });
        Some(Found { device: name.to_owned(), port, gids: gids.collect(), attr })
    };
    (1..=count).filter_map(of_port).collect()
}

impl Device {
    /// Opens the first card with a port that will do.
    ///
    /// # Errors
    /// [`Error::Missing`] with what there is instead, [`Error::Os`].
    pub(crate) fn open(
        library: &'static sys::Library,
        wanted: &Wanted,
    ) -> Result<Arc<Self>, Error> {
        let (mut seen, mut chosen) = (Vec::new(), None);
        let context = each_card(library, |name, context| {
            let ports = ports(library, name, context);
            chosen = ports.iter().find_map(|port| {
                let is_wanted = wanted.device.as_ref().is_none_or(|it| it == name)
                    && wanted.port.is_none_or(|it| it == port.port);
                let gid = port.gid(wanted.ip).filter(|_| is_wanted && port.is_active())?;
                Some((port.clone(), gid))
            });
            seen.extend(ports);
            chosen.is_some()
        })?;
        let (Some(context), Some((found, (gid_place, gid)))) = (context, chosen) else {
            return Err(Error::missing(nothing_fits(wanted, &seen)));
        };
        let limits = limits_of(library, context);
        // SAFETY:
        // - open.
        let pd = unsafe { (library.alloc_pd)(context) };
        let fault = Fault::last("ibv_alloc_pd");
        match limits {
            Ok(limits) if !pd.is_null() => {
                let node = node_of(&found.device);
                let this = Self { library, context, pd, found, gid, gid_place, limits, node };
                fcntl(this.event_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                    .map_err(|error| os_error("fcntl", error))?;
                Ok(Arc::new(this))
            }
            other => {
                // SAFETY:
                // - open, and nothing of it is kept.
                unsafe { (library.close_device)(context) };
                Err(other.err().unwrap_or(fault).into())
            }
        }
    }

    /// Becomes readable when there is an event ([`Self::next_event`]).
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY:
        // - open as long as this.
        let fd = unsafe { (*self.context).async_fd };
        // SAFETY:
        // - the card's, open as long as that.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn context(&self) -> *mut sys::Context {
        self.context
    }

    /// Whether the port carries anything, as the card says now. Its [events](Self::next_event) say so later. Asked twice: soft-RoCE notes the state, and then waits
    /// for whoever changes a network device, which may be what takes this one down.
    pub(super) fn is_active(&self) -> bool {
        let attr = || attr_of(self.library, self.context, self.found.port);
        (0..2).all(|_| attr().is_some_and(|attr| attr.state == sys::PORT_ACTIVE))
    }

    /// The internet address of the port, if its address is one's.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        Found::ip_of(&self.gid)
    }
}

/// Why no port will do, and what to do about it.
fn nothing_fits(wanted: &Wanted, seen: &[Found]) -> String {
    const HOW: &str = "an RDMA card with its driver (`rdma link` lists them; without one, soft-RoCE: \
        `rdma link add rxe0 type rxe netdev eth0`) and its part of libibverbs; on Debian: apt-get install rdma-core \
        ibverbs-providers";
    if seen.is_empty() {
        return format!("no RDMA device is here: verbs:// needs {HOW}");
    }
    let names: Vec<String> =
        seen.iter().map(|port| format!("{}:{}", port.device, port.port)).collect();
    let names = names.join(", ");
    let is_there = |port: &&Found| {
        wanted.device.as_ref().is_none_or(|it| *it == port.device)
            && wanted.port.is_none_or(|it| it == port.port)
    };
    let mut fitting = seen.iter().filter(is_there).peekable();
    if fitting.peek().is_none() {
        return format!("no such RDMA port is here: there is {names}");
    }
    if fitting.all(|port| !port.is_active()) {
        return format!(
            "no port of {names} is active: `rdma link` tells its state, `ip link set DEVICE up` may help"
        );
    }
    match wanted.ip {
        Some(ip) => format!(
            "{ip} is not the address of an active RDMA port: `rdma link` and `ip address` list those of {names}"
        ),
        None => format!(
            "no active port of {names} has an internet address: `ip address add` gives its network device one"
        ),
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.pd.is_null() {
            // SAFETY:
            // - nothing is left in it: whatever was made in it has had a share of this.
            let result = unsafe { (self.library.dealloc_pd)(self.pd) };
            self.pd = ptr::null_mut();
            if let Err(fault) = Fault::check("ibv_dealloc_pd", result) {
                tracing::error!(%fault, "a protection domain is not freed, and its card stays open");
                return;
            }
        }
        // SAFETY:
        // - opened by `open`; nothing is left of it.
        unsafe { (self.library.close_device)(self.context) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Device({}:{})", self.found.device, self.found.port)
    }
}
