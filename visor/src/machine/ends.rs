//! How connections and parties end. On each leg each side sends one `Close` for a connection: who has got one answers it, a daemon once
//! the other end is over, so that what was sent before has left by then.

use hg_na::GoneReason;

use super::{
    Follows, Outgoing, Switch, Wrong,
    party::{ConnectionKey, End, Party, PartyKey, Role, Said},
};
use crate::wire::{self, Header, YOURS};

impl Switch {
    /// A party closes a connection, or answers that it was closed.
    pub(super) fn closed_by(
        &mut self,
        from: PartyKey,
        header: Header,
        body: &[u8],
    ) -> Result<(), Wrong> {
        let party = self.party(from)?;
        // What a daemon says of the other end is its to say; what an application says of itself is not.
        let reason = match party.is_node() {
            true => wire::reason(header.word, body),
            false => GoneReason::Closed,
        };
        let (key, side) = *party.ends.get(&header.id).ok_or("an end of no connection")?;
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        let end = &mut connection.ends[side];
        if std::mem::replace(&mut end.has_closed, true) {
            return Err("a connection that was closed twice");
        }
        let other = connection.ends[1 - side].party;
        self.wants_less(from, other);
        self.close_end(key, 1 - side, &reason);
        self.settle(key);
        Ok(())
    }

    /// Tells one end that the connection is over, unless it is to be answered later.
    pub(super) fn close_end(&mut self, key: ConnectionKey, side: usize, reason: &GoneReason) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let source = connection.ends[1 - side].source;
        let end = &mut connection.ends[side];
        if end.is_live() {
            end.said = Said::Queued;
            let (to, frame) = (end.party, wire::close(end.id ^ YOURS, reason));
            self.queue(source, to, Outgoing { frame, follows: Follows::Closed(key, side) });
        }
    }

    /// The `Close` of one end has left.
    pub(super) fn close_left(&mut self, key: ConnectionKey, side: usize) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.ends[side].said = Said::Sent;
        }
        self.settle(key);
    }

    /// Answers whoever has closed, once the other end is over; forgets what is over. A daemon that was called is answered as soon as the
    /// opener has been told: who opens knows what counts to his quota, and may fill nothing else.
    fn settle(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let ends = &connection.ends;
        if ends.iter().all(End::is_over) {
            self.forget(key);
            return;
        }
        let is_called = |key| self.parties.get(key).is_some_and(Party::is_node);
        let is_told = ends[0].said == Said::Sent && is_called(&ends[1].party);
        let is_over = |at: &usize| ends[*at].is_over() || *at == 0 && is_told;
        let Some(over) = [1, 0].into_iter().find(is_over) else { return };
        let (gone, id, is_over) = (ends[over].source, ends[over].id, ends[over].is_over());
        let end = &mut connection.ends[1 - over];
        if end.has_closed && end.said == Said::Nothing {
            end.said = Said::Queued;
            let (to, frame) = (end.party, wire::close(end.id ^ YOURS, &GoneReason::Closed));
            self.queue(gone, to, Outgoing { frame, follows: Follows::Closed(key, 1 - over) });
        }
        if is_over {
            self.remove_end(gone.1, id, key);
        }
    }

    fn forget(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.remove(&key) else { return };
        for end in connection.ends {
            self.remove_end(end.party, end.id, key);
            if let Some(party) = self.parties.get_mut(&end.party) {
                party.waiting.remove(&key);
            }
        }
    }

    /// A party has gone, or is to go: what it had sent is delivered, and then its peers are told.
    pub(crate) fn gone(&mut self, party: PartyKey, reason: &GoneReason) {
        let Some(gone) = self.parties.remove(&party) else { return };
        self.daemons -= usize::from(gone.is_node());
        self.leave_process(gone.process, gone.chosen);
        self.drainers.retain(|key| *key != party);
        if gone.is_listed {
            self.ready.retain(|key| *key != party);
        }
        match &gone.role {
            Role::Application { name, .. } => {
                self.names.remove(name);
            }
            Role::Node(Some(address)) => {
                self.nodes.remove(address);
            }
            Role::Node(None) | Role::Stranger | Role::Caller => {}
        }
        if gone.is_called {
            self.heard_of(party);
        }
        let calls = gone.unanswered.into_keys();
        for (key, side) in gone.ends.into_values() {
            if let Some(connection) = self.connections.get_mut(&key) {
                let end = &mut connection.ends[side];
                (end.has_closed, end.said) = (true, Said::Sent);
            }
            self.close_end(key, 1 - side, reason);
            self.settle(key);
        }
        calls.for_each(|call| self.leave_unwanted(call));
    }
}
