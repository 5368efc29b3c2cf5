//! 2 MiB of memory for frames, registered as a whole: one huge page where there is one, on the card's NUMA node.

use std::{ffi::c_ulong, fmt, fs, io, num::NonZeroUsize, os::raw::c_void, ptr::NonNull, sync::Arc};

use hg_na::Segment;
use nix::{
    errno::Errno,
    libc,
    sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap},
};
use rdma_core_sys as sys;

use crate::card::{Device, Fault, registration::Registration};

/// Bytes of a chunk: a huge page of x86-64.
pub(super) const CHUNK: NonZeroUsize = NonZeroUsize::new(2 << 20).expect("no zero");
/// `MPOL_PREFERRED` of set_mempolicy(2): other nodes, where this one has no memory.
const PREFERRED: i32 = 1;

/// Registered memory.
pub(super) struct Chunk {
    /// Ends before the memory is unmapped.
    registration: Registration,
    mapping: Option<Mapping>,
}

struct Mapping(NonNull<c_void>);

// SAFETY:
// - it owns its memory; who reaches which bytes is decided by `Frame`s.
unsafe impl Send for Mapping {}
// SAFETY:
// - as above.
unsafe impl Sync for Mapping {}

impl Chunk {
    /// Zeroed memory.
    ///
    /// # Errors
    /// [`Fault`] of mapping and registering it.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let mapping = Mapping::new().map_err(|error| Fault::Call("mmap", error as i32))?;
        if let Some(node) = device.node {
            mapping.prefer(node);
        }
        let run = Segment { address: mapping.0.as_ptr().expose_provenance(), len: CHUNK.get() };
        // SAFETY:
        // - the memory is unmapped by `drop`, behind the registration.
        let registration = unsafe { Registration::raw(device, run, sys::ACCESS_LOCAL_WRITE) }?;
        Ok(Self { registration, mapping: Some(mapping) })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.mapping.as_ref().expect("there until it is dropped").0.cast()
    }

    /// What this side's card names it by.
    pub(super) fn key(&self) -> u32 {
        self.registration.keys().0
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.registration.end() {
            // The card may reach it for ever.
            std::mem::forget(self.mapping.take());
        }
    }
}

impl Mapping {
    /// A huge page that is set aside for such (`vm.nr_hugepages`), or memory that the kernel may make one of.
    fn new() -> Result<Self, Errno> {
        let huge = MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_2MB;
        let this = map(CHUNK, huge).map(Self).or_else(|_| Self::aligned())?;
        // A child has no use for it, and would cost the parent a copy.
        this.advise(MmapAdvise::MADV_DONTFORK)?;
        Ok(this)
    }

    fn aligned() -> Result<Self, Errno> {
        let base = map(CHUNK.saturating_add(CHUNK.get()), MapFlags::empty())?;
        let before = base.align_offset(CHUNK.get());
        let after = CHUNK.get() - before;
        // SAFETY:
        // - in bounds of the mapping, which is twice as long as one that is kept.
        let start = unsafe { base.byte_add(before) };
        // SAFETY:
        // - as above.
        let end = unsafe { start.byte_add(CHUNK.get()) };
        let this = Self(start);
        for (cut, len) in [(base, before), (end, after)] {
            if len > 0 {
                // SAFETY:
                // - a part of the mapping that nobody uses.
                unsafe { munmap(cut, len) }?;
            }
        }
        // Where the kernel has no huge pages, small ones are as good.
        let _ = this.advise(MmapAdvise::MADV_HUGEPAGE);
        Ok(this)
    }

    fn advise(&self, what: MmapAdvise) -> Result<(), Errno> {
        // SAFETY:
        // - own memory, whose contents neither advice changes.
        unsafe { madvise(self.0, CHUNK.get(), what) }
    }

    /// Asks for memory of a NUMA node; nothing of it has been touched.
    fn prefer(&self, node: u32) {
        let Some(mask) = (1 as c_ulong).checked_shl(node) else { return };
        let (address, len, bits) = (self.0.as_ptr(), CHUNK.get(), c_ulong::BITS);
        // SAFETY:
        // - own memory; the mask has so many bits.
        let result = unsafe {
            libc::syscall(libc::SYS_mbind, address, len, PREFERRED, &raw const mask, bits, 0)
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(node, %error, "memory for messages is where the kernel puts it");
        }
    }
}

fn map(len: NonZeroUsize, more: MapFlags) -> Result<NonNull<c_void>, Errno> {
    let flags = MapFlags::MAP_PRIVATE | more;
    // SAFETY:
    // - memory of the kernel's choice, which nobody has yet.
    unsafe { mmap_anonymous(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY:
        // - mapped by `new`; whoever had bytes of it is gone.
        let unmapped = unsafe { munmap(self.0, CHUNK.get()) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}

/// The NUMA node of a card, where the machine has several.
pub(super) fn node_of(device: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/infiniband/{device}/device/numa_node"));
    text.ok()?.trim().parse().ok()
}

impl fmt::Debug for Chunk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Chunk({:?})", self.base())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_to_a_huge_page_and_writable_whether_or_not_one_is_set_aside() {
        for mapping in [Mapping::new(), Mapping::aligned()] {
            let mapping = mapping.unwrap();
            mapping.prefer(0);
            let base: NonNull<u8> = mapping.0.cast();
            assert_eq!(base.align_offset(CHUNK.get()), 0);
            // SAFETY:
            // - the whole of the mapping, which nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), CHUNK.get()) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
        }
    }

    #[test]
    fn a_card_that_is_not_there_has_no_node() {
        assert_eq!(node_of("no-such-card"), None);
    }
}
