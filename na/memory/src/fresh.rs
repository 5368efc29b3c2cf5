//! Memory that nobody has touched before: it lies on the NUMA node of whoever touches it first (set_mempolicy(2)).

use std::{collections::TryReserveError, ffi::c_void, ptr::NonNull};

use nix::sys::mman::{MmapAdvise, madvise};

/// The longest page that Linux has; shorter ones divide it.
const PAGE: usize = 64 << 10;

/// Zeroes, whose whole pages the calling thread is the first to touch. An allocator hands out pages again that lay elsewhere; here they are
/// given back to the system before.
///
/// # Errors
/// There is no such memory.
pub fn zeroed_here(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes)?;
    let room = memory.spare_capacity_mut().as_mut_ptr_range();
    let first = room.start.map_addr(|it| it.next_multiple_of(PAGE)).cast::<c_void>();
    let whole = (room.end.addr() & !(PAGE - 1)).saturating_sub(first.addr());
    if let Some(first) = NonNull::new(first).filter(|_| whole > 0) {
        // SAFETY:
        // - in bounds: whole pages of the vector's allocation, which is its alone.
        // - holds nothing: no byte of it was written, so that none is lost.
        // Memory that is locked or of huge pages is refused, and stays where it is.
        let _stays = unsafe { madvise(first, whole, MmapAdvise::MADV_DONTNEED) };
    }
    memory.resize(bytes, 0);
    Ok(memory)
}
