//! Frozen memory among arguments: seen where it lies inside a node, copied elsewhere, by the same code.

use std::{
    fs,
    sync::mpsc,
    time::{Duration, Instant},
};

use hg::{
    CallError, CallOptions, Engine, Peer, Request,
    bulk::{Frozen, alloc},
};
use serde::{Deserialize, Serialize};

use super::{
    Scene, listening,
    mapped::{local_urls, shared_mappings},
    open, patterned, url_of,
};
use crate::{
    common::{Child, Watchdog, block_on, child::say, process::fds, settled, until},
    roles::Settings,
    transports::bulk_urls,
};

const MIB: usize = 1 << 20;

pub(super) fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().copied().map(u64::from).sum()
}

#[hg::rpc]
pub(crate) fn sum(image: Frozen) -> u64 {
    sum_of(&image)
}

#[hg::rpc]
async fn sum_async(image: Frozen) -> u64 {
    sum_of(&image)
}

#[hg::rpc(blocking)]
fn sum_blocking(image: Frozen) -> u64 {
    sum_of(&image)
}

#[derive(Serialize, Deserialize)]
struct Stack {
    name: String,
    layers: Vec<Option<Frozen>>,
}

#[hg::rpc]
async fn sums(first: Frozen, stack: Stack, padding: Vec<u8>) -> (u64, String, Vec<u64>, u64) {
    let layers = stack.layers.iter().flatten().map(|it| sum_of(it)).collect();
    (sum_of(&first), stack.name, layers, padding.len() as u64)
}

/// Whether the bytes lie in memory that peers share.
#[hg::rpc]
fn is_mapped(image: Frozen) -> bool {
    let place = image.as_ptr().addr() as u64;
    let maps = fs::read_to_string("/proc/self/maps").expect("this process lives");
    let shared = maps.lines().filter(|line| line.contains("/memfd:hg-sm-shared"));
    shared.map(super::mapped::place_and_inode).any(|(range, _)| range.contains(&place))
}

/// Sums of what came one way.
#[hg::rpc]
fn leave(image: Frozen) {
    LEFT.lock().expect("nobody panics").push(sum_of(&image));
}

#[hg::rpc]
fn left() -> Vec<u64> {
    LEFT.lock().expect("nobody panics").clone()
}

static LEFT: std::sync::Mutex<Vec<u64>> = std::sync::Mutex::new(Vec::new());

/// Keeps the bytes until nobody waits any more.
#[hg::rpc]
async fn keep(request: &Request, image: Frozen) -> u64 {
    request.cancelled().await;
    sum_of(&image)
}

/// Has the caller add them up.
#[hg::rpc]
async fn back(request: &Request, image: Frozen) -> Result<u64, String> {
    let engine = request.engine();
    engine.call(sum, &request.origin(), (image,)).await.map_err(|error| error.to_string())
}

pub(super) fn serve(engine: &Engine) {
    engine.register(sum).expect("a fresh registry");
    engine.register(sum_async).expect("a fresh registry");
    engine.register(sum_blocking).expect("a fresh registry");
    engine.register(sums).expect("a fresh registry");
    engine.register(is_mapped).expect("a fresh registry");
    engine.register(leave).expect("a fresh registry");
    engine.register(left).expect("a fresh registry");
    engine.register(keep).expect("a fresh registry");
    engine.register(back).expect("a fresh registry");
}

pub(super) fn frozen(len: usize) -> Frozen {
    let mut buffer = alloc(len).expect("memory");
    buffer.copy_from_slice(&patterned(len));
    buffer.freeze().expect("a fresh buffer")
}

/// A scene whose engine adds up, too, when it is asked back.
fn scene(url: &str) -> Scene {
    let scene = Scene::new(url);
    scene.engine.register(sum).unwrap();
    scene
}

impl Scene {
    fn sum(&self, image: &Frozen) -> u64 {
        self.engine.call(sum, &self.peer, (image.clone(),)).wait().unwrap()
    }
}

/// Descriptors of this process when the connection is there, and no memory is lent.
fn settled_fds(engine: &Engine, peer: &Peer, child: &Child) -> usize {
    engine.call(sum, peer, (frozen(MIB),)).wait().unwrap();
    until(|| shared_mappings(child.pid()).is_empty());
    settled(|| fds(std::process::id()))
}

#[test]
fn handlers_of_every_kind_are_given_all_bytes_whatever_carries_them() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let Scene { child: _child, engine, peer } = scene(url);
        for len in [0, 1, 5000, 3 * MIB] {
            for image in [frozen(len), Frozen::from(patterned(len))] {
                let expected = sum_of(&image);
                let image = || (image.clone(),);
                for _ in 0..3 {
                    assert_eq!(engine.call(sum, &peer, image()).wait().unwrap(), expected);
                    assert_eq!(engine.call(sum_async, &peer, image()).wait().unwrap(), expected);
                    let blocking = engine.call(sum_blocking, &peer, image());
                    assert_eq!(block_on(blocking).unwrap(), expected);
                }
                // What a handler was given it passes on.
                assert_eq!(engine.call(back, &peer, image()).wait().unwrap(), expected);
            }
        }
    }
}

#[test]
fn several_of_them_and_nested_ones_come_to_their_places() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let Scene { child: _child, engine, peer } = scene(url);
        let (one, two) = (frozen(10_000), frozen(20_000));
        let sums_of = [&one, &two].map(|it| sum_of(it));
        for padding in [0, 2 * MIB] {
            let layers = vec![Some(two.clone()), None, Some(one.clone()), Some(two.clone())];
            let stack = Stack { name: "hall".to_owned(), layers };
            let args = (one.clone(), stack, vec![0; padding]);
            let (first, name, layers, len) = engine.call(sums, &peer, args).wait().unwrap();
            assert_eq!((first, name.as_str(), len), (sums_of[0], "hall", padding as u64));
            assert_eq!(layers, [sums_of[1], sums_of[0], sums_of[1]]);
        }
    }
}

#[test]
fn inside_a_node_they_are_mapped_once_for_all_calls_and_no_longer_than_there_is_a_clone() {
    let _watchdog = Watchdog::start();
    for url in local_urls() {
        let scene = scene(url);
        let (pid, image) = (scene.child.pid(), frozen(MIB));
        let expected = sum_of(&image);
        assert_eq!(scene.sum(&image), expected);
        let mapped = shared_mappings(pid);
        assert_eq!(mapped.values().copied().collect::<Vec<_>>(), [MIB as u64], "over {url}");
        let is_seen =
            |image: Frozen| scene.engine.call(is_mapped, &scene.peer, (image,)).wait().unwrap();
        assert!(is_seen(image.clone()) && !is_seen(Frozen::from(vec![0; MIB])));
        for _ in 0..100 {
            assert_eq!(scene.sum(&image), expected);
        }
        assert_eq!(shared_mappings(pid), mapped);
        let before = fds(std::process::id());
        drop(image);
        until(|| shared_mappings(pid).is_empty());
        assert_eq!(fds(std::process::id()), before - 1, "its memfd is closed");
    }
}

#[test]
fn one_way_calls_keep_the_memory_until_it_was_taken_and_no_longer() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let Scene { child, engine, peer } = scene(url);
        let descriptors = settled_fds(&engine, &peer, &child);
        for _ in 0..5 {
            engine.notify(leave, &peer, (frozen(MIB),)).wait().unwrap();
        }
        drop(engine.notify(leave, &peer, (frozen(MIB),)));
        let expected = vec![sum_of(&patterned(MIB)); 6];
        until(|| engine.call(left, &peer, ()).wait().unwrap() == expected);
        until(|| engine.large_untaken() == 0 && shared_mappings(child.pid()).is_empty());
        until(|| fds(std::process::id()) <= descriptors);
    }
}

#[test]
fn deadlines_and_cancellation_end_such_calls_and_give_the_memory_back() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let Scene { child, engine, peer } = scene(url);
        let descriptors = settled_fds(&engine, &peer, &child);
        let image = frozen(MIB);
        let options = CallOptions::within(Duration::from_millis(30));
        let ended = engine.call_with(keep, &peer, (image.clone(),), options).wait();
        assert!(matches!(ended, Err(CallError::DeadlineExceeded(_))), "{ended:?}");
        let call = engine.call(keep, &peer, (image.clone(),));
        call.cancel();
        assert!(matches!(call.wait(), Err(CallError::Cancelled)));
        drop(engine.call(keep, &peer, (image.clone(),)));
        // A target that stands still takes nothing: the call ends all the same, and so does the memory.
        child.stop();
        let options = CallOptions::within(Duration::from_millis(30));
        let begun = Instant::now();
        let ended = engine.call_with(sum, &peer, (frozen(MIB),), options).wait();
        assert!(matches!(ended, Err(CallError::DeadlineExceeded(_))), "{ended:?}");
        assert!(begun.elapsed() >= Duration::from_millis(30));
        child.signal(nix::sys::signal::Signal::SIGCONT);
        assert_eq!(engine.call(sum, &peer, (image.clone(),)).wait().unwrap(), sum_of(&image));
        drop(image);
        until(|| shared_mappings(child.pid()).is_empty());
        until(|| fds(std::process::id()) <= descriptors);
    }
}

/// The role: has its memory looked at until it is killed.
pub(crate) fn play_lender(settings: &Settings) {
    let engine = open(settings.builder(), url_of(settings));
    let peer = engine.lookup(settings.target()).expect("an address");
    let image = frozen(MIB);
    let call = engine.call(keep, &peer, (image.clone(),));
    engine.call(sum, &peer, (image,)).wait().expect("the target outlives its lenders");
    say("lent");
    call.wait().expect_err("nobody answers");
}

#[test]
fn what_a_handler_was_given_outlives_its_origin_and_then_goes() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let target = listening(url);
        target.register(sum).unwrap();
        let (sender, kept) = mpsc::channel();
        let keep_on = move |request: Request, (image,): (Frozen,)| {
            let sender = sender.clone();
            async move {
                request.cancelled().await;
                let _test_is_over = sender.send(image);
                Ok(0)
            }
        };
        target.serve_async(keep, keep_on).unwrap();
        let to = target.address();
        let mut lender = Child::start("lender", &format!("url={url} to={to}"));
        assert_eq!(lender.hear(), "lent");
        lender.kill();
        let image = kept.recv().unwrap();
        assert!(*image == *patterned(MIB), "over {url}");
        drop(image);
        until(|| target.requests_in_service() == 0);
        until(|| shared_mappings(std::process::id()).is_empty());
    }
}

#[test]
fn a_limit_of_either_side_is_named() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let mut child = Child::start("mover", &format!("url={url} large-max=1000000"));
        let address = child.hear();
        let engine = listening(url);
        let peer = engine.lookup(&address).unwrap();
        let ended = engine.call(sum, &peer, (frozen(MIB),)).wait();
        let Err(CallError::Rejected(why)) = &ended else { panic!("{ended:?}") };
        assert!(why.contains("large_max") && why.contains("1000000"), "{why}");
        engine.notify(sum, &peer, (frozen(MIB),)).wait().unwrap();
        until(|| engine.large_untaken() == 0);
        let image = frozen(1_000_000);
        assert_eq!(engine.call(sum, &peer, (image.clone(),)).wait().unwrap(), sum_of(&image));
        let engine = open(hg::builder().large_max(MIB as u64 - 1), url);
        let peer = engine.lookup(&address).unwrap();
        let ended = engine.call(sum, &peer, (frozen(MIB),)).wait();
        let why = ended.unwrap_err();
        let is_named = why.to_string().contains("large_max");
        assert!(matches!(why, CallError::NotMade(_)) && is_named, "{why}");
    }
}
