//! Who does not belong to the job, but knows where its ranks listen: it can neither end, slow nor feed a shuffle.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use blake2::{Blake2s256, Digest as _};
use common::{Delivered, Thread, keeping, run};
use hg_job::NodeMap;
use hg_shuffle::{Flush, Group, Options, Shuffle, Shutdown};
use serde::{Deserialize, Serialize};

// What a program of the stranger's own declares: the shuffle's calls, by their names and types.

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct From {
    shuffle: [u64; 2],
    rank: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Lane {
    Origin,
    Relay,
    Network,
}

#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum Refused {
    #[error("unknown")]
    Unknown,
    #[error("malformed")]
    Malformed,
    #[error("misrouted")]
    Misrouted,
    #[error("out of order")]
    OutOfOrder,
    #[error("closed")]
    Closed,
}

#[hg::rpc(name = "hydrargyrum.shuffle.batch")]
fn batch(from: From, lane: Lane, number: u64, messages: &[u8]) -> Result<(), Refused>;

#[hg::rpc(name = "hydrargyrum.shuffle.arrive")]
fn arrive(from: From) -> Result<(), Refused>;

#[hg::rpc(name = "hydrargyrum.shuffle.watch")]
fn watch(from: From) -> Result<(), Refused>;

#[hg::rpc(name = "hydrargyrum.shuffle.failed")]
fn failed(from: From, rank: u32, lane: Option<Lane>, why: String);

#[hg::rpc(name = "hydrargyrum.shuffle.over")]
fn over(from: From, lane: Lane);

fn fnv(name: &str) -> [u64; 2] {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    [hash, 0]
}

/// A message of 7 bytes as it lies in a batch.
fn forged(source: u32, to: u32) -> Vec<u8> {
    let head = [7, 666, source, to].map(u32::to_le_bytes).concat();
    [&head[..], b"forged!"].concat()
}

fn options() -> Options {
    let mut options = Options::default();
    options.network_url = "tcp://127.0.0.1".to_owned();
    options
}

/// A rank whose launcher is overheard: what it told and brought.
struct Overheard {
    group: Thread,
    said: Mutex<Vec<Vec<u8>>>,
}

impl Group for Overheard {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn map(&self) -> Arc<NodeMap> {
        self.group.map()
    }

    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        let shared = self.group.share(own)?;
        self.said.lock().unwrap().push(shared.clone());
        Ok(shared)
    }

    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String> {
        let came = self.group.exchange(peers, own)?;
        let mut said = self.said.lock().unwrap();
        said.push(own.to_vec());
        said.extend(came.values().map(|bytes| bytes.to_vec()));
        Ok(came)
    }

    fn barrier(&self) -> Result<(), String> {
        self.group.barrier()
    }
}

impl Overheard {
    fn new(group: Thread) -> Self {
        Self { group, said: Mutex::default() }
    }

    /// Where the ranks listen for other nodes.
    fn addresses(&self) -> Vec<String> {
        let said = self.said.lock().unwrap();
        let texts = said.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| line.contains("tcp://")).collect()
    }
}

/// What a rank calls another one with, as `src/secret.rs` makes it.
fn id_of(seed: &[u8], (from, to): (u32, u32)) -> [u64; 2] {
    let all = [seed, &from.to_be_bytes(), &to.to_be_bytes()].concat();
    let digest = Blake2s256::digest(all);
    let (words, _) = digest.as_chunks::<8>();
    [u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1])]
}

impl Overheard {
    /// What is heard of a rank that calls another one.
    fn id(&self, pair: (u32, u32)) -> [u64; 2] {
        id_of(&self.said.lock().unwrap()[0][..32], pair)
    }
}

/// Or the strangers below would be refused for nothing that they know.
#[test]
fn the_ids_of_strangers_are_those_of_ranks() {
    // The same number stands in a test of `src/secret.rs`.
    assert_eq!(id_of(&[7; 32], (1, 0)), [0x5cb9_6261_76aa_dab2, 0xfa49_db53_1aba_efd1]);
}

/// Says everything that there is to say to each rank, as each of these; how often it was believed.
fn attack(addresses: &[String], ids: &[[u64; 2]]) -> u64 {
    let engine = hg::builder().setting("routing", "off").open("tcp://127.0.0.1").unwrap();
    let mut believed = 0;
    for address in addresses {
        for id in ids {
            for rank in [0, 1, 2, u32::MAX] {
                let peer = engine.lookup(address.as_str()).unwrap();
                let from = From { shuffle: *id, rank };
                let why = || "a stranger said so".to_owned();
                let _ = engine.call(failed, &peer, (from, 1, None, why())).wait();
                let _ = engine.call(over, &peer, (from, Lane::Network)).wait();
                for lane in [Lane::Origin, Lane::Relay, Lane::Network] {
                    for to in [0, 1] {
                        let bytes = forged(1 - to, to);
                        let taken = engine.call(batch, &peer, (from, lane, 0, &bytes)).wait();
                        believed += u64::from(taken.is_ok());
                    }
                }
                drop(engine.call(arrive, &peer, (from,)));
                drop(engine.call(watch, &peer, (from,)));
            }
        }
    }
    engine.close();
    believed
}

/// Each of two ranks sends a hundred messages to the other one, and gets those of that one alone; then the shuffle ends.
fn talk(shuffle: Shuffle, delivered: &Delivered, other: u32) {
    (0..100).for_each(|number| shuffle.enqueue(other, number, b"real").unwrap());
    shuffle.flush_all().unwrap();
    let delivered = std::mem::take(&mut *delivered.lock().unwrap());
    assert_eq!(delivered.len(), 100);
    assert!(delivered.iter().all(|(source, _, bytes)| *source == other && bytes == b"real"));
    shuffle.shutdown(Shutdown::Drain).unwrap();
}

/// Rank 0 lets a stranger in while ranks talk; with what it knows.
fn beside_a_stranger(options: &Options, attack: impl Fn(&Overheard) -> u64 + Sync) {
    let believed = AtomicU64::new(0);
    run("1+1", |group| {
        let group = Overheard::new(group);
        let (shuffle, delivered) = keeping(&group, options.clone());
        let (me, other) = (group.rank(), 1 - group.rank());
        shuffle.barrier().unwrap();
        if me == 0 {
            assert_eq!(group.addresses().len(), 2);
            believed.store(attack(&group), Ordering::Relaxed);
        }
        shuffle.barrier().unwrap();
        talk(shuffle, &delivered, other);
    });
    assert_eq!(believed.into_inner(), 0);
}

fn without_a_key() -> Options {
    let mut options = options();
    options.network_key = false;
    options
}

#[test]
fn who_knows_port_and_name_can_neither_end_nor_feed_a_shuffle() {
    for options in [options(), without_a_key()] {
        beside_a_stranger(&options, |group| {
            attack(&group.addresses(), &[fnv("test"), [0, fnv("test")[0]], [0; 2]])
        });
    }
}

#[test]
fn who_has_overheard_the_id_comes_in_without_a_key_neither_nor_over_another_connection() {
    for options in [options(), without_a_key()] {
        beside_a_stranger(&options, |group| {
            attack(&group.addresses(), &[(0, 1), (1, 0), (0, 0), (1, 1)].map(|pair| group.id(pair)))
        });
    }
}

/// What is heard at one rank helps nobody to another one, also where the real one has not called yet.
#[test]
fn who_has_overheard_other_ranks_takes_nobody_s_place_also_if_it_comes_first() {
    let believed = AtomicU64::new(0);
    let ambush = |group: &Overheard| {
        let addresses = group.addresses();
        for (target, heard) in [(0, [(0, 1), (1, 1)]), (1, [(1, 0), (0, 0)])] {
            let ids = heard.map(|pair| group.id(pair));
            believed.fetch_add(attack(&addresses[target..=target], &ids), Ordering::Relaxed);
        }
    };
    run("1+1", |group| {
        let group = Ambushed { group: Overheard::new(group), ambush };
        let (shuffle, delivered) = keeping(&group, without_a_key());
        let other = 1 - group.rank();
        talk(shuffle, &delivered, other);
    });
    assert_eq!(believed.into_inner(), 0);
}

/// A rank where somebody else calls all of them first: they serve, and none has called.
struct Ambushed<F> {
    group: Overheard,
    ambush: F,
}

impl<F: Fn(&Overheard)> Group for Ambushed<F> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn map(&self) -> Arc<NodeMap> {
        self.group.map()
    }

    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String> {
        self.group.share(own)
    }

    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String> {
        self.group.exchange(peers, own)
    }

    fn barrier(&self) -> Result<(), String> {
        self.group.barrier()?;
        if self.rank() == 0 {
            (self.ambush)(&self.group);
        }
        self.group.barrier()
    }
}

/// A stranger that connects, says something and leaves, again and again; and one that says nothing and stays.
#[test]
fn strangers_who_come_and_go_keep_nobody_from_anything() {
    run("1+1", |group| {
        let group = Overheard::new(group);
        let (shuffle, delivered) = keeping(&group, options());
        let other = 1 - group.rank();
        let (ends, came) = (AtomicBool::new(false), AtomicU64::new(0));
        let addresses = group.addresses();
        std::thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                let at = addresses[other as usize].strip_prefix("tcp://").unwrap();
                let at = at.split(['/', '#', '?']).next().unwrap();
                let mut silent = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect(at).unwrap();
                    // Whatever it says may be answered by a reset.
                    let _ = stream.write_all(&[0xab; 4096]);
                    if silent.len() < 64 {
                        silent.push(TcpStream::connect(at).unwrap());
                    }
                    came.fetch_add(1, Ordering::Relaxed);
                }
            });
            while came.load(Ordering::Relaxed) < 100 {
                (0..100).for_each(|number| shuffle.enqueue(other, number, b"real").unwrap());
                shuffle.flush(Flush::Remote).unwrap();
            }
            shuffle.flush_all().unwrap();
            ends.store(true, Ordering::Relaxed);
            stranger.join().unwrap();
        });
        let delivered = std::mem::take(&mut *delivered.lock().unwrap());
        assert!(delivered.iter().all(|(source, _, bytes)| *source == other && bytes == b"real"));
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}

#[test]
fn whichever_url_names_a_network_it_has_a_key_that_strangers_lack() {
    let urls = [
        ("1+1", "sm://", "tcp://127.0.0.1"),
        ("1+1", "sm://", "sm+tcp://127.0.0.1"),
        ("1x2", "tcp://127.0.0.1", "tcp://127.0.0.1"),
        ("1x2", "sm+tcp://127.0.0.1", "tcp://127.0.0.1"),
    ];
    for (map, local, network) in urls {
        let mut options = options();
        (options.local_url, options.network_url) = (local.to_owned(), network.to_owned());
        run(map, |group| {
            let group = Overheard::new(group);
            let (shuffle, _) = keeping(&group, options.clone());
            shuffle.barrier().unwrap();
            if group.rank() == 0 {
                let engine =
                    hg::builder().setting("routing", "off").open("tcp://127.0.0.1").unwrap();
                let from = From { shuffle: group.id((1, 0)), rank: 1 };
                let addresses = group.addresses();
                assert!(!addresses.is_empty(), "{local}, {network}");
                for address in addresses {
                    let peer = engine.lookup(address.as_str()).unwrap();
                    let refused = engine.call(over, &peer, (from, Lane::Network)).wait();
                    let why = refused.unwrap_err().to_string();
                    assert!(why.contains("has a key"), "{local}, {network}: {why}");
                }
                engine.close();
            }
            shuffle.flush_all().unwrap();
            shuffle.shutdown(Shutdown::Drain).unwrap();
        });
    }
}

/// Until the other end has closed it.
fn wait_until_closed(mut stream: &TcpStream) {
    let mut heard = [0; 1024];
    // A reset is an end, too.
    while stream.read(&mut heard).is_ok_and(|count| count > 0) {}
}

/// 64 that say nothing, and 64 that say something without end, all the time that messages go.
#[test]
fn a_crowd_of_strangers_silent_and_noisy_loses_its_connections_and_keeps_no_message_back() {
    const EACH: usize = 64;
    let mut options = options();
    options.network_settings.push(("connect-timeout-ms".to_owned(), "2000".to_owned()));
    run("1+1", |group| {
        let group = Overheard::new(group);
        let (shuffle, delivered) = keeping(&group, options.clone());
        let other = 1 - group.rank();
        let address = &group.addresses()[other as usize];
        let at = address.strip_prefix("tcp://").unwrap().split(['/', '#', '?']).next().unwrap();
        let connect =
            || -> Vec<TcpStream> { (0..EACH).map(|_| TcpStream::connect(at).unwrap()).collect() };
        let (silent, noisy, closed) = (connect(), connect(), AtomicU64::new(0));
        let mut sent = 0;
        std::thread::scope(|scope| {
            for mut stream in &noisy {
                let closed = &closed;
                scope.spawn(move || {
                    while stream.write_all(&[0xab; 4096]).is_ok() {}
                    wait_until_closed(stream);
                    closed.fetch_add(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                for stream in &silent {
                    wait_until_closed(stream);
                    closed.fetch_add(1, Ordering::Relaxed);
                }
            });
            while closed.load(Ordering::Relaxed) < 2 * EACH as u64 {
                (0..100).for_each(|number| shuffle.enqueue(other, number, b"real").unwrap());
                sent += 100;
                shuffle.flush(Flush::Remote).unwrap();
            }
        });
        // The other rank's, too: each says how many they were.
        shuffle.enqueue(other, sent, b"last").unwrap();
        shuffle.flush_all().unwrap();
        let mut delivered = std::mem::take(&mut *delivered.lock().unwrap());
        let (source, count, bytes) = delivered.pop().unwrap();
        assert_eq!((source, count as usize, &bytes[..]), (other, delivered.len(), &b"last"[..]));
        assert!(delivered.iter().all(|(source, _, bytes)| *source == other && bytes == b"real"));
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}
