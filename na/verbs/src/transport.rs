//! How a context reaches its peers by queue pairs: what [`hg_na_frames`] asks of a transport.

use std::{
    io, mem,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Error, GoneReason, Peer, Segment};
use hg_na_frames::{Connection, FramedContext, Lifeline, Place, Transport, Unmet};
use hg_na_link::{Carrier, Grant, Header, exchange, frame::HEADER};
use hg_na_memory::Held;
use hg_na_parts::regions::random;

use crate::{
    address::target,
    card::{Endpoint, Event, FRAME, Fault, Side},
    shared::Shared,
};

/// How long a queue pair stays whose peer has not got everything.
const PART_WAITS: Duration = Duration::from_secs(1);

/// A context of the verbs transport.
pub(crate) type VerbsContext = FramedContext<Verbs>;

/// The way to one peer.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// The number of its queue pair.
    pair: Option<u32>,
    /// The card, or the pool of frames, takes nothing for it until a completion has come.
    is_stalled: bool,
    /// A flush waits for this post.
    flush_to: Option<u64>,
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

/// A queue pair whose connection has ended here, and whose peer has not got everything.
#[derive(Debug)]
struct Parting {
    pair: u32,
    last: u64,
    /// When it is destroyed in any case.
    by: Instant,
}

/// What a context has of the card.
pub(crate) struct Verbs {
    shared: Arc<Shared>,
    /// There until the context is dropped.
    endpoint: Option<Endpoint>,
    parting: Vec<Parting>,
    flush: Flush,
    events: Vec<Event>,
}

impl Verbs {
    pub(crate) fn new(shared: Arc<Shared>, endpoint: Endpoint) -> Self {
        let (parting, events) = (Vec::new(), Vec::new());
        Self { shared, endpoint: Some(endpoint), parting, flush: Flush::default(), events }
    }

    #[inline]
    fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("taken only by drop")
    }

    /// Whether a GID is that of the other end of the lifeline: the kernel has its neighbour's address then, and asks nobody.
    fn is_of(&self, lifeline: Option<&Lifeline>, side: &Side) -> bool {
        let ip = lifeline.and_then(|lifeline| lifeline.ip);
        !self.shared.device.found.is_ethernet() || ip == Some(side.ip())
    }

    /// A queue pair stays until its peer has what was sent.
    fn leave(&mut self, pair: u32) {
        let by = Instant::now() + PART_WAITS;
        let endpoint = self.endpoint();
        endpoint.part(pair);
        endpoint.ask(pair);
        let last = endpoint.last(pair);
        self.parting.push(Parting { pair, last, by });
    }

    /// Destroys queue pairs that have nothing more to do, or have waited long enough; says whether there was one.
    fn destroy_parted(&mut self, now: Instant) -> bool {
        let before = self.parting.len();
        let Self { parting, endpoint, .. } = self;
        let Some(endpoint) = endpoint else { return false };
        parting.retain(|it| {
            let stays = now < it.by && !endpoint.is_over(it.pair, it.last);
            if !stays {
                endpoint.destroy(it.pair);
            }
            stays
        });
        self.parting.len() < before
    }

    /// Takes completions until no queue pair is parting any more; what has come is nobody's.
    fn see_off(&mut self) {
        let mut events = Vec::new();
        while !self.parting.is_empty() {
            events.clear();
            if self.endpoint().poll(&mut events).is_err() {
                return;
            }
            for event in &events {
                if let Event::Arrived { frame, .. } = event {
                    self.endpoint().was_seen(*frame);
                }
            }
            self.destroy_parted(Instant::now());
        }
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
        let pair = to.route.pair.ok_or(Fault::Again)?;
        self.endpoint().send(pair, HEADER + len, |frame| {
            let (head, content) = frame.split_first_chunk_mut().expect("a frame holds its header");
            header.encode(0, head);
            fill(content)
        })?;
        Ok(None)
    }

    /// Nothing is registered in vain: where there is no room, the frame that tells of it finds none either, and waits.
    fn may_lend(&self, to: &Connection<Route>) -> bool {
        let endpoint = self.endpoint.as_ref();
        let has_room =
            to.route.pair.is_some_and(|pair| endpoint.is_some_and(|it| it.has_room(pair)));
        self.shared.common.bounds.rma && has_room
    }

    fn lend(
        &mut self,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, Grant), Fault> {
        let (lent, (address, key)) = self.endpoint().lend(memory, run, is_written)?;
        Ok((lent, Grant { address, key: key.into() }))
    }

    fn revoke(&mut self, lent: usize) {
        self.endpoint().revoke(lent);
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
        let pair = with.route.pair.ok_or(Fault::Again)?;
        self.endpoint().move_run(pair, (grant.address, key), run, (to_peer, id))?;
        Ok(!to_peer)
    }
}

impl Transport for Verbs {
    type Place = SocketAddr;
    type Route = Route;
    type Hello = Side;

    const NAME: &'static str = "verbs";
    /// What reaches a queue pair that is not ready is lost, and would be repeated a second later.
    const AWAITS_READY: bool = true;

    fn target(&self, address: &Address) -> Result<SocketAddr, Error> {
        target(address)
    }

    fn route(&self) -> Result<Route, Error> {
        Ok(Route::default())
    }

    /// From the address that the own GID names, which the other side holds it against.
    fn dial(&self, to: &SocketAddr) -> io::Result<Lifeline> {
        let silence = self.shared.common.bounds.silence_bound;
        Lifeline::connect(&Place::Network(*to), Some(self.shared.ip()), silence)
    }

    fn introduce(&mut self, place: u32, route: &mut Route) -> Result<Side, Error> {
        if let Some(side) = route.pair.and_then(|pair| self.endpoint().side(pair)) {
            return Ok(side);
        }
        let first_packet = u32::from_le_bytes(*random()?.first_chunk().expect("16 bytes hold 4"));
        let side = self.endpoint().pair(place, first_packet)?;
        route.pair = Some(side.number);
        Ok(side)
    }

    fn meet(
        &mut self,
        place: u32,
        connection: &mut Connection<Route>,
        hello: Side,
    ) -> Result<(), Unmet> {
        if !self.is_of(connection.lifeline.as_ref(), &hello) {
            return Err(Unmet::Misbehaved("a GID of another address than its lifeline's"));
        }
        let own = self.introduce(place, &mut connection.route);
        let met = own.and_then(|own| Ok(self.endpoint().connect(own.number, &hello)?));
        met.map_err(|error| {
            let why = format!("it has no queue pair: {error}");
            Unmet::Refused(why.clone(), GoneReason::Unreachable(why.into()))
        })
    }

    fn part(
        &mut self,
        _peer: Peer,
        route: &mut Route,
        reason: &GoneReason,
        _done: &mut Vec<Completion>,
    ) {
        match (route.pair.take(), reason) {
            (Some(pair), GoneReason::Forgotten) => self.leave(pair),
            (Some(pair), _) => self.endpoint().destroy(pair),
            (None, _) => {}
        }
    }

    /// What is not registered any more is out of reach.
    fn reaches_nothing(&self, _reason: &GoneReason) -> bool {
        true
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
        let mut events = mem::take(&mut context.transport.events);
        let found = context.transport.endpoint().poll(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Arrived { place, frame, len } => arrived(context, place, (frame, len)),
                Event::Moved { place, id } => {
                    if let Some(peer) = context.links.at(place).map(|link| link.peer) {
                        context.moved(peer, id, false);
                    }
                }
                Event::Broken { place, fault } => context.way_broke(place, fault),
            }
        }
        context.transport.events = events;
        Ok(found)
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        !self.parting.is_empty() && self.destroy_parted(now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.parting.iter().map(|it| it.by).min()
    }

    fn can_send(context: &mut VerbsContext) -> bool {
        let FramedContext { busy, links, .. } = context;
        busy.iter().any(|place| links.at(*place).is_some_and(|link| !link.way.own.route.is_stalled))
    }

    fn arms(context: &mut VerbsContext) -> bool {
        if let Err(fault) = context.transport.endpoint().arm() {
            tracing::debug!(%fault, "a completion queue is not armed");
            return false;
        }
        // What came before it was armed does not wake.
        matches!(context.look(), Ok(false))
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
        for place in all {
            context.say_goodbye(place);
            let link = context.links.at(place);
            if let Some(pair) = link.and_then(|link| link.way.own.route.pair) {
                context.transport.leave(pair);
            }
        }
        context.transport.see_off();
        drop(context.transport.endpoint.take());
    }

    fn forget(&mut self) {
        mem::forget(self.endpoint.take());
    }
}

/// A frame of a connection has come.
#[inline]
fn arrived(context: &mut VerbsContext, place: u32, (frame, len): (usize, usize)) {
    let VerbsContext { links, transport, .. } = context;
    let regions = &transport.shared.common.regions;
    let Some(endpoint) = &mut transport.endpoint else { return };
    let link = links.at(place).filter(|link| link.way.own.listens());
    let came = link.map(|link| {
        let (_, header, content) =
            Header::decode(endpoint.arrived(frame, len)).ok_or("a frame that cannot be read")?;
        exchange::take(link, regions, &header, content)
    });
    endpoint.was_seen(frame);
    if let Some(came) = came {
        context.came(place, came);
    }
}

/// Has each connection remember its last post.
fn mark_pairs(context: &mut VerbsContext) {
    let open: Vec<_> = context.links.iter().map(|link| link.peer.index()).collect();
    for place in open {
        let FramedContext { links, transport, .. } = context;
        let Some(link) = links.at(place) else { continue };
        let route = &mut link.way.own.route;
        route.flush_to = route.pair.map(|pair| transport.endpoint().last(pair));
    }
}

/// Whether all posts have ended that a flush waits for.
fn pairs_are_through(context: &mut VerbsContext) -> bool {
    let FramedContext { links, transport, .. } = context;
    let mut are_through = true;
    for link in links.iter() {
        let Route { pair: Some(pair), flush_to: Some(last), .. } = link.way.own.route else {
            continue;
        };
        if !transport.endpoint().is_over(pair, last) {
            transport.endpoint().ask(pair);
            are_through = false;
        }
    }
    if are_through {
        transport.flush = Flush::Idle;
    }
    are_through
}
