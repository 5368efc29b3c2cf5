//! Fetching and seeing; descriptors that hold the bytes; transfers in handlers of every kind.

use std::sync::Arc;

use hg::{
    Engine, Request,
    bulk::{Buffer, Descriptor, Rights, alloc},
};

use super::{end_of, listening, mover, open, patterned};
use crate::{
    common::{Watchdog, block_on},
    transports::bulk_urls,
};

/// Waits where it could never end.
#[hg::rpc]
fn plainly(request: &Request, what: Descriptor) -> String {
    end_of(&request.engine().fetch(&request.origin(), &what).wait()).to_owned()
}

/// Sees the bytes and adds them up.
#[hg::rpc(blocking)]
fn blocking_sum(request: &Request, what: Descriptor) -> Result<u64, String> {
    let engine = request.engine();
    let seen = engine.view(&request.origin(), &what).wait().map_err(|error| error.to_string())?;
    let bytes = seen.to_vec().map_err(|error| error.to_string())?;
    Ok(bytes.into_iter().map(u64::from).sum())
}

/// The same without blocking.
#[hg::rpc]
async fn async_sum(request: &Request, what: Descriptor) -> Result<u64, String> {
    let engine = request.engine();
    let seen = engine.view(&request.origin(), &what).await.map_err(|error| error.to_string())?;
    let bytes = seen.to_vec().map_err(|error| error.to_string())?;
    Ok(bytes.into_iter().map(u64::from).sum())
}

pub(super) fn serve(engine: &Engine) {
    engine.register(plainly).expect("a fresh registry");
    engine.register(blocking_sum).expect("a fresh registry");
    engine.register(async_sum).expect("a fresh registry");
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().copied().map(u64::from).sum()
}

#[test]
fn async_and_blocking_handlers_transfer_and_plain_ones_are_told_to_be_either() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (_child, address) = mover(url);
        let engine = listening(url);
        let peer = engine.lookup(&address).unwrap();
        for len in [10, 300_000] {
            let bytes = patterned(len);
            let bulk = engine.expose(bytes.clone(), Rights::READ).unwrap();
            let what = || (bulk.descriptor(),);
            assert_eq!(engine.call(async_sum, &peer, what()).wait().unwrap(), sum(&bytes));
            assert_eq!(engine.call(blocking_sum, &peer, what()).wait().unwrap(), sum(&bytes));
            let plain = engine.call(plainly, &peer, what()).wait().unwrap();
            assert_eq!(plain, if bulk.descriptor().is_eager() { "Ok" } else { "WouldDeadlock" });
        }
        // The target is none the worse for it.
        let bulk = engine.expose(vec![1; 50_000], Rights::READ).unwrap();
        assert_eq!(engine.call(async_sum, &peer, (bulk.descriptor(),)).wait().unwrap(), 50_000);
    }
}

#[test]
fn small_read_only_memory_rides_in_its_descriptor_and_larger_or_writable_memory_does_not() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let owner = open(hg::builder().listen(true).eager_max(100), url);
        let user = open(hg::builder(), url);
        let peer = user.lookup(owner.address()).unwrap();
        let is_eager = |len, rights| {
            let bulk = owner.expose(patterned(len), rights).unwrap();
            assert_eq!(bulk.descriptor().is_eager(), bulk.bound_descriptor().is_eager());
            bulk.descriptor().is_eager()
        };
        assert!(is_eager(1, Rights::READ) && is_eager(100, Rights::READ));
        assert!(!is_eager(101, Rights::READ) && !is_eager(0, Rights::READ));
        assert!(!is_eager(10, Rights::all()) && !is_eager(10, Rights::empty()));

        let bulk = owner.expose(patterned(100), Rights::READ).unwrap();
        let what = bulk.descriptor();
        drop(bulk);
        let target = user.expose(vec![vec![0; 30], vec![0; 30]], Rights::empty()).unwrap();
        user.pull(&peer, what.range(40..).unwrap(), &target).wait().unwrap();
        assert_eq!(target.into_vec().unwrap(), patterned(100)[40..]);
        assert_eq!(
            end_of(
                &user
                    .push(&peer, user.expose(vec![0; 100], Rights::empty()).unwrap(), &what)
                    .wait()
            ),
            "Denied"
        );

        let off = open(hg::builder().listen(true).eager_max(0), url);
        let bulk = off.expose(patterned(10), Rights::READ).unwrap();
        assert!(!bulk.descriptor().is_eager());
        let peer = user.lookup(off.address()).unwrap();
        assert_eq!(user.fetch(&peer, bulk.descriptor()).wait().unwrap(), patterned(10));
    }
}

#[test]
fn bytes_are_fetched_and_seen_by_waiting_and_awaiting() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user) = (listening(url), open(hg::builder(), url));
        let peer = user.lookup(owner.address()).unwrap();
        for len in [0, 10, 5000, 3 << 20] {
            let bytes = patterned(len);
            let bulk = owner.expose(bytes.clone(), Rights::READ).unwrap();
            let what = bulk.descriptor();
            assert_eq!(user.fetch(&peer, &what).wait().unwrap(), bytes);
            assert_eq!(block_on(user.fetch(&peer, &what)).unwrap(), bytes);
            assert_eq!(user.view(&peer, &what).wait().unwrap().to_vec().unwrap(), bytes);
            let half = what.range(len as u64 / 2..).unwrap();
            assert_eq!(
                block_on(user.view(&peer, half)).unwrap().to_vec().unwrap(),
                bytes[len / 2..]
            );
            let target = user.expose(vec![0; len], Rights::empty()).unwrap();
            block_on(user.pull(&peer, &what, &target)).unwrap();
            assert_eq!(target.into_vec().unwrap(), bytes);
        }
    }
}

#[test]
fn memory_that_peers_map_is_seen_moved_and_outlives_its_owner() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (mut child, what) = super::endings::start_owner(url, "frozen");
        let user = open(hg::builder(), url);
        let owner = user.owner_of(&what).unwrap();
        let seen = user.view(&owner, what.range(7..).unwrap()).wait().unwrap();
        let awaited = block_on(user.view(&owner, what.range(..7).unwrap())).unwrap();
        let fetched = user.fetch(&owner, &what).wait().unwrap();
        child.kill();
        assert_eq!(fetched, patterned(fetched.len()));
        assert_eq!(seen.to_vec().unwrap(), fetched[7..]);
        assert_eq!(awaited.to_vec().unwrap(), fetched[..7]);
        // A slice is there when nothing was copied, and when a copy is one's own.
        assert_eq!(seen.as_slice().unwrap(), &fetched[7..]);
        // What is mapped can be seen until its owner's death is noticed.
        while end_of(&user.view(&owner, &what).wait()) != "PeerGone" {}
    }
}

#[test]
fn shared_memory_is_pulled_from_and_pushed_to() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user) = (listening(url), open(hg::builder(), url));
        let peer = user.lookup(owner.address()).unwrap();
        let mut buffer = alloc(3 << 20).unwrap();
        buffer.copy_from_slice(&patterned(3 << 20));
        let theirs = owner.expose(buffer, Rights::all()).unwrap();
        let mine = user.expose(alloc(1 << 20).unwrap(), Rights::empty()).unwrap();
        let range = theirs.descriptor().range(1 << 20..2 << 20).unwrap();
        user.pull(&peer, range, &mine).wait().unwrap();
        let range = theirs.descriptor().range(2 << 20..).unwrap();
        user.push(&peer, &mine, range).wait().unwrap();
        // What is not frozen may change at any time: no slice of it.
        let seen = user.view(&peer, theirs.descriptor()).wait().unwrap();
        theirs.write(5, &[1, 2, 3]).unwrap();
        let mut three = [0; 3];
        seen.read(5, &mut three).unwrap();
        assert!(three == [1, 2, 3] || seen.as_slice().is_some(), "a view that is no copy follows");
        drop(seen);
        let mut expected = patterned(3 << 20);
        expected.copy_within(1 << 20..2 << 20, 2 << 20);
        expected[5..8].copy_from_slice(&[1, 2, 3]);
        let buffer = Buffer::try_from(theirs.into_memory().unwrap()).unwrap();
        assert!(*buffer == *expected);
        assert_eq!(mine.into_vec().unwrap(), expected[1 << 20..2 << 20]);
    }
}

#[test]
fn shared_slices_and_lists_of_vectors_come_back_as_what_they_were() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let engine = listening(url);
        let shared: Arc<[u8]> = patterned(1000).into();
        let bulk = engine.expose(Arc::clone(&shared), Rights::READ).unwrap();
        assert!(Arc::ptr_eq(&bulk.into_memory().unwrap().into_shared().unwrap(), &shared));
        let pieces: Vec<_> = (1..3000_usize).map(|len| patterned(len % 50)).collect();
        let bulk = engine.expose(pieces.clone(), Rights::all()).unwrap();
        assert_eq!(bulk.to_vec().unwrap(), pieces.concat());
        bulk.write(1, &[0; 60_000]).unwrap();
        let back = bulk.into_memory().unwrap().into_vecs().unwrap();
        let mut expected = pieces.concat();
        expected[1..60_001].fill(0);
        assert_eq!((back.len(), back.concat()), (pieces.len(), expected));
        let null = engine.expose(Vec::<u8>::new(), Rights::all()).unwrap();
        assert!(null.into_vec().unwrap().is_empty());
    }
}
