//! Objects, and the tables of functions in them.

use std::ffi::{c_char, c_int, c_void};

use crate::{AvAttr, CqAttr, CqErrEntry, Info};

/// A place in a table whose function is not used here.
pub type Unused = *const c_void;

/// `fi_ops`: what every object can do.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fabric.h")]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// `fid`: the head of every object.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fabric.h")]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *mut Ops,
}

/// `fi_ops_fabric`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_fabric(3)")]
pub struct OpsFabric {
    pub size: usize,
    pub domain:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    pub passive_ep: Unused,
    pub eq_open: Unused,
    pub wait_open: Unused,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

/// `fid_fabric`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_fabric(3)")]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *mut OpsFabric,
    pub api_version: u32,
}

/// `fi_ops_domain`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_domain(3)")]
pub struct OpsDomain {
    pub size: usize,
    pub av_open:
        unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub cq_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub endpoint:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
}

/// `fi_ops_mr`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_mr(3)")]
pub struct OpsMr {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        *mut c_void,
    ) -> c_int,
    pub regv: Unused,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

/// `fi_mr_attr`: memory to be registered. What comes behind `device` belongs to later versions.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_mr(3)")]
pub struct MrAttr {
    pub mr_iov: *const Iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    /// A number of a device, in its first bytes: an `int` in C's union.
    pub device: u64,
    /// Zeroes for later versions.
    pub later: [u64; 8],
}

/// `fid_domain`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_domain(3)")]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *mut OpsDomain,
    pub mr: *mut OpsMr,
}

/// `fid_mr`: registered memory.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_mr(3)")]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// `fi_ops_av`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_av(3)")]
pub struct OpsAv {
    pub size: usize,
    pub insert:
        unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    pub insertsvc: Unused,
    pub insertsym: Unused,
    pub remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    pub lookup: Unused,
    pub straddr:
        unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
}

/// `fid_av`: an address vector.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_av(3)")]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *mut OpsAv,
}

/// `fi_ops_cq`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct OpsCq {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    pub readfrom: Unused,
    pub readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub sread: Unused,
    pub sreadfrom: Unused,
    pub signal: Unused,
    pub strerror:
        unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fid_cq`: a completion queue.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *mut OpsCq,
}

/// `fi_ops_ep`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_endpoint(3)")]
pub struct OpsEp {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
    pub getopt: Unused,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
}

/// `fi_ops_cm`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cm(3)")]
pub struct OpsCm {
    pub size: usize,
    pub setname: Unused,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

/// `fi_ops_msg`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_msg(3)")]
pub struct OpsMsg {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        *mut FidEp,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> isize,
    pub recvv: Unused,
    pub recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub send: Unused,
    pub sendv: Unused,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
}

/// `fi_ops_rma`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_rma(3)")]
pub struct OpsRma {
    pub size: usize,
    pub read: Unused,
    pub readv: Unused,
    pub readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub write: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub writev: Unused,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
}

/// `fi_ops_tagged`.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_tagged(3)")]
pub struct OpsTagged {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        *mut FidEp,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub recvv: Unused,
    pub recvmsg: Unused,
    pub send: Unused,
    pub sendv: Unused,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
}

/// `fid_ep`: an endpoint. What comes behind `tagged` is not used here.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_endpoint(3)")]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *mut OpsEp,
    pub cm: *mut OpsCm,
    pub msg: *mut OpsMsg,
    pub rma: *mut OpsRma,
    pub tagged: *mut OpsTagged,
}

/// `iovec` of the system.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in readv(2)")]
pub struct Iovec {
    pub iov_base: *mut c_void,
    pub iov_len: usize,
}

/// `fi_msg`: a message, or room for one.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_msg(3)")]
pub struct Msg {
    pub msg_iov: *const Iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// `fi_msg_tagged`: a message with a tag.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_tagged(3)")]
pub struct MsgTagged {
    pub msg_iov: *const Iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// `fi_rma_iov`: memory of a peer.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_rma(3)")]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// `fi_msg_rma`: a one-sided operation.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_rma(3)")]
pub struct MsgRma {
    pub msg_iov: *const Iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}
