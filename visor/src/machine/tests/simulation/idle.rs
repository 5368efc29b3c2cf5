//! Time that passes, and ways between daemons that carry nothing.

use std::time::Duration;

use hg_na::GoneReason;

use super::{NODES, World};
use crate::machine::PartyKey;

impl World {
    /// What comes first of what is on a way comes out of it.
    pub(super) fn deliver(&mut self, from: (usize, PartyKey)) -> bool {
        let Some(leg) = self.legs.get_mut(&from) else { return false };
        let (there, far) = leg.to;
        let Some(frame) = leg.frames.pop_front() else { return false };
        leg.is_heard |= self.switches[there].parties.contains_key(&far);
        self.switches[there].handle(far, frame);
        self.switches[from.0].has_room(from.1);
        true
    }

    /// A daemon ends a way that carries nothing: what it has sent arrives, or does not.
    pub(super) fn leave(&mut self, at: usize, key: PartyKey) {
        let from = (at, key);
        self.silent.retain(|silent| *silent != from);
        while self.random.below(4) > 0 && self.deliver(from) {}
        // A way that was not there yet.
        let Some(leg) = self.legs.remove(&from) else { return };
        // Where nobody has answered, those who have gone meanwhile are not waited for.
        let is_heard = self.legs.remove(&leg.to).is_some_and(|back| back.is_heard);
        // Otherwise it may be that nobody wants it any more.
        self.left += usize::from(is_heard);
        let (there, far) = leg.to;
        let switch = &mut self.switches[there];
        for (connection, side) in switch.parties[&far].ends.values() {
            let end = &switch.connections[connection].ends[*side];
            assert!(!is_heard || !end.is_live(), "a way is ended that carries a connection");
        }
        switch.gone(far, &GoneReason::Closed);
    }

    /// A way breaks.
    pub(super) fn cut(&mut self, from: (usize, PartyKey)) {
        let Some(leg) = self.legs.remove(&from) else { return };
        self.legs.remove(&leg.to);
        for (at, key) in [from, leg.to] {
            self.switches[at].gone(key, &GoneReason::TimedOut);
        }
    }

    /// Time passes for all daemons.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        for at in 0..NODES {
            self.switches[at].handle_timeout(self.now);
            self.do_effects(at);
            self.tick(at);
        }
    }
}
