//! Registered regions: owned memory, reached by peers through this side's progress alone.
//!
//! # The plugin's part of a descriptor (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 16 | domain | random id of the owner's domain |
//! | 16 | 8 | key | names the region there; never used twice |
//! | 24 | 16 | token | random; the region holds the same |
//!
//! Each system call that serves a peer holds the region's memory for as long as it lasts, so
//! unregistering waits for one call that cannot block, and no more.
//!
//! A forked child gets back what lies in its copy of the heap. Other memory may not be mapped there (`MADV_DONTFORK`): the
//! child touches none of it. Nor does it wait for the locks of regions, which a thread that it lacks may have held.

use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_na::{DESCRIPTOR_MAX, Descriptor, Error, Memory, RegionState, Rights};
use hg_na_memory::ForkGuard;
use rustc_hash::FxHashMap;

/// Bytes of a claim.
pub(crate) const CLAIM_LEN: usize = 40;

/// Most segments of one region: what one vectored call takes.
pub(crate) const SEGMENTS_MAX: usize = 1024;

const _: () = assert!(CLAIM_LEN <= DESCRIPTOR_MAX);

/// What names a region. From a peer it is a claim, until the table confirms it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    domain: [u8; 16],
    key: u64,
    token: [u8; 16],
}

impl Claim {
    /// The wire form.
    pub(crate) fn encode(&self) -> [u8; CLAIM_LEN] {
        let mut bytes = [0; CLAIM_LEN];
        bytes[..16].copy_from_slice(&self.domain);
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.token);
        bytes
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = Error::BadDescriptor("it is no descriptor of memory behind tcp");
        let Ok(bytes) = <&[u8; CLAIM_LEN]>::try_from(bytes) else { return Err(wrong) };
        let (domain, rest) = bytes.split_first_chunk().expect("40 bytes hold 16");
        let (key, rest) = rest.split_first_chunk().expect("24 bytes hold 8");
        let (token, _) = rest.split_first_chunk().expect("16 bytes hold 16");
        Ok(Self { domain: *domain, key: u64::from_le_bytes(*key), token: *token })
    }
}

/// What a peer may reach of a region, while it is registered.
pub(crate) struct Entry {
    token: [u8; 16],
    rights: Rights,
    size: u64,
    /// `None` once it was unregistered.
    memory: RwLock<Option<Memory>>,
}

impl Entry {
    /// Does something with the memory; `None` when it is not registered any more.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&Memory) -> T) -> Option<T> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.as_ref().map(act)
    }

    /// Rights, bounds: checked before anything is touched.
    pub(crate) fn check(&self, needed: Rights, offset: u64, len: u64) -> Result<(), Error> {
        if !self.rights.contains(needed) {
            return Err(Error::Denied { granted: self.rights, needed });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::OutOfRange { offset, len, size: self.size }),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Entry({} bytes, {:?})", self.size, self.rights)
    }
}

/// All regions of a domain.
#[derive(Debug)]
pub(crate) struct Regions {
    guard: Arc<ForkGuard>,
    domain: [u8; 16],
    last_key: AtomicU64,
    /// Keys are chosen by this side.
    table: RwLock<FxHashMap<u64, Arc<Entry>>>,
}

impl Regions {
    /// No region yet.
    ///
    /// # Errors
    /// [`Error::Os`] without random numbers.
    pub(crate) fn new(guard: Arc<ForkGuard>) -> Result<Arc<Self>, Error> {
        let (domain, last_key) = (random()?, AtomicU64::new(0));
        Ok(Arc::new(Self { guard, domain, last_key, table: RwLock::default() }))
    }

    /// The region that a claim names.
    ///
    /// # Errors
    /// [`Error::StaleDescriptor`].
    pub(crate) fn find(&self, claim: &Claim) -> Result<Arc<Entry>, Error> {
        if claim.domain != self.domain {
            return Err(Error::StaleDescriptor);
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let entry = table.get(&claim.key).filter(|entry| same(&entry.token, &claim.token));
        entry.cloned().ok_or(Error::StaleDescriptor)
    }

    fn remove(&self, key: u64) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }
}

/// Compares all bytes, so that the time tells nothing.
fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |wrong, (one, other)| wrong | (one ^ other)) == 0
}

/// 16 random bytes of the operating system's.
pub(crate) fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::os("getrandom", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// One region of this process.
pub(crate) struct TcpRegion {
    regions: Arc<Regions>,
    key: u64,
    entry: Arc<Entry>,
    descriptor: Descriptor,
}

impl TcpRegion {
    /// Makes memory reachable.
    ///
    /// # Errors
    /// [`Error::Denied`] when it cannot be written but [`Rights::WRITE`] is asked for,
    /// [`Error::Limit`] when it has too many segments.
    pub(crate) fn register(
        regions: &Arc<Regions>,
        memory: Memory,
        rights: Rights,
    ) -> Result<Arc<Self>, Error> {
        if rights.contains(Rights::WRITE) && !memory.writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        if memory.segments().len() > SEGMENTS_MAX {
            let (what, limit) = ("segments of one registration", SEGMENTS_MAX as u64);
            return Err(Error::Limit { what, limit, remedy: "register several regions" });
        }
        let (token, size) = (random()?, memory.len());
        // Relaxed: only the number counts.
        let key = regions.last_key.fetch_add(1, Ordering::Relaxed);
        let claim = Claim { domain: regions.domain, key, token };
        let descriptor = Descriptor::new(size, rights, &claim.encode());
        let entry = Arc::new(Entry { token, rights, size, memory: RwLock::new(Some(memory)) });
        let mut table = regions.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(key, Arc::clone(&entry));
        drop(table);
        Ok(Arc::new(Self { regions: Arc::clone(regions), key, entry, descriptor }))
    }

    /// What transfers of this side's own use.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether a get may land in it.
    pub(crate) fn is_writable(&self) -> bool {
        self.entry.with(Memory::writable).unwrap_or(false)
    }

    fn take(&self) -> Option<Memory> {
        self.regions.remove(self.key);
        // Waits for the call in progress, which does not block.
        self.entry.memory.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// In a forked child: lets go of the memory, unless a thread that is not there holds the locks.
    fn leave(&self) -> Option<Memory> {
        if let Ok(mut table) = self.regions.table.try_write() {
            table.remove(&self.key);
        }
        self.entry.memory.try_write().ok()?.take()
    }

    /// Does something with the memory, where this process has it.
    fn with<T>(&self, act: impl FnOnce(&Memory) -> Result<T, Error>) -> Result<T, Error> {
        if !self.regions.guard.is_child() {
            return self.entry.with(act).unwrap_or(Err(Error::StaleDescriptor));
        }
        let memory = self.entry.memory.try_read().ok();
        match memory.as_ref().and_then(|memory| memory.as_ref()) {
            Some(memory) if is_inherited(memory) => act(memory),
            _ => Err(Error::Forked),
        }
    }
}

/// Whether a forked child has a copy of it for certain: of the heap, not of what somebody else keeps.
fn is_inherited(memory: &Memory) -> bool {
    memory.keeper().is_none()
}

impl RegionState for TcpRegion {
    fn len(&self) -> u64 {
        self.entry.size
    }

    fn rights(&self) -> Rights {
        self.entry.rights
    }

    fn descriptor(&self) -> Descriptor {
        self.descriptor.clone()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.with(|memory| hg_na_memory::copy_out(memory, offset, into))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.with(|memory| hg_na_memory::copy_in(memory, offset, from))
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        // An operation that uses it holds a reference; the last one to go unregisters it.
        let region = Arc::try_unwrap(self).map_err(|_| Error::RegionBusy)?;
        if region.regions.guard.is_child() {
            return region.leave().filter(is_inherited).ok_or(Error::Forked);
        }
        region.take().ok_or(Error::StaleDescriptor)
    }
}

impl Drop for TcpRegion {
    fn drop(&mut self) {
        let is_child = self.regions.guard.is_child();
        drop(if is_child { self.leave() } else { self.take() });
    }
}

impl fmt::Debug for TcpRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "TcpRegion({} bytes, {:?})", self.entry.size, self.entry.rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Arc<Regions> {
        Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap()
    }

    #[test]
    fn a_claim_is_good_with_its_token_until_the_region_is_unregistered() {
        let regions = regions();
        let region = TcpRegion::register(&regions, Memory::from(vec![1; 8]), Rights::READ).unwrap();
        let claim = Claim::decode(region.descriptor().opaque()).unwrap();
        let entry = regions.find(&claim).unwrap();
        assert!(entry.check(Rights::READ, 0, 8).is_ok());
        assert!(matches!(entry.check(Rights::WRITE, 0, 8), Err(Error::Denied { .. })));
        assert!(matches!(entry.check(Rights::READ, 1, 8), Err(Error::OutOfRange { .. })));
        assert!(matches!(entry.check(Rights::READ, u64::MAX, 8), Err(Error::OutOfRange { .. })));
        for place in 0..CLAIM_LEN {
            let mut forged = claim.encode();
            forged[place] ^= 1;
            let forged = Claim::decode(&forged).unwrap();
            assert!(matches!(regions.find(&forged), Err(Error::StaleDescriptor)));
        }
        assert_eq!(region.unregister().unwrap().into_vec().unwrap(), [1; 8]);
        assert!(matches!(regions.find(&claim), Err(Error::StaleDescriptor)));
        assert!(entry.with(|_| ()).is_none());
    }

    #[test]
    fn a_region_in_use_is_unregistered_when_its_last_user_drops_it() {
        let regions = regions();
        let region = TcpRegion::register(&regions, Memory::from(vec![1; 8]), Rights::READ).unwrap();
        let claim = Claim::decode(region.descriptor().opaque()).unwrap();
        let user = Arc::clone(&region);
        assert!(matches!(region.unregister(), Err(Error::RegionBusy)));
        assert!(regions.find(&claim).is_ok());
        drop(user);
        assert!(regions.find(&claim).is_err());
    }
}
