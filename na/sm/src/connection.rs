//! One connection to one peer: its phase, its queues, its receives and, when open, its [`Link`].

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hg_na::{Completion, Error, GoneReason, Message, OpId, Peer, Reached, Returned, Token};
use hg_na_parts::Refusals;

use crate::{
    completion::failed,
    ferry::Ferry,
    layout::RINGS,
    link::{Kind, Link},
    maps::{Maps, VIEWS_MAX, Viewing},
    receives::Receives,
    region::pins,
    rendezvous::{
        name::Target,
        process::ProcessWatch,
        socket::{Credentials, Socket},
    },
    ring::Broken,
    transfer::TRANSFERS_MAX,
};

/// Operations of one kind that wait for space at one peer, before `Again`.
pub(crate) const QUEUE_DEPTH: usize = 128;

/// Kinds of refusals, beside the rings' places: of transfers that are posted, and of those that are begun.
pub(crate) const TRANSFERS: usize = 2;
pub(crate) const VIEWS: usize = 3;
pub(crate) const BEGUN: usize = 4;

/// Where a connection is in its life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Looked up; nothing was posted yet.
    #[default]
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

/// Who looks for the space that a connection's queued messages wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Space {
    /// Nothing waits.
    #[default]
    Unwanted,
    /// This side, in each round: it stands in the context's backlog.
    Polled,
    /// The peer rings.
    Rung,
}

impl Phase {
    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<&GoneReason> {
        match self {
            Self::Draining(reason) | Self::HungUp(reason) => Some(reason),
            Self::Idle | Self::Starting | Self::Waiting(_) => None,
            Self::Connecting | Self::Greeting | Self::Open => None,
        }
    }
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
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Polled directly.
    pub(crate) is_hot: bool,
    /// Its requests are taken while admission is open.
    pub(crate) is_admitted: bool,
    /// Who looks for the space that queued messages wait for, and looks in a row that have found none.
    pub(crate) space: Space,
    pub(crate) looks: u32,
    /// What was refused: of the rings' queues, of [`TRANSFERS`], of [`VIEWS`] and of [`BEGUN`].
    pub(crate) refusals: Refusals,
    /// In the context's list of connections whose arena has pages to give back.
    pub(crate) is_dirty: bool,
    /// Its last requests, while it waits in [`Phase::HungUp`].
    pub(crate) parting: Vec<Completion>,
    /// Bytes that they take, as the context has counted.
    pub(crate) parting_bytes: u64,
    /// What the peer has written cannot be: its connection ends.
    pub(crate) fault: Option<Broken>,
    /// Rounds of polling since something was found.
    pub(crate) empty_rounds: u32,
    /// A short request was posted since something came.
    pub(crate) is_streaming: bool,
    /// Requests of the last round that may be answered yet.
    pub(crate) owed: u32,
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
    /// When the context's chores look at its phase again.
    pub(crate) timer: Option<std::time::Instant>,
    /// Its number in the domain's list of pin lines.
    pub(crate) board: Option<u64>,
    /// What is mapped of the peer's memory, and views that wait for it.
    pub(crate) maps: Maps,
    pub(crate) views: Vec<Viewing>,
    /// Put and get that were posted: copied through the arenas.
    pub(crate) ferry: Ferry,
}

impl Connection {
    /// A connection in its first phase.
    pub(crate) fn new(peer: Peer, phase: Phase) -> Self {
        Self { peer, phase, is_admitted: true, ..Self::default() }
    }

    /// Whether messages may be published.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether it is, or was: until then nothing has left.
    pub(crate) fn was_open(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Starting | Phase::Waiting(_) | Phase::Connecting => false,
            Phase::Greeting | Phase::Open | Phase::Draining(_) | Phase::HungUp(_) => true,
        }
    }

    /// Whether something may be posted (yet, or still).
    ///
    /// # Errors
    /// [`Error::UnknownPeer`], [`Error::PeerGone`].
    pub(crate) fn takes_posts(&self) -> Result<(), Error> {
        match self.phase.over() {
            Some(reason) => Err(Error::PeerGone(reason.clone())),
            None if self.phase == Phase::Greeting => Err(Error::UnknownPeer),
            None => Ok(()),
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

    /// Its arena has, or may have, pages to give back: it stands in the context's list of those.
    pub(crate) fn note_dirty(&mut self, list: &mut Vec<Peer>) {
        if !std::mem::replace(&mut self.is_dirty, true) {
            list.push(self.peer);
        }
    }

    /// Gives unused pages back; `true`: some are still in use.
    pub(crate) fn trim(&mut self) -> Option<Result<bool, Broken>> {
        let link = self.link.as_mut()?;
        let places = self.ferry.trim(link);
        Some(link.trim().and_then(|lanes| Ok(places? || lanes)))
    }

    /// Takes out what is cancelled, whatever it is.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        let (serial, error) = (id.serial, Error::Cancelled);
        if let Some(receive) = self.receives.cancel(serial) {
            return Some(failed(id, receive.token, error, Reached::Unknown, Returned::Nothing));
        }
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|pending| pending.serial == serial) {
                return Some(failed_send(id.scope, queue.remove(at)?, error));
            }
        }
        if let Some(at) = self.views.iter().position(|it| it.id.serial == serial) {
            return Some(self.views.swap_remove(at).ended(Err(error)));
        }
        self.ferry.cancel(serial)
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
        self.ferry.fail(reason, done);
        done.extend(self.views.drain(..).map(|viewing| viewing.ended(Err(error.clone()))));
        for receive in self.receives.take_all() {
            let id = OpId { scope, serial: receive.serial };
            let (token, error) = (receive.token, error.clone());
            done.push(failed(id, token, error, Reached::Unknown, Returned::Nothing));
        }
    }

    /// Tells once that queues of its own which were full have room.
    #[inline]
    pub(crate) fn tell_room(&mut self, finished: &mut Vec<Completion>) -> bool {
        if !self.refusals.any() {
            return false;
        }
        let (transfers, views, may_pin) = (self.ferry.len(), self.views.len(), !self.lacks_pins());
        let Self { queues, refusals, .. } = self;
        let has_room = refusals.take(|kind| match kind {
            TRANSFERS => transfers <= TRANSFERS_MAX / 2,
            VIEWS => views <= VIEWS_MAX / 2,
            BEGUN => may_pin,
            kind => queues.get(kind).is_some_and(|queue| queue.len() <= QUEUE_DEPTH / 2),
        });
        if has_room {
            finished.push(Completion::Room { peer: self.peer });
        }
        has_room
    }

    /// Whether all words for pins are in use. One that is free stays so until a transfer is begun.
    pub(crate) fn lacks_pins(&self) -> bool {
        self.link.as_ref().is_some_and(|link| pins::free(&link.own.rings.pins.0).is_none())
    }

    /// Whether what waits is behind something that the peer rings for when it has taken it.
    pub(crate) fn is_behind_others(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let waits =
            [!self.queues[0].is_empty(), !self.queues[1].is_empty() || self.ferry.is_waiting];
        waits.iter().zip(&link.tx).all(|(waits, tx)| !waits || !tx.is_drained())
    }
}

/// The completion of a message that was never published.
pub(crate) fn failed_send(scope: u32, pending: Pending, error: Error) -> Completion {
    let id = OpId { scope, serial: pending.serial };
    failed(id, pending.token, error, Reached::Never, given_back(pending.message))
}

/// What goes back to the poster of a message: its own memory, not the transport's.
pub(crate) fn given_back(message: Message) -> Returned {
    let body = message.body().map(|body| body as &dyn std::any::Any);
    let is_transports = body.is_some_and(|body| body.is::<crate::body::OutBody>());
    if is_transports { Returned::Nothing } else { Returned::Message(message) }
}
