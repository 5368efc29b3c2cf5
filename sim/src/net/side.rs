//! One side of a connection: what waits to be sent, and what has arrived.

use std::collections::VecDeque;

use hg_na::{
    Address, Completion, Done, Error, Failure, GoneReason, LocalSlice, Message, OpId, Peer, QUIET,
    Reached, RemoteSlice, Returned, Tag, Token,
};

use hg_na_parts::{
    Refusals,
    credits::{Amount, Credits},
    receives::{Receive, Receives},
};

/// The kinds of messages; each has its own queue and its own credits, so none waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Control,
    Expected,
    Unexpected,
}

/// Place of the transfers beside the lanes.
pub(super) const TRANSFERS: usize = 3;

pub(super) const LANES: [Lane; 3] = [Lane::Control, Lane::Expected, Lane::Unexpected];

#[derive(Debug)]
pub(super) enum Link {
    /// Looked up; nobody was contacted.
    Idle,
    Connecting,
    /// `endpoint` knows this side as `peer`.
    Open {
        endpoint: usize,
        peer: Peer,
    },
    /// What had arrived is handed out, then this is reported.
    Broken {
        reason: GoneReason,
        /// The operations have ended, and the hang-up was told.
        is_told: bool,
    },
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: OpId,
    pub(super) token: Token,
    pub(super) tag: Tag,
    pub(super) message: Message,
}

#[derive(Debug)]
pub(super) struct Out {
    pub(super) queue: VecDeque<Outgoing>,
    /// Of both directions.
    pub(super) credits: Credits,
    /// When the last one arrives.
    pub(super) last_at: u64,
}

impl Out {
    fn new(window: Amount) -> Self {
        Self { queue: VecDeque::new(), credits: Credits::new(window), last_at: 0 }
    }

    /// Whether a message of this length goes before all others, and has credits.
    pub(super) fn is_free(&self, len: usize) -> bool {
        self.queue.is_empty() && self.credits.are_enough(length(len))
    }

    /// Whether there are credits for the first one that waits.
    pub(super) fn can_send(&self) -> bool {
        let first = self.queue.front();
        first.is_some_and(|out| self.credits.are_enough(length(out.message.len())))
    }
}

/// The length of a message as credits count it.
pub(super) fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// What a transfer does, with its local memory.
#[derive(Debug)]
pub(super) enum Way {
    Put(LocalSlice),
    Get(LocalSlice),
    View,
}

impl Way {
    /// What a transfer that fails hands back.
    pub(super) fn returned(self) -> Returned {
        match self {
            Self::Put(local) | Self::Get(local) => Returned::Slice(local),
            Self::View => Returned::Nothing,
        }
    }
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: OpId,
    pub(super) token: Token,
    pub(super) way: Way,
    pub(super) remote: RemoteSlice,
    /// It is under way.
    pub(super) has_begun: bool,
}

#[derive(Debug)]
pub(super) struct Side {
    /// The address, when it was looked up.
    pub(super) address: Option<Address>,
    pub(super) link: Link,
    /// The process at the other end, once it is connected.
    pub(super) process: Option<usize>,
    pub(super) admission: bool,
    pub(super) out: [Out; 3],
    /// When it arrives, its tag, the message.
    pub(super) arriving: [VecDeque<(u64, Tag, Message)>; 3],
    pub(super) transfers: VecDeque<Transfer>,
    /// What was refused since room was told: of each lane, and of transfers.
    pub(super) refusals: Refusals,
    /// Transfers that the peer asks this side to make: its endpoint's names of them.
    pub(super) asked: VecDeque<u64>,
    pub(super) receives: Receives,
    /// Answers that nobody waited for, where those are kept ([`super::Planted::AnswerStalls`]).
    pub(super) unmatched: u32,
}

impl Side {
    pub(super) fn new(address: Option<Address>, link: Link, window: Amount) -> Self {
        Self {
            address,
            link,
            process: None,
            admission: true,
            out: [(); 3].map(|()| Out::new(window)),
            arriving: Default::default(),
            transfers: VecDeque::new(),
            refusals: Refusals::default(),
            asked: VecDeque::new(),
            receives: Receives::default(),
            unmatched: 0,
        }
    }

    pub(super) fn add_transfer(&mut self, id: OpId, token: Token, way: Way, remote: RemoteSlice) {
        self.transfers.push_back(Transfer { id, token, way, remote, has_begun: false });
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(self.link, Link::Broken { .. })
    }

    /// Whether room is to be told, since queues that were full have come down to half; what is refused still.
    pub(super) fn room(&self, depth: usize) -> (bool, Refusals) {
        let mut refusals = self.refusals;
        let is_half_empty = |kind| self.waiting(kind) <= depth / 2;
        (!self.is_broken() && refusals.take(is_half_empty), refusals)
    }

    /// Operations of a kind that wait.
    fn waiting(&self, kind: usize) -> usize {
        self.out.get(kind).map_or(self.transfers.len(), |out| out.queue.len())
    }

    /// Ends everything that is open: sends before receives.
    pub(super) fn fail_all(
        &mut self,
        scope: u32,
        reason: &GoneReason,
        ready: &mut VecDeque<Completion>,
    ) {
        let failure =
            |reached| Err(Box::new(Failure { error: Error::PeerGone(reason.clone()), reached }));
        for out in self.out.iter_mut().flat_map(|out| std::mem::take(&mut out.queue)) {
            let returned = Returned::Message(out.message);
            ready.push_back(finished(out.id, out.token, failure(Reached::Never), returned));
        }
        for transfer in std::mem::take(&mut self.transfers) {
            let returned = transfer.way.returned();
            let result = failure(Reached::Unknown);
            ready.push_back(finished(transfer.id, transfer.token, result, returned));
        }
        for Receive { serial, token } in self.receives.take_all() {
            let id = OpId { scope, serial };
            ready.push_back(finished(id, token, failure(Reached::Unknown), Returned::Nothing));
        }
    }
}

pub(super) fn finished(
    id: OpId,
    token: Token,
    result: Result<(), Box<Failure>>,
    returned: Returned,
) -> Completion {
    Completion::Done(Done { id, token, result, returned })
}

/// Whether the success of a send is to be told.
pub(super) fn is_loud(token: Token) -> bool {
    token & QUIET == 0
}
