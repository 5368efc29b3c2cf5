//! What a figure is about: the keys and columns left of the numbers.

use std::borrow::Cow;

use serde::Serialize;

use crate::stats::Better;

/// What a figure is about. The order of the fields is that of the keys; what does not apply is left
/// out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Subject {
    /// Name of the figure.
    pub(crate) figure: Cow<'static, str>,
    /// URL of the target, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// The transport that was taken, where the address left a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) via: Option<String>,
    /// Which way bytes move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<Op>,
    /// What kind of memory they lie in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Memory>,
    /// In how many pieces, on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) segments: Option<u64>,
    /// Whether caches hold them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caches: Option<Caches>,
    /// Bytes moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inflight: Option<u64>,
    /// How both sides wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<Wait>,
    /// Peers connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<u64>,
    /// What the numbers count.
    pub(crate) unit: Unit,
}

impl Subject {
    /// A round trip with one request in flight, in microseconds.
    pub(crate) fn round_trip(figure: &'static str, size: u64, wait: Wait) -> Subject {
        Subject {
            size: Some(size),
            inflight: Some(1),
            wait: Some(wait),
            ..Subject::new(figure, Unit::Microseconds)
        }
    }

    /// Bytes that are moved, in MiB/s.
    pub(crate) fn bandwidth(figure: &'static str, size: usize) -> Subject {
        Subject { size: Some(size as u64), ..Subject::new(figure, Unit::MebibytesPerSecond) }
    }

    /// Only the name and the unit.
    pub(crate) fn new(figure: impl Into<Cow<'static, str>>, unit: Unit) -> Subject {
        Subject {
            figure: figure.into(),
            url: None,
            via: None,
            op: None,
            memory: None,
            segments: None,
            caches: None,
            size: None,
            inflight: None,
            wait: None,
            peers: None,
            unit,
        }
    }
}

/// How a process waits for the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Looks again and again.
    Spin,
    /// Looks for a while, then sleeps.
    Adaptive,
    /// Sleeps in the kernel.
    Block,
}

/// Which way bytes move, seen from the one who starts the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// From the other process into this one.
    Pull,
    /// From this process into the other one.
    Push,
    /// Nowhere: the other process's bytes are seen where they are.
    View,
}

/// What kind of memory a transfer's bytes lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Memory {
    /// An ordinary vector.
    Heap,
    /// Memory that peers can map.
    Shared,
    /// Inside the descriptor.
    Eager,
}

/// Whether the bytes of a transfer can be found in caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Caches {
    /// The same buffers again and again, not rewritten in between.
    Hot,
    /// Rotating over so much memory that no cache holds it.
    Cold,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    /// Time of one operation.
    #[serde(rename = "us")]
    Microseconds,
    /// Operations per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bandwidth.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// One figure in proportion to another.
    #[serde(rename = "ratio")]
    Ratio,
    /// Copies of the argument.
    #[serde(rename = "copies")]
    Copies,
    /// Instructions executed.
    #[serde(rename = "instructions")]
    Instructions,
    /// System calls.
    #[serde(rename = "syscalls")]
    SystemCalls,
    /// Calls of the product.
    #[serde(rename = "calls")]
    Calls,
    /// Memory.
    #[serde(rename = "KiB")]
    Kibibytes,
    /// Open file descriptors.
    #[serde(rename = "fds")]
    Descriptors,
    /// Memory mappings.
    #[serde(rename = "mappings")]
    Mappings,
    /// Threads.
    #[serde(rename = "threads")]
    Threads,
    /// Times that a thread has slept.
    #[serde(rename = "sleeps")]
    Sleeps,
    /// The same in a second.
    #[serde(rename = "wakes/s")]
    Wakes,
    /// Processor time in proportion to time.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    /// Whether less is more.
    pub(crate) fn better(self) -> Better {
        match self {
            Unit::PerSecond | Unit::MebibytesPerSecond | Unit::Calls => Better::Larger,
            Unit::Microseconds
            | Unit::Ratio
            | Unit::Copies
            | Unit::Instructions
            | Unit::SystemCalls
            | Unit::Kibibytes
            | Unit::Descriptors
            | Unit::Mappings
            | Unit::Threads
            | Unit::Sleeps
            | Unit::Wakes
            | Unit::Percent => Better::Smaller,
        }
    }
}

impl Wait {
    /// As the command line has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Wait::Spin => "spin",
            Wait::Adaptive => "adaptive",
            Wait::Block => "block",
        }
    }
}
