//! What the clock's thread does: batches that have lingered leave, a callback that does not return is told, and samples are taken
//! where they are asked for.

use std::time::Instant;

use super::Inner;
use crate::{
    Statistics,
    samples::{INTERVAL, Samples},
};

impl Inner {
    /// The clock's thread.
    pub(crate) fn run_clock(&self, mut samples: Option<Samples>) {
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
        let interval = self.look_interval();
        let interval = if samples.is_some() { interval.min(INTERVAL) } else { interval };
        let mut watch = |now| {
            // Not by who makes progress: that one may stand in the callback itself, while all others sleep.
            self.look_at_callback(now);
            if let Some(samples) = samples.as_mut().filter(|samples| samples.is_due(now)) {
                samples.take(now, &Statistics::of(self));
            }
        };
        watch(Instant::now());
        self.linger.run(look, (interval, watch));
        if let Some(mut samples) = samples {
            samples.take(Instant::now(), &Statistics::of(self));
        }
    }
}
