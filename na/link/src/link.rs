//! One peer: what waits for it, what it may complete, and whether it is still there.
//!
//! ```text
//!  Taken --close--> Closing --end--> Ended -(nothing is withheld any more)-> gone
//!    |                                 ^
//!    +--------------- end -------------+
//! ```
//! `Closing` refuses operations while what the peer had sent is still to come.

use std::collections::VecDeque;

use hg_na::{
    Caps, CheckedBy, Completion, Error, GoneReason, Message, OpId, Peer, PutOrdering, Returned,
    Sleep, Tag,
};
use hg_na_parts::{Refusals, receives::Receives, regions::SEGMENTS_MAX};

use crate::{
    initiator::{Initiator, Lent},
    owner::Owner,
    queues::Queues,
    sending::{Lane, ended},
};

/// Place of transfers among refusals, beside the lanes.
pub(crate) const TRANSFERS: usize = 3;

/// Whether operations are taken.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    Taken,
    Closing(GoneReason),
    Ended(GoneReason),
}

/// One peer, looked up at a `K` or come by itself; of which the transport keeps a `W`.
#[derive(Debug)]
pub struct Link<K, W> {
    /// Its handle.
    pub peer: Peer,
    /// Where it was looked up.
    pub target: Option<K>,
    pub(crate) standing: Standing,
    /// Messages that wait for credits or a connection.
    pub queues: Queues,
    pub(crate) receives: Receives,
    /// Its own puts and gets.
    pub initiator: Initiator,
    /// Those of the peer.
    pub owner: Owner,
    /// Whether admission is open to it, where it is open to all.
    pub(crate) is_admitted: bool,
    /// Unexpected messages that wait for admission; whether it is in the list of those with any.
    pub(crate) withheld: VecDeque<Message>,
    /// Bytes of memory that these take, as far as they are counted ([`crate::Links::withhold`]).
    pub(crate) held: u64,
    pub(crate) is_withholding: bool,
    /// What was refused: by lane, and transfers.
    pub(crate) refusals: Refusals,
    /// How it is reached.
    pub way: W,
}

impl<K, W> Link<K, W> {
    pub(crate) fn new(peer: Peer, target: Option<K>, way: W) -> Self {
        Self {
            peer,
            target,
            standing: Standing::Taken,
            queues: Queues::default(),
            receives: Receives::default(),
            initiator: Initiator::default(),
            owner: Owner::default(),
            is_admitted: true,
            withheld: VecDeque::new(),
            held: 0,
            is_withholding: false,
            refusals: Refusals::default(),
            way,
        }
    }

    /// Why it takes no operations, if it takes none.
    #[must_use]
    pub fn gone(&self) -> Option<&GoneReason> {
        match &self.standing {
            Standing::Taken => None,
            Standing::Closing(reason) | Standing::Ended(reason) => Some(reason),
        }
    }

    /// Whether its operations have ended, and `HungUp` was told.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.standing, Standing::Ended(_))
    }

    /// Adds a receive; `false`: its tag is in use.
    #[inline]
    pub fn receive(&mut self, tag: Tag, receive: hg_na_parts::receives::Receive) -> bool {
        self.receives.post(tag, receive)
    }

    /// A message has come, and is handed out, unless it has to wait for admission, or nobody waits for it. `admission`: whether it
    /// is open to all. Says whether its credits are free again.
    #[inline]
    pub fn deliver(
        &mut self,
        (lane, tag): (Lane, Tag),
        message: Message,
        admission: bool,
        done: &mut Vec<Completion>,
    ) -> bool {
        let from = self.peer;
        match lane {
            Lane::Control => done.push(Completion::Control { from, message }),
            Lane::Expected => {
                // One without a receive is late.
                if let Some(receive) = self.receives.take(tag) {
                    let id = OpId { scope: from.index(), serial: receive.serial };
                    done.push(ended(id, receive.token, None, Returned::Message(message)));
                }
            }
            Lane::Unexpected if admission && self.is_admitted && self.withheld.is_empty() => {
                done.push(Completion::Unexpected { from, message });
            }
            Lane::Unexpected => {
                self.withheld.push_back(message);
                return false;
            }
        }
        true
    }

    /// Tells once that queues which were full have come down to half; says whether any has. `held`: control messages that the
    /// transport holds for it.
    #[inline]
    pub fn tell_room(&mut self, limits: &Limits, held: usize, done: &mut Vec<Completion>) -> bool {
        if !self.refusals.any() || self.gone().is_some() {
            return false;
        }
        let Self { queues, initiator, refusals, .. } = self;
        let has_room = refusals.take(|kind| match Lane::ALL.get(kind) {
            Some(Lane::Control) => queues.len(Lane::Control) + held <= limits.depth / 2,
            Some(lane) => queues.len(*lane) <= limits.depth / 2,
            None => initiator.len() <= limits.transfers / 2,
        });
        if has_room {
            done.push(Completion::Room { peer: self.peer });
        }
        has_room
    }

    /// Ends every operation: sends, transfers, then receives. Gives what was lent to the peer.
    pub(crate) fn end(&mut self, why: &GoneReason, done: &mut Vec<Completion>) -> Vec<Lent> {
        let gone = |reached| Some((Error::PeerGone(why.clone()), reached));
        for sending in self.queues.drain() {
            let reached = sending.reached();
            done.push(sending.end(gone(reached)));
        }
        let lent = self.initiator.fail(why, done);
        self.owner = Owner::default();
        for receive in self.receives.take_all() {
            let id = OpId { scope: self.peer.index(), serial: receive.serial };
            let failure = gone(hg_na::Reached::Unknown);
            done.push(ended(id, receive.token, failure, Returned::Nothing));
        }
        self.refusals = Refusals::default();
        self.standing = Standing::Ended(why.clone());
        lent
    }
}

/// What one peer's handle takes at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest unexpected or expected message in bytes.
    pub message: usize,
    /// Longest control message in bytes.
    pub control: usize,
    /// Messages of one kind that wait.
    pub depth: usize,
    /// Transfers that have not ended.
    pub transfers: usize,
}

impl Limits {
    /// What a transport can do that is made of links: it sleeps on a descriptor, and its owners serve put and get.
    #[must_use]
    pub fn caps(&self) -> Caps {
        let mut caps = Caps::minimal();
        caps.max_unexpected = self.message;
        caps.max_expected = self.message;
        caps.max_control = self.control;
        caps.short_unexpected = hg_na::INLINE_MAX;
        caps.short_expected = hg_na::INLINE_MAX;
        caps.queue_depth = self.depth;
        caps.max_contexts = 256;
        caps.max_segments = SEGMENTS_MAX;
        caps.one_sided = true;
        caps.checked_by = CheckedBy::Owner;
        caps.put_ordering = PutOrdering::AfterCompletion;
        caps.sleep = Sleep::Descriptor;
        caps
    }
}
