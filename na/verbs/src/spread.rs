//! Which port of this side's, and which of a peer's, carry a new connection. No I/O.
//!
//! Port *n* of one side goes with port *n* of the other, and what has fewer begins again: so ports that are wired in pairs, each pair a network of
//! its own, reach each other. Each new peer begins one further on, and each attempt that has come to nothing goes one further.

/// Ports of one address at most.
pub(crate) const PORTS_MAX: usize = 8;

/// The places of both ports for this turn, of those here that are up; where none is, of those that are there. `None`: none is there.
pub(crate) fn ports(
    turn: usize,
    (up, there): (&[bool], &[bool]),
    theirs: usize,
) -> Option<(usize, usize)> {
    let fits = |of: &[bool]| {
        let places = (turn..turn + of.len()).map(|at| (at % of.len(), at % theirs.max(1)));
        places.into_iter().find(|(own, _)| of[*own])
    };
    fits(up).or_else(|| fits(there))
}

/// Attempts that one connection has.
pub(crate) fn attempts(own: usize, theirs: usize) -> usize {
    own.max(theirs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn ports_of_the_same_place_go_together_and_turns_spread() {
        let both = [true; 2];
        let found: Vec<_> = (0..4).map(|turn| ports(turn, (&both, &both), 2).unwrap()).collect();
        assert_eq!(found, [(0, 0), (1, 1), (0, 0), (1, 1)]);
        let to_one: Vec<_> = (0..2).map(|turn| ports(turn, (&both, &both), 1).unwrap()).collect();
        assert_eq!(to_one, [(0, 0), (1, 0)]);
        assert_eq!(ports(0, (&[false, true], &both), 2), Some((1, 1)), "the first is down");
        assert_eq!(ports(1, (&[false, false], &[true, false]), 2), Some((0, 0)), "none is up");
        assert_eq!(ports(0, (&[false], &[false]), 1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_port_that_is_up_and_every_one_of_the_peers_is_tried(
            up in proptest::collection::vec(any::<bool>(), 1..PORTS_MAX),
            theirs in 1..PORTS_MAX,
            turn in 0_usize..1_000,
        ) {
            let there = vec![true; up.len()];
            let tried: Vec<_> = (0..attempts(up.len(), theirs))
                .map(|attempt| ports(turn + attempt, (&up, &there), theirs).unwrap())
                .collect();
            for (place, is_up) in up.iter().enumerate().filter(|_| up.contains(&true)) {
                prop_assert_eq!(tried.iter().any(|(own, _)| *own == place), *is_up);
            }
            if up.iter().all(|it| *it) {
                prop_assert!((0..theirs).all(|place| tried.iter().any(|(_, other)| *other == place)));
            }
        }
    }
}
