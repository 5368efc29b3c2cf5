//! Sentences 4 and 7: how expected messages meet their receives.

use hg_na::{Error, Message, Op, Peer};

use crate::{
    outcome::{Outcome, ensure},
    random::Random,
    suite::Suite,
    world::{A, B, C, World, pattern},
};

pub(crate) fn a_receive_posted_late_still_matches(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let count = world.nodes[A].caps().unmatched_max.min(32) as u64;
    let mut tags: Vec<u64> = (0..count).map(|tag| tag << 40 | tag).collect();
    for tag in &tags {
        let token = world.answer(A, to_b, *tag, &pattern(100, *tag))?;
        world.completion(A, token)?;
    }
    let mut random = Random::new(2);
    while !tags.is_empty() {
        let tag = tags.swap_remove(random.index(tags.len()));
        let (token, _) = world.receive(B, to_a, tag)?;
        world.received(B, token, &pattern(100, tag))?;
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

pub(crate) fn messages_of_one_tag_match_in_order(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let count = world.nodes[A].caps().unmatched_max.min(16) as u64;
    for number in 0..count {
        world.answer(A, to_b, 3, &number.to_le_bytes())?;
    }
    for number in 0..count {
        let (token, _) = world.receive(B, to_a, 3)?;
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

pub(crate) fn the_late_answer_to_a_cancelled_receive_is_dropped(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let rounds = 2 * world.nodes[A].caps().unmatched_max as u64;
    for tag in 0..rounds {
        let (token, id) = world.receive(B, to_a, tag)?;
        world.nodes[B].context.cancel(id);
        let done = world.completion(B, token)?;
        let cancelled =
            done.result.as_ref().is_err_and(|why| matches!(why.error, Error::Cancelled));
        ensure!(cancelled, "a cancelled receive ended in {done:?}");
        // Late answers are dropped, so they never fill what is held unmatched.
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
