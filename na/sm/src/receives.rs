//! Matches expected messages of one peer with posted receives, by tag.
//!
//! Receives lie in a direct-mapped table (tag modulo its size), which sequential tags never overfill;
//! what collides goes to a map. Messages without a receive are held, up to a bound; past it they stay
//! in the ring. A cancelled receive leaves a tombstone, so that its late message is dropped.
//! Cancelling names a receive by its serial: the first one that is not in the table makes an index, which is kept as long as
//! receives collide, so that cancelling thousands does not look at all the others each time.

use std::collections::VecDeque;

use hg_na::{Message, OpId, Tag, Token};
use rustc_hash::FxHashMap;

/// Receives of the direct-mapped table.
const TABLE: usize = 64;
/// Messages without a receive that are held for one peer.
pub(crate) const UNMATCHED_MAX: usize = 64;
/// So many receives wait where calls are made faster than they are answered.
const STREAM_MIN: u32 = 3;
/// Cancelled receives that are remembered for one peer; past it the oldest is forgotten.
const TOMBSTONES_MAX: usize = 4096;

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) tag: Tag,
    pub(crate) serial: u64,
    pub(crate) token: Token,
}

/// What to do with an expected message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It ends this receive.
    Receive(Receive),
    /// Nobody waits yet: hold it.
    Hold,
    /// Its receive was cancelled: drop it.
    Late,
    /// No more can be held: leave it where it is.
    Full,
}

/// All receives from one peer, and the messages that came before theirs.
#[derive(Debug)]
pub(crate) struct Receives {
    /// Made by the first receive; its length is 0 or [`TABLE`].
    table: Vec<Option<Receive>>,
    /// Receives in the table.
    in_table: u32,
    collided: FxHashMap<Tag, Receive>,
    /// Tags of all that collided by their serials, once one of them was to be cancelled.
    by_serial: Option<FxHashMap<u64, Tag>>,
    unmatched: VecDeque<(Tag, Message)>,
    tombstones: Tombstones,
}

#[derive(Debug, Default)]
struct Tombstones {
    /// Tag and the serial of its receive, which tells an old entry of `order` from a newer one.
    set: FxHashMap<Tag, u64>,
    order: VecDeque<(Tag, u64)>,
}

impl Receives {
    pub(crate) fn new() -> Self {
        Self {
            table: Vec::new(),
            in_table: 0,
            collided: FxHashMap::default(),
            by_serial: None,
            unmatched: VecDeque::new(),
            tombstones: Tombstones::default(),
        }
    }

    /// Adds a receive; `false` when one with this tag is posted.
    #[inline]
    pub(crate) fn post(&mut self, receive: Receive) -> bool {
        if self.table.is_empty() {
            self.table.resize(TABLE, None);
        }
        if !self.tombstones.set.is_empty() {
            self.tombstones.set.remove(&receive.tag);
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
        let nothing_else =
            self.unmatched.is_empty() && self.collided.is_empty() && self.tombstones.set.is_empty();
        nothing_else && matches!(self.table.get(place(tag)), Some(None))
    }

    /// The held message for a tag, oldest first.
    #[inline]
    pub(crate) fn take_unmatched(&mut self, tag: Tag) -> Option<Message> {
        if self.unmatched.is_empty() {
            return None;
        }
        let at = self.unmatched.iter().position(|(held, _)| *held == tag)?;
        self.unmatched.remove(at).map(|(_, message)| message)
    }

    /// The fast path of [`Receives::arrived`]: a receive in the table.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, tag: Tag) -> Option<Receive> {
        let at = self.table.get_mut(place(tag))?;
        if at.as_ref()?.tag != tag {
            return None;
        }
        self.in_table -= 1;
        at.take()
    }

    /// Decides about a message that has arrived.
    #[inline]
    pub(crate) fn arrived(&mut self, tag: Tag) -> Match {
        match self.take_plain(tag) {
            Some(receive) => Match::Receive(receive),
            None => self.arrived_rarely(tag),
        }
    }

    #[cold]
    fn arrived_rarely(&mut self, tag: Tag) -> Match {
        if let Some(receive) = self.take_collided(tag) {
            return Match::Receive(receive);
        }
        if self.tombstones.set.remove(&tag).is_some() {
            if self.tombstones.set.is_empty() {
                self.tombstones.order.clear();
            }
            return Match::Late;
        }
        if self.unmatched.len() < UNMATCHED_MAX { Match::Hold } else { Match::Full }
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

    /// Keeps a message for which [`Match::Hold`] was said.
    pub(crate) fn hold(&mut self, tag: Tag, message: Message) {
        self.unmatched.push_back((tag, message));
    }

    /// Ends a receive early; its message, should it still come, will be dropped.
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let at =
            self.table.iter_mut().find(|at| at.is_some_and(|receive| receive.serial == serial));
        let receive = match at {
            Some(at) => {
                self.in_table -= 1;
                at.take()
            }
            None => {
                let tag = self.tag_of(serial)?;
                self.take_collided(tag)
            }
        }?;
        self.tombstones.add(receive.tag, serial);
        Some(receive)
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

impl Tombstones {
    fn add(&mut self, tag: Tag, serial: u64) {
        self.set.insert(tag, serial);
        self.order.push_back((tag, serial));
        if self.order.len() > TOMBSTONES_MAX
            && let Some((old, serial)) = self.order.pop_front()
            && self.set.get(&old) == Some(&serial)
        {
            self.set.remove(&old);
        }
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
        let mut receives = Receives::new();
        let of = |serial: u64| receive(7 + 64 * serial, serial);
        for serial in 0..100 {
            assert!(receives.post(of(serial)));
        }
        assert_eq!(receives.cancel(50), Some(of(50)), "makes the index");
        assert_eq!((receives.cancel(50), receives.cancel(1000)), (None, None));
        assert_eq!(receives.arrived(of(60).tag), Match::Receive(of(60)));
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
        let mut receives = Receives::new();
        let of = |serial: u64| receive(serial, serial);
        for serial in 0..3 {
            assert!(!receives.is_streaming());
            assert!(receives.post(of(serial)));
        }
        assert!(receives.is_streaming());
        assert_eq!(receives.arrived(0), Match::Receive(of(0)));
        assert!(!receives.is_streaming());
        assert!(receives.post_plain(of(3)) && receives.is_streaming());
        assert!(receives.post(receive(3 + 64, 4)), "collides, and is not counted");
        assert_eq!(receives.cancel(3), Some(of(3)));
        assert!(!receives.is_streaming());
        assert_eq!((receives.take_all().len(), receives.in_table), (3, 0));
    }

    #[test]
    fn receives_that_share_a_place_are_all_found_and_tags_are_unique() {
        let mut receives = Receives::new();
        let tags = [1, 65, 129, u64::MAX];
        for (tag, serial) in tags.into_iter().zip(0..) {
            assert!(receives.post(receive(tag, serial)));
            assert!(!receives.post(receive(tag, 100)));
        }
        assert_eq!(receives.arrived(1), Match::Receive(receive(1, 0)));
        assert!(!receives.post(receive(65, 100)), "posted in the map, its place now free");
        for (tag, serial) in tags.into_iter().zip(0..).skip(1) {
            assert_eq!(receives.arrived(tag), Match::Receive(receive(tag, serial)));
        }
        assert_eq!(receives.arrived(1), Match::Hold);
    }

    #[test]
    fn a_late_message_of_a_canceled_receive_is_dropped_once() {
        let mut receives = Receives::new();
        for tag in [7, 71] {
            assert!(receives.post(receive(tag, tag)));
            assert_eq!(receives.cancel(tag), Some(receive(tag, tag)));
        }
        assert_eq!(receives.cancel(7), None);
        assert_eq!(receives.arrived(7), Match::Late);
        assert_eq!(receives.arrived(7), Match::Hold);
        assert!(receives.post(receive(71, 9)), "a new receive takes the tag over");
        assert_eq!(receives.arrived(71), Match::Receive(receive(71, 9)));
    }

    #[test]
    fn held_messages_and_tombstones_are_bounded() {
        let mut receives = Receives::new();
        for tag in 0..UNMATCHED_MAX as u64 {
            assert_eq!(receives.arrived(tag), Match::Hold);
            receives.hold(tag, Message::copied(&tag.to_le_bytes()));
        }
        assert_eq!(receives.arrived(1000), Match::Full);
        assert_eq!(receives.take_unmatched(3).unwrap().as_slice(), 3u64.to_le_bytes());
        assert!(receives.take_unmatched(3).is_none());
        for tag in 0..2 * TOMBSTONES_MAX as u64 {
            assert!(receives.post(receive(tag, tag)));
            receives.cancel(tag).unwrap();
        }
        assert_eq!(receives.tombstones.set.len(), TOMBSTONES_MAX);
        assert_eq!(receives.tombstones.order.len(), TOMBSTONES_MAX);
    }
}
