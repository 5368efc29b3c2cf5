//! Records that no worker sends: their sender is gone, by name, and nothing panics.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, unused_macros, reason = "a part of it is needed here")]
mod common;

use std::{
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Instant,
};

use common::{Meeting, Process, run};
use hg_channel::{Batch, Directory, Event, Limits, Near, Port};
use hg_core::codec::{self, Codec as _};
use hg_invoke::{Error, Fabric, Failed, Group, How, Place, Rpc, Synchronizer, rpc};
use hg_na::{Address, Descriptor, OpenOptions, Plugin as _, Rights};
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

/// An introduction, or why there is none.
type Told = Result<Introduction, String>;

/// An end of process 1 that speaks for itself; process 0 has one worker.
fn stranger(meeting: &Meeting) -> Port<()> {
    stranger_of(meeting, 16 << 20, Limits::default())
}

fn stranger_of(meeting: &Meeting, queue_max: u64, limits: Limits) -> Port<()> {
    let domain =
        hg_na_sm::SmPlugin.open(&Address::new("sm://").unwrap(), &OpenOptions::listening());
    let context = domain.unwrap().context(0).unwrap();
    let own = Told::Ok(Introduction {
        token: [7; 16],
        functions: vec![square::wire_id().0],
        threads: 1,
        nodes: vec![None],
        addresses: vec![context.address().as_str().to_owned()],
        scheme: "sm".to_owned(),
        block: 4096,
        window: limits.window,
        queue_max,
        buffer_max: 64 << 20,
    });
    let mut bytes = vec![0; codec::Default::size(&own).unwrap()];
    codec::Default::encode(&own, &mut bytes).unwrap();
    let all = Process(1, 2, meeting).all_gather(&bytes).unwrap();
    let all = all.iter().map(|it| codec::Default::decode::<Told>(it).unwrap());
    let all = all.collect::<Result<Vec<_>, _>>().unwrap();
    let addresses = all.iter().map(|it| Address::new(&it.addresses[0]).unwrap()).collect();
    let directory = Arc::new(Directory::new(all[0].token, addresses));
    Port::new(1, context, directory, Near::new(1, 1), limits)
}

/// A worker hears one record of a stranger; how it ends whoever waits for the stranger.
fn hears(tag: u32, body: &[u8]) -> Error {
    hears_many([(tag, body.to_vec())].into_iter())
}

fn hears_many(records: impl Iterator<Item = (u32, Vec<u8>)> + Send) -> Error {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (meeting, is_over) = (&meeting, &is_over);
        scope.spawn(move || {
            let mut port = stranger(meeting);
            for (tag, body) in records {
                port.record(0, tag, body.len(), u64::MAX).unwrap().copy_from_slice(&body);
            }
            port.flush(0);
            while !is_over.load(Ordering::SeqCst) {
                hears_anything(&mut port);
            }
        });
        let fabric = Fabric::new().register(square).unwrap();
        let worker = fabric.open(&Process(0, 2, meeting), "sm://").unwrap().remove(0);
        let there = Place { process: 1, thread: 0 };
        let ran = Synchronizer::new();
        worker.call_with(there, square, (1,), How::default().when_run(&ran)).unwrap();
        let ended = worker.call_return(there, square, (1,)).unwrap().wait(&worker).unwrap_err();
        assert_eq!(Failed::Call(ran.wait(&worker).unwrap_err()), ended);
        // Nor does it keep this worker.
        worker.finish().unwrap();
        is_over.store(true, Ordering::SeqCst);
        match ended {
            Failed::Call(error) => error,
            Failed::Function(never) => match never {},
        }
    })
}

/// A round; whether anything has come, which is dropped.
fn hears_anything(port: &mut Port<()>) -> bool {
    let (mut batch, mut any) = (Batch::default(), false);
    port.advance(Instant::now(), &mut batch).unwrap();
    while port.next(&mut batch).is_some() {
        any = true;
    }
    any
}

const SYSTEM: u32 = 1 << 31;
const READ: u32 = 1 << 27;
const GROUP: u32 = 1 << 28;
const BROADCAST: u32 = 1 << 29;
const ANSWERED: u32 = 1 << 30;

#[test]
fn whoever_sends_what_no_worker_sends_is_gone() {
    // Root 1, number 2, argument 3; the same of root 0, who has begun nothing; of nobody; one that nobody was told of.
    let (mut broadcast, mut no_own, mut nobody, mut ran) = ([0; 20], [0; 20], [0; 20], [0; 16]);
    (broadcast[0], broadcast[4], broadcast[12]) = (1, 2, 3);
    (no_own[4], nobody[0], ran[4]) = (1, 9, 1);
    // Of no bytes (8), from 0 on (8), of a descriptor that is none (4 + 1), and arguments with the length of the last one.
    let source = |len: u64, descriptor: &[u8]| {
        let (len, size) = (len.to_le_bytes(), u32::try_from(descriptor.len()).unwrap());
        [&[1; 8][..], &len, &[0; 8], &size.to_le_bytes(), descriptor, &[0; 16]].concat()
    };
    let own = Descriptor::new(100, Rights::READ, b"nobody's").encode();
    let (no_memory, too_long) = (source(9, &[7]), source(u64::MAX, &own));
    let open_end = [&source(9, &own)[..], &[1]].concat();
    let no_broadcast = [&[0; 4][..], &source(9, &own)].concat();
    let cases: [(u32, &[u8], &str); 35] = [
        (1, &[0; 8], "a call of no registered function"),
        (1 << 24, &[0; 8], "a call of no registered function"),
        (0, &[0; 7], "the arguments of a call cannot be read"),
        (0, &[0; 9], "the arguments of a call cannot be read"),
        (ANSWERED, &[0; 7], "a message is too short"),
        (ANSWERED, &[0; 9], "the arguments of a call cannot be read"),
        (SYSTEM, &[], "a message of no known kind"),
        (SYSTEM | 1, &[0; 15], "a message is too short"),
        (SYSTEM | 3, &[0; 16], "from who has no say in it"),
        (SYSTEM | 9, &[0; 16], "from who has no say in it"),
        (SYSTEM | 4, &[9; 16], "no process has that number"),
        (SYSTEM | 4 | GROUP, &[9; 19], "a message is too short"),
        (GROUP, &[0; 3], "a message is too short"),
        (GROUP | 1, &[0; 12], "a call of no registered function"),
        (GROUP, &[0; 11], "the arguments of a call cannot be read"),
        (SYSTEM | 5, &[9; 12], "an answer of no known kind"),
        (SYSTEM | 5, &[0; 12], "an answer to no call"),
        (BROADCAST | 7, &broadcast, "a call of no registered function"),
        (BROADCAST, &broadcast[..19], "the arguments of a call cannot be read"),
        (BROADCAST, &broadcast[..11], "a message is too short"),
        (BROADCAST, &no_own, "a broadcast that is none"),
        (BROADCAST, &nobody, "a broadcast of nobody"),
        (SYSTEM | 6, &ran, "it has run what it was not told"),
        (SYSTEM | 6, &[9; 16], "a broadcast of nobody"),
        (READ | 1, &no_memory, "a call of no registered function"),
        (READ, &[0; 7], "a message is too short"),
        (READ, &no_memory, "the arguments of a call cannot be read"),
        (READ, &too_long, "the arguments of a call cannot be read"),
        (READ, &open_end, "the arguments of a call cannot be read"),
        (READ | ANSWERED, &open_end, "a call of no registered function"),
        (READ | BROADCAST, &no_broadcast, "a broadcast that is none"),
        (SYSTEM | 7, &[0; 11], "a message is too short"),
        (SYSTEM | 7, &[0; 12], "it has read what it was not told of"),
        (SYSTEM | 10, &[0; 15], "a message is too short"),
        (SYSTEM | 11, &[], "a message of no known kind"),
    ];
    for (tag, body, why) in cases {
        let ended = hears(tag, body);
        let Error::Gone { process: 1, why: said } = &ended else { panic!("{ended:?}") };
        assert!(said.contains(why), "{tag:x} {body:?}: {said}");
    }
}

#[test]
fn a_buffer_that_is_not_there_is_said_so_and_what_stands_behind_it_runs() {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = stranger(&meeting);
            // A call without arguments that can be read, of memory that is not there; and a call behind it.
            let (number, body) = (5_u64.to_le_bytes(), no_buffer());
            port.record(0, READ, body.len(), u64::MAX).unwrap().copy_from_slice(&body);
            port.record(0, 0, 8, u64::MAX).unwrap().copy_from_slice(&number);
            port.flush(0);
            let mut batch = Batch::default();
            let block = loop {
                port.advance(Instant::now(), &mut batch).unwrap();
                match port.next(&mut batch) {
                    None => {}
                    Some(Event::Block(block)) => break block.keep(),
                    Some(other) => panic!("{other:?}"),
                }
            };
            let mut block = block;
            let block = block.arrived();
            let mut bytes = block.bytes();
            let record = hg_channel::next_record(&mut bytes).unwrap().unwrap();
            assert_eq!(
                (record.tag, record.bytes),
                (SYSTEM | 7, &[&number[..], &[1, 0, 0, 0]].concat()[..])
            );
            port.consumed(block);
        });
        let fabric = Fabric::new().register(square).unwrap();
        let worker = fabric.open(&Process(0, 2, &meeting), "sm://").unwrap().remove(0);
        let ended = worker.wait_until(|| worker.gone().map(Err::<(), _>));
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
        assert_eq!((worker.calls(), worker.panicked(), worker.unmoved()), ((1, 2), 0, 0));
    });
}

/// A call whose buffer is not there, as [`READ`] has it.
fn no_buffer() -> Vec<u8> {
    let nobody = Descriptor::new(100, Rights::READ, b"nobody's").encode();
    let size = u32::try_from(nobody.len()).unwrap().to_le_bytes();
    let source = [9_u64.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    [&5_u64.to_le_bytes()[..], &source, &size, &nobody, &[0; 8]].concat()
}

#[test]
fn nothing_runs_that_a_stranger_has_sent_behind_what_no_worker_sends() {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = stranger(&meeting);
            // All wait for the buffer: a call of no function stands in its block, and calls that could run in others.
            let buffer = no_buffer();
            port.record(0, READ, buffer.len(), u64::MAX).unwrap().copy_from_slice(&buffer);
            port.record(0, 7, 8, u64::MAX).unwrap().fill(0);
            for _ in 0..20 {
                port.seal(0);
                port.record(0, 0, 8, u64::MAX).unwrap().fill(0);
            }
            port.flush(0);
            while !is_over.load(Ordering::SeqCst) {
                hears_anything(&mut port);
            }
        });
        let fabric = Fabric::new().register(square).unwrap();
        let worker = fabric.open(&Process(0, 2, &meeting), "sm://").unwrap().remove(0);
        let ended = worker.wait_until(|| worker.gone().map(Err::<(), _>));
        assert!(
            matches!(&ended, Err(Error::Gone { process: 1, why }) if why.contains("no registered"))
        );
        assert_eq!(worker.calls(), (1, 1), "that of the buffer alone has run, without it");
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
        is_over.store(true, Ordering::SeqCst);
    });
}

/// A stranger that consumes nothing has calls run whose answers do not fit any more at some time: so many ran and were answered.
fn answered(queue_max: u64, call: impl Fn(u64) -> (u32, Vec<u8>) + Sync, why: &str) -> (u64, u64) {
    let _watchdog = Watchdog::start();
    let (meeting, is_over) = (Meeting::default(), AtomicBool::new(false));
    let limits = Limits::default().window(8224);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = stranger_of(&meeting, queue_max, limits);
            let mut number = 0;
            while !is_over.load(Ordering::SeqCst) {
                // Ended by the worker, it is told so.
                let (mut tag, mut body) = call(number);
                while let Ok(room) = port.record(0, tag, body.len(), 1 << 16) {
                    room.copy_from_slice(&body);
                    number += 1;
                    (tag, body) = call(number);
                }
                hears_anything(&mut port);
            }
        });
        let fabric = Fabric::new().register(square).unwrap().queue_max(queue_max).limits(limits);
        let worker = fabric.open(&Process(0, 2, &meeting), "sm://").unwrap().remove(0);
        let ended = worker.wait_until(|| worker.gone().map(Err::<(), _>));
        let Err(Error::Gone { process: 1, why: said }) = &ended else { panic!("{ended:?}") };
        assert!(said.contains(why), "{said}");
        is_over.store(true, Ordering::SeqCst);
        let (made, run) = worker.calls();
        (run, made)
    })
}

#[test]
fn the_block_of_a_sender_that_takes_no_answers_ends_behind_the_call_that_finds_it() {
    let call = |_| (ANSWERED, vec![0; 16]);
    let (run, made) = answered(0, call, "it takes none of the results that it asks for");
    assert_eq!(run, made + 1, "the last one has run, and is not answered");
    // Results that may wait come first, as they take less time.
    let read = no_buffer();
    let call = |number| if number < 60_000 { call(0) } else { (READ, read.clone()) };
    let (run, made) = answered(0, call, "it does not hear what was read");
    assert_eq!(run, made + 1, "the last one has run, and is not answered");
}

#[test]
fn who_takes_nothing_has_the_share_of_what_it_asks_for_and_not_those_of_others() {
    let window = 2 * 8192;
    // Results of 28 bytes, and reasons of 20 for as many as may be asked for at once.
    let (run, _) = answered(
        1 << 20,
        |_| (ANSWERED, vec![0; 16]),
        "it takes none of the results that it asks for",
    );
    let most = (1 << 20) / 28 + 65_536 * 24 / 20 + (4096 + window) / 20;
    assert!((100_000..=most).contains(&run), "{run} were answered, of {most}");
    // Broadcasts of which 16 KiB may be under way, and news of them.
    let broadcast = |number: u64| {
        (BROADCAST, [&1_u32.to_le_bytes()[..], &number.to_le_bytes(), &[3; 8]].concat())
    };
    let (run, _) = answered(16 << 10, broadcast, "it does not hear what has run");
    let most = (16 << 10) / 24 + (4096 + window) / 24;
    assert!((600..=most).contains(&run), "{run} have run, of {most}");
}

/// Its bytes are written, and reading them panics.
#[derive(Debug, Clone, PartialEq)]
struct Grumpy;

impl Serialize for Grumpy {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(7)
    }
}

impl<'a> Deserialize<'a> for Grumpy {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        assert_ne!(u64::deserialize(from)?, 7, "this one panics");
        Ok(Self)
    }
}

#[rpc(crate = hg_invoke)]
fn take(_it: Grumpy) {}

#[rpc(crate = hg_invoke)]
fn give() -> Grumpy {
    Grumpy
}

#[test]
fn types_that_panic_when_they_are_read_keep_nobody() {
    let fabric = Fabric::new().register(take).unwrap().register(give).unwrap();
    run("sm://", (1, 25), &fabric, |worker| {
        let there = Place { process: 0, thread: 1 };
        let ended = worker.call_return(there, take, (Grumpy,)).unwrap().wait(&worker);
        assert_eq!(ended, Err(Failed::Call(Error::Panicked(there))));
        let ended = worker.call_return(there, give, ()).unwrap().wait(&worker);
        assert!(matches!(ended, Err(Failed::Call(Error::Lost { .. }))), "{ended:?}");
        if worker.place().thread == 0 {
            let ran = Synchronizer::new();
            worker.broadcast_with(take, (Grumpy,), How::default().when_run(&ran)).unwrap();
            let ended = ran.wait(&worker);
            assert!(matches!(ended, Err(Error::Gone { process: 0, .. })), "{ended:?}");
            assert_eq!(worker.gone(), None, "it has not run, and nobody is gone");
        }
        worker.quiesce().unwrap();
    });
}

/// Its bytes are written, and refused when they are read.
#[derive(Debug, Serialize)]
struct Odd(u64);

impl<'a> Deserialize<'a> for Odd {
    fn deserialize<D: serde::Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(from)?;
        if number % 2 == 1 { Ok(Self(number)) } else { Err(serde::de::Error::custom("even")) }
    }
}

#[rpc(crate = hg_invoke)]
fn take_odd(it: Odd, bytes: &[u8]) {
    assert!(it.0 % 2 == 1 && bytes.is_empty());
}

#[test]
fn an_own_broadcast_that_cannot_be_read_has_not_run_and_those_behind_it_are_told() {
    let _watchdog = Watchdog::start();
    for is_read in [false, true] {
        let fabric = Fabric::new().register(take_odd).unwrap();
        let worker = fabric.open(&Process(0, 1, &Meeting::default()), "sm://").unwrap().remove(0);
        let told = [(); 2].map(|()| Synchronizer::new());
        let memory = worker.allocate(1).unwrap();
        for (number, told) in (2..).zip(&told) {
            let (args, how) = ((Odd(number),), How::default().when_run(told));
            let begun = if is_read {
                worker.broadcast_buffer_read(take_odd, args, memory.part(0..0), how)
            } else {
                worker.broadcast_buffer(take_odd, args, &[], how)
            };
            begun.unwrap();
        }
        for told in told {
            let ended = told.wait(&worker);
            assert!(matches!(ended, Err(Error::Gone { process: 0, .. })), "{ended:?}");
        }
        worker.finish().unwrap();
    }
}

#[test]
fn calls_of_ever_new_groups_are_too_many() {
    let call = |group: u32| (GROUP, [&group.to_le_bytes()[..], &[0; 8]].concat());
    // As many as one may bring, and a broadcast of another one whose bytes are read first: root 1, number 0.
    let name = [&2000_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 8]].concat();
    let broadcast = (READ | BROADCAST | GROUP, [&name, &no_buffer()[8..]].concat());
    let ends =
        [hears_many((0..2000).map(call)), hears_many((0..1025).map(call).chain([broadcast]))];
    for ended in ends {
        let Error::Gone { process: 1, why } = &ended else { panic!("{ended:?}") };
        assert!(why.contains("calls of too many groups"), "{why}");
    }
}

#[test]
fn reports_of_any_size_are_added_up() {
    // The stranger is below the root: it reports as many calls as there can be, hears that there is another wave, and goes.
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut port = stranger(&meeting);
            port.record(0, SYSTEM | 1, 16, u64::MAX).unwrap().copy_from_slice(&[0xff; 16]);
            port.flush(0);
            while !hears_anything(&mut port) {}
        });
        let fabric = Fabric::new().register(square).unwrap();
        let worker = fabric.open(&Process(0, 2, &meeting), "sm://").unwrap().remove(0);
        worker.call(worker.place(), square, (1,)).unwrap();
        let ended = worker.quiesce();
        assert!(matches!(ended, Err(Error::Gone { process: 1, .. })), "{ended:?}");
    });
}
