//! Views that do not keep what they promise.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hg_na::{Error, SharedBytes, ViewState};

use crate::flaws::Flaw;

/// What a flaw makes of a view.
pub(crate) fn twisted(flaw: Flaw, bytes: SharedBytes) -> SharedBytes {
    match flaw {
        Flaw::FadesViews | Flaw::HidesSlices => {
            let fades = flaw == Flaw::FadesViews;
            SharedBytes::new(Arc::new(Twisted { bytes, fades, was_read: AtomicBool::new(false) }))
        }
        _ => bytes,
    }
}

/// Shows its bytes once, or no slice of them.
#[derive(Debug)]
struct Twisted {
    bytes: SharedBytes,
    fades: bool,
    was_read: AtomicBool,
}

impl ViewState for Twisted {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.bytes.read(offset, into)?;
        // Relaxed: one thread reads.
        if self.fades && self.was_read.swap(true, Ordering::Relaxed) {
            into.fill(0);
        }
        Ok(())
    }

    fn as_slice(&self) -> Option<&[u8]> {
        if self.fades { self.bytes.as_slice() } else { None }
    }
}
