//! Copies bytes into and out of registered memory: the only `unsafe` of this crate.
//!
//! Both functions need the region's lock, which makes every access to the bytes exclusive: while
//! memory is registered nobody else can reach it ([`hg_na::Memory`]).

use hg_na::{Error, Memory, Segment};

/// Copies `into.len()` bytes from `offset` on.
pub(super) fn copy_out(memory: &mut Memory, offset: u64, into: &mut [u8]) -> Result<(), Error> {
    let mut rest = into;
    for piece in pieces(memory, offset, rest.len())? {
        let (now, later) = rest.split_at_mut(piece.len);
        let from = std::ptr::with_exposed_provenance::<u8>(piece.address);
        // SAFETY:
        // - in bounds: `pieces` cuts its answer out of the memory's own segments.
        // - provenance: the segments' addresses were exposed when the memory was made.
        // - alive: `memory` owns the bytes and is borrowed until the end.
        // - exclusive: the caller holds the region's lock, nobody else reaches the bytes; `now`
        //   cannot overlap them, since the owner gave them away.
        unsafe { std::ptr::copy_nonoverlapping(from, now.as_mut_ptr(), piece.len) };
        rest = later;
    }
    Ok(())
}

/// Copies `from` to `offset`.
pub(super) fn copy_in(memory: &mut Memory, offset: u64, from: &[u8]) -> Result<(), Error> {
    assert!(memory.writable(), "the caller checks whether the memory may be written");
    let mut rest = from;
    for piece in pieces(memory, offset, rest.len())? {
        let (now, later) = rest.split_at(piece.len);
        let into = std::ptr::with_exposed_provenance_mut::<u8>(piece.address);
        // SAFETY: as in `copy_out`, and
        // - writable: asserted above; such memory is made of vectors that it owns.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), into, piece.len) };
        rest = later;
    }
    Ok(())
}

/// The runs of memory that make up `len` bytes from `offset` on.
fn pieces(memory: &Memory, offset: u64, len: usize) -> Result<Vec<Segment>, Error> {
    let size = memory.len();
    let outside = || Error::OutOfRange { offset, len: len as u64, size };
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return Err(outside());
    }
    let mut skip = usize::try_from(offset).map_err(|_| outside())?;
    let mut left = len;
    let mut found = Vec::new();
    for segment in memory.segments() {
        let here = segment.len.saturating_sub(skip).min(left);
        if here > 0 {
            found.push(Segment { address: segment.address + skip, len: here });
        }
        skip = skip.saturating_sub(segment.len);
        left -= here;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cross_segments_of_any_cut() {
        let mut memory = Memory::from(vec![vec![0u8; 3], vec![], vec![0; 5], vec![0; 1]]);
        copy_in(&mut memory, 2, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut seen = [9; 9];
        copy_out(&mut memory, 0, &mut seen).unwrap();
        assert_eq!(seen, [0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(copy_in(&mut memory, 3, &[0; 7]).is_err());
        assert!(copy_out(&mut memory, u64::MAX, &mut [0; 2]).is_err());
    }
}
