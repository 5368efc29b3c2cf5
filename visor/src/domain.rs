//! One opened URL: what its contexts share.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Region, Rights};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion, random};

use crate::{
    address::{SCHEME, Target, asked_name, full_name},
    context::VisorContext,
    session::{Event, Session, local_domain},
    settings::{Settings, caps},
    wire::Refusal,
};

/// A session that the daemon has taken, by an address and with a quota.
type Taken = (Session, Address, u32);

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    caps: Caps,
    settings: Settings,
    name: String,
    listen: bool,
    /// Sessions are contexts of this one.
    local: Arc<dyn Domain>,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) regions: Arc<Regions>,
    ids: Mutex<Ids>,
}

#[derive(Debug)]
struct Ids {
    /// Of context 0: begun when the domain was opened, so that what is wrong is an error of opening.
    first: Option<Box<Taken>>,
    open: [bool; 256],
}

impl Shared {
    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context is closed; its id may be opened again.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().open[usize::from(id)] = false;
    }

    /// Says hello to the daemon, and waits for its answer.
    fn greet(&self, id: u8) -> Result<Taken, Error> {
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
                Some(Event::Frame(_)) | None => {}
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

/// The domain.
#[derive(Debug)]
pub(crate) struct VisorDomain(Arc<Shared>);

impl VisorDomain {
    /// Opens a URL.
    ///
    /// # Errors
    /// As [`hg_na::Plugin::open`].
    pub(crate) fn open(
        url: &Address,
        options: &OpenOptions,
        daemon: Option<&str>,
    ) -> Result<Self, Error> {
        let settings = Settings::read(&options.settings, daemon)?;
        let name = match asked_name(url)? {
            Some(name) => name.to_owned(),
            None => fresh_name()?,
        };
        let guard = Arc::new(ForkGuard::new()?);
        let shared = Shared {
            caps: caps(),
            name,
            listen: options.listen,
            local: local_domain(&settings)?,
            settings,
            regions: Regions::new(Arc::clone(&guard))?,
            guard,
            ids: Mutex::new(Ids { first: None, open: [false; 256] }),
        };
        let first = shared.greet(0)?;
        shared.ids().first = Some(Box::new(first));
        Ok(Self(Arc::new(shared)))
    }
}

/// A name that nobody else has.
fn fresh_name() -> Result<String, Error> {
    let bytes = random()?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{digits}", std::process::id()))
}

impl Domain for VisorDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.0.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(Region::new(ServedRegion::register(&self.0.regions, memory, rights)?))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let shared = &self.0;
        if shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let kept = {
            let mut ids = shared.ids();
            if std::mem::replace(&mut ids.open[usize::from(id)], true) {
                let name = full_name(&shared.name, id);
                return Err(Error::AddressInUse(Address::new(&format!("{SCHEME}://{name}"))?));
            }
            if id == 0 { ids.first.take() } else { None }
        };
        let taken = kept.map_or_else(|| shared.greet(id), |kept| Ok(*kept));
        let (session, address, quota) = taken.inspect_err(|_| shared.closed(id))?;
        Ok(Box::new(VisorContext::new(Arc::clone(shared), id, session, (address, quota))))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        Target::parse(context).ok()?.beside(id)
    }
}
