//! `memcpy`, `memcpy_cold`: bandwidth of a copy inside this process.

use std::hint::black_box;

use super::memory::{self, Arena, SharedArena};
use crate::error::Error;
use crate::measure::{Measure, Subject, Unit};

/// A copy of one size.
#[derive(Debug)]
pub(crate) struct Copy {
    figure: &'static str,
    size: usize,
    from: SharedArena,
    to: SharedArena,
}

impl Copy {
    /// Between the same two buffers again and again.
    pub(crate) fn hot(size: usize) -> Copy {
        Copy { figure: "memcpy", size, from: Arena::new(size), to: Arena::new(size) }
    }

    /// Between two large memories, each rotating.
    pub(crate) fn cold(size: usize, from: &SharedArena, to: &SharedArena) -> Copy {
        Copy { figure: "memcpy_cold", size, from: from.clone(), to: to.clone() }
    }
}

impl Measure for Copy {
    fn subject(&self) -> Subject {
        Subject {
            size: Some(self.size as u64),
            ..Subject::new(self.figure, Unit::MebibytesPerSecond)
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let (from, to) = (&mut *self.from.borrow_mut(), &mut *self.to.borrow_mut());
        memory::bandwidth(self.size, || {
            let to = to.next(self.size);
            to.copy_from_slice(black_box(from.next(self.size)));
            black_box(to);
            Ok(())
        })
    }
}
