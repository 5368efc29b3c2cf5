//! Fetches of short memory, which the transport does within the call or not: over shared memory inside one process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use hg_bulk::{Descriptor as Lent, TransferError};
use hg_core::error::CallError;
use hg_engine::{Builder, Bulk, Engine, Peer, Progress, Request};
use hg_macros::rpc;
use hg_na::{Address, Begun, Context as Transport, Descriptor, Memory, Rights};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_sm::{SmPlugin, shared::alloc};
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use watchdog::in_time;

mod hg;

#[rpc(crate = crate::hg)]
fn summed(memory: Lent) -> Result<u64, String>;

#[rpc(crate = crate::hg)]
fn ping() {}

/// Fetches that the user's transport was asked for, and did; and whether it does any.
#[derive(Debug, Default)]
struct Watch {
    asked: AtomicUsize,
    done: AtomicUsize,
    refuses: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Watched(Arc<Watch>);

impl Layers for Watched {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Layer for Watched {
    fn fetch<'into>(
        &mut self,
        inner: &mut dyn Transport,
        owner: hg_na::Peer,
        (remote, offset): (&Descriptor, u64),
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        // What is there when it is not done does not matter.
        into.fill(0xEE);
        if self.0.refuses.load(Ordering::SeqCst) {
            return Begun::No;
        }
        let begun = inner.fetch(owner, remote, offset, into, may_wait);
        self.0.done.fetch_add(usize::from(!matches!(begun, Begun::No)), Ordering::SeqCst);
        begun
    }
}

/// A user of memory, whose transport is watched, and its owner.
struct Pair {
    user: Engine,
    owner: Engine,
    to: Peer,
    watch: Arc<Watch>,
}

impl Pair {
    fn new(progress: Progress) -> Self {
        let watched = Watched::default();
        let watch = Arc::clone(&watched.0);
        let open = |builder: Builder| builder.eager_max(0).listen(true).open("sm://").unwrap();
        let builder = Builder::new().progress(progress);
        let user = open(builder.plugin(Layered::new(SmPlugin, watched)));
        let owner = open(Builder::new().plugin(SmPlugin));
        user.register(ping).unwrap();
        owner.register(ping).unwrap();
        let to = user.lookup(owner.address()).unwrap();
        user.call(ping, &to, ()).wait().unwrap();
        Self { user, owner, to, watch }
    }

    fn done(&self) -> usize {
        self.watch.done.load(Ordering::SeqCst)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn shared(len: usize) -> Memory {
    let mut memory = alloc(len).unwrap();
    memory.copy_from_slice(&pattern(len));
    memory.into()
}

#[test]
fn short_memory_is_fetched_within_the_call_and_into_the_vector_that_was_there() {
    let pair = Pair::new(Progress::Own);
    for memory in [Memory::from(pattern(4096)), shared(4096)] {
        let lent = pair.owner.expose(memory, Rights::READ).unwrap();
        let start = Instant::now();
        // The first ones of memory that can be mapped ask for the mapping.
        while pair.done() == 0 {
            in_time!(start, "nothing is fetched by the transport");
            assert_eq!(pair.user.fetch(&pair.to, lent.descriptor()).wait().unwrap(), pattern(4096));
        }
        let mut bytes = Vec::with_capacity(10_000);
        for n in [9, 10_000, 4096] {
            bytes.resize(n, 0xAA);
            let (place, before) = (bytes.as_ptr().addr(), pair.done());
            bytes = pair.user.fetch_into(&pair.to, lent.descriptor(), bytes).wait().unwrap();
            assert_eq!(bytes, pattern(4096));
            assert_eq!((bytes.as_ptr().addr(), pair.done()), (place, before + 1));
        }
        pair.watch.done.store(0, Ordering::SeqCst);
    }
}

#[test]
fn what_the_transport_does_not_do_within_the_call_is_fetched_all_the_same() {
    let pair = Pair::new(Progress::Background);
    pair.watch.refuses.store(true, Ordering::SeqCst);
    let mut bytes = vec![1; 100];
    for memory in [Memory::from(pattern(5000)), shared(5000), vec![pattern(5000); 3].into()] {
        let len = usize::try_from(memory.len()).unwrap();
        let lent = pair.owner.expose(memory, Rights::READ).unwrap();
        bytes = pair.user.fetch_into(&pair.to, lent.descriptor(), bytes).wait().unwrap();
        assert_eq!(bytes, pattern(5000).repeat(len / 5000));
    }
    assert!(pair.watch.asked.load(Ordering::SeqCst) >= 3 && pair.done() == 0);
}

#[test]
fn a_handler_fetches_from_its_caller() {
    let pair = Pair::new(Progress::Background);
    let sum = |bytes: &[u8]| bytes.iter().copied().map(u64::from).sum::<u64>();
    pair.user
        .serve_async(summed, move |request: Request, (memory,)| async move {
            let bytes = request.fetch(&memory).await.map_err(|error| error.to_string())?;
            let again = request.fetch_into(&memory, vec![7; 3]).await;
            assert_eq!(again.map_err(|error| error.to_string())?, bytes);
            Ok(sum(&bytes))
        })
        .unwrap();
    let user = pair.owner.lookup(pair.user.address()).unwrap();
    let call = |lent: &Bulk| pair.owner.call(summed, &user, (lent.descriptor(),)).wait();
    for len in [0, 1, 4096, 16 * 1024, 64 * 1024, 64 * 1024 + 1, 3 << 20] {
        let lent = pair.owner.expose(pattern(len), Rights::READ).unwrap();
        for refuses in [false, true] {
            pair.watch.refuses.store(refuses, Ordering::SeqCst);
            assert_eq!(call(&lent).unwrap(), sum(&pattern(len)), "{len}");
        }
    }
    let closed = pair.owner.expose(pattern(64), Rights::WRITE).unwrap();
    match call(&closed) {
        Err(CallError::Handler(text)) => assert!(text.contains("grants"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_wrong_with_a_fetch_is_told_as_ever() {
    let pair = Pair::new(Progress::Own);
    let lent = pair.owner.expose(pattern(64), Rights::READ).unwrap();
    let descriptor = lent.descriptor();
    assert!(pair.user.fetch(&pair.to, &descriptor).wait().is_ok());
    drop(lent);
    let stale = pair.user.fetch(&pair.to, &descriptor).wait();
    assert!(matches!(stale, Err(TransferError::Stale)), "{stale:?}");
    let other = Builder::new().plugin(SmPlugin).eager_max(0).open("sm://").unwrap();
    let stranger = other.expose(pattern(64), Rights::READ).unwrap();
    let foreign = pair.user.fetch(&pair.to, stranger.descriptor()).wait();
    assert!(foreign.is_err(), "{foreign:?}");
    pair.owner.close();
    let start = Instant::now();
    while pair.user.call(ping, &pair.to, ()).wait().is_ok() {
        in_time!(start, "the owner's end was never seen");
    }
    let gone = pair.user.fetch(&pair.to, &descriptor).wait();
    assert!(matches!(gone, Err(TransferError::PeerGone { .. })), "{gone:?}");
}

/// Who only fetches is not to keep others waiting.
#[test]
fn an_engine_that_only_fetches_serves_meanwhile() {
    const FETCHES_MAX: usize = 1 << 20;
    let pair = Pair::new(Progress::Own);
    let lent = pair.owner.expose(pattern(16 * 1024), Rights::READ).unwrap();
    let descriptor = lent.descriptor();
    let (owner, address) = (pair.owner.clone(), pair.user.address().clone());
    let is_served = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_served);
    let caller = thread::spawn(move || {
        let user = owner.lookup(&address).unwrap();
        let served = owner.call(ping, &user, ()).wait();
        told.store(true, Ordering::SeqCst);
        served
    });
    let mut bytes = Vec::new();
    let fetches = (0..FETCHES_MAX).take_while(|_| {
        let into = std::mem::take(&mut bytes);
        bytes = pair.user.fetch_into(&pair.to, &descriptor, into).wait().unwrap();
        !is_served.load(Ordering::SeqCst)
    });
    let count = fetches.count();
    assert!(count < FETCHES_MAX, "it was never served");
    caller.join().unwrap().unwrap();
    assert!(pair.done() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_range_of_any_memory_is_fetched_whole(
        cuts in proptest::collection::vec(0_usize..30_000, 1..4),
        (from, to) in (any::<u64>(), any::<u64>()),
        (is_shared, refuses, before) in (any::<bool>(), any::<bool>(), 0_usize..100_000),
    ) {
        let pair = Pair::new(Progress::Own);
        pair.watch.refuses.store(refuses, Ordering::SeqCst);
        let all: Vec<u8> = cuts.iter().flat_map(|len| pattern(*len)).collect();
        let memory = match (is_shared, all.len()) {
            (true, 1..) => {
                let mut memory = alloc(all.len()).unwrap();
                memory.copy_from_slice(&all);
                memory.into()
            }
            _ => Memory::from(cuts.iter().map(|len| pattern(*len)).collect::<Vec<_>>()),
        };
        let lent = pair.owner.expose(memory, Rights::READ).unwrap();
        let (from, to) = (from % (all.len() as u64 + 1), to % (all.len() as u64 + 1));
        let (from, to) = (from.min(to), from.max(to));
        let range = lent.descriptor().range(from..to).unwrap();
        let wanted = &all[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        for _ in 0..3 {
            let into = vec![0xAA; before];
            let bytes = pair.user.fetch_into(&pair.to, range.clone(), into).wait().unwrap();
            prop_assert_eq!(bytes.as_slice(), wanted);
        }
    }
}
