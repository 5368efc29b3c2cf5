//! Steps with a clock: how long a schedule takes where each member has a link of its own, both ways, and some are slow.

use crate::schedule::{Schedule, Steps};

/// When each member has the whole object, in block times of a good link. A block begins when its sender's link is free, its receiver's
/// is, and the sender has it; each member takes what its steps say in order, and waits for nobody else's.
pub(super) fn run(
    schedule: Schedule,
    members: u32,
    blocks: u64,
    time: impl Fn(u32, u32) -> f64,
) -> Vec<f64> {
    let count = members as usize;
    let mut all: Vec<Steps> =
        (0..members).map(|member| Steps::new(schedule, members, blocks, member)).collect();
    let (mut sending, mut receiving) = (vec![0.0f64; count], vec![0.0f64; count]);
    let blocks = usize::try_from(blocks).unwrap();
    let mut held = vec![vec![f64::INFINITY; blocks]; count];
    held[0].fill(0.0);
    for _ in 0..schedule.steps(members, blocks as u64) {
        let sends: Vec<_> = all.iter_mut().map(|it| it.next().unwrap().send).collect();
        let mut arrived = Vec::new();
        for (from, hop) in sends.into_iter().enumerate() {
            let Some(hop) = hop else { continue };
            let (to, block) = (hop.peer as usize, usize::try_from(hop.block).unwrap());
            assert!(held[from][block].is_finite(), "{from} sends {block} before it has it");
            let start = sending[from].max(receiving[to]).max(held[from][block]);
            let end = start + time(u32::try_from(from).unwrap(), hop.peer);
            (sending[from], receiving[to]) = (end, end);
            arrived.push((to, block, end));
        }
        for (to, block, end) in arrived {
            held[to][block] = end;
        }
    }
    let last = |of: &Vec<f64>| of.iter().copied().fold(0.0, f64::max);
    held.iter().map(last).collect()
}
