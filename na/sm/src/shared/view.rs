//! What a view of a peer's memory holds: its mapping, whatever becomes of connection, context and owner.

use std::{fmt, sync::Arc};

use hg_na::{Error, SharedBytes, ViewState};

use super::maps::PeerPages;

struct PeerView(Arc<PeerPages>);

/// A view of a whole region.
pub(crate) fn view_of(pages: &Arc<PeerPages>) -> SharedBytes {
    SharedBytes::new(Arc::new(PeerView(Arc::clone(pages))))
}

impl ViewState for PeerView {
    fn len(&self) -> u64 {
        self.0.memory().len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if self.0.is_elsewhere() {
            return Err(Error::Forked);
        }
        hg_na_memory::copy_out(self.0.memory(), offset, into)
    }

    fn as_slice(&self) -> Option<&[u8]> {
        self.0.frozen()
    }
}

impl fmt::Debug for PeerView {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PeerView({} bytes)", self.len())
    }
}
