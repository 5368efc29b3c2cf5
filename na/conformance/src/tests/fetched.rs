//! Bytes that a context gets at once into memory which is not registered: the peer's, or none.

use hg_na::{Descriptor, Memory, Peer, Rights};

use super::one_sided::{connected, register, travelled};
use crate::{
    outcome::{Outcome, ensure},
    random::Random,
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Bytes of the peer's memory.
const LONG: usize = 300_000;
/// Ranges of each memory.
const RANGES: u64 = 60;
/// The longest of them: more than any plugin gets in this way from memory that it would have to ask for.
const RANGE_MAX: usize = 100_000;
/// More than any plugin moves in one round.
const MOVED_AT_ONCE_MAX: usize = 256 << 20;

fn fetch(world: &mut World<'_>, from: Peer, far: &Descriptor, at: u64, into: &mut [u8]) -> bool {
    world.nodes[A].fetch(from, (far, at), into)
}

pub(crate) fn bytes_fetched_at_once_are_the_peers(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let mut random = Random::new(23);
    let in_parts = vec![pattern(5, 1), pattern(LONG - 9, 2), pattern(4, 3)];
    for memory in [Memory::from(pattern(LONG, 4)), Memory::from(in_parts)] {
        let there = register(&world, B, memory, Rights::READ)?;
        let far = travelled(&there)?;
        for _ in 0..RANGES {
            let len = random.below(RANGE_MAX as u64 + 1);
            let at = random.below(LONG as u64 - len + 1);
            let len = usize::try_from(len).expect("a range of memory");
            let mut wanted = vec![0; len];
            there.read(at, &mut wanted).map_err(|error| error.to_string())?;
            let mut into = vec![0xEE; len];
            if fetch(&mut world, to, &far, at, &mut into) {
                ensure!(into == wanted, "{len} other bytes than the peer's were fetched at {at}");
            }
            // It has no completion, and what it moves is no message: rounds have their turn.
            world.send(A, to, b"fence")?;
            world.arrival(B)?;
        }
    }
    world.end()
}

pub(crate) fn nothing_is_fetched_that_was_not_granted(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let there = register(&world, B, pattern(4096, 24), Rights::READ)?;
    let secret = register(&world, B, pattern(4096, 25), Rights::WRITE)?;
    let (open, closed) = (travelled(&there)?, travelled(&secret)?);
    let nobody = Peer::new(to.index(), to.generation().wrapping_add(77));
    let mut into = [0xEE; 8];
    ensure!(!fetch(&mut world, to, &closed, 0, &mut into), "memory without rights was fetched");
    for at in [4089, 4096, 1 << 40, u64::MAX - 3] {
        let is_over = fetch(&mut world, to, &open, at, &mut into);
        ensure!(!is_over, "bytes behind a region were fetched, from {at} on");
    }
    ensure!(!fetch(&mut world, nobody, &open, 0, &mut into), "bytes of nobody's were fetched");
    let mut bytes = open.encode();
    for bit in 0..8 * bytes.len() {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(wrong) = Descriptor::decode(&bytes) {
            let mut into = [0xEE; 8];
            let is_over = fetch(&mut world, to, &wrong, 0, &mut into);
            // Length and rights are the reader's to believe; the owner's table has its own.
            ensure!(!is_over || into == pattern(4096, 24)[..8], "bit {bit}: other bytes came");
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    there.unregister().map_err(|error| error.to_string())?;
    ensure!(!fetch(&mut world, to, &open, 0, &mut into), "memory was fetched that is taken back");
    world.end()
}

pub(crate) fn fetching_leaves_rounds_their_turn(suite: &Suite) -> Outcome {
    let Some((mut world, to)) = connected(suite)? else { return Ok(()) };
    let there = register(&world, B, pattern(LONG, 26), Rights::READ)?;
    let far = travelled(&there)?;
    let mut into = vec![0; 4096];
    let refused = (0..MOVED_AT_ONCE_MAX / 4096).any(|_| !fetch(&mut world, to, &far, 0, &mut into));
    ensure!(refused, "{MOVED_AT_ONCE_MAX} bytes were fetched without a round between them");
    world.send(A, to, b"after")?;
    world.arrival(B)?;
    world.end()
}
