//! Doorbells: eventfds that are written and never read.
//!
//! A doorbell lies edge-triggered in its receiver's epoll set, so that each write is one event and
//! nobody spends a system call on reading the counter. The counter only grows. After 2^64 - 2 rings
//! (at one a nanosecond: 584 years) a write would be refused with EAGAIN, and a receiver would sleep
//! on; that is accepted. A peer that drives the counter there on purpose silences its own doorbell
//! and harms its own connection, no other.
//!
//! A doorbell that a peer made shares its open file description with that peer. What is checked: it
//! is an eventfd, and it does not block at this moment. What is not claimed: a peer of the same user that
//! switches it to blocking and fills the counter can stop a ringer (`allow-uid` extends that trust).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hg_na::Error;
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::eventfd::{EfdFlags, EventFd},
    sys::stat::{SFlag, fstat},
    unistd::write,
};

use hg_na_parts::limits::os_error;

use super::misbehaved;

/// One eventfd, for ringing or for being rung.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one: close-on-exec, never blocking.
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_flags(flags).map_err(|e| os_error("eventfd", e))?;
        Ok(Self(eventfd.into()))
    }

    /// One that a peer has sent.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when it is something else.
    pub(crate) fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        if !is_eventfd(&fd)? {
            return Err(misbehaved("it sent a descriptor that is no eventfd as its doorbell"));
        }
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(|e| os_error("fcntl(F_GETFL)", e))?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        fcntl(&fd, FcntlArg::F_SETFL(flags)).map_err(|e| os_error("fcntl(F_SETFL)", e))?;
        Ok(Self(fd))
    }

    /// Wakes whoever has it in an epoll set. Never blocks; a full counter is ignored (see above).
    pub(crate) fn ring(&self) {
        let _full_or_done = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// For an epoll set, or for a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks /proc for the name of the file behind a descriptor; where there is no /proc, whether it has no
/// file type, as anonymous inodes do (weaker: timers and epoll sets pass too).
fn is_eventfd(fd: &OwnedFd) -> Result<bool, Error> {
    match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
        Ok(name) => Ok(name.as_os_str() == "anon_inode:[eventfd]"),
        Err(_no_proc) => {
            let stat = fstat(fd).map_err(|e| os_error("fstat", e))?;
            Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_passed_on_is_accepted_and_a_memfd_is_not() {
        let bell = Doorbell::new().unwrap();
        Doorbell::from_fd(bell.fd().try_clone_to_owned().unwrap()).unwrap();
        let (_mapping, memfd) =
            crate::os::mapping::Mapping::create("x", 4096, crate::os::mapping::Writers::Creator)
                .unwrap();
        let refused = Doorbell::from_fd(memfd).unwrap_err().to_string();
        assert!(refused.contains("no eventfd"), "{refused}");
    }

    #[test]
    fn ringing_a_full_doorbell_does_not_block() {
        let bell = Doorbell::new().unwrap();
        write(bell.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(write(bell.fd(), &1_u64.to_ne_bytes()).is_err(), "the counter is full");
        bell.ring();
    }
}
