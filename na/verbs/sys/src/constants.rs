//! Numbers of the interface.

use std::ffi::{c_int, c_uint};

/// A port that carries traffic (`IBV_PORT_ACTIVE`).
pub const PORT_ACTIVE: c_int = 4;
/// A port of an Ethernet card (`IBV_LINK_LAYER_ETHERNET`).
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// A reliable connection (`IBV_QPT_RC`).
pub const QPT_RC: c_int = 2;
/// States of a queue pair (`IBV_QPS_INIT`).
pub const QPS_INIT: c_int = 1;
/// Ready to receive (`IBV_QPS_RTR`).
pub const QPS_RTR: c_int = 2;
/// Ready to send (`IBV_QPS_RTS`).
pub const QPS_RTS: c_int = 3;
/// In error (`IBV_QPS_ERR`).
pub const QPS_ERR: c_int = 6;

/// What [`crate::QpAttr`] sets (`IBV_QP_STATE`).
pub const QP_STATE: c_int = 1 << 0;
/// `IBV_QP_ACCESS_FLAGS`.
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
/// `IBV_QP_PKEY_INDEX`.
pub const QP_PKEY_INDEX: c_int = 1 << 4;
/// `IBV_QP_PORT`.
pub const QP_PORT: c_int = 1 << 5;
/// `IBV_QP_AV`.
pub const QP_AV: c_int = 1 << 7;
/// `IBV_QP_PATH_MTU`.
pub const QP_PATH_MTU: c_int = 1 << 8;
/// `IBV_QP_TIMEOUT`.
pub const QP_TIMEOUT: c_int = 1 << 9;
/// `IBV_QP_RETRY_CNT`.
pub const QP_RETRY_CNT: c_int = 1 << 10;
/// `IBV_QP_RNR_RETRY`.
pub const QP_RNR_RETRY: c_int = 1 << 11;
/// `IBV_QP_RQ_PSN`.
pub const QP_RQ_PSN: c_int = 1 << 12;
/// `IBV_QP_MAX_QP_RD_ATOMIC`.
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// `IBV_QP_MIN_RNR_TIMER`.
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// `IBV_QP_SQ_PSN`.
pub const QP_SQ_PSN: c_int = 1 << 16;
/// `IBV_QP_MAX_DEST_RD_ATOMIC`.
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// `IBV_QP_DEST_QPN`.
pub const QP_DEST_QPN: c_int = 1 << 20;

/// May be written by this side's card (`IBV_ACCESS_LOCAL_WRITE`).
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// May be written by peers (`IBV_ACCESS_REMOTE_WRITE`); asks for the one above, too.
pub const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
/// May be read by peers (`IBV_ACCESS_REMOTE_READ`).
pub const ACCESS_REMOTE_READ: c_int = 1 << 2;

/// Writes memory of the peer's (`IBV_WR_RDMA_WRITE`).
pub const WR_RDMA_WRITE: c_int = 0;
/// Sends a message (`IBV_WR_SEND`).
pub const WR_SEND: c_int = 2;
/// Sends a message with a word beside it (`IBV_WR_SEND_WITH_IMM`).
pub const WR_SEND_WITH_IMM: c_int = 3;
/// Reads memory of the peer's (`IBV_WR_RDMA_READ`).
pub const WR_RDMA_READ: c_int = 4;
/// Its completion is told (`IBV_SEND_SIGNALED`).
pub const SEND_SIGNALED: c_uint = 1 << 1;
/// Its bytes are taken before the call returns (`IBV_SEND_INLINE`).
pub const SEND_INLINE: c_uint = 1 << 3;

/// A completion queue has overflowed (`IBV_EVENT_CQ_ERR`).
pub const EVENT_CQ_ERR: c_int = 0;
/// A queue pair is in error, and could not complete with it (`IBV_EVENT_QP_FATAL`).
pub const EVENT_QP_FATAL: c_int = 1;
/// A peer asked for what makes no sense (`IBV_EVENT_QP_REQ_ERR`).
pub const EVENT_QP_REQ_ERR: c_int = 2;
/// A peer asked for memory that it may not reach (`IBV_EVENT_QP_ACCESS_ERR`).
pub const EVENT_QP_ACCESS_ERR: c_int = 3;
/// The other path of a queue pair has failed (`IBV_EVENT_PATH_MIG_ERR`).
pub const EVENT_PATH_MIG_ERR: c_int = 7;
/// The card cannot be used any more (`IBV_EVENT_DEVICE_FATAL`).
pub const EVENT_DEVICE_FATAL: c_int = 8;
/// A port carries traffic (`IBV_EVENT_PORT_ACTIVE`).
pub const EVENT_PORT_ACTIVE: c_int = 9;
/// A port is down (`IBV_EVENT_PORT_ERR`).
pub const EVENT_PORT_ERR: c_int = 10;
/// A shared receive queue is in error (`IBV_EVENT_SRQ_ERR`).
pub const EVENT_SRQ_ERR: c_int = 14;
/// A queue pair in error takes nothing more of a shared receive queue (`IBV_EVENT_QP_LAST_WQE_REACHED`).
pub const EVENT_QP_LAST_WQE_REACHED: c_int = 16;

/// It went well (`IBV_WC_SUCCESS`).
pub const WC_SUCCESS: c_int = 0;
/// Given up since its queue pair is in error (`IBV_WC_WR_FLUSH_ERR`).
pub const WC_WR_FLUSH_ERR: c_int = 5;
/// Nobody has answered (`IBV_WC_RETRY_EXC_ERR`).
pub const WC_RETRY_EXC_ERR: c_int = 12;
/// A message has arrived (`IBV_WC_RECV`); smaller operations are this side's own.
pub const WC_RECV: c_int = 1 << 7;
