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
//! # What a handle may outlive
//! Everything that gives out or takes memory, and why no safe code comes to undefined behaviour by it, be it the user's or a plugin's.
//!
//! | handle | may outlive | why that does no harm | held by |
//! |---|---|---|---|
//! | [`Message`] in a transport's memory | connection, context | keeps the mapping; its bytes borrow it, and what lets them go takes it ([`Context::post`], [`Message::into_body`]) or borrows it mutably ([`Context::exchange`], [`Context::reply`], [`Message::truncate`]) | compile-fail: 1, 2, and at [`Context::exchange`] |
//! | [`MessageBody`] of a user's own | whatever it likes | it is safe code that may give other bytes each time: who copies them asks once, and goes by that length | `na/sm/tests/bodies.rs` |
//! | received [`Message`], and who holds its memory ([`Message::shared`]) | connection, context | private memory, used again once nobody has a share or a weak one | `na/sm/src/body.rs` |
//! | [`Memory`] of a device ([`Memory::on_device`]) | everything | processors do not touch it: copies and registrations refuse it, unless a card moves it | `na/memory/src/copy.rs` |
//! | [`Memory`] | everything | no reference to its bytes: they are copied ([`Memory::exclusion`]), and come back with the owner that went in; read-only memory is refused where bytes would land | 3, 4; under Miri `na/memory/src/copy.rs`; `one_sided` of the conformance suite |
//! | alias of memory ([`Memory::alias`]) | the plugin that it was registered with | is a share of the original, which is not taken apart before | under Miri `na/memory/src/copy.rs` |
//! | [`Region`] | domain, contexts | keeps the memory; [`Region::unregister`] takes it, and gives it back when nothing else holds it, or else refuses ([`Error::RegionBusy`]) or gives a copy | 5; `one_sided`; `na/sm/src/shared/tests.rs` |
//! | [`LocalSlice`], [`Op`], [`Done`] | the [`Region`], the context | are shares of the region; [`RegionState::unregister`] of such a share is refused | `one_sided` |
//! | [`Transit`], [`Begun`], [`Mover`] | the context, the connection | borrow the local memory; leaked (`mem::forget`), they move nothing | 5, 6; `begun` of the conformance suite |
//! | [`SharedBytes`], [`Frozen`] | owner, registration, connection, context | keep the mapping or the bytes; a slice borrows them, and is given only of bytes that the kernel lets nobody write, now or later | 7, 8; `views` of the conformance suite, `na/sm/src/os/mapping.rs` |
//! | [`ViewState`] of a user's own | whatever it likes | a slice that it gives could be kept as long as it lives, so what was given once stays | under Miri `src/frozen.rs` |
//! | `hg_na_sm::shared::Buffer` | nothing: it is the memory | goes into a [`Memory`], or is frozen, and comes back only if no peer was ever given it | compile-fail in `na/sm/src/shared`, its tests |
//! | [`Waiter::fd`] | nothing: it borrows the waiter | | by its type |
//!
//! A child of `fork(2)`, which is unsafe to call, has no memory of mappings that it did not inherit: buffers and frozen
//! bytes are empty there, regions answer [`Error::Forked`]; who has a [`Memory`] of such bytes must not copy from it.
//!
//! 1. What is posted is gone:
//! ```compile_fail,E0505
//! # use hg_na::{Context, Message, Op, Peer};
//! fn first_byte(context: &mut dyn Context, to: Peer, message: Message) -> u8 {
//!     let bytes = message.as_slice();
//!     let _posted = context.post(0, Op::SendUnexpected { to, message });
//!     bytes[0]
//! }
//! ```
//! 2. An answer that is taken by the short cut has no bytes to look at:
//! ```compile_fail,E0502
//! # use hg_na::{Context, Message, Peer};
//! fn first_byte(context: &mut dyn Context, to: Peer, message: &mut Message) -> u8 {
//!     let bytes = message.as_slice();
//!     let _taken = context.reply(to, 7, 0, message);
//!     bytes[0]
//! }
//! ```
//! 3. What has become memory is nobody's to look at:
//! ```compile_fail,E0505
//! # use hg_na::Memory;
//! let bytes = vec![1, 2];
//! let slice = &bytes[..];
//! let _memory = Memory::from(bytes);
//! assert_eq!(slice, [1, 2]);
//! ```
//! 4. Nor to write, before it is given back:
//! ```compile_fail,E0382
//! # use hg_na::Memory;
//! let mut bytes = vec![1, 2];
//! let _memory = Memory::from(bytes);
//! bytes[0] = 3;
//! ```
//! 5. Whoever is moving bytes keeps their region:
//! ```compile_fail,E0505
//! # use hg_na::{Context, Descriptor, Direction, Peer, Region, Transit};
//! fn move_late(context: &mut dyn Context, peer: Peer, near: Region, remote: &Descriptor) -> bool {
//!     let (direction, local) = (Direction::Get, near.state());
//!     let transit = Transit { direction, peer, local, local_offset: 0, remote, remote_offset: 0, len: 8, may_wait: true };
//!     let begun = context.begin(&transit);
//!     let _memory = near.unregister();
//!     begun.finish()
//! }
//! ```
//! 6. And the memory that they land in:
//! ```compile_fail,E0505
//! # use hg_na::{Context, Descriptor, Peer};
//! fn fetch_late(context: &mut dyn Context, owner: Peer, remote: &Descriptor) -> bool {
//!     let mut bytes = vec![0; 8];
//!     let begun = context.fetch(owner, remote, 0, &mut bytes, true);
//!     drop(bytes);
//!     begun.finish()
//! }
//! ```
//! 7. A slice ends before what it is seen through:
//! ```compile_fail,E0505
//! # use hg_na::SharedBytes;
//! let seen = SharedBytes::from(vec![1, 2]);
//! let slice = seen.as_slice();
//! drop(seen);
//! assert_eq!(slice, Some(&[1, 2][..]));
//! ```
//! 8. What is frozen is not written:
//! ```compile_fail,E0594
//! # use hg_na::Frozen;
//! let mut frozen = Frozen::from(vec![1, 2]);
//! frozen[0] = 3;
//! ```
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
pub use frozen::{Frozen, arriving, decoding, departing, holds_frozen};
pub use harvest::{Guest, Harvest, Told};
pub use identity::Identity;
pub use memory::{Device, Keeper, Memory, Rights, Segment};
pub use message::{INLINE_MAX, Message, MessageBody, WIDE_MAX};
pub use mover::{Begun, Mover};
pub use offer::{Availability, Offer};
pub use op::{
    Completion, Direction, Done, Exchange, Exchanged, Failure, Op, OpId, Peer, QUIET, Reached,
    Rejected, Returned, Tag, Token, Transit,
};
pub use plugin::{Context, Domain, Key, OpenOptions, Plugin, Waiter};
pub use region::{LocalSlice, Region, RegionState};
pub use view::{SharedBytes, ViewState};
