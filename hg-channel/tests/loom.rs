//! The hand-over between threads of a process, searched exhaustively, with three threads up to two preemptions: an owner that sleeps is woken, and takes everything in
//! order.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p hydrargyrum-channel --test loom`. There is no labelled ordering: the lock
//! orders everything.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a model ends at the first surprise")]

#[path = "../src/inbox.rs"]
mod inbox;
#[path = "../src/sync.rs"]
mod sync;

use inbox::Inbox;
use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// The waiter of a context: a wake-up ends the present wait, or the next one.
struct Waiter(Mutex<bool>, Condvar);

impl Waiter {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut woken = self.0.lock().unwrap();
        while !*woken {
            woken = self.1.wait(woken).unwrap();
        }
        *woken = false;
    }
}

fn take_all(inbox: &Inbox<u32>, waiter: &Waiter, count: usize) -> Vec<u32> {
    let (mut all, mut taken) = (Vec::new(), Vec::new());
    while all.len() < count {
        inbox.take(&mut taken);
        if taken.is_empty() {
            if inbox.may_sleep() {
                waiter.wait();
                inbox.wake_up();
            }
        } else {
            all.append(&mut taken);
        }
    }
    all
}

#[test]
fn an_owner_that_sleeps_is_woken_for_each_block() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let waiter = Arc::new(Waiter(Mutex::new(false), Condvar::new()));
        let producer = thread::spawn({
            let (inbox, waiter) = (Arc::clone(&inbox), Arc::clone(&waiter));
            move || {
                for number in 0..2 {
                    if inbox.push(number).unwrap_or(false) {
                        waiter.wake();
                    }
                }
            }
        });
        assert_eq!(take_all(&inbox, &waiter, 2), [0, 1]);
        producer.join().unwrap();
    });
}

#[test]
fn blocks_of_one_producer_stay_in_order_beside_another_one() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2); // Three threads.
    model.check(|| {
        let inbox = Arc::new(Inbox::new());
        let waiter = Arc::new(Waiter(Mutex::new(false), Condvar::new()));
        let producers: Vec<_> = [10_u32, 20]
            .into_iter()
            .map(|first| {
                let (inbox, waiter) = (Arc::clone(&inbox), Arc::clone(&waiter));
                let count = if first == 10 { 2 } else { 1 };
                thread::spawn(move || {
                    for number in first..first + count {
                        if inbox.push(number).unwrap_or(false) {
                            waiter.wake();
                        }
                    }
                })
            })
            .collect();
        let all = take_all(&inbox, &waiter, 3);
        let of_first: Vec<u32> = all.iter().copied().filter(|it| *it < 20).collect();
        assert_eq!(of_first, [10, 11]);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

#[test]
fn whoever_hands_over_to_a_closed_inbox_gets_it_back_or_it_is_dropped() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let producer = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || matches!(inbox.push(1), Err(inbox::Closed(1)))
        });
        inbox.close();
        let was_refused = producer.join().unwrap();
        let mut left = Vec::new();
        inbox.take(&mut left);
        assert!(left.is_empty());
        assert!(was_refused || inbox.push(2).is_err());
    });
}
