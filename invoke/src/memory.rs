//! Memory of a worker that others write and read without its doing, and what names it.

use std::ops::Range;

use hg_na::{Descriptor, LocalSlice, Region, RemoteSlice};
use serde::{Deserialize, Serialize};

use crate::{Error, Place};

/// Memory that any worker of the job may put into and get from, once it knows its [`Locator`]: see
/// [`Worker::allocate`](crate::Worker::allocate). Dropped, it is reached no more.
#[derive(Debug)]
pub struct Buffer {
    region: Region,
    place: Place,
}

/// What names a [`Buffer`] of some worker: an argument or a result of functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locator {
    process: u32,
    thread: u32,
    /// A claim of whoever has sent it, until the transport has checked it.
    descriptor: Vec<u8>,
}

impl Buffer {
    pub(crate) fn new(region: Region, place: Place) -> Self {
        Self { region, place }
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// What others need to reach it.
    #[must_use]
    pub fn locator(&self) -> Locator {
        let Place { process, thread } = self.place;
        Locator { process, thread, descriptor: self.region.descriptor().encode() }
    }

    /// Copies bytes out, from an offset on; others may be writing them.
    ///
    /// # Errors
    /// [`Error::Memory`]: there are not so many.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.region.read(offset, into).map_err(Error::of_memory)
    }

    /// Copies bytes in, from an offset on.
    ///
    /// # Errors
    /// [`Error::Memory`]: there is no room for so many.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.region.write(offset, from).map_err(Error::of_memory)
    }

    pub(crate) fn slice(&self, range: &Range<u64>) -> Result<LocalSlice, Error> {
        let len = range.end.saturating_sub(range.start);
        self.region.slice(range.start, len).map_err(Error::of_memory)
    }
}

impl Locator {
    /// Whose memory it is.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { process: self.process, thread: self.thread }
    }

    pub(crate) fn descriptor(&self) -> Result<Descriptor, Error> {
        Descriptor::decode(&self.descriptor).map_err(Error::of_memory)
    }

    pub(crate) fn slice(of: &Descriptor, offset: u64, len: u64) -> Result<RemoteSlice, Error> {
        of.slice(offset, len).map_err(Error::of_memory)
    }
}
