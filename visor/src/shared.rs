//! What the contexts of one domain share.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hg_na::{Address, Caps, Domain, Error};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::Regions;

use crate::{
    address::{SCHEME, full_name},
    session::{Event, Session},
    settings::Settings,
    wire::Refusal,
};

/// A session that the daemon has taken, by an address and with a quota; and what came with the welcome.
pub(crate) type Taken = (Session, Address, u32, Vec<Event>);

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) name: String,
    pub(crate) listen: bool,
    /// Sessions are contexts of this one.
    pub(crate) local: Arc<dyn Domain>,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) ids: Mutex<Ids>,
}

/// Which contexts are open.
#[derive(Debug)]
pub(crate) struct Ids {
    /// Of context 0: begun when the domain was opened, so that what is wrong is an error of opening.
    pub(crate) first: Option<Box<Taken>>,
    pub(crate) open: [bool; 256],
}

impl Shared {
    pub(crate) fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context is closed; its id may be opened again.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().open[usize::from(id)] = false;
    }

    /// Says hello to the daemon, and waits for its answer.
    pub(crate) fn greet(&self, id: u8) -> Result<Taken, Error> {
        let name = full_name(&self.name, id);
        let local = self.local.context(id)?;
        let session = Session::begin(local, &self.settings, (name.clone(), self.listen))?;
        Self::welcome(session, &name, Instant::now() + self.settings.connect_timeout)
    }

    fn welcome(mut session: Session, name: &str, end: Instant) -> Result<Taken, Error> {
        let waiter = session.local().waiter();
        let mut events = Vec::new();
        loop {
            let now = Instant::now();
            let found = session.progress(now, &mut events)?;
            let mut come = events.drain(..);
            match come.next() {
                // Who knows its name may have opened a connection already.
                Some(Event::Ready(address, quota)) => {
                    let early = come.collect();
                    return Ok((session, address, quota, early));
                }
                Some(Event::Refused(Refusal::NameInUse, _)) => {
                    return Err(Error::AddressInUse(Address::new(&format!("{SCHEME}://{name}"))?));
                }
                Some(Event::Refused(Refusal::Other, sentence)) => {
                    return Err(missing(&session, &sentence));
                }
                Some(Event::Lost(reason)) => return Err(missing(&session, &reason.to_string())),
                Some(Event::Frame(_) | Event::Left) | None => {}
            }
            if now >= end {
                return Err(missing(&session, "it does not answer"));
            }
            if !found && session.may_sleep() {
                let due = session.next_deadline().map_or(end, |due| due.min(end));
                waiter.wait(Some(due.saturating_duration_since(now)))?;
            }
        }
    }
}

fn missing(session: &Session, why: &str) -> Error {
    Error::missing(format!(
        "no daemon hg-visor at {}: {why}; start one, or name another by the setting `daemon` or in HG_VISOR",
        session.daemon()
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hg_na::{Completion, Op, OpenOptions, Plugin as _, QUIET};
    use hg_na_sm::SmPlugin;
    use watchdog::Watchdog;

    use super::*;
    use crate::{
        session::local_domain,
        wire::{Header, Kind},
    };

    #[test]
    fn frames_that_come_with_the_welcome_are_not_lost() {
        let _watchdog = Watchdog::start();
        let name = format!("visor-welcome-{}", std::process::id());
        let url = Address::new(&format!("sm://{name}")).unwrap();
        let daemon = SmPlugin.open(&url, &OpenOptions::listening()).unwrap();
        let (mut daemon, mut done) = (daemon.context(0).unwrap(), Vec::new());
        let connect_timeout = Duration::from_secs(30);
        let settings = Settings { daemon: name, allow_uid: None, connect_timeout };
        let local = local_domain(&settings).unwrap().context(0).unwrap();
        let mut session = Session::begin(local, &settings, ("it/0".to_owned(), true)).unwrap();
        let to = loop {
            daemon.progress(Instant::now(), &mut done).unwrap();
            session.progress(Instant::now(), &mut Vec::new()).unwrap();
            match done.pop() {
                Some(Completion::Unexpected { from, .. }) => break from,
                other => assert!(other.is_none(), "{other:?}"),
            }
        };
        let welcome = Header::new(Kind::Welcome, 0, 8).frame(b"visor://it/0@tcp://there:1");
        let incoming = Header::new(Kind::Incoming, 1, 4096).frame(&[0; 9]);
        for message in [welcome, incoming] {
            daemon.post(QUIET, Op::SendUnexpected { to, message }).unwrap();
        }
        let end = Instant::now() + connect_timeout;
        let (mut session, _, quota, mut events) = Shared::welcome(session, "it/0", end).unwrap();
        assert_eq!(quota, 8);
        assert!(!session.may_sleep() || !events.is_empty(), "whoever sleeps now must know of it");
        while events.is_empty() {
            session.progress(Instant::now(), &mut events).unwrap();
        }
        let Event::Frame(frame) = &events[0] else { panic!("{events:?}") };
        assert_eq!(Header::decode(frame.as_slice()).unwrap().0.kind, Kind::Incoming);
    }
}
