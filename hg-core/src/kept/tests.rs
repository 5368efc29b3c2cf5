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
    /// So many pieces of frozen memory are kept under an id, for so long if that is not for ever.
    Keep {
        peer: u32,
        id: u64,
        pieces: usize,
        ms: Option<u64>,
    },
    Free {
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
        6 => (peer.clone(), id.clone(), 1_usize..20, prop::option::of(1_u64..30))
            .prop_map(|(peer, id, pieces, ms)| Event::Keep { peer, id, pieces, ms }),
        3 => (peer.clone(), id).prop_map(|(peer, id)| Event::Free { peer, id }),
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

/// What is to be kept, of how many pieces, and until when.
type World = HashMap<(Peer, u64), (usize, Option<Instant>)>;

/// What of it goes: so many pieces.
fn take(world: &mut World, goes: impl Fn((Peer, u64), Option<Instant>) -> bool) -> usize {
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
        let mut kept = Kept::new(BYTES_MAX, 0);
        let (mut world, mut now, gone) = (World::new(), some_instant(), Arc::<AtomicUsize>::default());
        let of = |peer| Peer::new(peer, 1);
        let hang_ups = (0..PEERS).map(|peer| Event::HangUp { peer });
        for event in events.into_iter().chain(hang_ups) {
            let (mut freed, before) = (Vec::new(), gone.load(Ordering::Relaxed));
            let expected = match event {
                Event::Keep { peer, id, pieces, ms } => {
                    let (whose, lent) = ((of(peer), id), lent(pieces, &gone));
                    let held = world.iter().filter(|((peer, _), _)| *peer == whose.0);
                    let held: usize = held.map(|(_, (pieces, _))| pieces).sum();
                    // Of what nobody has, one may have as much as it leaves; beside one other, who has nothing finds a quarter.
                    let others = world.keys().filter(|it| it.0 != whose.0).map(|it| it.0);
                    let is_owed = held == 0 && pieces <= 8 && others.collect::<HashSet<_>>().len() <= 1;
                    if !kept.arguments.admits(whose.0, lent.cost()) {
                        prop_assert!(!is_owed && kept.check_arguments(whose.0, lent.cost()).is_err());
                        continue;
                    }
                    let deadline = ms.map(|ms| now + Duration::from_millis(ms));
                    kept.arguments.insert(whose, lent, deadline, &mut freed);
                    world.insert(whose, (pieces, deadline)).map_or(0, |(pieces, _)| pieces)
                }
                Event::Free { peer, id } => {
                    kept.arguments.free((of(peer), id), &mut freed);
                    take(&mut world, |whose, _| whose == (of(peer), id))
                }
                Event::Pass { ms } => {
                    now += Duration::from_millis(ms);
                    kept.arguments.handle_timeout(now, &mut freed);
                    take(&mut world, |_, deadline| deadline.is_some_and(|at| at <= now))
                }
                Event::HangUp { peer } => {
                    kept.free_all_of(Some(of(peer)), &mut freed);
                    take(&mut world, |whose, _| whose.0 == of(peer))
                }
            };
            prop_assert_eq!(gone.load(Ordering::Relaxed), before, "nothing goes under the lock");
            drop(freed);
            prop_assert_eq!(gone.load(Ordering::Relaxed) - before, expected, "once, and nobody else's");
            prop_assert_eq!(kept.len(), world.len());
            let bytes = world.values().map(|(pieces, _)| *pieces as u64 * FROZEN_COST).sum::<u64>();
            prop_assert_eq!(kept.arguments.bytes.total(), bytes);
            prop_assert!(bytes <= BYTES_MAX);
            let first = world.values().filter_map(|(_, deadline)| *deadline).min();
            let next = kept.arguments.next_deadline();
            prop_assert!(first.is_none() || next <= first && next.is_some(), "none is forgotten");
        }
        prop_assert!(kept.is_empty() && kept.arguments.bytes.total() == 0);
    }
}
