//! Callbacks that send: answers always go, in bounded memory, and what would never go is a named error.
//!
//! `HG_ECHO_SECONDS=60` lets ranks echo every message for so long, instead of a number of messages.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::{
    sync::{
        Arc, Condvar, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    time::Duration,
};

use common::{Thread, run};
use hg_shuffle::{Delivery, Error, Flush, Group as _, Options, Shuffle, Shutdown};

fn options() -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    options
}

fn inline(mut options: Options) -> Options {
    options.deliver_inline = true;
    options
}

/// A shuffle whose callback is given it.
fn with_itself(
    group: &Thread,
    options: Options,
    mut deliver: impl FnMut(&Shuffle, Delivery<'_>) + Send + 'static,
) -> Arc<Shuffle> {
    let place = Arc::new(OnceLock::<Weak<Shuffle>>::new());
    let given = Arc::clone(&place);
    let run = move |delivery: Delivery<'_>| {
        // It was made before anybody sends; it is gone when it ends.
        let Some(shuffle) = given.wait().upgrade() else { return };
        deliver(&shuffle, delivery);
    };
    let shuffle = Arc::new(Shuffle::new(group, "echo", options, run).unwrap());
    place.set(Arc::downgrade(&shuffle)).unwrap();
    shuffle
}

/// Ends it when no callback has it any more.
fn end(mut shuffle: Arc<Shuffle>) {
    shuffle.flush_all().unwrap();
    let shuffle = loop {
        match Arc::try_unwrap(shuffle) {
            Ok(shuffle) => break shuffle,
            Err(shared) => shuffle = shared,
        }
        std::thread::yield_now();
    };
    let dropped = shuffle.shutdown(Shutdown::Drain).unwrap();
    assert_eq!(dropped, 0);
}

/// Something that comes once.
#[derive(Default)]
struct Flag {
    is_up: AtomicBool,
    state: Mutex<bool>,
    changed: Condvar,
}

impl Flag {
    fn raise(&self) {
        self.is_up.store(true, Ordering::SeqCst);
        *self.state.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    fn wait(&self, limit: Duration) -> bool {
        let state = self.state.lock().unwrap();
        *self.changed.wait_timeout_while(state, limit, |is_up| !*is_up).unwrap().0
    }
}

/// Every rank sends to every rank as fast as it can, and every message is sent back, until so many were delivered.
fn echo(map: &str, options: &Options, deliveries: u64) {
    let seconds = std::env::var("HG_ECHO_SECONDS").ok().map(|text| text.parse().unwrap());
    let (over, delivered) = (Arc::new(Flag::default()), Arc::new(AtomicU64::new(0)));
    let sums = run(map, |group| {
        let (size, me) = (group.map().size(), group.rank());
        let (ends, count) = (Arc::clone(&over), Arc::clone(&delivered));
        let shuffle = with_itself(&group, options.clone(), move |shuffle, delivery| {
            let before = count.fetch_add(1, Ordering::Relaxed);
            if ends.is_up() {
                return;
            }
            if seconds.is_none() && before >= deliveries {
                ends.raise();
            }
            shuffle.enqueue(delivery.source, delivery.kind, delivery.bytes).unwrap();
        });
        std::thread::scope(|scope| {
            if let Some(seconds) = seconds.filter(|_| me == 0) {
                let over = &over;
                let delivered = &delivered;
                scope.spawn(move || {
                    let (mut before, mut stood) = (0, 0);
                    for _ in 0..seconds {
                        over.wait(Duration::from_secs(1));
                        let now = delivered.load(Ordering::Relaxed);
                        stood = if now > before { 0 } else { stood + 1 };
                        before = now;
                        if stood == 10 {
                            break;
                        }
                    }
                    over.raise();
                    assert!(stood < 10, "nothing was delivered for ten seconds");
                });
            }
            while !over.is_up() {
                for to in 0..size {
                    shuffle.enqueue(to, me, b"thirty-two bytes of every messag").unwrap();
                }
            }
        });
        // What was on its way when it was over.
        shuffle.flush_all().unwrap();
        let account = shuffle.account();
        end(shuffle);
        (account.sent.iter().sum::<u64>(), account.delivered)
    });
    let sum = sums.iter().fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1));
    assert_eq!(sum.0, sum.1, "{map}: as many were delivered as sent");
    assert!(seconds.is_some() || sum.1 >= deliveries);
}

/// For a minute as the step `echo` of `./check`.
#[test]
fn two_ranks_of_one_node_that_echo_every_message_never_stand_still() {
    echo("1x2", &options(), 400_000);
}

#[test]
fn two_ranks_that_echo_every_message_over_a_network_or_inline_never_stand_still() {
    echo("1x2", &inline(options()), 400_000);
    echo("1+1", &options(), 400_000);
    echo("1+1", &inline(options()), 400_000);
}

#[test]
fn every_rank_that_echoes_every_other_s_messages_goes_on() {
    for map in ["1x3", "2x2"] {
        echo(map, &options(), 400_000);
        echo(map, &inline(options()), 400_000);
    }
}

#[test]
fn ranks_that_echo_go_on_where_there_is_little_room() {
    let mut small = options();
    (small.lobuftarget, small.lrbuftarget, small.rbuftarget) = (100, 0, 200);
    (small.lomaxrpc, small.lrmaxrpc, small.rmaxrpc) = (1, 2, 1);
    (small.deliverq_max, small.localsenderlimit) = (4, 2);
    for map in ["1x2", "2x2"] {
        echo(map, &small, 20_000);
        echo(map, &inline(small.clone()), 20_000);
    }
}

#[test]
fn callbacks_that_send_ever_more_are_told_that_there_is_no_room() {
    let mut small = options();
    (small.deliverq_max, small.deliverq_bytes_max) = (16, 16 << 10);
    (small.callback_bytes_max, small.callback_patience) = (64 << 10, Duration::from_millis(50));
    for (map, is_inline) in
        ["1x1", "1x2", "1+1"].into_iter().flat_map(|map| [(map, false), (map, true)])
    {
        let mut small = small.clone();
        small.deliver_inline = is_inline;
        let told = Arc::new(Mutex::new(None));
        let full = Arc::new(Flag::default());
        run(map, |group| {
            let (told, is_full, next) = (Arc::clone(&told), Arc::clone(&full), group.rank() + 1);
            let size = group.map().size();
            let shuffle = with_itself(&group, small.clone(), move |shuffle, delivery| {
                for _ in 0..2 {
                    if is_full.is_up() {
                        return;
                    }
                    if let Err(error) = shuffle.enqueue(next % size, 0, delivery.bytes) {
                        *told.lock().unwrap() = Some(error);
                        is_full.raise();
                    }
                }
            });
            shuffle.enqueue(next % size, 0, &[1; 100]).unwrap();
            assert!(full.wait(Duration::from_secs(50)), "{map}");
            shuffle.flush_all().unwrap();
            end(shuffle);
        });
        let error = told.lock().unwrap().take().unwrap();
        assert!(matches!(error, Error::CallbackFull { .. }), "{map}: {error:?}");
        assert!(error.to_string().contains("send them from another thread"), "{error}");
    }
}

#[test]
fn a_callback_is_refused_what_would_wait_for_itself_and_may_look_at_the_account() {
    for options in [options(), inline(options())] {
        waits_in_a_callback(&options);
    }
}

fn waits_in_a_callback(options: &Options) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    run("1x2", |group| {
        let seen = Arc::clone(&seen);
        let shuffle = with_itself(&group, options.clone(), move |shuffle, delivery| {
            let flushes = [Flush::Origin, Flush::Delivery].map(|stage| shuffle.flush(stage));
            assert!(flushes.iter().all(|it| matches!(it, Err(Error::Closed))), "{flushes:?}");
            let waits = (shuffle.flush_all(), shuffle.barrier());
            let balanced = shuffle.account().delivered;
            seen.lock().unwrap().push((delivery.source, waits, balanced));
        });
        for to in 0..2 {
            shuffle.enqueue(to, 0, b"look").unwrap();
        }
        end(shuffle);
    });
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 4);
    for (_, waits, _) in seen {
        assert!(matches!(waits, (Err(Error::Closed), Err(Error::Closed))), "{waits:?}");
    }
}

/// The callback of rank 0 sends by a handle of its own until it is refused, and lets that go; the other rank takes nothing in before.
fn sender_in_a_callback(map: &str, options: Options) {
    let (told, full) = (Arc::new(Mutex::new(None)), Arc::new(Flag::default()));
    let accounts = run(map, |group| {
        let (size, me, mut is_first) = (group.map().size(), group.rank(), true);
        let (told, is_full) = (Arc::clone(&told), Arc::clone(&full));
        let shuffle = with_itself(&group, options.clone(), move |shuffle, _| {
            if me > 0 {
                assert!(is_full.wait(watchdog::LIMIT));
            } else if std::mem::replace(&mut is_first, false) {
                let (mut sender, mut taken) = (shuffle.sender(), 0);
                // A batch that has begun when there is no more room.
                sender.enqueue(size - 1, 0, &[1; 100]).unwrap();
                let refused = loop {
                    match sender.enqueue(1 % size, 0, &[1; 100]) {
                        Ok(()) => taken += 1,
                        Err(refused) => break refused,
                    }
                };
                // One that would fill it is refused, as one that begins a batch.
                let long = sender.enqueue(size - 1, 0, &[1; 1000]);
                assert!(matches!(long, Err(Error::CallbackFull { .. })), "{long:?}");
                drop(sender);
                *told.lock().unwrap() = Some((taken, refused));
                is_full.raise();
            }
        });
        if me == 0 {
            shuffle.enqueue(0, 0, b"begin").unwrap();
        }
        shuffle.flush_all().unwrap();
        // What callbacks have sent while that was delivered.
        shuffle.flush_all().unwrap();
        let account = shuffle.account();
        end(shuffle);
        account
    });
    let (taken, refused) = told.lock().unwrap().take().unwrap();
    assert!(matches!(refused, Error::CallbackFull { .. }), "{map}: {refused:?}");
    let sum = |count: fn(&hg_shuffle::Account) -> u64| accounts.iter().map(count).sum::<u64>();
    let sent = sum(|account| account.sent.iter().sum());
    assert_eq!((sent, sum(|account| account.delivered)), (taken + 2, taken + 2), "{map}");
}

#[test]
fn what_a_sender_has_taken_in_a_callback_arrives_also_if_it_is_dropped_where_no_room_is_left() {
    let mut small = options();
    (small.lobuftarget, small.rbuftarget) = (1000, 1000);
    (small.deliverq_max, small.deliverq_bytes_max) = (16, 16 << 10);
    (small.callback_bytes_max, small.callback_patience) = (64 << 10, Duration::from_millis(50));
    for map in ["1x1", "1x2", "1+1", "1x3"] {
        sender_in_a_callback(map, small.clone());
        sender_in_a_callback(map, inline(small.clone()));
    }
}

/// A callback of rank 1 is given the shuffle, and has the last handle to it; what it does with that, and what rank 0 is told.
fn the_last_handle_in_a_callback(options: &Options, last: fn(Arc<Shuffle>)) {
    let (inside, let_go) = (Flag::default(), Flag::default());
    let flags = Arc::new((inside, let_go));
    let ended = run("1x2", |group| {
        let (me, of_callback) = (group.rank(), Arc::clone(&flags));
        let place = Arc::new(OnceLock::<Weak<Shuffle>>::new());
        let given = Arc::clone(&place);
        let deliver = move |_: Delivery<'_>| {
            let Some(shuffle) = given.wait().upgrade() else { return };
            of_callback.0.raise();
            assert!(of_callback.1.wait(watchdog::LIMIT));
            last(shuffle);
        };
        let shuffle = Shuffle::new(&group, "last", options.clone(), deliver).unwrap();
        let shuffle = Arc::new(shuffle);
        place.set(Arc::downgrade(&shuffle)).unwrap();
        if me == 0 {
            shuffle.enqueue(1, 0, b"let go").unwrap();
            return shuffle.flush_all();
        }
        assert!(flags.0.wait(watchdog::LIMIT));
        drop(shuffle);
        flags.1.raise();
        Ok(())
    });
    let Err(Error::Failed(failure)) = &ended[0] else { panic!("{ended:?}") };
    assert_eq!((failure.rank, failure.why.contains("panicked")), (1, false), "{failure}");
}

fn shut_down_refused(shuffle: Arc<Shuffle>, how: Shutdown) {
    let ended = Arc::try_unwrap(shuffle).map(|shuffle| shuffle.shutdown(how));
    assert!(matches!(ended, Ok(Err(Error::Closed))), "{ended:?}");
}

#[test]
fn a_callback_that_has_the_last_handle_may_drop_it_or_try_to_end_it_and_the_others_are_told() {
    for options in [options(), inline(options())] {
        the_last_handle_in_a_callback(&options, drop);
        the_last_handle_in_a_callback(&options, |it| shut_down_refused(it, Shutdown::Drain));
        the_last_handle_in_a_callback(&options, |it| shut_down_refused(it, Shutdown::Drop));
    }
}

/// What a callback owns: a handle, and then what tells that this one was dropped.
struct Owned {
    shuffle: Arc<OnceLock<Shuffle>>,
    _ends: Sender<()>,
}

#[test]
fn a_callback_that_panics_and_owns_the_last_handle_is_dropped_and_the_others_are_told() {
    for options in [options(), inline(options())] {
        let ended = run("1x2", |group| {
            let (place, (ends, ended), (let_go, alone)) =
                (Arc::new(OnceLock::new()), channel(), channel());
            let owned = Owned { shuffle: Arc::clone(&place), _ends: ends };
            let deliver = move |_: Delivery<'_>| {
                let owned = &owned;
                owned.shuffle.wait();
                alone.recv().unwrap();
                panic!("as it was told");
            };
            let shuffle = Shuffle::new(&group, "owns", options.clone(), deliver).unwrap();
            if group.rank() == 0 {
                shuffle.enqueue(1, 0, b"panic").unwrap();
                return shuffle.flush_all();
            }
            assert!(place.set(shuffle).is_ok());
            drop(place);
            let_go.send(()).unwrap();
            assert!(ended.recv().is_err(), "nobody tells");
            Ok(())
        });
        let Err(Error::Failed(failure)) = &ended[0] else { panic!("{ended:?}") };
        assert_eq!((failure.rank, failure.why.contains("panicked")), (1, true), "{failure}");
    }
}

#[test]
fn an_inline_callback_that_panics_fails_its_rank_for_all() {
    let failed = run("1x3", |group| {
        let me = group.rank();
        let shuffle = with_itself(&group, inline(options()), move |_, _| {
            assert!(me != 1, "as it was told");
        });
        for to in 0..3 {
            // The failure may come before the last of them.
            let _ = shuffle.enqueue(to, 0, b"message");
        }
        let flushed = shuffle.flush_all();
        drop(shuffle);
        flushed
    });
    for ended in failed {
        let Err(Error::Failed(failure)) = ended else { panic!("{ended:?}") };
        assert_eq!((failure.rank, failure.why.contains("panicked")), (1, true), "{failure}");
    }
}
