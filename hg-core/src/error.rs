//! How a call can fail, ordered by what the caller can do.

use std::fmt;

use hg_na::{Error as NaError, GoneReason};

use crate::rpc::NoError;

/// Why a call has no value. `E` is the handler's own error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E = NoError> {
    /// The handler has answered with its own error.
    #[error("the handler answered with an error: {0}")]
    Handler(E),
    /// The deadline has passed.
    #[error("the deadline has passed; {0}")]
    DeadlineExceeded(Started),
    /// The caller has cancelled the call.
    #[error("the call was cancelled")]
    Cancelled,
    /// The target is gone, and this [`Peer`](hg_na::Peer) with it: every further call to it ends so. Look its address
    /// up again to reach its next incarnation.
    #[error(
        "the target is gone: {reason}; {started}; look the address up again to reach its next one"
    )]
    PeerGone {
        /// What happened to it.
        reason: GoneReason,
        /// Whether the handler may have run.
        started: Started,
    },
    /// The target knows no RPC of this name. Register it there, or check the versions of both sides.
    #[error(
        "the target knows no RPC `{name}`: register it there, under this very name (declare it in a crate that both sides share, or with `name = \"...\"`)"
    )]
    NoSuchRpc {
        /// Name of the RPC.
        name: &'static str,
    },
    /// The target does not want the call now (its own limit), or its handler gave no answer.
    #[error("the target rejected the call: {0}")]
    Rejected(String),
    /// Arguments or result cannot be decoded: the two sides declare the RPC differently.
    #[error("the two sides do not agree on the RPC: {0}")]
    Decode(String),
    /// The handler panicked. The target lives on.
    #[error("the handler panicked: {0}")]
    Panicked(String),
    /// The call could not be made at all.
    #[error("the call could not be made: {0}")]
    NotMade(#[from] NaError),
    /// `wait` was called in a handler that runs on the progress thread, where it could never end; or a future was
    /// polled in a plain one (`block_on`), the same. Await it in an `async fn`, or use a blocking handler.
    #[error(
        "waiting inside this handler would block the progress that it waits for: `.await` it in an `async fn` handler, or `wait` in one with `#[hg::rpc(blocking)]`"
    )]
    WouldDeadlock,
    /// The engine of the caller was shut down.
    #[error("the engine was shut down")]
    Closed,
}

/// A call's failure without a handler's own error.
pub type Failure = CallError<NoError>;

impl Failure {
    /// The same failure where a handler has errors of its own.
    #[must_use]
    pub fn widen<E>(self) -> CallError<E> {
        match self {
            Self::Handler(never) => match never {},
            Self::DeadlineExceeded(started) => CallError::DeadlineExceeded(started),
            Self::Cancelled => CallError::Cancelled,
            Self::PeerGone { reason, started } => CallError::PeerGone { reason, started },
            Self::NoSuchRpc { name } => CallError::NoSuchRpc { name },
            Self::Rejected(why) => CallError::Rejected(why),
            Self::Decode(why) => CallError::Decode(why),
            Self::Panicked(why) => CallError::Panicked(why),
            Self::NotMade(error) => CallError::NotMade(error),
            Self::WouldDeadlock => CallError::WouldDeadlock,
            Self::Closed => CallError::Closed,
        }
    }
}

/// Whether a call that failed had been started at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// Certainly not: it may be repeated elsewhere without running twice.
    No,
    /// Unknown: it may have run.
    Unknown,
}

impl fmt::Display for Started {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::No => "the call was certainly not started",
            Self::Unknown => "whether the call was started is unknown",
        })
    }
}

/// First byte that the target answers with. Bounded text follows where it helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The payload is the value.
    Ok = 0,
    /// The payload is the handler's own error.
    HandlerError = 1,
    /// No RPC of this name.
    NoSuchRpc = 2,
    /// Refused by a limit, or never answered; text.
    Rejected = 3,
    /// Header or arguments cannot be read; text.
    Decode = 4,
    /// The handler panicked; text.
    Panicked = 5,
    /// The handler saw the cancellation.
    Cancelled = 6,
    /// The deadline had passed before the handler was started.
    DeadlineExceeded = 7,
}

/// Longest text that travels with a status, in bytes.
pub const STATUS_TEXT_MAX: usize = 512;

impl Status {
    /// From the wire.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        const ALL: [Status; 8] = [
            Status::Ok,
            Status::HandlerError,
            Status::NoSuchRpc,
            Status::Rejected,
            Status::Decode,
            Status::Panicked,
            Status::Cancelled,
            Status::DeadlineExceeded,
        ];
        ALL.get(usize::from(byte)).copied()
    }

    /// What the caller is told, when this is a failure.
    #[must_use]
    pub fn failure(self, name: &'static str, text: &[u8]) -> Option<Failure> {
        let text =
            || String::from_utf8_lossy(&text[..text.len().min(STATUS_TEXT_MAX)]).into_owned();
        match self {
            Self::Ok | Self::HandlerError => None,
            Self::NoSuchRpc => Some(Failure::NoSuchRpc { name }),
            Self::Rejected => Some(Failure::Rejected(text())),
            Self::Decode => Some(Failure::Decode(text())),
            Self::Panicked => Some(Failure::Panicked(text())),
            Self::Cancelled => Some(Failure::Cancelled),
            Self::DeadlineExceeded => Some(Failure::DeadlineExceeded(Started::No)),
        }
    }
}

/// The longest prefix of a sentence that fits in a status text.
#[must_use]
pub fn bounded_text(text: &str) -> &[u8] {
    let mut end = text.len().min(STATUS_TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_the_wire() {
        for byte in 0..=u8::MAX {
            if let Some(status) = Status::from_wire(byte) {
                assert_eq!(status as u8, byte);
            }
        }
        assert_eq!(Status::from_wire(8), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "\u{e9}".repeat(STATUS_TEXT_MAX);
        assert!(std::str::from_utf8(bounded_text(&text)).is_ok());
        assert!(bounded_text(&text).len() <= STATUS_TEXT_MAX);
    }
}
