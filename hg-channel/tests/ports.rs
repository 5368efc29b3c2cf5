//! Ports over real transports: order, full receivers, news on what travels anyway, idle connections, and ends.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "a part of it is needed here")]
mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hg_channel::{Batch, Directory, Error, Event, Limits, Near, Port, When, next_record};
use hg_na::{Address, Op, OpenOptions, Plugin};
use hg_na_route::Route;
use watchdog::Watchdog;
use world::{TOKEN, World};

/// Records of all lengths from each end to each other one.
fn all_to_all(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 3, Limits::default().block(256).window(4096));
    const COUNT: u32 = 500;
    let length = |tag: u32| (tag as usize * 7) % 1500;
    for tag in 0..COUNT {
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                world.write(from, to, tag, length(tag)).unwrap();
                if tag + 1 == COUNT {
                    world.port(from).tell(to, When::Consumed, u64::from(to));
                }
            }
        }
    }
    world.until("everybody is told", |world| world.told.iter().all(|told| told.len() == 2));
    for end in 0..3_usize {
        for from in (0..3).filter(|from| *from as usize != end) {
            let got: Vec<_> = world.consumed[end].iter().filter(|it| it.0 == from).collect();
            assert_eq!(got.len(), COUNT as usize);
            for (record, tag) in got.iter().zip(0..) {
                assert_eq!((record.1, record.2), (tag, length(tag)), "end {end} from {from}");
            }
        }
    }
}

fn a_full_receiver(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 2, Limits::default().block(256).window(2048));
    world.is_lazy = true;
    let mut written = 0;
    let limit = 1024;
    for _ in 0..2000 {
        if world.port(0).record(1, written, 100, limit).map(|room| room.fill(1)).is_ok() {
            written += 1;
        }
        world.round();
    }
    assert!(u64::from(written) * 108 <= 2048 + limit, "{written} records");
    let queued = world.port(0).queued();
    assert!((limit - 256..=limit).contains(&queued), "{queued} bytes wait");
    assert!(matches!(world.port(0).record(1, 0, 100, limit), Err(Error::Full(1))));
    let held: usize = world.waiting[1].iter_mut().map(|block| block.arrived().bytes().len()).sum();
    assert!(held <= 2048, "{held} bytes");
    world.is_lazy = false;
    world.until("all is consumed", |world| world.consumed[1].len() == written as usize);
    world.write(0, 1, written, 100).unwrap();
    world.until("it goes on", |world| world.consumed[1].len() == written as usize + 1);
    assert_eq!(world.port(0).queued(), 0);
    // What waits for an end that is gone waits no more.
    world.is_lazy = true;
    while world.port(0).record(1, 0, 100, 1 << 20).is_ok() && world.port(0).queued() < 4096 {}
    world.ports[1] = None;
    world.until("its end is told", |world| !world.gone[0].is_empty());
    assert_eq!(world.port(0).queued(), 0);
}

/// Records from end 0 to end 1, which has looked in vain for a while before the window lets more leave.
fn windows_of_records(world: &mut World, count: usize) {
    let goal = world.consumed[1].len() + count;
    watchdog::until("all is there", || {
        while world.port(0).record(1, 0, 100, 1024).map(|room| room.fill(1)).is_ok() {}
        for _ in 0..50 {
            world.step(1, Instant::now());
        }
        world.round();
        world.consumed[1].len() >= goal
    });
}

fn a_narrow_window(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let idle = Duration::from_millis(200);
    let limits = Limits::default().block(256).window(2048).widest(10_000).idle(idle);
    let mut world = World::new(plugin, url, 2, limits);
    windows_of_records(&mut world, 1000);
    assert_eq!(world.port(1).stats().widened, 2, "2048, 4096, 8192");
    assert_eq!(world.port(0).stats().widened, 0, "nothing goes that way");
    assert!((4096..=8192).contains(&held_in_vain(&mut world)));
    let none = |world: &World| world.ports.iter().flatten().all(|it| it.connections() == 0);
    world.until("the connection is idle, and closed", none);
    assert!(held_in_vain(&mut world) <= 2048, "the sender begins anew, too");
    windows_of_records(&mut world, 1000);
    assert_eq!(world.port(1).stats().widened, 4, "from the beginning");
    assert!(world.gone.iter().all(Vec::is_empty), "nobody is gone");
}

/// Ends that share memory are as quick as they are with a short one.
fn a_window_of_shared_memory(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let limits = Limits::default().block(256).window(2048).widest(10_000);
    let mut world = World::new(plugin, url, 2, limits);
    windows_of_records(&mut world, 1000);
    assert_eq!([0, 1].map(|end| world.port(end).stats().widened), [0, 0]);
    assert!(held_in_vain(&mut world) <= 2048);
}

/// Shared memory inside of a node, TCP between nodes: all are on this one, or each but the first on another one.
fn routed(is_one_node: bool) -> Route {
    let has_opened = AtomicBool::new(false);
    let node = move || {
        let is_here = is_one_node || !has_opened.swap(true, Ordering::Relaxed);
        if is_here { hg_na_sm::node_id() } else { Ok(Default::default()) }
    };
    Route::new(hg_na_sm::SmPlugin, hg_na_tcp::TcpPlugin, node, &["uid", "sm+tcp"])
}

#[test]
fn a_window_that_a_quick_receiver_waits_for_is_doubled_until_its_connection_rests() {
    a_narrow_window(&hg_na_tcp::TcpPlugin, "tcp://127.0.0.1");
    a_narrow_window(&routed(false), "sm+tcp://127.0.0.1");
    let (plugin, url) = (hg_na_ofi::OfiPlugin, "ofi+tcp://127.0.0.1");
    if world::is_there(&plugin, url, "a_window_that_a_quick_receiver_waits_for") {
        a_narrow_window(&plugin, url);
    }
}

#[test]
fn a_window_does_not_grow_where_memory_is_shared_also_inside_of_a_route() {
    a_window_of_shared_memory(&hg_na_sm::SmPlugin, "sm://");
    a_window_of_shared_memory(&routed(true), "sm+tcp://127.0.0.1");
}

/// Bytes of records that end 1 has, when it consumes nothing for a while.
fn held_in_vain(world: &mut World) -> usize {
    world.is_lazy = true;
    for _ in 0..2000 {
        let _full = world.port(0).record(1, 0, 100, 1024).map(|room| room.fill(1));
        world.round();
    }
    world.is_lazy = false;
    world.waiting[1].iter_mut().map(|block| block.arrived().bytes().len()).sum()
}

/// Records that come one by one, of lengths that short cuts take and of others; one end begins while the others are at it, and one ends.
fn one_by_one(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 3, Limits::default());
    let length = |tag: u32| [8, 40, 41, 0, 300, 5000][tag as usize % 6];
    let mut tags = 0..;
    let mut turn = |world: &mut World, from: u32, to: u32| {
        let tag = tags.next().unwrap();
        world.write(from, to, tag, length(tag)).unwrap();
        world.port(from).tell(to, When::Consumed, u64::from(tag));
        world.until("one more is told", |world| world.told[from as usize].len() > tag as usize);
    };
    for _ in 0..600 {
        turn(&mut world, 0, 1);
    }
    world.write(2, 1, 7, 100).unwrap();
    while !world.consumed[1].contains(&(2, 7, 100)) {
        turn(&mut world, 0, 1);
    }
    let made = world.told[0].len();
    assert_eq!(world.told[0], (0..made as u64).collect::<Vec<_>>());
    let consumed = world.consumed[1].iter().filter(|it| it.0 == 0).copied();
    let expected = (0..).take(made).map(|tag| (0, tag, length(tag)));
    assert!(consumed.eq(expected), "each once, in order");
    world.ports[1] = None;
    world.until("it is gone", |world| world.gone[0].iter().any(|(end, _)| *end == 1));
}

/// Blocks would be longer than any message of the transport.
fn long_blocks(plugin: &dyn Plugin, url: &str) {
    const COUNT: u32 = 5000;
    let _watchdog = Watchdog::start();
    for block in [1 << 20, usize::MAX] {
        let mut world = World::new(plugin, url, 2, Limits::default().block(block));
        for tag in 0..COUNT {
            world.write(0, 1, tag, 100).unwrap();
        }
        world.port(0).tell(1, When::Consumed, 7);
        world.until("it is told", |world| {
            assert!(world.gone.iter().all(Vec::is_empty), "nobody is gone: {:?}", world.gone);
            world.told[0] == [7]
        });
        assert!(world.consumed[1].iter().map(|it| it.1).eq(0..COUNT), "each once, in order");
        assert!(world.port(0).stats().blocks >= 2, "they fit in no one message");
    }
}

/// What is consumed is told by records that go the other way.
fn both_ways(plugin: &dyn Plugin, url: &str) {
    const COUNT: u32 = 20_000;
    let _watchdog = Watchdog::start();
    let told = |is_both: bool| {
        let mut world = World::new(plugin, url, 2, Limits::default().window(8192));
        let senders = if is_both { 0..2 } else { 0..1 };
        let received =
            |world: &World| senders.clone().map(|end| world.consumed[1 - end].len()).min();
        for tag in 0..COUNT {
            for from in senders.clone() {
                let from = u32::try_from(from).unwrap();
                world.write(from, 1 - from, tag, 100).unwrap();
            }
            world.round();
        }
        world.until("all is there", |world| received(world) == Some(COUNT as usize));
        world.ports.iter().flatten().map(|it| it.stats().acknowledgements).sum::<u64>()
    };
    let (alone, both) = (told(false), told(true));
    // A half of the window each.
    assert!(alone >= 108 * u64::from(COUNT) / 8192, "one way they travel alone: {alone}");
    assert!(both <= alone / 4, "both ways: {both}, {alone} one way");
}

fn an_end(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 3, Limits::default());
    for (to, when) in [(1, When::Consumed), (2, When::Sent), (2, When::Consumed)] {
        world.write(0, to, 1, 8).unwrap();
        world.port(0).tell(to, when, u64::from(to));
    }
    world.until("both are there", |world| world.told[0].len() == 3);
    world.is_lazy = true;
    world.write(0, 1, 2, 8).unwrap();
    world.port(0).tell(1, When::Consumed, 77);
    world.until("it has arrived", |world| !world.waiting[1].is_empty());
    world.ports[1] = None;
    world.until("its end is told", |world| !world.gone[0].is_empty());
    assert_eq!(world.gone[0], [(1, vec![77])]);
    assert!(matches!(world.port(0).record(1, 0, 8, 100), Err(Error::Gone { end: 1, .. })));
    world.is_lazy = false;
    world.write(0, 2, 2, 8).unwrap();
    world.until("the others go on", |world| world.consumed[2].len() == 3);
}

fn an_idle_connection(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let idle = Duration::from_millis(10);
    let mut world = World::new(plugin, url, 2, Limits::default().idle(idle));
    for tag in 0..3 {
        world.write(0, 1, tag, 8).unwrap();
        world.write(1, 0, tag, 8).unwrap();
        let all = |world: &World| world.consumed.iter().all(|it| it.len() == tag as usize + 1);
        world.until("both have it", all);
        let none = |world: &World| world.ports.iter().flatten().all(|it| it.connections() == 0);
        world.until("its connections are closed", none);
        assert!(world.gone.iter().all(Vec::is_empty), "nobody is gone");
    }
    assert!(world.port(0).stats().reclaimed + world.port(1).stats().reclaimed >= 3);
    // One that is wanted stays.
    world.port(0).keep(1);
    world.write(0, 1, 3, 8).unwrap();
    world.until("it is there", |world| world.consumed[1].len() == 4);
    world.ports[1] = None;
    world.until("its end is told", |world| world.gone[0].len() == 1);
}

fn a_stranger(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 1, Limits::default());
    let victim = plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap();
    let context = victim.context(0).unwrap();
    let here = context.address().clone();
    let directory = |token| Arc::new(Directory::new(token, vec![here.clone(), here.clone()]));
    let limits = Limits::default();
    let victim = Port::new(1, context, directory(TOKEN), Near::new(1, 1), limits);
    let other = plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap();
    let stranger =
        Port::new(0, other.context(0).unwrap(), directory([0; 16]), Near::new(0, 1), limits);
    world.ports = vec![Some(stranger), Some(victim)];
    world.told.resize(2, Vec::new());
    world.consumed.resize(2, Vec::new());
    world.gone.resize(2, Vec::new());
    world.waiting.push(Vec::new());
    world.write(0, 1, 1, 8).unwrap();
    world.until("it is shown the door", |world| !world.gone[0].is_empty());
    assert!(world.consumed[1].is_empty() && world.gone[1].is_empty());
}

/// Two ends: 0 has written a record to 1, and has answered that it uses the idle connection no more.
fn whose_connection_is_idle(plugin: &dyn Plugin, url: &str) -> World {
    let idle = Duration::from_millis(1);
    let mut world = World::new(plugin, url, 2, Limits::default().idle(idle));
    // Time passes for end 1 alone, which so is the one that proposes.
    let start = Instant::now();
    world.write(0, 1, 0, 8).unwrap();
    watchdog::until("it is there", || {
        world.step(0, start);
        world.step(1, start);
        world.consumed[1].len() == 1
    });
    let mut now = start;
    watchdog::until("end 0 hears that its connection is idle", || {
        now += idle;
        world.step(1, now);
        world.step(0, start)
    });
    world
}

/// An end answers that it uses its connection no more, and writes; the other one has written before it hears the answer.
fn a_connection_that_goes_on(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = whose_connection_is_idle(plugin, url);
    world.write(0, 1, 1, 8).unwrap();
    world.port(0).flush_all();
    assert!(world.port(0).waiting(1) > 0, "it has left the connection");
    world.write(1, 0, 2, 8).unwrap();
    world.port(1).flush(0);
    assert_eq!(world.port(1).waiting(0), 0, "the other one has not heard of it");
    world.until("both records are there", |world| {
        world.consumed[0] == [(1, 2, 8)] && world.consumed[1] == [(0, 0, 8), (0, 1, 8)]
    });
    assert!(world.port(0).is_flushed() && world.gone.iter().all(Vec::is_empty));
}

/// An end answers that it uses its connection no more; the other one would hear of its death by then.
fn a_connection_that_stays(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = whose_connection_is_idle(plugin, url);
    world.port(1).keep(0);
    world.write(0, 1, 1, 8).unwrap();
    world.port(0).flush_all();
    assert!(world.port(0).waiting(1) > 0, "it has left the connection");
    world.until("it goes on", |world| world.consumed[1] == [(0, 0, 8), (0, 1, 8)]);
    world.ports[0] = None;
    world.until("its end is told", |world| world.gone[1].len() == 1);
}

/// Two ends have made a connection each; what one has sent by its own comes before the end of the other one is told.
fn an_end_of_two_connections(plugin: &dyn Plugin, url: &str) {
    const COUNT: u32 = 300;
    for (dies, lives) in [(0, 1), (1, 0)] {
        let _watchdog = Watchdog::start();
        let mut world = World::new(plugin, url, 2, Limits::default());
        for (from, to) in [(0, 1), (1, 0)] {
            world.write(from, to, 0, 100).unwrap();
            world.port(from).flush(to);
        }
        world.until("both are there", |world| world.consumed.iter().all(|it| it.len() == 1));
        assert!(world.ports.iter().flatten().all(|it| it.connections() == 2));
        for tag in 1..COUNT {
            world.write(dies, lives, tag, 100).unwrap();
        }
        watchdog::until("all has left", || {
            world.step(dies as usize, Instant::now());
            world.port(dies).is_flushed() && world.port(dies).is_sent()
        });
        world.ports[dies as usize] = None;
        world.until("its end is told", |world| world.gone[lives as usize].len() == 1);
        let got = world.consumed[lives as usize].iter().map(|it| it.1);
        assert!(got.eq(0..COUNT), "end {dies} had sent more");
    }
}

/// Its death is to be heard of, but it makes no progress, so that there is no connection with it.
fn an_end_that_is_late(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let mut world = World::new(plugin, url, 2, Limits::default());
    world.port(0).keep(1);
    let mut now = Instant::now();
    // Longer than a connection may take.
    for _ in 0..500 {
        now += Duration::from_millis(500);
        world.step(0, now);
    }
    assert!(world.gone[0].is_empty(), "it is there");
    world.write(0, 1, 0, 8).unwrap();
    world.until("it has come", |world| world.consumed[1].len() == 1);
    world.ports[1] = None;
    world.until("its end is told", |world| world.gone[0].len() == 1);
}

/// Two ends of one process.
fn near_ports() -> (Port<u64>, Port<u64>) {
    let url = Address::new("sm://").unwrap();
    let domain = hg_na_sm::SmPlugin.open(&url, &OpenOptions::listening()).unwrap();
    let contexts = [0, 1].map(|at| domain.context(at).unwrap());
    let addresses = contexts.iter().map(|it| it.address().clone()).collect();
    let (directory, near) = (Arc::new(Directory::new(TOKEN, addresses)), Near::new(0, 2));
    let mut ports = contexts.into_iter().zip(0..).map(|(context, end)| {
        Port::new(end, context, Arc::clone(&directory), Arc::clone(&near), Limits::default())
    });
    (ports.next().unwrap(), ports.next().unwrap())
}

#[test]
fn whoever_lets_go_is_given_back_who_waits_for_an_end_of_which_it_was_not_told_yet() {
    let (mut here, there) = near_ports();
    drop(there);
    here.record(1, 0, 8, u64::MAX).unwrap().fill(1);
    here.tell(1, When::Consumed, 7);
    here.flush(1);
    assert_eq!(here.notices(), [7]);
    assert!(here.notices().is_empty(), "once");
}

#[test]
fn a_record_for_an_end_of_this_process_that_turns_out_to_be_gone_is_refused() {
    let (mut here, there) = near_ports();
    drop(there);
    // It is found when the first block is full.
    let written = (0_u64..1000).take_while(|number| {
        let written = here.record(1, 0, 100, u64::MAX).map(|room| room.fill(7));
        let is_written = written.is_ok();
        if is_written {
            here.tell(1, When::Consumed, *number);
        } else {
            assert!(matches!(written, Err(Error::Gone { end: 1, .. })), "{written:?}");
        }
        is_written
    });
    let written: Vec<u64> = written.collect();
    assert!(here.is_flushed(), "nothing waits for who is gone");
    let mut batch = Batch::default();
    here.advance(Instant::now(), &mut batch).unwrap();
    let Some(Event::Gone { end: 1, notices, .. }) = here.next(&mut batch) else {
        panic!("it is gone")
    };
    assert_eq!(notices, written, "all are told whose records were taken");
}

/// The tags of a block's records; or whoever would have been told by an end that is gone.
type Taken = Result<Vec<u32>, Vec<u64>>;

/// What has come for an end, by whom, in order; blocks are consumed.
fn taken(port: &mut Port<u64>) -> Vec<(u32, Taken)> {
    let (mut batch, mut taken) = (Batch::default(), Vec::new());
    port.advance(Instant::now(), &mut batch).unwrap();
    while let Some(event) = port.next(&mut batch) {
        match event {
            Event::Block(block) => {
                let (mut bytes, mut tags) = (block.bytes(), Vec::new());
                while let Some(record) = next_record(&mut bytes).unwrap() {
                    tags.push(record.tag);
                }
                taken.push((block.from(), Ok(tags)));
                port.consumed(block);
            }
            Event::Gone { end, notices, .. } => taken.push((end, Err(notices))),
            other => panic!("{other:?}"),
        }
    }
    taken
}

#[test]
fn what_a_thread_has_handed_over_before_it_left_comes_though_it_is_written_to_meanwhile() {
    // Of lengths that are handed over as copies, and as blocks.
    for length in [3, 1500] {
        let (mut here, mut there) = near_ports();
        there.record(0, 5, length, u64::MAX).unwrap().fill(1);
        there.flush(0);
        drop(there);
        for (when, notice) in [(When::Consumed, 7), (When::Sent, 8)] {
            here.record(1, 0, length, u64::MAX).unwrap().fill(1);
            here.tell(1, when, notice);
        }
        here.flush(1);
        let refused = here.record(1, 0, length, u64::MAX).map(|_| ());
        assert!(matches!(refused, Err(Error::Gone { end: 1, .. })), "{refused:?}");
        assert!(here.is_flushed(), "nothing waits for who is gone");
        assert_eq!(here.unconsumed(1), None, "nobody else prefers it");
        assert_eq!(taken(&mut here), [(1, Ok(vec![5])), (1, Err(vec![8, 7]))]);
        assert!(here.is_told() && here.due().is_none());
    }
}

#[test]
fn what_a_thread_has_consumed_before_it_left_is_told_though_it_is_written_to_meanwhile() {
    let (mut here, mut there) = near_ports();
    here.record(1, 4, 8, u64::MAX).unwrap().fill(1);
    here.tell(1, When::Consumed, 7);
    here.flush(1);
    assert_eq!(taken(&mut there), [(0, Ok(vec![4]))]);
    there.acknowledge();
    drop(there);
    here.record(1, 0, 8, u64::MAX).unwrap().fill(1);
    here.tell(1, When::Consumed, 8);
    here.flush(1);
    assert_eq!(taken(&mut here), [(1, Err(vec![8]))]);
    assert_eq!((here.due(), here.due()), (Some(7), None));
}

/// The last message of each is one that no end of a job sends.
fn broken_rules(hello: &[u8]) -> [(&'static str, Vec<Vec<u8>>); 4] {
    let kind = |kind| [kind, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let too_much = [kind(2), vec![0; 600]].concat();
    [
        ("no records", vec![hello.to_vec(), kind(2)]),
        ("more than the window", vec![hello.to_vec(), too_much.clone(), too_much]),
        ("two greetings", vec![hello.to_vec(), hello.to_vec()]),
        ("an unknown kind", vec![hello.to_vec(), kind(9)]),
    ]
}

fn a_liar(plugin: &dyn Plugin, url: &str) {
    let _watchdog = Watchdog::start();
    let limits = Limits::default().block(256).window(1024);
    let body = [&TOKEN[..], &1_u32.to_le_bytes(), &1024_u32.to_le_bytes()].concat();
    let hello = [&[1, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat();
    for (rule, messages) in broken_rules(&hello) {
        let open = || plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap();
        let (victim, liar) = (open(), open());
        let (victim, mut liar) = (victim.context(0).unwrap(), liar.context(0).unwrap());
        let addresses = vec![victim.address().clone(), liar.address().clone()];
        let to = liar.lookup(victim.address()).unwrap();
        let directory = Arc::new(Directory::new(TOKEN, addresses));
        let mut victim = Port::<u64>::new(0, victim, directory, Near::new(0, 1), limits);
        for message in messages {
            liar.post(0, Op::SendUnexpected { to, message: message.into() }).unwrap();
        }
        let (mut batch, mut done) = (Batch::default(), Vec::new());
        watchdog::until(rule, || {
            liar.progress(Instant::now(), &mut done).unwrap();
            victim.advance(Instant::now(), &mut batch).unwrap();
            let events = std::iter::from_fn(|| {
                Some(matches!(victim.next(&mut batch)?, Event::Gone { end: 1, .. }))
            });
            events.last() == Some(true)
        });
        let said = victim.record(1, 0, 8, 1 << 20).map(|_| ()).unwrap_err();
        assert!(matches!(said, Error::Gone { end: 1, .. }), "{rule}: {said}");
    }
}

macro_rules! suite {
    ($name:ident, $plugin:expr, $url:expr) => {
        mod $name {
            suite!(@ $plugin, $url, every_record_arrives_once_and_in_order_from_each_to_each, all_to_all);
            suite!(@ $plugin, $url, a_receiver_that_consumes_nothing_holds_a_window_at_most, a_full_receiver);
            suite!(@ $plugin, $url, records_that_come_one_by_one_keep_no_other_end_from_being_heard, one_by_one);
            suite!(@ $plugin, $url, blocks_are_no_longer_than_messages_whatever_was_asked_for, long_blocks);
            suite!(@ $plugin, $url, acknowledgements_travel_by_what_goes_the_other_way, both_ways);
            suite!(@ $plugin, $url, an_end_that_is_gone_is_named_and_the_others_go_on, an_end);
            suite!(@ $plugin, $url, an_idle_connection_is_closed_and_made_again, an_idle_connection);
            suite!(@ $plugin, $url, what_was_written_to_a_connection_that_was_left_goes_on_with_it, a_connection_that_goes_on);
            suite!(@ $plugin, $url, a_connection_that_was_left_is_gone_on_with_where_it_is_wanted, a_connection_that_stays);
            suite!(@ $plugin, $url, what_an_end_has_sent_by_one_connection_comes_before_it_is_gone_by_another_one, an_end_of_two_connections);
            suite!(@ $plugin, $url, an_end_that_makes_no_progress_is_not_gone_while_there_is_nothing_to_tell_it, an_end_that_is_late);
            suite!(@ $plugin, $url, who_does_not_know_the_token_is_not_heard, a_stranger);
            suite!(@ $plugin, $url, who_breaks_the_rules_is_gone, a_liar);
        }
    };
    (@ $plugin:expr, $url:expr, $test:ident, $body:ident) => {
        #[test]
        fn $test() {
            if super::world::is_there(&$plugin, $url, concat!(module_path!(), "::", stringify!($test))) {
                super::$body(&$plugin, $url);
            }
        }
    };
}

suite!(sm, hg_na_sm::SmPlugin, "sm://");
suite!(tcp, hg_na_tcp::TcpPlugin, "tcp://127.0.0.1");
suite!(ofi_tcp, hg_na_ofi::OfiPlugin, "ofi+tcp://127.0.0.1");
