//! The deliberately broken layers: each breaks one sentence of the contract and nothing else.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use hg_na::{
    Address, Begun, Completion, Context, Descriptor, Domain, Done, Error, Exchange, Exchanged,
    Failure, GoneReason, Memory, Message, Op, OpId, Peer, Reached, Region, Rejected, Returned,
    Rights, Tag, Token, Waiter,
};
use hg_na_conformance::layer::{Layer, Layers};

use crate::kind::Kind;

use crate::{
    regions::{LeakyRegion, unwrapped},
    rooms::Rooms,
    views,
    waiters::{Deaf, Restless, Unmoved},
};

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    LosesCompletions,
    DuplicatesCompletions,
    KeepsQuietFailures,
    EndsReceivesBeforeSends,
    MixesTokensUp,
    ReordersMessages,
    CutsLongMessages,
    IgnoresCancel,
    NeverReportsDeath,
    ReportsDeathOnlyWhenAsked,
    ReportsDeathTwice,
    ReportsDeathBeforeData,
    ReportsDeathBeforeOperations,
    ReusesHandles,
    SkipsBoundsCheck,
    SkipsRightsCheck,
    SkipsFreshnessCheck,
    CompletesPutsEarly,
    SleepsWithoutRecheck,
    NeverSleepsSoundly,
    IgnoresWake,
    SleepsOnWhenPosting,
    HidesItsProgress,
    MatchesLateReceives,
    DeliversLateAnswers,
    TakesTagsTwice,
    SwallowsRefused,
    KeepsVectors,
    BlocksAnswersBehindRequests,
    IgnoresAdmission,
    IgnoresAdmissionOfOne,
    ShutsAllOut,
    SpinsOverWithheld,
    NeverHangsUp,
    HangsUpTwice,
    HangsUpLate,
    HangsUpOtherwise,
    HangsUpBeforeOperations,
    HangsUpBeforeControls,
    BuriesWhatIsWithheld,
    PostsAfterHangUps,
    QueuesWithoutBound,
    BlocksWhenFull,
    FadesViews,
    HidesSlices,
    ExchangesWithoutReceives,
    ExchangesByHalves,
    FetchesNothing,
    NeverTellsRoom,
    TellsRoomAtOnce,
    TellsRoomTwice,
    TellsRoomForEachRefusal,
    TellsRoomAfterHangUps,
}

/// Makes broken layers over the reference plugin.
#[derive(Debug)]
pub(crate) struct Broken {
    flaw: Flaw,
    shared: Arc<Shared>,
}

/// What the layers of one broken plugin know together.
#[derive(Debug, Default)]
struct Shared {
    /// True sizes of regions, by the plugin's part of their descriptors.
    sizes: Mutex<HashMap<Vec<u8>, u64>>,
    /// Expected messages that were sent.
    sent: Mutex<HashMap<Tag, Vec<u8>>>,
    /// Regions that stay registered behind their owner's back.
    leaked: Arc<Mutex<Vec<Region>>>,
}

impl Shared {
    /// A message that was sent before its receive.
    fn early(&self, tag: Tag) -> Option<Vec<u8>> {
        self.sent.lock().expect("nobody panics with this lock").remove(&tag)
    }
}

impl Broken {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, shared: Arc::default() }
    }
}

impl Layers for Broken {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(BrokenLayer {
            flaw: self.flaw,
            shared: Arc::clone(&self.shared),
            count: 0,
            requests: HashSet::new(),
            receives: HashMap::new(),
            ghosts: HashMap::new(),
            late: HashMap::new(),
            rooms: Rooms::default(),
            extra: VecDeque::new(),
            overflow: VecDeque::new(),
            aliases: HashMap::new(),
            deaths: Vec::new(),
            shut: HashSet::new(),
            asleep: false,
            posted: Arc::default(),
        })
    }

    fn register(
        &self,
        inner: &dyn Domain,
        memory: Memory,
        rights: Rights,
    ) -> Result<Region, Error> {
        let rights = match self.flaw {
            Flaw::SkipsRightsCheck if memory.writable() => Rights::all(),
            _ => rights,
        };
        let region = inner.register(memory, rights)?;
        let mut sizes = self.shared.sizes.lock().expect("nobody panics with this lock");
        sizes.insert(region.descriptor().opaque().to_vec(), region.len());
        if self.flaw == Flaw::SkipsFreshnessCheck {
            return Ok(LeakyRegion::cover(region, Arc::clone(&self.shared.leaked)));
        }
        Ok(region)
    }
}

#[derive(Debug)]
struct BrokenLayer {
    flaw: Flaw,
    shared: Arc<Shared>,
    count: u64,
    /// Unexpected messages that have not completed.
    requests: HashSet<OpId>,
    receives: HashMap<OpId, (Peer, Tag, Token)>,
    /// Cancelled receives that are still posted.
    ghosts: HashMap<OpId, (Peer, Tag)>,
    late: HashMap<(Peer, Tag), Message>,
    rooms: Rooms,
    /// Completions that this layer makes up.
    extra: VecDeque<Completion>,
    /// Operations that were accepted and not posted.
    overflow: VecDeque<(Token, Op)>,
    /// The true handle of each place.
    aliases: HashMap<u32, Peer>,
    deaths: Vec<Completion>,
    /// Who is not admitted; `None`: nobody is.
    shut: HashSet<Option<Peer>>,
    /// Between a yes of `may_sleep` and the next progress.
    asleep: bool,
    /// Something was posted in that time.
    posted: Arc<AtomicBool>,
}

impl BrokenLayer {
    /// An id of this layer's own.
    fn own_id(&mut self) -> OpId {
        self.count += 1;
        OpId { scope: u32::MAX - 7, serial: self.count }
    }

    fn every(&mut self, nth: u64) -> bool {
        self.count += 1;
        self.count.is_multiple_of(nth)
    }

    fn alias(&mut self, peer: Peer) -> Peer {
        if self.flaw != Flaw::ReusesHandles {
            return peer;
        }
        self.aliases.insert(peer.index(), peer);
        Peer::new(peer.index(), 0)
    }

    fn truth(&self, peer: Peer) -> Peer {
        self.aliases.get(&peer.index()).copied().unwrap_or(peer)
    }

    /// What this flaw makes of an operation before the plugin sees it.
    fn twisted(&self, op: Op) -> Op {
        match (self.flaw, op) {
            (Flaw::ReusesHandles, Op::SendUnexpected { to, message }) => {
                Op::SendUnexpected { to: self.truth(to), message }
            }
            (Flaw::CutsLongMessages, Op::SendUnexpected { to, mut message }) => {
                message.truncate(message.len().min(4000));
                Op::SendUnexpected { to, message }
            }
            (Flaw::SkipsBoundsCheck, Op::Put { to, local, remote }) => {
                Op::Put { to, local, remote: self.clamped(remote) }
            }
            (Flaw::SkipsBoundsCheck, Op::Get { from, local, remote }) => {
                Op::Get { from, local, remote: self.clamped(remote) }
            }
            (Flaw::SkipsFreshnessCheck, Op::Put { to, local, remote }) => {
                Op::Put { to, local: unwrapped(&local), remote }
            }
            (Flaw::SkipsFreshnessCheck, Op::Get { from, local, remote }) => {
                Op::Get { from, local: unwrapped(&local), remote }
            }
            (Flaw::MatchesLateReceives, Op::SendExpected { to, tag, message }) => {
                let mut sent = self.shared.sent.lock().expect("nobody panics with this lock");
                sent.insert(tag, message.as_slice().to_vec());
                Op::SendExpected { to, tag, message }
            }
            (_, op) => op,
        }
    }

    fn shut(&mut self, whom: Option<Peer>, open: bool) {
        if open {
            self.shut.remove(&whom);
        } else {
            self.shut.insert(whom);
        }
    }

    /// Before anything whose wake-up one flaw swallows.
    fn posted_asleep(&self) {
        // Relaxed: see `Unmoved`.
        self.posted.store(self.asleep, Ordering::Relaxed);
    }

    fn clamped(&self, remote: hg_na::RemoteSlice) -> hg_na::RemoteSlice {
        let opaque = remote.descriptor().opaque();
        let Some(size) =
            self.shared.sizes.lock().expect("nobody panics with this lock").get(opaque).copied()
        else {
            return remote;
        };
        let offset = remote.offset().min(size.saturating_sub(remote.len()));
        let honest = Descriptor::new(size, Rights::all(), opaque);
        honest.slice(offset, remote.len()).unwrap_or(remote)
    }

    fn accepted(&mut self, id: OpId, token: Token, kind: &Kind) {
        match *kind {
            Kind::Request => drop(self.requests.insert(id)),
            Kind::Receive(peer, tag) => drop(self.receives.insert(id, (peer, tag, token))),
            Kind::Put | Kind::Other => {}
        }
    }

    fn make_up(
        &mut self,
        id: OpId,
        token: Token,
        result: Result<(), Box<Failure>>,
        back: Returned,
    ) {
        self.extra.push_back(Completion::Done(Done { id, token, result, returned: back }));
    }

    /// What becomes of a refused operation.
    fn refused(&mut self, token: Token, rejected: Rejected) -> Result<OpId, Rejected> {
        self.extra.extend(self.rooms.refused(self.flaw, &rejected));
        match (self.flaw, &rejected.error, rejected.op) {
            (Flaw::SwallowsRefused, Error::TooLong { .. }, Op::SendUnexpected { to, .. }) => {
                let op = Op::SendUnexpected { to, message: Message::inline(0) };
                Err(Rejected { op, error: rejected.error })
            }
            (Flaw::QueuesWithoutBound, Error::Again, op) => {
                self.overflow.push_back((token, op));
                Ok(self.own_id())
            }
            (Flaw::TakesTagsTwice, Error::TagInUse(_), _) => Ok(self.own_id()),
            (Flaw::BlocksWhenFull, Error::Again, _) => loop {
                std::thread::park();
            },
            (Flaw::PostsAfterHangUps, Error::PeerGone(_), _) => Ok(self.own_id()),
            (_, _, op) => Err(Rejected { op, error: rejected.error }),
        }
    }

    fn twist_batch(&mut self, batch: Vec<Completion>, done: &mut Vec<Completion>) {
        for completion in batch {
            self.twist(completion, done);
        }
        let is_gone = |completion: &Completion| matches!(completion, Completion::Gone { .. });
        let is_done = |completion: &Completion| matches!(completion, Completion::Done(_));
        let is_end = |one: &Completion| is_gone(one) || matches!(one, Completion::HungUp { .. });
        let is_message = |completion: &Completion| !is_end(completion) && !is_done(completion);
        match self.flaw {
            Flaw::ReordersMessages => {
                let places: Vec<usize> =
                    (0..done.len()).filter(|at| is_message(&done[*at])).collect();
                if let [first, .., last] = places[..] {
                    done.swap(first, last);
                }
            }
            // A stable sort: what is false stays in front.
            Flaw::ReportsDeathBeforeData => {
                done.sort_by_key(|one| !is_end(one));
                done.sort_by_key(|one| is_message(one));
            }
            Flaw::HangsUpBeforeControls => {
                done.sort_by_key(|one| matches!(one, Completion::Control { .. }));
            }
            Flaw::HangsUpBeforeOperations => {
                done.sort_by_key(|one| !matches!(one, Completion::HungUp { .. }));
            }
            Flaw::EndsReceivesBeforeSends => done.sort_by_key(|one| match one {
                Completion::Done(done) => !matches!(done.returned, Returned::Nothing),
                _ => true,
            }),
            Flaw::ReportsDeathBeforeOperations => done.sort_by_key(is_done),
            _ => {}
        }
    }

    fn twist(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        match completion {
            Completion::Done(ended) => self.twist_done(ended, done),
            Completion::HungUp { peer, reason } => self.twist_hang_up(peer, reason, done),
            Completion::Gone { peer, reason } => match self.flaw {
                Flaw::NeverReportsDeath | Flaw::BuriesWhatIsWithheld => {}
                Flaw::HangsUpLate => {
                    done.push(Completion::HungUp { peer, reason: reason.clone() });
                    done.push(Completion::Gone { peer, reason });
                }
                Flaw::ReportsDeathOnlyWhenAsked => {
                    self.deaths.push(Completion::Gone { peer, reason });
                }
                Flaw::ReportsDeathTwice => {
                    done.push(Completion::Gone { peer, reason: reason.clone() });
                    done.push(Completion::Gone { peer, reason });
                }
                _ => {
                    let peer = self.alias(peer);
                    done.push(Completion::Gone { peer, reason });
                }
            },
            Completion::Room { peer } => done.extend(self.rooms.told(self.flaw, peer)),
            Completion::Unexpected { from, message } => {
                done.push(Completion::Unexpected { from: self.alias(from), message });
            }
            other => done.push(other),
        }
    }

    fn twist_hang_up(&mut self, peer: Peer, reason: GoneReason, done: &mut Vec<Completion>) {
        let alias = self.alias(peer);
        let told = |reason| Completion::HungUp { peer: alias, reason };
        match self.flaw {
            Flaw::NeverHangsUp | Flaw::HangsUpLate => {}
            Flaw::HangsUpTwice => done.extend([told(reason.clone()), told(reason)]),
            Flaw::HangsUpOtherwise => done.push(told(GoneReason::Refused(Arc::from("otherwise")))),
            Flaw::BuriesWhatIsWithheld => {
                done.push(told(reason.clone()));
                done.push(Completion::Gone { peer, reason });
            }
            _ => done.push(told(reason)),
        }
        done.extend(self.rooms.hung_up(self.flaw, peer));
    }

    fn twist_done(&mut self, mut ended: Done, done: &mut Vec<Completion>) {
        self.requests.remove(&ended.id);
        self.receives.remove(&ended.id);
        if let Some(key) = self.ghosts.remove(&ended.id) {
            if let Returned::Message(message) = ended.returned {
                self.late.insert(key, message);
            }
            return;
        }
        if let Returned::View(bytes) = ended.returned {
            ended.returned = Returned::View(views::twisted(self.flaw, bytes));
        }
        let tenth = self.every(10);
        match self.flaw {
            Flaw::LosesCompletions if tenth => return,
            Flaw::DuplicatesCompletions if tenth => {
                let (id, token, result) = (ended.id, ended.token, ended.result.clone());
                let twin = Done { id, token, result, returned: Returned::Nothing };
                done.push(Completion::Done(ended));
                done.push(Completion::Done(twin));
                return;
            }
            Flaw::KeepsQuietFailures if ended.token & hg_na::QUIET != 0 => return,
            Flaw::MixesTokensUp => ended.token += 1,
            Flaw::KeepsVectors => {
                if let Returned::Message(message) = &ended.returned {
                    ended.returned = Returned::Message(Message::from(message.as_slice().to_vec()));
                }
            }
            _ => {}
        }
        // A put that this layer has completed already.
        if self.flaw == Flaw::CompletesPutsEarly && matches!(ended.returned, Returned::Slice(_)) {
            return;
        }
        done.push(Completion::Done(ended));
    }
}

impl Layer for BrokenLayer {
    fn exchange(
        &mut self,
        inner: &mut dyn Context,
        exchange: &Exchange,
        message: &mut Message,
    ) -> Option<Exchanged> {
        let by_halves = match self.flaw {
            Flaw::ExchangesWithoutReceives => false,
            Flaw::ExchangesByHalves => true,
            _ => return None,
        };
        message.slot()?;
        let request =
            Op::SendUnexpected { to: exchange.to, message: Message::copied(message.as_slice()) };
        let send = inner.post(exchange.send, request).ok()?;
        let receive = if by_halves {
            // Too late to say that it was not taken.
            let receive = Op::RecvExpected { from: exchange.to, tag: exchange.tag };
            inner.post(exchange.receive, receive).ok()?
        } else {
            self.own_id()
        };
        Some(Exchanged { send, receive })
    }

    fn fetch<'into>(
        &mut self,
        _: &mut dyn Context,
        _: Peer,
        _: (&Descriptor, u64),
        _: &'into mut [u8],
        _: bool,
    ) -> Begun<'into> {
        if self.flaw == Flaw::FetchesNothing { Begun::Over } else { Begun::No }
    }

    fn lookup(&mut self, inner: &mut dyn Context, address: &Address) -> Result<Peer, Error> {
        let peer = inner.lookup(address)?;
        Ok(self.alias(peer))
    }

    fn forget(&mut self, inner: &mut dyn Context, peer: Peer) {
        self.posted_asleep();
        inner.forget(self.truth(peer));
    }

    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.posted_asleep();
        let kind = Kind::of(&op);
        if let (Flaw::ReportsDeathOnlyWhenAsked, false) = (self.flaw, self.deaths.is_empty()) {
            self.extra.extend(self.deaths.drain(..));
        }
        if self.flaw == Flaw::BlocksAnswersBehindRequests
            && matches!(op, Op::SendExpected { .. } | Op::SendControl { .. })
            && !self.requests.is_empty()
        {
            return Err(Rejected { op, error: Error::Again });
        }
        if let (Flaw::DeliversLateAnswers, Kind::Receive(peer, tag)) = (self.flaw, &kind)
            && let Some(message) = self.late.remove(&(*peer, *tag))
        {
            let id = self.own_id();
            self.make_up(id, token, Ok(()), Returned::Message(message));
            return Ok(id);
        }
        if let (Flaw::MatchesLateReceives, Kind::Receive(_, tag)) = (self.flaw, &kind)
            && let Some(bytes) = self.shared.early(*tag)
        {
            let id = self.own_id();
            self.make_up(id, token, Ok(()), Returned::Message(Message::from(bytes)));
            return Ok(id);
        }
        if let (Flaw::CompletesPutsEarly, Op::Put { local, .. }) = (self.flaw, &op) {
            let (id, local) = (self.own_id(), local.clone());
            self.make_up(id, token, Ok(()), Returned::Slice(local));
            self.overflow.push_back((token, op));
            return Ok(id);
        }
        match inner.post(token, self.twisted(op)) {
            Ok(id) => {
                self.accepted(id, token, &kind);
                Ok(id)
            }
            Err(rejected) => self.refused(token, rejected),
        }
    }

    fn cancel(&mut self, inner: &mut dyn Context, id: OpId) {
        self.posted_asleep();
        match self.flaw {
            Flaw::IgnoresCancel => {}
            Flaw::DeliversLateAnswers => {
                if let Some((peer, tag, token)) = self.receives.remove(&id) {
                    self.ghosts.insert(id, (peer, tag));
                    let failure =
                        Box::new(Failure { error: Error::Cancelled, reached: Reached::Unknown });
                    self.make_up(id, token, Err(failure), Returned::Nothing);
                }
            }
            _ => inner.cancel(id),
        }
    }

    fn set_admission(&mut self, inner: &mut dyn Context, open: bool) {
        self.shut(None, open);
        if self.flaw != Flaw::IgnoresAdmission {
            inner.set_admission(open);
        }
    }

    fn set_admission_of(&mut self, inner: &mut dyn Context, peer: Peer, open: bool) {
        self.shut(Some(peer), open);
        match self.flaw {
            Flaw::IgnoresAdmissionOfOne => {}
            Flaw::ShutsAllOut => inner.set_admission(open),
            _ => inner.set_admission_of(peer, open),
        }
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        self.asleep = false;
        // Relaxed: nobody waits while progress is made.
        self.posted.store(false, Ordering::Relaxed);
        let mut batch = Vec::new();
        let mut found = inner.progress(now, &mut batch)?;
        self.twist_batch(batch, done);
        found |= !self.extra.is_empty();
        let made_up = !self.extra.is_empty();
        done.extend(self.extra.drain(..));
        // Puts wait until their early completions were seen.
        let waits = self.flaw == Flaw::CompletesPutsEarly && made_up;
        if !waits
            && let Some((token, op)) = self.overflow.pop_front()
            && let Err(rejected) = inner.post(token, op)
        {
            self.overflow.push_front((token, rejected.op));
        }
        Ok(found && self.flaw != Flaw::HidesItsProgress)
    }

    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        let spins = self.flaw == Flaw::SpinsOverWithheld && !self.shut.is_empty();
        self.asleep = self.flaw == Flaw::SleepsWithoutRecheck || !spins && inner.may_sleep();
        self.asleep
    }

    fn waiter(&self, inner: &dyn Context) -> Arc<dyn Waiter> {
        match self.flaw {
            Flaw::NeverSleepsSoundly => Arc::new(Restless),
            Flaw::IgnoresWake => Arc::new(Deaf(inner.waiter())),
            Flaw::SleepsOnWhenPosting => {
                let posted = Arc::clone(&self.posted);
                Arc::new(Unmoved { inner: inner.waiter(), posted })
            }
            _ => inner.waiter(),
        }
    }
}
