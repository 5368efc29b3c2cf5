//! Memory that peers can map, as its owner holds it.
//!
//! ```text
//! alloc -> Buffer <- into / try_from -> Memory (registered, in flight ...)
//!            | freeze
//!            v
//!    hg_na::Frozen <- into / try_from -> Memory (read-only)
//! ```
//! In a forked child the memory is not there: a [`Buffer`] and a [`Frozen`] of the parent's have no byte in it.

use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hg_na::{Error, Frozen, Memory, SharedBytes, ViewState};
use nix::{
    fcntl::SealFlag,
    unistd::{Whence, lseek},
};

use crate::os::mapping::{Access, FUTURE_WRITE, Mapping, seal, seals_of};

/// What keeps such memory alive: the keeper of its [`Memory`], or what [`Frozen`] sees.
#[derive(Debug)]
pub(crate) struct Pages {
    bytes: Mapping,
    fd: OwnedFd,
    /// The memfd was sent to a peer: whoever has it maps it whenever he likes, and for as long.
    is_given: AtomicBool,
}

impl Pages {
    /// What keeps this memory, when it is memory of this kind and all of it.
    pub(crate) fn of(memory: &Memory) -> Option<&Self> {
        let pages = match memory.frozen() {
            Some(bytes) => (bytes.state() as &dyn Any).downcast_ref::<Self>()?,
            None => memory.keeper()?.downcast_ref::<Self>()?,
        };
        (memory.segments() == [pages.bytes.segment()]).then_some(pages)
    }

    /// The memfd, for a peer: from now on this memory is never again its owner's alone.
    pub(crate) fn give(&self) -> BorrowedFd<'_> {
        // Relaxed: who takes the memory back has locked what this caller has locked, or is the last to hold it.
        self.is_given.store(true, Ordering::Relaxed);
        self.fd.as_fd()
    }

    /// Whether somebody else may write it, or see what is written.
    pub(crate) fn is_given(&self) -> bool {
        // Relaxed: as above.
        !self.is_frozen() && self.is_given.load(Ordering::Relaxed)
    }

    /// Whether nobody can write it any more.
    pub(crate) fn is_frozen(&self) -> bool {
        self.bytes.access() == Access::Frozen
    }

    /// Whether peers can still be let write.
    pub(crate) fn is_writable(&self) -> bool {
        !self.is_frozen() && seals_of(&self.fd).is_some_and(|seals| !seals.contains(FUTURE_WRITE))
    }

    /// From now on it can be mapped for reading only; mappings that are there stay.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn forbid_writers(&self) -> Result<(), Error> {
        seal(&self.fd, FUTURE_WRITE)
    }

    /// Tells a forked child, which lacks the memory.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.bytes.is_elsewhere()
    }
}

/// Page-aligned memory in a file of its own, which peers on this machine can map.
///
/// Reads and writes like a slice as long as it is not registered; `Memory::from` it to register it, and
/// [`Buffer::try_from`] the memory that unregistering gives back. Every buffer costs a file descriptor.
/// Several of them are registered one by one: what peers map is one region.
pub struct Buffer(Pages);

/// `len` bytes of zeroes that peers can map; no page is resident before it is touched. Not inherited by a
/// forked child.
///
/// # Errors
/// [`Error::NoMemory`] for more than the process can have, [`Error::Limit`] without a descriptor or a mapping left, [`Error::Os`].
pub fn alloc(len: usize) -> Result<Buffer, Error> {
    let access = Access::Write;
    let (bytes, fd) = Mapping::create(c"hg-sm-shared", len, access.seals(), len.max(1))?;
    Ok(Buffer(Pages { bytes, fd, is_given: false.into() }))
}

impl Buffer {
    /// Gives up writing for good: in return viewers may have slices of it.
    ///
    /// The kernel vouches for it: it refuses while anybody maps the file for writing.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Os`], and [`Error::Forked`] in a child that did not inherit it; the buffer is gone then.
    pub fn freeze(self) -> Result<Frozen, Error> {
        if self.0.is_elsewhere() {
            return Err(Error::Forked);
        }
        let Pages { bytes, fd, is_given } = self.0;
        let len = bytes.segment().len;
        drop(bytes); // Its own writable mapping.
        seal(&fd, SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL)?;
        let pages = Pages { bytes: Mapping::map(&fd, len, Access::Frozen)?, fd, is_given };
        Frozen::try_from(SharedBytes::new(Arc::new(pages))).map_err(|_in_a_child| Error::Forked)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.0.is_elsewhere() {
            return &[];
        }
        // SAFETY:
        // - this process: a `Buffer` is the only way to its pages (a `Memory` has consumed it, and gives it back only
        //   when nothing else holds the pages), and `&mut self` is needed to write.
        // - other processes: none was ever given the file. Pages that were given away do not become a `Buffer` again
        //   (`TryFrom`), whatever their peers say that they have mapped.
        unsafe { self.0.bytes.as_slice() }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.0.is_elsewhere() {
            return &mut [];
        }
        // SAFETY:
        // - as in `deref`, and exclusive here: `&mut self`.
        unsafe { self.0.bytes.as_mut_slice() }
    }
}

impl From<Buffer> for Memory {
    fn from(buffer: Buffer) -> Self {
        memory_of(Arc::new(buffer.0))
    }
}

impl TryFrom<Memory> for Buffer {
    type Error = Memory;

    /// Back from [`Memory`]; which comes back when it was made of something else, is still in use, or was shown to peers
    /// (what unregistering gives back is a copy then).
    fn try_from(memory: Memory) -> Result<Self, Memory> {
        if Pages::of(&memory).is_none_or(Pages::is_frozen) {
            return Err(memory);
        }
        let pages: Arc<Pages> = memory.into_keeper()?.downcast().expect("looked at before");
        match Arc::try_unwrap(pages) {
            Ok(pages) if pages.is_given() => Err(memory_of(Arc::new(pages))),
            pages => pages.map(Self).map_err(memory_of),
        }
    }
}

/// What its owner sees of memory that nobody can write any more; its clones are [`Frozen`].
impl ViewState for Pages {
    fn len(&self) -> u64 {
        self.bytes.segment().len as u64
    }

    fn as_slice(&self) -> Option<&[u8]> {
        if self.is_elsewhere() { None } else { self.bytes.frozen() }
    }
}

fn memory_of(pages: Arc<Pages>) -> Memory {
    let segment = pages.bytes.segment();
    // SAFETY:
    // - one run of initialised bytes that stays where it is as long as `pages` lives; exposed by `segment`, from a
    //   pointer that may write: they are a buffer's.
    // - references: none, the `Buffer` was consumed.
    unsafe { Memory::from_raw_parts(vec![segment], true, pages) }
}

/// Memory of a mapping: for copies to and from it that exclude one another in this process.
pub(crate) fn memory_of_bytes(bytes: Arc<Mapping>) -> Memory {
    let (segment, writable) = (bytes.segment(), bytes.writable());
    // SAFETY:
    // - one run of initialised bytes that stays where it is as long as `bytes` lives; exposed by `segment`, from a
    //   pointer that may write when the mapping may.
    // - references: only `Mapping::frozen` gives some here, to bytes that nobody can write. (`as_slice` and
    //   `as_mut_slice` are for a `Buffer`'s, which are not behind an `Arc`.)
    unsafe { Memory::from_raw_parts(vec![segment], writable, bytes) }
}

/// A buffer with the same bytes, for an owner who cannot have the original; `None` when it is of another kind, or
/// there is no memory. Pages that nobody has touched stay so.
pub(crate) fn fresh_copy(memory: &Memory) -> Option<Memory> {
    let pages = Pages::of(memory)?;
    if let Some(bytes) = memory.frozen() {
        return Frozen::try_from(bytes.clone()).ok().map(Memory::from);
    }
    let mut copy = alloc(pages.bytes.segment().len).ok()?;
    // Whoever shares the file moves its position as he likes: what is told each time counts.
    let seek = |from: usize, whence| {
        let at = lseek(&pages.fd, i64::try_from(from).ok()?, whence).ok()?;
        usize::try_from(at).ok()
    };
    let mut end = 0;
    while let Some(start) = seek(end, Whence::SeekData).filter(|start| *start < copy.len()) {
        end = seek(start, Whence::SeekHole)?.max(start + 4096); // On, whoever punches holes meanwhile.
        let piece = start..end.min(copy.len());
        hg_na_memory::copy_out(memory, start as u64, &mut copy[piece]).ok()?;
    }
    Some(Memory::from(copy))
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use nix::{
        libc,
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    #[test]
    fn a_buffer_is_zeroes_and_comes_back_from_memory() {
        let mut buffer = alloc(10_000).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0));
        assert!(buffer.as_ptr().addr().is_multiple_of(4096));
        buffer[9_999] = 7;
        let memory = Memory::from(buffer);
        assert!(memory.writable() && memory.len() == 10_000);
        let kept = Arc::clone(memory.keeper().unwrap());
        let memory = Buffer::try_from(memory).unwrap_err();
        drop(kept);
        assert_eq!(Buffer::try_from(memory).unwrap()[9_999], 7);
        assert!(Buffer::try_from(Memory::from(vec![1])).is_err());
        assert!(alloc(0).unwrap().is_empty());
    }

    #[test]
    fn a_size_beyond_the_address_space_is_refused_by_name() {
        for len in [1 << 60, usize::MAX] {
            let said = alloc(len).unwrap_err().to_string();
            assert!(said.starts_with(&format!("there is no memory for {len} bytes")), "{said}");
        }
    }

    #[test]
    fn untouched_memory_costs_nothing_and_neither_does_a_copy_of_it() {
        let mut buffer = alloc(1 << 40).unwrap();
        buffer[1 << 39] = 1;
        let copy = fresh_copy(&Memory::from(buffer)).unwrap();
        let copy = Buffer::try_from(copy).unwrap();
        assert_eq!(copy[1 << 39], 1);
        let blocks = nix::sys::stat::fstat(&copy.0.fd).unwrap().st_blocks;
        assert!(blocks <= 8, "{blocks} blocks of 512 bytes for one byte");
    }

    #[test]
    fn frozen_memory_keeps_its_bytes_and_is_given_back_as_such() {
        let mut buffer = alloc(5).unwrap();
        buffer.copy_from_slice(b"bytes");
        let frozen = buffer.freeze().unwrap();
        let memory = Memory::from(frozen.clone());
        assert!(!memory.writable());
        assert!(Pages::of(&memory).unwrap().is_frozen());
        let memory = Buffer::try_from(memory).unwrap_err();
        assert_eq!(&*Frozen::try_from(memory).unwrap(), b"bytes");
        assert_eq!(&*frozen, b"bytes");
    }

    #[test]
    fn pages_that_were_given_away_are_never_a_buffer_again() {
        let memory = Arc::new(Memory::from(alloc(5).unwrap()));
        Pages::of(&Memory::alias(&memory)).unwrap().give();
        let memory = Arc::try_unwrap(memory).unwrap();
        assert!(Buffer::try_from(memory).is_err());
    }

    #[test]
    fn aliases_are_recognised() {
        let memory = Arc::new(Memory::from(alloc(3).unwrap()));
        assert!(Pages::of(&Memory::alias(&memory)).is_some());
        assert!(Pages::of(&Memory::from(vec![0; 3])).is_none());
    }

    #[test]
    fn a_forked_child_has_no_byte_of_it_and_can_have_its_own() {
        let buffer = alloc(4096).unwrap();
        let frozen = alloc(8).unwrap().freeze().unwrap();
        // SAFETY:
        // - the child looks at lengths, maps a page and exits, without unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let empty = buffer.is_empty() && frozen.is_empty();
                let own = alloc(8).is_ok_and(|own| own.len() == 8);
                // SAFETY:
                // - ends the child at once, without running anything of the parent's.
                unsafe { libc::_exit(i32::from(!(empty && own))) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        assert_eq!((buffer.len(), frozen.len()), (4096, 8));
    }
}
