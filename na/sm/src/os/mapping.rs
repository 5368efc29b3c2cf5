//! Memory that is shared with a peer: a sealed memfd, mapped.
//!
//! Who may write is decided by seals, which the receiver verifies before it maps:
//!
//! | kind | seals | why |
//! |---|---|---|
//! | [`TABLE_SEALS`] | shrink, grow, seal, future write | no later mapping can be writable, the creator's own stays so |
//! | [`SEGMENT_SEALS`] | shrink, grow, seal | as above less the last: it would forbid giving pages back (`MADV_REMOVE`); its peer gets a descriptor for reading alone |
//! | [`Access::seals`] | shrink, grow, and what keeps others from writing, if anything does | of [`crate::shared`]: sealed further as it is registered, or frozen |
//!
//! A peer that maps a segment for writing all the same can change what its creator tells that peer, and nobody else: what a
//! side writes into its own segment it never reads back as more than a claim, and each connection has a segment of its own.
//!
//! Without `F_SEAL_SHRINK` a peer could cut the file, and reading the mapping would raise SIGBUS; so it would where the peer
//! has punched a hole and no huge page is left, so that memory of such pages is refused. Both sides map with `MADV_DONTFORK`,
//! so that a forked child holds nothing. Pages come into being when they are first touched.

use std::{
    ffi::{CStr, c_void},
    num::NonZeroUsize,
    ops::Range,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    ptr::NonNull,
    sync::atomic::Ordering,
};

use hg_na::{Error, Segment};
use hg_na_memory::ForkGuard;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap},
        stat::{FileStat, Mode, fchmod, fstat},
        statfs::{HUGETLBFS_MAGIC, fstatfs},
    },
    unistd::ftruncate,
};

use hg_na_parts::limits::{file_size, os_error};

use super::{misbehaved, room, signals::guard};

/// Seals of all of it: it is as long as it is.
const SIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);
/// Seals of what its creator alone writes by agreement: the peer maps it read-only, but could do otherwise. In return pages
/// can be given back.
pub(crate) const SEGMENT_SEALS: SealFlag = SIZE_SEALS.union(SealFlag::F_SEAL_SEAL);
/// Seals of what its creator alone can write; the kernel enforces it.
pub(crate) const TABLE_SEALS: SealFlag = SEGMENT_SEALS.union(FUTURE_WRITE);

/// `F_SEAL_FUTURE_WRITE` (Linux 5.1), which `nix` has no name for.
pub(crate) const FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// How a memfd is mapped, or can be by peers, as the entry of its region in the table says.
///
/// | access | mapping | who | what keeps others from writing |
/// |---|---|---|---|
/// | [`Access::Write`] | shared, writable | the owner; peers of a writable region | nothing: they are meant to |
/// | [`Access::Read`] | shared, read-only | peers of a read-only region | nothing: the owner may be writing |
/// | [`Access::Frozen`] | private, read-only | anybody, once `F_SEAL_WRITE` is set | the kernel, for good |
///
/// A private mapping of pages that nobody can write is those pages; a shared one of a write-sealed memfd is
/// refused by kernels before 6.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read what others may be writing.
    Read = 1,
    /// Read and write.
    Write = 2,
    /// Read what nobody can write any more.
    Frozen = 3,
}

impl Access {
    /// Reads the word of a table; what is unknown cannot be mapped.
    #[inline]
    pub(crate) fn of_word(word: u64) -> Option<Self> {
        [Self::Read, Self::Write, Self::Frozen].into_iter().find(|it| *it as u64 == word)
    }

    /// Seals of memory of [`crate::shared`] that is mapped so.
    pub(crate) fn seals(self) -> SealFlag {
        SIZE_SEALS.union(match self {
            Self::Write => SealFlag::empty(),
            Self::Read => FUTURE_WRITE,
            Self::Frozen => SealFlag::F_SEAL_WRITE,
        })
    }
}

/// Checks that a peer has sent a memfd of this kernel's own pages with these seals, and says what it is. Its size is that for ever,
/// if it is sealed so.
///
/// Its seals are asked for first: whatever else it is, nobody but this kernel answers that. A file system's daemon may let
/// others wait.
///
/// # Errors
/// `PeerGone(Misbehaved)`, [`Error::Os`].
pub(crate) fn verify(fd: &OwnedFd, needed: SealFlag) -> Result<FileStat, Error> {
    let seals = seals_of(fd).ok_or_else(|| misbehaved("it sent a descriptor that is no memfd"))?;
    if !seals.contains(needed) {
        return Err(misbehaved("it sent memory without the seals that it needs"));
    }
    // Of a pool that may be empty when one is touched, which ends the process: no seal keeps its maker from punching holes.
    let system = fstatfs(fd).map_err(|e| os_error("fstatfs", e))?;
    if system.filesystem_type() == HUGETLBFS_MAGIC {
        return Err(misbehaved("it sent memory of huge pages, which may run out"));
    }
    fstat(fd).map_err(|e| os_error("fstat", e))
}

/// A mapping of a memfd; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    /// Bytes that are meant to be used; at least one is mapped, and in the file.
    len: usize,
    access: Access,
    /// A forked child has other things at that address.
    guard: &'static ForkGuard,
}

/// Types that a mapping can be seen as.
///
/// # Safety
/// Every bit pattern is a value, all of it is atomics (so that shared references may be held while
/// another process writes), and nothing in it is a pointer.
pub(crate) unsafe trait Shared {}

impl Mapping {
    /// A new memfd of `len` bytes, zeroed, mapped for writing, then sealed. The descriptor is for the peers.
    ///
    /// The pages of its first `aside` bytes are made now, where they may not be to be had later ([`room`]).
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
    pub(crate) fn create(
        name: &CStr,
        len: usize,
        seals: SealFlag,
        aside: usize,
    ) -> Result<(Self, OwnedFd), Error> {
        let fd = new_memfd(name, len)?;
        room::set_aside(&fd, aside)?;
        let mapping = Self::map(&fd, len, Access::Write)?;
        seal(&fd, seals)?;
        Ok((mapping, fd))
    }

    /// Maps what a peer has sent, after its seals, at least those that are needed, and its size were verified.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` with what is wrong about the descriptor; [`Error::Limit`].
    pub(crate) fn open(
        fd: &OwnedFd,
        len: usize,
        needed: SealFlag,
        access: Access,
    ) -> Result<Self, Error> {
        let stat = verify(fd, needed)?;
        if usize::try_from(stat.st_size).ok() != Some(len.max(1)) {
            return Err(misbehaved("it sent memory of another size than it announced"));
        }
        Self::map(fd, len, access)
    }

    /// Maps a memfd that has at least so many bytes for as long as it lives.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
    pub(crate) fn map(fd: &OwnedFd, len: usize, access: Access) -> Result<Self, Error> {
        room::leave_space(len)?;
        Self::map_all(fd, len, access)
    }

    fn map_all(fd: &OwnedFd, len: usize, access: Access) -> Result<Self, Error> {
        let (size, guard) = (NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN), guard()?);
        let (protection, flags) = match access {
            Access::Write => (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED),
            Access::Read => (ProtFlags::PROT_READ, MapFlags::MAP_SHARED),
            Access::Frozen => (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE),
        };
        // SAFETY:
        // - a new mapping at an address of the kernel's choice: touches no memory in use.
        let mapped = unsafe { mmap(None, size, protection, flags, fd.as_fd(), 0) };
        let base = mapped.map_err(|error| match error {
            // One page can be mapped: it is the size, not the number of mappings.
            Errno::ENOMEM if len > 1 && Self::map_all(fd, 1, access).is_ok() => {
                Error::NoMemory { len: len as u64 }
            }
            error => os_error("mmap", error),
        })?;
        let mapping = Self { base: base.cast(), len, access, guard };
        // Relaxed: a count that nothing is read by.
        room::MAPPED.fetch_add(1, Ordering::Relaxed);
        let advised = mapping.advise(0..size.get(), MmapAdvise::MADV_DONTFORK);
        advised.map(|()| mapping).map_err(|e| os_error("madvise", e))
    }

    /// The first byte; page-aligned.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether this side may write. Writing to a mapping that a peer has sent ends the process.
    pub(crate) fn writable(&self) -> bool {
        self.access == Access::Write
    }

    /// Tells a forked child, where it is not mapped.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.guard.is_child()
    }

    /// How it is mapped.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The value at an offset.
    ///
    /// # Panics
    /// Outside of the mapping, or not aligned: offsets come from layouts, never from a peer.
    #[inline]
    pub(crate) fn view<T: Shared>(&self, offset: usize) -> &T {
        let end = offset.checked_add(size_of::<T>()).expect("a layout does not wrap");
        assert!(end <= self.len, "{end} is outside of a mapping of {} bytes", self.len);
        assert!(offset.is_multiple_of(align_of::<T>()), "{offset} is not aligned");
        // SAFETY:
        // - in bounds: checked above.
        let first = unsafe { self.base.add(offset) };
        // SAFETY:
        // - in bounds and aligned: checked above; the base is page-aligned.
        // - valid: `Shared` means that every bit pattern is a value, and that all of it is atomics.
        // - shared: no `&mut` into a mapping is ever made, here or in the peer.
        // - alive: the borrow of `self` keeps the mapping; seals keep the file's size.
        unsafe { first.cast::<T>().as_ref() }
    }

    /// Where it lies; the address is exposed, from a pointer that may write when [`Access::Write`].
    pub(crate) fn segment(&self) -> Segment {
        Segment { address: self.base.as_ptr().expose_provenance(), len: self.len }
    }

    /// The bytes, when nobody can write them.
    pub(crate) fn frozen(&self) -> Option<&[u8]> {
        if self.access != Access::Frozen {
            return None;
        }
        // SAFETY:
        // - in bounds, aligned and initialised: `len` bytes of the mapping, zeroes or what was written.
        // - not written while the slice lives: `F_SEAL_WRITE`, which the kernel grants only when nobody maps
        //   the file for writing and which nobody can take away (made by `Buffer::freeze`, or verified by
        //   `open`); the mapping itself is read-only.
        // - not truncated: `F_SEAL_SHRINK`. Alive: the borrow of `self` keeps the mapping.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) })
    }

    /// The bytes of memory that is in nobody else's hands.
    ///
    /// # Safety
    /// Nobody writes the bytes while the slice lives: neither this process nor another one.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`.
        // - not written meanwhile: the caller's word.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The same for writing.
    ///
    /// # Safety
    /// Nobody else uses the bytes for writing while the slice lives, nor for reading in this process.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.access == Access::Write, "mapped for reading only");
        // SAFETY:
        // - in bounds, aligned, initialised, alive: as in `frozen`; writable: checked above.
        // - exclusive: `&mut self`, and the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Gives the pages of a range back to the system; they read as zeroes afterwards.
    ///
    /// Whole pages only: a range that is not page-aligned is refused by the kernel. Works for
    /// [`SEGMENT_SEALS`] on the creator's side.
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), Error> {
        assert!(range.end <= self.len, "{range:?} is outside of {} bytes", self.len);
        if range.is_empty() {
            return Ok(());
        }
        self.advise(range, MmapAdvise::MADV_REMOVE).map_err(|e| os_error("madvise", e))
    }

    /// Has the pages of a range made, before they are touched. A kernel before Linux 5.14 does not know how, and makes none.
    ///
    /// # Errors
    /// [`Error::Limit`]: the system has no more of them.
    pub(crate) fn make_pages(&self, range: Range<usize>) -> Result<(), Error> {
        assert!(range.end <= self.len, "{range:?} is outside of {} bytes", self.len);
        match self.advise(range, MmapAdvise::MADV_POPULATE_WRITE) {
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(_) => Err(room::no_memory()),
        }
    }

    fn advise(&self, range: Range<usize>, advice: MmapAdvise) -> Result<(), Errno> {
        // SAFETY:
        // - in bounds: callers stay within `self.len`.
        let first: NonNull<c_void> = unsafe { self.base.add(range.start) }.cast();
        // SAFETY:
        // - the range lies inside this mapping, which is ours alone in this process.
        // - what is discarded is atomics and bytes behind raw pointers: zeroes are valid for both.
        unsafe { madvise(first, range.len(), advice) }
    }
}

/// A new memfd of `len` bytes of zeroes, one at least (an empty file cannot be mapped), which can be sealed. Pages come into being when they are touched.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
pub(crate) fn new_memfd(name: &CStr, len: usize) -> Result<OwnedFd, Error> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(name, flags).map_err(|e| os_error("memfd_create", e))?;
    file_size(len as u64)?;
    let size = i64::try_from(len.max(1)).map_err(|_| Error::NoMemory { len: len as u64 })?;
    ftruncate(&fd, size).map_err(|e| os_error("ftruncate", e))?;
    Ok(fd)
}

/// The same memfd for reading alone (of this thread: the first may have ended); another user cannot open it for writing by its name in `/proc` either.
pub(crate) fn read_only(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fchmod(fd, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| os_error("fchmod", e))?;
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let opened = open(&*path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    opened.map_err(|e| os_error("open(/proc/thread-self/fd)", e))
}

/// Adds seals; those that are there stay.
///
/// # Errors
/// [`Error::Os`]: `EBUSY` for `F_SEAL_WRITE` while anybody maps it for writing.
pub(crate) fn seal(fd: &OwnedFd, seals: SealFlag) -> Result<(), Error> {
    let added = fcntl(fd, FcntlArg::F_ADD_SEALS(seals));
    added.map(drop).map_err(|error| os_error("fcntl(F_ADD_SEALS)", error))
}

/// The seals of a memfd; `None` for any other descriptor.
pub(crate) fn seals_of(fd: &OwnedFd) -> Option<SealFlag> {
    fcntl(fd, FcntlArg::F_GET_SEALS).ok().map(SealFlag::from_bits_retain)
}

/// A sealed memfd of two huge pages; `None`, said aloud, where the kernel has none.
#[cfg(test)]
#[expect(clippy::print_stderr, reason = "this line is how skips are counted")]
pub(crate) fn huge_memfd(seals: SealFlag) -> Option<(OwnedFd, usize)> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
    let fd = match memfd_create(c"huge", flags) {
        Ok(fd) => fd,
        Err(why) => {
            let test = std::thread::current();
            let test = test.name().unwrap_or("a test");
            eprintln!("SKIPPED: {test}: this kernel gives no memfd of huge pages: {why}");
            return None;
        }
    };
    let page = fstat(&fd).expect("a memfd has a size").st_blksize;
    ftruncate(&fd, 2 * page).expect("no page is made yet");
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("a new memfd can be sealed");
    Some((fd, usize::try_from(2 * page).expect("a size")))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Relaxed: as in `map`.
        room::MAPPED.fetch_sub(1, Ordering::Relaxed);
        if self.is_elsewhere() {
            return; // MADV_DONTFORK: nothing of ours is mapped in a forked child.
        }
        // SAFETY:
        // - mapped by `map` in this process with this length, and unmapped only here.
        // - every reference into it borrows `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.len.max(1)) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

// SAFETY:
// - it owns the mapping like a box; what is in it is reached through atomics or raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY:
// - as above: no method gives access that is not synchronised or raw.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::{
        libc,
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork, write},
    };

    use hg_na::GoneReason;

    use super::*;

    const LEN: usize = 3 * 4096;

    fn why(result: Result<Mapping, Error>) -> String {
        result.map(|_| ()).unwrap_err().to_string()
    }

    fn plain_memfd(seals: SealFlag, len: i64) -> OwnedFd {
        let fd = memfd_create(c"x", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        fd
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        for seals in [TABLE_SEALS, SEGMENT_SEALS] {
            let (mine, fd) = Mapping::create(c"test", LEN, seals, 0).unwrap();
            let theirs = Mapping::open(&fd, LEN, seals, Access::Read).unwrap();
            mine.view::<AtomicU64>(4096).store(77, Ordering::Release);
            assert_eq!(theirs.view::<AtomicU64>(4096).load(Ordering::Acquire), 77);
            assert!(mine.writable() && !theirs.writable());
        }
    }

    #[test]
    fn a_descriptor_for_reading_alone_is_never_mapped_for_writing() {
        let (mine, fd) = Mapping::create(c"test", LEN, SEGMENT_SEALS, 0).unwrap();
        assert!(Mapping::map(&fd, LEN, Access::Write).is_ok(), "nothing else forbids it");
        let fd = read_only(&fd).unwrap();
        assert!(why(Mapping::map(&fd, LEN, Access::Write)).contains("Permission denied"));
        assert_eq!(write(&fd, b"x"), Err(Errno::EBADF));
        let theirs = Mapping::open(&fd, LEN, SEGMENT_SEALS, Access::Read).unwrap();
        mine.view::<AtomicU64>(0).store(7, Ordering::Release);
        assert_eq!(theirs.view::<AtomicU64>(0).load(Ordering::Acquire), 7);
        assert_eq!(fstat(&fd).unwrap().st_mode & 0o777, 0o600, "nor opened by other users");
    }

    #[test]
    fn seals_forbid_writing_resizing_and_unsealing() {
        let (_mine, fd) = Mapping::create(c"test", LEN, TABLE_SEALS, 0).unwrap();
        assert_eq!(write(&fd, b"x"), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 1 << 20), Err(Errno::EPERM));
        assert_eq!(fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(Errno::EPERM));
        let size = NonZeroUsize::new(LEN).unwrap();
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a new mapping, if it were granted at all.
        let mapped = unsafe { mmap(None, size, both, MapFlags::MAP_SHARED, &fd, 0) };
        assert_eq!(mapped.unwrap_err(), Errno::EPERM);
    }

    #[test]
    fn descriptors_that_are_not_as_announced_are_refused_with_the_reason() {
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let len = i64::try_from(LEN).unwrap();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(why(Mapping::open(&file, LEN, SEGMENT_SEALS, Access::Read)).contains("no memfd"));
        let shrinkable = plain_memfd(SealFlag::F_SEAL_GROW, len);
        assert!(
            why(Mapping::open(&shrinkable, LEN, SEGMENT_SEALS, Access::Read)).contains("seals")
        );
        assert!(
            why(Mapping::open(&plain_memfd(size, len), LEN, TABLE_SEALS, Access::Read))
                .contains("seals")
        );
        assert!(
            why(Mapping::open(&plain_memfd(size, 8), LEN, SEGMENT_SEALS, Access::Read))
                .contains("size")
        );
        if let Some((huge, len)) = huge_memfd(size) {
            assert!(
                why(Mapping::open(&huge, len, SEGMENT_SEALS, Access::Read)).contains("huge pages")
            );
        }
        assert!(Mapping::open(&plain_memfd(size, len), LEN, SEGMENT_SEALS, Access::Read).is_ok());
    }

    #[test]
    fn discarded_pages_are_given_back_and_read_as_zeroes() {
        let (mine, fd) = Mapping::create(c"test", LEN, SEGMENT_SEALS, 0).unwrap();
        for page in 0..3 {
            mine.view::<AtomicU64>(page * 4096).store(1, Ordering::Relaxed);
        }
        let blocks = fstat(&fd).unwrap().st_blocks;
        mine.discard(4096..8192).unwrap();
        assert!(fstat(&fd).unwrap().st_blocks < blocks, "the file has become smaller");
        assert_eq!(mine.view::<AtomicU64>(4096).load(Ordering::Relaxed), 0);
        assert_eq!(mine.view::<AtomicU64>(8192).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn pages_are_made_before_they_are_touched() {
        let (mine, fd) = Mapping::create(c"test", LEN, SEGMENT_SEALS, 0).unwrap();
        mine.make_pages(4096..8192).unwrap();
        // An older kernel knows no such advice.
        assert!([0, 8].contains(&fstat(&fd).unwrap().st_blocks));
    }

    #[test]
    fn a_forked_child_holds_nothing_of_a_mapping() {
        let (mine, _fd) = Mapping::create(c"test", LEN, TABLE_SEALS, 0).unwrap();
        // SAFETY:
        // - the child asks the kernel one question and exits, without allocating or unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                // SAFETY:
                // - advice that changes nothing, about a range that need not be mapped.
                let asked = unsafe { madvise(mine.base.cast(), LEN, MmapAdvise::MADV_NORMAL) };
                // SAFETY:
                // - ends the child at once, without running anything of the parent's.
                unsafe { libc::_exit(i32::from(asked != Err(Errno::ENOMEM))) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        assert_eq!(mine.advise(0..LEN, MmapAdvise::MADV_NORMAL).map_err(|e| e.to_string()), Ok(()));
    }

    #[test]
    #[should_panic(expected = "outside of a mapping")]
    fn a_view_outside_of_the_mapping_is_a_bug() {
        let (mine, _fd) = Mapping::create(c"test", LEN, SEGMENT_SEALS, 0).unwrap();
        mine.view::<AtomicU64>(LEN);
    }

    /// A memfd as those of `shared::alloc`.
    fn shared(len: i64) -> OwnedFd {
        plain_memfd(SIZE_SEALS, len)
    }

    fn open(fd: &OwnedFd, len: usize, access: Access) -> Result<Mapping, Error> {
        Mapping::open(fd, len, access.seals(), access)
    }

    fn why_not(opened: Result<Mapping, Error>) -> String {
        match opened {
            Err(Error::PeerGone(GoneReason::Misbehaved(why))) => why.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_sealed_memfds_of_the_published_size_are_mapped() {
        let fd = shared(10_000);
        assert!(open(&fd, 10_000, Access::Write).is_ok());
        assert!(why_not(open(&fd, 10_001, Access::Write)).contains("size"));
        assert!(why_not(open(&fd, 10_000, Access::Read)).contains("seals"));
        seal(&fd, FUTURE_WRITE).unwrap();
        assert!(open(&fd, 10_000, Access::Read).is_ok());
        assert!(matches!(open(&fd, 10_000, Access::Write), Err(Error::Os { .. })));
        assert!(why_not(open(&fd, 10_000, Access::Frozen)).contains("seals"));
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
        assert_eq!(open(&fd, 10_000, Access::Frozen).unwrap().frozen().unwrap()[9_999], 0);
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(why_not(open(&file, 10_000, Access::Read)).contains("no memfd"));
        let loose = new_memfd(c"x", 10_000).unwrap();
        assert!(why_not(open(&loose, 10_000, Access::Write)).contains("seals"));
        let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        if let Some((huge, len)) = huge_memfd(sealed) {
            for access in [Access::Write, Access::Frozen] {
                assert!(why_not(open(&huge, len, access)).contains("huge pages"));
            }
        }
    }

    #[test]
    fn memory_that_somebody_writes_is_not_sealed() {
        let fd = shared(1);
        let writer = Mapping::map(&fd, 1, Access::Write).unwrap();
        assert!(seal(&fd, SealFlag::F_SEAL_WRITE).is_err());
        assert!(writer.frozen().is_none());
        drop(writer);
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
    }
}
