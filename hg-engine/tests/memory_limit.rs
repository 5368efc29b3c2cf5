//! A process that may have little memory: sizes that a peer, or a caller's data, chooses are refused by name. One test: it
//! lowers the limit of its own process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use hg_core::error::CallError;
use hg_engine::{Builder, Engine, Peer};
use hg_macros::rpc;
use hg_na_conformance::Mem;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

mod hg;

const MIB: u64 = 1 << 20;

/// So many numbers of eight bytes, which take no memory before they are encoded.
struct Numbers(u64);

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.0).map(|_| 1.5_f64))
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> de::Visitor<'de> for Count {
            type Value = Numbers;
            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("numbers")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut all: A) -> Result<Numbers, A::Error> {
                let mut found = 0;
                while let Some(1.5_f64) = all.next_element()? {
                    found += 1;
                }
                Ok(Numbers(found))
            }
        }
        deserializer.deserialize_seq(Count)
    }
}

#[rpc(crate = crate::hg)]
fn make_numbers(number: u64) -> Numbers {
    Numbers(number)
}

#[rpc(crate = crate::hg)]
fn count_numbers(all: Numbers) -> u64 {
    all.0
}

/// Takes bytes of its own.
#[rpc(crate = crate::hg)]
fn keep(bytes: Vec<u8>) -> u64 {
    bytes.len() as u64
}

/// Takes a sequence, element by element.
#[rpc(crate = crate::hg)]
fn last_word(words: Vec<f64>) -> f64 {
    words.last().copied().unwrap_or(0.0)
}

/// What comes of `call` while the process may have so much more memory than it has.
fn with_room<T>(bytes: u64, call: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let has = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    setrlimit(Resource::RLIMIT_AS, has + bytes, hard).unwrap();
    let result = call();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    result
}

fn pair() -> (Engine, Engine, Peer) {
    let mem = Mem::default();
    let builder = || Builder::new().plugin(mem.clone());
    let target = builder().listen(true).open("mem://").unwrap();
    target.register(make_numbers).unwrap();
    target.register(count_numbers).unwrap();
    target.register(keep).unwrap();
    target.register(last_word).unwrap();
    let origin = builder().open("mem://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(count_numbers, &peer, (Numbers(9),)).wait().unwrap(), 9);
    (target, origin, peer)
}

#[test]
fn sizes_that_a_peer_chooses_are_refused_by_name_where_memory_is_short() {
    // None of them alone is much.
    let refused = with_room(8 * MIB, || {
        let mut kept = Vec::with_capacity(1000);
        loop {
            match hg_bulk::zeroed(100_000) {
                Ok(bytes) => kept.push(bytes),
                Err(refused) => break refused,
            }
        }
    });
    assert!(matches!(refused, hg_na::Error::NoMemory { len: 100_000 }), "{refused}");

    let (_target, origin, peer) = pair();
    let says = |failure: &CallError| failure.to_string().contains("there is no memory for ");

    // A result that the target cannot encode.
    let refused = with_room(32 * MIB, || origin.call(make_numbers, &peer, (8 * MIB,)).wait());
    let Err(failure) = refused else { panic!("64 MiB of result were made of 32") };
    assert!(matches!(failure, CallError::Rejected(_)) && says(&failure), "{failure}");
    // Arguments that the origin cannot encode.
    let refused =
        with_room(32 * MIB, || origin.call(count_numbers, &peer, (Numbers(8 * MIB),)).wait());
    let failure = refused.unwrap_err();
    assert!(matches!(failure, CallError::NotMade(_)) && says(&failure), "{failure}");
    // Arguments that can be encoded, and then not be pulled, or not be decoded, until all of it has room. An allocator
    // keeps up to 32 MiB for itself.
    let mut refusals = 0;
    for room in (20..).step_by(20) {
        let bytes = vec![7; 40 << 20];
        let words = vec![1.5; 5 << 20];
        let results = with_room(room * MIB, || {
            (
                origin.call(keep, &peer, (bytes,)).wait(),
                origin.call(last_word, &peer, (words,)).wait(),
            )
        });
        for failure in [results.0.as_ref().err(), results.1.as_ref().err()].into_iter().flatten() {
            assert!(says(failure), "with {room} MiB: {failure}");
            refusals += 1;
        }
        if let (Ok(len), Ok(last)) = results {
            assert_eq!((len, last), (40 << 20, 1.5));
            break;
        }
    }
    assert!(refusals > 2, "{refusals}");
    // With more and more room, results that the target cannot encode, and then that the origin cannot take: the handler has run.
    for room in (16..).step_by(32) {
        match with_room(room * MIB, || origin.call(make_numbers, &peer, (8 * MIB,)).wait()) {
            Err(failure) => {
                let was_made = matches!(failure, CallError::Rejected(_));
                assert!(was_made && says(&failure), "with {room} MiB: {failure:?}");
            }
            Ok(_) => break,
        }
    }
    assert_eq!(origin.call(make_numbers, &peer, (8 * MIB,)).wait().unwrap().0, 8 * MIB);
}
