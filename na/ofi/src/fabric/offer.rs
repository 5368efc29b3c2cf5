//! What this machine offers (`fi_getinfo`).

use std::{
    ffi::{CStr, CString, c_char},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

use hg_na::Error;
use libfabric_sys as sys;
use nix::libc;

use crate::{
    cards::Pci,
    fabric::{Fault, frames::FRAMES_MAX, way::Way},
};

/// What is asked for; `None` means any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    /// Name of the provider, e.g. `tcp`.
    pub(crate) provider: Option<&'a str>,
    /// Address of this machine that is to be used.
    pub(crate) source: Option<IpAddr>,
    /// With untagged messages, or with tagged ones.
    pub(crate) way: Way,
    /// With one-sided operations.
    pub(crate) one_sided: bool,
    /// With buffers that take many messages.
    pub(crate) multi_receive: bool,
    /// Reaching memory of devices.
    pub(crate) device_memory: bool,
    /// What admits to a part of the network.
    pub(crate) auth_key: Option<&'a [u8]>,
    /// How the network treats what is sent.
    pub(crate) traffic_class: Option<u32>,
    /// With all that a provider can do, for a list; endpoints would pay for it.
    pub(crate) everything: bool,
}

impl Wanted<'_> {
    fn caps(&self) -> u64 {
        if self.everything {
            return 0;
        }
        let with = |is_wanted: bool, cap: u64| if is_wanted { cap } else { 0 };
        self.way.caps()
            | with(self.one_sided, sys::RMA)
            | with(self.multi_receive, sys::MULTI_RECV)
            | with(self.device_memory, sys::HMEM)
    }
}

/// Sends and moves that libfabric's tcp may have at a time, of all peers together, injected messages among them: the most that rxm takes (`RXM_TX_SIZE`).
const TCP_SENDS: usize = 16_384;

/// One way to communicate: a provider on a domain, usually an interface or a card.
pub(crate) struct Offer {
    info: *mut sys::Info,
    pub(crate) provider: String,
    pub(crate) fabric: String,
    pub(crate) domain: String,
    /// Version of the provider.
    pub(crate) version: (u32, u32),
    /// The address, where it is an internet address.
    pub(crate) ip: Option<IpAddr>,
    /// Where its card is, if that is known.
    pub(crate) pci: Option<Pci>,
}

// SAFETY:
// - a structure on the heap of the library's, which nobody changes any more.
unsafe impl Send for Offer {}
// SAFETY:
// - as above.
unsafe impl Sync for Offer {}

/// All offers of reliable unconnected endpoints with ordered messages.
///
/// # Errors
/// [`Error::Missing`]: there is no libfabric; [`Error::Os`]: it failed. None that fits is an empty list.
pub(crate) fn offers(wanted: Wanted<'_>) -> Result<Vec<Offer>, Error> {
    let library = library()?;
    let hints = Hints::new(library, &wanted)?;
    let node = wanted.source.map(|ip| CString::new(ip.to_string()).expect("a numeric address"));
    let (node, flags) = match &node {
        Some(node) => (node.as_ptr(), sys::SOURCE | sys::NUMERIC_HOST),
        None => (ptr::null(), 0),
    };
    let mut list = ptr::null_mut();
    // SAFETY:
    // - hints are the library's own; the list is written, and freed below.
    let result =
        unsafe { (library.getinfo)(sys::API, node, ptr::null(), flags, hints.0, &raw mut list) };
    if result == -sys::errno::NODATA {
        return Ok(Vec::new());
    }
    Fault::check("fi_getinfo", result)?;
    let mut offers = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY:
        // - an element of the list, which is alive.
        let copy = unsafe { (library.dupinfo)(next) };
        if !copy.is_null() {
            offers.push(Offer::read(copy));
        }
        // SAFETY:
        // - as above.
        next = unsafe { (*next).next };
    }
    // SAFETY:
    // - the list is not used any more.
    unsafe { (library.freeinfo)(list) };
    Ok(offers)
}

/// The library, or a clear error.
pub(crate) fn library() -> Result<&'static sys::Library, Error> {
    sys::library().map_err(Error::missing)
}

/// Hints, freed when dropped.
struct Hints(*mut sys::Info);

impl Hints {
    fn new(library: &sys::Library, wanted: &Wanted<'_>) -> Result<Self, Error> {
        // SAFETY:
        // - a null pointer asks for an empty structure.
        let info = unsafe { (library.dupinfo)(ptr::null()) };
        if info.is_null() {
            return Err(Fault::new("fi_dupinfo", libc::ENOMEM).into());
        }
        let hints = Self(info);
        // SAFETY:
        // - alive, and ours alone.
        let info = unsafe { &mut *info };
        info.caps = wanted.caps();
        info.mode = sys::CONTEXT | sys::CONTEXT2;
        // SAFETY:
        // - `fi_dupinfo(NULL)` allocates each part, and nobody else knows of them.
        let endpoint = unsafe { &mut *info.ep_attr };
        endpoint.r#type = sys::EP_RDM;
        // SAFETY: as above
        let domain = unsafe { &mut *info.domain_attr };
        domain.mr_mode = sys::MR_LOCAL
            | sys::MR_VIRT_ADDR
            | sys::MR_ALLOCATED
            | sys::MR_PROV_KEY
            | sys::MR_ENDPOINT;
        if wanted.device_memory {
            domain.mr_mode |= sys::MR_HMEM;
        }
        domain.threading = sys::THREAD_DOMAIN;
        domain.resource_mgmt = sys::RM_ENABLED;
        // SAFETY: as above
        let transmit = unsafe { &mut *info.tx_attr };
        transmit.msg_order = sys::ORDER_SAS;
        // Providers allocate for as many; tcp when they are used, and what never completes stays with it.
        transmit.size = if wanted.provider == Some("tcp") { TCP_SENDS } else { FRAMES_MAX };
        // SAFETY: as above
        let receive = unsafe { &mut *info.rx_attr };
        receive.msg_order = sys::ORDER_SAS;
        receive.size = FRAMES_MAX;
        transmit.tclass = wanted.traffic_class.unwrap_or(0);
        domain.tclass = transmit.tclass;
        if let Some(key) = wanted.auth_key {
            // By fi_domain(3) and fi_endpoint(3): providers look into the one or the other.
            (domain.auth_key, domain.auth_key_size) = (on_heap(key)?, key.len());
            (endpoint.auth_key, endpoint.auth_key_size) = (on_heap(key)?, key.len());
        }
        if let Some(provider) = wanted.provider {
            let name =
                CString::new(provider).map_err(|_| Fault::new("fi_getinfo", libc::EINVAL))?;
            // SAFETY:
            // - a copy on C's heap: freed by `fi_freeinfo`.
            let name = unsafe { libc::strdup(name.as_ptr()) };
            // SAFETY: as above
            let fabric = unsafe { &mut *info.fabric_attr };
            fabric.prov_name = name;
        }
        Ok(hints)
    }
}

/// A copy on C's heap, which `fi_freeinfo` frees.
fn on_heap(bytes: &[u8]) -> Result<*mut u8, Error> {
    // SAFETY:
    // - a size that is not zero: the setting was checked.
    let copy: *mut u8 = unsafe { libc::malloc(bytes.len()) }.cast();
    if copy.is_null() {
        return Err(Fault::new("malloc", libc::ENOMEM).into());
    }
    // SAFETY:
    // - so many bytes were just allocated.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    Ok(copy)
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY:
            // - allocated by this library, freed only here.
            unsafe { (library.freeinfo)(self.0) };
        }
    }
}

/// Sizes and demands of a provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) inject_size: usize,
    pub(crate) transmit_size: usize,
    pub(crate) receive_size: usize,
    pub(crate) max_message: usize,
    pub(crate) mr_mode: i32,
    /// What addresses are: `FI_AV_TABLE`, `FI_AV_MAP`; 0: as one likes.
    pub(crate) av_type: i32,
    /// Bytes of a registration's key.
    pub(crate) mr_key_size: usize,
    pub(crate) caps: u64,
    pub(crate) address_format: u32,
}

impl Offer {
    fn read(info: *mut sys::Info) -> Self {
        // SAFETY:
        // - a copy by `fi_dupinfo`, alive until the offer is dropped; the library fills every part.
        let parts = unsafe { &*info };
        // SAFETY: as above
        let fabric = unsafe { &*parts.fabric_attr };
        // SAFETY: as above
        let domain = unsafe { &*parts.domain_attr };
        Self {
            info,
            provider: text(fabric.prov_name),
            fabric: text(fabric.name),
            domain: text(domain.name),
            version: (fabric.prov_version >> 16, fabric.prov_version & 0xFFFF),
            ip: ip_of(parts),
            pci: pci_of(parts),
        }
    }

    /// For calls that only read it.
    pub(crate) fn raw(&self) -> *mut sys::Info {
        self.info
    }

    /// As if the provider demanded further registration modes.
    #[cfg(test)]
    pub(crate) fn demand(&mut self, mr_mode: i32) {
        // SAFETY:
        // - as in `limits`; `&mut self` makes it ours alone.
        let domain = unsafe { (*self.info).domain_attr };
        // SAFETY: as above
        let domain = unsafe { &mut *domain };
        domain.mr_mode |= mr_mode;
    }

    /// As if the provider had so long a queue for sends.
    #[cfg(test)]
    pub(crate) fn limit_sends(&mut self, size: usize) {
        // SAFETY:
        // - as in `limits`; `&mut self` makes it ours alone.
        let transmit = unsafe { (*self.info).tx_attr };
        // SAFETY: as above
        let transmit = unsafe { &mut *transmit };
        transmit.size = size;
    }

    /// What the provider takes, and wants.
    pub(crate) fn limits(&self) -> Limits {
        // SAFETY:
        // - alive as long as this; the library fills every part.
        let info = unsafe { &*self.info };
        // SAFETY: as above
        let transmit = unsafe { &*info.tx_attr };
        // SAFETY: as above
        let receive = unsafe { &*info.rx_attr };
        // SAFETY: as above
        let endpoint = unsafe { &*info.ep_attr };
        // SAFETY: as above
        let domain = unsafe { &*info.domain_attr };
        Limits {
            inject_size: transmit.inject_size,
            transmit_size: transmit.size,
            receive_size: receive.size,
            max_message: endpoint.max_msg_size,
            mr_mode: domain.mr_mode,
            av_type: domain.av_type,
            mr_key_size: domain.mr_key_size,
            caps: info.caps,
            address_format: info.addr_format,
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY:
            // - copied by this library, freed only here.
            unsafe { (library.freeinfo)(self.info) };
        }
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Offer({} on {})", self.provider, self.domain)
    }
}

fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY:
    // - a string of the library's, ended by a zero, alive as long as its structure.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

/// Where the card is.
fn pci_of(info: &sys::Info) -> Option<Pci> {
    // SAFETY:
    // - null, or the library's, alive as long as `info`.
    let bus = unsafe { info.nic.as_ref() }?.bus_attr;
    // SAFETY: as above
    let bus = unsafe { bus.as_ref() }.filter(|bus| bus.bus_type == sys::BUS_PCI)?;
    let sys::PciAttr { domain_id, bus_id, device_id, function_id } = bus.attr;
    Some(Pci { domain: domain_id, bus: bus_id, device: device_id, function: function_id })
}

/// `FI_SOCKADDR`, `FI_SOCKADDR_IN` and `FI_SOCKADDR_IN6`.
const SOCKADDR: u32 = 1;
const SOCKADDR_IN: u32 = 2;
const SOCKADDR_IN6: u32 = 3;

/// Whether names of this format are addresses of sockets: `FI_SOCKADDR` and those of IP.
pub(super) fn is_socket(format: u32) -> bool {
    matches!(format, SOCKADDR | SOCKADDR_IN | SOCKADDR_IN6)
}

/// The source address, when it is a socket's.
fn ip_of(info: &sys::Info) -> Option<IpAddr> {
    if info.src_addr.is_null() {
        return None;
    }
    match info.addr_format {
        SOCKADDR_IN if info.src_addrlen >= size_of::<libc::sockaddr_in>() => {
            // SAFETY:
            // - as long as the format says, which was checked; read as bytes may lie.
            let four = unsafe { info.src_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr))))
        }
        SOCKADDR_IN6 if info.src_addrlen >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY:
            // - as above.
            let six = unsafe { info.src_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(six.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}
