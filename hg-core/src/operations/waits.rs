//! Waits: for room for another call, and for the end of all that is in service.

use hg_na::Peer;

use super::{Kind, OperationId, Operations, Outcome, call::OpState, transfer::forget_ended};

impl Operations {
    /// Waits for room for another call.
    pub fn begin_room(&mut self) -> OperationId {
        let id = self.begin_wait(Kind::Room);
        forget_ended(&mut self.waiting, &self.table);
        self.waiting.push_back(id);
        id
    }

    /// Waits for the end of all that is in service.
    pub fn begin_drain(&mut self) -> OperationId {
        let id = self.begin_wait(Kind::Drain);
        forget_ended(&mut self.drains, &self.table);
        self.drains.push_back(id);
        id
    }

    fn begin_wait(&mut self, kind: Kind) -> OperationId {
        self.others += 1;
        let nobody = Peer::new(u32::MAX, u32::MAX);
        let id = self.table.next_key();
        self.begin(id, (kind, nobody, ""), None, [OpState::None; 2], None);
        id
    }

    /// Whether anybody waits for that.
    #[inline]
    #[must_use]
    pub fn waits_for_drain(&self) -> bool {
        !self.drains.is_empty()
    }

    /// Nothing is in service any more.
    pub fn handle_drained(&mut self) {
        for id in std::mem::take(&mut self.drains) {
            self.settle(id, Outcome::Sent, false);
        }
    }

    /// Whether anybody waits for room.
    #[inline]
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Some calls may have ended: the first of those who wait for their room are told, as many as there is room for.
    pub fn grant_room(&mut self) {
        while self.room() > 0
            && let Some(id) = self.waiting.pop_front()
        {
            self.settle(id, Outcome::Sent, false); // Unless it has left.
        }
    }
}
