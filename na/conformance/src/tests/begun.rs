//! Sentence 16: transfers that were begun, and are moved without the context, whatever has happened since. A plugin that
//! begins none passes.

use std::thread;

use hg_na::{Begun, Direction, Op, Peer, Region, Rights};

use super::one_sided::{connected, content, local, register, remote, travelled};
use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, World, pattern},
};

/// More than is over at once anywhere.
const LONG: usize = 300_000;
/// More than any plugin moves in one round.
const MOVED_AT_ONCE_MAX: usize = 256 << 20;
const DIRECTIONS: [Direction; 2] = [Direction::Get, Direction::Put];

/// A get or a put of the first bytes of both regions.
fn op(to: Peer, direction: Direction, here: &Region, there: &Region, len: usize) -> Outcome<Op> {
    let (local, remote) = (local(here, 0, len)?, remote(&travelled(there)?, 0, len)?);
    Ok(match direction {
        Direction::Get => Op::Get { from: to, local, remote },
        Direction::Put => Op::Put { to, local, remote },
    })
}

fn begin<'op>(world: &mut World<'_>, op: &'op Op) -> Begun<'op> {
    world.nodes[A].begin(op)
}

/// Two contexts, and a region of each; `None` when the plugin has no one-sided operations.
fn regions(suite: &Suite) -> Outcome<Option<(World<'_>, Peer, Region, Region)>> {
    let Some((world, to)) = connected(suite)? else { return Ok(None) };
    let here = register(&world, A, pattern(LONG, 30), Rights::empty())?;
    let there = register(&world, B, pattern(LONG, 31), Rights::all())?;
    Ok(Some((world, to, here, there)))
}

pub(crate) fn transfers_that_were_begun_are_over_and_leave_rounds_their_turn(
    suite: &Suite,
) -> Outcome {
    let Some((mut world, to, here, there)) = regions(suite)? else { return Ok(()) };
    let closed = register(&world, B, vec![0; LONG], Rights::empty())?;
    let (open, closed) = (travelled(&there)?, travelled(&closed)?);
    let (mut mine, mut theirs) = (pattern(LONG, 30), pattern(LONG, 31));
    for len in [0, 8, 4096, 20_000, 100_000, LONG - 7] {
        let (near, far) = (local(&here, 3, len)?, remote(&open, 7, len)?);
        let get = Op::Get { from: to, local: near.clone(), remote: far.clone() };
        let put = Op::Put { to, local: near.clone(), remote: far };
        if begin(&mut world, &get).finish() {
            mine[3..3 + len].copy_from_slice(&theirs[7..7 + len]);
        }
        here.write(0, &[1, 2, 3, 4, 5]).map_err(|error| error.to_string())?;
        mine[..5].copy_from_slice(&[1, 2, 3, 4, 5]);
        if begin(&mut world, &put).finish() {
            theirs[7..7 + len].copy_from_slice(&mine[3..3 + len]);
        }
        let denied = Op::Get { from: to, local: near, remote: remote(&closed, 0, len)? };
        let was_read = len > 0 && begin(&mut world, &denied).finish();
        ensure!(!was_read, "memory without rights was read");
        ensure!(content(&here)? == mine, "a get of {len} bytes that was begun went wrong");
        ensure!(content(&there)? == theirs, "a put of {len} bytes that was begun went wrong");
        // It has no completion: one that nobody expects is an error of the observed context.
        world.send(A, to, b"fence")?;
        world.arrival(B)?;
    }
    let get = op(to, Direction::Get, &here, &there, LONG)?;
    let refused = (0..MOVED_AT_ONCE_MAX / LONG).any(|_| !begin(&mut world, &get).finish());
    ensure!(refused, "{MOVED_AT_ONCE_MAX} bytes were moved without a round between them");
    world.succeed(A, get)?;
    world.end()
}

pub(crate) fn who_is_to_begin_later_is_told_of_room_and_begins_then(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    if !world.nodes[A].caps().one_sided {
        return Ok(());
    }
    let here = register(&world, A, pattern(LONG, 30), Rights::empty())?;
    let there = register(&world, B, pattern(LONG, 31), Rights::all())?;
    let address = world.nodes[B].address();
    let to = world.nodes[A].lookup(&address)?;
    let get = op(to, Direction::Get, &here, &there, LONG)?;
    loop {
        let begun = begin(&mut world, &get);
        let is_later = matches!(begun, Begun::Later);
        if !is_later {
            if begun.finish() {
                ensure!(content(&here)? == pattern(LONG, 31), "other bytes than the peer's came");
            }
            return world.end();
        }
        let told = world.nodes[A].rooms.len();
        world.until("room was told to whoever was to begin later", |nodes| {
            Ok(nodes[A].rooms.len() > told)
        })?;
    }
}

pub(crate) fn a_mover_needs_no_context_and_no_thread_of_its_own(suite: &Suite) -> Outcome {
    let Some((mut world, to, here, there)) = regions(suite)? else { return Ok(()) };
    for direction in DIRECTIONS {
        let op = op(to, direction, &here, &there, LONG)?;
        let Begun::Ready(mover) = begin(&mut world, &op) else { return world.end() };
        let moved = thread::scope(|scope| {
            let thread = scope.spawn(|| mover.run());
            for _ in 0..8 {
                world.send(A, to, b"beside it")?;
                world.arrival(B)?;
            }
            Outcome::Ok(thread.join().expect("a mover does not panic"))
        })?;
        ensure!(moved.is_ok(), "a {direction:?} in another thread failed: {moved:?}");
        ensure!(
            content(&here)? == content(&there)?,
            "a {direction:?} in another thread went wrong"
        );
        here.write(0, &pattern(LONG, 32)).map_err(|error| error.to_string())?;
    }
    world.end()
}

pub(crate) fn a_mover_that_is_dropped_moves_nothing_and_holds_nothing(suite: &Suite) -> Outcome {
    let Some((mut world, to, here, there)) = regions(suite)? else { return Ok(()) };
    for direction in DIRECTIONS {
        // More often than anybody has places for those that are under way.
        for _ in 0..100 {
            let op = op(to, direction, &here, &there, LONG)?;
            let Begun::Ready(mover) = begin(&mut world, &op) else { return world.end() };
            drop(mover);
            world.round()?;
        }
    }
    ensure!(content(&here)? == pattern(LONG, 30), "a get was not run, and has moved bytes");
    ensure!(content(&there)? == pattern(LONG, 31), "a put was not run, and has moved bytes");
    let memory = there.unregister();
    ensure!(memory.is_ok(), "memory of which nothing is under way: {memory:?}");
    world.end()
}

pub(crate) fn what_was_begun_does_not_touch_memory_that_its_owner_has_got_back(
    suite: &Suite,
) -> Outcome {
    for direction in DIRECTIONS {
        let Some((mut world, to, here, there)) = regions(suite)? else { return Ok(()) };
        let op = op(to, direction, &here, &there, LONG)?;
        let Begun::Ready(mover) = begin(&mut world, &op) else { return world.end() };
        let memory = there.unregister().map_err(|error| error.to_string())?;
        let moved = mover.run();
        ensure!(
            memory.into_vec().ok() == Some(pattern(LONG, 31)),
            "memory was written behind its owner's back"
        );
        let right =
            moved.is_err() || direction == Direction::Put || content(&here)? == pattern(LONG, 31);
        ensure!(right, "a get from memory that was taken back says that it went well");
        drop(op);
        world.end()?;
    }
    Ok(())
}

pub(crate) fn what_was_begun_is_moved_or_fails_whoever_has_closed(suite: &Suite) -> Outcome {
    for direction in DIRECTIONS {
        for closed in [None, Some(A), Some(B)] {
            let Some((mut world, to, here, there)) = regions(suite)? else { return Ok(()) };
            let op = op(to, direction, &here, &there, LONG)?;
            let Begun::Ready(mover) = begin(&mut world, &op) else { return world.end() };
            match closed {
                None => world.nodes[A].context.forget(to),
                Some(place) => world.close(place),
            }
            for _ in 0..64 {
                world.round()?;
            }
            if mover.run().is_ok() {
                let same = content(&here)? == content(&there)?;
                ensure!(
                    same,
                    "a {direction:?} that was begun before {closed:?} was closed went wrong"
                );
            }
            drop((op, here));
            let memory = there.unregister();
            ensure!(memory.is_ok(), "memory of which nothing is under way: {memory:?}");
        }
    }
    Ok(())
}
