//! Sentence 1: every accepted operation completes exactly once, a refused one comes back.
//!
//! That nothing completes twice, and that refused operations are unchanged, is checked by every
//! test: [`crate::node::Node`] does it.

use hg_na::{Error, Message, Op, OpId, Reached, Returned};

use crate::{
    outcome::{Outcome, ensure, fail},
    random::Random,
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Operations of the mixed script.
const SCRIPT_STEPS: u64 = 400;

pub(crate) fn every_accepted_operation_completes_exactly_once(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let mut random = Random::new(1);
    let mut open: Vec<(usize, OpId)> = Vec::new();
    let mut messages = Vec::new();
    for step in 0..SCRIPT_STEPS {
        let (place, other, peer, back) =
            if random.below(2) == 0 { (A, B, to_b, to_a) } else { (B, A, to_a, to_b) };
        let message = Message::copied(&pattern(8, step));
        match random.below(4) {
            kind @ (0 | 1) => {
                let op = match kind {
                    0 => Op::SendUnexpected { to: peer, message },
                    _ => Op::SendControl { to: peer, message },
                };
                let (token, id) = world.post(place, op)?;
                messages.push((place, token));
                open.push((place, id));
            }
            _ => {
                // One in two is answered without a receive, and dropped.
                if random.below(2) == 0 {
                    open.push((other, world.receive(other, back, step)?.1));
                }
                let send = Op::SendExpected { to: peer, tag: step, message };
                open.push((place, world.post(place, send)?.1));
            }
        }
        if random.below(4) == 0 {
            let (place, id) = open[random.index(open.len())];
            world.nodes[place].context.cancel(id);
        }
        if random.below(3) == 0 {
            world.round()?;
        }
    }
    for (place, id) in open {
        world.nodes[place].context.cancel(id);
    }
    world.until("every operation of the script completed", |nodes| {
        Ok(nodes.iter().all(|node| node.pending() == 0))
    })?;
    // A message that was sent may arrive after its completion.
    let mut sent = 0;
    for (place, token) in messages {
        sent += usize::from(world.completion(place, token)?.result.is_ok());
    }
    world.until("everything that was sent arrived", |nodes| {
        Ok(nodes.iter().map(|node| node.unexpected.len() + node.control.len()).sum::<usize>()
            >= sent)
    })?;
    for node in &mut world.nodes {
        node.unexpected.clear();
        node.control.clear();
    }
    world.end()
}

pub(crate) fn a_cancelled_receive_completes_without_help_of_its_peer(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let (token, id) = world.receive(A, to_b, 7)?;
    world.nodes[A].context.cancel(id);
    let mut found = None;
    world.until_of(&[A], "a cancelled receive completed", |nodes| {
        found = nodes[A].take_done_of(token);
        Ok(found.is_some())
    })?;
    let cancelled = found.as_ref().and_then(|done| done.result.as_ref().err());
    let proper = cancelled.is_some_and(|failure| matches!(failure.error, Error::Cancelled));
    ensure!(proper, "a cancelled receive ended in {found:?}");
    world.nodes[A].context.cancel(id);
    world.end()
}

pub(crate) fn cancelled_sends_complete_and_those_never_sent_do_not_arrive(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let mut posted = Vec::new();
    // As many as fit without the target's help: some of them wait for credits.
    while posted.len() < 4096 {
        let number = u64::try_from(posted.len()).expect("a small number");
        let message = Message::copied(&number.to_le_bytes());
        match world.nodes[A].post(Op::SendUnexpected { to: to_b, message })? {
            Ok(accepted) => posted.push(accepted),
            Err(rejected) if matches!(rejected.error, Error::Again) => break,
            Err(rejected) => fail!("a send was refused: {}", rejected.error),
        }
        world.nodes[A].progress()?;
    }
    for (_, id) in posted.iter().rev().step_by(2) {
        world.nodes[A].context.cancel(*id);
    }
    let (mut sent, mut maybe) = (Vec::new(), Vec::new());
    for (number, (token, _)) in (0u64..).zip(&posted) {
        let done = world.completion(A, *token)?;
        match done.result {
            Ok(()) => sent.push(number),
            Err(failure) => {
                let cancelled = matches!(failure.error, Error::Cancelled);
                ensure!(cancelled, "a cancelled send ended in {failure:?}");
                if failure.reached == Reached::Unknown {
                    maybe.push(number);
                }
            }
        }
    }
    let token = world.send(A, to_b, b"last")?;
    let mut arrived = Vec::new();
    loop {
        let (_, message) = world.arrival(B)?;
        match <[u8; 8]>::try_from(message.as_slice()) {
            Ok(number) => arrived.push(u64::from_le_bytes(number)),
            Err(_) => break,
        }
    }
    world.completion(A, token)?;
    arrived.retain(|number| !maybe.contains(number));
    ensure!(arrived == sent, "completed sends were {sent:?}, arrivals {arrived:?}");
    world.end()
}

pub(crate) fn cancelling_what_has_ended_or_never_was_is_ignored(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let (token, id) =
        world.post(A, Op::SendUnexpected { to: to_b, message: Message::copied(b"x") })?;
    world.completion(A, token)?;
    world.arrival(B)?;
    let never = OpId { scope: u32::MAX, serial: u64::MAX };
    for id in [id, never, OpId { scope: id.scope, serial: u64::MAX }] {
        world.nodes[A].context.cancel(id);
    }
    let (token, id) = world.receive(A, to_b, 1)?;
    world.nodes[A].context.cancel(id);
    world.nodes[A].context.cancel(id);
    world.completion(A, token)?;
    world.connect(A, B)?;
    world.end()
}

pub(crate) fn a_posted_vector_is_handed_back(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let caps = world.nodes[A].caps().clone();
    for len in [0, 1, 1000, caps.max_unexpected.min(caps.max_expected)] {
        let bytes = pattern(len, 3);
        let message = Message::from(bytes.clone());
        let returned = world.succeed(A, Op::SendUnexpected { to: to_b, message })?;
        ensure!(matches!(returned, Returned::Message(_)), "a vector came back as {returned:?}");
        let (_, arrived) = world.arrival(B)?;
        ensure!(arrived.as_slice() == bytes, "a vector of {len} bytes arrived changed");
        let (receive, _) = world.receive(B, to_a, 1)?;
        let message = Message::from(bytes.clone());
        let returned = world.succeed(A, Op::SendExpected { to: to_b, tag: 1, message })?;
        ensure!(matches!(returned, Returned::Message(_)), "a vector came back as {returned:?}");
        world.received(B, receive, &bytes)?;
    }
    world.end()
}

pub(crate) fn quiet_sends_arrive_and_their_failures_are_told(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let mut clock = suite.patience.start();
    for number in 0..200u64 {
        let message = || Message::copied(&number.to_le_bytes());
        let mut op = Op::SendUnexpected { to: to_b, message: message() };
        while let Err(rejected) = world.nodes[A].post_quiet(op)? {
            op = rejected.op;
            let moved = world.round()?;
            ensure!(clock.patient(moved), "a quiet send was refused for ever");
        }
    }
    for number in 0..200u64 {
        let (_, message) = world.arrival(B)?;
        let right = message.as_slice() == number.to_le_bytes();
        ensure!(right, "quiet send {number} did not arrive");
    }
    let failed = world.nodes[A].done.drain(..).find(|done| done.result.is_err());
    ensure!(failed.is_none(), "a quiet send that arrived ended in {failed:?}");
    let address = world.nodes[B].address();
    world.close(B);
    world.gone(A, to_b)?;
    let nobody = world.nodes[A].lookup(&address)?;
    let mut tokens = Vec::new();
    for _ in 0..4 {
        let message = Message::copied(b"to nobody");
        let posted = world.nodes[A].post_quiet(Op::SendUnexpected { to: nobody, message })?;
        tokens.extend(posted.ok().map(|(token, _)| token));
    }
    // Brings the end to light even if all of them were refused for now.
    let _ = world.try_post(A, Op::RecvExpected { from: nobody, tag: 1 })?;
    world.gone(A, nobody)?;
    for token in tokens {
        let told = world.nodes[A].take_done_of(token);
        let gone = told.as_ref().and_then(|done| done.result.as_ref().err());
        let gone = gone.is_some_and(|failure| matches!(failure.error, Error::PeerGone(_)));
        ensure!(gone, "a quiet send to nobody ended in {told:?}");
    }
    world.end()
}
