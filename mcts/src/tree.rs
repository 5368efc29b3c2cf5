//! The nodes that one worker owns, and its bound on memory.
//!
//! # Layout
//! | what | bytes | where |
//! |---|---:|---|
//! | [`Node`] | 48 | `nodes`, in a slot that stays the same while the node lives |
//! | its entry in the table, by key | at most 12 | `table`: slot numbers only |
//! | each child | 15 | six columns, side by side from `Node::first` on |
//!
//! Children stand in columns because a selection reads a few fields of all of them: see `select.rs`. A child that was
//! visited once has no node yet, only its place in the columns.
//!
//! Nothing points at a node but its slot number, in paths of rollouts under way: these keep it from being pruned
//! (`Node::pending`). Parents find children by key, so a pruned node leaves no dangling reference: it is missing, and
//! is made again when it is wanted.

use hashbrown::HashTable;

use crate::{Outcome, Player};

/// The most children a position may have.
pub const CHILDREN_MAX: usize = 512;

/// A position that was expanded. Counts are of simulations but for `pending`.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) key: u64,
    /// Simulations that have been counted here: those of all children and its own.
    pub(crate) visits: u64,
    /// Of those, the ones that ended here, since the result was known.
    pub(crate) own: u64,
    first: u32,
    /// Rollouts under way through here.
    pub(crate) pending: u32,
    /// The phase that came by last.
    pub(crate) phase: u32,
    pub(crate) children: u16,
    /// The first so many children were selected at least once.
    pub(crate) tried: u16,
    /// One more than the number of its entry in `merge.rs`, if it has one.
    pub(crate) merged: u32,
    /// Children without a proof.
    unproven: u16,
    pub(crate) turn: Player,
    pub(crate) proof: Option<Outcome>,
}

/// The children of all nodes, a field a column.
#[derive(Debug, Default)]
struct Columns {
    moves: Vec<u16>,
    owners: Vec<u16>,
    pending: Vec<u16>,
    proofs: Vec<Option<Outcome>>,
    visits: Vec<u32>,
    scores: Vec<i32>,
}

/// The most simulations that a child counts: so many have a score, and are a positive number to vector instructions.
const VISITS_MAX: u32 = i32::MAX.cast_unsigned();

/// Calls a method of every column.
macro_rules! each_column {
    ($columns:expr, $column:ident => $call:expr) => {{
        let Columns { moves, owners, pending, proofs, visits, scores } = $columns;
        each_column!(@ $column => $call; moves owners pending proofs visits scores);
    }};
    (@ $column:ident => $call:expr; $($name:ident)*) => {
        $({ let $column = $name; $call; })*
    };
}

const NODE_BYTES: usize = size_of::<Node>();
const CHILD_BYTES: usize = 3 * size_of::<u16>() + 1 + 2 * size_of::<u32>();
/// Pruning makes two lists of slot numbers.
const LISTS_BYTES: usize = 2 * size_of::<u32>();
/// The table doubles when seven eighths of its places are taken; a place has a slot number and a byte.
const TABLE_BYTES: usize = 12;

const _: () = {
    assert!(NODE_BYTES == 48 && size_of::<Option<Outcome>>() == 1 && CHILD_BYTES == 15);
    // Vectors grow by a sixteenth, so that much may lie idle.
    assert!(
        NODE_BYTES + NODE_BYTES / 16 + TABLE_BYTES <= 64 && CHILD_BYTES + CHILD_BYTES / 16 <= 16
    );
};

/// The children of one node, as far as they were tried.
#[derive(Debug)]
pub(crate) struct Tried<'a> {
    pub(crate) pending: &'a [u16],
    pub(crate) proofs: &'a [Option<Outcome>],
    pub(crate) visits: &'a [u32],
    pub(crate) scores: &'a [i32],
}

/// One child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) mv: u16,
    pub(crate) owner: u16,
    pub(crate) pending: u16,
    pub(crate) proof: Option<Outcome>,
    pub(crate) visits: u32,
    pub(crate) score: i32,
}

/// What came of rollouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many rollouts.
    pub(crate) rollouts: u32,
    /// How many simulations they made, or stand for where the result was known.
    pub(crate) simulations: u32,
    /// Simulations that the first player won less those that the second one did.
    pub(crate) score: i32,
}

/// Rollouts come back that have not gone this way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unasked;

/// There is no room for another node.
#[derive(Debug)]
pub(crate) struct Full;

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// The first slot of `nodes` without a node, or [`NONE`]; its `first` is the next one.
    free: u32,
    table: HashTable<u32>,
    columns: Columns,
    bytes_max: usize,
    /// How often nodes were pruned, and how many.
    pub(crate) prunes: u64,
    pub(crate) pruned: u64,
}

impl Tree {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            table: HashTable::new(),
            columns: Columns::default(),
            bytes_max,
            prunes: 0,
            pruned: 0,
        }
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many children all nodes have together.
    pub(crate) fn children(&self) -> usize {
        self.columns.moves.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * NODE_BYTES
            + self.table.allocation_size()
            + self.columns.moves.capacity() * CHILD_BYTES
    }

    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        self.table.find(key, |slot| self.nodes[*slot as usize].key == key).copied()
    }

    pub(crate) fn node(&self, slot: u32) -> &Node {
        &self.nodes[slot as usize]
    }

    pub(crate) fn node_mut(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// Makes a node, whose children are tried in the order of `moves`. Prunes others where there is no room.
    ///
    /// # Errors
    /// Whatever could be pruned has rollouts under way, or is the root.
    pub(crate) fn insert(
        &mut self,
        key: u64,
        turn: Player,
        moves: &[u16],
        phase: u32,
        root: u64,
    ) -> Result<u32, Full> {
        if !self.has_room(moves.len()) {
            self.prune(root);
            if !self.has_room(moves.len()) {
                return Err(Full);
            }
        }
        let first = u32::try_from(self.children()).expect("has_room has looked");
        let children = u16::try_from(moves.len()).expect("at most CHILDREN_MAX moves");
        self.columns.push(moves);
        let node = Node {
            key,
            visits: 0,
            own: 0,
            first,
            pending: 0,
            phase,
            children,
            tried: 0,
            merged: 0,
            unproven: children,
            turn,
            proof: None,
        };
        let slot = if self.free != NONE {
            let slot = self.free;
            self.free = std::mem::replace(&mut self.nodes[slot as usize], node).first;
            slot
        } else {
            grow(&mut self.nodes, 1);
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1)
                .expect("a node has a child, and has_room has looked")
        };
        let nodes = &self.nodes;
        self.table.insert_unique(key, slot, |slot| nodes[*slot as usize].key);
        Ok(slot)
    }

    pub(crate) fn tried(&self, slot: u32) -> Tried<'_> {
        let node = self.node(slot);
        let range = node.first as usize..node.first as usize + usize::from(node.tried);
        Tried {
            pending: &self.columns.pending[range.clone()],
            proofs: &self.columns.proofs[range.clone()],
            visits: &self.columns.visits[range.clone()],
            scores: &self.columns.scores[range],
        }
    }

    pub(crate) fn child(&self, slot: u32, edge: u16) -> Child {
        let (at, columns) = (self.place(slot, edge), &self.columns);
        Child {
            mv: columns.moves[at],
            owner: columns.owners[at],
            pending: columns.pending[at],
            proof: columns.proofs[at],
            visits: columns.visits[at],
            score: columns.scores[at],
        }
    }

    /// Rollouts go through here.
    pub(crate) fn descend(&mut self, slot: u32, edge: u16, count: u32, phase: u32) {
        let at = self.place(slot, edge);
        // A window of rollouts fits; more can only come from a process that lies.
        let more = u16::try_from(count).unwrap_or(u16::MAX);
        self.columns.pending[at] = self.columns.pending[at].saturating_add(more);
        let node = self.node_mut(slot);
        node.pending = node.pending.saturating_add(count);
        node.phase = phase;
    }

    /// The next child is tried: who owns it.
    pub(crate) fn set_owner(&mut self, slot: u32, edge: u16, owner: u16) {
        let at = self.place(slot, edge);
        self.columns.owners[at] = owner;
    }

    /// Rollouts come back. Returns the node's own proof, or that no such rollouts have gone this way.
    pub(crate) fn back_up(
        &mut self,
        slot: u32,
        edge: u16,
        tally: Tally,
        proof: Option<Outcome>,
    ) -> Result<Option<Outcome>, Unasked> {
        // A slot without a node has no children.
        let node = self.nodes.get_mut(slot as usize).filter(|node| edge < node.children);
        let node = node.ok_or(Unasked)?;
        let at = node.first as usize + usize::from(edge);
        let columns = &mut self.columns;
        let under_way = u32::from(columns.pending[at]).checked_sub(tally.rollouts);
        let under_way = under_way.and_then(|it| u16::try_from(it).ok()).ok_or(Unasked)?;
        node.pending = node.pending.checked_sub(tally.rollouts).ok_or(Unasked)?;
        columns.pending[at] = under_way;
        let score = if node.turn == Player::First { tally.score } else { -tally.score };
        count(node, columns, at, (tally.simulations, score));
        prove(node, columns, at, proof);
        Ok(node.proof)
    }

    /// Adds what others have counted at a child, while nothing is under way. A child that was not tried here is by that, and changes places
    /// with the first one that was not. Returns its number after that.
    pub(crate) fn add(
        &mut self,
        slot: u32,
        edge: u16,
        counts: (u32, i32),
        proof: Option<Outcome>,
    ) -> u16 {
        let (from, node) = (self.place(slot, edge), &mut self.nodes[slot as usize]);
        debug_assert!(node.pending == 0, "rollouts under way know children by their numbers");
        let (mut at, mut now) = (from, edge);
        if edge >= node.tried && counts.0 > 0 {
            now = node.tried;
            at = node.first as usize + usize::from(now);
            node.tried += 1;
            each_column!(&mut self.columns, column => column.swap(from, at));
        }
        count(node, &mut self.columns, at, counts);
        prove(node, &mut self.columns, at, proof);
        now
    }

    /// The child by a move.
    pub(crate) fn edge_of(&self, slot: u32, mv: u16) -> Option<u16> {
        // A part is looked at as a whole, by vector instructions.
        const PART: usize = 32;
        let node = self.node(slot);
        let range = node.first as usize..node.first as usize + usize::from(node.children);
        let moves = &self.columns.moves[range];
        let is_in = |part: &[u16]| part.iter().fold(false, |found, it| found | (*it == mv));
        let from = PART * moves.chunks(PART).position(is_in)?;
        let edge = from + moves[from..].iter().position(|it| *it == mv)?;
        u16::try_from(edge).ok()
    }

    /// All slots with a node.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.iter().copied()
    }

    fn place(&self, slot: u32, edge: u16) -> usize {
        let node = self.node(slot);
        debug_assert!(edge < node.children, "child {edge} of {}", node.children);
        node.first as usize + usize::from(edge)
    }

    /// Whether one more node fits, with what the vectors and the table would grow by.
    fn has_room(&self, children: usize) -> bool {
        let columns = &self.columns.moves;
        let mut bytes = self.bytes();
        if self.free == NONE {
            bytes += growth(&self.nodes, 1) * NODE_BYTES;
        }
        bytes += growth(columns, children) * CHILD_BYTES;
        if self.table.len() == self.table.capacity() {
            bytes += 2 * self.table.allocation_size();
        }
        bytes += (self.len() + 1) * LISTS_BYTES;
        bytes <= self.bytes_max && u32::try_from(columns.len() + children).is_ok()
    }

    /// Removes half of the nodes: first those that no recent phase came by, then those with the fewest visits.
    fn prune(&mut self, root: u64) {
        let can_go = |node: &Node| node.pending == 0 && node.key != root;
        let mut order = Vec::with_capacity(self.len());
        order.extend(self.slots().filter(|slot| can_go(self.node(*slot))));
        let count = order.len().div_ceil(2);
        if count == 0 {
            return;
        }
        if count < order.len() {
            order.select_nth_unstable_by_key(count, |slot| {
                let node = self.node(*slot);
                (node.phase, node.visits, *slot)
            });
        }
        self.prunes += 1;
        self.pruned += count as u64;
        for slot in &order[..count] {
            self.nodes[*slot as usize].children = 0;
        }
        self.compact();
        for slot in &order[..count] {
            self.nodes[*slot as usize].first = std::mem::replace(&mut self.free, *slot);
        }
    }

    /// Keeps the nodes that have children, and moves these together in the order in which they stand.
    fn compact(&mut self) {
        let mut order = Vec::with_capacity(self.len());
        order.extend(self.slots().filter(|slot| self.node(*slot).children > 0));
        order.sort_unstable_by_key(|slot| self.node(*slot).first);
        // Filled again rather than thinned out: places that were given up would count as taken.
        self.table.clear();
        let mut to = 0;
        for slot in order {
            let node = &mut self.nodes[slot as usize];
            let from = node.first as usize;
            let range = from..from + usize::from(node.children);
            node.first = u32::try_from(to).expect("before where it was");
            each_column!(&mut self.columns, column => column.copy_within(range.clone(), to));
            to += range.len();
            let nodes = &self.nodes;
            let key = nodes[slot as usize].key;
            self.table.insert_unique(key, slot, |slot| nodes[*slot as usize].key);
        }
        each_column!(&mut self.columns, column => column.truncate(to));
    }
}

/// Adds simulations and their score at a child and its parent, unless these are more than the child can still count: then neither, so that
/// scores stay within visits.
fn count(node: &mut Node, columns: &mut Columns, at: usize, (visits, score): (u32, i32)) {
    let sum = columns.visits[at].saturating_add(visits);
    if sum > VISITS_MAX {
        return;
    }
    columns.visits[at] = sum;
    columns.scores[at] = columns.scores[at].saturating_add(score);
    node.visits += u64::from(visits);
}

/// A child's result may be known now, and its parent's with it.
fn prove(node: &mut Node, columns: &mut Columns, at: usize, proof: Option<Outcome>) {
    let Some(outcome) = proof.filter(|_| columns.proofs[at].is_none()) else { return };
    columns.proofs[at] = proof;
    node.unproven -= 1;
    if outcome == Outcome::Won(node.turn) {
        node.proof = proof;
    } else if node.unproven == 0 && node.proof.is_none() {
        let range = node.first as usize..node.first as usize + usize::from(node.children);
        let drawn = columns.proofs[range].contains(&Some(Outcome::Drawn));
        let lost = Outcome::Won(node.turn.opponent());
        node.proof = Some(if drawn { Outcome::Drawn } else { lost });
    }
}

/// No worker: a child without a node.
pub(crate) const NOBODY: u16 = u16::MAX;
/// No slot.
const NONE: u32 = u32::MAX;

impl Columns {
    fn push(&mut self, moves: &[u16]) {
        let len = self.moves.len() + moves.len();
        each_column!(&mut *self, column => grow(column, moves.len()));
        self.moves.extend_from_slice(moves);
        self.owners.resize(len, NOBODY);
        self.pending.resize(len, 0);
        self.proofs.resize(len, None);
        self.visits.resize(len, 0);
        self.scores.resize(len, 0);
    }
}

/// How much a vector grows by before so many items are added.
fn growth<T>(items: &Vec<T>, more: usize) -> usize {
    let needed = (items.len() + more).saturating_sub(items.capacity());
    if needed == 0 { 0 } else { needed.max(items.capacity() / 16) }
}

fn grow<T>(items: &mut Vec<T>, more: usize) {
    let by = growth(items, more);
    if by > 0 {
        items.reserve_exact(items.capacity() - items.len() + by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Instructions, VirtualLoss,
        select::{self, Weights},
    };

    fn tally(score: i32) -> Tally {
        Tally { rollouts: 1, simulations: 16, score }
    }

    #[test]
    fn a_node_and_its_children_stay_below_the_promised_bytes() {
        let mut tree = Tree::new(usize::MAX);
        let moves: Vec<u16> = (0..100).collect();
        for key in 1..50_000 {
            let moves = &moves[..1 + key % 3 * 30];
            tree.insert(key as u64, Player::First, moves, 1, 0).unwrap();
            if key.is_power_of_two() || key % 1000 == 0 {
                let most = 64 * tree.len() + 16 * tree.children() + 4096;
                assert!(tree.bytes() <= most, "{} of {most} for {}", tree.bytes(), tree.len());
            }
        }
    }

    #[test]
    fn rollouts_that_have_not_gone_this_way_do_not_come_back() {
        let mut tree = Tree::new(40_000);
        let slot = tree.insert(1, Player::First, &[4, 5, 6], 1, 1).unwrap();
        tree.descend(slot, 1, 1, 1);
        for (slot, edge) in [(slot + 1, 0), (NONE, 0), (slot, 3), (slot, 0)] {
            assert_eq!(tree.back_up(slot, edge, tally(0), None), Err(Unasked));
        }
        for rollouts in [2, 65_537, u32::MAX] {
            let tally = Tally { rollouts, ..tally(0) };
            assert_eq!(tree.back_up(slot, 1, tally, None), Err(Unasked));
        }
        assert_eq!(tree.node(slot).visits, 0);
        assert_eq!(tree.back_up(slot, 1, tally(0), None), Ok(None));
        assert_eq!((tree.node(slot).pending, tree.child(slot, 1).pending), (0, 0));
    }

    #[test]
    fn a_child_counts_no_more_than_what_is_positive_to_a_selection() {
        let mut tree = Tree::new(usize::MAX);
        let slot = tree.insert(1, Player::First, &[4, 5], 1, 1).unwrap();
        for score in [7, 2_000_000_000] {
            tree.add(slot, 0, (2_000_000_000, score), None);
        }
        tree.add(slot, 1, (10, 5), None);
        let child = tree.child(slot, 0);
        assert_eq!((child.visits, child.score), (2_000_000_000, 7), "not half of it either");
        assert_eq!(tree.node(slot).visits, 2_000_000_010);
        let weights = Weights::new(tree.node(slot), VirtualLoss::Unobserved, 16, 1.0);
        assert_eq!(select::best(Instructions::best(), &tree.tried(slot), &weights), 1);
    }

    #[test]
    fn pruning_keeps_the_root_what_is_under_way_and_what_was_visited_most() {
        let mut tree = Tree::new(40_000);
        let moves: Vec<u16> = (0..20).collect();
        tree.insert(1, Player::First, &moves, 1, 1).unwrap();
        let busy = tree.insert(2, Player::First, &moves, 1, 1).unwrap();
        tree.descend(busy, 7, 1, 1);
        let good = tree.insert(3, Player::First, &moves, 1, 1).unwrap();
        for _ in 0..10 {
            tree.descend(good, 5, 1, 1);
            tree.back_up(good, 5, tally(4), None).unwrap();
        }
        for key in 4..1000 {
            tree.insert(key, Player::First, &moves, 1, 1).unwrap();
            assert!(tree.bytes() <= 40_000);
        }
        assert!(tree.prunes > 1 && tree.pruned > 800);
        assert!([1, 2, 3].iter().all(|key| tree.find(*key).is_some()));
        // Slots of nodes under way stay, and their children came along.
        assert_eq!((tree.node(busy).key, tree.child(busy, 7).pending), (2, 1));
        let good = tree.find(3).unwrap();
        let child = tree.child(good, 5);
        assert_eq!((child.mv, child.visits, child.score), (5, 160, 40));
        assert_eq!((tree.node(good).visits, tree.node(good).pending), (160, 0));
    }

    #[test]
    fn nothing_is_made_where_everything_is_under_way() {
        let mut tree = Tree::new(10_000);
        let moves: Vec<u16> = (0..20).collect();
        let made = (1..1000).find(|key| {
            let slot = tree.insert(*key, Player::First, &moves, 1, 1);
            slot.map(|slot| tree.descend(slot, 0, 1, 1)).is_err()
        });
        assert!(made.is_some_and(|made| made > 10));
        assert!(tree.bytes() <= 10_000);
    }

    #[test]
    fn proofs_rise_as_the_rules_say() {
        use Outcome::{Drawn, Won};
        use Player::{First, Second};
        let cases = [
            (vec![Some(Won(First))], Some(Won(First))),
            (vec![Some(Won(Second)), None], None),
            (vec![Some(Won(Second)); 2], Some(Won(Second))),
            (vec![Some(Won(Second)), Some(Drawn)], Some(Drawn)),
            (vec![Some(Drawn), Some(Won(First))], Some(Won(First))),
        ];
        for (proofs, expected) in cases {
            let mut tree = Tree::new(usize::MAX);
            let slot = tree.insert(1, First, &[0, 1], 1, 1).unwrap();
            let mut proof = None;
            for (edge, child) in (0..).zip(&proofs) {
                tree.descend(slot, edge, 1, 1);
                proof = tree.back_up(slot, edge, tally(0), *child).unwrap();
            }
            assert_eq!(proof, expected, "{proofs:?}");
        }
    }
}
