//! How a group begins: the root calls, receivers join, and are watched from then on.

use super::{Action, Machine, Message, Phase};

impl<S> Machine<S> {
    pub(super) fn join(&self) -> Message<S> {
        Message::Join { digest: self.config.digest, whole: self.whole }
    }

    pub(super) fn handle_join(&mut self, from: u32, digest: u64, whole: u64) {
        if self.phase != Phase::Joining || self.joined.contains_key(&from) {
            return; // It was called, and had joined.
        }
        if digest != self.config.digest {
            self.fail(from, "it was told of other members, or of other nodes", true);
            return;
        }
        // Nobody has what was not sent.
        self.joined.insert(from, whole.min(self.next));
        self.actions.push_back(Action::Watch { member: from });
        if self.joined.len() + 1 == self.config.nodes.len() {
            self.phase = Phase::Open;
            self.begin_as_root();
            self.actions.push_back(Action::Joined);
            self.pump();
            self.close_if_done();
        }
    }

    pub(super) fn begin(&mut self, next: u64) {
        if self.phase != Phase::Joining {
            return;
        }
        self.phase = Phase::Open;
        // What the root will not send again, and is not whole, never will be.
        self.lose(next);
        self.next = self.whole.max(next);
        (self.whole, self.deliver) = (self.next, self.next);
        self.watch_root();
        self.actions.push_back(Action::Joined);
        self.begin_objects();
    }

    /// It has not heard of the group. Before it has called nothing else is to be expected of the root.
    pub(super) fn handle_unknown(&mut self, member: u32, why: &str) {
        if member == 0 && self.phase == Phase::Joining {
            self.watches_root = false;
            if std::mem::take(&mut self.was_called) {
                self.watch_root(); // Asked before it was there.
            }
        } else {
            self.handle_gone(member, why);
        }
    }

    /// From the first: it may die with its word that all are there still unsent.
    pub(super) fn watch_root(&mut self) {
        if !std::mem::replace(&mut self.watches_root, true) {
            self.actions.push_back(Action::Watch { member: 0 });
        }
    }

    pub(super) fn call_again(&mut self, member: u32) {
        let is_missing = self.phase == Phase::Joining && !self.joined.contains_key(&member);
        if is_missing && self.config.own == 0 {
            self.tell(member, Message::Call);
        }
    }

    pub(super) fn handle_late(&mut self) {
        if self.phase != Phase::Joining {
            return;
        }
        let missing = (1..self.members()).find(|it| !self.joined.contains_key(it));
        match missing.filter(|_| self.config.own == 0) {
            Some(member) => self.fail(member, "it has not joined in time", true),
            None => self.fail(0, "it has not begun in time", true),
        }
    }
}
