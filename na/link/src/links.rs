//! All peers of one context: what `na` asks of a context as far as it needs no wire.
//!
//! The transport says what came ([`Link::deliver`]), what left, and who is gone; it asks what is to leave ([`Link::queues`],
//! [`crate::initiator`], [`crate::owner`]). Completions are handed to the caller's list in the order that `na` promises.

use std::{collections::VecDeque, hash::Hash};

use hg_na::{
    Completion, Error, GoneReason, Message, Op, OpId, Peer, Reached, Rejected, Returned, Token,
};
use hg_na_parts::receives::Receive;
use rustc_hash::FxHashMap;

use crate::{
    initiator::{Cancelled, Lent},
    link::{Limits, Link, Standing, TRANSFERS},
    sending::{Lane, Sending, ended},
    table::{Key, Table},
    transfer::{self, Transfer},
};

/// All peers of a context, found by their handles.
#[derive(Debug)]
pub struct Links<K, W> {
    table: Table<Link<K, W>>,
    /// [`Peer::SECOND`], where it is set in the index of each handle.
    mark: u32,
    limits: Limits,
    by_target: FxHashMap<K, Peer>,
    /// Of the last operation.
    serial: u64,
    /// Whether admission is open to all.
    admission: bool,
    /// Links with messages that waited for admission when it was last open to each of them, in the order of their turns.
    withholding: VecDeque<Peer>,
    /// Links that have ended and withhold messages.
    hung_up: usize,
    /// Bytes of memory that withheld messages take, as far as they are counted.
    held: u64,
}

impl<K: Clone + Eq + Hash, W> Links<K, W> {
    /// None, of a context whose handles have this mark, or none.
    #[must_use]
    pub fn new(mark: u32, limits: Limits) -> Self {
        Self {
            table: Table::default(),
            mark,
            limits,
            by_target: FxHashMap::default(),
            serial: 0,
            admission: true,
            withholding: VecDeque::new(),
            hung_up: 0,
            held: 0,
        }
    }

    /// The handle of the peer that is looked up there, a new one where there is none.
    pub fn look_up(&mut self, target: K, way: impl FnOnce() -> W) -> Peer {
        if let Some(peer) = self.by_target.get(&target) {
            return *peer;
        }
        let peer = self.add(Some(target.clone()), way());
        self.by_target.insert(target, peer);
        peer
    }

    /// The peer that is looked up there.
    #[must_use]
    pub fn looked_up(&self, target: &K) -> Option<Peer> {
        self.by_target.get(target).copied()
    }

    /// A peer that has come by itself.
    pub fn accept(&mut self, way: W) -> Peer {
        self.add(None, way)
    }

    fn add(&mut self, target: Option<K>, way: W) -> Peer {
        let key = self.table.reserve();
        let peer = Peer::new(key.index ^ self.mark, key.generation);
        self.table.put(key, Box::new(Link::new(peer, target, way)));
        peer
    }

    /// Its name in the table. Of one without the mark it is beyond the table's end.
    #[inline]
    fn key(&self, peer: Peer) -> Key {
        Key { index: peer.index() ^ self.mark, generation: peer.generation() }
    }

    /// A peer, to be read.
    #[must_use]
    pub fn get(&self, peer: Peer) -> Option<&Link<K, W>> {
        self.table.get(self.key(peer))
    }

    /// A peer, to be changed.
    #[inline]
    pub fn find(&mut self, peer: Peer) -> Option<&mut Link<K, W>> {
        self.table.find(self.key(peer))
    }

    /// The present peer of an index.
    #[inline]
    pub fn at(&mut self, index: u32) -> Option<&mut Link<K, W>> {
        self.table.at(index ^ self.mark)
    }

    /// All peers.
    pub fn iter(&self) -> impl Iterator<Item = &Link<K, W>> {
        self.table.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// How many have ended and withhold messages.
    #[must_use]
    pub fn hung_up(&self) -> usize {
        self.hung_up
    }

    /// The number of the last operation.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// So many numbers of operations, the last of which is given.
    #[inline]
    pub fn take_serials(&mut self, count: u64) -> u64 {
        self.serial += count;
        self.serial
    }

    /// Accepts an operation, or hands it back. `held`: control messages that the transport holds for a peer.
    ///
    /// # Errors
    /// The operation, and why.
    pub fn post(
        &mut self,
        token: Token,
        op: Op,
        held: impl FnOnce(&W) -> usize,
    ) -> Result<OpId, Rejected> {
        let id = OpId { scope: op.peer().index(), serial: self.serial + 1 };
        let link = match self.check(&op, held) {
            Ok(link) => link,
            Err(error) => return Err(Rejected { op, error }),
        };
        match op {
            Op::SendControl { message, .. } => {
                link.queues.push(Lane::Control, Sending::new(id, token, 0, message));
            }
            Op::SendExpected { tag, message, .. } => {
                link.queues.push(Lane::Expected, Sending::new(id, token, tag, message));
            }
            Op::SendUnexpected { message, .. } => {
                link.queues.push(Lane::Unexpected, Sending::new(id, token, 0, message));
            }
            Op::RecvExpected { tag, .. } => {
                let is_free = link.receives.post(tag, Receive { serial: id.serial, token });
                debug_assert!(is_free, "checked before");
            }
            Op::Put { local, remote, .. } => {
                link.initiator.post(Transfer::new(id, token, true, local, &remote));
            }
            Op::Get { local, remote, .. } => {
                link.initiator.post(Transfer::new(id, token, false, local, &remote));
            }
            op => {
                let error = Error::Unsupported("this operation over a network");
                return Err(Rejected { op, error });
            }
        }
        self.serial = id.serial;
        Ok(id)
    }

    /// The peer of an operation, if that can be accepted.
    fn check(&mut self, op: &Op, held: impl FnOnce(&W) -> usize) -> Result<&mut Link<K, W>, Error> {
        let (peer, limits) = (op.peer(), self.limits);
        if self.table.is_past(self.key(peer)) {
            return Err(Error::PeerGone(GoneReason::Ended));
        }
        let link = self.find(peer).ok_or(Error::UnknownPeer)?;
        if let Some(reason) = link.gone() {
            return Err(Error::PeerGone(reason.clone()));
        }
        let (lane, message, max, held) = match op {
            Op::SendUnexpected { message, .. } => (Lane::Unexpected, message, limits.message, 0),
            Op::SendExpected { message, .. } => (Lane::Expected, message, limits.message, 0),
            Op::SendControl { message, .. } => {
                (Lane::Control, message, limits.control, held(&link.way))
            }
            Op::RecvExpected { tag, .. } if link.receives.contains(*tag) => {
                return Err(Error::TagInUse(*tag));
            }
            Op::Put { local, remote, .. } | Op::Get { from: _, local, remote } => {
                transfer::check(local, remote, matches!(op, Op::Put { .. }))?;
                if link.initiator.len() >= limits.transfers {
                    link.refusals.add(TRANSFERS);
                    return Err(Error::Again);
                }
                return Ok(link);
            }
            _ => return Ok(link),
        };
        let len = message.len();
        if len > max {
            return Err(Error::TooLong { len, max });
        }
        if link.queues.len(lane) + held >= limits.depth {
            link.refusals.add(lane.place());
            return Err(Error::Again);
        }
        Ok(link)
    }

    /// Ends an operation that has not left, and tells so. `None`: there is no such operation, or it is too late.
    pub fn cancel(&mut self, id: OpId, done: &mut Vec<Completion>) -> Option<Cancelled> {
        let link = self.at(id.scope)?;
        if let Some(sending) = link.queues.cancel(id.serial) {
            done.push(sending.end(Some((Error::Cancelled, Reached::Never))));
            return Some(Cancelled::default());
        }
        if let Some(receive) = link.receives.cancel(id.serial) {
            let failure = Some((Error::Cancelled, Reached::Unknown));
            done.push(ended(id, receive.token, failure, Returned::Nothing));
            return Some(Cancelled::default());
        }
        let (completion, cancelled) = link.initiator.cancel(id.serial)?;
        done.push(completion);
        Some(cancelled)
    }

    /// Whether admission is open to all.
    #[inline]
    #[must_use]
    pub fn admission(&self) -> bool {
        self.admission
    }

    /// Opens or closes admission to all; says whether there may be messages to be admitted.
    pub fn set_admission(&mut self, open: bool) -> bool {
        self.admission = open;
        self.has_admissible()
    }

    /// The same to one peer.
    pub fn set_admission_of(&mut self, peer: Peer, open: bool) -> bool {
        if let Some(link) = self.find(peer) {
            link.is_admitted = open;
            self.await_admission(peer);
        }
        self.has_admissible()
    }

    /// Whether there may be messages to be admitted.
    #[inline]
    #[must_use]
    pub fn has_admissible(&self) -> bool {
        self.admission && !self.withholding.is_empty()
    }

    /// Lists a peer with withheld messages. One to which admission is closed is not listed: nobody looks at it.
    pub fn await_admission(&mut self, peer: Peer) {
        let Some(link) = self.find(peer) else { return };
        if link.is_admitted && !link.withheld.is_empty() && !link.is_withholding {
            link.is_withholding = true;
            self.withholding.push_back(peer);
        }
    }

    /// A message of a peer's was withheld ([`Link::deliver`]): counts what it takes. Where all peers together then take more than
    /// `most` bytes, what the one that takes most has sent is dropped; `Some`: it is to be ended.
    pub fn withhold(
        &mut self,
        peer: Peer,
        len: usize,
        most: u64,
        done: &mut Vec<Completion>,
    ) -> Option<Peer> {
        if let Some(link) = self.find(peer) {
            link.held += cost(len);
            self.held += cost(len);
        }
        self.await_admission(peer);
        if self.held <= most {
            return None;
        }
        let greediest = self.iter().max_by_key(|link| link.held)?.peer;
        tracing::warn!(
            "requests wait for admission in too much memory: the peer whose take most is disconnected"
        );
        (!self.forget(greediest, done)).then_some(greediest)
    }

    /// Bytes of memory of all messages that wait for admission.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Hands out up to `most` messages that came while admission was closed. The transport gives their credits back as it is told
    /// of their lengths.
    pub fn admit(
        &mut self,
        most: usize,
        done: &mut Vec<Completion>,
        mut release: impl FnMut(&mut Link<K, W>, usize),
    ) {
        let mut left = most;
        while left > 0
            && self.has_admissible()
            && let Some(peer) = self.withholding.pop_front()
        {
            let key = self.key(peer);
            let Self { table, held, .. } = self;
            let Some(link) = table.find(key) else { continue };
            link.is_withholding = false;
            if !link.is_admitted {
                continue;
            }
            while left > 0
                && let Some(message) = link.withheld.pop_front()
            {
                left -= 1;
                let freed = cost(message.len()).min(link.held);
                link.held -= freed;
                *held -= freed;
                release(link, message.len());
                done.push(Completion::Unexpected { from: peer, message });
            }
            if !link.withheld.is_empty() {
                self.await_admission(peer);
            } else if link.has_ended() {
                self.bury(peer, done);
            }
        }
    }

    /// No more operations are taken for a peer, whose last messages are still to come. Its address may be looked up anew.
    pub fn close(&mut self, peer: Peer, reason: GoneReason) {
        self.unlist(peer);
        if let Some(link) = self.find(peer) {
            link.standing = Standing::Closing(reason);
        }
    }

    /// Ends a peer and its operations, and says so at once; what waits for admission still comes before the last word. What the
    /// transport holds of its messages it has ended before. Gives what was lent to the peer.
    pub fn end(
        &mut self,
        peer: Peer,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    ) -> Vec<Lent> {
        self.unlist(peer);
        let Some(link) = self.find(peer).filter(|link| !link.has_ended()) else {
            return Vec::new();
        };
        let lent = link.end(reason, done);
        let is_last = link.withheld.is_empty();
        done.push(Completion::HungUp { peer, reason: reason.clone() });
        self.hung_up += 1;
        if is_last {
            self.bury(peer, done);
        }
        lent
    }

    /// Drops a peer of which nobody has heard.
    pub fn drop_unmet(&mut self, peer: Peer) {
        self.table.release(self.key(peer));
    }

    /// What a peer had sent, and waits for admission, is nobody's any more. Says whether the peer has ended: then its last word
    /// was told, too.
    pub fn forget(&mut self, peer: Peer, done: &mut Vec<Completion>) -> bool {
        let Some(link) = self.find(peer) else { return true };
        link.withheld.clear();
        let (held, has_ended) = (std::mem::take(&mut link.held), link.has_ended());
        self.held -= held;
        if has_ended {
            self.bury(peer, done);
        }
        has_ended
    }

    /// The last word.
    fn bury(&mut self, peer: Peer, done: &mut Vec<Completion>) {
        let Some(link) = self.find(peer) else { return };
        let Standing::Ended(reason) = &link.standing else { return };
        let reason = reason.clone();
        if link.is_withholding {
            self.withholding.retain(|other| *other != peer);
        }
        done.push(Completion::Gone { peer, reason });
        self.hung_up -= 1;
        self.drop_unmet(peer);
    }

    /// Its address may be looked up anew.
    fn unlist(&mut self, peer: Peer) {
        let target = self.find(peer).and_then(|link| link.target.take());
        if let Some(target) = target
            && self.by_target.get(&target) == Some(&peer)
        {
            self.by_target.remove(&target);
        }
    }
}

/// Bytes of memory that a withheld message takes.
fn cost(len: usize) -> u64 {
    (len + size_of::<Message>()) as u64
}
