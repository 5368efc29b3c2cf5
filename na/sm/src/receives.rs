//! Matches expected messages of one peer with posted receives, by tag.
//!
//! Receives lie in a direct-mapped table (tag modulo its size), which sequential tags never overfill;
//! what collides goes to a map. A message without a receive is late: nothing is kept for it.
//! Cancelling names a receive by its serial: the first one that is not in the table makes an index, which is kept as long as
//! receives collide, so that cancelling thousands does not look at all the others each time.

use hg_na::{OpId, Tag, Token};
use rustc_hash::FxHashMap;

/// Receives of the direct-mapped table.
const TABLE: usize = 64;
/// So many receives wait where calls are made faster than they are answered.
const STREAM_MIN: u32 = 3;

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) tag: Tag,
    pub(crate) serial: u64,
    pub(crate) token: Token,
}

/// All receives from one peer.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    /// Made by the first receive; its length is 0 or [`TABLE`].
    table: Vec<Option<Receive>>,
    /// Receives in the table.
    in_table: u32,
    collided: FxHashMap<Tag, Receive>,
    /// Tags of all that collided by their serials, once one of them was to be cancelled.
    by_serial: Option<FxHashMap<u64, Tag>>,
}

impl Receives {
    /// Adds a receive; `false` when one with this tag is posted.
    #[inline]
    pub(crate) fn post(&mut self, receive: Receive) -> bool {
        if self.table.is_empty() {
            self.table.resize(TABLE, None);
        }
        let place = &mut self.table[place(receive.tag)];
        let collides = !self.collided.is_empty() && self.collided.contains_key(&receive.tag);
        match place {
            None if !collides => {
                *place = Some(receive);
                self.in_table += 1;
            }
            Some(other) if other.tag != receive.tag && !collides => {
                self.collided.insert(receive.tag, receive);
                if let Some(tags) = &mut self.by_serial {
                    tags.insert(receive.serial, receive.tag);
                }
            }
            _ => return false,
        }
        true
    }

    /// The fast path of [`Receives::post`]: its place is free, and nothing else could matter.
    #[inline(always)]
    pub(crate) fn post_plain(&mut self, receive: Receive) -> bool {
        let is_plain = self.has_plain_place(receive.tag);
        if is_plain {
            self.put_plain(receive);
        }
        is_plain
    }

    /// Adds a receive for which [`Receives::has_plain_place`] was said.
    #[inline(always)]
    pub(crate) fn put_plain(&mut self, receive: Receive) {
        self.table[place(receive.tag)] = Some(receive);
        self.in_table += 1;
    }

    /// Whether several wait, so that the peer has not read yet what it is to answer. Those that collide are not counted.
    #[inline(always)]
    pub(crate) fn is_streaming(&self) -> bool {
        self.in_table >= STREAM_MIN
    }

    /// Whether [`Receives::post_plain`] would take it.
    #[inline(always)]
    pub(crate) fn has_plain_place(&self, tag: Tag) -> bool {
        self.collided.is_empty() && matches!(self.table.get(place(tag)), Some(None))
    }

    /// The fast path of [`Receives::take`]: a receive in the table.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, tag: Tag) -> Option<Receive> {
        let at = self.table.get_mut(place(tag))?;
        if at.as_ref()?.tag != tag {
            return None;
        }
        self.in_table -= 1;
        at.take()
    }

    /// The receive that a message ends; `None`: nobody waits for it.
    pub(crate) fn take(&mut self, tag: Tag) -> Option<Receive> {
        self.take_plain(tag).or_else(|| self.take_collided(tag))
    }

    fn take_collided(&mut self, tag: Tag) -> Option<Receive> {
        let receive = self.collided.remove(&tag)?;
        if self.collided.is_empty() {
            self.by_serial = None;
        } else if let Some(tags) = &mut self.by_serial {
            tags.remove(&receive.serial);
        }
        Some(receive)
    }

    /// The tag of a receive that collided.
    fn tag_of(&mut self, serial: u64) -> Option<Tag> {
        if self.collided.is_empty() {
            return None;
        }
        let collided = self.collided.values();
        let index = || collided.map(|receive| (receive.serial, receive.tag)).collect();
        self.by_serial.get_or_insert_with(index).get(&serial).copied()
    }

    /// Ends a receive early.
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let at =
            self.table.iter_mut().find(|at| at.is_some_and(|receive| receive.serial == serial));
        if let Some(at) = at {
            self.in_table -= 1;
            return at.take();
        }
        let tag = self.tag_of(serial)?;
        self.take_collided(tag)
    }

    /// Ends all receives, oldest first: the peer is gone.
    pub(crate) fn take_all(&mut self) -> Vec<Receive> {
        let mut all: Vec<_> = self.table.drain(..).flatten().collect();
        self.in_table = 0;
        all.extend(self.collided.drain().map(|(_, receive)| receive));
        self.by_serial = None;
        all.sort_unstable_by_key(|receive| receive.serial);
        all
    }

    /// Op ids are made elsewhere; this only builds them.
    pub(crate) fn id(scope: u32, receive: &Receive) -> OpId {
        OpId { scope, serial: receive.serial }
    }
}

#[inline]
fn place(tag: Tag) -> usize {
    usize::try_from(tag % TABLE as u64).expect("a remainder of 64 fits")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn receive(tag: Tag, serial: u64) -> Receive {
        Receive { tag, serial, token: 0 }
    }

    #[test]
    fn cancelling_finds_receives_by_serial_whatever_came_and_went_before() {
        let mut receives = Receives::default();
        let of = |serial: u64| receive(7 + 64 * serial, serial);
        for serial in 0..100 {
            assert!(receives.post(of(serial)));
        }
        assert_eq!(receives.cancel(50), Some(of(50)), "makes the index");
        assert_eq!((receives.cancel(50), receives.cancel(1000)), (None, None));
        assert_eq!(receives.take(of(60).tag), Some(of(60)));
        assert_eq!(receives.cancel(60), None, "it has ended");
        assert!(receives.post(of(100)) && receives.post(receive(of(50).tag, 101)));
        assert_eq!(receives.cancel(100), Some(of(100)), "posted after the index was made");
        assert_eq!(receives.cancel(101), Some(receive(of(50).tag, 101)), "a tag used again");
        for serial in (0..100).filter(|serial| ![50, 60].contains(serial)) {
            assert_eq!(receives.cancel(serial), Some(of(serial)));
        }
        assert!(receives.by_serial.is_none() && receives.take_all().is_empty());
    }

    #[test]
    fn a_stream_is_several_receives_that_wait_in_the_table() {
        let mut receives = Receives::default();
        let of = |serial: u64| receive(serial, serial);
        for serial in 0..3 {
            assert!(!receives.is_streaming());
            assert!(receives.post(of(serial)));
        }
        assert!(receives.is_streaming());
        assert_eq!(receives.take(0), Some(of(0)));
        assert!(!receives.is_streaming());
        assert!(receives.post_plain(of(3)) && receives.is_streaming());
        assert!(receives.post(receive(3 + 64, 4)), "collides, and is not counted");
        assert_eq!(receives.cancel(3), Some(of(3)));
        assert!(!receives.is_streaming());
        assert_eq!((receives.take_all().len(), receives.in_table), (3, 0));
    }

    #[test]
    fn receives_that_share_a_place_are_all_found_and_tags_are_unique() {
        let mut receives = Receives::default();
        let tags = [1, 65, 129, u64::MAX];
        for (tag, serial) in tags.into_iter().zip(0..) {
            assert!(receives.post(receive(tag, serial)));
            assert!(!receives.post(receive(tag, 100)));
        }
        assert_eq!(receives.take(1), Some(receive(1, 0)));
        assert!(!receives.post(receive(65, 100)), "posted in the map, its place now free");
        for (tag, serial) in tags.into_iter().zip(0..).skip(1) {
            assert_eq!(receives.take(tag), Some(receive(tag, serial)));
        }
        assert_eq!(receives.take(1), None);
    }

    #[test]
    fn a_cancelled_receive_leaves_nothing_behind() {
        let mut receives = Receives::default();
        for tag in [7, 71] {
            assert!(receives.post(receive(tag, tag)));
        }
        for tag in [7, 71] {
            assert_eq!(receives.cancel(tag), Some(receive(tag, tag)));
            assert_eq!((receives.cancel(tag), receives.take(tag)), (None, None));
        }
        assert!(receives.has_plain_place(7));
        assert!(receives.post(receive(71, 9)), "its tag is free");
        assert_eq!(receives.take(7), None, "of the same place");
        assert_eq!(receives.take(71), Some(receive(71, 9)));
    }
}
