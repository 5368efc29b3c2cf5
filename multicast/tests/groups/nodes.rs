//! Where members are, and where objects go.

use std::fs::File;

use hg::bulk::Memory;
use hg_multicast::{Data, Destination, Incoming, What, schedule::Choice};
use watchdog::Watchdog;

use crate::members::{Members, URLS, bytes, close, options, take};

/// Over an address of several transports, which would say that all are on one node.
#[test]
fn one_member_of_a_node_takes_every_block_from_the_other_node_and_the_rest_take_it_from_that_one() {
    let _watchdog = Watchdog::start();
    let members = Members::open("sm+tcp://127.0.0.1", 6);
    for schedule in [Choice::Hybrid, Choice::Auto] {
        let mut wanted = options(schedule, 32 << 10);
        (wanted.nodes, wanted.trace) = (Some(vec![0, 0, 0, 1, 1, 1]), true);
        let groups = members.group(&wanted);
        let sending = groups[0].send(bytes(1, 1_000_000), b"").unwrap();
        for group in &groups[1..] {
            assert!(take(group).data.into_vec().unwrap() == Some(bytes(1, 1_000_000)));
        }
        sending.wait().unwrap();
        for (own, group) in groups.iter().enumerate().skip(1) {
            let trace = group.take_trace();
            let from = trace.iter().filter(|it| it.what == What::Arrived).map(|it| it.peer);
            let expected = if own > 3 { 3 } else { 0 };
            assert_eq!(from.collect::<Vec<_>>(), [expected; 31], "{schedule:?} {own}");
        }
        close(groups);
    }
}

/// Large blocks from other nodes come in two parts.
#[test]
fn large_blocks_from_other_nodes_come_whole_to_memory_and_to_files() {
    let _watchdog = Watchdog::start();
    let folder = std::env::temp_dir().join(format!("multicast-large-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let size = 2_000_001;
    for url in URLS {
        let members = Members::open(url, 4);
        let mut wanted = options(Choice::Pipeline, 400_000);
        wanted.nodes = Some(vec![0, 1, 2, 3]);
        let path = |own| folder.join(format!("{own}"));
        let groups = members.group_with(&wanted, |own| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            let file = options.open(path(own)).unwrap();
            move |it: Incoming<'_>| match it.number {
                0 => Ok(Destination::Allocate),
                _ => Ok(Destination::Blocks(Box::new(file.try_clone().unwrap()))),
            }
        });
        let sendings = [1, 2].map(|seed| groups[0].send(bytes(seed, size), b"").unwrap());
        for (own, group) in groups.iter().enumerate().skip(1) {
            assert!(take(group).data.into_vec().unwrap() == Some(bytes(1, size)), "{url} {own}");
            assert!(matches!(take(group).data, Data::Blocks(_)));
        }
        sendings.into_iter().for_each(|it| it.wait().unwrap());
        close(groups);
        for own in 1..4 {
            assert!(std::fs::read(path(own)).unwrap() == bytes(2, size), "{url} {own}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn objects_come_to_memory_of_ones_own_that_is_long_enough() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 3);
        for size in [5, 300_000] {
            let groups = members.group_with(&options(Choice::Chain, 64 << 10), |_| {
                move |_: Incoming<'_>| Ok(Destination::Memory(Memory::from(vec![1; size + 9])))
            });
            let sending = groups[0].send(bytes(2, size), b"").unwrap();
            for group in &groups[1..] {
                let Data::Memory(memory) = take(group).data else { panic!("it was memory") };
                let come = memory.to_vec().unwrap();
                assert!(come[..size] == bytes(2, size) && come[size..] == [1; 9], "{url} {size}");
            }
            sending.wait().unwrap();
            close(groups);
        }
        let groups = members.group_with(&options(Choice::Chain, 64 << 10), |_| {
            |_: Incoming<'_>| Ok(Destination::Memory(Memory::from(vec![1; 99_999])))
        });
        let failure = groups[0].send(bytes(2, 100_000), b"").unwrap().wait().unwrap_err();
        assert!(
            failure.why.contains("100000 bytes come, and there is room for 99999"),
            "{failure}"
        );
    }
}
