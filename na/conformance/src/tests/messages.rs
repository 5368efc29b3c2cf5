//! Sentences 3 and 6: messages arrive, whole, private and in order.

use hg_na::{Message, Op, Returned};

use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Messages of an order test.
const IN_A_ROW: u64 = 500;
/// Contexts that send to one.
const MANY: usize = 64;

/// Sizes at which transports change their way, up to `max`.
fn sizes(short: usize, max: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..=240).collect();
    for edge in [short, 128, 256, 512, 1024, 2048, 4096, 8192, 65_536, max] {
        sizes.extend([edge.saturating_sub(1), edge, edge.saturating_add(1)]);
    }
    sizes.retain(|size| *size <= max);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

pub(crate) fn an_unexpected_message_needs_no_posted_receive(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let token = world.send(A, to_b, b"there")?;
    let (from, message) = world.arrival(B)?;
    ensure!(from == to_a, "one peer's messages came from {to_a:?} and {from:?}");
    ensure!(message.as_slice() == b"there", "`there` arrived as {:?}", message.as_slice());
    world.completion(A, token)?;
    let token = world.send(B, from, b"and back")?;
    let (from, message) = world.arrival(A)?;
    ensure!(from == to_b, "an answer came from {from:?} instead of {to_b:?}");
    ensure!(message.as_slice() == b"and back", "`and back` arrived as {:?}", message.as_slice());
    world.completion(B, token)?;
    world.end()
}

pub(crate) fn messages_of_every_size_arrive_whole(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let caps = world.nodes[A].caps().clone();
    for size in sizes(caps.short_unexpected, caps.max_unexpected) {
        let token = world.send(A, to_b, &pattern(size, 1))?;
        let (_, message) = world.arrival(B)?;
        ensure!(
            message.as_slice() == pattern(size, 1),
            "an unexpected message of {size} bytes changed"
        );
        world.completion(A, token)?;
    }
    for size in sizes(caps.short_unexpected, caps.max_control) {
        let message = Message::copied(&pattern(size, 2));
        world.succeed(A, Op::SendControl { to: to_b, message })?;
        let mut found = None;
        world.until("a control message arrived", |nodes| {
            found = nodes[B].control.pop_front();
            Ok(found.is_some())
        })?;
        let whole = found.is_some_and(|(_, message)| message.as_slice() == pattern(size, 2));
        ensure!(whole, "a control message of {size} bytes changed");
    }
    for size in sizes(caps.short_expected, caps.max_expected) {
        let (receive, _) = world.receive(B, to_a, 9)?;
        let send = world.answer(A, to_b, 9, &pattern(size, 3))?;
        world.received(B, receive, &pattern(size, 3))?;
        world.completion(A, send)?;
    }
    world.end()
}

pub(crate) fn memory_of_the_transport_carries_messages_of_every_size(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let caps = world.nodes[A].caps().clone();
    for size in sizes(caps.short_unexpected, caps.max_unexpected) {
        for keep in [size, size / 2] {
            let message = world.nodes[A].context.message(to_b, size);
            let mut message = message.map_err(|error| format!("no memory for {size}: {error}"))?;
            ensure!(message.len() == size, "asked for {size} bytes, got {}", message.len());
            message.as_mut_slice().copy_from_slice(&pattern(size, 4));
            message.truncate(keep);
            let (token, _) = world.post(A, Op::SendUnexpected { to: to_b, message })?;
            let (_, arrived) = world.arrival(B)?;
            let whole = arrived.as_slice() == &pattern(size, 4)[..keep];
            ensure!(whole, "{keep} of {size} bytes of the transport's own memory changed");
            world.completion(A, token)?;
        }
    }
    world.end()
}

pub(crate) fn a_message_dropped_instead_of_posted_costs_nothing(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let max = world.nodes[A].caps().max_unexpected;
    for round in 0..10_000usize {
        let len = [1, 100, max][round % 3];
        let message = world.nodes[A].context.message(to_b, len);
        let message = message.map_err(|error| format!("no memory after {round} drops: {error}"))?;
        drop(message);
    }
    world.connect(A, B)?;
    world.end()
}

pub(crate) fn unexpected_messages_arrive_in_order(suite: &Suite) -> Outcome {
    in_order(suite, |to, message| Op::SendUnexpected { to, message }, |node| &mut node.unexpected)
}

pub(crate) fn control_messages_arrive_in_order(suite: &Suite) -> Outcome {
    in_order(suite, |to, message| Op::SendControl { to, message }, |node| &mut node.control)
}

type Arrivals = std::collections::VecDeque<(hg_na::Peer, Message)>;

fn in_order(
    suite: &Suite,
    op: fn(hg_na::Peer, Message) -> Op,
    arrivals: fn(&mut crate::node::Node) -> &mut Arrivals,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let caps = world.nodes[A].caps().clone();
    let control = matches!(op(to_b, Message::inline(0)), Op::SendControl { .. });
    let max = if control { caps.max_control } else { caps.max_unexpected };
    for number in 0..IN_A_ROW {
        // Long and short ones in turn, so that none may overtake another.
        let len = match number % 5 {
            0 => max.min(8000),
            2 => max.min(100),
            4 => max.min(200),
            _ => 8,
        };
        let mut bytes = pattern(len, number);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        world.post(A, op(to_b, Message::copied(&bytes)))?;
    }
    for number in 0..IN_A_ROW {
        let mut found = None;
        world.until("the next message arrived", |nodes| {
            found = arrivals(&mut nodes[B]).pop_front();
            Ok(found.is_some())
        })?;
        let seen = found.as_ref().and_then(|(_, message)| message.as_slice().first_chunk::<8>());
        let seen = seen.map(|bytes| u64::from_le_bytes(*bytes));
        ensure!(seen == Some(number), "message {seen:?} arrived in place of {number}");
    }
    world.end()
}

pub(crate) fn expected_messages_arrive_in_order(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let long = world.nodes[A].caps().max_expected.min(8000);
    for first in (0..IN_A_ROW).step_by(20) {
        let mut receives = Vec::new();
        for tag in first..first + 20 {
            receives.push(world.receive(B, to_a, tag)?.0);
        }
        for tag in first..first + 20 {
            let len = if tag % 3 == 0 { long } else { 8 };
            world.answer(A, to_b, tag, &pattern(len, tag))?;
        }
        world.until("all receives completed", |nodes| Ok(nodes[B].done.len() >= receives.len()))?;
        let seen: Vec<_> = world.nodes[B].done.drain(..).map(|done| done.token).collect();
        ensure!(seen == receives, "receives {receives:?} completed as {seen:?}");
    }
    world.end()
}

pub(crate) fn answers_and_control_messages_of_a_burst_arrive_each_in_order(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let long = world.nodes[A].caps().max_expected.min(8000);
    let mut receives = Vec::new();
    for tag in 0..IN_A_ROW {
        receives.push(world.receive(B, to_a, tag)?.0);
    }
    for number in 0..IN_A_ROW {
        // The target makes progress only when nothing more is taken.
        let len = if number % 7 == 0 { long } else { 8 };
        world.answer(A, to_b, number, &pattern(len, number))?;
        let message = Message::copied(&number.to_le_bytes());
        world.post(A, Op::SendControl { to: to_b, message })?;
    }
    for (number, token) in (0..).zip(&receives) {
        let len = if number % 7 == 0 { long } else { 8 };
        world.received(B, *token, &pattern(len, number))?;
        let mut found = None;
        world.until("a control message arrived", |nodes| {
            found = nodes[B].control.pop_front();
            Ok(found.is_some())
        })?;
        let right = found.is_some_and(|(_, message)| message.as_slice() == number.to_le_bytes());
        ensure!(right, "another control message arrived in place of {number}");
    }
    world.end()
}

pub(crate) fn a_context_reaches_itself(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let (there, back) = world.connect(A, A)?;
    for round in 0..200u64 {
        let (receive, _) = world.receive(A, there, round)?;
        let send = world.send(A, there, &round.to_le_bytes())?;
        let (from, message) = world.arrival(A)?;
        ensure!(from == back, "a message to oneself came from {from:?} instead of {back:?}");
        let answer = world.answer(A, from, round, message.as_slice())?;
        world.received(A, receive, &round.to_le_bytes())?;
        world.completion(A, send)?;
        world.completion(A, answer)?;
    }
    world.end()
}

pub(crate) fn many_peers_reach_one(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let address = world.nodes[A].address();
    let mut domain = None;
    for number in 0..MANY {
        let per_domain = usize::from(world.nodes[A].caps().max_contexts.min(16));
        if number % per_domain == 0 {
            domain = Some(suite.open(&suite.url, &hg_na::OpenOptions::listening())?);
        }
        let id = u8::try_from(number % per_domain).expect("at most 16");
        world.add(domain.clone().expect("opened above"), id)?;
    }
    let mut waiting = Vec::new();
    for place in 1..=MANY {
        let peer = world.nodes[place].lookup(&address)?;
        waiting.push((place, world.receive(place, peer, 5)?.0));
        world.send(place, peer, &place.to_le_bytes())?;
    }
    let mut seen = std::collections::HashMap::new();
    for _ in 0..MANY {
        let (from, message) = world.arrival(A)?;
        let other = seen.insert(from, message.as_slice().to_vec());
        ensure!(other.is_none(), "two contexts are known as {from:?}");
        world.answer(A, from, 5, message.as_slice())?;
    }
    for (place, token) in waiting {
        world.received(place, token, &place.to_le_bytes())?;
    }
    world.end()
}

pub(crate) fn a_received_message_outlives_its_connection(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let len = world.nodes[A].caps().max_expected;
    let (receive, _) = world.receive(B, to_a, 1)?;
    let returned = world.succeed(
        A,
        Op::SendExpected { to: to_b, tag: 1, message: Message::copied(&pattern(len, 8)) },
    )?;
    drop(returned);
    let done = world.completion(B, receive)?;
    world.close(A);
    world.until("the sender's end was reported", |nodes| Ok(nodes[0].gone.contains_key(&to_a)))?;
    world.close(0);
    let Returned::Message(message) = done.returned else {
        return Err(format!("a receive ended in {done:?}"));
    };
    ensure!(message.as_slice() == pattern(len, 8), "a received message changed afterwards");
    Ok(())
}
