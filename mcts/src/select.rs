//! Which child is selected next: UCB1 (Auer et al. 2002) over all children that were tried, with virtual loss.
//!
//! Means are of won less lost simulations, from -1 to 1. With v simulations counted, o under way, N both of all children:
//!
//! | [`VirtualLoss`] | mean | explored by |
//! |---|---|---|
//! | `Count` | (score - o) / (v + o) | 2 c sqrt(ln N / (v + o)) |
//! | `Loss(w)` | (score - w o) / (v + w o) | 2 c sqrt(ln N / (v + w o)) |
//! | `Unobserved` | score / v | 2 c sqrt(ln N / (v + o)) |
//!
//! Twice c, since the usual constant is for means from 0 to 1. A child whose result is proven is left out: there is nothing
//! to learn, and one that is won for the player to move has proven the node.

use crate::{
    VirtualLoss,
    instructions::compiled_for_each,
    tree::{CHILDREN_MAX, Node, Tried},
};

/// What a selection depends on beside the children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Simulations that a rollout under way stands for in the mean.
    mean: f32,
    /// The same in the exploration.
    explored: f32,
    /// `2 c sqrt(ln N)`.
    exploration: f32,
}

impl Weights {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a heuristic")]
    pub(crate) fn new(node: &Node, loss: VirtualLoss, simulations: u32, c: f32) -> Self {
        let one = simulations as f32;
        let (mean, explored) = match loss {
            VirtualLoss::Count => (one, one),
            VirtualLoss::Loss(weight) => (one * weight as f32, one * weight as f32),
            VirtualLoss::Unobserved => (0.0, one),
        };
        let all = node.visits as f64 + f64::from(node.pending) * f64::from(explored);
        let exploration = 2.0 * c * all.max(1.0).ln().sqrt() as f32;
        Self { mean, explored, exploration }
    }
}

compiled_for_each! {
    pub(crate) fn best(tried: &Tried<'_>, weights: &Weights) -> u16;
    portable: scan, avx2: scan
}

/// The child of the greatest value; of several, the first.
// Two loops without a branch, which the compiler turns into vector instructions.
#[inline(always)]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "a heuristic")]
fn scan(tried: &Tried<'_>, weights: &Weights) -> u16 {
    let count = tried.visits.len();
    let mut values = [i32::MIN; CHILDREN_MAX];
    let values = &mut values[..count];
    let (pending, proofs) = (&tried.pending[..count], &tried.proofs[..count]);
    let (visits, scores) = (&tried.visits[..count], &tried.scores[..count]);
    let mut greatest = i32::MIN;
    for child in 0..count {
        // Below 2^31: see `tree.rs`.
        let visited = visits[child] as i32 as f32;
        let under_way = f32::from(pending[child]);
        let lost = under_way * weights.mean;
        let mean = (scores[child] as f32 - lost) / (visited + lost).max(1.0);
        let explored = (visited + under_way * weights.explored).max(1.0);
        let value = ordered(mean + weights.exploration / explored.sqrt());
        values[child] = if proofs[child].is_some() { i32::MIN } else { value };
        greatest = greatest.max(values[child]);
    }
    let found = values.iter().position(|value| *value == greatest);
    u16::try_from(found.unwrap_or(0)).expect("below CHILDREN_MAX")
}

/// Whole numbers in the order of the fractions: comparing these is cheaper.
#[inline(always)]
fn ordered(value: f32) -> i32 {
    let bits = value.to_bits().cast_signed();
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Instructions, Outcome, Player};

    fn node(visits: u64, pending: u32) -> Node {
        let mut tree = crate::tree::Tree::new(usize::MAX);
        let slot = tree.insert(1, Player::First, &[0], 1, 1).unwrap();
        let mut node = tree.node(slot).clone();
        (node.visits, node.pending) = (visits, pending);
        node
    }

    const LOST: Option<Outcome> = Some(Outcome::Won(Player::Second));

    #[test]
    fn rollouts_under_way_repel_others_in_each_variant() {
        for loss in [VirtualLoss::Count, VirtualLoss::Loss(3), VirtualLoss::Unobserved] {
            let weights = Weights::new(&node(3200, 100), loss, 16, 1.0);
            let pick = |pending: &[u16]| {
                let proofs = &[None, None, LOST];
                let tried =
                    Tried { pending, proofs, visits: &[1600, 1600, 9], scores: &[16, 0, 9] };
                best(Instructions::best(), &tried, &weights)
            };
            assert_eq!(pick(&[0, 0, 0]), 0, "{loss:?}");
            assert_eq!(pick(&[100, 0, 0]), 1, "{loss:?}");
        }
        // Only the exploration of an unobserved sample shrinks, not its mean: so it repels least.
        let apart = |loss| {
            let weights = Weights::new(&node(3200, 20), loss, 16, 0.1);
            let tried = Tried {
                pending: &[20, 0],
                proofs: &[None; 2],
                visits: &[1600; 2],
                scores: &[160, 0],
            };
            best(Instructions::best(), &tried, &weights)
        };
        assert_eq!(apart(VirtualLoss::Unobserved), 0);
        assert_eq!(apart(VirtualLoss::Count), 1);
    }

    proptest! {
        #[test]
        fn all_instructions_select_the_same(
            children in proptest::collection::vec((0_u16..40, 0_u8..4, 1_u32..100_000, -1.0_f32..1.0), 1..400),
            loss in 0_u32..4,
        ) {
            let pending: Vec<u16> = children.iter().map(|it| it.0).collect();
            let proofs: Vec<_> = children.iter().map(|it| (it.1 == 0).then_some(LOST).flatten()).collect();
            let visits: Vec<u32> = children.iter().map(|it| it.2).collect();
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "made up")]
            let scores: Vec<i32> = children.iter().map(|it| (it.2 as f32 * it.3) as i32).collect();
            let tried = Tried { pending: &pending, proofs: &proofs, visits: &visits, scores: &scores };
            let loss = match loss {
                0 => VirtualLoss::Unobserved,
                weight => VirtualLoss::Loss(weight),
            };
            let sum = visits.iter().map(|it| u64::from(*it)).sum();
            let weights = Weights::new(&node(sum, 7), loss, 16, 0.7);
            let expected = best(Instructions::Portable, &tried, &weights);
            for instructions in [Instructions::Avx2, Instructions::Avx512] {
                if instructions.are_here() {
                    prop_assert_eq!(best(instructions, &tried, &weights), expected);
                }
            }
        }
    }
}
