//! How a call or a transfer ended.

use std::{fmt, time::Instant};

use hg_bulk::TransferError;
use hg_na::{Message, Peer, SharedBytes};

use crate::{error::Failure, header::ANSWER_LEN};

/// How a call or a transfer ended.
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
    /// A one-way call was handed to the transport; there is room for another call.
    Sent,
    /// A transfer is over.
    Moved(Moved),
    /// Anything else.
    Failed(Failure),
}

impl Outcome {
    /// A short value.
    #[inline(always)]
    pub(super) fn plain(message: Message) -> Self {
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

/// A transfer that is over. Dropped outside of the lock, since it may be the last to hold its memory.
pub struct Moved {
    /// What came of it: the bytes of a view.
    pub result: Result<Option<SharedBytes>, TransferError>,
    pub(super) _memory: Option<Box<dyn Send + Sync>>,
}

impl fmt::Debug for Moved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Moved").field(&self.result).finish()
    }
}

impl From<Result<Option<SharedBytes>, TransferError>> for Moved {
    fn from(result: Result<Option<SharedBytes>, TransferError>) -> Self {
        Self { result, _memory: None }
    }
}

impl From<Box<Failure>> for Outcome {
    fn from(failure: Box<Failure>) -> Self {
        Self::Failed(*failure)
    }
}
