//! Errors, ordered by what the caller can do about them.

use hg_na::{Error as NaError, GoneReason};

/// Why a channel is not opened, or a record not written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// As much waits for the receiver as may. Make progress, then write again.
    #[error("the channel to end {0} is full: make progress, then write again")]
    Full(u32),
    /// The record fits in no message. Put the bytes into registered memory, and send its descriptor.
    #[error("a record of {len} bytes is over the limit of {max} bytes")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// There is no such end.
    #[error("end {end} is none of the {ends} ends")]
    NoSuchEnd {
        /// What was asked for.
        end: u32,
        /// How many there are.
        ends: u32,
    },
    /// The receiver is gone.
    #[error("end {end} is gone: {reason}")]
    Gone {
        /// Which one.
        end: u32,
        /// Why.
        reason: GoneReason,
    },
    /// A bound is none that may be.
    #[error("`Limits::{name}` is {value} bytes: {} {near}", if value < near { "at least" } else { "at most" })]
    Limit {
        /// Which one.
        name: &'static str,
        /// What it was to be.
        value: u64,
        /// The nearest that may be.
        near: u64,
    },
    /// The transport refuses.
    #[error(transparent)]
    Transport(#[from] NaError),
}

/// How a peer has broken the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A message or a record ends too early.
    #[error("a message ends in the middle of a record")]
    TooShort,
    /// A message of no known kind.
    #[error("a message is of no known kind")]
    Kind,
    /// It has consumed what was not sent.
    #[error("it says that it has consumed what was not sent")]
    Consumed,
    /// It sends more than the window lets it.
    #[error("it sends more than the window lets it")]
    Window,
    /// The first message of a connection is no greeting of this job.
    #[error("its greeting is none of this job")]
    Hello,
}
