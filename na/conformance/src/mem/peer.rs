//! One side of a connection of the reference plugin: what waits to be sent, and what has arrived.

use std::collections::{BTreeMap, VecDeque};

use hg_na::{
    Address, Completion, Done, Error, Failure, GoneReason, LocalSlice, Message, OpId, Peer,
    Reached, RemoteSlice, Returned, Tag, Token,
};

/// Messages of one lane that lie at the receiver untaken: its credits.
pub(super) const CREDITS: usize = 64;

/// The kinds of messages; each has its own queue and its own credits, so none waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Unexpected,
    Control,
    Expected,
}

pub(super) const LANES: [Lane; 3] = [Lane::Control, Lane::Expected, Lane::Unexpected];

#[derive(Debug)]
pub(super) enum Link {
    /// Looked up; nobody was contacted.
    Idle,
    /// `endpoint` knows this side as `peer`.
    Open { endpoint: u64, peer: Peer },
    /// What had arrived is handed out, then this is reported.
    Broken(GoneReason),
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: OpId,
    pub(super) token: Token,
    pub(super) tag: Tag,
    pub(super) message: Message,
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: OpId,
    pub(super) token: Token,
    pub(super) put: bool,
    /// None: a view.
    pub(super) local: Option<LocalSlice>,
    pub(super) remote: RemoteSlice,
}

impl Transfer {
    /// What goes back when it fails.
    pub(super) fn buffer(self) -> Returned {
        self.local.map_or(Returned::Nothing, Returned::Slice)
    }
}

#[derive(Debug)]
pub(super) struct PeerState {
    /// The address, when it was looked up.
    pub(super) address: Option<Address>,
    pub(super) link: Link,
    /// Whether an operation asks for the connection.
    pub(super) wanted: bool,
    pub(super) outgoing: [VecDeque<Outgoing>; 3],
    pub(super) inbox: [VecDeque<(Tag, Message)>; 3],
    pub(super) transfers: VecDeque<Transfer>,
    pub(super) receives: BTreeMap<Tag, (OpId, Token)>,
    /// Whether one was refused since room was told: of each lane, and of transfers.
    pub(super) refused: [bool; 4],
    /// Whether unexpected messages of this peer are taken, where any are.
    pub(super) admitted: bool,
    /// `HungUp` was told; only unexpected messages are left.
    pub(super) has_hung_up: bool,
}

impl PeerState {
    pub(super) fn new(address: Option<Address>, link: Link) -> Self {
        Self {
            address,
            link,
            wanted: false,
            outgoing: Default::default(),
            inbox: Default::default(),
            transfers: VecDeque::new(),
            receives: BTreeMap::new(),
            refused: [false; 4],
            admitted: true,
            has_hung_up: false,
        }
    }

    pub(super) fn broken(&self) -> bool {
        matches!(self.link, Link::Broken(_))
    }

    /// Whether room is to be told: a queue that was full is half empty.
    pub(super) fn has_room(&self, depth: usize) -> bool {
        let lanes = self.outgoing.iter().map(VecDeque::len);
        let lens = lanes.chain([self.transfers.len()]);
        self.refused.iter().zip(lens).any(|(refused, len)| *refused && len <= depth / 2)
    }

    /// Hands an arrived expected message to its receive; without one it is dropped.
    pub(super) fn arrive(&mut self, tag: Tag, message: Message) -> Option<Completion> {
        let (id, token) = self.receives.remove(&tag)?;
        Some(finished(id, token, Ok(()), Returned::Message(message)))
    }

    /// Ends a queued operation; `None` when it is not here any more.
    pub(super) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        let failure = |reached| Err(Box::new(Failure { error: Error::Cancelled, reached }));
        for queue in &mut self.outgoing {
            let place = queue.iter().position(|outgoing| outgoing.id == id);
            if let Some(out) = place.and_then(|place| queue.remove(place)) {
                let returned = Returned::Message(out.message);
                return Some(finished(id, out.token, failure(Reached::Never), returned));
            }
        }
        let place = self.transfers.iter().position(|transfer| transfer.id == id);
        if let Some(transfer) = place.and_then(|place| self.transfers.remove(place)) {
            let token = transfer.token;
            return Some(finished(id, token, failure(Reached::Never), transfer.buffer()));
        }
        let tag = self.receives.iter().find(|(_, receive)| receive.0 == id).map(|(tag, _)| *tag)?;
        let (_, token) = self.receives.remove(&tag)?;
        Some(finished(id, token, failure(Reached::Unknown), Returned::Nothing))
    }

    /// Ends everything that is open.
    pub(super) fn fail_all(&mut self, reason: &GoneReason, ready: &mut VecDeque<Completion>) {
        let failure =
            |reached| Err(Box::new(Failure { error: Error::PeerGone(reason.clone()), reached }));
        for out in self.outgoing.iter_mut().flat_map(std::mem::take) {
            let returned = Returned::Message(out.message);
            ready.push_back(finished(out.id, out.token, failure(Reached::Never), returned));
        }
        for transfer in std::mem::take(&mut self.transfers) {
            let (id, token) = (transfer.id, transfer.token);
            ready.push_back(finished(id, token, failure(Reached::Never), transfer.buffer()));
        }
        for (id, token) in std::mem::take(&mut self.receives).into_values() {
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
