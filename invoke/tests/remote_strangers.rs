//! Records about memory for others that no worker sends: their sender is gone, by name, and nothing is released that is not its own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, unused_macros, reason = "a part of it is needed here")]
mod common;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Instant,
};

use common::{Meeting, Process};
use hg_channel::{Batch, Directory, Event, Limits, Near, Port};
use hg_core::codec::{self, Codec as _};
use hg_invoke::{
    Error, Fabric, Failed, Group, How, Place, Rpc, Synchronizer, Worker, Written, rpc,
};
use hg_na::{Address, Context, Domain, OpenOptions, Plugin as _, Rights};
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

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0; codec::Default::size(value).unwrap()];
    codec::Default::encode(value, &mut bytes).unwrap();
    bytes
}

#[rpc(crate = hg_invoke)]
fn hear(_bytes: &[u8]) {}

/// In their order.
fn functions() -> Vec<u64> {
    let mut all = vec![square::wire_id().0, see::wire_id().0, hear::wire_id().0];
    all.sort_unstable();
    all
}

/// The first end of process 1, which speaks for itself; process 0 has workers.
struct Stranger {
    port: Port<()>,
    domain: Arc<dyn Domain>,
    /// Its other ends, which say nothing.
    _others: Vec<Box<dyn Context>>,
    heard: VecDeque<(u32, Vec<u8>)>,
}

impl Stranger {
    fn new(url: &str, threads: u8, meeting: &Meeting) -> Self {
        let scheme = url.split(':').next().unwrap();
        let (address, options) = (Address::new(url).unwrap(), OpenOptions::listening());
        let domain = match scheme {
            "sm" => hg_na_sm::SmPlugin.open(&address, &options),
            _ => hg_na_tcp::TcpPlugin.open(&address, &options),
        };
        let domain = domain.unwrap();
        let mut contexts: Vec<_> = (0..threads).map(|it| domain.context(it).unwrap()).collect();
        let own = encoded(&Told::Ok(Introduction {
            token: [7; 16],
            functions: functions(),
            threads,
            nodes: vec![None; threads.into()],
            addresses: contexts.iter().map(|it| it.address().as_str().to_owned()).collect(),
            scheme: scheme.to_owned(),
            block: 4096,
            window: 256 << 10,
            queue_max: 16 << 20,
            buffer_max: 64 << 20,
        }));
        let all = Process(1, 2, meeting).all_gather(&own).unwrap();
        let all = all.iter().map(|it| codec::Default::decode::<Told>(it).unwrap());
        let all = all.collect::<Result<Vec<_>, _>>().unwrap();
        let addresses = all.iter().flat_map(|it| &it.addresses);
        let addresses = addresses.map(|it| Address::new(it).unwrap()).collect();
        let directory = Arc::new(Directory::new(all[0].token, addresses));
        let (end, context) = (u32::from(threads), contexts.remove(0));
        let port = Port::new(end, context, directory, Near::new(end, 1), Limits::default());
        Self { port, domain, _others: contexts, heard: VecDeque::new() }
    }

    fn say(&mut self, to: u32, tag: u32, body: &[u8]) {
        self.port.record(to, tag, body.len(), u64::MAX).unwrap().copy_from_slice(body);
        self.port.flush(to);
    }

    fn progress(&mut self) {
        let mut batch = Batch::default();
        self.port.advance(Instant::now(), &mut batch).unwrap();
        while let Some(event) = self.port.next(&mut batch) {
            if let Event::Block(block) = event {
                let mut bytes = block.bytes();
                while let Some(record) = hg_channel::next_record(&mut bytes).unwrap() {
                    self.heard.push_back((record.tag, record.bytes.to_vec()));
                }
                self.port.consumed(block);
            }
        }
        self.port.acknowledge();
        self.port.flush_all();
    }

    /// The next one with this tag; those before it are dropped.
    fn hear(&mut self, tag: u32) -> Vec<u8> {
        loop {
            while let Some(record) = self.heard.pop_front() {
                if record.0 == tag {
                    return record.1;
                }
            }
            self.progress();
        }
    }

    fn progress_until(&mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            self.progress();
        }
    }
}

/// Process 0 opens its workers beside a stranger.
fn beside(
    url: &str,
    threads: u8,
    stranger: impl FnOnce(Stranger) + Send,
    work: impl FnOnce(Vec<Worker>),
) {
    let _watchdog = Watchdog::start();
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        let meeting = &meeting;
        scope.spawn(move || stranger(Stranger::new(url, threads, meeting)));
        let fabric = Fabric::new().register(square).unwrap().register(see).unwrap();
        let fabric = fabric.register(hear).unwrap();
        work(fabric.threads(threads).open(&Process(0, 2, meeting), url).unwrap());
    });
}

fn wait_for(is_so: &AtomicBool) {
    while !is_so.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn progress_until(worker: &Worker, is_so: impl Fn() -> bool) {
    worker.wait_until(|| is_so().then_some(Ok(()))).unwrap();
}

/// A worker, which has memory of its own, hears records of a stranger; how that ends.
fn hears(records: &[(u32, Vec<u8>)]) -> Error {
    let (is_ready, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut ended = None;
    let speaks = |mut stranger: Stranger| {
        wait_for(&is_ready);
        for (tag, body) in records {
            stranger.say(0, *tag, body);
        }
        stranger.progress_until(&is_over);
    };
    beside("sm://", 1, speaks, |mut workers| {
        let worker = workers.remove(0);
        let mine = worker.allocate_at(worker.place(), 1).unwrap();
        assert!(worker.memory_of(mine.locator()).is_some());
        let there = Place { process: 1, thread: 0 };
        is_ready.store(true, Ordering::SeqCst);
        ended = match worker.call_return(there, square, (1,)).unwrap().wait(&worker) {
            Err(Failed::Call(error)) => Some(error),
            other => panic!("{other:?}"),
        };
        assert_eq!(worker.allotted(), PAGE, "what was for the one that is gone is, too");
        drop(mine);
        worker.finish().unwrap();
        is_over.store(true, Ordering::SeqCst);
    });
    ended.unwrap()
}

#[test]
fn whoever_speaks_of_memory_as_no_worker_does_is_gone() {
    type What = Result<Vec<u8>, (u32, u32)>;
    let none: What = Ok(vec![7]);
    let long = Err::<Vec<u8>, _>((1_u32, 1_u32, "w".repeat(1000)));
    // By the stranger itself: everywhere a hundred bytes, of number 9, by its broadcast 1; then a broadcast of more, and of what is there no more.
    let settle = || (BROADCAST | SETTLE, encoded(&(1_u32, 1_u64, 9_u64, 100_u64)));
    let reserve = |number: u64| (RESERVE | ANSWERED, reservation(number));
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
        (vec![(RELEASE, vec![0; 7])], "too short"),
        // What is said of a refusal has a limit.
        (vec![(SETTLED, encoded(&(0_u32, 1_u64, long)))], "cannot be read"),
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

/// A call that allocates a byte, of its caller's number 1.
fn reservation(number: u64) -> Vec<u8> {
    encoded(&(1_u64, number, None::<u32>, 1_u64))
}

/// A stranger has one worker allocate for it, and then all by the same number: they do not blame one another for it.
#[test]
fn numbers_of_one_kind_are_not_those_of_the_other() {
    for first in [0, 1] {
        let (is_done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let speaks = |mut stranger: Stranger| {
            let settle = |name: u64, number: u64| encoded(&(2_u32, name, number, 100_u64));
            // What is there no more, as far as they know.
            stranger.say(0, RELEASE, &encoded(&77_u64));
            stranger.say(0, LET_GO, &encoded(&(2_u32, 77_u64)));
            stranger.say(first, RESERVE | ANSWERED, &reservation(9));
            stranger.hear(ANSWER);
            stranger.say(0, BROADCAST | SETTLE, &settle(1, 9));
            assert_eq!(stranger.hear(RAN)[12..], [0; 4], "it has run everywhere");
            stranger.say(0, LET_GO, &encoded(&(2_u32, 9_u64)));
            stranger.say(0, BROADCAST | SETTLE, &settle(2, 10));
            assert_eq!(stranger.hear(RAN)[12..], [0; 4], "it has run everywhere");
            is_done.store(true, Ordering::SeqCst);
            stranger.progress_until(&is_over);
        };
        beside("sm://", 2, speaks, |workers| {
            let is_called = AtomicU32::new(0);
            let work = |worker: Worker| {
                progress_until(&worker, || is_done.load(Ordering::SeqCst));
                let (me, other) = (worker.place().thread, 1 - worker.place().thread);
                let there = Place { process: 0, thread: other };
                let called = worker.call_return(there, square, (3,)).unwrap().wait(&worker);
                assert_eq!(called, Ok(9));
                assert_eq!(worker.allotted(), PAGE + PAGE * u64::from(me == first));
                is_called.fetch_add(1, Ordering::SeqCst);
                progress_until(&worker, || is_called.load(Ordering::SeqCst) == 2);
                is_over.store(true, Ordering::SeqCst);
            };
            std::thread::scope(|scope| {
                let all: Vec<_> = workers.into_iter().map(|it| scope.spawn(|| work(it))).collect();
                all.into_iter().for_each(|it| it.join().unwrap());
            });
        });
    }
}

/// It would be for whoever a relay names as the root.
#[test]
fn nothing_is_allocated_that_is_not_answered() {
    let (is_done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let speaks = |mut stranger: Stranger| {
        stranger.say(0, RESERVE, &reservation(7)[8..]);
        let name = encoded(&(1_u32, 1_u64));
        stranger.say(0, BROADCAST | RESERVE, &[&name, &reservation(5)[8..]].concat());
        stranger.hear(RAN);
        is_done.store(true, Ordering::SeqCst);
        stranger.progress_until(&is_over);
    };
    beside("sm://", 1, speaks, |mut workers| {
        let worker = workers.remove(0);
        progress_until(&worker, || is_done.load(Ordering::SeqCst));
        assert_eq!(worker.allotted(), 0);
        is_over.store(true, Ordering::SeqCst);
    });
}

#[rpc(crate = hg_invoke)]
fn see(_number: u8, _written: Written) {}

/// It would end a broadcast, whose bytes count, while they are on their way.
#[test]
fn whoever_has_run_what_is_still_being_written_is_gone() {
    let (has_said, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let speaks = |mut stranger: Stranger| {
        stranger.hear(BROADCAST | SETTLE);
        let rights = Rights::READ | Rights::WRITE;
        let memory = stranger.domain.register(vec![0_u8; LEN].into(), rights).unwrap();
        let settled: Result<Vec<u8>, u32> = Ok(memory.descriptor().encode());
        stranger.say(0, SETTLED, &encoded(&(0_u32, 1_u64, settled)));
        let ran = |number: u64| encoded(&(0_u32, number, [0_u8; 4]));
        stranger.say(0, RAN, &ran(1));
        // The next one, which has not begun.
        stranger.port.seal(0);
        stranger.progress();
        wait_for(&has_said);
        stranger.say(0, RAN, &ran(2));
        while !stranger.port.is_sent() {
            stranger.progress();
        }
        has_said.store(false, Ordering::SeqCst);
        // It takes nothing more.
        wait_for(&is_over);
    };
    beside("tcp://127.0.0.1", 1, speaks, |mut workers| {
        let (worker, ran) = (workers.remove(0), Synchronizer::new());
        let everywhere = worker.allocate_everywhere(LEN as u64).unwrap();
        has_said.store(true, Ordering::SeqCst);
        while has_said.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let (part, how) = (everywhere.own().part(0..LEN as u64), How::default().when_run(&ran));
        worker.broadcast_buffer_written(see, (1,), part, everywhere.at(0), how).unwrap();
        let ended = ran.wait(&worker);
        let Err(Error::Gone { process: 1, why }) = &ended else { panic!("{ended:?}") };
        assert!(why.contains("has run what it was not told"), "{why}");
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Otherwise it would take nothing, and have others make ever more wait for it.
#[test]
fn whoever_has_run_what_has_not_left_for_it_is_gone() {
    const COUNT: u64 = 100;
    let (have_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let speaks = |mut stranger: Stranger| {
        wait_for(&have_begun);
        stranger.say(0, RAN, &encoded(&(0_u32, COUNT, [0_u8; 4])));
        // It consumes nothing.
        while !is_over.load(Ordering::SeqCst) {
            let mut batch = Batch::default();
            stranger.port.advance(Instant::now(), &mut batch).unwrap();
            while stranger.port.next(&mut batch).is_some() {}
        }
    };
    beside("sm://", 1, speaks, |mut workers| {
        let (worker, ran) = (workers.remove(0), Synchronizer::new());
        // Longer than a window, all together.
        for _ in 0..COUNT {
            let how = How::default().when_run(&ran);
            worker.broadcast_with(hear, (&[7; 8 << 10],), how).unwrap();
        }
        have_begun.store(true, Ordering::SeqCst);
        let ended = ran.wait(&worker);
        let Err(Error::Gone { process: 1, why }) = &ended else { panic!("{ended:?}") };
        assert!(why.contains("has run what it was not told"), "{why}");
        is_over.store(true, Ordering::SeqCst);
    });
}

/// A root has all allocate and let go, on and on; who passes that on does not hear for a while what was allocated, and is not to blame.
#[test]
fn who_is_not_told_of_all_that_was_allocated_stays() {
    // In one window: more is to be said of it than may wait.
    const COUNT: u64 = 4600;
    let is_over = AtomicBool::new(false);
    let speaks = |mut stranger: Stranger| {
        let mut say = |tag: u32, body: &[u8]| {
            stranger.port.record(0, tag, body.len(), u64::MAX).unwrap().copy_from_slice(body);
        };
        for number in 0..COUNT {
            say(BROADCAST | SETTLE, &encoded(&(1_u32, number, number, 100_u64)));
            say(LET_GO, &encoded(&(1_u32, number)));
        }
        stranger.port.flush(0);
        while !is_over.load(Ordering::SeqCst) {
            let mut batch = Batch::default();
            stranger.port.advance(Instant::now(), &mut batch).unwrap();
            // Nothing of it is consumed.
            while stranger.port.next(&mut batch).is_some() {}
        }
    };
    beside("sm://", 1, speaks, |mut workers| {
        let worker = workers.remove(0);
        let ended = worker.wait_until(|| {
            let has_run = (worker.calls().1 >= COUNT).then_some(Ok(()));
            worker.gone().map(Err).or(has_run)
        });
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(ended, Ok(()));
    });
}

/// Functions of the fabric's own.
const RESERVE: u32 = 1 << 23;
const SETTLE: u32 = RESERVE + 1;
const WRITTEN: u32 = 1 << 26;
const BROADCAST: u32 = 1 << 29;
const ANSWERED: u32 = 1 << 30;
const SETTLED: u32 = 1 << 31 | 12;
const LET_GO: u32 = 1 << 31 | 13;
const RELEASE: u32 = 1 << 31 | 14;
const ANSWER: u32 = 1 << 31 | 5;
const RAN: u32 = 1 << 31 | 6;
const PAGE: u64 = 4096;
/// More than a transport takes at once.
const LEN: usize = 48 << 20;
