//! Trees of several workers, whose upper nodes are merged again and again ("slow tree", Bourki et al. 2010).
//!
//! Each worker has a tree of its own, and waits for nobody. After so many rollouts it tells all others what it has counted
//! since the last time, at the root and at those nodes that many rollouts come by; they add it to what they have. So all of
//! them select by the same counts where these matter most.
//!
//! # What is told
//! ```text
//! told        what a child's counts were when they were told last, and what others have told since
//! own news    counts - told;  then told = counts
//! others'     counts += news; told += news
//! ```
//! Counts are sums: news may meet in any order, and each simulation is added once at each worker. Messages of one worker
//! keep their order, and who has finished says so behind its last news: then all have the same counts at the root.
//!
//! # What it costs
//! A node is told of that has at least one of [`PARTS`] parts of the root's visits: so there are no more than that many at
//! each depth. Who is slow is not flooded: nobody tells anything before all others have answered what was told before the
//! last time.

use std::collections::HashSet;

use crate::{
    Game, Outcome, Placement,
    message::Body,
    tree::{Child, Tree},
    worker::Root,
};

#[cfg(test)]
mod tests;

/// A node is merged that has at least one of so many parts of the root's visits.
const PARTS: u64 = 64;
/// Nodes that are merged, at most: what was told of their children takes some megabytes.
const MERGED_MAX: usize = 4096;
/// Children in one message, at most.
pub(crate) const NEWS_MAX: usize = 256;

/// What was counted at a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) mv: u16,
    pub(crate) visits: u32,
    /// Won less lost simulations, for whoever moves at the node.
    pub(crate) score: i32,
    pub(crate) proof: Option<Outcome>,
}

/// What was told of the children of all merged nodes. A node knows which entry is its own.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    entries: Vec<Vec<Told>>,
    /// As [`Tree::prunes`] was when entries of pruned nodes were dropped.
    prunes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    visits: u32,
    score: i32,
    is_proven: bool,
}

impl Merged {
    /// Forgets nodes that were pruned, and those that the last phase did not come by: the game went on elsewhere.
    pub(crate) fn tidy(&mut self, tree: &mut Tree, phase: u32) {
        let mut kept = Vec::new();
        let slots: Vec<u32> = tree.slots().collect();
        for slot in slots {
            let node = tree.node_mut(slot);
            let Some(entry) = std::mem::take(&mut node.merged).checked_sub(1) else { continue };
            if node.phase + 1 >= phase {
                kept.push(std::mem::take(&mut self.entries[entry as usize]));
                node.merged = number(kept.len());
            }
        }
        self.entries = kept;
        self.prunes = tree.prunes;
    }

    /// What was counted since it was told last, from the root on.
    pub(crate) fn news<G: Game>(
        &mut self,
        tree: &mut Tree,
        root: &Root<G>,
        placement: Placement,
        phase: u32,
    ) -> Vec<Body> {
        if self.prunes != tree.prunes {
            self.tidy(tree, phase);
        }
        let mut bodies = Vec::new();
        let mut seen = HashSet::new();
        let mut open = vec![(root.key, root.position.clone())];
        let all = tree.find(root.key).map_or(0, |slot| tree.node(slot).visits);
        while let Some((key, position)) = open.pop() {
            let Some(slot) = tree.find(key).filter(|slot| seen.insert(*slot)) else { continue };
            let news = self.news_of(tree, slot);
            bodies.extend(news.chunks(NEWS_MAX).map(|it| Body::News { key, news: it.to_vec() }));
            for edge in 0..tree.node(slot).children {
                let Child { mv, visits, .. } = tree.child(slot, edge);
                if visits > 0 && u64::from(visits) * PARTS >= all {
                    let mut child = position.clone();
                    child.play(mv);
                    open.push((placement.child_key(key, mv, &child), child));
                }
            }
        }
        bodies
    }

    fn news_of(&mut self, tree: &mut Tree, slot: u32) -> Vec<News> {
        let mut news = Vec::new();
        let Some(told) = self.entry(tree, slot) else { return news };
        for (edge, told) in (0..).zip(told) {
            let Child { mv, visits, score, proof, .. } = tree.child(slot, edge);
            if visits != told.visits || proof.is_some() != told.is_proven {
                let visits = visits.saturating_sub(told.visits);
                let score = score.saturating_sub(told.score);
                news.push(News { mv, visits, score, proof });
            }
            *told = Told { visits, score, is_proven: proof.is_some() };
        }
        news
    }

    /// Adds what another worker has counted at a node.
    pub(crate) fn add(&mut self, tree: &mut Tree, slot: u32, news: &[News]) {
        let Some(told) = self.entry(tree, slot) else { return };
        for it in news {
            // Each worker has an order of its own.
            if let Some(edge) = tree.edge_of(slot, it.mv) {
                tree.add(slot, edge, (it.visits, it.score), it.proof);
                let told = &mut told[usize::from(edge)];
                told.visits = told.visits.saturating_add(it.visits);
                told.score = told.score.saturating_add(it.score);
                told.is_proven |= it.proof.is_some();
            }
        }
    }

    /// A node's entry, made if need be; none where there are too many.
    fn entry(&mut self, tree: &mut Tree, slot: u32) -> Option<&mut Vec<Told>> {
        let node = tree.node_mut(slot);
        if node.merged == 0 {
            if self.entries.len() == MERGED_MAX {
                return None;
            }
            self.entries.push(vec![Told::default(); node.children.into()]);
            node.merged = number(self.entries.len());
        }
        Some(&mut self.entries[node.merged as usize - 1])
    }
}

fn number(entries: usize) -> u32 {
    u32::try_from(entries).expect("at most MERGED_MAX")
}
