//! One opened URL: what its contexts share, and the plugin that opens it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hg_na::{
    Address, Caps, Context, Domain, Error, Guest, Memory, Offer, OpenOptions, Plugin, Region,
    Rights,
};
use hg_na_memory::ForkGuard;

use crate::{
    context::SmContext,
    os::signals::Signals,
    region::{
        boards::Boards,
        state::{Regions, SmRegion},
        table::OwnedTable,
        tables::PeerTables,
    },
    rendezvous::{
        name::{Name, SCHEME, Target, fill_random},
        socket::Listener,
    },
    settings::{Settings, caps},
};

/// The shared-memory plugin: scheme `sm`.
#[derive(Debug, Default, Clone, Copy)]
pub struct SmPlugin;

impl Plugin for SmPlugin {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(SmDomain(Shared::open(url, options)?)))
    }

    fn offers(&self) -> Vec<Offer> {
        crate::offer::offers()
    }
}

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) name: Name,
    pub(crate) listen: bool,
    pub(crate) incarnation: [u8; 16],
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) signals: &'static Signals,
    pub(crate) regions: Arc<Regions>,
    pub(crate) tables: PeerTables,
    pub(crate) boards: Arc<Boards>,
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
        // A name in use is an error of opening, not of the first context.
        let first = if options.listen { Some(Listener::bind(&name, 0)?) } else { None };
        let mut incarnation = [0; 16];
        fill_random(&mut incarnation)?;
        let boards = Arc::<Boards>::default();
        let guard = Arc::new(ForkGuard::new().map_err(hg_na_parts::limits::named)?);
        Ok(Arc::new(Self {
            caps: caps(),
            settings,
            name,
            listen: options.listen,
            incarnation,
            regions: Regions::new(
                OwnedTable::create(incarnation)?,
                Arc::clone(&boards),
                Arc::clone(&guard),
            ),
            guard,
            tables: PeerTables::default(),
            signals: Signals::of_process()?,
            boards,
            ids: Mutex::new(Ids { first, open: [false; 256] }),
        }))
    }

    /// Opens one of its contexts, alone or as a guest.
    pub(crate) fn endpoint(
        self: &Arc<Self>,
        id: u8,
        guest: Option<Guest>,
    ) -> Result<SmContext, Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        let mut ids = self.ids();
        if ids.open[usize::from(id)] {
            return Err(Error::AddressInUse(self.name.address(id)));
        }
        let kept = if id == 0 { ids.first.take() } else { None };
        let listener = match kept {
            Some(listener) => Some(listener),
            None if self.listen => Some(Listener::bind(&self.name, id)?),
            None => None,
        };
        let context = SmContext::new(Arc::clone(self), id, listener, guest)?;
        ids.open[usize::from(id)] = true;
        Ok(context)
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context is closed; its id may be opened again.
    pub(crate) fn closed(&self, id: u8) {
        self.ids().open[usize::from(id)] = false;
    }
}

#[derive(Debug)]
struct SmDomain(Arc<Shared>);

impl Domain for SmDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.0.guard.is_child() {
            return Err(Error::Forked);
        }
        let region = SmRegion::register(&self.0.regions, memory, rights)?;
        Ok(Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(self.0.endpoint(id, None)?))
    }

    fn context_in(&self, id: u8, guest: Guest) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(self.0.endpoint(id, Some(guest))?))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        Some(Target::parse(context).ok()?.name.address(id))
    }
}
