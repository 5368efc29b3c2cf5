//! Ranges of memory as runs of bytes.

use hg_na::{Error, Memory, Segment};

/// Appends bytes `offset..offset + len` of a list of runs to `into`, empty ones left out; false when the list is too short.
#[inline]
pub fn cut(
    runs: impl IntoIterator<Item = Segment>,
    offset: usize,
    len: usize,
    into: &mut Vec<Segment>,
) -> bool {
    let (mut skip, mut left) = (offset, len);
    for run in runs {
        let skipped = skip.min(run.len);
        skip -= skipped;
        let taken = (run.len - skipped).min(left);
        if taken > 0 {
            into.push(Segment { address: run.address + skipped, len: taken });
        }
        left -= taken;
        if left == 0 {
            return true; // Most lie in one run: no more is asked for.
        }
    }
    left == 0
}

/// Appends the runs that make up `len` bytes of memory from `offset` on; empty ones are left out.
///
/// # Errors
/// [`Error::OutOfRange`]; nothing is appended then.
#[inline]
pub fn pieces(
    memory: &Memory,
    offset: u64,
    len: u64,
    into: &mut Vec<Segment>,
) -> Result<(), Error> {
    let size = memory.len();
    let outside = || Error::OutOfRange { offset, len, size };
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(outside());
    }
    let [offset, len] = [offset, len].map(|bytes| usize::try_from(bytes).map_err(|_| outside()));
    cut(memory.segments().iter().copied(), offset?, len?, into);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_segments() {
        let memory = Memory::from(vec![vec![0u8; 3], vec![], vec![0; 5], vec![0; 1]]);
        let mut found = Vec::new();
        pieces(&memory, 2, 7, &mut found).unwrap();
        let lens: Vec<usize> = found.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [1, 5, 1]);
        assert_eq!(found[0].address, memory.segments()[0].address + 2);
    }

    #[test]
    fn ranges_outside_are_refused_and_append_nothing() {
        let memory = Memory::from(vec![0u8; 8]);
        let mut found = Vec::new();
        for (offset, len) in [(0, 9), (9, 0), (u64::MAX, 2), (4, u64::MAX)] {
            assert!(pieces(&memory, offset, len, &mut found).is_err(), "{offset} {len}");
        }
        assert!(found.is_empty());
        pieces(&memory, 8, 0, &mut found).unwrap();
        assert!(found.is_empty());
    }
}
