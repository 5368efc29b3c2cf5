//! How many broadcasts a rank has sent: begun, over, and known to have arrived.
//!
//! A broadcast is in doubt from its first copy on, and a flush vouches for it only if all its copies were queued before. The lock says so:
//! whoever finds it over finds its copies in the queues.

use crate::{lock::locked, sync::Mutex};

/// Of one rank.
#[derive(Debug, Default)]
pub(crate) struct Broadcasts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: u64,
    /// All copies that there will be are in their queues.
    over: u64,
    /// Of those that are over, so many were before the last complete `flush_all`.
    confirmed: u64,
}

/// One whose copies are being queued.
#[derive(Debug)]
pub(crate) struct Broadcast<'a>(&'a Broadcasts);

impl Drop for Broadcast<'_> {
    fn drop(&mut self) {
        locked(&self.0.0).over += 1;
    }
}

impl Broadcasts {
    /// Before its first copy; it is over when this is dropped.
    pub(crate) fn begin(&self) -> Broadcast<'_> {
        locked(&self.0).begun += 1;
        Broadcast(self)
    }

    /// Those that are over.
    pub(crate) fn over(&self) -> u64 {
        locked(&self.0).over
    }

    /// So many have arrived, everywhere.
    pub(crate) fn confirm(&self, over: u64) {
        locked(&self.0).confirmed = over;
    }

    /// Those of which nobody knows whether they have.
    pub(crate) fn in_doubt(&self) -> u64 {
        let counts = locked(&self.0);
        counts.begun - counts.confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broadcast_that_is_under_way_during_a_flush_stays_in_doubt() {
        let broadcasts = Broadcasts::default();
        drop(broadcasts.begin());
        let under_way = broadcasts.begin();
        assert_eq!(broadcasts.in_doubt(), 2);
        let flushed = broadcasts.over();
        // Its copies may have come behind the flush.
        drop(under_way);
        broadcasts.confirm(flushed);
        assert_eq!(broadcasts.in_doubt(), 1);
        broadcasts.confirm(broadcasts.over());
        assert_eq!(broadcasts.in_doubt(), 0);
    }
}
