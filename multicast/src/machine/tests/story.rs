//! What a simulated run is to be, as a seed says.

use crate::schedule::Choice;

/// What a run is to be.
#[derive(Debug, Clone)]
pub(super) struct Story {
    pub(super) seed: u64,
    /// Of processes; and which of them each group has, its root first.
    pub(super) processes: usize,
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) objects: u64,
    pub(super) blocks_max: u64,
    pub(super) choice: Choice,
    pub(super) in_flight: usize,
    pub(super) nodes: u32,
    pub(super) untaken_max: u64,
    /// After which event which process dies.
    pub(super) deaths: Vec<(u64, usize)>,
    /// After which event the connection between which processes breaks, with what is on its way.
    pub(super) cuts: Vec<(u64, [usize; 2])>,
    /// In a thousand processes: it ends when it has closed.
    pub(super) exits: u64,
    /// In a thousand events: somebody stands still for a while.
    pub(super) stalls: u64,
    /// In a thousand objects: it is refused.
    pub(super) refusals: u64,
    /// In a thousand blocks that are pulled: it is not what was summed up.
    pub(super) wrongs: u64,
    pub(super) reforms: bool,
    /// In a thousand processes: it reads and writes blocks on a disk, and slowly.
    pub(super) slow_disks: u64,
    /// Whether who dies takes words with it that are on their way.
    pub(super) loses_words: bool,
    /// A process that never receives in its first group.
    pub(super) deaf: Option<usize>,
    /// It closes its handle of that.
    pub(super) deaf_closes: bool,
    /// In a thousand objects that were delivered: the user receives them, and drops its group.
    pub(super) leaves: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }
}

impl Story {
    pub(super) fn plain(members: usize, blocks: u64, choice: Choice) -> Self {
        Self {
            seed: 1,
            processes: members,
            groups: vec![(0..members).collect()],
            objects: 2,
            blocks_max: blocks,
            choice,
            in_flight: 1,
            nodes: 1 << 16,
            untaken_max: 1 << 30,
            deaths: vec![],
            cuts: vec![],
            exits: 0,
            stalls: 0,
            refusals: 0,
            wrongs: 0,
            reforms: false,
            slow_disks: 0,
            loses_words: false,
            deaf: None,
            deaf_closes: false,
            leaves: 0,
        }
    }

    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let processes = 2 + random.index(8);
        let choices = [
            Choice::Auto,
            Choice::Sequential,
            Choice::Chain,
            Choice::Tree,
            Choice::Pipeline,
            Choice::Hybrid,
        ];
        let group = |random: &mut Random| {
            let mut all: Vec<_> = (0..processes).collect();
            (1..processes).for_each(|it| all.swap(it, random.index(it + 1)));
            all.truncate(2 + random.index(processes - 1));
            all
        };
        let groups = (0..1 + random.index(3)).map(|_| group(&mut random)).collect();
        let faults = random.below(2);
        let deaths =
            (0..faults * random.below(3)).map(|_| (random.below(400), random.index(processes)));
        let deaths = deaths.collect();
        // By numbers of their own: the rest of a story is as it was before there were these.
        let mut more = Random(seed ^ 0x1234);
        let cuts = (0..faults * more.below(2) * more.below(3))
            .map(|_| (more.below(400), [0; 2].map(|_| more.index(processes))));
        Self {
            seed,
            cuts: cuts.collect(),
            exits: more.below(2) * more.below(1000),
            processes,
            groups,
            objects: random.below(5),
            blocks_max: 1 + random.below(12),
            choice: choices[random.index(choices.len())],
            in_flight: 1 + random.index(3),
            nodes: 1 + u32::try_from(random.below(4)).unwrap(),
            untaken_max: 1 + random.below(300_000),
            deaths,
            stalls: random.below(2) * random.below(20),
            refusals: faults * random.below(2) * 30,
            wrongs: faults * random.below(2) * 10,
            reforms: random.below(2) == 1,
            slow_disks: random.below(2) * random.below(1000),
            loses_words: random.below(2) == 1,
            deaf: None,
            deaf_closes: false,
            leaves: faults * random.below(2) * 30,
        }
    }
}

/// What a block holds; never 0.
pub(super) fn content(line: usize, object: u64, block: u64) -> u64 {
    1 + Random(line as u64 ^ object << 16 ^ block << 32).next() / 2
}
