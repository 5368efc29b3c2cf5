//! Batches that have arrived: into order, looked at, and put where their messages go next.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use hg::Answer;

use super::{HERE, Inner};
use crate::{
    MAXRPC_MAX,
    hop::{Gone, Hop},
    inbox::Chunk,
    lock::locked,
    message::{Message, Messages},
    order::{Order, Place},
    parent::{Parent, Receipt},
    rpc::{Lane, Refused, batch},
};

/// A batch that has overtaken another one.
#[derive(Debug)]
struct Early {
    bytes: Vec<u8>,
    answer: Answer<batch>,
}

/// The batches of one queue of one peer.
#[derive(Debug)]
pub(crate) struct Arriving {
    order: Mutex<Order<Early>>,
    /// Messages that were taken in; who asks does not wait for a callback.
    taken: AtomicU64,
}

impl Arriving {
    pub(crate) fn new() -> Self {
        Self { order: Mutex::new(Order::new(MAXRPC_MAX as usize)), taken: AtomicU64::new(0) }
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// A batch has come.
    pub(crate) fn arrived(
        &self,
        (from, lane): (u32, Lane),
        number: u64,
        bytes: &[u8],
        answer: Answer<batch>,
    ) {
        if self.is_closed() {
            return answer.send(Err(Refused::Closed));
        }
        let Some(Arriving { order, taken }) = self.orders.get(&(from, lane)) else {
            return answer.send(Err(Refused::Misrouted));
        };
        let count = |messages| taken.fetch_add(messages, Ordering::Relaxed);
        // Held while batches are taken in, callbacks included: those of one queue keep their order.
        let mut order = locked(order);
        let answer =
            match order.arrive(number, answer, |answer| Early { bytes: bytes.to_vec(), answer }) {
                Place::Next(answer) => answer,
                Place::Early => return,
                Place::Wrong(answer) => return answer.send(Err(Refused::OutOfOrder)),
            };
        count(self.take_in(lane, bytes, answer));
        while let Some(Early { bytes, answer }) = order.following() {
            count(self.take_in(lane, &bytes, answer));
        }
    }

    /// Refuses batches whose forerunners will not come any more.
    pub(crate) fn refuse_early(&self) {
        for arriving in self.orders.values() {
            let early = locked(&arriving.order).clear();
            early.into_iter().for_each(|early| early.answer.send(Err(Refused::Closed)));
        }
    }

    /// Puts the messages of a batch where they go next; none of them before all were looked at. How many those were.
    fn take_in(&self, lane: Lane, bytes: &[u8], answer: Answer<batch>) -> u64 {
        let (messages, mine) = match self.look_at(lane, bytes) {
            Ok(looked) => looked,
            Err(refused) => {
                answer.send(Err(refused));
                return 0;
            }
        };
        let Some(mine) = mine else {
            self.pass_all_on(lane, bytes, &Parent::new(answer), None);
            return messages;
        };
        if mine.is_all && self.mail.deliver_now(bytes, mine.messages) {
            drop(Receipt::of_all(answer));
            return messages;
        }
        if mine.is_all && bytes.len() <= SHORT {
            self.mail.push_short((bytes, mine.messages), Receipt::of_all(answer));
            return messages;
        }
        let mut own = self.mail.buffer();
        let receipt = if mine.is_all {
            own.extend_from_slice(bytes);
            Receipt::of_all(answer)
        } else {
            let parent = Parent::new(answer);
            self.pass_all_on(lane, bytes, &parent, Some(&mut own));
            Receipt::share(parent)
        };
        self.mail.push_chunk(Chunk { bytes: own, messages: mine.messages }, receipt);
        messages
    }

    /// What of a batch is for other ranks goes on; what is for this one, to `own`.
    fn pass_all_on(
        &self,
        lane: Lane,
        bytes: &[u8],
        parent: &Parent,
        mut own: Option<&mut Vec<u8>>,
    ) {
        for message in Messages::of(bytes).flatten() {
            self.pass_on(lane, &message, parent, own.as_deref_mut());
        }
    }

    /// How many messages a batch holds, and what of it is for this rank.
    fn look_at(&self, lane: Lane, bytes: &[u8]) -> Result<(u64, Option<Mine>), Refused> {
        let (mut messages, mut mine, mut others) = (0, 0, false);
        for message in Messages::of(bytes) {
            let message = message.map_err(|_| Refused::Malformed)?;
            messages += 1;
            if message.source >= self.routes.map().size() {
                return Err(Refused::Misrouted);
            }
            if message.is_broadcast() {
                mine += 1;
                others |= lane != Lane::Relay;
            } else {
                match self.onward(lane, message.to) {
                    Some(HERE) => mine += 1,
                    Some(_) => others = true,
                    None => return Err(Refused::Misrouted),
                }
            }
        }
        Ok((messages, (mine > 0).then_some(Mine { messages: mine, is_all: !others })))
    }

    fn pass_on(
        &self,
        lane: Lane,
        message: &Message<'_>,
        parent: &Parent,
        own: Option<&mut Vec<u8>>,
    ) {
        if message.is_broadcast() {
            if let Some(own) = own {
                message.write(own);
            }
            let onward = match lane {
                Lane::Origin => Lane::Network,
                Lane::Network => Lane::Relay,
                Lane::Relay => return,
            };
            for hop in self.hops.iter().filter(|hop| hop.lane == onward) {
                self.copies.fetch_add(1, Ordering::Relaxed);
                self.relay(hop, message, parent);
            }
            return;
        }
        let onward = self.onward(lane, message.to).unwrap_or(HERE);
        match self.hops.get(onward as usize) {
            Some(hop) => self.relay(hop, message, parent),
            None => own.into_iter().for_each(|own| message.write(own)),
        }
    }

    fn relay(&self, hop: &Hop, message: &Message<'_>, parent: &Parent) {
        match hop.push(message, Some(parent), None) {
            Ok(pushed) => self.after_push(hop, pushed, false),
            // To a rank that has failed: its origin counts it as in doubt.
            Err(Gone) => hop.note_turned_away(),
        }
    }
}

/// What of a batch is for this rank.
#[derive(Debug, Clone, Copy)]
struct Mine {
    messages: u32,
    is_all: bool,
}

/// Bytes up to which a batch is put behind others, under the lock of deliveries.
const SHORT: usize = 1 << 10;
