//! Sentences 9 and 10: how peers end, and that a handle is one incarnation.

use std::collections::HashSet;

use hg_na::{Error, GoneReason, Message, Op, OpenOptions, Peer};

use crate::{
    outcome::{Outcome, ensure, fail},
    suite::Suite,
    world::{A, B, World},
};

/// Connections made and closed, one after the other: more than a small generation can tell apart.
const RECONNECTS: u32 = 1000;
/// Contexts opened, connected and closed, one after the other: more than [`TABLE_MAX`]. Of some transports each
/// opening takes milliseconds of processor time (libfabric's clears its buffers).
const INCARNATIONS: u32 = 100;
/// Messages that are queued for a peer before it closes, unless its queue is full earlier.
const QUEUED_MAX: usize = 10_000;
/// Places of a peer table that a single peer at a time may ever need.
const TABLE_MAX: u32 = 64;

fn place(peer: Peer) -> u32 {
    peer.index() & !Peer::SECOND
}

fn every_kind(peer: Peer) -> [Op; 4] {
    let message = || Message::copied(b"to the dead");
    [
        Op::SendUnexpected { to: peer, message: message() },
        Op::SendControl { to: peer, message: message() },
        Op::SendExpected { to: peer, tag: 1, message: message() },
        Op::RecvExpected { from: peer, tag: 1 },
    ]
}

/// Every kind of operation to it is refused.
pub(super) fn handle_is_dead(world: &mut World<'_>, place: usize, peer: Peer) -> Outcome {
    for op in every_kind(peer) {
        let error = world.refused(place, op, "an operation to a dead handle")?;
        let proper = matches!(error, Error::PeerGone(_) | Error::UnknownPeer);
        ensure!(proper, "a dead handle is refused with {error:?}");
    }
    Ok(())
}

pub(crate) fn a_closed_peer_is_gone_after_everything_that_it_had_sent(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_a, to_b) = world.connect(B, A)?;
    for number in 0..20u64 {
        let token = world.send(B, to_a, &number.to_le_bytes())?;
        world.completion(B, token)?;
    }
    // What the target has not looked at yet: sent without its help.
    let mut sent = 20u64;
    for _ in 0..20 {
        let message = Message::copied(&sent.to_le_bytes());
        let Ok((token, _)) = world.nodes[B].post(Op::SendUnexpected { to: to_a, message })? else {
            break;
        };
        for _ in 0..8 {
            world.nodes[B].progress()?;
        }
        if world.nodes[B].take_done_of(token).is_none() {
            // It waits for the target: whether it is sent is not known.
            break;
        }
        sent += 1;
    }
    world.close(B);
    for number in 0..sent {
        let (from, message) = world.arrival(A)?;
        let right = from == to_b && message.as_slice() == number.to_le_bytes();
        ensure!(right, "message {number} of {sent} of a closed peer was lost");
    }
    world.gone(A, to_b)?;
    world.nodes[A].unexpected.clear();
    handle_is_dead(&mut world, A, to_b)?;
    world.end()
}

pub(crate) fn operations_to_a_peer_that_closes_end_before_it_is_gone(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let mut receives = Vec::new();
    for tag in 0..8 {
        receives.push(world.receive(A, to_b, tag)?.0);
    }
    for tag in 0..4 {
        let token = world.answer(B, to_a, tag, b"answered")?;
        world.completion(B, token)?;
    }
    for _ in 0..QUEUED_MAX {
        let message = Message::copied(b"never taken");
        if world.nodes[A].post(Op::SendUnexpected { to: to_b, message })?.is_err() {
            break;
        }
        world.nodes[A].progress()?;
    }
    world.close(B);
    world.gone(A, to_b)?;
    for (tag, token) in receives.iter().enumerate() {
        let Some(done) = world.nodes[A].take_done_of(*token) else { fail!("a receive was lost") };
        let proper = match &done.result {
            Ok(()) => tag < 4,
            Err(failure) => tag >= 4 && matches!(failure.error, Error::PeerGone(_)),
        };
        ensure!(proper, "receive {tag} from a peer that closed ended in {done:?}");
    }
    let reason = world.nodes[A].gone[&to_b].clone();
    let odd = matches!(
        reason,
        GoneReason::Forgotten | GoneReason::Refused(_) | GoneReason::Misbehaved(_)
    );
    ensure!(!odd, "a peer that closed in good order is reported as {reason:?}");
    world.end()
}

pub(crate) fn operations_to_an_address_where_nobody_listens_end_with_peer_gone(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let address = world.nodes[B].address();
    world.close(B);
    for _ in 0..3 {
        let nobody = world.nodes[A].lookup(&address)?;
        let mut accepted = 0;
        for op in every_kind(nobody) {
            match world.try_post(A, op)? {
                Ok(_) => accepted += 1,
                Err(rejected) => {
                    let early = matches!(rejected.error, Error::PeerGone(_) | Error::UnknownPeer);
                    ensure!(early, "an operation to nobody: {:?}", rejected.error);
                }
            }
        }
        ensure!(accepted > 0, "no operation to a fresh handle was accepted");
        world.gone(A, nobody)?;
        while let Some(done) = world.nodes[A].done.pop_front() {
            let gone =
                done.result.as_ref().is_err_and(|why| matches!(why.error, Error::PeerGone(_)));
            ensure!(gone, "an operation to nobody ended in {done:?}");
        }
        handle_is_dead(&mut world, A, nobody)?;
    }
    world.end()
}

pub(crate) fn a_peer_that_restarts_is_a_new_peer(suite: &Suite) -> Outcome {
    let url = suite.fresh_name();
    let mut world = World::new(suite, 1)?;
    let mut handles = HashSet::new();
    let mut addresses = HashSet::new();
    for _ in 0..5 {
        world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
        addresses.insert(world.nodes[B].address());
        let (to_b, _) = world.connect(A, B)?;
        ensure!(handles.insert(to_b), "an incarnation has the handle of one before: {to_b:?}");
        world.close(B);
        world.gone(A, to_b)?;
        for dead in handles.clone() {
            handle_is_dead(&mut world, A, dead)?;
        }
    }
    ensure!(addresses.len() == 1, "one name gives several addresses: {addresses:?}");
    world.end()
}

pub(crate) fn an_old_handle_never_reaches_the_next_incarnation(suite: &Suite) -> Outcome {
    let url = suite.fresh_name();
    let mut world = World::new(suite, 1)?;
    world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
    let (old, _) = world.connect(A, B)?;
    world.close(B);
    // Nobody has told A yet.
    world.add(suite.open(&url, &OpenOptions::listening())?, 0)?;
    for op in every_kind(old) {
        if let Err(rejected) = world.nodes[A].post(op)? {
            let known =
                matches!(rejected.error, Error::PeerGone(_) | Error::UnknownPeer | Error::Again);
            ensure!(known, "an old handle is refused with {:?}", rejected.error);
        }
    }
    world.gone(A, old)?;
    let (new, _) = world.connect(A, B)?;
    ensure!(new != old, "the next incarnation has the old handle");
    world.end()
}

pub(crate) fn a_forgotten_peer_ends_with_its_operations(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let (token, _) = world.receive(A, to_b, 1)?;
    world.nodes[A].context.forget(to_b);
    world.nodes[A].context.forget(to_b);
    let done = world.completion(A, token)?;
    let forgotten = done
        .result
        .as_ref()
        .is_err_and(|why| matches!(why.error, Error::PeerGone(GoneReason::Forgotten)));
    ensure!(forgotten, "a receive from a forgotten peer ended in {done:?}");
    world.gone(A, to_b)?;
    let reason = &world.nodes[A].gone[&to_b];
    ensure!(*reason == GoneReason::Forgotten, "a forgotten peer is reported as {reason:?}");
    world.gone(B, to_a)?;
    handle_is_dead(&mut world, A, to_b)?;
    let (again, _) = world.connect(A, B)?;
    ensure!(again != to_b, "a forgotten peer's handle was given out again");
    world.end()
}

pub(crate) fn a_handle_that_was_never_used_can_be_forgotten(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let address = world.nodes[B].address();
    let unused = world.nodes[A].lookup(&address)?;
    world.nodes[A].context.forget(unused);
    world.gone(A, unused)?;
    handle_is_dead(&mut world, A, unused)?;
    world.connect(A, B)?;
    world.end()
}

pub(crate) fn peers_looked_up_one_after_the_other_are_all_reached(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let mut peers = Vec::new();
    for _ in 0..4 {
        let domain = suite.open(&suite.url, &OpenOptions::listening())?;
        let place = world.add(domain, 0)?;
        let (to, _) = world.connect(A, place)?;
        peers.push((to, place));
        // Those before, too: the later ones have not taken their handles away.
        for &(to, place) in &peers {
            world.send(A, to, b"still you")?;
            world.arrival(place)?;
        }
    }
    world.close(peers[3].1);
    world.gone(A, peers[3].0)?;
    for &(to, place) in &peers[..3] {
        world.send(A, to, b"and now")?;
        world.arrival(place)?;
    }
    world.end()
}

pub(crate) fn looking_up_twice_gives_one_handle(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let address = world.nodes[B].address();
    let first = world.nodes[A].lookup(&address)?;
    let second = world.nodes[A].lookup(&address)?;
    ensure!(first == second, "one address, looked up twice: {first:?}, {second:?}");
    let (connected, _) = world.connect(A, B)?;
    ensure!(connected == first, "a handle changed with the connection");
    let third = world.nodes[A].lookup(&address)?;
    ensure!(third == first, "one address, looked up again: {first:?}, {third:?}");
    world.end()
}

pub(crate) fn a_hundred_incarnations_leave_the_table_flat(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let domain = suite.open(&suite.url, &OpenOptions::listening())?;
    let mut handles = HashSet::new();
    for _ in 0..INCARNATIONS {
        world.add(std::sync::Arc::clone(&domain), 0)?;
        let (_, back) = world.connect(B, A)?;
        ensure!(handles.insert(back), "the handle {back:?} was given to two peers");
        ensure!(place(back) < TABLE_MAX, "the table grew to {back:?} with one peer at a time");
        world.close(B);
        world.gone(A, back)?;
    }
    world.end()
}

pub(crate) fn a_thousand_lookups_and_forgets_leave_the_table_flat(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let mut handles = [HashSet::new(), HashSet::new()];
    for _ in 0..RECONNECTS {
        let (to_b, back) = world.connect(A, B)?;
        for (handle, of_side) in [to_b, back].into_iter().zip(&mut handles) {
            ensure!(of_side.insert(handle), "the handle {handle:?} was given to two incarnations");
            ensure!(
                place(handle) < TABLE_MAX,
                "the table grew to {handle:?} with one peer at a time"
            );
        }
        world.nodes[A].context.forget(to_b);
        world.gone(A, to_b)?;
        world.gone(B, back)?;
    }
    world.end()
}
