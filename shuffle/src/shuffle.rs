//! The shuffle itself: how it comes to be, what can be done with it, and how it ends.

use std::{
    collections::BTreeMap,
    fmt,
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hg_job::NodeMap;

use crate::{
    Account, Delivery, Error, Options, Sender,
    error::PANICKED,
    hop::{Hop, Shared},
    inner::side::{Side, block_on},
    inner::{Inner, Table, YIELD_BELOW},
    message::HEAD,
    overflow::Overflow,
    queue::Queue,
    route::Routes,
    rpc::{From, Lane, arrive, watch, why},
    samples::Samples,
    secret::Secret,
    stats::Statistics,
    transport::{self, Transport},
};

/// Who the ranks of a job are, and how they exchange a few bytes before they are connected.
pub trait Group {
    /// This rank.
    fn rank(&self) -> u32;
    /// Which rank runs on which node.
    fn map(&self) -> Arc<NodeMap>;
    /// All get the bytes that rank 0 gives. Collective.
    ///
    /// # Errors
    /// A sentence that says what went wrong.
    fn share(&self, own: &[u8]) -> Result<Vec<u8>, String>;
    /// Gives bytes to some ranks, and gets theirs, by rank; they give them to this one, too. Ends when theirs have come.
    ///
    /// # Errors
    /// A sentence that says what went wrong.
    fn exchange(&self, peers: &[u32], own: &[u8]) -> Result<BTreeMap<u32, Arc<[u8]>>, String>;
    /// Waits until all ranks have called this. Collective.
    ///
    /// # Errors
    /// A sentence that says what went wrong.
    fn barrier(&self) -> Result<(), String>;
}

/// All-to-all messages between the ranks of a job.
pub struct Shuffle {
    inner: Arc<Inner>,
    side: Arc<Side>,
    threads: Vec<JoinHandle<()>>,
    delivery: Option<JoinHandle<u64>>,
}

/// What a flush waits for. None of them waits for other ranks' flushes: see [`Shuffle::flush_all`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flush {
    /// What waits for delivery here was delivered.
    Delivery,
    /// What this rank has sent inside its node was taken in there.
    Origin,
    /// What this rank passes on inside its node was taken in there.
    Relay,
    /// What this rank sends to other nodes was taken in there.
    Remote,
}

/// What becomes of messages that are still queued at a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// They are delivered first. What callbacks send while that is so may be dropped; it is counted.
    Drain,
    /// They are dropped.
    Drop,
}

impl Shuffle {
    /// Connects the ranks. Collective: all ranks use the same name. `deliver` is called on a thread of its own, and may
    /// block: then senders wait. With [`Options::deliver_inline`] it is called where messages arrive, and may not.
    ///
    /// # Errors
    /// [`Error::BadOption`], and [`Error::Setup`] with what went wrong.
    pub fn new(
        group: &impl Group,
        name: &str,
        options: Options,
        deliver: impl FnMut(Delivery<'_>) + Send + 'static,
    ) -> Result<Self, Error> {
        options.check()?;
        let routes = Routes::new(group.map(), group.rank());
        let secret = Secret::share(group)?;
        let side = Arc::new(open_side(&routes, &options, secret.key)?);
        let addresses = exchange(group, name, &routes, &side.engine)?;
        let in_flight: [Arc<AtomicU64>; 3] = Default::default();
        let me = routes.me();
        let from = From { shuffle: secret.id(me, me), rank: me };
        let is_failed = Arc::new(AtomicBool::new(false));
        // Who calls back inline is who makes room.
        let patience =
            if options.deliver_inline { Duration::ZERO } else { options.callback_patience };
        let overflow = Arc::new(Overflow::new(options.callback_bytes_max as u64, patience));
        let shared = in_flight.map(|in_flight| {
            let (is_failed, overflow) = (Arc::clone(&is_failed), Arc::clone(&overflow));
            Shared { in_flight, is_failed, overflow }
        });
        let hops = make_hops(&secret, &routes, &options, &side, &addresses, &shared)?;
        let of = (routes, Arc::clone(&side));
        let inner = Arc::new(Inner::new((name, from), options, of, hops, shared));
        side.serve(&inner, &secret)?;
        let mut shuffle = Self { inner, side, threads: Vec::new(), delivery: None };
        shuffle.start(deliver)?;
        // Nobody sends before everybody serves.
        group.barrier().map_err(Error::Setup)?;
        shuffle.watch();
        Ok(shuffle)
    }

    /// Sends a message; returns when it is queued for its next hop, which may take until others make room. `kind` is
    /// the application's. Any number of threads may do this at a time; messages of one thread to one rank arrive in
    /// order.
    ///
    /// In a callback of this shuffle it does not wait, but for what callbacks themselves have filled: see
    /// [`Options::callback_bytes_max`]. One message for each that is delivered always goes, on all ranks at once.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooLong`], [`Error::CallbackFull`], [`Error::Failed`], [`Error::Closed`]: the
    /// message was not taken. One that was taken is accounted for, whatever happens then.
    #[inline]
    pub fn enqueue(&self, to: u32, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        self.inner.enqueue(to, kind, bytes).map(|_| ())
    }

    /// A handle for a thread that sends much: it fills batches of its own, and takes a lock for each of those, not for each
    /// message. What it has not handed over, full or by [`Sender::flush`], counts as not sent yet.
    ///
    /// ```no_run
    /// # fn f(shuffle: &hg_shuffle::Shuffle, keys: &[(u32, u64)]) -> Result<(), hg_shuffle::Error> {
    /// let mut sender = shuffle.sender();
    /// for (rank, key) in keys {
    ///     sender.enqueue(*rank, 0, &key.to_le_bytes())?;
    /// }
    /// sender.flush()?;
    /// shuffle.flush_all()
    /// # }
    /// ```
    #[must_use]
    pub fn sender(&self) -> Sender<'_> {
        Sender::new(&self.inner)
    }

    /// The same as [`Shuffle::enqueue`] without waiting.
    ///
    /// # Errors
    /// Also [`Error::Again`].
    pub fn try_enqueue(&self, to: u32, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        self.inner.try_enqueue(to, kind, bytes)
    }

    /// Sends a message to every rank: one copy crosses between each two nodes.
    ///
    /// # Errors
    /// The same as for [`Shuffle::enqueue`].
    pub fn broadcast(&self, kind: u32, bytes: &[u8], include_self: bool) -> Result<(), Error> {
        self.inner.broadcast(kind, bytes, include_self)
    }

    /// Waits until what is here now has left. Local: messages may wait in others.
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::Closed`], also inside of a delivery.
    pub fn flush(&self, what: Flush) -> Result<(), Error> {
        self.inner.refuse_in_callback()?;
        let lane = match what {
            Flush::Delivery => {
                self.inner.call_back();
                self.inner.mail.flush();
                return self.check();
            }
            Flush::Origin => Lane::Origin,
            Flush::Relay => Lane::Relay,
            Flush::Remote => Lane::Network,
        };
        let hops = self.inner.hops.iter().filter(|hop| hop.lane == lane);
        // All at once, then one after the other.
        let marks: Vec<_> = hops.map(|hop| (hop, hop.begin_flush())).collect();
        for (hop, mark) in marks {
            self.inner.wait_at(hop, |queue| queue.is_failed() || queue.is_flushed(mark));
            if !hop.is(|queue| queue.is_flushed(mark)) {
                return Err(self.inner.error());
            }
        }
        self.check()
    }

    /// Waits until every message that any rank has sent before is delivered. Collective.
    ///
    /// # Errors
    /// [`Error::Failed`], on all ranks.
    pub fn flush_all(&self) -> Result<(), Error> {
        let sent = self.inner.sent_so_far();
        for stage in [Flush::Origin, Flush::Remote, Flush::Relay, Flush::Delivery] {
            self.flush(stage)?;
            self.barrier()?;
        }
        self.inner.confirm(&sent);
        Ok(())
    }

    /// Waits until all ranks have come here. Collective.
    ///
    /// # Errors
    /// [`Error::Failed`], on all ranks. [`Error::Closed`] inside of a delivery.
    pub fn barrier(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.refuse_in_callback()?;
        let map = inner.routes.map();
        let leader = map.ranks_of(inner.routes.node())[0];
        let engine = &self.side.engine;
        let (address, from) = if leader == inner.routes.me() {
            (engine.lookup(transport::addresses(engine)[0]), inner.from)
        } else {
            let hop = &inner.hops[inner.table.origin[0].unwrap_or(0) as usize];
            (Ok(*hop.ends().1), hop.from)
        };
        let peer = address.map_err(|error| Error::Setup(error.to_string()))?;
        // The engine's thread makes the progress meanwhile.
        inner.call_back();
        match block_on(engine.call(arrive, &peer, (from,))) {
            Ok(()) => self.check(),
            Err(error) => {
                // Whoever is at fault: everybody is told, by this rank or by one that knows better.
                inner.wait_for_failure(leader, &why(&error));
                Err(inner.error())
            }
        }
    }

    /// Ends the shuffle. Collective, also with messages still queued: they are delivered before, or dropped. How many
    /// were dropped here; [`Dump::account`] says which.
    ///
    /// After a failure what does not lead through the failed rank is still delivered with [`Shutdown::Drain`], as far
    /// as all others do this within 5 seconds.
    ///
    /// # Errors
    /// [`Error::Failed`]: the ranks do not end together; this one has ended all the same. What it says of messages in
    /// doubt is final. [`Error::Closed`] inside of a callback, which it would wait for: the shuffle ends as if it was dropped.
    pub fn shutdown(mut self, how: Shutdown) -> Result<u64, Error> {
        if self.inner.overflow.is_callback() {
            return Err(Error::Closed);
        }
        let ended = match how {
            Shutdown::Drain => self.flush_all(),
            Shutdown::Drop => Ok(()),
        };
        let met = ended.and_then(|()| self.barrier());
        if met.is_ok() {
            // Whoever this rank is connected to has come here as well before anything is closed.
            self.inner.part();
        } else {
            self.inner.tell_failure(TELL);
            if how == Shutdown::Drain {
                self.inner.settle(Instant::now() + SETTLE);
            }
        }
        self.close(how == Shutdown::Drain && met.is_ok(), true);
        self.inner.recount();
        met.map_err(|_| self.inner.error())?;
        Ok(Account::of(&self.inner).unfinished())
    }

    /// What became of every message that this rank has had to do with.
    #[must_use]
    pub fn account(&self) -> Account {
        Account::of(&self.inner)
    }

    /// What has happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics::of(&self.inner)
    }

    /// The state in words, a line each queue: also of a process that is stuck, since no lock is waited for.
    #[must_use]
    pub fn dump(&self) -> Dump {
        Dump(Arc::clone(&self.inner))
    }

    fn check(&self) -> Result<(), Error> {
        if self.inner.is_failed() { Err(self.inner.error()) } else { Ok(()) }
    }

    fn start(&mut self, deliver: impl FnMut(Delivery<'_>) + Send + 'static) -> Result<(), Error> {
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let builder = thread::Builder::new().name(name.to_owned());
            builder.spawn(run).map_err(|error| Error::Setup(format!("a thread: {error}")))
        };
        let (side, inner) = (Arc::clone(&self.side), Arc::clone(&self.inner));
        self.threads.push(spawn("shuffle progress", Box::new(move || side.run(&inner)))?);
        let inner = Arc::clone(&self.inner);
        let samples = Samples::asked_for(inner.routes.me());
        self.threads.push(spawn("shuffle clock", Box::new(move || inner.run_clock(samples)))?);
        if self.inner.options.deliver_inline {
            self.inner.begin_inline(deliver);
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let run = move || {
            let me = inner.routes.me();
            let _inside = inner.overflow.enter();
            let on_panic = || inner.fail_and_tell(me, None, PANICKED.to_owned());
            inner.mail.run(me, deliver, on_panic)
        };
        let delivery = thread::Builder::new().name("shuffle delivery".to_owned()).spawn(run);
        self.delivery = Some(delivery.map_err(|error| Error::Setup(format!("a thread: {error}")))?);
        Ok(())
    }

    /// Notices from now on when a peer dies, also one that nothing is sent to.
    fn watch(&self) {
        let first = u32::try_from(self.inner.hops.len()).unwrap_or(u32::MAX);
        for hop in self.inner.hops.iter().filter(|hop| hop.lane != Lane::Relay) {
            let (weak, (rank, lane)) = (Arc::downgrade(&self.inner), (hop.rank, hop.lane));
            let (engine, peer) = (hop.ends().0.clone(), *hop.ends().1);
            let from = hop.from;
            let task = async move {
                let ended = engine.call(watch, &peer, (from,)).await;
                let Some(inner) = weak.upgrade() else { return };
                if let Err(error) = ended {
                    inner.fail_and_tell(rank, Some(lane), why(&error));
                }
                inner.note_watch_ended();
            };
            self.inner.note_watch_begun();
            self.side.spawn(Box::pin(task), first);
        }
    }

    /// Lets another thread end it: one that runs a callback holds what the end waits for.
    fn end_elsewhere(&mut self) {
        let (threads, delivery) = (std::mem::take(&mut self.threads), self.delivery.take());
        let (inner, side) = (Arc::clone(&self.inner), Arc::clone(&self.side));
        // Not dropped with a closure that finds no thread.
        let shuffle = ManuallyDrop::new(Self { inner, side, threads, delivery });
        let end = move || drop(ManuallyDrop::into_inner(shuffle));
        if let Err(error) = thread::Builder::new().name("shuffle end".to_owned()).spawn(end) {
            let why = format!("nobody ends it that a callback has dropped: a thread: {error}");
            self.inner.fail_and_tell(self.inner.routes.me(), None, why);
        }
    }

    /// Ends the threads, and drops what is left. Not in good order, it is a failure to the others.
    fn close(&mut self, drained: bool, in_order: bool) {
        self.inner.close();
        self.inner.refuse_early();
        self.inner.release_watchers(in_order);
        self.inner.mail.end(drained);
        self.inner.hops.iter().for_each(Hop::close);
        // After a failure a callback may wait for ever for what will not come: its thread ends when it returns.
        let is_well = in_order && !self.inner.is_failed();
        if self.inner.options.deliver_inline {
            self.inner.mail.end_inline(Instant::now() + TELL);
        }
        if let Some(delivery) = self.delivery.take()
            && (is_well || self.inner.mail.wait_until_ended(Instant::now() + TELL))
        {
            // A callback that panicked has failed this rank.
            drop(delivery.join());
        }
        // What came behind its end.
        self.inner.mail.clear();
        // What is under way is answered by all that live: taken in, or refused.
        let limit = Instant::now() + TELL;
        self.inner.hops.iter().for_each(|hop| hop.wait_until_empty(limit));
        self.inner.hops.iter().for_each(Hop::fail);
        self.inner.end();
        self.inner.linger.end();
        self.side.interrupt();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            drop(thread.join());
        }
        self.side.close();
    }
}

impl Drop for Shuffle {
    /// In a callback of its own it does not wait: a thread ends it when the callback has returned.
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if self.inner.overflow.is_callback() {
            return self.end_elsewhere();
        }
        self.inner.tell_failure(TELL);
        self.close(false, false);
    }
}

impl fmt::Debug for Shuffle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (me, size) = (self.inner.routes.me(), self.inner.routes.map().size());
        write!(out, "Shuffle({}, rank {me} of {size})", self.inner.name)
    }
}

/// The state of a shuffle in words, taken when it is displayed.
pub struct Dump(Arc<Inner>);

impl Dump {
    /// What has happened so far, also in other threads and when the shuffle is over.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics::of(&self.0)
    }

    /// What became of every message that this rank has had to do with; after a shutdown, for good.
    #[must_use]
    pub fn account(&self) -> Account {
        Account::of(&self.0)
    }

    /// What the engines of this process are doing, in words.
    #[must_use]
    pub fn engines(&self) -> String {
        hg::__private::dump_engines()
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::stats::describe(&self.0, out)
    }
}

impl fmt::Debug for Dump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Dump({})", self.0.name)
    }
}

fn open_side(routes: &Routes, options: &Options, key: [u8; 32]) -> Result<Side, Error> {
    let (neighbours, others) = (routes.neighbours().count(), routes.represented().count());
    // From each peer: the batches of two queues, a watch, and arrivals.
    let requests = REQUESTS_MIN + (neighbours + others) * (2 * crate::MAXRPC_MAX as usize + 4);
    let wait = how_to_wait(neighbours + 1);
    // A sleep is dear beside the messages of a short batch, and where the kernel has sockets to look at.
    let yields = matches!(wait, hg::Wait::Block)
        && (options.lobuftarget < YIELD_BELOW || routes.map().nodes() > 1);
    let Options { local_url, network_url, network_settings, network_key, .. } = options;
    let key = network_key.then_some(key);
    if routes.map().nodes() == 1 {
        let settings = transport::local_settings(options);
        let node = Transport { url: local_url, settings, key: None };
        return Side::open(node.with_key(key), requests, (wait, yields));
    }
    let url = transport::both(local_url, network_url)
        .map_err(|why| Error::BadOption { name: "local_url", why })?;
    let both = Transport { url: &url, settings: network_settings, key: None };
    Side::open(both.with_key(key), requests, (wait, yields))
}

/// Looking out for messages is for processors that no rank of this node wants otherwise.
fn how_to_wait(ranks: usize) -> hg::Wait {
    let threads = THREADS.saturating_mul(ranks);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors >= threads { hg::Wait::default() } else { hg::Wait::Block }
}

/// The addresses of the ranks that this one is connected to, a list each: inside their node, and of the network. They give
/// the shuffle's name, too: it has to be the same.
fn exchange(
    group: &impl Group,
    name: &str,
    routes: &Routes,
    engine: &hg::Engine,
) -> Result<BTreeMap<u32, Vec<String>>, Error> {
    let addresses = transport::addresses(engine);
    // A name may have lines of its own.
    let own = format!("{}\n{name}", addresses.join("\n"));
    let all = group.exchange(&routes.peers(), own.as_bytes()).map_err(Error::Setup)?;
    let lists = all.into_iter().map(|(rank, bytes)| {
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.splitn(addresses.len() + 1, '\n').map(str::to_owned);
        let list: Vec<_> = lines.by_ref().take(addresses.len()).collect();
        match lines.next() {
            Some(theirs) if theirs == name => Ok((rank, list)),
            Some(theirs) => Err(Error::Setup(format!(
                "rank {rank} makes the shuffle `{theirs}`, and this one `{name}`"
            ))),
            None => {
                let why = format!("rank {rank} sees another number of nodes than this one");
                Err(Error::Setup(why))
            }
        }
    });
    lists.collect()
}

fn make_hops(
    secret: &Secret,
    routes: &Routes,
    options: &Options,
    side: &Side,
    addresses: &BTreeMap<u32, Vec<String>>,
    shared: &[Shared; 3],
) -> Result<(Vec<Hop>, Table), Error> {
    let map = routes.map();
    let mut hops = Vec::new();
    let mut add = |rank: u32, lane: Lane| {
        let (maxrpc, bytes_max, target) = match lane {
            Lane::Origin => (options.lomaxrpc, options.lomaxbytes, options.lobuftarget),
            Lane::Relay => (options.lrmaxrpc, options.lrmaxbytes, options.lrbuftarget),
            Lane::Network => (options.rmaxrpc, options.rmaxbytes, options.rbuftarget),
        };
        let queue = Queue::new(maxrpc, target).with_bytes_max(bytes_max as u64);
        let at = |list: &Vec<String>| usize::from(lane == Lane::Network).min(list.len() - 1);
        let address = addresses.get(&rank).map(|list| &list[at(list)]);
        let address = address.ok_or_else(|| Error::Setup(format!("rank {rank} has no address")))?;
        let peer = side.engine.lookup(address.as_str());
        let peer = peer.map_err(|error| Error::Setup(format!("rank {rank}: {error}")))?;
        let index = u32::try_from(hops.len()).unwrap_or(u32::MAX);
        let waker = side.ready().waker(index);
        let shared = shared[lane as usize].clone();
        let ends = (side.engine.clone(), peer);
        let from = From { shuffle: secret.id(routes.me(), rank), rank: routes.me() };
        hops.push(Hop::new((rank, lane), from, ends, queue, waker, shared));
        Ok(index)
    };
    let ranks = map.ranks_of(routes.node());
    let mut lane_of = |lane| {
        let hop = |rank: &u32| (*rank != routes.me()).then(|| add(*rank, lane)).transpose();
        ranks.iter().map(hop).collect::<Result<Vec<_>, Error>>()
    };
    let (origin, relay) = (lane_of(Lane::Origin)?, lane_of(Lane::Relay)?);
    let network =
        routes.represented().map(|node| Ok((node, add(routes.counterpart(node), Lane::Network)?)));
    let network = network.collect::<Result<_, Error>>()?;
    Ok((hops, Table { origin, relay, network }))
}

/// How long a rank that ends after a failure waits for others to take note of it.
const TELL: Duration = Duration::from_secs(1);
/// How long it waits for what can still arrive.
const SETTLE: Duration = Duration::from_secs(5);
/// Threads of a rank that are busy at a time: a sender, the engine's, delivery.
const THREADS: usize = 3;
/// Requests in service beside those of peers.
const REQUESTS_MIN: usize = 64;

const _: () = assert!(HEAD == 16);
