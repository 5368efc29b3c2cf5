//! Memory that its owner takes back at the edges of a connection: nobody writes it any more.

use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use hg_na::{
    Begun, Completion, Context as _, Direction, GoneReason, Memory, Peer, Region, RegionState,
    Rights, Transit,
};
use watchdog::in_time;

use super::{Pair, open};
use crate::{
    context::SmContext,
    domain::Shared,
    os::event::Doorbell,
    region::{
        boards::{
            LEAVING_MAX,
            tests::{pinning, this_process},
        },
        state::SmRegion,
        table,
    },
    rendezvous::{
        packet::{PACKET_MAX, Packet},
        process::ProcessWatch,
        socket::{Received, Socket},
    },
    segment::Rings,
};

const LEN: u64 = 4096;

fn region(of: &Shared, byte: u8) -> Region {
    let memory = Memory::from(vec![byte; LEN.try_into().unwrap()]);
    Region::new(SmRegion::register(&of.regions, memory, Rights::all()).unwrap())
}

fn begin<'near>(
    context: &mut SmContext,
    (peer, direction): (Peer, Direction),
    near: &'near Region,
    far: &Region,
) -> Begun<'near> {
    let (local, remote): (&dyn RegionState, _) = (near.state(), &far.descriptor());
    let (local_offset, remote_offset, len, may_wait) = (0, 0, LEN, true);
    context.begin(&Transit {
        direction,
        peer,
        local,
        local_offset,
        remote,
        remote_offset,
        len,
        may_wait,
    })
}

fn bytes(region: Region) -> Vec<u8> {
    region.unregister().unwrap().into_vec().unwrap()
}

/// A peer that is accepted, or welcomed.
fn only_peer(context: &mut SmContext) -> Peer {
    let peers = context.connected();
    let [peer] = peers[..] else { panic!("{peers:?}") };
    peer
}

#[test]
fn what_is_begun_after_the_owner_closed_leaves_the_memory_alone_that_it_takes_back() {
    for direction in [Direction::Put, Direction::Get] {
        let mut pair = Pair::connected();
        let [ours, theirs] = [0, 1].map(|at| &pair.domains[at]);
        let (near, far) = (region(ours, 1), region(theirs, 2));
        let of_origin = only_peer(&mut pair.target);
        // The kernel moves bytes from now on without a question.
        assert!(begin(&mut pair.origin, (pair.to, Direction::Get), &near, &far).finish());
        near.write(0, &[1; 4096]).unwrap();
        pair.target.forget(of_origin);
        pair.target.progress(Instant::now(), &mut Vec::new()).unwrap();
        assert!(!pair.target.is_connected(of_origin) && pair.origin.is_connected(pair.to));
        let begun = begin(&mut pair.origin, (pair.to, direction), &near, &far);
        let back = bytes(far);
        let is_over = begun.finish();
        assert!(back == [2; 4096], "memory was written that its owner had back");
        assert!(!is_over, "{direction:?} of memory that is not registered");
        // It ends as others do.
        pair.until(|pair| !pair.done.is_empty());
        assert!(!pair.origin.is_connected(pair.to), "{:?}", pair.done);
    }
}

#[test]
fn what_was_begun_before_the_owner_closed_keeps_its_memory_until_it_is_moved() {
    let mut pair = Pair::connected();
    let (near, far) = (region(&pair.domains[0], 1), region(&pair.domains[1], 2));
    let of_origin = only_peer(&mut pair.target);
    let begun = begin(&mut pair.origin, (pair.to, Direction::Put), &near, &far);
    pair.target.forget(of_origin);
    pair.target.progress(Instant::now(), &mut Vec::new()).unwrap();
    let back = bytes(far);
    begun.finish();
    assert!(back == [2; 4096], "the owner has a copy");
}

#[test]
fn what_is_begun_before_the_origin_is_open_leaves_memory_alone_that_it_takes_back() {
    let mut pair = Pair::strangers();
    pair.send(5);
    let start = Instant::now();
    pair.origin.progress(start, &mut Vec::new()).unwrap();
    while pair.target.connected().is_empty() {
        in_time!(start, "nobody is accepted");
        pair.target.waiter.ask(|_| true).unwrap();
        pair.target.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
    assert!(!pair.origin.is_connected(pair.to), "it has not read Welcome");
    let (near, far) = (region(&pair.domains[1], 1), region(&pair.domains[0], 2));
    let of_origin = only_peer(&mut pair.target);
    let begun = begin(&mut pair.target, (of_origin, Direction::Put), &near, &far);
    let back = bytes(far);
    begun.finish();
    assert!(back == [2; 4096], "memory was written that its owner had back");
    // The next one, when the origin looks.
    pair.until(|pair| pair.arrived == [5]);
    let (far, of_origin) = (region(&pair.domains[0], 2), only_peer(&mut pair.target));
    assert!(begin(&mut pair.target, (of_origin, Direction::Put), &near, &far).finish());
    assert!(bytes(far) == [1; 4096]);
}

#[test]
fn who_has_left_too_much_behind_is_refused_before_it_is_welcomed() {
    let (shared, mut target) = open();
    let boards = &shared.regions.boards;
    for index in 0..LEAVING_MAX as u64 {
        let at = boards.add(Rings::create().unwrap().0, pinning(index), this_process()).unwrap();
        boards.remove(at);
    }
    let socket = Socket::connect(&shared.name, 0).unwrap();
    let ((_rings, segment), table) = (Rings::create().unwrap(), table::empty().unwrap());
    let bell = Doorbell::new().unwrap();
    let fds = [segment.as_fd(), table.as_fd(), bell.fd()];
    socket.send(&Packet::Hello([9; 16]).encode(), &fds).unwrap();
    let (start, mut buffer) = (Instant::now(), [0; PACKET_MAX]);
    let words = loop {
        in_time!(start, "nobody answers");
        target.waiter.ask(|_| true).unwrap();
        target.progress(Instant::now(), &mut Vec::new()).unwrap();
        if let Received::Message { len, .. } = socket.recv(&mut buffer).unwrap() {
            break Packet::decode(&buffer[..len]).unwrap();
        }
    };
    let is_refused =
        matches!(&words, Packet::Refuse(why) if why.contains("in the middle of a transfer"));
    assert!(is_refused, "{words:?}");
}

#[test]
fn who_has_no_number_here_and_dies_in_the_middle_of_a_transfer_pins_nothing_any_more() {
    let mut pair = Pair::connected();
    let from = only_peer(&mut pair.target);
    let boards = &pair.domains[1].regions.boards;
    let connection = pair.target.peers.find(from).unwrap();
    let link = connection.link.as_ref().unwrap();
    let watch = Arc::new(ProcessWatch::without_number(7));
    let (own, rings) = (link.own.rings.share(), Arc::clone(&link.theirs.rings));
    boards.remove(connection.board.take().unwrap());
    connection.board = Some(boards.add(own, rings, Arc::clone(&watch)).unwrap());
    connection.watch = Some(watch);
    let origin = pair.origin.peers.find(pair.to).unwrap();
    origin.link.as_ref().unwrap().own.rings.pins.0[0].store(1 | (1 << 32), Ordering::Relaxed);
    assert!(boards.pinned(0, 1));
    origin.socket = None;
    let start = Instant::now();
    while pair.target.is_connected(from) || pair.target.peers.len() > 0 {
        in_time!(start, "it never hears the hang-up");
        pair.target.waiter.ask(|_| true).unwrap();
        pair.target.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
    assert!(!pair.domains[1].regions.boards.has_leaving(), "its segment, and what it pinned");
}

#[test]
fn who_ends_an_open_connection_for_a_reason_of_its_own_says_so_and_is_not_taken_for_dead() {
    let mut pair = Pair::connected();
    let from = only_peer(&mut pair.target);
    pair.target.end(from, GoneReason::Exhausted("open files".into()));
    pair.until(|pair| pair.origin.peers.len() == 0);
    let is_told = |it: &Completion| matches!(it, Completion::Gone { reason: GoneReason::Refused(why), .. } if why.contains("open files"));
    assert!(pair.done.iter().any(is_told), "{:?}", pair.done);
}
