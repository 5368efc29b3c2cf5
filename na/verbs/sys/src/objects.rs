//! Objects of the library's: only what C's inline functions look at is declared.

use std::ffi::{c_int, c_void};

use crate::{RecvWr, SendWr, Wc};

/// A card (`ibv_device`).
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    _library: [u8; 0],
}

/// A protection domain (`ibv_pd`).
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    /// Where it is.
    pub context: *mut Context,
}

/// A function that is not called through the table.
pub type Unused = *const c_void;

/// The functions of a card's driver (`ibv_context_ops`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "functions as in their manual pages, without `ibv_`")]
pub struct ContextOps {
    pub before: [Unused; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub between: [Unused; 7],
    pub post_srq_recv: unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub queue_pairs: [Unused; 4],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub behind: [Unused; 6],
}

/// An opened card (`ibv_context`).
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// Which.
    pub device: *mut Device,
    /// Its driver's.
    pub ops: ContextOps,
    /// Commands to the kernel.
    pub cmd_fd: c_int,
    /// Events that concern no completion queue.
    pub async_fd: c_int,
}

/// Something that concerns no completion queue (`ibv_async_event`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AsyncEvent {
    /// The queue pair or queue; of a port its number, in the first four bytes.
    pub element: *mut c_void,
    /// Which.
    pub event_type: c_int,
}

/// What a completion queue wakes by (`ibv_comp_channel`).
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    /// Where it is.
    pub context: *mut Context,
    /// Readable when there is an event.
    pub fd: c_int,
    /// Queues that use it.
    pub refcnt: c_int,
}

/// A completion queue (`ibv_cq`).
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    /// Where it is.
    pub context: *mut Context,
    /// What it wakes by.
    pub channel: *mut CompChannel,
}

/// A shared receive queue (`ibv_srq`).
#[repr(C)]
#[derive(Debug)]
pub struct Srq {
    /// Where it is.
    pub context: *mut Context,
}

/// A queue pair (`ibv_qp`).
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "fields as in ibv_create_qp(3)")]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
}

/// A registration (`ibv_mr`).
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "fields as in ibv_reg_mr(3)")]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
