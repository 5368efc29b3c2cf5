//! How a context reaches its peers by queue pairs: what [`hg_na_frames`] asks of a transport.

use std::{
    hash::Hash,
    io, mem,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Error, GoneReason, Peer, Segment};
use hg_na_frames::{Connection, FramedContext, FramesWaiter, Lifeline, Place, Transport, Unmet};
use hg_na_link::{
    Carrier, Framed, Grant, Header, Link, Links, abandon,
    exchange::{self, Came},
    frame::HEADER,
};
use hg_na_memory::Held;

use crate::{
    address::target,
    card::{Bytes, Desk, Event, FRAME, Fault, Greeted, Hub, Registration, Target, Way},
    choice::{Operation, choose},
    shared::Shared,
    spread,
};

/// How long a context that closes waits for its peers to have got everything.
const CLOSE_WAITS: Duration = Duration::from_secs(1);

/// A context of the verbs transport.
pub(crate) type VerbsContext = FramedContext<Verbs>;

/// The way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Which of this side's ports it is over.
    port: usize,
    /// Which turn it has among those that are dialled, and how many ports the peer has.
    dialled: Option<(usize, usize)>,
    /// Attempts to dial so far.
    attempts: usize,
    /// The connection's number.
    line: Option<u32>,
    /// `None`: it is not met.
    way: Option<Way>,
    /// What one that was accepted is told.
    welcome: Option<Greeted>,
    /// The other end has spoken over the queue pair.
    is_joined: bool,
    /// The card, or the pool of frames, takes nothing for it until there is room.
    is_stalled: bool,
    /// A flush waits for this post.
    flush_to: Option<u64>,
}

impl Route {
    /// The way, once it can be sent on.
    fn open(&self) -> Result<&Way, Fault> {
        self.way.as_ref().filter(|_| self.is_joined).ok_or(Fault::Again)
    }
}

/// How far the flush of a context is.
#[derive(Debug, Clone, Copy, Default)]
enum Flush {
    /// None is under way.
    #[default]
    Idle,
    /// Messages up to this number are to get into send queues.
    Queues(u64),
    /// They are: each connection knows which post is waited for.
    Pairs,
}

/// Memory that a peer reaches, over this line of this port.
struct Loan {
    registration: Registration,
    port: usize,
    line: Option<u32>,
}

/// What a context has of the card.
pub(crate) struct Verbs {
    shared: Arc<Shared>,
    /// Of each port; there until the context is dropped.
    hubs: Vec<Arc<Hub>>,
    desk: Arc<Desk>,
    waiter: Arc<FramesWaiter>,
    /// Memory that peers reach; the numbers of lent memory are places here.
    lent: Vec<Option<Loan>>,
    /// The peer that has parted last still reaches what was lent to it.
    still_reaches: bool,
    flush: Flush,
    /// The last round's. What was put into a queue since, or is due by the clock of another context, is due after it.
    round_at: Option<Instant>,
    /// Of a sleep that was prepared since that round: when it ends for a look at queues. `None`: it does not.
    looks_at: Option<Instant>,
    events: Vec<Event>,
}

impl Verbs {
    pub(crate) fn new(
        shared: Arc<Shared>,
        (hubs, desk): (Vec<Arc<Hub>>, Desk),
        waiter: Arc<FramesWaiter>,
    ) -> Self {
        let (desk, lent, events) = (Arc::new(desk), Vec::new(), Vec::new());
        hubs.iter().for_each(|hub| hub.enter(&desk));
        let (flush, round_at, looks_at) = (Flush::default(), None, None);
        let still_reaches = false;
        Self { shared, hubs, desk, waiter, lent, still_reaches, flush, round_at, looks_at, events }
    }

    /// What there is of a port.
    #[inline]
    fn hub(&self, port: usize) -> &Hub {
        &self.hubs[port]
    }

    /// Whether a GID is that of the other end of the lifeline: the kernel has its neighbour's address then, and asks nobody.
    fn is_of(&self, port: usize, lifeline: Option<&Lifeline>, hello: &Greeted) -> bool {
        let ip = lifeline.and_then(|lifeline| lifeline.ip);
        !self.shared.ports[port].device.found.is_ethernet() || ip == Some(hello.side.ip())
    }

    /// A connection ends: whether its peer still reaches what was lent to it, which is kept elsewhere then.
    fn ends(&mut self, route: Route, is_cut: bool) -> bool {
        let Route { port, line: Some(line), .. } = route else { return false };
        let is_of = |it: &mut Loan| (it.port, it.line) == (port, Some(line));
        let lent = self.lent.iter_mut().filter_map(|place| place.take_if(|it| is_of(it)));
        let lent = lent.map(|loan| loan.registration).collect();
        self.hub(port).end_lending(line, is_cut, lent)
    }

    /// Looks at the card until these ways have carried everything, for a bounded time; what comes is nobody's.
    fn see_off(&mut self, ways: &[(usize, Way, u64)]) {
        let by = Instant::now() + CLOSE_WAITS;
        ways.iter().for_each(|(port, way, _)| self.hub(*port).ask(way));
        let Self { hubs, desk, events, .. } = self;
        let is_under_way = || {
            hubs.iter().any(|hub| hub.has_leaving())
                || ways.iter().any(|(_, way, last)| !way.gauge.is_over(*last))
        };
        while is_under_way() && Instant::now() < by {
            let mut found = false;
            for hub in &*hubs {
                found |= hub.poll(desk, events);
                events.drain(..).for_each(|event| give_back(hub, event));
            }
            if !found {
                thread::yield_now();
            }
        }
    }
}

/// An event that is nobody's.
fn give_back(hub: &Hub, event: Event) {
    if let Event::Arrived { bytes: Bytes::Frame(frame, _), .. } = event {
        hub.was_read(frame);
    }
}

impl Carrier for Verbs {
    type Own = Connection<Route>;
    type Fault = Fault;

    const MOVE_MAX: u64 = 4 << 20;

    fn is_again(fault: &Fault) -> bool {
        *fault == Fault::Again
    }

    fn room(&self, _to: &Connection<Route>) -> usize {
        FRAME - HEADER
    }

    /// The card has taken the frame's bytes when this returns.
    fn hand(
        &mut self,
        (_, to): (Peer, &mut Connection<Route>),
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, Fault> {
        let way = to.route.open()?;
        self.hub(to.route.port).send((&self.desk, way), HEADER + len, |frame| {
            let (head, content) = frame.split_first_chunk_mut().expect("a frame holds its header");
            header.encode(0, head);
            fill(content)
        })?;
        Ok(None)
    }

    fn is_long(&self, len: u64, is_written: bool) -> bool {
        let (flags, from) = self.shared.moves;
        choose(len, is_written, flags, from) != Operation::Send
    }

    /// Nothing is registered in vain: where there is no room, the frame that tells of it finds none either, and waits.
    fn may_lend(&self, to: &Connection<Route>, is_written: bool) -> bool {
        let is_allowed = self.is_long(u64::MAX, is_written);
        is_allowed && to.route.open().is_ok_and(|way| way.gauge.has_room())
    }

    fn lend(
        &mut self,
        to: &Connection<Route>,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, Grant), Fault> {
        let registration = self.hub(to.route.port).lend(memory, run, is_written)?;
        let key = registration.keys().1;
        let place = self.lent.iter().position(Option::is_none).unwrap_or(self.lent.len());
        if place == self.lent.len() {
            self.lent.push(None);
        }
        let Route { port, line, .. } = to.route;
        self.lent[place] = Some(Loan { registration, port, line });
        Ok((place, Grant { address: run.address as u64, key: key.into() }))
    }

    fn revoke(&mut self, lent: usize) {
        drop(self.lent.get_mut(lent).and_then(Option::take));
    }

    /// One queue pair carries everything in order: what is said behind a write arrives behind its bytes, so that only reads are waited for.
    fn move_run(
        &mut self,
        (_, with): (Peer, &mut Connection<Route>),
        grant: Grant,
        run: (&Held, Segment),
        (to_peer, id): (bool, u64),
    ) -> Result<bool, Fault> {
        let key = u32::try_from(grant.key).map_err(|_| Fault::NO_KEY)?;
        let way = with.route.open()?;
        let line = with.route.line.ok_or(Fault::Again)?;
        self.hub(with.route.port).move_run(
            (&self.desk, line, way),
            (grant.address, key),
            run,
            (to_peer, id),
        )?;
        Ok(!to_peer)
    }
}

impl Transport for Verbs {
    type Place = Arc<[SocketAddr]>;
    type Route = Route;
    type Hello = Greeted;

    const NAME: &'static str = "verbs";
    /// What reaches a queue pair that is not ready is lost, and would be repeated a second later.
    const AWAITS_READY: bool = true;

    fn target(&self, address: &Address) -> Result<Arc<[SocketAddr]>, Error> {
        target(address)
    }

    fn route(&self) -> Result<Route, Error> {
        Ok(Route::default())
    }

    /// From the address that the own GID names, which the other side holds it against.
    fn dial(&mut self, to: &Arc<[SocketAddr]>, route: &mut Route) -> io::Result<Lifeline> {
        let shared = &self.shared;
        // Relaxed: it is counted, no more.
        let turn = || shared.dialled.fetch_add(1, Ordering::Relaxed);
        let (turn, _) = *route.dialled.get_or_insert_with(|| (turn(), to.len()));
        let all = shared.ports.iter().map(|port| port.health());
        let (up, there): (Vec<_>, Vec<_>) = all.map(|it| (it.is_up(), !it.is_gone())).unzip();
        let found = spread::ports(turn + route.attempts, (&up, &there), to.len());
        let (own, theirs) = found.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NetworkDown, "no card of this engine's is there any more")
        })?;
        route.port = own;
        let from = Some(shared.ports[own].ip());
        Lifeline::connect(&Place::Network(to[theirs]), from, shared.common.bounds.silence_bound)
    }

    fn dials_elsewhere(&mut self, route: &mut Route) -> bool {
        let Some((_, theirs)) = route.dialled else { return false };
        route.attempts += 1;
        if let Some(line) = route.line.take() {
            self.hub(route.port).end(line, true);
        }
        route.attempts < spread::attempts(self.hubs.len(), theirs)
    }

    fn hear_device(&mut self, now: Instant) {
        for (port, hub) in self.shared.ports.iter().zip(&self.hubs) {
            if port.hear(now) {
                // Both are readable for ever.
                self.waiter.set.remove(port.device.event_fd());
                self.waiter.set.remove(hub.fd());
            }
        }
    }

    fn introduce(
        &mut self,
        place: u32,
        route: &mut Route,
        ip: Option<IpAddr>,
    ) -> Result<Greeted, Error> {
        if let Some(welcome) = route.welcome.take() {
            return Ok(welcome);
        }
        let (line, hello) = self.hub(route.port).offer((&self.desk, place), ip)?;
        route.line = Some(line);
        Ok(hello)
    }

    fn meet(
        &mut self,
        place: u32,
        connection: &mut Connection<Route>,
        hello: Greeted,
    ) -> Result<(), Unmet> {
        let Connection { lifeline, route, .. } = connection;
        if let Some(lifeline) = lifeline.as_ref().filter(|_| route.line.is_none()) {
            route.port = lifeline.door;
            if self.hubs.len() > 1 && !self.shared.ports[route.port].health().is_up() {
                let why = "its port is down here";
                return Err(Unmet::Refused(why.to_owned(), GoneReason::Unreachable(why.into())));
            }
        }
        if !self.is_of(route.port, lifeline.as_ref(), &hello) {
            return Err(Unmet::Misbehaved("a GID of another address than its lifeline's"));
        }
        let ip = lifeline.as_ref().and_then(|it| it.ip);
        let met = match route.line {
            Some(line) => self.hub(route.port).welcomed(line, (&hello, ip)).map_err(Error::from),
            None => {
                let greeted = self.hub(route.port).greet((&self.desk, place), (&hello, ip));
                greeted.map(|(line, welcome, way)| {
                    (route.line, route.welcome) = (Some(line), Some(welcome));
                    way
                })
            }
        };
        let met = met.map(|way| route.way = Some(way));
        met.map_err(|error| {
            let why = format!("it has no queue pair: {error}");
            Unmet::Refused(why.clone(), GoneReason::Unreachable(why.into()))
        })
    }

    /// The queue pair stays until the peer has what was sent, if it is there to take it.
    fn part(
        &mut self,
        _peer: Peer,
        route: &mut Route,
        reason: &GoneReason,
        _done: &mut Vec<Completion>,
    ) {
        let is_cut = !matches!(reason, GoneReason::Forgotten | GoneReason::Closed);
        self.still_reaches = self.ends(mem::take(route), is_cut);
    }

    /// What is not registered any more is out of reach.
    fn reaches_nothing(&self, _reason: &GoneReason) -> bool {
        !self.still_reaches
    }

    fn unreachable(fault: Fault) -> GoneReason {
        GoneReason::Unreachable(format!("verbs: {fault}").into())
    }

    /// It goes on with the next completion, of which there is one to come.
    fn stalls(&mut self, connection: &mut Connection<Route>, _now: Instant) -> Result<(), Fault> {
        connection.route.is_stalled = true;
        Ok(())
    }

    fn flows(&mut self, route: &mut Route) {
        route.is_stalled = false;
    }

    fn poll(context: &mut VerbsContext) -> Result<bool, Error> {
        let mut found = false;
        for port in 0..context.transport.hubs.len() {
            let Verbs { hubs, desk, events, .. } = &mut context.transport;
            found |= hubs[port].poll(desk, events);
            handle_all(context);
        }
        Ok(found)
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        (self.round_at, self.looks_at) = (Some(now), None);
        let looked = self.hubs.iter().fold(false, |moved, hub| moved | hub.run_timers(now));
        self.shared.ports.iter().fold(looked, |moved, port| moved | port.run_timers(now))
    }

    /// Whoever is about to wake for a look needs none now, whatever others find before.
    fn needs_a_look(&self) -> bool {
        self.looks_at.is_none() && self.hubs.iter().any(|hub| hub.looks_at().is_some())
    }

    fn deadline(&self) -> Option<Instant> {
        let after = self.round_at.map(|when| when + Duration::from_nanos(1));
        let hubs = self.hubs.iter().filter_map(|hub| hub.deadline()).chain(self.looks_at);
        let hubs = hubs.map(|due| after.map_or(due, |after| due.max(after)));
        let ports = self.shared.ports.iter().filter_map(|port| port.health().deadline());
        hubs.chain(ports).min()
    }

    fn can_send(context: &mut VerbsContext) -> bool {
        let FramedContext { busy, links, .. } = context;
        busy.iter().any(|place| links.at(*place).is_some_and(|link| !link.way.own.route.is_stalled))
    }

    /// What came before the completion queue is armed does not wake.
    fn arms(context: &mut VerbsContext) -> bool {
        let mut is_armed = true;
        for port in 0..context.transport.hubs.len() {
            let Verbs { hubs, desk, events, .. } = &mut context.transport;
            let found = hubs[port].arm(desk, events);
            handle_all(context);
            if let Err(fault) = &found {
                tracing::debug!(%fault, "a completion queue is not armed");
            }
            is_armed &= found == Ok(false);
        }
        let Verbs { hubs, looks_at, .. } = &mut context.transport;
        *looks_at = hubs.iter().filter_map(|hub| hub.looks_at()).min();
        is_armed
    }

    fn flush(context: &mut VerbsContext) -> bool {
        let FramedContext { links, transport, .. } = context;
        let to = match transport.flush {
            Flush::Idle => links.serial(),
            Flush::Queues(to) => to,
            Flush::Pairs => return pairs_are_through(context),
        };
        transport.flush = Flush::Queues(to);
        if !links.iter().all(|link| link.queues.has_passed_on(to)) {
            return false;
        }
        mark_pairs(context);
        context.transport.flush = Flush::Pairs;
        pairs_are_through(context)
    }

    /// Waits, for a bounded time, until the peers' cards have what was sent.
    fn close(context: &mut VerbsContext) {
        let all: Vec<_> = context.links.iter().map(|link| link.peer.index()).collect();
        let mut ways = Vec::new();
        for place in &all {
            context.say_goodbye(*place);
            let link = context.links.at(*place);
            let Some(Route { port, way: Some(way), .. }) = link.map(|it| &it.way.own.route) else {
                continue;
            };
            ways.push((*port, way.clone(), context.transport.hub(*port).last(way)));
        }
        context.transport.see_off(&ways);
        for place in all {
            let VerbsContext { links, transport, .. } = context;
            let Some(link) = links.at(place) else { continue };
            link.initiator.take_untold().for_each(|lent| transport.revoke(lent));
            let (peer, route) = (link.peer, mem::take(&mut link.way.own.route));
            if context.transport.ends(route, false) {
                let lent = context.links.end(peer, &GoneReason::Closed, &mut Vec::new());
                abandon(lent.into_iter().filter_map(|it| it.written));
            }
        }
        let Verbs { hubs, desk, lent, events, .. } = &mut context.transport;
        lent.clear();
        for hub in hubs.drain(..) {
            hub.exit(desk, events);
            events.drain(..).for_each(|event| give_back(&hub, event));
        }
    }

    fn forget(&mut self) {
        mem::forget((mem::take(&mut self.hubs), mem::take(&mut self.lent)));
    }
}

/// Handles what was found, and what others have found.
#[inline]
fn handle_all(context: &mut VerbsContext) {
    let mut events = mem::take(&mut context.transport.events);
    for event in events.drain(..) {
        happened(context, event);
    }
    context.transport.events = events;
}

/// What a link has of its connection.
type Met = Framed<Connection<Route>>;

/// A connection, if it is still the one that is meant.
#[inline]
fn meant<K: Clone + Eq + Hash>(links: &mut Links<K, Met>, of: Target) -> Option<&mut Link<K, Met>> {
    let is_meant = |it: &Route| it.line == Some(of.line) && it.port == of.port;
    links.at(of.place).filter(|link| is_meant(&link.way.own.route))
}

/// Something has happened to a connection.
#[inline]
fn happened(context: &mut VerbsContext, event: Event) {
    match event {
        Event::Arrived { of, bytes } => arrived(context, of, bytes),
        Event::Joined { of } => {
            if let Some(link) = meant(&mut context.links, of) {
                link.way.own.route.is_joined = true;
                context.came(of.place, Ok(Came::Nothing));
            }
        }
        Event::Moved { of, id } => {
            if let Some(peer) = meant(&mut context.links, of).map(|link| link.peer) {
                context.moved(peer, id, false);
            }
        }
        Event::Broken { of, fault } => {
            if meant(&mut context.links, of).is_some() {
                context.way_broke(of.place, fault);
            }
        }
        Event::Room => {}
    }
}

/// A frame of a connection has come.
#[inline]
fn arrived(context: &mut VerbsContext, of: Target, bytes: Bytes) {
    let VerbsContext { links, transport, .. } = context;
    let regions = &transport.shared.common.regions;
    let link = meant(links, of).filter(|link| link.way.own.listens());
    let came = link.map(|link| {
        let (_, header, content) =
            Header::decode(bytes.read()).ok_or("a frame that cannot be read")?;
        exchange::take(link, regions, &header, content)
    });
    if let Bytes::Frame(frame, _) = bytes {
        transport.hub(of.port).was_read(frame);
    }
    if let Some(came) = came {
        context.came(of.place, came);
    }
}

/// Has each connection remember its last post.
fn mark_pairs(context: &mut VerbsContext) {
    let VerbsContext { links, transport, .. } = context;
    let open: Vec<_> = links.iter().map(|link| link.peer.index()).collect();
    for place in open {
        let Some(link) = links.at(place) else { continue };
        let route = &mut link.way.own.route;
        let hub = transport.hub(route.port);
        route.flush_to = route.way.as_ref().map(|way| hub.last(way));
    }
}

/// Whether all posts have ended that a flush waits for.
fn pairs_are_through(context: &mut VerbsContext) -> bool {
    let FramedContext { links, transport, .. } = context;
    let mut are_through = true;
    // Another context may be the one that takes their completions.
    transport.desk.awaits_room();
    for link in links.iter() {
        let Route { port, way: Some(way), flush_to: Some(last), .. } = &link.way.own.route else {
            continue;
        };
        if !way.gauge.is_over(*last) {
            transport.hub(*port).ask(way);
            are_through = false;
        }
    }
    if are_through {
        transport.flush = Flush::Idle;
    }
    are_through
}
