//! Where one connection stands.
//!
//! ```text
//!  looked up -> Idle -first post-> Connecting -Welcome-> Open ------------------+- goodbye, hang-up -> Draining -> Ended -> (gone)
//!                                    |                    |  forget, bad input                                      ^
//!                                    +- refused, late ----+---------------------------------------------------------+
//!  accepted  -> Greeting -Hello-> Open, or Awaiting -Ready, or a frame-> Open
//! ```

use std::time::Instant;

use hg_na::Identity;

use crate::{lifeline::Lifeline, parts::Part};

/// Where a connection stands.
#[derive(Debug)]
pub enum Phase {
    /// Looked up, not used.
    Idle,
    /// The lifeline is being made, or the Welcome is not here.
    Connecting {
        /// When it is given up.
        deadline: Instant,
    },
    /// Accepted; the Hello is not here.
    Greeting {
        /// When it came.
        since: Instant,
    },
    /// Welcomed; whether it is ready to receive is not known.
    Awaiting,
    /// In use.
    Open,
    /// The other side has ended; what it had sent may still come.
    Draining {
        /// So many frames, where it said.
        until: Option<u64>,
        /// When it began.
        since: Instant,
        /// Frames that had come then...
        first: u64,
        /// ... and so far...
        seen: u64,
        /// ... and rounds without one.
        quiet: u32,
    },
    /// Nothing comes any more; messages that wait for admission are still to be handed out.
    Ended,
}

/// One connection, of which the transport keeps an `R`.
#[derive(Debug)]
pub struct Connection<R> {
    /// Where it stands.
    pub phase: Phase,
    /// The socket beside it, while it lives.
    pub lifeline: Option<Lifeline>,
    /// Who was at the other end of the lifeline when it was opened; kept when that has ended.
    pub identity: Identity,
    /// In the context's list of connections with something to send.
    pub(crate) is_busy: bool,
    pub(crate) timer: Option<Instant>,
    pub(crate) part: Part,
    /// How its frames find their way.
    pub route: R,
}

impl<R> Connection<R> {
    pub(crate) fn new(phase: Phase, route: R) -> Self {
        let identity = Identity::default();
        let part = Part::default();
        Self { phase, lifeline: None, identity, is_busy: false, timer: None, part, route }
    }

    /// Whether frames can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether frames are taken.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(self.phase, Phase::Awaiting | Phase::Open | Phase::Draining { .. })
    }

    /// Whether they can be sent, or could.
    pub(crate) fn was_open(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Connecting { .. } => false,
            Phase::Greeting { .. }
            | Phase::Awaiting
            | Phase::Open
            | Phase::Draining { .. }
            | Phase::Ended => true,
        }
    }
}
