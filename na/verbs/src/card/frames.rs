//! Memory for messages: equal frames, cut from registered chunks, of which there are more as they are needed.
//!
//! A [`Frame`] is a token: whoever has it has its bytes alone. What the card has is kept with what the card was told, until it has completed.

use std::{
    fmt, slice,
    sync::{Arc, Mutex, PoisonError},
};

use crossbeam_queue::SegQueue;
use rdma_core_sys as sys;

use crate::card::{
    Device, Fault,
    chunk::{CHUNK, Chunk},
};

/// Bytes of a frame: a page, which one packet of the longest kind carries.
pub(crate) const FRAME: usize = 4096;
const FRAMES: usize = CHUNK.get() / FRAME;
/// At most: 128 MiB. A pair holds 120 frames, so that hundreds may stand still, and others go on.
const CHUNKS_MAX: usize = 64;

/// A frame's only owner.
pub(crate) struct Frame {
    chunk: Arc<Chunk>,
    place: usize,
}

impl Frame {
    /// Its first bytes.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= FRAME, "it is as long");
        // SAFETY:
        // - in bounds: `pointer`, and the length was checked; alive as long as the chunk.
        // - initialised: mapped as zeros; the card has no frame that somebody else owns.
        unsafe { slice::from_raw_parts(self.pointer(), len) }
    }

    /// The same, to be written.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= FRAME, "it is as long");
        // SAFETY:
        // - as above; `&mut self` makes it the only reference.
        unsafe { slice::from_raw_parts_mut(self.pointer(), len) }
    }

    /// What the card is told of its first bytes.
    pub(super) fn run(&self, len: usize) -> sys::Sge {
        let addr = self.pointer().expose_provenance() as u64;
        sys::Sge {
            addr,
            length: u32::try_from(len).expect("as long as a frame"),
            lkey: self.chunk.key(),
        }
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY:
        // - in bounds: a chunk has so many frames.
        unsafe { self.chunk.base().as_ptr().add(self.place * FRAME) }
    }
}

/// Frames that nobody has.
pub(crate) struct Pool {
    device: Arc<Device>,
    free: SegQueue<Frame>,
    chunks: Mutex<usize>,
}

impl Pool {
    /// With one chunk.
    ///
    /// # Errors
    /// [`Fault`] of mapping and registering it.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let chunks = Mutex::new(0);
        let this = Self { device: Arc::clone(device), free: SegQueue::new(), chunks };
        let first = this.more()?;
        this.give(first);
        Ok(this)
    }

    /// A frame; `None`: all are out, and no more memory is to be had.
    pub(crate) fn take(&self) -> Option<Frame> {
        let more = || self.more().inspect_err(|fault| tracing::debug!(%fault, "no more frames"));
        self.free.pop().or_else(|| more().ok())
    }

    /// A frame.
    ///
    /// # Errors
    /// [`Fault`] of mapping and registering memory.
    pub(super) fn first(&self) -> Result<Frame, Fault> {
        self.free.pop().map_or_else(|| self.more(), Ok)
    }

    /// It may be used anew.
    pub(crate) fn give(&self, frame: Frame) {
        self.free.push(frame);
    }

    fn more(&self) -> Result<Frame, Fault> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frame) = self.free.pop() {
            return Ok(frame);
        }
        if *chunks == CHUNKS_MAX {
            return Err(Fault::Again);
        }
        let chunk = Arc::new(Chunk::new(&self.device)?);
        *chunks += 1;
        for place in 1..FRAMES {
            self.free.push(Frame { chunk: Arc::clone(&chunk), place });
        }
        Ok(Frame { chunk, place: 0 })
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Frame({})", self.place)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pool({} free)", self.free.len())
    }
}
