//! Two tables in random order, and one that is lied to.
//!
//! - Each message comes once, in order, and what was sent before a side has finished comes before the other is told.
//! - What waits is bounded; once both sides have let go nothing is left of a connection.

use std::{collections::VecDeque, sync::Arc};

use hg_na::{Descriptor, GoneReason, Memory, Message, Op, Peer, Region, RegionState, Rights};
use proptest::prelude::*;

use crate::{
    Error,
    choice::Flags,
    table::{Item, Key, Table, WINDOW, cost_of},
    wire::{HEADER_LEN, Header, Kind},
};

const PEER: Peer = Peer::new(1, 1);
const PORT: u32 = 7;
const BACKLOG: usize = 3;

/// One side: its connections, and what each has sent and taken.
#[derive(Default)]
struct Side {
    table: Table,
    wire: VecDeque<Message>,
    links: Vec<(Key, u64, u64)>,
}

impl Side {
    /// Its frames leave; the transport takes a few at a time.
    fn flush(&mut self) {
        while let Some((token, op)) = self.table.next_op() {
            if self.wire.len() >= 8 {
                return self.table.put_back(token, op);
            }
            let Op::SendUnexpected { message, .. } = op else { panic!("{op:?}") };
            self.wire.push_back(message);
        }
    }

    fn send(&mut self, at: usize, len: usize) {
        let Some((key, sent, _)) = self.links.get_mut(at) else { return };
        if matches!(self.table.may_send(*key, cost_of(len)), Ok(true)) {
            let mut frame = vec![0; HEADER_LEN + len];
            frame[HEADER_LEN..][..8].copy_from_slice(&sent.to_le_bytes());
            *sent += 1;
            self.table.send(*key, frame.into());
        }
    }

    fn receive(&mut self, at: usize) -> bool {
        let Some((key, _, taken)) = self.links.get_mut(at) else { return false };
        let Some((Item::Bytes(frame), _)) = self.table.taken(*key) else { return false };
        assert_eq!(frame.as_slice()[HEADER_LEN..][..8], taken.to_le_bytes(), "in order, each once");
        *taken += 1;
        true
    }
}

/// Memory of so many bytes, which are of no matter here.
#[derive(Debug)]
struct Bytes(u64);

impl RegionState for Bytes {
    fn len(&self) -> u64 {
        self.0
    }

    fn rights(&self) -> Rights {
        Rights::all()
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.0, self.rights(), &[])
    }

    fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<(), hg_na::Error> {
        Ok(())
    }

    fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), hg_na::Error> {
        Ok(())
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, hg_na::Error> {
        Err(hg_na::Error::RegionBusy)
    }
}

#[test]
fn transfers_that_were_never_posted_leave_nothing_of_a_peer_that_goes() {
    let mut table = Table::default();
    let key = table.connect(PEER, PORT);
    let (peer, id) = key;
    let say = |table: &mut Table, kind, word, body: &[u8]| {
        table.handle(peer, Header { kind, id, word }.frame(body)).expect("it is honest");
    };
    say(&mut table, Kind::Opened, 0, &[]);
    let region = || Region::new(Arc::new(Bytes(100)));
    let descriptor = region().descriptor().encode();
    // It is read here, and written there; nothing is posted.
    say(&mut table, Kind::Offer, 1, &[&[0, 0], &descriptor[..]].concat());
    let memory = Arc::new(Memory::from(vec![0; 100]));
    table.land(key, (region(), memory), false).expect("it fits");
    table.offer(key, region(), Flags::empty(), 0);
    say(&mut table, Kind::Take, 1, &descriptor);
    assert_eq!(table.transfers(), 2);
    table.gone(peer, &GoneReason::Closed);
    assert_eq!(table.transfers(), 0);
}

/// The next frame of one side comes to the other.
fn carry(sides: &mut [Side; 2], from: usize) -> bool {
    let Some(frame) = sides[from].wire.pop_front() else { return false };
    sides[from].table.has_room(PEER);
    sides[1 - from].table.handle(PEER, frame).expect("both are honest");
    true
}

fn step(sides: &mut [Side; 2], (what, side, at, len): (u8, usize, usize, usize)) {
    match what {
        0 => {
            let key = sides[0].table.connect(PEER, PORT);
            sides[0].links.push((key, 0, 0));
        }
        1 => {
            if let Some(key) = sides[1].table.accept(PORT) {
                sides[1].links.push((key, 0, 0));
            }
        }
        2..=4 => sides[side].send(at, 8 + len),
        5 | 6 => drop(sides[side].receive(at)),
        7 => {
            if let Some((key, ..)) = sides[side].links.get(at) {
                sides[side].table.finish(*key);
            }
        }
        _ => drop(carry(sides, side)),
    }
    sides.iter_mut().for_each(Side::flush);
}

proptest! {
    #[test]
    fn messages_come_once_and_in_order_and_nothing_is_left_in_the_end(
        steps in proptest::collection::vec((0_u8..14, 0..2_usize, 0..4_usize, 0..9000_usize), 0..300),
    ) {
        let mut sides = [Side::default(), Side::default()];
        sides[1].table.listen(PORT, BACKLOG);
        for it in steps {
            step(&mut sides, it);
        }
        // Everything comes, and is taken by whoever has a connection.
        let settle = |sides: &mut [Side; 2]| {
            loop {
                let mut moved = false;
                for side in 0..2 {
                    moved |= carry(sides, side);
                    moved |= (0..sides[side].links.len()).any(|at| sides[side].receive(at));
                    sides[side].flush();
                }
                if !moved {
                    break;
                }
            }
        };
        settle(&mut sides);
        while let Some(key) = sides[1].table.accept(PORT) {
            sides[1].links.push((key, 0, 0));
        }
        settle(&mut sides);
        let refused = |side: &Side, key| matches!(side.table.may_send(key, 1), Err(Error::Refused(_)));
        let near = sides[0].links.iter().filter(|(key, ..)| !refused(&sides[0], *key));
        for ((_, sent, taken), (_, far_sent, far_taken)) in near.zip(&sides[1].links) {
            prop_assert_eq!((sent, taken), (far_taken, far_sent), "nothing is lost");
        }
        for side in &mut sides {
            for (key, ..) in std::mem::take(&mut side.links) {
                side.table.leave(key);
            }
            side.table.unlisten(PORT);
            side.flush();
        }
        settle(&mut sides);
        prop_assert!(sides.iter().all(|side| side.table.links.is_empty()));
    }

    #[test]
    fn whatever_a_peer_writes_what_waits_is_bounded(
        frames in proptest::collection::vec(
            (0_u8..13, 0..4_u32, any::<bool>(), 0..6_u64, proptest::collection::vec(any::<u8>(), 0..60), any::<bool>()), 0..200),
    ) {
        let mut table = Table::default();
        table.listen(PORT, BACKLOG);
        let keys: Vec<Key> = (0..2).map(|_| table.connect(PEER, PORT)).collect();
        for (kind, id, yours, word, mut body, large) in frames {
            if large {
                body.resize(16_000, 0);
            }
            let mut frame = Header { kind: Kind::Bytes, id: id | u32::from(yours) << 31, word: word + 4 }.frame(&body);
            frame.as_mut_slice()[0] = kind;
            if table.handle(PEER, frame).is_err() {
                table.gone(PEER, &hg_na::GoneReason::Misbehaved("it lies".into()));
            }
            let waits = |link: &crate::table::Link| link.inbox.iter().map(|it| u64::from(it.cost())).sum::<u64>();
            prop_assert!(table.links.values().all(|link| waits(link) <= u64::from(WINDOW)));
        }
        for key in keys {
            table.leave(key);
        }
    }
}
