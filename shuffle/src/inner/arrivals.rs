//! Batches that have arrived: into order, looked at, and put where their messages go next.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use hg::Answer;

use super::{HERE, Inner};
use crate::{
    MAXRPC_MAX,
    hop::Hop,
    inbox::Chunk,
    lock::locked,
    message::{Message, Messages},
    order::{Order, Place},
    parent::{Parent, Receipt},
    queue::Loaded,
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
        let mut rest = Messages::of(bytes);
        let mine = match self.mine(lane, &mut rest) {
            Ok(mine) => mine,
            Err(refused) => {
                answer.send(Err(refused));
                return 0;
            }
        };
        if rest.bytes().is_empty() {
            self.take_all_in(bytes, mine, answer);
            return u64::from(mine);
        }
        let (own, _) = bytes.split_at(bytes.len() - rest.bytes().len());
        let mut sorting = locked(&self.sorting);
        sorting.own.extend_from_slice(own);
        sorting.mine = mine;
        if let Err(refused) = self.sort(lane, rest, &mut sorting) {
            sorting.clear(&self.hops);
            drop(sorting);
            answer.send(Err(refused));
            return 0;
        }
        let (messages, parent) = (sorting.messages, Parent::new(answer));
        self.pass_on(&mut sorting, &parent);
        drop(sorting);
        messages
    }

    /// A batch that is for this rank alone.
    fn take_all_in(&self, bytes: &[u8], messages: u32, answer: Answer<batch>) {
        if self.mail.deliver_now(bytes, messages) {
            drop(Receipt::of_all(answer));
        } else if bytes.len() <= SHORT {
            self.mail.push_short((bytes, messages), Receipt::of_all(answer));
        } else {
            let mut own = self.mail.buffer();
            own.extend_from_slice(bytes);
            self.mail.push_chunk(Chunk { bytes: own, messages }, Receipt::of_all(answer));
        }
    }

    /// How many messages at the beginning are for this rank alone; `rest` begins behind them.
    fn mine(&self, lane: Lane, rest: &mut Messages<'_>) -> Result<u32, Refused> {
        let mut mine = 0;
        loop {
            let before = rest.clone();
            match rest.next() {
                Some(message) if self.onward_of(lane, &message?)? == HERE => mine += 1,
                None => return Ok(mine),
                Some(_) => {
                    *rest = before;
                    return Ok(mine);
                }
            }
        }
    }

    /// Puts messages where those are that go the same way.
    fn sort(&self, lane: Lane, rest: Messages<'_>, to: &mut Sorting) -> Result<(), Refused> {
        to.messages = to.mine.into();
        for message in rest {
            let message = message?;
            to.messages += 1;
            match self.onward_of(lane, &message)? {
                HERE => to.push_own(&message),
                EVERYWHERE => {
                    to.push_own(&message);
                    let onward = if lane == Lane::Origin { Lane::Network } else { Lane::Relay };
                    let hops = (0..).zip(&self.hops).filter(|(_, hop)| hop.lane == onward);
                    for (at, hop) in hops {
                        to.copies += 1;
                        to.push(at, hop, &message);
                    }
                }
                at => to.push(at as usize, &self.hops[at as usize], &message),
            }
        }
        Ok(())
    }

    /// The index of the next hop, [`HERE`] or [`EVERYWHERE`]; `Err`: the message must not have come this way.
    #[inline]
    fn onward_of(&self, lane: Lane, message: &Message<'_>) -> Result<u32, Refused> {
        if message.source >= self.routes.map().size() {
            return Err(Refused::Misrouted);
        }
        if message.is_broadcast() {
            return Ok(if lane == Lane::Relay { HERE } else { EVERYWHERE });
        }
        self.onward(lane, message.to).ok_or(Refused::Misrouted)
    }

    /// Hands on what was sorted: a lock for each hop, not for each message.
    fn pass_on(&self, sorted: &mut Sorting, parent: &Parent) {
        self.copies.fetch_add(std::mem::take(&mut sorted.copies), Ordering::Relaxed);
        for at in sorted.used.drain(..) {
            let hop = &self.hops[at];
            // To a rank that has failed: the hop counts it.
            if hop.push_run(&mut sorted.runs[at], parent) == Ok(true) {
                self.linger.arm();
            }
        }
        let messages = std::mem::take(&mut sorted.mine);
        if messages > 0 {
            let bytes = std::mem::replace(&mut sorted.own, self.mail.buffer());
            self.mail.push_chunk(Chunk { bytes, messages }, Receipt::share(parent.clone()));
        }
    }
}

/// The messages of a batch, by where they go next. Empty in between.
#[derive(Debug, Default)]
pub(crate) struct Sorting {
    /// By hop, behind the head of that one.
    runs: Vec<Loaded>,
    /// Which of them have any.
    used: Vec<usize>,
    /// Those for this rank.
    own: Vec<u8>,
    mine: u32,
    /// All of them.
    messages: u64,
    /// Copies of broadcasts.
    copies: u64,
}

impl Sorting {
    #[inline]
    fn push(&mut self, at: usize, hop: &Hop, message: &Message<'_>) {
        if self.runs.len() <= at {
            self.runs.resize_with(at + 1, Loaded::default);
        }
        let run = &mut self.runs[at];
        if run.messages == 0 {
            run.bytes.resize(hop.head(), 0);
            self.used.push(at);
        }
        run.push(message);
    }

    #[inline]
    fn push_own(&mut self, message: &Message<'_>) {
        message.write(&mut self.own);
        self.mine += 1;
    }

    /// Forgets a batch that is refused.
    fn clear(&mut self, hops: &[Hop]) {
        for at in self.used.drain(..) {
            self.runs[at].clear(hops[at].head());
        }
        self.own.clear();
        (self.mine, self.copies) = (0, 0);
    }
}

/// In place of a hop: this rank, and all that a broadcast goes on to.
const EVERYWHERE: u32 = HERE - 1;

/// Bytes up to which a batch is put behind others, under the lock of deliveries.
const SHORT: usize = 1 << 10;
