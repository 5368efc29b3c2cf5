//! Sentences 9 and 10 between processes: what SIGKILL leaves behind.

use hg_na::{Error, Memory, Message, Op, Rights, Sleep};

use crate::{
    child::{CHILD_REGION, REQUESTS, Role, Second, ping},
    node::Node,
    outcome::{Outcome, ensure},
    random::Random,
    suite::Suite,
    tests::sleeping::drive,
    world::{A, World, pattern},
};

/// Children that are killed at a random moment.
const KILLS: u64 = 10;

pub(crate) fn a_killed_peer_ends_every_operation_with_peer_gone(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let mut child = Second::start(&mut world, A, Role::Silent, &suite.url)?;
    let peer = child.peer;
    let mut receives = Vec::new();
    for tag in 0..8 {
        receives.push(world.receive(A, peer, tag)?.0);
    }
    let region = match &child.descriptor {
        Some(_) => Some(world.nodes[A].domain.register(Memory::from(vec![0; 64]), Rights::empty())),
        None => None,
    };
    let region = region.transpose().map_err(|error| error.to_string())?;
    if let (Some(descriptor), Some(region)) = (&child.descriptor, &region) {
        let slice = |error: Error| error.to_string();
        for _ in 0..4 {
            let (local, remote) = (region.slice(0, 64), descriptor.slice(0, 64));
            let (local, remote) = (local.map_err(slice)?, remote.map_err(slice)?);
            world.post(A, Op::Put { to: peer, local: local.clone(), remote: remote.clone() })?;
            world.post(A, Op::Get { from: peer, local, remote })?;
        }
    }
    let mut posted = 0;
    while posted < 100_000 {
        let message = Message::copied(&pattern(60, posted));
        if world.nodes[A].post(Op::SendUnexpected { to: peer, message })?.is_err() {
            break;
        }
        world.nodes[A].progress()?;
        posted += 1;
    }
    for tag in 0..4 {
        let message = Message::copied(b"never taken");
        let _ = world.nodes[A].post(Op::SendExpected { to: peer, tag, message })?;
        let _ = world.nodes[A].post(Op::SendControl { to: peer, message: Message::inline(8) })?;
    }
    child.kill()?;
    world.gone(A, peer)?;
    for token in receives {
        let done = world.completion(A, token)?;
        let gone = done.result.as_ref().is_err_and(|why| matches!(why.error, Error::PeerGone(_)));
        ensure!(gone, "a receive from a killed peer ended in {done:?}");
    }
    for done in world.nodes[A].done.drain(..) {
        if let Err(failure) = &done.result {
            let gone = matches!(failure.error, Error::PeerGone(_));
            ensure!(gone, "an operation to a killed peer ended in {failure:?}");
        }
    }
    world.end()
}

pub(crate) fn a_killed_peer_hangs_up_while_its_requests_are_withheld(suite: &Suite) -> Outcome {
    for of_one in [false, true] {
        let mut world = World::new(suite, 1)?;
        let mut child = Second::start(&mut world, A, Role::Caller, &suite.url)?;
        let peer = child.peer;
        // The child may have sent some already: whatever it is, it comes in order.
        if of_one {
            world.nodes[A].context.set_admission_of(peer, false);
        } else {
            world.nodes[A].context.set_admission(false);
        }
        let (receive, _) = world.receive(A, peer, 1)?;
        world.until("a child's requests had left", |nodes| Ok(!nodes[A].control.is_empty()))?;
        world.nodes[A].control.clear();
        let before = world.nodes[A].unexpected.len() as u64;
        child.kill()?;
        world.hung_up(A, peer)?;
        let done = world.nodes[A].take_done_of(receive);
        let gone = done.as_ref().and_then(|done| done.result.as_ref().err());
        ensure!(gone.is_some(), "a receive from a killed peer ended in {done:?}");
        for _ in 0..64 {
            world.round()?;
        }
        let node = &world.nodes[A];
        let taken = node.unexpected.len() as u64;
        ensure!(
            taken == before,
            "{} requests were taken while admission is closed",
            taken - before
        );
        let early = before < REQUESTS && node.gone.contains_key(&peer);
        ensure!(!early, "a peer was gone before its requests were taken");
        world.nodes[A].context.set_admission_of(peer, true);
        world.nodes[A].context.set_admission(true);
        world.gone(A, peer)?;
        let arrived: Vec<_> = world.nodes[A].unexpected.drain(..).collect();
        let right = |(number, (from, message)): (u64, &(hg_na::Peer, Message))| {
            *from == peer && message.as_slice() == number.to_le_bytes()
        };
        let whole = arrived.len() as u64 == REQUESTS && (0..).zip(&arrived).all(right);
        ensure!(whole, "of {REQUESTS} requests of a killed peer came {}", arrived.len());
        world.end()?;
    }
    Ok(())
}

pub(crate) fn put_and_get_reach_another_process(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let child = Second::start(&mut world, A, Role::Echo, &suite.url)?;
    let one_sided = world.nodes[A].caps().one_sided;
    ensure!(one_sided == child.descriptor.is_some(), "the two processes differ in their Caps");
    let Some(descriptor) = &child.descriptor else { return Ok(()) };
    let memory = Memory::from(vec![0; CHILD_REGION]);
    let region = world.nodes[A].domain.register(memory, Rights::empty());
    let region = region.map_err(|error| error.to_string())?;
    let mut wanted = pattern(CHILD_REGION, 20);
    for (offset, len) in [(0, CHILD_REGION), (100, 1000), (CHILD_REGION - 1, 1)] {
        let text = |error: Error| error.to_string();
        let slices = || {
            let local = region.slice(offset as u64, len as u64).map_err(text)?;
            Outcome::Ok((local, descriptor.slice(offset as u64, len as u64).map_err(text)?))
        };
        let (local, remote) = slices()?;
        drop(world.succeed(A, Op::Get { from: child.peer, local, remote })?);
        let mut seen = vec![0; len];
        region.read(offset as u64, &mut seen).map_err(text)?;
        ensure!(
            seen == wanted[offset..offset + len],
            "a get of {len} bytes at {offset} went wrong"
        );
        wanted[offset..offset + len].copy_from_slice(&pattern(len, 21));
        region.write(offset as u64, &pattern(len, 21)).map_err(text)?;
        let (local, remote) = slices()?;
        drop(world.succeed(A, Op::Put { to: child.peer, local, remote })?);
        region.write(offset as u64, &vec![0; len]).map_err(text)?;
        let (local, remote) = slices()?;
        drop(world.succeed(A, Op::Get { from: child.peer, local, remote })?);
        region.read(offset as u64, &mut seen).map_err(text)?;
        ensure!(seen == pattern(len, 21), "a put of {len} bytes at {offset} went wrong");
    }
    drop(child);
    world.end()
}

pub(crate) fn killed_peers_cost_nobody_else_anything(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let survivor = Second::start(&mut world, A, Role::Echo, &suite.url)?;
    let mut random = Random::new(9);
    for number in 0..KILLS {
        let role = if number % 2 == 0 { Role::Flood } else { Role::Echo };
        let mut child = Second::start(&mut world, A, role, &suite.url)?;
        let peer = child.peer;
        if role == Role::Echo {
            ping(&mut world, peer, A, random.below(20))?;
            for tag in 0..random.below(8) {
                world.receive(A, peer, tag)?;
                world.send(A, peer, &tag.to_le_bytes())?;
            }
        } else {
            let most = random.below(2000);
            let mut seen = 0;
            world.until("the flood arrived", |nodes| {
                seen += nodes[A].unexpected.drain(..).count() as u64;
                Ok(seen >= most)
            })?;
        }
        child.kill()?;
        world.until("a killed peer was reported gone", |nodes| {
            nodes[A].unexpected.clear();
            Ok(nodes[A].gone.contains_key(&peer))
        })?;
        world.nodes[A].unexpected.clear();
        ping(&mut world, survivor.peer, A, 20)?;
        world.nodes[A].done.clear();
    }
    drop(survivor);
    world.end()
}

pub(crate) fn the_death_of_a_peer_ends_a_sleep(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    let mut child = Second::start(&mut world, A, Role::Silent, &suite.url)?;
    let peer = child.peer;
    world.receive(A, peer, 1)?;
    if world.nodes[A].caps().sleep == Sleep::Poll {
        child.kill()?;
        world.gone(A, peer)?;
        return world.end();
    }
    let killer = std::thread::spawn(move || child.kill());
    let gone = |node: &mut Node| node.gone.contains_key(&peer);
    drive(&mut world.nodes[A], suite.patience, &mut Random::new(8), gone)?;
    killer.join().map_err(|_| "the killing thread panicked")??;
    world.end()
}

pub(crate) fn a_process_that_takes_a_dead_ones_address_is_a_new_peer(suite: &Suite) -> Outcome {
    let url = suite.fresh_name();
    let mut world = World::new(suite, 1)?;
    let mut before: Option<(hg_na::Address, hg_na::Peer)> = None;
    for _ in 0..3 {
        let mut child = Second::start(&mut world, A, Role::Echo, &url)?;
        let peer = world.nodes[A].lookup(&child.address.clone())?;
        ping(&mut world, peer, A, 10)?;
        if let Some((address, old)) = &before {
            ensure!(*address == child.address, "one name gives two addresses");
            ensure!(*old != peer, "the next incarnation has the old handle");
            let dead = Op::SendControl { to: *old, message: Message::inline(8) };
            world.refused(A, dead, "an operation to a dead incarnation")?;
        }
        child.kill()?;
        world.gone(A, peer)?;
        before = Some((child.address.clone(), peer));
    }
    world.end()
}
