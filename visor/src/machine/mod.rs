//! What a daemon decides, without I/O or a clock of its own: who is who, which frame goes where, who has room, who is ended.
//!
//! In: [`Switch::arrived`], [`Switch::handle`], [`Switch::gone`], [`Switch::has_room`], [`Switch::handle_timeout`]. Out:
//! [`Switch::next_effect`]; [`Switch::next_ready`] and [`Switch::pop`], [`Switch::left`] or [`Switch::put_back`]. `ARCHITECTURE.md` has the states.

mod ends;
mod flows;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod idle;
mod opening;
mod party;
mod process;
mod strangers;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use hg_na::{Address, Error, GoneReason, Identity, Message};
use rustc_hash::FxHashMap;

pub(crate) use flows::{Follows, Outgoing};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzing::{fuzz_applications, fuzz_daemons};
pub(crate) use idle::IDLE;
use party::{Connection, ConnectionKey, End, Party, Role};
pub(crate) use party::{PartyKey, Quota};
use process::{Known, Process, ProcessKey, Source};
pub(crate) use strangers::SPARE;

use crate::address::node_of;
use crate::wire::{HEADER_LEN, Header, Hello, Kind, RETURN_MIN, WINDOW, YOURS, cost, rename};

/// Connections between two daemons, of each side's choosing.
pub(crate) const NODE_CONNECTIONS: u32 = 65_536;

/// Daemons that are called at a time for one application, and have not answered: its further connections to others wait.
const UNANSWERED_MAX: usize = 16;

/// What the daemon is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Reach another daemon; what waits for it is sent there.
    Dial(PartyKey, Address),
    /// Disconnect whoever has broken the protocol.
    HangUp(PartyKey, &'static str),
    /// Disconnect from a daemon: its leg carries nothing any more.
    Leave(PartyKey),
    /// What has not ended by itself in so many milliseconds is to be ended.
    EndWithin(u64),
}

/// A network that a daemon owns.
#[derive(Debug)]
pub(crate) struct Network {
    /// Its own address there.
    pub(crate) address: Address,
    /// Longest frame in bytes that it takes.
    pub(crate) frame_max: usize,
}

/// Everything that a daemon knows.
#[derive(Debug)]
pub(crate) struct Switch {
    /// Its own address in the network, or those in all its networks.
    node: Address,
    /// What it owns: the first one is preferred.
    networks: Vec<Network>,
    /// Who may have it drained, besides root.
    owner: Option<u32>,
    /// Applications that there may be, and connections of each, as its reports say.
    pub(crate) limits: [u32; 2],
    /// Where its figures are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// So long a leg to another daemon carries nothing until it is ended.
    pub(crate) idle: Duration,
    /// Daemons that may be called at a time for one application, and have not answered.
    unanswered_max: usize,
    parties: FxHashMap<PartyKey, Party>,
    connections: FxHashMap<ConnectionKey, Connection>,
    /// Of applications, those of which the kernel has said which they are by that; and other daemons, each by itself.
    processes: FxHashMap<ProcessKey, Process>,
    known: FxHashMap<Known, ProcessKey>,
    /// Applications by name; the names are theirs to choose.
    names: HashMap<String, PartyKey>,
    /// Daemons that this side has called.
    nodes: HashMap<Address, PartyKey>,
    /// Parties that are daemons.
    daemons: usize,
    /// When legs are looked at again that carry nothing.
    next_look: Option<Instant>,
    last_key: u64,
    /// Parties with something to be sent; none that is gone.
    ready: VecDeque<PartyKey>,
    effects: VecDeque<Effect>,
    /// Applications of whose connections that wait some may be opened.
    callers: BTreeSet<PartyKey>,
    is_draining: bool,
    /// Those who are told when it ends.
    drainers: Vec<PartyKey>,
    counts: Counts,
}

/// What has happened so far.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    frames: u64,
    bytes: u64,
    opened: u64,
    disconnected: u64,
}

/// What a party has done wrong.
type Wrong = &'static str;

impl Switch {
    /// Of a daemon that owns these, one at least, and whose user is `owner`.
    ///
    /// # Errors
    /// [`Error::BadAddress`]: those of [`node_of`].
    pub(crate) fn new(networks: Vec<Network>, owner: Option<u32>) -> Result<Self, Error> {
        let own: Vec<_> = networks.iter().map(|it| &it.address).collect();
        Ok(Self {
            node: node_of(&own)?,
            networks,
            owner,
            limits: [u32::MAX; 2],
            metrics: None,
            idle: IDLE,
            unanswered_max: UNANSWERED_MAX,
            parties: FxHashMap::default(),
            connections: FxHashMap::default(),
            processes: FxHashMap::default(),
            known: FxHashMap::default(),
            names: HashMap::new(),
            nodes: HashMap::new(),
            daemons: 0,
            next_look: None,
            last_key: 0,
            ready: VecDeque::new(),
            effects: VecDeque::new(),
            callers: BTreeSet::new(),
            is_draining: false,
            drainers: Vec::new(),
            counts: Counts::default(),
        })
    }

    fn key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn add_party(&mut self, mut party: Party) -> PartyKey {
        let key = self.key();
        party.process = self.enter_process(key, &party.identity, party.quota);
        self.daemons += usize::from(party.is_node());
        self.parties.insert(key, party);
        key
    }

    /// A process of this node has come.
    pub(crate) fn arrived(&mut self, identity: Identity, quota: Quota) -> PartyKey {
        self.add_party(Party::new(Role::Stranger, identity, quota))
    }

    /// Another daemon has come, by this one of the networks.
    pub(crate) fn node_arrived(&mut self, network: usize) -> PartyKey {
        let mut party = Party::new(Role::Caller, Identity::default(), NODE_QUOTA);
        party.network = network;
        self.add_party(party)
    }

    /// Its address in the network, or those in all.
    pub(crate) fn address(&self) -> &Address {
        &self.node
    }

    /// By which of the networks another daemon is called: the first of its kind. Where there is none, the first says that it cannot.
    pub(crate) fn network_of(&self, node: &Address) -> usize {
        let is_its = |own: &Network| own.address.scheme() == node.scheme();
        self.networks.iter().position(is_its).unwrap_or(0)
    }

    /// A frame has come. Whoever has broken the protocol is ended.
    pub(crate) fn handle(&mut self, from: PartyKey, frame: Message) {
        if let Err(wrong) = self.take(from, frame) {
            self.send_away(from, wrong);
        }
    }

    fn send_away(&mut self, key: PartyKey, wrong: Wrong) {
        self.counts.disconnected += 1;
        self.effects.push_back(Effect::HangUp(key, wrong));
        self.gone(key, &GoneReason::Misbehaved(wrong.into()));
    }

    fn take(&mut self, from: PartyKey, frame: Message) -> Result<(), Wrong> {
        let Some(party) = self.parties.get_mut(&from) else { return Ok(()) };
        if std::mem::take(&mut party.is_called) {
            self.heard_of(from);
            return self.take(from, frame);
        }
        let (header, body) = Header::decode(frame.as_slice())?;
        match (header.kind, &party.role) {
            (Kind::Hello, Role::Stranger) => self.greeted(from, &Hello::decode(body)?),
            (Kind::Hello, Role::Caller) => {
                Hello::decode(body)?;
                self.party(from)?.role = Role::Node(None);
                Ok(())
            }
            (Kind::Status, Role::Stranger) => self.answer(from, true, &self.status()),
            (Kind::Drain, Role::Stranger) => self.drain(from, header.word),
            (_, Role::Stranger | Role::Caller) => Err("a frame before the greeting"),
            (Kind::Open, Role::Application { .. }) => {
                let target = std::str::from_utf8(body).map_err(|_| "an address that is no text")?;
                self.open(from, header.id, target)
            }
            (Kind::Open, Role::Node(_)) => {
                let name = std::str::from_utf8(body).map_err(|_| "a name that is no text")?;
                self.open_from_node(from, (header.id, header.word), name)
            }
            (Kind::Opened, Role::Node(_)) => self.opened(from, header.id, header.word),
            (Kind::Data, _) => self.data(from, header.id, frame),
            (Kind::Window, _) => self.window(from, header, frame),
            (Kind::Close, _) => self.closed_by(from, header, body),
            _ => Err("a frame that is not its sender's to send"),
        }
    }

    fn party(&mut self, key: PartyKey) -> Result<&mut Party, Wrong> {
        self.parties.get_mut(&key).ok_or("nobody")
    }

    /// The end of a connection that a frame names, while both ends are live: otherwise nothing, since its sender may not know it yet.
    ///
    /// # Errors
    /// There is none that it may name. An id is its connection's until each side has sent and got `Close`.
    fn live(&self, from: PartyKey, id: u32) -> Result<Option<(ConnectionKey, usize)>, Wrong> {
        let end = self.parties.get(&from).and_then(|it| it.ends.get(&id));
        let (key, side) = *end.ok_or("a frame of no connection")?;
        let ends = &self.connections.get(&key).ok_or("a frame of no connection")?.ends;
        if ends[side].has_closed {
            return Err("a frame of a connection that it has closed");
        }
        Ok(ends.iter().all(End::is_live).then_some((key, side)))
    }

    fn data(&mut self, from: PartyKey, id: u32, frame: Message) -> Result<(), Wrong> {
        let Some((key, side)) = self.live(from, id)? else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        if !connection.is_open {
            return Err("data before the connection was there");
        }
        if frame.len() > connection.frame_max {
            return Err("a frame that is longer than was agreed");
        }
        let end = &mut connection.ends[side];
        let cost = cost(frame.len());
        end.in_flight += cost;
        if end.in_flight > WINDOW {
            return Err("more bytes than the window has room for");
        }
        end.untaken += cost;
        let source = end.source;
        let (to, to_id) = (connection.ends[1 - side].party, connection.ends[1 - side].id);
        self.counts.frames += 1;
        self.counts.bytes += frame.len() as u64;
        self.pass(source, to, to_id, frame);
        Ok(())
    }

    fn window(&mut self, from: PartyKey, header: Header, mut frame: Message) -> Result<(), Wrong> {
        let Some((key, side)) = self.live(from, header.id)? else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        if frame.len() > HEADER_LEN {
            return Err("bytes where there are none");
        }
        let source = connection.ends[side].source;
        let sender = &mut connection.ends[1 - side];
        let bytes = u32::try_from(header.word).map_err(|_| "too many bytes given back")?;
        let left =
            sender.untaken.checked_sub(bytes).ok_or("bytes given back that were not sent")?;
        if bytes < RETURN_MIN {
            return Err("too few bytes given back at once");
        }
        sender.untaken = left;
        let (to, to_id) = (sender.party, sender.id);
        // Who does not hear it may send no more: so what waits to be told is bounded as well.
        rename(&mut frame, to_id ^ YOURS);
        let follows = Follows::Returned(key, 1 - side, bytes);
        self.queue(source, to, Outgoing { frame, follows });
        Ok(())
    }

    /// Queues a frame of a connection for its other end.
    fn pass(&mut self, from: Source, to: PartyKey, to_id: u32, mut frame: Message) {
        rename(&mut frame, to_id ^ YOURS);
        self.queue(from, to, Outgoing::plain(frame));
    }

    fn queue(&mut self, from: Source, to: PartyKey, outgoing: Outgoing) {
        let weight = self.processes.get(&from.0).map_or(1, |process| process.quota.weight);
        let Some(party) = self.parties.get_mut(&to) else { return };
        party.flows.push(from, weight, outgoing);
        self.list(to);
    }

    /// Lists a party with something to be sent, behind the others.
    pub(crate) fn list(&mut self, key: PartyKey) {
        if let Some(party) = self.parties.get_mut(&key)
            && !party.is_listed
            && !party.is_blocked
            && !party.flows.is_empty()
        {
            party.is_listed = true;
            self.ready.push_back(key);
        }
    }

    /// The next party with something to be sent; it is asked again when it is listed again.
    pub(crate) fn next_ready(&mut self) -> Option<PartyKey> {
        let key = self.ready.pop_front()?;
        if let Some(party) = self.parties.get_mut(&key) {
            party.is_listed = false;
        }
        Some(key)
    }

    /// Whether there is one.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || !self.effects.is_empty() || !self.callers.is_empty()
    }

    /// The next frame for a party: [`Switch::left`] or [`Switch::put_back`] follows.
    pub(crate) fn pop(&mut self, to: PartyKey) -> Option<Outgoing> {
        self.parties.get_mut(&to)?.flows.pop()
    }

    /// It has left; `follows` is what came with it.
    pub(crate) fn left(&mut self, follows: Follows) {
        match follows {
            Follows::Nothing => {}
            Follows::Closed(connection, side) => self.close_left(connection, side),
            Follows::Returned(connection, side, bytes) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.ends[side].in_flight -= bytes;
                }
            }
        }
    }

    /// The leg takes nothing now: [`Switch::has_room`] says when.
    pub(crate) fn put_back(&mut self, to: PartyKey, outgoing: Outgoing) {
        if let Some(party) = self.parties.get_mut(&to) {
            party.flows.put_back(outgoing);
            party.is_blocked = true;
        }
    }

    /// A leg takes frames again.
    pub(crate) fn has_room(&mut self, key: PartyKey) {
        if let Some(party) = self.parties.get_mut(&key) {
            party.is_blocked = false;
        }
        self.list(key);
    }

    /// What is to be done.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        while let Some(caller) = self.callers.pop_first() {
            self.open_waiting(caller);
        }
        self.effects.pop_front()
    }

    /// What it does, as JSON.
    pub(crate) fn status(&self) -> String {
        let applications = self.names.len();
        serde_json::json!({
            "address": self.node.as_str(),
            "metrics": self.metrics,
            "draining": self.is_draining,
            "applications": applications,
            "max_applications": self.limits[0],
            "max_connections": self.limits[1],
            "daemons": self.daemons,
            "connections": self.connections.len(),
            "bytes_waiting": self.bytes(),
            "connections_opened": self.counts.opened,
            "frames_passed": self.counts.frames,
            "bytes_passed": self.counts.bytes,
            "disconnected": self.counts.disconnected,
        })
        .to_string()
    }

    fn drain(&mut self, from: PartyKey, within_ms: u64) -> Result<(), Wrong> {
        let uid = self.party(from)?.identity.uid;
        if uid.is_none() || (uid != Some(0) && uid != self.owner) {
            return self.answer(from, false, "only root and the daemon's own user may drain it");
        }
        self.is_draining = true;
        self.refuse_waiting();
        if within_ms > 0 {
            if self.drainers.contains(&from) {
                return Err("questions without taking the answers");
            }
            self.drainers.push(from);
            self.effects.push_back(Effect::EndWithin(within_ms));
            return Ok(());
        }
        let left = self.connections.len();
        self.answer(from, true, &format!("draining: {left} connections are left"))
    }

    /// Ends what is left, and tells all who wanted that.
    pub(crate) fn end(&mut self) {
        let left: Vec<ConnectionKey> = self.connections.keys().copied().collect();
        let why = GoneReason::Unreachable("its daemon was drained, and waits no longer".into());
        for key in &left {
            self.close_end(*key, 0, &why);
            self.close_end(*key, 1, &why);
        }
        for drainer in std::mem::take(&mut self.drainers) {
            let text = match left.len() {
                0 => "drained: every connection had ended".to_owned(),
                count => format!("ended: {count} connections were left"),
            };
            let _gone = self.answer(drainer, left.is_empty(), &text);
        }
    }

    /// Answers a stranger, once at a time.
    fn answer(&mut self, to: PartyKey, is_well: bool, text: &str) -> Result<(), Wrong> {
        let party = self.party(to)?;
        if !party.flows.is_empty() {
            return Err("questions without taking the answers");
        }
        let word = u64::from(!is_well);
        party.say(Header::new(Kind::Report, 0, word).frame(text.as_bytes()));
        self.list(to);
        Ok(())
    }

    /// Whether it was told to end, and nothing is left to be done.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_draining && self.connections.is_empty() && self.bytes() == 0
    }

    /// Bytes of memory that waits to be sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.parties.values().map(|party| party.flows.bytes()).sum()
    }
}

/// What another daemon may have.
const NODE_QUOTA: Quota = Quota { weight: 1, connections: NODE_CONNECTIONS };
