//! Transfers over the reference plugin, inside one process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use hg_bulk::TransferError;
use hg_engine::{Builder, Handle};
use hg_na::Rights;
use hg_na_conformance::Mem;

/// Two engines in one world.
fn pair() -> (Handle, Handle) {
    let plugin = Mem::default();
    let open = || Builder::new().plugin(plugin.clone()).listen(true).open("mem://").unwrap();
    (open(), open())
}

#[test]
fn pulls_and_pushes_move_bytes() {
    let (owner, user) = pair();
    let peer = user.lookup(owner.address()).unwrap();
    let theirs = owner.expose((0..200).collect::<Vec<u8>>(), Rights::all()).unwrap();
    let descriptor = theirs.descriptor();
    let mine = user.expose(vec![0; 100], Rights::empty()).unwrap();
    user.pull(&peer, descriptor.range(50..150).unwrap(), &mine).wait().unwrap();
    let expected: Vec<u8> = (50..150).collect();
    assert_eq!(mine.to_vec().unwrap(), expected);
    user.push(&peer, mine.range(..10).unwrap(), descriptor.range(190..).unwrap()).wait().unwrap();
    assert_eq!(theirs.into_vec().unwrap()[190..], expected[..10]);
    let late = user.pull(&peer, descriptor.range(50..150).unwrap(), &mine).wait();
    assert!(matches!(late, Err(TransferError::Stale)), "{late:?}");
    assert_eq!(mine.into_vec().unwrap(), expected);
}
