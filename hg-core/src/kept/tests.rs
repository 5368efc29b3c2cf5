//! What is kept for peers, in every order of events.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hg_na::{SharedBytes, ViewState};
use proptest::prelude::*;

use super::*;

const PEERS: u32 = 3;
/// For 32 pieces of frozen memory.
const BYTES_MAX: u64 = 32 * FROZEN_COST;

#[derive(Debug, Clone)]
enum Event {
    /// So many pieces of frozen memory are kept under an id; arguments for so long, if that is not for ever.
    Keep {
        is_result: bool,
        peer: u32,
        id: u64,
        pieces: usize,
        ms: Option<u64>,
    },
    Free {
        is_result: bool,
        peer: u32,
        id: u64,
    },
    Pass {
        ms: u64,
    },
    HangUp {
        peer: u32,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    let (peer, id) = (0..PEERS, 0_u64..6);
    prop_oneof![
        6 => (any::<bool>(), peer.clone(), id.clone(), 1_usize..20, prop::option::of(1_u64..30))
            .prop_map(|(is_result, peer, id, pieces, ms)| Event::Keep { is_result, peer, id, pieces, ms }),
        3 => (any::<bool>(), peer.clone(), id).prop_map(|(is_result, peer, id)| Event::Free { is_result, peer, id }),
        2 => (0_u64..20).prop_map(|ms| Event::Pass { ms }),
        1 => peer.prop_map(|peer| Event::HangUp { peer }),
    ]
}

/// Memory that tells when it goes.
#[derive(Debug)]
struct Told(Arc<AtomicUsize>);

impl ViewState for Told {
    fn len(&self) -> u64 {
        1
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(&[7])
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn lent(pieces: usize, gone: &Arc<AtomicUsize>) -> Lent {
    let told = || SharedBytes::new(Arc::new(Told(Arc::clone(gone))));
    let frozen = (0..pieces).map(|_| Frozen::try_from(told()).expect("it can never change"));
    Lent { encoded: None, frozen: frozen.collect() }
}

/// Whether it is a result, for whom, and under which id.
type Whose = (bool, Peer, u64);

/// What is to be kept, of how many pieces, and until when.
type World = HashMap<Whose, (usize, Option<Instant>)>;

/// So many pieces are kept of this kind.
fn pieces_of(world: &World, is_result: bool) -> u64 {
    let of_kind = world.iter().filter(|(whose, _)| whose.0 == is_result);
    of_kind.map(|(_, (pieces, _))| *pieces as u64).sum()
}

fn store(kept: &mut Kept, is_result: bool) -> &mut Store {
    if is_result { &mut kept.results } else { &mut kept.arguments }
}

/// What of it goes: so many pieces.
fn take(world: &mut World, goes: impl Fn(Whose, Option<Instant>) -> bool) -> usize {
    let gone = world.extract_if(|whose, (_, deadline)| goes(*whose, *deadline));
    gone.map(|(_, (pieces, _))| pieces).sum()
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn some_instant() -> Instant {
    Instant::now()
}

proptest! {
    #[test]
    fn whatever_is_kept_goes_once_and_its_bytes_are_bounded_and_return_to_zero(
        events in prop::collection::vec(any_event(), 0..100),
    ) {
        let mut kept = Kept::new(BYTES_MAX, BYTES_MAX);
        let (mut world, mut now, gone) = (World::new(), some_instant(), Arc::<AtomicUsize>::default());
        let of = |peer| Peer::new(peer, 1);
        let hang_ups = (0..PEERS).map(|peer| Event::HangUp { peer });
        for event in events.into_iter().chain(hang_ups) {
            let (mut freed, before) = (Vec::new(), gone.load(Ordering::Relaxed));
            let expected = match event {
                Event::Keep { is_result, peer, id, pieces, ms } => {
                    let (peer, lent) = (of(peer), lent(pieces, &gone));
                    let of_kind = || world.iter().filter(|(whose, _)| whose.0 == is_result);
                    let has_none = of_kind().all(|(whose, _)| whose.1 != peer);
                    // Of what nobody has, one may have as much as it leaves; beside one other, who has nothing finds a quarter.
                    let others = of_kind().map(|(whose, _)| whose.1).filter(|it| *it != peer);
                    let is_owed = has_none && pieces <= 8 && others.collect::<HashSet<_>>().len() <= 1;
                    if !store(&mut kept, is_result).admits(peer, lent.cost()) {
                        prop_assert!(!is_owed);
                        prop_assert!(is_result || kept.check_arguments(peer, lent.cost()).is_err());
                        continue;
                    }
                    let deadline = ms.filter(|_| !is_result).map(|ms| now + Duration::from_millis(ms));
                    store(&mut kept, is_result).insert((peer, id), lent, deadline, &mut freed);
                    let before = world.insert((is_result, peer, id), (pieces, deadline));
                    before.map_or(0, |(pieces, _)| pieces)
                }
                Event::Free { is_result, peer, id } => {
                    store(&mut kept, is_result).free((of(peer), id), &mut freed);
                    take(&mut world, |whose, _| whose == (is_result, of(peer), id))
                }
                Event::Pass { ms } => {
                    now += Duration::from_millis(ms);
                    kept.arguments.handle_timeout(now, &mut freed);
                    take(&mut world, |_, deadline| deadline.is_some_and(|at| at <= now))
                }
                Event::HangUp { peer } => {
                    kept.free_all_of(Some(of(peer)), &mut freed);
                    take(&mut world, |whose, _| whose.1 == of(peer))
                }
            };
            prop_assert_eq!(gone.load(Ordering::Relaxed), before, "nothing goes under the lock");
            drop(freed);
            prop_assert_eq!(gone.load(Ordering::Relaxed) - before, expected, "once, and nobody else's");
            prop_assert_eq!(kept.len(), world.len());
            for is_result in [false, true] {
                let bytes = FROZEN_COST * pieces_of(&world, is_result);
                prop_assert_eq!(store(&mut kept, is_result).bytes.total(), bytes);
                prop_assert!(bytes <= BYTES_MAX);
            }
            let first = world.values().filter_map(|(_, deadline)| *deadline).min();
            let next = kept.arguments.next_deadline();
            prop_assert!(first.is_none() || next <= first && next.is_some(), "none is forgotten");
        }
        prop_assert!(kept.is_empty());
        prop_assert!(kept.arguments.bytes.total() == 0 && kept.results.bytes.total() == 0);
    }
}
