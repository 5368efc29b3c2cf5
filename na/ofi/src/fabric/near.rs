//! Endpoints of one process know one another.
//!
//! libfabric's shm writes straight into the memory of an endpoint of the same process, and does not notice that it
//! was closed and its memory unmapped: it never forgets such an endpoint, and looks into its memory as soon as the
//! address is inserted. So both are done while it is certainly open: [`Near::hold`].
//! From 2.0 on it also touches that memory when an address is removed, and (2.5) loses its way in longer messages
//! between such endpoints. There nothing is sent through it: frames are laid into the other's [`Near::push`] inbox.
//! Credits bound an inbox as they bound everything else on its way.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use hg_na::Error;
use hg_na_parts::limits::os_error;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// What the others of its process know of an endpoint.
#[derive(Debug)]
pub(crate) struct Near {
    /// Written once, under the lock that senders hold.
    open: RwLock<bool>,
    inbox: Mutex<VecDeque<Vec<u8>>>,
    /// Whether the inbox holds anything; a hint, and exact once the lock is held.
    is_full: AtomicBool,
    /// Readable while the inbox holds anything.
    bell: EventFd,
}

/// By address.
type Names = HashMap<Vec<u8>, Weak<Near>>;

fn names() -> MutexGuard<'static, Names> {
    static NAMES: OnceLock<Mutex<Names>> = OnceLock::new();
    NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The endpoint of this process with this address.
pub(crate) fn find(name: &[u8]) -> Option<Arc<Near>> {
    names().get(name).and_then(Weak::upgrade)
}

/// Whether an endpoint with this address of libfabric's shm is, or was, of this process.
pub(crate) fn is_of_this_process(name: &[u8]) -> bool {
    let place = name.strip_prefix(b"fi_shm://").and_then(|place| std::str::from_utf8(place).ok());
    let process = place.and_then(|place| place.split_once(':')?.0.parse().ok());
    process == Some(std::process::id())
}

impl Near {
    /// A fresh endpoint.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn announce(name: &[u8]) -> Result<Arc<Self>, Error> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = bell.map_err(|error| os_error("eventfd", error))?;
        let (open, inbox) = (RwLock::new(true), Mutex::default());
        let near = Arc::new(Self { open, inbox, is_full: AtomicBool::new(false), bell });
        let mut names = names();
        names.retain(|_, other| other.strong_count() > 0);
        names.insert(name.to_vec(), Arc::downgrade(&near));
        Ok(near)
    }

    /// Keeps an endpoint from being closed. `None`: it was.
    pub(crate) fn hold(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let held = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if *held { Some(held) } else { None }
    }

    /// An endpoint is about to be closed: waits for the sends that hold it.
    pub(crate) fn closes(&self) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = false;
        self.inbox().clear();
    }

    fn inbox(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays a frame into the inbox. `false`: the endpoint was closed.
    pub(crate) fn push(&self, frame: Vec<u8>) -> bool {
        let Some(_held) = self.hold() else { return false };
        let mut inbox = self.inbox();
        inbox.push_back(frame);
        if inbox.len() == 1 {
            // Release: pairs with `has_mail`. The inbox itself is under its lock.
            self.is_full.store(true, Ordering::Release);
            // It fails only when the count is full, and then it is readable.
            let _ = self.bell.write(1);
        }
        true
    }

    /// Whether the inbox holds anything.
    pub(crate) fn has_mail(&self) -> bool {
        // Acquire: pairs with `push`.
        self.is_full.load(Ordering::Acquire)
    }

    /// Takes everything, in order.
    pub(crate) fn take(&self) -> VecDeque<Vec<u8>> {
        let mut inbox = self.inbox();
        // Relaxed: the lock orders it.
        self.is_full.store(false, Ordering::Relaxed);
        // Nothing to read is as good.
        let _ = self.bell.read();
        mem::take(&mut *inbox)
    }

    /// For the wait set.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Endpoint, Form, Wanted, offers};

    #[test]
    fn the_address_of_a_closed_endpoint_of_this_process_is_not_inserted() {
        let wanted = Wanted { provider: Some("shm"), ..Wanted::default() };
        let all = offers(wanted).unwrap();
        let open = || Endpoint::open(&all[0], Form::of(4096)).unwrap();
        let (mut one, [other, closed]) = (open(), [open(), open()]);
        let name = closed.name().to_vec();
        drop(closed);
        assert!(one.insert(&name).is_err());
        one.insert(other.name()).unwrap();
    }

    #[test]
    fn an_address_of_shared_memory_tells_the_process() {
        let own = format!("fi_shm://{}:0:3\0", std::process::id());
        assert!(is_of_this_process(own.as_bytes()));
        for other in ["fi_shm://1:0:3", "fi_shm://", "fi_shm://x:0:3", "tcp", ""] {
            assert!(!is_of_this_process(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_closed_endpoint_can_neither_be_held_nor_written_to() {
        let near = Near::announce(b"near-test").unwrap();
        let found = find(b"near-test").unwrap();
        assert!(found.hold().is_some());
        assert!(found.push(vec![1]) && found.push(vec![2]));
        assert!(near.has_mail());
        assert_eq!(near.take(), [vec![1], vec![2]]);
        assert!(!near.has_mail() && near.take().is_empty());
        near.closes();
        assert!(found.hold().is_none() && !found.push(vec![3]));
        drop((near, found));
        assert!(find(b"near-test").is_none());
    }
}
