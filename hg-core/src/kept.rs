//! Memory that peers have not pulled yet: arguments of one-way calls at their origin, results at their target.
//!
//! Each kind is bounded in bytes, by fair shares of the peers that it is kept for: one that never pulls keeps no other from
//! being served.

use std::time::Instant;

use hg_bulk::Local;
use hg_na::{Error, Peer};
use rustc_hash::FxHashMap;

use crate::{deferred::Deferred, lent::Lent, operations::OperationId, shares::Shares};

/// What a context keeps for its peers.
#[derive(Debug)]
pub struct Kept {
    arguments: FxHashMap<OperationId, Arguments>,
    /// The first deadline of those.
    next_deadline: Option<Instant>,
    argument_bytes: Shares<Peer>,
    results: FxHashMap<(Peer, u64), Local>,
    result_bytes: Shares<Peer>,
    arguments_max: u64,
}

/// Arguments of a one-way call.
#[derive(Debug)]
struct Arguments {
    target: Peer,
    lent: Lent,
    /// When they are kept no longer.
    deadline: Option<Instant>,
}

impl Kept {
    /// Nothing; at most so many bytes of arguments, and of results.
    #[must_use]
    pub fn new(arguments_max: u64, results_max: u64) -> Self {
        Self {
            arguments: FxHashMap::default(),
            next_deadline: None,
            argument_bytes: Shares::new(arguments_max),
            results: FxHashMap::default(),
            result_bytes: Shares::new(results_max),
            arguments_max,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arguments.len() + self.results.len()
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
        if self.argument_bytes.admits(target, bytes) {
            return Ok(());
        }
        let remedy = if bytes > self.argument_bytes.piece_max() {
            "raise `Builder::backlog_bytes_max`, of which one call takes a half at most, or pass a descriptor of memory (`expose`)"
        } else {
            "wait until it has taken some of them, or raise `Builder::backlog_bytes_max`"
        };
        Err(Error::Limit {
            what: "bytes of large arguments of one-way calls, of which one target has a share",
            limit: self.arguments_max,
            remedy,
        })
    }

    /// Whether a result of so many bytes may be kept for an origin.
    #[must_use]
    pub fn admits_result(&self, origin: Peer, bytes: u64) -> bool {
        self.result_bytes.admits(origin, bytes)
    }

    /// Keeps the arguments of a one-way call, until its deadline at the longest.
    pub fn insert_arguments(
        &mut self,
        id: OperationId,
        target: Peer,
        lent: Lent,
        deadline: Option<Instant>,
    ) {
        self.argument_bytes.take(target, lent.cost());
        self.arguments.insert(id, Arguments { target, lent, deadline });
        self.next_deadline = [self.next_deadline, deadline].into_iter().flatten().min();
    }

    /// When [`Kept::handle_timeout`] wants to be called.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Frees arguments whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant, freed: &mut Deferred) {
        if self.next_deadline.is_none_or(|at| at > now) {
            return;
        }
        let is_over = |_: &OperationId, it: &mut Arguments| it.deadline.is_some_and(|at| at <= now);
        for (_, arguments) in self.arguments.extract_if(is_over) {
            self.argument_bytes.give(arguments.target, arguments.lent.cost());
            freed.free(Box::new(arguments));
        }
        self.next_deadline = self.arguments.values().filter_map(|it| it.deadline).min();
    }

    /// Keeps the result of a request.
    pub fn insert_result(&mut self, origin: Peer, id: u64, result: Local, freed: &mut Deferred) {
        // There is none yet, unless the origin uses an id twice at a time.
        self.free_result(origin, id, freed);
        self.result_bytes.take(origin, result.len());
        self.results.insert((origin, id), result);
    }

    /// An origin has its result, or does not want it.
    pub fn free_result(&mut self, origin: Peer, id: u64, freed: &mut Deferred) {
        if let Some(result) = self.results.remove(&(origin, id)) {
            self.result_bytes.give(origin, result.len());
            freed.free(Box::new(result));
        }
    }

    /// A target has the arguments of a one-way call.
    pub fn free_arguments(&mut self, target: Peer, id: u64, freed: &mut Deferred) {
        let id = OperationId::from_bits(id);
        if self.arguments.get(&id).is_some_and(|it| it.target == target)
            && let Some(arguments) = self.arguments.remove(&id)
        {
            self.argument_bytes.give(target, arguments.lent.cost());
            freed.free(Box::new(arguments));
        }
    }

    /// The peer has hung up, and pulls nothing any more.
    pub fn free_all_of(&mut self, peer: Peer, freed: &mut Deferred) {
        let mut arguments = self.arguments.extract_if(|_, it| it.target == peer).peekable();
        if arguments.peek().is_some() {
            freed.free(Box::new(arguments.collect::<Vec<_>>()));
        }
        self.argument_bytes.give(peer, self.argument_bytes.of(peer));
        let mut results = self.results.extract_if(|(origin, _), _| *origin == peer).peekable();
        if results.peek().is_some() {
            freed.free(Box::new(results.collect::<Vec<_>>()));
        }
        self.result_bytes.give(peer, self.result_bytes.of(peer));
    }

    /// Nobody pulls anything any more.
    pub fn free_all(&mut self, freed: &mut Deferred) {
        let peers: Vec<_> = self.arguments.values().map(|it| it.target).collect();
        let origins: Vec<_> = self.results.keys().map(|(peer, _)| *peer).collect();
        peers.into_iter().chain(origins).for_each(|peer| self.free_all_of(peer, freed));
    }
}
