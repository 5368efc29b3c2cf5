//! Transfers that end before they are done: exactly one end, and the memory comes back.

use std::time::Duration;

use hg::{
    Engine, Handle, Peer, Progress, Wait,
    bulk::{Bulk, Descriptor, Memory, Rights, Transfer, TransferError, alloc},
};

use super::{URLS, end_of, from_hex, holds, listening, open, patterned, to_hex, url_of};
use crate::{
    common::{
        Child, Watchdog, block_on,
        child::{next_command, say},
        process::fds,
        settled, until,
    },
    roles::Settings,
};

const MIB: usize = 1 << 20;
/// Memory that takes a transport many rounds to move.
const LARGE: usize = 24 * MIB;

/// The role: exposes memory, heap or `memory=frozen`. Says its bound descriptor; `take` takes the memory back.
pub(crate) fn play_owner(settings: &Settings) {
    let engine = open(settings.builder().listen(true), url_of(settings));
    let memory = match settings.text("memory") {
        Some("frozen") => {
            let mut buffer = alloc(LARGE).expect("memory");
            buffer.copy_from_slice(&patterned(LARGE));
            Memory::from(buffer.freeze().expect("a fresh buffer"))
        }
        _ => Memory::from(patterned(LARGE)),
    };
    let mut bulk = engine.expose(memory, Rights::READ).ok();
    say(&to_hex(&bulk.as_ref().expect("memory").bound_descriptor()));
    while let Some(command) = next_command() {
        match command.as_str() {
            "take" => {
                let bytes = bulk.take().map(Bulk::into_vec);
                let is_whole = matches!(bytes, Some(Ok(bytes)) if bytes == patterned(LARGE));
                say(if is_whole { "whole" } else { "not whole" });
            }
            other => panic!("an owner knows no `{other}`"),
        }
    }
}

/// The role: pulls the memory that `what=HEX` names again and again. Says `pulled` after the first time.
pub(crate) fn play_puller(settings: &Settings) {
    let engine = open(settings.builder(), url_of(settings));
    let what = from_hex(settings.text("what").expect("this role needs `what=HEX`"));
    let owner = engine.owner_of(&what).expect("a bound descriptor");
    let local = engine.expose(vec![0; LARGE], Rights::empty()).expect("memory");
    let mut is_first = true;
    loop {
        let transfers: Vec<_> = (0..4).map(|_| engine.pull(&owner, &what, &local)).collect();
        transfers.into_iter().for_each(|it| it.wait().expect("the owner outlives its pullers"));
        if std::mem::take(&mut is_first) {
            say("pulled");
        }
    }
}

pub(super) fn start_owner(url: &str, memory: &str) -> (Child, Descriptor) {
    let mut child = Child::start("bulk-owner", &format!("url={url} memory={memory}"));
    let what = from_hex(&child.hear());
    (child, what)
}

/// Each byte is the pattern, or was not touched.
fn is_partly_right(bytes: &[u8]) -> bool {
    let whole = patterned(bytes.len());
    let is_right = |(some, all): (&[u8], &[u8])| {
        some == all
            || some == &[0; 4096][..some.len()]
            || some.iter().zip(all).all(|(byte, right)| *byte == 0 || byte == right)
    };
    bytes.chunks(4096).zip(whole.chunks(4096)).all(is_right)
}

#[test]
fn an_owner_killed_during_a_pull_ends_every_transfer_with_peer_gone() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        for wait in [Wait::Spin, Wait::default(), Wait::Block] {
            let (mut child, what) = start_owner(url, "heap");
            let engine = open(Engine::builder().wait(wait), url);
            let owner = engine.owner_of(&what).unwrap();
            let local = engine.expose(vec![0; LARGE], Rights::empty()).unwrap();
            engine.pull(&owner, &what, &local).wait().unwrap();
            let transfers: Vec<_> = (0..40).map(|_| engine.pull(&owner, &what, &local)).collect();
            child.kill();
            let ends: Vec<_> = transfers.into_iter().map(|it| end_of(&it.wait())).collect();
            assert!(ends.iter().all(|end| ["Ok", "PeerGone"].contains(end)), "{ends:?}");
            assert_eq!(ends.last(), Some(&"PeerGone"), "{ends:?}");
            assert_eq!(engine.transfers_under_way(), 0);
            let bytes = local.into_vec().unwrap();
            assert_eq!(bytes, patterned(LARGE));

            let (_next, what) = start_owner(url, "heap");
            let owner = engine.owner_of(&what).unwrap();
            assert_eq!(engine.fetch(&owner, &what).wait().unwrap(), bytes);
        }
    }
}

#[test]
fn a_puller_killed_during_a_pull_leaves_the_owner_its_memory() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let (mut owner, what) = start_owner(url, "heap");
        let before = settled(|| fds(owner.pid()));
        for _ in 0..5 {
            let arguments = format!("url={url} what={}", to_hex(&what));
            let mut puller = Child::start("bulk-puller", &arguments);
            assert_eq!(puller.hear(), "pulled");
            puller.kill();
        }
        assert_eq!(owner.ask("take"), "whole");
        until(|| fds(owner.pid()) == before);
    }
}

/// An owner in this process with memory that takes many rounds to move, and a user.
struct Scene {
    _owner: Engine,
    source: Bulk,
    user: Engine,
    peer: Peer,
}

impl Scene {
    fn new(url: &str, progress: Progress) -> Self {
        let owner = listening(url);
        let source = owner.expose(patterned(LARGE), Rights::all()).unwrap();
        let user = open(Engine::builder().progress(progress), url);
        let peer = user.lookup(owner.address()).unwrap();
        Self { _owner: owner, source, user, peer }
    }

    fn target(&self) -> Bulk {
        self.user.expose(vec![0; LARGE], Rights::empty()).unwrap()
    }

    fn pull(&self, into: &Bulk) -> Transfer<'_> {
        self.user.pull(&self.peer, self.source.descriptor(), into)
    }

    /// The next transfer works, whatever happened before.
    fn check_next(&self) {
        let target = self.target();
        self.pull(&target).wait().unwrap();
        assert!(holds(&target.into_vec().unwrap(), 0, 0, LARGE as u64));
    }
}

fn make_rounds(user: &Handle, rounds: u32) {
    for _ in 0..rounds {
        user.progress(Duration::ZERO);
    }
}

/// Gets the memory back from a user that is through with its transfers, or will be.
fn take_back(user: &Handle, bulk: Bulk) -> Vec<u8> {
    let mut bulk = Some(bulk);
    loop {
        match bulk.take().unwrap().into_vec() {
            Ok(bytes) => return bytes,
            Err(busy) => bulk = Some(busy.into_bulk().unwrap()),
        }
        user.progress(Duration::from_millis(1));
    }
}

#[test]
fn a_transfer_cancelled_at_every_step_ends_once_and_gives_its_memory_back() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let scene = Scene::new(url, Progress::Own);
        scene.check_next();
        let (mut rounds, mut cancelled, mut is_whole) = (0, 0, false);
        // Each round at first, then at growing distances, until a transfer is whole before it is cancelled.
        while !is_whole {
            let target = scene.target();
            let transfer = scene.pull(&target);
            make_rounds(&scene.user, rounds);
            transfer.cancel();
            transfer.cancel();
            match transfer.wait() {
                Ok(()) => is_whole = true,
                Err(TransferError::Cancelled) => cancelled += 1,
                other => panic!("{url}: after {rounds} rounds: {other:?}"),
            }
            assert_eq!(scene.user.transfers_under_way(), 0);
            let bytes = target.into_vec().unwrap();
            assert!(is_partly_right(&bytes), "{url}: after {rounds} rounds");
            rounds += 1 + rounds / 16;
        }
        assert!(cancelled > 3, "{url}: {cancelled} cancelled, whole after {rounds} rounds");
        scene.check_next();
    }
}

#[test]
fn a_transfer_dropped_at_every_step_gives_its_memory_back() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let scene = Scene::new(url, Progress::Own);
        scene.check_next();
        for rounds in 0..30 {
            let target = scene.target();
            let transfer = scene.pull(&target);
            make_rounds(&scene.user, rounds);
            drop(transfer);
            assert!(is_partly_right(&take_back(&scene.user, target)), "after {rounds} rounds");
            assert_eq!(scene.user.transfers_under_way(), 0);
        }
        scene.check_next();
    }
}

#[test]
fn a_deadline_ends_a_transfer_before_during_or_never() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        for progress in [Progress::Background, Progress::Own] {
            let scene = Scene::new(url, progress);
            scene.check_next();
            let mut ends = Vec::new();
            for micros in [0, 100, 500, 1000, 2000, 4000] {
                let target = scene.target();
                let deadline = Duration::from_micros(micros);
                let transfers: Vec<_> =
                    (0..10).map(|_| scene.pull(&target).within(deadline)).collect();
                for transfer in transfers {
                    ends.push(end_of(&transfer.wait()));
                }
                assert!(is_partly_right(&target.into_vec().unwrap()));
            }
            assert!(ends.contains(&"DeadlineExceeded"), "{ends:?}");
            assert!(ends.iter().all(|end| ["Ok", "DeadlineExceeded"].contains(end)), "{ends:?}");
            let target = scene.target();
            scene.pull(&target).within(Duration::MAX).wait().unwrap();
            scene.pull(&target).within(Duration::from_secs(3600)).wait().unwrap();
            scene.check_next();
        }
    }
}

#[test]
fn a_deadline_is_kept_by_the_background_alone() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let scene = Scene::new(url, Progress::Background);
        let target = scene.target();
        let transfers: Vec<_> =
            (0..20).map(|_| scene.pull(&target).within(Duration::from_micros(300))).collect();
        let ends: Vec<_> = transfers.into_iter().map(|it| end_of(&block_on(it))).collect();
        assert!(ends.contains(&"DeadlineExceeded"), "{ends:?}");
        drop(target.into_vec().unwrap());
        scene.check_next();
    }
}

#[test]
fn closing_the_engine_ends_its_transfers() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let owner = listening(url);
        let source = owner.expose(patterned(LARGE), Rights::READ).unwrap();
        let user = open(Engine::builder(), url);
        let peer = user.lookup(owner.address()).unwrap();
        let target = user.expose(vec![0; LARGE], Rights::empty()).unwrap();
        for _ in 0..5 {
            drop(user.pull(&peer, source.descriptor(), &target));
        }
        drop(user);
        assert!(is_partly_right(&target.into_vec().unwrap()));
        assert_eq!(source.into_vec().unwrap(), patterned(LARGE));
    }
}

#[test]
fn an_owner_that_takes_its_memory_back_during_a_pull_ends_it() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let owner = listening(url);
        let user = open(Engine::builder(), url);
        let peer = user.lookup(owner.address()).unwrap();
        let target = user.expose(vec![0; LARGE], Rights::empty()).unwrap();
        let mut ends = Vec::new();
        for _ in 0..5 {
            let source = owner.expose(patterned(LARGE), Rights::READ).unwrap();
            let what = source.descriptor();
            let transfers: Vec<_> = (0..10).map(|_| user.pull(&peer, &what, &target)).collect();
            assert_eq!(source.into_vec().unwrap(), patterned(LARGE));
            ends.extend(transfers.into_iter().map(|it| end_of(&it.wait())));
        }
        assert!(ends.iter().all(|end| ["Ok", "Stale"].contains(end)), "{ends:?}");
        assert!(ends.contains(&"Stale"), "{ends:?}");
        assert!(is_partly_right(&target.into_vec().unwrap()));
    }
}
