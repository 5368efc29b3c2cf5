//! Who waits for room, or for the end of all that is in service.

use super::Protocol;
use crate::operations::{OperationId, Owner};

impl Protocol {
    /// Some calls or requests may have ended: who waits for their room, or for their end, is told.
    #[inline]
    pub fn tell_waiting(&mut self) {
        if self.operations.waits_for_room() {
            self.operations.grant_room();
            self.run_effects();
        }
        if self.operations.waits_for_drain() && self.is_drained() {
            self.operations.handle_drained();
            self.run_effects();
        }
    }

    /// Begins nothing new from now on. Gives what waits for the end of all that is in service; `None`: nothing is.
    pub fn drain(&mut self) -> Option<OperationId> {
        self.serves.drain();
        self.answer_token = Owner::Answer.token();
        self.backlog.set_answer_token(self.answer_token);
        (!self.is_drained()).then(|| self.operations.begin_drain())
    }

    /// Whether all that was begun is answered, the answers have left, and what they have promised was taken.
    fn is_drained(&self) -> bool {
        self.serves.in_service() == 0
            && !self.serves.has_held()
            && !self.backlog.has_any_answers()
            && self.leaving == 0
            && self.kept.is_empty()
    }
}
