//! The four traits.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hg_na::{
    Address, Begun, Caps, Completion, Context, Descriptor, Domain, Error, Exchange, Exchanged,
    GoneReason, Identity, Memory, Message, Op, OpId, OpenOptions, Peer, Plugin, Region, Rejected,
    Rights, Tag, Token, Transit, Waiter,
};
use hg_na_parts::Flush;
use nix::sys::eventfd::EventFd;

use super::{
    Rules,
    hub::{Counts, Endpoint, Net},
    mover::NetMover,
    planted::Planted,
};
use crate::{
    platform::{descriptor, nanos},
    world::{self, Source},
};

/// The plugin of one network.
#[derive(Debug, Clone)]
pub struct Simulation {
    net: Arc<Mutex<Net>>,
    /// Whose domains it opens.
    process: usize,
    /// Whether its contexts sleep on a descriptor.
    descriptors: bool,
}

impl Simulation {
    /// The plugin of one process of a story.
    pub(crate) fn of(net: &Arc<Mutex<Net>>, process: usize, descriptors: bool) -> Self {
        Self { net: Arc::clone(net), process, descriptors }
    }

    /// A network without a story, in which everything happens at once, for threads of the machine.
    #[must_use]
    pub fn at_once(rules: Rules) -> Self {
        Self {
            net: Arc::new(Mutex::new(Net::new(rules, 0).at_once())),
            process: std::process::id() as usize,
            descriptors: false,
        }
    }
}

impl Plugin for Simulation {
    fn schemes(&self) -> &[&str] {
        &["sim"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let known = |name: &&String| name.as_str() != "routing";
        if let Some(name) = options.settings.keys().find(known) {
            let known = "a simulated transport has no settings".to_owned();
            return Err(Error::UnknownSetting { name: name.clone(), known });
        }
        let mut net = lock(&self.net);
        let mut caps = net.caps();
        if self.descriptors {
            caps.sleep = hg_na::Sleep::Descriptor;
        }
        let domain = net.fresh_name();
        let name = if url.rest().is_empty() {
            format!("anonymous-{}", net.fresh_name())
        } else {
            url.rest().to_owned()
        };
        drop(net);
        let (net, process) = (Arc::clone(&self.net), self.process);
        Ok(Arc::new(SimDomain { net, process, domain, name, listens: options.listen, caps }))
    }
}

fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct SimDomain {
    net: Arc<Mutex<Net>>,
    process: usize,
    domain: u64,
    name: String,
    listens: bool,
    caps: Caps,
}

impl Domain for SimDomain {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if rights.contains(Rights::WRITE) && !memory.writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        let net = lock(&self.net);
        if net.no_memory.contains(&self.process) {
            let (what, remedy) = ("registered memory", "wait until the story goes on");
            return Err(Error::Limit { what, limit: 0, remedy });
        }
        let regions = Arc::clone(&net.regions);
        drop(net);
        Ok(Region::new(regions.register((self.process, self.domain), memory, rights)))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        let (name, _) = context.as_str().strip_prefix("sim://")?.split_once('/')?;
        Address::new(&format!("sim://{name}/{id}")).ok()
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let address = Address::new(&format!("sim://{}/{id}", self.name))?;
        let mut net = lock(&self.net);
        let descriptor = if self.caps.sleep == hg_na::Sleep::Descriptor {
            Some(descriptor().map_err(|error| Error::os("eventfd", error))?)
        } else {
            None
        };
        let sleeper =
            Arc::new(Sleeper { descriptor, context: id, ..Sleeper::of(&net, self.process) });
        let endpoint = Endpoint {
            process: self.process,
            domain: self.domain,
            address: address.clone(),
            listens: self.listens,
            sleeper: Arc::clone(&sleeper),
            slots: Vec::new(),
            lookups: BTreeMap::new(),
            admission: true,
            ready: VecDeque::new(),
            last_serial: 0,
            flush: Flush::default(),
            moved_at_once: 0,
            is_cut: false,
            counts: Counts::default(),
        };
        let id = net.open(endpoint)?;
        let net = Arc::clone(&self.net);
        Ok(Box::new(SimContext { net, id, address, sleeper, has_published: false }))
    }
}

struct SimContext {
    net: Arc<Mutex<Net>>,
    id: usize,
    address: Address,
    sleeper: Arc<Sleeper>,
    /// Its intent to sleep, since it has looked last.
    has_published: bool,
}

impl SimContext {
    fn with<T>(&self, act: impl FnOnce(&mut Net, usize) -> T) -> T {
        let mut net = lock(&self.net);
        let result = act(&mut net, self.id);
        net.settle();
        result
    }
}

impl fmt::Debug for SimContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SimContext({})", self.address)
    }
}

impl Context for SimContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        let parts = address.rest().split_once('/');
        let is_good = |(name, id): (&str, &str)| !name.is_empty() && id.parse::<u8>().is_ok();
        if address.scheme() != "sim" || !parts.is_some_and(is_good) {
            let why = "it needs the form sim://name/id".to_owned();
            return Err(Error::BadAddress { address: address.to_string(), why });
        }
        Ok(self.with(|net, at| net.lookup(at, address)))
    }

    fn forget(&mut self, peer: Peer) {
        self.with(|net, at| net.forget(at, peer));
        self.sleeper.ring();
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        let max = self.with(|net, _| net.rules.message_max);
        if len > max {
            return Err(Error::TooLong { len, max });
        }
        let is_short = len <= hg_na::INLINE_MAX;
        Ok(if is_short { Message::inline(len) } else { Message::from(vec![0; len]) })
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.with(|net, at| net.post(at, token, op))
    }

    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        self.with(|net, at| net.exchange(at, exchange, message))
    }

    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        self.with(|net, at| net.reply(at, (to, tag), token, message))
    }

    fn collect(&mut self, from: Peer, tag: Tag, answer: &mut Message) -> bool {
        let collected = self.with(|net, at| net.collect(at, from, tag));
        collected.is_some_and(|message| {
            *answer = message;
            true
        })
    }

    fn take_request(&mut self, from: Peer, request: &mut Message) -> bool {
        let taken = self.with(|net, at| net.take_request(at, from));
        taken.map(|message| *request = message).is_some()
    }

    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        match self.with(|net, at| net.begin(at, transit)) {
            Ok(owner) => Begun::Ready(Box::new(NetMover::new(&self.net, self.id, owner, transit))),
            Err(begun) => begun,
        }
    }

    fn moves(&mut self, peer: Peer) -> bool {
        self.with(|net, at| net.moves(at, peer))
    }

    fn fetch<'into>(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &'into mut [u8],
        _may_wait: bool,
    ) -> Begun<'into> {
        let is_over = self.with(|net, at| net.fetch(at, owner, (remote, offset), into));
        if is_over { Begun::Over } else { Begun::No }
    }

    fn cancel(&mut self, id: OpId) {
        self.with(|net, at| net.cancel(at, id));
        self.sleeper.ring();
    }

    fn set_admission(&mut self, open: bool) {
        self.with(|net, at| {
            let endpoint = &mut net.endpoints[at];
            endpoint.admission = open;
            endpoint.slots.iter_mut().for_each(|slot| slot.was_touched = true);
        });
        self.sleeper.ring();
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.with(|net, at| {
            if let Some(side) = net.endpoints[at].side(peer) {
                side.admission = open;
            }
        });
        self.sleeper.ring();
    }

    fn progress(&mut self, _now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        if world::is_on() {
            world::note_round();
            world::pass();
        }
        if std::mem::take(&mut self.has_published) {
            self.sleeper.polled();
        }
        Ok(self.with(|net, at| net.progress(at, done)))
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        world::pass();
        let mut net = lock(&self.net);
        net.settle();
        if net.has_work(self.id) && !net.is_planted(Planted::LostWakeUp) {
            return false;
        }
        self.sleeper.publish();
        self.has_published = true;
        true
    }

    fn flush(&mut self) -> bool {
        self.with(|net, at| net.endpoints[at].flush())
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.with(|net, at| net.endpoints[at].connected())
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.with(|net, at| {
            let is_denied = net.is_planted(Planted::NeverConnected);
            !is_denied && net.endpoints[at].was_connected(peer)
        })
    }

    fn identity(&self, peer: Peer) -> Identity {
        lock(&self.net).identity(self.id, peer)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.sleeper) as Arc<dyn Waiter>
    }
}

impl Drop for SimContext {
    fn drop(&mut self) {
        self.with(|net, at| net.cut(at, &GoneReason::Closed));
    }
}

/// How a context sleeps: in a story as a logical thread, otherwise on a condition variable.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    flags: Mutex<Flags>,
    changed: Condvar,
    /// Whose threads sleep here.
    process: usize,
    context: u8,
    /// One wait in so many ends for no reason; 0: none.
    spurious: u64,
    /// Would be readable when it is rung or woken ([`Source::Transport`]).
    descriptor: Option<EventFd>,
}

#[derive(Debug, Default)]
struct Flags {
    is_asleep: bool,
    is_rung: bool,
    is_woken: bool,
    /// The descriptor would be.
    is_readable: bool,
    thread: Option<world::ThreadId>,
}

impl Sleeper {
    fn of(net: &Net, process: usize) -> Self {
        Self { process, spurious: net.rules.spurious, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the intent to sleep. The caller holds the network's lock and has found nothing to do.
    fn publish(&self) {
        self.lock().is_asleep = true;
    }

    /// Ends the state that `publish` began.
    fn polled(&self) {
        let mut flags = self.lock();
        (flags.is_asleep, flags.is_rung) = (false, false);
    }

    /// Something has arrived.
    pub(super) fn ring(&self) {
        let mut flags = self.lock();
        if flags.is_asleep {
            flags.is_rung = true;
            self.end_wait(flags);
        } else if world::is_on() {
            world::stir(self.process);
        }
    }

    fn end_wait(&self, mut flags: MutexGuard<'_, Flags>) {
        if self.descriptor.is_some() && !std::mem::replace(&mut flags.is_readable, true) {
            world::set_readable(self.process, Source::Transport(self.context), true);
        }
        match flags.thread.take() {
            Some(thread) => world::wake(thread),
            // A system call, which in a story nobody waits for.
            None if !world::is_on() => self.changed.notify_all(),
            None => {}
        }
    }

    fn wait_in_story(&self, timeout: Option<Duration>) {
        world::maybe_interrupt();
        let ends_early = self.spurious > 0 && world::random(self.spurious) == 0;
        let until = timeout.map(|timeout| world::now() + nanos(timeout));
        let mut flags = self.lock();
        if !ends_early && !flags.is_rung && !flags.is_woken {
            flags.thread = world::current();
            drop(flags);
            world::wait(until);
            flags = self.lock();
            flags.thread = None;
        }
        (flags.is_rung, flags.is_woken) = (false, false);
        if std::mem::take(&mut flags.is_readable) {
            world::set_readable(self.process, Source::Transport(self.context), false);
        }
    }
}

impl Waiter for Sleeper {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if world::is_on() {
            self.wait_in_story(timeout);
            return Ok(());
        }
        let idle = |flags: &mut Flags| !flags.is_rung && !flags.is_woken;
        let flags = self.lock();
        let mut flags = match timeout {
            None => self.changed.wait_while(flags, idle).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(flags, timeout, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        (flags.is_rung, flags.is_woken) = (false, false);
        Ok(())
    }

    fn wake(&self) {
        let mut flags = self.lock();
        flags.is_woken = true;
        self.end_wait(flags);
        world::pass();
    }
}
