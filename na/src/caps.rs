//! What a plugin can do, in numbers and words.

use std::time::Duration;

/// Capabilities of a domain; constant while it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Longest unexpected message in bytes.
    pub max_unexpected: usize,
    /// Longest expected message in bytes.
    pub max_expected: usize,
    /// Longest control message in bytes; at least 48.
    pub max_control: usize,
    /// Longest messages that travel without a buffer of their own: unexpected and control.
    pub short_unexpected: usize,
    /// The same for expected ones.
    pub short_expected: usize,
    /// Operations of one kind that wait for credits of one peer, before [`crate::Error::Again`].
    pub queue_depth: usize,
    /// Contexts that a domain can open.
    pub max_contexts: u16,
    /// Segments of one registration.
    pub max_segments: usize,
    /// Longest put or get in bytes.
    pub max_transfer: u64,
    /// Whether put and get exist.
    pub one_sided: bool,
    /// Whether peers' shareable memory can be seen without a copy ([`crate::Op::View`]).
    pub views: bool,
    /// Whether memory of devices is moved ([`crate::Memory::on_device`]); otherwise registering it is
    /// [`crate::Error::Unsupported`].
    pub device_memory: bool,
    /// Who checks rights, bounds and freshness of remote memory.
    pub checked_by: CheckedBy,
    /// When a message may follow a put.
    pub put_ordering: PutOrdering,
    /// How a context sleeps.
    pub sleep: Sleep,
    /// Whether its waiters can watch a second descriptor ([`crate::Waiter::join`]).
    pub joins: bool,
    /// Longest time until a peer that is cut off without a word is reported; `None` when the
    /// kernel always tells at once.
    pub silence_bound: Option<Duration>,
}

impl Caps {
    /// The least that the contract asks for; plugins start from it.
    #[must_use]
    pub const fn minimal() -> Self {
        Self {
            max_unexpected: 4096,
            max_expected: 4096,
            max_control: 48,
            short_unexpected: 0,
            short_expected: 0,
            queue_depth: 64,
            max_contexts: 1,
            max_segments: 1,
            max_transfer: u64::MAX,
            one_sided: false,
            views: false,
            device_memory: false,
            checked_by: CheckedBy::Owner,
            put_ordering: PutOrdering::AfterCompletion,
            sleep: Sleep::Poll,
            joins: false,
            silence_bound: None,
        }
    }
}

/// Who checks rights, bounds and freshness of remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckedBy {
    /// The owner's progress.
    Owner,
    /// The network card, by its key.
    Card,
    /// The initiator, against a table that only the owner writes: guards against bugs, not malice.
    Table,
}

/// When a message that follows a put arrives after the put's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutOrdering {
    /// When it is posted after the put.
    AfterPost,
    /// When it is posted after the put's completion.
    AfterCompletion,
}

/// How a context can sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sleep {
    /// On a file descriptor that any event loop can watch.
    Descriptor,
    /// Only in [`crate::Waiter::wait`].
    Private,
    /// Only there, and each wait ends by itself: after steps that grow to this one while nothing comes. What arrives is noticed that late at most.
    Steps(std::time::Duration),
    /// Not at all: it must be polled.
    Poll,
}
