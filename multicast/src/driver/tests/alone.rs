//! A driver without its thread: it is told what happens one by one, and nobody else says anything.

use std::{
    io,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    task::{Context, Waker},
    thread,
    time::Instant,
};

use hg::{
    Address,
    bulk::{Rights, TransferError},
};
use watchdog::Watchdog;

use super::super::{Driver, member::digest};
use crate::{
    Blocks, Data, Destination, Error, GroupId, Options,
    completion::Completion,
    disk::{Disk, Room},
    inbox::{Inbox, Input, Opening, Reformed, Sending},
    machine::{Event, Header, Message, STEPPED_ROOM_MAX},
    schedule::{Choice, Kind},
    shared::Shared,
    store::Store,
    wire::{Place, Source},
};

fn engine() -> hg::Engine {
    hg::builder().listen(true).open("sm://").unwrap()
}

/// This engine in its place, another one as the root or as the last member, and addresses of nobody.
fn members(own: (&hg::Engine, usize), other: (&hg::Engine, usize), count: usize) -> Vec<Address> {
    let member = |place| match place {
        it if it == own.1 => own.0.address().clone(),
        it if it == other.1 => other.0.address().clone(),
        it => Address::new(&format!("sm://nobody-{it}")).unwrap(),
    };
    (0..count).map(member).collect()
}

fn nodes(count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap()).collect()
}

fn open(
    driver: &mut Driver<'_>,
    own: u32,
    members: Vec<Address>,
    options: Options,
    mut incoming: impl FnMut(u64) -> Destination + Send + 'static,
) -> (GroupId, Arc<Shared>) {
    let (id, shared) = (GroupId([7, 7]), Arc::new(Shared::default()));
    driver.open(Opening {
        id,
        own,
        nodes: nodes(members.len()),
        members: members.into(),
        options,
        incoming: Box::new(move |it| Ok(incoming(it.number))),
        shared: Arc::clone(&shared),
    });
    (id, shared)
}

fn told(driver: &mut Driver<'_>, id: GroupId, from: u32, message: Message<Source>) {
    driver.give(id, Event::Message { from, message });
}

/// Its process has ended: a receiver hears that of another one from the root.
fn gone(driver: &mut Driver<'_>, id: GroupId, member: u32) {
    let why = "its process has ended".to_owned();
    if member == 0 || driver.members[&id].own == 0 {
        driver.give(id, Event::Gone { member, why });
    } else {
        told(driver, id, 0, Message::Failed { member, why });
    }
}

fn joins(driver: &mut Driver<'_>, id: GroupId, member: u32) {
    let of = &driver.members[&id];
    let digest = digest(&of.addresses, &of.nodes);
    told(driver, id, member, Message::Join { digest, whole: 0 });
}

/// The user goes on, as others have said or will hear.
fn reform(driver: &mut Driver<'_>, id: GroupId) -> GroupId {
    let (formed, is_formed) = channel();
    let on_reformed = move |it: Result<Reformed, Error>| formed.send(it.unwrap().id).unwrap();
    driver.reform(id, Box::new(on_reformed));
    is_formed.try_recv().unwrap()
}

/// Until the disks have done so much.
fn disks_do(driver: &mut Driver<'_>, count: usize) {
    let mut done = 0;
    while done < count {
        for input in driver.inbox.take() {
            done += usize::from(matches!(input, Input::Disk(..)));
            driver.handle(input);
        }
        thread::yield_now();
    }
}

struct Zeros;

impl Blocks for Zeros {
    fn read_at(&mut self, _offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        Ok(())
    }

    fn write_at(&mut self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The same, once it may read.
struct Gated {
    asked: Sender<()>,
    gate: Arc<Mutex<()>>,
}

impl Blocks for Gated {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let _ = self.asked.send(());
        drop(self.gate.lock().unwrap());
        Zeros.read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Zeros.write_at(offset, bytes)
    }
}

fn send(driver: &mut Driver<'_>, id: GroupId, blocks: Box<dyn Blocks>, size: u64, block_size: u64) {
    let number = driver.inbox.next_disk();
    let inbox = Arc::clone(driver.inbox);
    let tell = move |group, done| inbox.tell(Input::Disk(number, group, done));
    let disk = Disk::start(driver.engine, blocks, block_size, tell).unwrap();
    let (store, ended) = (Store::Disk(disk), Completion::new().1);
    let (disk, metadata) = (Some(number), Vec::new());
    driver.send(id, Sending { store, disk, size, block_size, metadata, ended });
}

#[test]
fn a_block_that_was_loaded_for_a_group_that_has_failed_is_not_offered_in_the_one_that_follows() {
    let _watchdog = Watchdog::start();
    // Loads under way when the group fails: of a small block, which lies in no slot, to two members; of a large one, to one.
    let runs = [(Choice::Sequential, 1000, 1000, 2), (Choice::Chain, 300_000, 65_536, 1)];
    for (schedule, size, block_size, loads) in runs {
        let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
        let mut driver = Driver::new(&own, &inbox);
        let options = Options { schedule, ..Options::default() };
        let members = members((&own, 0), (&other, 2), 3);
        let (id, _) = open(&mut driver, 0, members, options, |_| Destination::Allocate);
        [1, 2].into_iter().for_each(|member| joins(&mut driver, id, member));
        let (asked, is_asked) = channel();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let blocks = Box::new(Gated { asked, gate: Arc::clone(&gate) });
        send(&mut driver, id, blocks, size, block_size);
        is_asked.recv().unwrap();
        gone(&mut driver, id, 1);
        let id = reform(&mut driver, id);
        joins(&mut driver, id, 1);
        drop(held);
        disks_do(&mut driver, loads + 1);
        let words = driver.acquaintances.waiting(other.address());
        let offers = words.iter().filter_map(|it| match &it.2 {
            Message::Offer { block, header, .. } if it.0 == id => Some((*block, header.is_some())),
            _ => None,
        });
        assert_eq!(offers.collect::<Vec<_>>(), [(0, true)], "{size} bytes");
    }
}

#[test]
fn a_block_comes_to_memory_that_no_group_before_has_had_blocks_come_to() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let memory = other.expose(vec![0; 200_000], Rights::READ).unwrap();
    let mut driver = Driver::new(&own, &inbox);
    let (count, options) = (14, Options::default());
    let members = members((&own, 1), (&other, 0), count);
    let blocks = |_| Destination::Blocks(Box::new(Zeros));
    let (mut id, _) = open(&mut driver, 1, members, options, blocks);
    let header = Header {
        size: 200_000,
        block_size: 100_000,
        kind: Kind::Chain,
        among: None,
        metadata: vec![],
    };
    // More than there are slots. Nobody looks what became of a transfer: each may be under way until the end.
    let mut earlier: Vec<Room> = Vec::new();
    for last in (3..u32::try_from(count).unwrap()).rev() {
        told(&mut driver, id, 0, Message::Begin { next: 0 });
        for block in 0..2 {
            let place = Place::At { memory: memory.descriptor(), offset: block * 100_000 };
            let header = (block == 0).then(|| header.clone());
            let source = Source { place, checksum: None };
            told(&mut driver, id, 0, Message::Offer { object: 0, block, header, source });
        }
        let rooms: Vec<_> = driver.pulls.iter().filter_map(|it| it.slot.clone()).collect();
        assert_eq!(rooms.len(), 2, "both blocks come: {last}");
        for room in rooms {
            let is_it = |it: &Room| Arc::ptr_eq(&it.bulk, &room.bulk) && it.at == room.at;
            assert!(!earlier.iter().any(is_it), "something may come there still: {last}");
            earlier.push(room);
        }
        gone(&mut driver, id, last);
        let (new, members) = ([u64::from(last), 0], (0..last).collect());
        told(&mut driver, id, 0, Message::Reform { id: new, members });
        id = reform(&mut driver, id);
    }
}

#[test]
fn a_slot_is_free_once_what_came_there_is_written_and_not_when_its_transfer_has_failed() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let memory = other.expose(vec![0; 100_000], Rights::READ).unwrap();
    let gone = other.expose(vec![0; 100_000], Rights::READ).unwrap().descriptor();
    let mut driver = Driver::new(&own, &inbox);
    let members = members((&own, 1), (&other, 0), 2);
    let blocks = |_| Destination::Blocks(Box::new(Zeros));
    let (id, _) = open(&mut driver, 1, members, Options::default(), blocks);
    told(&mut driver, id, 0, Message::Begin { next: 0 });
    let offer = |driver: &mut Driver<'_>, block, memory| {
        let source = Source { place: Place::At { memory, offset: 0 }, checksum: None };
        let header = (block == 0).then(|| Header {
            size: 1_000_000,
            block_size: 100_000,
            kind: Kind::Chain,
            among: None,
            metadata: vec![],
        });
        told(driver, id, 0, Message::Offer { object: 0, block, header, source });
        let room = driver.pulls[0].slot.clone().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        while !driver.pulls.is_empty() {
            driver.poll_pulls(&mut context);
        }
        room.at
    };
    let first = offer(&mut driver, 0, memory.descriptor());
    disks_do(&mut driver, 1);
    let failed = offer(&mut driver, 1, gone);
    assert_eq!(failed, first, "it was written");
    let next = offer(&mut driver, 2, memory.descriptor());
    assert_ne!(next, failed);
}

/// Of a large block from another node; its end may even be here first.
#[test]
fn a_block_in_two_parts_is_here_once_both_are_and_nearly_before_if_its_end_comes_last() {
    let _watchdog = Watchdog::start();
    for is_end_first in [false, true] {
        let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
        let memory = other.expose(vec![0; 1_000_000], Rights::READ).unwrap();
        let mut driver = Driver::new(&own, &inbox);
        let members = members((&own, 1), (&other, 0), 2);
        let allocate = |_| Destination::Allocate;
        let (id, shared) = open(&mut driver, 1, members, Options::default(), allocate);
        told(&mut driver, id, 0, Message::Begin { next: 0 });
        let place = Place::At { memory: memory.descriptor(), offset: 0 };
        let (kind, metadata) = (Kind::Chain, vec![]);
        let header = Header { size: 1_000_000, block_size: 1_000_000, kind, among: None, metadata };
        let (header, source) = (Some(header), Source { place, checksum: None });
        told(&mut driver, id, 0, Message::Offer { object: 0, block: 0, header, source });
        let mut parts: Vec<_> = driver.pulls.drain(..).collect();
        assert_eq!(parts.len(), 2);
        if is_end_first {
            parts.reverse();
        }
        let mut blocks = Vec::new();
        for part in parts {
            driver.pulled(part, Ok(()));
            driver.act(id);
            blocks.push(shared.lock().progress.blocks);
        }
        assert_eq!(blocks, [0, 1]);
        let words = driver.acquaintances.waiting(other.address());
        let of_it = words.iter().filter_map(|it| match &it.2 {
            Message::Nearly { .. } => Some("nearly"),
            Message::Took { .. } => Some("took"),
            _ => None,
        });
        let said: &[_] = if is_end_first { &["took"] } else { &["nearly", "took"] };
        assert_eq!(of_it.collect::<Vec<_>>(), said);
    }
}

/// Its holder has given up the memory of one part: it is asked, and whatever else comes does not make the block whole.
#[test]
fn a_block_of_which_one_part_has_failed_never_counts_as_here() {
    let _watchdog = Watchdog::start();
    let (sums, destinations) = ([None, Some(0)], [false, true]);
    let cases = sums.iter().flat_map(|sum| destinations.map(|is_disk| (*sum, is_disk)));
    for ((checksum, is_disk), fails_first) in cases.flat_map(|it| [(it, true), (it, false)]) {
        let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
        let memory = other.expose(vec![0; 1_000_000], Rights::READ).unwrap();
        let mut driver = Driver::new(&own, &inbox);
        let members = members((&own, 1), (&other, 0), 2);
        let place = move |_| match is_disk {
            true => Destination::Blocks(Box::new(Zeros)),
            false => Destination::Allocate,
        };
        let (id, shared) = open(&mut driver, 1, members, Options::default(), place);
        told(&mut driver, id, 0, Message::Begin { next: 0 });
        let place = Place::At { memory: memory.descriptor(), offset: 0 };
        let (kind, metadata) = (Kind::Chain, vec![]);
        let header = Header { size: 1_000_000, block_size: 1_000_000, kind, among: None, metadata };
        let (header, source) = (Some(header), Source { place, checksum });
        told(&mut driver, id, 0, Message::Offer { object: 0, block: 0, header, source });
        if is_disk && checksum.is_some() {
            disks_do(&mut driver, 1); // It is not on the disk.
        }
        let mut parts: Vec<_> = driver.pulls.drain(..).collect();
        assert_eq!(parts.len(), 2);
        if !fails_first {
            parts.reverse();
        }
        let outcomes = [Err(TransferError::Cancelled), Ok(())];
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            driver.pulled(part, outcome);
            driver.act(id);
        }
        let words = driver.acquaintances.waiting(other.address());
        let said = words.iter().map(|it| match &it.2 {
            Message::Ask => "ask",
            Message::Join { .. } => "join",
            other => panic!("{other:?}"),
        });
        assert_eq!(said.collect::<Vec<_>>(), ["join", "ask"], "{checksum:?} {is_disk}");
        assert_eq!(shared.lock().progress.blocks, 0);
        assert_eq!(driver.given_up.len(), usize::from(!is_disk), "nothing else comes there");
    }
}

/// A range of it stands for a copy that was begun for a group that has failed, and goes on: what a transfer keeps until it has ended.
#[test]
fn nothing_comes_to_the_users_memory_while_a_group_before_may_have_something_come_there() {
    let _watchdog = Watchdog::start();
    // The pull was under way when its group failed, or had failed; the next group follows on that one, or is another one.
    let cases = [(false, true), (true, true), (false, false), (true, false)];
    let runs = cases.iter().flat_map(|it| [(*it, 100_000), (*it, 1000)]);
    for ((has_failed, reforms), len) in runs {
        let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
        let lent = other.expose(vec![5; 100_000], Rights::READ).unwrap();
        let gone_before = other.expose(vec![0; 100_000], Rights::READ).unwrap().descriptor();
        let place = Arc::new(own.expose(vec![0; 100_000], Rights::READ).unwrap());
        let mut driver = Driver::new(&own, &inbox);
        let members = members((&own, 1), (&other, 0), 3);
        let join = |driver: &mut Driver<'_>| {
            let place = Arc::clone(&place);
            let incoming = move |_| Destination::Registered(Arc::clone(&place));
            open(driver, 1, members.clone(), Options::default(), incoming)
        };
        let offer = |driver: &mut Driver<'_>, id, object, (size, place)| {
            told(driver, id, 0, Message::Begin { next: object });
            let (kind, metadata) = (Kind::Chain, vec![]);
            let header = Header { size, block_size: size, kind, among: None, metadata };
            let (header, source) = (Some(header), Source { place, checksum: None });
            told(driver, id, 0, Message::Offer { object, block: 0, header, source });
        };
        let at = |memory| (100_000, Place::At { memory, offset: 0 });
        let mut context = Context::from_waker(Waker::noop());
        let (id, shared) = join(&mut driver);
        let memory = if has_failed { gone_before } else { lent.descriptor() };
        offer(&mut driver, id, 0, at(memory));
        assert_eq!(driver.pulls.len(), 1);
        while has_failed && !driver.pulls.is_empty() {
            driver.poll_pulls(&mut context);
        }
        let copy = place.all();
        gone(&mut driver, id, 2);
        let (id, shared) = if reforms {
            told(&mut driver, id, 0, Message::Reform { id: [8, 8], members: vec![0, 1] });
            (reform(&mut driver, id), shared)
        } else {
            driver.handle(Input::Leave(id));
            join(&mut driver)
        };
        let small = (1000, Place::Inline(vec![5; 1000]));
        // What is small is another object.
        let (object, of) = if len == 1000 { (1, small) } else { (0, at(lent.descriptor())) };
        offer(&mut driver, id, object, of);
        driver.fetch_held_up();
        assert!(driver.pulls.is_empty(), "something may come there still");
        place.write(0, &vec![7; 100_000]).unwrap();
        assert_eq!(shared.lock().progress.blocks, 0, "something may come there still");
        drop(copy);
        while shared.lock().progress.blocks == 0 {
            driver.fetch_held_up();
            driver.poll_pulls(&mut context);
        }
        assert_eq!(place.to_vec().unwrap()[..len], vec![5; len]);
        assert!(driver.given_up.is_empty() && driver.held_up.is_empty());
    }
}

#[test]
fn disks_are_known_by_number_while_there_is_one() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let mut driver = Driver::new(&own, &inbox);
    let members = members((&own, 1), (&other, 0), 2);
    let (id, shared) = open(&mut driver, 1, members, Options::default(), |object| {
        if object == 0 { Destination::Allocate } else { Destination::Blocks(Box::new(Zeros)) }
    });
    told(&mut driver, id, 0, Message::Begin { next: 0 });
    for object in 0..2 {
        let header =
            Header { size: 3, block_size: 3, kind: Kind::Direct, among: None, metadata: vec![] };
        let source = Source { place: Place::Inline(vec![0; 3]), checksum: None };
        let message = Message::Offer { object, block: 0, header: Some(header), source };
        told(&mut driver, id, 0, message);
        // It is written, and finished.
        disks_do(&mut driver, if object == 0 { 0 } else { 2 });
        assert_eq!(shared.lock().ready.len() as u64, object + 1);
        assert_eq!(driver.disks.len(), 0, "after object {object}");
    }
}

#[test]
fn a_root_forgets_the_disk_of_what_is_everywhere() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let mut driver = Driver::new(&own, &inbox);
    let members = members((&own, 0), (&other, 1), 2);
    let (id, _) = open(&mut driver, 0, members, Options::default(), |_| Destination::Allocate);
    joins(&mut driver, id, 1);
    send(&mut driver, id, Box::new(Zeros), 1000, 1000);
    disks_do(&mut driver, 1);
    assert_eq!(driver.disks.len(), 1);
    told(&mut driver, id, 1, Message::Whole { count: 1 });
    assert_eq!(driver.disks.len(), 0);
}

/// The deadline that was set first passes.
fn first_deadline_passes(driver: &mut Driver<'_>) {
    let first = *driver.deadlines.keys().min_by_key(|it| it.1).unwrap();
    let waits = driver.deadlines.remove(&first).unwrap();
    driver.deadlines.insert((Instant::now(), first.1), waits);
    driver.expire();
}

#[test]
fn a_reform_waits_for_its_own_deadline_and_not_for_that_of_joining() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let mut driver = Driver::new(&own, &inbox);
    let members = members((&own, 2), (&other, 1), 3);
    let (id, _) = open(&mut driver, 2, members, Options::default(), |_| Destination::Allocate);
    told(&mut driver, id, 0, Message::Begin { next: 0 });
    gone(&mut driver, id, 0);
    let (formed, is_formed) = channel();
    driver.reform(id, Box::new(move |it| formed.send(it.is_ok()).unwrap()));
    first_deadline_passes(&mut driver);
    assert_eq!(is_formed.try_recv(), Err(TryRecvError::Empty), "it has joined");
    first_deadline_passes(&mut driver);
    assert_eq!(is_formed.try_recv(), Ok(false), "whoever leads has said nothing");
}

/// Says when it is finished, and ends once it may.
struct GatedEnd {
    asked: Sender<()>,
    gate: Arc<Mutex<()>>,
}

impl Blocks for GatedEnd {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        Zeros.read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Zeros.write_at(offset, bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        let _ = self.asked.send(());
        drop(self.gate.lock().unwrap());
        Ok(())
    }
}

#[test]
fn an_object_is_finished_once_though_its_group_fails_meanwhile() {
    let _watchdog = Watchdog::start();
    // The group that follows has begun with it, or has not, when that ends.
    for begins_first in [true, false] {
        let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
        let mut driver = Driver::new(&own, &inbox);
        let members = members((&own, 1), (&other, 0), 3);
        let (asked, is_asked) = channel();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let may_end = Arc::clone(&gate);
        let blocks = move |_| {
            let (asked, gate) = (asked.clone(), Arc::clone(&may_end));
            Destination::Blocks(Box::new(GatedEnd { asked, gate }))
        };
        let (id, shared) = open(&mut driver, 1, members, Options::default(), blocks);
        let offer = |driver: &mut Driver<'_>, id| {
            told(driver, id, 0, Message::Begin { next: 0 });
            let (kind, among, metadata) = (Kind::Direct, None, vec![]);
            let header = Header { size: 3, block_size: 3, kind, among, metadata };
            let source = Source { place: Place::Inline(vec![0; 3]), checksum: None };
            let header = Some(header);
            told(driver, id, 0, Message::Offer { object: 0, block: 0, header, source });
        };
        offer(&mut driver, id);
        disks_do(&mut driver, 1);
        is_asked.recv().unwrap();
        gone(&mut driver, id, 2);
        told(&mut driver, id, 0, Message::Reform { id: [8, 8], members: vec![0, 1] });
        let id = reform(&mut driver, id);
        if begins_first {
            offer(&mut driver, id);
        }
        drop(held);
        disks_do(&mut driver, 1);
        if !begins_first {
            assert!(shared.lock().ready.is_empty(), "nobody has offered it there");
            offer(&mut driver, id);
        }
        assert_eq!(shared.lock().ready.len(), 1, "{begins_first}");
        // Whatever the disk was told is done.
        let received = shared.lock().ready.pop_front().unwrap().0;
        drop(received);
        assert!(is_asked.try_recv().is_err(), "{begins_first}: it is finished again");
    }
}

/// Reads as often as it was told that it may.
struct Permitted {
    asked: Sender<()>,
    permits: Receiver<()>,
}

impl Blocks for Permitted {
    fn read_at(&mut self, _offset: u64, into: &mut [u8]) -> io::Result<()> {
        let _ = self.asked.send(());
        let _ = self.permits.recv();
        into.fill(9);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Zeros.write_at(offset, bytes)
    }
}

#[test]
fn an_object_is_delivered_while_a_block_of_it_is_being_read_for_somebody() {
    let _watchdog = Watchdog::start();
    let (own, other, inbox) = (engine(), engine(), Arc::new(Inbox::new()));
    let mut driver = Driver::new(&own, &inbox);
    let members = members((&own, 1), (&other, 0), 4);
    let ((asked, is_asked), (permit, permits)) = (channel(), channel());
    let mut blocks = Some(Box::new(Permitted { asked, permits }));
    let incoming = move |_| Destination::Blocks(blocks.take().unwrap());
    let (id, shared) = open(&mut driver, 1, members, Options::default(), incoming);
    told(&mut driver, id, 0, Message::Begin { next: 0 });
    // As many as are offered at a time, and two more.
    let blocks = STEPPED_ROOM_MAX as u64 + 2;
    (2..blocks).for_each(|_| permit.send(()).unwrap());
    for block in 0..blocks {
        let (kind, metadata) = (Kind::Chain, vec![]);
        let header = Header { size: 3 * blocks, block_size: 3, kind, among: None, metadata };
        let source = Source { place: Place::Inline(vec![0; 3]), checksum: None };
        let header = (block == 0).then_some(header);
        told(&mut driver, id, 0, Message::Offer { object: 0, block, header, source });
    }
    // All are written, all but the last two are read for the next of the chain, and it is finished.
    disks_do(&mut driver, 2 * STEPPED_ROOM_MAX + 3);
    for block in [0, 1] {
        told(&mut driver, id, 2, Message::Took { object: 0, block });
    }
    (1..blocks).for_each(|_| is_asked.recv().unwrap());
    gone(&mut driver, id, 3);
    let (received, _) = shared.lock().ready.pop_front().unwrap();
    let Data::Blocks(mut blocks) = received.data else { panic!("it was given as blocks") };
    // One for the read that is under way, one for this: the one after that is not wanted any more.
    (0..2).for_each(|_| permit.send(()).unwrap());
    let mut bytes = [0; 3];
    blocks.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 3], "what was given is used");
}
