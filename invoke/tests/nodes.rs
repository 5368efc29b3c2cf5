//! Where memory lies: on the NUMA node of its thread, or on the one that was named. The kernel says of each mapping on which nodes its pages are
//! (numa_maps, proc(5)). `tests/verbs-vm` makes a machine of two nodes, and says so by `INVOKE_NODES`; where there is one, all memory lies on it.
//! The kernel tells of a process, and an allocator keeps what others have used: each test runs in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[macro_use]
mod common;

use std::{collections::BTreeMap, fs};

use common::run;
use hg_invoke::{Fabric, Place, Request, Worker, rpc};
use watchdog::alone;

/// So many that nothing else counts beside them.
const PAGES: u64 = 1024;

/// Pages by node.
type Pages = BTreeMap<u32, u64>;

over_each_transport! {
    memory_lies_on_the_node_that_was_named => allocated,
}

/// Each mapping of this process, as the kernel tells of it, with its pages. None where it tells nothing.
fn mappings() -> Option<Vec<(String, Pages)>> {
    let told = fs::read_to_string("/proc/self/numa_maps").ok()?;
    let pages = |line: &str| {
        let nodes = line.split(' ').filter_map(|it| it.strip_prefix('N')?.split_once('='));
        nodes.map(|(node, pages)| (node.parse().unwrap(), pages.parse().unwrap())).collect()
    };
    Some(told.lines().map(|line| (line.to_owned(), pages(line))).collect())
}

/// Pages that are no file's.
fn anonymous() -> Pages {
    let mut all = Pages::new();
    for (_, pages) in mappings().unwrap().into_iter().filter(|it| !it.0.contains("file=")) {
        pages.into_iter().for_each(|(node, pages)| *all.entry(node).or_default() += pages);
    }
    all
}

/// The node that has nine in ten pages more of what something has brought.
fn node_of<T>(make: impl FnOnce() -> T) -> (T, Option<u32>) {
    let before = anonymous();
    let made = make();
    let has_come = |(node, pages): &(u32, u64)| {
        let there_were = before.get(node).copied().unwrap_or(0);
        pages.saturating_sub(there_were) >= PAGES * 9 / 10
    };
    (made, anonymous().into_iter().find(has_come).map(|it| it.0))
}

/// The nodes of the two threads of this process, if the system tells of nodes and of mappings. There are as many as a machine was made with.
fn nodes(worker: &Worker) -> Option<[u32; 2]> {
    let of = |thread| worker.numa_node(Place { process: worker.place().process, thread });
    let nodes = [of(0), of(1)];
    if let Ok(wanted) = std::env::var("INVOKE_NODES") {
        let differ = usize::from(nodes[0] != nodes[1]);
        assert_eq!((1 + differ).to_string(), wanted, "{nodes:?}");
    }
    mappings().and(Some([nodes[0]?, nodes[1]?]))
}

/// By name at this thread and at another process's, and at another's thread. Memory that the allocator hands out again has lain on the other node.
fn allocated(url: &str) {
    alone(|| run_allocated(url));
}

fn run_allocated(url: &str) {
    let fabric = Fabric::new().numa().remote_max(1 << 30, 1 << 30);
    run(url, (2, 2), &fabric, |worker| {
        worker.bind().unwrap();
        let (here, bytes) = (worker.place(), PAGES * 4096);
        if let Some(nodes) = nodes(&worker).filter(|_| (here.process, here.thread) == (0, 0)) {
            // The allocator maps what is so long anew, and gives it back.
            let (long, mut there) = (10 * bytes, Vec::new());
            for (thread, node) in (0..).zip(nodes) {
                let far = || worker.allocate_at_node(1, node, long).unwrap();
                let of_thread = || worker.allocate_at(Place { process: 1, thread }, long).unwrap();
                for (far, on) in [node_of(far), node_of(of_thread)] {
                    assert_eq!(on, Some(node), "thread {thread}");
                    there.push(far);
                }
            }
            let bytes = bytes.try_into().unwrap();
            let named = |node| worker.allocate_on(node, bytes).unwrap();
            // When this is given back, glibc stops to map what is shorter (mallopt(3), M_MMAP_THRESHOLD).
            drop(worker.allocate(4 * bytes).unwrap());
            for (node, other) in [(nodes[0], nodes[1]), (nodes[1], nodes[0])] {
                let kept: Vec<_> = (0..4).map(|_| named(other)).collect();
                drop(kept);
                let made = node_of(|| (0..4).map(|_| named(node)).collect::<Vec<_>>());
                assert!(nodes[0] == nodes[1] || made.1 == Some(node), "{node}: {:?}", made.1);
            }
        }
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

/// What a thread writes for others is made on its node, also where it never was the first to write.
#[test]
fn rings_lie_on_the_node_of_their_thread() {
    alone(run_rings);
}

fn run_rings() {
    let fabric = Fabric::new().numa().register(place).unwrap();
    run("sm://", (2, 2), &fabric, |worker| {
        worker.bind().unwrap();
        let beyond = |thread| Place { process: 1 - worker.place().process, thread };
        for to in [beyond(0), beyond(1)] {
            worker.call_return(to, place, ()).unwrap().wait(&worker).unwrap();
        }
        worker.quiesce().unwrap();
        if let Some(nodes) = nodes(&worker) {
            let rings = rings();
            let of = |node| rings.iter().filter(|it| on_one(it) == Some(node)).count();
            let least = if nodes[0] == nodes[1] { 8 } else { 4 };
            assert!(of(nodes[0]) >= least && of(nodes[1]) >= least, "{nodes:?}: {rings:?}");
            assert!(rings.iter().all(|it| on_one(it).is_some()), "{rings:?}");
        }
        worker.quiesce().unwrap();
        worker.finish().unwrap();
    });
}

#[rpc(crate = hg_invoke)]
fn place(here: &Request) -> Place {
    here.place()
}

/// Pages of segments, each of one end of a connection, as each of both ends maps them.
fn rings() -> Vec<Pages> {
    let segments = mappings().unwrap().into_iter().filter(|it| it.0.contains("hg-sm-segment"));
    segments.map(|it| it.1).filter(|it| !it.is_empty()).collect()
}

/// The node that nine in ten of the pages are on.
fn on_one(pages: &Pages) -> Option<u32> {
    let all: u64 = pages.values().sum();
    pages.iter().find(|it| *it.1 * 10 >= all * 9).map(|it| *it.0)
}
