//! What the threads of a shuffle share: the hops, the mail, and what has gone wrong.

mod arrivals;
mod blocked;
mod clock;
mod failing;
mod settle;
pub(crate) mod side;

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use hg::Answer;
use hg_job::NodeMap;
use rustc_hash::FxHashMap;

use self::{
    arrivals::{Arriving, Sorting},
    blocked::Watch,
    failing::Failed,
    settle::Settled,
    side::Side,
};
use crate::{
    Error, Options,
    broadcasts::Broadcasts,
    error::PANICKED,
    hop::{Gone, Hop, Pushed, Shared},
    inbox::{Amount, Chunk},
    linger::Linger,
    lock::{locked, wait},
    mail::{Callback, Delivery, Mail, NotTaken, deliver_all},
    meeting::Meeting,
    message::{EVERYBODY, MESSAGE_MAX, Message},
    overflow::Overflow,
    parent::Parent,
    queue::{Loaded, Queue},
    route::{Came, Next, Routes},
    rpc::{From, Lane, Refused, arrive, watch, why},
    turns::Turn,
};

/// A shuffle.
pub(crate) struct Inner {
    pub(crate) name: String,
    /// How this rank calls itself.
    pub(crate) from: From,
    pub(crate) options: Options,
    pub(crate) routes: Routes,
    pub(crate) side: Arc<Side>,
    /// Origin hops, relay hops, network hops.
    pub(crate) hops: Vec<Hop>,
    pub(crate) table: Table,
    /// Of a message of this rank, by destination.
    pub(crate) first_hops: Vec<u32>,
    pub(crate) mail: Mail,
    /// What callbacks have sent and no queue had room for.
    pub(crate) overflow: Arc<Overflow>,
    /// Looks whether a callback returns.
    pub(crate) watch: Mutex<Watch>,
    /// Batches under way, by lane.
    in_flight: [Arc<AtomicU64>; 3],
    /// Threads that a sender limit holds back, by lane.
    held_back: [AtomicU32; 3],
    /// Where batches that go on are sorted.
    sorting: Mutex<Sorting>,
    /// What each queue of each peer has sent.
    pub(crate) orders: FxHashMap<(u32, Lane), Arriving>,
    /// Answers that end when this shuffle does.
    watchers: Mutex<Watchers>,
    /// Calls of this rank that end when a peer's shuffle does.
    watches: Mutex<u32>,
    watches_changed: Condvar,
    pub(crate) meeting: Meeting,
    pub(crate) failure: Mutex<Failed>,
    /// `failure` has come.
    pub(crate) failed: Condvar,
    pub(crate) is_failed: Arc<AtomicBool>,
    /// All ranks have agreed to end.
    pub(crate) is_parting: AtomicBool,
    is_closed: AtomicBool,
    pub(crate) settled: Settled,
    /// Messages sent by this rank to each one; and of them, what was sent before the last complete `flush_all`.
    pub(crate) sent: Vec<AtomicU64>,
    pub(crate) confirmed: Vec<AtomicU64>,
    pub(crate) broadcasts: Broadcasts,
    /// Copies of broadcasts that were made here.
    pub(crate) copies: AtomicU64,
    pub(crate) linger: Linger,
    is_over: AtomicBool,
}

/// Where the hop of a rank or node is among all hops.
#[derive(Debug)]
pub(crate) struct Table {
    /// By index in the node; `None`: this rank itself.
    pub(crate) origin: Vec<Option<u32>>,
    pub(crate) relay: Vec<Option<u32>>,
    /// By node.
    pub(crate) network: HashMap<u32, u32>,
}

impl Table {
    /// Where the next hop is; `None`: there is none.
    pub(crate) fn hop_of(&self, map: &NodeMap, next: Next) -> Option<u32> {
        let local = |rank| map.local_rank(rank) as usize;
        match next {
            Next::Deliver => None,
            Next::Origin { rank } => self.origin[local(rank)],
            Next::Relay { rank } => self.relay[local(rank)],
            Next::Network { node, .. } => self.network.get(&node).copied(),
        }
    }

    /// Of a message of this rank to each one: which hop, or [`HERE`].
    fn first_hops(&self, routes: &Routes) -> Vec<u32> {
        let map = routes.map();
        let hop = |to| {
            let next = routes.next(Came::FromHere, to).unwrap_or(Next::Deliver);
            self.hop_of(map, next).unwrap_or(HERE)
        };
        (0..map.size()).map(hop).collect()
    }
}

/// Bytes of a batch below which a sleep costs more than its messages.
pub(crate) const YIELD_BELOW: usize = 1 << 10;
/// In place of a hop: none.
pub(crate) const HERE: u32 = u32::MAX;

/// Peers that want to know when this shuffle ends.
enum Watchers {
    Waiting(Vec<Answer<watch>>),
    /// It ends: in good order, or not.
    Told(Result<(), Refused>),
}

impl Inner {
    pub(crate) fn new(
        (name, from): (&str, From),
        options: Options,
        (routes, side): (Routes, Arc<Side>),
        (hops, table): (Vec<Hop>, Table),
        shared: [Shared; 3],
    ) -> Self {
        // Whoever sends to this rank is somebody that this rank sends to, in one lane or another.
        let lane_of = |hop: &Hop| match hop.lane {
            Lane::Network => [Lane::Network; 2],
            Lane::Origin | Lane::Relay => [Lane::Origin, Lane::Relay],
        };
        let lanes = hops.iter().flat_map(|hop| lane_of(hop).map(|lane| (hop.rank, lane)));
        let orders = lanes.map(|lane| (lane, Arriving::new())).collect();
        let counters = || (0..routes.map().size()).map(|_| AtomicU64::new(0)).collect();
        let max = Amount {
            messages: options.deliverq_max as u64,
            bytes: options.deliverq_bytes_max as u64,
        };
        let limits = (max, options.callback_bytes_max as u64, options.lobuftarget);
        let due = (options.deliverq_threshold, options.linger);
        // A wake-up of deliveries costs more than the messages of a short batch.
        let is_short = options.lobuftarget < YIELD_BELOW;
        let how = (side.gives_way() && is_short, options.deliver_inline);
        let mail = Mail::new(limits, due, how);
        let [Shared { is_failed, overflow, .. }, ..] = shared.clone();
        Self {
            name: name.to_owned(),
            from,
            overflow,
            watch: Mutex::default(),
            settled: Settled::default(),
            sent: counters(),
            confirmed: counters(),
            broadcasts: Broadcasts::default(),
            copies: AtomicU64::new(0),
            first_hops: table.first_hops(&routes),
            options,
            routes,
            side,
            hops,
            table,
            mail,
            in_flight: shared.map(|shared| shared.in_flight),
            held_back: Default::default(),
            sorting: Default::default(),
            orders,
            watchers: Mutex::new(Watchers::Waiting(Vec::new())),
            watches: Mutex::new(0),
            watches_changed: Condvar::new(),
            meeting: Meeting::default(),
            failure: Mutex::default(),
            failed: Condvar::new(),
            is_failed,
            is_parting: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            linger: Linger::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// A message of the application. Whether a batch has left with it.
    pub(crate) fn enqueue(&self, to: u32, kind: u32, bytes: &[u8]) -> Result<bool, Error> {
        self.check(bytes)?;
        self.give_way_if()?;
        let message = Message { kind, source: self.routes.me(), to, bytes };
        let Some(hop) = self.first_hop(to)? else {
            return self.push_own(&message, Some(&self.sent[to as usize])).map(|()| false);
        };
        self.wait_for_lane(hop.lane);
        match hop.push(&message, Some(&self.sent[to as usize])) {
            Ok(pushed) => {
                self.after_push(hop, pushed, true);
                Ok(pushed.leaves)
            }
            Err(Gone) => Err(self.error()),
        }
    }

    /// A batch of this rank's messages; waits until it has left the wait queue. A buffer for the next one.
    pub(crate) fn push_batch(&self, hop: &Hop, batch: Loaded) -> Result<Vec<u8>, Error> {
        self.wait_for_lane(hop.lane);
        let pushed = hop.push_batch(batch, &self.sent);
        let (pushed, buffer) = pushed.map_err(|Gone| self.error())?;
        self.after_push(hop, pushed, true);
        Ok(buffer)
    }

    /// A batch of this rank's messages to itself. `Err`: it was counted, and dropped.
    pub(crate) fn push_own_batch(&self, batch: Chunk) -> Result<(), Error> {
        let sent = &self.sent[self.routes.me() as usize];
        self.mail.push_own_batch(batch, sent).map_err(|Gone| self.error())
    }

    /// A buffer for such a batch, where there is room for one.
    pub(crate) fn own_buffer(&self) -> Result<Vec<u8>, Error> {
        self.mail.own_buffer().ok_or_else(|| self.own_is_full())
    }

    /// The same without waiting.
    pub(crate) fn try_enqueue(&self, to: u32, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        self.check(bytes)?;
        if self.overflow.bytes() > 0 && !self.overflow.is_callback() {
            return Err(Error::Again);
        }
        let message = Message { kind, source: self.routes.me(), to, bytes };
        let Some(hop) = self.first_hop(to)? else {
            let lingers = self.mail.try_push_own(&message, &self.sent[to as usize]);
            self.arm_if(lingers.ok_or(Error::Again)?);
            return Ok(());
        };
        match hop.try_push(&message, &self.sent[to as usize]) {
            Ok(Some(pushed)) => {
                self.after_push(hop, pushed, false);
                Ok(())
            }
            Ok(None) => Err(Error::Again),
            Err(Gone) => Err(self.error()),
        }
    }

    /// One copy to each other rank of this node, and to each node that this rank represents its own towards; those
    /// pass it on.
    pub(crate) fn broadcast(
        &self,
        kind: u32,
        bytes: &[u8],
        include_self: bool,
    ) -> Result<(), Error> {
        self.check(bytes)?;
        self.give_way_if()?;
        let message = Message { kind, source: self.routes.me(), to: EVERYBODY, bytes };
        let _under_way = self.broadcasts.begin();
        for hop in self.hops.iter().filter(|hop| hop.lane != Lane::Relay) {
            self.wait_for_lane(hop.lane);
            let pushed = hop.push(&message, None).map_err(|Gone| self.error())?;
            self.copies.fetch_add(1, Ordering::Relaxed);
            self.after_push(hop, pushed, true);
        }
        if include_self {
            self.push_own(&message, None)?;
            self.copies.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether messages are taken.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_failed.load(Ordering::Relaxed) || self.is_closed.load(Ordering::Relaxed) {
            return Err(self.error());
        }
        Ok(())
    }

    fn check(&self, bytes: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        if bytes.len() > MESSAGE_MAX {
            return Err(Error::TooLong { len: bytes.len(), max: MESSAGE_MAX });
        }
        Ok(())
    }

    fn push_own(&self, message: &Message<'_>, count: Option<&AtomicU64>) -> Result<(), Error> {
        let lingers = self.mail.push_own(message, count).map_err(|not_taken| match not_taken {
            NotTaken::Gone => self.error(),
            NotTaken::Full => self.own_is_full(),
        })?;
        self.arm_if(lingers);
        Ok(())
    }

    fn own_is_full(&self) -> Error {
        let why = "they are for this rank itself, which takes none in before its callback returns";
        let bytes = self.options.callback_bytes_max as u64;
        Error::CallbackFull { bytes, why: why.to_owned() }
    }

    /// Gives way to what callbacks have sent, where anything of that waits.
    #[inline]
    pub(crate) fn give_way_if(&self) -> Result<(), Error> {
        if self.overflow.bytes() > 0 { self.give_way() } else { Ok(()) }
    }

    /// What was taken in a callback goes in any case; others let what callbacks have sent go first.
    pub(crate) fn let_callbacks_go_first(&self) {
        if self.overflow.bytes() > 0 && !self.overflow.is_callback() {
            self.call_back();
            self.overflow.wait_until_empty();
        }
    }

    /// Messages of callbacks wait for room: those of others wait for them, and a callback's own if they are too many.
    #[cold]
    fn give_way(&self) -> Result<(), Error> {
        // The engine's thread makes the progress meanwhile.
        if !self.overflow.is_callback() {
            self.let_callbacks_go_first();
        } else if self.overflow.bytes() > self.options.callback_bytes_max as u64 {
            self.call_back();
            self.overflow.wait_for_room().map_err(|(waited, bytes)| Error::CallbackFull {
                bytes,
                why: match waited {
                    Duration::ZERO => "a callback that is called inline never waits".to_owned(),
                    waited => format!("none of them has left for {} s", waited.as_secs_f64()),
                },
            })?;
        }
        Ok(())
    }

    #[inline]
    fn arm_if(&self, lingers: bool) {
        if lingers {
            self.linger.arm();
        }
    }

    #[inline]
    pub(crate) fn after_push(&self, hop: &Hop, pushed: Pushed, may_wait: bool) {
        self.arm_if(pushed.lingers);
        if pushed.waits && may_wait {
            self.wait_at(hop, |queue| queue.has_left(pushed.number));
        }
    }

    /// Deliveries are inline, by this callback.
    pub(crate) fn begin_inline(
        self: &Arc<Self>,
        deliver: impl FnMut(Delivery<'_>) + Send + 'static,
    ) {
        let (weak, me) = (Arc::downgrade(self), self.routes.me());
        let mut deliver = Some(deliver);
        self.mail.begin_inline(Callback::new(move |bytes, delivered| {
            let Some(inner) = weak.upgrade() else { return false };
            let _inside = inner.overflow.enter();
            let deliver_all = |deliver| deliver_all(bytes, me, deliver, delivered);
            let is_well = deliver.as_mut().is_some_and(deliver_all);
            if !is_well {
                inner.fail_and_tell(me, None, PANICKED.to_owned());
                // Inside: it may have the last handle.
                deliver = None;
            }
            is_well
        }));
    }

    /// What waits for others is refused in a callback: they may wait for what it keeps.
    pub(crate) fn refuse_in_callback(&self) -> Result<(), Error> {
        if self.overflow.is_callback() { Err(Error::Closed) } else { Ok(()) }
    }

    /// A thread that sends has sent a batch: takes what has come meanwhile, so that nobody is woken for it.
    pub(crate) fn help_along(&self) {
        if self.overflow.is_callback() {
            return;
        }
        if let Some(_turn) = self.help() {
            self.side.poll(self);
        }
    }

    /// Waits until a queue is so, or the shuffle has failed; makes progress meanwhile, unless another thread does.
    pub(crate) fn wait_at(&self, hop: &Hop, is_over: impl FnMut(&Queue<Parent>) -> bool) {
        let Some(_turn) = self.help() else {
            let _sleeper = self.side.turns.sleep();
            return hop.wait_for(is_over);
        };
        hop.wait_helping(is_over, || self.side.turn(self));
    }

    /// Begins to make the progress; `None`: another thread does, which is not the engine's own.
    fn help(&self) -> Option<Turn<'_>> {
        self.side.turns.help(|| self.side.engine.interrupt_progress())
    }

    /// A thread begins to wait for something that it makes no progress towards: the engine's own does.
    pub(crate) fn call_back(&self) {
        self.side.turns.call_back();
    }

    /// The sender limits hold back messages of the application, not those that are passed on.
    fn wait_for_lane(&self, lane: Lane) {
        let limit = match lane {
            Lane::Origin => self.options.localsenderlimit,
            Lane::Network => self.options.remotesenderlimit,
            Lane::Relay => 0,
        };
        if limit == 0 || self.overflow.is_callback() {
            return;
        }
        let is_over = || self.in_flight[lane as usize].load(Ordering::SeqCst) >= u64::from(limit);
        if !is_over() {
            return;
        }
        // SeqCst: either the count is seen to go down here, or `collect` sees that it is waited for.
        self.held_back[lane as usize].fetch_add(1, Ordering::SeqCst);
        while is_over() && !self.is_failed() && !self.is_closed() {
            // Any acknowledgement of this lane makes room; waited for is a hop that has something under way.
            for hop in self.hops.iter().filter(|hop| hop.lane == lane) {
                let mut before = 0;
                if hop.is(|queue| {
                    before = queue.in_flight();
                    before > 0
                }) {
                    self.wait_at(hop, |queue| {
                        queue.is_failed() || queue.in_flight() < before || !is_over()
                    });
                    break;
                }
            }
        }
        self.held_back[lane as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// Where a message of this rank goes; `None`: it stays here.
    #[inline]
    fn first_hop(&self, to: u32) -> Result<Option<&Hop>, Error> {
        match self.first_hops.get(to as usize) {
            Some(&HERE) => Ok(None),
            Some(hop) => Ok(self.hops.get(*hop as usize)),
            None => Err(Error::NoSuchRank { rank: to, size: self.routes.map().size() }),
        }
    }

    pub(crate) fn hop_of(&self, next: Next) -> Option<&Hop> {
        let index = self.table.hop_of(self.routes.map(), next);
        index.map(|index| &self.hops[index as usize])
    }

    /// Takes the answers of a hop.
    pub(crate) fn collect(&self, hop: &Hop) {
        let (lingers, ended) = hop.collect();
        if lingers {
            self.linger.arm();
        }
        if self.held_back[hop.lane as usize].load(Ordering::SeqCst) > 0 {
            // They wait at any hop of this lane.
            self.hops.iter().filter(|other| other.lane == hop.lane).for_each(Hop::wake_waiters);
        }
        if let Err(error) = ended {
            self.fail_and_tell(hop.rank, Some(hop.lane), why(&error));
        }
    }

    /// One rank of this node, or a representative that passes another node on, has come to the meeting.
    pub(crate) async fn meet(&self) -> Result<(), Gone> {
        let (map, node) = (self.routes.map(), self.routes.node());
        if map.local_rank(self.routes.me()) > 0 {
            return self.call_arrive(self.table.origin[0]).await;
        }
        let others = if node == 0 { map.nodes() - 1 } else { 0 };
        let arrival = self.meeting.arrive(map.local_size(self.routes.me()) + others);
        if !arrival.is_last {
            return self.meeting.ended(arrival).await;
        }
        if node != 0 {
            self.call_arrive(self.table.network.get(&0).copied()).await?;
        }
        self.meeting.end();
        Ok(())
    }

    async fn call_arrive(&self, hop: Option<u32>) -> Result<(), Gone> {
        let hop = &self.hops[hop.ok_or(Gone)? as usize];
        let (engine, peer) = hop.ends();
        engine.call(arrive, peer, (hop.from,)).await.map_err(|_| Gone)
    }

    /// The threads have nothing left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// A peer wants to know when this shuffle ends.
    pub(crate) fn watched(&self, answer: Answer<watch>) {
        match &mut *locked(&self.watchers) {
            Watchers::Waiting(watchers) => watchers.push(answer),
            Watchers::Told(how) => answer.send(*how),
        }
    }

    pub(crate) fn note_watch_begun(&self) {
        *locked(&self.watches) += 1;
    }

    pub(crate) fn note_watch_ended(&self) {
        *locked(&self.watches) -= 1;
        self.watches_changed.notify_all();
    }

    /// Every rank has come to the end: takes leave of those that this one is connected to, and waits until they have
    /// done so, too. That one of them is gone is no failure any more.
    pub(crate) fn part(&self) {
        self.is_parting.store(true, Ordering::SeqCst);
        self.release_watchers(true);
        let mut watches = locked(&self.watches);
        while *watches > 0 {
            watches = wait(&self.watches_changed, watches);
        }
    }

    /// Tells those who watch that this shuffle ends.
    pub(crate) fn release_watchers(&self, in_order: bool) {
        let how = if in_order { Ok(()) } else { Err(Refused::Closed) };
        let mut state = locked(&self.watchers);
        let Watchers::Waiting(watchers) = &mut *state else { return };
        let watchers = std::mem::take(watchers);
        // Those that come later are told the same.
        *state = Watchers::Told(how);
        drop(state);
        watchers.into_iter().for_each(|answer| answer.send(how));
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Takes no more messages of the application, nor of others.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.overflow.end();
    }

    /// What this rank has sent, for [`Inner::confirm`].
    pub(crate) fn sent_so_far(&self) -> (Vec<u64>, u64) {
        let sent = self.sent.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (sent, self.broadcasts.over())
    }

    /// So much of it has arrived, everywhere.
    pub(crate) fn confirm(&self, (sent, broadcasts): &(Vec<u64>, u64)) {
        for (confirmed, sent) in self.confirmed.iter().zip(sent) {
            confirmed.store(*sent, Ordering::Relaxed);
        }
        self.broadcasts.confirm(*broadcasts);
    }

    /// Messages taken in from a rank's queue of this kind.
    pub(crate) fn received(&self, from: (u32, Lane)) -> u64 {
        self.orders.get(&from).map_or(0, Arriving::taken)
    }
}
