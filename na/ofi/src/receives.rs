//! Matches expected messages of one peer with posted receives, by tag.
//!
//! Messages without a receive are held: their sender's credits bound them. A cancelled receive leaves
//! a tombstone, so that its late message is dropped.

use std::collections::VecDeque;

use hg_na::{Message, Tag, Token};
use rustc_hash::FxHashMap;

/// Cancelled receives that are remembered for one peer; past it the oldest is forgotten.
const TOMBSTONES_MAX: usize = 4096;

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) serial: u64,
    pub(crate) token: Token,
}

/// What becomes of an expected message.
#[derive(Debug)]
pub(crate) enum Match {
    /// It ends this receive.
    Receive(Receive, Message),
    /// It is held, for a receive that comes later.
    Held,
    /// Its receive was cancelled: it is dropped.
    Late,
}

/// All receives from one peer, and the messages that came before theirs.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    /// Tags are chosen by this side.
    posted: FxHashMap<Tag, Receive>,
    held: VecDeque<(Tag, Message)>,
    /// Tag and serial of cancelled receives, and their order.
    tombstones: FxHashMap<Tag, u64>,
    order: VecDeque<(Tag, u64)>,
}

impl Receives {
    /// Whether a receive with this tag is posted.
    pub(crate) fn contains(&self, tag: Tag) -> bool {
        self.posted.contains_key(&tag)
    }

    /// Adds a receive: its tag is free, and nothing is held for it.
    pub(crate) fn post(&mut self, tag: Tag, receive: Receive) {
        if !self.tombstones.is_empty() {
            self.tombstones.remove(&tag);
        }
        self.posted.insert(tag, receive);
    }

    /// The held message for a tag, oldest first.
    pub(crate) fn take_held(&mut self, tag: Tag) -> Option<Message> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.held.iter().position(|(held, _)| *held == tag)?;
        self.held.remove(at).map(|(_, message)| message)
    }

    /// Decides about a message that has arrived.
    pub(crate) fn arrived(&mut self, tag: Tag, message: Message) -> Match {
        if let Some(receive) = self.posted.remove(&tag) {
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
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Receive> {
        let (tag, receive) = self.posted.iter().find(|(_, receive)| receive.serial == serial)?;
        let (tag, receive) = (*tag, *receive);
        self.posted.remove(&tag);
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
    pub(crate) fn take_all(&mut self) -> Vec<Receive> {
        self.held.clear();
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
