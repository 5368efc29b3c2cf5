//! Matches expected messages of one peer with posted receives, by tag.

use std::collections::{BTreeMap, VecDeque};

use hg_na::{Message, Tag, Token};

use super::Rules;

/// A posted receive: its serial and its poster's token.
pub(super) type Receive = (u64, Token);

/// All receives from one peer; with what the rules of before remember beside them.
#[derive(Debug, Default)]
pub(super) struct Matching {
    posted: BTreeMap<Tag, Receive>,
    held: VecDeque<(Tag, Message)>,
    tombstones: VecDeque<Tag>,
}

/// What becomes of a message.
#[derive(Debug)]
pub(super) enum Match {
    Receive(Receive),
    /// Nobody waits for it: it is dropped.
    Late,
    /// It is to be held.
    Hold,
    /// It stays where it is.
    Full,
}

impl Matching {
    pub(super) fn contains(&self, tag: Tag) -> bool {
        self.posted.contains_key(&tag)
    }

    /// Adds a receive; gives the message that is held for it.
    pub(super) fn post(&mut self, tag: Tag, receive: Receive) -> Option<Message> {
        self.tombstones.retain(|it| *it != tag);
        let held = self.held.iter().position(|(it, _)| *it == tag);
        match held.and_then(|at| self.held.remove(at)) {
            Some((_, message)) => Some(message),
            None => {
                self.posted.insert(tag, receive);
                None
            }
        }
    }

    /// Decides about a message that has arrived.
    pub(super) fn arrived(&mut self, tag: Tag, rules: &Rules) -> Match {
        if let Some(receive) = self.posted.remove(&tag) {
            return Match::Receive(receive);
        }
        if !rules.as_before {
            return Match::Late;
        }
        if let Some(at) = self.tombstones.iter().position(|it| *it == tag) {
            self.tombstones.remove(at);
            return Match::Late;
        }
        if self.held.len() < rules.unmatched_max { Match::Hold } else { Match::Full }
    }

    pub(super) fn hold(&mut self, tag: Tag, message: Message) {
        self.held.push_back((tag, message));
    }

    /// Whether the next message can be taken.
    pub(super) fn takes(&self, tag: Tag, rules: &Rules) -> bool {
        !rules.as_before
            || self.held.len() < rules.unmatched_max
            || self.posted.contains_key(&tag)
            || self.tombstones.contains(&tag)
    }

    /// Ends a receive early.
    pub(super) fn cancel(&mut self, serial: u64, rules: &Rules) -> Option<Receive> {
        let (&tag, _) = self.posted.iter().find(|(_, receive)| receive.0 == serial)?;
        let receive = self.posted.remove(&tag)?;
        if rules.as_before {
            self.tombstones.push_back(tag);
            if self.tombstones.len() > rules.tombstones_max {
                self.tombstones.pop_front();
            }
        }
        Some(receive)
    }

    /// Ends all receives, oldest first.
    pub(super) fn take_all(&mut self) -> Vec<Receive> {
        self.held.clear();
        let mut all: Vec<_> = std::mem::take(&mut self.posted).into_values().collect();
        all.sort_unstable_by_key(|receive| receive.0);
        all
    }
}
