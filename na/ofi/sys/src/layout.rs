//! Sizes and offsets, asserted when this is compiled, and to be compared with the C headers by a test.

use std::mem::{offset_of, size_of};

use crate::{
    AvAttr, BusAttr, CqAttr, CqDataEntry, CqErrEntry, CqMsgEntry, DomainAttr, EpAttr, FabricAttr,
    Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr, FidNic, Info, Iovec, MrAttr, Msg,
    MsgRma, MsgTagged, Ops, OpsAv, OpsCm, OpsCq, OpsDomain, OpsEp, OpsFabric, OpsMr, OpsMsg,
    OpsRma, OpsTagged, PciAttr, RmaIov, RxAttr, TxAttr,
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
    TxAttr = "fi_tx_attr" 80 { caps 0, mode 8, op_flags 16, msg_order 24, comp_order 32, inject_size 40, size 48, iov_limit 56, rma_iov_limit 64, tclass 72 }
    RxAttr = "fi_rx_attr" 64 { caps 0, mode 8, op_flags 16, msg_order 24, comp_order 32, total_buffered_recv 40, size 48, iov_limit 56 }
    EpAttr = "fi_ep_attr" 96 { r#type 0, protocol 4, protocol_version 8, max_msg_size 16, msg_prefix_size 24, max_order_raw_size 32, max_order_war_size 40, max_order_waw_size 48, mem_tag_format 56, tx_ctx_cnt 64, rx_ctx_cnt 72, auth_key_size 80, auth_key 88 }
    DomainAttr = "fi_domain_attr" 192 { domain 0, name 8, threading 16, control_progress 20, data_progress 24, resource_mgmt 28, av_type 32, mr_mode 36, mr_key_size 40, cq_data_size 48, cq_cnt 56, ep_cnt 64, tx_ctx_cnt 72, rx_ctx_cnt 80, max_ep_tx_ctx 88, max_ep_rx_ctx 96, max_ep_stx_ctx 104, max_ep_srx_ctx 112, cntr_cnt 120, mr_iov_limit 128, caps 136, mode 144, auth_key 152, auth_key_size 160, max_err_data 168, mr_cnt 176, tclass 184 }
    FabricAttr = "fi_fabric_attr" 32 { fabric 0, name 8, prov_name 16, prov_version 24, api_version 28 }
    Info = "fi_info" 120 { next 0, caps 8, mode 16, addr_format 24, src_addrlen 32, dest_addrlen 40, src_addr 48, dest_addr 56, handle 64, tx_attr 72, rx_attr 80, ep_attr 88, domain_attr 96, fabric_attr 104, nic 112 }
    PciAttr = "fi_pci_attr" 6 { domain_id 0, bus_id 2, device_id 3, function_id 4 }
    BusAttr = "fi_bus_attr" 12 { bus_type 0, attr 4 }
    FidNic = "fid_nic" 56 { fid 0, device_attr 24, bus_attr 32, link_attr 40, prov_attr 48 }
    CqAttr = "fi_cq_attr" 40 { size 0, flags 8, format 16, wait_obj 20, signaling_vector 24, wait_cond 28, wait_set 32 }
    AvAttr = "fi_av_attr" 48 { r#type 0, rx_ctx_bits 4, count 8, ep_per_node 16, name 24, map_addr 32, flags 40 }
    CqMsgEntry = "fi_cq_msg_entry" 24 { op_context 0, flags 8, len 16 }
    CqDataEntry = "fi_cq_data_entry" 40 { op_context 0, flags 8, len 16, buf 24, data 32 }
    CqErrEntry = "fi_cq_err_entry" 80 { op_context 0, flags 8, len 16, buf 24, data 32, tag 40, olen 48, err 56, prov_errno 60, err_data 64, err_data_size 72 }
    Ops = "fi_ops" (cut) { size 0, close 8, bind 16, control 24 }
    Fid = "fid" 24 { fclass 0, context 8, ops 16 }
    OpsFabric = "fi_ops_fabric" (cut) { size 0, domain 8, passive_ep 16, eq_open 24, wait_open 32, trywait 40 }
    FidFabric = "fid_fabric" 40 { fid 0, ops 24, api_version 32 }
    OpsDomain = "fi_ops_domain" (cut) { size 0, av_open 8, cq_open 16, endpoint 24 }
    OpsMr = "fi_ops_mr" (cut) { size 0, reg 8, regv 16, regattr 24 }
    MrAttr = "fi_mr_attr" (cut) { mr_iov 0, iov_count 8, access 16, offset 24, requested_key 32, context 40, auth_key_size 48, auth_key 56, iface 64, device 72 }
    FidDomain = "fid_domain" 40 { fid 0, ops 24, mr 32 }
    FidMr = "fid_mr" 40 { fid 0, mem_desc 24, key 32 }
    OpsAv = "fi_ops_av" (cut) { size 0, insert 8, insertsvc 16, insertsym 24, remove 32, lookup 40, straddr 48 }
    FidAv = "fid_av" 32 { fid 0, ops 24 }
    OpsCq = "fi_ops_cq" (cut) { size 0, read 8, readfrom 16, readerr 24, sread 32, sreadfrom 40, signal 48, strerror 56 }
    FidCq = "fid_cq" 32 { fid 0, ops 24 }
    OpsEp = "fi_ops_ep" (cut) { size 0, cancel 8, getopt 16, setopt 24 }
    OpsCm = "fi_ops_cm" (cut) { size 0, setname 8, getname 16 }
    OpsMsg = "fi_ops_msg" (cut) { size 0, recv 8, recvv 16, recvmsg 24, send 32, sendv 40, sendmsg 48 }
    OpsRma = "fi_ops_rma" (cut) { size 0, read 8, readv 16, readmsg 24, write 32, writev 40, writemsg 48 }
    OpsTagged = "fi_ops_tagged" (cut) { size 0, recv 8, recvv 16, recvmsg 24, send 32, sendv 40, sendmsg 48 }
    FidEp = "fid_ep" (cut) { fid 0, ops 24, cm 32, msg 40, rma 48, tagged 56 }
    Iovec = "iovec" 16 { iov_base 0, iov_len 8 }
    Msg = "fi_msg" 48 { msg_iov 0, desc 8, iov_count 16, addr 24, context 32, data 40 }
    MsgTagged = "fi_msg_tagged" 64 { msg_iov 0, desc 8, iov_count 16, addr 24, tag 32, ignore 40, context 48, data 56 }
    RmaIov = "fi_rma_iov" 24 { addr 0, len 8, key 16 }
    MsgRma = "fi_msg_rma" 64 { msg_iov 0, desc 8, iov_count 16, addr 24, rma_iov 32, rma_iov_count 40, context 48, data 56 }
}
