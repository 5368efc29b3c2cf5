//! Sentences 5 and 13: admission closed to one peer keeps that one's requests, and costs nobody anything.

use hg_na::{Message, Op, Peer};

use crate::{
    node::Node,
    outcome::{Outcome, ensure},
    random::Random,
    suite::Suite,
    tests::{
        hang_ups::{requests, requests_arrive, requests_stay},
        peers::handle_is_dead,
        sleeping::{drive, never_sleeps, sleeps, stays_asleep},
    },
    world::{A, B, C, World},
};

/// Messages of each kind that pass while one peer's requests wait.
const PASSING: u64 = 100;

/// One that is called by two others: the world, and for each the handles of it and of the caller.
fn called_by_two(suite: &Suite) -> Outcome<(World<'_>, [(Peer, Peer); 2])> {
    let mut world = World::new(suite, 3)?;
    let of_b = world.connect(B, A)?;
    let of_c = world.connect(C, A)?;
    Ok((world, [of_b, of_c]))
}

/// An answer and a control message each way; `here` and `there` are the handles of A and of the other.
fn others_pass(world: &mut World<'_>, place: usize, handles: (Peer, Peer), round: u64) -> Outcome {
    let (to_a, there) = handles;
    let bytes = round.to_le_bytes();
    for (from, to, back, at) in [(place, to_a, there, A), (A, there, to_a, place)] {
        let (receive, _) = world.receive(at, back, round)?;
        world.answer(from, to, round, &bytes)?;
        world.received(at, receive, &bytes)?;
        let message = Message::copied(&bytes);
        world.post(from, Op::SendControl { to, message })?;
        world.until("a control message passed", |nodes| {
            Ok(nodes[at].control.pop_front().is_some())
        })?;
    }
    Ok(())
}

/// A request of one that is admitted arrives.
fn request_passes(world: &mut World<'_>, place: usize, handles: (Peer, Peer)) -> Outcome {
    let (to_a, there) = handles;
    world.send(place, to_a, b"passes")?;
    let (from, message) = world.arrival(A)?;
    let right = from == there && message.as_slice() == b"passes";
    ensure!(right, "{message:?} of {from:?} came in place of a request that passes");
    Ok(())
}

pub(crate) fn admission_closed_to_one_peer_keeps_its_requests_and_nothing_else(
    suite: &Suite,
) -> Outcome {
    let (mut world, [of_b, of_c]) = called_by_two(suite)?;
    let (to_a, to_b) = of_b;
    for nobody in [Peer::new(u32::MAX, 0), Peer::new(5, u32::MAX)] {
        world.nodes[A].context.set_admission_of(nobody, false);
    }
    world.nodes[A].context.set_admission_of(to_b, false);
    requests(&mut world, B, to_a)?;
    for round in 0..PASSING {
        others_pass(&mut world, B, of_b, round)?;
        others_pass(&mut world, C, of_c, round)?;
        request_passes(&mut world, C, of_c)?;
        // And what the one that is kept out is asked.
        world.send(A, to_b, &round.to_le_bytes())?;
        world.arrival(B)?;
    }
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission_of(to_b, true);
    requests_arrive(&mut world, A, to_b)?;
    request_passes(&mut world, B, of_b)?;
    world.end()
}

pub(crate) fn requests_are_taken_while_admission_is_open_to_all_and_to_their_sender(
    suite: &Suite,
) -> Outcome {
    let (mut world, [of_b, of_c]) = called_by_two(suite)?;
    let (to_a, to_b) = of_b;
    world.nodes[A].context.set_admission_of(to_b, false);
    world.nodes[A].context.set_admission(false);
    requests(&mut world, B, to_a)?;
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission(true);
    requests_stay(&mut world, A, to_b)?;
    request_passes(&mut world, C, of_c)?;
    world.nodes[A].context.set_admission(false);
    world.nodes[A].context.set_admission_of(to_b, true);
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission(true);
    requests_arrive(&mut world, A, to_b)?;
    request_passes(&mut world, B, of_b)?;
    world.end()
}

/// Keeps B's requests from A, by one of the two, or lets them in.
fn admit(world: &mut World<'_>, to_b: Peer, by_name: bool, open: bool) {
    if by_name {
        world.nodes[A].context.set_admission_of(to_b, open);
    } else {
        world.nodes[A].context.set_admission(open);
    }
}

pub(crate) fn a_context_sleeps_while_requests_are_withheld(suite: &Suite) -> Outcome {
    for by_name in [true, false] {
        let (mut world, [of_b, of_c]) = called_by_two(suite)?;
        if !sleeps(&world) {
            return never_sleeps(world);
        }
        let (to_a, to_b) = of_b;
        admit(&mut world, to_b, by_name, false);
        requests(&mut world, B, to_a)?;
        while world.round()? {}
        stays_asleep(&mut world.nodes[A])?;
        // Neither does what comes besides them.
        others_pass(&mut world, B, of_b, 1)?;
        others_pass(&mut world, C, of_c, 1)?;
        while world.round()? {}
        stays_asleep(&mut world.nodes[A])?;
        // Nor when their sender is gone.
        world.close(B);
        world.hung_up(A, to_b)?;
        stays_asleep(&mut world.nodes[A])?;
        admit(&mut world, to_b, by_name, true);
        requests_arrive(&mut world, A, to_b)?;
        world.gone(A, to_b)?;
        world.end()?;
    }
    Ok(())
}

pub(crate) fn opening_admission_lets_a_sleeper_look(suite: &Suite) -> Outcome {
    for (by_name, closes) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut world, [of_b, of_c]) = called_by_two(suite)?;
        if !sleeps(&world) {
            return never_sleeps(world);
        }
        let ((to_a, to_b), patience) = (of_b, suite.patience);
        admit(&mut world, to_b, by_name, false);
        requests(&mut world, B, to_a)?;
        if closes {
            world.close(B);
            world.hung_up(A, to_b)?;
        }
        stays_asleep(&mut world.nodes[A])?;
        let mut random = Random::new(21);
        if by_name {
            // A request of another one is not slept through.
            let place = if closes { B } else { C };
            world.send(place, of_c.0, b"of another")?;
            for _ in 0..PASSING {
                world.nodes[place].progress()?;
            }
            let came = |node: &mut Node| !node.unexpected.is_empty();
            drive(&mut world.nodes[A], patience, &mut random, came)?;
            let (from, _) = world.arrival(A)?;
            ensure!(from == of_c.1, "a request came of {from:?}, which is not admitted");
        }
        admit(&mut world, to_b, by_name, true);
        let all = |node: &mut Node| {
            node.unexpected.len() >= 8 && (!closes || node.gone.contains_key(&to_b))
        };
        drive(&mut world.nodes[A], patience, &mut random, all)?;
        requests_arrive(&mut world, A, to_b)?;
        world.end()?;
    }
    Ok(())
}

pub(crate) fn a_peer_that_is_not_admitted_hangs_up_and_its_requests_wait(suite: &Suite) -> Outcome {
    let (mut world, [(to_a, to_b), of_c]) = called_by_two(suite)?;
    world.nodes[A].context.set_admission_of(to_b, false);
    requests(&mut world, B, to_a)?;
    world.close(B);
    world.hung_up(A, to_b)?;
    handle_is_dead(&mut world, A, to_b)?;
    request_passes(&mut world, B, of_c)?; // C, in B's place.
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission(false);
    world.nodes[A].context.set_admission_of(to_b, true);
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission_of(to_b, false);
    world.nodes[A].context.set_admission(true);
    requests_stay(&mut world, A, to_b)?;
    world.nodes[A].context.set_admission_of(to_b, true);
    requests_arrive(&mut world, A, to_b)?;
    world.gone(A, to_b)?;
    request_passes(&mut world, B, of_c)?;
    world.end()
}

pub(crate) fn the_next_incarnation_of_a_peer_that_was_not_admitted_is(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    for _ in 0..4 {
        let (to_a, to_b) = world.connect(B, A)?;
        world.nodes[A].context.set_admission_of(to_b, false);
        world.nodes[A].context.forget(to_b);
        world.gone(A, to_b)?;
        world.gone(B, to_a)?;
    }
    world.connect(B, A)?;
    world.end()
}
