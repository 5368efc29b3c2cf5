//! What `fi_getinfo` answers, and what is asked with it.

use std::ffi::{c_char, c_int, c_void};

use crate::Fid;

/// `fi_tx_attr`: how an endpoint sends.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_endpoint(3)")]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

/// `fi_rx_attr`: how an endpoint receives.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_endpoint(3)")]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

/// `fi_ep_attr`: an endpoint.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_endpoint(3)")]
pub struct EpAttr {
    pub r#type: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

/// `fi_domain_attr`: a domain.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_domain(3)")]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

/// `fi_fabric_attr`: a fabric, and who provides it.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_fabric(3)")]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// `fi_info`: one way to communicate, in a list.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_getinfo(3)")]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut c_void,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut FidNic,
}

/// `fi_pci_attr`: where a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_nic(3)")]
pub struct PciAttr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// `fi_bus_attr`: the bus of a card; `attr` means something for [`crate::BUS_PCI`].
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_nic(3)")]
pub struct BusAttr {
    pub bus_type: c_int,
    pub attr: PciAttr,
}

/// `fid_nic`: a card. Its head is that of every object, of which nothing is used here.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_nic(3)")]
pub struct FidNic {
    pub fid: Fid,
    pub device_attr: *mut c_void,
    pub bus_attr: *mut BusAttr,
    pub link_attr: *mut c_void,
    pub prov_attr: *mut c_void,
}

/// `fi_cq_attr`: a completion queue to be opened.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

/// `fi_av_attr`: an address vector to be opened.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_av(3)")]
pub struct AvAttr {
    pub r#type: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `fi_cq_msg_entry`: a completion.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct CqMsgEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// `fi_cq_data_entry`: a completion that says where its bytes are.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct CqDataEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// `fi_cq_err_entry`: a failure. What comes behind `err_data_size` belongs to later versions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[expect(missing_docs, reason = "fields as in fi_cq(3)")]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
