//! An endpoint with its queue, its address vector and its frames.
//!
//! Short messages are injected: their bytes are taken at once, and only failure is told (selective completion).
//! Longer ones go out of frames and are told, and so does a short one now and then (`sends`). Receives stay posted; a message that has arrived is looked at in its
//! frame, which is then posted again. Nothing here blocks, and one failed operation costs no other's completion.

use std::{
    ffi::c_void,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, RawFd},
    ptr,
    sync::Arc,
};

use hg_na::Error;
use libfabric_sys::{self as sys, calls};
use rustc_hash::FxHashMap;

use crate::fabric::{
    Fault,
    frames::{FRAMES_MAX, Frames, SENDS_MAX},
    handles::Handle,
    injected::Injected,
    intake::{Arrival, Intake, Taken},
    near::{self, Near},
    offer::{Offer, is_socket, library},
    open::{name_of, open_domain, open_endpoint_somewhere, open_fabric, open_queue, open_vector},
    rma::{OneSided, register},
    sends::{Next, Sends},
    stuck::{PeerLock, RegionLock},
    way::{Form, Way},
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
    /// A message has arrived: [`Endpoint::arrived`], then [`Endpoint::was_seen`].
    Arrived(Arrival),
    /// A message of this process.
    Near(Vec<u8>),
    /// A send that was handed over with this note is complete.
    Sent(u64),
    /// It failed.
    Unsent(u64, Fault),
    /// A move of this note is over.
    Moved(u64, Option<Fault>),
    /// A message that was injected on its way to this address is lost.
    Lost(u64, Fault),
    /// Something else failed: a receive, which is posted again, or what was injected on its way to an address that is removed.
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
    // Closed in this order; `close_reach` says more of the first three.
    pub(super) ep: Handle<sys::FidEp>,
    /// Of the frames.
    pub(super) regions: Vec<Handle<sys::FidMr>>,
    /// Registrations are bound to it (`FI_MR_ENDPOINT`).
    pub(super) is_bound: bool,
    /// Where the provider has one-sided operations.
    pub(super) one_sided: Option<OneSided>,
    pub(super) cq: Handle<sys::FidCq>,
    pub(super) av: Handle<sys::FidAv>,
    pub(super) domain: Handle<sys::FidDomain>,
    pub(super) fabric: Handle<sys::FidFabric>,
    // Behind what could reach them.
    pub(super) transmit: Frames,
    pub(super) injected: Injected,
    pub(super) intake: Intake,
    way: Way,
    is_multi: bool,
    /// What the library wants to be told of the frames (`FI_MR_LOCAL`), as addresses.
    descriptors: [usize; 2],
    sends: Sends,
    inject_max: usize,
    scratch: Box<[u8; INJECT_MAX]>,
    wait_fd: Option<RawFd>,
    name: Vec<u8>,
    /// It is named by the address of a socket.
    is_socket: bool,
    lock: Option<RegionLock>,
    has_seen_death: bool,
    /// Where the own lock was found: those of peers, by address.
    locks: FxHashMap<u64, PeerLock>,
    own: Arc<Near>,
    /// Endpoints of this process among those inserted, by address.
    near: FxHashMap<u64, Arc<Near>>,
    /// They are reached by their inboxes; the number of those that were.
    inboxes: Option<u64>,
}

/// Longest message that may be injected. Over datagrams (`ofi_rxd`) it stays here until its target has answered to the
/// first one, which this side's progress is needed for: there its sending is over when the target has it.
fn inject_max(offer: &Offer) -> usize {
    let is_datagrams = offer.provider.contains("ofi_rxd");
    if is_datagrams { 0 } else { offer.limits().inject_size.min(INJECT_MAX) }
}

/// Messages that the library takes at a time, of all addresses together, injected ones among them: where its layer rxm does.
fn queue_of(offer: &Offer) -> Option<usize> {
    offer.provider.contains("ofi_rxm").then(|| offer.limits().transmit_size)
}

impl Endpoint {
    /// Opens everything.
    ///
    /// # Errors
    /// [`Error::Os`] with the call that failed.
    pub(crate) fn open(offer: &Offer, form: Form) -> Result<Self, Error> {
        let (limits, Form { frame, way, .. }) = (offer.limits(), form);
        let fabric = open_fabric(offer)?;
        let domain = open_domain(&fabric, offer)?;
        let (cq, wait_fd) = open_queue(&domain, limits, form.waits)?;
        let av = open_vector(&domain, limits)?;
        let multi = form.is_multi.then_some(frame);
        let (ep, is_multi) = open_endpoint_somewhere(&domain, offer, (&cq, &av), multi)?;
        let transmit = Frames::new(limits.transmit_size.clamp(1, SENDS_MAX), frame);
        let intake = Intake::new(limits.receive_size.clamp(1, FRAMES_MAX), frame, is_multi);
        let name = name_of(&ep)?;
        let is_copied = offer.provider == "shm" && library()?.version() < INBOXES_SINCE;
        let one_sided = (limits.caps & sys::RMA != 0).then(|| OneSided::new(limits, is_copied));
        // What may fail comes before: of a struct that is half made, the domain would be closed before its endpoint.
        let own = Near::announce(&name)?;
        let inboxes = uses_inboxes(offer)?.then_some(0);
        let lock = RegionLock::find(&offer.provider, library()?.version(), &name);
        let mut endpoint = Self {
            one_sided,
            sends: Sends::new(transmit.count(), queue_of(offer)),
            inject_max: inject_max(offer),
            ep,
            regions: Vec::new(),
            is_bound: limits.mr_mode & sys::MR_ENDPOINT != 0,
            cq,
            av,
            domain,
            fabric,
            transmit,
            injected: Injected::default(),
            intake,
            way,
            is_multi,
            descriptors: [0; 2],
            scratch: Box::new([0; INJECT_MAX]),
            wait_fd,
            lock,
            has_seen_death: false,
            locks: FxHashMap::default(),
            own,
            near: FxHashMap::default(),
            inboxes,
            is_socket: is_socket(limits.address_format),
            name,
        };
        endpoint.register_frames(limits.mr_mode)?;
        endpoint.post_receives()?;
        Ok(endpoint)
    }

    /// Registers the memory of messages where the library wants that. What is registered when a further one fails is the endpoint's to close.
    pub(super) fn register_frames(&mut self, mr_mode: i32) -> Result<(), Fault> {
        if mr_mode & sys::MR_LOCAL != 0 {
            let ranges = [self.transmit.range(), self.intake.range()];
            for ((base, len), descriptor) in ranges.into_iter().zip(&mut self.descriptors) {
                // Two registrations of a domain never share a key.
                let key = self.regions.len() as u64 + 1;
                let (access, mode) = (sys::TRANSMIT | sys::RECV, (mr_mode, key));
                let region = register(&self.domain, &self.ep, (base, len, None), access, mode)?;
                // SAFETY:
                // - open; the field is set when it is registered.
                *descriptor = unsafe { (*region.raw()).mem_desc }.expose_provenance();
                self.regions.push(region);
            }
        }
        Ok(())
    }

    pub(super) fn domain(&self) -> &Handle<sys::FidDomain> {
        &self.domain
    }

    pub(super) fn ep(&self) -> &Handle<sys::FidEp> {
        &self.ep
    }

    pub(super) fn raw(&self) -> *mut sys::FidEp {
        self.ep.raw()
    }

    /// The endpoint of this process with this address.
    pub(super) fn near_to(&self, address: u64) -> Option<Arc<Near>> {
        if self.near.is_empty() { None } else { self.near.get(&address).cloned() }
    }

    /// Whether it moves memory from and to peers' by itself.
    pub(crate) fn is_one_sided(&self) -> bool {
        self.one_sided.is_some()
    }

    /// Whether memory can be moved between it and this address.
    pub(crate) fn reaches_memory_of(&self, address: u64) -> bool {
        self.one_sided.is_some() && address & INBOX == 0
    }

    /// Its address, as other endpoints insert it.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Bytes of a frame.
    pub(crate) fn frame_size(&self) -> usize {
        self.intake.frame_size()
    }

    /// Whether one buffer takes many messages.
    #[cfg(test)]
    pub(crate) fn is_multi(&self) -> bool {
        self.is_multi
    }

    /// Registrations of its own memory.
    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
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

    /// Whether a thread may wait: on the descriptors (`fi_trywait`), or for a step where there is none.
    pub(crate) fn may_wait(&mut self) -> bool {
        let is_locked = self.lock.as_ref().is_some_and(RegionLock::is_held);
        if is_locked || !self.intake.is_posted() || self.own.has_mail() {
            return false;
        }
        if self.wait_fd.is_none() {
            return true;
        }
        let mut fids = [self.cq.fid()];
        // SAFETY:
        // - open objects of one fabric.
        unsafe { calls::trywait(self.fabric.raw(), fids.as_mut_ptr(), 1) == 0 }
    }

    /// Inserts the address of an endpoint: answers what sends name it by.
    ///
    /// # Errors
    /// [`Error::Os`] when the provider does not take it, or when it is of another form than the own one.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Result<u64, Error> {
        if !self.is_like_own(name) {
            return Err(Fault::new("fi_av_insert", nix::libc::EAFNOSUPPORT).into());
        }
        let near = near::find(name);
        if let (Some(inboxes), Some(near)) = (&mut self.inboxes, &near) {
            let address = INBOX | *inboxes;
            *inboxes += 1;
            self.near.insert(address, Arc::clone(near));
            return Ok(address);
        }
        // One that is a string ends with a zero, whatever its sender says.
        let mut padded = [0u8; NAME_MAX + 1];
        let room = padded[..NAME_MAX].get_mut(..name.len());
        let room = room.ok_or(Fault::new("fi_av_insert", 22))?;
        room.copy_from_slice(name);
        // It is looked into while its address is inserted, also when it was closed: `near` says why.
        let held = near.as_ref().and_then(|near| near.hold());
        if held.is_none() && (near.is_some() || near::is_of_this_process(name)) {
            return Err(Fault::new("fi_av_insert", nix::libc::EHOSTDOWN).into());
        }
        let mut address = sys::ADDR_UNSPEC;
        // SAFETY:
        // - one name, in a buffer that is longer than any; room for one number.
        let result =
            unsafe { calls::av_insert(self.av.raw(), padded.as_ptr().cast(), 1, &raw mut address) };
        drop(held);
        Fault::check("fi_av_insert", result)?;
        if result != 1 || address == sys::ADDR_UNSPEC {
            return Err(Fault::new("fi_av_insert", 22).into());
        }
        if let Some(near) = near {
            self.near.insert(address, near);
        }
        if self.lock.is_some() {
            self.locks.insert(address, PeerLock::new(name));
        }
        Ok(address)
    }

    /// Whether a socket's name is as long as the own one, and of the same family. libfabric takes the length of one that it then refuses
    /// for that of all to come (`ofi_ip_av_insert`), so that it would refuse those.
    fn is_like_own(&self, name: &[u8]) -> bool {
        let family = size_of::<nix::libc::sa_family_t>();
        !self.is_socket
            || (name.len() == self.name.len() && name.get(..family) == self.name.get(..family))
    }

    /// Removes it.
    pub(crate) fn remove(&mut self, address: u64) {
        self.near.remove(&address);
        self.locks.remove(&address);
        self.injected.forget(address);
        self.sends.forget(address);
        if let Some(side) = &mut self.one_sided {
            side.lose(address);
        }
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
    /// answers `false`, nothing is sent. `is_told`: they are lent, however short.
    ///
    /// # Errors
    /// A [`Fault`] that [is no more than "not now"](Fault::is_again), or a worse one.
    pub(crate) fn send(
        &mut self,
        to: u64,
        (len, is_told): (usize, bool),
        note: u64,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Handed, Fault> {
        let not_written = Fault::new("fi_send", sys::errno::CANCELED);
        let near = self.near_to(to);
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
        if !self.may_send(to) {
            return Err(Fault::new("fi_send", sys::errno::AGAIN));
        }
        match self.sends.next(to, len <= self.inject_max && !is_told) {
            Next::Inject => {
                let bytes = &mut self.scratch[..len];
                if !fill(bytes) {
                    return Err(not_written);
                }
                self.inject(to, len)?;
                Ok(Handed::Injected)
            }
            Next::Lend(frame) => {
                if !fill(self.transmit.bytes_mut(frame, len)) {
                    return Err(not_written);
                }
                self.send_frame(to, (frame, len))?;
                self.sends.lent(to, note);
                Ok(Handed::Lent)
            }
            Next::Wait => Err(Fault::new("fi_send", sys::errno::AGAIN)),
        }
    }

    /// Injects what was written.
    fn inject(&mut self, to: u64, len: usize) -> Result<(), Fault> {
        let start = self.scratch[..len].as_mut_ptr().cast();
        let message = (start, len, ptr::null_mut(), self.injected.context_of(to));
        // SAFETY:
        // - open; injected bytes are taken before this returns, the context is kept until the endpoint is closed.
        unsafe { self.way.send(&self.ep, to, message, sys::INJECT) }?;
        self.sends.injected(to);
        Ok(())
    }

    /// Sends out of a frame.
    fn send_frame(&mut self, to: u64, (frame, len): (usize, usize)) -> Result<(), Fault> {
        let (bytes, context) = self.transmit.lend(frame);
        let descriptor = ptr::with_exposed_provenance_mut(self.descriptors[0]);
        let message = (bytes, len, descriptor, context);
        // SAFETY:
        // - open; the frame is lent until it has completed.
        let sent = unsafe { self.way.send(&self.ep, to, message, sys::COMPLETION) };
        if sent.is_err() {
            self.transmit.take_back(frame);
        }
        sent
    }

    /// A peer was killed, perhaps in the middle of something.
    pub(crate) fn peer_has_died(&mut self) {
        self.has_seen_death = true;
    }

    /// Whether a send is not held up by a peer that was killed.
    pub(super) fn may_send(&mut self, to: u64) -> bool {
        self.locks.is_empty() || self.locks.get_mut(&to).is_none_or(PeerLock::frees)
    }

    /// What was handed over.
    pub(crate) fn sends(&self) -> &Sends {
        &self.sends
    }

    /// The bytes of a message that has arrived, until the next [`Endpoint::poll`].
    pub(crate) fn arrived(&self, arrival: Arrival) -> &[u8] {
        self.intake.bytes(arrival)
    }

    /// A message was looked at.
    pub(crate) fn was_seen(&mut self, arrival: Arrival) {
        self.intake.was_seen(arrival);
    }

    /// Takes one batch of completions.
    ///
    /// # Errors
    /// A queue that cannot be read any more.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Fault> {
        if self.lock.as_mut().is_some_and(|lock| lock.blocks(self.has_seen_death)) {
            return Ok(());
        }
        if !self.intake.is_posted() {
            self.post_receives()?;
        }
        if self.own.has_mail() {
            events.extend(self.own.take().into_iter().map(Event::Near));
        }
        let mut entries = [const { MaybeUninit::<sys::CqDataEntry>::uninit() }; BATCH];
        // SAFETY:
        // - open; room for so many entries of the format that it was opened with.
        let result = unsafe { calls::cq_read(self.cq.raw(), entries.as_mut_ptr().cast(), BATCH) };
        if result > 0 {
            let count = usize::try_from(result).unwrap_or(0).min(BATCH);
            for entry in &entries[..count] {
                // SAFETY:
                // - the library has written so many.
                events.extend(self.completed(unsafe { entry.assume_init_ref() }));
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

    fn completed(&mut self, entry: &sys::CqDataEntry) -> Option<Event> {
        match self.intake.completed(entry) {
            Taken::Message(arrival) => return Some(Event::Arrived(arrival)),
            Taken::Nothing => return None,
            Taken::TooLong => {
                return Some(Event::Failed(Fault::new("a receive", sys::errno::TRUNC)));
            }
            Taken::NotOurs => {}
        }
        self.move_completed(entry.op_context, None)
            .or_else(|| self.came_back(entry.op_context, true)?.map(Event::Sent))
    }

    /// `Some`: a frame of ours, with the note of its message unless its address was removed.
    fn came_back(&mut self, context: *mut c_void, is_sent: bool) -> Option<Option<u64>> {
        let frame = self.transmit.find(context).filter(|frame| self.transmit.is_lent(*frame))?;
        self.transmit.take_back(frame);
        Some(self.sends.came_back(frame, is_sent))
    }

    fn move_completed(&mut self, context: *mut c_void, fault: Option<Fault>) -> Option<Event> {
        self.one_sided.as_mut()?.completed(context, fault)
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
        if let Some(moved) = self.move_completed(context, Some(fault)) {
            events.push(moved);
            return Ok(());
        }
        if self.intake.failed(context, roomy.entry.flags) {
            events.push(Event::Failed(fault));
            return Ok(());
        }
        events.push(match (self.came_back(context, false), self.injected.address_of(context)) {
            (Some(Some(note)), _) => Event::Unsent(note, fault),
            (None, Some(address)) => Event::Lost(address, fault),
            _ => Event::Failed(fault),
        });
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Fault> {
        let descriptor = ptr::with_exposed_provenance_mut(self.descriptors[1]);
        let Self { ep, intake, way, is_multi, .. } = self;
        intake.post(|bytes, len, context| {
            let room = (bytes, len, descriptor, context);
            // SAFETY:
            // - open; the memory is lent until the receive has completed.
            match unsafe { way.recv(ep, room, *is_multi) } {
                // Messages that came early have taken all entries of shm 1.17. A receive of one message frees
                // an entry instead of needing one.
                Err(fault) if *is_multi && fault.is_full() => {
                    // SAFETY:
                    // - as above: what was refused is not lent.
                    unsafe { way.recv(ep, room, false) }.map(|()| false)
                }
                other => other.map(|()| *is_multi),
            }
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.own.closes();
        self.close_reach();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sends, receives, regions) = (&self.transmit, &self.intake, self.regions.len());
        write!(out, "Endpoint({sends:?}, {receives:?}, {regions} regions)")
    }
}

fn uses_inboxes(offer: &Offer) -> Result<bool, Error> {
    Ok(offer.provider == "shm" && library()?.version() >= INBOXES_SINCE)
}
