//! Greetings, and connections that are opened.

use hg_na::{Address, GoneReason, Message};

use super::{
    Effect, NODE_QUOTA, Outgoing, Switch, Wrong,
    idle::is_idle,
    party::{Chooser, Connection, ConnectionKey, End, Party, PartyKey, Role},
};
use crate::{
    address::{Target, is_full_name},
    wire::{FRAME_MAX, Header, Hello, Kind, Refusal, YOURS, encode_identity, frame_len},
};

impl Switch {
    /// An application says who it is.
    pub(super) fn greeted(&mut self, from: PartyKey, hello: &Hello<'_>) -> Result<(), Wrong> {
        if !is_full_name(hello.name) {
            return Err("a name that is none");
        }
        let refusal = if self.is_draining {
            Some((Refusal::Other, "it is being drained, and takes nobody".to_owned()))
        } else if self.names.contains_key(hello.name) {
            Some((Refusal::NameInUse, "another application has this name".to_owned()))
        } else if self.names.len() >= self.limits[0] as usize {
            let why = format!("it has {} applications, its `max-applications`", self.names.len());
            Some((Refusal::Other, why))
        } else {
            None
        };
        let name = hello.name.to_owned();
        let target = Target { name: name.clone(), node: self.node.clone() };
        let address = target.address().map_err(|_| "a name that is too long")?;
        let party = self.party(from)?;
        if let Some((refusal, sentence)) = refusal {
            if !party.flows.is_empty() {
                return Err("greetings without taking the answers");
            }
            party.say(refusal.frame(&sentence));
        } else {
            let quota = u64::from(party.quota.connections);
            party.role = Role::Application { name: name.clone(), listens: hello.listens };
            party.say(Header::new(Kind::Welcome, 0, quota).frame(address.as_str().as_bytes()));
            self.names.insert(name, from);
        }
        self.list(from);
        Ok(())
    }

    /// An id that the party has chosen for one more connection.
    fn check_id(&mut self, from: PartyKey, id: u32) -> Result<(), Wrong> {
        let party = self.party(from)?;
        if id & YOURS != 0 || party.ends.contains_key(&id) {
            return Err("a connection whose id is not free");
        }
        if !party.has_room(Chooser::Party) {
            return Err("more connections than its quota");
        }
        Ok(())
    }

    /// An application opens a connection.
    pub(super) fn open(&mut self, from: PartyKey, id: u32, target: &str) -> Result<(), Wrong> {
        self.check_id(from, id)?;
        let target = Address::new(target).and_then(|it| Target::parse(&it));
        let target = target.map_err(|_| "an address that is none")?;
        if self.is_draining {
            self.refuse_draining(from, id);
        } else if !self.may_more(self.source_of(from).0, Chooser::Party) {
            let why = "its process has as many connections as it may have";
            self.refuse(from, id, &GoneReason::Refused(why.into()));
        } else {
            let node = self.common(&target);
            if self.networks.iter().any(|own| own.address == node) {
                self.open_here(from, id, &target.name, FRAME_MAX);
            } else {
                self.open_there(from, id, Target { node, ..target });
            }
        }
        Ok(())
    }

    /// The target's address in the first of the networks that both nodes are in; in any, where they have none in common.
    fn common(&self, target: &Target) -> Address {
        let own = self.networks.iter().map(|own| own.address.scheme());
        let found = own.into_iter().find_map(|own| target.nodes().find(|it| it.scheme() == own));
        found.or_else(|| target.nodes().next()).unwrap_or_else(|| target.node.clone())
    }

    fn refuse_draining(&mut self, from: PartyKey, id: u32) {
        self.refuse(from, id, &draining());
    }

    /// It is drained from now on: nothing that waits is opened any more.
    pub(super) fn refuse_waiting(&mut self) {
        let waiting = self.parties.values_mut().flat_map(|it| std::mem::take(&mut it.waiting));
        for (key, _) in waiting.collect::<Vec<_>>() {
            self.close_end(key, 0, &draining());
        }
    }

    /// Another daemon opens one, and says how long frames it takes.
    pub(super) fn open_from_node(
        &mut self,
        from: PartyKey,
        (id, word): (u32, u64),
        name: &str,
    ) -> Result<(), Wrong> {
        self.check_id(from, id)?;
        let takes = frame_len(word, FRAME_MAX)?;
        if self.is_draining {
            self.refuse_draining(from, id);
            return Ok(());
        }
        let network = self.party(from)?.network;
        let own = self.networks[network].frame_max;
        self.open_here(from, id, name, takes.min(own));
        Ok(())
    }

    /// The target is an application of this node.
    fn open_here(&mut self, from: PartyKey, id: u32, name: &str, frame_max: usize) {
        let found = self.names.get(name).copied();
        let listening = found.filter(|key| {
            let role = self.parties.get(key).map(|party| &party.role);
            matches!(role, Some(Role::Application { listens: true, .. }))
        });
        let Some(to) = listening else {
            let why = if found.is_some() { "it does not listen" } else { "nobody has this name" };
            return self.refuse(from, id, &GoneReason::Unreachable(why.into()));
        };
        if !self.has_room_at(to, Chooser::Daemon) {
            let why = "it has as many connections as it may have";
            return self.refuse(from, id, &GoneReason::Refused(why.into()));
        }
        let [opener, target] = [from, to].map(|key| self.identity_of(key));
        let key = self.begin((from, id), true, frame_max);
        let to_id = self.join(key, to);
        self.counts.opened += 1;
        let word = frame_max as u64;
        let [source, back] = [from, to].map(|key| self.source_of(key));
        self.pass(source, to, to_id, Header::new(Kind::Incoming, 0, word).frame(&opener));
        self.pass(back, from, id, Header::new(Kind::Opened, 0, word).frame(&target));
    }

    /// Of an application of this node; of others nobody here vouches for anything.
    fn identity_of(&self, key: PartyKey) -> [u8; 9] {
        encode_identity(&self.parties.get(&key).map(|it| it.identity.clone()).unwrap_or_default())
    }

    /// The target is another node's. Where its daemon may not be called yet, the connection waits, and counts as one.
    fn open_there(&mut self, from: PartyKey, id: u32, target: Target) {
        let frame_max = self.networks[self.network_of(&target.node)].frame_max;
        let key = self.begin((from, id), false, frame_max);
        self.counts.opened += 1;
        let Some(party) = self.parties.get(&from) else { return };
        if self.may_reach(party, &target.node) {
            self.reach((from, key), &target);
        } else if let Some(party) = self.parties.get_mut(&from) {
            party.waiting.insert(key, target);
            if party.unanswered.values().any(|wanted| *wanted == 0) {
                self.callers.insert(from);
            }
        }
    }

    /// Whether an application may have a connection there now: so many daemons are called for it at a time that have not answered.
    pub(super) fn may_reach(&self, from: &Party, node: &Address) -> bool {
        let to = self.nodes.get(node);
        let is_called = |to| self.parties.get(to).is_none_or(|it| it.is_called);
        from.unanswered.len() < self.unanswered_max
            || to.is_some_and(|to| from.unanswered.contains_key(to) || !is_called(to))
    }

    /// Opens what waits, as far as it may be opened now: what may not holds up nothing else.
    pub(super) fn open_waiting(&mut self, from: PartyKey) {
        self.let_go(from);
        let Some(party) = self.parties.get(&from) else { return };
        for key in party.waiting.keys().copied().collect::<Vec<_>>() {
            if let Some(party) = self.parties.get(&from)
                && party.waiting.get(&key).is_some_and(|it| self.may_reach(party, &it.node))
                && let Some(party) = self.parties.get_mut(&from)
                && let Some(target) = party.waiting.remove(&key)
            {
                self.reach((from, key), &target);
            }
        }
    }

    /// Whoever has connections that wait lets calls go with which it wants nothing any more: they are left, unless others want them.
    fn let_go(&mut self, from: PartyKey) {
        let Some(party) = self.parties.get_mut(&from) else { return };
        if party.waiting.is_empty() {
            return;
        }
        let unwanted = party.unanswered.extract_if(|_, wanted| *wanted == 0);
        let unwanted = unwanted.map(|(key, _)| key).collect::<Vec<_>>();
        unwanted.into_iter().for_each(|key| self.leave_unwanted(key));
    }

    /// Leaves a daemon that has not answered, unless somebody wants it.
    pub(super) fn leave_unwanted(&mut self, key: PartyKey) {
        if self.parties.get(&key).is_some_and(|it| it.is_called && is_idle(it, &self.connections)) {
            self.leave(key);
        }
    }

    /// Somebody has closed a connection there: if it is a daemon that has not answered, something else may have its turn.
    pub(super) fn wants_less(&mut self, from: PartyKey, node: PartyKey) {
        if let Some(party) = self.parties.get_mut(&from)
            && let Some(wanted) = party.unanswered.get_mut(&node)
        {
            *wanted -= 1;
            if *wanted == 0 {
                self.callers.insert(from);
            }
        }
    }

    /// A daemon that was called has answered, or is gone: what waits for it, or for its turn, may be opened.
    pub(super) fn heard_of(&mut self, node: PartyKey) {
        for (key, party) in &mut self.parties {
            party.unanswered.remove(&node);
            if !party.waiting.is_empty() {
                self.callers.insert(*key);
            }
        }
    }

    /// Opens a connection to another daemon, unless it was closed while it waited.
    fn reach(&mut self, (from, key): (PartyKey, ConnectionKey), target: &Target) {
        let Some(opened) = self.connections.get(&key).filter(|it| it.ends[0].is_live()) else {
            return;
        };
        let word = opened.frame_max as u64;
        let to = self.nodes.get(&target.node).copied().unwrap_or_else(|| self.call(&target.node));
        let frame = Header::new(Kind::Open, 0, word).frame(target.name.as_bytes());
        self.open_at(to, (from, key), frame);
    }

    fn open_at(&mut self, to: PartyKey, (from, key): (PartyKey, ConnectionKey), frame: Message) {
        let Some(there) = self.parties.get(&to).filter(|it| it.has_room(Chooser::Daemon)) else {
            let why = "there are as many connections with its node as there may be";
            return self.close_end(key, 0, &GoneReason::Refused(why.into()));
        };
        if there.is_called
            && let Some(party) = self.parties.get_mut(&from)
        {
            *party.unanswered.entry(to).or_default() += 1;
        }
        let to_id = self.join(key, to);
        self.pass(self.source_of(from), to, to_id, frame);
    }

    /// A daemon that was to be reached is reached already, by another spelling of its address: what was to be opened is opened there.
    pub(crate) fn is_known(&mut self, party: PartyKey, by: PartyKey) {
        let Some(other) = self.parties.get_mut(&party) else { return };
        let mut flows = std::mem::take(&mut other.flows);
        while let Some(Outgoing { frame, .. }) = flows.pop() {
            let id = Header::decode(frame.as_slice()).map_or(0, |(header, _)| header.id ^ YOURS);
            // What is of no connection that is live is no `Open` either.
            if let Ok(Some((key, side))) = self.live(party, id) {
                let Some(connection) = self.connections.get_mut(&key) else { continue };
                let from = connection.ends[1 - side].party;
                connection.ends[side] = End::nobody();
                self.remove_end(party, id, key);
                self.open_at(by, (from, key), frame);
            }
        }
        self.gone(party, &GoneReason::Closed);
    }

    /// Reaches another daemon.
    fn call(&mut self, node: &Address) -> PartyKey {
        self.make_room_for_a_call();
        let role = Role::Node(Some(node.clone()));
        let mut party = Party::new(role, hg_na::Identity::default(), NODE_QUOTA);
        party.is_called = true;
        party.network = self.network_of(node);
        party.say(Hello { listens: false, name: "" }.frame());
        let key = self.add_party(party);
        self.nodes.insert(node.clone(), key);
        self.effects.push_back(Effect::Dial(key, node.clone()));
        self.list(key);
        key
    }

    /// Makes a connection whose other end is nobody yet.
    fn begin(
        &mut self,
        (from, id): (PartyKey, u32),
        is_open: bool,
        frame_max: usize,
    ) -> ConnectionKey {
        let key = self.key();
        self.add_end(from, id, (key, 0));
        let ends = [End::live(self.source_of(from), id), End::nobody()];
        self.connections.insert(key, Connection { ends, is_open, frame_max });
        key
    }

    /// Makes a party the other end of a connection; gives its id there.
    fn join(&mut self, key: ConnectionKey, to: PartyKey) -> u32 {
        let mut to_id = 0;
        let source = self.source_of(to);
        if let Some(party) = self.parties.get_mut(&to)
            && let Some(connection) = self.connections.get_mut(&key)
        {
            to_id = party.choose();
            connection.ends[1] = End::live(source, to_id);
            self.add_end(to, to_id, (key, 1));
        }
        to_id
    }

    /// Tells an opener that there is none. Until it has been told, that counts as one.
    fn refuse(&mut self, from: PartyKey, id: u32, reason: &GoneReason) {
        let key = self.begin((from, id), false, 0);
        self.close_end(key, 0, reason);
    }

    /// Another daemon says that a connection is there, and how long its frames may be.
    pub(super) fn opened(&mut self, from: PartyKey, id: u32, word: u64) -> Result<(), Wrong> {
        self.live(from, id)?;
        let (key, side) = *self.party(from)?.ends.get(&id).ok_or("a connection of nobody's")?;
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        if side == 0 || connection.is_open {
            return Err("a connection that is there already");
        }
        connection.frame_max = frame_len(word, connection.frame_max)?;
        connection.is_open = true;
        let opener = &connection.ends[0];
        let (to, to_id) = (opener.party, opener.id);
        if opener.is_live() {
            let identity = encode_identity(&hg_na::Identity::default());
            let source = self.source_of(from);
            self.pass(source, to, to_id, Header::new(Kind::Opened, 0, word).frame(&identity));
        }
        Ok(())
    }
}

fn draining() -> GoneReason {
    GoneReason::Unreachable("its daemon is being drained".into())
}
