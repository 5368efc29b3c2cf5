//! Errors, ordered by what the caller can do about them.

use crate::{Place, how::ANY};

/// Why a call was not made, or will not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// As much waits for this thread, or for all, as may ([`Room`](crate::Room)), or as many results (65,536) or transfers (1,024) are to come. Make
    /// progress, and call again.
    #[error(
        "as much waits for {0}, or for all, as may, or 65,536 results or 1,024 transfers are to come: make progress, then call again"
    )]
    Full(Place),
    /// A function that runs may not wait, nor make progress: what it waits for may wait for it.
    #[error("a function that was called may not wait: let it call with `Room::Queue`, or return")]
    Inside,
    /// The arguments fit in no message: half of the window, or what the transport takes.
    #[error(
        "arguments of {len} bytes are over the limit of {max} bytes, which `Limits::window` and the transport set; longer ones are for \
         `call_buffer_read`, and `broadcast_buffer_read`, up to `Fabric::buffer_max`"
    )]
    TooLong {
        /// Bytes of the arguments.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A buffer that others are to read is over [`Fabric::buffer_max`](crate::Fabric::buffer_max).
    #[error(
        "a buffer of {len} bytes is over the limit of {max} bytes, which `Fabric::buffer_max` sets"
    )]
    BufferTooLong {
        /// Bytes of the buffer.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// There is no such thread.
    #[error("there is no {}", if .0.thread == ANY { format!("process {}", .0.process) } else { .0.to_string() })]
    NoSuchPlace(Place),
    /// The function was not registered before the fabric was opened.
    #[error("`{0}` is not registered")]
    NotRegistered(&'static str),
    /// The arguments cannot be written.
    #[error("{0}")]
    Unencodable(hg_core::codec::CodecError),
    /// A process is gone: it has ended, or has closed its worker.
    #[error("process {process} is gone: {why}")]
    Gone {
        /// Which one.
        process: u32,
        /// Why.
        why: std::sync::Arc<str>,
    },
    /// Memory that others may reach: there is not so much of it, or a put or a get was refused.
    #[error("{0}")]
    Memory(std::sync::Arc<str>),
    /// Another worker allocates no more: for this one, or for all who have its process allocate.
    #[error(
        "{at} allocates no {bytes} bytes for another worker: {left} are left of what `Fabric::remote_max` allows {}",
        if *.of_all { "all of them together" } else { "each" }
    )]
    NotAllotted {
        /// Where.
        at: Place,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that there are.
        left: u64,
        /// Whether it is the limit of all together, and not that of each.
        of_all: bool,
    },
    /// A worker calls in as many groups as it may (1,024) that no barrier has ended.
    #[error(
        "calls of group {0} would be of one group too many: end another one with its barrier, `quiesce_group`"
    )]
    TooManyGroups(u32),
    /// Workers wait for different things at once: all of them enter the same barriers in the same order.
    #[error("workers have entered different barriers: {0}")]
    Differ(std::sync::Arc<str>),
    /// The function panicked, or the `Serialize` of what it returned; what it said is on the standard error of its process.
    #[error("the function panicked at {0}")]
    Panicked(Place),
    /// The function ran, and what it returned does not come.
    #[error("the result of {from} is lost: {why}")]
    Lost {
        /// Where it ran.
        from: Place,
        /// Why.
        why: &'static str,
    },
    /// The fabric cannot be opened, or cannot go on.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    #[cold]
    pub(crate) fn of_memory(error: impl std::fmt::Display) -> Self {
        Self::Memory(error.to_string().into())
    }

    #[cold]
    pub(crate) fn of_node(error: std::io::Error) -> Self {
        Self::Setup(format!("binding a thread to a NUMA node: {error}"))
    }
}

/// A call that was not made, with its arguments. Whoever does not need these goes on with the error: `.map_err(|it| it.error)?`.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused<A> {
    /// As they were given.
    pub args: A,
    /// Why.
    pub error: Error,
}
