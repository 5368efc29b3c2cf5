//! Sentences 4 and 7: how expected messages meet their receives.

use hg_na::{Error, Message, Op, Peer};

use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, C, World, pattern},
};

/// Messages without a receive that are sent in a row: more than anybody would keep.
const LATE: u64 = 1000;
/// Cancelled receives.
const CANCELLED: u64 = 200;

pub(crate) fn an_expected_message_without_a_receive_is_dropped(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let long = world.nodes[A].caps().max_expected.min(8000);
    let (fence, _) = world.receive(B, to_a, LATE)?;
    for tag in 0..LATE {
        let len = if tag % 3 == 0 { long } else { 40 };
        world.answer(A, to_b, tag, &pattern(len, tag))?;
    }
    world.answer(A, to_b, LATE, b"fence")?;
    world.received(B, fence, b"fence")?;
    world.until("messages that nobody waits for were sent", |nodes| Ok(nodes[A].pending() == 0))?;
    let failed = world.nodes[A].done.drain(..).find(|done| done.result.is_err());
    ensure!(failed.is_none(), "a message that nobody waits for ended in {failed:?}");
    // Nothing of them is kept: a receive that comes now finds nothing.
    let mut receives = Vec::new();
    for tag in 0..LATE {
        receives.push(world.receive(B, to_a, tag)?);
    }
    world.connect(A, B)?;
    let (fence, _) = world.receive(B, to_a, LATE)?;
    world.answer(A, to_b, LATE, b"fence")?;
    world.received(B, fence, b"fence")?;
    for (token, id) in receives {
        let early = world.nodes[B].take_done_of(token);
        ensure!(early.is_none(), "a receive found a message from before: {early:?}");
        world.nodes[B].context.cancel(id);
        world.completion(B, token)?;
    }
    world.end()
}

pub(crate) fn messages_that_nobody_waits_for_stop_no_others(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    for round in 0..LATE {
        let wanted = round % 50 == 49;
        let receive = if wanted { Some(world.receive(B, to_a, round)?.0) } else { None };
        world.answer(A, to_b, round, &round.to_le_bytes())?;
        if let Some(token) = receive {
            let message = Message::copied(&round.to_le_bytes());
            world.post(A, Op::SendControl { to: to_b, message })?;
            world.send(A, to_b, &round.to_le_bytes())?;
            world.received(B, token, &round.to_le_bytes())?;
            let (_, request) = world.arrival(B)?;
            ensure!(request.as_slice() == round.to_le_bytes(), "another request: {request:?}");
            world.until("a control message arrived", |nodes| {
                Ok(nodes[B].control.pop_front().is_some())
            })?;
        }
    }
    world.end()
}

pub(crate) fn expected_messages_match_by_peer_and_tag(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 3)?;
    let (a_to_b, b_to_a) = world.connect(A, B)?;
    let (c_to_b, b_to_c) = world.connect(C, B)?;
    let mut receives = Vec::new();
    for (from, tag) in [(b_to_a, 1), (b_to_c, 1), (b_to_a, 2), (b_to_c, u64::MAX), (b_to_a, 0)] {
        receives.push(world.receive(B, from, tag)?.0);
    }
    let sends: [(usize, Peer, u64, &[u8]); 5] = [
        (C, c_to_b, u64::MAX, b"C max"),
        (C, c_to_b, 1, b"C 1"),
        (A, a_to_b, 0, b"A 0"),
        (A, a_to_b, 2, b"A 2"),
        (A, a_to_b, 1, b"A 1"),
    ];
    for (place, to, tag, bytes) in sends {
        let token = world.answer(place, to, tag, bytes)?;
        world.completion(place, token)?;
    }
    let wanted: [&[u8]; 5] = [b"A 1", b"C 1", b"A 2", b"C max", b"A 0"];
    for (token, bytes) in receives.into_iter().zip(wanted) {
        world.received(B, token, bytes)?;
    }
    world.end()
}

pub(crate) fn a_tag_is_good_again_once_its_message_was_received(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    for number in 0..16u64 {
        let (token, _) = world.receive(B, to_a, 3)?;
        world.answer(A, to_b, 3, &number.to_le_bytes())?;
        world.received(B, token, &number.to_le_bytes())?;
    }
    world.end()
}

pub(crate) fn a_second_receive_for_one_peer_and_tag_is_refused(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 3)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let (_, to_c) = world.connect(C, B)?;
    let (first, _) = world.receive(B, to_a, 4)?;
    let error = world.refused(B, Op::RecvExpected { from: to_a, tag: 4 }, "a second receive")?;
    ensure!(matches!(error, Error::TagInUse(4)), "a second receive was refused with {error:?}");
    let (_, other_peer) = world.receive(B, to_c, 4)?;
    world.nodes[B].context.cancel(other_peer);
    world.answer(A, to_b, 4, b"first")?;
    world.received(B, first, b"first")?;
    let (again, _) = world.receive(B, to_a, 4)?;
    world.answer(A, to_b, 4, b"again")?;
    world.received(B, again, b"again")?;
    world.end()
}

/// Posts a receive and cancels it.
fn cancelled_receive(world: &mut World<'_>, from: Peer, tag: u64) -> Outcome {
    let (token, id) = world.receive(B, from, tag)?;
    world.nodes[B].context.cancel(id);
    let done = world.completion(B, token)?;
    let cancelled = done.result.as_ref().is_err_and(|why| matches!(why.error, Error::Cancelled));
    ensure!(cancelled, "a cancelled receive ended in {done:?}");
    Ok(())
}

pub(crate) fn the_late_answer_to_a_cancelled_receive_is_dropped(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    for tag in 0..CANCELLED {
        cancelled_receive(&mut world, to_a, tag)?;
        let late = Message::copied(b"late");
        world.succeed(A, Op::SendExpected { to: to_b, tag, message: late })?;
    }
    // Expected messages arrive in order: after this one all late answers have arrived.
    let (fence, _) = world.receive(B, to_a, u64::MAX)?;
    world.answer(A, to_b, u64::MAX, b"fence")?;
    world.received(B, fence, b"fence")?;
    for tag in 0..4 {
        let (token, _) = world.receive(B, to_a, tag)?;
        world.answer(A, to_b, tag, b"new")?;
        world.received(B, token, b"new")?;
    }
    world.end()
}

pub(crate) fn the_answer_to_a_cancelled_receive_matches_no_other(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 3)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let (_, to_c) = world.connect(C, B)?;
    for tag in 0..CANCELLED {
        cancelled_receive(&mut world, to_a, tag)?;
        // Tags beside it, and those that fall on its place in tables of some size; and its own, of another peer.
        let near = [tag ^ 1 << 20, tag + 64 + (1 << 20), tag | 1 << 32];
        let mut others = Vec::new();
        for near in near {
            others.push((near, world.receive(B, to_a, near)?.0));
        }
        let (of_another, id) = world.receive(B, to_c, tag)?;
        world.answer(A, to_b, tag, b"late")?;
        for (near, token) in others {
            world.answer(A, to_b, near, &near.to_le_bytes())?;
            world.received(B, token, &near.to_le_bytes())?;
        }
        let early = world.nodes[B].take_done_of(of_another);
        ensure!(early.is_none(), "a receive from another peer took it: {early:?}");
        world.nodes[B].context.cancel(id);
        world.completion(B, of_another)?;
    }
    world.end()
}
