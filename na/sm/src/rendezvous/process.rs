//! Notices the death of the process at the other end of a socket, by pidfd.
//!
//! A hang-up of the socket alone would not do: a child that the peer forked can keep it open. A number
//! alone would not do: numbers are reused. The pidfd comes from the socket (`SO_PEERPIDFD`, Linux
//! 6.5), else it is opened by number, with a look at the socket afterwards.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use hg_na::{Error, GoneReason};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt},
};

use rustix::{
    io::Errno as Refusal,
    process::{Pid, PidfdFlags, pidfd_open},
};

use hg_na_parts::limits::os_error;

use super::{
    address_space,
    socket::{Credentials, Socket},
};
use crate::os::errno;

/// Watches one process, as the socket to it and the system know it.
#[derive(Debug)]
pub(crate) struct ProcessWatch {
    /// `None`: it has no number here, being in a pid namespace that is not visible.
    process: Option<Process>,
    uid: u32,
    /// One without a number has ended, as far as its socket tells.
    has_ended: AtomicBool,
    /// Hung up when the process ends, and when it executes another program. Its connection's, and closed with that.
    socket: Weak<Socket>,
    space: OnceLock<Option<File>>,
    /// The kernel moves nothing to or from its memory.
    is_denied: AtomicBool,
}

#[derive(Debug)]
struct Process {
    pidfd: OwnedFd,
    pid: i32,
}

impl ProcessWatch {
    /// Watches the process that connected, or that listened, when the socket came about.
    ///
    /// # Errors
    /// `PeerGone(Exited)` when it is gone already; [`Error::Limit`].
    pub(crate) fn of(socket: &Arc<Socket>) -> Result<Self, Error> {
        let Credentials { pid, uid } = socket.peer_credentials()?;
        let process = match pid {
            1.. => Some(Process { pidfd: pidfd_of(socket.fd(), pid)?, pid }),
            _ => None,
        };
        let watch = Self::new(process, uid, Arc::downgrade(socket));
        if watch.alive() { Ok(watch) } else { Err(Error::PeerGone(GoneReason::Exited)) }
    }

    /// Watches a child of this process, as if it had the other end of this socket.
    #[cfg(test)]
    pub(crate) fn of_child(child: &std::process::Child, socket: &Arc<Socket>) -> Self {
        let pid = i32::try_from(child.id()).expect("a process id is an i32");
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a child");
        Self::new(
            Some(Process { pidfd, pid }),
            nix::unistd::geteuid().as_raw(),
            Arc::downgrade(socket),
        )
    }

    /// Watches a process of that user, which has no number here.
    #[cfg(test)]
    pub(crate) fn without_number(uid: u32) -> Self {
        Self::new(None, uid, Weak::new())
    }

    fn new(process: Option<Process>, uid: u32, socket: Weak<Socket>) -> Self {
        let is_denied = AtomicBool::new(process.is_none());
        let has_ended = AtomicBool::new(false);
        Self { process, uid, has_ended, socket, space: OnceLock::new(), is_denied }
    }

    /// Whether the process has not ended, as far as can be known. One system call.
    pub(crate) fn alive(&self) -> bool {
        self.is_quiet(None)
    }

    /// Its connection, which was open, has hung up without a goodbye. Of one without a number nothing else tells its end: its socket
    /// is closed when none of its threads is in a system call any more.
    pub(crate) fn hung_up(&self) {
        // Relaxed: nothing else is published by it. What a process has done before its end is done.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Whether they are one process, or two of one user that cannot be told apart.
    pub(crate) fn shares_limits_with(&self, other: &Self) -> bool {
        self.pid() == other.pid() && self.uid == other.uid
    }

    /// Whether its memory is still that of the program that was connected to: a process that executes another one keeps its
    /// pidfd. The socket is closed by that, a moment after its memory, and hung up. Once the connection is closed here, nothing
    /// tells any more: it is not. One system call.
    pub(crate) fn is_itself(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| self.is_quiet(Some(&socket)))
    }

    /// A pidfd becomes readable when its process ends; hang-ups are told unasked. An error is no sign of either.
    fn is_quiet(&self, socket: Option<&Socket>) -> bool {
        let Some(Process { pidfd, .. }) = &self.process else {
            return !self.has_ended.load(Ordering::Relaxed); // Relaxed: as in `hung_up`.
        };
        let pidfd = PollFd::new(pidfd.as_fd(), PollFlags::POLLIN);
        let hang_up = socket.map(|socket| PollFd::new(socket.fd(), PollFlags::empty()));
        let told = poll(&mut [pidfd.clone(), hang_up.unwrap_or(pidfd)], PollTimeout::ZERO);
        !matches!(told, Ok(count) if count > 0)
    }

    /// Its memory, as far as [`ProcessWatch::was_reached`] could open it.
    #[inline]
    pub(crate) fn space(&self) -> Option<&File> {
        self.space.get()?.as_ref()
    }

    /// The system lets this process reach the other one's memory: it may have a shorter way, too.
    pub(crate) fn was_reached(&self) {
        self.space.get_or_init(|| address_space::of(self));
    }

    /// Whether the kernel may be asked for its memory.
    #[inline]
    pub(crate) fn is_reachable(&self) -> bool {
        // Relaxed: a hint; whoever reads it too early is refused.
        !self.is_denied.load(Ordering::Relaxed)
    }

    /// The kernel is not asked (again); says whether it may have been before.
    pub(crate) fn deny(&self) -> bool {
        // Relaxed: as above.
        !self.is_denied.swap(true, Ordering::Relaxed)
    }

    /// Becomes readable when the process ends.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.pidfd.as_fd())
    }

    /// The number of the process, good as long as [`ProcessWatch::alive`].
    pub(crate) fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.pid)
    }
}

fn pidfd_of(socket: BorrowedFd<'_>, pid: i32) -> Result<OwnedFd, Error> {
    match getsockopt(&socket, sockopt::PeerPidfd) {
        Err(Errno::ENOPROTOOPT) => by_number(socket, pid),
        pidfd => pidfd.map_err(|error| gone_or(error, "getsockopt(SO_PEERPIDFD)")),
    }
}

/// Opens a pidfd by number, for kernels before 6.5.
///
/// The number may have been reused since the socket came about. A socket that is not hung up after
/// the pidfd was opened still has its process, or a child that inherited it: only an orphaned socket
/// and a reused number together would be mistaken here.
fn by_number(socket: BorrowedFd<'_>, pid: i32) -> Result<OwnedFd, Error> {
    let pidfd = Pid::from_raw(pid)
        .ok_or(Refusal::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let pidfd = pidfd.map_err(|e| gone_or(errno(e), "pidfd_open"))?;
    let mut question = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut question, PollTimeout::ZERO).map_err(|e| os_error("poll", e))?;
    let hung_up = question[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLHUP));
    if hung_up { Err(Error::PeerGone(GoneReason::Exited)) } else { Ok(pidfd) }
}

fn gone_or(error: Errno, call: &'static str) -> Error {
    match error {
        // ESRCH: reaped; EINVAL: the number belongs to no process (any more); ENODATA: no pid kept.
        Errno::ESRCH | Errno::EINVAL | Errno::ENODATA => Error::PeerGone(GoneReason::Exited),
        other => os_error(call, other),
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::getpid;

    use super::*;

    #[test]
    fn the_process_behind_a_socket_is_alive_and_itself_until_it_hangs_up() {
        let (one, other) = Socket::pair().unwrap();
        let one = Arc::new(one);
        let watch = ProcessWatch::of(&one).unwrap();
        assert!(watch.alive() && watch.is_itself());
        assert_eq!(watch.pid(), Some(getpid().as_raw()));
        drop(other);
        assert!(watch.alive() && !watch.is_itself());
        drop(one);
        assert!(watch.alive());
    }

    #[test]
    fn a_process_is_not_known_to_be_itself_once_the_connection_is_closed_here() {
        let (one, _other) = Socket::pair().unwrap();
        let one = Arc::new(one);
        let watch = ProcessWatch::of(&one).unwrap();
        drop(one);
        assert!(watch.alive() && !watch.is_itself());
    }

    #[test]
    fn a_process_opened_by_number_needs_a_socket_that_is_not_hung_up() {
        let (one, other) = Socket::pair().unwrap();
        by_number(one.fd(), getpid().as_raw()).unwrap();
        drop(other);
        let gone = by_number(one.fd(), getpid().as_raw());
        assert!(matches!(gone, Err(Error::PeerGone(GoneReason::Exited))), "{gone:?}");
    }

    #[test]
    fn a_killed_process_is_noticed_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watch = ProcessWatch::of_child(&child, &Arc::new(Socket::pair().unwrap().0));
        assert!(watch.alive());
        child.kill().unwrap();
        let mut question = [PollFd::new(watch.fd().unwrap(), PollFlags::POLLIN)];
        let told = poll(&mut question, PollTimeout::from(60_000_u16)).unwrap();
        assert_eq!(told, 1, "the kernel tells within a minute");
        assert!(!watch.alive());
        child.wait().unwrap();
    }
}
