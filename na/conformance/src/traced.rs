//! Records every operation and completion, in memory and by `tracing` (level trace).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Domain, Error, Offer, Op, OpId, OpenOptions, Peer, Plugin,
    Rejected, Token,
};

use crate::layer::{Layer, Layered, Layers};

/// Records that are kept; the oldest go first.
pub const RECORDS_MAX: usize = 65_536;

/// One thing that happened at one context.
#[derive(Debug, Clone)]
pub struct Record {
    /// The context.
    pub context: Address,
    /// What happened.
    pub event: Event,
}

/// What happens at a context.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A handle was made for an address.
    LookedUp {
        /// The address.
        address: Address,
        /// Its handle.
        peer: Peer,
    },
    /// An operation was accepted.
    Posted {
        /// Its name.
        id: OpId,
        /// What its poster wants to be told.
        token: Token,
        /// The operation, in words.
        op: String,
    },
    /// An operation was refused.
    Refused {
        /// What its poster wanted to be told.
        token: Token,
        /// Why.
        error: String,
    },
    /// An operation was asked to end early.
    Cancelled {
        /// Which one.
        id: OpId,
    },
    /// A peer was forgotten.
    Forgotten {
        /// Which one.
        peer: Peer,
    },
    /// An operation has ended.
    Done {
        /// Which one.
        id: OpId,
        /// What its poster is told.
        token: Token,
        /// Why it failed.
        error: Option<String>,
    },
    /// A message or the end of a peer, in words.
    Arrived(String),
}

/// A plugin whose contexts are recorded; a plugin itself. Its clones share one record.
#[derive(Debug, Clone)]
pub struct Traced {
    layered: Layered,
    log: Log,
}

impl Traced {
    /// Records a plugin.
    #[must_use]
    pub fn new(plugin: impl Plugin + 'static) -> Self {
        let log = Log::default();
        Self { layered: Layered::new(plugin, TracedLayers(log.clone())), log }
    }

    /// What happened so far, oldest first: the last [`RECORDS_MAX`] records.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Plugin for Traced {
    fn schemes(&self) -> &[&str] {
        self.layered.schemes()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        self.layered.open(url, options)
    }

    fn offers(&self) -> Vec<Offer> {
        self.layered.offers()
    }
}

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<VecDeque<Record>>>);

#[derive(Debug)]
struct TracedLayers(Log);

impl Layers for TracedLayers {
    fn layer(&self, address: &Address) -> Box<dyn Layer> {
        Box::new(TracedLayer { context: address.clone(), log: self.0.clone() })
    }
}

#[derive(Debug)]
struct TracedLayer {
    context: Address,
    log: Log,
}

impl TracedLayer {
    fn record(&self, event: Event) {
        tracing::trace!(context = %self.context, ?event);
        let mut records = self.log.0.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= RECORDS_MAX {
            records.pop_front();
        }
        records.push_back(Record { context: self.context.clone(), event });
    }
}

impl Layer for TracedLayer {
    fn lookup(&mut self, inner: &mut dyn Context, address: &Address) -> Result<Peer, Error> {
        let peer = inner.lookup(address)?;
        self.record(Event::LookedUp { address: address.clone(), peer });
        Ok(peer)
    }

    fn forget(&mut self, inner: &mut dyn Context, peer: Peer) {
        self.record(Event::Forgotten { peer });
        inner.forget(peer);
    }

    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        let words = format!("{op:?}");
        match inner.post(token, op) {
            Ok(id) => {
                self.record(Event::Posted { id, token, op: words });
                Ok(id)
            }
            Err(rejected) => {
                self.record(Event::Refused { token, error: rejected.error.to_string() });
                Err(rejected)
            }
        }
    }

    fn cancel(&mut self, inner: &mut dyn Context, id: OpId) {
        self.record(Event::Cancelled { id });
        inner.cancel(id);
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let before = done.len();
        let found = inner.progress(now, done)?;
        for completion in &done[before..] {
            self.record(match completion {
                Completion::Done(done) => Event::Done {
                    id: done.id,
                    token: done.token,
                    error: done.result.as_ref().err().map(|failure| failure.error.to_string()),
                },
                other => Event::Arrived(format!("{other:?}")),
            });
        }
        Ok(found)
    }
}
