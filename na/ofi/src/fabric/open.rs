//! Opens what an endpoint is made of.

use std::{os::fd::RawFd, ptr};

use hg_na::{Device, Error, Segment};
use libfabric_sys::{self as sys, calls};

use crate::fabric::{
    Fault,
    endpoint::NAME_MAX,
    handles::Handle,
    offer::{Limits, Offer, library},
    rma::attr_of,
    way::ask_for_multi,
};

/// Ends of sends and moves that a queue has room for.
const TOLD_MAX: usize = 1024;
/// Further names that are tried for an endpoint whose own is in use.
const NAMES_TRIED: usize = 64;

pub(super) fn open_fabric(offer: &Offer) -> Result<Handle<sys::FidFabric>, Error> {
    let mut fabric = ptr::null_mut();
    // SAFETY:
    // - the offer's parts are alive and only read.
    let attr = unsafe { (*offer.raw()).fabric_attr };
    let open = library()?.fabric;
    // SAFETY:
    // - as above; room for one pointer.
    let result = unsafe { open(attr, &raw mut fabric, ptr::null_mut()) };
    Fault::check("fi_fabric", result)?;
    // SAFETY:
    // - just opened.
    Ok(unsafe { Handle::new(fabric) })
}

pub(super) fn open_domain(
    fabric: &Handle<sys::FidFabric>,
    offer: &Offer,
) -> Result<Handle<sys::FidDomain>, Error> {
    let mut domain = ptr::null_mut();
    // SAFETY:
    // - open; the offer is alive and only read.
    let result = unsafe { calls::domain(fabric.raw(), offer.raw(), &raw mut domain) };
    Fault::check("fi_domain", result)?;
    // SAFETY:
    // - just opened; the fabric is closed later.
    Ok(unsafe { Handle::new(domain) })
}

/// A queue with a descriptor where the provider has that, else one to be polled.
pub(super) fn open_queue(
    domain: &Handle<sys::FidDomain>,
    limits: Limits,
    waits: bool,
) -> Result<(Handle<sys::FidCq>, Option<RawFd>), Error> {
    let mut last = Fault::new("fi_cq_open", 0);
    let kinds: &[_] = if waits { &[sys::WAIT_FD, sys::WAIT_NONE] } else { &[sys::WAIT_NONE] };
    for wait_obj in kinds.iter().copied() {
        let mut attr = sys::CqAttr {
            size: limits.transmit_size.min(TOLD_MAX) + limits.receive_size,
            flags: 0,
            format: sys::CQ_FORMAT_DATA,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        let mut cq = ptr::null_mut();
        // SAFETY:
        // - open; the attributes are read before this returns.
        let result = unsafe { calls::cq_open(domain.raw(), &raw mut attr, &raw mut cq) };
        if let Err(fault) = Fault::check("fi_cq_open", result) {
            last = fault;
            continue;
        }
        // SAFETY:
        // - just opened; the domain is closed later.
        let cq = unsafe { Handle::new(cq) };
        if wait_obj == sys::WAIT_NONE {
            return Ok((cq, None));
        }
        // SAFETY:
        // - open, with a descriptor.
        match unsafe { calls::wait_fd(cq.raw()) } {
            Ok(fd) if fd >= 0 => return Ok((cq, Some(fd))),
            _ => {}
        }
    }
    Err(last.into())
}

/// Registers memory of a device for a moment, in a domain of its own: whether the provider knows devices of this kind.
///
/// # Errors
/// It does not, or not this memory.
pub(crate) fn try_device(offer: &Offer, device: Device, run: Segment) -> Result<(), Error> {
    let fabric = open_fabric(offer)?;
    let registered = register_once(&open_domain(&fabric, offer)?, device, run);
    registered.map_err(|fault| {
        let provider = &offer.provider;
        Error::missing(format!("{provider} registers no memory of {device:?} here: {fault}"))
    })
}

pub(super) fn register_once(
    domain: &Handle<sys::FidDomain>,
    device: Device,
    run: Segment,
) -> Result<(), Fault> {
    let bytes = ptr::with_exposed_provenance_mut(run.address);
    let run = sys::Iovec { iov_base: bytes, iov_len: run.len };
    // Nobody else reaches it so.
    let attr = attr_of(&run, sys::WRITE, 1, device);
    let mut region = ptr::null_mut();
    // SAFETY:
    // - open; the attributes are read before this returns; the memory stays as long as who calls this has it.
    let result = unsafe { calls::mr_regattr(domain.raw(), &raw const attr, &raw mut region) };
    Fault::check("fi_mr_regattr", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    drop(unsafe { Handle::new(region) });
    Ok(())
}

/// A vector of the kind that the provider has said, and where it takes any, a table.
pub(super) fn open_vector(
    domain: &Handle<sys::FidDomain>,
    limits: Limits,
) -> Result<Handle<sys::FidAv>, Error> {
    let mut attr = sys::AvAttr {
        r#type: if limits.av_type == 0 { sys::AV_TABLE } else { limits.av_type },
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: ptr::null(),
        map_addr: ptr::null_mut(),
        flags: 0,
    };
    let mut av = ptr::null_mut();
    // SAFETY:
    // - open; the attributes are read before this returns.
    let result = unsafe { calls::av_open(domain.raw(), &raw mut attr, &raw mut av) };
    Fault::check("fi_av_open", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    Ok(unsafe { Handle::new(av) })
}

/// libfabric's shm names endpoints by process id and a count, and finds names in use that a killed process of the same
/// id has left behind: the next number may be free.
pub(super) fn open_endpoint_somewhere(
    domain: &Handle<sys::FidDomain>,
    offer: &Offer,
    bound: (&Handle<sys::FidCq>, &Handle<sys::FidAv>),
    multi: Option<usize>,
) -> Result<(Handle<sys::FidEp>, bool), Error> {
    let mut opened = open_endpoint(domain, offer, bound, multi);
    for _ in 0..NAMES_TRIED {
        match &opened {
            Err(fault) if fault.number == nix::libc::EBUSY => {}
            _ => break,
        }
        opened = open_endpoint(domain, offer, bound, multi);
    }
    opened.map_err(|fault| not_opened(&offer.provider, fault))
}

/// What to do about an endpoint that does not open.
fn not_opened(provider: &str, fault: Fault) -> Error {
    if provider.starts_with("verbs") && fault.number == nix::libc::EINVAL {
        return Error::missing(format!(
            "libfabric's verbs asks for longer queues than this card has ({}: {fault}): set FI_UNIVERSE_SIZE=64 in \
             the environment of every process, or the number of peers that you need",
            fault.call
        ));
    }
    fault.into()
}

/// `multi`: with multi-receive buffers, for messages of so many bytes; the answer says whether.
fn open_endpoint(
    domain: &Handle<sys::FidDomain>,
    offer: &Offer,
    (cq, av): (&Handle<sys::FidCq>, &Handle<sys::FidAv>),
    multi: Option<usize>,
) -> Result<(Handle<sys::FidEp>, bool), Fault> {
    let mut ep = ptr::null_mut();
    // SAFETY:
    // - open; the offer is alive and only read.
    let result = unsafe { calls::endpoint(domain.raw(), offer.raw(), &raw mut ep) };
    Fault::check("fi_endpoint", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    let ep: Handle<sys::FidEp> = unsafe { Handle::new(ep) };
    // Sends are told of where they ask for that, failures always.
    let selective = sys::TRANSMIT | sys::SELECTIVE_COMPLETION;
    for (object, flags) in [(av.fid(), 0), (cq.fid(), selective), (cq.fid(), sys::RECV)] {
        // SAFETY:
        // - open objects of one domain, closed after the endpoint.
        let result = unsafe { calls::bind(ep.fid(), object, flags) };
        Fault::check("fi_ep_bind", result)?;
    }
    // SAFETY:
    // - open and bound.
    let result = unsafe { calls::enable(ep.fid()) };
    Fault::check("fi_enable", result)?;
    let is_multi = multi.is_some_and(|frame| ask_for_multi(&ep, frame));
    Ok((ep, is_multi))
}

pub(super) fn name_of(ep: &Handle<sys::FidEp>) -> Result<Vec<u8>, Error> {
    let mut name = vec![0u8; NAME_MAX];
    let mut len = name.len();
    // SAFETY:
    // - open; room for so many bytes.
    let result = unsafe { calls::getname(ep.raw(), name.as_mut_ptr().cast(), &raw mut len) };
    Fault::check("fi_getname", result)?;
    name.truncate(len);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_queues_of_a_card_are_said_with_what_to_do() {
        let fault = Fault::new("fi_enable", -nix::libc::EINVAL);
        let sentence = not_opened("verbs;ofi_rxm", fault).to_string();
        assert!(sentence.contains("FI_UNIVERSE_SIZE=64"), "{sentence}");
        assert!(sentence.contains("fi_enable: FI_EINVAL"), "{sentence}");
        let other = not_opened("tcp;ofi_rxm", fault);
        assert!(matches!(other, Error::Os { call: "fi_enable", .. }), "{other}");
    }
}
