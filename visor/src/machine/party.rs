//! Who is at the other end of a leg, and what connects two of them.

use std::{collections::BTreeMap, time::Instant};

use hg_na::{Address, Identity, Message};
use rustc_hash::FxHashMap;

use super::{
    flows::{Flows, Outgoing},
    process::{ProcessKey, Source},
};
use crate::wire::{YOURS, next_id};

/// Names a party; never used twice.
pub(crate) type PartyKey = u64;
/// Names a connection; never used twice.
pub(crate) type ConnectionKey = u64;

/// What a process may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Its share where it has to share.
    pub(crate) weight: u32,
    /// Connections that it has opened, and as many that others have opened to it: each of its contexts, and all together.
    pub(crate) connections: u32,
}

/// What a party has said that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// A process of this node, which has not said hello.
    Stranger,
    /// One that has.
    Application { name: String, listens: bool },
    /// Another daemon, that has come by itself and not said hello.
    Caller,
    /// One that has; or one that this side has called, at that address.
    Node(Option<Address>),
}

/// Who chose the id of a connection on a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chooser {
    Party = 0,
    Daemon = 1,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) role: Role,
    pub(crate) identity: Identity,
    /// Its own number, until it is known whose it is.
    pub(crate) process: ProcessKey,
    pub(crate) quota: Quota,
    /// Ends of connections, by their ids in frames that come from it.
    pub(crate) ends: FxHashMap<u32, (ConnectionKey, usize)>,
    /// How many ids of those each side has chosen.
    pub(crate) chosen: [u32; 2],
    last_id: u32,
    /// What waits to be sent to it.
    pub(crate) flows: Flows,
    /// The leg takes nothing until it says so.
    pub(crate) is_blocked: bool,
    /// It is in the list of those with something to be sent.
    pub(crate) is_listed: bool,
    /// Of an application: daemons that were called for it and have not answered, and how many connections it still wants with each; and
    /// its connections, the oldest first, that wait until fewer have not.
    pub(crate) unanswered: FxHashMap<PartyKey, u32>,
    pub(crate) waiting: BTreeMap<ConnectionKey, crate::address::Target>,
    /// Of a daemon: by which of the networks it has come, or is called.
    pub(crate) network: usize,
    /// Of a daemon: it was called, and has not answered.
    pub(crate) is_called: bool,
    /// When its leg was first found to carry nothing, unless it has since.
    pub(crate) idle_since: Option<Instant>,
}

impl Party {
    pub(crate) fn new(role: Role, identity: Identity, quota: Quota) -> Self {
        Self {
            role,
            identity,
            process: 0,
            quota,
            ends: FxHashMap::default(),
            chosen: [0; 2],
            last_id: 0,
            flows: Flows::default(),
            is_blocked: false,
            is_listed: false,
            unanswered: FxHashMap::default(),
            waiting: BTreeMap::new(),
            network: 0,
            is_called: false,
            idle_since: None,
        }
    }

    pub(crate) fn is_node(&self) -> bool {
        matches!(self.role, Role::Node(_) | Role::Caller)
    }

    /// Whether one more connection fits whose id is chosen so.
    pub(crate) fn has_room(&self, by: Chooser) -> bool {
        self.chosen[by as usize] < self.quota.connections
    }

    /// An id for frames from it that names a connection which this side opens.
    pub(crate) fn choose(&mut self) -> u32 {
        self.last_id = next_id(self.last_id, |id| self.ends.contains_key(&(id | YOURS)));
        self.last_id | YOURS
    }

    pub(super) fn add(&mut self, id: u32, end: (ConnectionKey, usize)) -> Chooser {
        self.idle_since = None;
        let by = chooser(id);
        self.chosen[by as usize] += 1;
        self.ends.insert(id, end);
        by
    }

    /// Frees an id, unless it names another connection by now; who had chosen it.
    pub(super) fn remove(&mut self, id: u32, of: ConnectionKey) -> Option<Chooser> {
        self.ends.get(&id).filter(|(key, _)| *key == of)?;
        self.ends.remove(&id);
        let by = chooser(id);
        self.chosen[by as usize] -= 1;
        Some(by)
    }

    /// Queues something that is of no connection.
    pub(crate) fn say(&mut self, frame: Message) {
        self.flows.push((0, 0), 1, Outgoing::plain(frame));
    }
}

fn chooser(id: u32) -> Chooser {
    if id & YOURS == 0 { Chooser::Party } else { Chooser::Daemon }
}

/// What this side has said at one end of a connection about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    /// `Close` waits to be sent.
    Queued,
    /// It has left.
    Sent,
}

/// One end of a connection. It is over when each side has sent `Close`, or its party is gone.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) party: PartyKey,
    /// Whose frames from there are, also after it has gone.
    pub(crate) source: Source,
    /// In frames from there.
    pub(crate) id: u32,
    /// `Close` has come from there, or nothing will.
    pub(crate) has_closed: bool,
    pub(crate) said: Said,
    /// What frames cost that came from there: those that were not taken at the other end; and with them those of which it was not told
    /// that they were.
    pub(crate) untaken: u32,
    pub(crate) in_flight: u32,
}

impl End {
    pub(crate) fn live(source: Source, id: u32) -> Self {
        let party = source.1;
        Self { party, source, id, has_closed: false, said: Said::Nothing, untaken: 0, in_flight: 0 }
    }

    /// Of a connection that was refused.
    pub(crate) fn nobody() -> Self {
        Self { has_closed: true, said: Said::Sent, ..Self::live((0, 0), 0) }
    }

    /// Frames come and go.
    pub(crate) fn is_live(&self) -> bool {
        !self.has_closed && self.said == Said::Nothing
    }

    /// Nothing comes or goes any more.
    pub(crate) fn is_over(&self) -> bool {
        self.has_closed && self.said == Said::Sent
    }
}

/// Two ends: the one that has opened it first.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    /// Its opener was told that it is there.
    pub(crate) is_open: bool,
    /// Longest frame in bytes, either way: as long as both networks take; of one node, as long as any.
    pub(crate) frame_max: usize,
}
