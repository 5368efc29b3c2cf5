//! Who goes on after a failure, and as which group.

use super::{Action, Machine, Message, Phase};

impl<S> Machine<S> {
    /// The first of those that are not known to be dead.
    pub(super) fn leader(&self) -> u32 {
        (0..self.members()).find(|it| !self.dead.contains(it)).unwrap_or(self.config.own)
    }

    pub(super) fn reform(&mut self, id: [u64; 2]) {
        let Phase::Failed { .. } = self.phase else { return };
        let is_out = self.dead.contains(&self.config.own);
        if self.has_reformed || is_out || self.leader() != self.config.own {
            return;
        }
        let members: Vec<_> = (0..self.members()).filter(|it| !self.dead.contains(it)).collect();
        let own = self.config.own;
        for to in members.iter().copied().filter(|it| *it != own) {
            self.tell(to, Message::Reform { id, members: members.clone() });
        }
        self.has_reformed = true;
        self.actions.push_back(Action::Reformed { id, members });
    }

    pub(super) fn handle_reform(&mut self, from: u32, id: [u64; 2], members: Vec<u32>) {
        let Some(&leader) = members.first() else { return };
        if members.len() >= self.config.nodes.len() {
            return self.breach(from, "nobody is missing among those who go on");
        }
        let is_sound = members.windows(2).all(|two| two[0] < two[1])
            && members.last() < Some(&self.members())
            && [from, self.config.own].iter().all(|it| members.contains(it));
        // The leader may know of a death before this member does.
        if !is_sound || self.has_reformed || self.phase == Phase::Closed {
            return;
        }
        let missing = (0..self.members()).find(|it| !members.contains(it));
        if let Some(member) = missing {
            self.fail(member, "the others go on without it", false);
        }
        self.has_reformed = true;
        // Whoever leads may die before it has told everybody.
        let own = self.config.own;
        for to in members.iter().copied().filter(|it| ![own, leader].contains(it)) {
            self.tell(to, Message::Reform { id, members: members.clone() });
        }
        self.actions.push_back(Action::Reformed { id, members });
    }
}
