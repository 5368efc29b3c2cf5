//! What a target says of what comes, and of whom it takes more.

use hg_na::Peer;

use crate::{
    error::Status,
    header::{Header, Kind, Malformed},
};

/// What to do with an unexpected message.
#[derive(Debug)]
pub enum Arrival {
    /// Run the handler; the payload begins at this offset.
    Run {
        /// Header of the request.
        header: Header,
        /// Where the payload begins.
        payload: usize,
    },
    /// Answer with a failure.
    Refuse {
        /// Id of the request.
        id: u64,
        /// Why.
        status: Status,
        /// In words.
        text: String,
    },
    /// Close the connection, after this sentence.
    Disconnect(String),
    /// Nothing, until there is room for it: hand it to [`Serves::hold`](super::Serves::hold).
    Hold,
    /// Nothing.
    Drop,
    /// Nothing, but its origin may have the memory of its arguments back.
    DropBulk {
        /// Id of the one-way call.
        id: u64,
    },
}

/// From whom unexpected messages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// From anybody, or from nobody.
    Of(bool),
    /// From this peer, or not.
    OfPeer(Peer, bool),
}

/// What a message is answered with that cannot be read.
pub(super) fn refuse(malformed: &Malformed) -> Arrival {
    match malformed.answer_to() {
        Some(id) => Arrival::Refuse { id, status: malformed.status(), text: malformed.to_string() },
        None => Arrival::Disconnect(malformed.to_string()),
    }
}

/// What a request is answered with that is not run.
pub(super) fn refuse_with(header: &Header, status: Status, text: String) -> Arrival {
    let id = header.id;
    match header.kind {
        Kind::Request => Arrival::Refuse { id, status, text },
        _ if header.lends() => Arrival::DropBulk { id },
        _ => Arrival::Drop,
    }
}
