//! Bulk transfers: memory of one process, moved by another.
//!
//! Memory goes in by value ([`Engine::expose`](crate::Engine::expose)) and comes back by value
//! ([`Bulk::into_vec`]): nobody can free, move or alias it meanwhile. Its [`Descriptor`] travels in any RPC.
//! Whoever has it, and a peer handle of the owner, pulls from the memory and pushes to it at any offset, without
//! the owner's code taking part.
//!
//! ```
//! use hg::{Request, bulk::{Descriptor, Rights}};
//!
//! /// Adds up bytes that stay at the caller until they are pulled.
//! #[hg::rpc]
//! async fn sum(request: &Request, bytes: Descriptor) -> Result<u64, String> {
//!     let bytes = request.fetch(&bytes).await.map_err(|error| error.to_string())?;
//!     Ok(bytes.iter().copied().map(u64::from).sum())
//! }
//!
//! let target = hg::listen("sm://")?;
//! target.register(sum)?;
//! let origin = hg::open("sm://")?;
//! let bulk = origin.expose(vec![1; 100_000], Rights::READ)?;
//! let peer = origin.lookup(target.address())?;
//! assert_eq!(origin.call(sum, &peer, (bulk.descriptor(),)).wait()?, 100_000);
//! let bytes = bulk.into_vec()?;
//! # assert_eq!(bytes.len(), 100_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to call
//! | to | call |
//! |---|---|
//! | register memory | [`Engine::expose`](crate::Engine::expose): a `Vec<u8>`, a `Vec<Vec<u8>>`, an `Arc<[u8]>`, memory of `alloc`, or any other by its address (below) |
//! | name it to others | [`Bulk::descriptor`], [`Bulk::bound_descriptor`] |
//! | move ranges | [`Engine::pull`](crate::Engine::pull), [`Engine::push`](crate::Engine::push) |
//! | get bytes as a vector | [`Engine::fetch`](crate::Engine::fetch), [`Engine::fetch_into`](crate::Engine::fetch_into) |
//! | see bytes, where possible without a copy | [`Engine::view`](crate::Engine::view) |
//! | have a handler see them | an argument of type [`Frozen`] |
//! | find the owner of forwarded memory | [`Engine::owner_of`](crate::Engine::owner_of) |
//!
//! # Memory that peers map
//! Memory of `alloc` is reached by other processes of the node at the speed of `memcpy`, and seen without a
//! copy; a frozen one (`Buffer::freeze`) even as a slice. Whoever takes memory back that a process has asked for in this way gets a
//! copy, unless it is frozen: nobody can tell whether it is mapped still.
//!
//! ```
//! # #[cfg(feature = "sm")] {
//! use hg::bulk::{self, Rights};
//!
//! let owner = hg::listen("sm://")?;
//! let mut buffer = bulk::alloc(1 << 20)?;
//! buffer[..5].copy_from_slice(b"hello");
//! let bulk = owner.expose(buffer.freeze()?, Rights::READ)?;
//!
//! let user = hg::open("sm://")?;
//! let seen = user.view(&user.lookup(owner.address())?, bulk.descriptor()).wait()?;
//! assert_eq!(&seen.as_slice().ok_or("not frozen")?[..5], b"hello");
//!
//! // The memory comes back as what it was.
//! let frozen = bulk::Frozen::try_from(bulk.into_memory()?).map_err(|_| "made of something else")?;
//! assert_eq!(&frozen[..5], b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Frozen memory as an argument
//! [`Frozen`] is an argument of calls like any other, alone, in a struct, more than one of them. Inside a node the handler sees the
//! bytes where they lie, at the same cost whatever their number; over a network it is given a copy; the code is the same. Memory
//! is mapped, or copied, before the handler runs, whichever kind of handler it is. [`Frozen`] of a `Vec<u8>` does, too, and is
//! copied everywhere.
//!
//! ```
//! # #[cfg(feature = "sm")] {
//! use hg::bulk::{self, Frozen};
//!
//! #[hg::rpc]
//! fn checksum(image: Frozen) -> u64 {
//!     image.iter().copied().map(u64::from).sum()
//! }
//!
//! let target = hg::listen("sm://")?;
//! target.register(checksum)?;
//! let origin = hg::open("sm://")?;
//! let peer = origin.lookup(target.address())?;
//!
//! let mut buffer = bulk::alloc(1 << 20)?;
//! buffer[..3].copy_from_slice(&[1, 2, 3]);
//! let image = buffer.freeze()?;
//! for _ in 0..3 {
//!     assert_eq!(origin.call(checksum, &peer, (image.clone(),)).wait()?, 6);
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! The memory stays registered, for whoever was sent it to read, as long as there is a clone of it here; a call has one until it
//! has ended, a one-way call until its target has taken the memory. What a handler was given stays as it is for as long as
//! it keeps it, whatever becomes of the caller. It is no result, and travels in nothing but the arguments of calls; longer memory than
//! `Builder::large_max` says is refused on either side, what is copied counts among `Builder::large_in_service_max`, and a call has 64
//! of them at most.
//!
//! # Whose memory
//! A plain descriptor does not say whose it is: the peer given to a transfer must be its owner, inside a handler mostly
//! `request.origin()`; another one answers that the memory is not registered. To forward a descriptor, send
//! [`Bulk::bound_descriptor`] and ask [`Engine::owner_of`](crate::Engine::owner_of). The local range and the remote one
//! have the same length: `bulk.range(0..10)?` and `descriptor.range(90..100)?` cut them.
//!
//! # Who checks what
//! Ranges and rights are checked on this side, at once. A descriptor that lies is caught by the transport, which
//! touches nothing then: it carries an unguessable token ([`na::Caps::checked_by`](crate::na::Caps::checked_by) says who compares it).
//!
//! # Arrays of C and Fortran
//! Memory that no Rust value owns is registered by its address, with something that keeps it alive:
//!
//! ```
//! use std::sync::Arc;
//! use hg::bulk::{Memory, Rights, Segment};
//!
//! // Stands for an array that a simulation in C or Fortran owns.
//! let array: Box<[f64]> = vec![1.5; 1000].into_boxed_slice();
//! let len = size_of_val(&*array);
//! let address = Box::into_raw(array).expose_provenance();
//! let segments = vec![Segment { address, len }];
//! // SAFETY:
//! // - initialised bytes that stay where they are: nothing frees the array below.
//! // - exposed from a mutable pointer; nobody else refers to it while it is registered.
//! let memory = unsafe { Memory::from_raw_parts(segments, true, Arc::new(())) };
//!
//! let engine = hg::listen("sm://")?;
//! let bulk = engine.expose(memory, Rights::READ | Rights::WRITE)?;
//! assert_eq!(bulk.len(), 8000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory of accelerators
//! [`Memory::on_device`] takes an address of CUDA, ROCm or Level Zero, of which nothing has to be there to build this. Over
//! `ofi+...://` with the setting `device-memory` = `on`, where the provider reaches such memory (`FI_HMEM`: cxi, verbs, efa), a card moves
//! it without a copy in between: each transfer over one run of it. Everywhere else [`Engine::expose`](crate::Engine::expose) says that it is
//! not supported; `routing` = `off` leaves out the way by shared memory, which does not reach it. It was tested over an imitation alone.

pub use hg_bulk::{AsRange, Descriptor, Range, RangeRef, RemoteRange, TransferError};
pub use hg_engine::{Bulk, Busy, EAGER_MAX, Fetch, Transfer, Usage, View};
pub use hg_na::{Device, Frozen, Keeper, Memory, Rights, Segment, SharedBytes};
#[cfg(feature = "sm")]
pub use hg_na_sm::shared::{Buffer, alloc};
