//! Records about memory for others that no worker sends: their sender is gone, by name, and nothing is released that is not its own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, unused_macros, reason = "a part of it is needed here")]
mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use common::{Meeting, Process};
use hg_channel::{Batch, Directory, Limits, Near, Port};
use hg_core::codec::{self, Codec as _};
use hg_invoke::{Error, Fabric, Failed, Group, Place, Rpc, rpc};
use hg_na::{Address, OpenOptions, Plugin as _};
use serde::{Deserialize, Serialize};
use watchdog::Watchdog;

#[rpc(crate = hg_invoke)]
fn square(number: u64) -> u64 {
    number * number
}

/// What processes tell one another when they open a fabric.
#[derive(Serialize, Deserialize)]
struct Introduction {
    token: [u8; 16],
    functions: Vec<u64>,
    threads: u8,
    nodes: Vec<Option<u32>>,
    addresses: Vec<String>,
    scheme: String,
    block: u64,
    window: u32,
    queue_max: u64,
    buffer_max: u64,
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0; codec::Default::size(value).unwrap()];
    codec::Default::encode(value, &mut bytes).unwrap();
    bytes
}

/// An end of process 1 that speaks for itself; process 0 has one worker.
fn stranger(meeting: &Meeting) -> Port<()> {
    let domain =
        hg_na_sm::SmPlugin.open(&Address::new("sm://").unwrap(), &OpenOptions::listening());
    let context = domain.unwrap().context(0).unwrap();
    let own = encoded(&Introduction {
        token: [7; 16],
        functions: vec![square::wire_id().0],
        threads: 1,
        nodes: vec![None],
        addresses: vec![context.address().as_str().to_owned()],
        scheme: "sm".to_owned(),
        block: 4096,
        window: 256 << 10,
        queue_max: 16 << 20,
        buffer_max: 64 << 20,
    });
    let all = Process(1, 2, meeting).all_gather(&own).unwrap();
    let all: Vec<Introduction> = all.iter().map(|it| codec::Default::decode(it).unwrap()).collect();
    let addresses = all.iter().map(|it| Address::new(&it.addresses[0]).unwrap()).collect();
    let directory = Arc::new(Directory::new(all[0].token, addresses));
    Port::new(1, context, directory, Near::new(1, 1), Limits::default())
}

/// A worker, which has memory of its own, hears records of a stranger; how that ends.
fn hears(records: &[(u32, Vec<u8>)]) -> Error {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    let (is_ready, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (meeting, is_ready, is_over) = (&meeting, &is_ready, &is_over);
        scope.spawn(move || {
            let (mut port, mut batch) = (stranger(meeting), Batch::default());
            while !is_ready.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            for (tag, body) in records {
                port.record(0, *tag, body.len(), u64::MAX).unwrap().copy_from_slice(body);
            }
            port.flush(0);
            while !is_over.load(Ordering::SeqCst) {
                port.advance(Instant::now(), &mut batch).unwrap();
                while port.next(&mut batch).is_some() {}
            }
        });
        let fabric = Fabric::new().register(square).unwrap();
        let worker = fabric.open(&Process(0, 2, meeting), "sm://").unwrap().remove(0);
        let mine = worker.allocate_at(worker.place(), 1).unwrap();
        assert!(worker.memory_of(mine.locator()).is_some());
        let there = Place { process: 1, thread: 0 };
        is_ready.store(true, Ordering::SeqCst);
        let ended = match worker.call_return(there, square, (1,)).unwrap().wait(&worker) {
            Err(Failed::Call(error)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(worker.allotted(), 4096, "what was for the one that is gone is, too");
        drop(mine);
        worker.finish().unwrap();
        is_over.store(true, Ordering::SeqCst);
        ended
    })
}

#[test]
fn whoever_speaks_of_memory_as_no_worker_does_is_gone() {
    type What = Result<Vec<u8>, (u32, u32)>;
    let none: What = Ok(vec![7]);
    // By the stranger itself: everywhere a hundred bytes, of number 9, by its broadcast 1; then a broadcast of more, and of what is there no more.
    let settle = || (BROADCAST | SETTLE, encoded(&(1_u32, 1_u64, 9_u64, 100_u64)));
    let reserve = |number: u64| (RESERVE, encoded(&(number, None::<u32>, 1_u64)));
    let written = |len: u64| (BROADCAST | WRITTEN, encoded(&(1_u32, 2_u64, 9_u64, 0_u64, len)));
    let cases = [
        // The worker has allocated for itself: its first number.
        (vec![reserve(5), (LET_GO, encoded(&(0_u32, 1_u64)))], "not its own"),
        (vec![settle(), (LET_GO, encoded(&(9_u32, 1_u64)))], "memory of nobody"),
        (vec![(LET_GO, vec![0; 11])], "too short"),
        (vec![(SETTLED, encoded(&(9_u32, 1_u64, &none)))], "memory of nobody"),
        (
            vec![(SETTLED, encoded(&(0_u32, 1_u64, Err::<Vec<u8>, _>((7_u32, 1_u32)))))],
            "cannot be read",
        ),
        (vec![(SETTLED, encoded(&(1_u32, 1_u64, &none)))], "not below"),
        (vec![(SETTLED, encoded(&(0_u32, 1_u64, &none)))], "cannot be read"),
        (vec![(SETTLED, vec![0; 7])], "cannot be read"),
        (vec![settle(), written(101)], "longer than its memory"),
        (vec![settle(), written(100)], "cannot be read"),
        (vec![(WRITTEN, vec![0; 30])], "no registered function"),
        (vec![settle(), (RESERVE, vec![1; 3])], "cannot be read"),
        (vec![(SETTLE + 1, vec![0; 16])], "no registered function"),
    ];
    for (records, why) in cases {
        let ended = hears(&records);
        let Error::Gone { process: 1, why: said } = &ended else {
            panic!("{records:?}: {ended:?}")
        };
        assert!(said.contains(why), "{records:?}: {said}");
    }
}

/// Functions of the fabric's own.
const RESERVE: u32 = 1 << 23;
const SETTLE: u32 = RESERVE + 1;
const WRITTEN: u32 = 1 << 26;
const BROADCAST: u32 = 1 << 29;
const SETTLED: u32 = 1 << 31 | 12;
const LET_GO: u32 = 1 << 31 | 13;
