//! The calls that carry messages: `fi_msg`, or `fi_tagged` where a provider has nothing else.
//!
//! Untagged messages are used wherever there are any. Every frame of a peer's goes into the next buffer, whatever
//! it is; expected messages are matched by peer and tag in `receives`, where a receive that is cancelled, or whose
//! peer is gone, ends without a word of the library's, and a message without a receive is dropped. Posting a tagged
//! receive for each of them would cost a call for every answer, and would leave to the library the cancelled ones and
//! the messages that match none, which it keeps for ever.

use std::ffi::c_void;

use libfabric_sys::{self as sys, calls};

use crate::fabric::{Fault, handles::Handle};

/// The one tag of all frames, where messages have tags.
const TAG: u64 = 0x4867;

/// Which messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Way {
    /// `FI_MSG`.
    #[default]
    Untagged,
    /// `FI_TAGGED`.
    Tagged,
}

/// Memory of the library's for an operation: bytes, their number, descriptor and context.
type Lent = (*mut c_void, usize, *mut c_void, *mut c_void);

impl Way {
    /// What a provider has to be capable of.
    pub(crate) fn caps(self) -> u64 {
        match self {
            Self::Untagged => sys::MSG,
            Self::Tagged => sys::TAGGED,
        }
    }

    /// Posts room for a message: `multi` for many.
    ///
    /// # Safety
    /// The endpoint is open; the bytes are lent to the library until the receive has completed.
    pub(super) unsafe fn recv(
        self,
        ep: &Handle<sys::FidEp>,
        (bytes, len, mut descriptor, context): Lent,
        multi: bool,
    ) -> Result<(), Fault> {
        let from = sys::ADDR_UNSPEC;
        let (call, result) = match self {
            Self::Tagged => {
                // SAFETY:
                // - the caller's.
                let result = unsafe {
                    calls::trecv(ep.raw(), bytes, len, descriptor, from, TAG, 0, context)
                };
                ("fi_trecv", result)
            }
            Self::Untagged if !multi => {
                // SAFETY:
                // - the caller's.
                let result =
                    unsafe { calls::recv(ep.raw(), bytes, len, descriptor, from, context) };
                ("fi_recv", result)
            }
            Self::Untagged => {
                let room = sys::Iovec { iov_base: bytes, iov_len: len };
                let message = sys::Msg {
                    msg_iov: &raw const room,
                    desc: &raw mut descriptor,
                    iov_count: 1,
                    addr: from,
                    context,
                    data: 0,
                };
                // SAFETY:
                // - the caller's; the description is read before this returns.
                let result =
                    unsafe { calls::recvmsg(ep.raw(), &raw const message, sys::MULTI_RECV) };
                ("fi_recvmsg", result)
            }
        };
        Fault::check(call, i64::try_from(result).unwrap_or(-1))
    }

    /// Sends. `flags`: whether its completion is told (`FI_COMPLETION`), or its bytes are taken at once and only its
    /// failure is told, with its context (`FI_INJECT`).
    ///
    /// # Safety
    /// The endpoint is open; the bytes are lent to the library until the send has completed, when they are not injected.
    /// The context is kept until then, or, of what is injected, until the endpoint is closed.
    pub(super) unsafe fn send(
        self,
        ep: &Handle<sys::FidEp>,
        to: u64,
        (bytes, len, mut descriptor, context): Lent,
        flags: u64,
    ) -> Result<(), Fault> {
        let own = sys::Iovec { iov_base: bytes, iov_len: len };
        let (msg_iov, desc) = (&raw const own, &raw mut descriptor);
        let (call, result) = match self {
            Self::Untagged => {
                let message = sys::Msg { msg_iov, desc, iov_count: 1, addr: to, context, data: 0 };
                // SAFETY:
                // - the caller's; the description is read before this returns.
                let result = unsafe { calls::sendmsg(ep.raw(), &raw const message, flags) };
                ("fi_sendmsg", result)
            }
            Self::Tagged => {
                let message = sys::MsgTagged {
                    msg_iov,
                    desc,
                    iov_count: 1,
                    addr: to,
                    tag: TAG,
                    ignore: 0,
                    context,
                    data: 0,
                };
                // SAFETY:
                // - as above.
                let result = unsafe { calls::tsendmsg(ep.raw(), &raw const message, flags) };
                ("fi_tsendmsg", result)
            }
        };
        Fault::check(call, i64::try_from(result).unwrap_or(-1))
    }
}

/// How an endpoint is to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Bytes of a frame, the longest message.
    pub(crate) frame: usize,
    pub(crate) way: Way,
    /// With multi-receive buffers, if the provider takes them.
    pub(crate) is_multi: bool,
    /// With something to wait on, if the provider has it.
    pub(crate) waits: bool,
}

impl Form {
    /// The usual one.
    #[cfg(test)]
    pub(crate) fn of(frame: usize) -> Self {
        Self { frame, way: Way::Untagged, is_multi: false, waits: true }
    }
}

/// Says how long the longest message is, for which a multi-receive buffer has to have room. `false`: the provider
/// does not take that. The endpoint is enabled: before, shm of 1.17 follows a null pointer.
pub(super) fn ask_for_multi(ep: &Handle<sys::FidEp>, frame: usize) -> bool {
    // SAFETY:
    // - open; a number is read before this returns.
    let result =
        unsafe { calls::setopt(ep.raw(), sys::OPT_ENDPOINT, sys::OPT_MIN_MULTI_RECV, frame) };
    if let Err(fault) = Fault::check("fi_setopt", result) {
        tracing::debug!(%fault, "no multi-receive buffers");
        return false;
    }
    true
}
