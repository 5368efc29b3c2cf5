//! A member of a group, without I/O, clock or memory of objects: events in, actions out.
//!
//! ```text
//!             all have joined              all is whole everywhere, and Closed was heard
//!   Joining ------------------> Open ------------------------------------------------> Closed
//!      |                         |   a member is gone, refuses, leaves, breaks the protocol
//!      +-------------------------+-----> Failed ---- carry ----> Joining, of another machine
//! ```
//!
//! # What always holds
//! - A block is offered only if it is here, and counts as here only when the driver says so ([`Event::Arrived`]).
//! - Each block is pulled once, unless pulling failed, which ends the group.
//! - Objects are asked about, and delivered, in the root's order, each once.
//! - The root says that an object is everywhere only when every member has said that it has it whole.
//! - What waits here for somebody else is bounded: offers by the lanes of neighbours ([`OFFERS_MAX`]), objects that have begun by [`BEGUN_MAX`] and by
//!   the bytes that nobody has received yet.

mod blocks;
mod joining;
mod lane;
mod message;
mod object;
mod receiving;
mod reforming;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use self::message::METADATA_MAX;
pub(crate) use self::{
    blocks::BlockSet,
    message::{Header, Message, is_possible},
};
use self::{
    lane::Lane,
    message::{NUMBERS_END, bounded},
    object::Object,
    receiving::{Pulling, Waiting},
};

/// Blocks of an object at most.
pub(crate) const BLOCKS_MAX: u64 = 1 << 24;
/// Bytes of an object at most: those of all that have begun can be added up.
pub(crate) const SIZE_MAX: u64 = 1 << 56;
/// Objects that are not everywhere yet, at the root.
pub(crate) const SENDS_MAX: usize = 1024;
/// Offers of one neighbour that may wait at a member: more than its lanes let it make is a breach.
pub(crate) const OFFERS_MAX: usize = SMALL_ROOM + 2 * STEPPED_ROOM_MAX;
/// Small blocks that a lane has on their way: they ride in their offers.
const SMALL_ROOM: usize = 64;
/// Blocks of a stepped lane that may be set to be on their way.
pub(crate) const STEPPED_ROOM_MAX: usize = 8;
/// Blocks that a direct lane has on their way: of two objects that are taken whole.
const DIRECT_ROOM: usize = 16;
/// A block up to this size rides in its offer.
pub(crate) const INLINE_MAX: u64 = 10 << 10;
/// Blocks that a member pulls at a time, and bytes of them where they are several.
pub(crate) const PULLS_MAX: usize = 4;
const PULLED_BYTES_MAX: u64 = 256 << 10;
/// Objects that have begun and are not delivered: each may have a thread, and registered memory.
const BEGUN_MAX: usize = 64;
/// A root that follows on a dead one numbers its objects from that power of two for each group before: another one may have followed, and
/// died, of which it has not heard everything.
const GENERATION_BITS: u32 = 32;

/// What a member is told when it begins.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) own: u32,
    /// On which node each member is.
    pub(crate) nodes: Vec<u32>,
    /// Of all that members have to agree on.
    pub(crate) digest: u64,
    pub(crate) in_flight: usize,
    pub(crate) untaken_max: u64,
}

/// What happens to a member.
#[derive(Debug, Clone)]
pub(crate) enum Event<S> {
    Message {
        from: u32,
        message: Message<S>,
    },
    /// There is a place for the object, of which so many bytes are to be received.
    Ready {
        object: u64,
        bytes: u64,
    },
    /// There is none.
    Refused {
        object: u64,
        why: String,
    },
    /// A block that is pulled is where it belongs but for its end.
    Nearly {
        object: u64,
        block: u64,
    },
    /// A block that was pulled is where it belongs, and verified.
    Arrived {
        object: u64,
        block: u64,
    },
    /// It could not be pulled from there: that member is dead, or has heard before this one that the group has failed.
    Broken {
        from: u32,
        why: String,
    },
    /// What was pulled from there was wrong.
    Wrong {
        from: u32,
        why: String,
    },
    /// All blocks are where they belong, and the object is finished.
    Finished {
        object: u64,
    },
    /// So many bytes of objects were received by the user.
    Received {
        bytes: u64,
    },
    /// A member's process has ended, or cannot be reached.
    Gone {
        member: u32,
        why: String,
    },
    /// The root's call may not have reached it.
    NotCalled {
        member: u32,
    },
    /// A member's process is not in the group, or not yet, or not any more.
    Unknown {
        member: u32,
        why: String,
    },
    /// Joining has taken too long.
    Late,
    /// This member can go on no more, or does not want to.
    Own {
        why: String,
    },
    Close,
    /// This survivor leads, if it does: the others are told this id.
    Reform {
        id: [u64; 2],
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action<S> {
    Tell {
        to: u32,
        message: Message<S>,
    },
    /// To be told when that process ends.
    Watch {
        member: u32,
    },
    /// Say where the block is.
    Offer {
        to: u32,
        object: u64,
        block: u64,
        header: Option<Header>,
    },
    /// Ask where the object goes.
    Prepare {
        object: u64,
    },
    Pull {
        from: u32,
        object: u64,
        block: u64,
        source: S,
    },
    /// All blocks are there.
    Finish {
        object: u64,
    },
    Joined,
    /// It is whole, nothing of it is left to pass on, and its turn has come.
    Deliver {
        object: u64,
    },
    /// At the root: every member has it.
    Everywhere {
        object: u64,
    },
    /// It will never be whole.
    Lost {
        object: u64,
    },
    Closed,
    Failed {
        member: u32,
        why: String,
    },
    /// The group goes on under this id, with these of its members.
    Reformed {
        id: [u64; 2],
        members: Vec<u32>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Joining,
    Open,
    /// The root waits until the others have heard it.
    Closing,
    Closed,
    Failed {
        member: u32,
        why: String,
    },
}

/// What goes on in the group that is formed of the survivors.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    objects: BTreeMap<u64, Object>,
    whole: u64,
    /// Bytes of what is delivered, and not received.
    delivered: u64,
    /// Of a member that was not the root.
    is_receivers: bool,
    /// How many groups there were before: all members of one group come from the same.
    generation: u32,
}

/// A member.
#[derive(Debug)]
pub(crate) struct Machine<S> {
    config: Config,
    phase: Phase,
    actions: VecDeque<Action<S>>,
    /// Those that have begun here, by number.
    objects: BTreeMap<u64, Object>,
    /// What this member sends: by steps, and to each of those that only read from it.
    stepped: Lane,
    direct: BTreeMap<u32, Lane>,
    /// Offers that cannot be pulled yet.
    waiting: VecDeque<Waiting<S>>,
    pulling: Vec<Pulling>,
    /// The next object to begin; at the root, to be sent.
    next: u64,
    /// Objects that are whole here: those before this number.
    whole: u64,
    /// The root does not know it yet: it is told once of all that has become whole at a time.
    has_to_tell_whole: bool,
    watches_root: bool,
    /// Those that are watched by now, or need not be: receivers watch each other from their first block.
    watched: BTreeSet<u32>,
    /// The root has, since it was asked last.
    was_called: bool,
    /// The next object to deliver; at the root, to be everywhere.
    deliver: u64,
    untaken: u64,
    /// At the root: how many objects each member has whole, once it has joined.
    joined: BTreeMap<u32, u64>,
    is_closing: bool,
    heard: BTreeSet<u32>,
    dead: BTreeSet<u32>,
    /// Those from which something could not be pulled, and why.
    suspects: BTreeMap<u32, String>,
    has_reformed: bool,
    generation: u32,
}

impl<S> Machine<S> {
    pub(crate) fn new(config: Config, carried: Carried) -> Self {
        let own = config.own;
        let Carried { objects, whole, delivered, is_receivers, generation } = carried;
        let kept = objects.values().filter(|it| it.is_ready).map(|it| it.bytes);
        let members = count(&config.nodes);
        let mut machine = Self {
            phase: Phase::Joining,
            actions: VecDeque::new(),
            stepped: Lane::new(),
            direct: BTreeMap::new(),
            waiting: VecDeque::new(),
            pulling: Vec::new(),
            next: whole,
            whole,
            has_to_tell_whole: false,
            watches_root: false,
            watched: if own == 0 { (0..members).collect() } else { BTreeSet::from([0]) },
            was_called: false,
            deliver: whole,
            untaken: delivered + kept.sum::<u64>(),
            objects: objects.into_iter().map(|(number, it)| (number, it.carried())).collect(),
            joined: BTreeMap::new(),
            is_closing: false,
            heard: BTreeSet::new(),
            dead: BTreeSet::new(),
            suspects: BTreeMap::new(),
            has_reformed: false,
            generation,
            config,
        };
        if own == 0 {
            if is_receivers {
                // What a root has begun that is dead cannot be sent by the one that follows. Its numbers are not used again.
                machine.lose(u64::MAX);
                machine.next = whole.max(u64::from(generation) << GENERATION_BITS);
            }
            machine.tell_all(|| Message::Call);
        } else {
            machine.watch_root();
            machine.tell(0, machine.join());
        }
        machine
    }

    /// What is to be done next.
    pub(crate) fn poll_action(&mut self) -> Option<Action<S>> {
        let is_due = matches!(self.actions.front(), None | Some(Action::Deliver { .. }));
        if is_due && std::mem::take(&mut self.has_to_tell_whole) {
            let message = Message::Whole { count: self.whole };
            return Some(Action::Tell { to: 0, message });
        }
        self.actions.pop_front()
    }

    pub(crate) fn header(&self, object: u64) -> Option<&Header> {
        self.objects.get(&object).map(|it| &it.header)
    }

    pub(crate) fn members(&self) -> u32 {
        count(&self.config.nodes)
    }

    /// At the root: the objects that are not everywhere yet.
    pub(crate) fn unfinished(&self) -> Vec<u64> {
        let is_root = self.config.own == 0;
        self.objects.keys().copied().filter(|_| is_root).collect()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Failed { .. })
    }

    /// What is left for a group of the survivors; this member of it ends.
    pub(crate) fn carry(self) -> Carried {
        let whole = if self.config.own == 0 { self.next } else { self.whole };
        let (is_receivers, generation) = (self.config.own != 0, self.generation.saturating_add(1));
        let delivered = self.untaken - self.objects.values().map(|it| it.bytes).sum::<u64>();
        Carried { objects: self.objects, whole, delivered, is_receivers, generation }
    }

    pub(crate) fn handle(&mut self, event: Event<S>) {
        match event {
            Event::Message { from, message } => self.handle_message(from, message),
            Event::Gone { member, why } => self.handle_gone(member, &why),
            Event::Unknown { member, why } => self.handle_unknown(member, &why),
            Event::Received { bytes } => {
                self.untaken = self.untaken.saturating_sub(bytes);
                self.begin_objects();
            }
            Event::Own { why } => self.fail(self.config.own, &why, true),
            Event::Reform { id } => self.reform(id),
            _ if self.is_over() => {}
            Event::Ready { object, bytes } => self.handle_ready(object, bytes),
            Event::Refused { object, why } => {
                let why = format!("it refused object {object}: {why}");
                self.fail(self.config.own, &why, true);
            }
            Event::Nearly { object, block } => self.handle_nearly(object, block),
            Event::Arrived { object, block } => self.handle_arrived(object, block),
            Event::Broken { from, why } => {
                self.suspects.insert(from, why);
                self.tell(from, Message::Ask);
            }
            Event::Wrong { from, why } => self.fail(from, &why, true),
            Event::Finished { object } => self.handle_finished(object),
            Event::Late => self.handle_late(),
            Event::NotCalled { member } => self.call_again(member),
            Event::Close => self.close(),
        }
    }

    fn handle_message(&mut self, from: u32, message: Message<S>) {
        if from >= self.members() || from == self.config.own {
            return;
        }
        let is_root = self.config.own == 0;
        match message {
            Message::Failed { member, why } => self.handle_failed(from, member, &why),
            Message::Reform { id, members } => self.handle_reform(from, id, members),
            Message::Bye if is_root => {
                self.heard.insert(from);
                self.close_if_heard();
            }
            Message::Ask => {
                let answer = match &self.phase {
                    Phase::Failed { member, why } => {
                        Message::Failed { member: *member, why: why.clone() }
                    }
                    _ => Message::Answer,
                };
                self.tell(from, answer);
            }
            // It has failed here, as somebody else has said: the root waits for no more.
            Message::Closed { .. } if from == 0 && self.is_over() => self.tell(0, Message::Bye),
            _ if self.is_over() => {}
            Message::Answer => {
                if let Some(why) = self.suspects.remove(&from) {
                    self.fail(from, &why, true);
                }
            }
            Message::Join { digest, whole } if is_root => {
                self.handle_join(from, digest, whole);
            }
            Message::Call if from == 0 => {
                self.was_called = true;
                self.watch_root();
                self.tell(0, self.join());
            }
            Message::Begin { next } if from == 0 && next < NUMBERS_END => self.begin(next),
            Message::Offer { object, block, header, source } => {
                self.handle_offer(Waiting { from, object, block, header, source });
            }
            Message::Nearly { object, block } => self.handle_nearly_taken(from, object, block),
            Message::Took { object, block } => self.handle_took(from, object, block),
            Message::Whole { count } if is_root => self.handle_whole(from, count),
            Message::Closed { count } if from == 0 => self.handle_closed(count),
            Message::Unreachable { member, why } if is_root => {
                self.handle_unreachable(from, member, &why);
            }
            Message::Join { .. }
            | Message::Call
            | Message::Begin { .. }
            | Message::Whole { .. }
            | Message::Closed { .. }
            | Message::Unreachable { .. }
            | Message::Bye => self.breach(from, "it said what it is not for it to say"),
        }
    }

    fn handle_gone(&mut self, member: u32, why: &str) {
        let is_root = self.config.own == 0;
        if is_root && self.phase == Phase::Joining && !self.joined.contains_key(&member) {
            return; // It may come yet.
        }
        match &self.phase {
            Phase::Closing => {
                self.dead.insert(member);
                if self.heard.insert(member) {
                    // It may live, and have lost that word with a connection.
                    self.tell(member, Message::Closed { count: self.next });
                }
                self.close_if_heard();
            }
            // It may have heard before this one that all is closed, and ended. The root knows that.
            Phase::Joining | Phase::Open if !is_root && member != 0 => {
                self.dead.insert(member);
                self.tell(0, Message::Unreachable { member, why: bounded(why) });
            }
            Phase::Failed { member: by, why } => {
                let message = Message::Failed { member: *by, why: why.clone() };
                if self.dead.insert(member) {
                    self.tell(member, message);
                }
            }
            Phase::Joining | Phase::Open | Phase::Closed => self.fail(member, why, true),
        }
    }

    /// One receiver has lost another one, and the root may still reach both.
    fn handle_unreachable(&mut self, from: u32, member: u32, why: &str) {
        if self.phase == Phase::Open && member < self.members() {
            self.fail(member, &format!("member {from} does not reach it: {why}"), true);
        }
    }

    fn handle_failed(&mut self, from: u32, member: u32, why: &str) {
        if member >= self.members() {
            return;
        }
        if self.phase == Phase::Closing {
            self.closed(); // Everything is everywhere, and who has heard of this first says no more.
            return;
        }
        // The root tells everybody; so does whoever notices, and that was somebody else.
        let is_new = self.config.own == 0 && from != 0;
        self.fail(member, why, is_new);
    }

    fn breach(&mut self, member: u32, why: &str) {
        self.fail(member, &format!("it broke the protocol: {why}"), true);
    }

    /// The group has failed by a member. `tells`: the others hear it from here, that one too: it may live, where no more than a connection has ended.
    fn fail(&mut self, member: u32, why: &str, tells: bool) {
        if self.is_over() {
            self.dead.insert(member);
            return;
        }
        let why: String = bounded(why);
        self.phase = Phase::Failed { member, why: why.clone() };
        self.waiting.clear();
        self.pulling.clear();
        // Who is asked now would be asked once more in the group that follows.
        self.actions.retain(|it| !matches!(it, Action::Prepare { .. }));
        if tells {
            self.tell_all(|| Message::Failed { member, why: why.clone() });
        }
        self.dead.insert(member);
        // Whoever leads the survivors is watched by them all.
        let leader = self.leader();
        if leader != self.config.own && self.watched.insert(leader) {
            self.actions.push_back(Action::Watch { member: leader });
        }
        if self.config.own != 0 {
            self.deliver_whole(true);
        }
        self.actions.push_back(Action::Failed { member, why });
    }

    fn tell(&mut self, to: u32, message: Message<S>) {
        self.actions.push_back(Action::Tell { to, message });
    }

    /// All others that are not known to be dead.
    fn tell_all(&mut self, message: impl Fn() -> Message<S>) {
        let others = (0..self.members()).filter(|it| *it != self.config.own);
        for to in others.filter(|it| !self.dead.contains(it)).collect::<Vec<_>>() {
            self.tell(to, message());
        }
    }
}

/// Members, by the node of each.
fn count(nodes: &[u32]) -> u32 {
    u32::try_from(nodes.len()).expect("members are counted by 32 bits")
}
