//! Processes of this node: all contexts of one have one share, and one quota of connections. Who is of which process the kernel says; whoever
//! it does not say it of is by himself, and so is another daemon.

use hg_na::Identity;

use super::{
    Switch,
    party::{Chooser, ConnectionKey, PartyKey, Quota},
};

/// Names a process: the number of the first of its contexts. Never used twice.
pub(crate) type ProcessKey = u64;
/// Whose a frame is: of which process, and of which of its contexts.
pub(crate) type Source = (ProcessKey, PartyKey);
/// What the kernel calls a process: user and number. None ends before its contexts have, but for a moment, so a number that is used again is
/// no other one's.
pub(super) type Known = (u32, u32);

/// One of them.
#[derive(Debug)]
pub(crate) struct Process {
    known: Option<Known>,
    pub(crate) quota: Quota,
    pub(super) contexts: usize,
    /// Connections of all contexts whose ids each side has chosen.
    pub(crate) chosen: [u32; 2],
}

impl Switch {
    /// The process of a context that comes.
    pub(super) fn enter_process(
        &mut self,
        context: PartyKey,
        identity: &Identity,
        quota: Quota,
    ) -> ProcessKey {
        let known = identity.uid.zip(identity.pid);
        let found = known.and_then(|known| self.known.get(&known).copied());
        let key = found.unwrap_or(context);
        if let Some(known) = known {
            self.known.insert(known, key);
        }
        let fresh = || Process { known, quota, contexts: 0, chosen: [0; 2] };
        self.processes.entry(key).or_insert_with(fresh).contexts += 1;
        key
    }

    /// A context has gone, with all connections that it had.
    pub(super) fn leave_process(&mut self, key: ProcessKey, chosen: [u32; 2]) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        process.contexts -= 1;
        process.chosen = [0, 1].map(|by| process.chosen[by] - chosen[by]);
        if process.contexts == 0 {
            if let Some(known) = process.known {
                self.known.remove(&known);
            }
            self.processes.remove(&key);
        }
    }

    /// Whether one more connection fits whose id is chosen so: at the context and its process.
    pub(super) fn has_room_at(&self, party: PartyKey, by: Chooser) -> bool {
        self.parties.get(&party).is_some_and(|it| it.has_room(by) && self.may_more(it.process, by))
    }

    /// The same, of the process alone.
    pub(super) fn may_more(&self, process: ProcessKey, by: Chooser) -> bool {
        let process = self.processes.get(&process);
        process.is_some_and(|it| it.chosen[by as usize] < it.quota.connections)
    }

    /// An id names an end of a connection from now on.
    pub(super) fn add_end(&mut self, party: PartyKey, id: u32, end: (ConnectionKey, usize)) {
        if let Some(party) = self.parties.get_mut(&party)
            && let Some(process) = self.processes.get_mut(&party.process)
        {
            process.chosen[party.add(id, end) as usize] += 1;
        }
    }

    /// It is free again, unless it names another connection by now.
    pub(super) fn remove_end(&mut self, party: PartyKey, id: u32, of: ConnectionKey) {
        if let Some(party) = self.parties.get_mut(&party)
            && let Some(by) = party.remove(id, of)
            && let Some(process) = self.processes.get_mut(&party.process)
        {
            process.chosen[by as usize] -= 1;
        }
    }

    /// Whose frames of a party are.
    pub(super) fn source_of(&self, party: PartyKey) -> Source {
        (self.parties.get(&party).map_or(0, |it| it.process), party)
    }
}
