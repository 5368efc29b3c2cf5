//! Threads that post to one queue pair, searched exhaustively: each post is taken once, in its thread's order, by one thread at a time; a frame is free
//! once when the flush number has passed its post, and a thread that waits for room is told.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-na-verbs --test loom`.
#![cfg(loom)]
#![expect(unsafe_code, reason = "reaches what only the one with the turn may reach")]

#[path = "../src/bell.rs"]
mod bell;
#[path = "../src/gauge.rs"]
#[expect(dead_code, reason = "a part of it is modelled")]
mod gauge;
#[path = "../src/signals.rs"]
#[expect(dead_code, reason = "a part of it is modelled")]
mod signals;
#[path = "../src/turn.rs"]
mod turn;

use std::collections::VecDeque;

use bell::Bell;
use gauge::Gauge;
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};
use signals::Signals;
use turn::Turn;

const DEPTH: u32 = 4;
const THREADS: usize = 2;
const POSTS: usize = 2;

/// What the one with the turn has: a send queue, in the order of its posts, and completions to come.
struct Card {
    signals: Signals,
    /// Posts of each thread that were taken.
    taken: [usize; THREADS],
    posted: Vec<(usize, usize)>,
    completions: VecDeque<u64>,
}

impl Card {
    /// The next post of a thread.
    fn posts(&mut self, who: usize) {
        self.posted.push((who, self.taken[who]));
        self.taken[who] += 1;
        let asks = self.signals.asks(false);
        let number = self.signals.posted(asks);
        self.completions.extend(asks.then_some(number));
    }
}

struct Shared {
    turn: Turn,
    /// Stands for a lock-free queue, and orders nothing by itself: what each thread has pushed, and one.
    queue: [[AtomicU64; POSTS]; THREADS],
    card: UnsafeCell<Card>,
    freed: AtomicU64,
    room: Bell,
    has_rung: AtomicBool,
}

impl Shared {
    fn new() -> Arc<Self> {
        let signals = Signals::new(DEPTH, 2);
        let (posted, completions) = (Vec::new(), VecDeque::new());
        let card = Card { signals, taken: [0; THREADS], posted, completions };
        let slots = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self {
            turn: Turn::default(),
            queue: std::array::from_fn(|_| slots()),
            card: UnsafeCell::new(card),
            freed: AtomicU64::new(0),
            room: Bell::default(),
            has_rung: AtomicBool::new(false),
        })
    }

    fn post(&self, who: usize, number: usize) {
        if self.turn.tries() {
            // SAFETY:
            // - whoever has the turn has it alone, which is what the model checks.
            self.card.with_mut(|card| unsafe { &mut *card }.posts(who));
            return self.serve(false);
        }
        self.queue[who][number].store(number as u64 + 1, Ordering::Relaxed);
        if self.turn.raise() {
            self.serve(false);
        }
    }

    fn poll(&self) {
        if self.turn.tries() {
            self.serve(true);
        }
    }

    /// With the turn.
    fn serve(&self, polls: bool) {
        loop {
            let seen = self.turn.seen();
            // SAFETY:
            // - whoever has the turn has it alone, which is what the model checks.
            self.card.with_mut(|card| self.take(unsafe { &mut *card }, polls));
            if self.turn.ends(seen) {
                return;
            }
        }
    }

    fn take(&self, card: &mut Card, polls: bool) {
        for (who, slots) in self.queue.iter().enumerate() {
            while let Some(slot) = slots.get(card.taken[who])
                && slot.load(Ordering::Relaxed) > 0
            {
                card.posts(who);
            }
        }
        if polls && let Some(number) = card.completions.pop_front() {
            let count = card.signals.completed(number);
            // Relaxed: only the one with the turn adds, and whoever reads is told by the bell.
            self.freed.fetch_add(count, Ordering::Relaxed);
            if self.room.answers() {
                self.has_rung.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn posts_of_several_threads_are_taken_once_and_in_order_and_none_stays() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new();
        let poster = thread::spawn({
            let shared = Arc::clone(&shared);
            move || (0..POSTS).for_each(|number| shared.post(0, number))
        });
        let poller = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.poll()
        });
        (0..POSTS).for_each(|number| shared.post(1, number));
        poster.join().unwrap();
        poller.join().unwrap();
        assert!(shared.turn.tries(), "the turn is nobody's");
        // SAFETY:
        // - all others have ended.
        let posted = shared.card.with(|card| unsafe { &*card }.posted.clone());
        for who in 0..THREADS {
            let own: Vec<usize> = posted.iter().filter(|it| it.0 == who).map(|it| it.1).collect();
            assert_eq!(own, [0, 1], "of {who}");
        }
    });
}

#[test]
fn a_thread_that_finds_no_room_is_told_when_the_flush_number_has_moved() {
    loom::model(|| {
        let shared = Shared::new();
        (0..POSTS).for_each(|number| shared.post(0, number));
        let waits = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                // Asks to be told, and looks again: there is room, or the bell will ring.
                shared.room.asks();
                shared.freed.load(Ordering::Relaxed) == 2
            }
        });
        shared.poll();
        let found = waits.join().unwrap();
        assert!(found || shared.has_rung.load(Ordering::Relaxed), "it would wait for ever");
    });
}

#[test]
fn who_sees_a_post_freed_finds_its_buffer_unused() {
    loom::model(|| {
        let shared = Arc::new((Gauge::default(), UnsafeCell::new(0)));
        assert!(shared.0.takes_place() && shared.0.takes_place());
        let frees = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                // SAFETY:
                // - the card has it until its post is freed, which the model checks.
                shared.1.with_mut(|buffer| unsafe { *buffer += 1 }); // T1
                shared.0.frees(2);
            }
        });
        if shared.0.is_over(1) {
            // SAFETY:
            // - nobody uses it any more, which the model checks.
            shared.1.with_mut(|buffer| unsafe { *buffer += 1 });
        }
        frees.join().unwrap();
    });
}
