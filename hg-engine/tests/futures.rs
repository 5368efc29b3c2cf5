//! Futures of `async` handlers: those that end at once, those that go on, and those that break, over the in-process
//! reference transport. Both engines are stepped by hand, so that each test decides what comes first.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use hg_bulk::{Descriptor, TransferError};
use hg_core::{error::CallError, rpc::NoError};
use hg_engine::{Builder, Call, Engine, Peer, Progress, Request};
use hg_macros::rpc;
use hg_na::Rights;
use hg_na_conformance::Mem;

mod alive;
mod hg;

use alive::Alive;
use watchdog::in_time;

#[rpc(crate = crate::hg)]
fn later(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn other(number: u64) -> u64;

#[rpc(crate = crate::hg)]
fn doubled(descriptor: Descriptor) -> Result<u64, String>;

/// Longer than a message.
#[rpc(crate = crate::hg)]
fn long() -> Vec<u8> {
    vec![7; 1 << 20]
}

#[rpc(crate = crate::hg)]
async fn long_later() -> Vec<u8> {
    vec![7; 1 << 20]
}

#[rpc(crate = crate::hg, blocking)]
fn long_blocking() -> Vec<u8> {
    vec![7; 1 << 20]
}

struct Pair {
    target: Engine,
    origin: Engine,
    peer: Peer,
}

impl Pair {
    fn new() -> Self {
        let plugin = Mem::default();
        let open = || {
            let builder =
                Builder::new().plugin(plugin.clone()).progress(Progress::Own).eager_max(0);
            builder.listen(true).open("mem://").unwrap()
        };
        let (target, origin) = (open(), open());
        let peer = origin.lookup(target.address()).unwrap();
        Self { target, origin, peer }
    }

    fn call(&self, number: u64) -> Call<'_, later> {
        self.origin.call(later, &self.peer, (number,))
    }

    /// Rounds of both until nothing moves any more.
    fn settle(&self) {
        while self.target.progress(Duration::ZERO) | self.origin.progress(Duration::ZERO) {}
    }

    /// The outcome, with the progress of both.
    fn outcome<R: hg_core::rpc::Rpc>(
        &self,
        mut call: Call<'_, R>,
    ) -> Result<R::Output, CallError<R::Error>> {
        let start = Instant::now();
        loop {
            in_time!(start, "no outcome");
            self.settle();
            if let Some(outcome) = call.try_wait() {
                return outcome;
            }
        }
    }
}

#[test]
fn handlers_that_go_on_and_handlers_that_end_at_once_keep_apart() {
    let pair = Pair::new();
    let held: Arc<Mutex<HashMap<u64, Waker>>> = Arc::default();
    let (wakers, alive) = (Arc::clone(&held), Arc::new(AtomicUsize::new(0)));
    let living = Arc::clone(&alive);
    // Odd ones wait until they are woken; a large array would show that a place was used twice.
    let serve = move |_: Request, (number,): (u64,)| {
        let (wakers, alive) = (Arc::clone(&wakers), Alive::new(&living));
        async move {
            let memory = [number; 64];
            let mut waited = number.is_multiple_of(2);
            poll_fn(|context| {
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                wakers.lock().unwrap().insert(number, context.waker().clone());
                Poll::Pending
            })
            .await;
            drop(alive);
            Ok(memory.iter().sum::<u64>())
        }
    };
    pair.target.serve_async(later, serve).unwrap();
    let mut open: HashMap<u64, Call<'_, later>> = HashMap::new();
    for number in 0..40 {
        let call = pair.call(number);
        if number.is_multiple_of(2) {
            assert_eq!(pair.outcome(call).unwrap(), 64 * number);
        } else {
            open.insert(number, call);
        }
    }
    pair.settle();
    assert_eq!(alive.load(Ordering::SeqCst), 20);
    // Last in, first out, with others in between that use what was left.
    for number in (0..20).rev().map(|half| 2 * half + 1) {
        let waker = held.lock().unwrap().remove(&number).unwrap();
        waker.wake();
        assert_eq!(pair.outcome(open.remove(&number).unwrap()).unwrap(), 64 * number);
        assert_eq!(pair.outcome(pair.call(2 * number)).unwrap(), 128 * number);
    }
    assert_eq!((alive.load(Ordering::SeqCst), pair.target.requests_in_service()), (0, 0));
}

/// Wakes each waker that comes, and then once more when many others have come: long after its future has ended.
fn wake_late(wakers: &mpsc::Receiver<Waker>) {
    let mut kept: Vec<Waker> = Vec::new();
    for waker in wakers {
        waker.wake_by_ref();
        kept.push(waker);
        if kept.len() == 64 {
            kept.drain(..32).for_each(Waker::wake);
        }
    }
}

#[test]
fn wakers_that_are_used_again_and_again_and_too_late_disturb_nobody() {
    let pair = Pair::new();
    let alive = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpsc::channel();
    let last = Arc::new(Mutex::new(Some(sender)));
    let (living, sender) = (Arc::clone(&alive), Arc::clone(&last));
    let send = move |waker| sender.lock().unwrap().as_ref().unwrap().send(waker).unwrap();
    // A future ends in its first poll, or after so many wake-ups; some give their waker away and end nevertheless.
    let serve = move |_: Request, (number,): (u64,)| {
        let (alive, send) = (Alive::new(&living), send.clone());
        async move {
            let mut left = number % 4;
            poll_fn(|context| {
                for _ in 0..(number % 3).max(left.min(1)) {
                    send(context.waker().clone());
                }
                left = left.saturating_sub(1);
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            drop(alive);
            Ok(number)
        }
    };
    pair.target.serve_async(later, serve).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || wake_late(&receiver));
        for round in 0..40 {
            let numbers = round * 16..(round + 1) * 16;
            let calls: Vec<_> = numbers.clone().map(|number| (number, pair.call(number))).collect();
            for (number, call) in calls {
                assert_eq!(pair.outcome(call).unwrap(), number);
            }
        }
        assert_eq!((alive.load(Ordering::SeqCst), pair.target.requests_in_service()), (0, 0));
        last.lock().unwrap().take(); // Ends the thread.
    });
}

#[test]
fn a_task_that_is_woken_many_times_is_polled_once() {
    let pair = Pair::new();
    let (held, polls): (Arc<Mutex<Option<Waker>>>, Arc<AtomicUsize>) = Default::default();
    let (waker, count) = (Arc::clone(&held), Arc::clone(&polls));
    let serve = move |_: Request, (number,): (u64,)| {
        let (waker, count) = (Arc::clone(&waker), Arc::clone(&count));
        poll_fn(move |context| {
            *waker.lock().unwrap() = Some(context.waker().clone());
            if count.fetch_add(1, Ordering::SeqCst) < 3 {
                Poll::Pending
            } else {
                Poll::Ready(Ok(number))
            }
        })
    };
    pair.target.serve_async(later, serve).unwrap();
    let call = pair.call(7);
    pair.settle();
    for polled in 1..4 {
        assert_eq!(polls.load(Ordering::SeqCst), polled);
        let waker = held.lock().unwrap().clone().unwrap();
        (0..10_000).for_each(|_| waker.wake_by_ref());
        pair.settle();
    }
    assert_eq!((pair.outcome(call).unwrap(), polls.load(Ordering::SeqCst)), (7, 4));
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("once more");
    }
}

/// Breaks in the ways that its number's bits say.
struct Breaking {
    number: u64,
    has_waited: bool,
    _alive: Alive,
    _bomb: Option<Bomb>,
}

impl Future for Breaking {
    type Output = Result<u64, NoError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.number & WAITS != 0 && !std::mem::replace(&mut self.has_waited, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        assert!(self.number & PANICS == 0, "number {}", self.number);
        Poll::Ready(Ok(self.number))
    }
}

const WAITS: u64 = 1;
const PANICS: u64 = 2;
const PANICS_AGAIN: u64 = 4;

#[test]
fn a_future_that_panics_is_an_answer_whatever_its_rest_does() {
    let pair = Pair::new();
    let alive = Arc::new(AtomicUsize::new(0));
    let living = Arc::clone(&alive);
    let serve = move |_: Request, (number,): (u64,)| {
        let bomb = (number & PANICS_AGAIN != 0).then(|| Bomb);
        Breaking { number, has_waited: false, _alive: Alive::new(&living), _bomb: bomb }
    };
    pair.target.serve_async(later, serve).unwrap();
    for _ in 0..3 {
        for number in 0..8 {
            let outcome = pair.outcome(pair.call(number));
            let text = match number & (PANICS | PANICS_AGAIN) {
                0 => None,
                PANICS_AGAIN => Some("once more".to_owned()),
                _ => Some(format!("number {number}")),
            };
            let panicked = match outcome {
                Err(CallError::Panicked(text)) => Some(text),
                answered => {
                    assert_eq!(answered.unwrap(), number);
                    None
                }
            };
            assert_eq!(panicked, text);
            assert_eq!((alive.load(Ordering::SeqCst), pair.target.requests_in_service()), (0, 0));
        }
    }
}

#[test]
fn a_thread_whose_handlers_have_panicked_can_wait_as_before() {
    let pair = Pair::new();
    let serve = |_: Request, (number,): (u64,)| {
        let bomb = (number & PANICS_AGAIN != 0).then(|| Bomb);
        Breaking { number, has_waited: false, _alive: Alive::new(&Arc::default()), _bomb: bomb }
    };
    pair.target.serve_async(later, serve).unwrap();
    let itself = pair.target.lookup(pair.target.address()).unwrap();
    for number in (0..8).filter(|number| number & (PANICS | PANICS_AGAIN) != 0) {
        let outcome = pair.target.call(later, &itself, (number,)).wait();
        assert!(matches!(outcome, Err(CallError::Panicked(_))), "{number}: {outcome:?}");
        assert_eq!(pair.target.call(later, &itself, (0,)).wait().unwrap(), 0, "after {number}");
    }
}

#[test]
fn an_engine_that_closes_drops_what_goes_on_and_what_was_left() {
    let pair = Pair::new();
    let alive = Arc::new(AtomicUsize::new(0));
    let living = Arc::clone(&alive);
    let serve = move |_: Request, (number,): (u64,)| {
        let alive = Alive::new(&living);
        async move {
            if number == 0 {
                std::future::pending::<()>().await;
            }
            drop(alive);
            Ok(number)
        }
    };
    pair.target.serve_async(later, serve).unwrap();
    let open: Vec<_> = (0..3).map(|_| pair.call(0)).collect();
    assert_eq!(pair.outcome(pair.call(5)).unwrap(), 5);
    assert_eq!(alive.load(Ordering::SeqCst), 3);
    pair.target.close();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    for call in open {
        assert!(matches!(pair.outcome(call), Err(CallError::PeerGone { .. })));
    }
}

#[test]
fn requests_whose_origin_ended_before_they_were_started_end_and_leave_nothing() {
    let Pair { target, origin, peer } = Pair::new();
    let told = |request: Request, _: (u64,)| async move {
        request.cancelled().await;
        Ok(0)
    };
    target.serve_async(later, told).unwrap();
    // Asks only after it has waited for something else.
    let (wakers, awaited) = mpsc::channel::<Waker>();
    let told_late = move |request: Request, _: (u64,)| {
        let wakers = wakers.clone();
        async move {
            let mut waited = false;
            poll_fn(|context| {
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                wakers.send(context.waker().clone()).unwrap();
                Poll::Pending
            })
            .await;
            request.cancelled().await;
            Ok(0)
        }
    };
    target.serve_async(other, told_late).unwrap();
    target.register(long).unwrap();
    target.register(long_later).unwrap();
    target.register(long_blocking).unwrap();
    drop(origin.notify(later, &peer, (1,)));
    drop(origin.notify(other, &peer, (3,)));
    let _calls = (
        origin.call(later, &peer, (2,)),
        origin.call(long, &peer, ()),
        origin.call(long_later, &peer, ()),
        origin.call(long_blocking, &peer, ()),
    );
    while origin.progress(Duration::ZERO) {}
    origin.close();
    let start = Instant::now();
    let mut were_served = false;
    while !were_served || target.requests_in_service() > 0 || target.large_untaken() > 0 {
        target.progress(Duration::ZERO);
        were_served |= awaited.try_recv().is_ok_and(|waker| {
            waker.wake();
            true
        });
        let (left, kept) = (target.requests_in_service(), target.large_untaken());
        in_time!(start, "{left} requests in service, {kept} bytes kept");
    }
}

#[test]
fn a_handler_that_is_served_anew_gets_a_place_of_its_own() {
    let pair = Pair::new();
    pair.target.serve_async(later, |_, (number,)| async move { Ok(number) }).unwrap();
    pair.target.serve_async(other, |_, (number,)| async move { Ok(number + 1) }).unwrap();
    assert_eq!(pair.outcome(pair.call(1)).unwrap(), 1);
    assert_eq!(pair.outcome(pair.origin.call(other, &pair.peer, (1,))).unwrap(), 2);
    assert!(pair.target.deregister(later));
    let larger = |_: Request, (number,): (u64,)| {
        let memory = [number; 100];
        async move { Ok(memory.iter().sum()) }
    };
    pair.target.serve_async(later, larger).unwrap();
    for number in 0..4 {
        assert_eq!(pair.outcome(pair.call(number)).unwrap(), 100 * number);
        assert_eq!(pair.outcome(pair.origin.call(other, &pair.peer, (1,))).unwrap(), 2);
    }
}

#[test]
fn calls_that_nest_end_in_their_own_order() {
    let pair = Pair::new();
    let serve = |request: Request, (number,): (u64,)| async move {
        if number == 0 {
            return Ok(0);
        }
        let (engine, origin) = (request.engine(), request.origin());
        let inner = engine.call(later, &origin, (number - 1,)).await;
        inner.map(|sum| sum + number).map_err(|error| panic!("{error}"))
    };
    pair.target.serve_async(later, serve).unwrap();
    pair.origin.serve_async(later, serve).unwrap();
    let calls: Vec<_> = (0..10).map(|number| pair.call(number)).collect();
    for (number, call) in (0..).zip(calls) {
        assert_eq!(pair.outcome(call).unwrap(), number * (number + 1) / 2);
    }
    assert_eq!(pair.target.requests_in_service() + pair.origin.requests_in_service(), 0);
}

#[test]
fn whether_a_request_is_cancelled_can_be_asked_by_any_thread_at_any_time() {
    let pair = Pair::new();
    let (kept, log): (Arc<Mutex<Vec<Request>>>, _) = <(_, Arc<Mutex<Vec<bool>>>)>::default();
    let (requests, asked) = (Arc::clone(&kept), Arc::clone(&log));
    // 1 goes on until it is cancelled; 0 ends at once. Another thread asks during the first poll of both.
    let serve = move |request: Request, (number,): (u64,)| {
        let (requests, asked) = (Arc::clone(&requests), Arc::clone(&asked));
        async move {
            let elsewhere = request.clone();
            let said = thread::spawn(move || elsewhere.is_cancelled()).join().unwrap();
            asked.lock().unwrap().push(said);
            requests.lock().unwrap().push(request.clone());
            if number == 1 {
                request.cancelled().await;
                asked.lock().unwrap().push(request.is_cancelled());
            }
            Ok(number)
        }
    };
    pair.target.serve_async(later, serve).unwrap();
    for round in 1..4 {
        let open = pair.call(1);
        pair.settle();
        assert_eq!(pair.outcome(pair.call(0)).unwrap(), 0);
        open.cancel();
        assert!(matches!(pair.outcome(open), Err(CallError::Cancelled)));
        pair.settle();
        assert_eq!(*log.lock().unwrap(), [false, false, true].repeat(round));
        assert_eq!(pair.target.requests_in_service(), 0);
    }
    // Asked for the first time long after the answer: nobody is told any more, and nothing is kept.
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    assert!(kept.len() == 6 && !kept.iter().any(Request::is_cancelled));
}

#[test]
fn a_handler_pulls_from_its_caller_and_pushes_back() {
    let pair = Pair::new();
    let serve = |request: Request, (from,): (Descriptor,)| async move {
        let text = |error: TransferError| error.to_string();
        let mine = request.engine().expose(vec![0; 100], Rights::empty()).unwrap();
        let shorter = request.pull(&from, mine.range(..99).unwrap()).await;
        assert!(matches!(shorter, Err(TransferError::Unequal { local: 99, remote: 100 })));
        request.pull(&from, &mine).await.map_err(text)?;
        let mut bytes = mine.to_vec().unwrap();
        bytes.iter_mut().for_each(|byte| *byte *= 2);
        mine.write(0, &bytes).unwrap();
        request.push(mine.range(50..).unwrap(), from.range(50..).unwrap()).await.map_err(text)?;
        Ok(bytes.iter().copied().map(u64::from).sum())
    };
    pair.target.serve_async(doubled, serve).unwrap();
    for rights in [Rights::all(), Rights::READ] {
        let bulk = pair.origin.expose((0..100).collect::<Vec<u8>>(), rights).unwrap();
        let outcome = pair.outcome(pair.origin.call(doubled, &pair.peer, (bulk.descriptor(),)));
        let bytes = bulk.into_vec().unwrap();
        let untouched: Vec<u8> = (0..50).collect();
        assert_eq!(bytes[..50], untouched);
        if rights == Rights::READ {
            assert!(matches!(outcome, Err(CallError::Handler(_))), "{outcome:?}");
            assert_eq!(bytes[50..], (50..100).collect::<Vec<u8>>());
        } else {
            assert_eq!(outcome.unwrap(), 9900);
            assert_eq!(bytes[50..], (50..100).map(|byte| 2 * byte).collect::<Vec<u8>>());
        }
    }
}
