//! Bytes that are seen, not owned: a peer's memory, mapped, or a copy that stands in for it.

use std::{any::Any, fmt, sync::Arc};

use crate::{Error, region::check_range};

/// A plugin's side of a view. Valid until it is dropped, also when the owner of the memory has died
/// or taken it back.
pub trait ViewState: Any + Send + Sync + fmt::Debug {
    /// Bytes seen.
    fn len(&self) -> u64;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes out; the owner may be writing them. By default from the slice.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; by default [`Error::Forked`] where there is no slice.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let bytes = self.as_slice().ok_or(Error::Forked)?;
        let len = into.len();
        check_range(offset, len as u64, bytes.len() as u64)?;
        let start = usize::try_from(offset).expect("within a slice: checked above");
        into.copy_from_slice(&bytes[start..start + len]);
        Ok(())
    }
    /// The bytes themselves, when nobody can write them any more: frozen memory.
    fn as_slice(&self) -> Option<&[u8]>;
}

/// Read-only bytes, cheap to clone and to cut: a peer's memory without a copy, or bytes of one's own.
///
/// Whoever owns the memory may go on writing it, so that there is a slice only of *frozen* memory
/// ([`SharedBytes::as_slice`]); otherwise bytes are copied out ([`SharedBytes::read`]).
#[derive(Clone)]
pub struct SharedBytes {
    state: Arc<dyn ViewState>,
    offset: u64,
    len: u64,
}

impl SharedBytes {
    /// For plugins: all that `state` sees.
    #[must_use]
    pub fn new(state: Arc<dyn ViewState>) -> Self {
        let len = state.len();
        Self { state, offset: 0, len }
    }

    /// The plugin's side; plugins find their own type through `Any`.
    #[must_use]
    pub fn state(&self) -> &dyn ViewState {
        self.state.as_ref()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, which sees the same memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<Self, Error> {
        check_range(offset, len, self.len)?;
        Ok(Self { state: Arc::clone(&self.state), offset: self.offset + offset, len })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        check_range(offset, into.len() as u64, self.len)?;
        self.state.read(self.offset + offset, into)
    }

    /// Copies everything out.
    ///
    /// # Errors
    /// Those of [`SharedBytes::read`].
    ///
    /// # Panics
    /// When it is longer than this process's address space.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(self.len).expect("what is seen lies in the address space");
        let mut bytes = vec![0; len];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes themselves, when they can never change again: frozen, or of one's own.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::try_from(self.len).ok()?;
        self.state.as_slice()?.get(start..start.checked_add(len)?)
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(Arc::new(Owned(bytes)))
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SharedBytes({} bytes)", self.len)
    }
}

#[derive(Debug)]
struct Owned(Vec<u8>);

impl ViewState for Owned {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_sees_the_same_bytes() {
        let all = SharedBytes::from(vec![0, 1, 2, 3, 4, 5, 6, 7]);
        let part = all.slice(2, 5).unwrap().slice(1, 3).unwrap();
        assert_eq!(part.as_slice(), Some(&[3, 4, 5][..]));
        let mut two = [0; 2];
        part.read(1, &mut two).unwrap();
        assert_eq!(two, [4, 5]);
        assert_eq!(part.to_vec().unwrap(), [3, 4, 5]);
    }

    #[test]
    fn nothing_outside_is_seen() {
        let part = SharedBytes::from(vec![0; 8]).slice(4, 4).unwrap();
        assert!(part.read(1, &mut [0; 4]).is_err());
        assert!(part.slice(u64::MAX, 2).is_err());
        assert!(part.slice(4, 1).is_err());
        assert!(part.slice(4, 0).unwrap().is_empty());
    }
}
