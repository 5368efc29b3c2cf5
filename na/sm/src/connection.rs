//! One connection to one peer: its phase, its queues, its receives and, when open, its [`Link`].

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hg_na::{
    Completion, Done, Error, Failure, GoneReason, Message, OpId, Peer, Reached, Returned, Token,
};
use hg_na_parts::Refusals;

use crate::{
    layout::RINGS,
    link::{Kind, Link},
    os::death::ProcessWatch,
    receives::Receives,
    rendezvous::{
        name::Target,
        socket::{Credentials, Socket},
    },
    ring::Broken,
    shared::{maps::Maps, views::Viewing},
    space::Space,
    transfers::{Transfer, ferry::Ferry},
};

/// Operations of one kind that wait for space at one peer, before `Again`.
pub(crate) const QUEUE_DEPTH: usize = 128;

/// Where a connection is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Looked up; nothing was posted yet.
    Idle,
    /// A post was made; the next round connects.
    Starting,
    /// Waits for a place in the listener's backlog until the deadline.
    Waiting(Instant),
    /// Hello was sent; Welcome is awaited.
    Connecting,
    /// Accepted; Hello is awaited.
    Greeting,
    /// Both sides are mapped.
    Open,
    /// Over; what the peer had published is taken first.
    Draining(GoneReason),
    /// Over, and told. Its last requests wait for admission, and nothing else of it is here.
    HungUp(GoneReason),
}

/// A message that waits for its slot.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) serial: u64,
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    pub(crate) message: Message,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Open: a message may be published at once.
    pub(crate) is_flowing: bool,
    /// Polled directly.
    pub(crate) is_hot: bool,
    /// Its requests are taken while admission is open.
    pub(crate) is_admitted: bool,
    /// In the context's list of connections with requests that admission keeps out.
    pub(crate) is_blocked: bool,
    /// Who looks for the space that queued messages wait for, and looks in a row that have found none.
    pub(crate) space: Space,
    pub(crate) looks: u32,
    /// What was refused: of the rings' queues, of [`crate::space`]'s kinds.
    pub(crate) refusals: Refusals,
    /// In the context's list of connections whose arena has pages to give back.
    pub(crate) is_dirty: bool,
    /// Its last requests, while it waits in [`Phase::HungUp`].
    pub(crate) parting: Vec<Completion>,
    /// What the peer has written cannot be: its connection ends.
    pub(crate) fault: Option<Broken>,
    /// Rounds of polling since something was found.
    pub(crate) empty_rounds: u32,
    /// Requests of the last round that may be answered yet.
    pub(crate) owed: u32,
    /// Changed by [`Connection::enter`].
    pub(crate) phase: Phase,
    pub(crate) link: Option<Link>,
    pub(crate) receives: Receives,
    pub(crate) queues: [VecDeque<Pending>; RINGS],
    /// Whom to connect to; `None` for accepted connections.
    pub(crate) target: Option<Target>,
    pub(crate) socket: Option<Arc<Socket>>,
    /// Who connected, or listened, by the kernel's word; kept to the end.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) watch: Option<Arc<ProcessWatch>>,
    /// This side's part of the link, until the peer's is known.
    pub(crate) own: Option<crate::link::OwnSide>,
    /// When [`crate::chores`] look at its phase again.
    pub(crate) timer: Option<std::time::Instant>,
    /// Its place in the domain's list of pin lines.
    pub(crate) board: Option<usize>,
    /// What is mapped of the peer's memory, and views that wait for it.
    pub(crate) maps: Maps,
    pub(crate) views: Vec<Viewing>,
    /// Put and get; whether they are waited for in [`crate::transfers::Transfers`].
    pub(crate) transfers: VecDeque<Transfer>,
    pub(crate) has_turn: bool,
    /// Transfers that are copied through the arenas.
    pub(crate) ferry: Ferry,
}

impl Connection {
    /// A connection in its first phase.
    pub(crate) fn new(peer: Peer, phase: Phase) -> Self {
        Self {
            peer,
            is_flowing: false,
            is_hot: false,
            is_admitted: true,
            is_blocked: false,
            space: Space::Unwanted,
            looks: 0,
            refusals: Refusals::default(),
            is_dirty: false,
            parting: Vec::new(),
            fault: None,
            empty_rounds: 0,
            owed: 0,
            phase,
            timer: None,
            link: None,
            receives: Receives::default(),
            queues: Default::default(),
            target: None,
            socket: None,
            credentials: None,
            watch: None,
            own: None,
            board: None,
            maps: Maps::default(),
            views: Vec::new(),
            transfers: VecDeque::new(),
            has_turn: false,
            ferry: Ferry::default(),
        }
    }

    /// Whether messages may be published.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.is_flowing
    }

    /// Goes on to another phase.
    pub(crate) fn enter(&mut self, phase: Phase) {
        self.is_flowing = phase == Phase::Open;
        self.phase = phase;
    }

    /// Why nothing may be posted any more.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match &self.phase {
            Phase::Draining(reason) | Phase::HungUp(reason) => {
                Some(Error::PeerGone(reason.clone()))
            }
            Phase::Greeting => Some(Error::UnknownPeer),
            Phase::Idle | Phase::Starting | Phase::Waiting(_) | Phase::Connecting | Phase::Open => {
                None
            }
        }
    }

    /// Whether a message waits for its slot.
    pub(crate) fn has_queued(&self) -> bool {
        self.ferry.is_waiting || self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Whether no message up to this number waits for its slot.
    pub(crate) fn has_published(&self, serial: u64) -> bool {
        self.queues.iter().all(|queue| queue.front().is_none_or(|pending| pending.serial > serial))
    }

    /// Gives unused pages back; `true`: some are still in use.
    pub(crate) fn trim(&mut self) -> Option<Result<bool, Broken>> {
        let link = self.link.as_mut()?;
        let places = self.ferry.trim(link);
        Some(link.trim().and_then(|lanes| Ok(places? || lanes)))
    }

    /// Takes a queued message out, by its serial number.
    pub(crate) fn take_queued(&mut self, serial: u64) -> Option<Pending> {
        self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|pending| pending.serial == serial)?;
            queue.remove(at)
        })
    }

    /// Ends everything that is posted, with the peer.
    pub(crate) fn fail_all(&mut self, reason: &GoneReason, done: &mut Vec<Completion>) {
        let scope = self.peer.index();
        self.refusals = Refusals::default();
        let error = Error::PeerGone(reason.clone());
        let queued: Vec<_> = self.queues.iter_mut().flat_map(|queue| queue.drain(..)).collect();
        for pending in queued {
            done.push(failed_send(scope, pending, error.clone()));
        }
        self.fail_transfers(reason, done);
        self.fail_views(reason, done);
        for receive in self.receives.take_all() {
            let id = Receives::id(scope, &receive);
            done.push(failed(
                id,
                receive.token,
                error.clone(),
                Reached::Unknown,
                Returned::Nothing,
            ));
        }
    }
}

/// The completion of a message that was never published.
pub(crate) fn failed_send(scope: u32, pending: Pending, error: Error) -> Completion {
    let id = OpId { scope, serial: pending.serial };
    failed(id, pending.token, error, Reached::Never, given_back(pending.message))
}

/// A failed completion.
pub(crate) fn failed(
    id: OpId,
    token: Token,
    error: Error,
    reached: Reached,
    returned: Returned,
) -> Completion {
    Completion::Done(Done {
        id,
        token,
        result: Err(Box::new(Failure { error, reached })),
        returned,
    })
}

/// What goes back to the poster of a message: its own memory, not the transport's.
pub(crate) fn given_back(message: Message) -> Returned {
    let is_transports = message
        .body()
        .is_some_and(|body| (body as &dyn std::any::Any).is::<crate::body::OutBody>());
    if is_transports { Returned::Nothing } else { Returned::Message(message) }
}
