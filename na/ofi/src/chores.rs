//! Lifelines, timers, and how connections begin and end.

use std::{
    io, mem,
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Peer};
use hg_na_parts::limits;
use nix::sys::epoll::EpollFlags;

use crate::{
    address::LOCAL,
    context::{Flight, Known, OfiContext, RETIRE_AFTER, Retiring},
    fabric::Fault,
    leftovers::{clear_up, is_of_other_user},
    lifeline::{Cut, Lifeline},
    link::{Phase, Remote},
    strangers::of_other_user,
    waiter::LISTENER,
    wire::{Greeting, HEADER, Record, broken_way},
};

/// How soon a connection is tried again whose target's queue was full.
const CONNECT_AGAIN: Duration = Duration::from_millis(5);
/// How long frames are awaited that a goodbye has announced.
const DRAIN_AFTER_GOODBYE: Duration = Duration::from_secs(1);
/// After a death: at least so long and so many rounds without a frame.
const DRAIN_AFTER_DEATH: Duration = Duration::from_millis(20);
const DRAIN_ROUNDS: u32 = 32;
/// How long closing waits for frames that libfabric still has.
const CLOSE_WAITS: Duration = Duration::from_secs(1);
/// Frames that a peer may name as the longest it takes.
const FRAME_RANGE: std::ops::RangeInclusive<u32> = 256..=1 << 20;

impl OfiContext {
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

    /// Begins to connect.
    pub(crate) fn connect(&mut self, peer: Peer) {
        let now = Instant::now();
        let settings = &self.shared.settings;
        let (silence, deadline) = (settings.silence_bound, now + settings.connect_timeout);
        let Some(link) = self.links.find(peer) else { return };
        let Some(target) = link.target.clone() else { return };
        let deadline = match link.way.phase {
            Phase::Connecting { deadline } => deadline,
            _ => deadline,
        };
        link.way.phase = Phase::Connecting { deadline };
        let key = link.way.key;
        match Lifeline::connect(&target, silence) {
            Ok(mut lifeline) => {
                if let Some(uid) = lifeline.other_user() {
                    let reason = GoneReason::Refused(of_other_user(uid).into());
                    return self.not_connected(peer, reason, now);
                }
                lifeline.say(&Record::Hello(self.greeting(peer.index(), key)));
                self.at(deadline, peer.index());
                self.watch(peer.index(), lifeline);
                self.must_ask = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.at((now + CONNECT_AGAIN).min(deadline), peer.index());
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

    fn greeting(&mut self, link: u32, key: u64) -> Greeting {
        let provider = self.shared.speech();
        let endpoint = self.endpoint();
        let frame = u32::try_from(endpoint.frame_size()).expect("frames are short");
        let (one_sided, name) = (endpoint.is_one_sided(), endpoint.name().to_vec());
        Greeting { link, key, frame, one_sided, provider, name }
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

    /// Says what was answered; what a lifeline waits for may be something else now.
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
            (Record::Hello(greeting), Phase::Greeting { .. }) => {
                self.greeted(place, greeting, true)
            }
            (Record::Welcome(greeting), Phase::Connecting { .. }) => {
                self.greeted(place, greeting, false);
            }
            (Record::Refuse(why), Phase::Connecting { .. } | Phase::Open) => {
                self.end_now(place, GoneReason::Refused(why.into()));
            }
            (Record::Goodbye(count), Phase::Open) => {
                self.drain(place, GoneReason::Closed, Some(count), now);
            }
            (Record::Goodbye(count), Phase::Draining { until, .. }) => {
                *until = Some(count);
                self.links.close(peer, GoneReason::Closed);
            }
            (Record::Goodbye(_), Phase::Connecting { .. }) => {
                self.end_now(place, GoneReason::Closed)
            }
            (Record::Ping, Phase::Open) => {
                if let Some(lifeline) = &mut link.way.lifeline {
                    lifeline.say_soon(&Record::Pong);
                }
            }
            (Record::Pong, Phase::Open) => {
                if let Some((_, has_answered)) = &mut link.way.stalled {
                    *has_answered = true;
                }
            }
            (_, Phase::Draining { .. } | Phase::Ended) => {}
            _ => self.misbehaved(place, "a word on the lifeline that is out of turn"),
        }
    }

    /// The other side has introduced itself: from now on frames flow.
    fn greeted(&mut self, place: u32, greeting: Greeting, is_hello: bool) {
        let own = self.shared.speech();
        if greeting.provider != own {
            let why = format!("it speaks {}, this side {own}", greeting.provider);
            self.refuse(place, &why);
            return self.end_now(place, GoneReason::Refused(why.into()));
        }
        if greeting.name.is_empty() || !FRAME_RANGE.contains(&greeting.frame) {
            return self.misbehaved(place, "a greeting with impossible numbers");
        }
        if is_hello && self.acquaintances() >= self.shared.settings.max_peers {
            let why = "it has as many peers as its setting max-peers allows";
            self.refuse(place, why);
            return self.end_now(place, GoneReason::Refused(why.into()));
        }
        if self.shared.provider == LOCAL && is_of_other_user(&greeting.name) {
            return self.misbehaved(place, "a greeting that names another user's memory");
        }
        let address = match self.know(&greeting.name) {
            Ok(address) => address,
            Err(error) => {
                let why = format!("libfabric does not take its address: {error}");
                self.refuse(place, &why);
                return self.end_now(place, GoneReason::Unreachable(why.into()));
            }
        };
        let own = self.endpoint().frame_size();
        let theirs = usize::try_from(greeting.frame).unwrap_or(HEADER);
        let one_sided = greeting.one_sided && self.endpoint().reaches_memory_of(address);
        self.no_stranger(place);
        let Some(link) = self.links.at(place) else { return };
        let (peer, way) = (link.peer, &mut link.way);
        let (link_of_theirs, frame) = (greeting.link, own.min(theirs));
        let Greeting { key, name, .. } = greeting;
        way.remote = Some(Remote { link: link_of_theirs, key, address, name, frame, one_sided });
        way.phase = Phase::Open;
        if let Some(lifeline) = &way.lifeline {
            way.identity = lifeline.peer.clone();
        }
        let own_key = way.key;
        self.untime(place);
        if is_hello {
            let welcome = Record::Welcome(self.greeting(place, own_key));
            if let Some(lifeline) = self.links.at(place).and_then(|link| link.way.lifeline.as_mut())
            {
                lifeline.say(&welcome);
            }
        }
        self.mark_busy(peer);
    }

    fn was_cut(&mut self, place: u32, cut: Cut, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        // Nothing is heard of it any more; the kernel would tell again and again.
        link.way.lifeline = None;
        if matches!(cut, Cut::Exited) {
            self.endpoint().peer_has_died();
        }
        let Some(link) = self.links.at(place) else { return };
        match (&link.way.phase, cut) {
            (Phase::Open, Cut::Silent) => self.drain(place, GoneReason::TimedOut, None, now),
            (Phase::Open, Cut::Exited | Cut::NotThere(_)) => {
                self.drain(place, GoneReason::Exited, None, now);
            }
            (Phase::Draining { .. } | Phase::Ended | Phase::Idle, _) => {}
            (_, Cut::Rubbish(why)) => self.misbehaved(place, why),
            (_, Cut::NotThere(error)) => {
                self.end_now(place, limits::unreachable("connect", &error));
            }
            (_, Cut::Exited) => {
                self.end_now(
                    place,
                    GoneReason::Unreachable("it hung up before its greeting".into()),
                );
            }
            (_, Cut::Silent) => self.end_now(place, GoneReason::TimedOut),
        }
    }

    /// The way through libfabric is broken; the lifeline may know more in a moment.
    pub(crate) fn way_broke(&mut self, place: u32, fault: Fault) {
        let is_open = self.links.at(place).is_some_and(|link| link.way.is_open());
        if is_open {
            self.must_ask = true;
            self.drain(place, unreachable(fault), None, Instant::now());
        }
    }

    /// A frame that was said to have left is lost: whoever waits for an answer to it would wait in vain.
    pub(crate) fn frame_lost(&mut self, address: u64, fault: Fault) {
        let links = self.links.iter();
        let cut =
            links.filter(|link| link.way.remote.as_ref().is_some_and(|it| it.address == address));
        let places: Vec<u32> = cut.map(|link| link.peer.index()).collect();
        for place in places {
            self.way_broke(place, fault);
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
        if matches!(mem::replace(&mut way.phase, Phase::Ended), Phase::Greeting { .. }) {
            // Nobody here has heard of it.
            return self.links.drop_unmet(peer);
        }
        let remote = way.remote.take();
        for flight in self.flights.iter_mut().flatten().filter(|flight| flight.peer == peer) {
            let sending = flight.sending.take();
            self.finished.extend(Flight { sending, ..*flight }.end(&reason));
        }
        let lent = self.links.end(peer, &reason, &mut self.finished);
        self.take_back(lent, &reason);
        if let Some(remote) = remote {
            if reason == GoneReason::Exited && self.shared.provider == LOCAL {
                clear_up(&remote.name);
            }
            self.unknow(&remote);
        }
    }

    /// Tells the other side why it is disconnected.
    pub(crate) fn refuse(&mut self, place: u32, why: &str) {
        if let Some(lifeline) = self.links.at(place).and_then(|link| link.way.lifeline.as_mut()) {
            lifeline.say(&Record::Refuse(why.to_owned()));
        }
    }

    /// Says goodbye to the other side.
    pub(crate) fn part(&mut self, place: u32) {
        if let Some(link) = self.links.at(place).filter(|link| link.way.is_open()) {
            let goodbye = Record::Goodbye(link.way.frames_sent);
            if let Some(lifeline) = &mut link.way.lifeline {
                lifeline.say(&goodbye);
            }
        }
    }

    /// Runs what is due; says whether anything was.
    pub(crate) fn run_timers(&mut self, now: Instant) -> bool {
        let mut moved = false;
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
            let peer = link.peer;
            match link.way.phase {
                Phase::Connecting { deadline } if deadline <= now => {
                    self.end_now(place, GoneReason::TimedOut);
                }
                Phase::Connecting { .. } => self.connect(peer),
                Phase::Greeting { .. } => self.end_now(place, GoneReason::TimedOut),
                _ => {}
            }
        }
        if self.retiring.iter().any(|it| it.by <= now) {
            self.retire(Some(now));
            moved = true;
        }
        moved
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

    fn unknow(&mut self, remote: &Remote) {
        let Some(known) = self.known.get_mut(&remote.name) else { return };
        known.users -= 1;
        if known.users > 0 {
            return;
        }
        self.known.remove(&remote.name);
        let by = Instant::now() + RETIRE_AFTER;
        self.retiring.push(Retiring { name: remote.name.clone(), address: remote.address, by });
        self.retire(None);
    }

    /// Removes addresses to which nothing is under way any more, or that have waited long enough.
    pub(crate) fn retire(&mut self, now: Option<Instant>) {
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

    /// Sees off what libfabric still has, and says goodbye to everybody.
    pub(crate) fn close_all(&mut self) {
        let end = Instant::now() + CLOSE_WAITS;
        let mut events = Vec::new();
        while self.broken.is_none() {
            if self.endpoint().poll(&mut events).is_err() {
                break;
            }
            let found = !events.is_empty();
            for event in events.drain(..) {
                match event {
                    crate::fabric::Event::Arrived(it) => self.endpoint().was_seen(it),
                    crate::fabric::Event::Sent(note) => self.flight_landed(note, None),
                    crate::fabric::Event::Near(_)
                    | crate::fabric::Event::Moved(..)
                    | crate::fabric::Event::Unsent(..)
                    | crate::fabric::Event::Lost(..)
                    | crate::fabric::Event::Failed(_) => {}
                }
            }
            if !found && (self.endpoint().lent() == 0 || Instant::now() >= end) {
                break;
            }
        }
        let open: Vec<_> = self.links.iter().map(|link| link.peer.index()).collect();
        open.into_iter().for_each(|place| self.part(place));
    }
}

/// Why a peer cannot be reached through libfabric.
pub(crate) fn unreachable(fault: Fault) -> GoneReason {
    GoneReason::Unreachable(broken_way(fault).into())
}
