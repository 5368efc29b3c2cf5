//! Sentence 14: views. Where a plugin has none, it must say so.

use hg_na::{Descriptor, Error, Memory, Op, Peer, Region, Returned, Rights, SharedBytes};

use crate::{
    child::{CHILD_REGION, Role, Second},
    outcome::{Outcome, ensure, fail},
    suite::{Maker, Suite},
    world::{A, B, World, pattern},
};

/// Size of the regions.
const SIZE: usize = 10_000;

/// Two connected contexts; `None` when the plugin has no views, which it then says.
fn connected(suite: &Suite) -> Outcome<Option<(World<'_>, Peer)>> {
    let mut world = World::new(suite, 2)?;
    let (to, _) = world.connect(A, B)?;
    if world.nodes[A].caps().views && world.nodes[A].context.views(to) {
        return Ok(Some((world, to)));
    }
    let remote = Descriptor::new(8, Rights::READ, &[7; 40]).slice(0, 8);
    let op = Op::View { from: to, remote: remote.map_err(|error| error.to_string())? };
    let error = world.refused(A, op, "a view, where there are none,")?;
    ensure!(matches!(error, Error::Unsupported(_)), "without views one is refused with {error:?}");
    world.end()?;
    Ok(None)
}

/// What the suite knows how to make: frozen memory, and memory that its owner can still write.
fn makers(suite: &Suite) -> Vec<(&'static str, Maker)> {
    let shareable = suite.shareable.map(|maker| ("shareable", maker));
    std::iter::once(("frozen", suite.frozen)).chain(shareable).collect()
}

fn made(maker: Maker, bytes: &[u8]) -> Outcome<Memory> {
    maker(bytes).map_err(|error| format!("no memory to be seen: {error}"))
}

fn register(world: &World<'_>, memory: Memory, rights: Rights) -> Outcome<Region> {
    let region = world.nodes[B].domain.register(memory, rights);
    region.map_err(|error| format!("memory was not registered: {error}"))
}

fn view(
    world: &mut World<'_>,
    from: Peer,
    descriptor: &Descriptor,
    offset: u64,
    len: u64,
) -> Outcome<SharedBytes> {
    let remote = descriptor.slice(offset, len).map_err(|error| error.to_string())?;
    match world.succeed(A, Op::View { from, remote })? {
        Returned::View(bytes) => Ok(bytes),
        other => fail!("a view handed back {other:?}"),
    }
}

fn seen(bytes: &SharedBytes) -> Outcome<Vec<u8>> {
    bytes.to_vec().map_err(|error| format!("a view cannot be read: {error}"))
}

/// A view that must fail, at once or by its completion; the connection survives it.
fn fails(world: &mut World<'_>, from: Peer, descriptor: &Descriptor, len: u64) -> Outcome<Error> {
    let remote = descriptor.slice(0, len).map_err(|error| error.to_string())?;
    let error = match world.try_post(A, Op::View { from, remote })? {
        Err(rejected) => rejected.error,
        Ok((token, _)) => match world.completion(A, token)?.result {
            Err(failure) => failure.error,
            Ok(()) => fail!("a view that must be refused was given"),
        },
    };
    ensure!(!matches!(error, Error::PeerGone(_)), "a refused view ended the connection: {error}");
    let token = world.send(A, from, b"still there")?;
    world.arrival(B)?;
    world.completion(A, token)?;
    Ok(error)
}

pub(crate) fn a_view_sees_what_its_owner_has_registered(suite: &Suite) -> Outcome {
    let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
    for (kind, maker) in makers(suite) {
        let mut bytes = pattern(SIZE, 1);
        let region = register(&world, made(maker, &bytes)?, Rights::READ)?;
        let descriptor = region.descriptor();
        for (offset, len) in [(0, SIZE), (1, 4096), (SIZE - 1, 1), (17, 0), (SIZE, 0)] {
            let view = view(&mut world, from, &descriptor, offset as u64, len as u64)?;
            let wanted = &bytes[offset..offset + len];
            ensure!(seen(&view)? == wanted, "a view of {kind} memory at {offset} is wrong");
        }
        let all = view(&mut world, from, &descriptor, 0, SIZE as u64)?;
        if kind == "shareable" {
            bytes = pattern(SIZE, 2);
            region.write(0, &bytes).map_err(|error| error.to_string())?;
            ensure!(seen(&all)? == bytes, "a view does not show what its owner writes");
        }
    }
    world.end()
}

pub(crate) fn only_memory_that_never_changes_is_seen_as_a_slice(suite: &Suite) -> Outcome {
    let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
    for (kind, maker) in makers(suite) {
        let bytes = pattern(SIZE, 3);
        let region = register(&world, made(maker, &bytes)?, Rights::READ)?;
        let view = view(&mut world, from, &region.descriptor(), 100, 1000)?;
        match (kind, view.as_slice()) {
            ("frozen", Some(slice)) => ensure!(slice == &bytes[100..1100], "another slice is seen"),
            ("frozen", None) => fail!("a view of frozen memory gives no slice"),
            (_, None) => {}
            (_, Some(_)) => fail!("a view of memory that may change gives a slice"),
        }
        ensure!(seen(&view)? == bytes[100..1100], "a view of {kind} memory is wrong");
        let written = region.write(100, &[0; 8]).is_ok();
        ensure!(written != (kind == "frozen"), "{kind} memory was written: {written}");
    }
    world.end()
}

pub(crate) fn a_view_stays_valid_when_its_owner_unregisters_and_closes(suite: &Suite) -> Outcome {
    for (kind, maker) in makers(suite) {
        let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
        let bytes = pattern(SIZE, 4);
        let region = register(&world, made(maker, &bytes)?, Rights::READ)?;
        let part = view(&mut world, from, &region.descriptor(), 1, 5000)?;
        let part = part.slice(1, 4000).map_err(|error| error.to_string())?;
        let memory = region.unregister().map_err(|error| error.to_string())?;
        ensure!(memory.len() == SIZE as u64, "{kind}: {memory:?} came back");
        ensure!(seen(&part)? == bytes[2..4002], "{kind}: unregistering ended a view");
        drop(memory);
        ensure!(seen(&part)? == bytes[2..4002], "{kind}: freeing the memory ended a view");
        world.close(B);
        world.gone(A, from)?;
        ensure!(seen(&part)? == bytes[2..4002], "{kind}: its owner's end ended a view");
        world.end()?;
        ensure!(
            seen(&part)? == bytes[2..4002],
            "{kind}: closing the viewer's context ended a view"
        );
    }
    Ok(())
}

pub(crate) fn what_an_owner_writes_after_unregistering_is_not_seen(suite: &Suite) -> Outcome {
    let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
    let Some(maker) = suite.shareable else { return world.end() };
    for rights in [Rights::READ, Rights::all()] {
        let region = register(&world, made(maker, &pattern(SIZE, 5))?, rights)?;
        let view = view(&mut world, from, &region.descriptor(), 0, SIZE as u64)?;
        let memory = region.unregister().map_err(|error| error.to_string())?;
        let again = register(&world, memory, Rights::READ)?;
        let mut kept = vec![0; SIZE];
        again.read(0, &mut kept).map_err(|error| error.to_string())?;
        ensure!(kept == pattern(SIZE, 5), "unregistering gave other bytes back");
        again.write(0, &pattern(SIZE, 6)).map_err(|error| error.to_string())?;
        ensure!(seen(&view)? == pattern(SIZE, 5), "a view shows what was written afterwards");
    }
    world.end()
}

pub(crate) fn memory_that_may_not_be_seen_is_refused(suite: &Suite) -> Outcome {
    let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
    let private = register(&world, Memory::from(pattern(64, 7)), Rights::all())?;
    let error = fails(&mut world, from, &private.descriptor(), 64)?;
    ensure!(matches!(error, Error::Unsupported(_)), "memory of no such kind ends in {error:?}");
    for (kind, maker) in makers(suite) {
        let bytes = pattern(SIZE, 8);
        let hidden = register(&world, made(maker, &bytes)?, Rights::empty())?;
        let error = fails(&mut world, from, &hidden.descriptor(), 8)?;
        ensure!(matches!(error, Error::Denied { .. }), "{kind}: without rights: {error:?}");
        let region = register(&world, made(maker, &bytes)?, Rights::READ)?;
        let honest = region.descriptor();
        let long = Descriptor::new(SIZE as u64 + 1, Rights::READ, honest.opaque());
        let error = fails(&mut world, from, &long, SIZE as u64 + 1)?;
        ensure!(matches!(error, Error::OutOfRange { .. }), "{kind}: outside: {error:?}");
        for bit in 0..honest.opaque().len() * 8 {
            let mut forged = honest.opaque().to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            fails(&mut world, from, &Descriptor::new(SIZE as u64, Rights::READ, &forged), 8)?;
        }
        region.unregister().map_err(|error| error.to_string())?;
        let error = fails(&mut world, from, &honest, 8)?;
        ensure!(matches!(error, Error::StaleDescriptor), "{kind}: unregistered: {error:?}");
    }
    world.end()
}

pub(crate) fn a_cancelled_view_completes_once(suite: &Suite) -> Outcome {
    let Some((mut world, from)) = connected(suite)? else { return Ok(()) };
    let region = register(&world, made(suite.frozen, &pattern(SIZE, 9))?, Rights::READ)?;
    let remote = region.descriptor().slice(0, 8).map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    for round in 0..20 {
        let (token, id) = world.post(A, Op::View { from, remote: remote.clone() })?;
        if round % 3 == 0 {
            world.round()?;
        }
        world.nodes[A].context.cancel(id);
        world.nodes[A].context.cancel(id);
        tokens.push(token);
    }
    for token in tokens {
        let done = world.completion(A, token)?;
        let cancelled = |error: &Error| matches!(error, Error::Cancelled);
        let proper = done.result.as_ref().map_or_else(|why| cancelled(&why.error), |()| true);
        ensure!(proper, "a cancelled view ended in {done:?}");
    }
    let alive = view(&mut world, from, &region.descriptor(), 0, 8)?;
    ensure!(seen(&alive)? == pattern(SIZE, 9)[..8], "a view after cancelled ones is wrong");
    world.end()
}

pub(crate) fn a_view_stays_valid_when_its_owner_is_killed(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 1)?;
    if !world.nodes[A].caps().views {
        return world.end();
    }
    let mut child = Second::start(&mut world, A, Role::Lender, &suite.url)?;
    if !world.nodes[A].context.views(child.peer) {
        child.kill()?;
        world.gone(A, child.peer)?;
        return world.end();
    }
    let Some(descriptor) = child.descriptor.clone() else { fail!("a lender without memory") };
    let all = view(&mut world, child.peer, &descriptor, 0, CHILD_REGION as u64)?;
    let wanted = pattern(CHILD_REGION, 20);
    ensure!(seen(&all)? == wanted, "another process's memory is seen wrongly");
    child.kill()?;
    ensure!(seen(&all)? == wanted, "the death of its owner ended a view");
    world.gone(A, child.peer)?;
    let late = descriptor.slice(0, 8).map_err(|error| error.to_string())?;
    world.refused(A, Op::View { from: child.peer, remote: late }, "a view of a dead peer")?;
    ensure!(seen(&all)? == wanted, "the end of the connection ended a view");
    ensure!(all.as_slice() == Some(&wanted[..]), "a slice of frozen memory has gone");
    world.end()
}
