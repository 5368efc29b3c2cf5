//! Memory is bounded in bytes, however long messages are, while a receiver takes nothing in.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::run;
use hg_shuffle::{Delivery, Error, Group as _, Options, Shuffle, Shutdown};

/// Bytes of the process that are allocated.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY:
// - every request goes to the system's allocator as it came, and so does what that one gives.
#[expect(unsafe_code, reason = "an allocator is unsafe to be")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn options() -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    options
}

/// Sends to the last rank until it has taken nothing for a while: how many bytes were taken, and how many were alive.
fn fill(shuffle: &Shuffle, to: u32, message: &[u8], bound: usize) -> (usize, usize) {
    let (mut sent, mut refusals, mut live) = (0, 0, 0);
    // Whatever is on its way settles; then there is no room for good.
    while refusals < 200 {
        match shuffle.try_enqueue(to, 0, message) {
            Ok(()) => (sent, refusals) = (sent + message.len() + 16, 0),
            Err(Error::Again) => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
        live = live.max(LIVE.load(Ordering::Relaxed));
        assert!(sent <= bound, "{sent} bytes were taken, {bound} fit");
    }
    (sent, live)
}

/// The last rank's callback is held. What all ranks together hold then, beyond what they held before.
fn blocked(map: &str, len: usize, options: &Options, bound: usize) {
    let gate = Arc::new(Mutex::new(()));
    let size = map.split(['x', '+']).map(|part| part.parse::<usize>().unwrap()).product();
    let together = Barrier::new(size);
    run(map, |group| {
        let (me, last, inside) = (group.rank(), group.map().size() - 1, Arc::clone(&gate));
        let deliver = move |_: Delivery<'_>| drop(inside.lock().unwrap());
        let shuffle = Shuffle::new(&group, "blocked", options.clone(), deliver).unwrap();
        together.wait();
        if me == 0 {
            let held = gate.lock().unwrap();
            let (message, before) = (vec![1; len], LIVE.load(Ordering::Relaxed));
            let (sent, live) = fill(&shuffle, last, &message, bound);
            let held_bytes = live.saturating_sub(before);
            assert!(held_bytes <= bound, "{map}, {len}: {held_bytes} bytes held, bound {bound}");
            assert!(sent >= options.lobuftarget.min(len), "{map}, {len}: {sent}");
            drop(held);
        }
        together.wait();
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn a_receiver_that_takes_nothing_in_keeps_bounded_bytes_of_messages_of_any_length() {
    let options = options();
    for len in [16, 64 << 10, 16 << 20] {
        for (map, hops) in [("1x2", 1), ("2x2", 3)] {
            let batch = options.lobuftarget.max(len) + len + 32;
            // A hop has batches under way, one beyond, which it sends; they lie at its two ends. One is filled, another one waits.
            let hop = 2 * (options.lomaxbytes.min(16 * batch) + batch) + 2 * batch;
            let bound = options.deliverq_bytes_max + batch + hops * hop + SLACK;
            blocked(map, len, &options, bound);
        }
    }
}

/// What engines and buffers kept for batches to come take, whatever waits.
const SLACK: usize = 8 << 20;
