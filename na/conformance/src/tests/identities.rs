//! Sentence 18: who a peer is, as far as somebody else than the peer vouches for it.

use hg_na::{Identity, Message, Op, Peer};
use nix::unistd::geteuid;

use crate::{
    child::{Role, Second, ping},
    outcome::{Outcome, ensure},
    suite::Suite,
    world::{A, B, World},
};

/// Requests that are withheld while their sender closes.
const WITHHELD: u64 = 3;

fn identity(world: &World<'_>, place: usize, peer: Peer) -> Identity {
    world.nodes[place].context.identity(peer)
}

/// Whatever is said of a process, this one's user has started, is true.
fn is_true(said: &Identity, pid: u32) -> Outcome {
    let user = geteuid().as_raw();
    ensure!(said.pid.is_none_or(|it| it == pid), "process {pid} is said to be {said:?}");
    ensure!(said.uid.is_none_or(|it| it == user), "a process of user {user}: {said:?}");
    Ok(())
}

fn is_unknown(world: &World<'_>, place: usize, peer: Peer) -> Outcome {
    let said = identity(world, place, peer);
    ensure!(said == Identity::default(), "of nobody, {peer:?}, is said {said:?}");
    Ok(())
}

pub(crate) fn a_peer_is_the_same_one_until_it_is_gone(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let said = [identity(&world, A, to_b), identity(&world, B, to_a)];
    for said in &said {
        is_true(said, std::process::id())?;
    }
    let same = |world: &World<'_>| {
        let now = identity(world, A, to_b);
        ensure!(now == said[0], "one peer is said to be {:?}, then {now:?}", said[0]);
        Ok(())
    };
    for tag in 0..20 {
        let (receive, _) = world.receive(A, to_b, tag)?;
        world.send(A, to_b, b"who are you")?;
        let (from, _) = world.arrival(B)?;
        let now = identity(&world, B, from);
        ensure!(from == to_a && now == said[1], "{from:?} was {:?} and is {now:?}", said[1]);
        world.answer(B, from, tag, b"still me")?;
        world.received(A, receive, b"still me")?;
        same(&world)?;
    }
    // Also when it has hung up, as long as a request of its own is to come.
    world.nodes[A].context.set_admission(false);
    for number in 0..WITHHELD {
        let token = world.send(B, to_a, &number.to_le_bytes())?;
        world.completion(B, token)?;
    }
    world.close(B);
    world.hung_up(A, to_b)?;
    if !world.nodes[A].gone.contains_key(&to_b) {
        same(&world)?;
    }
    world.nodes[A].context.set_admission(true);
    world.gone(A, to_b)?;
    world.nodes[A].unexpected.clear();
    is_unknown(&world, A, to_b)?;
    world.nodes[A].done.clear();
    world.end()
}

pub(crate) fn nothing_is_known_of_a_peer_that_was_forgotten_or_never_there(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    for nobody in [Peer::new(0, 0), Peer::new(u32::MAX, 0), Peer::new(5, u32::MAX)] {
        is_unknown(&world, A, nobody)?;
    }
    let (to_b, to_a) = world.connect(A, B)?;
    let said = identity(&world, A, to_b);
    world.nodes[A].context.forget(to_b);
    world.gone(A, to_b)?;
    world.gone(B, to_a)?;
    // Who connects next takes its place in the table, and no handle of it.
    let (again, back) = world.connect(A, B)?;
    is_unknown(&world, A, to_b)?;
    is_unknown(&world, B, to_a)?;
    let now = identity(&world, A, again);
    ensure!(now == said, "the same peer is said to be {said:?}, then {now:?}");
    is_true(&identity(&world, B, back), std::process::id())?;
    world.end()
}

pub(crate) fn a_second_process_is_known_by_nothing_but_its_own_id_and_user(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let mut child = Second::start(&mut world, A, Role::Echo, &suite.url)?;
    // As it has called, and as it is called.
    let called = world.nodes[A].lookup(&child.address.clone())?;
    let peers = [child.peer, called];
    for peer in peers {
        ping(&mut world, peer, A, 10)?;
        let said = identity(&world, A, peer);
        is_true(&said, child.pid())?;
        ping(&mut world, peer, A, 10)?;
        let now = identity(&world, A, peer);
        ensure!(now == said, "one peer is said to be {said:?}, then {now:?}");
    }
    child.kill()?;
    for peer in peers {
        world.gone(A, peer)?;
        is_unknown(&world, A, peer)?;
        let op = Op::SendControl { to: peer, message: Message::inline(8) };
        world.refused(A, op, "an operation to a dead process")?;
    }
    world.end()
}
