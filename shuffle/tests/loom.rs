//! Who waits is woken: threads that wait for room, the side's thread, and delivery, searched exhaustively up to a number
//! of preemptions.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-shuffle --test loom`. With `HG_WEAKEN=H3` (or
//! another label of the modules below) that fence is gone, and a model must fail. A model fails when nobody can go on any
//! more. Limits of time are of no help: those of `wait_idle` and of the engine never pass, those of `wait_for` pass at once.
#![cfg(loom)]

#[path = "../src/inbox.rs"]
mod inbox;
#[path = "../src/linger.rs"]
mod linger;
#[path = "../src/lock.rs"]
mod lock;
#[expect(dead_code, unreachable_pub, reason = "the models use part of it")]
#[path = "../src/mail.rs"]
mod mail;
#[expect(dead_code, unreachable_pub, reason = "the models use part of it")]
#[path = "../src/message.rs"]
mod message;
#[expect(dead_code, reason = "the models use part of it")]
#[path = "../src/room.rs"]
mod room;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/turns.rs"]
mod turns;

/// What of a hop the mail knows.
mod hop {
    use crate::sync::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub(crate) struct Gone;

    pub(crate) fn add_one(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A batch that is acknowledged when this is dropped.
mod parent {
    use loom::sync::Arc;

    use crate::sync::{AtomicU32, Ordering};

    #[derive(Debug)]
    pub(crate) struct Receipt(pub(crate) Arc<AtomicU32>);

    impl Drop for Receipt {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

use std::time::{Duration, Instant};

use inbox::{Amount, Chunk};
use linger::Linger;
use lock::{locked, wait};
use loom::{model::Builder, sync::Arc, thread};
use mail::Mail;
use message::Message;
use parent::Receipt;
use room::Room;
use sync::{AtomicBool, AtomicU32, Condvar, Mutex, Ordering};
use turns::Turns;

/// An engine: acknowledgements arrive, and one thread at a time makes progress.
struct Engine {
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    is_made: bool,
    is_interrupted: bool,
    arrived: u32,
}

impl Engine {
    fn new() -> Self {
        Self { state: Mutex::new(Progress::default()), changed: Condvar::new() }
    }

    /// A peer sends something.
    fn arrive(&self) {
        locked(&self.state).arrived += 1;
        self.changed.notify_all();
    }

    fn interrupt(&self) {
        locked(&self.state).is_interrupted = true;
        self.changed.notify_all();
    }

    /// Makes progress until something has come, or an interrupt; what has come. `in_turn`: also where another thread
    /// makes progress, after that one.
    fn progress(&self, in_turn: bool) -> u32 {
        let mut state = locked(&self.state);
        while state.is_made {
            if !in_turn {
                return 0;
            }
            state = wait(&self.changed, state);
        }
        state.is_made = true;
        while state.arrived == 0 && !state.is_interrupted {
            state = wait(&self.changed, state);
        }
        state.is_made = false;
        state.is_interrupted = false;
        self.changed.notify_all();
        std::mem::take(&mut state.arrived)
    }
}

/// One side with one hop, as `side.rs`, `hop.rs` and `inner.rs` put them together.
struct Side {
    engine: Engine,
    turns: Turns,
    /// Batches that were acknowledged.
    hop: Room<u32>,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

impl Side {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            engine: Engine::new(),
            turns: Turns::default(),
            hop: Room::new(0),
            has_failed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// The side's thread.
    fn run(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            if self.turns.is_helped() {
                self.engine.interrupt();
                self.turns.stand_aside();
            } else {
                self.look_after(self.engine.progress(false));
            }
        }
    }

    fn look_after(&self, acknowledged: u32) {
        if acknowledged > 0 {
            let mut state = self.hop.lock();
            state.queue += acknowledged;
            let waiting = state.waiting();
            drop(state);
            self.hop.wake(waiting, || self.engine.interrupt());
        }
    }

    /// A sender waits until so many batches were acknowledged.
    fn wait(&self, acknowledged: u32) {
        let is_over =
            |count: &u32| *count >= acknowledged || self.has_failed.load(Ordering::SeqCst);
        let Some(_turn) = self.turns.help(|| self.engine.interrupt()) else {
            let _sleeper = self.turns.sleep();
            return self.hop.wait_until(is_over);
        };
        self.hop.wait_helping(is_over, || self.look_after(self.engine.progress(true)));
    }

    /// A rank has failed.
    fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
        drop(self.hop.lock());
        self.hop.wake(room::Waiting::EVERYBODY, || self.engine.interrupt());
    }

    /// The end: the side's thread comes back from wherever it is.
    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.engine.interrupt();
        self.turns.call_back();
    }
}

fn search(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Runs something as another thread of the model.
fn beside(side: &Arc<Side>, run: impl FnOnce(&Side) + 'static) -> thread::JoinHandle<()> {
    let side = Arc::clone(side);
    thread::spawn(move || run(&side))
}

#[test]
fn a_sender_is_woken_by_an_acknowledgement_whoever_makes_progress() {
    search(3, || {
        let side = Side::new();
        let own = beside(&side, Side::run);
        let peer = beside(&side, |side| side.engine.arrive());
        side.wait(1);
        peer.join().unwrap();
        side.end();
        own.join().unwrap();
    });
}

#[test]
fn one_wait_after_the_other_finds_the_side_s_thread_aside_or_called() {
    search(2, || {
        let side = Side::new();
        let own = beside(&side, Side::run);
        let peer = beside(&side, |side| {
            side.engine.arrive();
            side.engine.arrive();
        });
        side.wait(1);
        side.wait(2);
        peer.join().unwrap();
        side.end();
        own.join().unwrap();
    });
}

#[test]
fn a_sender_that_sleeps_while_another_one_helps_is_woken_when_that_one_has_left() {
    search(1, || {
        let side = Side::new();
        let own = beside(&side, Side::run);
        let other = beside(&side, |side| side.wait(1));
        let peer = beside(&side, |side| {
            side.engine.arrive();
            side.engine.arrive();
        });
        side.wait(2);
        other.join().unwrap();
        peer.join().unwrap();
        side.end();
        own.join().unwrap();
    });
}

#[test]
fn a_failure_wakes_senders_that_help_or_sleep() {
    search(1, || {
        let side = Side::new();
        let own = beside(&side, Side::run);
        let other = beside(&side, |side| side.wait(1));
        let failing = beside(&side, Side::fail);
        side.wait(1);
        other.join().unwrap();
        failing.join().unwrap();
        side.end();
        own.join().unwrap();
    });
}

/// What arrives while a sender helps for long, and when it has left, is taken by somebody: here by the side's thread, that
/// had stopped looking.
#[test]
fn what_comes_after_the_last_helper_is_taken_by_the_side_s_thread() {
    search(3, || {
        let side = Side::new();
        let own = beside(&side, Side::run);
        let helper = beside(&side, |side| side.wait(1));
        side.engine.arrive();
        helper.join().unwrap();
        side.engine.arrive();
        side.hop.wait_until(|count| *count >= 2);
        side.end();
        own.join().unwrap();
    });
}

fn mail(messages: u64) -> Arc<Mail> {
    let (max, linger) = (Amount { messages, bytes: u64::MAX }, Duration::from_secs(1));
    Arc::new(Mail::new((max, 0, 0), (0, linger), (false, false)))
}

fn own(mail: &Mail, kind: u32) {
    let message = Message { kind, source: 0, to: 0, bytes: b"" };
    mail.push_own(&message, None).expect("it has not ended");
}

/// The delivery thread; ends with the kinds that it was handed.
fn delivering(mail: &Arc<Mail>) -> thread::JoinHandle<Vec<u32>> {
    let mail = Arc::clone(mail);
    thread::spawn(move || {
        let mut kinds = Vec::new();
        let deliver = |delivery: mail::Delivery<'_>| kinds.push(delivery.kind);
        assert_eq!(mail.run(0, deliver, || unreachable!("it does not panic")), 0);
        kinds
    })
}

#[test]
fn own_messages_beyond_the_limit_wait_for_deliveries_and_are_woken() {
    search(3, || {
        let mail = mail(1);
        let delivery = delivering(&mail);
        (0..3).for_each(|kind| own(&mail, kind));
        mail.flush();
        assert_eq!(mail.delivered(), 3);
        mail.end(true);
        assert_eq!(delivery.join().unwrap(), [0, 1, 2]);
    });
}

#[test]
fn a_batch_beyond_the_limit_is_acknowledged_when_deliveries_have_made_room() {
    search(3, || {
        let mail = mail(1);
        let acknowledged = Arc::new(AtomicU32::new(0));
        let delivery = delivering(&mail);
        for kind in 0..2 {
            let mut bytes = mail.buffer();
            Message { kind, source: 1, to: 0, bytes: b"" }.write(&mut bytes);
            Message { kind, source: 1, to: 0, bytes: b"" }.write(&mut bytes);
            mail.push_chunk(Chunk { bytes, messages: 2 }, Receipt(Arc::clone(&acknowledged)));
            mail.wake_up();
        }
        // Nobody flushes, and nothing else comes: deliveries alone must release both.
        while acknowledged.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
        mail.end(true);
        assert_eq!(delivery.join().unwrap(), [0, 0, 1, 1]);
    });
}

#[test]
fn two_threads_that_bring_messages_and_one_that_flushes_all_end() {
    search(2, || {
        let mail = mail(1);
        let delivery = delivering(&mail);
        let other = Arc::clone(&mail);
        let thread = thread::spawn(move || own(&other, 7));
        own(&mail, 8);
        mail.flush();
        thread.join().unwrap();
        mail.flush();
        assert_eq!(mail.delivered(), 2);
        mail.end(true);
        let mut kinds = delivery.join().unwrap();
        kinds.sort_unstable();
        assert_eq!(kinds, [7, 8]);
    });
}

/// Hops of a clock. A batch is due at the second look at it.
#[derive(Default)]
struct Clock {
    linger: Linger,
    hops: [(Mutex<Batch>, Condvar); 2],
}

#[derive(Default)]
struct Batch {
    messages: u32,
    was_seen: bool,
    left: u32,
}

impl Clock {
    fn push(&self, hop: usize) {
        locked(&self.hops[hop].0).messages += 1;
        self.linger.arm();
    }

    fn run(&self) {
        let look = |now: Instant| {
            let mut next = None;
            for (hop, left) in &self.hops {
                let mut batch = locked(hop);
                if batch.messages > 0 && !std::mem::replace(&mut batch.was_seen, true) {
                    next = Some(now + Duration::from_secs(60));
                } else if batch.messages > 0 {
                    *batch = Batch { left: batch.left + batch.messages, ..Batch::default() };
                    left.notify_all();
                }
            }
            next
        };
        self.linger.run(look, (Duration::ZERO, |_| {}));
    }

    fn wait(&self, hop: usize, messages: u32) {
        let (hop, left) = &self.hops[hop];
        let mut batch = locked(hop);
        while batch.left < messages {
            batch = wait(left, batch);
        }
    }
}

#[test]
fn a_batch_that_lingers_leaves_although_nothing_else_comes() {
    search(3, || {
        let clock = Arc::new(Clock::default());
        let runs = {
            let clock = Arc::clone(&clock);
            thread::spawn(move || clock.run())
        };
        let pushes = {
            let clock = Arc::clone(&clock);
            thread::spawn(move || clock.push(1))
        };
        clock.push(0);
        clock.wait(0, 1);
        clock.push(0);
        clock.wait(0, 2);
        pushes.join().unwrap();
        clock.wait(1, 1);
        clock.linger.end();
        runs.join().unwrap();
    });
}
