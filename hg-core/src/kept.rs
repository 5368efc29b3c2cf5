//! Memory that peers have not pulled yet: arguments of one-way calls at their origin, results at their target.
//!
//! Each kind is bounded in bytes, by fair shares of the peers that it is kept for: one that never pulls keeps no other from
//! being served.

use std::time::Instant;

use hg_bulk::Local;
use hg_na::{Error, Frozen, Peer};
use rustc_hash::FxHashMap;

use crate::{
    deferred::{Action, Deferred},
    shares::Shares,
};

/// Memory that a peer takes: the target of a call before it runs the handler, or an origin before it reads the result.
#[derive(Debug, Default)]
pub struct Lent {
    /// The encoded arguments, or the encoded result, where they do not fit in a message.
    pub encoded: Option<Local>,
    /// What arguments hold of frozen memory, which stays registered as long as there is a clone.
    pub frozen: Vec<Frozen>,
}

/// What keeping one piece of frozen memory costs beside its bytes, which are its user's.
const FROZEN_COST: u64 = 256;

impl From<Local> for Lent {
    fn from(encoded: Local) -> Self {
        Self { encoded: Some(encoded), frozen: Vec::new() }
    }
}

impl Lent {
    /// Bytes that are kept for the peer.
    #[must_use]
    pub fn cost(&self) -> u64 {
        let encoded = self.encoded.as_ref().map_or(0, Local::len);
        encoded + FROZEN_COST * self.frozen.len() as u64
    }
}

/// What a context keeps for its peers.
#[derive(Debug)]
pub struct Kept {
    /// Of one-way calls, until their deadlines at the longest.
    pub arguments: Store,
    /// Of requests; without deadlines, since they go with the calls.
    pub results: Store,
}

/// What is kept of one kind, each for a peer under the id of a call.
#[derive(Debug)]
pub struct Store {
    pieces: FxHashMap<(Peer, u64), Piece>,
    bytes: Shares<Peer>,
    bytes_max: u64,
    /// The first deadline of those.
    next_deadline: Option<Instant>,
}

#[derive(Debug)]
struct Piece {
    lent: Lent,
    /// When it is kept no longer.
    deadline: Option<Instant>,
}

impl Kept {
    /// Nothing; at most so many bytes of arguments, and of results.
    #[must_use]
    pub fn new(arguments_max: u64, results_max: u64) -> Self {
        let [arguments, results] = [arguments_max, results_max].map(Store::new);
        Self { arguments, results }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arguments.pieces.len() + self.results.pieces.len()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether arguments of so many bytes may be kept for a target.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn check_arguments(&self, target: Peer, bytes: u64) -> Result<(), Error> {
        let Store { bytes: shares, bytes_max, .. } = &self.arguments;
        if shares.admits(target, bytes) {
            return Ok(());
        }
        let remedy = if bytes > shares.piece_max() {
            "raise `Builder::backlog_bytes_max`, of which one call takes a half at most, or pass a descriptor of memory (`expose`)"
        } else {
            "wait until it has taken some of them, or raise `Builder::backlog_bytes_max`"
        };
        Err(Error::Limit {
            what: "bytes of large arguments of one-way calls, of which one target has a share",
            limit: *bytes_max,
            remedy,
        })
    }

    /// The peer has hung up, and pulls nothing any more; `None`: nobody does.
    pub fn free_all_of(&mut self, peer: Option<Peer>, freed: &mut Deferred) {
        for store in [&mut self.arguments, &mut self.results] {
            store.free_if(|whose, _| peer.is_none_or(|peer| peer == whose), freed);
        }
    }
}

impl Store {
    fn new(bytes_max: u64) -> Self {
        let bytes = Shares::new(bytes_max);
        Self { pieces: FxHashMap::default(), bytes, bytes_max, next_deadline: None }
    }

    /// Whether so many bytes more may be kept for a peer.
    #[must_use]
    pub fn admits(&self, peer: Peer, bytes: u64) -> bool {
        self.bytes.admits(peer, bytes)
    }

    /// Keeps something for a peer under this id, until its deadline at the longest.
    pub fn insert(
        &mut self,
        whose: (Peer, u64),
        lent: Lent,
        deadline: Option<Instant>,
        freed: &mut Deferred,
    ) {
        // There is none yet, unless an origin uses an id twice at a time.
        self.free(whose, freed);
        self.bytes.take(whose.0, lent.cost());
        self.next_deadline = [self.next_deadline, deadline].into_iter().flatten().min();
        self.pieces.insert(whose, Piece { lent, deadline });
    }

    /// The peer has it, or does not want it.
    pub fn free(&mut self, whose: (Peer, u64), freed: &mut Deferred) {
        if let Some(piece) = self.pieces.remove(&whose) {
            self.bytes.give(whose.0, piece.lent.cost());
            freed.push(Action::Free(Box::new(piece)));
        }
    }

    /// When [`Store::handle_timeout`] wants to be called.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Frees that whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant, freed: &mut Deferred) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if is_over(self.next_deadline) {
            self.free_if(|_, piece| is_over(piece.deadline), freed);
            self.next_deadline = self.pieces.values().filter_map(|it| it.deadline).min();
        }
    }

    fn free_if(&mut self, is_meant: impl Fn(Peer, &Piece) -> bool, freed: &mut Deferred) {
        let meant = self.pieces.extract_if(|(peer, _), piece| is_meant(*peer, piece));
        let meant: Vec<_> = meant.collect();
        for ((peer, _), piece) in &meant {
            self.bytes.give(*peer, piece.lent.cost());
        }
        if !meant.is_empty() {
            freed.push(Action::Free(Box::new(meant)));
        }
    }
}

#[cfg(test)]
mod tests;
