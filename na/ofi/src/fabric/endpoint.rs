//! An endpoint with its queue, its address vector and its frames.
//!
//! Short messages are injected: their bytes are taken at once, and success is not told (selective completion).
//! Longer ones go out of frames and are told. Receives stay posted; a message that has arrived is looked at in its
//! frame, which is then posted again. Nothing here blocks, and one failed operation costs no other's completion.

use std::{
    ffi::c_void,
    os::fd::{BorrowedFd, RawFd},
    ptr,
    sync::Arc,
};

use hg_na::Error;
use libfabric_sys::{self as sys, calls};
use rustc_hash::FxHashMap;

use crate::fabric::{
    Fault,
    frames::{FRAMES_MAX, Frames},
    handles::Handle,
    near::{self, Near},
    offer::{Limits, Offer, library},
};

/// Completions taken from the queue at a time.
const BATCH: usize = 16;
/// Longest address of an endpoint, in bytes.
pub(crate) const NAME_MAX: usize = 256;
/// Longest message that is injected, in bytes.
const INJECT_MAX: usize = 4096;
/// From this version on, nothing is sent through libfabric's shm within a process: `near` says why.
const INBOXES_SINCE: (u32, u32) = (2, 0);
/// Addresses of inboxes; libfabric counts from 0.
const INBOX: u64 = 1 << 63;

/// What has happened to an endpoint.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message has arrived: [`Endpoint::arrived`], then [`Endpoint::repost`].
    Arrived { frame: usize, len: usize },
    /// A message of this process.
    Near(Vec<u8>),
    /// A send that was handed over with this note is complete.
    Sent(u64),
    /// It failed.
    Unsent(u64, Fault),
    /// Something else failed: an injected message, or a receive, which is posted again.
    Failed(Fault),
}

/// How a message was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    /// Its bytes were taken: nothing more is told unless it fails.
    Injected,
    /// An [`Event`] with its note follows.
    Lent,
}

/// A reliable unconnected endpoint.
pub(crate) struct Endpoint {
    // Closed in this order.
    ep: Handle<sys::FidEp>,
    regions: Vec<Handle<sys::FidMr>>,
    cq: Handle<sys::FidCq>,
    av: Handle<sys::FidAv>,
    _domain: Handle<sys::FidDomain>,
    fabric: Handle<sys::FidFabric>,
    // Behind what could reach them.
    transmit: Frames,
    receive: Frames,
    /// What the library wants to be told of the frames (`FI_MR_LOCAL`), as addresses.
    descriptors: [usize; 2],
    notes: Vec<u64>,
    free: Vec<usize>,
    unposted: Vec<usize>,
    inject_max: usize,
    scratch: Box<[u8; INJECT_MAX]>,
    wait_fd: Option<RawFd>,
    name: Vec<u8>,
    own: Arc<Near>,
    /// Endpoints of this process among those inserted, by address.
    near: FxHashMap<u64, Arc<Near>>,
    /// They are reached by their inboxes; the number of those that were.
    inboxes: Option<u64>,
}

impl Endpoint {
    /// Opens everything, for frames of `frame` bytes.
    ///
    /// # Errors
    /// [`Error::Os`] with the call that failed.
    pub(crate) fn open(offer: &Offer, frame: usize) -> Result<Self, Error> {
        let limits = offer.limits();
        let fabric = open_fabric(offer)?;
        let domain = open_domain(&fabric, offer)?;
        let (cq, wait_fd) = open_queue(&domain, limits)?;
        let av = open_vector(&domain)?;
        let ep = open_endpoint(&domain, offer, &cq, &av)?;
        let count = |size: usize| size.clamp(1, FRAMES_MAX);
        let transmit = Frames::new(count(limits.transmit_size), frame);
        let receive = Frames::new(count(limits.receive_size), frame);
        let mut regions = Vec::new();
        let mut descriptors = [0; 2];
        if limits.mr_mode & sys::MR_LOCAL != 0 {
            for (frames, descriptor) in [&transmit, &receive].into_iter().zip(&mut descriptors) {
                let region = register(&domain, &ep, frames, limits.mr_mode)?;
                // SAFETY:
                // - open; the field is set when it is registered.
                *descriptor = unsafe { (*region.raw()).mem_desc }.expose_provenance();
                regions.push(region);
            }
        }
        let name = name_of(&ep)?;
        let mut endpoint = Self {
            notes: vec![0; transmit.count()],
            free: (0..transmit.count()).collect(),
            unposted: (0..receive.count()).collect(),
            inject_max: limits.inject_size.min(INJECT_MAX),
            ep,
            regions,
            cq,
            av,
            _domain: domain,
            fabric,
            transmit,
            receive,
            descriptors,
            scratch: Box::new([0; INJECT_MAX]),
            wait_fd,
            own: Near::announce(&name)?,
            near: FxHashMap::default(),
            inboxes: uses_inboxes(offer)?.then_some(0),
            name,
        };
        endpoint.post_receives()?;
        Ok(endpoint)
    }

    /// Its address, as other endpoints insert it.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Bytes of a frame.
    pub(crate) fn frame_size(&self) -> usize {
        self.receive.size()
    }

    /// Becomes readable when there is something to do, once [`Endpoint::may_wait`] has agreed.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY:
        // - the queue's descriptor, open as long as the queue.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Becomes readable when something of this process's has come.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.own.bell()
    }

    /// Whether a thread may wait on the descriptors (`fi_trywait`).
    pub(crate) fn may_wait(&mut self) -> bool {
        if self.wait_fd.is_none() || !self.unposted.is_empty() || self.own.has_mail() {
            return false;
        }
        let mut fids = [self.cq.fid()];
        // SAFETY:
        // - open objects of one fabric.
        unsafe { calls::trywait(self.fabric.raw(), fids.as_mut_ptr(), 1) == 0 }
    }

    /// Inserts the address of an endpoint: answers what sends name it by.
    ///
    /// # Errors
    /// [`Error::Os`] when the provider does not take it.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Result<u64, Error> {
        let near = near::find(name);
        if let (Some(inboxes), Some(near)) = (&mut self.inboxes, &near) {
            let address = INBOX | *inboxes;
            *inboxes += 1;
            self.near.insert(address, Arc::clone(near));
            return Ok(address);
        }
        let mut padded = [0u8; NAME_MAX];
        let room = padded.get_mut(..name.len()).ok_or(Fault::new("fi_av_insert", 22))?;
        room.copy_from_slice(name);
        let mut address = sys::ADDR_UNSPEC;
        // SAFETY:
        // - one name, in a buffer that is longer than any; room for one number.
        let result =
            unsafe { calls::av_insert(self.av.raw(), padded.as_ptr().cast(), 1, &raw mut address) };
        Fault::check("fi_av_insert", result)?;
        if result != 1 || address == sys::ADDR_UNSPEC {
            return Err(Fault::new("fi_av_insert", 22).into());
        }
        if let Some(near) = near {
            self.near.insert(address, near);
        }
        Ok(address)
    }

    /// Removes it.
    pub(crate) fn remove(&mut self, address: u64) {
        self.near.remove(&address);
        if address & INBOX != 0 {
            return;
        }
        let mut address = address;
        // SAFETY:
        // - one number, inserted before.
        let result = unsafe { calls::av_remove(self.av.raw(), &raw mut address, 1) };
        if let Err(fault) = Fault::check("fi_av_remove", result) {
            tracing::debug!(%fault, "an address was not removed");
        }
    }

    /// Sends `len` bytes that `fill` writes; they are written again when this is tried again. When `fill`
    /// answers `false`, nothing is sent.
    ///
    /// # Errors
    /// A [`Fault`] that [is no more than "not now"](Fault::is_again), or a worse one.
    pub(crate) fn send(
        &mut self,
        to: u64,
        len: usize,
        note: u64,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Handed, Fault> {
        let not_written = Fault::new("fi_send", sys::errno::CANCELED);
        let near = if self.near.is_empty() { None } else { self.near.get(&to).cloned() };
        if let Some(near) = near.as_ref().filter(|_| to & INBOX != 0) {
            let mut bytes = vec![0; len];
            return if fill(&mut bytes) && near.push(bytes) {
                Ok(Handed::Injected)
            } else {
                Err(not_written)
            };
        }
        let _held = match &near {
            Some(near) => match near.hold() {
                Some(held) => Some(held),
                None => return Err(Fault::new("fi_send", nix::libc::EHOSTDOWN)),
            },
            None => None,
        };
        if len <= self.inject_max {
            let bytes = &mut self.scratch[..len];
            if !fill(bytes) {
                return Err(not_written);
            }
            // SAFETY:
            // - open; the bytes are taken before this returns.
            let result = unsafe { calls::inject(self.ep.raw(), bytes.as_ptr().cast(), len, to) };
            return Fault::check("fi_inject", i64::try_from(result).unwrap_or(-1))
                .map(|()| Handed::Injected);
        }
        let frame = *self.free.last().ok_or(Fault::new("fi_send", sys::errno::AGAIN))?;
        if !fill(self.transmit.bytes_mut(frame, len)) {
            return Err(not_written);
        }
        let (bytes, context) = self.transmit.lend(frame);
        let descriptor = ptr::with_exposed_provenance_mut(self.descriptors[0]);
        // SAFETY:
        // - open; the frame is lent until it has completed.
        let result = unsafe { calls::send(self.ep.raw(), bytes, len, descriptor, to, context) };
        if let Err(fault) = Fault::check("fi_send", i64::try_from(result).unwrap_or(-1)) {
            self.transmit.take_back(frame);
            return Err(fault);
        }
        self.free.pop();
        self.notes[frame] = note;
        Ok(Handed::Lent)
    }

    /// Frames that are out for sending.
    pub(crate) fn lent(&self) -> usize {
        self.transmit.count() - self.free.len()
    }

    /// The bytes of a message that has arrived.
    pub(crate) fn arrived(&self, frame: usize, len: usize) -> &[u8] {
        self.receive.bytes(frame, len)
    }

    /// Posts the frame of a message that was looked at.
    pub(crate) fn repost(&mut self, frame: usize) {
        self.unposted.push(frame);
    }

    /// Takes one batch of completions.
    ///
    /// # Errors
    /// A queue that cannot be read any more.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Fault> {
        if !self.unposted.is_empty() {
            self.post_receives()?;
        }
        if self.own.has_mail() {
            events.extend(self.own.take().into_iter().map(Event::Near));
        }
        let empty = sys::CqMsgEntry { op_context: ptr::null_mut(), flags: 0, len: 0 };
        let mut entries = [empty; BATCH];
        // SAFETY:
        // - open; room for so many entries of the format that it was opened with.
        let result = unsafe { calls::cq_read(self.cq.raw(), entries.as_mut_ptr().cast(), BATCH) };
        if result > 0 {
            let count = usize::try_from(result).unwrap_or(0).min(BATCH);
            for entry in &entries[..count] {
                events.extend(self.completed(entry.op_context, entry.len));
            }
            return Ok(());
        }
        let fault = Fault::new("fi_cq_read", i64::try_from(result).unwrap_or(-1));
        match fault.number {
            0 | sys::errno::AGAIN => Ok(()),
            sys::errno::AVAIL => self.read_error(events),
            _ => Err(fault),
        }
    }

    fn completed(&mut self, context: *mut c_void, len: usize) -> Option<Event> {
        if let Some(frame) = self.receive.find(context) {
            self.receive.take_back(frame);
            return Some(Event::Arrived { frame, len: len.min(self.receive.size()) });
        }
        let frame = self.transmit.find(context).filter(|frame| self.transmit.is_lent(*frame))?;
        self.transmit.take_back(frame);
        self.free.push(frame);
        Some(Event::Sent(self.notes[frame]))
    }

    /// Reads one failure; the rest of the queue is untouched.
    fn read_error(&mut self, events: &mut Vec<Event>) -> Result<(), Fault> {
        // Later versions write fields behind the last one that is declared.
        #[repr(C)]
        struct Roomy {
            entry: sys::CqErrEntry,
            later: [u64; 8],
        }
        let null = ptr::null_mut();
        let mut roomy = Roomy {
            entry: sys::CqErrEntry {
                op_context: null,
                flags: 0,
                len: 0,
                buf: null,
                data: 0,
                tag: 0,
                olen: 0,
                err: 0,
                prov_errno: 0,
                err_data: null,
                err_data_size: 0,
            },
            later: [0; 8],
        };
        // SAFETY:
        // - open; room for an entry of any version.
        let result = unsafe { calls::cq_readerr(self.cq.raw(), (&raw mut roomy).cast()) };
        if result <= 0 {
            let fault = Fault::new("fi_cq_readerr", i64::try_from(result).unwrap_or(-1));
            return if matches!(fault.number, 0 | sys::errno::AGAIN) { Ok(()) } else { Err(fault) };
        }
        debug_assert!(roomy.later.len() == 8, "room that is only written by the library");
        let fault = Fault::new("an operation", roomy.entry.err);
        let context = roomy.entry.op_context;
        if let Some(frame) = self.receive.find(context).filter(|at| self.receive.is_lent(*at)) {
            self.receive.take_back(frame);
            self.unposted.push(frame);
            events.push(Event::Failed(fault));
        } else {
            events.push(match self.completed(context, 0) {
                Some(Event::Sent(note)) => Event::Unsent(note, fault),
                _ => Event::Failed(fault),
            });
        }
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Fault> {
        while let Some(frame) = self.unposted.pop() {
            let (bytes, context) = self.receive.lend(frame);
            let descriptor = ptr::with_exposed_provenance_mut(self.descriptors[1]);
            let (len, from) = (self.receive.size(), sys::ADDR_UNSPEC);
            // SAFETY:
            // - open; the frame is lent until it has completed.
            let result =
                unsafe { calls::recv(self.ep.raw(), bytes, len, descriptor, from, context) };
            if let Err(fault) = Fault::check("fi_recv", i64::try_from(result).unwrap_or(-1)) {
                self.receive.take_back(frame);
                self.unposted.push(frame);
                return if fault.is_again() { Ok(()) } else { Err(fault) };
            }
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.own.closes();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sends, receives, regions) = (&self.transmit, &self.receive, self.regions.len());
        write!(out, "Endpoint({sends:?}, {receives:?}, {regions} regions)")
    }
}

fn uses_inboxes(offer: &Offer) -> Result<bool, Error> {
    Ok(offer.provider == "shm" && library()?.version() >= INBOXES_SINCE)
}

fn open_fabric(offer: &Offer) -> Result<Handle<sys::FidFabric>, Error> {
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

fn open_domain(
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
fn open_queue(
    domain: &Handle<sys::FidDomain>,
    limits: Limits,
) -> Result<(Handle<sys::FidCq>, Option<RawFd>), Error> {
    let mut last = Fault::new("fi_cq_open", 0);
    for wait_obj in [sys::WAIT_FD, sys::WAIT_NONE] {
        let mut attr = sys::CqAttr {
            size: limits.transmit_size + limits.receive_size,
            flags: 0,
            format: sys::CQ_FORMAT_MSG,
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

fn open_vector(domain: &Handle<sys::FidDomain>) -> Result<Handle<sys::FidAv>, Error> {
    let mut attr = sys::AvAttr {
        r#type: sys::AV_TABLE,
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

fn open_endpoint(
    domain: &Handle<sys::FidDomain>,
    offer: &Offer,
    cq: &Handle<sys::FidCq>,
    av: &Handle<sys::FidAv>,
) -> Result<Handle<sys::FidEp>, Error> {
    let mut ep = ptr::null_mut();
    // SAFETY:
    // - open; the offer is alive and only read.
    let result = unsafe { calls::endpoint(domain.raw(), offer.raw(), &raw mut ep) };
    Fault::check("fi_endpoint", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    let ep: Handle<sys::FidEp> = unsafe { Handle::new(ep) };
    for (object, flags) in [(av.fid(), 0), (cq.fid(), sys::TRANSMIT | sys::RECV)] {
        // SAFETY:
        // - open objects of one domain, closed after the endpoint.
        let result = unsafe { calls::bind(ep.fid(), object, flags) };
        Fault::check("fi_ep_bind", result)?;
    }
    // SAFETY:
    // - open and bound.
    let result = unsafe { calls::enable(ep.fid()) };
    Fault::check("fi_enable", result)?;
    Ok(ep)
}

/// Registers frames for messages.
fn register(
    domain: &Handle<sys::FidDomain>,
    ep: &Handle<sys::FidEp>,
    frames: &Frames,
    mr_mode: i32,
) -> Result<Handle<sys::FidMr>, Error> {
    let (base, len) = frames.range();
    let (access, mut region) = (sys::TRANSMIT | sys::RECV, ptr::null_mut());
    // Two registrations of a domain never share a key.
    let key = u64::try_from(base.addr()).unwrap_or(0) >> 12;
    // SAFETY:
    // - open; the frames stay until the region was closed.
    let result = unsafe { calls::mr_reg(domain.raw(), base, len, access, key, &raw mut region) };
    Fault::check("fi_mr_reg", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    let region: Handle<sys::FidMr> = unsafe { Handle::new(region) };
    if mr_mode & sys::MR_ENDPOINT != 0 {
        // SAFETY:
        // - open objects of one domain.
        let result = unsafe { calls::bind(region.fid(), ep.fid(), 0) };
        Fault::check("fi_mr_bind", result)?;
        // SAFETY:
        // - bound.
        let result = unsafe { calls::enable(region.fid()) };
        Fault::check("fi_mr_enable", result)?;
    }
    Ok(region)
}

fn name_of(ep: &Handle<sys::FidEp>) -> Result<Vec<u8>, Error> {
    let mut name = vec![0u8; NAME_MAX];
    let mut len = name.len();
    // SAFETY:
    // - open; room for so many bytes.
    let result = unsafe { calls::getname(ep.raw(), name.as_mut_ptr().cast(), &raw mut len) };
    Fault::check("fi_getname", result)?;
    name.truncate(len);
    Ok(name)
}
