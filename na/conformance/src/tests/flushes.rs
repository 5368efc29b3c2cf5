//! Sentences 19 and 20: what a flush promises, and who is connected.

use hg_na::{Message, Op, Peer};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    suite::Suite,
    tests::room,
    world::{A, B, C, World},
};

/// How often a peer that takes nothing may turn out to have had room.
const FILLS: u32 = 100;

/// Messages that are posted in each round beside a flush.
const BESIDE: usize = 8;

fn control(to: Peer) -> Op {
    Op::SendControl { to, message: Message::copied(b"control") }
}

fn request(to: Peer) -> Op {
    Op::SendUnexpected { to, message: Message::copied(b"request") }
}

/// Takes what has arrived; says how much.
fn take(node: &mut Node) -> usize {
    node.unexpected.drain(..).count() + node.control.drain(..).count()
}

/// Posts until the peer, which makes no progress, leaves no room; says how many were accepted. Who passes messages on, and had no core, may
/// make room late: only then a flush may end, and there is more to be posted.
fn fill(node: &mut Node, make: impl Fn() -> Op) -> Outcome<usize> {
    let mut count = 0;
    for _ in 0..FILLS {
        let before = count;
        room::fill(node, |node| {
            let is_accepted = room::try_post(node, make())?.is_some();
            count += usize::from(is_accepted);
            Ok(is_accepted)
        })?;
        ensure!(count > before, "a flush ended without room, while {count} messages were untaken");
        if !node.context.flush() {
            return Ok(count);
        }
    }
    fail!("flushes ended while {count} messages were untaken")
}

pub(crate) fn what_was_flushed_arrives_although_its_sender_closes(suite: &Suite) -> Outcome {
    for make in [control, request] {
        let mut world = World::new(suite, 2)?;
        let (to_b, from_a) = world.connect(A, B)?;
        let sent = fill(&mut world.nodes[A], || make(to_b))?;
        let mut came = 0;
        world.until("a flush ended", |nodes| {
            came += take(&mut nodes[B]);
            Ok(nodes[A].context.flush())
        })?;
        world.close(A);
        let b = 0;
        world.until("the end of who had flushed was reported", |nodes| {
            came += take(&mut nodes[b]);
            Ok(nodes[b].gone.contains_key(&from_a))
        })?;
        ensure!(came == sent, "{came} of {sent} messages came that were flushed");
        world.end()?;
    }
    Ok(())
}

pub(crate) fn a_flush_does_not_wait_for_what_comes_later_or_for_who_is_gone(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 3)?;
    let (to_b, _) = world.connect(A, B)?;
    let (to_c, _) = world.connect(A, C)?;
    fill(&mut world.nodes[A], || control(to_c))?;
    fill(&mut world.nodes[A], || control(to_b))?;
    world.close(C);
    world.until("a flush ended beside new messages", |nodes| {
        take(&mut nodes[B]);
        for _ in 0..BESIDE {
            room::try_post(&mut nodes[A], control(to_b))?;
        }
        Ok(nodes[A].context.flush())
    })?;
    world.until("everything that was taken arrived", |nodes| {
        take(&mut nodes[B]);
        Ok(nodes[A].pending() == 0)
    })?;
    world.nodes[A].rooms.clear();
    world.close(B);
    world.gone(A, to_b)?;
    world.end()
}

pub(crate) fn who_is_connected_is_known_and_nobody_else(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 3)?;
    let address = world.nodes[C].address();
    let to_c = world.nodes[A].lookup(&address)?;
    let (to_b, from_a) = world.connect(A, B)?;
    for (place, wanted) in [(A, vec![to_b]), (B, vec![from_a]), (C, vec![])] {
        let known = world.nodes[place].context.connected();
        ensure!(known == wanted, "{known:?} are said to be connected, not {wanted:?}");
        let context = &mut world.nodes[place].context;
        ensure!(known.iter().all(|peer| context.is_connected(*peer)), "one of {known:?} is not");
    }
    ensure!(!world.nodes[A].context.is_connected(to_c), "{to_c:?} was looked up only");
    ensure!(world.nodes[A].context.was_connected(to_b), "{to_b:?} is connected, and was");
    world.nodes[A].context.forget(to_c);
    world.gone(A, to_c)?;
    world.close(B);
    world.hung_up(A, to_b)?;
    let known = world.nodes[A].context.connected();
    ensure!(known.is_empty(), "{known:?} are said to be connected, and have hung up");
    ensure!(!world.nodes[A].context.is_connected(to_b), "{to_b:?} has hung up");
    ensure!(world.nodes[A].context.was_connected(to_b), "{to_b:?} was connected");
    world.end()
}
