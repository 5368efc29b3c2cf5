//! Short transfers of several handlers of one round, which the transport moves together: over shared memory inside one
//! process. Both engines are stepped by hand, so that the requests of a test come in one round.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_bulk::{Descriptor, TransferError};
use hg_core::{error::CallError, rpc::Rpc};
use hg_engine::{Builder, Bulk, Call, Handle, Peer, Progress, Request, Transfer};
use hg_macros::rpc;
use hg_na::{Address, Context as Transport, Moved, Rights, Transit};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_sm::SmPlugin;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

mod alive;
mod hg;

use alive::Alive;

/// Serves by a number what is done with the memory, and gives its first word.
#[rpc(crate = crate::hg)]
fn served(kind: u64, memory: Descriptor) -> Result<u64, String>;

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each buffer.
const LEN: usize = 4096;

/// What the target's transport was asked for together, and whether it does it.
#[derive(Debug, Default)]
struct Watch {
    batches: Mutex<Vec<usize>>,
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
    fn transfer(&mut self, inner: &mut dyn Transport, transit: &Transit<'_>, most: u64) -> bool {
        inner.transfer(transit, most)
    }

    fn transfer_or_gather(
        &mut self,
        inner: &mut dyn Transport,
        transit: &Transit<'_>,
        most: u64,
    ) -> Moved {
        inner.transfer_or_gather(transit, most)
    }

    fn transfer_all(
        &mut self,
        inner: &mut dyn Transport,
        transits: &[Transit<'_>],
        most: u64,
        done: &mut [bool],
    ) {
        self.0.batches.lock().unwrap().push(transits.len());
        if self.0.refuses.load(Ordering::SeqCst) {
            done.fill(false);
        } else {
            inner.transfer_all(transits, most, done);
        }
    }
}

struct Pair {
    target: Handle,
    origin: Handle,
    peer: Peer,
    watch: Arc<Watch>,
}

impl Pair {
    fn new() -> Self {
        let watched = Watched::default();
        let watch = Arc::clone(&watched.0);
        let open = |builder: Builder| {
            let builder = builder.progress(Progress::Own).eager_max(0);
            builder.listen(true).open("sm://").unwrap()
        };
        let target: Handle = open(Builder::new().plugin(Layered::new(SmPlugin, watched)));
        let origin: Handle = open(Builder::new().plugin(SmPlugin));
        let peer = origin.lookup(target.address()).unwrap();
        Self { target, origin, peer, watch }
    }

    /// Serves, and is connected.
    fn serving<F, Fut>(serve: F) -> Self
    where
        F: Fn(Request, (u64, Descriptor)) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<u64, String>> + Send + 'static,
    {
        let pair = Self::new();
        pair.target.serve_async(served, serve).unwrap();
        let memory = pair.memory(1);
        let first = pair.call(u64::MAX, &memory[0]);
        let _ = pair.outcome(first);
        pair.watch.batches.lock().unwrap().clear();
        pair
    }

    /// Memory of the origin, a buffer for each call.
    fn memory(&self, count: u64) -> Vec<Bulk> {
        let bytes = |n: u64| {
            let words = (0..LEN as u64 / 8).map(|word| (7 + n) << 32 | word);
            words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
        };
        (0..count).map(|n| self.origin.expose(bytes(n), Rights::all()).unwrap()).collect()
    }

    fn call(&self, kind: u64, memory: &Bulk) -> Call<'_, served> {
        self.origin.call(served, &self.peer, (kind, memory.descriptor()))
    }

    fn settle(&self) {
        while self.target.progress(Duration::ZERO) | self.origin.progress(Duration::ZERO) {}
    }

    fn outcome<R: Rpc>(&self, mut call: Call<'_, R>) -> Result<R::Output, CallError<R::Error>> {
        let limit = Instant::now() + PATIENCE;
        while Instant::now() < limit {
            self.settle();
            call = match call.try_take() {
                Ok(outcome) => return outcome,
                Err(open) => open,
            };
        }
        panic!("no outcome within {PATIENCE:?}");
    }

    /// Calls of one round with these numbers, each with memory of its own: what they come to.
    fn round(&self, kinds: &[u64], memory: &[Bulk]) -> Vec<Result<u64, CallError<String>>> {
        let calls: Vec<_> =
            kinds.iter().zip(memory).map(|(kind, it)| self.call(*kind, it)).collect();
        calls.into_iter().map(|call| self.outcome(call)).collect()
    }

    /// Transfers that were asked for together.
    fn gathered(&self) -> usize {
        self.watch.batches.lock().unwrap().iter().sum()
    }

    /// Nothing is left of any handler.
    fn is_idle(&self) -> bool {
        self.target.transfers_under_way() == 0 && self.target.requests_in_service() == 0
    }
}

fn word(n: u64) -> u64 {
    (7 + n) << 32
}

fn buffer(request: &Request) -> Bulk {
    request.engine().expose(vec![0; LEN], Rights::empty()).unwrap()
}

fn first_word(buffer: Bulk) -> u64 {
    let bytes = buffer.into_vec().expect("a transfer that is over holds no memory");
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}

fn text(error: &TransferError) -> String {
    format!("{error:?}")
}

async fn pull(request: &Request, memory: Descriptor) -> Result<u64, String> {
    let buffer = buffer(request);
    request.pull(memory, &buffer).await.map_err(|error| text(&error))?;
    Ok(first_word(buffer))
}

#[test]
fn pulls_of_one_round_are_moved_together_and_one_alone_at_once() {
    let pair = Pair::serving(|request, (_, memory)| async move { pull(&request, memory).await });
    let memory = pair.memory(20);
    for (n, outcome) in (0..).zip(pair.round(&[0; 20], &memory)) {
        assert_eq!(outcome.unwrap(), word(n));
    }
    let batches = std::mem::take(&mut *pair.watch.batches.lock().unwrap());
    let all = batches.iter().sum::<usize>();
    assert!((10..=20).contains(&all) && batches.len() <= all / 2, "{batches:?}");
    assert_eq!(pair.round(&[0], &memory[3..])[0].as_ref().unwrap(), &word(3));
    assert_eq!(pair.gathered(), 0);
    assert!(pair.is_idle());
}

#[test]
fn what_is_wrong_with_one_is_told_to_its_handler_alone() {
    let pair = Pair::serving(|request, (_, memory)| async move { pull(&request, memory).await });
    for refuses in [false, true] {
        pair.watch.refuses.store(refuses, Ordering::SeqCst);
        let memory = pair.memory(12);
        let descriptors: Vec<_> = memory.iter().map(Bulk::descriptor).collect();
        let mut memory: Vec<_> = memory.into_iter().map(Some).collect();
        (memory[4], memory[9]) = (None, None); // Their descriptors are stale.
        let call = |it: &Descriptor| pair.origin.call(served, &pair.peer, (0, it.clone()));
        let calls: Vec<_> = descriptors.iter().map(call).collect();
        for (n, call) in (0..).zip(calls) {
            match (n, pair.outcome(call)) {
                (4 | 9, Err(CallError::Handler(text))) => {
                    assert!(text.ends_with("[Stale]"), "{text}")
                }
                (_, outcome) => assert_eq!(outcome.unwrap(), word(n)),
            }
        }
        assert!(pair.gathered() > 0 && pair.is_idle());
        pair.watch.batches.lock().unwrap().clear();
    }
}

#[test]
fn one_that_is_cancelled_while_it_waits_has_not_ended_well_because_the_others_were_moved() {
    let pair = Pair::serving(|request, (kind, memory)| async move {
        let buffer = buffer(&request);
        let mut transfer = pin!(request.pull(memory, &buffer));
        let ended = poll_fn(|context| {
            let polled = transfer.as_mut().poll(context);
            if kind == 1 && polled.is_pending() {
                transfer.cancel();
            }
            polled
        });
        ended.await.map_err(|error| text(&error))?;
        Ok(0)
    });
    let memory = pair.memory(6);
    let outcomes = pair.round(&[0, 0, 1, 0, 0, 0], &memory);
    assert_eq!(pair.gathered(), 5);
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Err(CallError::Handler(text)) => {
                assert!(n == 2 && text.ends_with("[Cancelled]"), "{n}: {text}");
            }
            outcome => assert!(outcome.is_ok() && n != 2),
        }
    }
    assert!(pair.is_idle());
}

/// Both, polled by the same waker.
async fn both(one: Transfer<'_>, other: Transfer<'_>) -> Result<(), TransferError> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let mut ends = [None, None];
    poll_fn(|context| {
        let polls: [(_, &mut Option<_>); 2] = match &mut ends {
            [first, second] => [(one.as_mut(), first), (other.as_mut(), second)],
        };
        let mut is_ready = true;
        for (transfer, end) in polls {
            if end.is_none()
                && let Poll::Ready(outcome) = transfer.poll(context)
            {
                *end = Some(outcome);
            }
            is_ready &= end.is_some();
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ends.into_iter().flatten().collect()
}

/// Passes a wake-up on, as what joins many futures does.
struct Passes(Waker, AtomicUsize);

impl Wake for Passes {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.wake_by_ref();
    }
}

/// Polls it with a waker of its own, and only after that was woken.
async fn by_another_waker(transfer: Transfer<'_>) -> Result<(), TransferError> {
    let mut transfer = pin!(transfer);
    let mut passes: Option<Arc<Passes>> = None;
    poll_fn(|context| {
        if passes.as_ref().is_some_and(|it| it.1.load(Ordering::SeqCst) == 0) {
            return Poll::Pending;
        }
        let it = Arc::new(Passes(context.waker().clone(), AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&it));
        passes = Some(it);
        transfer.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

/// What a handler may do with short transfers, by number. Each gives the first word of what it has pulled.
async fn any_way(request: Request, (kind, memory): (u64, Descriptor)) -> Result<u64, String> {
    let (one, two) = (buffer(&request), buffer(&request));
    let start = || request.pull(&memory, &one);
    let ended = match kind % 12 {
        0 => start().await,
        1 => match start().await {
            Ok(()) => request.pull(&memory, &two).await,
            error => error,
        },
        2 => both(start(), request.pull(&memory, &two)).await,
        3 => by_another_waker(start()).await,
        4 => start().within(Duration::from_secs(3600)).await,
        // Pulled, changed and pushed back; and pulled once more.
        5 => match start().await {
            Ok(()) => {
                let mut word = [0; 8];
                one.read(8, &mut word).unwrap();
                one.write(8, &(u64::from_le_bytes(word) + 1).to_le_bytes()).unwrap();
                match request.push(&one, &memory).await {
                    Ok(()) => request.pull(&memory, &one).await,
                    error => error,
                }
            }
            error => error,
        },
        // One that nobody wants, one that is cancelled, and then one that counts.
        6 => {
            drop(request.pull(&memory, &two));
            let cancelled = request.pull(&memory, &two);
            cancelled.cancel();
            assert!(matches!(cancelled.await, Ok(()) | Err(TransferError::Cancelled)));
            start().await
        }
        // It cannot be waited for here; that gives up what was started, and the transport is through with the memory later.
        7 => {
            let waited = request.pull(&memory, buffer(&request)).wait();
            assert!(matches!(waited, Ok(()) | Err(TransferError::WouldDeadlock)), "{waited:?}");
            start().await
        }
        // Another thread asks for it in between.
        8 => {
            let mut transfer = start();
            let poll = || Pin::new(&mut transfer).poll(&mut Context::from_waker(Waker::noop()));
            match thread::scope(|scope| scope.spawn(poll).join().unwrap()) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => transfer.await,
            }
        }
        // More than wait together, one after the other awaited.
        9 => {
            let many: Vec<_> = (0..30).map(|_| request.pull(&memory, &two)).collect();
            for transfer in many {
                transfer.await.map_err(|error| text(&error))?;
            }
            start().await
        }
        10 => {
            let transfer = start();
            assert!(!request.is_cancelled());
            transfer.await
        }
        _ => {
            // Longer than what waits, and then the same memory in parts.
            let parts = [0..1000, 1000..LEN as u64].map(|range| {
                request.pull(memory.range(range.clone()).unwrap(), one.range(range).unwrap())
            });
            for part in parts {
                part.await.map_err(|error| text(&error))?;
            }
            Ok(())
        }
    };
    ended.map_err(|error| text(&error))?;
    drop(two.into_vec().map_err(|busy| format!("memory is still used: {busy}"))?);
    Ok(first_word(one))
}

#[test]
fn handlers_of_every_kind_share_a_round() {
    let pair = Pair::serving(any_way);
    for refuses in [false, true] {
        pair.watch.refuses.store(refuses, Ordering::SeqCst);
        // Each alone, and all in one round.
        let kinds: Vec<u64> = (0..12).collect();
        let memory = pair.memory(12);
        for (kind, memory) in (0..).zip(memory.chunks(1)) {
            let outcome = pair.round(&[kind], memory);
            assert_eq!(outcome[0].as_ref().unwrap(), &word(kind), "{kind} alone");
        }
        for (n, outcome) in (0..).zip(pair.round(&kinds, &memory)) {
            assert_eq!(outcome.unwrap(), word(n), "{n} with all others");
        }
        assert!(pair.gathered() > 0 && pair.is_idle());
        // Pushed twice, exactly.
        let pushed = memory.into_iter().nth(5).unwrap().into_vec().unwrap();
        assert_eq!(pushed[8..16], (word(5) + 3).to_le_bytes());
    }
}

#[test]
fn a_handler_that_asks_for_the_end_at_once_is_told_the_same_alone_and_beside_others() {
    let pair = Pair::serving(|request, (_, memory)| async move {
        let buffer = buffer(&request);
        request.pull(memory, &buffer).wait().map_err(|error| text(&error))?;
        Ok(first_word(buffer))
    });
    let memory = pair.memory(6);
    assert_eq!(pair.round(&[0], &memory)[0].as_ref().unwrap(), &word(0));
    for (n, outcome) in (0..).zip(pair.round(&[0; 6], &memory)) {
        assert_eq!(outcome.unwrap(), word(n), "{n} beside others");
    }
    assert!(pair.is_idle());
}

#[test]
fn a_handler_is_woken_by_its_transfer_although_it_was_polled_for_nothing_before() {
    let pair = Pair::serving(|request, (_, memory)| async move {
        let buffer = buffer(&request);
        let mut transfer = pin!(request.pull(memory, &buffer));
        let mut polls = 0;
        let ended = poll_fn(|context| {
            polls += 1;
            // The second one comes after the round; this one does not look then, since nobody has woken it.
            if polls == 2 { Poll::Pending } else { transfer.as_mut().poll(context) }
        });
        ended.await.map_err(|error| text(&error))?;
        Ok(first_word(buffer))
    });
    pair.watch.refuses.store(true, Ordering::SeqCst);
    let memory = pair.memory(5);
    for (n, outcome) in (0..).zip(pair.round(&[0; 5], &memory)) {
        assert_eq!(outcome.unwrap(), word(n));
    }
    assert!(pair.gathered() > 0 && pair.is_idle());
}

#[test]
fn a_handler_that_panics_with_a_transfer_that_waits_takes_nobody_along() {
    let pair = Pair::serving(|request, (kind, memory)| async move {
        let buffer = buffer(&request);
        let transfer = request.pull(memory, &buffer);
        assert!(kind != 1, "as planned");
        transfer.await.map_err(|error| text(&error))?;
        Ok(first_word(buffer))
    });
    let memory = pair.memory(6);
    for (n, outcome) in (0..).zip(pair.round(&[0, 1, 0, 0, 1, 0], &memory)) {
        match (n, outcome) {
            (1 | 4, Err(CallError::Panicked(why))) => assert_eq!(why, "as planned"),
            (_, outcome) => assert_eq!(outcome.unwrap(), word(n)),
        }
    }
    assert!(pair.gathered() == 4 && pair.is_idle());
}

#[test]
fn transfers_that_nobody_wants_are_not_moved() {
    let pair = Pair::serving(|request, (_, memory)| async move {
        let buffer = buffer(&request);
        drop(request.pull(memory, &buffer));
        Ok(first_word(buffer))
    });
    let memory = pair.memory(3);
    for outcome in pair.round(&[0; 3], &memory) {
        assert_eq!(outcome.unwrap(), 0);
    }
    assert!(pair.gathered() == 0 && pair.is_idle());
}

#[test]
fn an_engine_that_a_handler_closes_ends_the_transfers_that_wait() {
    let (log, alive) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (ends, living) = (Arc::clone(&log), Arc::clone(&alive));
    let pair = Pair::serving(move |request, (kind, memory)| {
        let (ends, alive) = (Arc::clone(&ends), Alive::new(&living));
        async move {
            let buffer = buffer(&request);
            let transfer = request.pull(memory, &buffer);
            if kind == 1 {
                request.engine().close();
            }
            let ended = transfer.await.map_err(|error| text(&error));
            ends.lock().unwrap().push(ended.clone());
            drop(alive);
            ended.map(|()| 0)
        }
    });
    log.lock().unwrap().clear();
    let memory = pair.memory(6);
    for outcome in pair.round(&[0, 0, 1, 0, 0, 0], &memory) {
        assert!(matches!(outcome, Err(CallError::PeerGone { .. })), "{outcome:?}");
    }
    let ends = log.lock().unwrap();
    assert!(!ends.is_empty(), "the handler that closes goes on");
    for end in ends.iter() {
        assert!(end.as_ref().is_err_and(|why| why.ends_with("[Closed]")), "{end:?}");
    }
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert_eq!(pair.target.transfers_under_way(), 0);
}

#[test]
fn handlers_whose_origin_is_gone_end_with_their_transfers() {
    let alive = Arc::new(AtomicUsize::new(0));
    let living = Arc::clone(&alive);
    let pair = Pair::serving(move |request, (_, memory)| {
        let alive = Alive::new(&living);
        async move {
            let pulled = pull(&request, memory).await;
            drop(alive);
            pulled
        }
    });
    let memory = pair.memory(12);
    let calls: Vec<_> = memory.iter().map(|it| pair.call(0, it)).collect();
    pair.origin.close();
    let limit = Instant::now() + PATIENCE;
    let mut has_moved = false;
    while !has_moved || !pair.is_idle() || alive.load(Ordering::SeqCst) > 0 {
        has_moved |= pair.target.progress(Duration::ZERO);
        assert!(Instant::now() < limit, "handlers of an origin that is gone have not ended");
    }
    drop(calls);
}

#[test]
fn a_handler_that_goes_on_after_its_transfer_is_told_of_its_cancellation() {
    let (ended, told) = mpsc::channel();
    let pair = Pair::serving(move |request, (kind, memory)| {
        let ended = ended.clone();
        async move {
            if kind == u64::MAX {
                return Ok(0);
            }
            let buffer = buffer(&request);
            let transfer = request.pull(memory, &buffer);
            // Asked while the transfer waits, or only afterwards.
            assert!(kind % 2 == 0 || !request.is_cancelled());
            transfer.await.map_err(|error| text(&error))?;
            request.cancelled().await;
            ended.send(kind).unwrap();
            Ok(first_word(buffer))
        }
    });
    let memory = pair.memory(6);
    let calls: Vec<_> = (0..).zip(&memory).map(|(kind, it)| pair.call(kind, it)).collect();
    pair.settle();
    assert_eq!((pair.gathered(), told.try_iter().count()), (6, 0));
    drop(calls);
    let limit = Instant::now() + PATIENCE;
    while !pair.is_idle() {
        pair.settle();
        assert!(Instant::now() < limit, "a handler was not told of its cancellation");
    }
    let mut kinds: Vec<u64> = told.try_iter().collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [0, 1, 2, 3, 4, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_handlers_in_any_rounds_get_what_they_ask_for(
        rounds in proptest::collection::vec((proptest::collection::vec(0_u64..12, 1..24), any::<bool>()), 1..6),
    ) {
        let pair = Pair::serving(any_way);
        for (kinds, refuses) in rounds {
            pair.watch.refuses.store(refuses, Ordering::SeqCst);
            let memory = pair.memory(kinds.len() as u64);
            for (n, outcome) in (0..).zip(pair.round(&kinds, &memory)) {
                prop_assert_eq!(outcome.unwrap(), word(n));
            }
            prop_assert!(pair.is_idle());
            let again: Vec<_> = memory.into_iter().map(|it| it.into_vec().unwrap()).collect();
            for ((n, kind), bytes) in (0..).zip(&kinds).zip(again) {
                let pushed = u64::from(*kind == 5);
                prop_assert_eq!(&bytes[8..16], (word(n) + 1 + pushed).to_le_bytes());
            }
        }
    }
}
