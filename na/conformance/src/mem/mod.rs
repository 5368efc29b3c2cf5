//! `mem://`: the reference plugin, between contexts of one process.
//!
//! Everything lives in one [`hub::Hub`] behind one lock, so that it is plainly right rather than
//! fast: the suite's own tests break it on purpose and need a base that is beyond doubt.
//!
//! An address reads `mem://NAME/ID`; a domain is opened as `mem://` (it makes a name up) or
//! `mem://NAME`.

mod hub;
mod mover;
mod peer;
mod region;
mod waiter;

use std::{fmt, sync::Arc, time::Instant};

use hg_na::{
    Address, Begun, Caps, Completion, Context, Domain, Error, Memory, Message, Op, OpId,
    OpenOptions, Peer, Plugin, Region, Rejected, Rights, Sleep, Token, Transit, Waiter,
};

use self::{
    hub::{Endpoint, Hub},
    mover::MemMover,
    region::{Key, MemRegion},
    waiter::MemWaiter,
};

/// Contexts that a domain can open.
const CONTEXTS_MAX: u16 = 256;
/// Segments of one registration.
const SEGMENTS_MAX: usize = 1024;
/// Longest put or get in bytes: what one bounce buffer holds.
const TRANSFER_MAX: u64 = 64 << 20;

/// The plugin. Each value is a world of its own: domains opened from different ones do not meet.
#[derive(Clone, Default)]
pub struct Mem {
    hub: Arc<Hub>,
}

impl fmt::Debug for Mem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Mem")
    }
}

impl Plugin for Mem {
    fn schemes(&self) -> &[&str] {
        &["mem"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        if let Some(name) = options.settings.keys().next() {
            let known = "this plugin has no settings".to_owned();
            return Err(Error::UnknownSetting { name: name.clone(), known });
        }
        if url.scheme() != "mem" || url.rest().contains('/') {
            let why = "it needs the form mem:// or mem://name".to_owned();
            return Err(Error::BadAddress { address: url.to_string(), why });
        }
        let id = self.hub.lock().fresh_id();
        let name = match url.rest() {
            "" => format!("anonymous-{id}"),
            name => name.to_owned(),
        };
        let mut caps = Caps::minimal();
        caps.short_unexpected = hg_na::INLINE_MAX;
        caps.short_expected = hg_na::INLINE_MAX;
        caps.max_control = hg_na::INLINE_MAX;
        caps.max_contexts = CONTEXTS_MAX;
        caps.max_segments = SEGMENTS_MAX;
        caps.max_transfer = TRANSFER_MAX;
        caps.one_sided = true;
        caps.views = true;
        caps.sleep = Sleep::Private;
        Ok(Arc::new(MemDomain {
            hub: Arc::clone(&self.hub),
            id,
            name,
            listen: options.listen,
            caps,
        }))
    }
}

#[derive(Debug)]
struct MemDomain {
    hub: Arc<Hub>,
    id: u64,
    name: String,
    listen: bool,
    caps: Caps,
}

impl Domain for MemDomain {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if rights.contains(Rights::WRITE) && !memory.writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        if memory.segments().len() > SEGMENTS_MAX {
            let (what, remedy) = ("segments of one registration", "register it in parts");
            return Err(Error::Limit { what, limit: SEGMENTS_MAX as u64, remedy });
        }
        let mut state = self.hub.lock();
        let mut key: Key = [0; 24];
        key[..8].copy_from_slice(&self.id.to_le_bytes());
        key[8..16].copy_from_slice(&state.fresh_id().to_le_bytes());
        getrandom::fill(&mut key[16..])
            .map_err(|error| Error::os("getrandom", std::io::Error::other(error.to_string())))?;
        let region = MemRegion::new(Arc::clone(&self.hub), self.id, key, memory, rights);
        let region = Arc::new(region);
        state.regions.retain(|_, region| region.strong_count() > 0);
        state.regions.insert(key, Arc::downgrade(&region));
        Ok(Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let address = Address::new(&format!("mem://{}/{id}", self.name))?;
        let waiter = Arc::new(MemWaiter::default());
        let endpoint =
            Endpoint::new(address.clone(), self.id, self.listen, Arc::clone(&waiter), &self.caps);
        let id = self.hub.lock().open(endpoint)?;
        Ok(Box::new(MemContext { hub: Arc::clone(&self.hub), id, address, waiter }))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        let (name, _) = context.as_str().rsplit_once('/').filter(|_| context.scheme() == "mem")?;
        Address::new(&format!("{name}/{id}")).ok()
    }
}

#[derive(Debug)]
struct MemContext {
    hub: Arc<Hub>,
    id: u64,
    address: Address,
    waiter: Arc<MemWaiter>,
}

impl Context for MemContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        let well_formed = address
            .rest()
            .split_once('/')
            .is_some_and(|(name, id)| !name.is_empty() && id.parse::<u8>().is_ok());
        if address.scheme() != "mem" || !well_formed {
            let why = "it needs the form mem://name/id".to_owned();
            return Err(Error::BadAddress { address: address.to_string(), why });
        }
        Ok(self.hub.lock().endpoint(self.id).lookup(address))
    }

    fn forget(&mut self, peer: Peer) {
        self.hub.lock().forget(self.id, peer);
        self.waiter.ring();
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        let max = Caps::minimal().max_unexpected;
        if len > max {
            return Err(Error::TooLong { len, max });
        }
        if len <= hg_na::INLINE_MAX {
            return Ok(Message::inline(len));
        }
        Ok(Message::from(vec![0; len]))
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let posted = self.hub.lock().endpoint(self.id).post(token, op);
        // It gets under way in the next progress: whoever sleeps must make it.
        self.waiter.ring();
        posted
    }

    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        let mut state = self.hub.lock();
        let Some(owner) = state.begin(self.id, transit.peer, transit.len) else { return Begun::No };
        match MemMover::new((&self.hub, &state), owner, transit) {
            Some(mover) => Begun::Ready(Box::new(mover)),
            None => Begun::No,
        }
    }

    fn moves(&mut self, peer: Peer) -> bool {
        self.hub.lock().moves(self.id, peer)
    }

    fn cancel(&mut self, id: OpId) {
        self.hub.lock().endpoint(self.id).cancel(id);
        self.waiter.ring();
    }

    fn set_admission(&mut self, open: bool) {
        self.hub.lock().endpoint(self.id).admission = open;
        self.waiter.ring();
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.hub.lock().endpoint(self.id).admit(peer, open);
        self.waiter.ring();
    }

    fn progress(&mut self, _now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.waiter.polled();
        Ok(self.hub.lock().progress(self.id, done))
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        let mut state = self.hub.lock();
        if state.has_work(self.id) {
            return false;
        }
        self.waiter.publish();
        true
    }

    fn flush(&mut self) -> bool {
        self.hub.lock().endpoint(self.id).flush()
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.hub.lock().endpoint(self.id).connected()
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.hub.lock().endpoint(self.id).was_connected(peer)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }
}

impl Drop for MemContext {
    fn drop(&mut self) {
        self.hub.lock().close(self.id);
    }
}
