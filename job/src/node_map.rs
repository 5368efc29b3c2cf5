//! Which rank runs on which node: a table, and nothing but a table.

use std::{fmt, str::FromStr};

/// Ranks are `u32`, and this many at most: a table of them fits in memory wherever it is made.
pub const RANKS_MAX: u32 = 1 << 24;

/// Which rank runs on which node. Nodes are numbered from 0 without gaps, and each has at least one rank.
///
/// It comes from the launcher, or is written down to imitate many nodes on one machine:
///
/// ```
/// use hg_job::NodeMap;
///
/// let map: NodeMap = "2x3".parse()?; // two nodes with three ranks each
/// assert_eq!(map.to_string(), "2x3");
/// assert_eq!(map.ranks_of(1), [3, 4, 5]);
///
/// let map: NodeMap = "3+1".parse()?; // three ranks on the first node, one on the second
/// assert_eq!(map.node_of(3), 1);
///
/// let map: NodeMap = "0,1,0,1".parse()?; // the node of each rank
/// assert_eq!(map.ranks_of(0), [0, 2]);
/// assert_eq!(map.local_rank(2), 1);
/// # Ok::<(), hg_job::MapError>(())
/// ```
///
/// # Memory
/// Twelve bytes a rank and four a node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NodeMap {
    /// The node of each rank.
    node_of: Vec<u32>,
    /// The ranks, node after node, ascending within each.
    ranks: Vec<u32>,
    /// Where the ranks of each node begin, and one more for the end.
    starts: Vec<u32>,
    /// The index of each rank among those of its node.
    local: Vec<u32>,
}

/// Why something is no map of ranks to nodes.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// There is not a single rank.
    #[error("a node map needs at least one rank")]
    Empty,
    /// Nodes are numbered 0, 1, 2 and so on: a gap is a mistake.
    #[error(
        "node {node} has no rank, but node {highest} has: nodes are numbered from 0 without gaps"
    )]
    Gap {
        /// The lowest number that no rank has.
        node: u32,
        /// The highest number that a rank has.
        highest: u32,
    },
    /// More ranks than [`RANKS_MAX`].
    #[error("{ranks} ranks are more than {RANKS_MAX}")]
    TooMany {
        /// How many there would be.
        ranks: u64,
    },
    /// The text has none of the three forms.
    #[error(
        "`{text}` is no node map: write 2x4 (nodes x ranks), 3+1 (ranks of each node) or 0,0,1,1 (node of each rank)"
    )]
    Text {
        /// What was given.
        text: String,
    },
    /// The map is for another number of ranks.
    #[error("the node map is for {map} ranks, but the job has {job}")]
    Size {
        /// Ranks in the map.
        map: u32,
        /// Ranks in the job.
        job: u32,
    },
}

impl fmt::Debug for MapError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Empty => "Empty",
            Self::Gap { .. } => "Gap",
            Self::TooMany { .. } => "TooMany",
            Self::Text { .. } => "Text",
            Self::Size { .. } => "Size",
        };
        write!(out, "{self} [{kind}]")
    }
}

impl NodeMap {
    /// A map from the node of each rank.
    ///
    /// # Errors
    /// No rank, too many, or a node without a rank.
    pub fn new(node_of: Vec<u32>) -> Result<Self, MapError> {
        let size = within_limit(node_of.len() as u64)?;
        let highest = *node_of.iter().max().ok_or(MapError::Empty)?;
        // A number that is out of reach leaves a gap below it: no table is made for it.
        let nodes = highest.min(size) as usize + 1;
        let mut counts = vec![0_u32; nodes];
        for node in &node_of {
            if let Some(count) = counts.get_mut(*node as usize) {
                *count += 1;
            }
        }
        if let Some(gap) = (0_u32..).zip(&counts).find(|(_, count)| **count == 0) {
            return Err(MapError::Gap { node: gap.0, highest });
        }
        Ok(Self::from_counts(node_of, &counts))
    }

    /// The same number of ranks on each node; consecutive ranks share a node.
    ///
    /// # Errors
    /// No rank, or too many.
    pub fn uniform(nodes: u32, ranks_per_node: u32) -> Result<Self, MapError> {
        let ranks = u64::from(nodes) * u64::from(ranks_per_node);
        within_limit(ranks)?;
        Self::new((0..nodes).flat_map(|node| (0..ranks_per_node).map(move |_| node)).collect())
    }

    /// So many ranks on each node; consecutive ranks share a node.
    ///
    /// # Errors
    /// No rank, too many, or a node without a rank.
    pub fn blocks(ranks_of_each: &[u32]) -> Result<Self, MapError> {
        within_limit(ranks_of_each.iter().map(|count| u64::from(*count)).sum())?;
        let highest = u32::try_from(ranks_of_each.len().saturating_sub(1)).unwrap_or(u32::MAX);
        if let Some(gap) = (0_u32..).zip(ranks_of_each).find(|(_, count)| **count == 0) {
            return Err(MapError::Gap { node: gap.0, highest });
        }
        let nodes = (0_u32..).zip(ranks_of_each);
        Self::new(nodes.flat_map(|(node, count)| (0..*count).map(move |_| node)).collect())
    }

    /// Every rank on one node.
    ///
    /// # Errors
    /// No rank, or too many.
    pub fn one_node(size: u32) -> Result<Self, MapError> {
        Self::uniform(1, size)
    }

    fn from_counts(node_of: Vec<u32>, counts: &[u32]) -> Self {
        let mut starts = Vec::with_capacity(counts.len() + 1);
        let mut start = 0;
        for count in counts {
            starts.push(start);
            start += count;
        }
        starts.push(start);
        let mut next = starts.clone();
        let mut ranks = vec![0; node_of.len()];
        let mut local = Vec::with_capacity(node_of.len());
        for (rank, node) in (0_u32..).zip(&node_of) {
            let place = &mut next[*node as usize];
            ranks[*place as usize] = rank;
            local.push(*place - starts[*node as usize]);
            *place += 1;
        }
        Self { node_of, ranks, starts, local }
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.node_of.len()).expect("checked when it was made")
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.starts.len() - 1).expect("not more than ranks")
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// The rank is not below [`size`](Self::size).
    #[must_use]
    pub fn node_of(&self, rank: u32) -> u32 {
        self.check_rank(rank);
        self.node_of[rank as usize]
    }

    /// The ranks of a node, ascending; the index in this slice is the local rank.
    ///
    /// # Panics
    /// The node is not below [`nodes`](Self::nodes).
    #[must_use]
    pub fn ranks_of(&self, node: u32) -> &[u32] {
        assert!(
            node < self.nodes(),
            "node {node} is not below the number of nodes, {}",
            self.nodes()
        );
        let node = node as usize;
        &self.ranks[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The index of a rank among those of its node.
    ///
    /// # Panics
    /// The rank is not below [`size`](Self::size).
    #[must_use]
    pub fn local_rank(&self, rank: u32) -> u32 {
        self.check_rank(rank);
        self.local[rank as usize]
    }

    /// How many ranks the node of a rank has.
    ///
    /// # Panics
    /// The rank is not below [`size`](Self::size).
    #[must_use]
    pub fn local_size(&self, rank: u32) -> u32 {
        let node = self.node_of(rank) as usize;
        self.starts[node + 1] - self.starts[node]
    }

    /// The node of each rank, in the order of ranks.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.node_of
    }

    /// Is this a map for a job of that many ranks?
    ///
    /// # Errors
    /// Both numbers, if it is not.
    pub fn check_size(&self, job: u32) -> Result<(), MapError> {
        let map = self.size();
        if map == job { Ok(()) } else { Err(MapError::Size { map, job }) }
    }

    fn check_rank(&self, rank: u32) {
        assert!(
            rank < self.size(),
            "rank {rank} is not below the number of ranks, {}",
            self.size()
        );
    }

    /// Do the ranks of each node follow one another, node after node?
    fn is_in_blocks(&self) -> bool {
        self.node_of.is_sorted()
    }
}

fn within_limit(ranks: u64) -> Result<u32, MapError> {
    match u32::try_from(ranks) {
        Ok(0) => Err(MapError::Empty),
        Ok(ranks) if ranks <= RANKS_MAX => Ok(ranks),
        _ => Err(MapError::TooMany { ranks }),
    }
}

impl FromStr for NodeMap {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let trimmed = text.trim();
        let number = |word: &str| {
            word.trim().parse::<u32>().map_err(|_| MapError::Text { text: text.to_owned() })
        };
        if let Some((nodes, ranks)) = trimmed.split_once('x') {
            Self::uniform(number(nodes)?, number(ranks)?)
        } else if trimmed.contains('+') {
            Self::blocks(&trimmed.split('+').map(number).collect::<Result<Vec<_>, _>>()?)
        } else {
            Self::new(trimmed.split(',').map(number).collect::<Result<_, _>>()?)
        }
    }
}

/// The shortest of the three forms that [`FromStr`] reads.
impl fmt::Display for NodeMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = self.starts.windows(2).map(|pair| pair[1] - pair[0]);
        if !self.is_in_blocks() {
            return write_list(out, &self.node_of, ',');
        }
        let first = counts.next().expect("a map has a node");
        if counts.all(|count| count == first) {
            return write!(out, "{}x{first}", self.nodes());
        }
        let counts: Vec<u32> = self.starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        write_list(out, &counts, '+')
    }
}

impl fmt::Debug for NodeMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "NodeMap({} ranks on {} nodes)", self.size(), self.nodes())
    }
}

fn write_list(out: &mut fmt::Formatter<'_>, numbers: &[u32], between: char) -> fmt::Result {
    for (index, number) in numbers.iter().enumerate() {
        if index > 0 {
            write!(out, "{between}")?;
        }
        write!(out, "{number}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<NodeMap>().unwrap_err().to_string()
    }

    #[test]
    fn texts_that_are_no_maps_are_refused_with_a_sentence() {
        assert!(refused("").starts_with("`` is no node map: write 2x4"));
        assert!(refused("2x").starts_with("`2x` is no node map"));
        assert!(refused("0,-1").starts_with("`0,-1` is no node map"));
        assert!(refused("2x2x2").starts_with("`2x2x2` is no node map"));
        assert_eq!(refused("0x4"), "a node map needs at least one rank");
        assert_eq!(
            refused("0,2"),
            "node 1 has no rank, but node 2 has: nodes are numbered from 0 without gaps"
        );
        assert_eq!(refused("3+0+1"), refused("0,0,0,2"));
        assert_eq!(refused("100000x100000"), "10000000000 ranks are more than 16777216");
        assert_eq!(
            refused("0,4294967295"),
            "node 1 has no rank, but node 4294967295 has: nodes are numbered from 0 without gaps"
        );
    }

    #[test]
    fn a_map_is_only_for_a_job_of_its_size() {
        let map = NodeMap::uniform(2, 2).unwrap();
        assert_eq!(map.check_size(4), Ok(()));
        let text = map.check_size(5).unwrap_err().to_string();
        assert_eq!(text, "the node map is for 4 ranks, but the job has 5");
    }

    #[test]
    fn one_node_and_one_rank_per_node_are_maps() {
        let one = NodeMap::one_node(3).unwrap();
        assert_eq!((one.nodes(), one.ranks_of(0), one.local_size(2)), (1, &[0, 1, 2][..], 3));
        let many = NodeMap::uniform(3, 1).unwrap();
        assert_eq!((many.nodes(), many.ranks_of(2), many.local_rank(2)), (3, &[2][..], 0));
    }

    #[test]
    #[should_panic(expected = "rank 4 is not below the number of ranks, 4")]
    fn a_rank_that_does_not_exist_is_the_callers_bug() {
        let _ = NodeMap::uniform(2, 2).unwrap().node_of(4);
    }

    #[test]
    fn the_paper_s_scale_takes_twelve_bytes_a_rank() {
        let map = NodeMap::uniform(10_000, 32).unwrap();
        assert_eq!(map.ranks_of(9_999)[31], 319_999);
        assert_eq!(map.to_string(), "10000x32");
    }

    proptest! {
        #[test]
        fn tables_agree_with_the_naive_ones(mut nodes in prop::collection::vec(0_u32..6, 1..40)) {
            // Close the gaps: numbers become their index among those that occur.
            let mut seen = nodes.clone();
            seen.sort_unstable();
            seen.dedup();
            for node in &mut nodes {
                *node = u32::try_from(seen.binary_search(node).unwrap()).unwrap();
            }
            let map = NodeMap::new(nodes.clone()).unwrap();
            prop_assert_eq!(map.as_slice(), &nodes[..]);
            for (rank, node) in (0_u32..).zip(&nodes) {
                let mates: Vec<u32> =
                    (0_u32..).zip(&nodes).filter(|(_, other)| *other == node).map(|(rank, _)| rank).collect();
                prop_assert_eq!(map.node_of(rank), *node);
                prop_assert_eq!(map.ranks_of(*node), &mates[..]);
                prop_assert_eq!(map.local_size(rank) as usize, mates.len());
                prop_assert_eq!(mates[map.local_rank(rank) as usize], rank);
            }
            prop_assert_eq!(map.to_string().parse::<NodeMap>().unwrap(), map);
        }

        #[test]
        fn any_text_is_a_map_or_an_error(text in "[0-9x+, ]{0,12}") {
            if let Ok(map) = text.parse::<NodeMap>() {
                prop_assert!(map.size() >= 1 && map.nodes() >= 1);
            }
        }
    }
}
