//! What each rank has counted adds up: at the end of a run, and when a rank is gone in the middle of one.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::{
    collections::BTreeSet,
    sync::{Arc, Barrier},
    time::{SystemTime, UNIX_EPOCH},
};

use common::{keeping, run};
use hg_job::NodeMap;
use hg_shuffle::{
    Account, Error, Failure, Group as _, Options, Shutdown,
    route::{Came, Next, Routes},
};

/// xorshift64*.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        u32::try_from(drawn % u64::from(limit)).unwrap()
    }
}

/// What one rank that lives knows in the end.
struct Books {
    me: u32,
    account: Account,
    /// Messages delivered here, by source; and broadcasts.
    received: Vec<u64>,
    received_broadcasts: Vec<u64>,
    /// Broadcasts after the first flush: those that were taken, and those that were tried.
    broadcasts: (u64, u64),
    failure: Option<Failure>,
}

/// Small limits, so that much waits everywhere.
fn options(random: &mut Random) -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    let mut target = || [0, 100, 2000][random.below(3) as usize];
    (options.lobuftarget, options.lrbuftarget, options.rbuftarget) = (target(), target(), target());
    let mut maxrpc = || 1 + random.below(3);
    (options.lomaxrpc, options.lrmaxrpc, options.rmaxrpc) = (maxrpc(), maxrpc(), maxrpc());
    options.deliverq_max = 1 + random.below(40) as usize;
    options.deliver_inline = random.below(2) == 0;
    options
}

/// The ranks that a message passes, its source and destination as well.
fn way(map: &Arc<NodeMap>, from: u32, to: u32) -> BTreeSet<u32> {
    let (mut at, mut came, mut passed) = (from, Came::FromHere, BTreeSet::from([from]));
    loop {
        (at, came) = match Routes::new(Arc::clone(map), at).next(came, to).unwrap() {
            Next::Deliver => return passed,
            Next::Origin { rank } => (rank, Came::FromNode),
            Next::Network { rank, .. } => (rank, Came::FromNetwork),
            Next::Relay { rank } => (rank, Came::Relayed),
        };
        passed.insert(at);
    }
}

/// Every rank sends to all others until the end, or until it is told that another one is gone, which `dead` is after
/// some messages.
fn play(map: &str, seed: u64, dead: Option<u32>) -> Vec<Books> {
    let size = map.parse::<NodeMap>().unwrap().size();
    let together = Barrier::new(size as usize);
    let books = run(map, |group| {
        let (me, mut random) = (group.rank(), Random(seed | 1));
        let options = options(&mut random);
        let (shuffle, delivered) = keeping(&group, options);
        let mut random = Random(seed.wrapping_add(u64::from(me) * 77) | 1);
        let confirmed = random.below(50);
        let mut broadcasts = (0, 0);
        (0..confirmed).for_each(|_| shuffle.enqueue(random.below(size), 0, &[7; 40]).unwrap());
        shuffle.broadcast(1, b"to all", false).unwrap();
        shuffle.flush_all().unwrap();
        // Who is gone at once may end the last step of the others' flush.
        together.wait();
        let most = if dead.is_some() { u32::MAX } else { 500 };
        let count = if dead == Some(me) { u32::try_from(seed % 1000).unwrap() } else { most };
        let mut sender = (random.below(2) == 0).then(|| shuffle.sender());
        let ended = (0..count).try_for_each(|number| {
            if number % 64 != 1 {
                let to = random.below(size);
                return match &mut sender {
                    Some(sender) => sender.enqueue(to, 0, &[7; 40]),
                    None => shuffle.enqueue(to, 0, &[7; 40]),
                };
            }
            broadcasts.1 += 1;
            shuffle.broadcast(1, b"to all", number % 3 == 0)?;
            broadcasts.0 += 1;
            Ok(())
        });
        drop(sender);
        if dead == Some(me) {
            // Without a word to anybody.
            drop(shuffle);
            return None;
        }
        assert_eq!(ended.is_err(), dead.is_some(), "{ended:?}");
        let dump = shuffle.dump();
        let failure = match shuffle.shutdown(Shutdown::Drain) {
            Ok(dropped) => {
                assert_eq!(dropped, 0);
                None
            }
            Err(Error::Failed(failure)) => Some(failure),
            Err(error) => panic!("{error}"),
        };
        let mut received = [vec![0; size as usize], vec![0; size as usize]];
        for (source, kind, _) in delivered.lock().unwrap().iter() {
            received[*kind as usize][*source as usize] += 1;
        }
        let [received, received_broadcasts] = received;
        let account = dump.account();
        Some(Books { me, account, received, received_broadcasts, broadcasts, failure })
    });
    books.into_iter().flatten().collect()
}

/// Nothing waits anywhere, and what was passed on between those that live has arrived.
fn assert_balanced(books: &[Books], what: &str) {
    for own in books {
        let Books { me, account, received, received_broadcasts, .. } = own;
        assert!(account.is_balanced(), "{what}: rank {me}: {account:?}");
        let received = received.iter().chain(received_broadcasts).sum::<u64>();
        assert_eq!(account.delivered, received, "{what}: rank {me}");
        assert_eq!(account.undelivered, 0, "{what}: rank {me}");
        for way in &account.ways {
            assert_eq!(way.waiting, 0, "{what}: rank {me}: {way:?}");
            let Some(other) = books.iter().find(|other| other.me == way.rank) else {
                assert!(way.is_gone, "{what}: rank {me}: {way:?}");
                continue;
            };
            let sent = 1 + other.broadcasts.1;
            assert!(own.received_broadcasts[other.me as usize] <= sent, "{what}: none comes twice");
            let mut back = other.account.ways.iter();
            let back = back.find(|back| back.rank == *me && back.hop == way.hop).unwrap();
            assert_eq!(way.acknowledged, back.received, "{what}: from {me}: {way:?} and {back:?}");
            assert_eq!((way.dropped, way.unanswered), (0, 0), "{what}: from {me}: {way:?}");
        }
    }
}

fn seed() -> u64 {
    u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos())
}

const MAPS: &[&str] = &["1x3", "2x2", "3+1", "0,1,2,0,1,2,0", "1+1+1", "2x3"];

#[test]
fn as_many_messages_come_as_go_on_every_rank_and_between_any_two() {
    for map in MAPS {
        let seed = seed();
        let books = play(map, seed, None);
        assert_balanced(&books, &format!("{map}, seed {seed}"));
        for own in &books {
            for other in &books {
                let sent = own.account.sent[other.me as usize];
                assert_eq!(sent, other.received[own.me as usize], "{map}, seed {seed}");
                if other.me != own.me {
                    let broadcasts = 1 + own.broadcasts.0;
                    assert_eq!(
                        broadcasts, other.received_broadcasts[own.me as usize],
                        "{map}, seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn when_a_rank_is_gone_every_message_is_delivered_in_doubt_or_dropped() {
    for text in MAPS {
        let seed = seed();
        let map: Arc<NodeMap> = Arc::new(text.parse().unwrap());
        let dead = Random(seed | 1).below(map.size());
        let what = format!("{text}, seed {seed}, rank {dead} is gone");
        let books = play(text, seed, Some(dead));
        assert_eq!(books.len(), map.size() as usize - 1, "{what}");
        assert_balanced(&books, &what);
        for Books { me, account, failure, broadcasts, .. } in &books {
            let failure = failure.as_ref().expect("a rank is gone");
            assert_eq!(failure.rank, dead, "{what}: {failure}");
            let mut lost = 0;
            for (to, (sent, confirmed)) in (0..).zip(account.sent.iter().zip(&account.confirmed)) {
                let received = books.iter().find(|other| other.me == to);
                let received = received.map(|other| other.received[*me as usize]);
                if way(&map, *me, to).contains(&dead) {
                    lost += sent - confirmed;
                    let dropped = account.dropped[to as usize];
                    assert!(received <= Some(sent - dropped), "{what}: from {me} to {to}");
                    assert!(received.is_none_or(|received| received >= *confirmed), "{what}");
                } else {
                    assert_eq!(received, Some(*sent), "{what}: from {me} to {to}");
                }
            }
            let lost = lost + broadcasts.0..=lost + broadcasts.1;
            let said = failure.in_doubt + failure.dropped;
            assert!(lost.contains(&said), "{what}: rank {me}: {lost:?}, {failure}");
            assert_eq!(failure.dropped, account.dropped.iter().sum::<u64>(), "{what}: rank {me}");
        }
    }
}
