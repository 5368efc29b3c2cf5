//! What workers say to one another, and the batches in which they do.

use smallvec::SmallVec;

use crate::{Outcome, tree::Tally};

/// One step of a rollout: a child that was selected at a node, and who owns that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The node's slot, which means something to its owner alone, and stays the node's while the rollout is under way.
    pub(crate) node: u32,
    /// The child's number.
    pub(crate) edge: u16,
    /// The child's move.
    pub(crate) mv: u16,
    /// Who owns the node.
    pub(crate) owner: u16,
}

/// The way of a rollout from the root.
pub(crate) type Path = SmallVec<[Hop; 8]>;

/// The way to a node that is merged: none is that is deeper.
pub(crate) type Moves = SmallVec<[u16; MERGED_DEPTH_MAX]>;

/// Moves from the root to a node that is merged, at most.
pub(crate) const MERGED_DEPTH_MAX: usize = 32;

/// A message between two workers.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The phase that it belongs to; in others it means nothing.
    pub(crate) phase: u32,
    /// Who says it.
    pub(crate) from: u16,
    pub(crate) body: Body,
}

/// What is said.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Rollouts go on at the position at the end of the path, whose owner is told.
    Select { path: Path, count: u32 },
    /// Rollouts come back to the last node of the path, whose owner is told.
    Report { path: Path, tally: Tally, proof: Option<Outcome> },
    /// The phase is over: nothing is under way. Where trees are merged: the sender says nothing more.
    Stop,
    /// What the sender has counted, in its own tree, at the children of the node to which these moves lead.
    News { moves: Moves, news: Vec<News> },
    /// That was all for now, or for ever.
    Told { is_last: bool },
}

/// What was counted at a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) mv: u16,
    pub(crate) visits: u32,
    /// Won less lost simulations, for whoever moves at the node.
    pub(crate) score: i32,
    pub(crate) proof: Option<Outcome>,
}

/// Children in one message, at most.
pub(crate) const NEWS_MAX: usize = 256;

impl Message {
    /// Rollouts that go on where it arrives.
    pub(crate) fn rollouts(&self) -> u32 {
        if let Body::Select { count, .. } = self.body { count } else { 0 }
    }

    /// Bytes that it takes up.
    pub(crate) fn bytes(&self) -> usize {
        let elsewhere = match &self.body {
            Body::Select { path, .. } | Body::Report { path, .. } if path.spilled() => {
                size_of_val(path.as_slice())
            }
            Body::News { news, .. } => size_of_val(news.as_slice()),
            _ => 0,
        };
        size_of::<Self>() + elsewhere
    }
}

/// Messages that wait to be sent, by whom they are for.
#[derive(Debug)]
pub(crate) struct Outbox {
    from: u16,
    phase: u32,
    batches: Vec<Vec<Message>>,
    /// Selections and reports that became part of another message.
    pub(crate) combined: u64,
}

/// How far back a batch is searched for a message that another one can become part of.
const COMBINED_MAX: usize = 8;

impl Outbox {
    pub(crate) fn new(from: u16, workers: u16) -> Self {
        Self { from, phase: 0, batches: vec![Vec::new(); workers.into()], combined: 0 }
    }

    pub(crate) fn begin(&mut self, phase: u32) {
        self.phase = phase;
        self.batches.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn select(&mut self, to: u16, path: Path, more: u32) {
        let (phase, from) = (self.phase, self.from);
        let batch = &mut self.batches[usize::from(to)];
        for message in batch.iter_mut().rev().take(COMBINED_MAX) {
            if let Body::Select { path: other, count } = &mut message.body
                && *other == path
            {
                *count += more;
                self.combined += 1;
                return;
            }
        }
        batch.push(Message { phase, from, body: Body::Select { path, count: more } });
    }

    pub(crate) fn report(&mut self, to: u16, path: Path, tally: Tally, proof: Option<Outcome>) {
        let (phase, from) = (self.phase, self.from);
        let batch = &mut self.batches[usize::from(to)];
        for message in batch.iter_mut().rev().take(COMBINED_MAX) {
            if let Body::Report { path: other, tally: sum, proof: proven } = &mut message.body
                && *other == path
            {
                // Without an overflow, whatever another process has reported.
                sum.rollouts = sum.rollouts.saturating_add(tally.rollouts);
                sum.simulations = sum.simulations.saturating_add(tally.simulations);
                sum.score = sum.score.saturating_add(tally.score);
                *proven = proven.or(proof);
                self.combined += 1;
                return;
            }
        }
        batch.push(Message { phase, from, body: Body::Report { path, tally, proof } });
    }

    pub(crate) fn stop_all(&mut self) {
        let (phase, from) = (self.phase, self.from);
        for batch in &mut self.batches {
            batch.push(Message { phase, from, body: Body::Stop });
        }
    }

    /// Says something to all others.
    pub(crate) fn tell_all(&mut self, body: &Body) {
        let (phase, from) = (self.phase, self.from);
        for (_, batch) in (0..).zip(&mut self.batches).filter(|(to, _)| *to != from) {
            batch.push(Message { phase, from, body: body.clone() });
        }
    }

    /// The batches that hold something, with whom they are for.
    pub(crate) fn filled(&mut self) -> impl Iterator<Item = (u16, &mut Vec<Message>)> {
        (0..).zip(&mut self.batches).filter(|(_, batch)| !batch.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.iter().all(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn hop(node: u32) -> Hop {
        Hop { node, edge: 3, mv: 4, owner: 0 }
    }

    #[test]
    fn rollouts_of_one_path_travel_together_and_come_back_together() {
        let mut outbox = Outbox::new(0, 2);
        let path: Path = smallvec![hop(1), hop(2)];
        outbox.select(1, path.clone(), 1);
        outbox.select(1, smallvec![hop(1), hop(3)], 1);
        outbox.select(1, path.clone(), 2);
        let one = Tally { rollouts: 1, simulations: 16, score: -4 };
        outbox.report(1, path.clone(), one, None);
        outbox.report(1, path.clone(), one, Some(Outcome::Drawn));
        assert_eq!(outbox.combined, 2);
        let (to, batch) = outbox.filled().next().unwrap();
        assert_eq!((to, batch.len()), (1, 3));
        assert!(matches!(&batch[0].body, Body::Select { count: 3, path: it } if *it == path));
        let sum = Tally { rollouts: 2, simulations: 32, score: -8 };
        let Body::Report { tally, proof, .. } = batch[2].body else { panic!("a report") };
        assert_eq!((tally, proof), (sum, Some(Outcome::Drawn)));
    }
}
