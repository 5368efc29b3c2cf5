//! A transfer between two lists of runs, in system calls. Both may be cut differently, and a call may move less than it was
//! asked for, at any byte: as much as the shorter list has, 2^31 - 4096 bytes, or whatever the kernel likes.

/// Bytes in one piece, in the address space of one process; `address + len` does not wrap.
pub(crate) use hg_na::Segment as Run;
pub(crate) use hg_na_memory::cut;

/// Runs that one call takes on each side (`IOV_MAX`).
const RUNS_MAX: usize = 1024;

/// How many runs of a list one call is given.
pub(crate) fn of_a_call(runs: &[Run]) -> usize {
    runs.len().min(RUNS_MAX)
}

/// What is left of a list once its first bytes were moved; no empty run is in front.
pub(crate) fn behind(runs: &mut [Run], mut moved: usize) -> &mut [Run] {
    let is_over = |run: &&Run| {
        let is_over = run.len <= moved;
        moved -= if is_over { run.len } else { 0 };
        is_over
    };
    let over = runs.iter().take_while(is_over).count();
    let left = &mut runs[over..];
    if let Some(first) = left.first_mut() {
        (first.address, first.len) = (first.address + moved, first.len - moved);
    }
    left
}

/// Bytes of a list; a list of this process's or of a checked peer's memory does not wrap.
pub(crate) fn total(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.len).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};

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

    /// Moves bytes as the kernel does, which stops where it likes; gives the pairs of addresses, and how many calls it took.
    fn moved(
        local: &mut [Run],
        remote: &mut [Run],
        mut stop: impl FnMut() -> usize,
    ) -> (Vec<(usize, usize)>, usize) {
        let (mut ours, mut theirs) = (behind(local, 0), behind(remote, 0));
        let (mut pairs, mut calls) = (Vec::new(), 0);
        while !ours.is_empty() {
            let [near, far] = [&*ours, &*theirs].map(|runs| bytes_of(&runs[..of_a_call(runs)]));
            let bytes = near.len().min(far.len()).min(stop());
            pairs.extend(near.into_iter().zip(far).take(bytes));
            (ours, theirs) = (behind(ours, bytes), behind(theirs, bytes));
            calls += 1;
        }
        assert!(theirs.is_empty());
        (pairs, calls)
    }

    #[test]
    fn more_runs_than_a_call_takes_are_spread_over_calls() {
        let (pairs, calls) = moved(&mut runs(&[1; 3000]), &mut runs(&[1500, 1500]), || usize::MAX);
        assert_eq!((calls, pairs.len()), (3, 3000));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_byte_moves_once_to_its_place_however_the_kernel_stops(
            local in lens(), remote in lens(),
            stops in proptest::collection::vec(1_usize..100, 1..30),
        ) {
            let len = total(&runs(&local)).min(total(&runs(&remote)));
            let [mut local, mut remote] =
                [local, remote].map(|lens| cut(runs(&lens), 0, len).collect::<Vec<_>>());
            let naive: Vec<_> = bytes_of(&local).into_iter().zip(bytes_of(&remote)).collect();
            let mut stops = stops.iter().cycle();
            let (pairs, _) = moved(&mut local, &mut remote, || *stops.next().unwrap());
            prop_assert_eq!(pairs, naive);
        }

        #[test]
        fn an_empty_run_is_nowhere_in_front(lens in lens(), moved in 0_usize..600) {
            let mut all = runs(&lens);
            let bytes = bytes_of(&all);
            let moved = moved.min(bytes.len());
            let left = behind(&mut all, moved);
            prop_assert!(left.first().is_none_or(|run| run.len > 0));
            prop_assert_eq!(bytes_of(left), &bytes[moved..]);
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
