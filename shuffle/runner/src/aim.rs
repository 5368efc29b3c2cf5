//! To whom the next message goes: the same for a rank in every run.

use crate::arguments::{Arguments, Skew};

/// A rank after the other.
#[derive(Debug)]
pub(crate) struct Aim {
    at: At,
    /// Who is left out: oneself, where nobody sends to oneself.
    but: Option<u32>,
}

#[derive(Debug)]
enum At {
    Uniform {
        random: u64,
        size: u64,
    },
    Loop {
        next: u32,
        size: u32,
    },
    Single {
        rank: u32,
    },
    /// Summed shares of the ranks, up to `u64::MAX`.
    Zipf {
        random: u64,
        sums: Vec<u64>,
    },
}

impl Aim {
    pub(crate) fn new(arguments: &Arguments, me: u32, size: u32) -> Self {
        // Any odd number that differs from rank to rank begins another sequence.
        let random = u64::from(me).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let but = (!arguments.has_self()).then_some(me);
        // One of the others is drawn: those behind the one that is left out are moved.
        let drawn = size - u32::from(but.is_some());
        let at = match arguments.skew {
            Skew::Uniform => At::Uniform { random, size: drawn.into() },
            Skew::Loop => At::Loop { next: me, size },
            Skew::Single => At::Single { rank: arguments.target() },
            Skew::Zipf => At::Zipf { random, sums: shares(drawn, arguments.exponent()) },
        };
        Self { at, but }
    }

    /// The next rank.
    #[inline]
    pub(crate) fn next(&mut self) -> u32 {
        let to = self.at.next();
        match (self.but, &self.at) {
            (None, _) => to,
            (Some(but), At::Uniform { .. } | At::Zipf { .. }) => to + u32::from(to >= but),
            (Some(but), _) if to == but => self.at.next(),
            (Some(_), _) => to,
        }
    }
}

impl At {
    #[inline]
    fn next(&mut self) -> u32 {
        match self {
            Self::Uniform { random, size } => {
                // The high half of a product is as even as the factor.
                let product = u128::from(step(random)) * u128::from(*size);
                u32::try_from(product >> 64).unwrap_or(0)
            }
            Self::Loop { next, size } => {
                *next = (*next + 1) % *size;
                *next
            }
            Self::Single { rank } => *rank,
            Self::Zipf { random, sums } => {
                let at = step(random);
                u32::try_from(sums.partition_point(|sum| *sum < at)).unwrap_or(0)
            }
        }
    }
}

/// xorshift64* (Vigna, 2016).
fn step(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

/// Where the share of each rank ends.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are between 0 and 1, and the cast saturates"
)]
fn shares(size: u32, exponent: f64) -> Vec<u64> {
    let weights: Vec<f64> = (0..size).map(|rank| f64::from(rank + 1).powf(-exponent)).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let ends = weights.iter().map(|weight| {
        sum += weight / total;
        (sum * 2_f64.powi(64)) as u64
    });
    let mut ends: Vec<u64> = ends.collect();
    if let Some(last) = ends.last_mut() {
        *last = u64::MAX;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_aimed_at_and_the_first_most_often_with_zipf() {
        let mut counts = [0; 4];
        let mut aim = Aim { at: At::Zipf { random: 1, sums: shares(4, 1.0) }, but: None };
        for _ in 0..10_000 {
            counts[aim.next() as usize] += 1;
        }
        assert!(counts.is_sorted_by(|a, b| a > b) && counts[3] > 500, "{counts:?}");
        let mut counts = [0; 3];
        let mut aim = Aim { at: At::Uniform { random: 7, size: 3 }, but: None };
        for _ in 0..9_000 {
            counts[aim.next() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (2_500..3_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn whoever_would_send_nearly_all_to_itself_sends_to_the_others() {
        let mut aim = Aim { at: At::Zipf { random: 7, sums: shares(2, 500.0) }, but: Some(0) };
        assert!((0..1000).all(|_| aim.next() == 1));
    }

    #[test]
    fn who_is_left_out_is_never_aimed_at_and_all_others_equally_often() {
        for but in 0..3 {
            let uniform = At::Uniform { random: 7, size: 2 };
            let zipf = At::Zipf { random: 7, sums: shares(2, 0.0) };
            for at in [uniform, zipf, At::Loop { next: but, size: 3 }] {
                let (mut counts, mut aim) = ([0; 3], Aim { at, but: Some(but) });
                (0..6_000).for_each(|_| counts[aim.next() as usize] += 1);
                assert_eq!(counts[but as usize], 0);
                let others = (0..3).filter(|rank| *rank != but as usize);
                assert!(others.into_iter().all(|rank| counts[rank] > 2_500), "{counts:?}");
            }
        }
    }
}
