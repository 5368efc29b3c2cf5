//! One end of the simulation: a context's peers, over a carrier that is made of queues, refuses at random, and lends memory.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    fmt,
    rc::Rc,
    sync::Arc,
};

use hg_na::{Completion, Error, GoneReason, OpId, Peer, Reached, Segment};
use hg_na_link::{
    Cancelled, Carrier, Framed, Grant, Header, Lane, Limits, Link, Links, Sending,
    exchange::{self, Came, Step},
    frame::{CONTROL_MAX, HEADER, Kind, LANES, MESSAGE_MAX, WINDOW},
    moves::ACTIVE_MAX,
};
use hg_na_memory::{ForkGuard, Held};
use hg_na_parts::regions::Regions;

/// Content of a frame.
const ROOM: usize = 120;
/// What a handle takes: little, so that everything is refused at times.
pub(crate) const LIMITS: Limits = Limits { message: 700, control: 200, depth: 3, transfers: 4 };

/// Numbers from a seed (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { Some(&all[self.below(all.len())]) }
    }
}

/// Why the carrier does not carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Again,
    Never,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

/// Memory that ends have lent, by key: what a card reaches.
pub(crate) type Fabric = Rc<RefCell<BTreeMap<u64, (Held, u64)>>>;

/// A move that is under way.
struct Moving {
    wire: usize,
    peer: Peer,
    id: u64,
    grant: Grant,
    own: (Held, u64, usize),
    to_peer: bool,
}

/// The carrier of one end.
pub(crate) struct Card {
    rng: Rng,
    /// Frames that have left and not arrived, by wire.
    pub(crate) out: BTreeMap<usize, VecDeque<Vec<u8>>>,
    /// Frames whose end is told later.
    flights: BTreeMap<usize, (usize, Option<Sending>)>,
    numbers: usize,
    fabric: Fabric,
    moving: VecDeque<Moving>,
    /// Whether what is said behind a write arrives behind it.
    is_ordered: bool,
    /// It takes no frame.
    pub(crate) is_stalled: bool,
    /// How often memory was lent.
    pub(crate) lends: usize,
}

/// Where a run lies in its memory, which is one run.
fn offset_of(memory: &Held, run: Segment) -> u64 {
    let whole = hg_na_memory::pieces(memory, 0, memory.len()).unwrap().next().unwrap();
    (run.address - whole.address) as u64
}

impl Card {
    fn copy(&self, it: &Moving) -> bool {
        let fabric = self.fabric.borrow();
        let Some((lent, start)) = fabric.get(&it.grant.key) else { return false };
        let Some(there) = start.checked_add(it.grant.address) else { return false };
        let (own, offset, len) = &it.own;
        let (from, to) = ((own, *offset), (lent, there));
        let ((from, at), (to, into)) = if it.to_peer { (from, to) } else { (to, from) };
        if from.device().is_some() || to.device().is_some() {
            // No processor can.
            return true;
        }
        let mut bytes = vec![0; *len];
        hg_na_memory::copy_out(from, at, &mut bytes).is_ok()
            && hg_na_memory::copy_in(to, into, &bytes).is_ok()
    }
}

impl Carrier for Card {
    /// The wire.
    type Own = usize;
    type Fault = Fault;

    const LENT_MIN: u64 = 150;
    const MOVE_MAX: u64 = 130;

    fn is_again(fault: &Fault) -> bool {
        *fault == Fault::Again
    }

    fn room(&self, _to: &usize) -> usize {
        ROOM
    }

    fn hand(
        &mut self,
        (_, wire): (Peer, &mut usize),
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, Fault> {
        if self.is_stalled || self.rng.one_in(6) {
            return Err(Fault::Again);
        }
        let mut frame = vec![0; HEADER + len];
        let (head, content) = frame.split_first_chunk_mut().unwrap();
        header.encode(0, head);
        if !fill(content) {
            return Err(Fault::Never);
        }
        self.out.entry(*wire).or_default().push_back(frame);
        if self.rng.one_in(3) {
            self.numbers += 1;
            self.flights.insert(self.numbers, (*wire, None));
            return Ok(Some(self.numbers));
        }
        Ok(None)
    }

    fn keep(&mut self, frame: usize, sending: Sending) {
        self.flights.get_mut(&frame).unwrap().1 = Some(sending);
    }

    fn may_lend(&self, _to: &usize, _is_written: bool) -> bool {
        true
    }

    fn lend(
        &mut self,
        _: &usize,
        memory: &Held,
        run: Segment,
        _: bool,
    ) -> Result<(usize, Grant), Fault> {
        match self.rng.below(8) {
            0 => return Err(Fault::Again),
            1 => return Err(Fault::Never),
            _ => {}
        }
        self.lends += 1;
        let key = self.rng.next() >> 1;
        self.fabric.borrow_mut().insert(key, (memory.clone(), offset_of(memory, run)));
        Ok((usize::try_from(key).unwrap(), Grant { address: 0, key }))
    }

    fn revoke(&mut self, lent: usize) {
        let before = self.fabric.borrow_mut().remove(&(lent as u64));
        assert!(before.is_some(), "it is taken back twice");
    }

    fn move_run(
        &mut self,
        (peer, wire): (Peer, &mut usize),
        grant: Grant,
        (memory, run): (&Held, Segment),
        (to_peer, id): (bool, u64),
    ) -> Result<bool, Fault> {
        match self.rng.below(12) {
            0 | 1 => return Err(Fault::Again),
            2 => return Err(Fault::Never),
            _ => {}
        }
        let own = (memory.clone(), offset_of(memory, run), run.len);
        let moving = Moving { wire: *wire, peer, id, grant, own, to_peer };
        if to_peer && self.is_ordered {
            self.copy(&moving);
            return Ok(false);
        }
        self.moving.push_back(moving);
        Ok(true)
    }
}

/// What is under way with one peer, over a wire.
type Way = Framed<usize>;

/// A context.
pub(crate) struct End {
    pub(crate) links: Links<usize, Way>,
    pub(crate) card: Card,
    pub(crate) regions: Arc<Regions>,
    /// Its peers, by wire.
    pub(crate) peers: BTreeMap<usize, Peer>,
    pub(crate) done: Vec<Completion>,
    /// Somebody has told it lies.
    pub(crate) is_lied_to: bool,
}

impl End {
    pub(crate) fn new(seed: u64, fabric: &Fabric) -> Self {
        let mut rng = Rng(seed);
        let card = Card {
            is_ordered: rng.one_in(2),
            rng,
            out: BTreeMap::new(),
            flights: BTreeMap::new(),
            numbers: 0,
            fabric: Rc::clone(fabric),
            moving: VecDeque::new(),
            is_stalled: false,
            lends: 0,
        };
        Self {
            links: Links::new(0, LIMITS),
            card,
            regions: Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap(),
            peers: BTreeMap::new(),
            done: Vec::new(),
            is_lied_to: false,
        }
    }

    /// Sends one frame; says whether there is more to be tried.
    pub(crate) fn send(&mut self, wire: usize) -> bool {
        let Some(peer) = self.peers.get(&wire) else { return false };
        let Some(link) = self.links.find(*peer).filter(|it| it.gone().is_none()) else {
            return false;
        };
        let step = exchange::step(link, &mut self.card, &mut self.done);
        link.tell_room(&LIMITS, 0, &mut self.done);
        assert!(!matches!(step, Step::Broken(_)), "nothing of its own is unregistered under it");
        !matches!(step, Step::Idle)
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// What the other end has done wrong.
    pub(crate) fn take(&mut self, wire: usize, frame: &[u8]) -> Result<(), &'static str> {
        let Some(peer) = self.peers.get(&wire).copied() else { return Ok(()) };
        let (_, header, content) = Header::decode(frame).ok_or("no header")?;
        let admission = self.links.admission();
        let Some(link) = self.links.find(peer).filter(|it| it.gone().is_none()) else {
            return Ok(());
        };
        match exchange::take(link, &self.regions, &header, content)? {
            Came::Nothing => {}
            Came::Message((lane, tag, message)) => {
                if link.deliver((lane, tag), message, admission, &mut self.done) {
                    link.way.lanes.took(lane.place());
                } else {
                    self.links.await_admission(peer);
                }
            }
            Came::Ended(lent, completion) => {
                lent.into_iter().for_each(|lent| self.card.revoke(lent));
                self.done.extend(completion);
                link.tell_room(&LIMITS, 0, &mut self.done);
            }
        }
        Ok(())
    }

    pub(crate) fn admit(&mut self, most: usize) {
        let done = &mut self.done;
        self.links.admit(most, done, |link, _| link.way.lanes.took(Lane::Unexpected.place()));
    }

    /// One frame whose end is told, of the oldest or another.
    pub(crate) fn land(&mut self, at: usize) {
        let Some(number) = self.card.flights.keys().nth(at % 4).copied() else { return };
        let Some((_, sending)) = self.card.flights.remove(&number) else { return };
        if let Some(sending) = sending {
            sending.sent(&mut self.done);
        }
    }

    /// The end of one move. One in eight fails.
    pub(crate) fn moved(&mut self) {
        let Some(moving) = self.card.moving.pop_front() else { return };
        let can_move = self.card.copy(&moving);
        assert!(can_move || self.is_lied_to, "memory is taken back while it is moved");
        let has_moved = can_move && !self.card.rng.one_in(8);
        let Some(link) = self.links.find(moving.peer) else { return };
        link.way.moves.moved(moving.id, !has_moved, &mut link.owner);
    }

    /// Whether it has memory of its own under way.
    pub(crate) fn is_moving(&self) -> bool {
        !self.card.moving.is_empty()
    }

    pub(crate) fn cancel(&mut self, id: OpId) {
        let ended = self.links.cancel(id, &mut self.done);
        let Some(Cancelled { is_told, written, lent }) = ended else { return };
        lent.into_iter().for_each(|lent| self.card.revoke(lent));
        if let Some(entry) = written {
            entry.abandon();
        }
        if is_told && let Some(link) = self.links.at(id.scope) {
            link.way.aborts.push_back(id.serial);
        }
    }

    /// A peer is gone.
    pub(crate) fn end(&mut self, wire: usize, reason: &GoneReason) {
        let Some(peer) = self.peers.get(&wire).copied() else { return };
        self.card.out.remove(&wire);
        self.card.moving.retain(|it| it.wire != wire);
        let numbers: Vec<_> = self.card.flights.iter().filter(|(_, it)| it.0 == wire).collect();
        let numbers: Vec<_> = numbers.into_iter().map(|(number, _)| *number).collect();
        for sending in numbers.into_iter().filter_map(|it| self.card.flights.remove(&it)?.1) {
            let failure = (Error::PeerGone(reason.clone()), Reached::Unknown);
            self.done.push(sending.end(Some(failure)));
        }
        if let Some(link) = self.links.find(peer) {
            link.initiator.take_untold().for_each(|lent| self.card.revoke(lent));
        }
        for lent in self.links.end(peer, reason, &mut self.done) {
            self.card.revoke(lent.lent);
        }
    }

    /// What a peer can make this end keep is bounded, whatever it says.
    pub(crate) fn check_bounds(&self) {
        for link in self.links.iter() {
            let (frames, bytes) = link.way.lanes.held();
            assert!(frames.iter().all(|count| *count <= WINDOW), "{frames:?}");
            assert!(bytes <= 2 * MESSAGE_MAX + CONTROL_MAX);
            let (transfers, words) = link.owner.held();
            let moves = link.way.moves.len();
            assert!(transfers + moves <= 2 * ACTIVE_MAX && words <= 3 * ACTIVE_MAX);
        }
        for frames in self.card.out.values() {
            let is_counted = |it: &&Vec<u8>| it[0] != Kind::Credit as u8;
            let counted = frames.iter().filter(is_counted).count();
            assert!(counted <= LANES * usize::from(WINDOW), "{counted} frames on one wire");
        }
    }

    /// Nothing is under way with a peer that lives.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_quiet = |link: &Link<usize, Way>| {
            let (frames, bytes) = link.way.lanes.held();
            link.queues.is_empty()
                && link.initiator.is_empty()
                && link.owner.held() == (0, 0)
                && link.way.moves.is_empty()
                && link.way.aborts.is_empty()
                && (frames, bytes) == ([0; LANES], 0)
        };
        self.links.iter().filter(|it| it.gone().is_none()).all(is_quiet)
            && self.card.out.values().all(VecDeque::is_empty)
            && self.card.flights.is_empty()
            && self.card.moving.is_empty()
    }
}
