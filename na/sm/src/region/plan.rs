//! Cuts a transfer between two lists of runs into system calls. Both may be cut differently, and a call may move less than
//! it was asked for, at any byte.

use hg_na::Segment;

/// Runs that one call takes on each side (`IOV_MAX`).
pub(crate) const RUNS_MAX: usize = 1024;

/// Bytes that one call is asked for; the kernel moves at most 2^31 - 4096.
pub(crate) const CALL_MAX: u64 = 1 << 30;

/// Bytes in one piece, in the address space of one process. Laid out as the kernel's `iovec` (64 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Run {
    /// Address of the first byte.
    pub(crate) address: u64,
    /// Length in bytes; `address + len` does not wrap.
    pub(crate) len: u64,
}

impl From<&Segment> for Run {
    fn from(segment: &Segment) -> Self {
        Self { address: segment.address as u64, len: segment.len as u64 }
    }
}

/// Fills in the runs of the call that follows `moved` bytes of two lists which have equally many: of `ours` and `theirs` as
/// many bytes, at most `bytes_max`; false when all is done.
pub(crate) fn next_call(
    (local, remote): (&[Run], &[Run]),
    moved: u64,
    bytes_max: u64,
    (ours, theirs): (&mut Vec<Run>, &mut Vec<Run>),
) -> bool {
    let limit = (total(local) - moved).min(bytes_max);
    for (runs, into) in [(local, &mut *ours), (remote, &mut *theirs)] {
        into.clear();
        cut(runs.iter().copied(), moved, limit, into);
        into.truncate(RUNS_MAX);
    }
    // The side whose RUNS_MAX runs hold less decides.
    let bytes = total(ours).min(total(theirs));
    shorten(ours, bytes);
    shorten(theirs, bytes);
    bytes > 0
}

/// Keeps the first `bytes` bytes.
fn shorten(runs: &mut Vec<Run>, mut bytes: u64) {
    runs.retain_mut(|run| {
        run.len = run.len.min(bytes);
        bytes -= run.len;
        run.len > 0
    });
}

/// Bytes of a list; a list of this process's or of a checked peer's memory does not wrap.
pub(crate) fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len).sum()
}

/// Bytes `offset..offset + len` of a list of runs, appended to `into`; false when it is too short.
#[inline]
pub(crate) fn cut(
    runs: impl IntoIterator<Item = Run>,
    offset: u64,
    len: u64,
    into: &mut Vec<Run>,
) -> bool {
    let (mut skip, mut left) = (offset, len);
    for run in runs {
        let skipped = skip.min(run.len);
        skip -= skipped;
        let taken = (run.len - skipped).min(left);
        if taken > 0 {
            into.push(Run { address: run.address + skipped, len: taken });
        }
        left -= taken;
        if left == 0 {
            return true; // Most lie in one run: no more is asked for.
        }
    }
    left == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// The address of each byte: what a plan must reproduce.
    fn bytes_of(runs: &[Run]) -> Vec<u64> {
        runs.iter().flat_map(|run| run.address..run.address + run.len).collect()
    }

    /// Runs of these lengths, far apart.
    fn runs(lens: &[u64]) -> Vec<Run> {
        (1_u64..).zip(lens).map(|(at, &len)| Run { address: at * 10_000, len }).collect()
    }

    fn lens() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(0_u64..40, 0..40)
    }

    #[test]
    fn more_runs_than_a_call_takes_are_spread_over_calls() {
        let local = runs(&vec![1; 3000]);
        let remote = runs(&[1500, 1500]);
        let (mut ours, mut theirs, mut moved, mut calls) = (Vec::new(), Vec::new(), 0, 0);
        while next_call((&local, &remote), moved, CALL_MAX, (&mut ours, &mut theirs)) {
            assert!(ours.len() <= RUNS_MAX);
            moved += total(&ours);
            calls += 1;
        }
        assert_eq!((calls, moved), (3, 3000));
    }

    #[test]
    fn more_than_two_gib_are_spread_over_calls() {
        let len = 5 << 30;
        let (local, remote) = ([Run { address: 1, len }], [Run { address: 1 << 40, len }]);
        let (mut ours, mut theirs, mut moved, mut calls) = (Vec::new(), Vec::new(), 0, 0);
        while next_call((&local, &remote), moved, CALL_MAX, (&mut ours, &mut theirs)) {
            moved += total(&ours);
            calls += 1;
        }
        assert_eq!((calls, moved), (5, len));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_byte_moves_once_to_its_place_however_the_kernel_stops(
            local in lens(), remote in lens(),
            stops in proptest::collection::vec(1_u64..100, 1..30), call_max in 1_u64..200,
        ) {
            let (mut local, mut remote) = (runs(&local), runs(&remote));
            let len = total(&local).min(total(&remote));
            shorten(&mut local, len);
            shorten(&mut remote, len);
            let naive: Vec<_> = bytes_of(&local).into_iter().zip(bytes_of(&remote)).collect();

            let (mut ours, mut theirs, mut moved) = (Vec::new(), Vec::new(), Vec::new());
            let (mut stops, mut done) = (stops.iter().cycle(), 0);
            while next_call((&local, &remote), done, call_max, (&mut ours, &mut theirs)) {
                prop_assert_eq!(total(&ours), total(&theirs));
                prop_assert!(total(&ours) <= call_max);
                let stop = total(&ours).min(*stops.next().unwrap());
                let pairs = bytes_of(&ours).into_iter().zip(bytes_of(&theirs));
                moved.extend(pairs.take(usize::try_from(stop).unwrap()));
                done += stop;
            }
            prop_assert_eq!(moved, naive);
        }

        #[test]
        fn a_cut_is_the_bytes_of_the_range(lens in lens(), offset in 0_u64..600, len in 0_u64..600) {
            let whole = runs(&lens);
            let mut part = Vec::new();
            let fits = cut(whole.iter().copied(), offset, len, &mut part);
            prop_assert_eq!(fits, len == 0 || offset + len <= total(&whole));
            if fits && len > 0 {
                let all = bytes_of(&whole);
                let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
                prop_assert_eq!(bytes_of(&part), &all[range]);
            }
        }
    }
}
