//! Matches expected messages of one peer with posted receives, by tag.
//!
//! Messages without a receive are held: their sender's credits bound them. A cancelled receive leaves
//! a tombstone, so that its late message is dropped. Cancelling names a receive by its serial: among a few it is
//! looked for; more of them get an index at the first cancellation, which is kept until none is posted.

use std::collections::{VecDeque, hash_map::Entry};

use hg_na::{Message, Tag, Token};
use rustc_hash::FxHashMap;

/// Cancelled receives that are remembered for one peer; past it the oldest is forgotten.
const TOMBSTONES_MAX: usize = 4096;

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

/// What becomes of an expected message.
#[derive(Debug)]
pub enum Match {
    /// It ends this receive.
    Receive(Receive, Message),
    /// It is held, for a receive that comes later.
    Held,
    /// Its receive was cancelled: it is dropped.
    Late,
}

/// All receives from one peer, and the messages that came before theirs.
#[derive(Debug, Default)]
pub struct Receives {
    /// Tags are chosen by this side.
    posted: FxHashMap<Tag, Receive>,
    /// Tags of all that are posted by their serials, once one of many was to be cancelled.
    by_serial: Option<FxHashMap<u64, Tag>>,
    held: VecDeque<(Tag, Message)>,
    /// Tag and serial of cancelled receives, and their order.
    tombstones: FxHashMap<Tag, u64>,
    order: VecDeque<(Tag, u64)>,
}

impl Receives {
    /// Whether a receive with this tag is posted.
    #[must_use]
    pub fn contains(&self, tag: Tag) -> bool {
        self.posted.contains_key(&tag)
    }

    /// Adds a receive: its tag is free, and nothing is held for it.
    pub fn post(&mut self, tag: Tag, receive: Receive) {
        if !self.tombstones.is_empty() {
            self.tombstones.remove(&tag);
        }
        if let Some(tags) = &mut self.by_serial {
            tags.insert(receive.serial, tag);
        }
        self.posted.insert(tag, receive);
    }

    /// Adds a receive whose tag may not be free; says whether it was, and nothing is held for any.
    #[inline]
    pub fn post_free(&mut self, tag: Tag, receive: Receive) -> bool {
        if !self.held.is_empty() || !self.tombstones.is_empty() || self.by_serial.is_some() {
            return false;
        }
        match self.posted.entry(tag) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(receive);
                true
            }
        }
    }

    fn take(&mut self, tag: Tag) -> Option<Receive> {
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
    fn tag_of(&mut self, serial: u64) -> Option<Tag> {
        if self.posted.is_empty() {
            return None;
        }
        let mut posted = self.posted.iter().map(|(tag, receive)| (receive.serial, *tag));
        if self.by_serial.is_none() && self.posted.capacity() <= SEARCHED_MAX {
            return posted.find(|(other, _)| *other == serial).map(|(_, tag)| tag);
        }
        self.by_serial.get_or_insert_with(|| posted.collect()).get(&serial).copied()
    }

    /// The held message for a tag, oldest first.
    pub fn take_held(&mut self, tag: Tag) -> Option<Message> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.held.iter().position(|(held, _)| *held == tag)?;
        self.held.remove(at).map(|(_, message)| message)
    }

    /// Decides about a message that has arrived.
    pub fn arrived(&mut self, tag: Tag, message: Message) -> Match {
        if let Some(receive) = self.take(tag) {
            return Match::Receive(receive, message);
        }
        if self.tombstones.remove(&tag).is_some() {
            if self.tombstones.is_empty() {
                self.order.clear();
            }
            return Match::Late;
        }
        self.held.push_back((tag, message));
        Match::Held
    }

    /// Ends a receive early; its message, should it still come, will be dropped.
    pub fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let tag = self.tag_of(serial)?;
        let receive = self.take(tag)?;
        self.tombstones.insert(tag, serial);
        self.order.push_back((tag, serial));
        if self.order.len() > TOMBSTONES_MAX
            && let Some((old, serial)) = self.order.pop_front()
            && self.tombstones.get(&old) == Some(&serial)
        {
            self.tombstones.remove(&old);
        }
        Some(receive)
    }

    /// Ends all receives, oldest first: the peer is gone.
    pub fn take_all(&mut self) -> Vec<Receive> {
        self.held.clear();
        self.by_serial = None;
        let mut all: Vec<_> = self.posted.drain().map(|(_, receive)| receive).collect();
        all.sort_unstable_by_key(|receive| receive.serial);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: Tag) -> Message {
        Message::copied(&tag.to_le_bytes())
    }

    #[test]
    fn messages_match_by_tag_whichever_comes_first() {
        let mut receives = Receives::default();
        receives.post(1, Receive { serial: 10, token: 0 });
        assert!(receives.contains(1));
        assert!(matches!(receives.arrived(2, message(2)), Match::Held));
        assert!(
            matches!(receives.arrived(1, message(1)), Match::Receive(it, _) if it.serial == 10)
        );
        assert_eq!(receives.take_held(2).unwrap().as_slice(), 2u64.to_le_bytes());
        assert!(receives.take_held(2).is_none());
    }

    #[test]
    fn a_late_message_of_a_cancelled_receive_is_dropped_once() {
        let mut receives = Receives::default();
        receives.post(7, Receive { serial: 1, token: 0 });
        assert!(receives.cancel(1).is_some());
        assert!(receives.cancel(1).is_none());
        assert!(matches!(receives.arrived(7, message(7)), Match::Late));
        assert!(matches!(receives.arrived(7, message(7)), Match::Held));
    }

    fn posted(receives: &mut Receives, serial: u64) -> Receive {
        let receive = Receive { serial, token: serial };
        receives.post(1_000_000 + 3 * serial, receive);
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
            assert!(matches!(receives.arrived(tag, message(tag)), Match::Receive(..)));
            assert_eq!(receives.cancel(6), None, "it has ended");
            let later = posted(&mut receives, count);
            let again = Receive { serial: count + 1, token: 0 };
            receives.post(tag, again);
            assert_eq!(receives.cancel(count), Some(later), "posted after the index was made");
            assert_eq!(receives.cancel(count + 1), Some(again), "a tag used again");
            let left: Vec<_> = all.into_iter().filter(|it| ![5, 6].contains(&it.serial)).collect();
            assert_eq!(receives.take_all(), left);
            assert_eq!(receives.cancel(0), None);
        }
    }

    #[test]
    fn tombstones_are_bounded() {
        let mut receives = Receives::default();
        for tag in 0..2 * TOMBSTONES_MAX as u64 {
            receives.post(tag, Receive { serial: tag, token: 0 });
            assert!(receives.cancel(tag).is_some());
        }
        assert_eq!(receives.tombstones.len(), TOMBSTONES_MAX);
        assert_eq!(receives.order.len(), TOMBSTONES_MAX);
    }
}
