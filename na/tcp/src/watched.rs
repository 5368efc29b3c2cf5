//! Whose turn it is to be looked at: connections that something was written to, some in each round.

use crate::wire::WireKey;

/// Connections that one round looks at.
const LOOKS_MAX: usize = 32;

/// Connections that something was written to.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) keys: Vec<WireKey>,
    /// Those that the present look has not come to.
    due: Vec<WireKey>,
    pub(crate) is_timed: bool,
}

impl Watched {
    /// Whose turn it is in this round; with nobody left over, a new look begins.
    pub(crate) fn turn(&mut self) -> Vec<WireKey> {
        if self.due.is_empty() {
            self.due = std::mem::take(&mut self.keys);
        }
        self.due.split_off(self.due.len().saturating_sub(LOOKS_MAX))
    }

    /// Whether the next round has to go on.
    pub(crate) fn is_looking(&self) -> bool {
        !self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> WireKey {
        WireKey { index, generation: 0 }
    }

    #[test]
    fn a_round_looks_at_some_and_a_look_at_each_once() {
        let count = 10 * u32::try_from(LOOKS_MAX).unwrap() + 1;
        let mut watched = Watched { keys: (0..count).map(key).collect(), ..Watched::default() };
        for _ in 0..2 {
            let (mut seen, mut rounds) = (Vec::new(), 0);
            loop {
                let turn = watched.turn();
                assert!(!turn.is_empty() && turn.len() <= LOOKS_MAX);
                rounds += 1;
                // They are watched on: for the next look.
                watched.keys.extend(&turn);
                seen.extend(turn);
                if !watched.is_looking() {
                    break;
                }
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq((0..count).map(key)) && rounds == 11);
        }
    }
}
