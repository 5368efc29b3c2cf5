//! Errors, ordered by what the caller can do about them.

use std::{fmt, io, sync::Arc};

use crate::{Address, Rights};

/// Why an operation, a lookup or an opening failed.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue to this peer is full. Make progress, then post again: [`Completion::Room`](crate::Completion::Room) tells when.
    #[error("the queue is full: make progress, then post again")]
    Again,
    /// The payload does not fit in one message. Send it as bulk data.
    #[error("a message of {len} bytes is over the limit of {max} bytes")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The operation was cancelled by its owner.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The peer has gone. Every operation to this handle fails; look its address up again.
    #[error("the peer is gone: {0}")]
    PeerGone(GoneReason),
    /// The handle names no peer of this context (any more).
    #[error(
        "this handle names no peer of this context (any more): look the address up with the engine that calls"
    )]
    UnknownPeer,
    /// Another receive waits for the same peer and tag.
    #[error("a receive with tag {0} is already posted for this peer")]
    TagInUse(u64),

    /// The text is no address, or none that this plugin can open or reach.
    #[error("address `{address}`: {why}")]
    BadAddress {
        /// The offending text, abridged.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else listens at this address. Choose another name or stop the other process.
    #[error(
        "the address {0} is in use by another process, or another engine of this one: choose another one, or end that"
    )]
    AddressInUse(Address),
    /// No linked plugin takes this scheme.
    #[error("no transport of this build takes `{scheme}://`: {known}")]
    NoPlugin {
        /// Scheme of the URL.
        scheme: String,
        /// In words: which of those that are known may be meant, or all of them.
        known: String,
    },
    /// A library, a driver, a card or an interface that the transport needs is not here.
    #[error("{why}{}", .see.map(|see| format!("; {see}")).unwrap_or_default())]
    Missing {
        /// What, and what to install or do.
        why: Arc<str>,
        /// Where to look for what there is instead.
        see: Option<&'static str>,
    },
    /// A setting has a value that the plugin does not take.
    #[error("setting `{name}`: {why}")]
    BadSetting {
        /// Name of the setting.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The plugin knows no setting of this name.
    #[error("setting `{name}`: {known}")]
    UnknownSetting {
        /// Name of the setting.
        name: String,
        /// In words: whose settings there are, and which.
        known: String,
    },
    /// The plugin, or the machine, cannot do this.
    #[error("not supported: {0}")]
    Unsupported(&'static str),

    /// The memory does not grant this.
    #[error("the memory grants {granted}, the operation needs {needed}")]
    Denied {
        /// Rights of the memory.
        granted: Rights,
        /// Rights that the operation needs.
        needed: Rights,
    },
    /// The range does not lie inside the memory.
    #[error("range of {len} bytes at {offset} is outside of a region of {size} bytes")]
    OutOfRange {
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the region in bytes.
        size: u64,
    },
    /// The memory was unregistered by its owner, or never registered.
    #[error(
        "the descriptor names memory that is not registered (any more): ask its owner for a new one"
    )]
    StaleDescriptor,
    /// The descriptor cannot be read.
    #[error("the descriptor cannot be read: {0}")]
    BadDescriptor(&'static str),
    /// The region is in use by an operation in flight.
    #[error(
        "the memory is in use: wait for its transfers to end and drop its ranges, then try again"
    )]
    RegionBusy,

    /// A limit of the process or of the plugin is reached.
    #[error("{what} is at its limit of {limit}; {remedy}")]
    Limit {
        /// What is exhausted, e.g. `open files (RLIMIT_NOFILE)`.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The process has no memory for so many bytes at a time.
    #[error(
        "there is no memory for {len} bytes: move less at a time, or raise what the process may have (`ulimit -v`)"
    )]
    NoMemory {
        /// Bytes that were asked for.
        len: u64,
    },
    /// The process forked: this is the child's copy, which does nothing. Open an engine of its own.
    #[error("this engine was opened by the parent process: open a new one in the child")]
    Forked,
    /// The engine was closed. Open a new one.
    #[error("the engine was closed: open a new one")]
    Closed,
    /// The operating system refused.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Wraps an error number of the operating system with the name of the call.
    #[must_use]
    pub fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os { call, source: Arc::new(source.into()) }
    }

    /// The name of the variant, for logs and tables.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Again => "Again",
            Self::TooLong { .. } => "TooLong",
            Self::Cancelled => "Cancelled",
            Self::PeerGone(_) => "PeerGone",
            Self::UnknownPeer => "UnknownPeer",
            Self::TagInUse(_) => "TagInUse",
            Self::BadAddress { .. } => "BadAddress",
            Self::AddressInUse(_) => "AddressInUse",
            Self::NoPlugin { .. } => "NoPlugin",
            Self::Missing { .. } => "Missing",
            Self::BadSetting { .. } => "BadSetting",
            Self::UnknownSetting { .. } => "UnknownSetting",
            Self::Unsupported(_) => "Unsupported",
            Self::Denied { .. } => "Denied",
            Self::OutOfRange { .. } => "OutOfRange",
            Self::StaleDescriptor => "StaleDescriptor",
            Self::BadDescriptor(_) => "BadDescriptor",
            Self::RegionBusy => "RegionBusy",
            Self::Limit { .. } => "Limit",
            Self::NoMemory { .. } => "NoMemory",
            Self::Forked => "Forked",
            Self::Closed => "Closed",
            Self::Os { .. } => "Os",
        }
    }

    /// Something that the transport needs is not here: one sentence that says what, and what to do.
    #[must_use]
    pub fn missing(what: impl fmt::Display) -> Self {
        Self::Missing { why: what.to_string().into(), see: None }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self} [{}]", self.kind())
    }
}

/// What happened to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoneReason {
    /// Its process has ended.
    Exited,
    /// It closed the connection in good order, or before it has accepted it.
    Closed,
    /// Nobody listens at its address, or the way there is cut.
    Unreachable(Arc<str>),
    /// This process, or its machine, has no room for a connection to it: which limit is reached, and what to do.
    Exhausted(Arc<str>),
    /// It refused the connection, in its own words.
    Refused(Arc<str>),
    /// It sent something that breaks the protocol, and was disconnected.
    Misbehaved(Arc<str>),
    /// It did not answer within the configured bound.
    TimedOut,
    /// This side forgot it ([`crate::Context::forget`]).
    Forgotten,
    /// The connection had ended before, and its reason was told then.
    Ended,
}

impl fmt::Display for GoneReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited => out.write_str("its process has ended"),
            Self::Closed => out.write_str("it closed the connection"),
            Self::Unreachable(why) => write!(out, "it cannot be reached ({why})"),
            Self::Exhausted(why) => {
                write!(out, "this process has no room for a connection ({why})")
            }
            Self::Refused(why) => write!(out, "it refused the connection ({why})"),
            Self::Misbehaved(why) => write!(out, "it broke the protocol ({why})"),
            Self::TimedOut => out.write_str("it did not answer in time"),
            Self::Forgotten => out.write_str("this side has forgotten it"),
            Self::Ended => out.write_str("the connection had ended before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_of_an_error_is_its_sentence_and_its_kind() {
        let why = "it names no port".to_owned();
        let error = Error::BadAddress { address: "tcp://nobody".to_owned(), why };
        assert_eq!(format!("{error:?}"), "address `tcp://nobody`: it names no port [BadAddress]");
        let error = Error::os("bind", io::Error::from_raw_os_error(13));
        let said = format!("{error:?}");
        assert!(
            said.starts_with("bind failed: ") && said.ends_with("(os error 13) [Os]"),
            "{said}"
        );
        let said = format!("{:?}", Error::PeerGone(GoneReason::Refused("no".into())));
        assert_eq!(said, "the peer is gone: it refused the connection (no) [PeerGone]");
    }
}
