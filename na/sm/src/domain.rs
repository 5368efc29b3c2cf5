//! One opened URL: what its contexts share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hg_na::{Address, Caps, Error, OpenOptions};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::random;

use crate::{
    os::signals::{Signals, guard},
    region::{state::Regions, table::OwnedTable, tables::PeerTables},
    rendezvous::{name::Name, socket::Listener},
    settings::{Settings, caps},
};

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) name: Name,
    pub(crate) listen: bool,
    pub(crate) incarnation: [u8; 16],
    pub(crate) guard: &'static Arc<ForkGuard>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) tables: PeerTables,
    ids: Mutex<Ids>,
}

#[derive(Debug)]
struct Ids {
    /// Bound when the domain was opened, for context 0.
    first: Option<Listener>,
    open: [bool; 256],
}

impl Shared {
    /// Opens a URL.
    pub(crate) fn open(url: &Address, options: &OpenOptions) -> Result<Arc<Self>, Error> {
        let name = Name::from_url(url)?;
        let settings = Settings::read(&options.settings)?;
        let incarnation = random()?;
        let guard = guard()?;
        Signals::of_process()?.queue(); // What it costs is there before the first peer.
        let mut table = OwnedTable::create(incarnation)?;
        table.fd = table.fd.filter(|_| settings.regions);
        // A name in use is an error of opening, not of the first context. Nothing fails behind it.
        let first = match settings.listen_fd {
            _ if !options.listen => None,
            Some(fd) => Some(Listener::adopt(&name, fd)?),
            None => Some(Listener::bind(&name, 0)?),
        };
        Ok(Arc::new(Self {
            caps: caps(),
            settings,
            name,
            listen: options.listen,
            incarnation,
            regions: Regions::new(table),
            guard,
            tables: PeerTables::default(),
            ids: Mutex::new(Ids { first, open: [false; 256] }),
        }))
    }

    /// Takes the id of one of its contexts, which opens now; gives where that listens, if it does.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] when it is open; why it cannot listen.
    pub(crate) fn take(&self, id: u8) -> Result<Option<Listener>, Error> {
        let mut ids = self.ids();
        if ids.open[usize::from(id)] {
            return Err(Error::AddressInUse(self.name.address(id)));
        }
        let listener = match ids.first.take_if(|_| id == 0) {
            None if self.listen => Some(Listener::bind(&self.name, id)?),
            kept => kept,
        };
        ids.open[usize::from(id)] = true;
        Ok(listener)
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context is closed; its id may be opened again.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().open[usize::from(id)] = false;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let ids = self.ids.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody has opened context 0. A child's copy is its parent's to close.
        let first = ids.first.take().filter(|_| !self.guard.is_child());
        first.into_iter().for_each(Listener::close);
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use watchdog::in_time;

    use super::*;
    use crate::context::SmContext;

    #[test]
    fn a_context_listens_no_more_before_its_id_may_be_opened_again() {
        let shared = Shared::open(&"sm://".parse().unwrap(), &OpenOptions::listening()).unwrap();
        let context = SmContext::open(&shared, 0, None).unwrap();
        let ids = shared.ids();
        thread::scope(|threads| {
            threads.spawn(move || drop(context)); // It waits for the ids.
            let start = Instant::now();
            while Listener::bind(&shared.name, 0).is_err() {
                in_time!(start, "its name is in use until its id is free");
            }
            drop(ids);
        });
    }
}
