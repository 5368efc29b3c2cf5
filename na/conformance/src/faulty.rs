//! Seeded faults: posts refused with `Again`, completions held back, connections dropped.
//!
//! A fault is always one that the contract allows, so that whatever stands above must cope with it:
//! with refusals and delays only, a faulty plugin still passes the whole suite.

use std::{
    collections::{HashSet, VecDeque},
    mem::{Discriminant, discriminant},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Error, GoneReason, Offer, Op, OpId, OpenOptions, Peer,
    Plugin, Rejected, Token,
};

use crate::{
    layer::{Layer, Layered, Layers},
    random::Random,
};

/// What goes wrong, and how often. Zero means never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Chooses the faults: one thread with one seed sees the same ones in every run.
    pub seed: u64,
    /// One post in so many is refused with [`Error::Again`].
    pub refuse_one_in: u64,
    /// One completion in so many is held back, and all of this context's that follow it.
    pub delay_one_in: u64,
    /// Longest delay.
    pub delay: Duration,
    /// After one accepted post in so many the connection is dropped.
    pub drop_one_in: u64,
}

/// A plugin whose faults are injected; a plugin itself.
#[derive(Debug, Clone)]
pub struct Faulty(Layered);

impl Faulty {
    /// Puts faults before a plugin.
    #[must_use]
    pub fn new(plugin: impl Plugin + 'static, faults: Faults) -> Self {
        Self::around(Arc::new(plugin), faults)
    }

    pub(crate) fn around(plugin: Arc<dyn Plugin>, faults: Faults) -> Self {
        Self(Layered::around(plugin, FaultyLayers { faults, contexts: AtomicU64::new(0) }))
    }
}

impl Plugin for Faulty {
    fn schemes(&self) -> &[&str] {
        self.0.schemes()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        self.0.open(url, options)
    }

    fn offers(&self) -> Vec<Offer> {
        self.0.offers()
    }
}

#[derive(Debug)]
struct FaultyLayers {
    faults: Faults,
    contexts: AtomicU64,
}

impl Layers for FaultyLayers {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        // Relaxed: only the number counts.
        let context = self.contexts.fetch_add(1, Ordering::Relaxed);
        let random = Random::new(self.faults.seed.wrapping_add(context << 32));
        let faults = self.faults;
        Box::new(FaultyLayer {
            faults,
            random,
            held: VecDeque::new(),
            dropped: HashSet::new(),
            full: HashSet::new(),
            refused: HashSet::new(),
            ended: HashSet::new(),
        })
    }
}

#[derive(Debug)]
struct FaultyLayer {
    faults: Faults,
    random: Random,
    /// Completions in their order, and when each may be seen.
    held: VecDeque<(Instant, Completion)>,
    /// Connections that were dropped here and are not reported yet.
    dropped: HashSet<Peer>,
    /// Queues that are full, and will be said not to be.
    full: HashSet<Queue>,
    /// Those that have refused something here only.
    refused: HashSet<Queue>,
    /// Peers that have hung up.
    ended: HashSet<Peer>,
}

/// Operations of one kind to one peer.
type Queue = (Peer, Discriminant<Op>);

impl FaultyLayer {
    fn strikes(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.below(one_in) == 0
    }

    fn disguised(&mut self, mut completion: Completion) -> Completion {
        let cut = || GoneReason::Unreachable(Arc::from("the connection was dropped on purpose"));
        match &mut completion {
            Completion::HungUp { peer, reason } if self.dropped.contains(peer) => *reason = cut(),
            Completion::Gone { peer, reason } if self.dropped.remove(peer) => *reason = cut(),
            Completion::Done(done) => {
                if let Err(failure) = &mut done.result
                    && matches!(failure.error, Error::PeerGone(GoneReason::Forgotten))
                    && !self.dropped.is_empty()
                {
                    failure.error = Error::PeerGone(cut());
                }
            }
            _ => {}
        }
        completion
    }
}

impl Layer for FaultyLayer {
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        let (peer, queue) = (op.peer(), (op.peer(), discriminant(&op)));
        if !self.ended.contains(&peer) && self.strikes(self.faults.refuse_one_in) {
            if !self.full.contains(&queue) {
                self.refused.insert(queue);
            }
            return Err(Rejected { op, error: Error::Again });
        }
        let posted = inner.post(token, op);
        if let Err(Rejected { error: Error::Again, .. }) = &posted {
            // One word is for all refusals.
            self.refused.remove(&queue);
            self.full.insert(queue);
        }
        let id = posted?;
        if self.strikes(self.faults.drop_one_in) {
            self.dropped.insert(peer);
            inner.forget(peer);
        }
        Ok(id)
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let mut fresh = Vec::new();
        let mut found = inner.progress(now, &mut fresh)?;
        for completion in &fresh {
            match completion {
                Completion::Room { peer } => {
                    self.full.retain(|(of, _)| of != peer);
                    self.refused.retain(|(of, _)| of != peer);
                }
                Completion::HungUp { peer, .. } => {
                    self.ended.insert(*peer);
                    self.refused.retain(|(of, _)| of != peer);
                }
                _ => {}
            }
        }
        let room: HashSet<Peer> = self.refused.drain().map(|(peer, _)| peer).collect();
        fresh.extend(room.into_iter().map(|peer| Completion::Room { peer }));
        for completion in fresh {
            let mut due = self.held.back().map_or(now, |(due, _)| now.max(*due));
            if self.strikes(self.faults.delay_one_in) {
                let longest = u64::try_from(self.faults.delay.as_nanos()).unwrap_or(u64::MAX);
                due = due.max(now + Duration::from_nanos(self.random.below(longest.max(1))));
            }
            let completion = self.disguised(completion);
            self.held.push_back((due, completion));
        }
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            done.extend(self.held.pop_front().map(|(_, completion)| completion));
            found = true;
        }
        Ok(found)
    }

    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        self.refused.is_empty() && inner.may_sleep()
    }

    fn next_deadline(&self, inner: &dyn Context) -> Option<Instant> {
        let held = self.held.front().map(|(due, _)| *due);
        [inner.next_deadline(), held].into_iter().flatten().min()
    }
}
