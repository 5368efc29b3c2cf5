//! The objects of a trace: to which group each goes, and how long it is, the same on every rank.

/// So many objects: median 12 MB, mean 29 MB, times `scale`. Each: the number of its group, and its size.
pub(crate) fn trace(count: u32, groups: usize, scale: f64) -> Vec<(usize, u64)> {
    let mut random = Random(SEED);
    let object = |_| {
        let group = random.next() % groups as u64;
        (usize::try_from(group).expect("below a usize"), size(random.normal(), scale))
    };
    (0..count).map(object).collect()
}

/// Log-normal: its mean is exp(sigma^2 / 2) times its median.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 1 byte and SIZE_MAX"
)]
fn size(normal: f64, scale: f64) -> u64 {
    let sigma = (2.0 * (MEAN / MEDIAN).ln()).sqrt();
    (MEDIAN * (sigma * normal).exp() * scale).clamp(1.0, SIZE_MAX) as u64
}

/// `splitmix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Above 0, at most 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn part(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// After Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.part(), self.part());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

const SEED: u64 = 20;
const MEDIAN: f64 = 12e6;
const MEAN: f64 = 29e6;
/// Longer ones, of which there is about one among millions, are this long.
const SIZE_MAX: f64 = 4e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_median_and_the_mean_of_the_trace_and_all_groups_have_some() {
        let objects = trace(100_000, 455, 1.0);
        let mut sizes: Vec<u64> = objects.iter().map(|(_, size)| *size).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
        let median = sizes[sizes.len() / 2];
        assert!((11_700_000..12_300_000).contains(&median), "{median}");
        assert!((28_000_000..30_000_000).contains(&mean), "{mean}");
        for group in 0..455 {
            assert!(objects.iter().any(|(at, _)| *at == group));
        }
        assert_eq!(trace(10, 3, 0.5), trace(10, 3, 0.5));
    }
}
