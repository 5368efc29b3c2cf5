//! Operations and completions: data instead of methods.

use std::fmt;

use crate::{
    Descriptor, Error, GoneReason, LocalSlice, Message, RegionState, RemoteSlice, SharedBytes,
};

/// A peer of one context: one incarnation of one remote context.
///
/// Plain data. A handle outlives its peer, but is never good for another one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(
    /// The index above the generation: one word, which every message is steered by.
    u64,
);

impl Peer {
    /// A bit of [`Peer::index`] and of [`OpId::scope`] that a plugin leaves clear: one that is made of two
    /// marks by it what is the second one's, which does so itself where it can ([`crate::Domain::second_context`]).
    pub const SECOND: u32 = 1 << 31;

    /// For plugins: a place in the plugin's table and how often that place was used.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((index as u64) << 32 | generation as u64)
    }

    /// Place in the plugin's table; below [`Peer::SECOND`], or marked by it.
    #[must_use]
    pub const fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// How often that place was used before.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, generation) = (self.index(), self.generation());
        out.debug_struct("Peer").field("index", &index).field("generation", &generation).finish()
    }
}

/// Matches an expected message with its receive, together with the peer.
pub type Tag = u64;

/// What the poster of an operation wants to be told back in its completion.
pub type Token = u64;

/// A bit of a [`Token`]: its poster does not want to be told that the send went well.
///
/// A plugin may then leave out the completion of a *send* that succeeded, but never one that failed:
/// "selective completion" of verbs and libfabric. A buffer of the poster's own is dropped with it.
pub const QUIET: Token = 1 << 63;

/// Names an accepted operation, to cancel it. Plugins choose both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Where the plugin finds it (a peer's place, say); below [`Peer::SECOND`] less one.
    pub scope: u32,
    /// Which one it is there; never used twice by a context.
    pub serial: u64,
}

/// One operation. It owns its buffers; its completion hands them back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Op {
    /// A message that needs no posted receive: a request. Waits for credits of the target.
    SendUnexpected {
        /// Target.
        to: Peer,
        /// At most [`crate::Caps::max_unexpected`] bytes.
        message: Message,
    },
    /// A short message that never waits behind unexpected ones, nor for admission: a cancellation, say.
    SendControl {
        /// Target.
        to: Peer,
        /// At most [`crate::Caps::max_control`] bytes.
        message: Message,
    },
    /// A message for a receive that the target has posted: an answer.
    SendExpected {
        /// Target.
        to: Peer,
        /// Matched with the receive.
        tag: Tag,
        /// At most [`crate::Caps::max_expected`] bytes.
        message: Message,
    },
    /// Waits for the one expected message with this tag from this peer.
    ///
    /// A message that finds no receive is dropped. So a tag whose receive was cancelled is not to be used again with
    /// this peer, whose answer may still be under way.
    RecvExpected {
        /// Sender.
        from: Peer,
        /// Matched with the message. One receive at a time for a (peer, tag).
        tag: Tag,
    },
    /// Writes local bytes into a peer's memory. Completes when they are visible there.
    Put {
        /// Owner of the remote memory.
        to: Peer,
        /// Source.
        local: LocalSlice,
        /// Destination, as long as the source.
        remote: RemoteSlice,
    },
    /// Reads a peer's memory into local bytes.
    Get {
        /// Owner of the remote memory.
        from: Peer,
        /// Destination, as long as the source.
        local: LocalSlice,
        /// Source.
        remote: RemoteSlice,
    },
    /// Asks for a view of a peer's memory without a copy, where [`crate::Caps::views`] says so.
    ///
    /// Fails with [`Error::Unsupported`] for memory that is not of the shareable kind: get it instead.
    View {
        /// Owner of the remote memory.
        from: Peer,
        /// What to see.
        remote: RemoteSlice,
    },
}

impl Op {
    /// The peer that it concerns.
    #[must_use]
    pub fn peer(&self) -> Peer {
        match self {
            Self::SendUnexpected { to, .. }
            | Self::SendControl { to, .. }
            | Self::SendExpected { to, .. }
            | Self::Put { to, .. } => *to,
            Self::RecvExpected { from, .. } | Self::Get { from, .. } | Self::View { from, .. } => {
                *from
            }
        }
    }

    /// A put or a get as it is asked for at [`crate::Context::begin`]; `None` for anything else, and where the
    /// two sides are not equally long.
    #[must_use]
    pub fn transit(&self) -> Option<Transit<'_, '_>> {
        let (direction, peer, local, remote) = match self {
            Self::Get { from, local, remote } => (Direction::Get, *from, local, remote),
            Self::Put { to, local, remote } => (Direction::Put, *to, local, remote),
            _ => return None,
        };
        (local.len() == remote.len()).then(|| Transit {
            direction,
            peer,
            local: local.region().as_ref(),
            local_offset: local.offset(),
            remote: remote.descriptor(),
            remote_offset: remote.offset(),
            len: remote.len(),
            may_wait: true,
        })
    }

    /// The same, to be changed by a plugin that is made of others.
    pub fn peer_mut(&mut self) -> &mut Peer {
        match self {
            Self::SendUnexpected { to, .. }
            | Self::SendControl { to, .. }
            | Self::SendExpected { to, .. }
            | Self::Put { to, .. } => to,
            Self::RecvExpected { from, .. } | Self::Get { from, .. } | Self::View { from, .. } => {
                from
            }
        }
    }
}

/// Which way the bytes of a transfer go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory into one's own.
    Get,
    /// From one's own memory into the peer's.
    Put,
}

/// A put or a get, for [`crate::Context::begin`]: what [`Op::Put`] and [`Op::Get`] own, borrowed.
///
/// Nothing of it is checked yet, neither range.
#[derive(Debug, Clone, Copy)]
pub struct Transit<'near, 'far> {
    /// Which way.
    pub direction: Direction,
    /// Owner of the remote memory.
    pub peer: Peer,
    /// The plugin's side of the local region ([`crate::Region::state`]).
    pub local: &'near dyn RegionState,
    /// First byte there.
    pub local_offset: u64,
    /// The remote region.
    pub remote: &'far Descriptor,
    /// First byte there.
    pub remote_offset: u64,
    /// Length in bytes, of both.
    pub len: u64,
    /// Whether whoever moves it may wait for the peer's memory ([`crate::Mover::run`]).
    pub may_wait: bool,
}

/// A request and the receive of its answer, for [`crate::Context::exchange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Target of the request, sender of the answer.
    pub to: Peer,
    /// Of the answer.
    pub tag: Tag,
    /// What the request's completion says; [`QUIET`] as ever.
    pub send: Token,
    /// What the receive's completion says.
    pub receive: Token,
}

/// An accepted [`Exchange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// The request.
    pub send: OpId,
    /// The receive.
    pub receive: OpId,
}

/// An operation that was not accepted, as it was, and why.
#[derive(Debug)]
pub struct Rejected {
    /// The operation.
    pub op: Op,
    /// [`Error::Again`] when it may be posted later: [`Completion::Room`] tells when.
    pub error: Error,
}

/// What [`crate::Context::progress`] reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// An accepted operation has ended, exactly once.
    Done(Done),
    /// An unexpected message has arrived.
    Unexpected {
        /// Its sender.
        from: Peer,
        /// Private memory.
        message: Message,
    },
    /// A control message has arrived.
    Control {
        /// Its sender.
        from: Peer,
        /// Private memory.
        message: Message,
    },
    /// Operations to this peer have come back with [`Error::Again`], and there is room for more of their kind now.
    Room {
        /// Who.
        peer: Peer,
    },
    /// The peer has died, or has closed the connection: its operations have completed, further ones are refused, and
    /// nothing comes of it any more but unexpected messages that wait for admission, then [`Completion::Gone`]. Nobody waits
    /// for an answer to them.
    HungUp {
        /// Who.
        peer: Peer,
        /// Why.
        reason: GoneReason,
    },
    /// The peer is gone: nothing comes after this.
    Gone {
        /// Who.
        peer: Peer,
        /// Why.
        reason: GoneReason,
    },
}

/// The end of an accepted operation.
#[derive(Debug)]
pub struct Done {
    /// Which one.
    pub id: OpId,
    /// What its poster wanted to be told.
    pub token: Token,
    /// How it ended.
    pub result: Result<(), Box<Failure>>,
    /// The received message, or the buffers of the operation.
    pub returned: Returned,
}

/// Why an operation failed, and whether the peer may have noticed it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Why.
    pub error: Error,
    /// Whether the other side may have seen it.
    pub reached: Reached,
}

/// Whether a failed operation may have had an effect at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// Certainly not: it never left this process.
    Never,
    /// Unknown.
    Unknown,
}

/// What a completion hands back.
#[derive(Debug)]
pub enum Returned {
    /// Nothing: a failed receive, or a message that lived in the transport's own memory.
    Nothing,
    /// The message received, or the one sent when its memory was the poster's.
    Message(Message),
    /// The local memory of a put or get.
    Slice(LocalSlice),
    /// What was asked to be seen.
    View(SharedBytes),
}
