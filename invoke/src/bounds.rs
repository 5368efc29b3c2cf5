//! What may wait to leave for one thread, in bytes: for each kind of record, with all that may stand before it.
//!
//! Calls are refused when they are too many. What others cause cannot be refused: broadcasts that are passed on, results, and news of what has
//! run. Each kind has its share, so that nobody is blamed for what the others take; who is over the last ones does not keep to the rules.

use hg_channel::RECORD;
use hg_na::DESCRIPTOR_MAX;

use crate::{
    buffers::UNREAD_MAX,
    held::EVERYWHERE_MAX,
    remote::REASON_MAX,
    returned::{ANSWER_HEAD, ANSWERS_MAX},
};

/// The shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Calls.
    pub(crate) calls: u64,
    /// Broadcasts of one root that have not run everywhere.
    pub(crate) broadcasts: u64,
    /// Results, behind calls and broadcasts.
    pub(crate) results: u64,
    /// Reasons why there is no result, behind all of these.
    pub(crate) reasons: u64,
    /// News of buffers that were read, behind all of these.
    pub(crate) reads: u64,
    /// News of broadcasts that have run, behind all of these.
    pub(crate) news: u64,
}

impl Bounds {
    /// For `queue_max` bytes of calls, and as many of results.
    pub(crate) fn new(queue_max: u64, ends: u32, record_max: u64) -> Self {
        let ends = u64::from(ends);
        let broadcasts = (queue_max / ends).max(queue_max.min(BROADCASTS_LEAST));
        // One is always let in.
        let of_all_roots = ends.saturating_mul(broadcasts.max(record_max));
        // An empty queue takes one call of any length.
        let calls = queue_max.saturating_add(record_max);
        let results = calls.saturating_add(of_all_roots).saturating_add(queue_max);
        let settled = ends.saturating_mul((EVERYWHERE_MAX * SETTLED_MAX) as u64);
        let results = results.saturating_add(BARRIER_MAX).saturating_add(settled);
        let reasons = results.saturating_add((ANSWERS_MAX * 2 * ANSWER_HEAD) as u64);
        let reads = reasons.saturating_add((UNREAD_MAX * 2 * ANSWER_HEAD) as u64);
        // Each is shorter than the broadcast of which it tells is counted as.
        let news = reads.saturating_add(of_all_roots);
        Self { calls: queue_max, broadcasts, results, reasons, reads, news }
    }
}

/// Bytes of what is said of memory that is everywhere, to the one above: where it is here, and once why it is not here or below. Those below hear less of
/// it: that it is released.
pub(crate) const SETTLED_MAX: usize = 2 * (RECORD + SETTLED_HEAD)
    + (LEN + DESCRIPTOR_HEAD + DESCRIPTOR_MAX)
    + (END + KIND + LEN + 4 * REASON_MAX);
/// Owner (4), number (8), which of both (4).
const SETTLED_HEAD: usize = 16;
/// Before what a plugin says of its memory.
const DESCRIPTOR_HEAD: usize = 12;
const LEN: usize = 8;
const END: usize = 4;
const KIND: usize = 4;
/// Bytes of what is said of a barrier's failure.
pub(crate) const WHY_MAX: usize = 256;
/// Bytes of the barrier's messages, which are never refused: an answer to a report, the beginning of another barrier, a goodbye, and news of a
/// failure, once.
const BARRIER_MAX: u64 = 4 * 32 + WHY_MAX as u64;
/// Bytes of broadcasts that each root may have under way in a job of any size.
const BROADCASTS_LEAST: u64 = 64 * 1024;
