//! Matches expected messages of one peer with posted receives, by tag.
//!
//! Receives lie in a direct-mapped table (tag modulo its size), which sequential tags never overfill: it grows when most of
//! it is used. What collides goes to a map, and is noted at its place: receives of other places are none the slower.
//! A message without a receive is late: nothing is kept for it.
//! Cancelling names a receive by its serial, which is looked for in the table, then in the map's index.

use hg_na::{Tag, Token};
use hg_na_parts::receives;

/// Receives of the direct-mapped table, at first and at most; powers of two.
const TABLE: usize = 64;
const TABLE_MAX: usize = 1024;
/// So many receives wait where calls are made faster than they are answered.
const STREAM_MIN: u32 = 3;

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) tag: Tag,
    pub(crate) serial: u64,
    pub(crate) token: Token,
}

impl Receive {
    /// One that was in the map.
    fn collided((tag, receives::Receive { serial, token }): (Tag, receives::Receive)) -> Self {
        Self { tag, serial, token }
    }
}

/// A place of the table: half a cache line.
#[derive(Debug, Clone, Copy)]
struct Place {
    is_used: bool,
    /// Receives of this place that are in the map.
    collided: u32,
    receive: Receive,
}

const FREE: Place =
    Place { is_used: false, collided: 0, receive: Receive { tag: 0, serial: 0, token: 0 } };

const _: () = assert!(size_of::<Place>() == 32);

impl Place {
    fn take(&mut self) -> Option<Receive> {
        std::mem::take(&mut self.is_used).then_some(self.receive)
    }
}

/// All receives from one peer.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    /// Made by the first receive; its length is 0 or a power of two.
    table: Vec<Place>,
    /// Receives in the table.
    in_table: u32,
    collided: receives::Receives,
}

impl Receives {
    /// Adds a receive; `false` when one with this tag is posted.
    #[inline]
    pub(crate) fn post(&mut self, receive: Receive) -> bool {
        if self.table.is_empty() {
            self.table.resize(TABLE, FREE);
        }
        if let Some(at) = self.plain_place(receive.tag) {
            self.put_plain(at, receive);
            return true;
        }
        let place = self.table[self.place(receive.tag)];
        let is_there = place.is_used && place.receive.tag == receive.tag;
        if is_there || place.collided > 0 && self.collided.contains(receive.tag) {
            return false;
        }
        if self.in_table as usize > self.table.len() / 2 && self.table.len() < TABLE_MAX {
            self.grow();
            return self.post(receive);
        }
        self.put(receive);
        true
    }

    /// Adds a receive that is not there.
    fn put(&mut self, receive: Receive) {
        let at = self.place(receive.tag);
        if !self.table[at].is_used {
            return self.put_plain(at, receive);
        }
        self.table[at].collided += 1;
        let Receive { tag, serial, token } = receive;
        let is_new = self.collided.post(tag, receives::Receive { serial, token });
        debug_assert!(is_new, "looked for before");
    }

    #[cold]
    fn grow(&mut self) {
        let len = 2 * self.table.len();
        let all = self.take_all();
        self.table.resize(len, FREE);
        for receive in all {
            self.put(receive);
        }
    }

    /// Adds a receive whose place is this one, and free.
    #[inline(always)]
    pub(crate) fn put_plain(&mut self, at: usize, receive: Receive) {
        let place = &mut self.table[at];
        (place.is_used, place.receive) = (true, receive);
        self.in_table += 1;
    }

    /// Whether several wait, so that the peer has not read yet what it is to answer. Those that collide are not counted.
    #[inline(always)]
    pub(crate) fn is_streaming(&self) -> bool {
        self.in_table >= STREAM_MIN
    }

    /// Its place, where that is free, and no other receive was ever to have it.
    #[inline(always)]
    pub(crate) fn plain_place(&self, tag: Tag) -> Option<usize> {
        let at = self.place(tag);
        let is_plain = |place: &Place| !place.is_used && place.collided == 0;
        self.table.get(at).is_some_and(is_plain).then_some(at)
    }

    /// The fast path of [`Receives::take`]: a receive in the table.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, tag: Tag) -> Option<Receive> {
        let at = self.place(tag);
        let place = self.table.get_mut(at)?;
        if !place.is_used || place.receive.tag != tag {
            return None;
        }
        place.is_used = false;
        self.in_table -= 1;
        Some(place.receive)
    }

    /// The receive that a message ends; `None`: nobody waits for it.
    pub(crate) fn take(&mut self, tag: Tag) -> Option<Receive> {
        self.take_plain(tag).or_else(|| self.take_collided(tag))
    }

    fn take_collided(&mut self, tag: Tag) -> Option<Receive> {
        let receive = Receive::collided((tag, self.collided.take(tag)?));
        let at = self.place(tag);
        self.table[at].collided -= 1;
        Some(receive)
    }

    /// Ends a receive early.
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let at = self.table.iter_mut().find(|at| at.is_used && at.receive.serial == serial);
        if let Some(at) = at {
            self.in_table -= 1;
            return at.take();
        }
        let tag = self.collided.tag_of(serial)?;
        self.take_collided(tag)
    }

    /// Ends all receives, oldest first: the peer is gone.
    pub(crate) fn take_all(&mut self) -> Vec<Receive> {
        let mut all: Vec<_> = self.table.drain(..).filter_map(|mut place| place.take()).collect();
        self.in_table = 0;
        all.extend(self.collided.drain().map(Receive::collided));
        all.sort_unstable_by_key(|receive| receive.serial);
        all
    }

    /// Of an empty table, none that it has.
    #[inline(always)]
    fn place(&self, tag: Tag) -> usize {
        let mask = (self.table.len() as u64).wrapping_sub(1);
        usize::try_from(tag & mask).unwrap_or(usize::MAX)
    }
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
        assert_eq!(receives.cancel(50), Some(of(50)));
        assert_eq!((receives.cancel(50), receives.cancel(1000)), (None, None));
        assert_eq!(receives.take(of(60).tag), Some(of(60)));
        assert_eq!(receives.cancel(60), None, "it has ended");
        assert!(receives.post(of(100)) && receives.post(receive(of(50).tag, 101)));
        assert_eq!(receives.cancel(100), Some(of(100)), "posted after one was cancelled");
        assert_eq!(receives.cancel(101), Some(receive(of(50).tag, 101)), "a tag used again");
        for serial in (0..100).filter(|serial| ![50, 60].contains(serial)) {
            assert_eq!(receives.cancel(serial), Some(of(serial)));
        }
        assert!(receives.take_all().is_empty());
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
        assert!(receives.post(of(3)) && receives.is_streaming());
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
    fn receives_that_collide_slow_no_other_place_down() {
        let mut receives = Receives::default();
        for tag in [7, 7 + 64] {
            assert!(receives.post(receive(tag, tag)));
        }
        assert!(receives.plain_place(7).is_none() && receives.plain_place(8).is_some());
        assert_eq!(receives.take(7), Some(receive(7, 7)));
        assert!(
            receives.plain_place(7).is_none(),
            "the other one may have the same tag as the next"
        );
        assert!(!receives.post(receive(7 + 64, 9)));
        assert_eq!(receives.take(7 + 64), Some(receive(7 + 64, 7 + 64)));
        assert!(receives.plain_place(7).is_some(), "nothing is left of it");
    }

    #[test]
    fn a_table_grows_with_what_is_in_flight_and_no_further() {
        let mut receives = Receives::default();
        for tag in 0..5000_u64 {
            let is_plain = receives.plain_place(tag).is_some();
            assert!(tag == 0 || tag.is_power_of_two() || is_plain || tag > 1024, "{tag}");
            assert!(receives.post(receive(tag, tag)));
        }
        assert_eq!((receives.table.len(), receives.in_table), (TABLE_MAX, 1024));
        for tag in 0..5000_u64 {
            assert!(!receives.post(receive(tag, 9999)));
            assert_eq!(receives.take(tag), Some(receive(tag, tag)));
        }
        assert!(receives.take_all().is_empty());
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
        assert!(receives.plain_place(7).is_some());
        assert!(receives.post(receive(71, 9)), "its tag is free");
        assert_eq!(receives.take(7), None, "of the same place");
        assert_eq!(receives.take(71), Some(receive(71, 9)));
    }
}
