//! Legs to other daemons that carry nothing any more. Whoever has called there opens all connections on a leg, so he alone knows that none
//! is on its way, and ends it; the other daemon hears that it is gone.

use std::time::{Duration, Instant};

use hg_na::GoneReason;
use rustc_hash::FxHashMap;

use super::{
    Effect, Switch,
    party::{Connection, ConnectionKey, Party, PartyKey, Role},
};

/// So long a leg carries nothing until it is ended, unless the configuration says otherwise.
pub(crate) const IDLE: Duration = Duration::from_secs(60);
/// Daemons that are called at a time, beyond which a leg that carries nothing makes room for another one at once.
pub(super) const CALLED_MAX: usize = 256;
/// They are looked at so often in that time.
const LOOKS: u32 = 4;

impl Switch {
    /// Time has passed: legs that have carried nothing for long are ended.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now < *self.next_look.get_or_insert(now) {
            return;
        }
        self.next_look = now.checked_add((self.idle / LOOKS).max(Duration::from_millis(1)));
        let mut over = Vec::new();
        let connections = &self.connections;
        for (key, party) in self.parties.iter_mut().filter(|(_, it)| is_idle(it, connections)) {
            let since = *party.idle_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= self.idle {
                over.push(*key);
            }
        }
        over.sort_unstable();
        over.into_iter().for_each(|key| self.leave(key));
    }

    /// When [`Switch::handle_timeout`] wants to be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_look.filter(|_| self.daemons > 0)
    }

    /// One more daemon is to be called.
    pub(super) fn make_room_for_a_call(&mut self) {
        if self.nodes.len() < CALLED_MAX {
            return;
        }
        let idle = |key: &&PartyKey| {
            self.parties.get(key).is_some_and(|party| is_idle(party, &self.connections))
        };
        if let Some(oldest) = self.nodes.values().filter(idle).min().copied() {
            self.leave(oldest);
        }
    }

    pub(super) fn leave(&mut self, key: PartyKey) {
        self.effects.push_back(Effect::Leave(key));
        self.gone(key, &GoneReason::Closed);
    }
}

/// Whether a leg is this side's to end, and carries nothing: where nobody has answered, nothing that anybody still wants.
pub(super) fn is_idle(party: &Party, connections: &FxHashMap<ConnectionKey, Connection>) -> bool {
    let mut carried =
        party.ends.values().filter_map(|(key, side)| Some(&connections.get(key)?.ends[*side]));
    matches!(party.role, Role::Node(Some(_)))
        && carried.all(|end| party.is_called && !end.is_live())
}
