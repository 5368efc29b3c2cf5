//! Memory that is copied from and to: hot, or so much that no cache holds it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use crate::error::Error;

/// Touched memory from a page on, and a position that rotates through it.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    start: usize,
    at: usize,
}

/// Shared by the measurements of all sizes: each goes on where the last one stopped.
pub(crate) type SharedArena = Rc<RefCell<Arena>>;

impl Arena {
    /// Room for the largest hot buffer.
    pub(crate) const HOT_BYTES: usize = 16 << 20;

    /// `len` bytes, every page of them touched.
    pub(crate) fn new(len: usize) -> SharedArena {
        // Not zero: zeroes would stay untouched until they are written.
        let bytes = vec![FILL; len + PAGE];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
        Rc::new(RefCell::new(Arena { bytes, start, at: 0 }))
    }

    /// [`COLD_BYTES`] of memory.
    pub(crate) fn cold() -> SharedArena {
        Arena::new(COLD_BYTES)
    }

    /// The next `len` bytes, from the start again when the rest is too short.
    pub(crate) fn next(&mut self, len: usize) -> &mut [u8] {
        let whole = self.start..self.start + self.bytes.len() - PAGE;
        let at = rotate(&mut self.at, len, whole.len());
        &mut self.bytes[whole][at..at + len]
    }

    /// Starts the rotation again.
    pub(crate) fn rewind(&mut self) {
        self.at = 0;
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.bytes.len() - PAGE]
    }
}

/// Where the next `len` bytes of a rotation over `total` bytes start.
///
/// # Panics
/// When `len` is more than `total`.
pub(crate) fn rotate(at: &mut usize, len: usize, total: usize) -> usize {
    assert!(len <= total, "a rotation over less than one buffer");
    let start = if *at > total - len { 0 } else { *at };
    *at = start + len;
    start
}

/// Moves buffers often enough for the clock to see it, after some that fetch hot ones; the result is in
/// MiB/s. `moves` does as many as it is told, in turn `buffers` different ones.
pub(crate) fn bandwidth(
    size: usize,
    buffers: usize,
    mut moves: impl FnMut(usize) -> Result<(), Error>,
) -> Result<f64, Error> {
    let count = (BATCH_BYTES / size.max(1)).max(MIN_COPIES * buffers).min(MAX_COPIES);
    moves(WARM_UP * buffers)?;
    let start = Instant::now();
    moves(count)?;
    let mebibytes = (count * size) as f64 / f64::from(1 << 20);
    Ok(mebibytes / start.elapsed().as_secs_f64())
}

/// A rotation over this much finds nothing in a cache.
pub(crate) const COLD_BYTES: usize = 512 << 20;

/// Bytes copied in one repetition, or a few buffers where that is more.
const BATCH_BYTES: usize = 8 << 20;
const MIN_COPIES: usize = 2;
/// So that the smallest buffers take no longer.
const MAX_COPIES: usize = 8192;

/// Copies before the clock starts: a cache may keep only what it saw twice, and who moves bytes through an engine
/// finds its own code and tables again, too.
const WARM_UP: usize = 3;

/// Buffers start at a page, so that no run is slower by the accident of an address.
const PAGE: usize = 4096;

/// What fresh memory holds.
pub(crate) const FILL: u8 = 0x5a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_visits_everything_and_starts_again() {
        let mut at = 0;
        let starts: Vec<usize> = (0..5).map(|_| rotate(&mut at, 3, 10)).collect();
        assert_eq!(starts, [0, 3, 6, 0, 3]);
        assert_eq!(rotate(&mut at, 10, 10), 0);
    }

    #[test]
    fn an_arena_gives_the_bytes_after_the_last_ones() {
        let arena = Arena::new(8);
        arena.borrow_mut().next(4).fill(1);
        arena.borrow_mut().next(4).fill(2);
        assert_eq!(arena.borrow().bytes(), [1, 1, 1, 1, 2, 2, 2, 2]);
    }
}
