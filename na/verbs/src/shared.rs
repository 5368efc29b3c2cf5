//! What the contexts of one domain share.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use hg_na::{Address, Error};
use hg_na_frames::{Common, Listener};

use crate::{
    address::address_of,
    card::{Device, Fault, Hub, Told},
    choice::Flags,
    health::{Cut, Health, Word},
};

/// What the end of a port, or of its card, is to connections over it.
const PORT_DOWN: Fault = Fault::Event("the port is down");
const CARD_GONE: Fault = Fault::Event("the card was removed, or cannot be used any more");

/// A port that is used.
#[derive(Debug)]
pub(crate) struct Port {
    /// Its place among those of the domain.
    place: usize,
    pub(crate) device: Arc<Device>,
    /// Where context 0 takes its lifelines; each other one has a TCP port of its own.
    pub(crate) home: SocketAddr,
    /// What the contexts have that are open.
    hubs: Mutex<Vec<Weak<Hub>>>,
    health: Mutex<Health>,
    /// Whoever takes the card's events: another context would hear of a later one first.
    hears: Mutex<()>,
    /// It is down: time matters.
    is_waiting: AtomicBool,
}

impl Port {
    pub(crate) fn new(
        (place, device): (usize, Arc<Device>),
        (home, hub): (SocketAddr, &Arc<Hub>),
        health: Health,
    ) -> Self {
        let (hubs, health) = (Mutex::new(vec![Arc::downgrade(hub)]), Mutex::new(health));
        let (hears, is_waiting) = (Mutex::default(), AtomicBool::new(false));
        Self { place, device, home, hubs, health, hears, is_waiting }
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hubs(&self) -> MutexGuard<'_, Vec<Weak<Hub>>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where lifelines come from, too.
    pub(crate) fn ip(&self) -> IpAddr {
        self.home.ip()
    }

    /// Takes what the card has to say; says whether there is nothing more to come of it.
    pub(crate) fn hear(&self, now: Instant) -> bool {
        let hears = self.hears.try_lock();
        // What another context leaves keeps the card's descriptor readable.
        if !matches!(hears, Err(TryLockError::WouldBlock)) {
            self.hear_all(now);
        }
        drop(hears);
        self.health().is_gone()
    }

    fn hear_all(&self, now: Instant) {
        while let Some(told) = self.device.next_event() {
            let Told::Port(word) = told else {
                self.each_hub(|hub| hub.hear(told));
                continue;
            };
            let mut health = self.health();
            let cut = health.hear(word, now);
            // Relaxed: who misses it looks again.
            self.is_waiting.store(health.deadline().is_some(), Ordering::Relaxed);
            drop(health);
            tracing::warn!(port = ?self.device, ?word, "a port of a card");
            self.cut(cut);
            if word == Word::Gone {
                break;
            }
        }
    }

    /// Does what is due; says whether anything was.
    pub(crate) fn run_timers(&self, now: Instant) -> bool {
        // Relaxed: as above.
        if !self.is_waiting.load(Ordering::Relaxed) {
            return false;
        }
        let cut = self.health().handle_timeout(now);
        self.cut(cut);
        cut.is_some()
    }

    fn cut(&self, cut: Option<Cut>) {
        match cut {
            Some(Cut::Connections) => self.each_hub(|hub| hub.cut(PORT_DOWN, false)),
            Some(Cut::Card) => self.each_hub(|hub| hub.cut(CARD_GONE, true)),
            None => {}
        }
    }

    fn each_hub(&self, act: impl Fn(&Hub)) {
        let all: Vec<_> = self.hubs().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|hub| act(hub));
    }
}

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) signal_every: u32,
    /// Which operations move bytes, and from how many on.
    pub(crate) moves: (Flags, u64),
    /// Whether contexts share queue pairs.
    pub(crate) shares: bool,
    pub(crate) ports: Vec<Port>,
    /// Peers that were dialled.
    pub(crate) dialled: AtomicUsize,
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    pub(crate) first: Mutex<Option<Parts>>,
}

/// What a context has of each port.
pub(crate) type Parts = Vec<(Arc<Hub>, Listener)>;

impl Shared {
    /// For one more context.
    ///
    /// # Errors
    /// As [`Hub::open`].
    pub(crate) fn hub(&self, port: &Port) -> Result<Arc<Hub>, Error> {
        let mut hubs = port.hubs();
        hubs.retain(|hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.iter().find_map(Weak::upgrade).filter(|_| self.shares) {
            return Ok(hub);
        }
        let how = (self.signal_every, self.shares);
        let hub = Hub::open((port.place, &port.device), how)?;
        hubs.push(Arc::downgrade(&hub));
        Ok(hub)
    }

    /// The address of a context that takes its lifelines there, one place for each port.
    ///
    /// # Errors
    /// [`Error::BadAddress`] where cards have impossible names.
    pub(crate) fn address(&self, places: &[SocketAddr]) -> Result<Address, Error> {
        let found = |port: &Port| (port.device.found.device.clone(), port.device.found.port);
        address_of(self.ports.iter().map(found).zip(places.iter().copied()))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.common.guard.is_child() {
            // What the parent has of the card is not ours to free: its descriptors are shared.
            mem::forget(self.first.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            self.ports.iter().for_each(|port| mem::forget(Arc::clone(&port.device)));
        }
    }
}
