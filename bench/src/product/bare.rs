//! `cma` between the very buffers that a transfer moves: what it is held against.

use std::rc::Rc;

use super::store::to_usize;
use super::target::Target;
use super::transfer::Shape;
use crate::error::Error;
use crate::limits::memory;
use crate::measure::{Caches, Measure, Op, Subject};
use crate::raw::pages::Pages;

/// The kernel's transfers.
#[derive(Debug)]
pub(crate) struct Bare {
    shape: Shape,
    target: Rc<Target>,
    places: Vec<Place>,
    /// The buffer whose turn it is.
    at: usize,
}

/// Where a buffer lies on both sides.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) near: Pages,
    pub(super) offset: u64,
    pub(super) far: u64,
}

impl Bare {
    pub(super) fn new(shape: Shape, target: Rc<Target>, places: Vec<Place>) -> Bare {
        Bare { shape, target, places, at: 0 }
    }
}

impl Measure for Bare {
    fn subject(&self) -> Subject {
        let op = if self.shape.op == Op::Push { Op::Push } else { Op::Pull };
        let caches = Some(self.shape.caches);
        Subject { op: Some(op), caches, ..Subject::bandwidth("cma", to_usize(self.shape.size)) }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let buffers = match self.shape.caches {
            Caches::Hot => self.places.len(),
            Caches::Cold => self.shape.inflight as usize,
        };
        let (pid, size) = (self.target.pid()?, to_usize(self.shape.size));
        memory::bandwidth(size, buffers, |count| {
            for _ in 0..count {
                let place = &self.places[self.at];
                let here = (to_usize(place.offset), size);
                place.near.transfer(self.shape.op, here, (pid, place.far))?;
                self.at = (self.at + 1) % self.places.len();
            }
            Ok(())
        })
    }
}
