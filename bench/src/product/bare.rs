//! `cma` between the very buffers that a transfer moves: what it is held against.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::store::to_usize;
use super::target::Target;
use super::transfer::Shape;
use crate::error::{Context, Error};
use crate::limits::memory;
use crate::measure::{Caches, Measure, Op, Subject};
use crate::raw::{descriptors, pages::Pages};

/// The kernel's transfers.
#[derive(Debug)]
pub(crate) struct Bare {
    shape: Shape,
    target: Rc<Target>,
    places: Vec<Place>,
    /// The buffer whose turn it is.
    at: usize,
    /// Asked before each transfer, whether the process is still there.
    asked: Option<OwnedFd>,
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
        Bare { shape, target, places, at: 0, asked: None }
    }

    /// Each after the question whether the number is still the target's: without it nobody may write by number.
    pub(crate) fn asking(self) -> Result<Bare, Error> {
        Ok(Bare { asked: Some(descriptors::of_process(self.target.pid()?)?), ..self })
    }

    /// Whether it is.
    fn asks(&self) -> Result<(), Error> {
        let Some(asked) = &self.asked else { return Ok(()) };
        let mut question = [PollFd::new(asked.as_fd(), PollFlags::POLLIN)];
        match poll(&mut question, PollTimeout::ZERO).context("poll")? {
            0 => Ok(()),
            _ => Err(Error::PeerGone("the target")),
        }
    }
}

impl Measure for Bare {
    fn subject(&self) -> Subject {
        let op = if self.shape.op == Op::Push { Op::Push } else { Op::Pull };
        let caches = Some(self.shape.caches);
        let figure = if self.asked.is_some() { "cma_with_question" } else { "cma" };
        Subject { op: Some(op), caches, ..Subject::bandwidth(figure, to_usize(self.shape.size)) }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let buffers = match self.shape.caches {
            Caches::Hot => self.places.len(),
            Caches::Cold => self.shape.inflight as usize,
        };
        let (pid, size) = (self.target.pid()?, to_usize(self.shape.size));
        memory::bandwidth(size, buffers, |count| {
            for _ in 0..count {
                self.asks()?;
                let place = &self.places[self.at];
                let here = (to_usize(place.offset), size);
                place.near.transfer(self.shape.op, here, (pid, place.far))?;
                self.at = (self.at + 1) % self.places.len();
            }
            Ok(())
        })
    }
}
