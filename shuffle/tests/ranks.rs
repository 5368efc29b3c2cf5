//! Shuffles between ranks that are threads: every message arrives once, in order, whatever it looks like.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/all_to_all.rs"]
mod all_to_all;
mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use all_to_all::all_to_all_by;
use common::{keeping, run};
use hg_shuffle::{Delivery, Error, Flush, Group as _, Options, Shuffle, Shutdown};

/// Nothing takes so long.
const LONG: Duration = Duration::from_secs(20);

const MAPS: &[&str] = &["1x1", "1x4", "2x2", "3+1", "1+3", "0,1,2,0,1,2,0", "1+1+1"];

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    change(&mut options);
    options
}

fn unbatched(options: &mut Options) {
    (options.lobuftarget, options.lrbuftarget, options.rbuftarget) = (0, 0, 0);
}

/// Every rank sends `count` messages to every rank; each has to arrive once, in order.
fn all_to_all(map: &str, options: &Options, count: u32, length: impl Fn(u32) -> usize + Sync) {
    for (by_sender, deliver_inline) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let mut options = options.clone();
        options.deliver_inline = deliver_inline;
        all_to_all_by(by_sender, map, &|_| options.clone(), count, &length);
    }
}

#[test]
fn ranks_of_a_node_may_use_the_transport_between_nodes_and_no_third_one() {
    all_to_all("2x2", &options(|it| it.local_url = "tcp://127.0.0.1".to_owned()), 50, |_| 100);
    let third = options(|it| it.local_url = "ofi+tcp://127.0.0.1".to_owned());
    let refused = run("1+1", |group| Shuffle::new(&group, "test", third.clone(), |_| ()).map(drop));
    for refused in refused {
        assert!(matches!(refused, Err(Error::BadOption { name: "local_url", .. })), "{refused:?}");
    }
}

#[test]
fn every_message_arrives_once_and_in_order_over_every_topology() {
    for map in MAPS {
        all_to_all(map, &options(|_| {}), 300, |_| 32);
    }
}

#[test]
fn unbatched_messages_and_one_batch_at_a_time_arrive_as_well() {
    for map in ["1x3", "2x2", "3+1"] {
        all_to_all(map, &options(unbatched), 200, |_| 8);
        let one = |options: &mut Options| {
            (options.lomaxrpc, options.lrmaxrpc, options.rmaxrpc) = (1, 1, 1)
        };
        all_to_all(map, &options(one), 300, |_| 100);
    }
}

#[test]
fn messages_without_bytes_longer_than_a_batch_and_than_a_message_of_the_transport_arrive() {
    let lengths = [0, 1, 20_000, 0, 5, 700_000, 3, 0, 0, 300_000];
    for map in ["1x2", "2x2"] {
        for change in [unbatched, |_: &mut Options| {}] {
            all_to_all(map, &options(change), 20, |number| {
                lengths[number as usize % lengths.len()]
            });
        }
    }
}

#[test]
fn what_has_not_filled_a_batch_stays_with_its_sender_until_it_is_flushed() {
    run("1x2", |group| {
        let (shuffle, delivered) = keeping(&group, options(|_| {}));
        let mut sender = shuffle.sender();
        (0..2).for_each(|to| sender.enqueue(to, 0, b"kept").unwrap());
        assert!(matches!(sender.enqueue(2, 0, b""), Err(Error::NoSuchRank { rank: 2, size: 2 })));
        shuffle.flush_all().unwrap();
        assert_eq!((delivered.lock().unwrap().len(), shuffle.account().sent), (0, vec![0, 0]));
        // Nobody's messages come while another one still looks.
        shuffle.barrier().unwrap();
        sender.flush().unwrap();
        shuffle.flush_all().unwrap();
        assert_eq!((delivered.lock().unwrap().len(), shuffle.account().sent), (2, vec![1, 1]));
        drop(sender);
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn a_broadcast_reaches_everybody_once_with_or_without_its_sender() {
    for map in MAPS {
        let received = run(map, |group| {
            let (shuffle, delivered) = keeping(&group, options(|_| {}));
            let me = hg_shuffle::Group::rank(&group);
            shuffle.broadcast(1, &me.to_le_bytes(), true).unwrap();
            shuffle.broadcast(2, &me.to_le_bytes(), false).unwrap();
            shuffle.flush_all().unwrap();
            let mut received = std::mem::take(&mut *delivered.lock().unwrap());
            shuffle.shutdown(Shutdown::Drain).unwrap();
            received.sort();
            received
        });
        let size = u32::try_from(received.len()).unwrap();
        for (me, received) in (0..).zip(received) {
            let wanted: Vec<_> = (0..size)
                .flat_map(|source| [1, 2].map(|kind| (source, kind, source.to_le_bytes().to_vec())))
                .filter(|(source, kind, _)| !(*source == me && *kind == 2))
                .collect();
            assert_eq!(received, wanted, "{map}, rank {me}");
        }
    }
}

#[test]
fn a_partial_batch_leaves_by_itself_after_a_while() {
    let linger = |options: &mut Options| options.linger = Duration::from_millis(5);
    run("2x2", |group| {
        let (shuffle, delivered) = keeping(&group, options(linger));
        for to in 0..4 {
            shuffle.enqueue(to, 0, b"alone").unwrap();
        }
        while delivered.lock().unwrap().len() < 4 {
            std::thread::yield_now();
        }
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn a_blocked_callback_keeps_senders_waiting_and_memory_bounded() {
    // Bytes of a batch, also of one that gathers messages which would leave by themselves.
    let (batch, message) = (16 << 10, 1600);
    let small = |target| {
        move |options: &mut Options| {
            (options.lobuftarget, options.lrbuftarget, options.rbuftarget) =
                (target, target, target);
            (options.lomaxrpc, options.lrmaxrpc, options.rmaxrpc) = (2, 2, 2);
            options.deliverq_max = 1;
        }
    };
    // One hop and three hops: sender and destination are the first and the last rank.
    for (map, hops, target) in [("1x2", 1, batch), ("2x2", 3, batch), ("1x2", 1, 0), ("2x2", 3, 0)]
    {
        let gate = Arc::new(Mutex::new(()));
        let done = Barrier::new(if map == "1x2" { 2 } else { 4 });
        run(map, |group| {
            let (me, size) =
                (hg_shuffle::Group::rank(&group), hg_shuffle::Group::map(&group).size());
            let (last, inside, count) = (size - 1, Arc::clone(&gate), Arc::new(AtomicU64::new(0)));
            let counted = Arc::clone(&count);
            let deliver = move |_: hg_shuffle::Delivery<'_>| {
                drop(inside.lock().unwrap());
                counted.fetch_add(1, Ordering::SeqCst);
            };
            let shuffle = Shuffle::new(&group, "blocked", options(small(target)), deliver).unwrap();
            if me == 1 && size == 4 || me == 0 && size == 2 {
                let held = gate.lock().unwrap();
                let mut sent = 0;
                let mut refusals = 0;
                // Whatever is on its way settles; then there is no room for good.
                while refusals < 200 {
                    match shuffle.try_enqueue(if size == 4 { 2 } else { 1 }, 0, &vec![1; message]) {
                        Ok(()) => (sent, refusals) = (sent + 1, 0),
                        Err(Error::Again) => {
                            refusals += 1;
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                // Two under way on each hop, and one that loads; the last one is in the callback.
                let bound = (3 * hops + 1) * (batch / message + 1) + 1;
                assert!(sent <= bound, "{map}: {sent} messages were taken, {bound} fit");
                assert!(sent >= batch / message, "{sent}");
                drop(held);
            }
            shuffle.flush_all().unwrap();
            done.wait();
            let _ = last;
            shuffle.shutdown(Shutdown::Drain).unwrap();
        });
    }
}

#[test]
fn a_sender_limit_waits_for_room_at_any_hop_not_for_one_that_is_blocked() {
    run("1x3", |thread| {
        let me = thread.rank();
        let release = Arc::new((Mutex::new(false), Condvar::new()));
        let held = Arc::clone(&release);
        let limited = options(|options| {
            unbatched(options);
            (options.localsenderlimit, options.deliverq_max) = (3, 1);
        });
        let deliver = move |delivery: Delivery<'_>| {
            if me == 1 && delivery.kind == 1 {
                let waits = held.0.lock().unwrap();
                let waited = held.1.wait_timeout_while(waits, LONG, |is_free| !*is_free);
                assert!(!waited.unwrap().1.timed_out(), "rank 0 waits for rank 1");
            }
        };
        let shuffle = Shuffle::new(&thread, "test", limited, deliver).unwrap();
        if me == 0 {
            // One is being delivered, one stays under way.
            shuffle.enqueue(1, 1, b"").unwrap();
            shuffle.enqueue(1, 1, b"").unwrap();
            for _ in 0..200 {
                shuffle.enqueue(2, 0, b"").unwrap();
            }
        }
        shuffle.barrier().unwrap();
        *release.0.lock().unwrap() = true;
        release.1.notify_all();
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn deliveries_begin_beyond_the_threshold_and_then_leave_nothing() {
    let high = |options: &mut Options| {
        unbatched(options);
        options.deliverq_threshold = 10;
        options.linger = Duration::from_secs(3000);
    };
    run("1x2", |group| {
        let (shuffle, delivered) = keeping(&group, options(high));
        let me = hg_shuffle::Group::rank(&group);
        let send = |count: u32| {
            if me == 0 {
                (0..count).for_each(|number| shuffle.enqueue(1, number, b"held").unwrap());
                shuffle.flush(Flush::Origin).unwrap();
            }
            shuffle.barrier().unwrap();
        };
        send(10);
        if me == 1 {
            assert_eq!(shuffle.statistics().undelivered, 10);
            assert!(delivered.lock().unwrap().is_empty());
        }
        shuffle.barrier().unwrap();
        send(1);
        while me == 1 && delivered.lock().unwrap().len() < 11 {
            std::thread::yield_now();
        }
        send(3);
        shuffle.flush_all().unwrap();
        assert_eq!(delivered.lock().unwrap().len(), if me == 1 { 14 } else { 0 });
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn fewer_messages_than_the_threshold_are_delivered_after_lingering() {
    let high = |options: &mut Options| options.deliverq_threshold = 1000;
    run("1x2", |group| {
        let (shuffle, delivered) = keeping(&group, options(high));
        (0..2).for_each(|to| shuffle.enqueue(to, 0, b"alone").unwrap());
        while delivered.lock().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn several_shuffles_at_once_keep_their_messages_apart() {
    run("2x2", |group| {
        let names = ["red", "green", "blue"];
        let open = |name: &&str| {
            let delivered = common::Delivered::default();
            let kept = Arc::clone(&delivered);
            let keep =
                move |hg_shuffle::Delivery { source, kind, bytes, .. }: hg_shuffle::Delivery<
                    '_,
                >| {
                    kept.lock().unwrap().push((source, kind, bytes.to_vec()));
                };
            (Shuffle::new(&group, name, options(|_| {}), keep).unwrap(), delivered)
        };
        let shuffles: Vec<_> = names.iter().map(open).collect();
        for number in 0..200 {
            for (name, (shuffle, _)) in names.iter().zip(&shuffles) {
                (0..4).for_each(|to| shuffle.enqueue(to, number, name.as_bytes()).unwrap());
            }
        }
        for (name, (shuffle, delivered)) in names.iter().zip(shuffles) {
            shuffle.flush_all().unwrap();
            let delivered = std::mem::take(&mut *delivered.lock().unwrap());
            assert_eq!(delivered.len(), 800);
            assert!(delivered.iter().all(|(_, _, bytes)| bytes == name.as_bytes()), "{name}");
            // One after the other: the rest goes on.
            shuffle.shutdown(Shutdown::Drain).unwrap();
        }
    });
}

#[test]
fn messages_of_several_threads_arrive_once_each_thread_s_in_order() {
    let (threads, count) = (4, 300);
    let received = run("2x2", |group| {
        let small = |options: &mut Options| {
            (options.lobuftarget, options.rbuftarget, options.lrbuftarget) = (100, 200, 0);
            (options.lomaxrpc, options.rmaxrpc, options.lrmaxrpc) = (2, 2, 2);
            options.localsenderlimit = 3;
        };
        let (shuffle, delivered) = keeping(&group, options(small));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let shuffle = &shuffle;
                scope.spawn(move || {
                    for number in 0..count {
                        let to = (number + thread) % 4;
                        shuffle.enqueue(to, thread, &u32::to_le_bytes(number)).unwrap();
                    }
                });
            }
        });
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
        std::mem::take(&mut *delivered.lock().unwrap())
    });
    let mut last = BTreeMap::new();
    let mut sum = 0;
    for (me, received) in (0..).zip(received) {
        for (source, thread, bytes) in received {
            let number = u32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!((number + thread) % 4, me);
            let before = last.insert((me, source, thread), number);
            assert!(before < Some(number), "from {source}, thread {thread}");
            sum += 1;
        }
    }
    assert_eq!(sum, 4 * threads * count);
}

/// A rank that comes out of its last step later than the others: they send already.
struct Late<'a> {
    group: common::Thread,
    others_have_sent: &'a Barrier,
}

impl hg_shuffle::Group for Late<'_> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn map(&self) -> Arc<hg_job::NodeMap> {
        self.group.map()
    }

    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        self.group.share(own)
    }

    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String> {
        self.group.exchange(peers, own)
    }

    fn barrier(&self) -> Result<(), String> {
        let met = self.group.barrier();
        if self.rank() == 1 {
            self.others_have_sent.wait();
        }
        met
    }
}

#[test]
fn messages_to_a_rank_that_has_not_begun_are_not_lost() {
    let others_have_sent = Barrier::new(2);
    run("1x2", |group| {
        let me = hg_shuffle::Group::rank(&group);
        let group = Late { group, others_have_sent: &others_have_sent };
        let delivered = common::Delivered::default();
        let kept = Arc::clone(&delivered);
        let keep = move |delivery: hg_shuffle::Delivery<'_>| {
            kept.lock().unwrap().push((delivery.source, delivery.kind, delivery.bytes.to_vec()));
        };
        let shuffle = Shuffle::new(&group, "early", options(|_| {}), keep).unwrap();
        if me == 0 {
            (0..100).for_each(|number| shuffle.enqueue(1, number, b"early").unwrap());
            // Rank 1 has taken them in, and is still beginning.
            shuffle.flush(Flush::Origin).unwrap();
            others_have_sent.wait();
        }
        shuffle.flush_all().unwrap();
        assert_eq!(delivered.lock().unwrap().len(), if me == 1 { 100 } else { 0 });
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn deliveries_begin_below_their_threshold_where_somebody_waits_for_room_in_bytes() {
    let small = options(|options| {
        unbatched(options);
        (options.deliverq_bytes_max, options.deliverq_threshold) = (100, 50);
        options.linger = hg_shuffle::LINGER_MAX;
    });
    run("1x2", |group| {
        let me = hg_shuffle::Group::rank(&group);
        let (shuffle, delivered) = keeping(&group, small.clone());
        for _ in 0..2 {
            // To itself it waits until there is room, and to the other one until that has taken it in.
            for to in [me, 1 - me] {
                shuffle.enqueue(to, 0, &[7; 100]).unwrap();
            }
            shuffle.flush(Flush::Origin).unwrap();
        }
        for _ in 0..2 {
            let tried = || shuffle.try_enqueue(me, 0, &[7; 100]).is_ok();
            watchdog::until("there is room for another one", tried);
        }
        shuffle.barrier().unwrap();
        assert!(delivered.lock().unwrap().len() >= 5, "all but the last one");
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn bad_calls_are_named_errors() {
    run("1x2", |group| {
        let bad = Shuffle::new(&group, "bad", options(|options| options.lomaxrpc = 0), |_| {});
        assert!(bad.unwrap_err().to_string().contains("lomaxrpc"));
        let (shuffle, _) = keeping(&group, options(|_| {}));
        let error = shuffle.enqueue(2, 0, b"").unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 2, size: 2 }), "{error}");
        shuffle.flush(Flush::Origin).unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn a_shutdown_delivers_what_is_queued_or_says_how_much_it_drops() {
    for how in [Shutdown::Drain, Shutdown::Drop] {
        let results = run("2x2", |group| {
            let long = |options: &mut Options| options.linger = Duration::from_secs(3000);
            let (shuffle, delivered) = keeping(&group, options(long));
            for to in 0..4 {
                shuffle.enqueue(to, 0, b"queued").unwrap();
            }
            let dropped = shuffle.shutdown(how).unwrap();
            let delivered = delivered.lock().unwrap().len() as u64;
            (delivered, dropped)
        });
        let sum = results.iter().fold((0, 0), |sum, result| (sum.0 + result.0, sum.1 + result.1));
        assert_eq!(sum.0 + sum.1, 16, "{how:?}: {results:?}");
        if how == Shutdown::Drain {
            assert_eq!(sum, (16, 0));
        } else {
            assert!(sum.1 > 0, "{results:?}");
        }
    }
}

#[test]
fn a_callback_that_never_returns_does_not_keep_a_rank_from_ending_after_a_failure() {
    let (gate, together) = (Arc::new(Barrier::new(2)), Barrier::new(3));
    run("1x3", |group| {
        let (me, stuck) = (hg_shuffle::Group::rank(&group), Arc::clone(&gate));
        let deliver = move |_: hg_shuffle::Delivery<'_>| {
            stuck.wait();
        };
        let shuffle = Shuffle::new(&group, "stuck", options(|_| {}), deliver).unwrap();
        if me == 0 {
            shuffle.enqueue(1, 0, b"stays").unwrap();
            shuffle.flush(Flush::Origin).unwrap();
        }
        together.wait();
        if me == 2 {
            return drop(shuffle);
        }
        let dump = shuffle.dump();
        let wait = || if me == 0 { shuffle.barrier() } else { shuffle.flush(Flush::Delivery) };
        let error = wait().unwrap_err();
        assert!(matches!(error, Error::Failed(_)), "{error}");
        shuffle.shutdown(Shutdown::Drain).unwrap_err();
        let account = dump.account();
        assert!(account.is_balanced() && account.delivered == 0, "{account:?}");
        if me == 1 {
            assert_eq!(account.undelivered, 1);
            gate.wait();
        }
    });
}

#[test]
fn a_rank_that_ends_without_a_word_is_named_to_all_others() {
    for map in ["1x3", "2x2", "1+1+1"] {
        let together = Barrier::new(if map == "2x2" { 4 } else { 3 });
        let results = run(map, |group| {
            let (shuffle, _) = keeping(&group, options(|_| {}));
            let me = hg_shuffle::Group::rank(&group);
            shuffle.flush_all().unwrap();
            together.wait();
            if me == 1 {
                drop(shuffle);
                return None;
            }
            shuffle.enqueue(1, 0, b"in doubt").ok();
            let error = loop {
                match shuffle.flush_all() {
                    Ok(()) => {}
                    Err(Error::Failed(failure)) => break failure,
                    Err(error) => panic!("{error}"),
                }
            };
            assert!(shuffle.enqueue(me, 0, b"").is_err());
            Some(error)
        });
        for failure in results.into_iter().flatten() {
            assert_eq!(failure.rank, 1, "{failure}");
            // Its own message, if it was sent before the failure was known; on two nodes also what it represented.
            assert!(failure.in_doubt <= 1, "{failure}");
        }
    }
}
