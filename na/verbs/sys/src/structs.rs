//! Structures that this side allocates, whole.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

use crate::{Cq, Mr, Srq};

/// What a card can do (`ibv_device_attr`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_query_device(3)")]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    /// Limits of kinds of queue pairs that nobody has built, and of multicast.
    pub others: [c_int; 11],
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// A port (`ibv_port_attr`). Later versions have a field more: room for it is here.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_query_port(3)")]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub later: [u32; 3],
}

/// A port's address (`ibv_gid`), in the order of the network.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// A run of registered memory (`ibv_sge`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_post_send(3)")]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// Something to be sent (`ibv_send_wr`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_post_send(3)")]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    /// `wr.rdma`; other kinds have more there.
    pub remote_addr: u64,
    pub rkey: u32,
    /// Of kinds that are not used.
    pub others: [u32; 19],
}

/// Room for a message (`ibv_recv_wr`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_post_srq_recv(3)")]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// A completion (`ibv_wc`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_poll_cq(3)")]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// How a shared receive queue is made (`ibv_srq_init_attr`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_create_srq(3)")]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// Sizes of a queue pair (`ibv_qp_cap`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_create_qp(3)")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// How a queue pair is made (`ibv_qp_init_attr`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "fields as in ibv_create_qp(3)")]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// The way to another network (`ibv_global_route`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_create_ah(3)")]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The way to a port (`ibv_ah_attr`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_create_ah(3)")]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// What a queue pair becomes (`ibv_qp_attr`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "fields as in ibv_modify_qp(3)")]
pub struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_int,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

impl SendWr {
    /// One run of memory, to be sent as a message.
    #[must_use]
    pub fn send(wr_id: u64, run: *mut Sge, flags: c_uint) -> Self {
        Self {
            wr_id,
            next: ptr::null_mut(),
            sg_list: run,
            num_sge: 1,
            opcode: crate::WR_SEND,
            send_flags: flags,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            others: [0; 19],
        }
    }
}

impl Mr {
    /// What sends and receives name the memory by.
    #[must_use]
    pub fn keys(&self) -> (u32, u32) {
        (self.lkey, self.rkey)
    }
}
