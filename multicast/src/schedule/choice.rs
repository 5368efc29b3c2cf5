//! Which schedule an object takes, and into which blocks it is cut.

use serde::{Deserialize, Serialize};

use super::{Schedule, Steps};

/// An object up to this size goes straight to every receiver, where there are few of them.
pub const SMALL_OBJECT_MAX: u64 = 10 << 10;
/// Members of a group up to which a small object goes straight to every receiver.
pub const SMALL_MEMBERS_MAX: usize = 16;

/// Blocks of an object up to which whoever has it straight from the root says only that it is whole, and not each block.
pub(crate) const WHOLE_BLOCKS_MAX: u64 = 8;

/// What a group is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Choice {
    /// By size, members and nodes: small objects straight to few receivers; inside one node all read from the root; where several
    /// members share a node, [`Choice::Hybrid`]; otherwise [`Choice::Pipeline`].
    #[default]
    Auto,
    /// The root gives the whole object to one member after the other.
    Sequential,
    /// Each member passes each block on to the next one.
    Chain,
    /// Who has the whole object gives it to one that has nothing.
    Tree,
    /// The binomial pipeline, for any number of members.
    Pipeline,
    /// A pipeline among the first members of the nodes; on each node all others read from the first.
    Hybrid,
}

/// What an object takes; travels with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Sequential,
    Chain,
    Tree,
    Pipeline,
    Hybrid,
    /// Straight from the root to everybody.
    Direct,
}

impl Kind {
    /// For an object of this size, in so many blocks if it is in memory; `nodes` says on which node each member is.
    pub(crate) fn of(
        choice: Choice,
        size: u64,
        blocks_in_memory: Option<u64>,
        nodes: &[u32],
    ) -> Self {
        match choice {
            Choice::Sequential => Self::Sequential,
            Choice::Chain => Self::Chain,
            Choice::Tree => Self::Tree,
            Choice::Pipeline => Self::Pipeline,
            Choice::Hybrid => Self::Hybrid,
            Choice::Auto => {
                let is_small = size <= SMALL_OBJECT_MAX && nodes.len() <= SMALL_MEMBERS_MAX;
                let has_few_blocks = blocks_in_memory.is_some_and(|it| it <= WHOLE_BLOCKS_MAX);
                match heads(nodes).len() {
                    _ if is_small => Self::Direct,
                    1 if has_few_blocks => Self::Direct,
                    heads if heads == nodes.len() => Self::Pipeline,
                    _ => Self::Hybrid,
                }
            }
        }
    }
}

/// Of these nodes.
pub(crate) fn hosts(nodes: &[u32]) -> u32 {
    number(heads(nodes).len())
}

/// The places of the first member of each node, the root's first.
fn heads(nodes: &[u32]) -> Vec<usize> {
    let is_first = |place: &usize| !nodes[..*place].contains(&nodes[*place]);
    (0..nodes.len()).filter(is_first).collect()
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("members are counted by 32 bits")
}

/// What a member has to send of an object.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// By steps, among some of the members.
    pub(crate) stepped: Option<Stepped>,
    /// Those that get every block straight from this member.
    pub(crate) direct: Vec<u32>,
}

impl Plan {
    /// `among`: the members that it goes to, the root first, and the nodes of those.
    pub(crate) fn new(
        kind: Kind,
        (among, nodes): (&[u32], &[u32]),
        blocks: u64,
        member: u32,
    ) -> Self {
        let stepped = |schedule, among| Stepped::new(schedule, among, blocks, member);
        let of_all = |schedule| Self { stepped: stepped(schedule, among.to_vec()), direct: vec![] };
        let Some(place) = among.iter().position(|it| *it == member) else {
            return Self { stepped: None, direct: Vec::new() };
        };
        match kind {
            Kind::Sequential => of_all(Schedule::Sequential),
            Kind::Chain => of_all(Schedule::Chain),
            Kind::Tree => of_all(Schedule::Tree),
            Kind::Pipeline => of_all(Schedule::Pipeline),
            Kind::Hybrid => {
                let heads = heads(nodes);
                let is_here = |it: &usize| *it != place && nodes[*it] == nodes[place];
                let here = (0..among.len()).filter(is_here).map(|it| among[it]);
                let direct = if heads.contains(&place) { here.collect() } else { Vec::new() };
                let heads = heads.iter().map(|it| among[*it]).collect();
                Self { stepped: stepped(Schedule::Pipeline, heads), direct }
            }
            Kind::Direct => {
                let others = if place == 0 { among.get(1..) } else { None };
                Self { stepped: None, direct: others.unwrap_or_default().to_vec() }
            }
        }
    }
}

/// The blocks that a member sends by steps, in order.
#[derive(Debug, Clone)]
pub(crate) struct Stepped {
    /// The members that take part, by their places in the schedule.
    among: Vec<u32>,
    steps: Steps,
}

impl Stepped {
    /// `None`: this member sends nothing by steps.
    fn new(schedule: Schedule, among: Vec<u32>, blocks: u64, member: u32) -> Option<Self> {
        let place = number(among.iter().position(|it| *it == member)?);
        let never_sends = schedule == Schedule::Sequential && place != 0;
        if among.len() < 2 || never_sends {
            return None;
        }
        let steps = Steps::new(schedule, number(among.len()), blocks, place);
        Some(Self { among, steps })
    }
}

impl Iterator for Stepped {
    /// To whom, and which block.
    type Item = (u32, u64);

    fn next(&mut self) -> Option<(u32, u64)> {
        let hop = self.steps.find_map(|step| step.send)?;
        Some((self.among[hop.peer as usize], hop.block))
    }
}

/// Bytes of a block for an object of this size that goes to so many hosts: about where what each block costs by itself and what it costs to
/// fill the pipeline are equal, `sqrt(size * OVERHEAD / (dimensions - 1))`, a power of two. Inside one host all read from the root, and
/// the first block is what is waited for.
#[must_use]
pub fn block_size(size: u64, hosts: u32) -> u64 {
    let filling = u64::from(hosts.max(2).ilog2().max(2) - 1);
    let overhead = if hosts > 1 { OVERHEAD } else { OVERHEAD_INSIDE };
    let best = (size / filling).saturating_mul(overhead).isqrt();
    best.next_power_of_two().clamp(BLOCK_MIN, BLOCK_MAX)
}

/// What a block costs by itself, as bytes that would travel meanwhile: 16 us at 1 GB/s.
const OVERHEAD: u64 = 16 << 10;
/// The same inside a host: a message to each member, and a wake-up, while bytes are copied four times as fast.
const OVERHEAD_INSIDE: u64 = 64 << 10;
/// Smallest block that is chosen.
const BLOCK_MIN: u64 = 64 << 10;
/// Largest block that is chosen.
const BLOCK_MAX: u64 = 4 << 20;
