//! Lifelines, timers, and how connections begin and end.

use std::{
    io, mem,
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Peer};
use hg_na_link::{Record, abandon};
use hg_na_parts::limits;
use nix::sys::epoll::EpollFlags;

use crate::{
    connection::Phase,
    context::{FramedContext, Transport, Unmet},
    lifeline::{Cut, Lifeline},
    waiter::{DEVICE, LISTENER},
};

/// How soon a connection is tried again whose target's queue was full.
const CONNECT_AGAIN: Duration = Duration::from_millis(5);
/// How long frames are awaited that a goodbye has announced.
const DRAIN_AFTER_GOODBYE: Duration = Duration::from_secs(1);
/// After a death: at least so long and so many rounds without a frame.
const DRAIN_AFTER_DEATH: Duration = Duration::from_millis(20);
const DRAIN_ROUNDS: u32 = 32;
/// Frames after it: more than there are credits, which cost none, are of one that lives, and does not end.
const DRAIN_FRAMES: u64 = 1024;

impl<T: Transport> FramedContext<T> {
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
        for name in told.drain(..) {
            match u32::try_from(name) {
                Ok(place) => self.attend(place, now),
                Err(_) if name == LISTENER => self.accept(now),
                Err(_) if name == DEVICE => self.transport.hear_device(now),
                Err(_) => {}
            }
        }
        self.told = told;
        Ok(moved)
    }

    pub(crate) fn watch(&mut self, place: u32, mut lifeline: Lifeline) {
        let interest = lifeline.changed_interest().unwrap_or(EpollFlags::empty());
        let watched = self.waiter.set.add(lifeline.fd(), u64::from(place), interest);
        if let Some(link) = self.links.at(place) {
            link.way.own.lifeline = Some(lifeline);
        }
        if let Err(error) = watched {
            self.end_now(place, limits::unreachable("epoll_ctl", &error));
        }
    }

    /// Begins to connect.
    pub(crate) fn connect(&mut self, peer: Peer) {
        let (now, place) = (Instant::now(), peer.index());
        let Self { links, transport, common, .. } = self;
        let Some(link) = links.find(peer) else { return };
        let Some(target) = link.target.clone() else { return };
        let connection = &mut link.way.own;
        let deadline = match connection.phase {
            Phase::Connecting { deadline } => deadline,
            _ => now + common.bounds.connect_timeout,
        };
        connection.phase = Phase::Connecting { deadline };
        let mut lifeline = match transport.dial(&target, &mut connection.route) {
            Ok(lifeline) => lifeline,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return self.at((now + CONNECT_AGAIN).min(deadline), place);
            }
            Err(error) => {
                if !self.dial_elsewhere(place, now) {
                    self.not_connected(peer, limits::unreachable("connect", &error), now);
                }
                return;
            }
        };
        let key = common.bounds.key.as_ref();
        let exhausted = |error: Error| GoneReason::Exhausted(error.to_string().into());
        let admitted = transport.admits(&lifeline).map_err(|why| GoneReason::Refused(why.into()));
        let introduced = admitted.and_then(|()| {
            let sealed = key.map_or(Ok(()), |key| lifeline.seal_with::<T::Hello>(key, true));
            let introduce = |()| transport.introduce(place, &mut connection.route, lifeline.ip);
            sealed.and_then(introduce).map_err(exhausted)
        });
        match introduced {
            Ok(hello) => lifeline.say(&Record::Hello(hello)),
            Err(reason) => return self.not_connected(peer, reason, now),
        }
        self.at(deadline, place);
        self.watch(place, lifeline);
        self.must_ask = true;
    }

    /// A dialling connection has come to nothing; `false`: there is no other way to try.
    fn dial_elsewhere(&mut self, place: u32, now: Instant) -> bool {
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return false };
        let connection = &mut link.way.own;
        let dials = matches!(connection.phase, Phase::Connecting { deadline } if now < deadline);
        if !dials || !transport.dials_elsewhere(&mut connection.route) {
            return false;
        }
        connection.lifeline = None;
        self.at(now, place);
        true
    }

    /// Told by the next progress, not inside a post.
    fn not_connected(&mut self, peer: Peer, reason: GoneReason, now: Instant) {
        if let Some(link) = self.links.find(peer) {
            link.way.own.phase =
                Phase::Draining { until: Some(0), since: now, first: 0, seen: 0, quiet: 0 };
        }
        self.links.close(peer, reason);
        self.draining.push(peer.index());
    }

    /// Hears what a peer has said on its lifeline; a round does so with those of which the kernel tells.
    pub fn attend(&mut self, place: u32, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        let Some(mut lifeline) = link.way.own.lifeline.take() else { return };
        let (peer, mut said) = (link.peer, Vec::new());
        let cut = lifeline.attend(&mut said).err();
        link.way.own.lifeline = Some(lifeline);
        for record in said {
            // What stands behind a word that has ended this lifeline is said to nobody.
            if self.links.find(peer).is_some_and(|link| link.way.own.lifeline.is_some()) {
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
        let Self { links, waiter, .. } = self;
        let Some(lifeline) = links.at(place).and_then(|link| link.way.own.lifeline.as_mut()) else {
            return;
        };
        lifeline.flush();
        if let Some(interest) = lifeline.changed_interest() {
            let changed = waiter.set.change(lifeline.fd(), u64::from(place), interest);
            debug_assert!(changed.is_ok(), "a descriptor of the set is changed");
        }
    }

    /// Says something on a lifeline, where it lives.
    fn say(&mut self, place: u32, record: &Record<T::Hello>) {
        let link = self.links.at(place);
        if let Some(lifeline) = link.and_then(|link| link.way.own.lifeline.as_mut()) {
            lifeline.say(record);
        }
    }

    fn heard(&mut self, place: u32, record: Record<T::Hello>, now: Instant) {
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return };
        let (peer, connection) = (link.peer, &mut link.way.own);
        match (record, &mut connection.phase) {
            (Record::Hello(hello), Phase::Greeting { .. }) => self.greeted(place, hello, true),
            (Record::Welcome(hello), Phase::Connecting { .. }) => self.greeted(place, hello, false),
            (Record::Ready, Phase::Awaiting) => self.is_ready(place),
            // A frame came first.
            (Record::Ready, Phase::Open) if T::AWAITS_READY => {}
            (Record::Refuse(why), Phase::Connecting { .. } | Phase::Awaiting) => {
                if !self.dial_elsewhere(place, now) {
                    self.end_now(place, GoneReason::Refused(why.into()));
                }
            }
            // What it had sent before may still come.
            (Record::Refuse(why), Phase::Open) => {
                self.drain(place, GoneReason::Refused(why.into()), None, now);
            }
            (Record::Goodbye(count), Phase::Open | Phase::Awaiting) => {
                self.drain(place, GoneReason::Closed, Some(count), now);
            }
            (Record::Goodbye(count), Phase::Draining { until, since, .. }) => {
                *until = Some(count);
                let last = *since + DRAIN_AFTER_GOODBYE;
                links.close(peer, GoneReason::Closed);
                self.at(last, place);
            }
            (Record::Goodbye(_), Phase::Connecting { .. }) => {
                self.end_now(place, GoneReason::Closed);
            }
            (Record::Ping, Phase::Open) => {
                if let Some(lifeline) = &mut connection.lifeline {
                    lifeline.say_soon(&Record::<T::Hello>::Pong);
                }
            }
            (Record::Pong, Phase::Open) => transport.answered(&mut connection.route),
            (_, Phase::Draining { .. } | Phase::Ended) => {}
            _ => self.misbehaved(place, "a word on the lifeline that is out of turn"),
        }
    }

    /// The other side has introduced itself.
    fn greeted(&mut self, place: u32, hello: T::Hello, is_hello: bool) {
        if is_hello && self.acquaintances() >= self.common.bounds.max_peers {
            let why = "it has as many peers as its setting max-peers allows";
            self.refuse(place, why);
            return self.end_now(place, GoneReason::Refused(why.into()));
        }
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return };
        match transport.meet(place, &mut link.way.own, hello) {
            Ok(()) if is_hello => self.welcome(place),
            Ok(()) => {
                if T::AWAITS_READY {
                    self.say(place, &Record::Ready);
                }
                self.opened(place);
            }
            Err(Unmet::Misbehaved(why)) => self.misbehaved(place, why),
            Err(Unmet::Refused(why, reason)) => {
                self.refuse(place, &why);
                self.end_now(place, reason);
            }
        }
    }

    /// Introduces this side to one that has connected.
    fn welcome(&mut self, place: u32) {
        self.no_stranger(place);
        let Self { links, transport, .. } = self;
        let Some(link) = links.at(place) else { return };
        let connection = &mut link.way.own;
        let ip = connection.lifeline.as_ref().and_then(|it| it.ip);
        match transport.introduce(place, &mut connection.route, ip) {
            Ok(own) => self.say(place, &Record::Welcome(own)),
            Err(error) => {
                self.refuse(place, &error.to_string());
                return self.end_now(place, GoneReason::Exhausted(error.to_string().into()));
            }
        }
        if !T::AWAITS_READY {
            return self.opened(place);
        }
        if let Some(link) = self.links.at(place) {
            link.way.own.phase = Phase::Awaiting;
        }
    }

    /// The end that connected receives, too.
    pub(crate) fn is_ready(&mut self, place: u32) {
        if self.links.at(place).is_some_and(|link| matches!(link.way.own.phase, Phase::Awaiting)) {
            // Where it is a frame that says so, the word on the lifeline waits to be read.
            self.must_ask = true;
            self.opened(place);
        }
    }

    /// From now on frames flow.
    fn opened(&mut self, place: u32) {
        self.untime(place);
        let Some(link) = self.links.at(place) else { return };
        let connection = &mut link.way.own;
        connection.phase = Phase::Open;
        if let Some(lifeline) = &connection.lifeline {
            connection.identity = lifeline.peer.clone();
        }
        self.mark_busy(place);
    }

    fn was_cut(&mut self, place: u32, cut: Cut, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        if matches!(link.way.own.phase, Phase::Connecting { .. }) {
            let has_ended = link.way.own.lifeline.is_none();
            if has_ended || !matches!(cut, Cut::Rubbish(_)) && self.dial_elsewhere(place, now) {
                return;
            }
        }
        let Some(link) = self.links.at(place) else { return };
        // Nothing is heard of it any more; the kernel would tell again and again.
        link.way.own.lifeline = None;
        let peer = link.peer;
        match (&link.way.own.phase, cut) {
            (Phase::Open, Cut::Silent) => self.drain(place, GoneReason::TimedOut, None, now),
            (Phase::Open, Cut::Exited | Cut::NotThere(_)) => {
                self.drain(place, GoneReason::Exited, None, now);
            }
            // Its way was broken first, and this is why.
            (Phase::Draining { until: None, .. }, Cut::Exited) => {
                if matches!(link.gone(), Some(GoneReason::Unreachable(_))) {
                    self.links.close(peer, GoneReason::Exited);
                }
            }
            (Phase::Draining { .. } | Phase::Ended | Phase::Idle, _) => {}
            (_, Cut::Rubbish(why)) => self.misbehaved(place, why),
            (_, Cut::Refused(why)) => {
                tracing::warn!(why, "a connection is refused");
                self.end_now(place, GoneReason::Refused(why.into()));
            }
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

    /// The way to a peer is broken; the lifeline may know more in a moment.
    pub fn way_broke(&mut self, place: u32, fault: T::Fault) {
        match self.links.at(place).map(|link| &link.way.own.phase) {
            Some(Phase::Open) => {
                self.must_ask = true;
                self.drain(place, T::unreachable(fault), None, Instant::now());
            }
            Some(Phase::Awaiting | Phase::Connecting { .. }) => {
                self.end_now(place, T::unreachable(fault));
            }
            _ => {}
        }
    }

    /// Takes what is still to come, then ends the connection.
    fn drain(&mut self, place: u32, reason: GoneReason, until: Option<u64>, now: Instant) {
        let Some(link) = self.links.at(place) else { return };
        let (peer, seen) = (link.peer, link.way.frames_received);
        link.way.own.phase = Phase::Draining { until, since: now, first: seen, seen, quiet: 0 };
        self.links.close(peer, reason);
        self.untime(place);
        if until.is_some() {
            self.at(now + DRAIN_AFTER_GOODBYE, place);
        }
        self.draining.push(place);
    }

    /// Whether a connection drains that needs rounds: a frame or a timer ends those whose goodbye says more frames than have come.
    pub(crate) fn must_drain(&mut self) -> bool {
        let Self { draining, links, .. } = self;
        draining.iter().any(|place| {
            let Some(link) = links.at(*place) else { return true };
            match link.way.own.phase {
                Phase::Draining { until: Some(until), .. } => link.way.frames_received >= until,
                _ => true,
            }
        })
    }

    /// Looks at every connection that drains.
    pub(crate) fn drain_all(&mut self, now: Instant) {
        for place in mem::take(&mut self.draining) {
            let Some(link) = self.links.at(place) else { continue };
            let came = link.way.frames_received;
            let Phase::Draining { until, since, first, seen, quiet } = &mut link.way.own.phase
            else {
                continue;
            };
            *quiet = if *seen == came { *quiet + 1 } else { 0 };
            *seen = came;
            let lasted = now.saturating_duration_since(*since);
            let is_over = match until {
                Some(until) => came >= *until || lasted >= DRAIN_AFTER_GOODBYE,
                None => {
                    let is_quiet = *quiet >= DRAIN_ROUNDS && lasted >= DRAIN_AFTER_DEATH;
                    is_quiet || came - *first > DRAIN_FRAMES
                }
            };
            match link.gone().cloned() {
                Some(reason) if is_over => {
                    if matches!(reason, GoneReason::Unreachable(_)) {
                        // It may live: a lifeline that ends without a word says that this process has ended.
                        self.refuse(place, &reason.to_string());
                    }
                    self.end_now(place, reason);
                }
                _ => self.draining.push(place),
            }
        }
    }

    /// Ends a connection: its operations at once, and itself, once what waits for admission was handed out.
    pub(crate) fn end_now(&mut self, place: u32, reason: GoneReason) {
        self.untime(place);
        self.no_stranger(place);
        let Self { links, transport, finished, parts, .. } = self;
        let Some(link) = links.at(place) else { return };
        link.way.lanes.drop_parts();
        parts.count(&mut link.way.own.part, link.way.lanes.in_part());
        let (peer, connection) = (link.peer, &mut link.way.own);
        connection.lifeline = None;
        let before = mem::replace(&mut connection.phase, Phase::Ended);
        // First, or the transport would count it with what the peer may reach.
        link.initiator.take_untold().for_each(|lent| transport.revoke(lent));
        transport.part(peer, &mut connection.route, &reason, finished);
        if matches!(before, Phase::Greeting { .. } | Phase::Awaiting) {
            // Nobody here has heard of it.
            return links.drop_unmet(peer);
        }
        let is_over = transport.reaches_nothing(&reason);
        let lent = links.end(peer, &reason, finished);
        if is_over {
            lent.iter().for_each(|it| transport.revoke(it.lent));
        } else {
            abandon(lent.into_iter().filter_map(|it| it.written));
        }
    }

    /// Bad input costs its sender the connection.
    pub(crate) fn misbehaved(&mut self, place: u32, why: &'static str) {
        tracing::warn!(place, why, "a peer broke the protocol");
        self.refuse(place, why);
        self.end_now(place, GoneReason::Misbehaved(why.into()));
    }

    /// Tells the other side why it is disconnected.
    pub(crate) fn refuse(&mut self, place: u32, why: &str) {
        self.say(place, &Record::Refuse(why.to_owned()));
    }

    /// Says goodbye to the other side, if the connection is in use.
    pub fn say_goodbye(&mut self, place: u32) {
        if let Some(link) = self.links.at(place).filter(|link| link.way.own.is_open()) {
            let goodbye = Record::Goodbye(link.way.frames_sent);
            self.say(place, &goodbye);
        }
    }

    /// Runs what is due; says whether anything was.
    pub(crate) fn run_timers(&mut self, now: Instant) -> bool {
        let mut moved = self.transport.run_timers(now);
        if self.rests_until.take_if(|when| *when <= now).is_some() {
            self.hear_listeners(EpollFlags::EPOLLIN);
            self.accept(now);
            moved = true;
        }
        while let Some((when, place)) =
            self.timers.first().copied().filter(|(when, _)| *when <= now)
        {
            self.timers.remove(&(when, place));
            moved = true;
            let Some(link) = self.links.at(place) else { continue };
            link.way.own.timer = None;
            let peer = link.peer;
            match link.way.own.phase {
                Phase::Connecting { deadline } if now < deadline => self.connect(peer),
                Phase::Connecting { .. } | Phase::Greeting { .. } | Phase::Awaiting => {
                    self.end_now(place, GoneReason::TimedOut);
                }
                Phase::Idle | Phase::Open | Phase::Draining { .. } | Phase::Ended => {}
            }
        }
        moved
    }

    /// Asks for a look at a time; a connection has one timer.
    pub(crate) fn at(&mut self, when: Instant, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if let Some(before) = link.way.own.timer.replace(when) {
            self.timers.remove(&(before, place));
        }
        self.timers.insert((when, place));
    }

    /// A connection needs no timer any more.
    fn untime(&mut self, place: u32) {
        if let Some(when) = self.links.at(place).and_then(|link| link.way.own.timer.take()) {
            self.timers.remove(&(when, place));
        }
    }
}
