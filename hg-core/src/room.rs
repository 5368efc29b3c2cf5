//! Who waits for room for another call, in the order in which they came.

use std::{collections::VecDeque, task::Waker};

/// A queue of wakers. They are users': they are woken and dropped without a lock.
#[derive(Debug, Default)]
pub struct Room {
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl Room {
    /// Whether nobody waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a place in the queue.
    pub fn push(&mut self, waker: Waker) -> u64 {
        let place = self.next;
        self.next += 1;
        self.waiting.push_back((place, waker));
        place
    }

    /// The waker at a place; `None`: it was woken.
    pub fn waker(&mut self, place: u64) -> Option<&mut Waker> {
        self.waiting.iter_mut().find(|(other, _)| *other == place).map(|(_, waker)| waker)
    }

    /// Leaves the queue; `None`: it was woken.
    pub fn remove(&mut self, place: u64) -> Option<Waker> {
        let at = self.waiting.iter().position(|(other, _)| *other == place)?;
        self.waiting.remove(at).map(|(_, waker)| waker)
    }

    /// The first ones, as many as there is room for.
    #[must_use = "they are to be woken"]
    pub fn pop(&mut self, room: usize) -> Vec<Waker> {
        let first = self.waiting.len().min(room);
        self.waiting.drain(..first).map(|(_, waker)| waker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_woken_as_there_is_room_for_and_who_has_left_is_not() {
        let mut room = Room::default();
        let places: Vec<u64> = (0..4).map(|_| room.push(Waker::noop().clone())).collect();
        assert!(room.remove(places[1]).is_some());
        assert_eq!(room.pop(2).len(), 2);
        let waiting: Vec<bool> = places.iter().map(|it| room.waker(*it).is_some()).collect();
        assert_eq!(waiting, [false, false, false, true]);
        assert!(room.remove(places[0]).is_none() && !room.is_empty());
        assert_eq!((room.pop(9).len(), room.is_empty()), (1, true));
    }
}
