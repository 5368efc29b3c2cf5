//! Objects of the library that close themselves.

use std::ptr;

use libfabric_sys::{Fid, calls};

use crate::fabric::Fault;

/// An object of type `T`, whose first field is its `fid`; closed when dropped.
///
/// Fields of a structure are dropped in their order: what is opened last stands first.
/// Null once it was closed: [`Handle::close`].
pub(crate) struct Handle<T>(*mut T);

impl<T> Handle<T> {
    /// Takes what the library has just opened.
    ///
    /// # Safety
    /// It is open, begins with a `fid`, nobody else closes it, and what it was made of is closed later.
    pub(crate) unsafe fn new(object: *mut T) -> Self {
        assert!(!object.is_null(), "the library opened it");
        Self(object)
    }

    /// Closes it. What the library refuses is still open, and may be tried again.
    ///
    /// # Errors
    /// Why the library refuses: `FI_EBUSY` while something else needs it.
    pub(crate) fn close(&mut self) -> Result<(), Fault> {
        if self.0.is_null() {
            return Ok(());
        }
        // SAFETY:
        // - open, and closed only here: `new`.
        let result = unsafe { calls::close(self.fid()) };
        Fault::check("fi_close", result)?;
        self.0 = ptr::null_mut();
        Ok(())
    }

    /// Leaves it open until the process ends.
    pub(crate) fn leave_open(&mut self) {
        self.0 = ptr::null_mut();
    }

    /// For calls.
    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }

    /// For calls on what all objects have in common.
    pub(crate) fn fid(&self) -> *mut Fid {
        self.0.cast()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Err(fault) = self.close() {
            tracing::error!(
                %fault,
                "libfabric did not close an object: it is left to the process's end"
            );
        }
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Handle({:p})", self.0)
    }
}

// SAFETY:
// - objects are not bound to a thread; who owns the handle sees to it that one at a time uses it.
unsafe impl<T> Send for Handle<T> {}
