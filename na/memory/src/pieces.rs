//! Ranges of memory as runs of bytes.

use std::iter;

use hg_na::{Error, Memory, Segment};

/// Bytes `offset..offset + len` of a list of runs, empty ones left out; fewer when the list is too short.
#[inline]
pub fn cut(
    runs: impl IntoIterator<Item = Segment>,
    offset: usize,
    len: usize,
) -> impl Iterator<Item = Segment> {
    let mut runs = runs.into_iter();
    let (mut skip, mut left) = (offset, len);
    iter::from_fn(move || {
        while left > 0 {
            let run = runs.next()?;
            let skipped = skip.min(run.len);
            skip -= skipped;
            let len = (run.len - skipped).min(left);
            left -= len;
            if len > 0 {
                return Some(Segment { address: run.address + skipped, len });
            }
        }
        None
    })
}

/// The runs that make up `len` bytes of memory from `offset` on; empty ones are left out.
///
/// # Errors
/// [`Error::OutOfRange`].
#[inline]
pub fn pieces(
    memory: &Memory,
    offset: u64,
    len: u64,
) -> Result<impl Iterator<Item = Segment>, Error> {
    let size = memory.len();
    let outside = || Error::OutOfRange { offset, len, size };
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(outside());
    }
    let [offset, len] = [offset, len].map(|bytes| usize::try_from(bytes).map_err(|_| outside()));
    Ok(cut(memory.segments().iter().copied(), offset?, len?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_segments() {
        let memory = Memory::from(vec![vec![0u8; 3], vec![], vec![0; 5], vec![0; 1]]);
        let found: Vec<_> = pieces(&memory, 2, 7).unwrap().collect();
        let lens: Vec<usize> = found.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [1, 5, 1]);
        assert_eq!(found[0].address, memory.segments()[0].address + 2);
    }

    #[test]
    fn ranges_outside_are_refused() {
        let memory = Memory::from(vec![0u8; 8]);
        for (offset, len) in [(0, 9), (9, 0), (u64::MAX, 2), (4, u64::MAX)] {
            assert!(pieces(&memory, offset, len).is_err(), "{offset} {len}");
        }
        assert_eq!(pieces(&memory, 8, 0).unwrap().count(), 0);
    }
}
