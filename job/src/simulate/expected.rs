//! What a start makes one process send and hold, computed from who is connected through whom.
//!
//! Which values pass a hub, and with how many destinations, follows from the tree. In how many frames they do follows from the
//! order in which frames are handled, which nobody knows: so there is a least and a most of frames, and of what is counted with
//! them.

use std::ops::Range;

use crate::{
    frame::{Down, Hello, Post, Up, What, letter_len},
    hub::state::posts::{POST_BYTES, UNDER_WAY_MAX, WAITING_MAX},
    tree::{Branch, parts},
};

use super::{CHANNEL, Run, host};

/// The start of a job: all join, rank 0 shares a value, and each gives one to its peers.
pub struct Start<'a> {
    /// The node of each rank.
    pub nodes: &'a [u32],
    /// Bytes of rank 0's value.
    pub shared: usize,
    /// Bytes of each rank's value.
    pub value: usize,
    /// Whom each gives it to.
    pub peers: &'a dyn Fn(u32) -> Vec<Run>,
}

/// At least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// At least.
    pub least: u64,
    /// At most.
    pub most: u64,
}

/// What a [`Load`](super::Load) lies within.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// Connections to others.
    pub connections: u64,
    /// Values of exchanges that it sends on for others, a copy for each side.
    pub letters: u64,
    /// Frames that it sends.
    pub frames: Bounds,
    /// Bytes of them.
    pub bytes: Bounds,
    /// The most bytes of frames that wait for its hub at a time.
    pub waiting: u64,
    /// The most bytes of values in its hub at a time.
    pub held: u64,
}

impl Start<'_> {
    /// Of these ranks' processes.
    #[must_use]
    pub fn expected(&self, ranks: &[u32]) -> Vec<Expected> {
        let mut hubs: Vec<_> = ranks.iter().map(|rank| Process::new(*rank, self.size())).collect();
        let mut own = vec![0; ranks.len()];
        for rank in 0..self.size() {
            let to = (self.peers)(rank);
            for ((at, hub), own) in ranks.iter().zip(&mut hubs).zip(&mut own) {
                hub.pass_on(rank, &to, self.value);
                if *at == rank {
                    *own = letter_len(to.len(), self.value) as u64;
                }
            }
        }
        hubs.iter().zip(own).map(|(process, own)| process.expected(self, own)).collect()
    }

    fn size(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("ranks are numbered so")
    }
}

/// Values that pass between a hub and one side, one way.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    letters: u64,
    bytes: u64,
    longest: u64,
}

impl Flow {
    fn add(&mut self, runs: usize, value: usize) {
        if runs > 0 {
            self.add_one(letter_len(runs, value) as u64);
        }
    }

    fn add_one(&mut self, bytes: u64) {
        self.letters += 1;
        self.bytes += bytes;
        self.longest = self.longest.max(bytes);
    }

    /// A frame is full when a value has brought it to [`POST_BYTES`].
    fn frame_max(&self) -> u64 {
        POST_BYTES as u64 + self.longest
    }

    fn frames(&self) -> Bounds {
        Bounds { least: self.bytes.div_ceil(self.frame_max()), most: self.letters }
    }

    /// Bytes of as many frames as may be there at a time.
    fn under_way(&self, head: u64) -> u64 {
        let frames = u64::from(UNDER_WAY_MAX) * (head + self.frame_max());
        frames.min(self.bytes + head * self.letters)
    }
}

/// Who is connected to a hub, in this order: its own rank, other children, the hub above.
struct Process {
    rank: u32,
    branch: Branch,
    size: u32,
    parts: Vec<Range<u32>>,
    came: Vec<Flow>,
    went: Vec<Flow>,
}

impl Process {
    fn new(rank: u32, size: u32) -> Self {
        let branch = Branch::of(rank, size);
        let parts: Vec<_> = parts(&branch.ranks).collect();
        let flows = vec![Flow::default(); parts.len() + 1];
        Self { rank, branch, size, parts, came: flows.clone(), went: flows }
    }

    /// What it has to do with one rank's value.
    fn pass_on(&mut self, from: u32, to: &[Run], value: usize) {
        let Self { branch, size, parts, came, went, .. } = self;
        let (ranks, above) = (&branch.ranks, parts.len());
        let within = |range: &Range<u32>| to.iter().filter_map(|run| run.within(range)).count();
        let outside = |range: &Range<u32>| within(&(0..range.start)) + within(&(range.end..*size));
        let inside = to.iter().filter_map(|run| run.within(ranks));
        let side = if ranks.contains(&from) {
            let side = parts.partition_point(|part| part.end <= from);
            // A rank says it in any case, a hub to whom it is of use.
            match parts[side].len() {
                1 => came[side].add_one(letter_len(to.len(), value) as u64),
                _ => came[side].add(outside(&parts[side]), value),
            }
            went[above].add(outside(ranks), value);
            side
        } else {
            came[above].add(inside.clone().count(), value);
            above
        };
        let inside: Vec<Run> = inside.collect();
        if inside.is_empty() {
            return;
        }
        for (other, part) in parts.iter().enumerate().filter(|(other, _)| *other != side) {
            went[other].add(inside.iter().filter_map(|run| run.within(part)).count(), value);
        }
    }

    /// `own`: bytes of its own rank's value.
    fn expected(&self, start: &Start<'_>, own: u64) -> Expected {
        let has_above = u64::from(self.branch.parent.is_some());
        let said = Said::new(start);
        if !self.branch.is_hub() {
            let bytes = said.hello + said.call + said.head + own;
            let exactly = |count| Bounds { least: count, most: count };
            let (frames, bytes) = (exactly(3), exactly(bytes));
            return Expected { connections: has_above, frames, bytes, ..Expected::default() };
        }
        let below = self.parts.len() as u64 - 1;
        let hosts = said.hosts(start.nodes, &self.branch.ranks);
        let fixed =
            below * (said.welcome + said.gathered) + has_above * (said.hello + said.call + hosts);
        let (values, taken) = (self.frames(&self.went), self.frames(&self.came));
        let sent: u64 = self.others(&self.went).map(|flow| flow.bytes).sum();
        let both = |count: fn(&Bounds) -> u64| {
            let (values, taken) = (count(&values), count(&taken));
            let frames = 2 * below + 3 * has_above + values + taken;
            (frames, fixed + sent + said.head * values + said.taken * taken)
        };
        let (least, most) = (both(|bounds| bounds.least), both(|bounds| bounds.most));
        Expected {
            connections: below + has_above,
            letters: self.others(&self.went).map(|flow| flow.letters).sum(),
            frames: Bounds { least: least.0, most: most.0 },
            bytes: Bounds { least: least.1, most: most.1 },
            waiting: self.waiting(start, &said),
            held: self.held(),
        }
    }

    /// Of all sides but the own rank.
    fn others<'f>(&self, flows: &'f [Flow]) -> impl Iterator<Item = &'f Flow> + use<'f> {
        flows.iter().skip(1)
    }

    fn is_hub(&self, side: usize) -> bool {
        self.parts.get(side).is_none_or(|part| part.len() > 1)
    }

    fn frames(&self, flows: &[Flow]) -> Bounds {
        self.others(flows).map(Flow::frames).fold(Bounds::default(), |all, one| Bounds {
            least: all.least + one.least,
            most: all.most + one.most,
        })
    }

    /// Joining, sharing and exchanging, each of which ends before the next begins.
    fn waiting(&self, start: &Start<'_>, said: &Said) -> u64 {
        let above = u64::from(self.branch.parent.is_some());
        let hubs = self.parts.iter().filter(|part| part.len() > 1);
        let hosts: u64 = hubs.map(|part| said.hosts(start.nodes, part)).sum();
        let all = self.parts.len() as u64;
        let joining = all * said.hello + hosts + above * said.welcome;
        let shared = u64::from(self.rank == 0) * (4 + start.shared as u64);
        let sharing = all * said.call + shared + above * said.gathered;
        let sides = self.came.iter().zip(&self.went).enumerate();
        let exchanging = sides.map(|(side, (came, went))| {
            let answers = went.letters.min(UNDER_WAY_MAX.into()) * said.taken;
            if self.is_hub(side) {
                came.under_way(said.head) + answers
            } else {
                came.bytes + said.head
            }
        });
        joining.max(sharing).max(exchanging.sum())
    }

    /// What has come and waits for room; and what waits to go, to which a frame was added when there was room still.
    fn held(&self) -> u64 {
        let longest = self.came.iter().map(Flow::frame_max).max().unwrap_or(0);
        let came = self.came.iter().map(|flow| flow.under_way(0));
        let went = self.went.iter().map(|flow| flow.bytes.min(WAITING_MAX as u64 + longest));
        came.chain(went).sum()
    }
}

/// Bytes of what is said in a start.
struct Said {
    hello: u64,
    /// Of a call without a value.
    call: u64,
    gathered: u64,
    welcome: u64,
    hosts: u64,
    a_host: u64,
    /// Of a frame of values, without them.
    head: u64,
    taken: u64,
}

impl Said {
    fn new(start: &Start<'_>) -> Self {
        let (channel, number, what) = (CHANNEL.to_owned(), 0, What::Share);
        let hello = Hello { token: Vec::new(), rank: 0, size: start.size(), host: host(0) };
        let post = Post { channel: channel.clone(), number, letters: Vec::new() };
        let hosts = Up::Hosts(Vec::new()).encode().len();
        let up = |up: Up| up.encode().len() as u64;
        let down = |down: Down| down.encode().len() as u64;
        Self {
            hello: up(Up::Hello(hello)),
            call: up(Up::Gather { channel: channel.clone(), number, what, values: Vec::new() }),
            gathered: down(Down::Gathered { channel, number, values: vec![vec![0; start.shared]] }),
            welcome: down(Down::Welcome { nodes: start.nodes.to_vec() }),
            hosts: hosts as u64,
            a_host: (Up::Hosts(vec![(host(0), 1)]).encode().len() - hosts) as u64,
            head: up(Up::Post(post)),
            taken: up(Up::Taken),
        }
    }

    /// Ranks that follow one another on a host are said once.
    fn hosts(&self, nodes: &[u32], ranks: &Range<u32>) -> u64 {
        let nodes = &nodes[ranks.start as usize..ranks.end as usize];
        self.hosts + self.a_host * nodes.chunk_by(|one, next| one == next).count() as u64
    }
}

impl Bounds {
    /// Whether it lies within.
    #[must_use]
    pub fn contains(self, count: u64) -> bool {
        (self.least..=self.most).contains(&count)
    }
}

impl std::fmt::Debug for Start<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { nodes, shared, value, .. } = self;
        let mut out = out.debug_struct("Start");
        out.field("nodes", nodes).field("shared", shared).field("value", value);
        out.finish_non_exhaustive()
    }
}
