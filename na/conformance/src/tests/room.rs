//! Sentence 16: who was refused is told once when there is room, and not before.

use std::time::{Duration, Instant};

use hg_na::{Error, Message, Op, OpId, Peer};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    suite::Suite,
    world::{A, B, World},
};

/// What is due by then is waited for.
const SOON: Duration = Duration::from_millis(5);
/// Rounds that find nothing for so long after which nothing is taken any more: who carries messages in a thread of its own may not have a core.
const STUCK_AFTER: usize = 200;
const STUCK_FOR: Duration = Duration::from_millis(20);
/// Times in a row that room is told and the next post is refused all the same: only another post may have taken it.
const VAIN_MAX: usize = 50;
/// Messages that one peer may be sent before it takes any.
const FILL_MAX: usize = 200_000;
/// Posts that are refused before there is room.
const REFUSALS: usize = 5;

/// Makes a message of one kind.
type Make = fn(Peer, Message) -> Op;

const KINDS: [(&str, Make); 3] = [
    ("request", |to, message| Op::SendUnexpected { to, message }),
    ("answer", |to, message| Op::SendExpected { to, tag: 1, message }),
    ("control message", |to, message| Op::SendControl { to, message }),
];

/// Posts until nothing more is taken and no room is told, although this side makes progress; whenever it is told, there is some.
pub(crate) fn fill(node: &mut Node, mut post: impl FnMut(&mut Node) -> Outcome<bool>) -> Outcome {
    let mut vain = 0;
    for _ in 0..FILL_MAX {
        if post(node)? {
            vain = 0;
            continue;
        }
        if !wait_for_room(node)? {
            return Ok(());
        }
        vain += 1;
        ensure!(vain < VAIN_MAX, "room was told {vain} times in a row, and there was none");
    }
    fail!("{FILL_MAX} messages were taken for a peer that takes none")
}

/// Whether room is told before nothing moves any more, nor will before long.
fn wait_for_room(node: &mut Node) -> Outcome<bool> {
    let (mut idle, mut moved_at) = (0, Instant::now());
    let has_due =
        |node: &Node| node.context.next_deadline().is_some_and(|at| at <= Instant::now() + SOON);
    while (idle < STUCK_AFTER || moved_at.elapsed() < STUCK_FOR || has_due(node))
        && node.rooms.is_empty()
    {
        if node.progress()? {
            (idle, moved_at) = (0, Instant::now());
        } else {
            idle += 1;
        }
    }
    Ok(node.rooms.pop_front().is_some())
}

/// Posts once; `None`: it was refused for want of room.
pub(crate) fn try_post(node: &mut Node, op: Op) -> Outcome<Option<OpId>> {
    match node.post(op)? {
        Ok((_, id)) => Ok(Some(id)),
        Err(rejected) if matches!(rejected.error, Error::Again) => Ok(None),
        Err(rejected) => fail!("a full queue refuses with {:?}", rejected.error),
    }
}

/// A message as long as it may be of any kind: a transport holds fewer of those.
fn message(node: &Node) -> Message {
    Message::copied(&vec![7; node.caps().max_control.min(8)])
}

pub(crate) fn room_is_told_once_when_a_full_queue_has_emptied(suite: &Suite) -> Outcome {
    for (kind, make) in KINDS {
        let mut world = World::new(suite, 2)?;
        let (to_b, _) = world.connect(A, B)?;
        let a = &mut world.nodes[A];
        let post = |a: &mut Node| {
            let message = message(a);
            Ok(try_post(a, make(to_b, message))?.is_some())
        };
        fill(a, post)?;
        for _ in 1..REFUSALS {
            // Mostly it is refused; a place or two may be free without a word.
            post(a)?;
        }
        world.until("room was told", |nodes| {
            nodes[B].unexpected.clear();
            nodes[B].control.clear();
            Ok(!nodes[A].rooms.is_empty())
        })?;
        world.until("everything that was taken arrived", |nodes| Ok(nodes[A].pending() == 0))?;
        let rooms = std::mem::take(&mut world.nodes[A].rooms);
        ensure!(rooms == [to_b], "for {REFUSALS} refusals of a {kind} room was told at {rooms:?}");
        let message = message(&world.nodes[A]);
        world.post(A, make(to_b, message))?;
        world.until("everything that was taken arrived", |nodes| Ok(nodes[A].pending() == 0))?;
        world.close(B);
        world.gone(A, to_b)?;
        world.end()?;
    }
    Ok(())
}

pub(crate) fn a_cancel_makes_room(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let a = &mut world.nodes[A];
    let mut ids = Vec::new();
    fill(a, |a| {
        let op = Op::SendUnexpected { to: to_b, message: message(a) };
        let id = try_post(a, op)?;
        ids.extend(id);
        Ok(id.is_some())
    })?;
    for id in ids {
        a.context.cancel(id);
    }
    world.until_of(&[A], "room was told after a cancel", |nodes| Ok(!nodes[A].rooms.is_empty()))?;
    world.close(B);
    world.gone(A, to_b)?;
    world.end()
}

pub(crate) fn no_room_is_told_at_a_peer_that_has_hung_up(suite: &Suite) -> Outcome {
    for address_is_empty in [false, true] {
        let mut world = World::new(suite, 2)?;
        let (to_b, _) = world.connect(A, B)?;
        let peer = if address_is_empty {
            let address = world.nodes[B].address();
            world.close(B);
            world.gone(A, to_b)?;
            world.nodes[A].lookup(&address)?
        } else {
            to_b
        };
        let a = &mut world.nodes[A];
        for _ in 0..FILL_MAX {
            let op = Op::SendUnexpected { to: peer, message: message(a) };
            match a.post(op)? {
                Ok(_) => {}
                // That nobody is there may be known at once.
                Err(rejected) if matches!(rejected.error, Error::Again | Error::PeerGone(_)) => {
                    break;
                }
                Err(rejected) => fail!("a full queue refuses with {:?}", rejected.error),
            }
        }
        if !address_is_empty {
            world.close(B);
        }
        world.gone(A, peer)?;
        // What is told of it later is found there.
        world.end()?;
    }
    Ok(())
}
