//! Memory for messages: equal frames, registered as a whole. A frame is ours, or lent to the card.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    fmt,
    ptr::NonNull,
    slice,
    sync::Arc,
};

use hg_na::Segment;
use rdma_core_sys as sys;

use crate::card::{Device, Fault, registration::Registration};

/// Bytes of a frame: a page, which one packet of the longest kind carries.
pub(crate) const FRAME: usize = 4096;

/// A row of frames.
pub(crate) struct Frames {
    /// Ends before the memory is freed.
    registration: Option<Registration>,
    base: NonNull<u8>,
    lent: Vec<bool>,
}

// SAFETY:
// - it owns its memory like a box; whoever has the endpoint has it alone.
unsafe impl Send for Frames {}

impl Frames {
    /// `count` frames, zeroed.
    ///
    /// # Errors
    /// [`Fault`] of the registration.
    pub(crate) fn new(device: &Arc<Device>, count: usize) -> Result<Self, Fault> {
        let layout = layout(count);
        // SAFETY:
        // - `count` is no zero, so neither is the size.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        let mut this = Self { registration: None, base, lent: vec![false; count] };
        let run = Segment { address: base.as_ptr().expose_provenance(), len: layout.size() };
        // SAFETY:
        // - the memory is freed by `drop`, behind the registration.
        let registration = unsafe { Registration::raw(device, run, sys::ACCESS_LOCAL_WRITE) };
        this.registration = Some(registration?);
        Ok(this)
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.lent.len()
    }

    /// What the card is told of a frame's first bytes.
    pub(crate) fn run(&self, frame: usize, len: usize) -> sys::Sge {
        let lkey = self.registration.as_ref().map_or(0, |it| it.keys().0);
        let addr = self.pointer(frame).expose_provenance() as u64;
        sys::Sge { addr, length: u32::try_from(len).expect("as long as a frame"), lkey }
    }

    /// The card has it from now on.
    pub(crate) fn lend(&mut self, frame: usize) {
        assert!(!self.lent[frame], "a frame has one user at a time");
        self.lent[frame] = true;
    }

    /// The card has done with it; `false`: it had not got it.
    pub(crate) fn take_back(&mut self, frame: usize) -> bool {
        self.lent.get_mut(frame).is_some_and(std::mem::take)
    }

    /// The bytes of a frame of ours.
    pub(crate) fn bytes(&self, frame: usize, len: usize) -> &[u8] {
        assert!(!self.lent[frame] && len <= FRAME, "it is ours, and as long");
        // SAFETY:
        // - in bounds: `pointer`, and the length was checked.
        // - initialised: zeroed when made; the card does not write what is not lent, and `&self` keeps it from being lent.
        unsafe { slice::from_raw_parts(self.pointer(frame), len) }
    }

    /// The same, to be written.
    pub(crate) fn bytes_mut(&mut self, frame: usize, len: usize) -> &mut [u8] {
        assert!(!self.lent[frame] && len <= FRAME, "it is ours, and as long");
        // SAFETY:
        // - as above; `&mut self` makes it the only reference.
        unsafe { slice::from_raw_parts_mut(self.pointer(frame), len) }
    }

    fn pointer(&self, frame: usize) -> *mut u8 {
        assert!(frame < self.lent.len(), "a frame of these");
        // SAFETY:
        // - in bounds: there are so many frames.
        unsafe { self.base.as_ptr().add(frame * FRAME) }
    }
}

fn layout(count: usize) -> Layout {
    assert!(count > 0, "sizes are constants, or were checked");
    let bytes = count.checked_mul(FRAME).expect("sizes were checked");
    Layout::from_size_align(bytes, FRAME).expect("sizes were checked")
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.registration.as_mut().is_some_and(|it| !it.end()) {
            return;
        }
        // SAFETY:
        // - made by `new` with the same layout; the card reaches it no more.
        unsafe { dealloc(self.base.as_ptr(), layout(self.lent.len())) };
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lent = self.lent.iter().filter(|it| **it).count();
        write!(out, "Frames({lent} of {} lent)", self.lent.len())
    }
}
