//! What a member sends in order, and how much of it is on its way.

use std::collections::VecDeque;

use crate::schedule::Stepped;

/// A list of blocks to send, object after object, of which a few are offered at a time.
#[derive(Debug)]
pub(super) struct Lane {
    queue: VecDeque<(u64, Cursor)>,
    offered: Vec<Offered>,
}

/// A block that was offered, and is not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) to: u32,
    pub(super) object: u64,
    pub(super) block: u64,
    /// Whether it is said alone that it was taken; otherwise by what is whole.
    pub(super) is_told: bool,
    /// Whether it is there but for its end: it needs no room of the lane any more.
    pub(super) is_nearly_taken: bool,
}

/// How far an object is.
#[derive(Debug)]
pub(super) enum Cursor {
    /// In the order of its schedule; with what comes next.
    Stepped(Stepped, Option<(u32, u64)>),
    /// To one member, in the order in which blocks have come here: so many have gone.
    Direct(u32, usize),
}

impl Cursor {
    pub(super) fn stepped(mut order: Stepped) -> Self {
        let next = order.next();
        Self::Stepped(order, next)
    }
}

/// What a cursor points at.
pub(super) enum Next {
    Block(u32, u64),
    /// It has not come yet.
    Missing,
    Over,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self { queue: VecDeque::new(), offered: Vec::new() }
    }

    pub(super) fn push(&mut self, object: u64, cursor: Cursor) {
        if !matches!(cursor, Cursor::Stepped(_, None)) {
            self.queue.push_back((object, cursor));
        }
    }

    /// The object whose turn it is.
    pub(super) fn current(&self) -> Option<u64> {
        self.queue.front().map(|it| it.0)
    }

    /// Whether one more can be offered where so many may be on their way, and as many again whose end only is.
    pub(super) fn has_room(&self, room: usize) -> bool {
        let on_their_way = self.offered.iter().filter(|it| !it.is_nearly_taken).count();
        on_their_way < room && self.offered.len() < 2 * room
    }

    /// What comes next of the current object, whose blocks have come in this order.
    pub(super) fn next(&self, come: &[u64], has: impl Fn(u64) -> bool) -> Next {
        match self.queue.front() {
            Some((_, Cursor::Stepped(_, Some((to, block))))) if has(*block) => {
                Next::Block(*to, *block)
            }
            Some((_, Cursor::Stepped(_, Some(_)))) => Next::Missing,
            Some((_, Cursor::Direct(to, gone))) => {
                come.get(*gone).map_or(Next::Missing, |block| Next::Block(*to, *block))
            }
            Some((_, Cursor::Stepped(_, None))) | None => Next::Over,
        }
    }

    /// That was offered; the object has so many blocks.
    pub(super) fn offer(&mut self, offered: Offered, blocks: u64) {
        self.offered.push(offered);
        let is_over = match self.queue.front_mut().map(|it| &mut it.1) {
            Some(Cursor::Stepped(order, next)) => {
                *next = order.next();
                next.is_none()
            }
            Some(Cursor::Direct(_, gone)) => {
                *gone += 1;
                *gone as u64 == blocks
            }
            None => false,
        };
        if is_over {
            self.queue.pop_front();
        }
    }

    /// Says whether it was offered.
    pub(super) fn take(&mut self, to: u32, object: u64, block: u64) -> bool {
        let place = self.place(to, object, block);
        place.map(|place| self.offered.swap_remove(place)).is_some()
    }

    /// It is there but for its end; says whether it was offered.
    pub(super) fn nearly_take(&mut self, to: u32, object: u64, block: u64) -> bool {
        let place = self.place(to, object, block);
        place.map(|place| self.offered[place].is_nearly_taken = true).is_some()
    }

    #[cfg(test)]
    pub(super) fn offered(&self) -> &[Offered] {
        &self.offered
    }

    pub(super) fn has_offered(&self, to: u32, object: u64, block: u64) -> bool {
        self.place(to, object, block).is_some()
    }

    fn place(&self, to: u32, object: u64, block: u64) -> Option<usize> {
        self.offered.iter().position(|it| (it.to, it.object, it.block) == (to, object, block))
    }

    /// So many objects are whole there.
    pub(super) fn take_whole(&mut self, count: u64) {
        self.offered.retain(|it| it.is_told || it.object >= count);
    }

    /// The object needs to go no further.
    pub(super) fn skip(&mut self, object: u64) {
        self.queue.retain(|it| it.0 != object);
    }

    /// The same; nor is it waited for that what was offered of it is taken.
    pub(super) fn forget(&mut self, object: u64) {
        self.skip(object);
        self.offered.retain(|it| it.object != object);
    }

    /// Whether nothing of an object is left to send.
    pub(super) fn is_through(&self, object: u64) -> bool {
        !self.queue.iter().any(|it| it.0 == object)
            && !self.offered.iter().any(|it| it.object == object)
    }
}
