//! Cuts a transfer between two lists of runs into system calls. Both may be cut differently, and a call may move less than
//! it was asked for, at any byte.

/// Bytes in one piece, in the address space of one process; `address + len` does not wrap.
pub(crate) use hg_na::Segment as Run;
pub(crate) use hg_na_memory::cut;

/// Runs that one call takes on each side (`IOV_MAX`).
pub(crate) const RUNS_MAX: usize = 1024;

/// Fills in the runs of the call that follows `moved` bytes of two lists which have equally many: of `ours` and `theirs` as
/// many bytes; false when all is done. The kernel moves at most 2^31 - 4096 of them, and the next call what is left.
pub(crate) fn next_call(
    (local, remote): (&[Run], &[Run]),
    moved: usize,
    (ours, theirs): (&mut Vec<Run>, &mut Vec<Run>),
) -> bool {
    let limit = total(local) - moved;
    for (runs, into) in [(local, &mut *ours), (remote, &mut *theirs)] {
        into.clear();
        into.extend(cut(runs.iter().copied(), moved, limit).take(RUNS_MAX));
    }
    // The side whose RUNS_MAX runs hold less decides.
    let bytes = total(ours).min(total(theirs));
    shorten(ours, bytes);
    shorten(theirs, bytes);
    bytes > 0
}

/// Keeps the first `bytes` bytes.
fn shorten(runs: &mut Vec<Run>, mut bytes: usize) {
    runs.retain_mut(|run| {
        run.len = run.len.min(bytes);
        bytes -= run.len;
        run.len > 0
    });
}

/// Bytes of a list; a list of this process's or of a checked peer's memory does not wrap.
pub(crate) fn total(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.len).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, Strategy, prop_assert_eq, proptest};

    use super::*;

    /// The address of each byte: what a plan must reproduce.
    fn bytes_of(runs: &[Run]) -> Vec<usize> {
        runs.iter().flat_map(|run| run.address..run.address + run.len).collect()
    }

    /// Runs of these lengths, far apart.
    fn runs(lens: &[usize]) -> Vec<Run> {
        (1_usize..).zip(lens).map(|(at, &len)| Run { address: at * 10_000, len }).collect()
    }

    fn lens() -> impl Strategy<Value = Vec<usize>> {
        proptest::collection::vec(0_usize..40, 0..40)
    }

    #[test]
    fn more_runs_than_a_call_takes_are_spread_over_calls() {
        let local = runs(&vec![1; 3000]);
        let remote = runs(&[1500, 1500]);
        let (mut ours, mut theirs, mut moved, mut calls) = (Vec::new(), Vec::new(), 0, 0);
        while next_call((&local, &remote), moved, (&mut ours, &mut theirs)) {
            assert!(ours.len() <= RUNS_MAX);
            moved += total(&ours);
            calls += 1;
        }
        assert_eq!((calls, moved), (3, 3000));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_byte_moves_once_to_its_place_however_the_kernel_stops(
            local in lens(), remote in lens(),
            stops in proptest::collection::vec(1_usize..100, 1..30),
        ) {
            let (mut local, mut remote) = (runs(&local), runs(&remote));
            let len = total(&local).min(total(&remote));
            shorten(&mut local, len);
            shorten(&mut remote, len);
            let naive: Vec<_> = bytes_of(&local).into_iter().zip(bytes_of(&remote)).collect();

            let (mut ours, mut theirs, mut moved) = (Vec::new(), Vec::new(), Vec::new());
            let (mut stops, mut done) = (stops.iter().cycle(), 0);
            while next_call((&local, &remote), done, (&mut ours, &mut theirs)) {
                prop_assert_eq!(total(&ours), total(&theirs));
                let stop = total(&ours).min(*stops.next().unwrap());
                let pairs = bytes_of(&ours).into_iter().zip(bytes_of(&theirs));
                moved.extend(pairs.take(stop));
                done += stop;
            }
            prop_assert_eq!(moved, naive);
        }

        #[test]
        fn a_cut_is_the_bytes_of_the_range(lens in lens(), offset in 0_usize..600, len in 0_usize..600) {
            let whole = runs(&lens);
            let part: Vec<_> = cut(whole.iter().copied(), offset, len).collect();
            let fits = total(&part) == len;
            prop_assert_eq!(fits, len == 0 || offset + len <= total(&whole));
            if fits && len > 0 {
                let all = bytes_of(&whole);
                prop_assert_eq!(bytes_of(&part), &all[offset..offset + len]);
            }
        }
    }
}
