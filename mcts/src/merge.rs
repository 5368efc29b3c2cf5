//! Trees of several workers, whose upper nodes are merged again and again ("slow tree", Bourki et al. 2010).
//!
//! Each worker has a tree of its own, and waits for nobody. After so many rollouts it tells all others what it has counted
//! since the last time, at the root and at those nodes that many rollouts come by; they add it to what they have, and make nodes
//! that they lack. So all of them select by the same counts where these matter most, and nobody tries what somebody has tried.
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
//! last time. So two rounds of news may wait for each of the others, and from each: [`Share`] has room for all of that.

use std::collections::HashSet;

use crate::{
    Game, Placement, WINDOW_MAX,
    message::{Body, MERGED_DEPTH_MAX, Message, Moves, NEWS_MAX, News},
    tree::{CHILDREN_MAX, Child, Node, Tree},
};

#[cfg(test)]
mod tests;

/// A node is merged that has at least one of so many parts of the root's visits.
const PARTS: u64 = 64;
/// Nodes that are merged, at most.
const MERGED_MAX: usize = 4096;

/// What merging may take up at a worker, of its share of [`Settings::memory`](crate::Settings::memory): one of so many parts,
/// or more where the root alone needs that.
const PARTS_OF_MEMORY: usize = 8;

/// How much merging may take up at one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// How many others there are.
    others: usize,
    /// Bytes of a position.
    position: usize,
}

impl Share {
    pub(crate) fn new<G>(others: u16) -> Self {
        Self { others: others.into(), position: size_of::<(Moves, u64, G)>() }
    }

    /// Bytes that a merged node may need: what was told of it, the news of it, and their copies that wait, two for each of
    /// the others and two from each.
    fn node(self, children: usize) -> usize {
        let news = children * size_of::<News>() + NODE_BYTES;
        self.position + (2 + 4 * self.others) * news
    }

    /// Bytes for the root, whatever it is.
    pub(crate) fn least(self) -> usize {
        if self.others == 0 { 0 } else { self.node(CHILDREN_MAX) }
    }

    /// Bytes, of so many for the whole worker.
    pub(crate) fn of(self, bytes: usize) -> usize {
        if self.others == 0 { 0 } else { self.least().max(bytes / PARTS_OF_MEMORY) }
    }

    /// Nodes that are merged, so that no more messages wait than there may: a node is told of in [`CHUNKS`].
    fn nodes(self) -> usize {
        let most = WINDOW_MAX as usize / (2 * CHUNKS * self.others.max(1));
        most.clamp(1, MERGED_MAX)
    }

    /// Messages that may wait at one worker.
    pub(crate) fn messages(self) -> usize {
        let of_round = CHUNKS * self.nodes() + 1;
        let of_end = 1;
        self.others * (2 * of_round + of_end)
    }
}

/// Of a node, beside its children: messages that grow, and a place in a list.
const NODE_BYTES: usize = 384;
/// Messages in which a node is told of.
const CHUNKS: usize = CHILDREN_MAX.div_ceil(NEWS_MAX);
const _: () = assert!(
    CHUNKS * size_of::<Message>() + size_of::<Vec<Told>>() <= NODE_BYTES
        && size_of::<Told>() <= size_of::<News>()
);

/// What was told of the children of all merged nodes. A node knows which entry is its own.
#[derive(Debug)]
pub(crate) struct Merged {
    entries: Vec<Vec<Told>>,
    share: Share,
    bytes_max: usize,
    /// Bytes that the nodes with an entry may need.
    bytes: usize,
    /// As [`Tree::prunes`] was when pruned nodes were forgotten.
    prunes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    visits: u32,
    score: i32,
    is_proven: bool,
}

impl Merged {
    /// Of a worker with so many bytes for all that grows.
    pub(crate) fn new(share: Share, bytes: usize) -> Self {
        Self { entries: Vec::new(), share, bytes_max: share.of(bytes), bytes: 0, prunes: 0 }
    }

    /// Bytes that the merged nodes may need.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins a phase: the root is merged, and nodes that the last phase did not come by are not, since the game went on elsewhere.
    pub(crate) fn begin(&mut self, tree: &mut Tree, root: Option<u32>, phase: u32) {
        self.keep(tree, |slot, node| node.phase + 1 >= phase || Some(slot) == root);
        let Some(root) = root else { return };
        if self.entry(tree, root).is_none() {
            self.keep(tree, |_, _| false);
            self.entry(tree, root);
        }
    }

    /// Forgets nodes that were pruned, and those that need not be kept.
    fn keep(&mut self, tree: &mut Tree, keeps: impl Fn(u32, &Node) -> bool) {
        let mut kept = Vec::new();
        let slots: Vec<u32> = tree.slots().collect();
        for slot in slots {
            let node = tree.node_mut(slot);
            if matches!(node.merged, NEVER | NO_MORE) {
                continue;
            }
            let entry = std::mem::take(&mut self.entries[node.merged as usize - 1]);
            if keeps(slot, node) {
                kept.push(entry);
                node.merged = number(kept.len());
            } else {
                node.merged = NO_MORE;
            }
        }
        self.entries = kept;
        self.bytes = self.entries.iter().map(|it| self.share.node(it.len())).sum();
        self.prunes = tree.prunes;
    }

    /// What was counted since it was told last, from the root on.
    pub(crate) fn news<G: Game>(
        &mut self,
        tree: &mut Tree,
        (root, position): (u64, &G),
        placement: Placement,
    ) -> Vec<Body> {
        if self.prunes != tree.prunes {
            self.keep(tree, |_, _| true);
        }
        let mut bodies = Vec::new();
        let mut seen = HashSet::new();
        let mut open = vec![(Moves::new(), root, position.clone())];
        let all = tree.find(root).map_or(0, |slot| tree.node(slot).visits);
        while let Some((moves, key, position)) = open.pop() {
            let Some(slot) = tree.find(key).filter(|slot| seen.insert(*slot)) else { continue };
            let news = self.news_of(tree, slot);
            bodies.extend(news.chunks(NEWS_MAX).map(|it| {
                let (moves, news) = (moves.clone(), it.to_vec());
                Body::News { moves, news }
            }));
            if moves.len() == MERGED_DEPTH_MAX {
                continue;
            }
            for (edge, visits) in (0..).zip(tree.tried(slot).visits) {
                let is_upper = *visits > 0 && u64::from(*visits) * PARTS >= all;
                if is_upper && open.len() < self.share.nodes() {
                    let mv = tree.child(slot, edge).mv;
                    let (mut moves, mut child) = (moves.clone(), position.clone());
                    moves.push(mv);
                    child.play(mv);
                    open.push((moves, placement.child_key(key, mv, &child), child));
                }
            }
        }
        bodies
    }

    fn news_of(&mut self, tree: &mut Tree, slot: u32) -> Vec<News> {
        let Some(told) = self.entry(tree, slot) else { return Vec::new() };
        // What was not tried has nothing to tell.
        let tried = tree.tried(slot);
        let mut news = Vec::with_capacity(tried.visits.len());
        let counted = tried.visits.iter().zip(tried.proofs);
        for (edge, (told, (visits, proof))) in (0..).zip(told.iter_mut().zip(counted)) {
            if *visits == told.visits && proof.is_some() == told.is_proven {
                continue;
            }
            let child = tree.child(slot, edge);
            news.push(News {
                mv: child.mv,
                visits: child.visits.saturating_sub(told.visits),
                score: child.score.saturating_sub(told.score),
                proof: child.proof,
            });
            *told = Told::of(&child);
        }
        news
    }

    /// Adds what another worker has counted at a node.
    pub(crate) fn add(&mut self, tree: &mut Tree, slot: u32, news: &[News]) {
        let Some(told) = self.entry(tree, slot) else { return };
        for it in news {
            // Each worker has an order of its own.
            if let Some(edge) = tree.edge_of(slot, it.mv) {
                let before = tree.child(slot, edge);
                let now = tree.add(slot, edge, (it.visits, it.score), it.proof);
                let after = tree.child(slot, now);
                told.swap(edge.into(), now.into());
                let told = &mut told[usize::from(now)];
                // What the child could not count is not taken back from the others.
                told.visits += after.visits - before.visits;
                told.score = told.score.saturating_add(after.score.saturating_sub(before.score));
                told.is_proven |= it.proof.is_some();
            }
        }
    }

    /// A node's entry, made if need be; none where there is no room.
    fn entry(&mut self, tree: &mut Tree, slot: u32) -> Option<&mut Vec<Told>> {
        let children = tree.node(slot).children;
        let before = tree.node(slot).merged;
        if matches!(before, NEVER | NO_MORE) {
            let bytes = self.bytes + self.share.node(children.into());
            if self.entries.len() == self.share.nodes() || bytes > self.bytes_max {
                return None;
            }
            self.bytes = bytes;
            let told = |edge| match before {
                NEVER => Told::default(),
                // Some of it is others', and they must not hear that again.
                _ => Told::of(&tree.child(slot, edge)),
            };
            self.entries.push((0..children).map(told).collect());
            tree.node_mut(slot).merged = number(self.entries.len());
        }
        Some(&mut self.entries[tree.node(slot).merged as usize - 1])
    }
}

impl Told {
    fn of(child: &Child) -> Self {
        Self { visits: child.visits, score: child.score, is_proven: child.proof.is_some() }
    }
}

/// As the number of a node's entry: it has none, and has had none, or had one.
const NEVER: u32 = 0;
const NO_MORE: u32 = u32::MAX;

fn number(entries: usize) -> u32 {
    u32::try_from(entries).expect("at most MERGED_MAX")
}
