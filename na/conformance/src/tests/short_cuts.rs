//! The short cuts, [`hg_na::Context::exchange`], [`hg_na::Context::reply`], [`hg_na::Context::collect`] and
//! [`hg_na::Context::take_request`]: taken, they are as if posted, or told by a round; not taken, they have done nothing. A plugin without them takes none, which passes.

use hg_na::{Message, Peer, QUIET};

use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Requests that are sent before any of them is answered.
const BURST: u64 = 8;
const BURSTS: u64 = 32;
/// Long requests that are sent before any of them is answered.
const MANY: u64 = 24;
/// Bytes of messages that carry them nowhere inside themselves.
const LONG: [usize; 7] = [300, 57, 112, 113, 224, 225, 8];

pub(crate) fn calls_by_short_cuts_are_as_if_posted(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let mut message = Message::inline(8);
    for burst in 0..BURSTS {
        let numbers = burst * BURST..(burst + 1) * BURST;
        let mut receives = Vec::new();
        for number in numbers.clone() {
            // The same one each time: its bytes are taken when it is accepted.
            message.as_mut_slice().copy_from_slice(&number.to_le_bytes());
            receives.push(request(&mut world, to_b, number, &mut message)?);
        }
        message.as_mut_slice().fill(0xFF);
        for number in numbers.clone() {
            if burst.is_multiple_of(2)
                && world.nodes[B].take_request(to_a, &number.to_le_bytes())?
            {
                continue;
            }
            let (from, request) = world.arrival(B)?;
            let right = from == to_a && request.as_slice() == number.to_le_bytes();
            ensure!(right, "{request:?} of {from:?} arrived in place of request {number}");
        }
        for number in numbers.clone().rev() {
            message.as_mut_slice().copy_from_slice(&(!number).to_le_bytes());
            let posted =
                number.is_multiple_of(5) || !world.nodes[B].reply(to_a, number, &mut message)?;
            if posted {
                world.answer(B, to_a, number, &(!number).to_le_bytes())?;
            }
        }
        for (number, receive) in numbers.rev().zip(receives.into_iter().rev()) {
            let answer = (!number).to_le_bytes();
            let collects = number % BURST > burst % BURST;
            if !collects || !world.nodes[A].collect((to_b, number), receive, &answer)? {
                world.received(A, receive, &answer)?;
            }
        }
    }
    world.end()
}

/// By the short cut or by posts, in turn; answers the receive's token.
fn request(world: &mut World<'_>, to: Peer, number: u64, message: &mut Message) -> Outcome<u64> {
    let bits = if number.is_multiple_of(2) { QUIET } else { 0 };
    if !number.is_multiple_of(3)
        && let Some(receive) = world.nodes[A].exchange(to, number, bits, message)?
    {
        return Ok(receive);
    }
    let (receive, _) = world.receive(A, to, number)?;
    world.send(A, to, &number.to_le_bytes())?;
    Ok(receive)
}

pub(crate) fn a_long_request_by_the_short_cut_is_as_if_posted(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let max = world.nodes[A].caps().max_unexpected;
    let len = |number: u64| LONG[usize::try_from(number).map_or(0, |n| n % LONG.len())].min(max);
    for first in (0..BURSTS).map(|burst| burst * MANY) {
        let mut receives = Vec::new();
        for number in first..first + MANY {
            receives.push(long_request(&mut world, to_b, number, &pattern(len(number), number))?);
        }
        for (number, receive) in (first..).zip(receives) {
            let (from, request) = world.arrival(B)?;
            let right = from == to_a && request.as_slice() == pattern(len(number), number);
            ensure!(right, "{request:?} of {from:?} arrived in place of request {number}");
            world.answer(B, to_a, number, b"answer")?;
            world.received(A, receive, b"answer")?;
        }
    }
    world.end()
}

/// By the short cut, where it is taken, in the transport's memory or in other, in turn; answers the receive's token.
fn long_request(world: &mut World<'_>, to: Peer, number: u64, bytes: &[u8]) -> Outcome<u64> {
    let mut message = Message::from(bytes.to_vec());
    if number.is_multiple_of(2) {
        message = world.nodes[A].message(to, bytes.len())?;
        message.as_mut_slice().copy_from_slice(bytes);
    }
    // Dropping it afterwards takes nothing back.
    if let Some(receive) = world.nodes[A].exchange(to, number, 0, &mut message)? {
        return Ok(receive);
    }
    ensure!(message.as_slice() == bytes, "a message that was not taken has changed");
    let (receive, _) = world.receive(A, to, number)?;
    world.send(A, to, bytes)?;
    Ok(receive)
}

pub(crate) fn a_short_cut_that_is_not_taken_has_done_nothing(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let mut inline = Message::copied(b"inline");
    for tag in 0..4 {
        // Each of these is an error of the observed context when it is taken.
        let mut elsewhere = Message::from(pattern(8, tag));
        world.nodes[B].reply(to_a, tag, &mut elsewhere)?;
    }
    let (receive, _) = world.receive(A, to_b, 5)?;
    let taken = world.nodes[A].exchange(to_b, 5, 0, &mut inline)?;
    ensure!(taken.is_none(), "an exchange was taken whose tag is in use");
    for nobody in [Peer::new(u32::MAX, 0), Peer::new(5, u32::MAX)] {
        no_short_cut_to(&mut world, nobody, "that was never given out")?;
    }
    world.answer(B, to_a, 5, b"answer")?;
    world.received(A, receive, b"answer")?;
    world.send(A, to_b, b"fence")?;
    let (_, first) = world.arrival(B)?;
    ensure!(first.as_slice() == b"fence", "a request that was not taken arrived: {first:?}");
    world.close(B);
    world.gone(A, to_b)?;
    no_short_cut_to(&mut world, to_b, "that is dead")?;
    world.end()
}

fn no_short_cut_to(world: &mut World<'_>, peer: Peer, what: &str) -> Outcome {
    let mut inline = Message::copied(b"inline");
    let exchanged = world.nodes[A].exchange(peer, 6, 0, &mut inline)?.is_some();
    let replied = world.nodes[A].reply(peer, 6, &mut inline)?;
    ensure!(!exchanged && !replied, "a short cut was taken to a handle {what}");
    Ok(())
}
