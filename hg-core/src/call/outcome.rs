//! How a call ended.

use std::time::Instant;

use hg_na::{INLINE_MAX, Message, Peer};

use crate::{error::Failure, header::ANSWER_LEN};

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// A value, or the handler's own error, begins at this offset of the message.
    Answered {
        /// The whole answer.
        message: Message,
        /// Where its payload begins.
        payload: usize,
        /// Whether it is the handler's own error.
        handler_error: bool,
    },
    /// The result is at the target still, to be pulled.
    Bulk(Box<BulkAnswer>),
    /// A one-way call was handed to the transport.
    Sent,
    /// Anything else.
    Failed(Failure),
}

impl Outcome {
    /// A short value.
    #[inline(always)]
    pub(super) fn plain(bytes: &[u8; INLINE_MAX], len: usize) -> Self {
        let message = Message::from_slot(*bytes, len);
        Self::Answered { message, payload: ANSWER_LEN, handler_error: false }
    }
}

/// An answer that says where its result is.
#[derive(Debug)]
pub struct BulkAnswer {
    /// The target.
    pub peer: Peer,
    /// Id of the call: the target keeps the result until it is told that this one was taken.
    pub id: u64,
    /// When the call ends at the latest.
    pub deadline: Option<Instant>,
    /// The whole answer.
    pub message: Message,
    /// Where its payload begins, which describes the result's memory.
    pub payload: usize,
    /// Whether it is the handler's own error.
    pub handler_error: bool,
}
