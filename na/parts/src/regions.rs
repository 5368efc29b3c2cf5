//! Registered regions: owned memory, reached by peers through this side's progress alone.
//!
//! # The plugin's part of a descriptor (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 16 | domain | random id of the owner's domain |
//! | 16 | 8 | key | names the region there; never used twice. The highest bit: memory of a device |
//! | 24 | 16 | token | random; the region holds the same |
//!
//! Each copy or system call that serves a peer holds the region's memory for as long as it lasts, so unregistering waits
//! for one that cannot block, and no more. A library that moves bytes on its own [shares](Entry::share) the memory
//! instead; what it does not let go of in time is left to it, and the owner gets a copy.
//!
//! A forked child gets back what lies in its copy of the heap. Other memory may not be mapped there (`MADV_DONTFORK`): the
//! child touches none of it. Nor does it wait for the locks of regions, which a thread that it lacks may have held.

use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{DESCRIPTOR_MAX, Descriptor, Error, Memory, RegionState, Rights};
use hg_na_memory::{ForkGuard, Held};
use rustc_hash::FxHashMap;

/// Bytes of a claim.
pub const CLAIM_LEN: usize = 40;

/// How long unregistering waits for those who share the memory.
const TAKE_WAITS: Duration = Duration::from_millis(100);

/// Most segments of one region: what one vectored call takes.
pub const SEGMENTS_MAX: usize = 1024;

const _: () = assert!(CLAIM_LEN <= DESCRIPTOR_MAX);

/// What names a region. From a peer it is a claim, until the table confirms it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Id of the owner's domain.
    pub domain: [u8; 16],
    /// Names the region there.
    pub key: u64,
    /// What the region must hold, too.
    pub token: [u8; 16],
}

/// In the key of memory of a device.
const ON_DEVICE: u64 = 1 << 63;

impl Claim {
    /// Whether it says that the memory is a device's: no bytes of it travel in messages.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.key & ON_DEVICE != 0
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; CLAIM_LEN] {
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
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = Error::BadDescriptor("it is not one of memory that its owner serves");
        let Ok(bytes) = <&[u8; CLAIM_LEN]>::try_from(bytes) else { return Err(wrong) };
        let (domain, rest) = bytes.split_first_chunk().expect("40 bytes hold 16");
        let (key, rest) = rest.split_first_chunk().expect("24 bytes hold 8");
        let (token, _) = rest.split_first_chunk().expect("16 bytes hold 16");
        Ok(Self { domain: *domain, key: u64::from_le_bytes(*key), token: *token })
    }
}

/// What a peer may reach of a region, while it is registered.
pub struct Entry {
    token: [u8; 16],
    rights: Rights,
    size: u64,
    is_on_device: bool,
    /// `None` once it was unregistered.
    memory: RwLock<Option<Arc<Memory>>>,
    /// How often that was left to a peer, or was about to be.
    left: AtomicU64,
}

impl Entry {
    /// Does something with the memory; `None` when it is not registered any more.
    pub fn with<T>(&self, act: impl FnOnce(&Memory) -> T) -> Option<T> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.as_deref().map(act)
    }

    /// Whether the memory is a device's, which only cards reach.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    /// The memory itself: it stays alive as long as this is held.
    #[must_use]
    pub fn share(&self) -> Option<Held> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner).clone().map(Held::from)
    }

    /// A peer may go on writing the memory although nobody waits for it any more: it is left to that peer, and a
    /// copy takes its place. What others write to what they were shown before is not in that: [`Entry::times_left`].
    pub fn abandon(&self) {
        // SeqCst, with `times_left`: who finds the number as it was has all that has come in the copy.
        self.left.fetch_add(1, Ordering::SeqCst);
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let copy = memory.as_deref().and_then(copy_of);
        let left = copy.and_then(|copy| memory.replace(Arc::new(copy)));
        drop(memory);
        drop(left.map(Held::from));
    }

    /// How often it was [abandoned](Entry::abandon). Asked before it is [shared](Entry::share) and when all has come: where both are the
    /// same, that is in it.
    #[must_use]
    pub fn times_left(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    /// Rights, bounds: checked before anything is touched.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::OutOfRange`].
    pub fn check(&self, needed: Rights, offset: u64, len: u64) -> Result<(), Error> {
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
pub struct Regions {
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
    pub fn new(guard: Arc<ForkGuard>) -> Result<Arc<Self>, Error> {
        let (domain, last_key) = (random()?, AtomicU64::new(0));
        Ok(Arc::new(Self { guard, domain, last_key, table: RwLock::default() }))
    }

    /// The region that a claim names.
    ///
    /// # Errors
    /// [`Error::StaleDescriptor`].
    pub fn find(&self, claim: &Claim) -> Result<Arc<Entry>, Error> {
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
///
/// # Errors
/// [`Error::Os`] without random numbers.
pub fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::os("getrandom", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// One region of this process.
pub struct ServedRegion {
    regions: Arc<Regions>,
    key: u64,
    entry: Arc<Entry>,
    descriptor: Descriptor,
}

impl ServedRegion {
    /// Makes memory reachable.
    ///
    /// # Errors
    /// [`Error::Denied`] when it cannot be written but [`Rights::WRITE`] is asked for,
    /// [`Error::Limit`] when it has too many segments, [`Error::Unsupported`] for memory of a device.
    pub fn register(
        regions: &Arc<Regions>,
        memory: Memory,
        rights: Rights,
    ) -> Result<Arc<Self>, Error> {
        match memory.device() {
            None => Self::register_anywhere(regions, memory, rights),
            Some(_) => Err(Error::Unsupported(
                "memory of a device over this transport: ofi+... with its setting device-memory may reach it",
            )),
        }
    }

    /// The same, also of memory of a device, for a transport whose card reaches it.
    ///
    /// # Errors
    /// As [`ServedRegion::register`].
    pub fn register_anywhere(
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
        let is_on_device = memory.device().is_some();
        let key = if is_on_device { key | ON_DEVICE } else { key };
        let claim = Claim { domain: regions.domain, key, token };
        let descriptor = Descriptor::new(size, rights, &claim.encode());
        let memory = RwLock::new(Some(Arc::new(memory)));
        let left = AtomicU64::new(0);
        let entry = Arc::new(Entry { token, rights, size, is_on_device, memory, left });
        let mut table = regions.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(key, Arc::clone(&entry));
        drop(table);
        Ok(Arc::new(Self { regions: Arc::clone(regions), key, entry, descriptor }))
    }

    /// What transfers of this side's own use.
    #[must_use]
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether a get may land in it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.entry.with(Memory::writable).unwrap_or(false)
    }

    fn take(&self) -> Option<Memory> {
        self.regions.remove(self.key);
        // Waits for the call in progress, which does not block.
        let mut memory =
            self.entry.memory.write().unwrap_or_else(PoisonError::into_inner).take()?;
        let end = Instant::now() + TAKE_WAITS;
        loop {
            memory = match Arc::try_unwrap(memory) {
                Ok(memory) => return Some(memory),
                Err(held) if Instant::now() >= end => return copy_of(&held),
                Err(held) => held,
            };
            std::thread::yield_now();
        }
    }

    /// In a forked child: lets go of the memory, unless a thread that is not there holds the locks.
    fn leave(&self) -> Option<Memory> {
        if let Ok(mut table) = self.regions.table.try_write() {
            table.remove(&self.key);
        }
        let memory = self.entry.memory.try_write().ok()?.take()?;
        // A thread that is not there may share it for ever: it keeps it.
        Arc::try_unwrap(memory).ok()
    }

    /// Does something with the memory, where this process has it.
    fn with<T>(&self, act: impl FnOnce(&Memory) -> Result<T, Error>) -> Result<T, Error> {
        if !self.regions.guard.is_child() {
            return self.entry.with(act).unwrap_or(Err(Error::StaleDescriptor));
        }
        let memory = self.entry.memory.try_read().ok();
        match memory.as_ref().and_then(|memory| memory.as_deref()) {
            Some(memory) if is_inherited(memory) => act(memory),
            _ => Err(Error::Forked),
        }
    }
}

/// Whether a forked child has a copy of it for certain: of the heap, not of what somebody else keeps.
fn is_inherited(memory: &Memory) -> bool {
    !memory.is_kept_by_others()
}

/// The same bytes in fresh memory, in a vector or a list of vectors of the same lengths; `None` for memory of a device.
#[must_use]
pub fn copy_of(memory: &Memory) -> Option<Memory> {
    let mut offset = 0;
    let mut segments = Vec::with_capacity(memory.segments().len());
    for segment in memory.segments() {
        let mut bytes = vec![0; segment.len];
        hg_na_memory::copy_out(memory, offset, &mut bytes).ok()?;
        offset += segment.len as u64;
        segments.push(bytes);
    }
    Some(match <[Vec<u8>; 1]>::try_from(segments) {
        Ok([one]) if !memory.is_list() => Memory::from(one),
        Ok(list) => Memory::from(Vec::from(list)),
        Err(list) => Memory::from(list),
    })
}

impl RegionState for ServedRegion {
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
        let is_on_device = region.entry.is_on_device;
        // Of a device's nobody makes a copy: what a card does not let go of is left to it.
        let why = if is_on_device { Error::RegionBusy } else { Error::StaleDescriptor };
        region.take().ok_or(why)
    }
}

impl Drop for ServedRegion {
    fn drop(&mut self) {
        let is_child = self.regions.guard.is_child();
        drop(if is_child { self.leave() } else { self.take() });
    }
}

impl fmt::Debug for ServedRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ServedRegion({} bytes, {:?})", self.entry.size, self.entry.rights)
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
        let region =
            ServedRegion::register(&regions, Memory::from(vec![1; 8]), Rights::READ).unwrap();
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
        let region =
            ServedRegion::register(&regions, Memory::from(vec![1; 8]), Rights::READ).unwrap();
        let claim = Claim::decode(region.descriptor().opaque()).unwrap();
        let user = Arc::clone(&region);
        assert!(matches!(region.unregister(), Err(Error::RegionBusy)));
        assert!(regions.find(&claim).is_ok());
        drop(user);
        assert!(regions.find(&claim).is_err());
    }

    #[test]
    fn who_shares_the_memory_keeps_it_and_the_owner_gets_a_copy() {
        let regions = regions();
        let memory = Memory::from(vec![vec![1; 3], vec![2; 5]]);
        let region = ServedRegion::register(&regions, memory, Rights::all()).unwrap();
        let shared = region.entry().share().unwrap();
        let back = region.unregister().unwrap();
        let lens: Vec<_> = back.segments().iter().map(|segment| segment.len).collect();
        assert_eq!(lens, [3, 5]);
        hg_na_memory::copy_in(&shared, 0, &[9; 8]).unwrap();
        let mut bytes = [0; 8];
        hg_na_memory::copy_out(&back, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 1, 1, 2, 2, 2, 2, 2], "a late writer changes nothing");
    }

    #[test]
    #[expect(unsafe_code, reason = "memory that nobody may touch")]
    fn memory_of_a_device_is_refused_by_name_and_where_it_is_taken_its_claim_says_what_it_is() {
        let device = || {
            let segment = hg_na::Segment { address: 8, len: 8 };
            // SAFETY:
            // - there is no such device: nothing reaches it.
            unsafe { Memory::on_device(hg_na::Device::Rocm, vec![segment], true, Arc::new(())) }
        };
        let regions = regions();
        let refused = ServedRegion::register(&regions, device(), Rights::READ).map(drop);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        let region = ServedRegion::register_anywhere(&regions, device(), Rights::all()).unwrap();
        let claim = Claim::decode(region.descriptor().opaque()).unwrap();
        assert!(claim.is_on_device() && regions.find(&claim).unwrap().is_on_device());
        assert!(region.read(0, &mut [0]).is_err() && region.write(0, &[0]).is_err());
        // Nobody makes a copy of it: what is still lent stays with the card.
        let shared = region.entry().share().unwrap();
        region.entry().abandon();
        assert!(matches!(region.unregister(), Err(Error::RegionBusy)));
        assert_eq!(shared.device(), Some(hg_na::Device::Rocm));
        let other = ServedRegion::register(&regions, Memory::from(vec![1]), Rights::READ).unwrap();
        assert!(!Claim::decode(other.descriptor().opaque()).unwrap().is_on_device());
    }

    #[test]
    fn abandoned_memory_is_a_copy_at_once() {
        let regions = regions();
        let region =
            ServedRegion::register(&regions, Memory::from(vec![1; 8]), Rights::all()).unwrap();
        let shared = region.entry().share().unwrap();
        region.entry().abandon();
        hg_na_memory::copy_in(&shared, 0, &[9; 8]).unwrap();
        assert_eq!(region.unregister().unwrap().into_vec().unwrap(), [1; 8]);
    }
}
