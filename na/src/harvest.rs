//! What was taken out of a wait set and not dealt with yet; and one wait set for the contexts of two plugins.
//!
//! A set that stands inside another costs the kernel a second wake-up for each event, and whoever sleeps a second system
//! call. So a plugin may *host*: its guest, the context of another plugin, adds its descriptors to the same set. Either
//! takes whatever the kernel tells, and keeps what is the other's for the other.
//!
//! # Tokens
//! | token | of |
//! |---|---|
//! | [`Harvest::WAKE`] | an eventfd that is written to for a wake-up: edge-triggered, never read |
//! | [`Harvest::JOINED`] | the descriptor of one more waiter ([`crate::Waiter::join`]): kept for nobody |
//! | any other | whatever a plugin calls so |
//! | either, with the bit [`Harvest::GUEST`] | the guest |
//!
//! # Protocol
//! Events are taken by whoever waits, or by a context that polls; never by both at a time (the rule of [`crate`]'s
//! *Threads*). Edge-triggered ones are told once: they are kept until their context takes them, and end every wait until
//! then. A wake-up that a poll has taken although nobody sleeps leaves a mark, which ends the next wait:
//!
//! | `wake` comes | who takes its event | what ends the wait |
//! |---|---|---|
//! | during the wait | the wait | the event |
//! | before the wait, nobody polls in between | the wait | the event, at once |
//! | before the wait, then a poll, of either | the poll, which leaves the mark | the mark: what there is is collected, and nothing waited for |
//!
//! A wake-up of the host's besides says that there is something for its context, which may be left alone otherwise.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::Error;

/// What the kernel told about one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The name that its owner gave it.
    pub token: u64,
    /// There is something to read.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The other end has closed or hung up, or an error is pending.
    pub ending: bool,
}

/// What was taken out of a wait set, by the context that it belongs to. Clones are the same.
#[derive(Debug, Clone)]
pub struct Harvest {
    common: Arc<Common>,
    place: Place,
}

/// Of one wait set.
#[derive(Debug, Default)]
struct Common {
    /// A poll has taken the event of a wake-up.
    woken: AtomicBool,
    has_guest: AtomicBool,
    /// What to set when the joined descriptor is readable.
    joined: OnceLock<Arc<AtomicBool>>,
    kept: [Kept; 2],
}

/// Of one context.
#[derive(Debug, Default)]
struct Kept {
    /// The list is not empty, or its context was woken: answers without the lock.
    any: AtomicBool,
    list: Mutex<Vec<Told>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Guest,
}

/// What a guest needs to sleep where its host does: see [`crate::Waiter::host`].
#[derive(Debug)]
pub struct Guest {
    /// The set, for `epoll_ctl` and `epoll_wait`.
    pub set: OwnedFd,
    /// What is taken out of it.
    pub harvest: Harvest,
}

impl Harvest {
    /// A bit of a token that says that it is the guest's; in what a plugin calls its descriptors it is clear.
    pub const GUEST: u64 = 1 << 31;
    /// What every plugin calls the descriptor of its wake-ups.
    pub const WAKE: u64 = !Self::GUEST;
    /// What every plugin calls the descriptor of another plugin's waiter.
    pub const JOINED: u64 = Self::WAKE - 1;

    /// Of a wait set that is one context's alone.
    #[must_use]
    pub fn new() -> Self {
        Self { common: Arc::default(), place: Place::Host }
    }

    /// Takes a guest in, which is given another descriptor of the set; there is room for one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when there is one.
    pub fn guest(&self, set: OwnedFd) -> Result<Guest, Error> {
        // Relaxed: it orders nothing else.
        if self.place == Place::Guest || self.common.has_guest.swap(true, Ordering::Relaxed) {
            return Err(Error::Unsupported("a second guest in one wait set"));
        }
        let harvest = Self { common: Arc::clone(&self.common), place: Place::Guest };
        Ok(Guest { set, harvest })
    }

    /// One more waiter's descriptor is watched: `ready` is set whenever the kernel tells of it, whichever context takes that. Of one set there
    /// is one, which host or guest adds to it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when there is one.
    pub fn join(&self, ready: Arc<AtomicBool>) -> Result<(), Error> {
        let joined = self.common.joined.set(ready);
        joined.map_err(|_| Error::Unsupported("watching two more descriptors"))
    }

    /// The token that a descriptor of this context has in the set.
    #[must_use]
    pub fn token(&self, own: u64) -> u64 {
        debug_assert!(own & Self::GUEST == 0, "that bit is left clear");
        if self.place == Place::Guest { own | Self::GUEST } else { own }
    }

    /// Keeps what the kernel told, each for its context; says whether a wake-up was among it.
    pub fn keep(&self, told: impl IntoIterator<Item = Told>) -> bool {
        let mut woken = false;
        for told in told {
            let is_host = told.token & Self::GUEST == 0;
            let place = if is_host { Place::Host } else { Place::Guest };
            let told = Told { token: told.token & !Self::GUEST, ..told };
            if told.token == Self::JOINED {
                if let Some(ready) = self.common.joined.get() {
                    // Release: whoever sees it finds what the kernel has told of.
                    ready.store(true, Ordering::Release);
                }
                continue;
            }
            if told.token != Self::WAKE {
                self.common.of(place).push(told);
                continue;
            }
            woken = true;
            // Relaxed: the guest is there before anything is taken for it.
            if is_host && self.common.has_guest.load(Ordering::Relaxed) {
                // Release: pairs with `has_any`.
                self.common.of(place).any.store(true, Ordering::Release);
            }
        }
        woken
    }

    /// A wake-up was taken although nobody waits: ends the next wait.
    pub fn leave_wake(&self) {
        // Release: pairs with the swap in `ends_wait`; what the waker did before is seen after it.
        self.common.woken.store(true, Ordering::Release);
    }

    /// Whether a wait is to end before it begins: there is something for either context, or a mark, which is taken.
    #[must_use]
    pub fn ends_wait(&self) -> bool {
        // Acquire: pairs with the store in `leave_wake`.
        let is_marked = self.common.woken.swap(false, Ordering::Acquire);
        is_marked || self.common.kept.iter().any(Kept::has_any)
    }

    /// Whether something waits for this context.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.common.of(self.place).has_any()
    }

    /// Whether something waits for the host, asked by whoever lodges the guest.
    #[inline]
    #[must_use]
    pub fn host_has_any(&self) -> bool {
        self.common.of(Place::Host).has_any()
    }

    /// Moves what waits for this context to the end of `into`. One load when there is nothing.
    #[inline]
    pub fn take(&self, into: &mut Vec<Told>) {
        let kept = self.common.of(self.place);
        if kept.has_any() {
            let mut list = kept.lock();
            into.append(&mut list);
            // Relaxed: the lock orders it.
            kept.any.store(false, Ordering::Relaxed);
        }
    }
}

impl Default for Harvest {
    fn default() -> Self {
        Self::new()
    }
}

impl Common {
    #[inline]
    fn of(&self, place: Place) -> &Kept {
        match place {
            Place::Host => &self.kept[0],
            Place::Guest => &self.kept[1],
        }
    }
}

impl Kept {
    #[inline]
    fn has_any(&self) -> bool {
        // Acquire: pairs with `push`. The list itself is under its lock.
        self.any.load(Ordering::Acquire)
    }

    fn push(&self, told: Told) {
        let mut list = self.lock();
        list.push(told);
        // Release: pairs with `has_any`.
        self.any.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Told>> {
        // A thread that panicked in between has left a list of whole events.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn told(token: u64) -> Told {
        Told { token, readable: true, writable: false, ending: false }
    }

    fn tokens(harvest: &Harvest) -> Vec<u64> {
        let mut into = Vec::new();
        harvest.take(&mut into);
        into.iter().map(|told| told.token).collect()
    }

    fn two() -> (Harvest, Harvest) {
        let (host, set) = (Harvest::new(), || OwnedFd::from(File::open("/dev/null").unwrap()));
        let guest = host.guest(set()).unwrap();
        assert!(host.guest(set()).is_err(), "there is room for one");
        assert!(guest.harvest.guest(set()).is_err(), "a guest hosts nobody");
        (host, guest.harvest)
    }

    #[test]
    fn whoever_takes_events_out_keeps_the_others_for_the_other() {
        let (host, guest) = two();
        let (seven, eight) = (host.token(7), guest.token(7));
        assert_ne!(seven, eight);
        for by in [&host, &guest] {
            assert!(!by.keep([told(seven), told(eight), told(guest.token(9))]));
            assert!(host.has_any() && guest.has_any() && guest.host_has_any());
            assert_eq!((tokens(&host), tokens(&guest)), (vec![7], vec![7, 9]));
            assert!(!host.has_any() && !guest.has_any() && !guest.host_has_any());
        }
    }

    #[test]
    fn a_joined_descriptor_sets_its_flag_whoever_takes_it_and_is_kept_for_nobody() {
        for joins in [0, 1] {
            let (host, guest) = two();
            let (both, ready) = ([&host, &guest], Arc::new(AtomicBool::new(false)));
            both[joins].join(Arc::clone(&ready)).unwrap();
            assert!(both.iter().all(|it| it.join(Arc::default()).is_err()), "one is joined");
            for by in both {
                assert!(!by.keep([told(both[joins].token(Harvest::JOINED))]));
                assert!(ready.swap(false, Ordering::Acquire));
                assert!(!host.has_any() && !guest.has_any() && !by.ends_wait());
            }
        }
    }

    #[test]
    fn what_was_not_taken_ends_every_wait_of_both_and_a_mark_the_next_one() {
        let (host, guest) = two();
        for (by, other) in [(&host, &guest), (&guest, &host)] {
            assert!(!by.ends_wait() && !other.ends_wait());
            by.keep([told(by.token(1))]);
            assert!(by.ends_wait() && other.ends_wait() && other.ends_wait());
            tokens(by);
            assert!(!other.ends_wait());
            assert!(by.keep([told(guest.token(Harvest::WAKE))]));
            assert!(!other.ends_wait(), "whoever takes it ends");
            by.leave_wake();
            tokens(by);
            tokens(other);
            assert!(other.ends_wait() && !by.ends_wait(), "progress takes no mark, one wait does");
        }
    }

    #[test]
    fn a_host_that_was_woken_is_looked_at_and_one_without_guests_is_looked_at_anyway() {
        let (host, guest) = two();
        for by in [&host, &guest] {
            assert!(by.keep([told(host.token(Harvest::WAKE))]));
            assert!(host.has_any() && guest.host_has_any() && !guest.has_any());
            assert_eq!(tokens(&host), [0_u64; 0]);
            assert!(!guest.host_has_any());
        }
        let alone = Harvest::new();
        assert!(alone.keep([told(Harvest::WAKE)]) && !alone.has_any());
    }
}
