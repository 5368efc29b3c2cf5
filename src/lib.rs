//! **Hydrargyrum**: RPC between processes at the speed of shared memory, after Mercury, in Rust.
//!
//! ```
//! #[hg::rpc]
//! fn add(a: i64, b: i64) -> i64 {
//!     a + b
//! }
//!
//! let target = hg::builder().register(add)?.listen(true).open("sm://")?;
//! let origin = hg::open("sm://")?;
//! assert_eq!(origin.call(add, &origin.lookup(target.address())?, (2, 3)).wait()?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Coming from Mercury and Margo
//! | there | here |
//! |---|---|
//! | `margo_init(address, MARGO_SERVER_MODE, ...)`, `HG_Init` | [`listen`]; `MARGO_CLIENT_MODE`: [`open()`] |
//! | `na+sm://`, `ofi+tcp;ofi_rxm://`, `ofi+verbs;ofi_rxm://` | `sm://`, `ofi+tcp://`, `ofi+verbs://`; [`offers`] lists them |
//! | `margo_addr_self`, `margo_addr_lookup` | [`Engine::address`], [`Engine::lookup`] |
//! | `MERCURY_GEN_PROC`, `hg_proc_*` | the types in the function's head; own ones derive `Serialize` and `Deserialize` of `serde` |
//! | `MARGO_REGISTER` | [`macro@rpc`], and [`Builder::register`] or [`Builder::serve`] at the target, before it listens; or [`Engine::register`] |
//! | `margo_create`, `margo_forward`, `margo_get_output` | [`Engine::call`] and [`Call::wait`], or `.await` |
//! | `margo_forward_timed` | [`Engine::call_with`] and [`CallOptions::within`] |
//! | `margo_registered_disable_response` | [`Engine::notify`] |
//! | a ULT, `margo_respond` | an `async fn` or `#[hg::rpc(blocking)]`; [`Engine::serve_later`] answers when it likes |
//! | `margo_register_data`, a provider | a closure of [`Engine::serve`] holds its state, often an `Arc<Mutex<...>>` |
//! | `margo_bulk_create`, `margo_bulk_free` | [`Engine::expose`], [`bulk::Bulk::into_vec`] |
//! | a descriptor in a struct, pulled by the handler before anything else | an argument of type [`bulk::Frozen`] |
//! | `margo_bulk_transfer`, `HG_BULK_PULL`, `HG_BULK_PUSH` | [`Engine::pull`], [`Engine::push`], [`Engine::fetch`], in a handler [`Request::pull`], [`Request::push`], [`Request::fetch`]; offsets by `range(from..to)` |
//! | `HG_Progress`, `HG_Trigger` | nothing to do; or [`Progress::Own`] and [`Engine::progress`] |
//! | `margo_finalize` | drop the engine, or [`Engine::close`] |
//!
//! # Names
//! An RPC is known by the path of its function, crate included: two programs that each declare their own `add` do not
//! mean the same one ([`CallError::NoSuchRpc`]). Declare it once, in a crate that both share (`examples/interface`), or
//! give both `#[hg::rpc(name = "add")]`. Two declarations of one name have to agree on everything that travels, names of
//! fields and variants included: otherwise a call ends with [`CallError::SignatureMismatch`], which shows both. A type that
//! reads itself by hand and checks what it reads is compared up to there.
//!
//! # Threads
//! An [`Engine`] is cheap to clone and usable from any thread. By default a thread of its own makes progress; it
//! steps aside while a caller waits ([`Call::wait`]). See [`Progress`] and [`Wait`] for the other ways.
//!
//! # Runtimes
//! A call is a future: tasks of any runtime await it, `tokio`'s and `smol`'s included, and need nothing else. Handlers that are
//! `async` are polled by the thread that makes progress; there is no timer and no socket of `tokio`'s there, and using one
//! panics. [`Builder::runtime`] has them run on a runtime of yours, and blocking handlers, too: with the feature `tokio` a
//! `tokio::runtime::Handle`, whichever kind it is; for other runtimes [`Spawn`] takes two lines (`examples/tokio_runtime.rs`,
//! `examples/smol_runtime.rs`). A handler that ends without awaiting anything is answered sooner without one.
//!
//! # Who calls
//! [`Request::caller`] says it as far as somebody else than the caller vouches for it, the kernel above all: inside a node the
//! user and the process, over a network the address ([`Identity`]). Where nobody does there is `None`, which is a no.
//! ```
//! #[hg::rpc]
//! fn shut_down(request: &hg::Request, owner: u32) -> Result<(), String> {
//!     match request.caller().uid {
//!         Some(uid) if uid == owner => Ok(()),
//!         other => Err(format!("only user {owner} may, not {other:?}")),
//!     }
//! }
//!
//! let target = hg::builder().register(shut_down)?.listen(true).open("sm://")?;
//! let origin = hg::open("sm://")?;
//! let peer = origin.lookup(target.address())?;
//! let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self")?);
//! origin.call(shut_down, &peer, (own,)).wait()?;
//! assert!(origin.call(shut_down, &peer, (own + 1,)).wait().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cleanup
//! The engine closes when its last clone is dropped: open calls fail, peers see the connections close. Nothing is
//! left behind in the file system, not even after `kill -9`, but for `ofi+shm`, where all processes are killed at once.
//!
//! # Errors
//! | type | of |
//! |---|---|
//! | [`Error`] | opening, looking up, registering memory |
//! | [`RegisterError`] | registering a handler |
//! | [`CallError`], [`Failure`] | a call, with and without an error of the handler's own |
//! | [`bulk::TransferError`] | a transfer |
//! | [`DrainError`] | draining an engine |
//!
//! Each is a sentence that says what to do, also where `main` returns it (an error of the handler's own is written
//! there by its `Debug`). `?` turns [`Error`] into those of calls and transfers; a `main` that does several of these
//! things returns `Box<dyn std::error::Error>`.
//! A call that fails with [`CallError::PeerGone`] or [`CallError::DeadlineExceeded`] says whether it may have run
//! ([`Started`]); nothing is tried again silently.
//!
//! # Features
//! | feature | what | default |
//! |---|---|---|
//! | `sm` | shared memory between processes of one node, `sm://` | yes |
//! | `tcp` | plain sockets, `tcp://host:port` | yes |
//! | `ofi` | libfabric, loaded at run time: `ofi+tcp://`, `ofi+shm://`, `ofi+verbs://`, `ofi+cxi://`, ... | yes |
//! | `verbs` | RDMA without libfabric between: libibverbs, loaded at run time, `verbs://device` | no |
//! | `visor` | `visor://`: through the daemon `hg-visor`, which owns the node's network | no |
//! | `sm-routing` | one address for both: `tcp://` and `ofi+tcp://` are reached by shared memory inside a node | yes |
//! | `tcp-key` | a pre-shared key (the setting `key-file`): encrypts `tcp://`, and keeps strangers out over `ofi+...://` and `verbs://`; brings `snow` and `graviola` | no |
//! | `bincode` | the codec: fixed-size integers | yes |
//! | `tokio` | `tokio::runtime::Handle` is a runtime for handlers ([`Builder::runtime`]) | no |
//! | `postcard` | the codec instead of `bincode`, also if both are on: small integers take few bytes | no |
//!
//! # Codecs
//! Both sides need the same codec; where they do not have it, a call says so. `bincode` 1.3 is marked as unmaintained
//! (RUSTSEC-2025-0141). That is a notice, and no fault is known: the format is finished, the crate small, and whatever a
//! peer sends is decoded within bounds that are this project's own (`hg_core::codec`), under fuzz tests. Whoever must have no
//! such notice in the tree takes `postcard` alone, under the same tests:
//! `default-features = false, features = ["sm", "tcp", "ofi", "sm-routing", "postcard"]`.

#![forbid(unsafe_code)]

pub mod bulk;
mod open;
mod schemes;

pub use hg_core::{
    error::{CallError, Failure, SignatureMismatch, Started},
    registry::RegisterError,
    rpc::{NoError, Rpc, RpcId},
};
pub use hg_engine::{
    Answer, Builder, Call, CallOptions, Drain, DrainError, Engine, EventLoop, OneWay, OwnedCall,
    Peer, Pending, Progress, Ready, Request, Spawn, ToAddress, Wait,
};
pub use hg_macros::rpc;
pub use hg_na::{Address, Availability, Error, GoneReason, Identity, Offer};

pub use crate::open::{builder, listen, offers, open};

/// The README's program is compiled and run with the other examples of the documentation.
#[cfg(all(doctest, feature = "sm"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
pub mod __private {
    //! For what `#[hg::rpc]` writes, and for the project's own tests; not for users.
    pub use hg_core::rpc::{
        LocalCall, NoError, Responder, Rpc, Serve, ServeKind, SignatureCell, serde_bytes, travels,
    };
    pub use hg_engine::dump_engines;
}

/// The network abstraction, for those who write a transport.
pub use hg_na as na;

/// The transport over plain sockets.
#[cfg(feature = "tcp")]
pub use hg_na_tcp as tcp;

/// The transport over libfabric.
#[cfg(feature = "ofi")]
pub use hg_na_ofi as ofi;

/// The transport over RDMA verbs.
#[cfg(feature = "verbs")]
pub use hg_na_verbs as verbs;

/// The transport through the daemon that owns a node's network.
#[cfg(feature = "visor")]
pub use hg_visor as visor;

/// The shared-memory transport.
#[cfg(feature = "sm")]
pub use hg_na_sm as sm;
