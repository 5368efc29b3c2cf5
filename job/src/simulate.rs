//! The start of a job of any size in one process: the hubs' real state machines, and between them queues instead of sockets.
//! Ranks that have no hub are what they say and what they are told. Counted is what a real job would send.

mod expected;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
};

pub use self::expected::{Bounds, Expected, Start};
pub use crate::tree::Run;
use crate::{
    frame::{Down, Hello, Letter, Post, Up, What},
    hub::state::{Effect, Hub},
    tree::{Branch, parts},
};

/// What one process has had to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Connections to others, both ways.
    pub connections: u64,
    /// Frames that it has sent.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Values of exchanges that it has sent on for others, a copy for each side.
    pub letters: u64,
    /// The most bytes of frames that waited for its hub at a time: sent by others, or by its own rank, and not handled yet.
    pub waiting: u64,
    /// The most bytes of values in its hub at a time, when it has handled a frame: come, and without room to be passed on; or
    /// sorted by side, and without leave to be sent.
    pub held: u64,
}

/// Which ranks one heads, and the parts of those, its own rank first.
#[must_use]
pub fn headed(rank: u32, size: u32) -> (Range<u32>, Vec<Range<u32>>) {
    let ranks = Branch::of(rank, size).ranks;
    (ranks.clone(), parts(&ranks).collect())
}

/// The start of a job.
#[derive(Debug)]
pub struct Simulation {
    size: u32,
    /// By rank: of those that have one.
    hubs: BTreeMap<u32, Hub>,
    /// Of each rank, whom it is connected through.
    parents: Vec<u32>,
    loads: Vec<Load>,
    /// What is under way to a hub: from the child of a rank, or from above.
    to_hubs: VecDeque<(u32, Message, usize)>,
    /// Bytes under way to each hub.
    waiting: Vec<u64>,
    /// How many values of exchanges came to each rank.
    came: Vec<u32>,
    /// How often ranks were told that a collective call has ended.
    ended: u64,
    nodes: u32,
    /// What went wrong, and who was missing, as ranks were told.
    told: Vec<(u32, Down)>,
    /// Draws which frame is next.
    random: u64,
}

#[derive(Debug)]
enum Message {
    FromChild(u32, Up),
    FromAbove(Arc<Down>),
}

impl Simulation {
    /// All ranks join; `host_of` says on which host. `seed` decides in which order frames are handled.
    #[must_use]
    pub fn join(size: u32, seed: u64, host_of: impl Fn(u32) -> u32) -> Self {
        let mut hubs = BTreeMap::new();
        let mut parents = Vec::new();
        for rank in 0..size {
            let branch = Branch::of(rank, size);
            let is_hub = branch.is_hub();
            parents.push(if is_hub { rank } else { branch.parent.unwrap_or(0) });
            if is_hub {
                hubs.insert(rank, Hub::heading(branch.ranks, size, Vec::new()));
            }
        }
        let loads = vec![Load::default(); size as usize];
        let (to_hubs, ended) = (VecDeque::new(), 0);
        let (waiting, came) = (vec![0; size as usize], vec![0; size as usize]);
        let (nodes, told, random) = (0, Vec::new(), seed | 1);
        let mut run =
            Self { size, hubs, parents, loads, to_hubs, waiting, came, ended, nodes, told, random };
        for rank in 0..size {
            let hello =
                |rank: u32| Hello { token: Vec::new(), rank, size, host: host(host_of(rank)) };
            if run.hubs.contains_key(&rank)
                && let Some(above) = Branch::of(rank, size).parent
            {
                run.connect(rank, above);
                run.say(rank, above, Up::Hello(hello(rank)));
            }
            let through = run.parents[rank as usize];
            run.connect(rank, through);
            run.say(rank, through, Up::Hello(hello(rank)));
        }
        run.settle();
        run
    }

    /// Rank 0 shares a value with all.
    pub fn share(&mut self, value: &[u8]) {
        for rank in 0..self.size {
            let values = (rank == 0).then(|| value.to_vec()).into_iter().collect();
            let (channel, what) = (CHANNEL.to_owned(), What::Share);
            self.say(
                rank,
                self.parents[rank as usize],
                Up::Gather { channel, number: 0, what, values },
            );
        }
        self.settle();
    }

    /// Each rank gives a value to its peers. All have spoken before anything of it is handled: so the most waits.
    pub fn exchange(&mut self, value: &[u8], peers: impl Fn(u32) -> Vec<u32>) {
        let value: Arc<[u8]> = value.into();
        for rank in 0..self.size {
            let letter =
                Letter { from: rank, to: Run::of(&peers(rank)), value: Arc::clone(&value) };
            let post = Post { channel: CHANNEL.to_owned(), number: 0, letters: vec![letter] };
            self.say(rank, self.parents[rank as usize], Up::Post(post));
        }
        self.settle();
    }

    /// What each rank has had to do with.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// How many values of exchanges came to each rank.
    #[must_use]
    pub fn came(&self) -> &[u32] {
        &self.came
    }

    /// How often ranks were told that a collective call has ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Nodes that the ranks have been told of.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    fn connect(&mut self, one: u32, other: u32) {
        if one != other {
            self.loads[one as usize].connections += 1;
            self.loads[other as usize].connections += 1;
        }
    }

    /// What a process says to the hub of another, or to its own.
    fn say(&mut self, from: u32, to: u32, up: Up) {
        let bytes = up.encode().len();
        self.count(from, to, bytes);
        self.enqueue(to, Message::FromChild(from, up), bytes);
    }

    fn enqueue(&mut self, to: u32, message: Message, bytes: usize) {
        let waiting = &mut self.waiting[to as usize];
        *waiting += bytes as u64;
        let most = &mut self.loads[to as usize].waiting;
        *most = (*most).max(*waiting);
        self.to_hubs.push_back((to, message, bytes));
    }

    /// Between a rank and its own hub nothing crosses the network.
    fn count(&mut self, from: u32, to: u32, bytes: usize) {
        if from != to {
            let load = &mut self.loads[from as usize];
            load.frames += 1;
            load.bytes += bytes as u64;
        }
    }

    fn settle(&mut self) {
        while !self.to_hubs.is_empty() {
            let at = usize::from(self.draw() % 16) % self.to_hubs.len();
            // Frames of one connection stay in order.
            let (to, origin) = (self.to_hubs[at].0, self.to_hubs[at].1.origin());
            let is_same = |one: &(u32, Message, usize)| one.0 == to && one.1.origin() == origin;
            let first = self.to_hubs.iter().position(is_same).unwrap_or(at);
            let Some((to, message, bytes)) = self.to_hubs.remove(first) else { return };
            self.waiting[to as usize] -= bytes as u64;
            self.handle(to, message);
        }
    }

    fn handle(&mut self, at: u32, message: Message) {
        let Some(hub) = self.hubs.get_mut(&at) else { return };
        let is_well = match message {
            Message::FromChild(_, Up::Hello(hello)) => hub.handle_hello(hello).is_ok(),
            Message::FromChild(rank, up) => hub.handle(rank, up).is_ok(),
            Message::FromAbove(down) => hub.handle_above(Arc::unwrap_or_clone(down)).is_ok(),
        };
        assert!(is_well, "hubs and ranks of this project know how to behave");
        self.carry_out(at);
        let (load, hub) = (&mut self.loads[at as usize], &self.hubs[&at]);
        load.held = load.held.max(hub.held() as u64);
    }

    fn carry_out(&mut self, at: u32) {
        let Some(hub) = self.hubs.get_mut(&at) else { return };
        let effects: Vec<Effect> = std::iter::from_fn(|| hub.poll_effect()).collect();
        let children: Vec<u32> = hub.child_ranks().collect();
        for effect in effects {
            let (children, down) = match effect {
                Effect::Up(up) => {
                    let above = Branch::of(at, self.size).parent.expect("only rank 0 has none");
                    self.say_up(at, above, up);
                    continue;
                }
                Effect::One(child, down) => (vec![child], Arc::new(down)),
                Effect::All(down) => (children.clone(), Arc::new(down)),
            };
            let bytes = down.encode().len();
            children.into_iter().for_each(|child| self.tell(at, child, &down, bytes));
        }
    }

    fn say_up(&mut self, at: u32, above: u32, up: Up) {
        if let Up::Post(post) = &up {
            self.loads[at as usize].letters += post.letters.len() as u64;
        }
        self.say(at, above, up);
    }

    fn tell(&mut self, at: u32, child: u32, down: &Arc<Down>, bytes: usize) {
        if let Down::Post(post) = &**down
            && at != child
        {
            self.loads[at as usize].letters += post.letters.len() as u64;
        }
        self.count(at, child, bytes);
        if at != child && self.hubs.contains_key(&child) {
            return self.enqueue(child, Message::FromAbove(Arc::clone(down)), bytes);
        }
        match &**down {
            Down::Welcome { nodes } => {
                assert_eq!(nodes.len(), self.size as usize);
                self.nodes = nodes.last().map_or(0, |node| node + 1);
            }
            Down::Gathered { .. } => self.ended += 1,
            Down::Post(post) => {
                self.came[child as usize] += u32::try_from(post.letters.len()).expect("few")
            }
            Down::Refused { .. } | Down::Broken(_) | Down::Missing { .. } => {
                self.told.push((child, Down::clone(down)));
            }
            // It gives one value at a time.
            Down::Taken => {}
            Down::Who { .. } => panic!("a rank is not asked"),
        }
    }

    /// A number that looks like chance (xorshift).
    fn draw(&mut self) -> u8 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.to_le_bytes()[3]
    }
}

/// What a rank says of its host.
fn host(node: u32) -> String {
    format!("0f3b1c2e-7d64-4a0e-8f51-{node:012}")
}

/// On which all is said.
const CHANNEL: &str = "shuffle.x";

impl Message {
    /// The child, or `None`: the hub above.
    fn origin(&self) -> Option<u32> {
        match self {
            Self::FromChild(rank, _) => Some(*rank),
            Self::FromAbove(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
