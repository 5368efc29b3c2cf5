//! A message costs no switch of threads: those who send sleep, and wake others, for batches.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::sync::{
    Arc, Barrier,
    atomic::{AtomicU64, Ordering},
};

use common::run;
use hg_shuffle::{Delivery, Group as _, Options, Shuffle, Shutdown};
use nix::sys::resource::{UsageWho, getrusage};

/// Messages of each rank, a quarter of them to itself.
const MESSAGES: u32 = 400_000;

/// How often a thread of this process has given its processor away so far, to wait for something.
fn switches() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    u64::try_from(usage.voluntary_context_switches()).unwrap()
}

/// Each futex that somebody sleeps at is a switch; one in eight messages would be one in forty batches of these.
#[test]
fn a_long_run_of_single_messages_switches_threads_for_batches_only() {
    let (together, delivered) = (Barrier::new(4), Arc::new(AtomicU64::new(0)));
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    let before = AtomicU64::new(0);
    run("2x2", |group| {
        let counted = Arc::clone(&delivered);
        let deliver = move |_: Delivery<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let shuffle = Shuffle::new(&group, "switches", options.clone(), deliver).unwrap();
        if together.wait().is_leader() {
            before.store(switches(), Ordering::Relaxed);
        }
        together.wait();
        for number in 0..MESSAGES {
            shuffle.enqueue(number % 4, number, &[1; 32]).unwrap();
        }
        shuffle.flush_all().unwrap();
        if together.wait().is_leader() {
            let all = 4 * u64::from(MESSAGES);
            assert_eq!(delivered.load(Ordering::Relaxed), all);
            let switched = switches() - before.load(Ordering::Relaxed);
            assert!(switched < all / 8, "{switched} switches of threads for {all} messages");
        }
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

/// A callback that is slower than its sender: its room, of 1000 messages, is full all the time. Who waits for room is woken when half of it is
/// free, so all ranks together switch a few times for 500 messages; one in eight would be sixty times.
#[test]
fn who_sends_to_a_slow_callback_is_woken_for_batches_only() {
    const SLOW: u32 = 40_000;
    let together = Barrier::new(2);
    let mut options = Options::default();
    options.deliverq_max = 1000;
    for to in [0, 1] {
        run("1x2", |group| {
            let deliver = |_: Delivery<'_>| {
                (0..500).for_each(|_| std::hint::spin_loop());
            };
            let shuffle = Shuffle::new(&group, "slow", options.clone(), deliver).unwrap();
            together.wait();
            let before = switches();
            if group.rank() == 0 {
                (0..SLOW).for_each(|number| shuffle.enqueue(to, number, &[1; 32]).unwrap());
            }
            shuffle.flush_all().unwrap();
            let switched = switches() - before;
            assert!(switched < u64::from(SLOW) / 8, "{switched} switches for {SLOW} messages");
            shuffle.shutdown(Shutdown::Drain).unwrap();
        });
    }
}
