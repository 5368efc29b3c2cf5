//! Numbers of the interface, of its version 1.17.

use std::ffi::c_int;

/// Messages (`FI_MSG`).
pub const MSG: u64 = 1 << 1;
/// One-sided operations (`FI_RMA`).
pub const RMA: u64 = 1 << 2;
/// Tagged messages (`FI_TAGGED`).
pub const TAGGED: u64 = 1 << 3;
/// May read, as initiator (`FI_READ`).
pub const READ: u64 = 1 << 8;
/// May write, as initiator (`FI_WRITE`).
pub const WRITE: u64 = 1 << 9;
/// May receive (`FI_RECV`); bound to a queue: its receives complete there.
pub const RECV: u64 = 1 << 10;
/// May send (`FI_TRANSMIT`); bound to a queue: its sends complete there.
pub const TRANSMIT: u64 = 1 << 11;
/// May be read (`FI_REMOTE_READ`).
pub const REMOTE_READ: u64 = 1 << 12;
/// May be written (`FI_REMOTE_WRITE`).
pub const REMOTE_WRITE: u64 = 1 << 13;
/// One buffer takes many messages (`FI_MULTI_RECV`); in a completion: it is used up.
pub const MULTI_RECV: u64 = 1 << 16;
/// Tells of a completion in spite of [`SELECTIVE_COMPLETION`] (`FI_COMPLETION`).
pub const COMPLETION: u64 = 1 << 24;
/// Bytes are taken before the call returns (`FI_INJECT`).
pub const INJECT: u64 = 1 << 25;
/// Memory of devices (`FI_HMEM`).
pub const HMEM: u64 = 1 << 47;
/// Completes when the bytes are at their target (`FI_DELIVERY_COMPLETE`).
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
/// The node of a query is the own one (`FI_SOURCE` as a flag of `fi_getinfo`).
pub const SOURCE: u64 = 1 << 57;
/// Node names are numbers (`FI_NUMERICHOST`).
pub const NUMERIC_HOST: u64 = 1 << 55;
/// Only attributes of providers are wanted (`FI_PROV_ATTR_ONLY`).
pub const PROV_ATTR_ONLY: u64 = 1 << 54;
/// Bound with this, only operations that ask for it complete audibly (`FI_SELECTIVE_COMPLETION`).
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// The provider wants four words behind each operation's context (`FI_CONTEXT`, a mode).
pub const CONTEXT: u64 = 1 << 59;
/// The same, eight words (`FI_CONTEXT2`).
pub const CONTEXT2: u64 = 1 << 52;
/// Completions come only for messages that asked (`FI_BUFFERED_RECV`, a mode of rxm).
pub const BUFFERED_RECV: u64 = 1 << 51;

/// Sends arrive in the order in which they were posted (`FI_ORDER_SAS`).
pub const ORDER_SAS: u64 = 1 << 8;
/// Sends that follow a write arrive after it (`FI_ORDER_SAW`).
pub const ORDER_SAW: u64 = 1 << 7;

/// Local buffers have to be registered (`FI_MR_LOCAL`).
pub const MR_LOCAL: c_int = 1 << 2;
/// Remote addresses are virtual ones, not offsets (`FI_MR_VIRT_ADDR`).
pub const MR_VIRT_ADDR: c_int = 1 << 4;
/// Registered memory has to exist (`FI_MR_ALLOCATED`).
pub const MR_ALLOCATED: c_int = 1 << 5;
/// The provider chooses keys (`FI_MR_PROV_KEY`).
pub const MR_PROV_KEY: c_int = 1 << 6;
/// Regions are bound to an endpoint and enabled (`FI_MR_ENDPOINT`).
pub const MR_ENDPOINT: c_int = 1 << 9;

/// Memory of devices is registered (`FI_MR_HMEM`).
pub const MR_HMEM: c_int = 1 << 10;

/// Memory of CUDA's (`FI_HMEM_CUDA`).
pub const HMEM_CUDA: c_int = 1;
/// Memory of ROCm's (`FI_HMEM_ROCR`).
pub const HMEM_ROCR: c_int = 2;
/// Memory of Level Zero's (`FI_HMEM_ZE`).
pub const HMEM_ZE: c_int = 3;

/// A reliable, unconnected endpoint (`FI_EP_RDM`).
pub const EP_RDM: c_int = 3;
/// Addresses are numbers of the vector (`FI_AV_TABLE`).
pub const AV_TABLE: c_int = 2;
/// One thread at a time calls into a domain (`FI_THREAD_DOMAIN`).
pub const THREAD_DOMAIN: c_int = 3;
/// Any thread calls anything (`FI_THREAD_SAFE`).
pub const THREAD_SAFE: c_int = 1;
/// Overruns of queues are prevented (`FI_RM_ENABLED`).
pub const RM_ENABLED: c_int = 2;
/// Completions are [`crate::CqMsgEntry`] (`FI_CQ_FORMAT_MSG`).
pub const CQ_FORMAT_MSG: c_int = 2;
/// Completions are [`crate::CqDataEntry`] (`FI_CQ_FORMAT_DATA`).
pub const CQ_FORMAT_DATA: c_int = 3;
/// A queue without anything to wait on (`FI_WAIT_NONE`).
pub const WAIT_NONE: c_int = 0;
/// A queue with a file descriptor (`FI_WAIT_FD`).
pub const WAIT_FD: c_int = 3;

/// Endpoint options (`FI_OPT_ENDPOINT`).
pub const OPT_ENDPOINT: c_int = 0;
/// Bytes that a multi-receive buffer must have left (`FI_OPT_MIN_MULTI_RECV`).
pub const OPT_MIN_MULTI_RECV: c_int = 0;

/// Gives the object to wait on (`FI_GETWAIT`).
pub const GETWAIT: c_int = 5;
/// Enables an endpoint or a region (`FI_ENABLE`).
pub const ENABLE: c_int = 6;

/// An address that names nobody (`FI_ADDR_UNSPEC`).
pub const ADDR_UNSPEC: u64 = u64::MAX;
/// A key that does not fit in 64 bits (`FI_KEY_NOTAVAIL`).
pub const KEY_NOTAVAIL: u64 = u64::MAX;

/// A card on a PCI bus (`FI_BUS_PCI`).
pub const BUS_PCI: c_int = 1;

/// Classes of traffic, by libfabric's names without `FI_TC_`.
pub const TRAFFIC_CLASSES: [(&str, u32); 6] = [
    ("best-effort", 0x200),
    ("low-latency", 0x201),
    ("dedicated-access", 0x202),
    ("bulk-data", 0x203),
    ("scavenger", 0x204),
    ("network-ctrl", 0x205),
];

/// Errors of libfabric's own; the others are those of the system.
pub mod errno {
    /// Nothing there, or no room: try again.
    pub const AGAIN: i32 = 11;
    /// No such provider, address or data.
    pub const NODATA: i32 = 61;
    /// The queue has an error to be read first.
    pub const AVAIL: i32 = 259;
    /// A message was cut off.
    pub const TRUNC: i32 = 265;
    /// The operation was cancelled.
    pub const CANCELED: i32 = 125;
}
