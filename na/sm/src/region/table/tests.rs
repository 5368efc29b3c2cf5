//! The table from both sides, and a table that lies.

use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

use super::*;

const BOTH: Rights = Rights::all();

fn pin_words() -> [AtomicU64; 2] {
    [AtomicU64::new(0), AtomicU64::new(0)]
}

fn tables() -> (OwnedTable, PeerTable) {
    let owned = OwnedTable::create([7; 16]).unwrap();
    let fd = owned.fd().unwrap().try_clone_to_owned().unwrap();
    let peer = PeerTable::open([7; 16], &fd).unwrap();
    (owned, peer)
}

fn segments(lens: &[usize]) -> Vec<Segment> {
    (1..).zip(lens).map(|(at, &len)| Segment { address: at << 20, len }).collect()
}

fn resolve(
    peer: &PeerTable,
    claim: &RegionClaim,
    needed: Rights,
    range: (u64, u64),
) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    let words = pin_words();
    peer.resolve(claim, needed, range, &words, &mut runs).map(drop)?;
    Ok(runs)
}

#[test]
fn a_published_region_is_resolved_to_the_runs_of_the_range() {
    let (owned, peer) = tables();
    let published = owned.publish(&segments(&[10, 0, 20]), BOTH, None).unwrap();
    let runs = resolve(&peer, &published.claim, Rights::READ, (5, 10)).unwrap();
    let expected = [Run { address: (1 << 20) + 5, len: 5 }, Run { address: 3 << 20, len: 5 }];
    assert_eq!(runs, expected);
}

#[test]
fn a_pin_is_seen_by_the_owner_until_it_is_dropped() {
    let (owned, peer) = tables();
    let RegionClaim { index, generation, .. } =
        owned.publish(&segments(&[10]), BOTH, None).unwrap().claim;
    let claim = owned.publish(&segments(&[10]), BOTH, None).unwrap().claim;
    let (words, mut runs) = (pin_words(), Vec::new());
    let pin = peer.resolve(&claim, BOTH, (0, 10), &words, &mut runs).unwrap();
    assert!(pins::is_pinned(&words, claim.index, claim.generation));
    assert!(!pins::is_pinned(&words, index, generation));
    let second = peer.resolve(&claim, BOTH, (0, 10), &words, &mut runs).unwrap();
    let third = peer.resolve(&claim, BOTH, (0, 10), &words, &mut runs);
    assert!(matches!(third, Err(Error::Again)), "all pin words are in use");
    drop((pin, second));
    assert!(!pins::is_pinned(&words, claim.index, claim.generation));
}

#[test]
fn refused_claims_leave_neither_pin_nor_runs() {
    let (owned, peer) = tables();
    let claim = owned.publish(&segments(&[10, 20]), Rights::READ, None).unwrap().claim;
    let stale = [
        RegionClaim { domain: [8; 16], ..claim },
        RegionClaim { token: [0; 16], ..claim },
        RegionClaim { generation: claim.generation + 2, ..claim },
        RegionClaim { index: claim.index + 1, ..claim },
        RegionClaim { index: claim.index + 1, generation: 0, token: [0; 16], ..claim },
        RegionClaim { index: u32::MAX, ..claim },
    ];
    let (words, mut runs) = (pin_words(), Vec::new());
    for claim in stale {
        let refused = peer.resolve(&claim, Rights::READ, (0, 1), &words, &mut runs);
        assert!(matches!(refused, Err(Error::StaleDescriptor)), "{claim:?}: {refused:?}");
    }
    let refused = peer.resolve(&claim, Rights::WRITE, (0, 1), &words, &mut runs);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    for range in [(0, 31), (30, 1), (31, 0), (u64::MAX, 2), (2, u64::MAX)] {
        let refused = peer.resolve(&claim, Rights::READ, range, &words, &mut runs);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{range:?}: {refused:?}");
    }
    assert!(runs.is_empty() && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_retracted_region_is_stale_and_so_it_stays_when_its_slot_is_used_again() {
    let (owned, peer) = tables();
    let published = owned.publish(&segments(&[10]), BOTH, None).unwrap();
    let old = published.claim;
    owned.retract(&published);
    assert!(matches!(resolve(&peer, &old, BOTH, (0, 1)), Err(Error::StaleDescriptor)));
    owned.release(published);
    let new = owned.publish(&segments(&[10]), BOTH, None).unwrap().claim;
    assert_eq!(new.index, old.index);
    assert!(matches!(resolve(&peer, &old, BOTH, (0, 1)), Err(Error::StaleDescriptor)));
    resolve(&peer, &new, BOTH, (0, 1)).unwrap();
}

#[test]
fn a_full_table_names_its_limit_and_takes_more_after_a_release() {
    let owned = OwnedTable::create([7; 16]).unwrap();
    let mut last = None;
    for _ in 0..REGIONS_MAX {
        last = Some(owned.publish(&segments(&[1]), BOTH, None).unwrap());
    }
    let full = owned.publish(&segments(&[1]), BOTH, None);
    assert!(matches!(full, Err(Error::Limit { limit: 4096, .. })), "{full:?}");
    let last = last.unwrap();
    owned.retract(&last);
    owned.release(last);
    owned.publish(&segments(&[1]), BOTH, None).unwrap();
}

#[test]
fn a_region_of_too_many_segments_names_the_limit() {
    let owned = OwnedTable::create([7; 16]).unwrap();
    let count = SEGMENTS_MAX as usize;
    let full = owned.publish(&segments(&vec![1; count + 1]), BOTH, None);
    assert!(matches!(full, Err(Error::Limit { limit: 65_536, .. })), "{full:?}");
    owned.publish(&segments(&vec![1; count]), BOTH, None).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// The owner writes anything into the entry and its segments after it was published.
    #[test]
    fn a_table_that_lies_is_refused_or_yields_the_bytes_asked_for(
        first: u32, count in any::<u32>(), small: bool, size: u64, rights: u32,
        lens in proptest::array::uniform4(any::<u64>()), address: u64,
        offset in 0_u64..50, len in 0_u64..1 << 40,
    ) {
        let (owned, peer) = tables();
        let claim = owned.publish(&segments(&[10; 4]), BOTH, None).unwrap().claim;
        let lying = entry(&owned.mapping, claim.index);
        lying.size.store(size);
        lying.rights.store(rights | 3);
        lying.first_segment.store(if small { first % 4 } else { first });
        lying.segment_count.store(if small { count % 5 } else { count });
        for (at, len) in (0..).zip(lens) {
            segment(&owned.mapping, at).address.store(address);
            segment(&owned.mapping, at).len.store(len);
        }
        if let Ok(runs) = resolve(&peer, &claim, Rights::READ, (offset, len)) {
            let sum: u128 = runs.iter().map(|run| run.len as u128).sum();
            prop_assert!(sum == u128::from(len));
            prop_assert!(runs.iter().all(|run| run.address.checked_add(run.len).is_some()));
        }
    }
}
