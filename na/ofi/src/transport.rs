//! How a context reaches its peers by libfabric: what [`hg_na_frames`] asks of a transport.

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

use crate::{
    address::{LOCAL, target},
    fabric::{Arrival, Endpoint, Event, Fault, Handed},
    leftovers::{clear_up, is_of_other_user},
    shared::Shared,
    wire::{Greeting, KEY, key_of},
};

/// Time after which a frame that libfabric did not take is tried again while nobody makes progress.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// The same for one that was not taken for long.
const RETRY_AFTER_MAX: Duration = Duration::from_millis(16);
/// How long closing waits for frames that libfabric still has.
const CLOSE_WAITS: Duration = Duration::from_secs(1);
/// How long a frame that libfabric never gives back keeps its target's address.
const RETIRE_AFTER: Duration = Duration::from_secs(1);
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
    /// Since when libfabric takes nothing for it, and whether it has answered a ping since.
    stalled: Option<(Instant, bool)>,
}

/// A frame that libfabric has.
#[derive(Debug)]
struct Flight {
    peer: Peer,
    address: u64,
    /// The message that is sent with it, as a whole.
    sending: Option<Sending>,
}

/// An endpoint's address in libfabric's vector, while connections use it.
#[derive(Debug)]
struct Known {
    address: u64,
    users: usize,
}

/// An address that no connection uses any more.
#[derive(Debug)]
struct Retiring {
    name: Vec<u8>,
    address: u64,
    /// When it is removed at the latest.
    by: Instant,
}

/// What a context has of libfabric.
pub(crate) struct Ofi {
    shared: Arc<Shared>,
    /// There until the context is dropped.
    endpoint: Option<Endpoint>,
    known: FxHashMap<Vec<u8>, Known>,
    /// Addresses to be removed once nothing is under way to them, and when at the latest.
    retiring: Vec<Retiring>,
    flights: Vec<Option<Flight>>,
    free_flights: Vec<usize>,
    /// Moves that libfabric makes for transfers of peers, by number.
    moves: FxHashMap<u64, (Peer, u64)>,
    last_move: u64,
    flush: Flush,
    /// libfabric took a frame no more: it is tried again at this time.
    retry_at: Option<Instant>,
    events: Vec<Event>,
}

impl Ofi {
    pub(crate) fn new(shared: Arc<Shared>, endpoint: Endpoint) -> Self {
        Self {
            shared,
            endpoint: Some(endpoint),
            known: FxHashMap::default(),
            retiring: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            moves: FxHashMap::default(),
            last_move: 0,
            flush: Flush::default(),
            retry_at: None,
            events: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        self.endpoint.as_mut().expect("taken only by drop")
    }

    /// An endpoint's address in libfabric's vector, inserted once however many connections use it.
    fn know(&mut self, name: &[u8]) -> Result<u64, Error> {
        if let Some(known) = self.known.get_mut(name) {
            known.users += 1;
            return Ok(known.address);
        }
        let retiring = self.retiring.iter().position(|it| it.name == name);
        let address = match retiring {
            Some(place) => self.retiring.swap_remove(place).address,
            None => self.endpoint().insert(name)?,
        };
        self.known.insert(name.to_vec(), Known { address, users: 1 });
        Ok(address)
    }

    fn unknow(&mut self, remote: Remote) {
        let Some(known) = self.known.get_mut(&remote.name) else { return };
        known.users -= 1;
        if known.users > 0 {
            return;
        }
        self.known.remove(&remote.name);
        let by = Instant::now() + RETIRE_AFTER;
        self.retiring.push(Retiring { name: remote.name, address: remote.address, by });
        self.retire(None);
    }

    /// Removes addresses to which nothing is under way any more, or that have waited long enough.
    fn retire(&mut self, now: Option<Instant>) {
        let mut place = 0;
        while let Some(it) = self.retiring.get(place) {
            let used = self.flights.iter().flatten().any(|flight| flight.address == it.address);
            if used && now.is_none_or(|now| now < it.by) {
                place += 1;
                continue;
            }
            let address = self.retiring.swap_remove(place).address;
            self.endpoint().remove(address);
        }
    }

    /// Takes a flight that has landed.
    fn landed(&mut self, note: u64) -> Option<Flight> {
        let number = usize::try_from(note).ok()?;
        let flight = self.flights.get_mut(number).and_then(Option::take)?;
        self.free_flights.push(number);
        if !self.retiring.is_empty() {
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
        let handed = self.endpoint().send(address, whole, flight as u64, |frame| {
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

    fn may_lend(&self, to: &Connection<Route>) -> bool {
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
        Ok(Route { key, remote: None, stalled: None })
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
        let address = self.know(&name).map_err(|error| {
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
        self.unknow(remote);
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
        let (since, has_answered) = *route.stalled.get_or_insert_with(|| {
            if let Some(lifeline) = lifeline {
                lifeline.say(&Record::<Greeting>::Ping);
            }
            (now, false)
        });
        let lasted = now.saturating_duration_since(since);
        // One that makes no progress itself has not answered: it is waited for, as for credits.
        if has_answered && lasted > self.shared.retry_bound {
            return Err(Fault::new("fi_send", nix::libc::ETIMEDOUT));
        }
        let again = now + (lasted / 4).clamp(RETRY_AFTER, RETRY_AFTER_MAX);
        self.retry_at = Some(self.retry_at.map_or(again, |when| when.min(again)));
        Ok(())
    }

    fn flows(&mut self, route: &mut Route) {
        route.stalled = None;
    }

    fn answered(&mut self, route: &mut Route) {
        if let Some((_, has_answered)) = &mut route.stalled {
            *has_answered = true;
        }
    }

    fn poll(context: &mut OfiContext) -> Result<bool, Error> {
        let mut events = mem::take(&mut context.transport.events);
        context.transport.endpoint().poll(&mut events)?;
        let found = !events.is_empty();
        events.drain(..).for_each(|event| happened(context, event));
        context.transport.events = events;
        Ok(found)
    }

    fn begins_sending(&mut self, now: Instant) -> bool {
        self.retry_at.take().is_some_and(|when| when <= now)
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        let is_due = self.retiring.iter().any(|it| it.by <= now);
        if is_due {
            self.retire(Some(now));
        }
        is_due
    }

    fn deadline(&self) -> Option<Instant> {
        self.retiring.iter().map(|it| it.by).chain(self.retry_at).min()
    }

    fn can_send(context: &mut OfiContext) -> bool {
        !context.busy.is_empty() && context.transport.retry_at.is_none()
    }

    fn needs_a_look(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.lent() > 0)
    }

    fn arms(context: &mut OfiContext) -> bool {
        context.transport.endpoint().may_wait()
    }

    /// What libfabric has let go of is waited for by who hears this side's goodbye.
    fn flush(context: &mut OfiContext) -> bool {
        let FramedContext { links, transport: Self { flush, flights, .. }, .. } = context;
        flush.ask(links.serial(), |to| {
            let in_flight = flights.iter().flatten().filter_map(|flight| flight.sending.as_ref());
            links.iter().all(|link| link.queues.has_passed_on(to))
                && in_flight.into_iter().all(|sending| sending.id.serial > to)
        })
    }

    /// Sees off what libfabric still has, and says goodbye to everybody.
    fn close(context: &mut OfiContext) {
        let (end, mut events) = (Instant::now() + CLOSE_WAITS, Vec::new());
        while !context.is_broken() {
            if context.transport.endpoint().poll(&mut events).is_err() {
                break;
            }
            let found = !events.is_empty();
            for event in events.drain(..) {
                match event {
                    Event::Arrived(it) => context.transport.endpoint().was_seen(it),
                    Event::Sent(note) => flight_landed(context, note, None),
                    Event::Near(_)
                    | Event::Moved(..)
                    | Event::Unsent(..)
                    | Event::Lost(..)
                    | Event::Failed(_) => {}
                }
            }
            let is_out = context.transport.endpoint().lent() > 0;
            // Others may go on sending.
            if (!found && !is_out) || Instant::now() >= end {
                break;
            }
        }
        let all: Vec<_> = context.links.iter().map(|link| link.peer.index()).collect();
        all.into_iter().for_each(|place| context.say_goodbye(place));
        drop(context.transport.endpoint.take());
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
        Event::Lost(address, fault) => frame_lost(context, address, fault),
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

/// A frame that was said to have left is lost: whoever waits for an answer to it would wait in vain.
fn frame_lost(context: &mut OfiContext, address: u64, fault: Fault) {
    let is_cut = |route: &Route| route.remote.as_ref().is_some_and(|it| it.address == address);
    let cut = context.links.iter().filter(|link| is_cut(&link.way.own.route));
    let places: Vec<u32> = cut.map(|link| link.peer.index()).collect();
    places.into_iter().for_each(|place| context.way_broke(place, fault));
}

/// Ends a message whose peer may have got it.
fn ended(sending: Sending, why: &GoneReason) -> Completion {
    sending.end(Some((Error::PeerGone(why.clone()), Reached::Unknown)))
}
