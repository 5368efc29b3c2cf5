//! What an end knows of one other end: the stream to it, the stream from it, and the way there.

use hg_na::{GoneReason, Message, Peer};

use crate::{
    incoming::Incoming,
    outgoing::Outgoing,
    wire::{Header, Kind, LEAVE, Positions},
};

/// How the other end is reached.
#[derive(Debug)]
pub(super) enum Way {
    /// Not yet, or no more.
    None,
    /// It is a thread of this process.
    Near,
    /// It is such a thread, and takes nothing any more. What it has handed over before lies in the inbox still, and its end behind that.
    Left,
    /// By a connection of the context.
    Peer(Peer),
    /// Never again.
    Gone(GoneReason),
}

/// Both streams with one other end.
#[derive(Debug)]
pub(super) struct Link<N> {
    pub(super) end: u32,
    pub(super) way: Way,
    pub(super) out: Outgoing<N>,
    pub(super) incoming: Incoming,
    /// The transport has refused a message, and will tell when it takes one.
    pub(super) is_blocked: bool,
    /// Its bytes that wait to leave, as the port has counted them last.
    pub(super) queued: u64,
    /// It stands in the port's list of open blocks.
    pub(super) is_unflushed: bool,
    /// It stands in the port's list of those that are to be told.
    pub(super) is_owing: bool,
    /// Its connection is wanted though it is idle.
    pub(super) kept: u32,
    /// By this connection this side has moved bytes by itself.
    pub(super) moves_by: Option<Peer>,
    /// Something has gone since the port has looked for idle ones.
    pub(super) is_active: bool,
    /// Rounds of the port that had found nothing when the latest block came.
    pub(super) rounds_in_vain: u64,
    /// A connection with the other end has ended, and another one has not: what has come by that is heard before the end is.
    pub(super) ending: Option<GoneReason>,
    /// By this connection the other end is to be told to go on, as soon as the transport takes it.
    pub(super) stays: Option<(Peer, Positions)>,
}

impl<N> Link<N> {
    pub(super) fn new(end: u32, window: u32) -> Self {
        Self {
            end,
            way: Way::None,
            out: Outgoing::new(window),
            incoming: Incoming::new(window),
            is_blocked: false,
            queued: 0,
            is_unflushed: false,
            is_owing: false,
            kept: 0,
            moves_by: None,
            is_active: true,
            rounds_in_vain: 0,
            ending: None,
            stays: None,
        }
    }

    /// Where both streams are.
    pub(super) fn positions(&self) -> Positions {
        Positions { written: self.out.written(), consumed: self.incoming.consumed() }
    }

    /// What is said of a connection that is idle.
    pub(super) fn says(&self, kind: Kind, positions: Positions) -> Message {
        let mut bytes = [0; LEAVE];
        let told = self.incoming.telling();
        Header { kind, asks: false, waited: false, told }.write(&mut bytes);
        positions.write(&mut bytes);
        Message::copied(&bytes)
    }

    /// Whether there is to be a connection.
    pub(super) fn is_wanted(&self) -> bool {
        self.out.is_waiting() || self.kept > 0
    }

    /// Nothing is on its way in either direction, as far as this side knows, nor wanted to be.
    pub(super) fn is_quiet(&self) -> bool {
        self.out.is_quiet() && self.incoming.is_quiet() && self.kept == 0
    }
}
