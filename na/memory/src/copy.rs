//! Copies between memory and slices, and from memory to memory.

use std::sync::PoisonError;

use hg_na::{Error, Memory, Rights, Segment};

use crate::{pieces, raw};

/// Copies `into.len()` bytes from `offset` on.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn copy_out(memory: &Memory, offset: u64, mut into: &mut [u8]) -> Result<(), Error> {
    check_reached(memory)?;
    let runs = pieces(memory, offset, into.len() as u64)?;
    let _shared = memory.exclusion().read().unwrap_or_else(PoisonError::into_inner);
    for run in runs {
        let now = into.split_off_mut(..run.len).expect("the runs are as long together");
        raw::copy_out(memory, run, now);
    }
    Ok(())
}

/// Copies `from` to `offset`.
///
/// # Errors
/// [`Error::OutOfRange`], or [`Error::Denied`] when the memory is not writable.
pub fn copy_in(memory: &Memory, offset: u64, mut from: &[u8]) -> Result<(), Error> {
    check_writable(memory)?;
    let runs = pieces(memory, offset, from.len() as u64)?;
    let _exclusive = memory.exclusion().write().unwrap_or_else(PoisonError::into_inner);
    for run in runs {
        let now = from.split_off(..run.len).expect("the runs are as long together");
        raw::copy_in(memory, run, now);
    }
    Ok(())
}

/// Copies `len` bytes from one memory into another, or within one where the ranges may overlap.
///
/// # Errors
/// As [`copy_in`], for either side.
pub fn copy_between(
    (from, from_offset): (&Memory, u64),
    (into, into_offset): (&Memory, u64),
    len: u64,
) -> Result<(), Error> {
    check_reached(from)?;
    check_writable(into)?;
    let mut sources = pieces(from, from_offset, len)?;
    let mut targets = pieces(into, into_offset, len)?;
    // One lock where both share it (the same memory, or aliases); else in the order of their addresses,
    // so that two copies in opposite directions do not wait for each other.
    let (ours, theirs) = (from.exclusion(), into.exclusion());
    let read = || ours.read().unwrap_or_else(PoisonError::into_inner);
    let is_first = std::ptr::from_ref(ours) < std::ptr::from_ref(theirs);
    let _shared = is_first.then(read);
    let _exclusive = theirs.write().unwrap_or_else(PoisonError::into_inner);
    let _shared_later = (!is_first && !std::ptr::eq(ours, theirs)).then(read);
    // Both are of the same total length, and may be cut differently.
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some(near), Some(far)) = (source, target) {
        let len = near.len.min(far.len);
        raw::copy(from, Segment { len, ..near }, into, Segment { len, ..far });
        source = rest_of(near, len).or_else(|| sources.next());
        target = rest_of(far, len).or_else(|| targets.next());
    }
    Ok(())
}

fn rest_of(run: Segment, used: usize) -> Option<Segment> {
    (run.len > used).then(|| Segment { address: run.address + used, len: run.len - used })
}

/// Refuses memory that is not the processor's to touch.
pub(crate) fn check_reached(memory: &Memory) -> Result<(), Error> {
    if memory.device().is_none() {
        return Ok(());
    }
    Err(Error::Unsupported("a copy of a device's memory: its own library makes one"))
}

/// Refuses memory that must not be written.
pub(crate) fn check_writable(memory: &Memory) -> Result<(), Error> {
    check_reached(memory)?;
    if memory.writable() {
        return Ok(());
    }
    Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hg_na::Frozen;

    use super::*;

    fn many() -> Memory {
        Memory::from(vec![vec![0u8; 3], vec![], vec![0; 5], vec![0; 1]])
    }

    #[test]
    fn copies_cross_segments_of_any_cut() {
        let memory = many();
        copy_in(&memory, 2, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut seen = [9; 9];
        copy_out(&memory, 0, &mut seen).unwrap();
        assert_eq!(seen, [0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(copy_in(&memory, 3, &[0; 7]).is_err());
        assert!(copy_out(&memory, u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn memory_is_copied_to_memory_that_is_cut_differently() {
        let (from, into) = (Memory::from(vec![vec![1u8, 2], vec![3, 4, 5], vec![6]]), many());
        copy_between((&from, 1), (&into, 2), 5).unwrap();
        assert_eq!(
            into.into_vecs().unwrap(),
            [vec![0, 0, 2], vec![], vec![3, 4, 5, 6, 0], vec![0]]
        );
    }

    #[test]
    fn ranges_of_one_memory_may_overlap() {
        let memory = Memory::from(vec![1u8, 2, 3, 4, 5]);
        copy_between((&memory, 0), (&memory, 1), 4).unwrap();
        assert_eq!(memory.into_vec().unwrap(), [1, 1, 2, 3, 4]);
    }

    /// Of every kind, each with the bytes 1 to 6.
    fn of_every_kind() -> Vec<Memory> {
        let bytes = || vec![1u8, 2, 3, 4, 5, 6];
        let shared = || Arc::<[u8]>::from(bytes().as_slice());
        let original = Arc::new(Memory::from(vec![vec![0u8], vec![1, 2], vec![3, 4, 5, 6]]));
        vec![
            Memory::from(bytes()),
            Memory::from(vec![vec![1, 2], vec![], vec![3, 4, 5, 6]]),
            Memory::tail([&[0][..], &bytes()].concat(), 1),
            Memory::from(shared()),
            Memory::from(Frozen::from(bytes())),
            Memory::alias(&Arc::new(Memory::from(bytes()))),
            Memory::alias_part(&original, 1..3),
        ]
    }

    #[test]
    fn memory_of_every_kind_is_copied_after_it_was_moved_and_gives_back_what_was_written() {
        for memory in of_every_kind() {
            let moved = Box::new(memory);
            let mut seen = [0; 6];
            copy_out(&moved, 0, &mut seen).unwrap();
            assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
            assert_eq!(copy_in(&moved, 1, &[9, 8]).is_ok(), moved.writable());
            let mut seen = [0; 3];
            copy_out(&moved, 0, &mut seen).unwrap();
            assert_eq!(seen, if moved.writable() { [1, 9, 8] } else { [1, 2, 3] });
            if let Ok(bytes) = moved.into_vec() {
                assert!(bytes.ends_with(&[1, 9, 8, 4, 5, 6]));
            }
        }
    }

    #[test]
    fn bytes_that_nobody_can_write_are_copied_while_others_look_at_them() {
        let frozen = Frozen::from(vec![1u8, 2, 3]);
        let shared = Arc::<[u8]>::from([1u8, 2, 3].as_slice());
        for (memory, slice) in
            [(Memory::from(&frozen), &frozen[..]), (Memory::from(Arc::clone(&shared)), &shared[..])]
        {
            let mut seen = [0; 3];
            copy_out(&memory, 0, &mut seen).unwrap();
            drop(memory);
            assert_eq!(seen, slice);
        }
    }

    #[test]
    fn copies_by_aliases_in_two_threads_exclude_one_another() {
        let original = Arc::new(Memory::from(vec![0u8; 8]));
        let [one, other] = [1u8, 2].map(|byte| (byte, Memory::alias(&original)));
        std::thread::scope(|scope| {
            for (byte, alias) in [&one, &other] {
                scope.spawn(|| {
                    for _ in 0..10 {
                        copy_in(alias, 0, &[*byte; 8]).unwrap();
                        let mut seen = [0; 8];
                        copy_out(alias, 0, &mut seen).unwrap();
                        assert!(seen == [1; 8] || seen == [2; 8]);
                        copy_between((alias, 0), (&original, 4), 4).unwrap();
                    }
                });
            }
        });
        drop((one, other));
        let bytes = Arc::into_inner(original).unwrap().into_vec().unwrap();
        assert!(bytes == [1; 8] || bytes == [2; 8]);
    }

    #[test]
    #[expect(unsafe_code, reason = "memory that nobody may touch")]
    fn memory_of_a_device_is_not_touched_by_the_processor() {
        let segment = Segment { address: 8, len: 4 };
        // SAFETY:
        // - there is no such device: nothing reaches it.
        let device =
            unsafe { Memory::on_device(hg_na::Device::Cuda(0), vec![segment], true, Arc::new(())) };
        let alias = Memory::alias(&Arc::new(device));
        assert_eq!(alias.device(), Some(hg_na::Device::Cuda(0)));
        let own = Memory::from(vec![0u8; 4]);
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = [
            copy_out(&alias, 0, &mut [0; 4]),
            copy_in(&alias, 0, &[0; 4]),
            copy_between((&alias, 0), (&own, 0), 4),
            copy_between((&own, 0), (&alias, 0), 4),
            crate::write_vectored(std::os::fd::AsFd::as_fd(&one), (&[], &[]), &alias, (0, 4))
                .map(drop),
            crate::read_vectored(std::os::fd::AsFd::as_fd(&other), &alias, (0, 4), &mut [])
                .map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        }
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let memory = Memory::from(Arc::<[u8]>::from([1u8, 2].as_slice()));
        assert!(matches!(copy_in(&memory, 0, &[9]), Err(Error::Denied { .. })));
        let refused = copy_between((&memory, 0), (&memory, 1), 1);
        assert!(matches!(refused, Err(Error::Denied { .. })));
    }
}
