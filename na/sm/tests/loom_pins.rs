//! The pin protocol, searched exhaustively: an owner takes memory back while an initiator transfers.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-na-sm --test loom_pins`. With
//! `HG_WEAKEN=R2` (or another label of `src/region/pins.rs`) that step loses its ordering, and a model
//! must fail.
#![cfg(loom)]

#[expect(dead_code, reason = "the other protocols use the rest")]
#[path = "common/loom_sync.rs"]
mod sync;

#[path = "../src/region/pins.rs"]
mod pins;
#[path = "../src/wake.rs"]
mod wake;

use loom::{
    sync::{Arc, Mutex},
    thread,
};
use pins::{
    Pin, announce, disregard, free, heed, is_heeded, is_live, is_pinned, is_published,
    is_unchanged, order, publish, release, retract,
};
use sync::{AtomicU32, AtomicU64, Ordering, Plain64};
use wake::{Bell, Intent, before_second_look};

const INDEX: u32 = 3;
const LIVE: u32 = 5;

/// One region: its entry in the table, one initiator's pin words, and its memory.
struct Region {
    generation: AtomicU32,
    field: Plain64,
    pins: [AtomicU64; 2],
    memory: Plain64,
    /// Whether the owner looks at the pins, as it says and as it does.
    heed: AtomicU32,
    is_listed: Mutex<bool>,
}

fn region(generation: u32) -> Arc<Region> {
    assert!(is_live(LIVE));
    Arc::new(Region {
        generation: AtomicU32::new(generation),
        field: Plain64::default(),
        pins: [AtomicU64::new(0), AtomicU64::new(0)],
        memory: Plain64::default(),
        heed: AtomicU32::new(0),
        is_listed: Mutex::new(false),
    })
}

/// As an initiator does it, of one region; `None`: it is not published any more.
fn pin<'a>(
    words: &'a [AtomicU64],
    index: u32,
    expected: u32,
    generation: &AtomicU32,
) -> Option<Pin<'a>> {
    let pin = announce(words, index, expected).expect("a free word");
    order();
    is_published(expected, generation).then_some(pin)
}

/// Retracts, waits for the pin, then writes into the memory, as its next owner would.
fn take_back(region: &Region) {
    retract(&region.generation, LIVE + 1);
    while is_pinned(&region.pins, INDEX, LIVE) {
        thread::yield_now();
    }
    region.memory.store(2);
}

#[test]
fn memory_is_taken_back_only_after_the_transfer_or_before_any() {
    loom::model(|| {
        let shared = region(LIVE);
        let initiator = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            if let Some(_pin) = pin(&initiator.pins, INDEX, LIVE, &initiator.generation) {
                // The transfer: loom fails the model when the memory is written meanwhile.
                assert_eq!(initiator.memory.load(), 0);
            }
        });
        take_back(&shared);
        thread.join().unwrap();
    });
}

#[test]
fn one_fence_is_enough_for_two_that_are_announced_before_it() {
    loom::model(|| {
        let shared = region(LIVE);
        let initiator = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let other = announce(&initiator.pins, INDEX + 1, LIVE);
            let pin = announce(&initiator.pins, INDEX, LIVE).unwrap();
            order();
            if is_published(LIVE, &initiator.generation) {
                assert_eq!(initiator.memory.load(), 0);
            }
            drop((pin, other));
        });
        take_back(&shared);
        thread.join().unwrap();
    });
}

/// What was begun by one thread is moved by another one, while the first begins something else.
#[test]
fn the_next_name_in_a_word_says_that_the_transfer_before_is_over() {
    loom::model(|| {
        let shared = region(LIVE);
        let mover = Arc::clone(&shared);
        let pin = announce(&shared.pins[..1], INDEX, LIVE).unwrap();
        order();
        assert!(is_published(LIVE, &shared.generation));
        assert_eq!(pin.leave(&shared.pins[..1]), 0);
        let moving = thread::spawn(move || {
            assert_eq!(mover.memory.load(), 0);
            release(&mover.pins[0]);
        });
        let next = Arc::clone(&shared);
        let beginning = thread::spawn(move || {
            if let Some(pin) = announce(&next.pins[..1], INDEX + 1, LIVE) {
                pin.leave(&next.pins[..1]);
            }
        });
        take_back(&shared);
        moving.join().unwrap();
        beginning.join().unwrap();
    });
}

#[test]
fn a_published_generation_shows_its_fields() {
    loom::model(|| {
        let shared = region(LIVE - 1);
        let initiator = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            if let Some(_pin) = pin(&initiator.pins, INDEX, LIVE, &initiator.generation) {
                assert_eq!(initiator.field.load(), 7);
            }
        });
        shared.field.store(7);
        publish(&shared.generation, LIVE);
        thread.join().unwrap();
    });
}

#[test]
fn two_transfers_hold_two_pins_and_a_third_is_put_off() {
    loom::model(|| {
        let shared = region(LIVE);
        let first = pin(&shared.pins, INDEX, LIVE, &shared.generation).unwrap();
        let second = pin(&shared.pins, INDEX, LIVE, &shared.generation).unwrap();
        assert!(announce(&shared.pins, INDEX, LIVE).is_none());
        drop(first);
        assert!(is_pinned(&shared.pins, INDEX, LIVE));
        assert!(!is_pinned(&shared.pins, INDEX, LIVE + 2));
        drop(second);
        assert!(!is_pinned(&shared.pins, INDEX, LIVE));
    });
}

#[test]
fn who_sleeps_for_want_of_a_word_finds_one_free_or_is_woken_by_whoever_releases_it() {
    loom::model(|| {
        let shared = region(LIVE);
        let (wanted, woken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let pin = announce(&shared.pins[..1], INDEX, LIVE).expect("a free word");
        assert_eq!(pin.leave(&shared.pins[..1]), 0);
        let mover = (Arc::clone(&shared), Arc::clone(&wanted), Arc::clone(&woken));
        let thread = thread::spawn(move || {
            let (shared, wanted, woken) = mover;
            release(&shared.pins[0]);
            if Bell::default().is_due(&wanted) {
                woken.store(1, Ordering::Relaxed);
            }
        });
        let mut intent = Intent::default();
        intent.park(&wanted);
        before_second_look();
        let is_free = free(&shared.pins[..1]).is_some();
        thread.join().unwrap();
        assert!(is_free || woken.load(Ordering::Relaxed) == 1, "it sleeps for ever");
        intent.unpark(&wanted);
    });
}

/// Pins a region of an owner that may be opening the connection, or closing it, and transfers.
fn transfer_if_heeded(region: &Region) {
    let pin = announce(&region.pins, INDEX, LIVE).expect("a free word");
    order();
    if is_heeded(&region.heed) && is_published(LIVE, &region.generation) {
        assert_eq!(region.memory.load(), 0);
    }
    drop(pin);
}

/// Looks at the pins if the peer stands in the list.
fn take_back_from_listed(region: &Region) {
    retract(&region.generation, LIVE + 1);
    let is_listed = || *region.is_listed.lock().expect("nobody panics with it");
    let is_pinned = || is_listed() && is_pinned(&region.pins, INDEX, LIVE);
    while is_pinned() {
        thread::yield_now();
    }
    region.memory.store(2);
}

#[test]
fn who_pins_before_the_owner_has_opened_the_connection_transfers_nothing_that_is_taken_back() {
    loom::model(|| {
        let shared = region(LIVE);
        let (initiator, opener) = (Arc::clone(&shared), Arc::clone(&shared));
        let transfer = thread::spawn(move || transfer_if_heeded(&initiator));
        let opening = thread::spawn(move || {
            let mut is_listed = opener.is_listed.lock().expect("nobody panics with it");
            *is_listed = true;
            heed(&opener.heed);
        });
        take_back_from_listed(&shared);
        transfer.join().unwrap();
        opening.join().unwrap();
    });
}

#[test]
fn who_pins_while_the_owner_closes_the_connection_is_listed_or_transfers_nothing() {
    loom::model(|| {
        let shared = region(LIVE);
        heed(&shared.heed);
        let initiator = Arc::clone(&shared);
        let transfer = thread::spawn(move || transfer_if_heeded(&initiator));
        disregard(&shared.heed);
        *shared.is_listed.lock().expect("nobody panics with it") =
            is_pinned(&shared.pins, INDEX, LIVE);
        take_back_from_listed(&shared);
        transfer.join().unwrap();
    });
}

/// A look at the table (`PeerTable::look`) while the owner publishes another region at the same place.
#[test]
fn what_was_read_without_a_pin_is_of_that_region_or_not_used() {
    loom::model(|| {
        let field = Arc::new(AtomicU64::new(7));
        let shared = region(LIVE);
        let (looking, seen) = (Arc::clone(&shared), Arc::clone(&field));
        let thread = thread::spawn(move || {
            if is_published(LIVE, &looking.generation) {
                let read = seen.load(Ordering::Relaxed);
                assert!(!is_unchanged(LIVE, &looking.generation) || read == 7);
            }
        });
        retract(&shared.generation, LIVE + 1);
        field.store(8, Ordering::Relaxed);
        publish(&shared.generation, LIVE + 2);
        thread.join().unwrap();
    });
}
