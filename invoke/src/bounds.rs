//! What may wait to leave, in bytes, for each kind of record.
//!
//! Calls are refused when they are too many. What others cause cannot be refused: broadcasts that are passed on, results, and news of what has run. Each kind has
//! its share, so that nobody is blamed for what the others take: results over theirs are replaced by reasons, where memory is everywhere is left unsaid, and who is
//! over another one does not keep to the rules. Two blocks for each end are free ([`crate::owed`]).

use hg_channel::RECORD;
use hg_na::DESCRIPTOR_MAX;

use crate::{
    buffers::UNREAD_MAX,
    held::EVERYWHERE_MAX,
    remote::REASON_MAX,
    returned::{ANSWER_HEAD, ANSWERS_MAX},
};

/// What is counted apart, and of whom: news of broadcasts and of memory that is everywhere for their root, since there is one end above for each root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Account {
    /// Results, for who has called.
    Results(u32),
    /// Reasons why there is none.
    Reasons(u32),
    /// A buffer of this end was read.
    Reads(u32),
    /// A broadcast of this root has run.
    News(u32),
    /// Where memory of this owner is.
    Settled(u32),
}

/// The shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Calls to one end, ...
    pub(crate) calls: u64,
    /// ... as long as no more than this waits for all ends: that much of results, too.
    pub(crate) total: u64,
    /// Broadcasts of one root that have not run everywhere.
    pub(crate) broadcasts: u64,
    /// Results for one end.
    pub(crate) results: u64,
}

impl Bounds {
    /// For `queue_max` bytes of calls to one end, and as many of results; and `queue_total` for all ends.
    pub(crate) fn new(queue_max: u64, queue_total: u64, ends: u32) -> Self {
        let broadcasts = (queue_max / u64::from(ends)).max(queue_max.min(BROADCASTS_LEAST));
        Self { calls: queue_max, total: queue_total.max(queue_max), broadcasts, results: queue_max }
    }

    /// The same where each call and each result that waits is a block, which takes about 100 bytes beside it.
    pub(crate) fn of_plain(self) -> Self {
        let Self { calls, total, results, .. } = self;
        Self { calls: calls / 8, total: total / 8, results: results / 8, ..self }
    }

    /// Bytes that may wait of an account; one record always may.
    pub(crate) fn share(&self, account: Account) -> u64 {
        let of = |count: usize, bytes: usize| (count * bytes) as u64 + SPAN;
        match account {
            Account::Results(_) => self.results,
            // Nobody waits for more, ...
            Account::Reasons(_) => of(ANSWERS_MAX, ANSWER),
            Account::Reads(_) => of(UNREAD_MAX, ANSWER),
            // ... nor has more broadcasts under way, each of which is counted as more than its news, ...
            Account::News(_) => self.broadcasts + SPAN,
            // ... nor more memory everywhere.
            Account::Settled(_) => of(EVERYWHERE_MAX, SETTLED_MAX),
        }
    }
}

/// Bytes of a stream that are counted as one: what one record is longer than that is its own span.
pub(crate) const SPAN: u64 = 4096;
/// Bytes of a reason, and of news of a buffer: with the number of a group.
const ANSWER: usize = RECORD + 4 + ANSWER_HEAD;
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
/// Bytes of broadcasts that each root may have under way in a job of any size.
const BROADCASTS_LEAST: u64 = 64 * 1024;
