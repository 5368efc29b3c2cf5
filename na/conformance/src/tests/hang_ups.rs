//! Sentence 9: a hang-up is told at once, after what does not wait for admission; the end is the last word.

use hg_na::{Error, GoneReason, Message, Op, OpenOptions, Peer};

use crate::{
    outcome::{Outcome, ensure},
    suite::Suite,
    tests::peers::handle_is_dead,
    world::{A, B, World},
};

/// Requests that are withheld: fewer than anybody has credits for.
const WITHHELD: u64 = 8;
/// Rounds in which something would come that must not.
const ROUNDS: usize = 64;
/// Sends that wait for a peer that makes no progress, unless its queue is full earlier.
const QUEUED_MAX: usize = 10_000;

/// Sends numbered requests, and waits until all of them have left.
pub(super) fn requests(world: &mut World<'_>, place: usize, to: Peer) -> Outcome {
    for number in 0..WITHHELD {
        let token = world.send(place, to, &number.to_le_bytes())?;
        world.completion(place, token)?;
    }
    Ok(())
}

/// The requests of [`requests`], in order.
pub(super) fn requests_arrive(world: &mut World<'_>, place: usize, from: Peer) -> Outcome {
    for number in 0..WITHHELD {
        let (sender, message) = world.arrival(place)?;
        let right = sender == from && message.as_slice() == number.to_le_bytes();
        ensure!(right, "{message:?} of {sender:?} came in place of request {number}");
    }
    Ok(())
}

/// Nothing more of this peer comes: neither its requests nor its end.
pub(super) fn requests_stay(world: &mut World<'_>, place: usize, from: Peer) -> Outcome {
    for _ in 0..ROUNDS {
        world.round()?;
    }
    let node = &world.nodes[place];
    let taken = node.unexpected.iter().filter(|(sender, _)| *sender == from).count();
    ensure!(taken == 0, "{taken} requests were taken while admission is closed");
    ensure!(!node.gone.contains_key(&from), "a peer was gone before its requests were taken");
    Ok(())
}

/// Two that know each other, whoever has connected.
fn pair<'a>(suite: &'a Suite, a_connects: bool) -> Outcome<(World<'a>, Peer, Peer)> {
    let mut world = World::new(suite, 2)?;
    let (from, to) = if a_connects { (A, B) } else { (B, A) };
    let (there, back) = world.connect(from, to)?;
    let (to_b, to_a) = if a_connects { (there, back) } else { (back, there) };
    Ok((world, to_b, to_a))
}

pub(crate) fn a_hang_up_is_told_while_requests_are_withheld(suite: &Suite) -> Outcome {
    for a_connects in [false, true] {
        let (mut world, to_b, to_a) = pair(suite, a_connects)?;
        let (receive, _) = world.receive(A, to_b, 1)?;
        world.nodes[A].context.set_admission(false);
        requests(&mut world, B, to_a)?;
        world.close(B);
        world.hung_up(A, to_b)?;
        let done = world.nodes[A].take_done_of(receive);
        let gone = done.as_ref().and_then(|done| done.result.as_ref().err());
        let gone = gone.is_some_and(|why| matches!(why.error, Error::PeerGone(_)));
        ensure!(gone, "a receive from a peer that has hung up ended in {done:?}");
        handle_is_dead(&mut world, A, to_b)?;
        requests_stay(&mut world, A, to_b)?;
        handle_is_dead(&mut world, A, to_b)?;
        world.nodes[A].context.set_admission(true);
        requests_arrive(&mut world, A, to_b)?;
        world.gone(A, to_b)?;
        handle_is_dead(&mut world, A, to_b)?;
        world.end()?;
    }
    Ok(())
}

/// Posts, and says whether it has left without the target's help.
fn has_left(world: &mut World<'_>, place: usize, op: Op) -> Outcome<bool> {
    let Ok((token, _)) = world.nodes[place].post(op)? else { return Ok(false) };
    for _ in 0..ROUNDS {
        world.nodes[place].progress()?;
    }
    Ok(world.nodes[place].take_done_of(token).is_some_and(|done| done.result.is_ok()))
}

pub(crate) fn a_hang_up_is_told_after_answers_and_control_messages(suite: &Suite) -> Outcome {
    for admission in [true, false] {
        let (mut world, to_b, to_a) = pair(suite, admission)?;
        world.nodes[A].context.set_admission(admission);
        requests(&mut world, B, to_a)?;
        let mut receives = Vec::new();
        for tag in 0..WITHHELD {
            receives.push(world.receive(A, to_b, tag)?.0);
        }
        let (mut answers, mut controls) = (0, 0);
        for tag in 0..WITHHELD {
            let message = || Message::copied(&tag.to_le_bytes());
            let answer = Op::SendExpected { to: to_a, tag, message: message() };
            let control = Op::SendControl { to: to_a, message: message() };
            // One that has not left may be lost, and whatever is behind it.
            let is_first = answers == tag && controls == tag;
            answers += u64::from(is_first && has_left(&mut world, B, answer)?);
            controls += u64::from(is_first && has_left(&mut world, B, control)?);
        }
        world.close(B);
        world.hung_up(A, to_b)?;
        for (tag, token) in (0..answers).zip(receives) {
            world.received(A, token, &tag.to_le_bytes())?;
        }
        let came = world.nodes[A].control.drain(..).count() as u64;
        ensure!(came >= controls, "of {controls} control messages {came} came before a hang-up");
        world.nodes[A].context.set_admission(true);
        requests_arrive(&mut world, A, to_b)?;
        world.gone(A, to_b)?;
        world.end()?;
    }
    Ok(())
}

pub(crate) fn a_hang_up_is_told_when_every_operation_has_ended(suite: &Suite) -> Outcome {
    let (mut world, to_b, to_a) = pair(suite, true)?;
    world.nodes[A].context.set_admission(false);
    requests(&mut world, B, to_a)?;
    for tag in 0..4 {
        world.receive(A, to_b, tag)?;
    }
    for _ in 0..QUEUED_MAX {
        let message = Message::copied(b"never taken");
        if world.nodes[A].post(Op::SendUnexpected { to: to_b, message })?.is_err() {
            break;
        }
        world.nodes[A].progress()?;
    }
    world.close(B);
    // That nothing is open any more is checked when it is told.
    world.hung_up(A, to_b)?;
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission(true);
    requests_arrive(&mut world, A, to_b)?;
    world.gone(A, to_b)?;
    world.end()
}

pub(crate) fn a_forgotten_peer_hangs_up_while_its_requests_are_withheld(suite: &Suite) -> Outcome {
    let (mut world, to_b, to_a) = pair(suite, false)?;
    let (receive, _) = world.receive(A, to_b, 1)?;
    world.nodes[A].context.set_admission(false);
    requests(&mut world, B, to_a)?;
    world.nodes[A].context.forget(to_b);
    world.hung_up(A, to_b)?;
    ensure!(
        world.nodes[A].take_done_of(receive).is_some(),
        "a receive from a forgotten peer is open"
    );
    let reason = world.nodes[A].hung_up[&to_b].clone();
    ensure!(reason == GoneReason::Forgotten, "a forgotten peer hung up as {reason:?}");
    handle_is_dead(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission(true);
    world.gone(A, to_b)?;
    world.gone(B, to_a)?;
    // Whether what it had sent is still told is the plugin's choice.
    world.nodes[A].unexpected.clear();
    world.end()
}

pub(crate) fn who_restarts_is_looked_up_anew_while_the_old_ones_requests_are_withheld(
    suite: &Suite,
) -> Outcome {
    let url = suite.fresh_name();
    let mut world = World::new(suite, 1)?;
    world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
    let (old, to_a) = world.connect(A, B)?;
    world.nodes[A].context.set_admission(false);
    requests(&mut world, B, to_a)?;
    world.close(B);
    world.hung_up(A, old)?;
    world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
    let (new, _) = world.connect(A, B)?;
    ensure!(new != old, "the next incarnation has the handle of one that has hung up");
    requests_stay(&mut world, A, old)?;
    world.nodes[A].context.set_admission(true);
    requests_arrive(&mut world, A, old)?;
    world.gone(A, old)?;
    let (still, _) = world.connect(A, B)?;
    ensure!(still == new, "the end of one incarnation took the handle of the next");
    world.end()
}
