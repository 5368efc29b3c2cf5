//! `memcpy`: bandwidth of a copy inside this process.
//!
//! It is the C library's, which every `copy_from_slice` calls. A copy in hot caches runs at the speed of the cache that
//! holds both buffers; loops of one's own, `rep movsb`, huge pages and other offsets between the two buffers
//! were measured and give the same, stores past the caches only a third more for cold memory.

use std::hint::black_box;

use super::memory::{self, Arena, SharedArena};
use crate::error::Error;
use crate::measure::{Caches, Measure, Subject};

/// A copy of one size.
#[derive(Debug)]
pub(crate) struct Copy {
    caches: Caches,
    size: usize,
    buffers: usize,
    from: SharedArena,
    to: SharedArena,
}

impl Copy {
    /// Between the same buffers again and again, `buffers` of them a side.
    pub(crate) fn hot(size: usize, buffers: usize) -> Copy {
        let arena = || Arena::new(size * buffers);
        Copy { caches: Caches::Hot, size, buffers, from: arena(), to: arena() }
    }

    /// Between two large memories, each rotating.
    pub(crate) fn cold(size: usize, from: &SharedArena, to: &SharedArena) -> Copy {
        Copy { caches: Caches::Cold, size, buffers: 1, from: from.clone(), to: to.clone() }
    }
}

impl Measure for Copy {
    fn subject(&self) -> Subject {
        Subject { caches: Some(self.caches), ..Subject::bandwidth("memcpy", self.size) }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let (from, to) = (&mut *self.from.borrow_mut(), &mut *self.to.borrow_mut());
        memory::bandwidth(self.size, self.buffers, |count| {
            for _ in 0..count {
                let to = to.next(self.size);
                to.copy_from_slice(black_box(from.next(self.size)));
                black_box(to);
            }
            Ok(())
        })
    }
}
