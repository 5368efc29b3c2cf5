//! Sentence 1 under fire: whatever connections break, every accepted operation completes exactly once,
//! and no message arrives twice or out of order. [`crate::Faulty`] breaks them, with seeds.

use std::{collections::HashMap, time::Duration};

use hg_na::{Error, Message, Op, OpId, Peer};

use crate::{
    faulty::Faults,
    node::Node,
    outcome::{Outcome, ensure, fail},
    random::Random,
    suite::Suite,
    world::{A, B, World},
};

/// Scripts, each with faults of its own.
const SEEDS: u64 = 20;
/// Operations of one script.
const STEPS: u64 = 300;
/// Broken connections that the scripts must see together, or they prove little.
const DROPS_MIN: u64 = 100;
/// Rounds of progress that end each script.
const AFTERMATH_ROUNDS: usize = 64;

/// A script between two contexts whose connections break.
struct Script<'a> {
    world: World<'a>,
    random: Random,
    /// Each side's present handle of the other.
    peers: [Peer; 2],
    open: Vec<(usize, OpId)>,
    drops: u64,
    /// Number of the last message from each sender, by its receiver's handle.
    last: [HashMap<Peer, u64>; 2],
}

impl<'a> Script<'a> {
    fn new(suite: &'a Suite, seed: u64) -> Outcome<Self> {
        let mut world = World::new(suite, 2)?;
        let addresses = [world.nodes[A].address(), world.nodes[B].address()];
        let peers = [world.nodes[A].lookup(&addresses[B])?, world.nodes[B].lookup(&addresses[A])?];
        let (random, open) = (Random::new(seed), Vec::new());
        Ok(Self { world, random, peers, open, drops: 0, last: Default::default() })
    }

    fn step(&mut self, number: u64) -> Outcome {
        let place = self.random.index(2);
        let (peer, back) = (self.peers[place], self.peers[1 - place]);
        let message = Message::copied(&number.to_le_bytes());
        match self.random.below(4) {
            0 => self.post(place, Op::SendUnexpected { to: peer, message })?,
            1 => self.post(place, Op::SendControl { to: peer, message })?,
            2 => self.post(place, Op::SendExpected { to: peer, tag: number, message })?,
            _ => {
                self.post(place, Op::RecvExpected { from: peer, tag: number })?;
                self.post(1 - place, Op::SendExpected { to: back, tag: number, message })?;
            }
        }
        if self.random.below(8) == 0 && !self.open.is_empty() {
            let (place, id) = self.open[self.random.index(self.open.len())];
            self.world.nodes[place].context.cancel(id);
        }
        if self.random.below(2) == 0 {
            self.round()?;
        }
        Ok(())
    }

    fn post(&mut self, place: usize, op: Op) -> Outcome {
        match self.world.nodes[place].post(op)? {
            Ok((_, id)) => self.open.push((place, id)),
            Err(rejected) => match rejected.error {
                Error::Again => {}
                Error::PeerGone(_) | Error::UnknownPeer => {
                    self.drops += 1;
                    let address = self.world.nodes[1 - place].address();
                    self.peers[place] = self.world.nodes[place].lookup(&address)?;
                }
                error => fail!("a post was refused with {error}"),
            },
        }
        Ok(())
    }

    fn round(&mut self) -> Outcome {
        self.world.round()?;
        for (node, last) in self.world.nodes.iter_mut().zip(&mut self.last) {
            in_order(node, last)?;
        }
        Ok(())
    }

    fn end(mut self) -> Outcome<u64> {
        for (place, id) in &self.open {
            self.world.nodes[*place].context.cancel(*id);
        }
        let last = &mut self.last;
        self.world.until("every accepted operation completed", |nodes| {
            for (node, last) in nodes.iter_mut().zip(&mut *last) {
                in_order(node, last)?;
            }
            Ok(nodes.iter().all(|node| node.pending() == 0))
        })?;
        for _ in 0..AFTERMATH_ROUNDS {
            self.round()?;
        }
        Ok(self.drops)
    }
}

/// Takes what has arrived: numbers only rise, within a connection and a kind of message.
fn in_order(node: &mut Node, last: &mut HashMap<Peer, u64>) -> Outcome {
    while let Some((from, message)) = node.unexpected.pop_front() {
        let Ok(number) = <[u8; 8]>::try_from(message.as_slice()) else {
            fail!("{}: a message came changed: {message:?}", node.name);
        };
        let number = u64::from_le_bytes(number);
        let before = last.insert(from, number);
        ensure!(
            before.is_none_or(|before| before < number),
            "{}: message {number} came after {before:?}",
            node.name
        );
    }
    node.control.clear();
    Ok(())
}

pub(crate) fn with_dropped_connections_every_accepted_operation_completes_exactly_once(
    suite: &Suite,
) -> Outcome {
    let mut drops = 0;
    for seed in 0..SEEDS {
        let suite = suite.with_faults(Faults {
            seed,
            refuse_one_in: 7,
            delay_one_in: 5,
            delay: Duration::from_micros(100),
            drop_one_in: 20,
        });
        let mut script = Script::new(&suite, seed)?;
        for number in 0..STEPS {
            script.step(number)?;
        }
        drops += script.end().map_err(|why| format!("seed {seed}: {why}"))?;
    }
    ensure!(drops >= DROPS_MIN, "only {drops} connections were dropped");
    Ok(())
}
