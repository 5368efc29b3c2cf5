//! Sentences 8 and 11: put and get. Where a plugin has none, it must say so.

use std::sync::Arc;

use hg_na::{
    Descriptor, Error, Frozen, LocalSlice, Memory, Op, Peer, PutOrdering, Region, RemoteSlice,
    Rights,
};

use crate::{
    outcome::{Outcome, ensure, fail},
    random::Random,
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Size of the regions.
const SIZE: usize = 10_000;

/// Two connected contexts; `None` when the plugin has no one-sided operations, which it then says.
pub(super) fn connected(suite: &Suite) -> Outcome<Option<(World<'_>, Peer)>> {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    if world.nodes[A].caps().one_sided {
        return Ok(Some((world, to_b)));
    }
    let registered = world.nodes[A].domain.register(Memory::from(vec![0; 8]), Rights::all());
    match registered {
        Err(Error::Unsupported(_)) => Ok(None),
        other => fail!("without one-sided operations, memory was registered: {other:?}"),
    }
}

pub(super) fn register(
    world: &World<'_>,
    place: usize,
    memory: impl Into<Memory>,
    rights: Rights,
) -> Outcome<Region> {
    let region = world.nodes[place].domain.register(memory.into(), rights);
    region.map_err(|error| format!("memory was not registered: {error}"))
}

/// A descriptor as its receiver sees it.
pub(super) fn travelled(region: &Region) -> Outcome<Descriptor> {
    let bytes = region.descriptor().encode();
    Descriptor::decode(&bytes).map_err(|error| format!("an own descriptor: {error}"))
}

pub(super) fn content(region: &Region) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(region.len()).expect("it fits in memory")];
    region.read(0, &mut bytes).map_err(|error| format!("own memory cannot be read: {error}"))?;
    Ok(bytes)
}

pub(super) fn local(region: &Region, offset: usize, len: usize) -> Outcome<LocalSlice> {
    region.slice(offset as u64, len as u64).map_err(|error| error.to_string())
}

pub(super) fn remote(descriptor: &Descriptor, offset: u64, len: usize) -> Outcome<RemoteSlice> {
    descriptor.slice(offset, len as u64).map_err(|error| error.to_string())
}

/// A transfer that must fail, at once or by its completion; the connection survives it.
fn fails(world: &mut World<'_>, op: Op, what: &str) -> Outcome {
    let to = op.peer();
    if let Ok((token, _)) = world.try_post(A, op)? {
        let done = world.completion(A, token)?;
        let Err(failure) = done.result else { fail!("{what} succeeded") };
        let gone = matches!(failure.error, Error::PeerGone(_));
        ensure!(!gone, "{what} ended the connection: {failure:?}");
    }
    let token = world.send(A, to, b"still there")?;
    world.arrival(B)?;
    world.completion(A, token)?;
    Ok(())
}

pub(crate) fn put_and_get_move_any_range_at_any_offset(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(SIZE, 1), Rights::empty())?;
    let there = register(&world, B, pattern(SIZE, 2), Rights::all())?;
    let descriptor = travelled(&there)?;
    ensure!(descriptor.len() == SIZE as u64, "a descriptor of {} bytes", descriptor.len());
    let ranges = [
        (0, 0, SIZE),
        (0, 0, 1),
        (SIZE - 1, 0, 1),
        (0, SIZE - 1, 1),
        (1, 2, 4095),
        (17, 4096, 4097),
        (5000, 1, 0),
        (SIZE, SIZE, 0),
        (3, 7, 64),
        (100, 9000, 1000),
    ];
    let (mut mine, mut theirs) = (pattern(SIZE, 1), pattern(SIZE, 2));
    for (at, far, len) in ranges {
        let put = Op::Put {
            to,
            local: local(&here, at, len)?,
            remote: remote(&descriptor, far as u64, len)?,
        };
        world.succeed(A, put)?;
        theirs[far..far + len].copy_from_slice(&mine[at..at + len]);
        ensure!(content(&there)? == theirs, "a put of {len} bytes at {far} went wrong");
        there.write(0, &pattern(SIZE, 3)).map_err(|error| error.to_string())?;
        theirs = pattern(SIZE, 3);
        let get = Op::Get {
            from: to,
            local: local(&here, at, len)?,
            remote: remote(&descriptor, far as u64, len)?,
        };
        world.succeed(A, get)?;
        mine[at..at + len].copy_from_slice(&theirs[far..far + len]);
        ensure!(content(&here)? == mine, "a get of {len} bytes at {far} went wrong");
        ensure!(content(&there)? == theirs, "a get changed its source");
    }
    world.end()
}

/// `total` bytes in `pieces` pieces of different lengths.
fn cut(bytes: &[u8], pieces: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let mut marks: Vec<usize> = (1..pieces).map(|_| random.index(bytes.len())).collect();
    marks.extend([0, bytes.len()]);
    marks.sort_unstable();
    marks.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

pub(crate) fn segmented_memory_cut_differently_on_both_sides_is_moved_whole(
    suite: &Suite,
) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let max = world.nodes[A].caps().max_segments;
    let mut random = Random::new(3);
    let counts: Vec<usize> = [1, 2, 16, 1024].into_iter().map(|count| max.min(count)).collect();
    let total = 65_536;
    for near in &counts {
        for far in &counts {
            let here = cut(&pattern(total, 4), *near, &mut random);
            let here = register(&world, A, here, Rights::empty())?;
            let there = cut(&vec![0; total], *far, &mut random);
            let lens: Vec<usize> = there.iter().map(Vec::len).collect();
            let there = register(&world, B, there, Rights::all())?;
            let descriptor = travelled(&there)?;
            let (at, len) = (random.index(1000), total - 2000);
            let put = Op::Put {
                to,
                local: local(&here, at, len)?,
                remote: remote(&descriptor, 1000, len)?,
            };
            drop(world.succeed(A, put)?);
            let mut wanted = vec![0; total];
            wanted[1000..1000 + len].copy_from_slice(&pattern(total, 4)[at..at + len]);
            ensure!(content(&there)? == wanted, "a put from {near} into {far} segments went wrong");
            here.write(0, &vec![0; total]).map_err(|error| error.to_string())?;
            let get = Op::Get {
                from: to,
                local: local(&here, 0, total)?,
                remote: remote(&descriptor, 0, total)?,
            };
            drop(world.succeed(A, get)?);
            ensure!(content(&here)? == wanted, "a get of {far} into {near} segments went wrong");
            let pieces = there.unregister().map_err(|error| error.to_string())?.into_vecs();
            let pieces = pieces.map_err(|_| "other memory came back than was registered")?;
            let back: Vec<usize> = pieces.iter().map(Vec::len).collect();
            ensure!(back == lens && pieces.concat() == wanted, "other vectors came back");
        }
    }
    world.end()
}

pub(crate) fn memory_that_does_not_grant_it_is_not_touched(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 5), Rights::empty())?;
    for rights in [Rights::READ, Rights::WRITE, Rights::empty()] {
        let there = register(&world, B, pattern(64, 6), rights)?;
        let honest = travelled(&there)?;
        let forged = Descriptor::new(64, Rights::all(), honest.opaque());
        for descriptor in [honest, forged] {
            let (near, far) = (local(&here, 0, 64)?, remote(&descriptor, 0, 64)?);
            if !rights.contains(Rights::WRITE) {
                let put = Op::Put { to, local: near.clone(), remote: far.clone() };
                fails(&mut world, put, &format!("a put into memory with {rights:?}"))?;
            }
            if !rights.contains(Rights::READ) {
                let get = Op::Get { from: to, local: near, remote: far };
                fails(&mut world, get, &format!("a get from memory with {rights:?}"))?;
            }
            ensure!(content(&there)? == pattern(64, 6), "a refused put touched its target");
            ensure!(content(&here)? == pattern(64, 5), "a refused get brought bytes");
        }
    }
    world.end()
}

pub(crate) fn memory_outside_of_the_region_is_not_touched(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 7), Rights::empty())?;
    let there = register(&world, B, pattern(64, 8), Rights::all())?;
    let honest = travelled(&there)?;
    for (claim, offset) in
        [(128, 64), (65, 1), (128, 32), (u64::MAX, u64::MAX - 64), (u64::MAX, 1 << 47)]
    {
        let forged = Descriptor::new(claim, Rights::all(), honest.opaque());
        let (near, far) = (local(&here, 0, 64)?, remote(&forged, offset, 64)?);
        let put = Op::Put { to, local: near.clone(), remote: far.clone() };
        fails(&mut world, put, &format!("a put of 64 bytes at {offset} into 64 bytes"))?;
        let get = Op::Get { from: to, local: near, remote: far };
        fails(&mut world, get, &format!("a get of 64 bytes at {offset} from 64 bytes"))?;
        ensure!(content(&there)? == pattern(64, 8), "a refused put touched its target");
        ensure!(content(&here)? == pattern(64, 7), "a refused get brought bytes");
    }
    world.end()
}

pub(crate) fn local_and_remote_ranges_of_different_lengths_are_refused(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 1), Rights::empty())?;
    let there = register(&world, B, pattern(64, 2), Rights::all())?;
    let descriptor = travelled(&there)?;
    for (near, far) in [(8, 16), (16, 8), (0, 1)] {
        let (near, far) = (local(&here, 0, near)?, remote(&descriptor, 0, far)?);
        let put = Op::Put { to, local: near.clone(), remote: far.clone() };
        fails(&mut world, put, "a put between ranges of different lengths")?;
        let get = Op::Get { from: to, local: near, remote: far };
        fails(&mut world, get, "a get between ranges of different lengths")?;
    }
    ensure!(content(&there)? == pattern(64, 2), "a refused put touched its target");
    world.end()
}

pub(crate) fn memory_that_is_not_registered_any_more_is_not_touched(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 9), Rights::empty())?;
    let mut bytes = pattern(64, 10);
    let mut stale = Vec::new();
    for _ in 0..20 {
        let there = register(&world, B, bytes, Rights::all())?;
        let descriptor = travelled(&there)?;
        let (near, far) = (local(&here, 0, 64)?, remote(&descriptor, 0, 64)?);
        drop(world.succeed(A, Op::Get { from: to, local: near, remote: far })?);
        ensure!(content(&here)? == pattern(64, 10), "a get from fresh memory went wrong");
        // The same memory, registered again, must not be reached by an earlier descriptor.
        for old in &stale {
            let put = Op::Put { to, local: local(&here, 0, 64)?, remote: remote(old, 0, 64)? };
            fails(&mut world, put, "a put by the descriptor of an earlier registration")?;
        }
        stale.push(descriptor);
        let memory = there.unregister().map_err(|error| error.to_string())?;
        bytes = memory.into_vec().map_err(|_| "other memory came back than was registered")?;
        here.write(0, &pattern(64, 9)).map_err(|error| error.to_string())?;
        for old in stale.iter().rev().take(2) {
            let (near, far) = (local(&here, 0, 64)?, remote(old, 0, 64)?);
            let put = Op::Put { to, local: near.clone(), remote: far.clone() };
            fails(&mut world, put, "a put into memory that was unregistered")?;
            fails(&mut world, Op::Get { from: to, local: near, remote: far }, "a get from there")?;
        }
        ensure!(bytes == pattern(64, 10), "memory was touched after it was unregistered");
        ensure!(content(&here)? == pattern(64, 9), "a refused get brought bytes");
        here.write(0, &pattern(64, 10)).map_err(|error| error.to_string())?;
    }
    world.end()
}

pub(crate) fn a_descriptor_with_any_bit_wrong_touches_nothing(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 11), Rights::empty())?;
    let there = register(&world, B, pattern(64, 12), Rights::all())?;
    let neighbour = register(&world, B, pattern(64, 13), Rights::all())?;
    let honest = travelled(&there)?;
    for bit in 0..honest.opaque().len() * 8 {
        let mut opaque = honest.opaque().to_vec();
        opaque[bit / 8] ^= 1 << (bit % 8);
        let forged = Descriptor::new(64, Rights::all(), &opaque);
        let (near, far) = (local(&here, 0, 64)?, remote(&forged, 0, 64)?);
        let what = format!("a transfer by a descriptor with bit {bit} wrong");
        fails(&mut world, Op::Put { to, local: near.clone(), remote: far.clone() }, &what)?;
        fails(&mut world, Op::Get { from: to, local: near, remote: far }, &what)?;
    }
    for opaque in [&[][..], &honest.opaque()[1..], &[0xff; hg_na::DESCRIPTOR_MAX][..]] {
        let forged = Descriptor::new(64, Rights::all(), opaque);
        let (near, far) = (local(&here, 0, 64)?, remote(&forged, 0, 64)?);
        fails(&mut world, Op::Put { to, local: near, remote: far }, "a cut descriptor")?;
    }
    ensure!(content(&there)? == pattern(64, 12), "a forged put touched its target");
    ensure!(content(&neighbour)? == pattern(64, 13), "a forged put touched other memory");
    ensure!(content(&here)? == pattern(64, 11), "a forged get brought bytes");
    world.end()
}

pub(crate) fn a_descriptor_is_good_only_for_its_owner(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 14), Rights::empty())?;
    let third = suite.open(&suite.url, &hg_na::OpenOptions::listening())?;
    let theirs = third.register(Memory::from(pattern(64, 15)), Rights::all());
    let theirs = theirs.map_err(|error| error.to_string())?;
    let far = remote(&travelled(&theirs)?, 0, 64)?;
    let put = Op::Put { to, local: local(&here, 0, 64)?, remote: far };
    fails(&mut world, put, "a put with the descriptor of a third domain")?;
    ensure!(content(&theirs)? == pattern(64, 15), "a put through a stranger touched memory");
    world.end()
}

pub(crate) fn memory_that_cannot_be_written_grants_no_writing(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let shared: Arc<[u8]> = pattern(64, 16).into();
    let frozen = Frozen::from(pattern(64, 16));
    for what in ["shared", "frozen"] {
        let memory = || match what {
            "shared" => Memory::from(Arc::clone(&shared)),
            _ => Memory::from(&frozen),
        };
        let granted = world.nodes[B].domain.register(memory(), Rights::all());
        let denied = matches!(granted, Err(Error::Denied { .. }));
        ensure!(denied, "{what} bytes were registered for writing: {granted:?}");
        let fixed = register(&world, A, memory(), Rights::READ)?;
        ensure!(fixed.write(0, &[0]).is_err(), "{what} bytes were written through their region");
        let there = register(&world, B, pattern(64, 17), Rights::all())?;
        let far = remote(&travelled(&there)?, 0, 64)?;
        let get = Op::Get { from: to, local: local(&fixed, 0, 64)?, remote: far.clone() };
        let begun = get.transit().is_some_and(|it| world.nodes[A].context.begin(&it).finish());
        ensure!(!begun, "a get into {what} bytes was begun");
        fails(&mut world, get, "a get into bytes that nobody may write")?;
        let are_whole = *shared == *pattern(64, 16) && *frozen == *pattern(64, 16);
        ensure!(are_whole, "{what} bytes were written");
        world.succeed(A, Op::Put { to, local: local(&fixed, 0, 64)?, remote: far })?;
        ensure!(content(&there)? == pattern(64, 16), "a put from {what} bytes went wrong");
    }
    world.end()
}

pub(crate) fn a_message_after_a_put_arrives_after_its_bytes(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, vec![0; 5000], Rights::empty())?;
    let there = register(&world, B, vec![0; 5000], Rights::all())?;
    let descriptor = travelled(&there)?;
    let at_once = world.nodes[A].caps().put_ordering == PutOrdering::AfterPost;
    for round in 0..100 {
        here.write(0, &pattern(5000, round)).map_err(|error| error.to_string())?;
        let put =
            Op::Put { to, local: local(&here, 0, 5000)?, remote: remote(&descriptor, 0, 5000)? };
        let (put, _) = world.post(A, put)?;
        if !at_once {
            let done = world.completion(A, put)?;
            ensure!(done.result.is_ok(), "a put ended in {done:?}");
            ensure!(content(&there)? == pattern(5000, round), "a put completed too early");
        }
        world.send(A, to, b"look")?;
        world.arrival(B)?;
        ensure!(content(&there)? == pattern(5000, round), "a message overtook a put");
        if at_once {
            world.completion(A, put)?;
        }
    }
    world.end()
}

pub(crate) fn a_region_in_use_is_not_unregistered(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let here = register(&world, A, pattern(64, 18), Rights::empty())?;
    let there = register(&world, B, vec![0; 64], Rights::all())?;
    let far = remote(&travelled(&there)?, 0, 64)?;
    // Whoever has a part of it has a share of the region, and takes it from nobody.
    let share = Arc::clone(local(&here, 0, 1)?.region()).unregister();
    ensure!(matches!(share, Err(Error::RegionBusy)), "a share was unregistered: {share:?}");
    let (put, _) = world.post(A, Op::Put { to, local: local(&here, 0, 64)?, remote: far })?;
    let busy = here.unregister();
    ensure!(matches!(busy, Err(Error::RegionBusy)), "unregistering memory in use: {busy:?}");
    let done = world.completion(A, put)?;
    ensure!(done.result.is_ok(), "a put ended in {done:?}");
    ensure!(content(&there)? == pattern(64, 18), "a put from a busy region went wrong");
    world.end()
}
