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

/// A session that the daemon has taken, by an address and with a quota.
pub(crate) type Taken = (Session, Address, u32);

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
        let waiter = local.waiter();
        let mut session = Session::begin(local, &self.settings, (name.clone(), self.listen))?;
        let end = Instant::now() + self.settings.connect_timeout;
        let mut events = Vec::new();
        loop {
            let now = Instant::now();
            let found = session.progress(now, &mut events)?;
            match events.drain(..).next() {
                Some(Event::Ready(address, quota)) => return Ok((session, address, quota)),
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
