//! The daemon: one thread that moves frames between the applications of a node and the daemons of others, as the switch decides.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Message, Op, OpenOptions, Peer, Plugin,
    Rejected, Sleep, Token, Waiter,
};
use hg_na_sm::SmPlugin;
use rustc_hash::FxHashMap;

use crate::{
    config::Config,
    idle::Idle,
    machine::{Effect, Network, Outgoing, PartyKey, SPARE, Switch},
    metrics::Metrics,
    network::{open_network, plugin_of},
    wire::FRAME_MAX,
};

/// Frames that one party is sent before the others have their turn; a long one counts as several.
const TURN: usize = 32;
/// Frames of one party that a leg holds, counted alike: what waits longer waits where shares are kept.
const HELD_MAX: usize = 32;
/// A frame counts once, and once more for each of so many bytes that it is long.
const COUNTED: usize = 16 << 10;
/// Bits of a token that say how often its frame counts; the others name the party.
const COUNT_BITS: u32 = 4;

const _: () = assert!(1 + FRAME_MAX / COUNTED < 1 << COUNT_BITS);
/// So long after something came from applications it looks who else has connected, and whether there are places for more.
const STRANGERS_LOOK: Duration = Duration::from_millis(100);
/// Looks whether all has left, when it ends.
const FLUSH_LOOK: Duration = Duration::from_millis(10);
/// So long what has not left may take when it ends: somebody may not take it.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Which of its contexts: this one, or that of one of the networks behind it.
type Way = usize;
/// Of the node's applications.
const LOCAL: Way = 0;

/// One of its contexts, and who is who there.
#[derive(Debug)]
struct Side {
    context: Box<dyn Context>,
    /// `None`: it was ended by the switch, and is not heard any more.
    parties: FxHashMap<Peer, Option<PartyKey>>,
}

/// How a party is reached.
#[derive(Debug, Clone, Copy)]
struct Leg {
    way: Way,
    peer: Peer,
    /// Frames that its context holds, long ones counted as several.
    held: usize,
}

/// A daemon that owns networks, and serves the applications of its node.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    switch: Switch,
    /// By [`Way`].
    sides: Vec<Side>,
    legs: FxHashMap<PartyKey, Leg>,
    /// Of all sides; those of further networks collect what it was told.
    waiter: Arc<dyn Waiter>,
    further: Vec<Arc<dyn Waiter>>,
    stop: Arc<AtomicBool>,
    /// Where its figures are served.
    metrics: Option<Metrics>,
    /// When what is left is ended.
    end: Option<Instant>,
    /// When it looks who has connected and said nothing.
    strangers_at: Option<Instant>,
    batch: Vec<Completion>,
}

/// Ends a daemon that another thread runs.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waiter: Arc<dyn Waiter>,
}

impl Stopper {
    /// Has [`Daemon::run`] return, whatever is on its way.
    pub fn stop(&self) {
        // Release: pairs with the load of the loop.
        self.stop.store(true, Ordering::Release);
        self.waiter.wake();
    }
}

impl Daemon {
    /// Opens all sides.
    ///
    /// # Errors
    /// Those of the plugins; [`Error::Missing`] for a network that this build is without; those of [`Daemon::open_over`].
    pub fn open(config: Config) -> Result<Self, Error> {
        let plugin = plugin_of(&Address::new(&config.network)?)?;
        Self::open_over(plugin.as_ref(), config)
    }

    /// The same with a first network of whatever plugin.
    ///
    /// # Errors
    /// Those of the plugins; [`Error::BadAddress`] where its addresses are too long for those of applications, or one has a `~` in it;
    /// [`Error::Unsupported`] for a network whose messages are shorter than 16 KiB, that can only be polled, or
    /// whose wait set takes nobody else's descriptors ([`Waiter::host`]), and for a further one that is slept on in steps.
    pub fn open_over(plugin: &dyn Plugin, config: Config) -> Result<Self, Error> {
        let first = open_network(plugin, &config.network, &config.network_settings)?;
        let mut networks = vec![first];
        for further in &config.further_networks {
            let plugin = plugin_of(&Address::new(&further.url)?)?;
            networks.push(open_network(plugin.as_ref(), &further.url, &further.settings)?);
        }
        let (network, caps) = &networks[0];
        // Strangers have places of their own: whoever asks is answered, however many applications there are.
        let max_peers = config.max_applications.saturating_add(SPARE);
        let mut options = OpenOptions::listening()
            .with("regions", "off")
            .with("max-peers", &max_peers.to_string());
        if let Some(allowed) = config.allowed() {
            options = options.with("allow-uid", &allowed);
        }
        if let Some(fd) = config.listen_fd {
            options = options.with("listen-fd", &fd.to_string());
        }
        let url = Address::new(&format!("sm://{}", config.name))?;
        let local = SmPlugin.open(&url, &options)?.context_in(0, network.waiter().host()?)?;
        // A network that sleeps in steps counts them in its own.
        let waiter = match caps.sleep {
            Sleep::Descriptor => local.waiter(),
            _ => network.waiter(),
        };
        let further: Vec<_> = networks[1..].iter().map(|(it, _)| it.waiter()).collect();
        watch(&waiter, &further)?;
        let owned = networks.iter().map(|(context, caps)| Network {
            address: context.address().clone(),
            frame_max: caps.max_unexpected.min(FRAME_MAX),
        });
        let owner = Some(nix::unistd::geteuid().as_raw());
        let mut switch = Switch::new(owned.collect(), owner)?;
        switch.limits = [config.max_applications, config.connections];
        switch.idle = Duration::from_millis(config.network_idle_ms);
        let metrics =
            config.metrics.map(|at| Metrics::serve(at, Arc::clone(&waiter))).transpose()?;
        switch.metrics = metrics.as_ref().map(Metrics::address);
        let contexts = [local].into_iter().chain(networks.into_iter().map(|(network, _)| network));
        let side = |context| Side { context, parties: FxHashMap::default() };
        Ok(Self {
            switch,
            config,
            sides: contexts.map(side).collect(),
            legs: FxHashMap::default(),
            waiter,
            further,
            metrics,
            stop: Arc::default(),
            end: None,
            strangers_at: None,
            batch: Vec::new(),
        })
    }

    /// Its address in the network, which is part of its applications' addresses: of several networks those, with `~` between them.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.switch.address()
    }

    /// What ends [`Daemon::run`] from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: Arc::clone(&self.stop), waiter: Arc::clone(&self.waiter) }
    }

    /// Serves until it is stopped, or was told to drain and has nothing left to do.
    ///
    /// # Errors
    /// What makes either context useless.
    pub fn run(&mut self) -> Result<(), Error> {
        let mut idle = Idle::new(Instant::now());
        // Acquire: pairs with the store of whoever stops it.
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if self.end.is_some_and(|end| end <= now) {
                return self.flush();
            }
            if self.round(now)? {
                idle.moved(now);
            } else if self.switch.is_drained() {
                return self.flush();
            } else if idle.polls(now) {
                if idle.asks() {
                    // Rings of applications that were not heard lately are polled by nobody: they ring.
                    self.wait(Some(Duration::ZERO))?;
                }
                std::thread::yield_now();
                idle.came_back(now.elapsed());
            } else if !self.switch.is_ready() {
                idle.slept();
                let due = [self.end, self.strangers_at, self.switch.next_deadline()];
                let due = due.into_iter().flatten().min();
                self.sleep(due.map(|due| due.saturating_duration_since(now)))?;
            }
        }
        Ok(())
    }

    /// One round of all sides; says whether anything moved.
    fn round(&mut self, now: Instant) -> Result<bool, Error> {
        if self.strangers_at.is_some_and(|at| at <= now) {
            self.strangers_at = None;
            self.meet_strangers();
        }
        self.switch.handle_timeout(now);
        let mut moved = false;
        // Networks last: they send at the beginning of their rounds.
        for way in 0..self.sides.len() {
            let mut batch = std::mem::take(&mut self.batch);
            let found = self.sides[way].context.progress(now, &mut batch)?;
            if found && way == LOCAL {
                self.strangers_at.get_or_insert(now + STRANGERS_LOOK);
            }
            moved |= found;
            for completion in batch.drain(..) {
                self.take(way, completion);
            }
            self.batch = batch;
            moved |= self.act();
            moved |= self.send();
        }
        if let Some(metrics) = &self.metrics {
            metrics.answer(|| self.switch.status());
        }
        Ok(moved)
    }

    fn take(&mut self, way: Way, completion: Completion) {
        match completion {
            Completion::Unexpected { from, message } => {
                if let Some(key) = self.party(way, from) {
                    self.switch.handle(key, message);
                }
            }
            Completion::Done(done) => {
                let (key, count) = read_token(done.token);
                let Some(leg) = self.legs.get_mut(&key) else { return };
                leg.held -= count;
                if leg.held <= HELD_MAX / 2 {
                    self.switch.has_room(key);
                }
            }
            Completion::Room { peer } => {
                if let Some(Some(key)) = self.sides[way].parties.get(&peer).copied() {
                    self.switch.has_room(key);
                }
            }
            Completion::Gone { peer, reason } => {
                if let Some(Some(key)) = self.sides[way].parties.remove(&peer) {
                    self.legs.remove(&key);
                    self.switch.gone(key, &reason);
                }
            }
            // Nothing else is sent here, and a hang-up is followed by the last word at once.
            _ => {}
        }
    }

    /// Who has sent something: a newcomer, maybe.
    fn party(&mut self, way: Way, peer: Peer) -> Option<PartyKey> {
        if let Some(known) = self.sides[way].parties.get(&peer) {
            return *known;
        }
        let key = if way == LOCAL {
            let identity = self.sides[LOCAL].context.identity(peer);
            let quota = self.config.quota(&identity);
            self.switch.arrived(identity, quota)
        } else {
            self.switch.node_arrived(way - 1)
        };
        self.meet(way, peer, key);
        Some(key)
    }

    /// Whoever has connected is somebody, although he says nothing, and may have to make room.
    fn meet_strangers(&mut self) {
        for peer in self.sides[LOCAL].context.connected() {
            self.party(LOCAL, peer);
        }
        self.switch.make_room();
    }

    fn meet(&mut self, way: Way, peer: Peer, key: PartyKey) {
        self.sides[way].parties.insert(peer, Some(key));
        self.legs.insert(key, Leg { way, peer, held: 0 });
    }

    /// Does what the switch wants.
    fn act(&mut self) -> bool {
        let mut moved = false;
        while let Some(effect) = self.switch.next_effect() {
            moved = true;
            match effect {
                Effect::Dial(key, address) => self.dial(key, &address),
                Effect::HangUp(key, why) => {
                    let Some(Leg { way, peer, .. }) = self.legs.get(&key).copied() else {
                        continue;
                    };
                    let who = self.sides[way].context.identity(peer);
                    tracing::warn!(?who, why, "disconnected");
                    self.disconnect(key);
                }
                Effect::Leave(key) => self.disconnect(key),
                Effect::EndWithin(ms) => {
                    // Of several who drain it, whoever has the least patience.
                    let end = Instant::now().checked_add(Duration::from_millis(ms));
                    self.end = [self.end, end].into_iter().flatten().min();
                }
            }
        }
        moved
    }

    fn dial(&mut self, key: PartyKey, address: &Address) {
        let way = 1 + self.switch.network_of(address);
        let side = &mut self.sides[way];
        match side.context.lookup(address) {
            Ok(peer) => match side.parties.get(&peer).copied() {
                // The network takes several spellings of an address for one.
                Some(Some(known)) => self.switch.is_known(key, known),
                Some(None) => {
                    let why = "its last connection is just being closed: call again";
                    self.switch.gone(key, &GoneReason::Unreachable(why.into()));
                }
                None => self.meet(way, peer, key),
            },
            Err(error) => {
                let why = GoneReason::Unreachable(error.to_string().into());
                self.switch.gone(key, &why);
            }
        }
    }

    /// Whoever is there is heard no more.
    fn disconnect(&mut self, key: PartyKey) {
        if let Some(Leg { way, peer, .. }) = self.legs.remove(&key) {
            let side = &mut self.sides[way];
            side.parties.insert(peer, None);
            side.context.forget(peer);
        }
    }

    /// Gives everybody who is to be sent something a turn.
    fn send(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.legs.len() {
            let Some(key) = self.switch.next_ready() else { break };
            let mut sent = 0;
            while sent < TURN {
                let Some(outgoing) = self.switch.pop(key) else { break };
                sent += count_of(&outgoing.frame);
                if !self.hand(key, outgoing) {
                    break;
                }
                moved = true;
            }
            self.switch.list(key);
        }
        moved
    }

    /// Hands one frame to its leg; `false`: it takes none now.
    fn hand(&mut self, key: PartyKey, Outgoing { frame, follows }: Outgoing) -> bool {
        let Some(leg) = self.legs.get_mut(&key) else { return false };
        if leg.held >= HELD_MAX {
            self.switch.put_back(key, Outgoing { frame, follows });
            return false;
        }
        let count = count_of(&frame);
        let op = Op::SendUnexpected { to: leg.peer, message: frame };
        match self.sides[leg.way].context.post(token(key, count), op) {
            Ok(_) => {
                leg.held += count;
                self.switch.left(follows);
                true
            }
            Err(Rejected { op: Op::SendUnexpected { message, .. }, error: Error::Again }) => {
                self.switch.put_back(key, Outgoing { frame: message, follows });
                false
            }
            // It is gone, and that is about to be told.
            Err(_) => false,
        }
    }

    /// Sleeps until something comes, unless something is there.
    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        if !self.sides.iter_mut().all(|side| side.context.may_sleep()) {
            return Ok(());
        }
        let due = self.sides.iter().filter_map(|side| side.context.next_deadline()).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        self.wait([left, limit].into_iter().flatten().min())
    }

    fn wait(&self, limit: Option<Duration>) -> Result<(), Error> {
        self.waiter.wait(limit)?;
        self.further.iter().try_for_each(|waiter| waiter.wait(Some(Duration::ZERO)))
    }

    /// Ends what is left. What was sent arrives, although this process ends.
    fn flush(&mut self) -> Result<(), Error> {
        self.switch.end();
        let mut has_left = vec![false; self.sides.len()];
        let end = Instant::now() + FLUSH_MAX;
        // Acquire: as in `run`.
        while has_left.contains(&false)
            && !self.stop.load(Ordering::Acquire)
            && Instant::now() < end
        {
            // What waits here is handed over first.
            let is_handed = self.switch.bytes() == 0;
            for (side, has_left) in self.sides.iter_mut().zip(&mut has_left) {
                *has_left = *has_left || is_handed && side.context.flush();
            }
            if !self.round(Instant::now())? {
                self.sleep(Some(FLUSH_LOOK))?;
            }
        }
        Ok(())
    }
}

/// Has the first of them sleep on all: each watches the next one.
fn watch(first: &Arc<dyn Waiter>, further: &[Arc<dyn Waiter>]) -> Result<(), Error> {
    let why = "a further network that is slept on in steps: name it first";
    for (watching, watched) in [first].into_iter().chain(further).zip(further) {
        // All are asked after each sleep, whatever has ended it.
        watching.join(watched.fd().ok_or(Error::Unsupported(why))?, Arc::default())?;
    }
    Ok(())
}

/// How often a frame counts.
fn count_of(frame: &Message) -> usize {
    1 + frame.len() / COUNTED
}

fn token(key: PartyKey, count: usize) -> Token {
    key << COUNT_BITS | count as u64
}

fn read_token(token: Token) -> (PartyKey, usize) {
    let count = usize::try_from(token & ((1 << COUNT_BITS) - 1)).expect("a few bits");
    (token >> COUNT_BITS, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_party_and_how_often_its_frame_counts() {
        for (len, count) in [(0, 1), (COUNTED - 1, 1), (COUNTED, 2), (FRAME_MAX, 5)] {
            let frame = Message::from(vec![0; len]);
            assert_eq!(count_of(&frame), count);
            assert_eq!(read_token(token(77, count)), (77, count));
        }
    }
}
