//! Many repetitions of one measurement become one line: median, p99, min, max.
//!
//! A repetition is itself the mean of a batch (see [`crate::measure::Measure`]), so that reading
//! the clock costs nothing; the statistics are over repetitions.

/// What a larger value of a figure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    /// Latencies: the p99 is near the maximum.
    Smaller,
    /// Rates and bandwidths: the p99 is near the minimum.
    Larger,
}

/// The distribution of a figure over its repetitions.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Summary {
    /// Half of the repetitions were at least this good (the worse of the middle two).
    pub(crate) median: f64,
    /// 99 of 100 repetitions were at least this good.
    pub(crate) p99: f64,
    /// The smallest value.
    pub(crate) min: f64,
    /// The largest value.
    pub(crate) max: f64,
    /// How many there were.
    pub(crate) repetitions: u64,
}

impl Summary {
    /// `None` where there is nothing to summarise.
    pub(crate) fn of(values: &[f64], better: Better) -> Option<Summary> {
        let mut best_first = values.to_vec();
        best_first.sort_by(f64::total_cmp);
        let (min, max) = (*best_first.first()?, *best_first.last()?);
        if better == Better::Larger {
            best_first.reverse();
        }
        Some(Summary {
            median: best_first[rank(best_first.len(), 50)],
            p99: best_first[rank(best_first.len(), 99)],
            min,
            max,
            repetitions: u64::try_from(values.len()).ok()?,
        })
    }
}

/// Index of the first value, best first, that at least `percent` of `len` values do not exceed;
/// for an even number the median is the worse one of the two in the middle.
fn rank(len: usize, percent: usize) -> usize {
    (len * percent / 100).min(len - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_measured_is_no_summary() {
        assert_eq!(Summary::of(&[], Better::Smaller), None);
    }

    #[test]
    fn a_hundred_values_have_the_ranks_one_expects() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let latency = Summary::of(&values, Better::Smaller).expect("there are values");
        assert_eq!((latency.median, latency.p99), (51.0, 100.0));
        assert_eq!((latency.min, latency.max, latency.repetitions), (1.0, 100.0, 100));
        let rate = Summary::of(&values, Better::Larger).expect("there are values");
        assert_eq!((rate.median, rate.p99), (50.0, 1.0));
    }

    #[test]
    fn one_bad_repetition_in_a_thousand_moves_only_the_extremes() {
        let mut values = vec![1.0; 999];
        values.push(1e9);
        let summary = Summary::of(&values, Better::Smaller).expect("there are values");
        assert_eq!((summary.median, summary.p99, summary.max), (1.0, 1.0, 1e9));
    }

    proptest! {
        #[test]
        fn figures_are_ordered_and_taken_from_the_values(
            values in prop::collection::vec(0.0..1e12_f64, 1..400),
            larger: bool,
        ) {
            let better = if larger { Better::Larger } else { Better::Smaller };
            let summary = Summary::of(&values, better).expect("there are values");
            prop_assert!(values.iter().all(|v| (summary.min..=summary.max).contains(v)));
            for figure in [summary.median, summary.p99, summary.min, summary.max] {
                prop_assert!(values.contains(&figure));
            }
            let at_least_as_good = |limit: f64| {
                values.iter().filter(|v| if larger { **v >= limit } else { **v <= limit }).count()
            };
            prop_assert!(at_least_as_good(summary.median) * 2 >= values.len());
            prop_assert!(at_least_as_good(summary.p99) * 100 >= values.len() * 99);
        }

        #[test]
        fn the_order_of_repetitions_does_not_matter(
            mut values in prop::collection::vec(0.0..1e12_f64, 1..100),
        ) {
            let forward = Summary::of(&values, Better::Smaller);
            values.reverse();
            prop_assert_eq!(Summary::of(&values, Better::Smaller), forward);
        }

        #[test]
        fn a_rate_mirrors_a_latency(values in prop::collection::vec(1.0..1e6_f64, 1..100)) {
            let negated: Vec<f64> = values.iter().map(|v| -v).collect();
            let rate = Summary::of(&values, Better::Larger).expect("there are values");
            let latency = Summary::of(&negated, Better::Smaller).expect("there are values");
            prop_assert_eq!((rate.median, rate.p99), (-latency.median, -latency.p99));
        }
    }
}
