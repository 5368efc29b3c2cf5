//! What threads share of the card: a completion queue with its channel, a shared receive queue, all pairs, and the lines on them.
//!
//! Nothing here blocks. Whoever has the turn ([`super::hub`]) has this alone. A message that has arrived is read in its frame where its reader is the one
//! who looks; for others it is copied, so that no frame waits for a thread that does something else.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_void},
    fmt, mem,
    os::fd::{BorrowedFd, RawFd},
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_queue::SegQueue;
use hg_na::Error;
use hg_na_parts::limits::os_error;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_core_sys as sys;
use rustc_hash::FxHashMap;

use crate::{
    card::{
        Desk, Device, Event, Fault, Frame, Told,
        desk::Bytes,
        frames::{FRAME, Pool},
        lines::Line,
        pair::{Cargo, Pair, Post},
    },
    gauge::DEPTH,
    idle::Idle,
    sharing::Sharing,
};

/// Places of the shared receive queue.
const RECEIVES: usize = 1024;
/// Completions of sends that there is room for at first: those of 32 pairs.
const SENT: usize = 4096;
/// Completions taken at a time.
const BATCH: usize = 32;
/// How long a queue pair stays whose peer has not got everything, or does not answer.
pub(super) const PART_WAITS: Duration = Duration::from_secs(1);

/// What all threads have of an endpoint without its lock.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) idle: Idle,
    pub(super) pool: Pool,
    /// Of the receive queue, to be posted again.
    pub(super) read: SegQueue<Frame>,
}

/// A queue pair without lines.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) number: u32,
    /// It goes when its peer has this post. `None`: it is for the peer to answer.
    pub(super) last: Option<u64>,
    /// When it is destroyed in any case.
    pub(super) by: Instant,
}

/// What threads share of the card.
pub(super) struct Endpoint {
    device: Arc<Device>,
    stock: Arc<Stock>,
    channel: *mut sys::CompChannel,
    cq: *mut sys::Cq,
    /// Completions that it holds.
    room: usize,
    srq: *mut sys::Srq,
    /// What the receive queue has, by the numbers of its posts.
    receives: Vec<Option<Frame>>,
    vacant: Vec<usize>,
    /// By number.
    pub(super) pairs: FxHashMap<u32, Pair>,
    pub(super) lines: FxHashMap<u32, Line>,
    pub(super) sharing: Sharing,
    pub(super) leaving: Vec<Leaving>,
    pub(super) desks: Vec<Arc<Desk>>,
    pub(super) every: u32,
    /// Which of its domain's ports this is for.
    pub(super) port: usize,
    completions: Vec<sys::Wc>,
    /// What was taken off the card before its turn.
    backlog: VecDeque<sys::Wc>,
    has_freed: bool,
    /// Nothing comes of it any more.
    is_lost: bool,
}

// SAFETY:
// - libibverbs takes calls from any thread; whoever has the endpoint has this alone.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens everything, for a port of the domain; every `every`-th post of a pair asks for its completion.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub(super) fn open(
        (port, device): (usize, &Arc<Device>),
        (every, shares): (u32, bool),
    ) -> Result<Self, Error> {
        let within =
            |wanted: usize, most: c_int| usize::try_from(most).unwrap_or(wanted).clamp(1, wanted);
        let count = within(RECEIVES, device.limits.max_srq_wr);
        let (idle, pool) = (Idle::new(Instant::now()), Pool::new(device)?);
        let stock = Stock { idle, pool, read: SegQueue::new() };
        let mut this = Self {
            device: Arc::clone(device),
            stock: Arc::new(stock),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            room: within(count + SENT, device.limits.max_cqe),
            srq: ptr::null_mut(),
            receives: (0..count).map(|_| None).collect(),
            vacant: (0..count).collect(),
            pairs: FxHashMap::default(),
            lines: FxHashMap::default(),
            sharing: Sharing::new(shares),
            leaving: Vec::new(),
            desks: Vec::new(),
            every,
            port,
            completions: Vec::with_capacity(BATCH),
            backlog: VecDeque::new(),
            has_freed: false,
            is_lost: false,
        };
        // What is open is closed when this fails.
        this.open_queues()?;
        for _ in 0..count {
            let frame = this.stock.pool.first()?;
            this.post_receive(frame);
        }
        // There are some to send, too.
        this.stock.pool.give(this.stock.pool.first()?);
        Ok(this)
    }

    fn open_queues(&mut self) -> Result<(), Error> {
        let (library, context) = (self.device.library, self.device.context());
        // SAFETY:
        // - open.
        self.channel = unsafe { (library.create_comp_channel)(context) };
        if self.channel.is_null() {
            return Err(Fault::last("ibv_create_comp_channel").into());
        }
        let fd = self.fd();
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|it| os_error("fcntl", it))?;
        let count = c_int::try_from(self.room).unwrap_or(c_int::MAX);
        // SAFETY:
        // - open.
        self.cq = unsafe { (library.create_cq)(context, count, ptr::null_mut(), self.channel, 0) };
        if self.cq.is_null() {
            return Err(Fault::last("ibv_create_cq").into());
        }
        let max_wr = u32::try_from(self.receives.len()).unwrap_or(u32::MAX);
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

    /// Makes room for the completions of one more pair that is connected: of a queue that overflows all connections are lost, and each post may complete,
    /// be it only with an error.
    ///
    /// Where its queue cannot grow that is said once, and hoped for.
    ///
    /// # Errors
    /// The card has no room for so many.
    pub(super) fn makes_room(&mut self) -> Result<(), Fault> {
        let pairs = self.pairs.values().filter(|pair| pair.is_connected).count() + 1;
        let needed = self.receives.len() + pairs * DEPTH as usize;
        if needed <= self.room {
            return Ok(());
        }
        let most = usize::try_from(self.device.limits.max_cqe).unwrap_or(0);
        let wanted = (2 * self.room).max(needed).min(most);
        if wanted < needed {
            return Err(Fault::Call("ibv_resize_cq", nix::libc::ENOSPC));
        }
        let count = c_int::try_from(wanted).unwrap_or(c_int::MAX);
        // SAFETY:
        // - open.
        let result = unsafe { (self.device.library.resize_cq)(self.cq, count) };
        match Fault::check("ibv_resize_cq", result) {
            Ok(()) => self.room = wanted,
            Err(Fault::Call(_, nix::libc::EOPNOTSUPP | nix::libc::ENOSYS)) => {
                tracing::warn!(
                    "the card's completion queue cannot grow: if over {} completions wait there, all its connections are lost",
                    self.room
                );
                self.room = usize::MAX;
            }
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn stock(&self) -> Arc<Stock> {
        Arc::clone(&self.stock)
    }

    /// When the pairs are looked at.
    pub(super) fn idle(&self) -> &Idle {
        &self.stock.idle
    }

    pub(super) fn queues(&self) -> (*mut sys::Cq, *mut sys::Srq) {
        (self.cq, self.srq)
    }

    /// The descriptor of its channel, open as long as this: becomes readable when something has come, once it is [armed](Self::arm).
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
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
    pub(super) fn arm(&mut self) -> Result<(), Fault> {
        self.take_signals();
        if self.is_lost {
            return Ok(());
        }
        // SAFETY:
        // - open.
        let result = unsafe { sys::calls::req_notify_cq(self.cq, 0) };
        Fault::check("ibv_req_notify_cq", result)
    }

    /// The channel is not readable any more; with a card that was removed it stays so.
    fn take_signals(&mut self) {
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
    }

    /// Puts something into the send queue of a pair, as soon as there is room. Its place was taken, unless it is this side's own.
    ///
    /// # Safety
    /// The run stays registered, and where it is, as long as the cargo.
    pub(super) unsafe fn post(&mut self, number: u32, post: Post) {
        let Self { pairs, stock, .. } = self;
        let Some(pair) = pairs.get_mut(&number) else { return self.free(post.cargo) };
        if matches!(post.cargo, Cargo::Nothing) {
            pair.gauge.adds();
        }
        // SAFETY:
        // - the caller's.
        let taken = unsafe { pair.take(post, &mut |frame| stock.pool.give(frame)) };
        if pair.is_silent() {
            stock.idle.begins();
        }
        if let Err(fault) = taken {
            self.broke(number, fault);
        }
    }

    fn post_waiting(&mut self, number: u32) {
        let Self { pairs, stock, .. } = self;
        let Some(pair) = pairs.get_mut(&number) else { return };
        let posted = pair.post_waiting(&mut |frame| stock.pool.give(frame));
        if pair.is_silent() {
            stock.idle.begins();
        }
        if let Err(fault) = posted {
            self.broke(number, fault);
        }
    }

    fn free(&self, cargo: Cargo) {
        if let Cargo::Frame(frame) = cargo {
            self.stock.pool.give(frame);
        }
    }

    /// Destroys a pair, which carries no line any more, and frees what it holds.
    pub(super) fn destroy(&mut self, number: u32) {
        if let Some(pair) = self.pairs.remove(&number) {
            pair.gauge.breaks();
            pair.stops();
            self.take_all_of(number);
            pair.destroy().into_iter().for_each(|cargo| self.free(cargo));
            self.has_freed = true;
        }
    }

    /// Takes what has completed of a pair before that is destroyed: some cards drop it then, and the places of the receive queue that its messages
    /// have used would never be used again. What is others' waits here. It ends, since nothing is posted meanwhile.
    fn take_all_of(&mut self, number: u32) {
        let mut all = mem::take(&mut self.backlog);
        let mut some = [sys::Wc::default(); BATCH];
        loop {
            match self.fetch(&mut some) {
                0 => break,
                found => all.extend(&some[..found]),
            }
        }
        let (own, others): (VecDeque<_>, _) = all.into_iter().partition(|it| it.qp_num == number);
        self.backlog = others;
        let receives: Vec<_> = own.iter().filter_map(|it| self.received_in(it)).collect();
        receives.into_iter().for_each(|frame| self.post_receive(frame));
    }

    /// Whether there may be more than so much, which a look has found.
    pub(super) fn may_have_more(&self, found: usize) -> bool {
        found == BATCH || !self.backlog.is_empty()
    }

    /// Ends every connection, and takes no new one: a queue or the card is lost.
    pub(super) fn lose(&mut self, fault: Fault) {
        self.is_lost = true;
        self.break_all(fault);
    }

    /// Ends every connection.
    pub(super) fn break_all(&mut self, fault: Fault) {
        let all: Vec<u32> = self.pairs.keys().copied().collect();
        all.into_iter().for_each(|number| self.broke(number, fault));
    }

    /// Refuses a new connection.
    ///
    /// # Errors
    /// [`Fault`]: it is lost.
    pub(super) fn is_usable(&self) -> Result<(), Fault> {
        if self.is_lost { Err(LOST) } else { Ok(()) }
    }

    /// The card has said something.
    pub(super) fn hear(&mut self, told: Told) {
        match told {
            Told::Pair(number, fault) => self.broke(number, fault),
            Told::Queue(place, fault) if [self.cq.addr(), self.srq.addr()].contains(&place) => {
                self.lose(fault);
            }
            Told::Queue(..) | Told::Port(_) | Told::Other => {}
        }
    }

    /// Completions, as many as there is room for.
    fn completed(&mut self, into: &mut [sys::Wc]) -> usize {
        let kept = self.backlog.len().min(into.len());
        into.iter_mut().zip(self.backlog.drain(..kept)).for_each(|(place, it)| *place = it);
        kept + self.fetch(&mut into[kept..])
    }

    /// Completions from the card; none, once it is lost.
    fn fetch(&mut self, into: &mut [sys::Wc]) -> usize {
        if self.is_lost || into.is_empty() {
            return 0;
        }
        let most = c_int::try_from(into.len()).expect("a small number");
        // SAFETY:
        // - open; there is room for so many.
        let count = unsafe { sys::calls::poll_cq(self.cq, most, into.as_mut_ptr()) };
        usize::try_from(count).unwrap_or_else(|_| {
            self.lose(LOST);
            0
        })
    }

    /// Wakes every other context that sleeps.
    pub(super) fn wake_all_but(&self, desk: &Arc<Desk>) {
        self.desks.iter().filter(|it| !Arc::ptr_eq(it, desk)).for_each(|it| it.wake());
    }

    /// Takes some of what has happened, [`BATCH`] at most: for one context, and into the inboxes of the others. Says how much there was.
    pub(super) fn poll(&mut self, desk: &Arc<Desk>, events: &mut Vec<Event>) -> usize {
        self.post_read();
        let mut completions = mem::take(&mut self.completions);
        completions.resize(BATCH, sys::Wc::default());
        let found = self.completed(&mut completions);
        for it in completions.iter().take(found) {
            if it.wr_id & RECEIVE == 0 {
                self.sent(it, desk, events);
            } else {
                self.received(it, desk, events);
            }
        }
        self.completions = completions;
        if !self.leaving.is_empty() {
            self.destroy_left(Instant::now());
        }
        if mem::take(&mut self.has_freed) {
            let waiting = self.desks.iter().filter(|it| it.room.answers());
            waiting.for_each(|it| it.put(Event::Room));
        }
        found
    }

    /// The frame of a completed receive, whose place is free again. Of a completion that is an error, only its number, its pair and its status are set;
    /// numbers of receives are marked.
    fn received_in(&mut self, it: &sys::Wc) -> Option<Frame> {
        let place = usize::try_from(it.wr_id.checked_sub(RECEIVE)?).ok()?;
        let frame = self.receives.get_mut(place)?.take()?;
        self.vacant.push(place);
        Some(frame)
    }

    fn received(&mut self, it: &sys::Wc, desk: &Arc<Desk>, events: &mut Vec<Event>) {
        let Some(frame) = self.received_in(it) else { return };
        if it.status != sys::WC_SUCCESS {
            self.post_receive(frame);
            return self.broke(it.qp_num, Fault::Status(it.status));
        }
        if it.opcode != sys::WC_RECV {
            // Its bytes went elsewhere: what lies in the frame is what somebody else has sent.
            self.post_receive(frame);
            return self.broke(it.qp_num, WRITTEN);
        }
        let word = u32::from_be(it.imm_data);
        let len = usize::try_from(it.byte_len).unwrap_or(usize::MAX).min(FRAME);
        let is_carried = |line: &Line| line.is_carried_by(it.qp_num);
        if !self.lines.get(&word).is_some_and(is_carried) {
            self.heard(it.qp_num, word);
        }
        let line = self.lines.get_mut(&word).filter(|line| len > 0 && is_carried(line));
        let Some(line) = line else { return self.post_receive(frame) };
        if let Some(of) = line.target_at(desk) {
            events.push(Event::Arrived { of, bytes: Bytes::Frame(frame, len) });
            return;
        }
        let bytes = Bytes::Copy(frame.bytes(len).into());
        line.put(|of| Event::Arrived { of, bytes });
        self.post_receive(frame);
    }

    fn sent(&mut self, it: &sys::Wc, desk: &Arc<Desk>, events: &mut Vec<Event>) {
        let Self { pairs, stock, lines, .. } = self;
        if it.status != sys::WC_SUCCESS {
            return self.broke(it.qp_num, Fault::Status(it.status));
        }
        let Some(pair) = pairs.get_mut(&it.qp_num) else { return };
        for cargo in pair.completed(it.wr_id) {
            match cargo {
                Cargo::Nothing => {}
                Cargo::Frame(frame) => stock.pool.give(frame),
                Cargo::Moved { read: None, .. } => {}
                Cargo::Moved { read: Some((line, id)), .. } => {
                    let Some(line) = lines.get_mut(&line) else { continue };
                    match line.target_at(desk) {
                        Some(of) => events.push(Event::Moved { of, id }),
                        None => line.put(|of| Event::Moved { of, id }),
                    }
                }
            }
        }
        pair.is_freed();
        self.has_freed = true;
        self.post_waiting(it.qp_num);
    }

    fn destroy_left(&mut self, now: Instant) {
        for it in mem::take(&mut self.leaving) {
            let Some(pair) = self.pairs.get(&it.number) else { continue };
            match it.last {
                Some(last) if pair.gauge.is_over(last) || now >= it.by => self.destroy(it.number),
                None if now >= it.by => {
                    let mut effects = Vec::new();
                    self.sharing.late(it.number, &mut effects);
                    self.act(effects, Fault::Again);
                }
                _ => self.leaving.push(it),
            }
        }
    }

    /// Gives the card the frames that were read.
    pub(super) fn post_read(&mut self) {
        let stock = Arc::clone(&self.stock);
        for _ in 0..stock.read.len() {
            stock.read.pop().into_iter().for_each(|frame| self.post_receive(frame));
        }
    }

    fn post_receive(&mut self, frame: Frame) {
        let place = self.vacant.pop().expect("there are as many places as frames");
        let mut run = frame.run(FRAME);
        let (next, sg_list, num_sge) = (ptr::null_mut(), &raw mut run, 1);
        let mut request = sys::RecvWr { wr_id: RECEIVE | place as u64, next, sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY:
        // - open; the description is read before this returns; the frame is kept until the receive has completed.
        let result = unsafe { sys::calls::post_srq_recv(self.srq, &raw mut request, &raw mut bad) };
        if let Err(fault) = Fault::check("ibv_post_srq_recv", result) {
            tracing::debug!(%fault, "room for a message is posted later");
            self.vacant.push(place);
            return self.stock.read.push(frame);
        }
        self.receives[place] = Some(frame);
    }
}

/// What a connection is told that finds no queues.
const LOST: Fault = Fault::Event("the queues of this process on the card are lost");

/// What a connection is told whose peer writes with a word beside it, which nobody has asked for.
const WRITTEN: Fault = Fault::Event("the peer has used up a message's place for what is none");

/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 63;

impl Drop for Endpoint {
    fn drop(&mut self) {
        // What the card may still use goes after what makes it do so.
        self.pairs.clear();
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
        if results.iter().any(|(_, result)| *result != 0) {
            mem::forget(mem::take(&mut self.receives));
        }
        for fault in results.into_iter().filter_map(|(call, it)| Fault::check(call, it).err()) {
            tracing::error!(%fault, "a part of an endpoint is not closed");
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, lines, stock, .. } = self;
        write!(out, "Endpoint({} pairs, {} lines, {stock:?})", pairs.len(), lines.len())
    }
}
