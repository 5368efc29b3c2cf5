//! Bytes that ride in a descriptor, seen without a copy.

use std::sync::Arc;

use hg_na::{SharedBytes, ViewState};

use crate::{Descriptor, RemoteRange};

impl RemoteRange {
    /// The bytes themselves without a copy, when they ride in the descriptor.
    #[must_use]
    pub fn eager_view(&self) -> Option<SharedBytes> {
        self.eager()?;
        let all = SharedBytes::new(Arc::new(Eager(self.descriptor().clone())));
        all.slice(self.offset(), self.len()).ok()
    }
}

#[derive(Debug)]
struct Eager(Descriptor);

impl Eager {
    fn bytes(&self) -> &[u8] {
        self.0.eager().unwrap_or_default()
    }
}

impl ViewState for Eager {
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
}
