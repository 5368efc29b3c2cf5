//! Memory of `alloc` in the process that maps it: what is seen there, and what a mapping that was kept is good for.

use std::{collections::BTreeMap, fs};

use hg::bulk::{Buffer, Bulk, Rights, alloc};
use nix::sys::signal::Signal;

use super::{Scene, move_range, pattern};
use crate::{
    common::{Watchdog, until},
    transports::urls,
};

/// Two pages, the second of which is not full.
const LEN: usize = 5000;
const MAPPED: u64 = 8192;

/// Mappings of memory that is shared, by its inode: bytes of each.
pub(super) fn shared_mappings(pid: u32) -> BTreeMap<u64, u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
    let mut found = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:hg-sm-shared")) {
        let (range, inode) = place_and_inode(line);
        *found.entry(inode).or_default() += range.end - range.start;
    }
    found
}

pub(super) fn place_and_inode(line: &str) -> (std::ops::Range<u64>, u64) {
    let words: Vec<_> = line.split_whitespace().collect();
    let (start, end) = words[0].split_once('-').expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal digits");
    (number(start)..number(end), words[4].parse().expect("a number"))
}

/// The inode behind a buffer of this process.
fn inode_of(buffer: &Buffer) -> u64 {
    let place = buffer.as_ptr().addr() as u64;
    let maps = fs::read_to_string("/proc/self/maps").expect("this process lives");
    let places = maps.lines().filter(|line| line.contains("/memfd:")).map(place_and_inode);
    places.into_iter().find(|(range, _)| range.contains(&place)).expect("it is mapped").1
}

fn filled(byte: u8) -> Buffer {
    let mut buffer = alloc(LEN).unwrap();
    buffer.fill(byte);
    buffer
}

impl Scene {
    /// Has the other process push to the memory so often.
    fn push(&self, what: &hg::bulk::Descriptor, times: usize) -> Vec<String> {
        let range = (0, 0, LEN as u64);
        let push = |_| {
            let arguments = (false, what.clone(), range, vec![LEN as u64]);
            self.engine.call(move_range, &self.peer, arguments).wait().unwrap()
        };
        (0..times).map(push).collect()
    }

    /// The same until it is mapped there, beside `others` and nothing else.
    fn map(&self, what: &hg::bulk::Descriptor, inode: u64, others: &[u64]) {
        let expected = others.iter().chain([&inode]).map(|inode| (*inode, MAPPED)).collect();
        until(|| {
            assert_eq!(self.push(what, 1), ["Ok"]);
            let mapped = shared_mappings(self.child.pid());
            assert!(mapped.iter().all(|one| is_in(&expected, one)), "{mapped:?} {expected:?}");
            mapped == expected
        });
    }

    fn expose(&self, buffer: Buffer) -> Bulk {
        self.engine.expose(buffer, Rights::all()).unwrap()
    }
}

fn is_in(all: &BTreeMap<u64, u64>, (inode, bytes): (&u64, &u64)) -> bool {
    all.get(inode) == Some(bytes)
}

pub(super) fn local_urls() -> impl Iterator<Item = &'static str> {
    // Those that map: shared memory, by itself or by routing.
    urls().filter(|url| !url.contains("tcp") || !url.contains('+'))
}

#[test]
fn a_mapping_is_one_buffer_and_never_its_neighbours() {
    let _watchdog = Watchdog::start();
    for url in local_urls() {
        let scene = Scene::new(url);
        let pid = scene.child.pid();
        let (first, second, third) = (filled(1), filled(2), filled(3));
        let (one, two) = (inode_of(&first), inode_of(&second));
        let (first, second) = (scene.expose(first), scene.expose(second));
        scene.map(&first.descriptor(), one, &[]);
        scene.map(&second.descriptor(), two, &[one]);
        assert_eq!(*first.into_vec().unwrap(), pattern(0, LEN));
        until(|| shared_mappings(pid) == BTreeMap::from([(two, MAPPED)]));
        assert_eq!(*second.into_vec().unwrap(), pattern(0, LEN));
        until(|| shared_mappings(pid).is_empty());
        assert_eq!(*third, [3; LEN]);
    }
}

#[test]
fn a_process_that_was_stopped_while_its_mapping_was_taken_back_changes_nothing_afterwards() {
    let _watchdog = Watchdog::start();
    for url in local_urls() {
        let scene = Scene::new(url);
        let buffer = filled(1);
        let inode = inode_of(&buffer);
        let bulk = scene.expose(buffer);
        let what = bulk.descriptor();
        scene.map(&what, inode, &[]);
        scene.child.stop();
        let mut buffer = Buffer::try_from(bulk.into_memory().unwrap()).unwrap();
        assert_eq!(*buffer, *pattern(0, LEN));
        // It still has the old pages. These are others.
        assert_ne!(inode_of(&buffer), inode);
        assert!(shared_mappings(scene.child.pid()).contains_key(&inode));
        buffer.fill(9);
        scene.child.signal(Signal::SIGCONT);
        assert_eq!(scene.push(&what, 2), ["Stale", "Stale"]);
        assert_eq!(*buffer, [9; LEN]);
        until(|| shared_mappings(scene.child.pid()).is_empty());
        // The same memory again, for everybody who is told.
        let bulk = scene.expose(buffer);
        assert_eq!(scene.push(&bulk.descriptor(), 3), ["Ok", "Ok", "Ok"]);
        assert_eq!(scene.push(&what, 1), ["Stale"]);
        assert_eq!(bulk.into_vec().unwrap(), pattern(0, LEN));
    }
}
