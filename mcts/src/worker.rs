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
    Game, Outcome, Parallelism, Placement, Player, Random, Settings,
    game::check_moves,
    merge::{Merged, Share},
    message::{Body, Hop, Message, News, Outbox, Path},
    mix,
    select::{self, Weights},
    stats::{Audit, Part, Progress, Sum, Sums, WorkerStats},
    tree::{Full, NOBODY, Tally, Tree},
};

#[cfg(test)]
mod tests;

/// A rollout goes no deeper. Games end; this is for one whose positions repeat, against the contract.
pub(crate) const PATH_MAX: usize = 512;

/// Rollouts that may wait at a worker, though another one has none, before that one owns the next child.
const SLACK: u32 = 128;

/// Rollouts select alike at a node that has counted so many for each of them, and not more than so many.
const KNOWN_PER_ROLLOUT: u64 = if cfg!(test) { 8 } else { 256 };
const TOGETHER_MAX: u32 = 16;

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
    /// What is wrong with a message that was handled, if anything is: the phase cannot go on.
    pub(crate) fault: Option<&'static str>,
    /// Other processes send messages: whether their moves can be made is looked at.
    has_strangers: bool,
    moves: Vec<u16>,
    pub(crate) merged: Merged,
}

/// The position that is searched, as all workers know it.
#[derive(Clone, Debug)]
pub(crate) struct Root<G> {
    pub(crate) position: G,
    pub(crate) key: u64,
    pub(crate) owner: u16,
}

impl<G: Game> Root<G> {
    pub(crate) fn of(position: G) -> Self {
        Self { key: position.hash(), position, owner: 0 }
    }
}

/// Another process has sent a move that cannot be made.
struct Illegal;

/// A leaf whose simulations wait.
#[derive(Debug)]
struct Job<G> {
    path: Path,
    position: G,
}

impl<G: Game> Worker<G> {
    /// One of those that share a search: of the one tree, or with a tree of its own.
    pub(crate) fn one_of(number: u16, all: u16, settings: &Settings, root: &Root<G>) -> Self {
        let (me, workers, others) = match settings.parallelism {
            Parallelism::Tree => (number, all, 0),
            Parallelism::Root => (0, 1, 0),
            Parallelism::Merged => (0, 1, all - 1),
        };
        let share = Share::new::<G>(others);
        let bytes = settings.memory / usize::from(settings.workers);
        Self {
            me,
            workers,
            settings: settings.clone(),
            root: root.clone(),
            phase: 0,
            tree: Tree::new(bytes.saturating_sub(share.of(bytes))),
            random: Random::new(settings.seed, number.into()),
            jobs: VecDeque::new(),
            outbox: Outbox::new(number, all),
            loads: vec![0; workers.into()],
            begun: 0,
            counted: 0,
            proven: None,
            stats: WorkerStats::default(),
            fault: None,
            has_strangers: false,
            moves: Vec::new(),
            merged: Merged::new(share, bytes),
        }
    }

    /// Some of the others are in another process.
    pub(crate) fn among_strangers(self) -> Self {
        Self { has_strangers: true, ..self }
    }

    /// This position is searched from now on. Nothing is under way.
    pub(crate) fn begin_phase(&mut self, phase: u32, root: &Root<G>) {
        self.phase = phase;
        self.root.clone_from(root);
        (self.begun, self.counted) = (0, 0);
        self.proven = self.tree.find(self.root.key).and_then(|slot| self.tree.node(slot).proof);
        self.stats = WorkerStats::default();
        self.outbox.begin(phase);
        self.outbox.combined = 0;
    }

    /// Simulations that the root has counted. Of the root's owner only.
    pub(crate) fn root_visits(&self) -> u64 {
        self.tree.find(self.root.key).map_or(0, |slot| self.tree.node(slot).visits)
    }

    /// Begins rollouts, as many as may be under way at most. Of the root's owner only.
    pub(crate) fn begin_rollouts(&mut self, count: u32) {
        if count == 0 {
            return;
        }
        self.begun += u64::from(count);
        self.arrive(Path::new(), self.root.position.clone(), self.root.key, count);
    }

    /// Whether the phase goes on after this message. Where it makes no sense, `fault` says so.
    pub(crate) fn handle(&mut self, message: Message) -> bool {
        let Message { phase, from, body } = message;
        if phase != self.phase {
            return true;
        }
        match body {
            Body::Select { path, count } => match self.arrival(&path, count, from) {
                Ok((position, key)) => self.arrive(path, position, key, count),
                Err(why) => self.fault = Some(why),
            },
            Body::Report { path, tally, proof } => {
                let simulations = tally.rollouts.checked_mul(self.settings.simulations);
                if path.last().is_none_or(|hop| hop.owner != self.me)
                    || path.iter().any(|hop| hop.owner >= self.workers)
                    || simulations != Some(tally.simulations)
                {
                    self.fault = Some("has reported what cannot be");
                    return true;
                }
                self.back_up(path, tally, proof);
            }
            Body::Stop if from == self.root.owner => return false,
            Body::Stop => self.fault = Some("has ended a phase that another one leads"),
            Body::News { .. } | Body::Told { .. } => {
                self.fault = Some("has told what it has counted, though the tree is one");
            }
        }
        true
    }

    /// The root has a node from the beginning, so that others' counts can be added to it.
    pub(crate) fn begin_merging(&mut self) {
        let Root { position, key, .. } = self.root.clone();
        let root = self.tree.find(key).or_else(|| self.expand(&position, key));
        self.merged.begin(&mut self.tree, root, self.phase);
    }

    /// Tells all others what was counted here since the last time.
    pub(crate) fn tell(&mut self, is_last: bool) {
        let Self { merged, tree, root, settings, .. } = self;
        let news = merged.news(tree, (root.key, &root.position), settings.placement);
        news.iter().chain([&Body::Told { is_last }]).for_each(|it| self.outbox.tell_all(it));
    }

    /// Adds what another one has counted at the node to which these moves lead, which is made if it is not here.
    pub(crate) fn add(&mut self, moves: &[u16], news: &[News]) {
        if news.iter().any(|it| it.score.unsigned_abs() > it.visits) {
            self.fault = Some("has told of more wins than games");
            return;
        }
        let Ok((position, key)) = self.follow(moves.iter().copied()) else {
            self.fault = Some("has told of a move that cannot be made");
            return;
        };
        let Some(slot) = self.tree.find(key).or_else(|| self.expand(&position, key)) else {
            return;
        };
        self.merged.add(&mut self.tree, slot, news);
        if key == self.root.key {
            self.proven = self.proven.or(self.tree.node(slot).proof);
        }
    }

    /// The position to which moves lead from the root, and its key. Strangers' moves may be none that can be made.
    fn follow(&self, moves: impl Iterator<Item = u16>) -> Result<(G, u64), Illegal> {
        let (mut position, mut key) = (self.root.position.clone(), self.root.key);
        for mv in moves {
            if self.has_strangers && !position.is_legal(mv) {
                return Err(Illegal);
            }
            position.play(mv);
            key = self.settings.placement.child_key(key, mv, &position);
        }
        Ok((position, key))
    }

    /// The phase that it is in.
    pub(crate) fn phase(&self) -> u32 {
        self.phase
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

    /// What is known about a node and its children.
    pub(crate) fn look(&self, key: u64) -> Option<Sums> {
        let slot = self.tree.find(key)?;
        let node = self.tree.node(slot);
        let children = (0..node.children).map(|edge| {
            let child = self.tree.child(slot, edge);
            let (visits, score) = (child.visits.into(), child.score.into());
            Sum { mv: child.mv, owner: child.owner, visits, score, proof: child.proof }
        });
        Some(Sums { visits: node.visits, children: children.collect() })
    }

    /// What came of the phase here.
    pub(crate) fn part(&self, samples: Vec<Progress>) -> Part {
        Part {
            stats: self.final_stats(),
            root: self.look(self.root.key),
            counted: self.counted,
            proven: self.proven,
            samples,
        }
    }

    /// Adds up what must be in balance between phases.
    pub(crate) fn audit(&self) -> Audit {
        let mut audit = Audit {
            waiting: self.jobs.len() as u64 + u64::from(!self.outbox.is_empty()),
            ..Audit::default()
        };
        for slot in self.tree.slots() {
            let node = self.tree.node(slot);
            let mut sum = node.own;
            audit.under_way += u64::from(node.pending);
            for edge in 0..node.children {
                let child = self.tree.child(slot, edge);
                sum += u64::from(child.visits);
                audit.under_way += u64::from(child.pending);
            }
            audit.nodes += 1;
            audit.unbalanced += u64::from(sum != node.visits);
        }
        audit
    }

    /// What it has done in the phase, and what it has now.
    fn final_stats(&self) -> WorkerStats {
        WorkerStats {
            combined: self.outbox.combined,
            nodes: self.tree.len(),
            children: self.tree.children(),
            tree_bytes: self.tree.bytes() + self.merged.bytes(),
            pruned: self.tree.pruned,
            ..self.stats
        }
    }

    /// Leaves that wait for their simulations.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// The position at the end of a path that another worker sends, and its key; or why there is none.
    fn arrival(&self, path: &Path, count: u32, from: u16) -> Result<(G, u64), &'static str> {
        let under_way = count.saturating_add(u32::try_from(self.jobs.len()).unwrap_or(u32::MAX));
        if count == 0 || under_way > self.settings.window {
            return Err("has sent more rollouts than there may be");
        }
        // Who selects is the last one of the path, so that rollouts come back to no one but the sender.
        if path.last().is_none_or(|hop| hop.owner != from)
            || path.iter().any(|hop| hop.owner >= self.workers)
        {
            return Err("has sent rollouts by a path that is not its own");
        }
        let moves = path.iter().map(|hop| hop.mv);
        self.follow(moves).map_err(|Illegal| "has sent a move that cannot be made")
    }

    /// Rollouts go on from a node of this worker's: together, as far as the node's counts hardly change by so few.
    fn arrive(&mut self, path: Path, position: G, key: u64, count: u32) {
        let mut left = count;
        loop {
            let together = self.together(key, left);
            left -= together;
            if left == 0 {
                return self.descend(path, position, key, together);
            }
            self.descend(path.clone(), position.clone(), key, together);
        }
    }

    /// How many rollouts of so many select the same child of a node.
    fn together(&self, key: u64, most: u32) -> u32 {
        let slot = if most > 1 { self.tree.find(key) } else { None };
        let Some(slot) = slot else { return 1 };
        let known = self.tree.node(slot).visits / u64::from(self.settings.simulations);
        let few = u32::try_from(known / KNOWN_PER_ROLLOUT).unwrap_or(TOGETHER_MAX);
        few.clamp(1, TOGETHER_MAX).min(most)
    }

    /// Selects from a node of this worker's on, until the rollouts leave it, or one comes to a leaf.
    fn descend(&mut self, mut path: Path, mut position: G, mut key: u64, count: u32) {
        loop {
            if path.len() == PATH_MAX {
                return self.reach_leaf(path, position, count);
            }
            let found = self.tree.find(key);
            let Some(slot) = found.or_else(|| self.expand(&position, key)) else {
                return self.reach_leaf(path, position, count);
            };
            if let Some(proof) = self.tree.node(slot).proof {
                let tally = self.known(proof, count);
                let node = self.tree.node_mut(slot);
                node.visits += u64::from(tally.simulations);
                node.own += u64::from(tally.simulations);
                return self.back_up(path, tally, Some(proof));
            }
            let (edge, is_new) = self.select(slot);
            let mv = self.tree.child(slot, edge).mv;
            debug_assert!(position.is_legal(mv), "Game::hash: two positions have the same one");
            position.play(mv);
            key = self.settings.placement.child_key(key, mv, &position);
            self.tree.descend(slot, edge, count, self.phase);
            path.push(Hop { node: slot, edge, mv, owner: self.me });
            if is_new {
                return self.reach_leaf(path, position, count);
            }
            let mut owner = self.tree.child(slot, edge).owner;
            if owner == NOBODY {
                // The second visit, which makes a node. The first one needed none, and was simulated where it was.
                owner = self.place(key, path.len() - 1);
                self.tree.set_owner(slot, edge, owner);
            }
            if owner != self.me {
                return self.outbox.select(owner, path, count);
            }
            if count > 1 {
                return self.arrive(path, position, key, count);
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
        check_moves(&moves);
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

    /// Rollouts end here: with the outcome, or with simulations.
    fn reach_leaf(&mut self, path: Path, position: G, count: u32) {
        self.stats.rollouts += u64::from(count);
        self.stats.depth_sum += u64::from(count) * path.len() as u64;
        self.stats.depth_max = self.stats.depth_max.max(path.len());
        if let Some(outcome) = position.outcome() {
            return self.back_up(path, self.known(outcome, count), Some(outcome));
        }
        for _ in 1..count {
            self.jobs.push_back(Job { path: path.clone(), position: position.clone() });
        }
        self.jobs.push_back(Job { path, position });
    }

    /// What rollouts bring whose result is known.
    fn known(&self, outcome: Outcome, rollouts: u32) -> Tally {
        let simulations = rollouts.saturating_mul(self.settings.simulations);
        let all = simulations.cast_signed();
        let score = match outcome {
            Outcome::Won(Player::First) => all,
            Outcome::Won(Player::Second) => -all,
            Outcome::Drawn => 0,
        };
        Tally { rollouts, simulations, score }
    }

    /// Rollouts go back up the path, as far as its nodes are this worker's.
    fn back_up(&mut self, mut path: Path, tally: Tally, mut proof: Option<Outcome>) {
        while let Some(hop) = path.last().copied() {
            if hop.owner != self.me {
                return self.outbox.report(hop.owner, path, tally, proof);
            }
            let Ok(proven) = self.tree.back_up(hop.node, hop.edge, tally, proof) else {
                self.fault = Some("has reported rollouts that it was not sent");
                return;
            };
            proof = proven;
            path.pop();
        }
        self.counted += u64::from(tally.rollouts);
        self.proven = self.proven.or(proof);
    }

    /// Who owns a child, `depth` being that of its parent.
    fn place(&self, key: u64, depth: usize) -> u16 {
        let load = |worker: u16| self.loads[usize::from(worker)];
        let one = self.drawn(key, 0);
        match self.settings.placement {
            Placement::Hash => one,
            Placement::Local(spread) if depth >= usize::from(spread) => {
                let is_busy = load(self.me) > load(one).saturating_mul(2).saturating_add(SLACK);
                if is_busy { one } else { self.me }
            }
            Placement::Local(_) | Placement::Random => {
                // The less busy one of two: a worker whose nodes everybody comes by simulates less.
                let other = self.drawn(key, 1);
                if load(other) < load(one) { other } else { one }
            }
        }
    }

    fn drawn(&self, key: u64, number: u64) -> u16 {
        let even = mix(mix(self.settings.seed, key), number) % u64::from(self.workers);
        u16::try_from(even).expect("below a number of sixteen bits")
    }
}
