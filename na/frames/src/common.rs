//! What the contexts of one domain share, and the settings that all transports over frames have.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hg_na::{Caps, Error, Sleep};
use hg_na_link::{
    Limits,
    frame::{CONTROL_MAX, MESSAGE_MAX},
};
use hg_na_memory::ForkGuard;
use hg_na_parts::{key, regions::Regions};

use crate::{lifeline::Place, steps};

/// Setting: `off` moves put and get in messages even where there are one-sided operations.
pub const RMA: &str = "rma";
pub use hg_na_parts::bounds::{BOUNDS, Bounds, CONNECT_TIMEOUT_MS, MAX_PEERS, SILENCE_BOUND_MS};

/// Messages of one kind, to one peer, that wait for credits.
const QUEUE_DEPTH: usize = 1024;
/// What each peer's handle takes at a time.
pub const LIMITS: Limits = Limits {
    message: MESSAGE_MAX,
    control: CONTROL_MAX,
    depth: QUEUE_DEPTH,
    transfers: QUEUE_DEPTH,
};

/// What a plugin can do. `sleeps`: its endpoint can be waited on.
fn caps(bounds: &Bounds, sleeps: bool) -> Caps {
    let mut caps = LIMITS.caps();
    caps.sleep = if sleeps { Sleep::Descriptor } else { Sleep::Steps(steps::LONGEST) };
    caps.joins = true;
    caps.silence_bound = Some(bounds.silence_bound);
    caps
}

/// What the contexts of one domain share.
#[derive(Debug)]
pub struct Common {
    /// What they can do.
    pub caps: Caps,
    /// What they keep to.
    pub bounds: Bounds,
    /// Whether they take connections.
    pub listen: bool,
    /// Registered memory.
    pub regions: Arc<Regions>,
    /// Tells a forked child.
    pub guard: Arc<ForkGuard>,
    ids: Mutex<HashSet<u8>>,
}

impl Common {
    /// Of a domain without contexts.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn new(bounds: Bounds, sleeps: bool, listen: bool) -> Result<Self, Error> {
        let guard = Arc::new(ForkGuard::new()?);
        Ok(Self {
            caps: caps(&bounds, sleeps),
            bounds,
            listen,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            ids: Mutex::default(),
        })
    }

    /// Who listens beyond this machine without a key is told so, once.
    pub fn warn_of_strangers(&self, home: &Place) {
        if let Place::Network(address) = home
            && self.listen
            && self.bounds.key.is_none()
            && !address.ip().is_loopback()
        {
            tracing::warn!(%address, "{}", key::WHOEVER);
        }
    }

    /// Refuses a forked child.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn same_process(&self) -> Result<(), Error> {
        if self.guard.is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Which contexts are open, as long as the guard is held.
    pub fn ids(&self) -> MutexGuard<'_, HashSet<u8>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context has closed: its id is free.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().remove(&id);
    }
}
