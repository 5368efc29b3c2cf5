//! What the clock's thread does: batches that have lingered leave, and a callback that does not return is told.

use super::Inner;

impl Inner {
    /// The clock's thread.
    pub(crate) fn run_clock(&self) {
        let linger = self.options.linger;
        let mut had_any = false;
        let look = |now| {
            let hops = self.hops.iter().filter_map(|hop| hop.handle_timeout(now, linger));
            let next = hops.chain(self.mail.handle_timeout(now, linger)).min();
            // Where something has just lingered, something soon will again: that wakes no clock which looks once more.
            let again = had_any.then(|| now + linger);
            had_any = next.is_some();
            next.or(again)
        };
        // Not by who makes progress: that one may stand in the callback itself, while all others sleep.
        self.linger.run(look, (self.look_interval(), |now| self.look_at_callback(now)));
    }
}
