//! A reliable queue pair (`ibv_qp`), and what its send queue holds.

use std::{collections::VecDeque, ffi::c_int, fmt, mem, net::IpAddr, ptr, sync::Arc};

use rdma_core_sys as sys;

use crate::{
    card::{Device, Fault, frames::Frame, registration::Registration},
    gauge::{DEPTH, Gauge},
    signals::{Signals, Silent},
};

/// Longest message that is asked to be inline: cards take this much or say how little they do.
const INLINE: u32 = 220;
/// Repetitions start after 4 us x 2^this.
const TIMEOUT: u8 = 18;
const RETRIES: u8 = 7;
/// A peer without room is asked again, for ever...
const RNR_RETRIES: u8 = 7;
/// ... after 0.64 ms (a code of ibv_modify_qp(3)).
const RNR_TIMER: u8 = 12;
const HOPS: u8 = 64;
/// Reads under way at most, where the card takes as many.
const READS: c_int = 16;
/// Numbers of packets.
pub(crate) const PSN: u32 = 0x00FF_FFFF;

/// One side of a connection, as the other one is told of it: from a peer, a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) number: u32,
    pub(crate) first_packet: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    /// Longest packet, a code of C's.
    pub(crate) mtu: u8,
    /// Reads that it answers at a time.
    pub(crate) reads: u8,
    /// Names it to those who were told of it.
    pub(crate) token: u64,
}

impl Side {
    /// Its address, as an internet address.
    pub(crate) fn ip(&self) -> IpAddr {
        IpAddr::V6(self.gid.into()).to_canonical()
    }
}

/// What a post holds until it is over.
#[derive(Debug)]
pub(super) enum Cargo {
    /// Nothing: its bytes were taken.
    Nothing,
    Frame(Frame),
    /// Memory that is moved. Of a read, whose end is told: a line and the number of its transfer.
    Moved {
        read: Option<(u32, u64)>,
        #[expect(dead_code, reason = "kept")]
        memory: Registration,
    },
}

/// What a post is.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) opcode: c_int,
    /// The word that goes with a message.
    pub(super) word: u32,
    /// The peer's memory: address and key.
    pub(super) remote: (u64, u32),
    pub(super) run: Option<sys::Sge>,
    /// Somebody waits for its completion.
    pub(super) must_ask: bool,
    pub(super) cargo: Cargo,
}

/// A queue pair.
pub(crate) struct Pair {
    device: Arc<Device>,
    qp: *mut sys::Qp,
    pub(super) signals: Signals,
    /// What is in the send queue, oldest first.
    cargo: VecDeque<Cargo>,
    /// What waits for a place there.
    waiting: VecDeque<Post>,
    /// Memory that was lent to peers on lines that have ended: it is out of reach when this is destroyed.
    pub(super) left: Vec<Registration>,
    inline_max: usize,
    first_packet: u32,
    token: u64,
    pub(super) is_connected: bool,
    pub(super) gauge: Arc<Gauge>,
}

// SAFETY:
// - libibverbs takes calls from any thread; whoever has the endpoint has this alone.
unsafe impl Send for Pair {}

impl Pair {
    /// A queue pair that is not connected.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) fn new(
        device: &Arc<Device>,
        (cq, srq): (*mut sys::Cq, *mut sys::Srq),
        (first_packet, token): (u32, u64),
        every: u32,
    ) -> Result<Self, Fault> {
        let depth = DEPTH.min(u32::try_from(device.limits.max_qp_wr).unwrap_or(DEPTH)).max(1);
        let mut made = Err(Fault::Again);
        for max_inline_data in [INLINE, 64, 0] {
            let cap = sys::QpCap {
                max_send_wr: depth,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data,
            };
            let (qp_context, qp_type) = (ptr::null_mut(), sys::QPT_RC);
            let mut attr = sys::QpInitAttr {
                qp_context,
                send_cq: cq,
                recv_cq: cq,
                srq,
                cap,
                qp_type,
                sq_sig_all: 0,
            };
            // SAFETY:
            // - open objects of one protection domain; the description is filled with what was given.
            let qp = unsafe { (device.library.create_qp)(device.pd, &raw mut attr) };
            if !qp.is_null() {
                made = Ok((qp, attr.cap.max_inline_data));
                break;
            }
            made = Err(Fault::last("ibv_create_qp"));
        }
        let (qp, inline_max) = made?;
        let this = Self {
            device: Arc::clone(device),
            qp,
            signals: Signals::new(depth, every),
            cargo: VecDeque::new(),
            waiting: VecDeque::new(),
            left: Vec::new(),
            inline_max: usize::try_from(inline_max).unwrap_or(0),
            first_packet: first_packet & PSN,
            token,
            is_connected: false,
            gauge: Arc::default(),
        };
        let mut attr = sys::QpAttr {
            qp_state: sys::QPS_INIT,
            port_num: device.found.port,
            qp_access_flags: sys::ACCESS_LOCAL_WRITE
                | sys::ACCESS_REMOTE_WRITE
                | sys::ACCESS_REMOTE_READ,
            ..sys::QpAttr::default()
        };
        let set = sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        this.modify(&mut attr, set)?;
        Ok(this)
    }

    fn modify(&self, attr: &mut sys::QpAttr, set: c_int) -> Result<(), Fault> {
        // SAFETY:
        // - alive; the description is read before this returns.
        let result = unsafe { (self.device.library.modify_qp)(self.qp, attr, set) };
        Fault::check("ibv_modify_qp", result)
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY:
        // - alive until this is dropped; the number does not change.
        unsafe { (*self.qp).qp_num }
    }

    /// What the other side is told.
    pub(crate) fn side(&self) -> Side {
        let Device { found, gid, limits, .. } = &*self.device;
        Side {
            number: self.number(),
            first_packet: self.first_packet,
            gid: gid.0,
            lid: found.attr.lid,
            mtu: u8::try_from(found.attr.active_mtu).unwrap_or(1),
            reads: u8::try_from(limits.max_qp_rd_atom.clamp(0, READS)).unwrap_or(0),
            token: self.token,
        }
    }

    /// Connects it: it receives, then sends.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) fn connect(&mut self, other: &Side) -> Result<(), Fault> {
        let own = self.side();
        let Device { found, gid_place, limits, .. } = &*self.device;
        let dgid = sys::Gid(other.gid);
        let (sgid_index, hop_limit) = (*gid_place, HOPS);
        let ah_attr = sys::AhAttr {
            grh: sys::GlobalRoute { dgid, sgid_index, hop_limit, ..Default::default() },
            dlid: other.lid,
            is_global: found.is_ethernet().into(),
            port_num: found.port,
            ..Default::default()
        };
        let mut attr = sys::QpAttr {
            qp_state: sys::QPS_RTR,
            path_mtu: own.mtu.min(other.mtu).into(),
            dest_qp_num: other.number,
            rq_psn: other.first_packet & PSN,
            max_dest_rd_atomic: own.reads,
            min_rnr_timer: RNR_TIMER,
            ah_attr,
            ..Default::default()
        };
        let receive = sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        self.modify(&mut attr, sys::QP_STATE | receive)?;
        let reads = limits.max_qp_init_rd_atom.clamp(0, READS);
        let mut attr = sys::QpAttr {
            qp_state: sys::QPS_RTS,
            sq_psn: own.first_packet,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: other.reads.min(u8::try_from(reads).unwrap_or(0)),
            ..Default::default()
        };
        let send = sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, sys::QP_STATE | send)?;
        self.is_connected = true;
        Ok(())
    }

    /// Puts something into the send queue, or behind what waits for a place there. It is counted in the [`Gauge`].
    ///
    /// # Safety
    /// The run stays registered, and where it is, as long as the cargo.
    ///
    /// # Errors
    /// The queue pair is in error.
    pub(super) unsafe fn take(
        &mut self,
        post: Post,
        free: &mut impl FnMut(Frame),
    ) -> Result<(), Fault> {
        if !self.waiting.is_empty() || !self.signals.has_room() {
            self.waiting.push_back(post);
            return Ok(());
        }
        match self.post(&post) {
            Ok(is_inline) => self.posted(post.cargo, is_inline, free),
            Err(fault) => {
                self.waiting.push_back(post);
                return if fault == Fault::Again { Ok(()) } else { Err(fault) };
            }
        }
        Ok(())
    }

    /// Posts what waits, as far as there is room; frames whose bytes were taken are free.
    ///
    /// # Errors
    /// The queue pair is in error.
    pub(super) fn post_waiting(&mut self, free: &mut impl FnMut(Frame)) -> Result<(), Fault> {
        while self.signals.has_room()
            && let Some(post) = self.waiting.pop_front()
        {
            match self.post(&post) {
                Ok(is_inline) => self.posted(post.cargo, is_inline, free),
                Err(fault) => {
                    self.waiting.push_front(post);
                    return if fault == Fault::Again { Ok(()) } else { Err(fault) };
                }
            }
        }
        Ok(())
    }

    fn posted(&mut self, cargo: Cargo, is_inline: bool, free: &mut impl FnMut(Frame)) {
        self.cargo.push_back(match cargo {
            Cargo::Frame(frame) if is_inline => {
                free(frame);
                Cargo::Nothing
            }
            cargo => cargo,
        });
    }

    /// Says whether the bytes were taken.
    fn post(&mut self, post: &Post) -> Result<bool, Fault> {
        if self.gauge.is_broken() || !self.is_connected {
            return Err(Fault::Status(sys::WC_WR_FLUSH_ERR));
        }
        let asks = self.signals.asks(post.must_ask);
        let mut flags = if asks { sys::SEND_SIGNALED } else { 0 };
        let is_inline = self.is_inline(post);
        if is_inline {
            flags |= sys::SEND_INLINE;
        }
        let mut run = post.run;
        let list = run.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut request = sys::SendWr::send(self.signals.last() + 1, list, flags);
        (request.opcode, request.num_sge) = (post.opcode, c_int::from(post.run.is_some()));
        (request.remote_addr, request.rkey) = post.remote;
        request.imm_data = post.word.to_be();
        let mut bad = ptr::null_mut();
        // SAFETY:
        // - alive and connected; the description is read before this returns; its memory: the cargo's, by whoever has called `take`.
        let result = unsafe { sys::calls::post_send(self.qp, &raw mut request, &raw mut bad) };
        match Fault::check("ibv_post_send", result) {
            Ok(()) => {
                self.signals.posted(asks);
                Ok(is_inline)
            }
            // Its completions have not been taken yet.
            Err(Fault::Call(_, nix::libc::ENOMEM)) if self.signals.is_awaited() => {
                Err(Fault::Again)
            }
            Err(fault) => Err(fault),
        }
    }

    fn is_inline(&self, post: &Post) -> bool {
        let len = post.run.map(|run| usize::try_from(run.length).unwrap_or(usize::MAX));
        matches!(post.cargo, Cargo::Frame(_)) && len.is_some_and(|len| len <= self.inline_max)
    }

    /// A completion of this number has come: what that ends, oldest first. What is taken of it is free for all threads when [`Self::is_freed`] is
    /// called.
    pub(super) fn completed(&mut self, number: u64) -> impl Iterator<Item = Cargo> {
        let count = usize::try_from(self.signals.completed(number)).unwrap_or(usize::MAX);
        self.cargo.drain(..count.min(self.cargo.len()))
    }

    /// Tells all threads how far completions have come, at once.
    pub(super) fn is_freed(&self) {
        self.gauge.frees(self.signals.freed());
    }

    /// It takes and sends nothing more: what was under way completes with an error.
    pub(super) fn stops(&self) {
        if self.is_connected {
            let mut attr = sys::QpAttr { qp_state: sys::QPS_ERR, ..Default::default() };
            if let Err(fault) = self.modify(&mut attr, sys::QP_STATE) {
                tracing::debug!(%fault, "a queue pair goes as it is");
            }
        }
    }

    /// Whether posts hold something, and none has asked for the completion that would free it.
    pub(super) fn is_silent(&self) -> bool {
        self.waiting.is_empty() && self.signals.is_silent()
    }

    /// A look at what lies silent, some time after the one before. What waits for a place is put there by a completion, after which it is looked for anew.
    pub(super) fn look(&mut self) -> Silent {
        let can_ask = self.waiting.is_empty() && !self.gauge.is_broken();
        if can_ask { self.signals.look() } else { Silent::Nothing }
    }

    /// All that it holds, once the card uses nothing of it any more.
    pub(super) fn destroy(mut self) -> Vec<Cargo> {
        let is_destroyed = self.end();
        let cargo = mem::take(&mut self.cargo);
        if !is_destroyed {
            mem::forget(cargo);
            return Vec::new();
        }
        cargo.into_iter().chain(self.waiting.drain(..).map(|post| post.cargo)).collect()
    }

    fn end(&mut self) -> bool {
        let qp = mem::replace(&mut self.qp, ptr::null_mut());
        if qp.is_null() {
            return true;
        }
        // SAFETY:
        // - made by `new`, and destroyed once.
        let result = unsafe { (self.device.library.destroy_qp)(qp) };
        let ended = Fault::check("ibv_destroy_qp", result);
        if let Err(fault) = ended {
            tracing::error!(%fault, "a queue pair is not destroyed: what it holds is never freed");
        }
        ended.is_ok()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.end() {
            mem::forget(mem::take(&mut self.cargo));
        }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pair({}, {:?})", self.number(), self.signals)
    }
}
