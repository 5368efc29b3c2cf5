//! Registered memory: reachable by peers, given back when they are through with it.

use std::{any::Any, fmt, sync::Arc};

use crate::{Descriptor, Error, Memory, Rights};

/// A plugin's side of a registered region.
pub trait RegionState: Any + Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn len(&self) -> u64;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What peers may do.
    fn rights(&self) -> Rights;
    /// What a peer needs to reach it.
    fn descriptor(&self) -> Descriptor;
    /// Copies bytes out, in one go; peers may be writing them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;
    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Denied`] when the memory is not writable.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error>;
    /// Ends all access by peers, waiting (bounded) for those in the middle of one.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while an own operation uses it.
    fn unregister(self: Arc<Self>) -> Result<Memory, Error>;
}

/// Registered memory, usable by every context of the domain that made it.
///
/// Dropping it unregisters it as soon as the operations that use it are done.
#[derive(Debug)]
pub struct Region(Arc<dyn RegionState>);

impl Region {
    /// For plugins.
    #[must_use]
    pub fn new(state: Arc<dyn RegionState>) -> Self {
        Self(state)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What peers may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights()
    }

    /// What a peer needs to reach it.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.0.descriptor()
    }

    /// The plugin's side; plugins find their own type through `Any`.
    #[must_use]
    #[inline]
    pub fn state(&self) -> &dyn RegionState {
        self.0.as_ref()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Denied`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.0.write(offset, from)
    }

    /// A range of it, for an operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<LocalSlice, Error> {
        check_range(offset, len, self.len())?;
        Ok(LocalSlice { region: Arc::clone(&self.0), offset, len })
    }

    /// Ends all access and gives the memory back.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while an operation in flight uses it; it is then unregistered when
    /// that operation is dropped, and its memory freed.
    pub fn unregister(self) -> Result<Memory, Error> {
        self.0.unregister()
    }
}

pub(crate) fn check_range(offset: u64, len: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}

/// A range of a registered region of this process.
#[derive(Debug, Clone)]
pub struct LocalSlice {
    region: Arc<dyn RegionState>,
    offset: u64,
    len: u64,
}

impl LocalSlice {
    /// The plugin's side; plugins find their own type through `Any`.
    #[must_use]
    pub fn region(&self) -> &Arc<dyn RegionState> {
        &self.region
    }

    /// First byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
