//! Everything that the contexts of the reference plugin share, behind one lock.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use hg_na::{
    Address, Caps, Completion, Descriptor, Error, Failure, GoneReason, LocalSlice, Message, Op,
    OpId, Peer, Reached, Rejected, RemoteSlice, Returned, Rights, SharedBytes, Token,
};

use super::{
    peer::{CREDITS, LANES, Lane, Link, Outgoing, PeerState, Transfer, finished},
    region::{Key, MemRegion},
    waiter::MemWaiter,
};

/// Messages of one lane that one call of `progress` takes from one peer.
const BATCH: usize = 32;
/// Bytes that are begun between two rounds.
const BEGUN_MAX: u64 = 1 << 20;
/// Shorter transfers are not begun, for tests that want some of either kind.
const BEGUN_MIN: u64 = 16 << 10;
/// Place of the transfers beside the lanes.
const TRANSFERS: usize = 3;

#[derive(Default)]
pub(super) struct Hub {
    state: Mutex<State>,
}

impl Hub {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hub")
    }
}

#[derive(Default)]
pub(super) struct State {
    endpoints: BTreeMap<u64, Endpoint>,
    by_address: HashMap<Address, u64>,
    pub(super) regions: HashMap<Key, Weak<MemRegion>>,
    last_id: u64,
}

/// One context. Its number is never used again: it is the incarnation.
pub(super) struct Endpoint {
    address: Address,
    domain: u64,
    listen: bool,
    waiter: Arc<MemWaiter>,
    caps: Caps,
    slots: Vec<Slot>,
    lookups: HashMap<Address, Peer>,
    pub(super) admission: bool,
    ready: VecDeque<Completion>,
    last_serial: u64,
    /// The last operation of which the flush under way is.
    flush_to: Option<u64>,
    /// Bytes that were begun since the last round.
    begun: u64,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<Box<PeerState>>,
}

impl Endpoint {
    pub(super) fn new(
        address: Address,
        domain: u64,
        listen: bool,
        waiter: Arc<MemWaiter>,
        caps: &Caps,
    ) -> Self {
        Self {
            address,
            domain,
            listen,
            waiter,
            caps: caps.clone(),
            slots: Vec::new(),
            lookups: HashMap::new(),
            admission: true,
            ready: VecDeque::new(),
            last_serial: 0,
            flush_to: None,
            begun: 0,
        }
    }

    fn peer(&mut self, peer: Peer) -> Option<&mut PeerState> {
        let slot = self.slots.get_mut(peer.index() as usize)?;
        (slot.generation == peer.generation()).then_some(slot.peer.as_deref_mut()).flatten()
    }

    fn add(&mut self, state: PeerState) -> Peer {
        let free = self.slots.iter().position(|slot| slot.peer.is_none());
        let place = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[place].peer = Some(Box::new(state));
        let index = u32::try_from(place).expect("fewer than 2^32 peers");
        Peer::new(index, self.slots[place].generation)
    }

    pub(super) fn lookup(&mut self, address: &Address) -> Peer {
        if let Some(known) = self.lookups.get(address).copied()
            && self.peer(known).is_some_and(|peer| !peer.broken())
        {
            return known;
        }
        let peer = self.add(PeerState::new(Some(address.clone()), Link::Idle));
        self.lookups.insert(address.clone(), peer);
        peer
    }

    pub(super) fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.check(&op) {
            return Err(Rejected { op, error });
        }
        self.last_serial += 1;
        let of = op.peer();
        let id = OpId { scope: of.index(), serial: self.last_serial };
        let peer = self.peer(of).expect("checked above");
        peer.wanted = true;
        match op {
            Op::SendUnexpected { message, .. } => {
                let out = Outgoing { id, token, tag: 0, message };
                peer.outgoing[Lane::Unexpected as usize].push_back(out);
            }
            Op::SendControl { message, .. } => {
                let out = Outgoing { id, token, tag: 0, message };
                peer.outgoing[Lane::Control as usize].push_back(out);
            }
            Op::SendExpected { tag, message, .. } => {
                let out = Outgoing { id, token, tag, message };
                peer.outgoing[Lane::Expected as usize].push_back(out);
            }
            Op::RecvExpected { tag, .. } => {
                peer.receives.insert(tag, (id, token));
            }
            Op::Put { local, remote, .. } => {
                let local = Some(local);
                peer.transfers.push_back(Transfer { id, token, put: true, local, remote });
            }
            Op::Get { local, remote, .. } => {
                let local = Some(local);
                peer.transfers.push_back(Transfer { id, token, put: false, local, remote });
            }
            Op::View { remote, .. } => {
                let local = None;
                peer.transfers.push_back(Transfer { id, token, put: false, local, remote });
            }
            _ => unreachable!("`check` refuses kinds that it does not know"),
        }
        Ok(id)
    }

    /// Tells of room at a peer, once for all refusals of what has room now.
    fn tell_room(&mut self, of: Peer) -> bool {
        let depth = self.caps.queue_depth;
        let has_room = |peer: &&mut PeerState| !peer.broken() && peer.has_room(depth);
        let Some(peer) = self.peer(of).filter(has_room) else { return false };
        let lens = peer.outgoing.each_ref().map(VecDeque::len);
        for (refused, len) in
            peer.refused.iter_mut().zip(lens.into_iter().chain([peer.transfers.len()]))
        {
            *refused &= len > depth / 2;
        }
        self.ready.push_back(Completion::Room { peer: of });
        true
    }

    fn check(&mut self, op: &Op) -> Result<(), Error> {
        let (depth, max_control) = (self.caps.queue_depth, self.caps.max_control);
        let (max_unexpected, max_expected) = (self.caps.max_unexpected, self.caps.max_expected);
        let max_transfer = self.caps.max_transfer;
        let peer = self.peer(op.peer()).ok_or(Error::UnknownPeer)?;
        if let Link::Broken(reason) = &peer.link {
            return Err(Error::PeerGone(reason.clone()));
        }
        let lens = peer.outgoing.each_ref().map(VecDeque::len);
        let refused = &mut peer.refused;
        let mut fits = |kind: usize, len: usize| {
            refused[kind] |= len >= depth;
            if len >= depth { Err(Error::Again) } else { Ok(()) }
        };
        let mut send = |message: &Message, max: usize, lane: Lane| {
            let len = message.len();
            if len > max {
                return Err(Error::TooLong { len, max });
            }
            fits(lane as usize, lens[lane as usize])
        };
        match op {
            Op::SendUnexpected { message, .. } => send(message, max_unexpected, Lane::Unexpected),
            Op::SendControl { message, .. } => send(message, max_control, Lane::Control),
            Op::SendExpected { message, .. } => send(message, max_expected, Lane::Expected),
            Op::RecvExpected { tag, .. } if peer.receives.contains_key(tag) => {
                Err(Error::TagInUse(*tag))
            }
            Op::RecvExpected { .. } => Ok(()),
            Op::Put { local, remote, .. } | Op::Get { local, remote, .. } => {
                check_transfer(matches!(op, Op::Put { .. }), local, remote, max_transfer)?;
                fits(TRANSFERS, peer.transfers.len())
            }
            Op::View { .. } => fits(TRANSFERS, peer.transfers.len()),
            _ => Err(Error::Unsupported("this kind of operation")),
        }
    }

    pub(super) fn cancel(&mut self, id: OpId) {
        let Some(slot) = self.slots.get_mut(id.scope as usize) else { return };
        let ended = slot.peer.as_deref_mut().and_then(|peer| peer.cancel(id));
        self.ready.extend(ended);
    }

    pub(super) fn admit(&mut self, of: Peer, open: bool) {
        if let Some(peer) = self.peer(of) {
            peer.admitted = open;
        }
    }

    /// Takes what has arrived from one peer.
    fn take(&mut self, of: Peer) -> usize {
        let admission = self.admission;
        let mut taken = Vec::new();
        let Some(peer) = self.peer(of) else { return 0 };
        let admission = admission && peer.admitted;
        let mut found = 0;
        while found < BATCH
            && let Some((_, message)) = peer.inbox[Lane::Control as usize].pop_front()
        {
            taken.push(Completion::Control { from: of, message });
            found += 1;
        }
        while found < 2 * BATCH
            && let Some((tag, message)) = peer.inbox[Lane::Expected as usize].pop_front()
        {
            taken.extend(peer.arrive(tag, message));
            found += 1;
        }
        let requests = &mut peer.inbox[Lane::Unexpected as usize];
        while found < 3 * BATCH
            && admission
            && let Some((_, message)) = requests.pop_front()
        {
            taken.push(Completion::Unexpected { from: of, message });
            found += 1;
        }
        self.ready.extend(taken);
        found
    }

    /// Tells a hang-up once all but the unexpected messages were taken, and the end once they were, too.
    fn bury(&mut self, of: Peer) -> bool {
        let mut ended = VecDeque::new();
        let Some(peer) = self.peer(of) else { return false };
        let Link::Broken(reason) = &peer.link else { return false };
        let reason = reason.clone();
        if LANES
            .iter()
            .any(|lane| *lane != Lane::Unexpected && !peer.inbox[*lane as usize].is_empty())
        {
            return false;
        }
        peer.fail_all(&reason, &mut ended);
        let moved = !std::mem::replace(&mut peer.has_hung_up, true);
        if moved {
            ended.push_back(Completion::HungUp { peer: of, reason: reason.clone() });
        }
        self.ready.append(&mut ended);
        let peer = self.peer(of).expect("found above");
        if !peer.inbox[Lane::Unexpected as usize].is_empty() {
            return moved;
        }
        if let Some(address) = peer.address.take()
            && self.lookups.get(&address) == Some(&of)
        {
            self.lookups.remove(&address);
        }
        let slot = &mut self.slots[of.index() as usize];
        slot.peer = None;
        slot.generation += 1;
        self.ready.push_back(Completion::Gone { peer: of, reason });
        true
    }

    pub(super) fn flush(&mut self) -> bool {
        let to = *self.flush_to.get_or_insert(self.last_serial);
        let peers = self.slots.iter().filter_map(|slot| slot.peer.as_ref());
        let mut waiting = peers.flat_map(|peer| &peer.outgoing).filter_map(VecDeque::front);
        let is_over = waiting.all(|out| out.id.serial > to);
        if is_over {
            self.flush_to = None;
        }
        is_over
    }

    pub(super) fn connected(&mut self) -> Vec<Peer> {
        let mut peers = self.peers();
        peers
            .retain(|of| self.peer(*of).is_some_and(|peer| matches!(peer.link, Link::Open { .. })));
        peers
    }

    pub(super) fn was_connected(&mut self, of: Peer) -> bool {
        self.peer(of).is_none_or(|peer| !matches!(peer.link, Link::Idle))
    }

    fn peers(&self) -> Vec<Peer> {
        let occupied = |(place, slot): (usize, &Slot)| {
            slot.peer.as_ref()?;
            Some(Peer::new(u32::try_from(place).ok()?, slot.generation))
        };
        self.slots.iter().enumerate().filter_map(occupied).collect()
    }
}

fn check_transfer(
    put: bool,
    local: &LocalSlice,
    remote: &RemoteSlice,
    max: u64,
) -> Result<(), Error> {
    if local.len() != remote.len() {
        let (offset, len, size) = (remote.offset(), remote.len(), local.len());
        return Err(Error::OutOfRange { offset, len, size });
    }
    if local.len() > max {
        let (what, remedy) = ("bytes of one transfer", "split it");
        return Err(Error::Limit { what, limit: max, remedy });
    }
    let region = std::sync::Arc::clone(local.region()) as Arc<dyn std::any::Any + Send + Sync>;
    let region = region
        .downcast::<MemRegion>()
        .map_err(|_| Error::Unsupported("local memory that another plugin registered"))?;
    if !put && !region.writable {
        return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
    }
    Ok(())
}

impl State {
    pub(super) fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn open(&mut self, endpoint: Endpoint) -> Result<u64, Error> {
        if self.by_address.contains_key(&endpoint.address) {
            return Err(Error::AddressInUse(endpoint.address));
        }
        let id = self.fresh_id();
        self.by_address.insert(endpoint.address.clone(), id);
        self.endpoints.insert(id, endpoint);
        Ok(id)
    }

    /// The endpoint of a context that exists.
    pub(super) fn endpoint(&mut self, id: u64) -> &mut Endpoint {
        self.endpoints.get_mut(&id).expect("an endpoint lives as long as its context")
    }

    pub(super) fn close(&mut self, id: u64) {
        let Some(mut endpoint) = self.endpoints.remove(&id) else { return };
        self.by_address.remove(&endpoint.address);
        for peer in endpoint.peers() {
            let link =
                endpoint.peer(peer).map(|peer| std::mem::replace(&mut peer.link, Link::Idle));
            self.break_other_side(link);
        }
    }

    pub(super) fn forget(&mut self, id: u64, of: Peer) {
        let Some(peer) = self.endpoint(id).peer(of) else { return };
        if peer.broken() {
            return;
        }
        peer.inbox.iter_mut().for_each(VecDeque::clear);
        let link = std::mem::replace(&mut peer.link, Link::Broken(GoneReason::Forgotten));
        self.break_other_side(Some(link));
    }

    fn break_other_side(&mut self, link: Option<Link>) {
        let Some(Link::Open { endpoint, peer }) = link else { return };
        let Some(other) = self.endpoints.get_mut(&endpoint) else { return };
        if let Some(state) = other.peer(peer) {
            state.link = Link::Broken(GoneReason::Closed);
            other.waiter.ring();
        }
    }

    pub(super) fn progress(&mut self, id: u64, done: &mut Vec<Completion>) -> bool {
        let mut moved = false;
        self.endpoint(id).begun = 0;
        for peer in self.endpoint(id).peers() {
            moved |= self.connect(id, peer);
            for lane in LANES {
                moved |= self.push(id, peer, lane);
            }
            moved |= self.transfer(id, peer);
            if self.endpoint(id).take(peer) > 0 {
                moved = true;
                self.tell_of_space(id, peer);
            }
            moved |= self.endpoint(id).bury(peer);
            moved |= self.endpoint(id).tell_room(peer);
        }
        let ready = &mut self.endpoint(id).ready;
        moved |= !ready.is_empty();
        done.extend(ready.drain(..));
        moved
    }

    /// Whether `progress` would do anything.
    pub(super) fn has_work(&mut self, id: u64) -> bool {
        if !self.endpoint(id).ready.is_empty() {
            return true;
        }
        self.endpoint(id).peers().into_iter().any(|of| self.peer_has_work(id, of))
    }

    fn peer_has_work(&mut self, id: u64, of: Peer) -> bool {
        if LANES.into_iter().any(|lane| self.can_push(id, of, lane)) {
            return true;
        }
        let endpoint = self.endpoint(id);
        let (admission, depth) = (endpoint.admission, endpoint.caps.queue_depth);
        let Some(peer) = endpoint.peer(of) else { return false };
        let admission = admission && peer.admitted;
        let requests = !peer.inbox[Lane::Unexpected as usize].is_empty();
        // With admission closed a broken connection waits for its untaken requests.
        matches!(peer.link, Link::Idle) && peer.wanted
            || !peer.broken() && peer.has_room(depth)
            || peer.broken() && (!peer.has_hung_up || admission || !requests)
            || !peer.transfers.is_empty()
            || !peer.inbox[Lane::Control as usize].is_empty()
            || !peer.inbox[Lane::Expected as usize].is_empty()
            || admission && requests
    }

    fn connect(&mut self, id: u64, of: Peer) -> bool {
        let Some(peer) = self.endpoint(id).peer(of) else { return false };
        if !matches!(peer.link, Link::Idle) || !peer.wanted {
            return false;
        }
        let address = peer.address.clone();
        let found = address.and_then(|address| self.by_address.get(&address).copied());
        let link = match found.filter(|found| self.endpoints[found].listen) {
            None => Link::Broken(GoneReason::Unreachable(Arc::from("nobody listens there"))),
            Some(target) => {
                let back = PeerState::new(None, Link::Open { endpoint: id, peer: of });
                Link::Open { endpoint: target, peer: self.endpoint(target).add(back) }
            }
        };
        self.endpoint(id).peer(of).expect("found above").link = link;
        true
    }

    /// The other side's inbox, when there is something to put there and space for it.
    fn can_push(&mut self, id: u64, of: Peer, lane: Lane) -> bool {
        let Some(peer) = self.endpoint(id).peer(of) else { return false };
        let Link::Open { endpoint, peer: there } = peer.link else { return false };
        !peer.outgoing[lane as usize].is_empty()
            && self
                .endpoint(endpoint)
                .peer(there)
                .is_some_and(|there| there.inbox[lane as usize].len() < CREDITS)
    }

    fn push(&mut self, id: u64, of: Peer, lane: Lane) -> bool {
        let mut moved = false;
        while self.can_push(id, of, lane) {
            let own = self.endpoint(id);
            let peer = own.peer(of).expect("`can_push` saw it");
            let Link::Open { endpoint, peer: there } = peer.link else { break };
            let Some(out) = peer.outgoing[lane as usize].pop_front() else { break };
            let copy = Message::copied(out.message.as_slice());
            own.ready.push_back(finished(
                out.id,
                out.token,
                Ok(()),
                Returned::Message(out.message),
            ));
            let other = self.endpoint(endpoint);
            let back = other.peer(there).expect("`can_push` saw it");
            back.inbox[lane as usize].push_back((out.tag, copy));
            other.waiter.ring();
            moved = true;
        }
        moved
    }

    /// Rings the other side, which may wait for credits.
    fn tell_of_space(&mut self, id: u64, of: Peer) {
        let Some(peer) = self.endpoint(id).peer(of) else { return };
        let Link::Open { endpoint, .. } = peer.link else { return };
        self.endpoint(endpoint).waiter.ring();
    }

    /// Whether transfers with a peer are begun.
    pub(super) fn moves(&mut self, id: u64, with: Peer) -> bool {
        self.endpoint(id).peer(with).is_some_and(|it| matches!(it.link, Link::Open { .. }))
    }

    /// Whose memory a peer's is, when a transfer of so many bytes may be begun; they count.
    pub(super) fn begin(&mut self, id: u64, of: Peer, len: u64) -> Option<u64> {
        let own = self.endpoint(id);
        let Link::Open { endpoint, .. } = own.peer(of)?.link else { return None };
        if len < BEGUN_MIN || own.begun + len > BEGUN_MAX {
            return None;
        }
        own.begun += len;
        Some(self.endpoint(endpoint).domain)
    }

    fn transfer(&mut self, id: u64, of: Peer) -> bool {
        let Some(peer) = self.endpoint(id).peer(of) else { return false };
        let Link::Open { endpoint, .. } = peer.link else { return false };
        let transfers = std::mem::take(&mut peer.transfers);
        let moved = !transfers.is_empty();
        let domain = self.endpoint(endpoint).domain;
        for transfer in transfers {
            let (op, token) = (transfer.id, transfer.token);
            let failed = |error| Err(Box::new(Failure { error, reached: Reached::Never }));
            let (result, returned) = match &transfer.local {
                Some(local) => match self.copy(domain, local, &transfer) {
                    Ok(()) => (Ok(()), transfer.buffer()),
                    Err(error) => (failed(error), transfer.buffer()),
                },
                None => match self.view(domain, &transfer.remote) {
                    Ok(bytes) => (Ok(()), Returned::View(bytes)),
                    Err(error) => (failed(error), Returned::Nothing),
                },
            };
            self.endpoint(id).ready.push_back(finished(op, token, result, returned));
        }
        moved
    }

    /// A region that grants what is needed.
    pub(super) fn region(
        &self,
        domain: u64,
        remote: &Descriptor,
        needed: Rights,
    ) -> Result<Arc<MemRegion>, Error> {
        let key = Key::try_from(remote.opaque())
            .map_err(|_| Error::BadDescriptor("its plugin part has another length"))?;
        let region = self.regions.get(&key).and_then(Weak::upgrade);
        let region =
            region.filter(|region| region.domain == domain).ok_or(Error::StaleDescriptor)?;
        if !region.rights.contains(needed) {
            return Err(Error::Denied { granted: region.rights, needed });
        }
        Ok(region)
    }

    fn view(&self, domain: u64, remote: &RemoteSlice) -> Result<SharedBytes, Error> {
        let region = self.region(domain, remote.descriptor(), Rights::READ)?;
        region.view()?.slice(remote.offset(), remote.len())
    }

    fn copy(&self, domain: u64, local: &LocalSlice, transfer: &Transfer) -> Result<(), Error> {
        let remote = &transfer.remote;
        let needed = if transfer.put { Rights::WRITE } else { Rights::READ };
        let region = self.region(domain, remote.descriptor(), needed)?;
        let len = usize::try_from(local.len()).expect("max_transfer fits in memory");
        let mut bounce = vec![0; len];
        use hg_na::RegionState as _;
        if transfer.put {
            local.region().read(local.offset(), &mut bounce)?;
            region.write(remote.offset(), &bounce)
        } else {
            region.read(remote.offset(), &mut bounce)?;
            local.region().write(local.offset(), &bounce)
        }
    }
}
