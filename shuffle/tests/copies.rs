//! How often the bytes of a long message are copied: counted by the memory that its way needs.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use common::{keeping, run};
use hg_shuffle::{Group as _, Options, Shutdown};

/// Bytes of the message: beyond one message of every transport.
const LONG: usize = 24 << 20;

/// Pieces of memory that held as much as the message.
static LONG_ONES: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count(size: usize) {
    if size >= LONG {
        LONG_ONES.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY:
// - every request goes to the system's allocator as it came, and so does what that one gives.
#[expect(unsafe_code, reason = "an allocator is unsafe to be")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY:
        // - the caller's promise is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends one message from rank 0 to another one; the memory as long as it that was needed meanwhile.
fn long_ones(map: &str, to: u32) -> u64 {
    let needed = run(map, |group| {
        let mut options = Options::default();
        options.network_url = "tcp://127.0.0.1".to_owned();
        let (shuffle, delivered) = keeping(&group, options);
        let message = if group.rank() == 0 { vec![7; LONG] } else { Vec::new() };
        shuffle.barrier().unwrap();
        let before = LONG_ONES.load(Ordering::Relaxed);
        shuffle.barrier().unwrap();
        if group.rank() == 0 {
            shuffle.enqueue(to, 1, &message).unwrap();
        }
        shuffle.flush_all().unwrap();
        let needed = LONG_ONES.load(Ordering::Relaxed) - before;
        for (.., bytes) in delivered.lock().unwrap().iter() {
            assert!(
                group.rank() == to && bytes.len() == LONG && bytes.iter().all(|byte| *byte == 7)
            );
        }
        assert_eq!(delivered.lock().unwrap().len(), usize::from(group.rank() == to));
        shuffle.shutdown(Shutdown::Drain).unwrap();
        needed
    });
    needed.into_iter().max().unwrap()
}

#[test]
fn each_hop_copies_a_long_message_once_and_receives_it_once() {
    // Of each hop the batch that the message was copied to, and what the next process received it in, which is tried out
    // before; at the end what is delivered from, and what this test keeps. Nothing else holds it on its way.
    for (map, to, hops) in [("1x2", 1, 1), ("1+1", 1, 1), ("2x2", 3, 3)] {
        assert_eq!(long_ones(map, to), 3 * hops + 2, "{map}, {hops} hops");
    }
}
