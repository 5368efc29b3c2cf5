//! Memory of this process that takes part in transfers, and what starts them.

use std::{
    fmt,
    ops::RangeBounds,
    sync::{
        Arc, Weak,
        atomic::{Ordering, fence},
    },
};

use hg_bulk::{AsRange, Descriptor, Local, Range, RangeRef, RemoteRange};
use hg_na::{Address, Direction, Error, Memory, Rights};

use crate::{Engine, Fetch, Peer, Request, Transfer, View};

/// Memory of this process, registered: others pull from it and push to it as its rights say, and own
/// transfers begin or end in it.
///
/// It owns the memory, so that nobody can free, move or alias it meanwhile; the owner reads and writes by
/// copies. Dropping it unregisters the memory as soon as no range of it and no transfer is left. Any number of
/// transfers can use it at a time.
pub struct Bulk {
    local: Arc<Local>,
    address: Address,
    eager_max: u64,
}

/// Whether memory of a [`Bulk`] is in use, for whoever does not keep it: [`Bulk::usage`].
#[derive(Debug, Clone)]
pub struct Usage(Weak<Local>);

impl Usage {
    /// As [`Bulk::is_in_use`] says while there is the `Bulk`, which may have come back out of [`Busy`] meanwhile.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let goes_on = self.0.strong_count() > 1;
        // Acquire, with the Release of whoever has let go of it last: its bytes came before.
        fence(Ordering::Acquire);
        goes_on
    }

    /// Whether it is that of this memory.
    #[must_use]
    pub fn is_of(&self, bulk: &Bulk) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&bulk.local))
    }
}

impl Bulk {
    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.local.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.local.is_empty()
    }

    /// What others may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.local.rights()
    }

    /// Copies bytes out. Others may be writing them: then it is some mix of old and new.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.local.read(offset, into)
    }

    /// Copies all bytes out.
    ///
    /// # Errors
    /// [`Error::NoMemory`], and those of the transport that it is registered with.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = hg_bulk::zeroed(self.len())?;
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes in. Others may be reading them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Denied`] for memory that is read-only in this process.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.local.write(offset, from)
    }

    /// A range of it, for a transfer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(&self, range: impl RangeBounds<u64>) -> Result<Range, Error> {
        self.local.range(range)
    }

    /// All of it, for a transfer.
    #[must_use]
    pub fn all(&self) -> Range {
        Range::from(self)
    }

    /// What a peer needs to pull from it and push to it, to be sent in any RPC.
    ///
    /// Small memory that others may only read rides in the descriptor, as it is now, and is pulled without
    /// asking anybody ([`crate::Builder::eager_max`]).
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        let eager = self.local.eager_descriptor(self.eager_max, None);
        eager.unwrap_or_else(|| self.local.descriptor(self.address.scheme()))
    }

    /// The same with the address of the engine, or of its context, that exposed it, so that a third process can
    /// find the owner ([`Engine::owner_of`]).
    #[must_use]
    pub fn bound_descriptor(&self) -> Descriptor {
        let eager = self.local.eager_descriptor(self.eager_max, Some(&self.address));
        eager.unwrap_or_else(|| self.local.bound_descriptor(&self.address))
    }

    /// Whether a range of it is left, or a transfer: one that was dropped, cancelled, or has failed counts until the transport
    /// touches its memory no more. What another thread moves within [`Engine::pull`] at this moment does not count.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.usage().goes_on()
    }

    /// Tells the same to whoever does not keep it.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage(Arc::downgrade(&self.local))
    }

    /// Ends all access by others, waiting (bounded) for those in the middle of one, and gives the memory
    /// back.
    ///
    /// # Errors
    /// [`Busy`] while a range of it or a transfer is left.
    pub fn into_memory(self) -> Result<Memory, Busy> {
        let Self { local, address, eager_max } = self;
        match Arc::try_unwrap(local) {
            Ok(local) => local.unregister().map_err(|error| Busy { bulk: None, error }),
            Err(local) => {
                let bulk = Some(Box::new(Self { local, address, eager_max }));
                Err(Busy { bulk, error: Error::RegionBusy })
            }
        }
    }

    /// The same as a vector: the one that it was made of, or a copy where it was made of something else.
    ///
    /// # Errors
    /// [`Busy`] while a range of it or a transfer is left.
    pub fn into_vec(self) -> Result<Vec<u8>, Busy> {
        // Only memory of other kinds is copied, and before it is gone.
        match self.into_memory()?.into_vec() {
            Ok(bytes) => Ok(bytes),
            Err(memory) => hg_bulk::copy_of(&memory).map_err(|error| Busy { bulk: None, error }),
        }
    }
}

impl From<&Bulk> for Range {
    fn from(bulk: &Bulk) -> Self {
        bulk.local.all()
    }
}

impl AsRange for Bulk {
    #[inline]
    fn as_range(&self) -> RangeRef<'_> {
        RangeRef::from(&self.local)
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Bulk({} bytes, {:?})", self.len(), self.rights())
    }
}

/// The memory cannot be had back now: a range of it, or a transfer that uses it, is left.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Busy {
    bulk: Option<Box<Bulk>>,
    error: Error,
}

impl fmt::Debug for Busy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, out)
    }
}

impl Busy {
    /// The memory, still registered, to try again later. `None` when the transport holds on to it: it is then
    /// unregistered and freed when the transport is through.
    #[must_use]
    pub fn into_bulk(self) -> Option<Bulk> {
        self.bulk.map(|bulk| *bulk)
    }

    /// Why: [`Error::RegionBusy`].
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl Engine {
    /// Registers memory, to pull into, to push from, and for others as far as `rights` say. Empty rights are
    /// for memory that no other process is to reach.
    ///
    /// # Errors
    /// [`Error::Denied`] when the memory cannot grant these rights, [`Error::Limit`], [`Error::Closed`].
    pub fn expose(&self, memory: impl Into<Memory>, rights: Rights) -> Result<Bulk, Error> {
        drop(self.port.enter_open()?);
        Ok(Bulk {
            local: Arc::new(self.port.register(memory.into(), rights)?),
            address: self.address().clone(),
            eager_max: self.port.shared.settings.eager_max,
        })
    }

    /// Gets bytes of a peer's memory. The transfer is under way; `wait` for it or await it.
    ///
    /// Both ranges are equally long. Each may be a range, or a whole `&Descriptor` and `&Bulk`.
    pub fn pull(
        &self,
        owner: &Peer,
        remote: impl Into<RemoteRange>,
        local: impl AsRange,
    ) -> Transfer<'_> {
        let (port, owner) = self.steer_or_stay(owner);
        Transfer::start(port, owner, Direction::Get, local.as_range(), remote.into())
    }

    /// Puts bytes into a peer's memory; over when they are visible there.
    ///
    /// Both ranges are equally long. Each may be a range, or a whole `&Descriptor` and `&Bulk`.
    pub fn push(
        &self,
        owner: &Peer,
        local: impl AsRange,
        remote: impl Into<RemoteRange>,
    ) -> Transfer<'_> {
        let (port, owner) = self.steer_or_stay(owner);
        Transfer::start(port, owner, Direction::Put, local.as_range(), remote.into())
    }

    /// Gets bytes of a peer's memory as a vector: the short way.
    ///
    /// It is as long as the descriptor claims: look at [`Descriptor::len`] first when whoever sent it is not to be
    /// trusted with this process's memory. A claim that is too large to be served is an error.
    pub fn fetch(&self, owner: &Peer, remote: impl Into<RemoteRange>) -> Fetch<'_> {
        self.fetch_into(owner, remote, Vec::new())
    }

    /// [`Engine::fetch`] into a vector that was there before: its memory is used again, its bytes and its length are not.
    /// A handler that hands the same one on from request to request spares itself the allocator.
    ///
    /// When the fetch fails or is dropped, the vector is dropped, too.
    pub fn fetch_into(
        &self,
        owner: &Peer,
        remote: impl Into<RemoteRange>,
        into: Vec<u8>,
    ) -> Fetch<'_> {
        let (port, owner) = self.steer_or_stay(owner);
        Fetch::start(port, owner, (remote.into(), true), into)
    }

    /// Shows bytes of a peer's memory: without a copy where the transport and the memory allow it (memory
    /// of `hg::bulk::alloc` inside a node), otherwise as a copy.
    ///
    /// What is seen stays valid until it is dropped, also when its owner has died.
    pub fn view(&self, owner: &Peer, remote: impl Into<RemoteRange>) -> View<'_> {
        let (port, owner) = self.steer_or_stay(owner);
        View::start(port, owner, remote.into())
    }

    /// Looks up the owner of memory that a bound descriptor names.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`] when it is not bound, [`Error::BadAddress`] when this engine's transport
    /// does not reach the owner.
    pub fn owner_of(&self, descriptor: &Descriptor) -> Result<Peer, Error> {
        let unbound =
            Error::BadDescriptor("it does not say who owns the memory; ask for a bound one");
        self.lookup(descriptor.owner().ok_or(unbound)?)
    }
}

impl Request {
    /// Gets bytes of the caller's memory, as [`Engine::pull`] does: what most handlers do with a descriptor among their
    /// arguments. Memory that the caller only forwards has another owner ([`Engine::owner_of`]).
    pub fn pull(&self, remote: impl Into<RemoteRange>, local: impl AsRange) -> Transfer<'_> {
        let (owner, local) = (self.origin(), local.as_range());
        Transfer::start(&self.port, owner, Direction::Get, local, remote.into())
    }

    /// Gets bytes of the caller's memory as a vector, as [`Engine::fetch`] does.
    pub fn fetch(&self, remote: impl Into<RemoteRange>) -> Fetch<'_> {
        self.fetch_into(remote, Vec::new())
    }

    /// The same into a vector that was there before, as [`Engine::fetch_into`] does.
    pub fn fetch_into(&self, remote: impl Into<RemoteRange>, into: Vec<u8>) -> Fetch<'_> {
        Fetch::start(&self.port, self.origin(), (remote.into(), true), into)
    }

    /// Puts bytes into the caller's memory, as [`Engine::push`] does.
    pub fn push(&self, local: impl AsRange, remote: impl Into<RemoteRange>) -> Transfer<'_> {
        let (owner, local) = (self.origin(), local.as_range());
        Transfer::start(&self.port, owner, Direction::Put, local, remote.into())
    }
}
