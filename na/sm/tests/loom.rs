//! The protocols of ring, wake-up and arena, searched exhaustively.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-na-sm --test loom`. With
//! `HG_WEAKEN=P3` (or another label of the modules below) that step loses its ordering, and a model must
//! fail. Slots and bodies are plain cells here: an access that nothing orders fails the model.
#![cfg(loom)]

#[expect(dead_code, reason = "the models use part of it")]
#[path = "../src/arena.rs"]
mod arena;
#[expect(dead_code, reason = "the models use part of it")]
#[path = "../src/layout.rs"]
mod layout;
#[expect(dead_code, reason = "the models use part of it")]
#[path = "../src/ring.rs"]
mod ring;
#[path = "common/loom_sync.rs"]
mod sync;
#[path = "../src/wake.rs"]
mod wake;

use arena::{LANE_BYTES, Lane};
use layout::{ANSWERS_SLOTS as SLOTS, Slot};
use loom::{sync::Arc, thread};
use ring::{Consumer, Producer, Word};
use sync::{AtomicU32, Ordering, Plain64};
use wake::{Bell, Intent, before_second_look};

/// What two sides of one direction share, and a doorbell for each.
struct Shared {
    slots: Vec<Slot>,
    popped: AtomicU32,
    flag: AtomicU32,
    /// Counts like an eventfd; its writes order nothing that the protocol relies on.
    doorbell: AtomicU32,
    body: Plain64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            popped: AtomicU32::new(0),
            flag: AtomicU32::new(0),
            doorbell: AtomicU32::new(0),
            body: Plain64::default(),
        })
    }

    fn push(&self, producer: &mut Producer, value: u64) {
        while !producer.has_room(1, &self.popped).expect("positions are right") {
            thread::yield_now();
        }
        producer.push(&self.slots, Word::new(Word::INLINE, 8), |_| value);
    }

    fn take(&self, consumer: &mut Consumer) -> Option<u64> {
        let slot = consumer.peek(&self.slots)?;
        assert_eq!(slot.claimed_word(), Word::new(Word::INLINE, 8));
        let value = slot.payload()[0];
        consumer.advance();
        Some(value)
    }

    fn ring_if(&self, is_due: bool) {
        if is_due {
            // Relaxed: an eventfd is the kernel's; it must not lend the model an ordering.
            self.doorbell.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn rings(&self) -> u32 {
        self.doorbell.load(Ordering::Relaxed)
    }
}

#[test]
fn messages_arrive_whole_and_in_order_when_the_ring_goes_round() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = Arc::clone(&shared);
        let count = u64::from(SLOTS) + 1;
        let thread = thread::spawn(move || {
            let mut producer = Producer::new(SLOTS);
            (0..count).for_each(|value| sender.push(&mut producer, value));
        });
        let mut consumer = Consumer::new(SLOTS);
        for expected in 0..count {
            let value = loop {
                match shared.take(&mut consumer) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
            consumer.write_back(&shared.popped);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_wide_message_is_whole_when_its_first_slot_is_seen_and_its_slots_are_used_again() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut producer = Producer::new(SLOTS);
            sender.push(&mut producer, 7);
            while !producer.has_known_room(SLOTS) {
                producer.refresh(&sender.popped).expect("positions are right");
                thread::yield_now();
            }
            producer
                .push_wide(&sender.slots, (Word::new(Word::INLINE, 100), SLOTS), |at| at as u64);
        });
        let mut consumer = Consumer::new(SLOTS);
        let short = loop {
            match shared.take(&mut consumer) {
                Some(value) => break value,
                None => thread::yield_now(),
            }
        };
        assert_eq!(short, 7);
        consumer.write_back(&shared.popped);
        while consumer.peek(&shared.slots).is_none() {
            thread::yield_now();
        }
        for part in 0..SLOTS {
            let words = consumer.part(&shared.slots, part).payload();
            assert_eq!(words[0], u64::from(part) * words.len() as u64);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_message_is_seen_by_the_second_look_or_its_sender_rings() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            sender.push(&mut Producer::new(SLOTS), 7);
            let is_due = Bell::default().is_due(&sender.flag);
            sender.ring_if(is_due);
        });
        Intent::default().park(&shared.flag);
        before_second_look();
        let sleeps = !Consumer::new(SLOTS).is_ready(&shared.slots);
        thread.join().unwrap();
        assert!(!sleeps || shared.rings() == 1, "the wake-up is lost");
    });
}

#[test]
fn a_sleeper_that_is_rung_once_a_sleep_misses_no_message() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (mut producer, mut bell) = (Producer::new(SLOTS), Bell::default());
            for value in 0..2 {
                sender.push(&mut producer, value);
                let is_due = bell.is_due(&sender.flag);
                sender.ring_if(is_due);
            }
        });
        let (mut consumer, mut intent) = (Consumer::new(SLOTS), Intent::default());
        let (mut taken, mut heard) = (0, 0);
        while taken < 2 {
            while shared.take(&mut consumer).is_some() {
                taken += 1;
            }
            intent.park(&shared.flag);
            before_second_look();
            if taken < 2 && !consumer.is_ready(&shared.slots) {
                // A lost wake-up never ends this sleep: the model then runs out of steps.
                while shared.rings() == heard {
                    thread::yield_now();
                }
                heard = shared.rings();
            }
            intent.unpark(&shared.flag);
        }
        thread.join().unwrap();
    });
}

#[test]
fn space_is_seen_by_the_second_look_or_the_consumer_rings() {
    loom::model(|| {
        let shared = Shared::new();
        let mut producer = Producer::new(SLOTS);
        (0..u64::from(SLOTS)).for_each(|value| shared.push(&mut producer, value));
        let receiver = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut consumer = Consumer::new(SLOTS);
            assert_eq!(receiver.take(&mut consumer), Some(0));
            consumer.write_back(&receiver.popped);
            let is_due = Bell::default().is_due(&receiver.flag);
            receiver.ring_if(is_due);
        });
        Intent::default().park(&shared.flag);
        before_second_look();
        let sleeps = !producer.has_room(1, &shared.popped).unwrap();
        thread.join().unwrap();
        assert!(!sleeps || shared.rings() == 1, "the wake-up is lost");
    });
}

#[test]
fn space_that_another_thread_drops_is_written_again_only_after_its_last_write() {
    loom::model(|| {
        let shared = Shared::new();
        let mut lane = Lane::new(0);
        let place = lane.reserve(LANE_BYTES, |_ring, _position| false).unwrap();
        let (states, holder) = (std::sync::Arc::clone(lane.states()), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            holder.body.store(1);
            states.release(place.entry);
        });
        while lane.reserve(LANE_BYTES, |_ring, _position| false).is_none() {
            thread::yield_now();
        }
        shared.body.store(2);
        thread.join().unwrap();
    });
}

#[test]
fn a_body_is_overwritten_only_after_it_was_copied_out() {
    loom::model(|| {
        let shared = Shared::new();
        let receiver = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut consumer = Consumer::new(SLOTS);
            while receiver.take(&mut consumer).is_none() {
                thread::yield_now();
            }
            assert_eq!(receiver.body.load(), 1);
            consumer.write_back(&receiver.popped);
        });
        let (mut lane, mut producer) = (Lane::new(0), Producer::new(SLOTS));
        let place =
            lane.reserve(LANE_BYTES, |_ring, position| producer.is_popped(position)).unwrap();
        shared.body.store(1);
        lane.posted(place.entry, 0, producer.position());
        shared.push(&mut producer, 0);
        loop {
            producer.refresh(&shared.popped).unwrap();
            if lane.reserve(LANE_BYTES, |_ring, position| producer.is_popped(position)).is_some() {
                break;
            }
            thread::yield_now();
        }
        shared.body.store(2);
        thread.join().unwrap();
    });
}
