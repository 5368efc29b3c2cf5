//! Transfers that end before they are done: exactly one end, and the memory comes back.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hg::{
    Engine, Peer, Progress, Wait,
    bulk::{Bulk, Descriptor, Memory, Rights, Transfer, TransferError, alloc},
};

use super::{end_of, from_hex, holds, listening, open, patterned, to_hex, url_of};
use crate::{
    common::{
        Child, Watchdog, block_on,
        child::{next_command, say},
        process::fds,
        settled, until,
    },
    roles::Settings,
    transports::bulk_urls,
};

const MIB: usize = 1 << 20;

/// Memory that takes the transport many rounds to move.
fn large(url: &str) -> usize {
    match url.split_once('+') {
        Some(("sealed", _)) => 3 * MIB,
        Some(_) => 8 * MIB,
        None => 24 * MIB,
    }
}

/// The role: exposes memory, `memory=heap`, `shared` or `frozen`. Says its bound descriptor; `take` takes the memory back.
pub(crate) fn play_owner(settings: &Settings) {
    let url = url_of(settings);
    let engine = open(settings.builder().listen(true), url);
    let bytes = patterned(large(url));
    let in_buffer = || {
        let mut buffer = alloc(bytes.len()).expect("memory");
        buffer.copy_from_slice(&bytes);
        buffer
    };
    let (memory, rights) = match settings.text("memory") {
        Some("frozen") => {
            (Memory::from(in_buffer().freeze().expect("a fresh buffer")), Rights::READ)
        }
        Some("shared") => (Memory::from(in_buffer()), Rights::all()),
        _ => (Memory::from(bytes.clone()), Rights::all()),
    };
    let mut bulk = engine.expose(memory, rights).ok();
    say(&to_hex(&bulk.as_ref().expect("memory").bound_descriptor()));
    while let Some(command) = next_command() {
        match command.as_str() {
            "take" => {
                let back = bulk.take().map(Bulk::into_vec);
                let is_whole = matches!(back, Some(Ok(back)) if back == bytes);
                say(if is_whole { "whole" } else { "not whole" });
            }
            other => panic!("an owner knows no `{other}`"),
        }
    }
}

/// A pull from, or a push of the same bytes to the memory of an owner.
fn move_all<'e>(
    engine: &'e Engine,
    is_pull: bool,
    owner: &Peer,
    what: &Descriptor,
    local: &Bulk,
) -> Transfer<'e> {
    if is_pull { engine.pull(owner, what, local) } else { engine.push(owner, local, what) }
}

/// The role: pulls the memory that `what=HEX` names again and again, or with `push=yes` pushes to it what it holds.
/// Says `moved` after the first time.
pub(crate) fn play_mover(settings: &Settings) {
    let url = url_of(settings);
    let engine = open(settings.builder(), url);
    let what = from_hex(settings.text("what").expect("this role needs `what=HEX`"));
    let owner = engine.owner_of(&what).expect("a bound descriptor");
    let local = engine.expose(patterned(large(url)), Rights::empty()).expect("memory");
    let is_pull = settings.text("push").is_none();
    let mut is_first = true;
    loop {
        let transfers: Vec<_> =
            (0..4).map(|_| move_all(&engine, is_pull, &owner, &what, &local)).collect();
        transfers.into_iter().for_each(|it| it.wait().expect("the owner outlives its movers"));
        if std::mem::take(&mut is_first) {
            say("moved");
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

/// What is moved by whom, and how its mover waits.
const CASES: [(&str, bool, Wait); 6] = [
    ("heap", true, Wait::Spin),
    ("heap", true, Wait::Block),
    ("heap", false, Wait::Adaptive(Wait::ADAPTIVE_DEFAULT)),
    ("shared", true, Wait::Adaptive(Wait::ADAPTIVE_DEFAULT)),
    ("shared", false, Wait::Block),
    ("frozen", true, Wait::Block),
];

/// Kills an owner while its memory is being moved; whether one transfer at least was cut off.
fn kill_owner_during_transfers(url: &str, (memory, is_pull, wait): (&str, bool, Wait)) -> bool {
    let (mut child, what) = start_owner(url, memory);
    let engine = open(hg::builder().wait(wait), url);
    let owner = engine.owner_of(&what).unwrap();
    let local = engine.expose(patterned(large(url)), Rights::empty()).unwrap();
    let start = || move_all(&engine, is_pull, &owner, &what, &local);
    // Twice: from the second use on, memory that can be mapped is.
    (0..2).for_each(|_| start().wait().unwrap());
    let transfers: Vec<_> = (0..40).map(|_| start()).collect();
    child.kill();
    let ends: Vec<_> = transfers.into_iter().map(|it| end_of(&it.wait())).collect();
    assert!(ends.iter().all(|end| ["Ok", "PeerGone"].contains(end)), "{memory}: {ends:?}");
    // Memory that is mapped needs nobody: it is there until the death is noticed.
    until(|| end_of(&start().wait()) == "PeerGone");
    // A piece that the kernel moves ends by itself, and lets go of the memory then.
    let bytes = take_back(&engine, local);
    assert_eq!(bytes, patterned(large(url)));

    let (_next, what) = start_owner(url, memory);
    let owner = engine.owner_of(&what).unwrap();
    assert_eq!(engine.fetch(&owner, &what).wait().unwrap(), bytes);
    ends.contains(&"PeerGone")
}

#[test]
fn an_owner_killed_during_transfers_ends_every_one_with_peer_gone() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        for case in CASES {
            // Again if all of them were faster than the signal; memory that is mapped is there without its owner.
            while !kill_owner_during_transfers(url, case) && case.0 == "heap" {}
        }
    }
}

#[test]
fn a_process_killed_during_its_transfers_leaves_the_owner_its_memory() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        // libfabric knows no kinds of memory.
        let kinds: &[_] = if url.contains("ofi+") { &["heap"] } else { &["heap", "shared"] };
        for memory in kinds {
            let (mut owner, what) = start_owner(url, memory);
            let before = settled(|| fds(owner.pid()));
            for settings in ["", "push=yes", ""] {
                let arguments = format!("url={url} what={} {settings}", to_hex(&what));
                let mut mover = Child::start("bulk-mover", &arguments);
                assert_eq!(mover.hear(), "moved");
                mover.kill();
            }
            assert_eq!(owner.ask("take"), "whole", "{url} {memory}");
            until(|| fds(owner.pid()) <= before);
        }
    }
}

/// An owner in this process with memory that takes many rounds to move, and a user.
struct Scene {
    owner: Engine,
    source: Bulk,
    user: Engine,
    peer: Peer,
    len: usize,
}

impl Scene {
    fn new(url: &str, progress: Progress) -> Self {
        let (owner, len) = (listening(url), large(url));
        let source = owner.expose(patterned(len), Rights::all()).unwrap();
        let user = open(hg::builder().progress(progress), url);
        let peer = user.lookup(owner.address()).unwrap();
        Self { owner, source, user, peer, len }
    }

    fn target(&self) -> Bulk {
        self.user.expose(vec![0; self.len], Rights::empty()).unwrap()
    }

    fn pull(&self, into: &Bulk) -> Transfer<'_> {
        self.user.pull(&self.peer, self.source.descriptor(), into)
    }

    /// What is written by a transfer, its other side, and the transfer.
    fn start(&self, is_pull: bool) -> (Bulk, Option<Bulk>, Transfer<'_>) {
        if is_pull {
            let target = self.target();
            let transfer = self.pull(&target);
            return (target, None, transfer);
        }
        let sink = self.owner.expose(vec![0; self.len], Rights::WRITE).unwrap();
        let own = self.user.expose(patterned(self.len), Rights::empty()).unwrap();
        let transfer = self.user.push(&self.peer, &own, sink.descriptor());
        (sink, Some(own), transfer)
    }

    /// The next transfer works, whatever happened before.
    fn check_next(&self) {
        for is_pull in [true, false] {
            let (written, _other, transfer) = self.start(is_pull);
            transfer.wait().unwrap();
            assert!(holds(&written.into_vec().unwrap(), 0, 0, self.len as u64));
        }
    }
}

/// So many steps of a transfer: a round sleeps until something moves, however long the other side has to wait for a
/// processor. How it ended, if it did before.
fn make_rounds(
    user: &Engine,
    transfer: &mut Transfer<'_>,
    rounds: u32,
) -> Option<Result<(), TransferError>> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..rounds {
        if let Poll::Ready(result) = Pin::new(&mut *transfer).poll(&mut context) {
            return Some(result);
        }
        user.progress(Duration::from_secs(1));
    }
    None
}

/// Until no transfer is under way: a piece that the kernel moves ends by itself, after its transfer perhaps.
fn settle(user: &Engine) {
    while user.transfers_under_way() > 0 {
        user.progress(Duration::from_millis(1));
    }
}

/// Gets the memory back from whoever is through with its transfers, or will be: a piece that the kernel moves may end after its transfer.
fn take_back(user: &Engine, bulk: Bulk) -> Vec<u8> {
    let mut bulk = Some(bulk);
    loop {
        match bulk.take().unwrap().into_vec() {
            Ok(bytes) => return bytes,
            Err(busy) => bulk = Some(busy.into_bulk().unwrap()),
        }
        user.progress(Duration::from_millis(1));
    }
}

/// Cancels after so many rounds; whether the transfer was whole before.
fn cancel_after(scene: &Scene, is_pull: bool, rounds: u32) -> bool {
    let (written, other, mut transfer) = scene.start(is_pull);
    let result = make_rounds(&scene.user, &mut transfer, rounds).unwrap_or_else(|| {
        transfer.cancel();
        transfer.cancel();
        transfer.wait()
    });
    assert!(["Ok", "Cancelled"].contains(&end_of(&result)), "after {rounds} rounds: {result:?}");
    // Whoever moves its last piece lets go of the memory after it has told.
    let bytes = take_back(&scene.user, written);
    assert!(is_partly_right(&bytes), "after {rounds} rounds");
    let own = other.map(|own| take_back(&scene.user, own));
    assert!(own.is_none_or(|own| own == patterned(scene.len)));
    result.is_ok()
}

#[test]
fn a_transfer_cancelled_at_every_step_ends_once_and_gives_its_memory_back() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url, Progress::Own);
        scene.check_next();
        for is_pull in [true, false] {
            // Each round at first, then at growing distances, until one is whole before it is cancelled.
            let (mut rounds, mut cancelled) = (0, 0);
            while !cancel_after(&scene, is_pull, rounds) {
                cancelled += 1;
                rounds += 1 + rounds / 8;
            }
            // libfabric moves megabytes in a round, in the background of the other side.
            let steps = if url.contains("ofi+") { 1 } else { 4 };
            assert!(cancelled >= steps, "{cancelled} cancelled, whole after {rounds} rounds");
            scene.check_next();
        }
    }
}

#[test]
fn a_transfer_dropped_at_every_step_gives_its_memory_back() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url, Progress::Own);
        scene.check_next();
        for rounds in 0..30 {
            let target = scene.target();
            let mut transfer = scene.pull(&target);
            drop(make_rounds(&scene.user, &mut transfer, rounds));
            drop(transfer);
            assert!(is_partly_right(&take_back(&scene.user, target)), "after {rounds} rounds");
            settle(&scene.user);
        }
        scene.check_next();
    }
}

#[test]
fn a_deadline_ends_a_transfer_before_during_or_never() {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    for url in bulk_urls() {
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
                assert!(is_partly_right(&take_back(&scene.user, target)));
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
    for url in bulk_urls() {
        let scene = Scene::new(url, Progress::Background);
        let target = scene.target();
        let transfers: Vec<_> =
            (0..20).map(|_| scene.pull(&target).within(Duration::from_micros(300))).collect();
        let ends: Vec<_> = transfers.into_iter().map(|it| end_of(&block_on(it))).collect();
        assert!(ends.contains(&"DeadlineExceeded"), "{ends:?}");
        drop(take_back(&scene.user, target));
        scene.check_next();
    }
}

/// What an owner and its user count of transfers that were given up is given back: else the hundreds here fill it.
#[test]
fn after_hundreds_of_transfers_that_ended_early_the_next_is_served() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url, Progress::Background);
        let target = scene.target();
        for micros in (0..400).step_by(10) {
            let deadline = Duration::from_micros(micros);
            let transfers: Vec<_> = (0..10).map(|_| scene.pull(&target).within(deadline)).collect();
            transfers.into_iter().for_each(|it| drop(it.wait()));
        }
        drop(target);
        scene.check_next();
    }
}

#[test]
fn closing_the_engine_ends_its_transfers() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let owner = listening(url);
        let source = owner.expose(patterned(large(url)), Rights::READ).unwrap();
        let user = open(hg::builder(), url);
        let peer = user.lookup(owner.address()).unwrap();
        let target = user.expose(vec![0; large(url)], Rights::empty()).unwrap();
        for _ in 0..5 {
            drop(user.pull(&peer, source.descriptor(), &target));
        }
        drop(user);
        assert!(is_partly_right(&take_back(&owner, target)));
        assert_eq!(source.into_vec().unwrap(), patterned(large(url)));
    }
}

#[test]
fn an_owner_that_takes_its_memory_back_during_a_pull_ends_it() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let owner = listening(url);
        let user = open(hg::builder(), url);
        let peer = user.lookup(owner.address()).unwrap();
        let target = user.expose(vec![0; large(url)], Rights::empty()).unwrap();
        let mut ends = Vec::new();
        for _ in 0..5 {
            let source = owner.expose(patterned(large(url)), Rights::READ).unwrap();
            let what = source.descriptor();
            let transfers: Vec<_> = (0..10).map(|_| user.pull(&peer, &what, &target)).collect();
            assert_eq!(source.into_vec().unwrap(), patterned(large(url)));
            ends.extend(transfers.into_iter().map(|it| end_of(&it.wait())));
        }
        assert!(ends.iter().all(|end| ["Ok", "Stale"].contains(end)), "{ends:?}");
        assert!(ends.contains(&"Stale"), "{ends:?}");
        assert!(is_partly_right(&target.into_vec().unwrap()));
    }
}
