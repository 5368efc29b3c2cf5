//! A worker: the nodes that it owns, what it does when a message comes, and what it then says to others.
//!
//! It has no thread, no clock and no queue of its own: [`crate::phase`] drives it, and tests do so in any order.
//!
//! # The way of a rollout
//! ```text
//! begin -> select at the root -> owner of the child
//!            a child that nobody visited: a leaf -> simulations -+
//!            one that was: its node, made now if need be         |
//!              -> select -> owner of the child -> ...            |
//! counted  <- back up at the root <- ... <- back up  <-----------+
//! ```
//! Every arrow between owners is a message; the others are calls. The path travels along, so that the way back needs
//! nothing that was kept at the nodes, and one position may be reached by several paths.

use std::collections::VecDeque;

use crate::{
    Game, Outcome, Placement, Player, Random, Settings,
    message::{Body, Hop, Message, Outbox, Path},
    mix,
    select::{self, Weights},
    stats::{Sum, WorkerStats},
    tree::{Full, Tally, Tree},
};

#[cfg(test)]
mod tests;

/// A rollout goes no deeper. Games end; this is for one whose positions repeat, against the contract.
const PATH_MAX: usize = 1024;

/// One worker of a tree.
#[derive(Debug)]
pub(crate) struct Worker<G> {
    me: u16,
    workers: u16,
    settings: Settings,
    root: Root<G>,
    phase: u32,
    pub(crate) tree: Tree,
    random: Random,
    jobs: VecDeque<Job<G>>,
    pub(crate) outbox: Outbox,
    /// How much work waits at each worker, as far as is known.
    pub(crate) loads: Vec<u32>,
    /// Rollouts that were begun in this phase, and those that have come back. Of the root's owner only.
    pub(crate) begun: u64,
    pub(crate) counted: u64,
    /// How the game ends if both play right, where that is known. Of the root's owner only.
    pub(crate) proven: Option<Outcome>,
    pub(crate) stats: WorkerStats,
    moves: Vec<u16>,
}

/// The position that is searched, as all workers know it.
#[derive(Clone, Debug)]
pub(crate) struct Root<G> {
    pub(crate) position: G,
    pub(crate) key: u64,
    pub(crate) owner: u16,
}

/// A leaf whose simulations wait.
#[derive(Debug)]
struct Job<G> {
    path: Path,
    position: G,
}

impl<G: Game> Worker<G> {
    pub(crate) fn new(
        me: u16,
        settings: &Settings,
        seed: u32,
        workers: u16,
        root: Root<G>,
    ) -> Self {
        Self {
            me,
            workers,
            settings: settings.clone(),
            root,
            phase: 0,
            tree: Tree::new(settings.memory / usize::from(settings.workers)),
            random: Random::new(settings.seed, seed),
            jobs: VecDeque::new(),
            outbox: Outbox::new(workers),
            loads: vec![0; workers.into()],
            begun: 0,
            counted: 0,
            proven: None,
            stats: WorkerStats::default(),
            moves: Vec::new(),
        }
    }

    /// Another position is searched from now on. Nothing is under way.
    pub(crate) fn set_root(&mut self, root: Root<G>) {
        self.root = root;
    }

    pub(crate) fn begin_phase(&mut self, phase: u32) {
        self.phase = phase;
        (self.begun, self.counted) = (0, 0);
        self.proven = self.tree.find(self.root.key).and_then(|slot| self.tree.node(slot).proof);
        self.stats = WorkerStats::default();
        self.outbox.begin(phase);
        self.outbox.combined = 0;
    }

    pub(crate) fn owns_root(&self) -> bool {
        self.root.owner == self.me
    }

    /// Simulations that the root has counted. Of the root's owner only.
    pub(crate) fn root_visits(&self) -> u64 {
        self.tree.find(self.root.key).map_or(0, |slot| self.tree.node(slot).visits)
    }

    /// Begins a rollout. Of the root's owner only.
    pub(crate) fn begin_rollout(&mut self) {
        self.begun += 1;
        self.descend(Path::new(), self.root.position.clone(), self.root.key);
    }

    /// Whether the phase goes on after this message.
    pub(crate) fn handle(&mut self, message: Message) -> bool {
        if message.phase != self.phase {
            return true;
        }
        match message.body {
            Body::Select { path, count, is_leaf } => self.arrive(path, count, is_leaf),
            Body::Report { path, tally, proof } => self.back_up(path, tally, proof),
            Body::Stop => return false,
        }
        true
    }

    /// Simulates one leaf, if any waits.
    pub(crate) fn simulate(&mut self) -> bool {
        let Some(Job { path, position }) = self.jobs.pop_front() else { return false };
        let simulations = self.settings.simulations;
        let score = position.playouts(simulations, &mut self.random);
        let score = i64::from(score) - i64::from(simulations);
        let score = i32::try_from(score).expect("at most two half points a game");
        self.stats.simulations += u64::from(simulations);
        self.back_up(path, Tally { rollouts: 1, simulations, score }, None);
        true
    }

    pub(crate) fn number(&self) -> u16 {
        self.me
    }

    /// What is known about the children of a node.
    pub(crate) fn children(&self, slot: u32) -> impl Iterator<Item = Sum> + '_ {
        (0..self.tree.node(slot).children).map(move |edge| {
            let child = self.tree.child(slot, edge);
            let (visits, score) = (child.visits.into(), child.score.into());
            Sum { mv: child.mv, visits, score, proof: child.proof }
        })
    }

    /// What it has done in the phase, and what it has now.
    pub(crate) fn final_stats(&self) -> WorkerStats {
        WorkerStats {
            combined: self.outbox.combined,
            nodes: self.tree.len(),
            children: self.tree.children(),
            tree_bytes: self.tree.bytes(),
            pruned: self.tree.pruned,
            ..self.stats
        }
    }

    /// Leaves that wait for their simulations.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Rollouts come from another worker.
    fn arrive(&mut self, path: Path, count: u32, is_leaf: bool) {
        let (mut position, mut key) = (self.root.position.clone(), self.root.key);
        for hop in &path {
            position.play(hop.mv);
            key = self.settings.placement.child_key(key, hop.mv, &position);
        }
        // By another path somebody may have been there.
        if is_leaf && (self.settings.placement != Placement::Hash || self.tree.find(key).is_none())
        {
            return self.reach_leaf(path, position);
        }
        for _ in 1..count {
            self.descend(path.clone(), position.clone(), key);
        }
        self.descend(path, position, key);
    }

    /// Selects from a node of this worker's on, until the rollout leaves it or comes to a leaf.
    fn descend(&mut self, mut path: Path, mut position: G, mut key: u64) {
        loop {
            if path.len() == PATH_MAX {
                return self.reach_leaf(path, position);
            }
            let found = self.tree.find(key);
            let Some(slot) = found.or_else(|| self.expand(&position, key)) else {
                return self.reach_leaf(path, position);
            };
            if let Some(proof) = self.tree.node(slot).proof {
                let tally = self.known(proof);
                let node = self.tree.node_mut(slot);
                node.visits += u64::from(tally.simulations);
                node.own += u64::from(tally.simulations);
                return self.back_up(path, tally, Some(proof));
            }
            let (edge, is_new) = self.select(slot);
            let mv = self.tree.child(slot, edge).mv;
            position.play(mv);
            key = self.settings.placement.child_key(key, mv, &position);
            if is_new {
                let owner = self.place(key, path.len());
                self.tree.set_owner(slot, edge, owner);
            }
            self.tree.descend(slot, edge, self.phase);
            path.push(Hop { node: slot, edge, mv, owner: self.me });
            let owner = self.tree.child(slot, edge).owner;
            if owner != self.me {
                return self.outbox.select(owner, path, is_new);
            }
            if is_new
                && (self.settings.placement != Placement::Hash || self.tree.find(key).is_none())
            {
                return self.reach_leaf(path, position);
            }
        }
    }

    /// The child to go to, and whether nobody was there before.
    fn select(&mut self, slot: u32) -> (u16, bool) {
        let node = self.tree.node_mut(slot);
        if node.tried < node.children {
            node.tried += 1;
            return (node.tried - 1, true);
        }
        let Settings { virtual_loss, simulations, exploration, instructions, .. } = self.settings;
        let weights = Weights::new(node, virtual_loss, simulations, exploration);
        (select::best(instructions, &self.tree.tried(slot), &weights), false)
    }

    /// Makes a node, unless the game is over or there is no memory.
    fn expand(&mut self, position: &G, key: u64) -> Option<u32> {
        if position.outcome().is_some() {
            return None;
        }
        let mut moves = std::mem::take(&mut self.moves);
        moves.clear();
        position.moves(&mut moves);
        self.random.shuffle(&mut moves);
        let made = self.tree.insert(key, position.turn(), &moves, self.phase, self.root.key);
        self.moves = moves;
        match made {
            Ok(slot) => Some(slot),
            Err(Full) => {
                self.stats.not_expanded += 1;
                None
            }
        }
    }

    /// The rollout ends here: with the outcome, or with simulations.
    fn reach_leaf(&mut self, path: Path, position: G) {
        self.stats.rollouts += 1;
        self.stats.depth_sum += path.len() as u64;
        self.stats.depth_max = self.stats.depth_max.max(path.len());
        match position.outcome() {
            Some(outcome) => self.back_up(path, self.known(outcome), Some(outcome)),
            None => self.jobs.push_back(Job { path, position }),
        }
    }

    /// What a rollout brings whose result is known.
    fn known(&self, outcome: Outcome) -> Tally {
        let simulations = self.settings.simulations;
        let one = simulations.cast_signed();
        let score = match outcome {
            Outcome::Won(Player::First) => one,
            Outcome::Won(Player::Second) => -one,
            Outcome::Drawn => 0,
        };
        Tally { rollouts: 1, simulations, score }
    }

    /// Rollouts go back up the path, as far as its nodes are this worker's.
    fn back_up(&mut self, mut path: Path, tally: Tally, mut proof: Option<Outcome>) {
        while let Some(hop) = path.last().copied() {
            if hop.owner != self.me {
                return self.outbox.report(hop.owner, path, tally, proof);
            }
            proof = self.tree.back_up(hop.node, hop.edge, tally, proof);
            path.pop();
        }
        self.counted += u64::from(tally.rollouts);
        self.proven = self.proven.or(proof);
    }

    /// Who owns a child, `depth` being that of its parent.
    fn place(&self, key: u64, depth: usize) -> u16 {
        match self.settings.placement {
            Placement::Local(spread) if depth >= usize::from(spread) => self.me,
            Placement::Hash => self.drawn(key, 0),
            _ => {
                // The less busy one of two: a worker whose nodes everybody comes by simulates less.
                let [one, other] = [self.drawn(key, 0), self.drawn(key, 1)];
                let load = |worker: u16| self.loads[usize::from(worker)];
                if load(other) < load(one) { other } else { one }
            }
        }
    }

    fn drawn(&self, key: u64, number: u64) -> u16 {
        let even = mix(mix(self.settings.seed, key), number) % u64::from(self.workers);
        u16::try_from(even).expect("below a number of sixteen bits")
    }
}
