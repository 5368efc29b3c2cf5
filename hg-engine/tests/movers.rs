//! The bytes of transfers are moved without whatever keeps others from the engine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_bulk::{Descriptor as Lent, TransferError};
use hg_engine::{
    Builder, Bulk, CallOptions, Engine, Peer, Progress, Request,
    platform::{Job, Machine, Platform, Spawned, Thread},
};
use hg_macros::rpc;
use hg_na::{Address, Begun, Context as Transport, Error, Memory, Mover, Rights, Transit};
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};
use watchdog::{LIMIT, hear, in_time};

mod hg;

#[rpc(crate = crate::hg)]
fn pulled(memory: Lent) -> Result<u64, String>;

#[rpc(crate = crate::hg)]
fn ping() {}

#[rpc(crate = crate::hg)]
fn never();

const MIB: usize = 1 << 20;

/// What runs before the bytes are moved.
type Before = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

#[derive(Clone, Default)]
struct Watched {
    before: Arc<OnceLock<Before>>,
    moved: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Watched")
    }
}

impl Layers for Watched {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Layer for Watched {
    fn begin<'near>(
        &mut self,
        inner: &mut dyn Transport,
        transit: &Transit<'near, '_>,
    ) -> Begun<'near> {
        // As where the kernel moves bytes.
        if !transit.may_wait {
            return Begun::No;
        }
        match inner.begin(transit) {
            Begun::Ready(mover) => Begun::Ready(Box::new(Late { mover, watched: self.clone() })),
            begun => begun,
        }
    }

    fn moves(&mut self, inner: &mut dyn Transport, peer: hg_na::Peer) -> bool {
        inner.moves(peer)
    }
}

struct Late<'near> {
    mover: Box<dyn Mover + 'near>,
    watched: Watched,
}

impl Mover for Late<'_> {
    fn run(self: Box<Self>) -> Result<(), Error> {
        let Self { mover, watched } = *self;
        watched.before.get().map_or(Ok(()), |before| before())?;
        watched.moved.fetch_add(1, Ordering::SeqCst);
        mover.run()
    }
}

/// A user of memory, whose transport is watched, and its owner.
struct Pair {
    user: Engine,
    owner: Engine,
    to: Peer,
    watched: Watched,
    plugin: Mem,
}

impl Pair {
    fn new(progress: Progress) -> Self {
        Self::on(Arc::new(Machine::default()), progress)
    }

    fn on(platform: Arc<dyn Platform>, progress: Progress) -> Self {
        let (plugin, watched) = (Mem::default(), Watched::default());
        let user = Builder::new()
            .platform(platform)
            .progress(progress)
            .plugin(Layered::new(plugin.clone(), watched.clone()))
            .eager_max(0);
        let user = user.listen(true).open("mem://").unwrap();
        let owner =
            Builder::new().plugin(plugin.clone()).eager_max(0).listen(true).open("mem://").unwrap();
        owner.register(ping).unwrap();
        let unanswered = |request: Request, ()| async move {
            request.cancelled().await;
            Ok(())
        };
        owner.serve_async(never, unanswered).unwrap();
        let to = user.lookup(owner.address()).unwrap();
        user.call(ping, &to, ()).wait().unwrap();
        Self { user, owner, to, watched, plugin }
    }

    /// Before bytes are moved, another thread asks for the engine's lock, and has it.
    fn ask_meanwhile(&self) {
        let user = Mutex::new(self.user.clone());
        let before: Before = Box::new(move || {
            let user = user.lock().unwrap().clone();
            let (tell, told) = channel();
            thread::spawn(move || tell.send(user.transfers_under_way()));
            match told.recv_timeout(LIMIT / 4) {
                Err(RecvTimeoutError::Timeout) => panic!("bytes are moved under the engine's lock"),
                _ => Ok(()),
            }
        });
        assert!(self.watched.before.set(before).is_ok());
    }

    fn moved(&self) -> usize {
        self.watched.moved.load(Ordering::SeqCst)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[test]
fn others_use_the_engine_while_bytes_are_moved() {
    for progress in [Progress::Background, Progress::Own] {
        let pair = Pair::new(progress);
        pair.ask_meanwhile();
        // At once, where anything is; in one piece; in several.
        for len in [40_000, MIB, 5 * MIB + 40_000] {
            let before = pair.moved();
            let theirs = pair.owner.expose(pattern(len), Rights::all()).unwrap();
            let ours = pair.user.expose(vec![0; len], Rights::empty()).unwrap();
            pair.user.pull(&pair.to, theirs.descriptor(), &ours).wait().unwrap();
            assert_eq!(ours.to_vec().unwrap(), pattern(len));
            ours.write(0, &[7; 9]).unwrap();
            pair.user.push(&pair.to, &ours, theirs.descriptor()).wait().unwrap();
            assert_eq!(theirs.to_vec().unwrap(), ours.to_vec().unwrap());
            let pieces = len.div_ceil(MIB);
            assert_eq!(pair.moved() - before, 2 * pieces, "{len} bytes");
        }
        assert_eq!(pair.user.transfers_under_way(), 0);
    }
}

#[test]
fn others_use_the_engine_while_a_handler_has_bytes_moved() {
    let pair = Pair::new(Progress::Background);
    pair.ask_meanwhile();
    let into = Arc::new(pair.user.expose(vec![0; MIB], Rights::empty()).unwrap());
    pair.user
        .serve_async(pulled, move |request: Request, (memory,)| {
            let into = Arc::clone(&into);
            async move {
                request.pull(&memory, &*into).await.map_err(|error| error.to_string())?;
                let bytes = into.to_vec().map_err(|error| error.to_string())?;
                Ok(bytes.iter().copied().map(u64::from).sum())
            }
        })
        .unwrap();
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let sum = pair.owner.call(pulled, &there, (lent.descriptor(),)).wait().unwrap();
    assert_eq!(sum, pattern(MIB).iter().copied().map(u64::from).sum::<u64>());
    assert!(pair.moved() > 0);
}

/// Has each piece wait, until what is given second is dropped; the first is told of each.
fn hold_up(watched: &Watched) -> (Receiver<()>, Sender<()>) {
    let (at_it, is_at_it) = channel();
    let (go_on, goes_on) = channel::<()>();
    let (at_it, goes_on) = (Mutex::new(at_it), Mutex::new(goes_on));
    let stop: Before = Box::new(move || {
        let _nobody_waits = at_it.lock().unwrap().send(());
        let _nobody_tells = goes_on.lock().unwrap().recv_timeout(LIMIT);
        Ok(())
    });
    assert!(watched.before.set(stop).is_ok());
    (is_at_it, go_on)
}

fn serve_pulls(engine: &Engine) {
    engine
        .serve_async(pulled, |request: Request, (memory,)| async move {
            let bytes = request.fetch(&memory).await.map_err(|error| error.to_string())?;
            Ok(bytes.iter().copied().map(u64::from).sum())
        })
        .unwrap();
}

#[test]
fn a_piece_that_takes_long_keeps_nobody_from_being_served() {
    for len in [40_000, MIB] {
        let pair = Pair::new(Progress::Background);
        let (is_at_it, go_on) = hold_up(&pair.watched);
        serve_pulls(&pair.user);
        pair.user.register(ping).unwrap();
        let there = pair.owner.lookup(pair.user.address()).unwrap();
        let lent = pair.owner.expose(pattern(len), Rights::READ).unwrap();
        let pulling = pair.owner.call(pulled, &there, (lent.descriptor(),));
        hear(&is_at_it);
        let other = Builder::new().plugin(pair.plugin.clone()).open("mem://").unwrap();
        let theirs = other.lookup(pair.user.address()).unwrap();
        for _ in 0..100 {
            other.call(ping, &theirs, ()).wait().unwrap();
            pair.user.call(ping, &pair.to, ()).wait().unwrap();
        }
        drop(go_on);
        assert_eq!(pulling.wait().unwrap(), pattern(len).iter().copied().map(u64::from).sum());
    }
}

#[test]
fn an_engine_is_closed_while_a_piece_takes_long() {
    let pair = Pair::new(Progress::Background);
    let (is_at_it, go_on) = hold_up(&pair.watched);
    serve_pulls(&pair.user);
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let pulling = pair.owner.call(pulled, &there, (lent.descriptor(),));
    hear(&is_at_it);
    pair.user.close();
    assert!(pulling.wait().is_err());
    drop(go_on);
}

/// The machine, without any thread but those that make progress.
#[derive(Debug, Default)]
struct NoThread(Machine);

impl Platform for NoThread {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn process(&self) -> u32 {
        self.0.process()
    }

    fn spawn(&self, name: String, job: Job) -> io::Result<Spawned> {
        if name.starts_with("hg-progress") {
            return self.0.spawn(name, job);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn current(&self) -> Thread {
        self.0.current()
    }

    fn park(&self) {
        self.0.park();
    }

    fn park_timeout(&self, limit: Duration) {
        self.0.park_timeout(limit);
    }
}

#[test]
fn an_engine_without_threads_is_closed_while_a_piece_takes_long() {
    let pair = Pair::on(Arc::new(NoThread::default()), Progress::Background);
    let (is_at_it, go_on) = hold_up(&pair.watched);
    serve_pulls(&pair.user);
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let pulling = pair.owner.call(pulled, &there, (lent.descriptor(),));
    hear(&is_at_it);
    pair.user.close();
    assert_eq!(pair.moved(), 0, "closing has waited for the piece");
    assert!(pulling.wait().is_err());
    drop(go_on);
}

#[test]
fn closing_waits_for_a_plain_handler_while_a_thread_of_the_pool_moves_a_piece() {
    let pair = Pair::new(Progress::Own);
    let (is_at_it, go_on) = hold_up(&pair.watched);
    serve_pulls(&pair.user);
    let (tell, told) = channel();
    let (is_over, over) = channel::<()>();
    let (begin, has_begun) = channel();
    let parts = Mutex::new((begin, over, tell));
    pair.user
        .serve(ping, move |_, ()| {
            let (begin, over, tell) = &*parts.lock().unwrap();
            let _nobody_waits = begin.send(());
            let _nobody_waits = tell.send(over.recv_timeout(Duration::from_secs(1)));
            Ok(())
        })
        .unwrap();
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let (user, is_closed) = (pair.user.clone(), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&is_closed);
    // Whoever makes progress so leaves each piece to the pool.
    let progress = thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            user.progress(Duration::from_millis(10));
        }
    });
    let pulling = pair.owner.call(pulled, &there, (lent.descriptor(),));
    hear(&is_at_it);
    let calling = pair.owner.call(ping, &there, ());
    hear(&has_begun);
    pair.user.close();
    let _nobody_hears = is_over.send(());
    is_closed.store(true, Ordering::SeqCst);
    assert_eq!(hear(&told), Err(RecvTimeoutError::Timeout), "the handler runs after the close");
    drop(go_on);
    progress.join().unwrap();
    assert!(pulling.wait().is_err());
    drop(calling);
}

#[test]
fn an_engine_is_closed_between_two_pieces_of_which_the_second_takes_long() {
    let pair = Pair::new(Progress::Background);
    let (go_on, goes_on) = channel::<()>();
    let (goes_on, pieces) = (Mutex::new(goes_on), AtomicUsize::new(0));
    let stop: Before = Box::new(move || {
        if pieces.fetch_add(1, Ordering::SeqCst) > 0 {
            let _nobody_tells = goes_on.lock().unwrap().recv_timeout(LIMIT / 2);
        }
        Ok(())
    });
    assert!(pair.watched.before.set(stop).is_ok());
    let (tell, told) = channel();
    let (tell, closes) = (Mutex::new(tell), Arc::new(AtomicBool::new(false)));
    let is_closed = Arc::clone(&closes);
    let pulls_twice = move |request: Request, (memory,): (Lent,)| {
        let (tell, is_closed) = (tell.lock().unwrap().clone(), Arc::clone(&is_closed));
        async move {
            let wrong = |error: TransferError| error.to_string();
            request.fetch(&memory).await.map_err(wrong)?;
            let _nobody_waits = tell.send(());
            // It computes, until somebody is about to close the engine, and a little longer.
            while !is_closed.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            (0..1000).for_each(|_| thread::yield_now());
            request.fetch(&memory).await.map(|_| 0).map_err(wrong)
        }
    };
    pair.user.serve_async(pulled, pulls_twice).unwrap();
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(40_000), Rights::READ).unwrap();
    let pulling = pair.owner.call(pulled, &there, (lent.descriptor(),));
    hear(&told);
    let start = Instant::now();
    closes.store(true, Ordering::SeqCst);
    pair.user.close();
    assert!(start.elapsed() < LIMIT / 2, "closing has waited for a piece");
    assert!(pulling.wait().is_err());
    drop(go_on);
}

#[test]
fn a_transfer_that_is_awaited_ends_with_its_engine_while_a_piece_takes_long() {
    let pair = Pair::new(Progress::Background);
    let (is_at_it, go_on) = hold_up(&pair.watched);
    let theirs = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let ours = pair.user.expose(vec![0; MIB], Rights::empty()).unwrap();
    let mut transfer = pin!(pair.user.pull(&pair.to, theirs.descriptor(), &ours));
    hear(&is_at_it);
    let mut context = Context::from_waker(Waker::noop());
    assert!(transfer.as_mut().poll(&mut context).is_pending());
    pair.user.close();
    assert!(matches!(transfer.as_mut().poll(&mut context), Poll::Ready(Err(_))), "it waits on");
    drop(go_on);
}

#[test]
fn a_caller_with_a_deadline_is_held_up_by_no_piece() {
    let pair = Pair::new(Progress::Own);
    let (is_at_it, _go_on) = hold_up(&pair.watched);
    serve_pulls(&pair.user);
    let there = pair.owner.lookup(pair.user.address()).unwrap();
    let lent = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    thread::scope(|scope| {
        let pulling = scope.spawn(|| pair.owner.call(pulled, &there, (lent.descriptor(),)).wait());
        let start = Instant::now();
        // It makes the progress that serves the pull.
        while is_at_it.try_recv().is_err() {
            let within = CallOptions::within(Duration::from_millis(20));
            pair.user.call_with(never, &pair.to, (), within).wait().unwrap_err();
            in_time!(start, "nothing is pulled");
        }
        pair.user.close();
        assert!(pulling.join().unwrap().is_err());
    });
}

#[test]
fn who_waits_for_one_transfer_moves_all_of_that_peers_pieces() {
    let pair = Pair::new(Progress::Background);
    let by_others = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&by_others);
    let look: Before = Box::new(move || {
        let is_of_pool = thread::current().name() == Some("hg-mover");
        counted.fetch_add(usize::from(is_of_pool), Ordering::SeqCst);
        Ok(())
    });
    assert!(pair.watched.before.set(look).is_ok());
    // Too long to be moved at once; several of the short ones in a turn, and pieces of the long ones one after the other.
    for len in [80_000, 3 * MIB] {
        let theirs = pair.owner.expose(pattern(len), Rights::READ).unwrap();
        let expose = || pair.user.expose(vec![0; len], Rights::empty()).unwrap();
        let ours: Vec<_> = (0..16).map(|_| expose()).collect();
        let pull = |into| pair.user.pull(&pair.to, theirs.descriptor(), into);
        let pulls: Vec<_> = ours.iter().map(pull).collect();
        pulls.into_iter().for_each(|it| it.wait().unwrap());
        assert!(ours.iter().all(|it| it.to_vec().unwrap() == pattern(len)));
    }
    assert_eq!(pair.moved(), 16 * 4);
    // What the last round of who waits leaves is moved, although nobody waits for it.
    let theirs = pair.owner.expose(pattern(MIB), Rights::READ).unwrap();
    let ours: Vec<_> =
        (0..8).map(|_| pair.user.expose(vec![0; MIB], Rights::empty()).unwrap()).collect();
    let pull = |into| pair.user.pull(&pair.to, theirs.descriptor(), into);
    let mut pulls: Vec<_> = ours.iter().map(pull).collect();
    pulls.remove(0).wait().unwrap();
    let start = Instant::now();
    while pair.moved() < 16 * 4 + 8 {
        in_time!(start, "a piece is left");
        thread::yield_now();
    }
    pulls.into_iter().for_each(|it| it.wait().unwrap());
    // Only where who waits has just been told that its own transfer is over.
    let by_others = by_others.load(Ordering::SeqCst);
    assert!(by_others < 9, "{by_others} of 72 pieces were moved by threads of the pool");
}

#[test]
fn what_cannot_be_moved_here_is_posted_and_moved_or_fails_there() {
    let pair = Pair::new(Progress::Background);
    let refused: Before = Box::new(|| Err(Error::Unsupported("moving it")));
    assert!(pair.watched.before.set(refused).is_ok());
    for len in [40_000, 3 * MIB] {
        let theirs = pair.owner.expose(pattern(len), Rights::READ).unwrap();
        let ours = pair.user.expose(vec![0; len], Rights::empty()).unwrap();
        pair.user.pull(&pair.to, theirs.descriptor(), &ours).wait().unwrap();
        assert_eq!(ours.to_vec().unwrap(), pattern(len));
        let stale = theirs.descriptor();
        theirs.into_memory().unwrap();
        let error = pair.user.pull(&pair.to, stale, &ours).wait().unwrap_err();
        assert!(matches!(error, TransferError::NotMade(_) | TransferError::Stale), "{error:?}");
    }
    assert_eq!(pair.moved(), 0);
}

#[test]
fn a_transfer_that_ends_while_a_piece_of_it_is_moved_is_freed_with_its_memory() {
    for kind in 0..4 {
        let Pair { user, owner, to, watched, .. } = Pair::new(Progress::Background);
        let (is_at_it, go_on) = hold_up(&watched);
        let theirs = owner.expose(pattern(4 * MIB), Rights::READ).unwrap();
        let ours = user.expose(vec![0; 4 * MIB], Rights::empty()).unwrap();
        let transfer = user.pull(&to, theirs.descriptor(), &ours);
        hear(&is_at_it);
        match kind {
            0 => {
                drop(transfer);
                drop(go_on);
            }
            1 => {
                transfer.cancel();
                drop(go_on);
                assert!(matches!(transfer.wait(), Err(TransferError::Cancelled)));
            }
            2 => {
                owner.close();
                drop(go_on);
                assert!(transfer.wait().is_err());
            }
            _ => {
                let transfer = transfer.within(Duration::from_millis(1));
                drop(go_on);
                let _either_way = transfer.wait();
            }
        }
        let start = Instant::now();
        while user.transfers_under_way() > 0 {
            in_time!(start, "a transfer is left, of kind {kind}");
            thread::yield_now();
        }
        let memory = given_back(ours);
        assert_eq!(memory.len(), 4 * MIB as u64);
    }
}

#[test]
fn memory_is_in_use_until_a_piece_has_ended_although_its_transfer_was_given_up() {
    for is_dropped in [true, false] {
        let Pair { user, owner, to, watched, .. } = Pair::new(Progress::Background);
        let (is_at_it, go_on) = hold_up(&watched);
        let theirs = owner.expose(pattern(MIB), Rights::READ).unwrap();
        let ours = user.expose(vec![0; MIB], Rights::empty()).unwrap();
        assert!(!ours.is_in_use());
        let transfer = user.pull(&to, theirs.descriptor(), &ours);
        hear(&is_at_it);
        if is_dropped {
            drop(transfer);
        } else {
            transfer.cancel();
            assert!(matches!(transfer.wait(), Err(TransferError::Cancelled)), "it is told");
        }
        assert!(ours.is_in_use());
        drop(go_on);
        let start = Instant::now();
        while ours.is_in_use() {
            in_time!(start, "the memory is in use for ever");
            thread::yield_now();
        }
    }
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
