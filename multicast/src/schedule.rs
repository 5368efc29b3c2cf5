//! Who passes which block on to whom, and in which step: pure functions of members, blocks, member and step.
//!
//! Member 0 is the root. In no step does a member send more than one block or receive more than one; it has what it sends before; nothing is
//! sent twice to anybody. Steps say in which order a member does things, not when: whoever is not concerned by a step does not wait for it.

mod choice;
mod pipeline;
#[cfg(test)]
mod tests;

use self::pipeline::Pipeline;
pub(crate) use choice::hosts;
pub use choice::{Choice, SMALL_MEMBERS_MAX, SMALL_OBJECT_MAX, block_size};
pub(crate) use choice::{Kind, Plan, Stepped, WHOLE_BLOCKS_MAX};

/// A block to or from another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The other member.
    pub peer: u32,
    /// The block.
    pub block: u64,
}

/// What a member does in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Step {
    /// The block that it gives.
    pub send: Option<Hop>,
    /// The block that it gets.
    pub receive: Option<Hop>,
}

/// The schedules that go by steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The root gives the whole object to one member after the other.
    Sequential,
    /// Each member passes each block on to the next one.
    Chain,
    /// Who has the whole object gives it to one that has nothing.
    Tree,
    /// The binomial pipeline (Ganesan and Seshadri 2005), for any number of members.
    Pipeline,
}

impl Schedule {
    /// Steps until all of `members` have all of `blocks`.
    #[must_use]
    pub fn steps(self, members: u32, blocks: u64) -> u64 {
        if members < 2 || blocks == 0 {
            return 0;
        }
        let others = u64::from(members) - 1;
        match self {
            Self::Sequential => blocks * others,
            Self::Chain => blocks + others - 1,
            Self::Tree => blocks * u64::from(others.ilog2() + 1),
            Self::Pipeline => {
                let last = u64::from(!members.is_power_of_two());
                blocks + u64::from(members.ilog2()) - 1 + last
            }
        }
    }

    /// What a member does in a step. For one step after the other [`Steps`] is faster.
    #[must_use]
    pub fn at(self, members: u32, blocks: u64, member: u32, step: u64) -> Step {
        if step >= self.steps(members, blocks) || member >= members {
            return Step::default();
        }
        match self {
            Self::Sequential => sequential(blocks, member, step),
            Self::Chain => chain(members, blocks, member, step),
            Self::Tree => tree(members, blocks, member, step),
            Self::Pipeline => {
                let mut pipeline = Pipeline::new(members, blocks, member);
                // What twins pass to each other hangs on the steps before.
                let mut steps = (0..=step).map(|step| pipeline.step(step));
                steps.by_ref().last().unwrap_or_default()
            }
        }
    }
}

fn sequential(blocks: u64, member: u32, step: u64) -> Step {
    let (turn, block) = (step / blocks + 1, step % blocks);
    let to = u32::try_from(turn).expect("a turn for each member");
    match member {
        0 => Step { send: Some(Hop { peer: to, block }), receive: None },
        _ => Step { send: None, receive: (member == to).then_some(Hop { peer: 0, block }) },
    }
}

fn chain(members: u32, blocks: u64, member: u32, step: u64) -> Step {
    let block_at = |from: u32| step.checked_sub(u64::from(from)).filter(|block| *block < blocks);
    let send = block_at(member).filter(|_| member + 1 < members);
    let before = member.checked_sub(1);
    Step {
        send: send.map(|block| Hop { peer: member + 1, block }),
        receive: before.and_then(|peer| block_at(peer).map(|block| Hop { peer, block })),
    }
}

fn tree(members: u32, blocks: u64, member: u32, step: u64) -> Step {
    let (stage, block) = (step / blocks, step % blocks);
    let half = 1u64 << stage;
    let (own, all) = (u64::from(member), u64::from(members));
    let hop = |peer: u64| Hop { peer: u32::try_from(peer).expect("a member"), block };
    Step {
        send: (own < half && own + half < all).then(|| hop(own + half)),
        receive: (half <= own && own < 2 * half).then(|| hop(own - half)),
    }
}

/// What a member does, step by step.
#[derive(Debug, Clone)]
pub struct Steps {
    schedule: Schedule,
    members: u32,
    blocks: u64,
    member: u32,
    step: u64,
    pipeline: Pipeline,
}

impl Steps {
    /// From the first step.
    #[must_use]
    pub fn new(schedule: Schedule, members: u32, blocks: u64, member: u32) -> Self {
        let pipeline = Pipeline::new(members, blocks, member);
        Self { schedule, members, blocks, member, step: 0, pipeline }
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.step >= self.schedule.steps(self.members, self.blocks) {
            return None;
        }
        let step = match self.schedule {
            Schedule::Pipeline => self.pipeline.step(self.step),
            other => other.at(self.members, self.blocks, self.member, self.step),
        };
        self.step += 1;
        Some(step)
    }
}
