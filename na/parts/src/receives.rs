//! Matches expected messages of one peer with posted receives, by tag.
//!
//! A message without a receive is late: nothing is kept of it, nor of a receive that was cancelled. Cancelling names a
//! receive by its serial: among a few it is looked for; more of them get an index at the first cancellation, which is
//! kept until none is posted.

use std::collections::hash_map::Entry;

use hg_na::{Tag, Token};
use rustc_hash::FxHashMap;

/// A table with room for no more than this is searched by serial as it is.
const SEARCHED_MAX: usize = 64;

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Names it among all of its context.
    pub serial: u64,
    /// Its poster's.
    pub token: Token,
}

/// All receives from one peer.
#[derive(Debug, Default)]
pub struct Receives {
    /// Tags are chosen by this side.
    posted: FxHashMap<Tag, Receive>,
    /// Tags of all that are posted by their serials, once one of many was to be cancelled.
    by_serial: Option<FxHashMap<u64, Tag>>,
}

impl Receives {
    /// Whether a receive with this tag is posted.
    #[must_use]
    pub fn contains(&self, tag: Tag) -> bool {
        self.posted.contains_key(&tag)
    }

    /// Adds a receive; `false`: its tag is in use, and nothing has changed.
    #[inline]
    pub fn post(&mut self, tag: Tag, receive: Receive) -> bool {
        let Entry::Vacant(place) = self.posted.entry(tag) else { return false };
        place.insert(receive);
        if let Some(tags) = &mut self.by_serial {
            tags.insert(receive.serial, tag);
        }
        true
    }

    /// The receive that a message with this tag ends; `None`: the message is late, and to be dropped.
    pub fn take(&mut self, tag: Tag) -> Option<Receive> {
        let receive = self.posted.remove(&tag)?;
        if let Some(tags) = &mut self.by_serial {
            tags.remove(&receive.serial);
            if self.posted.is_empty() {
                self.by_serial = None;
                // The next few are searched, for which a large table would take as long as a full one.
                self.posted.shrink_to(0);
            }
        }
        Some(receive)
    }

    /// The tag of a posted receive.
    pub fn tag_of(&mut self, serial: u64) -> Option<Tag> {
        if self.posted.is_empty() {
            return None;
        }
        let mut posted = self.posted.iter().map(|(tag, receive)| (receive.serial, *tag));
        if self.by_serial.is_none() && self.posted.capacity() <= SEARCHED_MAX {
            return posted.find(|(other, _)| *other == serial).map(|(_, tag)| tag);
        }
        self.by_serial.get_or_insert_with(|| posted.collect()).get(&serial).copied()
    }

    /// Ends a receive early; its message, should it still come, is late.
    pub fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let tag = self.tag_of(serial)?;
        self.take(tag)
    }

    /// Takes all receives out, in any order.
    pub fn drain(&mut self) -> impl Iterator<Item = (Tag, Receive)> {
        self.by_serial = None;
        self.posted.drain()
    }

    /// Ends all receives, oldest first: the peer is gone.
    pub fn take_all(&mut self) -> Vec<Receive> {
        let mut all: Vec<_> = self.drain().map(|(_, receive)| receive).collect();
        all.sort_unstable_by_key(|receive| receive.serial);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_the_receive_of_its_tag_and_without_one_is_late() {
        let mut receives = Receives::default();
        let (one, other) = (Receive { serial: 10, token: 0 }, Receive { serial: 11, token: 0 });
        assert!(receives.post(1, one) && receives.contains(1));
        assert!(!receives.post(1, other), "its tag is in use");
        assert_eq!((receives.take(2), receives.take(1), receives.take(1)), (None, Some(one), None));
        assert!(receives.post(1, other), "a tag is free once its receive has ended");
    }

    #[test]
    fn nothing_is_kept_of_cancelled_receives() {
        let mut receives = Receives::default();
        for serial in 0..100_000 {
            let receive = Receive { serial, token: 0 };
            assert!(receives.post(serial, receive));
            assert_eq!(receives.cancel(serial), Some(receive));
            assert_eq!((receives.cancel(serial), receives.take(serial)), (None, None));
        }
        assert!(receives.posted.capacity() <= SEARCHED_MAX && receives.by_serial.is_none());
    }

    fn posted(receives: &mut Receives, serial: u64) -> Receive {
        let receive = Receive { serial, token: serial };
        assert!(receives.post(1_000_000 + 3 * serial, receive));
        receive
    }

    #[test]
    fn tens_of_thousands_are_cancelled_in_any_order() {
        const COUNT: u64 = 60_000;
        // 7919 has no factor in common with the count: each once.
        let orders: [fn(u64) -> u64; 3] = [|at| at, |at| COUNT - 1 - at, |at| at * 7919 % COUNT];
        let mut receives = Receives::default();
        for order in orders {
            let all: Vec<_> = (0..COUNT).map(|serial| posted(&mut receives, serial)).collect();
            assert!(receives.by_serial.is_none(), "who cancels nothing pays nothing");
            for serial in (0..COUNT).map(order) {
                let expected = usize::try_from(serial).ok().map(|place| all[place]);
                assert_eq!(receives.cancel(serial), expected);
                // As long as some are left, all of them and no others are found without a search.
                let indexed = receives.by_serial.as_ref().map_or(0, FxHashMap::len);
                assert_eq!(indexed, receives.posted.len());
            }
            assert!(receives.posted.is_empty() && receives.by_serial.is_none());
            assert!(receives.posted.capacity() <= SEARCHED_MAX, "the next few are searched");
        }
        assert!(receives.take_all().is_empty());
    }

    #[test]
    fn cancelling_finds_receives_by_serial_whatever_came_and_went_before() {
        for count in [10, 1000] {
            let mut receives = Receives::default();
            let all: Vec<_> = (0..count).map(|serial| posted(&mut receives, serial)).collect();
            assert_eq!(receives.cancel(5), Some(all[5]), "makes an index of many");
            assert_eq!(receives.by_serial.is_some(), count > 64);
            assert_eq!((receives.cancel(5), receives.cancel(count)), (None, None));
            let tag = 1_000_000 + 3 * 6;
            assert_eq!(receives.take(tag), Some(all[6]));
            assert_eq!(receives.cancel(6), None, "it has ended");
            let later = posted(&mut receives, count);
            let again = Receive { serial: count + 1, token: 0 };
            assert!(receives.post(tag, again));
            assert_eq!(receives.cancel(count), Some(later), "posted after the index was made");
            assert_eq!(receives.cancel(count + 1), Some(again), "a tag used again");
            let left: Vec<_> = all.into_iter().filter(|it| ![5, 6].contains(&it.serial)).collect();
            assert_eq!(receives.take_all(), left);
            assert_eq!(receives.cancel(0), None);
        }
    }
}
