//! Transfers by the short cut for several: what is wrong with one, or becomes of it, concerns no other.

use hg_na::{
    Descriptor, Direction, LocalSlice, Op, OpenOptions, Peer, Region, RemoteSlice, Rights, Transit,
};

use super::one_sided::{connected, content, local, register, remote, travelled};
use crate::{
    outcome::{Outcome, ensure},
    random::Random,
    suite::Suite,
    world::{A, B, C, World, pattern},
};

/// Bytes that each transfer of a batch has for itself, on either side.
const PLACE: usize = 5000;
/// Transfers of the longest batch.
const BATCH_MAX: usize = 20;
/// Random batches.
const BATCHES: u64 = 40;

/// One of a batch.
struct Asked {
    direction: Direction,
    to: Peer,
    at: usize,
    len: usize,
    far: Descriptor,
    far_at: u64,
    /// Whether it can be done at all.
    is_well: bool,
}

impl Asked {
    fn transit<'a>(&'a self, here: &'a Region) -> Transit<'a> {
        Transit {
            direction: self.direction,
            peer: self.to,
            local: here.state(),
            local_offset: self.at as u64,
            remote: &self.far,
            remote_offset: self.far_at,
            len: self.len as u64,
        }
    }

    fn op(&self, here: &Region) -> Outcome<Op> {
        let near: LocalSlice = local(here, self.at, self.len)?;
        let far: RemoteSlice = remote(&self.far, self.far_at, self.len)?;
        Ok(match self.direction {
            Direction::Get => Op::Get { from: self.to, local: near, remote: far },
            Direction::Put => Op::Put { to: self.to, local: near, remote: far },
        })
    }

    /// What it does to the bytes of both sides.
    fn apply(&self, mine: &mut [u8], theirs: &mut [u8]) {
        let range = self.at..self.at + self.len;
        match self.direction {
            Direction::Get => mine[range.clone()].copy_from_slice(&theirs[range]),
            Direction::Put => theirs[range.clone()].copy_from_slice(&mine[range]),
        }
    }
}

/// Asks for all of them at once; says of each whether it is over.
fn ask(world: &mut World<'_>, here: &Region, asked: &[Asked], most: u64) -> Vec<bool> {
    let transits: Vec<_> = asked.iter().map(|it| it.transit(here)).collect();
    // What stood there before means nothing.
    let mut done: Vec<bool> = (0..asked.len()).map(|at| at % 2 == 0).collect();
    world.nodes[A].context.transfer_all(&transits, most, &mut done);
    done
}

/// Memory of the far side, in the ways in which a descriptor can be good or bad.
struct Far {
    open: Descriptor,
    closed: Descriptor,
    stale: Descriptor,
}

fn any_of(random: &mut Random, to: Peer, at: usize, far: &Far) -> Asked {
    let direction = if random.below(3) == 0 { Direction::Put } else { Direction::Get };
    let len = [0, 1, 8, 600, 4096, PLACE][random.index(6)];
    let whole = (PLACE * BATCH_MAX) as u64;
    let (far, far_at, is_well) = match random.below(8) {
        0 => (&far.closed, at as u64, false),
        1 => (&far.stale, at as u64, false),
        2 => (&far.open, whole - len as u64 / 2, false),
        3 => (&far.open, u64::MAX - 3, false),
        _ => (&far.open, at as u64, true),
    };
    Asked { direction, to, at, len, far: far.clone(), far_at, is_well }
}

pub(crate) fn transfers_asked_for_together_concern_each_one_alone(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let size = PLACE * BATCH_MAX;
    let here = register(&world, A, pattern(size, 1), Rights::empty())?;
    let there = register(&world, B, pattern(size, 2), Rights::all())?;
    let closed = register(&world, B, pattern(size, 3), Rights::empty())?;
    let old = register(&world, B, pattern(size, 4), Rights::all())?;
    let far =
        Far { open: travelled(&there)?, closed: travelled(&closed)?, stale: travelled(&old)? };
    let unregistered = old.unregister();
    ensure!(unregistered.is_ok(), "idle memory was not given back: {unregistered:?}");
    let (mut mine, mut theirs) = (pattern(size, 1), pattern(size, 2));
    let mut random = Random::new(21);
    for batch in 0..BATCHES {
        let count = random.index(BATCH_MAX + 1);
        let asked: Vec<_> =
            (0..count).map(|at| any_of(&mut random, to, at * PLACE, &far)).collect();
        let most = if random.below(4) == 0 { 600 } else { u64::MAX };
        let done = ask(&mut world, &here, &asked, most);
        for (it, done) in asked.iter().zip(&done) {
            // Of no bytes it does not matter whether somebody looked.
            ensure!(!done || it.is_well || it.len == 0, "memory was moved that must not be");
            ensure!(!done || it.len as u64 <= most, "{} bytes moved, {most} allowed", it.len);
            if *done && it.is_well {
                it.apply(&mut mine, &mut theirs);
            }
        }
        ensure!(content(&here)? == mine, "batch {batch} of {count} left wrong bytes here");
        ensure!(content(&there)? == theirs, "batch {batch} of {count} left wrong bytes there");
        ensure!(content(&closed)? == pattern(size, 3), "memory without rights was written");
        // What is posted instead does it: nothing was begun for its sake.
        for (it, _) in asked.iter().zip(done).filter(|(it, done)| it.is_well && !done) {
            let op = it.op(&here)?;
            world.succeed(A, op)?;
            it.apply(&mut mine, &mut theirs);
        }
        ensure!(content(&here)? == mine && content(&there)? == theirs, "what was posted is wrong");
        // None that was done has a completion: an observed context fails at one.
        world.send(A, to, b"fence")?;
        world.arrival(B)?;
    }
    world.end()
}

pub(crate) fn transfers_together_with_those_of_a_peer_that_is_gone_are_done(
    suite: &Suite,
) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let domain = suite.open(&suite.url, &OpenOptions::listening())?;
    world.add(domain, 0)?;
    let (to_c, _) = world.connect(A, C)?;
    let size = PLACE * BATCH_MAX;
    let here = register(&world, A, vec![0; size], Rights::empty())?;
    let there = register(&world, B, pattern(size, 5), Rights::all())?;
    let lost = register(&world, C, pattern(size, 6), Rights::all())?;
    let (open, lost_far) = (travelled(&there)?, travelled(&lost)?);
    world.close(C);
    world.gone(A, to_c)?;
    let ask_of = |place: usize| {
        let (to, far) = if place % 3 == 1 { (to_c, &lost_far) } else { (to, &open) };
        let at = place * PLACE;
        let (direction, far_at) = (Direction::Get, at as u64);
        Asked { direction, to, at, len: 700, far: far.clone(), far_at, is_well: to != to_c }
    };
    let asked: Vec<_> = (0..BATCH_MAX).map(ask_of).collect();
    let alone = world.nodes[A].context.transfer(&asked[0].transit(&here), u64::MAX);
    let done = ask(&mut world, &here, &asked, u64::MAX);
    let (mut mine, mut theirs) = (vec![0; size], pattern(size, 5));
    for (it, done) in asked.iter().zip(done) {
        ensure!(!done || it.is_well, "a transfer from a peer that is gone was done");
        ensure!(done || !it.is_well || !alone, "the end of a peer kept another's from being done");
        if it.is_well && !done {
            let op = it.op(&here)?;
            world.succeed(A, op)?;
        } else if !it.is_well {
            world.refused(A, it.op(&here)?, "a get from a peer that is gone")?;
        }
        if it.is_well {
            it.apply(&mut mine, &mut theirs);
        }
    }
    ensure!(content(&here)? == mine, "bytes of the peer that lives are wrong");
    world.end()
}
