//! The daemon: one thread that moves frames between the applications of a node and the daemons of others, as the switch decides.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Error, Op, OpenOptions, Peer, Plugin, Rejected, Sleep, Waiter,
};
use hg_na_sm::SmPlugin;
use hg_na_tcp::TcpPlugin;
use rustc_hash::FxHashMap;

use crate::{
    config::Config,
    machine::{Effect, Outgoing, PartyKey, Switch},
    wire::FRAME_MAX,
};

/// Frames that one party is sent before the others have their turn.
const TURN: usize = 32;
/// Frames of one party that a leg holds: what waits longer waits where shares are kept.
const HELD_MAX: usize = 32;
/// Empty rounds before it sleeps.
const SPIN: u32 = 64;
/// Looks whether all has left, when it ends.
const FLUSH_LOOK: Duration = Duration::from_millis(10);

/// Which of its two contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Local,
    Network,
}

/// One of its two contexts, and who is who there.
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
    /// Frames that its context holds.
    held: usize,
}

/// A daemon that owns a network, and serves the applications of its node.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    switch: Switch,
    local: Side,
    network: Side,
    legs: FxHashMap<PartyKey, Leg>,
    address: Address,
    waiter: Arc<dyn Waiter>,
    network_waiter: Arc<dyn Waiter>,
    /// The network's descriptor was readable.
    network_ready: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
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
    /// Opens both sides.
    ///
    /// # Errors
    /// Those of either plugin; [`Error::Unsupported`] for a network whose messages are too short, or that cannot be slept on.
    pub fn open(config: Config) -> Result<Self, Error> {
        let mut options = OpenOptions::listening();
        options.settings = config.network_settings.clone();
        let network = TcpPlugin.open(&Address::new(&config.network)?, &options)?;
        let caps = network.caps();
        if caps.max_unexpected < FRAME_MAX || caps.sleep != Sleep::Descriptor {
            return Err(Error::Unsupported("a network without messages of 16 KiB or a descriptor"));
        }
        let mut options = OpenOptions::listening();
        options.settings.insert("max-peers".to_owned(), config.max_applications.to_string());
        if let Some(allowed) = config.allowed() {
            options.settings.insert("allow-uid".to_owned(), allowed);
        }
        let url = Address::new(&format!("sm://{}", config.name))?;
        let local = SmPlugin.open(&url, &options)?.context(0)?;
        let network = network.context(0)?;
        let (waiter, network_waiter) = (local.waiter(), network.waiter());
        let network_ready = Arc::new(AtomicBool::new(false));
        let fd = network_waiter.fd().ok_or(Error::Unsupported("a network without a descriptor"))?;
        waiter.join(fd, Arc::clone(&network_ready))?;
        let address = network.address().clone();
        Ok(Self {
            switch: Switch::new(address.clone(), Some(nix::unistd::geteuid().as_raw())),
            config,
            local: Side { context: local, parties: FxHashMap::default() },
            network: Side { context: network, parties: FxHashMap::default() },
            legs: FxHashMap::default(),
            address,
            waiter,
            network_waiter,
            network_ready,
            stop: Arc::default(),
            batch: Vec::new(),
        })
    }

    /// Its address in the network, which is part of its applications' addresses.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
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
        let mut idle = 0;
        // Acquire: pairs with the store of whoever stops it.
        while !self.stop.load(Ordering::Acquire) {
            if self.round()? {
                idle = 0;
            } else if self.switch.is_drained() {
                return self.flush();
            } else if idle < SPIN {
                idle += 1;
            } else if !self.switch.is_ready() {
                self.sleep(None)?;
            }
        }
        Ok(())
    }

    /// One round of both sides; says whether anything moved.
    fn round(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        let mut moved = false;
        for way in [Way::Local, Way::Network] {
            let mut batch = std::mem::take(&mut self.batch);
            moved |= self.side(way).context.progress(now, &mut batch)?;
            for completion in batch.drain(..) {
                self.take(way, completion);
            }
            self.batch = batch;
        }
        moved |= self.act();
        Ok(moved | self.send())
    }

    fn side(&mut self, way: Way) -> &mut Side {
        match way {
            Way::Local => &mut self.local,
            Way::Network => &mut self.network,
        }
    }

    fn take(&mut self, way: Way, completion: Completion) {
        match completion {
            Completion::Unexpected { from, message } => {
                if let Some(key) = self.party(way, from) {
                    self.switch.handle(key, message);
                }
            }
            Completion::Done(done) => {
                let Some(leg) = self.legs.get_mut(&done.token) else { return };
                leg.held -= 1;
                if leg.held <= HELD_MAX / 2 {
                    self.switch.has_room(done.token);
                }
            }
            Completion::Room { peer } => {
                if let Some(Some(key)) = self.side(way).parties.get(&peer).copied() {
                    self.switch.has_room(key);
                }
            }
            Completion::Gone { peer, reason } => {
                if let Some(Some(key)) = self.side(way).parties.remove(&peer) {
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
        if let Some(known) = self.side(way).parties.get(&peer) {
            return *known;
        }
        let key = match way {
            Way::Local => {
                let identity = self.local.context.identity(peer);
                let quota = self.config.quota(&identity);
                self.switch.arrived(identity, quota)
            }
            Way::Network => self.switch.node_arrived(),
        };
        self.meet(way, peer, key);
        Some(key)
    }

    fn meet(&mut self, way: Way, peer: Peer, key: PartyKey) {
        self.side(way).parties.insert(peer, Some(key));
        self.legs.insert(key, Leg { way, peer, held: 0 });
    }

    /// Does what the switch wants.
    fn act(&mut self) -> bool {
        let mut moved = false;
        while let Some(effect) = self.switch.next_effect() {
            moved = true;
            match effect {
                Effect::Dial(key, address) => match self.network.context.lookup(&address) {
                    Ok(peer) => self.meet(Way::Network, peer, key),
                    Err(error) => {
                        let why = hg_na::GoneReason::Unreachable(error.to_string().into());
                        self.switch.gone(key, &why);
                    }
                },
                Effect::HangUp(key, why) => {
                    let Some(Leg { way, peer, .. }) = self.legs.remove(&key) else { continue };
                    let side = self.side(way);
                    tracing::warn!(who = ?side.context.identity(peer), why, "disconnected");
                    side.parties.insert(peer, None);
                    side.context.forget(peer);
                }
            }
        }
        moved
    }

    /// Gives everybody who is to be sent something a turn.
    fn send(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.legs.len() {
            let Some(key) = self.switch.next_ready() else { break };
            for _ in 0..TURN {
                let Some(outgoing) = self.switch.pop(key) else { break };
                if !self.hand(key, outgoing) {
                    break;
                }
                moved = true;
            }
            self.switch.yields(key);
        }
        moved
    }

    /// Hands one frame to its leg; `false`: it takes none now.
    fn hand(&mut self, key: PartyKey, Outgoing { frame, ends }: Outgoing) -> bool {
        let Some(leg) = self.legs.get_mut(&key) else { return false };
        let side = match leg.way {
            Way::Local => &mut self.local,
            Way::Network => &mut self.network,
        };
        if leg.held >= HELD_MAX {
            self.switch.put_back(key, Outgoing { frame, ends });
            return false;
        }
        match side.context.post(key, Op::SendUnexpected { to: leg.peer, message: frame }) {
            Ok(_) => {
                leg.held += 1;
                self.switch.left(ends);
                true
            }
            Err(Rejected { op: Op::SendUnexpected { message, .. }, error: Error::Again }) => {
                self.switch.put_back(key, Outgoing { frame: message, ends });
                false
            }
            // It is gone, and that is about to be told.
            Err(_) => false,
        }
    }

    /// Sleeps until something comes, unless something is there.
    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        if !self.local.context.may_sleep() || !self.network.context.may_sleep() {
            return Ok(());
        }
        let deadlines = [self.local.context.next_deadline(), self.network.context.next_deadline()];
        let due = deadlines.into_iter().flatten().min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        self.waiter.wait([left, limit].into_iter().flatten().min())?;
        // Before the look at the kernel, so that what comes after it is told again.
        if self.network_ready.swap(false, Ordering::AcqRel) {
            self.network_waiter.wait(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// What was sent arrives, although this process ends.
    fn flush(&mut self) -> Result<(), Error> {
        let (mut local, mut network) = (false, false);
        // Acquire: as in `run`.
        while !(local && network || self.stop.load(Ordering::Acquire)) {
            local = local || self.local.context.flush();
            network = network || self.network.context.flush();
            if !self.round()? {
                self.sleep(Some(FLUSH_LOOK))?;
            }
        }
        Ok(())
    }
}
