//! Memory of a worker that others write and read without its doing, and what names it.

use std::ops::Range;

use hg_na::{Descriptor, LocalSlice, Region};
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    /// A part of it, for a call.
    #[must_use]
    pub fn part(&self, range: Range<u64>) -> Part<'_> {
        Part { buffer: self, range }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// Some bytes of a [`Buffer`]: see [`Buffer::part`].
#[derive(Debug, Clone)]
pub struct Part<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) range: Range<u64>,
}

impl Part<'_> {
    pub(crate) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    pub(crate) fn slice(&self) -> Result<LocalSlice, Error> {
        self.buffer.region.slice(self.range.start, self.len()).map_err(Error::of_memory)
    }
}

/// Where in memory of another worker bytes are to be written: see [`Locator::at`].
#[derive(Debug, Clone, Copy)]
pub struct Spot<'a> {
    pub(crate) locator: &'a Locator,
    pub(crate) offset: u64,
}

/// What a function is given that is called once bytes were written into memory of its process: where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    locator: Locator,
    offset: u64,
    len: u64,
}

impl Written {
    pub(crate) fn new(into: Spot<'_>, len: u64) -> Self {
        Self { locator: into.locator.clone(), offset: into.offset, len }
    }

    /// Of the [`Buffer`] that they are in.
    #[must_use]
    pub fn locator(&self) -> &Locator {
        &self.locator
    }

    /// Which of its bytes they are.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len)
    }
}

impl Locator {
    /// Whose memory it is.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { process: self.process, thread: self.thread }
    }

    /// From an offset on, for a call.
    #[must_use]
    pub fn at(&self, offset: u64) -> Spot<'_> {
        Spot { locator: self, offset }
    }

    pub(crate) fn descriptor(&self) -> Result<Descriptor, Error> {
        Descriptor::decode(&self.descriptor).map_err(Error::of_memory)
    }
}
