//! What a member takes.

use super::{
    Action, BEGUN_MAX, BlockSet, Header, Machine, Message, OFFERS_MAX, PULLED_BYTES_MAX, PULLS_MAX,
    Phase, object::Object,
};

/// An offer that cannot be pulled yet.
#[derive(Debug)]
pub(super) struct Waiting<S> {
    pub(super) from: u32,
    pub(super) object: u64,
    pub(super) block: u64,
    pub(super) header: Option<Header>,
    pub(super) source: S,
}

/// A block that comes.
#[derive(Debug)]
pub(super) struct Pulling {
    from: u32,
    object: u64,
    block: u64,
}

impl<S> Machine<S> {
    pub(super) fn handle_offer(&mut self, offer: Waiting<S>) {
        let from = offer.from;
        let of_it = self.waiting.iter().filter(|it| it.from == from).count();
        let pulled = self.pulling.iter().filter(|it| it.from == from).count();
        if of_it + pulled >= OFFERS_MAX {
            self.breach(from, "it offers more than it was let");
            return;
        }
        if offer.header.as_ref().is_some_and(|it| !it.is_sound(self.members())) {
            self.breach(from, "it offers an object that cannot be");
            return;
        }
        if self.watched.insert(from) {
            self.actions.push_back(Action::Watch { member: from });
        }
        self.waiting.push_back(offer);
        self.begin_objects();
        self.pull();
    }

    /// Begins those that can be, in the root's order.
    pub(super) fn begin_objects(&mut self) {
        while self.phase == Phase::Open && self.config.own != 0 {
            let next = self.next;
            let is_full = self.untaken >= self.config.untaken_max && self.untaken > 0;
            let begun = self.objects.values().filter(|it| it.has_begun).count();
            let carried = self.objects.get(&next);
            if begun >= BEGUN_MAX || (is_full && carried.is_none()) {
                return;
            }
            let offered = self.waiting.iter().find(|it| it.object == next && it.header.is_some());
            let Some(header) = offered.and_then(|it| it.header.clone()) else { return };
            self.next += 1;
            self.begin_object(next, header);
            self.pump();
            self.pull();
        }
    }

    /// Begins an object, or goes on with what is here of it from another group.
    fn begin_object(&mut self, number: u64, header: Header) {
        let is_same = |it: &Object| {
            it.header.size == header.size && it.header.block_size == header.block_size
        };
        let mut object = match self.objects.remove(&number).filter(is_same) {
            Some(before) => Object { header, has_begun: true, ..before },
            None => {
                let held = BlockSet::none(header.blocks());
                Object::new(header, held)
            }
        };
        let is_ready = object.is_ready;
        if !is_ready {
            object.bytes = object.header.size + object.header.kept(); // Until it is known better.
            self.untaken += object.bytes;
        }
        self.objects.insert(number, object);
        self.queue(number);
        if is_ready {
            self.finish_if_whole(number);
        } else {
            self.actions.push_back(Action::Prepare { object: number });
        }
    }

    pub(super) fn handle_ready(&mut self, object: u64, bytes: u64) {
        let Some(it) = self.objects.get_mut(&object) else { return };
        it.is_ready = true;
        self.untaken = self.untaken - it.bytes + bytes;
        it.bytes = bytes;
        self.pull();
        self.begin_objects();
    }

    /// Pulls what can be pulled, and answers for what is here.
    fn pull(&mut self) {
        let mut place = 0;
        while self.phase == Phase::Open && place < self.waiting.len() {
            let Waiting { from, object, block, .. } = self.waiting[place];
            let is_done = object < self.next && !self.objects.contains_key(&object);
            let known = self.objects.get(&object).filter(|it| it.has_begun);
            if known.is_some_and(|it| block >= it.header.blocks()) {
                self.breach(from, "it offers a block that cannot be");
                return;
            }
            if is_done || known.is_some_and(|it| it.held.has(block)) {
                self.waiting.remove(place);
                self.tell(from, Message::Took { object, block });
                continue;
            }
            let is_coming = self.coming(object, block).is_some();
            let can_come = known.is_some_and(|it| it.is_ready) && !is_coming;
            if can_come && self.has_room_to_pull(object, block) {
                if let Some(Waiting { source, .. }) = self.waiting.remove(place) {
                    self.pulling.push(Pulling { from, object, block });
                    self.actions.push_back(Action::Pull { from, object, block, source });
                }
                continue;
            }
            place += 1;
        }
    }

    /// One at a time, unless they are small: two that share a link both come late, and so do those that wait for them.
    fn has_room_to_pull(&self, object: u64, block: u64) -> bool {
        let len = |object, block| {
            self.objects.get(&object).map_or(0, |it: &Object| it.header.range(block).1)
        };
        let coming: u64 = self.pulling.iter().map(|it| len(it.object, it.block)).sum();
        let pulls = self.pulling.len();
        pulls == 0 || pulls < PULLS_MAX && coming + len(object, block) <= PULLED_BYTES_MAX
    }

    fn coming(&self, object: u64, block: u64) -> Option<usize> {
        self.pulling.iter().position(|it| (it.object, it.block) == (object, block))
    }

    pub(super) fn handle_nearly(&mut self, object: u64, block: u64) {
        if let Some(place) = self.coming(object, block) {
            self.tell(self.pulling[place].from, Message::Nearly { object, block });
        }
    }

    pub(super) fn handle_arrived(&mut self, object: u64, block: u64) {
        let Some(place) = self.coming(object, block) else { return };
        let Pulling { from, .. } = self.pulling.swap_remove(place);
        let Some(it) = self.objects.get_mut(&object) else { return };
        it.insert(block);
        if !it.header.is_taken_whole() {
            self.tell(from, Message::Took { object, block });
        }
        self.pump();
        self.pull();
        self.finish_if_whole(object);
    }

    fn finish_if_whole(&mut self, object: u64) {
        if self.objects.get(&object).is_some_and(|it| it.held.is_whole()) {
            self.actions.push_back(Action::Finish { object });
        }
    }

    pub(super) fn handle_finished(&mut self, object: u64) {
        let Some(it) = self.objects.get_mut(&object) else { return };
        it.is_finished = true;
        let before = self.whole;
        while self.objects.get(&self.whole).is_some_and(|it| it.is_finished) {
            self.whole += 1;
        }
        self.has_to_tell_whole |= self.whole > before;
        self.deliver_whole(false);
        self.begin_objects();
    }

    /// Delivers in order what is whole, and has nothing left to pass on; `all`: or will pass nothing on any more.
    pub(super) fn deliver_whole(&mut self, all: bool) {
        while self.config.own != 0 && self.deliver < self.whole {
            let object = self.deliver;
            if !all && !self.is_through(object) {
                return;
            }
            self.deliver += 1;
            if let Some(delivered) = self.objects.remove(&object) {
                if self.is_closing {
                    self.untaken -= delivered.bytes;
                }
                self.actions.push_back(Action::Deliver { object });
            }
        }
    }

    /// What has begun before this object, and is not whole, never will be.
    pub(super) fn lose(&mut self, before: u64) {
        let kept = self.objects.split_off(&before);
        for (object, lost) in std::mem::replace(&mut self.objects, kept) {
            self.untaken -= lost.bytes;
            self.actions.push_back(Action::Lost { object });
        }
    }

    pub(super) fn handle_closed(&mut self, count: u64) {
        if self.phase != Phase::Open || self.whole != count {
            self.breach(0, "it closes what is not whole");
            return;
        }
        self.deliver_whole(true);
        self.phase = Phase::Closed;
        self.tell(0, Message::Bye);
        self.actions.push_back(Action::Closed);
    }
}
