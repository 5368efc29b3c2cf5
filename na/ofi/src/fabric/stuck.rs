//! A lock of libfabric's that a killed process has left locked.
//!
//! In libfabric 1.17's shm whoever sends takes a spin lock in the receiver's shared memory, and so does the receiver
//! when it looks at its queue. A process that is killed in between holds it for ever, and the receiver would spin
//! for ever. So it looks at the lock first: while somebody holds it, the queue is left alone, and the
//! lifelines are attended to. Once a peer was killed, and the lock was held for [`RELEASE_AFTER`] on end, nobody
//! who lives holds it: a sender holds it for less than a microsecond. Then it is released.
//!
//! The same lock of a peer that was killed while it looked at its own queue would hold up whoever sends to it: so that
//! one is looked at, too ([`PeerLock`]), and a send is tried again later.
//!
//! Only where the layout is known (1.17 on x86-64; Debian's); elsewhere nothing is done.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicI32, Ordering},
    time::{Duration, Instant},
};

/// How long a lock may be held before its holder is taken for dead.
const RELEASE_AFTER: Duration = Duration::from_secs(2);
/// The versions of libfabric whose layout is known.
const KNOWN: (u32, u32) = (1, 17);
/// What an unlocked `pthread_spinlock_t` holds on x86-64.
const UNLOCKED: i32 = 1;

/// The head of `struct smr_region`, as far as it is needed here.
#[repr(C)]
struct Region {
    version: u8,
    reserved: u8,
    flags: u16,
    pid: u32,
    can_copy: [u8; 4],
    max_buffers: u32,
    base: usize,
    lock: AtomicI32,
}

const REGION_VERSION: u8 = 4;
/// How often a peer's lock is looked at before a send is put off: some tens of microseconds.
const LOOKS: u32 = 20_000;
/// Times that a peer's region is not found before it is not looked for any more.
const MISSES_MAX: u32 = 16;

const _: () = assert!(std::mem::offset_of!(Region, lock) == 24);

/// The lock of an endpoint's own region.
pub(super) struct RegionLock {
    /// Mapped by the library as long as the endpoint is open.
    region: NonNull<Region>,
    held_since: Option<Instant>,
}

// SAFETY:
// - what it points to is shared between processes, and only its lock is accessed, atomically.
unsafe impl Send for RegionLock {}

impl RegionLock {
    /// Of the endpoint with this address, which is open, and closed after this was dropped.
    pub(super) fn find(provider: &str, version: (u32, u32), name: &[u8]) -> Option<Self> {
        if provider != "shm" || version != KNOWN || !cfg!(target_arch = "x86_64") {
            return None;
        }
        Self::of_region(name).filter(|found| {
            let head = found.head();
            head.pid == std::process::id() && head.base == found.region.as_ptr().addr()
        })
    }

    /// Of a peer's endpoint, once the library has mapped it. Where the own one was found; dropped before
    /// the address is removed.
    fn find_peers(name: &[u8]) -> Option<Self> {
        Self::of_region(name)
    }

    fn of_region(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name.strip_prefix(b"fi_shm://")?).ok()?;
        let pid: u32 = name.split(':').next()?.parse().ok()?;
        let file = format!("/dev/shm/{}", name.trim_end_matches('\0'));
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let line =
            maps.lines().find(|line| line.ends_with(&file) && line.contains("rw-s 00000000"))?;
        let start = usize::from_str_radix(line.split_once('-')?.0, 16).ok()?;
        let region = NonNull::new(std::ptr::with_exposed_provenance_mut::<Region>(start))?;
        let found = Self { region, held_since: None };
        let is_it = found.head().version == REGION_VERSION && found.head().pid == pid;
        is_it.then_some(found)
    }

    fn head(&self) -> &Region {
        // SAFETY:
        // - mapped, page-aligned and longer than its head: the kernel says so; any bits are a head.
        unsafe { self.region.as_ref() }
    }

    fn lock(&self) -> &AtomicI32 {
        &self.head().lock
    }

    /// Whether a send finds it free, now or in a moment.
    fn frees(&self) -> bool {
        (0..LOOKS).any(|_| {
            let is_free = !self.is_held();
            if !is_free {
                std::hint::spin_loop();
            }
            is_free
        })
    }

    /// Whether somebody holds it now.
    pub(super) fn is_held(&self) -> bool {
        // Relaxed: a hint; the library takes the lock itself afterwards.
        self.lock().load(Ordering::Relaxed) != UNLOCKED
    }

    /// Whether the queue is to be left alone. `has_died`: a peer was killed at some time.
    pub(super) fn blocks(&mut self, has_died: bool) -> bool {
        if !self.is_held() {
            self.held_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *self.held_since.get_or_insert(now);
        if !has_died || now.saturating_duration_since(since) < RELEASE_AFTER {
            return true;
        }
        tracing::warn!("a killed process held a lock of libfabric's: it is released");
        // Release: as its holder would have.
        self.lock().store(UNLOCKED, Ordering::Release);
        self.held_since = None;
        false
    }
}

/// The lock of a peer's region, which is found once the library has mapped it.
#[derive(Debug)]
pub(super) struct PeerLock {
    name: Vec<u8>,
    found: Option<RegionLock>,
    misses: u32,
}

impl PeerLock {
    pub(super) fn new(name: &[u8]) -> Self {
        Self { name: name.to_vec(), found: None, misses: 0 }
    }

    /// Whether a send finds it free, or not at all.
    pub(super) fn frees(&mut self) -> bool {
        if self.found.is_none() && self.misses < MISSES_MAX {
            self.found = RegionLock::find_peers(&self.name);
            self.misses += 1;
        }
        self.found.as_ref().is_none_or(RegionLock::frees)
    }
}

impl std::fmt::Debug for RegionLock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RegionLock(held: {})", self.is_held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Endpoint, Event, Form, Wanted, library, offers};

    #[test]
    fn a_lock_that_stays_held_blocks_nobody_for_ever_once_a_peer_has_died() {
        let wanted = Wanted { provider: Some("shm"), ..Wanted::default() };
        let all = offers(wanted).unwrap();
        let mut endpoint = Endpoint::open(&all[0], Form::of(4096)).unwrap();
        let version = library().unwrap().version();
        let Some(mut lock) = RegionLock::find("shm", version, endpoint.name()) else {
            assert_ne!(version, KNOWN, "the lock is found where its layout is known");
            return;
        };
        assert!(!lock.is_held() && !lock.blocks(true));
        lock.lock().store(0, Ordering::Relaxed);
        // The library would spin for ever in either.
        endpoint.poll(&mut Vec::new()).unwrap();
        assert!(!endpoint.may_wait() && lock.blocks(false) && lock.blocks(true));
        endpoint.peer_has_died();
        while lock.is_held() {
            endpoint.poll(&mut Vec::new()).unwrap();
        }
        // The library is asked again, and its queue works.
        let own = endpoint.name().to_vec();
        let there = endpoint.insert(&own).unwrap();
        let mut events = Vec::new();
        while endpoint.send(there, (3, false), 1, |_| true).is_err() {
            endpoint.poll(&mut events).unwrap();
        }
        while !events.iter().any(|event| matches!(event, Event::Arrived(_))) {
            endpoint.poll(&mut events).unwrap();
        }
    }
}
