//! Doorbells: eventfds that are signalled and never read.
//!
//! A doorbell lies edge-triggered in its receiver's epoll set, so that each signal is one event and
//! nobody spends a system call on reading the counter. The counter only grows. That it is full (after 584 years of a signal a
//! nanosecond, or because its maker wants it so) changes nothing: sleepers are woken all the same.
//!
//! A doorbell that a peer made shares its open file description with that peer, who may make it block: it is rung by
//! [`Signals`], which never waits.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hg_na::Error;
use nix::sys::eventfd::{EfdFlags, EventFd};

use hg_na_parts::limits::os_error;

use super::{misbehaved, signals::Signals};

/// One of our own, for being rung.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one: close-on-exec, never blocking.
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_flags(flags).map_err(|e| os_error("eventfd", e))?;
        Ok(Self(eventfd.into()))
    }

    /// For an epoll set, or for a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One that a peer has sent, for ringing.
#[derive(Debug)]
pub(crate) struct PeerBell(OwnedFd);

impl PeerBell {
    /// Takes what a peer has sent.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when it is no eventfd.
    pub(crate) fn from_fd(eventfd: OwnedFd) -> Result<Self, Error> {
        if is_eventfd(&eventfd)? {
            return Ok(Self(eventfd));
        }
        Err(misbehaved("it sent a descriptor that is no eventfd as its doorbell"))
    }

    /// Wakes whoever has it in an epoll set; never waits for anybody. `false`: it has to be woken by other means.
    pub(crate) fn ring(&self) -> bool {
        Signals::of_process().is_ok_and(|signals| signals.signal(self.0.as_fd()))
    }
}

/// Asks /proc for the name of the file behind a descriptor: first of the process, and of the thread where the process's first
/// thread has ended. What is looked up below `thread-self` makes the end of its process dear to the kernel.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> Result<bool, Error> {
    let ask = |whose| std::fs::read_link(format!("/proc/{whose}/fd/{}", fd.as_raw_fd()));
    let name = ask("self").or_else(|_| ask("thread-self")).map_err(|e| os_error("readlink", e))?;
    Ok(name.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use crate::os::mapping::{Mapping, TABLE_SEALS};

    use super::*;

    #[test]
    fn a_doorbell_passed_on_is_accepted_and_a_memfd_is_not() {
        let bell = Doorbell::new().unwrap();
        assert!(PeerBell::from_fd(bell.fd().try_clone_to_owned().unwrap()).unwrap().ring());
        let (_mapping, memfd) = Mapping::create(c"x", 4096, TABLE_SEALS, 0).unwrap();
        let refused = PeerBell::from_fd(memfd).unwrap_err().to_string();
        assert!(refused.contains("no eventfd"), "{refused}");
    }
}
