//! Transfers over the reference plugin, inside one process, with and without faults.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_bulk::TransferError;
use hg_engine::{Builder, Bulk, Engine, Progress, Wait};
use hg_na::{Memory, Plugin, Rights};
use hg_na_conformance::{Faults, Faulty, Mem};
use watchdog::in_time;

/// Two engines in one world.
fn pair() -> (Engine, Engine) {
    pair_over(&Mem::default(), Builder::new)
}

fn pair_over(
    plugin: &(impl Plugin + Clone + 'static),
    builder: impl Fn() -> Builder,
) -> (Engine, Engine) {
    // No bytes ride in a descriptor: everything is moved.
    let builder = || builder().plugin(plugin.clone()).eager_max(0);
    let open = || builder().listen(true).open("mem://").unwrap();
    (open(), open())
}

/// A transport that has no room for half of what it is given, and tells late of a third of what ended.
fn faulty(seed: u64) -> Faulty {
    let delay = Duration::from_micros(200);
    let faults = Faults { seed, refuse_one_in: 2, delay_one_in: 3, delay, ..Faults::default() };
    Faulty::new(Mem::default(), faults)
}

fn bytes(len: u32) -> Vec<u8> {
    (0..len).map(|place| u8::try_from(place % 251).unwrap()).collect()
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

#[test]
fn a_transport_without_room_gets_every_piece_in_the_end() {
    for (seed, wait) in [(1, Wait::Spin), (2, Wait::Block), (3, Wait::default())] {
        let (owner, user) = pair_over(&faulty(seed), || Builder::new().wait(wait));
        let peer = user.lookup(owner.address()).unwrap();
        let far: Vec<Vec<u8>> = bytes(90_000).chunks(41).map(<[u8]>::to_vec).collect();
        let source = owner.expose(far, Rights::READ).unwrap();
        let near: Vec<Vec<u8>> = (0..3000).map(|_| vec![0; 30]).collect();
        let target = user.expose(near, Rights::empty()).unwrap();
        let what = source.descriptor();
        let transfers: Vec<_> = (0..90)
            .map(|part| {
                let range = part * 1000..(part + 1) * 1000;
                let near = target.range(range.clone()).unwrap();
                user.pull(&peer, what.range(range).unwrap(), near)
            })
            .collect();
        transfers.into_iter().for_each(|transfer| transfer.wait().unwrap());
        assert_eq!(target.into_vec().unwrap(), bytes(90_000));
        assert_eq!(user.transfers_under_way(), 0);
    }
}

#[test]
fn transfers_that_wait_for_room_are_cancelled_timed_out_and_dropped() {
    let never = Faults { refuse_one_in: 1, ..Faults::default() };
    let (owner, user) = pair_over(&Faulty::new(Mem::default(), never), Builder::new);
    let peer = user.lookup(owner.address()).unwrap();
    let source = owner.expose(bytes(1000), Rights::READ).unwrap();
    let target = user.expose(vec![0; 1000], Rights::empty()).unwrap();
    let pull = || user.pull(&peer, source.descriptor(), &target);
    drop(pull());
    let cancelled = pull();
    cancelled.cancel();
    assert!(matches!(cancelled.wait(), Err(TransferError::Cancelled)));
    let late = pull().within(Duration::from_millis(5)).wait();
    assert!(matches!(late, Err(TransferError::DeadlineExceeded)), "{late:?}");
    let kept = pull();
    user.forget(peer);
    let gone = kept.wait();
    assert!(matches!(gone, Err(TransferError::PeerGone { .. })), "{gone:?}");
    assert_eq!(user.transfers_under_way(), 0);
    assert_eq!(target.into_vec().unwrap(), vec![0; 1000]);
}

#[test]
fn every_transfer_ends_once_whatever_happens_to_it() {
    for seed in 0..6 {
        let delay = Duration::from_micros(100);
        let faults = Faults { seed, refuse_one_in: 3, delay_one_in: 3, delay, drop_one_in: 200 };
        let (owner, user) = pair_over(&Faulty::new(Mem::default(), faults), Builder::new);
        let source = owner.expose(bytes(4000), Rights::READ).unwrap();
        let target = user.expose(vec![0; 4000], Rights::empty()).unwrap();
        let mut moved = 0;
        for round in 0..100_u64 {
            // A dropped connection makes a new peer.
            let peer = user.lookup(owner.address()).unwrap();
            let transfers: Vec<_> = (0..8_u64)
                .map(|part| {
                    let range = part * 500..(part + 1) * 500;
                    let near = target.range(range.clone()).unwrap();
                    user.pull(&peer, source.descriptor().range(range).unwrap(), near)
                })
                .collect();
            for (part, transfer) in (0..).zip(transfers) {
                let transfer = match (round + part) % 5 {
                    0 => transfer.within(Duration::from_micros(50)),
                    1 => {
                        transfer.cancel();
                        transfer
                    }
                    2 => {
                        drop(transfer);
                        continue;
                    }
                    _ => transfer,
                };
                use TransferError::{Cancelled, DeadlineExceeded, PeerGone};
                match transfer.wait() {
                    Ok(()) => moved += 1,
                    Err(Cancelled | DeadlineExceeded | PeerGone { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(moved > 0);
        while user.transfers_under_way() > 0 {
            thread::yield_now();
        }
        let bytes_then = given_back(target).into_vec().unwrap();
        assert!(bytes_then.iter().zip(bytes(4000)).all(|(got, is)| *got == 0 || *got == is));
    }
}

#[test]
fn threads_that_wait_for_transfers_and_calls_all_get_theirs() {
    let (owner, user) = pair();
    let peer = user.lookup(owner.address()).unwrap();
    let source = owner.expose(bytes(100_000), Rights::READ).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let fetched = user.fetch(&peer, source.descriptor()).wait().unwrap();
                    assert_eq!(fetched, bytes(100_000));
                }
            });
        }
    });
    assert_eq!(user.transfers_under_way(), 0);
}

#[test]
fn own_progress_and_awaiting_end_a_transfer_once() {
    struct Tell(mpsc::Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }
    let (owner, user) = pair_over(&Mem::default(), || Builder::new().progress(Progress::Own));
    let peer = user.lookup(owner.address()).unwrap();
    let source = owner.expose(bytes(10_000), Rights::READ).unwrap();
    let target = user.expose(vec![0; 10_000], Rights::empty()).unwrap();
    let (sender, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(Tell(sender)));
    let mut transfer = pin!(user.pull(&peer, source.descriptor(), &target));
    let mut context = Context::from_waker(&waker);
    assert!(transfer.as_mut().poll(&mut context).is_pending());
    while told.try_recv().is_err() {
        user.progress(Duration::ZERO);
        owner.progress(Duration::ZERO);
    }
    assert!(matches!(transfer.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    assert!(told.try_recv().is_err(), "woken once");
    assert_eq!(target.into_vec().unwrap(), bytes(10_000));
}

#[test]
fn an_engine_that_closes_ends_the_transfers_of_others_handles() {
    let (owner, user) = pair();
    let peer = user.lookup(owner.address()).unwrap();
    let source = owner.expose(bytes(1000), Rights::READ).unwrap();
    let target = user.expose(vec![0; 1000], Rights::empty()).unwrap();
    drop(owner);
    let pulled = user.pull(&peer, source.descriptor(), &target).wait();
    assert!(matches!(pulled, Err(TransferError::PeerGone { .. })), "{pulled:?}");
    assert_eq!(source.into_vec().unwrap(), bytes(1000));
    drop(user);
    assert_eq!(target.into_vec().unwrap(), vec![0; 1000]);
}

/// Memory comes back when whoever made the progress has let go of it, a moment after the transfer is counted no more.
fn given_back(mut bulk: Bulk) -> Memory {
    let start = Instant::now();
    loop {
        match bulk.into_memory() {
            Ok(memory) => return memory,
            Err(busy) => bulk = busy.into_bulk().expect("it is only shared"),
        }
        in_time!(start, "the memory never comes back");
        thread::yield_now();
    }
}
