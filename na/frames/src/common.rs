//! What the contexts of one domain share, and the settings that all transports over frames have.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hg_na::{Caps, Error, Sleep};
use hg_na_link::{
    Limits,
    frame::{CONTROL_MAX, MESSAGE_MAX},
};
use hg_na_memory::ForkGuard;
use hg_na_parts::{
    Reader,
    key::{self, Key},
    regions::Regions,
};

use crate::{lifeline::Place, steps};

/// Setting: milliseconds until a peer that does not answer the greeting is given up.
pub const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: milliseconds until a peer that is cut off without a word is given up.
pub const SILENCE_BOUND_MS: &str = "silence-bound-ms";
/// Setting: connections of one context at a time.
pub const MAX_PEERS: &str = "max-peers";
/// Setting: `off` moves put and get in messages even where there are one-sided operations.
pub const RMA: &str = "rma";
pub use hg_na_parts::{
    MAX_HELD_MIB,
    key::{KEY_ENV, KEY_FILE},
};

/// Messages of one kind, to one peer, that wait for credits.
const QUEUE_DEPTH: usize = 1024;
/// What each peer's handle takes at a time.
pub const LIMITS: Limits = Limits {
    message: MESSAGE_MAX,
    control: CONTROL_MAX,
    depth: QUEUE_DEPTH,
    transfers: QUEUE_DEPTH,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE_BOUND: Duration = Duration::from_secs(30);
/// The kernel counts its probes in seconds.
const SILENCE_BOUND_MIN: Duration = Duration::from_secs(3);
const PEERS: usize = 65_536;

/// Settings that all transports over frames have.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// For greeting a peer.
    pub connect_timeout: Duration,
    /// For noticing a peer that is cut off.
    pub silence_bound: Duration,
    /// Connections of one context.
    pub max_peers: usize,
    /// Bytes that wait for admission, of all peers of a context.
    pub max_held: u64,
    /// Whether one-sided operations are used where there are any.
    pub rma: bool,
    /// What both ends of a lifeline have to have.
    pub key: Option<Key>,
}

impl Bounds {
    /// Reads them.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a value that is not taken.
    pub fn read(reader: &Reader<'_>) -> Result<Self, Error> {
        let silence_bound = reader.milliseconds(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(Reader::bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        Ok(Self {
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
            max_held: reader.held()?,
            rma: reader.switch(RMA, "on", "off", true)?,
            key: Key::named(reader)?,
        })
    }

    /// The same with a key that was handed over by itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`] where the settings name another one, or the build cannot encrypt.
    pub fn with_key(self, given: Option<&hg_na::Key>) -> Result<Self, Error> {
        Ok(Self { key: Key::named_or_given(self.key, given)?, ..self })
    }

    /// What a plugin can do. `sleeps`: its endpoint can be waited on.
    #[must_use]
    pub fn caps(&self, sleeps: bool) -> Caps {
        let mut caps = LIMITS.caps();
        caps.sleep = if sleeps { Sleep::Descriptor } else { Sleep::Steps(steps::LONGEST) };
        caps.joins = true;
        caps.silence_bound = Some(self.silence_bound);
        caps
    }
}

/// Which contexts are open.
#[derive(Debug)]
pub struct Ids([bool; 256]);

impl Ids {
    /// Whether one is.
    #[must_use]
    pub fn is_open(&self, id: u8) -> bool {
        self.0[usize::from(id)]
    }

    /// One is.
    pub fn opened(&mut self, id: u8) {
        self.0[usize::from(id)] = true;
    }
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
    ids: Mutex<Ids>,
}

impl Common {
    /// Of a domain without contexts.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn new(bounds: Bounds, sleeps: bool, listen: bool) -> Result<Self, Error> {
        let guard = Arc::new(ForkGuard::new()?);
        Ok(Self {
            caps: bounds.caps(sleeps),
            bounds,
            listen,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            ids: Mutex::new(Ids([false; 256])),
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
    pub fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context has closed: its id is free.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().0[usize::from(id)] = false;
    }
}
