//! The simulated transport: it keeps `na`'s contract, with small limits and delays that the seed chooses.
//!
//! | file | what |
//! |---|---|
//! | `plugin` | plugin, domain, context, waiter: the four traits |
//! | `region` | registered memory |
//! | `hub` | all endpoints; what happens between them |
//! | `post` | what starts and ends operations |
//! | `side` | one side of a connection: what waits to be sent, what has arrived |
//! | `round` | a round of progress of one endpoint |
//! | `planted` | faults that the search is to find |
//!
//! A message is on its way for a time, in order within its lane; the sender's credit comes back when the receiver has taken it. A
//! process that is killed is cut off at once: what it had sent still arrives, then its peers are told.
//!
//! Credits, matching of receives, flushes, and what was refused for want of room are the machines of the real transports
//! ([`hg_na_parts`]).

use hg_na_parts::credits::Amount;

mod hub;
mod mover;
pub(crate) mod planted;
mod plugin;
mod post;
mod region;
mod round;
mod side;

pub(crate) use self::hub::{Counts, Net};
pub use self::{planted::Planted, plugin::Simulation};

/// How the transport behaves in one story.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Messages of one lane that lie at the receiver untaken, or are on their way.
    pub credits: u32,
    /// Longest messages whose bytes are as many as those may have together; at least 2.
    pub credit_lengths: u32,
    /// Operations of one lane that wait for credits of one peer.
    pub queue_depth: usize,
    /// Messages of one lane that one round takes from one peer.
    pub batch: usize,
    /// Shortest time on the way in nanoseconds.
    pub delay_min: u64,
    /// Longest time on the way in nanoseconds.
    pub delay_max: u64,
    /// Longest message in bytes.
    pub message_max: usize,
    /// Whether requests and answers may be posted by one call.
    pub short_cuts: bool,
    /// Whether transfers need the owner's progress.
    pub owner_moves: bool,
    /// Whether some memory can be seen without a copy.
    pub views: bool,
    /// Whether short transfers are made at once, where the owner need not move them.
    pub at_once: bool,
    /// Of a hundred of those so many are put off until a round has been made, as if too much had been moved before.
    pub put_off: u64,
    /// Whether what was begun is moved by the kernel, which waits for memory that is not there.
    pub waits: bool,
    /// One wait in so many ends for no reason; 0: none.
    pub spurious: u64,
    /// What is wrong on purpose.
    pub planted: Option<Planted>,
}

impl Rules {
    /// What one side of a connection may send of a lane before the other one has taken some.
    fn window(&self) -> Amount {
        let longest = u32::try_from(self.message_max).unwrap_or(u32::MAX);
        Amount { messages: self.credits, bytes: longest.saturating_mul(self.credit_lengths) }
    }

    /// Large limits, no delays.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            credits: 64,
            credit_lengths: 64,
            queue_depth: 64,
            batch: 32,
            delay_min: 0,
            delay_max: 0,
            message_max: 4096,
            short_cuts: true,
            owner_moves: false,
            at_once: true,
            put_off: 0,
            waits: false,
            views: false,
            spurious: 0,
            planted: None,
        }
    }
}
