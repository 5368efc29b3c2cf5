//! All endpoints of a story, and what happens between them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use hg_na::{Address, Caps, Completion, Error, GoneReason, Identity, Peer, Tag};
use hg_na_parts::{Flush, credits::Amount};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Rules,
    plugin::Sleeper,
    region::Regions,
    side::{Lane, Link, Side},
};
use crate::{
    random::Random,
    world::{self, Action},
};

/// Something that happens in the network at its time.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection is made.
    Connect { endpoint: usize, peer: Peer },
    /// There is something to take.
    Ring { endpoint: usize, peer: Peer },
    /// Messages were taken: there is room for others.
    Credit { endpoint: usize, peer: Peer, lane: Lane, amount: Amount },
    /// The other side is not there any more.
    Break { endpoint: usize, peer: Peer, reason: GoneReason },
    /// The owner of memory is asked to move bytes.
    Ask { owner: usize, by: Peer, name: u64 },
    /// Bytes are moved.
    Move { endpoint: usize, peer: Peer, serial: u64 },
}

/// What an endpoint has done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) rounds: u64,
    /// Rounds that have found nothing.
    pub(crate) idle_rounds: u64,
    /// Operations that were accepted.
    pub(crate) accepted: u64,
    /// Operations that came back because there was no room.
    pub(crate) refused: u64,
    /// Messages taken and operations ended.
    pub(crate) completions: u64,
}

/// Who tells the time and when something is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// The story's scheduler.
    Story,
    /// Nobody: everything happens at once, in threads of the machine.
    AtOnce,
}

/// One context. Its number is never used again: it is the incarnation.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) process: usize,
    /// Whose memory its peers may name.
    pub(super) domain: u64,
    pub(super) address: Address,
    pub(super) listens: bool,
    pub(super) sleeper: Arc<Sleeper>,
    pub(super) slots: Vec<Slot>,
    pub(super) lookups: BTreeMap<Address, Peer>,
    pub(super) admission: bool,
    pub(super) ready: VecDeque<Completion>,
    pub(super) last_serial: u64,
    pub(super) flush: Flush,
    /// Bytes that were moved at once since its last round.
    pub(super) moved_at_once: u64,
    /// It was closed, or its process is dead.
    pub(super) is_cut: bool,
    pub(super) counts: Counts,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// Somebody has had it in hand since a round has found no work in it: there may be some.
    pub(super) was_touched: bool,
    pub(super) side: Option<Box<Side>>,
}

impl Endpoint {
    /// A side of one that is not cut: what is on its way to one that was is nobody's.
    pub(super) fn side(&mut self, peer: Peer) -> Option<&mut Side> {
        if self.is_cut {
            return None;
        }
        let slot = self.slots.get_mut(peer.index() as usize)?;
        slot.was_touched = true;
        (slot.generation == peer.generation()).then_some(slot.side.as_deref_mut()).flatten()
    }

    pub(super) fn flush(&mut self) -> bool {
        let sides = self.slots.iter().filter_map(|slot| slot.side.as_ref());
        let mut waiting = sides.flat_map(|side| &side.out).filter_map(|out| out.queue.front());
        self.flush.ask(self.last_serial, |to| waiting.all(|out| out.id.serial > to))
    }

    pub(super) fn connected(&self) -> Vec<Peer> {
        let open = |(place, slot): (usize, &Slot)| {
            let side = slot.side.as_ref()?;
            let place = u32::try_from(place).ok()?;
            matches!(side.link, Link::Open { .. }).then(|| Peer::new(place, slot.generation))
        };
        self.slots.iter().enumerate().filter_map(open).collect()
    }

    pub(super) fn sides(&self) -> impl Iterator<Item = &Side> {
        self.slots.iter().filter_map(|slot| slot.side.as_deref())
    }

    pub(super) fn was_connected(&mut self, peer: Peer) -> bool {
        self.side(peer).is_none_or(|side| !matches!(side.link, Link::Idle | Link::Connecting))
    }

    fn add(&mut self, side: Side) -> Peer {
        let free = self.slots.iter().position(|slot| slot.side.is_none());
        let place = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[place].side = Some(Box::new(side));
        self.slots[place].was_touched = true;
        let index = u32::try_from(place).expect("fewer than 2^32 peers");
        Peer::new(index, self.slots[place].generation)
    }
}

/// The network.
#[derive(Debug)]
pub(crate) struct Net {
    pub(super) rules: Rules,
    pub(super) clock: Clock,
    random: Random,
    pub(super) endpoints: Vec<Endpoint>,
    by_address: BTreeMap<Address, usize>,
    pub(crate) regions: Arc<Regions>,
    /// Processes that get no memory registered.
    pub(crate) no_memory: FxHashSet<usize>,
    /// Processes whose memory is not there, and until when: it is on a disk, say.
    pub(crate) away: FxHashMap<usize, u64>,
    /// Transfers that owners were asked to make: who asks.
    pub(super) asks: FxHashMap<u64, (usize, Peer, u64)>,
    pub(super) last_ask: u64,
    /// How often an answer was given.
    pub(super) answers: FxHashMap<(usize, Peer, Tag), u32>,
    /// What is to happen at its time, by numbers.
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    /// What is to happen, where everything happens at once.
    due: VecDeque<Event>,
}

impl Net {
    pub(crate) fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            clock: Clock::Story,
            random: Random::new(seed ^ 0x4e65_7477),
            endpoints: Vec::new(),
            by_address: BTreeMap::new(),
            regions: Arc::default(),
            no_memory: FxHashSet::default(),
            away: FxHashMap::default(),
            asks: FxHashMap::default(),
            last_ask: 0,
            answers: FxHashMap::default(),
            events: Vec::new(),
            free: Vec::new(),
            due: VecDeque::new(),
        }
    }

    /// Everything happens at once, in threads of the machine.
    pub(super) fn at_once(mut self) -> Self {
        self.clock = Clock::AtOnce;
        self
    }

    pub(super) fn now(&self) -> u64 {
        if self.clock == Clock::Story { world::now() } else { 0 }
    }

    pub(super) fn delay(&mut self) -> u64 {
        self.random.between(self.rules.delay_min, self.rules.delay_max)
    }

    /// Whether a transfer that could be moved at once is not.
    pub(super) fn is_put_off(&mut self) -> bool {
        self.rules.put_off > 0 && self.random.percent(self.rules.put_off)
    }

    pub(super) fn schedule(&mut self, at: u64, event: Event) {
        match self.clock {
            Clock::Story => {
                let number = self.free.pop().unwrap_or_else(|| {
                    self.events.push(None);
                    self.events.len() - 1
                });
                self.events[number] = Some(event);
                world::at(at, Action::Network(number));
            }
            Clock::AtOnce => self.due.push_back(event),
        }
    }

    /// Does what was scheduled by a number, when its time has come.
    pub(crate) fn happen_now(&mut self, number: usize) {
        if let Some(event) = self.events[number].take() {
            self.free.push(number);
            self.happen(event);
        }
    }

    /// Does what is due where everything happens at once.
    pub(super) fn settle(&mut self) {
        while let Some(event) = self.due.pop_front() {
            self.happen(event);
        }
    }

    /// For a domain without a name.
    pub(super) fn fresh_name(&mut self) -> u64 {
        self.last_ask += 1;
        self.last_ask
    }

    pub(super) fn caps(&self) -> Caps {
        let mut caps = Caps::minimal();
        caps.max_unexpected = self.rules.message_max;
        caps.max_expected = self.rules.message_max;
        caps.max_control = 64;
        caps.short_unexpected = hg_na::INLINE_MAX;
        caps.short_expected = hg_na::INLINE_MAX;
        caps.queue_depth = self.rules.queue_depth;
        caps.max_contexts = 256;
        caps.max_segments = 16;
        caps.one_sided = true;
        caps.views = self.rules.views;
        caps.sleep = hg_na::Sleep::Private;
        caps
    }

    pub(super) fn open(&mut self, endpoint: Endpoint) -> Result<usize, Error> {
        let id = self.endpoints.len();
        if endpoint.listens {
            if self.by_address.contains_key(&endpoint.address) {
                return Err(Error::AddressInUse(endpoint.address));
            }
            self.by_address.insert(endpoint.address.clone(), id);
        }
        self.endpoints.push(endpoint);
        Ok(id)
    }

    pub(super) fn lookup(&mut self, at: usize, address: &Address) -> Peer {
        let window = self.rules.window();
        let endpoint = &mut self.endpoints[at];
        if let Some(known) = endpoint.lookups.get(address).copied()
            && endpoint.side(known).is_some_and(|side| !side.is_broken())
        {
            return known;
        }
        let peer = endpoint.add(Side::new(Some(address.clone()), Link::Idle, window));
        endpoint.lookups.insert(address.clone(), peer);
        peer
    }

    pub(super) fn forget(&mut self, at: usize, peer: Peer) {
        let Some(side) = self.endpoints[at].side(peer) else { return };
        if side.is_broken() {
            return;
        }
        side.arriving.iter_mut().for_each(VecDeque::clear);
        let link = Link::Broken { reason: GoneReason::Forgotten, is_told: false };
        let before = std::mem::replace(&mut side.link, link);
        let last = side.out.iter().map(|out| out.last_at).max().unwrap_or(0);
        if let Link::Open { endpoint, peer } = before {
            let due = last.max(self.now()) + self.delay();
            let reason = GoneReason::Closed;
            self.schedule(due, Event::Break { endpoint, peer, reason });
        }
    }

    /// Whose process a peer is, by the network's word.
    pub(super) fn identity(&self, at: usize, peer: Peer) -> Identity {
        let slot = self.endpoints[at].slots.get(peer.index() as usize);
        let slot = slot.filter(|slot| slot.generation == peer.generation());
        let process = slot.and_then(|slot| slot.side.as_deref()?.process);
        let mut identity = Identity::default();
        identity.pid = process.and_then(|process| u32::try_from(process).ok());
        identity
    }

    /// An endpoint is closed, or its process dies: nothing that it does has an effect any more.
    pub(super) fn cut(&mut self, at: usize, reason: &GoneReason) {
        let endpoint = &mut self.endpoints[at];
        if std::mem::replace(&mut endpoint.is_cut, true) {
            return;
        }
        endpoint.ready.clear();
        if self.by_address.get(&endpoint.address) == Some(&at) {
            self.by_address.remove(&endpoint.address);
        }
        let slots = std::mem::take(&mut self.endpoints[at].slots);
        for side in slots.iter().filter_map(|slot| slot.side.as_deref()) {
            let last = side.out.iter().map(|out| out.last_at).max().unwrap_or(0);
            if let Link::Open { endpoint, peer } = side.link {
                let due = last.max(self.now()) + self.delay();
                self.schedule(due, Event::Break { endpoint, peer, reason: reason.clone() });
            }
        }
        self.endpoints[at].sleeper.ring();
    }

    /// A process dies.
    pub(crate) fn kill(&mut self, process: usize) {
        for at in 0..self.endpoints.len() {
            if self.endpoints[at].process == process {
                self.cut(at, &GoneReason::Exited);
            }
        }
    }

    /// An endpoint that takes nothing and says nothing: a process that hangs from its beginning.
    pub(crate) fn add_hung(&mut self, process: usize, address: &Address) {
        let endpoint = Endpoint {
            process,
            domain: 0,
            address: address.clone(),
            listens: true,
            sleeper: Arc::default(),
            slots: Vec::new(),
            lookups: BTreeMap::new(),
            admission: true,
            ready: VecDeque::new(),
            last_serial: 0,
            flush: Flush::default(),
            moved_at_once: 0,
            is_cut: false,
            counts: Counts::default(),
        };
        // The address is new.
        let _opened = self.open(endpoint);
    }

    /// Whether somebody listens at an address.
    pub(crate) fn is_taken(&self, address: &Address) -> bool {
        self.by_address.contains_key(address)
    }

    /// What the endpoints of a process have done.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (usize, Counts)> + '_ {
        self.endpoints.iter().map(|endpoint| (endpoint.process, endpoint.counts))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect { endpoint, peer } => self.connect(endpoint, peer),
            Event::Ring { endpoint, peer } => {
                let endpoint = &mut self.endpoints[endpoint];
                // It is touched.
                let _side = endpoint.side(peer);
                endpoint.sleeper.ring();
            }
            Event::Credit { endpoint, peer, lane, amount } => {
                let endpoint = &mut self.endpoints[endpoint];
                let Some(side) = endpoint.side(peer) else { return };
                let refilled = side.out[lane as usize].credits.refill(amount);
                endpoint.sleeper.ring();
                self.check_credits(refilled);
            }
            Event::Break { endpoint, peer, reason } => {
                let endpoint = &mut self.endpoints[endpoint];
                let Some(side) = endpoint.side(peer) else { return };
                if !side.is_broken() {
                    side.link = Link::Broken { reason, is_told: false };
                    endpoint.sleeper.ring();
                }
            }
            Event::Ask { owner, by, name } => {
                let endpoint = &mut self.endpoints[owner];
                if let Some(side) = endpoint.side(by) {
                    side.asked.push_back(name);
                    endpoint.sleeper.ring();
                }
            }
            Event::Move { endpoint, peer, serial } => self.move_bytes(endpoint, peer, serial),
        }
    }

    /// Both sides of a connection count its credits alike.
    pub(super) fn check_credits(&self, counted: Result<(), &'static str>) {
        if let (Err(why), Clock::Story) = (counted, self.clock) {
            world::fail(|| format!("credits: {why}"));
        }
    }

    fn connect(&mut self, at: usize, peer: Peer) {
        let Some(side) = self.endpoints[at].side(peer) else { return };
        let Link::Connecting = side.link else { return };
        let Some(address) = side.address.clone() else { return };
        let target = self.by_address.get(&address).copied();
        match target.filter(|target| !self.endpoints[*target].is_cut) {
            Some(target) => {
                let [here, there] = [at, target].map(|it| self.endpoints[it].process);
                let mut theirs =
                    Side::new(None, Link::Open { endpoint: at, peer }, self.rules.window());
                theirs.process = Some(here);
                let theirs = self.endpoints[target].add(theirs);
                let side = self.endpoints[at].side(peer).expect("it was found above");
                side.link = Link::Open { endpoint: target, peer: theirs };
                side.process = Some(there);
            }
            None => {
                let reason = GoneReason::Unreachable("nobody listens there".into());
                let link = Link::Broken { reason, is_told: false };
                self.endpoints[at].side(peer).expect("it was found above").link = link;
            }
        }
        self.endpoints[at].sleeper.ring();
    }
}
