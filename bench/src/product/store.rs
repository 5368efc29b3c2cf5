//! Memory that transfers move: buffers of one size with known bytes, in this process or in the target.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use hg::bulk::{Bulk, Descriptor, Rights, TransferError};

use crate::error::Error;
use crate::measure::Caches;
use crate::raw::pages::Pages;

/// How the memory of one side is laid out.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Layout {
    /// Bytes of a buffer.
    pub(crate) size: u64,
    /// How many there are.
    pub(crate) buffers: u64,
    /// Pieces of a buffer, each in memory of its own.
    pub(crate) segments: u64,
    /// Whether peers can map it.
    pub(crate) shared: bool,
    /// Whether all buffers are registered as one, or each for itself.
    pub(crate) together: bool,
    /// Tells its bytes from other memory's.
    pub(crate) seed: u64,
}

impl Layout {
    /// As many buffers as are in use with so many transfers in flight.
    pub(crate) fn new(size: u64, inflight: u32, segments: u64, caches: Caches) -> Layout {
        let (buffers, together) = match caches {
            Caches::Hot => (u64::from(inflight), false),
            Caches::Cold => ((COLD_BYTES / size).max(1), segments == 1),
        };
        Layout { size, buffers, segments, shared: false, together, seed: 0 }
    }

    /// Registers it, with its bytes in it. One registration holds all buffers, or there is one for each.
    pub(crate) fn expose(
        &self,
        engine: &hg::Engine,
        rights: Rights,
    ) -> Result<Vec<Exposed>, Error> {
        let (count, size) =
            if self.together { (1, self.size * self.buffers) } else { (self.buffers, self.size) };
        let expose = |n| self.one(engine, rights, n * size, size);
        (0..count).map(expose).collect()
    }

    /// One registration, whose first byte is the memory's byte `start`.
    fn one(
        &self,
        engine: &hg::Engine,
        rights: Rights,
        start: u64,
        len: u64,
    ) -> Result<Exposed, Error> {
        let pieces = self.segments.min(len.max(1));
        let cut = |n: u64| len * n / pieces;
        let filled = |n: u64| {
            let mut bytes = vec![0; to_usize(cut(n + 1) - cut(n))];
            self.fill(start + cut(n), &mut bytes);
            bytes
        };
        if self.shared {
            let mut buffer = hg::bulk::alloc(to_usize(len))?;
            self.fill(start, &mut buffer);
            return Ok(Exposed { bulk: engine.expose(buffer, rights)?, pages: None });
        }
        if pieces == 1 {
            let pages = Pages::new(to_usize(len), |bytes| self.fill(start, bytes));
            let bulk = engine.expose(pages.memory(), rights)?;
            return Ok(Exposed { bulk, pages: Some(pages) });
        }
        let pieces: Vec<Vec<u8>> = (0..pieces).map(filled).collect();
        Ok(Exposed { bulk: engine.expose(pieces, rights)?, pages: None })
    }

    /// Where a buffer lies: in which registration, and its range there.
    pub(crate) fn place(&self, buffer: u64) -> (usize, std::ops::Range<u64>) {
        if self.together {
            return (0, buffer * self.size..(buffer + 1) * self.size);
        }
        (to_usize(buffer), 0..self.size)
    }

    /// The bytes of a buffer.
    pub(crate) fn bytes(&self, buffer: u64) -> Vec<u8> {
        let mut bytes = vec![0; to_usize(self.size)];
        self.fill(buffer * self.size, &mut bytes);
        bytes
    }

    /// The memory's bytes from `start` on: no two words of it alike, and none as with another seed.
    fn fill(&self, start: u64, bytes: &mut [u8]) {
        let word = |index: u64| ((index << 8) | self.seed).wrapping_mul(ODD).to_le_bytes();
        for (n, byte) in bytes.iter_mut().enumerate().take(to_usize(start.wrapping_neg() % 8)) {
            let at = start + n as u64;
            *byte = word(at / 8)[to_usize(at % 8)];
        }
        let first = start.next_multiple_of(8);
        let whole = bytes.get_mut(to_usize(first - start)..).unwrap_or_default();
        for (n, chunk) in whole.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&word(first / 8 + n as u64)[..chunk.len()]);
        }
    }
}

/// A registration of this process.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// The registration.
    pub(crate) bulk: Bulk,
    /// Its memory, where that is one piece of the heap.
    pub(crate) pages: Option<Pages>,
}

/// A registration of the target's.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Owned {
    /// What names it.
    pub(crate) descriptor: Descriptor,
    /// Where it begins in the target, where it is one piece of the heap.
    pub(crate) address: Option<u64>,
}

/// What the target registered, for as long as it lives.
#[derive(Debug, Default, Clone)]
pub(crate) struct Store(Arc<Mutex<Vec<Bulk>>>);

impl Store {
    /// The memory that was asked for.
    pub(crate) fn own(&self, engine: &hg::Engine, layout: &Layout) -> Result<Vec<Owned>, Refused> {
        let exposed = layout.expose(engine, Rights::READ | Rights::WRITE)?;
        let owned = |it: &Exposed| Owned {
            descriptor: it.bulk.descriptor(),
            address: it.pages.as_ref().map(Pages::address),
        };
        let owned = exposed.iter().map(owned).collect();
        let bulks = exposed.into_iter().map(|it| it.bulk);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bulks);
        Ok(owned)
    }
}

thread_local! {
    /// Buffers that no handler uses, of the one engine that this process serves with.
    static SPARE: RefCell<Vec<Bulk>> = const { RefCell::new(Vec::new()) };
}

/// Pulls a caller's bytes into a buffer of this process and gives its first word.
pub(crate) async fn pull(request: hg::Request, from: Descriptor) -> Result<u64, Refused> {
    let spare = SPARE.with_borrow_mut(|spare| spare.pop_if(|spare| spare.len() == from.len()));
    let buffer = match spare {
        Some(buffer) => buffer,
        None => {
            let pages = Pages::new(to_usize(from.len()), |_| {});
            request.engine().expose(pages.memory(), Rights::empty())?
        }
    };
    request.pull(from, &buffer).await?;
    let mut word = [0; 8];
    buffer.read(0, &mut word)?;
    SPARE.with_borrow_mut(|spare| spare.push(buffer));
    Ok(u64::from_le_bytes(word))
}

/// Why the target did not do what it was asked to.
#[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("the target refused: {0}")]
pub(crate) struct Refused(String);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(crate::error::chain(&error))
    }
}

impl From<hg::Error> for Refused {
    fn from(error: hg::Error) -> Refused {
        Refused(crate::error::chain(&error))
    }
}

impl From<TransferError> for Refused {
    fn from(error: TransferError) -> Refused {
        Refused(crate::error::chain(&error))
    }
}

/// A length in memory.
///
/// # Panics
/// When it is longer than the address space.
pub(crate) fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("what lies in memory lies in the address space")
}

/// A rotation over this much finds nothing in a cache.
const COLD_BYTES: u64 = crate::limits::memory::COLD_BYTES as u64;

/// An odd number without a pattern: the words of the memory are its multiples.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_the_same_bytes_however_they_are_cut() -> Result<(), Error> {
        let engine = hg::listen("sm://")?;
        let whole = Layout::new(1003, 3, 1, Caches::Hot);
        let read = |layout: Layout| -> Result<Vec<_>, Error> {
            let bulks = layout.expose(&engine, Rights::READ)?;
            let buffer = |n| {
                let (bulk, range) = layout.place(n);
                let mut bytes = vec![0; to_usize(layout.size)];
                bulks[bulk].bulk.read(range.start, &mut bytes)?;
                assert_eq!(range.end - range.start, layout.size);
                Ok(bytes)
            };
            (0..3).map(buffer).collect()
        };
        let bytes: Vec<_> = (0..3).map(|n| whole.bytes(n)).collect();
        assert_eq!(read(whole)?, bytes);
        assert_eq!(read(Layout { together: true, ..whole })?, bytes);
        assert_eq!(read(Layout { segments: 7, ..whole })?, bytes);
        assert_eq!(read(Layout { shared: true, ..whole })?, bytes);
        assert_ne!(read(Layout { seed: 1, ..whole })?, bytes);
        assert_ne!(bytes[0], bytes[1]);
        Ok(())
    }
}
