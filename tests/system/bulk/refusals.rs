//! What is refused touches nothing.

use hg::{
    Engine, Error, Peer,
    bulk::{Bulk, Descriptor, Rights, TransferError},
};

use super::{end_of, is_zero, listening, move_range, mover, open, patterned};
use crate::{common::Watchdog, transports::bulk_urls};

/// An owner and a user in one process, and the user's name for the owner.
fn pair(url: &str) -> (Engine, Engine, Peer) {
    let (owner, user) = (listening(url), open(hg::builder(), url));
    let peer = user.lookup(owner.address()).unwrap();
    (owner, user, peer)
}

/// How a pull and a push of everything end.
fn both(user: &Engine, peer: &Peer, what: &Descriptor, local: &Bulk) -> [&'static str; 2] {
    let pulled = user.pull(peer, what, local).wait();
    let pushed = user.push(peer, local, what).wait();
    [end_of(&pulled), end_of(&pushed)]
}

#[test]
fn memory_refuses_what_it_does_not_grant() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let local = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
        let expected = [
            (Rights::empty(), ["Denied", "Denied"]),
            (Rights::READ, ["Ok", "Denied"]),
            (Rights::WRITE, ["Denied", "Ok"]),
            (Rights::all(), ["Ok", "Ok"]),
        ];
        for (rights, ends) in expected {
            let bulk = owner.expose(patterned(10_000), rights).unwrap();
            assert_eq!(both(&user, &peer, &bulk.descriptor(), &local), ends, "{rights:?}");
        }
        let shared: std::sync::Arc<[u8]> = patterned(10_000).into();
        assert!(matches!(owner.expose(shared.clone(), Rights::WRITE), Err(Error::Denied { .. })));
        let read_only = user.expose(shared, Rights::empty()).unwrap();
        let bulk = owner.expose(patterned(10_000), Rights::all()).unwrap();
        assert_eq!(both(&user, &peer, &bulk.descriptor(), &read_only), ["Denied", "Ok"]);
    }
}

#[test]
fn a_descriptor_that_lies_about_its_rights_is_refused_by_the_transport() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let local = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
        for (rights, ends) in [(Rights::READ, ["Ok", "Denied"]), (Rights::WRITE, ["Denied", "Ok"])]
        {
            let bulk = owner.expose(patterned(10_000), rights).unwrap();
            // In the header, and in the only region.
            let mut bytes = bulk.descriptor().as_bytes().to_vec();
            let region = 16 + usize::from(bytes[3]) + 2;
            (bytes[2], bytes[region + 1]) = (Rights::all().bits(), Rights::all().bits());
            let lie = Descriptor::decode(&bytes).unwrap();
            assert_eq!(lie.rights(), Rights::all());
            assert_eq!(both(&user, &peer, &lie, &local), ends, "{rights:?}");
            assert!(rights == Rights::WRITE || bulk.into_vec().unwrap() == patterned(10_000));
        }
    }
}

#[test]
fn ranges_outside_either_side_are_refused_at_the_call() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let bulk = owner.expose(patterned(1000), Rights::all()).unwrap();
        let local = user.expose(vec![0; 1000], Rights::empty()).unwrap();
        let what = bulk.descriptor();
        for range in [0..1001, 1000..1001, 999..u64::MAX, u64::MAX - 1..u64::MAX] {
            assert!(
                matches!(what.range(range.clone()), Err(Error::OutOfRange { .. })),
                "{range:?}"
            );
            assert!(
                matches!(local.range(range.clone()), Err(Error::OutOfRange { .. })),
                "{range:?}"
            );
        }
        let unequal =
            user.pull(&peer, what.range(..10).unwrap(), local.range(..11).unwrap()).wait();
        assert!(matches!(unequal, Err(TransferError::Unequal { local: 11, remote: 10 })));
        assert!(is_zero(&local));
    }
}

#[test]
fn no_flipped_bit_of_a_descriptor_lets_anything_through() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let bulk = owner.expose(patterned(10_000), Rights::all()).unwrap();
        let local = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
        let neighbour = owner.expose(patterned(10_000), Rights::all()).unwrap();
        let good = bulk.descriptor();
        for bit in 0..good.as_bytes().len() * 8 {
            let mut bytes = good.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(bad) = Descriptor::decode(&bytes) else { continue };
            let Ok(range) = bad.range(..10_000) else { continue };
            let pulled = user.pull(&peer, range.clone(), &local).wait();
            assert!(pulled.is_err(), "bit {bit} is of no importance");
            let pushed = user.push(&peer, &local, range).wait();
            assert!(pushed.is_err(), "bit {bit} is of no importance");
        }
        assert!(is_zero(&local));
        assert_eq!(bulk.into_vec().unwrap(), patterned(10_000));
        assert_eq!(neighbour.into_vec().unwrap(), patterned(10_000));
    }
}

#[test]
fn a_descriptor_that_claims_more_than_there_is_is_refused() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let bulk = owner.expose(patterned(5000), Rights::READ).unwrap();
        for claim in [5001_u64, 1 << 40, 1 << 62, u64::MAX] {
            let mut bytes = bulk.descriptor().as_bytes().to_vec();
            let region = 16 + usize::from(bytes[3]) + 2;
            bytes[8..16].copy_from_slice(&claim.to_le_bytes());
            bytes[region + 4..region + 12].copy_from_slice(&claim.to_le_bytes());
            let lie = Descriptor::decode(&bytes).unwrap();
            assert_eq!(lie.len(), claim);
            // The honest part is no excuse for the rest; and no memory is made of the claim.
            assert_ne!(end_of(&user.fetch(&peer, &lie).wait()), "Ok", "{claim}");
            let local = user.expose(vec![0; 100], Rights::empty()).unwrap();
            let beyond = lie.range(claim - 100..).unwrap();
            assert_ne!(end_of(&user.pull(&peer, beyond, &local).wait()), "Ok", "{claim}");
            assert!(is_zero(&local));
        }
        let _: Vec<u8> = user.fetch(&peer, bulk.descriptor()).wait().unwrap();
    }
}

#[test]
fn memory_that_was_taken_back_is_out_of_reach_also_when_its_place_is_used_again() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let old = owner.expose(patterned(10_000), Rights::all()).unwrap();
        let stale = old.descriptor();
        let local = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
        user.pull(&peer, &stale, &local).wait().unwrap();
        local.write(0, &[0; 10_000]).unwrap();
        let bytes = old.into_vec().unwrap();
        assert_eq!(both(&user, &peer, &stale, &local), ["Stale", "Stale"]);
        let again = owner.expose(bytes, Rights::all()).unwrap();
        assert_eq!(both(&user, &peer, &stale, &local), ["Stale", "Stale"]);
        assert_eq!(again.into_vec().unwrap(), patterned(10_000));
        assert!(is_zero(&local));
    }
}

#[test]
fn another_process_is_told_of_stale_and_denied_memory_too() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (_child, address) = mover(url);
        let engine = listening(url);
        let peer = engine.lookup(&address).unwrap();
        let run = |is_pull, what| {
            let arguments = (is_pull, what, (0, 0, 10_000), vec![10_000]);
            engine.call(move_range, &peer, arguments).wait().unwrap()
        };
        let bulk = engine.expose(vec![0; 10_000], Rights::WRITE).unwrap();
        let what = bulk.descriptor();
        assert_eq!(run(true, what.clone()), "Denied");
        assert_eq!(run(false, what.clone()), "Ok");
        bulk.write(0, &[0; 10_000]).unwrap();
        let kept = bulk.into_vec().unwrap();
        assert_eq!(run(false, what), "Stale");
        assert_eq!(kept, vec![0; 10_000], "a push after the memory was taken back");
    }
}

#[test]
fn memory_and_peers_of_other_engines_are_refused() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user, peer) = pair(url);
        let bulk = owner.expose(patterned(10_000), Rights::all()).unwrap();
        let foreign = owner.expose(vec![0; 10_000], Rights::empty()).unwrap();
        let pulled = user.pull(&peer, bulk.descriptor(), &foreign).wait();
        assert_eq!(end_of(&pulled), "NotMade");
        let local = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
        let of_another = owner.lookup(owner.address()).unwrap();
        assert_eq!(both(&user, &of_another, &bulk.descriptor(), &local), ["NotMade", "NotMade"]);
        // Of another transport, by its scheme.
        let mut bytes = bulk.descriptor().as_bytes().to_vec();
        bytes[16] ^= 1;
        let other = Descriptor::decode(&bytes).unwrap();
        let pulled = user.pull(&peer, &other, &local).wait().unwrap_err();
        assert!(pulled.to_string().contains("another transport"), "{pulled}");
        assert!(is_zero(&local));
    }
}

#[test]
fn memory_in_use_is_not_given_back_but_stays() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let engine = listening(url);
        let bulk = engine.expose(patterned(100), Rights::empty()).unwrap();
        let range = bulk.all();
        let busy = bulk.into_memory().unwrap_err();
        assert!(matches!(busy.error(), Error::RegionBusy));
        let bulk = busy.into_bulk().unwrap();
        drop(range);
        assert_eq!(bulk.into_vec().unwrap(), patterned(100));
    }
}
