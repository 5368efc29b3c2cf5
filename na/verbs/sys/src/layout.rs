//! Sizes and offsets, asserted when this is compiled, and to be compared with the C headers by a test.

use std::mem::{offset_of, size_of};

use crate::{
    AhAttr, AsyncEvent, CompChannel, Context, ContextOps, Cq, DeviceAttr, Gid, GlobalRoute, Mr, Pd,
    PortAttr, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Srq, SrqInitAttr, Wc,
};

/// One structure.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// C's name, without `struct`.
    pub name: &'static str,
    /// Its size in bytes; `None` where C's is longer: the declaration here ends behind what is used.
    pub size: Option<usize>,
    /// C's names of its fields, and their offsets in bytes.
    pub fields: &'static [(&'static str, usize)],
}

macro_rules! layouts {
    ($($of:ident = $name:literal $size:tt { $($field:ident $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(layouts!(@size $of $size));
            $(assert!(offset_of!($of, $field) == $offset);)*
        };)*

        /// Every structure that is declared here.
        pub const LAYOUTS: &[Layout] = &[$(Layout {
            name: $name,
            size: layouts!(@option $size),
            fields: &[$((stringify!($field), $offset)),*],
        }),*];
    };
    (@size $of:ident (cut)) => { size_of::<$of>() > 0 };
    (@size $of:ident $size:literal) => { size_of::<$of>() == $size };
    (@option (cut)) => { None };
    (@option $size:literal) => { Some($size) };
}

layouts! {
    DeviceAttr = "ibv_device_attr" 232 { fw_ver 0, node_guid 64, sys_image_guid 72, max_mr_size 80, page_size_cap 88, vendor_id 96, vendor_part_id 100, hw_ver 104, max_qp 108, max_qp_wr 112, device_cap_flags 116, max_sge 120, max_sge_rd 124, max_cq 128, max_cqe 132, max_mr 136, max_pd 140, max_qp_rd_atom 144, max_ee_rd_atom 148, max_res_rd_atom 152, max_qp_init_rd_atom 156, max_ee_init_rd_atom 160, atomic_cap 164, max_srq 212, max_srq_wr 216, max_srq_sge 220, max_pkeys 224, local_ca_ack_delay 226, phys_port_cnt 227 }
    PortAttr = "ibv_port_attr" 64 { state 0, max_mtu 4, active_mtu 8, gid_tbl_len 12, port_cap_flags 16, max_msg_sz 20, bad_pkey_cntr 24, qkey_viol_cntr 28, pkey_tbl_len 32, lid 34, sm_lid 36, lmc 38, max_vl_num 39, sm_sl 40, subnet_timeout 41, init_type_reply 42, active_width 43, active_speed 44, phys_state 45, link_layer 46, flags 47, port_cap_flags2 48 }
    Sge = "ibv_sge" 16 { addr 0, length 8, lkey 12 }
    SendWr = "ibv_send_wr" 128 { wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36 }
    RecvWr = "ibv_recv_wr" 32 { wr_id 0, next 8, sg_list 16, num_sge 24 }
    Wc = "ibv_wc" 48 { wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, src_qp 32, wc_flags 36, pkey_index 40, slid 42, sl 44, dlid_path_bits 45 }
    SrqInitAttr = "ibv_srq_init_attr" 24 { srq_context 0 }
    QpCap = "ibv_qp_cap" 20 { max_send_wr 0, max_recv_wr 4, max_send_sge 8, max_recv_sge 12, max_inline_data 16 }
    QpInitAttr = "ibv_qp_init_attr" 64 { qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56 }
    GlobalRoute = "ibv_global_route" 24 { dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }
    AhAttr = "ibv_ah_attr" 32 { grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30 }
    QpAttr = "ibv_qp_attr" 144 { qp_state 0, cur_qp_state 4, path_mtu 8, path_mig_state 12, qkey 16, rq_psn 20, sq_psn 24, dest_qp_num 28, qp_access_flags 32, cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120, alt_pkey_index 122, en_sqd_async_notify 124, sq_draining 125, max_rd_atomic 126, max_dest_rd_atomic 127, min_rnr_timer 128, port_num 129, timeout 130, retry_cnt 131, rnr_retry 132, alt_port_num 133, alt_timeout 134, rate_limit 136 }
    Pd = "ibv_pd" (cut) { context 0 }
    ContextOps = "ibv_context_ops" 256 { poll_cq 88, req_notify_cq 96, post_srq_recv 160, post_send 200 }
    Context = "ibv_context" (cut) { device 0, ops 8, cmd_fd 264, async_fd 268 }
    AsyncEvent = "ibv_async_event" 16 { element 0, event_type 8 }
    CompChannel = "ibv_comp_channel" 16 { context 0, fd 8, refcnt 12 }
    Cq = "ibv_cq" (cut) { context 0, channel 8 }
    Srq = "ibv_srq" (cut) { context 0 }
    Qp = "ibv_qp" (cut) { context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52 }
    Mr = "ibv_mr" 48 { context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }
}

// What has other names in C, inside of unions: `wr.rdma.remote_addr`, `wr.rdma.rkey`, `attr.max_wr`.
const _: () = {
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(offset_of!(SrqInitAttr, max_wr) == 8 && offset_of!(SrqInitAttr, srq_limit) == 16);
    assert!(size_of::<Gid>() == 16 && align_of::<Gid>() == 8);
};
