//! Memory that the library reads and writes while an operation is open: equal frames, each with the context that
//! names its operation.
//!
//! A frame is either ours or lent to the library ([`Frames::is_lent`]); its bytes are touched in the first state, and
//! those of a message that is complete. The memory stays until the endpoint was closed.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ffi::c_void,
    ptr::NonNull,
};

/// Words behind each context that a provider may use for itself (`fi_context2`).
#[repr(C, align(64))]
struct Context {
    internal: [usize; 8],
}

/// Most frames of an endpoint that are posted for messages.
pub(crate) const FRAMES_MAX: usize = 256;
/// Most frames of an endpoint for sending. Memory of those that nobody needs is never touched.
pub(crate) const SENDS_MAX: usize = 512;

#[cfg(test)]
thread_local! {
    /// Rows of frames that this thread has freed.
    pub(super) static FREED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Frames start at such addresses.
const ALIGN: usize = 4096;

/// A row of frames.
pub(crate) struct Frames {
    base: NonNull<u8>,
    contexts: NonNull<Context>,
    size: usize,
    lent: Vec<bool>,
    /// The library may still reach it: never freed.
    is_leaked: bool,
}

// SAFETY:
// - it owns its memory like a box; whoever has the endpoint has it alone.
unsafe impl Send for Frames {}

impl Frames {
    /// `count` frames of `size` bytes, zeroed.
    pub(crate) fn new(count: usize, size: usize) -> Self {
        assert!(count > 0 && size > 0, "sizes are constants, or were checked");
        Self {
            base: zeroed(Self::bytes_layout(count, size)),
            contexts: zeroed(Self::contexts_layout(count)).cast(),
            size,
            lent: vec![false; count],
            is_leaked: false,
        }
    }

    fn bytes_layout(count: usize, size: usize) -> Layout {
        let bytes = count.checked_mul(size).expect("sizes were checked");
        Layout::from_size_align(bytes, ALIGN).expect("sizes were checked")
    }

    fn contexts_layout(count: usize) -> Layout {
        Layout::array::<Context>(count).expect("sizes were checked")
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.lent.len()
    }

    /// Bytes of each.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// All of it, to be registered.
    pub(crate) fn range(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr().cast(), self.size * self.lent.len())
    }

    /// Whether the library has it.
    pub(crate) fn is_lent(&self, frame: usize) -> bool {
        self.lent[frame]
    }

    /// Lends a frame to the library: its bytes, and the context that names it.
    pub(crate) fn lend(&mut self, frame: usize) -> (*mut c_void, *mut c_void) {
        assert!(!self.lent[frame], "a frame has one user at a time");
        self.lent[frame] = true;
        (self.pointer(frame).cast(), self.context(frame))
    }

    /// Takes it back: its operation has completed, or was refused.
    pub(crate) fn take_back(&mut self, frame: usize) {
        assert!(self.lent[frame], "an operation completes once");
        self.lent[frame] = false;
    }

    /// The library may reach it for as long as the process lives: its memory is never freed.
    pub(crate) fn leak(&mut self) {
        self.is_leaked = true;
    }

    /// Which frame a context names, when it is one of these.
    pub(crate) fn find(&self, context: *mut c_void) -> Option<usize> {
        let offset = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let frame = offset / size_of::<Context>();
        (offset % size_of::<Context>() == 0 && frame < self.lent.len()).then_some(frame)
    }

    /// Bytes of a frame that a message has filled: the library writes them no more until the frame is lent anew.
    pub(crate) fn complete_bytes(&self, frame: usize, offset: usize, len: usize) -> &[u8] {
        let ends = offset.checked_add(len).is_some_and(|end| end <= self.size);
        assert!(ends, "inside of the frame");
        // SAFETY:
        // - in bounds: `pointer`, and the range was checked.
        let start = unsafe { self.pointer(frame).add(offset) };
        // SAFETY:
        // - initialised: zeroed when made; nobody writes these bytes: the library has said that they are complete,
        //   and `&self` keeps the frame from being lent anew.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Where bytes lie in a frame, when all of them do.
    pub(crate) fn offset_in(&self, frame: usize, bytes: *mut c_void, len: usize) -> Option<usize> {
        let offset = bytes.addr().checked_sub(self.pointer(frame).addr())?;
        offset.checked_add(len).filter(|end| *end <= self.size).map(|_| offset)
    }

    /// The first bytes of a frame of ours, to be written.
    pub(crate) fn bytes_mut(&mut self, frame: usize, len: usize) -> &mut [u8] {
        assert!(!self.lent[frame] && len <= self.size, "it is ours, and as long");
        // SAFETY:
        // - in bounds: `pointer`, and the length was checked.
        // - initialised: zeroed when made; not lent, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(frame), len) }
    }

    fn pointer(&self, frame: usize) -> *mut u8 {
        assert!(frame < self.lent.len(), "a frame of this row");
        // SAFETY:
        // - in bounds: checked above.
        unsafe { self.base.as_ptr().add(frame * self.size) }
    }

    /// The context of a frame.
    pub(super) fn context(&self, frame: usize) -> *mut c_void {
        assert!(frame < self.lent.len(), "a frame of this row");
        // SAFETY:
        // - in bounds: checked above.
        unsafe { self.contexts.as_ptr().add(frame) }.cast()
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        #[cfg(test)]
        FREED.set(FREED.get() + 1);
        let count = self.lent.len();
        // SAFETY:
        // - allocated with this layout; the endpoint that could reach it was closed before.
        unsafe { dealloc(self.base.as_ptr(), Self::bytes_layout(count, self.size)) };
        // SAFETY:
        // - as above.
        unsafe { dealloc(self.contexts.as_ptr().cast(), Self::contexts_layout(count)) };
    }
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lent = self.lent.iter().filter(|lent| **lent).count();
        write!(out, "Frames({} of {} bytes, {lent} lent)", self.lent.len(), self.size)
    }
}

fn zeroed(layout: Layout) -> NonNull<u8> {
    // SAFETY:
    // - the layout is not empty: counts and sizes are positive.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

const _: () = {
    assert!(size_of::<Context>() == 64);
    assert!(std::mem::offset_of!(Context, internal) == 0);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_finds_its_frame_and_nothing_else_does() {
        let mut frames = Frames::new(3, 100);
        let (bytes, context) = frames.lend(1);
        assert_eq!(frames.find(context), Some(1));
        assert_eq!(frames.find(bytes), None);
        assert_eq!(frames.find(std::ptr::null_mut()), None);
        assert!(frames.is_lent(1));
        frames.take_back(1);
        frames.bytes_mut(1, 2).copy_from_slice(b"ab");
        assert_eq!(frames.complete_bytes(1, 1, 2), b"b\0");
        let (end, _) = frames.lend(1);
        assert_eq!(frames.offset_in(1, end.wrapping_byte_add(90), 10), Some(90));
        assert_eq!(frames.offset_in(1, end.wrapping_byte_add(90), 11), None);
        assert_eq!(frames.offset_in(2, end, 1), None);
        assert_eq!((frames.count(), frames.size()), (3, 100));
    }
}
