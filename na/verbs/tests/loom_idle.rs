//! Contexts that post to one queue pair and look whether it has gone idle, searched exhaustively: whoever puts a post into the queue, and whether or not that
//! one makes progress any more, the completion of a context's posts is asked for once it sleeps; and a queue in use is not taken for an idle one.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-na-verbs --test loom_idle`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a poisoned lock ends the search")]

#[path = "../src/gauge.rs"]
#[expect(dead_code, reason = "a part of it is modelled")]
mod gauge;
#[path = "../src/idle.rs"]
mod idle;
#[path = "../src/signals.rs"]
#[expect(dead_code, reason = "a part of it is modelled")]
mod signals;
#[path = "../src/turn.rs"]
mod turn;

use std::time::Instant;

use gauge::Gauge;
use idle::Idle;
use loom::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use signals::{Signals, Silent};
use turn::Turn;

/// More posts than the model makes: none asks by itself.
const EVERY: u32 = 32;

/// Who has posted.
#[derive(Debug, Clone, Copy)]
enum Who {
    Own,
    Other,
}

/// What goes with the turn.
struct Card {
    signals: Signals,
    /// The number of the own post, once it is in the queue.
    own: Option<u64>,
}

/// What contexts share, as the hub of an endpoint does.
struct Shared {
    start: Instant,
    idle: Idle,
    gauge: Gauge,
    turn: Turn,
    /// As the card says.
    is_port_down: AtomicBool,
    submitted: Mutex<Vec<Who>>,
    card: Mutex<Card>,
}

/// What another context does meanwhile.
#[derive(Debug, Clone, Copy)]
enum Does {
    Posts,
    /// It hands to the card what others have submitted.
    Polls,
    /// A word of this side's own, without the turn.
    Says,
    /// It needs what silent posts hold.
    Asks,
}

impl Shared {
    fn new() -> Arc<Self> {
        let (start, submitted) = (Instant::now(), Mutex::default());
        let card = Mutex::new(Card { signals: Signals::new(128, EVERY), own: None });
        let (idle, gauge, turn) = (Idle::new(start), Gauge::default(), Turn::default());
        let is_port_down = AtomicBool::new(false);
        Arc::new(Self { start, idle, gauge, turn, is_port_down, submitted, card })
    }

    fn put(&self, card: &mut Card, who: Who, must: bool) {
        let asks = card.signals.asks(must);
        let number = card.signals.posted(asks);
        if matches!(who, Who::Own) {
            card.own = Some(number);
        }
        if asks {
            card.signals.completed(number);
            self.gauge.frees(number);
        } else {
            self.idle.begins();
        }
    }

    /// A post of the endpoint's own.
    fn say(&self, card: &mut Card, must: bool) {
        self.gauge.adds();
        self.put(card, Who::Other, must);
    }

    fn ask(&self, card: &mut Card) {
        if card.signals.is_silent() {
            self.say(card, true);
        }
    }

    fn post_submitted(&self, card: &mut Card) {
        let all = std::mem::take(&mut *self.submitted.lock().unwrap());
        all.into_iter().for_each(|who| self.put(card, who, false));
    }

    fn complete(&self) -> MutexGuard<'_, Card> {
        let mut card = self.card.lock().unwrap();
        self.post_submitted(&mut card);
        card
    }

    /// With the turn.
    fn serve(&self, card: &mut Card) {
        loop {
            let seen = self.turn.seen();
            self.post_submitted(card);
            if self.turn.ends(seen) {
                return;
            }
        }
    }

    fn post(&self, who: Who) {
        assert!(self.gauge.takes_place(), "there is room");
        if self.turn.tries() {
            let mut card = self.card.lock().unwrap();
            self.put(&mut card, who, false);
            return self.serve(&mut card);
        }
        self.submitted.lock().unwrap().push(who);
        if self.turn.raise() {
            self.serve(&mut self.card.lock().unwrap());
        }
    }

    fn does(&self, what: Does) {
        match what {
            Does::Posts => self.post(Who::Other),
            Does::Polls => {
                if self.turn.tries() {
                    self.serve(&mut self.card.lock().unwrap());
                }
            }
            Does::Says => self.say(&mut self.card.lock().unwrap(), false),
            Does::Asks => self.ask(&mut self.complete()),
        }
    }

    fn looks(&self, now: Instant) {
        if !self.idle.is_due(now) {
            return;
        }
        let mut card = self.complete();
        if !self.idle.is_due(now) {
            return;
        }
        let found = card.signals.look();
        // Relaxed: what a card says is as old as it is.
        let asks = found == Silent::Idle && !self.is_port_down.load(Ordering::Relaxed);
        if asks {
            self.ask(&mut card);
        }
        self.idle.looked(now, found != Silent::Nothing && !asks);
    }

    /// Whether one that sleeps is to look at once: when it was about to, it was to wake then.
    fn needs_a_look(&self, armed: Option<Instant>) -> bool {
        armed.is_none() && self.sleeps().is_some()
    }

    /// The number of the last post, of a flush.
    fn last(&self) -> u64 {
        let _card = self.complete();
        self.gauge.last()
    }

    /// When one that is about to sleep wakes.
    fn sleeps(&self) -> Option<Instant> {
        let _card = self.complete();
        self.idle.deadline()
    }

    /// Looks whenever its sleep ends, which it does a few times at most; then its own is not silent.
    fn wakes_until_nothing_is_silent(&self, mut wakes: Option<Instant>) {
        let mut rounds = 0;
        while let Some(now) = wakes {
            rounds += 1;
            assert!(rounds < 5, "it wakes for ever");
            self.looks(now);
            wakes = self.sleeps();
        }
        let card = self.card.lock().unwrap();
        let own = card.own.expect("it is in the queue");
        assert!(card.signals.freed() >= own, "it stays silent");
    }
}

/// What one posts, and sleeps then, is asked for, though the other makes no progress any more.
fn nothing_stays_silent_where_another(what: Does) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Shared::new();
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.does(what)
        });
        shared.post(Who::Own);
        shared.looks(shared.start);
        let wakes = shared.sleeps();
        other.join().unwrap();
        shared.wakes_until_nothing_is_silent(wakes);
    });
}

#[test]
fn nothing_stays_silent_where_another_posts_too() {
    nothing_stays_silent_where_another(Does::Posts);
}

#[test]
fn nothing_stays_silent_where_another_has_the_turn() {
    nothing_stays_silent_where_another(Does::Polls);
}

#[test]
fn nothing_stays_silent_where_another_says_a_word_of_the_pair() {
    nothing_stays_silent_where_another(Does::Says);
}

#[test]
fn nothing_stays_silent_where_another_asks() {
    nothing_stays_silent_where_another(Does::Asks);
}

/// One that sleeps posts by another thread of its own, while another has posted, looks once, and makes no progress any more.
#[test]
fn nothing_stays_silent_that_is_posted_during_a_sleep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new();
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.post(Who::Other);
                shared.looks(shared.start);
            }
        });
        let armed = shared.sleeps();
        let mut wakes = armed.into_iter().chain(shared.sleeps()).min();
        shared.post(Who::Own);
        if shared.needs_a_look(armed) {
            shared.looks(shared.start);
            wakes = shared.sleeps();
        }
        other.join().unwrap();
        shared.wakes_until_nothing_is_silent(wakes);
    });
}

/// A port is down for a while, and another looks meanwhile who makes no progress any more.
#[test]
fn nothing_stays_silent_that_was_idle_while_its_port_was_down() {
    loom::model(|| {
        let shared = Shared::new();
        shared.is_port_down.store(true, Ordering::Relaxed);
        shared.post(Who::Own);
        shared.looks(shared.start);
        let due = shared.sleeps().expect("something is silent");
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.looks(due);
                shared.is_port_down.store(false, Ordering::Relaxed);
            }
        });
        shared.looks(due);
        other.join().unwrap();
        let mut rounds = 0;
        while let Some(now) = shared.sleeps() {
            rounds += 1;
            assert!(rounds < 5, "it wakes for ever");
            shared.looks(now);
        }
        assert!(!shared.card.lock().unwrap().signals.is_silent(), "it stays silent");
    });
}

/// A word of this side's own, of whoever has the turn, gets into the queue before what was submitted earlier.
#[test]
fn a_flush_ends_after_its_own_posts_though_a_word_overtakes_them() {
    loom::model(|| {
        let shared = Shared::new();
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                if shared.turn.tries() {
                    let mut card = shared.card.lock().unwrap();
                    shared.say(&mut card, true);
                    shared.serve(&mut card);
                }
            }
        });
        shared.post(Who::Own);
        let last = shared.last();
        let is_over = shared.gauge.is_over(last);
        let card = shared.card.lock().unwrap();
        assert!(!is_over || card.own.is_some_and(|own| own <= card.signals.freed()), "too early");
        drop(card);
        other.join().unwrap();
    });
}

/// Two that find that it is time to look, and a third that has posted since.
#[test]
fn two_looks_at_one_time_are_one() {
    loom::model(|| {
        let shared = Shared::new();
        shared.post(Who::Own);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.looks(shared.start)
        });
        shared.looks(shared.start);
        other.join().unwrap();
        assert!(shared.card.lock().unwrap().signals.is_silent(), "it was posted to just now");
    });
}

/// A flush that asks finds its own posts in the queue, though another one has the turn.
#[test]
fn who_asks_has_all_asked_for_that_it_has_posted() {
    loom::model(|| {
        let shared = Shared::new();
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.does(Does::Polls)
        });
        shared.post(Who::Own);
        shared.does(Does::Asks);
        other.join().unwrap();
        let card = shared.card.lock().unwrap();
        assert!(card.own.is_some_and(|own| card.signals.freed() >= own), "a flush waits for ever");
    });
}
