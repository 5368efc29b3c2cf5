//! Memory is bounded in bytes, however long messages are, while a receiver takes nothing in.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, Barrier, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::run;
use hg_job::NodeMap;
use hg_shuffle::{Delivery, Error, Group as _, Options, Shuffle, Shutdown, route::Plan};

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

/// How messages are put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By `try_enqueue`, which does not wait.
    Try,
    /// By `enqueue`, in a thread that waits.
    Wait,
    /// By a `Sender`, in a thread that waits.
    Sender,
}

/// Sends to the last rank until it has taken nothing for a while; then `open` lets it take all. How many bytes were taken, and how many were
/// alive.
fn fill(
    shuffle: &Shuffle,
    to: u32,
    message: &[u8],
    way: Way,
    open: impl FnOnce(),
) -> (usize, usize) {
    let (taken, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (taken, is_over) = (&taken, &is_over);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sender = (way == Way::Sender).then(|| shuffle.sender());
            while !is_over.load(Ordering::Relaxed) {
                let sent = match (&mut sender, way) {
                    (Some(sender), _) => sender.enqueue(to, 0, message),
                    (None, Way::Try) => shuffle.try_enqueue(to, 0, message),
                    (None, _) => shuffle.enqueue(to, 0, message),
                };
                match sent {
                    Ok(()) => drop(taken.fetch_add(message.len() + HEAD, Ordering::Relaxed)),
                    Err(Error::Again) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // Whatever is on its way settles; then there is no room for good.
        let (mut before, mut looks, mut live) = (0, 0, 0);
        while looks < 200 {
            std::thread::sleep(Duration::from_millis(1));
            let now = taken.load(Ordering::Relaxed);
            looks = if now == before { looks + 1 } else { 0 };
            before = now;
            live = live.max(LIVE.load(Ordering::Relaxed));
        }
        is_over.store(true, Ordering::Relaxed);
        open();
        (before, live)
    })
}

/// The most bytes that are taken, and that are alive then.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    taken: usize,
    held: usize,
}

/// The last rank's callback is held. What all ranks together hold then, beyond what they held before.
fn blocked(map: &str, len: usize, way: Way, options: &Options, bounds: Bounds) {
    let gate = Arc::new(Mutex::new(()));
    let together = Barrier::new(map.parse::<NodeMap>().unwrap().size() as usize);
    run(map, |group| {
        let (me, last, inside) = (group.rank(), group.map().size() - 1, Arc::clone(&gate));
        let deliver = move |_: Delivery<'_>| drop(inside.lock().unwrap());
        let shuffle = Shuffle::new(&group, "blocked", options.clone(), deliver).unwrap();
        together.wait();
        if me == 0 {
            let held = gate.lock().unwrap();
            let (message, before) = (vec![1; len], LIVE.load(Ordering::Relaxed));
            let (taken, live) = fill(&shuffle, last, &message, way, || drop(held));
            let held_bytes = live.saturating_sub(before);
            let said =
                format!("{map}, {len}, {way:?}: {held_bytes} held, {taken} taken, {bounds:?}");
            assert!(held_bytes <= bounds.held && taken <= bounds.taken, "{said}");
            assert!(taken >= 16 << 10, "{said}");
        }
        together.wait();
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

/// Every kind of queue has bounds of its own, so that a hop that kept to another one's would be seen.
fn options() -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    (options.lomaxbytes, options.lomaxrpc) = (1 << 20, 256);
    (options.rmaxbytes, options.rmaxrpc) = (2 << 20, 256);
    (options.lrmaxbytes, options.lrmaxrpc) = (4 << 20, 256);
    (options.deliverq_bytes_max, options.deliverq_max) = (1 << 20, 4096);
    options
}

fn at_each_hop(len: usize) {
    let options = options();
    // Bytes of payload fill a batch; heads go with them.
    let batch = options.lobuftarget.div_ceil(len) * (len + HEAD);
    let under_way = |bytes: usize| bytes.div_ceil(batch);
    let origin = under_way(options.lomaxbytes);
    let network = under_way(options.rmaxbytes);
    let relay = under_way(options.lrmaxbytes);
    let delivery = options.deliverq_bytes_max.min(options.deliverq_max * (len + HEAD)) + batch;
    for (map, hops) in [
        ("1x2", &[origin][..]),
        ("1+1", &[network]),
        ("1+2", &[network, relay]),
        ("2x2", &[origin, network, relay]),
    ] {
        let under_way = hops.iter().sum::<usize>();
        // At each hop one loads; one waits for room in a thread, and another one lies in its sender handle.
        let taken = delivery + (under_way + hops.len() + 2) * batch;
        // What is under way lies at both ends.
        let bounds = Bounds { taken, held: taken + under_way * batch + SLACK };
        for way in [Way::Try, Way::Wait, Way::Sender] {
            blocked(map, len, way, &options, bounds);
        }
    }
}

#[test]
fn short_messages_are_bounded_in_bytes_at_each_hop_to_a_receiver_that_takes_nothing_in() {
    at_each_hop(16);
}

#[test]
fn messages_of_64_kib_are_bounded_in_bytes_at_each_hop() {
    at_each_hop(64 << 10);
}

#[test]
fn messages_of_16_mib_are_bounded_in_bytes_at_each_hop() {
    at_each_hop(16 << 20);
}

/// A relay in front of a receiver that takes nothing in: what waits at it for good, by the account of the rank that sends to it.
#[test]
fn what_waits_at_a_relay_is_no_more_than_the_plan_says() {
    let options = options();
    let (gate, together) = (Arc::new(Mutex::new(())), Barrier::new(3));
    run("1+2", |group| {
        let (me, inside) = (group.rank(), Arc::clone(&gate));
        let deliver = move |_: Delivery<'_>| drop(inside.lock().unwrap());
        let shuffle = Shuffle::new(&group, "relay", options.clone(), deliver).unwrap();
        together.wait();
        if me == 0 {
            let held = gate.lock().unwrap();
            let mut waiting = None;
            let message = [1; 1000];
            fill(&shuffle, 2, &message, Way::Try, || {
                let account = shuffle.account();
                let way = account.ways.iter().find(|way| way.waiting > 0).unwrap();
                let bytes = |messages: u64| messages * (message.len() + HEAD) as u64;
                let passed_on = account.sent[2] - way.waiting;
                waiting = Some((way.rank, bytes(way.waiting), bytes(passed_on)));
                drop(held);
            });
            let (relay, bytes, passed_on) = waiting.unwrap();
            let plan = Plan::new(&group.map(), &options);
            let most = plan.processes()[relay as usize].backlog_bytes;
            let said = format!("{bytes} wait at rank {relay}, which was to be {most} at most");
            assert!(bytes <= most, "{said}");
            // It is full.
            assert!(bytes >= options.rmaxbytes as u64, "{said}");
            // What the relay has said to be on lies at rank 2, or in the relay.
            let queued = most + options.deliverq_bytes_max as u64;
            assert!(passed_on <= queued, "{passed_on} were passed on, of {queued} at most");
        }
        together.wait();
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

/// Every rank sends to every rank, and every message is sent back, until many times what the queues hold has been; what is alive at most.
fn echo(map: &str, options: &Options, bounds: Bounds) {
    let (size, most, over) = (
        map.parse::<NodeMap>().unwrap().size(),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (together, delivered) = (Barrier::new(size as usize), Arc::new(AtomicUsize::new(0)));
    run(map, |group| {
        let place = Arc::new(OnceLock::<Weak<Shuffle>>::new());
        let (given, over) = (Arc::clone(&place), Arc::clone(&over));
        let (peak, count, is_over) = (Arc::clone(&most), Arc::clone(&delivered), Arc::clone(&over));
        let deliver = move |delivery: Delivery<'_>| {
            let Some(shuffle) = given.wait().upgrade() else { return };
            peak.fetch_max(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
            let bytes = delivery.bytes.len() + HEAD;
            let so_far = count.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if so_far > ECHOED * bounds.taken {
                is_over.store(true, Ordering::Relaxed);
            }
            if !is_over.load(Ordering::Relaxed) {
                shuffle.enqueue(delivery.source, 0, delivery.bytes).unwrap();
            }
        };
        let shuffle = Arc::new(Shuffle::new(&group, "echo", options.clone(), deliver).unwrap());
        place.set(Arc::downgrade(&shuffle)).unwrap();
        together.wait();
        let before = LIVE.load(Ordering::Relaxed);
        together.wait();
        std::thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| {
                    let mut sender = shuffle.sender();
                    while !over.load(Ordering::Relaxed) {
                        for to in 0..size {
                            sender.enqueue(to, 0, &[1; 1000]).unwrap();
                        }
                    }
                });
            }
        });
        shuffle.flush_all().unwrap();
        shuffle.flush_all().unwrap();
        together.wait();
        let held = most.load(Ordering::Relaxed).saturating_sub(before);
        assert!(held <= bounds.held, "{map}: {held} held, {bounds:?}");
        let mut shared = shuffle;
        let shuffle = loop {
            match Arc::try_unwrap(shared) {
                Ok(shuffle) => break shuffle,
                Err(still) => shared = still,
            }
            std::thread::yield_now();
        };
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

/// What the queues hold, both ends of them, as much again in engines, and what callbacks have answered and has no room yet.
#[test]
fn ranks_that_echo_every_message_hold_no_more_than_their_queues() {
    let mut options = options();
    (options.lomaxbytes, options.rmaxbytes, options.lrmaxbytes) = (64 << 10, 64 << 10, 64 << 10);
    options.deliverq_bytes_max = 64 << 10;
    options.callback_bytes_max = 4 << 20;
    for inline in [false, true] {
        options.deliver_inline = inline;
        for (map, ranks, queues) in [("1x2", 2, 1), ("1+1", 2, 1), ("2x2", 4, 3)] {
            let queue = (64 << 10) + 2 * options.lobuftarget.max(options.rbuftarget);
            // One batch of each thread loads, and one waits, for each hop and for itself.
            let batches = SENDERS * (queues + 1) * 2 * options.lobuftarget;
            let taken = ranks * (queues * queue + ranks * (64 << 10) + batches);
            // In memory that grows by doubling.
            let answers = 2 * ranks * options.callback_bytes_max;
            echo(map, &options, Bounds { taken, held: 2 * taken + answers + SLACK });
        }
    }
}

/// Threads of each rank that send.
const SENDERS: usize = 2;
/// How often what all queues hold is echoed.
const ECHOED: usize = 50;
/// Bytes in front of each message of a batch.
const HEAD: usize = 16;
/// What engines and buffers kept for batches to come take, whatever waits.
const SLACK: usize = 512 << 10;
