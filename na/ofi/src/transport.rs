//! How a context reaches its peers by libfabric: what [`hg_na_frames`] asks of a transport.

pub(crate) mod flushing;

use std::{
    io, mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Error, GoneReason, Peer, Reached, Segment};
use hg_na_frames::{Connection, FramedContext, Lifeline, Place, Transport, Unmet};
use hg_na_link::{Carrier, Grant, Header, Record, Sending, exchange, frame::HEADER};
use hg_na_memory::Held;
use hg_na_parts::{Flush, regions::random};
use rustc_hash::FxHashMap;

use self::flushing::Awaited;
use crate::{
    address::{LOCAL, target},
    fabric::{Arrival, Endpoint, Event, Fault, Handed},
    leftovers::{clear_up, is_of_other_user},
    shared::Shared,
    stall::{ASK_AFTER, Next, Stall, Starvation},
    vector::Vector,
    wire::{Greeting, KEY, key_of},
};

/// Time after which a frame that libfabric did not take is tried again while nobody makes progress.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// The same for one that was not taken for long.
const RETRY_AFTER_MAX: Duration = ASK_AFTER;
/// Frames that a peer may name as the longest it takes.
const FRAME_RANGE: std::ops::RangeInclusive<u32> = 256..=1 << 20;

/// A context of the libfabric transport.
pub(crate) type OfiContext = FramedContext<Ofi>;

/// The other side, as its greeting described it.
#[derive(Debug)]
pub(crate) struct Remote {
    link: u32,
    key: u64,
    /// What sends name its endpoint by.
    address: u64,
    /// The address of its endpoint.
    name: Vec<u8>,
    /// Longest frame.
    frame: usize,
    /// It moves memory that is lent to it.
    one_sided: bool,
}

/// The way to one peer.
#[derive(Debug)]
pub(crate) struct Route {
    /// What the other side's frames carry.
    key: u64,
    remote: Option<Remote>,
    /// libfabric takes nothing for it.
    stalled: Option<Stall>,
    /// Nothing was taken when it was tried last: it waits for [`Transport::deadline`].
    waits: bool,
}

impl Route {
    /// What sends name its endpoint by, once that is known.
    pub(crate) fn address(&self) -> Option<u64> {
        self.remote.as_ref().map(|remote| remote.address)
    }

    /// Whether nothing was taken when it was tried last.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }
}

/// A frame that libfabric has.
#[derive(Debug)]
struct Flight {
    peer: Peer,
    address: u64,
    /// The message that is sent with it, as a whole.
    sending: Option<Sending>,
}

/// What a context has of libfabric.
pub(crate) struct Ofi {
    shared: Arc<Shared>,
    /// There until the context is dropped.
    pub(crate) endpoint: Option<Endpoint>,
    vector: Vector,
    flights: Vec<Option<Flight>>,
    free_flights: Vec<usize>,
    /// Moves that libfabric makes for transfers of peers, by number.
    moves: FxHashMap<u64, (Peer, u64)>,
    last_move: u64,
    flush: Flush,
    /// There once all that a flush is of was handed over.
    pub(crate) awaited: Option<Awaited>,
    /// The next frame is lent, so that its end tells that of all before it.
    asks: bool,
    /// Somebody waits for others.
    starvation: Option<Starvation>,
    /// The address for whose frames others wait too long, and the count of frames that have moved of then.
    blamed: Option<(u64, u64)>,
    /// libfabric took a frame no more: it is tried again at this time.
    retry_at: Option<Instant>,
    events: Vec<Event>,
}

impl Ofi {
    pub(crate) fn new(shared: Arc<Shared>, endpoint: Endpoint) -> Self {
        Self {
            shared,
            endpoint: Some(endpoint),
            vector: Vector::default(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            moves: FxHashMap::default(),
            last_move: 0,
            flush: Flush::default(),
            awaited: None,
            asks: false,
            starvation: None,
            blamed: None,
            retry_at: None,
            events: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("taken only by drop")
    }

    /// Removes addresses that nobody uses, and to which nothing is under way any more, or that have waited long enough.
    fn retire(&mut self, now: Option<Instant>) {
        let Self { vector, endpoint, .. } = self;
        let endpoint = endpoint.as_ref().expect("taken only by drop");
        let is_idle = |address| !endpoint.sends().has_out(address);
        let retired: Vec<u64> = std::iter::from_fn(|| vector.retired(is_idle, now)).collect();
        retired.into_iter().for_each(|address| self.remove(address));
    }

    /// Removes an address; what is still under way to it is told of no more.
    fn remove(&mut self, address: u64) {
        self.endpoint().remove(address);
        if let Some(awaited) = &mut self.awaited {
            awaited.remove(&address);
        }
        for (number, flight) in self.flights.iter_mut().enumerate() {
            if flight.take_if(|it| it.address == address).is_some() {
                self.free_flights.push(number);
            }
        }
    }

    /// Somebody gets nothing sent because others have all: for how long. After a while without a frame that comes back, the slowest of those is to blame.
    pub(crate) fn waits_for_others(&mut self, now: Instant) -> Duration {
        let (bound, count) = (self.shared.retry_bound, self.endpoint().sends().count());
        let starvation = self.starvation.get_or_insert_with(|| Starvation::begin(now, count));
        let lasted = starvation.goes_on(now, count, bound);
        if lasted > bound {
            self.blamed = self.endpoint().sends().slowest().map(|it| (it, count));
            self.starvation = None;
        }
        lasted
    }

    /// Whether an address gets nothing sent because others have all: then it is tried again, and one of those is to blame after a while.
    fn starves(&mut self, address: u64, now: Instant) -> bool {
        let starves = self.endpoint().sends().waits_for_others(address);
        if starves {
            let lasted = self.waits_for_others(now);
            self.try_again(now, lasted);
        }
        starves
    }

    /// What was not taken for so long is tried again without a round.
    fn try_again(&mut self, now: Instant, lasted: Duration) {
        let again = now + (lasted / 4).clamp(RETRY_AFTER, RETRY_AFTER_MAX);
        self.retry_at = Some(self.retry_at.map_or(again, |when| when.min(again)));
    }

    /// Whether a message up to this number is in flight.
    pub(crate) fn carries_up_to(&self, serial: u64) -> bool {
        let sendings = self.flights.iter().flatten().filter_map(|flight| flight.sending.as_ref());
        sendings.into_iter().any(|sending| sending.id.serial <= serial)
    }

    /// Takes a flight that has landed.
    fn landed(&mut self, note: u64) -> Option<Flight> {
        let number = usize::try_from(note).ok()?;
        let flight = self.flights.get_mut(number).and_then(Option::take)?;
        self.free_flights.push(number);
        if self.vector.retires() {
            self.retire(None);
        }
        Some(flight)
    }
}

impl Carrier for Ofi {
    type Own = Connection<Route>;
    type Fault = Fault;

    /// Some providers copy at once.
    const MOVE_MAX: u64 = 1 << 20;

    fn is_again(fault: &Fault) -> bool {
        fault.is_again()
    }

    fn room(&self, to: &Connection<Route>) -> usize {
        to.route.remote.as_ref().map_or(0, |remote| remote.frame.saturating_sub(HEADER + KEY))
    }

    /// `Some`: the number of its flight, of which is told.
    fn hand(
        &mut self,
        (peer, to): (Peer, &mut Connection<Route>),
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, Fault> {
        let Some(Remote { link, key, address, .. }) = to.route.remote else {
            return Err(Fault::new("fi_send", nix::libc::EAGAIN));
        };
        let flight = self.free_flights.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let whole = HEADER + KEY + len;
        let is_told = self.asks;
        let handed = self.endpoint().send(address, (whole, is_told), flight as u64, |frame| {
            let (head, rest) = frame.split_first_chunk_mut().expect("a frame holds its header");
            header.encode(link, head);
            let (place, content) = rest.split_at_mut(KEY);
            place.copy_from_slice(&key.to_le_bytes());
            fill(content)
        });
        if handed == Ok(Handed::Lent) {
            self.flights[flight] = Some(Flight { peer, address, sending: None });
        } else {
            self.free_flights.push(flight);
        }
        Ok((handed? == Handed::Lent).then_some(flight))
    }

    fn keep(&mut self, frame: usize, sending: Sending) {
        let flight = self.flights[frame].as_mut().expect("it was handed over just now");
        flight.sending = Some(sending);
    }

    fn may_lend(&self, to: &Connection<Route>, _is_written: bool) -> bool {
        to.route.remote.as_ref().is_some_and(|remote| remote.one_sided)
    }

    fn lend(
        &mut self,
        _to: &Connection<Route>,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, Grant), Fault> {
        self.endpoint().lend(memory, run, is_written)
    }

    fn revoke(&mut self, lent: usize) {
        self.endpoint().revoke(lent);
    }

    fn move_run(
        &mut self,
        (peer, with): (Peer, &mut Connection<Route>),
        grant: Grant,
        run: (&Held, Segment),
        (to_peer, id): (bool, u64),
    ) -> Result<bool, Fault> {
        let unreached = Fault::new("fi_write", nix::libc::EHOSTDOWN);
        let address = with.route.remote.as_ref().ok_or(unreached)?.address;
        let note = self.last_move + 1;
        let endpoint = self.endpoint();
        if !endpoint.reaches_memory_of(address) {
            return Err(unreached);
        }
        endpoint.move_run((address, grant), run, to_peer, note)?;
        self.last_move = note;
        self.moves.insert(note, (peer, id));
        Ok(true)
    }
}

impl Transport for Ofi {
    type Place = Place;
    type Route = Route;
    type Hello = Greeting;

    const NAME: &'static str = "ofi";
    const AWAITS_READY: bool = false;

    fn target(&self, address: &Address) -> Result<Place, Error> {
        target(address, &self.shared.provider)
    }

    /// With a key that nobody guesses.
    fn route(&self) -> Result<Route, Error> {
        let key = u64::from_le_bytes(*random()?.first_chunk().expect("16 bytes hold 8"));
        Ok(Route { key, remote: None, stalled: None, waits: false })
    }

    fn dial(&mut self, to: &Place, _route: &mut Route) -> io::Result<Lifeline> {
        Lifeline::connect(to, None, self.shared.common.bounds.silence_bound)
    }

    /// libfabric's shm trusts whatever lies in a peer's memory.
    fn admits(&self, lifeline: &Lifeline) -> Result<(), String> {
        match lifeline.other_user() {
            None => Ok(()),
            Some(uid) => Err(format!(
                "ofi+shm is for processes of one user, and the other side is user {uid}'s: use sm with its setting allow-uid, or ofi+tcp"
            )),
        }
    }

    fn introduce(
        &mut self,
        place: u32,
        route: &mut Route,
        _ip: Option<IpAddr>,
    ) -> Result<Greeting, Error> {
        let (link, key, provider) = (place, route.key, self.shared.speech());
        let endpoint = self.endpoint();
        let frame = u32::try_from(endpoint.frame_size()).expect("frames are short");
        let (one_sided, name) = (endpoint.is_one_sided(), endpoint.name().to_vec());
        Ok(Greeting { link, key, frame, one_sided, provider, name })
    }

    fn meet(
        &mut self,
        _place: u32,
        connection: &mut Connection<Route>,
        hello: Greeting,
    ) -> Result<(), Unmet> {
        let own = self.shared.speech();
        let Greeting { link, key, frame, one_sided, provider, name } = hello;
        if provider != own {
            let why = format!("it speaks {provider}, this side {own}");
            return Err(Unmet::Refused(why.clone(), GoneReason::Refused(why.into())));
        }
        if name.is_empty() || !FRAME_RANGE.contains(&frame) {
            return Err(Unmet::Misbehaved("a greeting with impossible numbers"));
        }
        if self.shared.provider == LOCAL && is_of_other_user(&name) {
            return Err(Unmet::Misbehaved("a greeting that names another user's memory"));
        }
        let Self { vector, endpoint, .. } = self;
        let endpoint = endpoint.as_mut().expect("taken only by drop");
        let address = vector.know(&name, || endpoint.insert(&name)).map_err(|error| {
            let why = format!("libfabric does not take its address: {error}");
            Unmet::Refused(why.clone(), GoneReason::Unreachable(why.into()))
        })?;
        let one_sided = one_sided && self.endpoint().reaches_memory_of(address);
        let theirs = usize::try_from(frame).unwrap_or(usize::MAX);
        let frame = self.endpoint().frame_size().min(theirs);
        connection.route.remote = Some(Remote { link, key, address, name, frame, one_sided });
        Ok(())
    }

    fn part(
        &mut self,
        peer: Peer,
        route: &mut Route,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    ) {
        for flight in self.flights.iter_mut().flatten().filter(|flight| flight.peer == peer) {
            done.extend(flight.sending.take().map(|sending| ended(sending, reason)));
        }
        let Some(remote) = route.remote.take() else { return };
        if *reason == GoneReason::Exited && self.shared.provider == LOCAL {
            self.endpoint().peer_has_died();
            clear_up(&remote.name);
        }
        self.vector.unknow(remote.name, Instant::now());
        self.retire(None);
    }

    /// Within a machine, memory is written by the peer's process itself.
    fn reaches_nothing(&self, reason: &GoneReason) -> bool {
        *reason == GoneReason::Exited && self.shared.provider == LOCAL
    }

    fn unreachable(fault: Fault) -> GoneReason {
        GoneReason::Unreachable(format!("libfabric: {fault}").into())
    }

    /// libfabric takes nothing: tried again in every round, and after a while without one.
    fn stalls(&mut self, connection: &mut Connection<Route>, now: Instant) -> Result<(), Fault> {
        let Connection { route, lifeline, .. } = connection;
        route.waits = true;
        if route.address().is_some_and(|it| self.starves(it, now)) {
            route.stalled = None;
            return Ok(());
        }
        let stall = route.stalled.get_or_insert_with(|| Stall::begin(now));
        match (stall.goes_on(now, self.shared.retry_bound), lifeline) {
            (Next::GiveUp, _) => return Err(Fault::new("fi_send", nix::libc::ETIMEDOUT)),
            (Next::Ask, Some(lifeline)) => lifeline.say(&Record::<Greeting>::Ping),
            (Next::Ask, None) | (Next::Wait, _) => {}
        }
        let lasted = stall.lasted(now);
        self.try_again(now, lasted);
        Ok(())
    }

    fn flows(&mut self, route: &mut Route) {
        (route.stalled, route.waits) = (None, false);
    }

    fn answered(&mut self, route: &mut Route) {
        if let Some(stall) = &mut route.stalled {
            stall.answered(Instant::now());
        }
    }

    fn poll(context: &mut OfiContext) -> Result<bool, Error> {
        let mut events = mem::take(&mut context.transport.events);
        context.transport.endpoint().poll(&mut events)?;
        let found = !events.is_empty();
        events.drain(..).for_each(|event| happened(context, event));
        context.transport.events = events;
        // Unless a frame has moved since.
        let count = context.transport.endpoint().sends().count();
        if let Some((address, _)) = context.transport.blamed.take().filter(|it| it.1 == count) {
            tracing::warn!(
                "a peer that takes nothing has frames that all others wait for: it is given up"
            );
            way_lost(context, address, Fault::new("fi_send", nix::libc::ETIMEDOUT));
        }
        Ok(found)
    }

    fn begins_sending(&mut self, now: Instant) -> bool {
        self.retry_at.take().is_some_and(|when| when <= now)
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        let is_due = self.vector.deadline().is_some_and(|when| when <= now);
        if is_due {
            self.retire(Some(now));
        }
        is_due
    }

    fn deadline(&self) -> Option<Instant> {
        self.vector.deadline().into_iter().chain(self.retry_at).min()
    }

    fn can_send(context: &mut OfiContext) -> bool {
        let FramedContext { busy, links, .. } = context;
        let waits = |place: &u32| links.at(*place).is_none_or(|link| link.way.own.route.waits());
        !busy.iter().all(waits)
    }

    fn needs_a_look(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.sends().out() > 0)
    }

    fn arms(context: &mut OfiContext) -> bool {
        context.transport.endpoint().may_wait()
    }

    /// What libfabric has let go of is waited for by who hears this side's goodbye.
    fn flush(context: &mut OfiContext) -> bool {
        flushing::flush(context)
    }

    fn close(context: &mut OfiContext) {
        flushing::close(context);
    }

    fn forget(&mut self) {
        mem::forget(self.endpoint.take());
    }
}

/// Where a frame that has come lies.
enum Frame {
    /// In libfabric's memory.
    Lent(Arrival),
    /// In this process's.
    Near(Vec<u8>),
}

fn happened(context: &mut OfiContext, event: Event) {
    match event {
        Event::Arrived(arrival) => frame_came(context, &Frame::Lent(arrival)),
        Event::Near(bytes) => frame_came(context, &Frame::Near(bytes)),
        Event::Sent(note) => flight_landed(context, note, None),
        Event::Unsent(note, fault) => flight_landed(context, note, Some(fault)),
        Event::Moved(note, fault) => {
            if let Some(fault) = fault {
                tracing::debug!(%fault, "a move to or from lent memory failed");
            }
            if let Some((peer, id)) = context.transport.moves.remove(&note) {
                context.moved(peer, id, fault.is_some());
            }
        }
        Event::Lost(address, fault) => way_lost(context, address, fault),
        // Of a receive: whose it was is not known. A connection that is broken shows on its lifeline, or is stalled.
        Event::Failed(fault) => tracing::debug!(%fault, "libfabric reports a failure of nobody's"),
    }
}

/// Takes a frame. One that names no connection, or has the wrong key, is nobody's: a stranger's, or late.
#[inline]
fn frame_came(context: &mut OfiContext, frame: &Frame) {
    let FramedContext { links, transport, .. } = context;
    let regions = &transport.shared.common.regions;
    let Some(endpoint) = &mut transport.endpoint else { return };
    let bytes = match frame {
        Frame::Lent(arrival) => endpoint.arrived(*arrival),
        Frame::Near(bytes) => bytes,
    };
    let came = Header::decode(bytes).and_then(|(place, header, rest)| {
        let (key, content) = key_of(rest)?;
        let link = links.at(place)?;
        let is_its = link.way.own.route.key == key && link.way.own.listens();
        is_its.then(|| (place, exchange::take(link, regions, &header, content)))
    });
    if let Frame::Lent(arrival) = frame {
        endpoint.was_seen(*arrival);
    }
    if let Some((place, came)) = came {
        context.came(place, came);
    }
}

/// A flight has landed: its message was sent, or its connection is broken.
fn flight_landed(context: &mut OfiContext, note: u64, fault: Option<Fault>) {
    let Some(flight) = context.transport.landed(note) else { return };
    let Some(link) = context.links.find(flight.peer) else { return };
    match fault {
        None => {
            link.way.frames_sent += 1;
            if let Some(sending) = flight.sending {
                sending.sent(&mut context.finished);
            }
        }
        Some(fault) => {
            let reason = Ofi::unreachable(fault);
            context.finished.extend(flight.sending.map(|sending| ended(sending, &reason)));
            context.way_broke(flight.peer.index(), fault);
        }
    }
}

/// The way to an address is broken: a frame that was said to have left is lost, whose answer would be waited for in vain, or it takes nothing.
fn way_lost(context: &mut OfiContext, address: u64, fault: Fault) {
    let is_cut = |route: &Route| route.address() == Some(address);
    let cut = context.links.iter().filter(|link| is_cut(&link.way.own.route));
    let places: Vec<u32> = cut.map(|link| link.peer.index()).collect();
    places.into_iter().for_each(|place| context.way_broke(place, fault));
}

/// Ends a message whose peer may have got it.
fn ended(sending: Sending, why: &GoneReason) -> Completion {
    sending.end(Some((Error::PeerGone(why.clone()), Reached::Unknown)))
}
