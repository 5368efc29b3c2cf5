//! The network abstraction (NA): what every transport plugin promises, and the values that cross the border.
//!
//! This crate knows no plugin, does no I/O and does nothing unsafe (it declares one unsafe function). A plugin
//! implements four traits:
//!
//! | trait | one per | who calls it |
//! |---|---|---|
//! | [`Plugin`] | linked transport | the engine, to turn a URL into a domain |
//! | [`Domain`] | opened URL | any thread: registers memory, opens contexts |
//! | [`Context`] | endpoint | one thread at a time: posts operations, makes progress |
//! | [`Waiter`] | endpoint | any thread: sleeps until something arrives, wakes who sleeps |
//!
//! One with one-sided operations implements [`RegionState`] besides, one with views [`ViewState`], one with
//! messages in memory of its own [`MessageBody`].
//!
//! Operations are values: [`Op`] owns what it needs, [`Completion`] hands it back.
//!
//! # The contract
//!
//! Each sentence is a test of `hydrargyrum-na-conformance`.
//!
//! 1. Every accepted operation completes exactly once, cancelled ones and those to dead peers
//!    included. A refused one comes back in [`Rejected`], unchanged. (A send posted with [`QUIET`] may
//!    succeed in silence.)
//! 2. [`Context::post`] and [`Context::progress`] never block.
//! 3. An unexpected message needs no posted receive.
//! 4. Memory is bounded by credits. An expected message that finds no receive is late, and dropped.
//! 5. Expected and control messages never wait behind unexpected ones: two contexts that flood each
//!    other with full queues both finish, and so they do while admission is closed. Where it is closed
//!    to one peer alone, the messages of all others flow.
//! 6. Order holds within the unexpected, within the control and within the expected messages from
//!    one context to another.
//! 7. Expected messages match by (peer, tag). The receive is posted together with the request that is
//!    answered, before the next [`Context::progress`]; one that comes later finds nothing.
//! 8. A put completes when its bytes are visible at the owner; a message posted after that
//!    completion arrives after them.
//! 9. A peer that dies or closes is reported twice, each once. By [`Completion::HungUp`] as soon as that is
//!    noticed, whatever is closed, full or withheld: after the expected and control messages that it had
//!    sent, and after its operations have completed with [`Error::PeerGone`] without anyone asking, sends
//!    before receives. By [`Completion::Gone`] after the unexpected messages that it had sent, too, which
//!    wait for admission as ever: the last word.
//! 10. A peer is an incarnation: one that restarts at the same address is a new [`Peer`], and an
//!     old handle is never good again.
//! 11. Rights, bounds and freshness of remote memory are checked ([`Caps::checked_by`]), and a
//!     refused access touches nothing.
//! 12. Nothing that a peer wrote is used before it was checked. Bad input costs the sender its
//!     connection and nobody else anything.
//! 13. Idle means no CPU: after [`Context::may_sleep`] has answered `true`, whatever arrives ends
//!     [`Waiter::wait`].
//! 14. A view ([`Op::View`], where [`Caps::views`] says so) stays valid until it is dropped, whatever
//!     becomes of its owner: also when the memory is unregistered, the connection closed, the process
//!     killed. One that gives a slice ([`SharedBytes::as_slice`]) never changes; any other shows what
//!     the owner writes while the memory is registered, and nothing that it writes afterwards. Where
//!     there are no views ([`Context::views`] tells for one peer), and for memory that is not of the
//!     shareable kind, they are refused with [`Error::Unsupported`].
//! 15. What a plugin says it offers ([`Plugin::offers`]) can be opened, and nothing else is said to be missing than
//!     what cannot, with what to do about it.
//! 16. A transfer that was begun ([`Context::begin`]) moves its bytes when its [`Mover`] is run, in any thread and
//!     without the context, whatever was posted, cancelled, closed or dropped since, and none when it is dropped
//!     instead. Memory that its owner has got back is not touched. It has no completion.
//! 17. Who was refused with [`Error::Again`] need not try again before he is told: [`Completion::Room`] of that peer follows,
//!     once for all refusals of one kind before it (requests, answers, control messages, transfers, views; those of several kinds
//!     may share one). It is told when the queue that was full has come down to half at most, whatever has
//!     emptied it, or when a limit of the whole context leaves a place; it ends a sleep. Whoever comes first takes the room: a
//!     post after it may be refused again, and then it is told again. Without a refusal it is not told, and after
//!     [`Completion::HungUp`] never. A short cut that was not taken is no refusal, but a transfer that
//!     is to be begun later ([`Begun::Later`]) is one. Where several handles lead to one peer, it
//!     is told of each.
//! 18. What is said of who a peer is ([`Context::identity`]), somebody else than the peer vouches for. From its first message, or
//!     the first operation with it that has succeeded, until [`Completion::Gone`] the same is said; afterwards nothing is known.
//! 19. Once a flush ([`Context::flush`]) has ended, every message that was accepted before it began has left: its peer gets it
//!     although this context is closed then, unless that peer has gone. It ends by itself as peers take what they are sent, or
//!     go, whatever is posted meanwhile, and that ends a sleep.
//! 20. Who is connected ([`Context::connected`]) is every peer with an open connection, and nobody else: of whoever has sent or
//!     taken something, until [`Completion::HungUp`].
//! 21. The address that is said to be that of a context ([`Domain::address_of`]), is the one that this context has when it is open,
//!     whichever context's of the same domain it was derived of.
//!
//! # Why it is so
//! - Whoever has a context keeps others from it; so bytes are moved without it ([`Mover`]), where moving them takes longer
//!   than handing them over, or may take for ever: the kernel waits for a peer's memory that is not there. Over sockets and cards others move them, and nothing is begun.
//! - A context sleeps through its [`Waiter`], a second object that other threads may use, because the thread that sleeps
//!   must not hold the context: others post meanwhile. One `epoll_wait` both sleeps and says which connection rang, so
//!   that a blocking call costs one sleep and one wake-up a side.
//! - Receives post no buffer: an expected message arrives in private memory of the plugin's choice.
//! - An expected message without a receive is dropped, so that nothing is held for late receives, nor remembered of
//!   cancelled ones, and answers never stall.
//! - A send may be posted quietly ([`QUIET`]), as with selective completion of verbs and libfabric: a short call has one
//!   completion a side, the request at the target, the answer at the origin.
//! - [`Context::set_admission`] bounds the memory of a busy target by a number that the layer above chooses.
//! - A flush is of what was accepted before it, not of all that waits: beside peers who go on asking there is always something
//!   on its way. It is what verbs and UCX (`ucp_worker_flush_nb`) call so.
//! - A peer's end is told twice, so that nobody works or waits for it while its requests are withheld.
//! - [`Memory`] can stand in two plugins at once ([`Memory::alias`]), for routing; copies by either exclude one another
//!   ([`Memory::exclusion`]).
//!
//! # Threads
//! A context belongs to one thread at a time. Its [`Waiter`] may be used from any other thread while
//! the context is used, with one rule: between a `true` of `may_sleep` and the return of `wait`
//! nobody calls `progress`.
//!
//! # Cleanup
//! Dropping a context closes its connections; the peers see [`Completion::Gone`] after what was sent.
//! Operations still open are dropped with it, and so are their buffers.

#![deny(unsafe_code)]

mod address;
mod caps;
mod descriptor;
mod error;
mod frozen;
mod harvest;
mod identity;
mod joint;
mod memory;
mod message;
mod mover;
mod offer;
mod op;
mod plugin;
mod region;
mod view;

pub use address::{ADDRESS_MAX, Address, UID};
pub use caps::{Caps, CheckedBy, PutOrdering, Sleep};
pub use descriptor::{DESCRIPTOR_MAX, Descriptor, RemoteSlice};
pub use error::{Error, GoneReason};
pub use frozen::{Frozen, arriving, departing};
pub use harvest::{Guest, Harvest, Told};
pub use identity::Identity;
pub use memory::{Keeper, Memory, Rights, Segment};
pub use message::{INLINE_MAX, Message, MessageBody, WIDE_MAX};
pub use mover::{Begun, Mover};
pub use offer::{Availability, Offer};
pub use op::{
    Completion, Direction, Done, Exchange, Exchanged, Failure, Op, OpId, Peer, QUIET, Reached,
    Rejected, Returned, Tag, Token, Transit,
};
pub use plugin::{Context, Domain, OpenOptions, Plugin, Waiter};
pub use region::{LocalSlice, Region, RegionState};
pub use view::{SharedBytes, ViewState};
