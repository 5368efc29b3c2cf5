//! Lifelines, timers, and how connections begin and end.

use std::{
    mem,
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Peer};
use hg_na_parts::{limits, regions::random};
use nix::sys::epoll::EpollFlags;

use crate::{
    card::{Fault, Side},
    context::{Parting, VerbsContext},
    lifeline::{Cut, Lifeline},
    waiter::LISTENER,
    way::Phase,
    wire::Record,
};

/// How long frames are awaited that a goodbye has announced.
const DRAIN_AFTER_GOODBYE: Duration = Duration::from_secs(1);
/// After a death: at least so long and so many rounds without a frame.
const DRAIN_AFTER_DEATH: Duration = Duration::from_millis(20);
const DRAIN_ROUNDS: u32 = 32;
/// How long a queue pair stays whose peer has not got everything.
const PART_WAITS: Duration = Duration::from_secs(1);

impl VerbsContext {
    /// Asks the kernel for news, and acts on it; says whether there was any.
    ///
    /// # Errors
    /// [`Error::Os`]: the wait set is lost.
    pub(crate) fn attend_lifelines(&mut self, now: Instant) -> Result<bool, Error> {
        let mut told = mem::take(&mut self.told);
        if told.is_empty() {
            self.waiter.ask(&mut told)?;
        }
        self.must_ask = !told.is_empty();
        let moved = !told.is_empty();
        for (name, _) in told.drain(..) {
            match u32::try_from(name) {
                Ok(place) => self.attend(place, now),
                Err(_) if name == LISTENER => self.accept(now),
                Err(_) => {}
            }
        }
        self.told = told;
        Ok(moved)
    }

    pub(crate) fn watch(&mut self, place: u32, mut lifeline: Lifeline) {
        let interest = lifeline.changed_interest().unwrap_or(EpollFlags::empty());
        let watched = self.waiter.add(lifeline.fd(), u64::from(place), interest);
        if let Some(link) = self.links.at(place) {
            link.way.lifeline = Some(lifeline);
        }
        if let Err(error) = watched {
            let reason = match error {
                Error::Limit { .. } => GoneReason::Exhausted(error.to_string().into()),
                _ => GoneReason::Unreachable(error.to_string().into()),
            };
            self.end_now(place, reason);
        }
    }

    /// A queue pair for a connection; what the other side is told of it.
    fn make_pair(&mut self, place: u32) -> Result<Side, Error> {
        let first_packet = u32::from_le_bytes(*random()?.first_chunk().expect("16 bytes hold 4"));
        let side = self.endpoint().pair(place, first_packet)?;
        if let Some(link) = self.links.at(place) {
            link.way.pair = Some(side.number);
        }
        Ok(side)
    }

    /// Begins to connect.
    pub(crate) fn connect(&mut self, peer: Peer) {
        let now = Instant::now();
        let settings = &self.shared.settings;
        let (silence, deadline) = (settings.silence_bound, now + settings.connect_timeout);
        let (from, place) = (self.shared.ip(), peer.index());
        let Some(link) = self.links.find(peer) else { return };
        let Some(target) = link.target else { return };
        link.way.phase = Phase::Connecting;
        let side = match self.make_pair(place) {
            Ok(side) => side,
            Err(error) => {
                let reason = GoneReason::Exhausted(error.to_string().into());
                return self.not_connected(peer, reason, now);
            }
        };
        match Lifeline::connect(from, target, silence) {
            Ok(mut lifeline) => {
                lifeline.say(&Record::Hello(side));
                self.at(deadline, place);
                self.watch(place, lifeline);
                self.must_ask = true;
            }
            Err(error) => self.not_connected(peer, limits::unreachable("connect", &error), now),
        }
    }

    /// Told by the next progress, not inside a post.
    fn not_connected(&mut self, peer: Peer, reason: GoneReason, now: Instant) {
        if let Some(link) = self.links.find(peer) {
            link.way.phase = Phase::Draining { until: Some(0), since: now, seen: 0, quiet: 0 };
        }
        self.links.close(peer, reason);
        self.draining.push(peer.index());
    }

    fn attend(&mut self, place: u32, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        let Some(mut lifeline) = link.way.lifeline.take() else { return };
        let (peer, mut said) = (link.peer, Vec::new());
        let cut = lifeline.attend(&mut said).err();
        link.way.lifeline = Some(lifeline);
        for record in said {
            if self.links.find(peer).is_some() {
                self.heard(place, record, now);
            }
        }
        if self.links.find(peer).is_none() {
            return;
        }
        match cut {
            Some(cut) => self.was_cut(place, cut, now),
            None => self.watch_on(place),
        }
    }

    /// What a lifeline waits for may be something else now.
    fn watch_on(&mut self, place: u32) {
        let Some(mut lifeline) = self.links.at(place).and_then(|link| link.way.lifeline.take())
        else {
            return;
        };
        lifeline.flush();
        if let Some(interest) = lifeline.changed_interest() {
            let changed = self.waiter.change(lifeline.fd(), u64::from(place), interest);
            debug_assert!(changed.is_ok(), "a descriptor of the set is changed");
        }
        if let Some(link) = self.links.at(place) {
            link.way.lifeline = Some(lifeline);
        }
    }

    fn heard(&mut self, place: u32, record: Record, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        let peer = link.peer;
        match (record, &mut link.way.phase) {
            (Record::Hello(side), Phase::Greeting { .. }) => self.greeted(place, &side),
            (Record::Welcome(side), Phase::Connecting) => self.welcomed(place, &side),
            (Record::Ready, Phase::Awaiting) => self.is_ready(place),
            // A frame came first.
            (Record::Ready, Phase::Open) => {}
            (Record::Refuse(why), Phase::Connecting | Phase::Awaiting | Phase::Open) => {
                self.end_now(place, GoneReason::Refused(why.into()));
            }
            (Record::Goodbye(count), Phase::Open | Phase::Awaiting) => {
                self.drain(place, GoneReason::Closed, Some(count), now);
            }
            (Record::Goodbye(count), Phase::Draining { until, .. }) => {
                *until = Some(count);
                self.links.close(peer, GoneReason::Closed);
            }
            (Record::Goodbye(_), Phase::Connecting) => self.end_now(place, GoneReason::Closed),
            (_, Phase::Draining { .. } | Phase::Ended) => {}
            _ => self.misbehaved(place, "a word on the lifeline that is out of turn"),
        }
    }

    /// Whether a GID is that of the other end of the lifeline: the kernel has its neighbour's address then, and asks nobody.
    fn is_of_lifeline(&mut self, place: u32, side: &Side) -> bool {
        let is_ethernet = self.shared.device.found.is_ethernet();
        let lifeline = self.links.at(place).and_then(|link| link.way.lifeline.as_ref());
        !is_ethernet || lifeline.is_some_and(|it| it.ip == side.ip())
    }

    /// Somebody has introduced himself.
    fn greeted(&mut self, place: u32, side: &Side) {
        if self.acquaintances() >= self.shared.settings.max_peers {
            let why = "it has as many peers as its setting max-peers allows";
            self.refuse(place, why);
            return self.end_now(place, GoneReason::Refused(why.into()));
        }
        if !self.is_of_lifeline(place, side) {
            return self.misbehaved(place, "a GID of another address than it comes from");
        }
        let own = self.make_pair(place).and_then(|own| {
            self.endpoint().connect(own.number, side)?;
            Ok(own)
        });
        match own {
            Ok(own) => {
                self.no_stranger(place);
                let Some(link) = self.links.at(place) else { return };
                link.way.phase = Phase::Awaiting;
                if let Some(lifeline) = &mut link.way.lifeline {
                    lifeline.say(&Record::Welcome(own));
                }
            }
            Err(error) => {
                let why = format!("it has no queue pair: {error}");
                self.refuse(place, &why);
                self.end_now(place, GoneReason::Unreachable(why.into()));
            }
        }
    }

    /// The other side receives: from now on frames flow.
    fn welcomed(&mut self, place: u32, side: &Side) {
        if !self.is_of_lifeline(place, side) {
            return self.misbehaved(place, "a GID of another address than it is reached at");
        }
        let Some(pair) = self.links.at(place).and_then(|link| link.way.pair) else { return };
        if let Err(fault) = self.endpoint().connect(pair, side) {
            return self.end_now(place, unreachable(fault));
        }
        if let Some(lifeline) = self.links.at(place).and_then(|link| link.way.lifeline.as_mut()) {
            lifeline.say(&Record::Ready);
        }
        self.opened(place);
    }

    /// The end that connected receives, too.
    pub(crate) fn is_ready(&mut self, place: u32) {
        if self.links.at(place).is_some_and(|link| matches!(link.way.phase, Phase::Awaiting)) {
            // Where it is a frame that says so, the word on the lifeline waits to be read.
            self.must_ask = true;
            self.opened(place);
        }
    }

    fn opened(&mut self, place: u32) {
        self.untime(place);
        let Some(link) = self.links.at(place) else { return };
        let (peer, way) = (link.peer, &mut link.way);
        way.phase = Phase::Open;
        if let Some(lifeline) = &way.lifeline {
            way.identity = lifeline.peer.clone();
        }
        self.mark_busy(peer);
    }

    fn was_cut(&mut self, place: u32, cut: Cut, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        // Nothing is heard of it any more; the kernel would tell again and again.
        link.way.lifeline = None;
        let peer = link.peer;
        match (&link.way.phase, cut) {
            (Phase::Open, Cut::Silent) => self.drain(place, GoneReason::TimedOut, None, now),
            (Phase::Open, Cut::Exited | Cut::NotThere(_)) => {
                self.drain(place, GoneReason::Exited, None, now);
            }
            // Its queue pair was in error first, and this is why.
            (Phase::Draining { until: None, .. }, Cut::Exited) => {
                self.links.close(peer, GoneReason::Exited);
            }
            (Phase::Draining { .. } | Phase::Ended | Phase::Idle, _) => {}
            (_, Cut::Rubbish(why)) => self.misbehaved(place, why),
            (_, Cut::NotThere(error)) => {
                self.end_now(place, limits::unreachable("connect", &error));
            }
            (_, Cut::Exited) => {
                let why = "it hung up before its greeting";
                self.end_now(place, GoneReason::Unreachable(why.into()));
            }
            (_, Cut::Silent) => self.end_now(place, GoneReason::TimedOut),
        }
    }

    /// The queue pair is in error; the lifeline may know more in a moment.
    pub(crate) fn way_broke(&mut self, place: u32, fault: Fault) {
        match self.links.at(place).map(|link| &link.way.phase) {
            Some(Phase::Open) => {
                self.must_ask = true;
                self.drain(place, unreachable(fault), None, Instant::now());
            }
            Some(Phase::Awaiting) => self.end_now(place, unreachable(fault)),
            _ => {}
        }
    }

    /// Takes what is still to come, then ends the connection.
    fn drain(&mut self, place: u32, reason: GoneReason, until: Option<u64>, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        let (peer, seen) = (link.peer, link.way.frames_received);
        link.way.phase = Phase::Draining { until, since: now, seen, quiet: 0 };
        self.links.close(peer, reason);
        self.untime(place);
        self.draining.push(place);
    }

    /// Looks at every connection that drains.
    pub(crate) fn drain_all(&mut self, now: Instant) {
        for place in mem::take(&mut self.draining) {
            let Some(link) = self.links.at(place) else { continue };
            let came = link.way.frames_received;
            let Phase::Draining { until, since, seen, quiet } = &mut link.way.phase else {
                continue;
            };
            *quiet = if *seen == came { *quiet + 1 } else { 0 };
            *seen = came;
            let lasted = now.saturating_duration_since(*since);
            let is_over = match until {
                Some(until) => came >= *until || lasted >= DRAIN_AFTER_GOODBYE,
                None => *quiet >= DRAIN_ROUNDS && lasted >= DRAIN_AFTER_DEATH,
            };
            match link.gone().cloned() {
                Some(reason) if is_over => self.end_now(place, reason),
                _ => self.draining.push(place),
            }
        }
    }

    /// Ends a connection: its operations at once, and itself, once what waits for admission was handed out.
    pub(crate) fn end_now(&mut self, place: u32, reason: GoneReason) {
        self.untime(place);
        self.no_stranger(place);
        let Some(link) = self.links.at(place) else { return };
        let (peer, way) = (link.peer, &mut link.way);
        way.lifeline = None;
        let (pair, before) = (way.pair.take(), mem::replace(&mut way.phase, Phase::Ended));
        if let Some(pair) = pair {
            match reason {
                GoneReason::Forgotten => self.part(pair),
                _ => self.endpoint().destroy(pair),
            }
        }
        if matches!(before, Phase::Greeting { .. } | Phase::Awaiting) {
            // Nobody here has heard of it.
            return self.links.drop_unmet(peer);
        }
        let lent = self.links.end(peer, &reason, &mut self.finished);
        self.take_back(lent);
    }

    /// Its peer is to have what was sent.
    fn part(&mut self, pair: u32) {
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

    /// Tells the other side why it is disconnected.
    pub(crate) fn refuse(&mut self, place: u32, why: &str) {
        if let Some(lifeline) = self.links.at(place).and_then(|link| link.way.lifeline.as_mut()) {
            lifeline.say(&Record::Refuse(why.to_owned()));
        }
    }

    /// Says goodbye to the other side.
    pub(crate) fn say_goodbye(&mut self, place: u32) {
        if let Some(link) = self.links.at(place).filter(|link| link.way.is_open()) {
            let goodbye = Record::Goodbye(link.way.frames_sent);
            if let Some(lifeline) = &mut link.way.lifeline {
                lifeline.say(&goodbye);
            }
        }
    }

    /// Runs what is due; says whether anything was.
    pub(crate) fn run_timers(&mut self, now: Instant) -> bool {
        let mut moved = !self.parting.is_empty() && self.destroy_parted(now);
        if self.accept_at.is_some_and(|when| when <= now) {
            self.accept_at = None;
            if let Some(listener) = &self.listener {
                let resumed = self.waiter.change(listener.fd(), LISTENER, EpollFlags::EPOLLIN);
                debug_assert!(resumed.is_ok(), "a descriptor of the set is changed");
            }
            moved = true;
        }
        while let Some((when, place)) =
            self.timers.first().copied().filter(|(when, _)| *when <= now)
        {
            self.timers.remove(&(when, place));
            moved = true;
            let Some(link) = self.links.at(place) else { continue };
            link.way.timer = None;
            if matches!(
                link.way.phase,
                Phase::Connecting | Phase::Greeting { .. } | Phase::Awaiting
            ) {
                self.end_now(place, GoneReason::TimedOut);
            }
        }
        moved
    }

    /// Says goodbye to everybody, and waits, for a bounded time, until their cards have what was sent.
    pub(crate) fn close_all(&mut self) {
        let open: Vec<_> =
            self.links.iter().map(|link| (link.peer.index(), link.way.pair)).collect();
        for (place, pair) in open {
            self.say_goodbye(place);
            if let Some(pair) = pair {
                self.part(pair);
            }
        }
        let mut events = Vec::new();
        while !self.parting.is_empty() {
            events.clear();
            if self.endpoint().poll(&mut events).is_err() {
                return;
            }
            let frames = events.iter().filter_map(|event| match event {
                crate::card::Event::Arrived { frame, .. } => Some(*frame),
                crate::card::Event::Moved { .. } | crate::card::Event::Broken { .. } => None,
            });
            let frames: Vec<_> = frames.collect();
            frames.into_iter().for_each(|frame| self.endpoint().was_seen(frame));
            self.destroy_parted(Instant::now());
        }
    }
}

/// Why a peer cannot be reached through the card.
fn unreachable(fault: Fault) -> GoneReason {
    GoneReason::Unreachable(format!("verbs: {fault}").into())
}
