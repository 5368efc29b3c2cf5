//! Puts and gets between an initiator and an owner, with frames on their way in both directions, under any order of events.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use hg_na::{
    Completion, Descriptor, Done, Error, GoneReason, LocalSlice, Memory, OpId, Reached,
    RegionState, Rights,
};
use hg_na_link::{Access, Grant, Initiator, Loan, Owner, Transfer, Verdict, transfer};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion};
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};

const REGION: u64 = 24;
/// Of the initiator's handle, and what the owner serves.
const MOST: usize = 3;

#[derive(Debug, Clone)]
enum Event {
    Post { is_put: bool, offset: u64, len: u64, is_granted: bool },
    Announce,
    PutPiece(u64),
    GetPiece(u64),
    Word,
    ToOwner,
    ToInitiator,
    Cancel(usize),
    Unregister(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let post = (any::<bool>(), 0_u64..4, 0_u64..24, 0_u8..8);
    prop_oneof![
        3 => post.prop_map(|(is_put, offset, len, granted)| {
            Event::Post { is_put, offset, len, is_granted: granted > 0 }
        }),
        4 => proptest::strategy::Just(Event::Announce),
        4 => (1_u64..12).prop_map(Event::PutPiece),
        4 => (1_u64..12).prop_map(Event::GetPiece),
        4 => proptest::strategy::Just(Event::Word),
        6 => proptest::strategy::Just(Event::ToOwner),
        6 => proptest::strategy::Just(Event::ToInitiator),
        1 => (0_usize..8).prop_map(Event::Cancel),
        1 => (0_usize..8).prop_map(Event::Unregister),
    ]
}

enum Frame {
    Ask(bool, u64, Access),
    Data(u64, Vec<u8>),
    Withdraw(u64),
    Word(u64, Verdict),
}

/// What one transfer moves.
struct Moved {
    is_put: bool,
    near: Arc<ServedRegion>,
    far: Option<Arc<ServedRegion>>,
    offset: u64,
    len: u64,
    is_done: bool,
}

struct World {
    /// The last byte of a get is the owner's last word on it.
    is_ended_by_data: bool,
    near: Arc<Regions>,
    far: Arc<Regions>,
    initiator: Initiator,
    owner: Owner,
    to_owner: VecDeque<Frame>,
    to_initiator: VecDeque<Frame>,
    all: BTreeMap<u64, Moved>,
    serial: u64,
    done: Vec<Completion>,
}

fn regions() -> Arc<Regions> {
    Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap()
}

fn registered(regions: &Arc<Regions>, byte: u8, rights: Rights) -> Arc<ServedRegion> {
    let memory = Memory::from(vec![byte; usize::try_from(REGION).unwrap()]);
    ServedRegion::register(regions, memory, rights).unwrap()
}

impl World {
    fn new(is_ended_by_data: bool) -> Self {
        Self {
            is_ended_by_data,
            near: regions(),
            far: regions(),
            initiator: Initiator::default(),
            owner: Owner::default(),
            to_owner: VecDeque::new(),
            to_initiator: VecDeque::new(),
            all: BTreeMap::new(),
            serial: 0,
            done: Vec::new(),
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Post { is_put, offset, len, is_granted } => {
                self.post(is_put, offset, len, is_granted);
            }
            Event::Announce => {
                let Some(transfer) = self.initiator.next(MOST) else { return };
                let (is_put, serial) = (transfer.is_put, transfer.id.serial);
                self.to_owner.push_back(Frame::Ask(is_put, serial, transfer.access));
                self.initiator.announced(0);
            }
            Event::PutPiece(max) => {
                let Some(piece) = self.initiator.next_piece(max) else { return };
                let mut bytes = vec![0; usize::try_from(piece.len).unwrap()];
                let copied =
                    piece.entry.with(|it| hg_na_memory::copy_out(it, piece.offset, &mut bytes));
                assert!(copied.is_some_and(|it| it.is_ok()), "posted memory stays registered");
                self.to_owner.push_back(Frame::Data(piece.serial, bytes));
                self.initiator.sent(piece.len);
            }
            Event::GetPiece(max) => self.get_piece(max),
            Event::Word => {
                if let Some((serial, verdict)) = self.owner.next_word() {
                    self.to_initiator.push_back(Frame::Word(serial, verdict));
                    self.owner.said();
                }
            }
            Event::ToOwner => self.reach_owner(),
            Event::ToInitiator => self.reach_initiator(),
            Event::Cancel(at) => {
                let Some(serial) = self.all.keys().nth(at).copied() else { return };
                let Some((ended, cancelled)) = self.initiator.cancel(serial) else { return };
                self.done.push(ended);
                if cancelled.is_told {
                    self.to_owner.push_back(Frame::Withdraw(serial));
                }
            }
            Event::Unregister(at) => {
                if let Some(moved) = self.all.values_mut().nth(at) {
                    moved.far = None;
                }
            }
        }
        let (transfers, words) = self.owner.held();
        assert!(transfers <= MOST && words <= MOST);
    }

    fn post(&mut self, is_put: bool, offset: u64, len: u64, is_granted: bool) {
        let (from, to) = (
            registered(&self.near, 1, Rights::all()),
            if is_put { Rights::WRITE } else { Rights::READ },
        );
        let rights = if is_granted { to } else { Rights::all() & !to };
        let far = registered(&self.far, 2, rights);
        self.serial += 1;
        let id = OpId { scope: 0, serial: self.serial };
        let slice = hg_na::Region::new(Arc::clone(&from) as Arc<dyn RegionState>);
        let local: LocalSlice = slice.slice(REGION - len, len).unwrap();
        // Whoever has the bytes of a descriptor may say anything of its length.
        let claim = far.descriptor().opaque().to_vec();
        let remote = Descriptor::new(2 * REGION, Rights::all(), &claim).slice(offset, len).unwrap();
        transfer::check(&local, &remote, is_put).unwrap();
        self.initiator.post(Transfer::new(id, 0, is_put, local, &remote));
        let far = Some(far);
        self.all.insert(id.serial, Moved { is_put, near: from, far, offset, len, is_done: false });
    }

    fn get_piece(&mut self, max: u64) {
        let Some(piece) = self.owner.next_piece(max) else { return };
        let mut bytes = vec![0; usize::try_from(piece.len).unwrap()];
        let copied = piece.entry.with(|it| hg_na_memory::copy_out(it, piece.offset, &mut bytes));
        assert!(copied.is_some_and(|it| it.is_ok()), "asked for just before");
        self.to_initiator.push_back(Frame::Data(piece.serial, bytes));
        self.owner.sent(piece.len);
        if piece.is_last && !self.is_ended_by_data {
            self.to_initiator.push_back(Frame::Word(piece.serial, Verdict::Ok));
        }
    }

    fn reach_owner(&mut self) {
        match self.to_owner.pop_front() {
            None => {}
            Some(Frame::Ask(is_put, serial, access)) => {
                self.owner.asked(&self.far, (is_put, serial), access, (0, MOST)).unwrap();
            }
            Some(Frame::Data(serial, bytes)) => {
                let len = bytes.len() as u64;
                if let Some((entry, offset)) = self.owner.sink(serial, len).unwrap() {
                    let copied = entry.with(|it| hg_na_memory::copy_in(it, offset, &bytes));
                    if copied.is_none_or(|it| it.is_err()) {
                        self.owner.lost_sink(serial);
                    }
                }
                self.owner.arrived(serial, len);
            }
            Some(Frame::Withdraw(serial)) => drop(self.owner.withdrawn(serial)),
            Some(Frame::Word(..)) => panic!("only the owner says words"),
        }
    }

    fn reach_initiator(&mut self) {
        match self.to_initiator.pop_front() {
            None => {}
            Some(Frame::Data(serial, bytes)) => {
                let len = bytes.len() as u64;
                if let Some((entry, offset)) = self.initiator.sink(serial, len).unwrap() {
                    let copied = entry.with(|it| hg_na_memory::copy_in(it, offset, &bytes));
                    assert!(copied.is_some_and(|it| it.is_ok()));
                }
                if self.initiator.arrived(serial, len) && self.is_ended_by_data {
                    self.done.extend(self.initiator.finish(serial));
                }
            }
            Some(Frame::Word(serial, verdict)) => {
                let ended = self.initiator.ended(serial, verdict).unwrap();
                self.done.extend(ended.completion);
                if ended.is_cut {
                    self.to_owner.push_back(Frame::Withdraw(serial));
                }
            }
            Some(Frame::Ask(..) | Frame::Withdraw(_)) => panic!("only the initiator asks"),
        }
    }

    /// Whatever completes does so once, and says what has happened.
    fn check(&mut self) {
        for completion in std::mem::take(&mut self.done) {
            let Completion::Done(Done { id, result, .. }) = completion else { panic!() };
            let moved = self.all.get_mut(&id.serial).unwrap();
            assert!(!std::mem::replace(&mut moved.is_done, true), "{id:?} completes twice");
            match result.map_err(|failure| failure.error) {
                Ok(()) => moved.assert_moved(),
                Err(Error::OutOfRange { .. }) => assert!(moved.offset + moved.len > REGION),
                Err(Error::StaleDescriptor) => assert!(moved.far.is_none()),
                Err(Error::Cancelled | Error::Denied { .. } | Error::PeerGone(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.to_owner.is_empty() && self.to_initiator.is_empty() && self.initiator.is_empty()
    }
}

impl Moved {
    fn assert_moved(&self) {
        let len = usize::try_from(self.len).unwrap();
        let (mut near, mut far) = (vec![0; len], vec![0; len]);
        self.near.read(REGION - self.len, &mut near).unwrap();
        // Of memory that was unregistered meanwhile nobody has the bytes any more.
        let far_is_there =
            self.far.as_ref().is_some_and(|it| it.read(self.offset, &mut far).is_ok());
        let byte = if self.is_put { 1 } else { 2 };
        assert!(near.iter().all(|it| *it == byte));
        assert!(!far_is_there || far.iter().all(|it| *it == byte));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_transfer_ends_once_and_nothing_is_kept_of_it(
        is_ended_by_data: bool,
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let mut world = World::new(is_ended_by_data);
        for event in events {
            world.act(event);
            world.check();
        }
        let all = [Event::Announce, Event::PutPiece(7), Event::GetPiece(7), Event::Word, Event::ToOwner, Event::ToInitiator];
        let mut left = 10_000;
        while !world.is_quiet() && left > 0 {
            left -= 1;
            all.iter().for_each(|event| world.act(event.clone()));
            world.check();
        }
        assert!(world.is_quiet(), "something is never said");
        assert!(world.all.values().all(|it| it.is_done));
        assert!(world.owner.held() == (0, 0) && !world.owner.is_waiting() && !world.owner.has_puts());
    }

    #[test]
    fn a_peer_that_dies_in_the_middle_ends_every_transfer(
        events in proptest::collection::vec(event(), 1..100),
    ) {
        let mut world = World::new(false);
        for event in events {
            world.act(event);
            world.check();
        }
        let lent = world.initiator.fail(&GoneReason::Exited, &mut world.done);
        world.check();
        assert!(lent.is_empty() && world.initiator.is_empty());
        assert!(world.all.values().all(|it| it.is_done));
    }

    #[test]
    fn whatever_a_peer_says_is_refused_or_bounded(
        words in proptest::collection::vec((0_u8..5, 0_u64..6, 0_u64..40), 1..200),
    ) {
        let mut world = World::new(false);
        let far = registered(&world.far, 2, Rights::all());
        let claim = hg_na_parts::regions::Claim::decode(far.descriptor().opaque()).unwrap();
        for (kind, serial, number) in words {
            // Refused or not, it ends no operation twice and makes nothing grow.
            let _is_refused = match kind {
                0 | 1 => {
                    let access = Access { claim, offset: number, len: number };
                    world.owner.asked(&world.far, (kind == 0, serial), access, (0, MOST)).is_err()
                }
                2 => match world.owner.sink(serial, number) {
                    Ok(_) => {
                        world.owner.arrived(serial, number);
                        false
                    }
                    Err(_) => true,
                },
                3 => world.owner.withdrawn(serial),
                _ => world.initiator.ended(serial, Verdict::Ok).is_err(),
            };
            let (transfers, words) = world.owner.held();
            assert!(transfers <= MOST && words <= 2 * MOST, "{transfers} {words}");
        }
    }
}

/// The next transfer is announced with memory that is lent under this name.
fn announce_lent(initiator: &mut Initiator, name: usize, times_left: u64) {
    let grant = Grant { address: 0, key: 0 };
    initiator.next(9).unwrap().lent = Some(Loan { name, grant, times_left });
    initiator.announced(0);
}

#[test]
fn memory_that_was_lent_is_kept_until_the_owner_has_said_its_last_word() {
    let mut world = World::new(true);
    let post = |is_put| Event::Post { is_put, offset: 0, len: 8, is_granted: true };
    // Asked for again in frames, then given up; given up while it is lent; its peer dies.
    [false, false, true].into_iter().for_each(|is_put| world.act(post(is_put)));
    (0..3).for_each(|lent| announce_lent(&mut world.initiator, lent, 0));
    let again = world.initiator.ended(1, Verdict::InFrames).unwrap();
    assert!(again.lent == Some(0) && again.completion.is_none());
    assert!(world.initiator.next(9).is_some_and(|it| it.id.serial == 1 && it.in_frames));
    assert!(world.initiator.ended(1, Verdict::Ok).is_err(), "it was not asked for again yet");
    let (_, cancelled) = world.initiator.cancel(2).unwrap();
    assert!(cancelled.is_told && cancelled.written.is_some(), "a late writer may still come");
    let ended = world.initiator.ended(2, Verdict::Cancelled).unwrap();
    assert!(ended.lent == Some(1) && ended.completion.is_none());
    let lent = world.initiator.fail(&GoneReason::Exited, &mut world.done);
    assert!(lent.len() == 1 && lent[0].lent == 2 && lent[0].written.is_none());
    assert_eq!(world.done.len(), 2);
}

#[test]
fn a_transfer_that_waits_to_be_made_once_more_is_not_said_to_have_reached_nobody() {
    type Ends = fn(&mut Initiator, &mut Vec<Completion>);
    let ends: [(&str, Ends); 3] = [
        ("cancelled", |it, done| done.extend(it.cancel(1).map(|(completion, _)| completion))),
        ("its peer dies", |it, done| drop(it.fail(&GoneReason::Exited, done))),
        ("refused", |it, done| done.extend(it.refuse_next("the second time"))),
    ];
    for (case, ends) in ends {
        for (is_again, expected) in [(true, Reached::Unknown), (false, Reached::Never)] {
            let mut world = World::new(true);
            world.act(Event::Post { is_put: true, offset: 0, len: 8, is_granted: true });
            if is_again {
                announce_lent(&mut world.initiator, 0, 0);
                let again = world.initiator.ended(1, Verdict::InFrames).unwrap();
                assert!(again.completion.is_none(), "{case}");
            } else {
                // One run of it is too little: it goes in frames from the start.
                world.initiator.next(9).unwrap().in_frames = true;
            }
            ends(&mut world.initiator, &mut world.done);
            let [Completion::Done(Done { result: Err(failure), .. })] = &world.done[..] else {
                panic!("{case}: {:?}", world.done)
            };
            assert_eq!(failure.reached, expected, "{case}, once more: {is_again}");
        }
    }
}

#[test]
fn what_was_written_to_memory_that_was_left_to_another_peer_meanwhile_is_got_again_in_frames() {
    let mut world = World::new(true);
    for is_put in [false, true] {
        world.act(Event::Post { is_put, offset: 0, len: 8, is_granted: true });
    }
    let entry = Arc::clone(&world.initiator.next(9).unwrap().entry);
    (0..2).for_each(|lent| announce_lent(&mut world.initiator, lent, entry.times_left()));
    entry.abandon();
    let again = world.initiator.ended(1, Verdict::Ok).unwrap();
    assert!(again.lent == Some(0) && again.completion.is_none());
    let put = world.initiator.ended(2, Verdict::Ok).unwrap();
    assert!(put.lent == Some(1) && put.completion.is_some(), "nobody has written there");
    assert!(world.initiator.next(9).is_some_and(|it| it.id.serial == 1 && it.in_frames));
    world.initiator.announced(0);
    assert!(!world.initiator.arrived(1, 3) && world.initiator.arrived(1, 5));
    assert!(world.initiator.ended(1, Verdict::Ok).unwrap().completion.is_some());
}
