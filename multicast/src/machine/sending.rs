//! The root's objects, and what every member passes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Action, BlockSet, DIRECT_ROOM, Header, INLINE_MAX, Machine, Message, Phase, SMALL_ROOM,
    STEPPED_ROOM_MAX,
    lane::{Cursor, Lane, Next, Offered},
    object::Object,
};
use crate::schedule::{Choice, Kind, Plan};

impl<S> Machine<S> {
    /// At the root: one more object, of which everything is here, in memory or not. Gives its number.
    pub(crate) fn send(
        &mut self,
        choice: Choice,
        (size, block_size): (u64, u64),
        is_in_memory: bool,
        metadata: Vec<u8>,
    ) -> u64 {
        // Its kind follows from its blocks.
        let mut header = Header { size, block_size, kind: Kind::Direct, among: None, metadata };
        let blocks = is_in_memory.then(|| header.blocks());
        header.kind = Kind::of(choice, size, blocks, &self.config.nodes);
        let number = self.next;
        self.next += 1;
        let held = BlockSet::all(header.blocks());
        self.objects.insert(number, Object { is_ready: true, ..Object::new(header, held) });
        if self.phase == Phase::Open {
            self.queue(number);
            self.pump();
        }
        number
    }

    /// All have joined: what they lack is sent, first what was begun in another group.
    pub(super) fn begin_as_root(&mut self) {
        let next = self.objects.keys().next().copied().unwrap_or(self.next);
        self.deliver = next;
        for whole in self.joined.values_mut() {
            *whole = (*whole).max(next);
        }
        self.tell_all(|| Message::Begin { next });
        let numbers: Vec<_> = self.objects.keys().copied().collect();
        for number in numbers {
            let lacks = self.joined.iter().filter(|it| *it.1 <= number).map(|it| *it.0);
            let among: Vec<_> = std::iter::once(0).chain(lacks).collect();
            if let Some(object) = self.objects.get_mut(&number) {
                let is_all = among.len() == self.config.nodes.len();
                object.header.among = (!is_all).then_some(among);
            }
            self.queue(number);
        }
        self.settle_everywhere();
    }

    /// Puts an object into the lanes that it takes from here.
    pub(super) fn queue(&mut self, number: u64) {
        let Some(object) = self.objects.get(&number) else { return };
        let Header { kind, among, .. } = &object.header;
        let all = || (0..self.members()).collect();
        let among: Vec<u32> = among.clone().unwrap_or_else(all);
        let nodes: Vec<_> = among.iter().map(|it| self.config.nodes[*it as usize]).collect();
        let blocks = object.header.blocks();
        let Plan { stepped, direct } = Plan::new(*kind, (&among, &nodes), blocks, self.config.own);
        if let Some(stepped) = stepped {
            self.stepped.push(number, Cursor::stepped(stepped));
        }
        for to in direct {
            self.direct.entry(to).or_insert_with(Lane::new).push(number, Cursor::Direct(to, 0));
        }
    }

    /// Offers what can be offered.
    pub(super) fn pump(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        let stepped_room = self.config.in_flight;
        let Self { stepped, direct, objects, actions, watched, .. } = self;
        let mut offer = |lane: &mut Lane, room| offer_next(lane, objects, (actions, watched), room);
        while offer(stepped, (stepped_room, STEPPED_ROOM_MAX)) {}
        // A block goes to all before the next one, so that all begin at once.
        while direct
            .values_mut()
            .fold(false, |is_any, lane| offer(lane, (DIRECT_ROOM, SMALL_ROOM)) | is_any)
        {}
    }

    pub(super) fn handle_took(&mut self, from: u32, object: u64, block: u64) {
        let direct = self.direct.get_mut(&from);
        let is_direct = direct.is_some_and(|it| it.take(from, object, block));
        // At the root: an object that is whole there.
        let is_over = self.joined.get(&from).is_some_and(|whole| object < *whole);
        if !is_direct && !self.stepped.take(from, object, block) && !is_over {
            self.breach(from, "it took what was not offered");
            return;
        }
        self.pump();
        self.deliver_whole(false);
        self.begin_objects(); // What was delivered makes room.
    }

    /// Direct lanes have room enough without: there it says nothing.
    pub(super) fn handle_nearly_taken(&mut self, from: u32, object: u64, block: u64) {
        let is_stepped = self.stepped.nearly_take(from, object, block);
        if is_stepped {
            self.pump();
        } else if !self.direct.get(&from).is_some_and(|it| it.has_offered(from, object, block)) {
            self.breach(from, "it has most of what was not offered");
        }
    }

    /// Whether nothing of an object is left to pass on.
    pub(super) fn is_through(&self, object: u64) -> bool {
        self.stepped.is_through(object) && self.direct.values().all(|it| it.is_through(object))
    }

    pub(super) fn handle_whole(&mut self, from: u32, count: u64) {
        let Some(whole) = self.joined.get_mut(&from) else { return };
        if count > self.next {
            self.breach(from, "it has what was not sent");
            return;
        }
        *whole = count.max(*whole);
        if let Some(lane) = self.direct.get_mut(&from) {
            lane.take_whole(count);
        }
        self.settle_everywhere();
    }

    fn settle_everywhere(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        let everywhere = self.joined.values().copied().min().unwrap_or(0);
        while self.deliver < everywhere {
            let object = self.deliver;
            self.deliver += 1;
            if self.objects.remove(&object).is_some() {
                // A block that is there from another group may be offered still, or not be told of any more.
                self.stepped.forget(object);
                self.direct.values_mut().for_each(|it| it.forget(object));
                self.actions.push_back(Action::Everywhere { object });
            }
        }
        self.pump();
        self.close_if_done();
    }

    /// What is delivered is received by nobody from now on, and counts no more.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        self.untaken = self.objects.values().map(|it| it.bytes).sum();
        self.begin_objects();
        self.close_if_done();
    }

    pub(super) fn close_if_done(&mut self) {
        let is_root = self.config.own == 0;
        let is_done = self.phase == Phase::Open && self.is_closing && self.objects.is_empty();
        if is_root && is_done {
            self.phase = Phase::Closing;
            let count = self.next;
            self.tell_all(|| Message::Closed { count });
            self.close_if_heard();
        }
    }

    pub(super) fn close_if_heard(&mut self) {
        if self.phase == Phase::Closing && self.heard.len() + 1 >= self.config.nodes.len() {
            self.closed();
        }
    }

    pub(super) fn closed(&mut self) {
        self.phase = Phase::Closed;
        self.actions.push_back(Action::Closed);
    }
}

/// Offers the next block of a lane, if that can be; says whether. `room`: blocks on their way, and small ones.
fn offer_next<S>(
    lane: &mut Lane,
    objects: &mut BTreeMap<u64, Object>,
    (actions, watched): (&mut VecDeque<Action<S>>, &mut BTreeSet<u32>),
    room: (usize, usize),
) -> bool {
    while let Some(number) = lane.current() {
        let Some(object) = objects.get_mut(&number) else {
            lane.skip(number);
            continue;
        };
        let is_small = object.header.block_size.min(object.header.size) <= INLINE_MAX;
        if !lane.has_room(if is_small { room.1 } else { room.0 }) {
            return false;
        }
        match lane.next(&object.come, |block| object.held.has(block)) {
            Next::Block(to, block) => {
                let is_told = !object.header.is_taken_whole();
                let is_nearly_taken = false;
                let offered = Offered { to, object: number, block, is_told, is_nearly_taken };
                lane.offer(offered, object.header.blocks());
                if watched.insert(to) {
                    actions.push_back(Action::Watch { member: to });
                }
                let header = object.introduced.insert(to).then(|| object.header.clone());
                actions.push_back(Action::Offer { to, object: number, block, header });
                return true;
            }
            Next::Missing => return false,
            Next::Over => lane.skip(number),
        }
    }
    false
}
