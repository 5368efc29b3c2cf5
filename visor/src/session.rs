//! The one connection of a context with its daemon: an `sm` context of its own.
//!
//! ```text
//!  Greeting --Welcome--> Ready
//!     |  ^                 |
//!     v  |  time, or use   v
//!    Lost <----------------+   the daemon has gone, or has refused
//! ```

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Done, Error, GoneReason, Message, Op, OpId, OpenOptions,
    Peer, Plugin, QUIET, Rejected, Token,
};
use hg_na_sm::SmPlugin;

use crate::{
    settings::{ALLOW_UID, ROOT, Settings},
    wire::{Header, Hello, Kind, Refusal},
};

/// Time until a daemon that has gone is looked for, which doubles each time.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Of frames whose sender is told when they have left. Frames leave in their order, so one number does for all.
const TOLD: Token = 0;

/// What comes of it.
#[derive(Debug)]
pub(crate) enum Event {
    /// The daemon knows this context, by this address, and allows so many connections.
    Ready(Address, u32),
    /// The daemon has gone, or was never there: nothing that was open is any more.
    Lost(GoneReason),
    /// The daemon does not take this context.
    Refused(Refusal, String),
    /// A frame of a connection.
    Frame(Message),
    /// The oldest frame of those that were sent to be told of has left.
    Left,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Lost { until: Instant },
    Greeting(Peer),
    Ready(Peer),
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Session {
    local: Box<dyn Context>,
    daemon: Address,
    name: String,
    listens: bool,
    state: State,
    pause: Duration,
    /// Frames of the protocol's own: they are as many as there are connections, and leave before any data.
    waiting: VecDeque<Message>,
    /// The daemon takes nothing until it says so.
    is_blocked: bool,
    batch: Vec<Completion>,
}

/// Opens what sessions are made in.
///
/// # Errors
/// Those of `sm`.
pub(crate) fn local_domain(settings: &Settings) -> Result<Arc<dyn Domain>, Error> {
    // Applications' memory is registered in their own domains.
    let allowed = settings.allow_uid.iter().map(String::as_str).chain([ROOT]);
    let allowed = allowed.collect::<Vec<_>>().join(",");
    let options = OpenOptions::default().with("regions", "off").with(ALLOW_UID, &allowed);
    SmPlugin.open(&Address::new("sm://")?, &options)
}

impl Session {
    /// Begins one; [`Session::progress`] goes on.
    ///
    /// # Errors
    /// Those of `sm`.
    pub(crate) fn begin(
        local: Box<dyn Context>,
        settings: &Settings,
        (name, listens): (String, bool),
    ) -> Result<Self, Error> {
        let daemon = Address::new(&format!("sm://{}", settings.daemon))?;
        let mut session = Self {
            local,
            daemon,
            name,
            listens,
            state: State::Lost { until: Instant::now() },
            pause: PAUSE,
            waiting: VecDeque::new(),
            is_blocked: false,
            batch: Vec::new(),
        };
        session.greet()?;
        Ok(session)
    }

    /// What it sleeps on.
    pub(crate) fn local(&self) -> &dyn Context {
        self.local.as_ref()
    }

    /// Where the daemon is looked for.
    pub(crate) fn daemon(&self) -> &Address {
        &self.daemon
    }

    /// Looks for the daemon, if it has none.
    ///
    /// # Errors
    /// Those of `sm`: its name is none.
    pub(crate) fn greet(&mut self) -> Result<(), Error> {
        if let State::Lost { .. } = self.state {
            let peer = self.local.lookup(&self.daemon)?;
            self.state = State::Greeting(peer);
            let hello = Hello { listens: self.listens, name: &self.name }.frame();
            // Refused, its peer is gone, which is told.
            let _refused = self.post(peer, hello, QUIET);
        }
        Ok(())
    }

    /// Whether frames of connections can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Whether the daemon takes nothing now; what changes that ends a sleep.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    fn post(&mut self, to: Peer, message: Message, token: Token) -> Result<OpId, Rejected> {
        self.local.post(token, Op::SendUnexpected { to, message })
    }

    /// Memory for a frame, when one can be sent.
    pub(crate) fn message(&mut self, len: usize) -> Option<Message> {
        match self.state {
            State::Ready(peer) if !self.is_blocked && self.waiting.is_empty() => {
                self.local.message(peer, len).ok()
            }
            _ => None,
        }
    }

    /// Sends a frame; `false`: it was not taken. `is_told`: an [`Event::Left`] follows, unless the daemon goes before.
    pub(crate) fn send(&mut self, frame: Message, is_told: bool) -> bool {
        let State::Ready(peer) = self.state else { return false };
        match self.post(peer, frame, if is_told { TOLD } else { QUIET }) {
            Ok(_) => true,
            Err(Rejected { error, .. }) => {
                // Otherwise it has gone, which is told.
                self.is_blocked = matches!(error, Error::Again);
                false
            }
        }
    }

    /// Sends a frame of the protocol's own, as soon as it is taken. To a daemon that has gone: its successor knows no such connection.
    pub(crate) fn say(&mut self, frame: Message) {
        if self.is_ready() {
            self.waiting.push_back(frame);
            self.flush_waiting();
        }
    }

    fn flush_waiting(&mut self) {
        let State::Ready(to) = self.state else { return };
        while !self.is_blocked
            && let Some(message) = self.waiting.pop_front()
        {
            let posted = self.post(to, message, QUIET);
            if let Err(Rejected { op: Op::SendUnexpected { message, .. }, error: Error::Again }) =
                posted
            {
                self.is_blocked = true;
                self.waiting.push_front(message);
            }
        }
    }

    /// What has come; says whether anything has.
    ///
    /// # Errors
    /// What makes the context useless.
    pub(crate) fn progress(
        &mut self,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<bool, Error> {
        let mut found = !events.is_empty();
        if let State::Lost { until } = self.state
            && until <= now
        {
            found = true;
            self.greet()?;
        }
        let mut batch = std::mem::take(&mut self.batch);
        found |= self.local.progress(now, &mut batch)?;
        // What has left had done so before the frames of this round came, one of which may end its connection.
        for completion in &batch {
            match completion {
                Completion::Done(Done { token: TOLD, result: Ok(()), .. }) => {
                    events.push(Event::Left)
                }
                // A frame is lost, of which nobody can tell the other end.
                Completion::Done(Done { result: Err(_), .. }) => self.hang_up(),
                _ => {}
            }
        }
        for completion in batch.drain(..) {
            match completion {
                Completion::Unexpected { message, .. } => self.heard(message, events),
                Completion::Room { .. } => {
                    self.is_blocked = false;
                    self.flush_waiting();
                }
                Completion::Gone { reason, .. } => self.lost(now, reason, events),
                _ => {}
            }
        }
        self.batch = batch;
        Ok(found)
    }

    fn heard(&mut self, frame: Message, events: &mut Vec<Event>) {
        let State::Greeting(peer) = self.state else {
            return events.push(Event::Frame(frame));
        };
        let Ok((header, body)) = Header::decode(frame.as_slice()) else {
            return self.local.forget(peer);
        };
        let text = std::str::from_utf8(body).unwrap_or_default();
        match (header.kind, Address::new(text)) {
            (Kind::Welcome, Ok(address)) => {
                self.state = State::Ready(peer);
                self.pause = PAUSE;
                let quota = u32::try_from(header.word).unwrap_or(u32::MAX);
                events.push(Event::Ready(address, quota));
                self.flush_waiting();
            }
            (Kind::Refused, _) => {
                events.push(Event::Refused(Refusal::of(header.word), text.to_owned()));
                self.local.forget(peer);
            }
            _ => self.local.forget(peer),
        }
    }

    /// Hangs up on a daemon that has broken the protocol.
    pub(crate) fn hang_up(&mut self) {
        if let State::Ready(peer) | State::Greeting(peer) = self.state {
            self.local.forget(peer);
        }
    }

    fn lost(&mut self, now: Instant, reason: GoneReason, events: &mut Vec<Event>) {
        self.waiting.clear();
        self.is_blocked = false;
        self.state = State::Lost { until: now + self.pause };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        events.push(Event::Lost(reason));
    }

    /// When it wants to be asked, even if nothing comes.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let own = match self.state {
            State::Lost { until } => Some(until),
            State::Greeting(_) | State::Ready(_) => None,
        };
        [own, self.local.next_deadline()].into_iter().flatten().min()
    }

    /// Whether nothing is left to be done before a sleep.
    pub(crate) fn may_sleep(&mut self) -> bool {
        self.local.may_sleep()
    }

    /// Whether all that was handed over has left.
    pub(crate) fn flush(&mut self) -> bool {
        self.waiting.is_empty() && self.local.flush()
    }
}
