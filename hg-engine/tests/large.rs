//! Arguments and results beyond one message, over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use hg_core::error::CallError;
use hg_engine::{Builder, CallOptions, Engine};
use hg_macros::rpc;
use hg_na_conformance::Mem;

mod hg;

#[rpc(crate = crate::hg)]
fn reverse(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[rpc(crate = crate::hg)]
async fn reverse_later(bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[rpc(crate = crate::hg, blocking)]
fn reverse_blocking(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[rpc(crate = crate::hg)]
fn reverse_given(bytes: &[u8]) -> Vec<u8>;

#[rpc(crate = crate::hg)]
fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

#[rpc(crate = crate::hg)]
fn refuse(len: u64) -> Result<u64, Vec<u8>> {
    Err(vec![7; usize::try_from(len).unwrap()])
}

#[rpc(crate = crate::hg)]
fn make(len: u64) -> Vec<u8> {
    vec![5; usize::try_from(len).unwrap()]
}

#[rpc(crate = crate::hg)]
fn unknown(bytes: &[u8]);

#[rpc(crate = crate::hg)]
fn never(bytes: &[u8]);

#[rpc(crate = crate::hg)]
fn tell(bytes: &[u8]);

const MIB: usize = 1 << 20;

fn builder() -> Builder {
    Builder::new().plugin(Mem::default())
}

fn pair(target: Builder, origin: Builder) -> (Engine, Engine) {
    let mem = Mem::default();
    let target = target.plugin(mem.clone()).listen(true).open("mem://").unwrap();
    target.register(reverse).unwrap();
    target.register(reverse_later).unwrap();
    target.register(reverse_blocking).unwrap();
    target.register(length).unwrap();
    target.register(refuse).unwrap();
    target.register(make).unwrap();
    let origin = origin.plugin(mem).open("mem://").unwrap();
    (target, origin)
}

fn numbers(len: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(len).collect()
}

fn reversed(len: usize) -> Vec<u8> {
    let mut bytes = numbers(len);
    bytes.reverse();
    bytes
}

/// The target has nothing of an origin's any more, and the other way round.
fn assert_nothing_kept(handles: &[&Engine]) {
    for handle in handles {
        while handle.large_untaken() != 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn arguments_and_results_of_any_size_go_both_ways_with_every_kind_of_handler() {
    for checksum in [false, true] {
        let (target, origin) = pair(builder(), builder().checksum(checksum));
        target
            .serve_later(reverse_given, |_request, (bytes,), answer| {
                answer.send(Ok(bytes.iter().rev().copied().collect()));
            })
            .unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        let limit = target.message_max();
        for len in [limit - 100, limit - 20, limit, limit + 1, MIB, 8 * MIB] {
            let (bytes, expected) = (numbers(len), reversed(len));
            assert_eq!(origin.call(reverse, &peer, (&bytes,)).wait().unwrap(), expected);
            assert_eq!(
                origin.call(reverse_later, &peer, (bytes.clone(),)).wait().unwrap(),
                expected
            );
            assert_eq!(origin.call(reverse_blocking, &peer, (&bytes,)).wait().unwrap(), expected);
            assert_eq!(origin.call(reverse_given, &peer, (&bytes,)).wait().unwrap(), expected);
            assert_eq!(origin.call(length, &peer, (&bytes,)).wait().unwrap(), len as u64);
        }
        assert_nothing_kept(&[&target, &origin]);
        assert_eq!(target.requests_in_service(), 0);
    }
}

#[test]
fn a_large_error_of_the_handlers_own_arrives_whole() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(refuse, &peer, (3 * MIB as u64,)).wait();
    assert!(matches!(answer, Err(CallError::Handler(error)) if error == vec![7; 3 * MIB]));
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn one_way_calls_carry_large_arguments_and_give_their_memory_back() {
    let (target, origin) = pair(builder(), builder());
    let (sender, arrived) = mpsc::channel();
    target
        .serve(tell, move |_request, (bytes,)| {
            sender.send(bytes.to_vec()).unwrap();
            Ok(())
        })
        .unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let bytes = numbers(2 * MIB);
    origin.notify(tell, &peer, (&bytes,)).wait().unwrap();
    drop(origin.notify(tell, &peer, (&bytes,)));
    // Nobody serves these; their memory goes all the same.
    origin.notify(unknown, &peer, (&bytes,)).wait().unwrap();
    assert_eq!(arrived.recv().unwrap(), bytes);
    assert_eq!(arrived.recv().unwrap(), bytes);
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn more_than_the_limit_is_refused_on_either_side_with_a_sentence_that_names_it() {
    let (target, origin) = pair(builder().large_max(MIB as u64), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let bytes = numbers(MIB + 1);
    for answer in [
        origin.call(reverse, &peer, (&bytes,)).wait().map(drop),
        origin.call(make, &peer, (MIB as u64 + 1,)).wait().map(drop),
    ] {
        assert!(matches!(&answer, Err(CallError::Rejected(why)) if why.contains("large_max")));
    }
    let (target, origin) = pair(builder(), builder().large_max(MIB as u64));
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(reverse, &peer, (&bytes,)).wait().map(drop);
    assert!(
        matches!(&answer, Err(own @ CallError::NotMade(_)) if own.to_string().contains("large_max"))
    );
    let answer = origin.call(make, &peer, (MIB as u64 + 1,)).wait().map(drop);
    assert!(matches!(&answer, Err(CallError::Rejected(why)) if why.contains("large_max")));
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn arguments_and_results_beyond_half_of_the_targets_budget_are_refused_and_those_within_are_served()
{
    let half = MIB as u64 + 1_000;
    let (target, origin) = pair(builder().large_in_service_max(2 * half), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let bytes = numbers(MIB + 1_000);
    let answer = origin.call(length, &peer, (&bytes,)).wait().map(drop);
    let Err(CallError::Rejected(why)) = &answer else { panic!("{answer:?}") };
    assert!(why.contains(&half.to_string()) && why.contains("large_in_service_max"), "{why}");
    assert_eq!(origin.call(length, &peer, (&bytes[..MIB],)).wait().unwrap(), MIB as u64);
    let result = origin.call(make, &peer, (half,)).wait().map(drop);
    let Err(CallError::Rejected(why)) = &result else { panic!("{result:?}") };
    assert!(why.contains(&half.to_string()) && why.contains("large_in_service_max"), "{why}");
    assert_eq!(origin.call(make, &peer, (MIB as u64,)).wait().unwrap().len(), MIB);
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn an_unknown_rpc_with_large_arguments_is_said_to_be_unknown() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(unknown, &peer, (&numbers(MIB),)).wait();
    assert!(matches!(answer, Err(CallError::NoSuchRpc { .. })));
    assert_eq!(origin.call(length, &peer, (&[1, 2],)).wait().unwrap(), 2);
}

#[test]
fn a_deadline_ends_a_call_with_large_arguments_and_the_next_one_works() {
    let (target, origin) = pair(builder(), builder());
    target
        .serve_async(never, |request, (_bytes,)| async move {
            request.cancelled().await;
            Ok(())
        })
        .unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let bytes = numbers(MIB);
    let options = CallOptions::within(Duration::from_millis(20));
    let answer = origin.call_with(never, &peer, (&bytes,), options).wait();
    assert!(matches!(answer, Err(CallError::DeadlineExceeded(_))), "{answer:?}");
    let call = origin.call(never, &peer, (&bytes,));
    call.cancel();
    assert!(matches!(call.wait(), Err(CallError::Cancelled)));
    assert_eq!(origin.call(reverse, &peer, (&bytes,)).wait().unwrap(), reversed(MIB));
    while target.requests_in_service() != 0 {
        std::thread::yield_now();
    }
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn results_that_nobody_takes_are_freed() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    for _ in 0..20 {
        drop(origin.call(make, &peer, (MIB as u64,)));
        // The next one's answer comes after it.
        origin.call(length, &peer, (&[],)).wait().unwrap();
        let mut call = origin.call(make, &peer, (MIB as u64,));
        // Dropped while it settles, while it is pulled, or after.
        for _ in 0..3 {
            if let Some(result) = call.try_wait() {
                assert_eq!(result.unwrap().len(), MIB);
                break;
            }
        }
    }
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn an_origin_that_goes_leaves_nothing_at_its_target() {
    let (target, origin) = pair(builder(), builder());
    let served = Arc::new(AtomicUsize::new(0));
    let peer = origin.lookup(target.address()).unwrap();
    let calls: Vec<_> = (0..8).map(|_| origin.call(make, &peer, (MIB as u64,))).collect();
    // All are answered once a later one is.
    origin.call(length, &peer, (&[],)).wait().unwrap();
    served.fetch_add(calls.len(), Ordering::Relaxed);
    std::mem::forget(calls);
    drop(origin);
    assert_nothing_kept(&[&target]);
}

#[test]
fn large_arguments_wait_for_the_targets_budget_and_all_are_served() {
    let (target, origin) = pair(builder().large_in_service_max(4 * MIB as u64), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let bytes = numbers(MIB);
    let calls: Vec<_> = (0..16).map(|_| origin.call(length, &peer, (&bytes,))).collect();
    for call in calls {
        assert_eq!(call.wait().unwrap(), MIB as u64);
    }
    let calls: Vec<_> = (0..16).map(|_| origin.call(reverse_blocking, &peer, (&bytes,))).collect();
    for call in calls {
        match call.wait() {
            Ok(bytes) => assert_eq!(bytes.len(), MIB),
            Err(CallError::Rejected(why)) => assert!(why.contains("large_in_service_max"), "{why}"),
            Err(other) => panic!("{other}"),
        }
    }
    assert_nothing_kept(&[&target, &origin]);
}
