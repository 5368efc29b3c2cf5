//! What a context has of the card: a completion queue with its channel, a shared receive queue, frames, lent memory, and all its pairs.
//!
//! Nothing here blocks. A message that has arrived is looked at in its frame ([`Endpoint::arrived`]), which is then posted again
//! ([`Endpoint::was_seen`]).

use std::{
    ffi::{c_int, c_void},
    fmt,
    os::fd::{BorrowedFd, RawFd},
    ptr,
    sync::Arc,
};

use hg_na::{Error, Segment};
use hg_na_memory::Held;
use hg_na_parts::limits::os_error;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_core_sys as sys;
use rustc_hash::FxHashMap;

use crate::card::{
    Device, Fault, Side,
    frames::{FRAME, Frames},
    pair::{Cargo, Pair, Post},
    registration::Registration,
};

/// Places of the shared receive queue.
const RECEIVES: usize = 1024;
/// Frames for messages that are too long to be inline.
const SENDS: usize = 256;
/// Completions of sends that may wait to be taken.
const SENT: usize = 4096;
/// Completions taken at a time.
const BATCH: usize = 32;

/// What has happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message has come, over the connection of this place, into this frame, so long.
    Arrived { place: u32, frame: usize, len: usize },
    /// Memory was moved, for the transfer of this number, over the connection of this place.
    Moved { place: u32, id: u64 },
    /// A queue pair is in error.
    Broken { place: u32, fault: Fault },
}

/// A context's part of the card.
pub(crate) struct Endpoint {
    device: Arc<Device>,
    channel: *mut sys::CompChannel,
    cq: *mut sys::Cq,
    srq: *mut sys::Srq,
    receives: Frames,
    sends: Frames,
    free: Vec<usize>,
    /// By number.
    pairs: FxHashMap<u32, Pair>,
    /// Memory that peers reach; the numbers of lent memory are places here.
    lent: Vec<Option<Registration>>,
    every: u32,
    completions: Vec<sys::Wc>,
    /// Places of the receive queue that could not be posted again.
    unposted: Vec<usize>,
}

// SAFETY:
// - libibverbs takes calls from any thread; whoever has the context has this alone.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens everything; every `every`-th post of a pair asks for its completion.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub(crate) fn open(device: &Arc<Device>, every: u32) -> Result<Self, Error> {
        let within =
            |wanted: usize, most: c_int| usize::try_from(most).unwrap_or(wanted).clamp(1, wanted);
        let count = within(RECEIVES, device.limits.max_srq_wr);
        let mut this = Self {
            receives: Frames::new(device, count)?,
            sends: Frames::new(device, SENDS)?,
            free: (0..SENDS).collect(),
            device: Arc::clone(device),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            pairs: FxHashMap::default(),
            lent: Vec::new(),
            every,
            completions: Vec::with_capacity(BATCH),
            unposted: Vec::new(),
        };
        // What is open is closed when this fails.
        this.open_queues(within(count + SENT, device.limits.max_cqe))?;
        (0..count).for_each(|frame| this.post_receive(frame));
        Ok(this)
    }

    fn open_queues(&mut self, completions: usize) -> Result<(), Error> {
        let (library, context) = (self.device.library, self.device.context());
        // SAFETY:
        // - open.
        self.channel = unsafe { (library.create_comp_channel)(context) };
        if self.channel.is_null() {
            return Err(Fault::last("ibv_create_comp_channel").into());
        }
        let fd = self.fd();
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|it| os_error("fcntl", it))?;
        let count = c_int::try_from(completions).unwrap_or(c_int::MAX);
        // SAFETY:
        // - open.
        self.cq = unsafe { (library.create_cq)(context, count, ptr::null_mut(), self.channel, 0) };
        if self.cq.is_null() {
            return Err(Fault::last("ibv_create_cq").into());
        }
        let max_wr = u32::try_from(self.receives.count()).unwrap_or(u32::MAX);
        let srq_context = ptr::null_mut();
        let mut attr = sys::SrqInitAttr { srq_context, max_wr, max_sge: 1, srq_limit: 0 };
        // SAFETY:
        // - open; the description is filled with what was given.
        self.srq = unsafe { (library.create_srq)(self.device.pd, &raw mut attr) };
        if self.srq.is_null() {
            return Err(Fault::last("ibv_create_srq").into());
        }
        Ok(())
    }

    /// Becomes readable when something has come, once it is [armed](Self::arm).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY:
        // - alive as long as this.
        let fd: RawFd = unsafe { (*self.channel).fd };
        // SAFETY:
        // - the channel's, open as long as that.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Makes the next completion wake whoever waits for [`Self::fd`]. What has come before has to be taken afterwards.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn arm(&mut self) -> Result<(), Fault> {
        loop {
            let (mut cq, mut context): (_, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY:
            // - open; its descriptor does not block.
            let result = unsafe {
                (self.device.library.get_cq_event)(self.channel, &raw mut cq, &raw mut context)
            };
            if result != 0 {
                break;
            }
            // SAFETY:
            // - one event of this queue was taken.
            unsafe { (self.device.library.ack_cq_events)(cq, 1) };
        }
        // SAFETY:
        // - open.
        let result = unsafe { sys::calls::req_notify_cq(self.cq, 0) };
        Fault::check("ibv_req_notify_cq", result)
    }

    /// A queue pair for the connection of a place, and what the other side is told of it.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn pair(&mut self, place: u32, first_packet: u32) -> Result<Side, Fault> {
        let queues = (self.cq, self.srq);
        let pair = Pair::new(&self.device, queues, (place, first_packet), self.every)?;
        let side = pair.side();
        self.pairs.insert(side.number, pair);
        Ok(side)
    }

    /// What the other side is told of one.
    pub(crate) fn side(&self, number: u32) -> Option<Side> {
        self.pairs.get(&number).map(Pair::side)
    }

    /// Connects one.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn connect(&mut self, number: u32, other: &Side) -> Result<(), Fault> {
        self.pairs.get_mut(&number).ok_or(Fault::Again)?.connect(other)
    }

    /// Destroys one, and frees what it holds.
    pub(crate) fn destroy(&mut self, number: u32) {
        let Some(pair) = self.pairs.remove(&number) else { return };
        let frames: Vec<usize> = pair.held().filter_map(frame_of).collect();
        drop(pair);
        frames.into_iter().for_each(|frame| self.free_frame(frame));
    }

    /// Its connection has ended; it stays until its peer has everything ([`Self::is_over`]).
    pub(crate) fn part(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.place = None;
        }
    }

    /// Whether a frame can be sent now.
    pub(crate) fn has_room(&self, number: u32) -> bool {
        let pair = self.pairs.get(&number);
        !self.free.is_empty() && pair.is_some_and(|pair| pair.signals.has_room())
    }

    /// Sends `len` bytes that `fill` writes; when it answers `false`, nothing is sent.
    ///
    /// # Errors
    /// [`Fault::Again`], or a worse one.
    pub(crate) fn send(
        &mut self,
        number: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), Fault> {
        let Self { pairs, free, sends, .. } = self;
        let pair = pairs.get_mut(&number).ok_or(Fault::Status(sys::WC_WR_FLUSH_ERR))?;
        if !pair.signals.has_room() {
            return Err(Fault::Again);
        }
        let Some(frame) = free.last().copied() else {
            self.ask_all();
            return Err(Fault::Again);
        };
        if !fill(sends.bytes_mut(frame, len)) {
            return Err(Fault::Call("ibv_post_send", nix::libc::ECANCELED));
        }
        let is_inline = len <= pair.inline_max;
        let run = Some(sends.run(frame, len));
        let post = Post { opcode: sys::WR_SEND, remote: (0, 0), run, is_inline, must_ask: false };
        let cargo = if is_inline { Cargo::Nothing } else { Cargo::Frame(frame) };
        // SAFETY:
        // - the frame is registered as long as this, and lent below unless its bytes are taken at once.
        let posted = unsafe { pair.post(&post, cargo) };
        posted.map_err(|(fault, _)| fault)?;
        if !is_inline {
            free.pop();
            sends.lend(frame);
        }
        Ok(())
    }

    /// Writes to memory that a peer has lent (`to_peer`), or reads from it. An [`Event::Moved`] follows.
    ///
    /// # Errors
    /// [`Fault::Again`], or a worse one.
    pub(crate) fn move_run(
        &mut self,
        number: u32,
        remote: (u64, u32),
        (memory, run): (&Held, Segment),
        (to_peer, id): (bool, u64),
    ) -> Result<(), Fault> {
        let pair = self.pairs.get_mut(&number).ok_or(Fault::Status(sys::WC_WR_FLUSH_ERR))?;
        if !pair.signals.has_room() {
            return Err(Fault::Again);
        }
        let access = if to_peer { 0 } else { sys::ACCESS_LOCAL_WRITE };
        let local = Registration::of(&self.device, memory, run, access)?;
        let length = u32::try_from(run.len).map_err(|_| Fault::Call("ibv_post_send", 22))?;
        let run = Some(sys::Sge { addr: run.address as u64, length, lkey: local.keys().0 });
        let opcode = if to_peer { sys::WR_RDMA_WRITE } else { sys::WR_RDMA_READ };
        let post = Post { opcode, remote, run, is_inline: false, must_ask: true };
        // SAFETY:
        // - the registration, which keeps the memory, is the cargo.
        let posted = unsafe { pair.post(&post, Cargo::Moved(id, local)) };
        posted.map_err(|(fault, _)| fault)
    }

    /// Asks for the completion of silent posts, by one that does nothing else.
    pub(crate) fn ask(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number).filter(|pair| pair.signals.is_silent()) else {
            return;
        };
        let (opcode, remote, is_inline, must_ask) = (sys::WR_RDMA_WRITE, (0, 0), false, true);
        let post = Post { opcode, remote, run: None, is_inline, must_ask };
        // SAFETY:
        // - no memory is named.
        if let Err((fault, _)) = unsafe { pair.post(&post, Cargo::Nothing) } {
            // A full queue has asked already.
            tracing::trace!(%fault, "silent posts go on waiting");
        }
    }

    fn ask_all(&mut self) {
        let silent = self.pairs.iter().filter(|(_, pair)| pair.signals.is_silent());
        let silent: Vec<u32> = silent.map(|(number, _)| *number).collect();
        silent.into_iter().for_each(|number| self.ask(number));
    }

    /// The number of the last post of a pair.
    pub(crate) fn last(&self, number: u32) -> u64 {
        self.pairs.get(&number).map_or(0, |pair| pair.signals.last())
    }

    /// Whether all posts up to one have ended: the peer's card has them, or nothing more comes of them.
    pub(crate) fn is_over(&self, number: u32, last: u64) -> bool {
        self.pairs.get(&number).is_none_or(|pair| pair.is_broken || pair.signals.is_over(last))
    }

    /// Registers a run of memory for a peer's access: to be written, or to be read. Answers its number, for [`Self::revoke`], and what
    /// the peer needs: address and key.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn lend(
        &mut self,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, (u64, u32)), Fault> {
        let access = match is_written {
            true => sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE,
            false => sys::ACCESS_REMOTE_READ,
        };
        let registration = Registration::of(&self.device, memory, run, access)?;
        let key = registration.keys().1;
        let place = self.lent.iter().position(Option::is_none).unwrap_or(self.lent.len());
        if place == self.lent.len() {
            self.lent.push(None);
        }
        self.lent[place] = Some(registration);
        Ok((place, (run.address as u64, key)))
    }

    /// Ends a peer's access.
    pub(crate) fn revoke(&mut self, number: usize) {
        drop(self.lent.get_mut(number).and_then(Option::take));
    }

    /// Takes some of what has happened.
    ///
    /// # Errors
    /// [`Fault`]: the completion queue is lost.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> Result<bool, Fault> {
        for frame in std::mem::take(&mut self.unposted) {
            self.post_receive(frame);
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.resize(BATCH, sys::Wc::default());
        let most = c_int::try_from(BATCH).expect("a small number");
        // SAFETY:
        // - open; there is room for so many.
        let count = unsafe { sys::calls::poll_cq(self.cq, most, completions.as_mut_ptr()) };
        let found = usize::try_from(count);
        completions.iter().take(found.unwrap_or(0)).for_each(|it| self.completed(it, events));
        self.completions = completions;
        found.map(|it| it > 0).map_err(|_| Fault::Call("ibv_poll_cq", nix::libc::EIO))
    }

    fn completed(&mut self, it: &sys::Wc, events: &mut Vec<Event>) {
        let is_good = it.status == sys::WC_SUCCESS;
        // Of one that is an error, only its number, its pair and its status are set; numbers of frames are marked.
        if it.wr_id & RECEIVE != 0 {
            let frame = usize::try_from(it.wr_id & !RECEIVE).unwrap_or(usize::MAX);
            if !self.receives.take_back(frame) {
                return;
            }
            let place = self.pairs.get(&it.qp_num).and_then(|pair| pair.place);
            let len = usize::try_from(it.byte_len).unwrap_or(usize::MAX).min(FRAME);
            match place {
                Some(place) if is_good => events.push(Event::Arrived { place, frame, len }),
                _ => self.post_receive(frame),
            }
            if !is_good {
                self.broke(it, events);
            }
            return;
        }
        let Self { pairs, sends, free, .. } = self;
        let Some(pair) = pairs.get_mut(&it.qp_num) else { return };
        if is_good {
            let place = pair.place;
            for cargo in pair.completed(it.wr_id) {
                match cargo {
                    Cargo::Nothing => {}
                    Cargo::Frame(frame) => {
                        if sends.take_back(frame) {
                            free.push(frame);
                        }
                    }
                    Cargo::Moved(id, _) => {
                        events.extend(place.map(|place| Event::Moved { place, id }));
                    }
                }
            }
        } else {
            self.broke(it, events);
        }
    }

    /// What a broken pair holds stays with it until it is destroyed.
    fn broke(&mut self, it: &sys::Wc, events: &mut Vec<Event>) {
        let Some(pair) = self.pairs.get_mut(&it.qp_num).filter(|pair| !pair.is_broken) else {
            return;
        };
        pair.is_broken = true;
        let fault = Fault::Status(it.status);
        events.extend(pair.place.map(|place| Event::Broken { place, fault }));
    }

    /// The bytes of a message that has arrived.
    pub(crate) fn arrived(&self, frame: usize, len: usize) -> &[u8] {
        self.receives.bytes(frame, len)
    }

    /// A message was looked at: its frame is posted again.
    pub(crate) fn was_seen(&mut self, frame: usize) {
        self.post_receive(frame);
    }

    fn post_receive(&mut self, frame: usize) {
        let mut run = self.receives.run(frame, FRAME);
        let (next, sg_list, num_sge) = (ptr::null_mut(), &raw mut run, 1);
        let mut request = sys::RecvWr { wr_id: RECEIVE | frame as u64, next, sg_list, num_sge };
        let mut bad = ptr::null_mut();
        self.receives.lend(frame);
        // SAFETY:
        // - open; the description is read before this returns; the frame is lent until the receive has completed.
        let result = unsafe { sys::calls::post_srq_recv(self.srq, &raw mut request, &raw mut bad) };
        if let Err(fault) = Fault::check("ibv_post_srq_recv", result) {
            tracing::debug!(%fault, "room for a message is posted later");
            self.receives.take_back(frame);
            self.unposted.push(frame);
        }
    }

    fn free_frame(&mut self, frame: usize) {
        if self.sends.take_back(frame) {
            self.free.push(frame);
        }
    }
}

/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 63;

fn frame_of(cargo: &Cargo) -> Option<usize> {
    match cargo {
        Cargo::Frame(frame) => Some(*frame),
        Cargo::Nothing | Cargo::Moved(..) => None,
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // What the card may still use goes after what makes it do so.
        self.pairs.clear();
        self.lent.clear();
        let library = self.device.library;
        let mut results = Vec::new();
        if !self.srq.is_null() {
            // SAFETY:
            // - opened by `open`; no pair uses it.
            results.push(("ibv_destroy_srq", unsafe { (library.destroy_srq)(self.srq) }));
        }
        if !self.cq.is_null() {
            // SAFETY:
            // - opened by `open`; no pair uses it, and its events were acknowledged.
            results.push(("ibv_destroy_cq", unsafe { (library.destroy_cq)(self.cq) }));
        }
        if !self.channel.is_null() {
            // SAFETY:
            // - opened by `open`; no queue uses it.
            let result = unsafe { (library.destroy_comp_channel)(self.channel) };
            results.push(("ibv_destroy_comp_channel", result));
        }
        for fault in results.into_iter().filter_map(|(call, it)| Fault::check(call, it).err()) {
            tracing::error!(%fault, "a part of an endpoint is not closed");
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, receives, sends, .. } = self;
        write!(out, "Endpoint({} pairs, {receives:?}, {sends:?})", pairs.len())
    }
}
