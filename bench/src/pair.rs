//! The second process of a measurement, and which cores the two run on.
//!
//! # Life of a peer
//! ```text
//! origin                                     target: `hg-perf peer ROLE --parent PID`
//! Peer::start: socket pair, one end is the
//!              child's standard input   -->  dies with its parent (PR_SET_PDEATHSIG), pins itself
//! control.send_descriptors              -->  Control::receive_descriptors
//! control.send(count)                   -->  Control::next: takes part in `count` round trips
//!   ... the measurement itself, by shared memory or whatever is measured ...
//! drop: closes the socket, kills, waits -->  end of file: exits
//! ```
//! Between two repetitions the target sleeps in `Control::next`, so that it costs nobody anything.
//! The death signal follows the *thread* that started the peer; `hg-perf` starts peers from its
//! main thread.

use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{Pid, getppid};

use crate::error::{Context, Error};
use crate::given;
use crate::raw::descriptors;

/// A second process of this program, waiting for commands. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    role: &'static str,
    child: Child,
    control: Control,
}

impl Peer {
    /// Starts `hg-perf peer ROLE` on the target's core.
    pub(crate) fn start(role: &'static str, cores: Cores) -> Result<Peer, Error> {
        Peer::run(role, &["peer", role], cores.target)
    }

    /// Starts this program with other arguments, on a core of its own where one is given.
    pub(crate) fn run(
        role: &'static str,
        arguments: &[&str],
        core: Option<usize>,
    ) -> Result<Peer, Error> {
        Peer::run_through(None, role, arguments, core)
    }

    /// The same; what it opens at `visor://` goes through this daemon.
    pub(crate) fn run_through(
        daemon: Option<&str>,
        role: &'static str,
        arguments: &[&str],
        core: Option<usize>,
    ) -> Result<Peer, Error> {
        let (ours, theirs) = UnixStream::pair().context("socketpair")?;
        let program = std::env::current_exe().context("readlink /proc/self/exe")?;
        let mut command = Command::new(program);
        command.args(arguments).args(["--parent", &std::process::id().to_string()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        for (name, value) in given::settings() {
            command.args(["--set", &format!("{name}={value}")]);
        }
        if let Some(daemon) = daemon {
            command.env("HG_VISOR", daemon);
        }
        let child = command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .context("spawn")?;
        Ok(Peer { role, child, control: Control { socket: ours } })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid fits an i32"))
    }

    /// The socket to it.
    pub(crate) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// An error once it has exited.
    pub(crate) fn check_alive(&mut self) -> Result<(), Error> {
        match self.child.try_wait().context("waitpid")? {
            None => Ok(()),
            Some(_) => Err(self.gone()),
        }
    }

    /// The error that names it.
    pub(crate) fn gone(&self) -> Error {
        Error::PeerGone(self.role)
    }

    /// Receives one text; its end is an error.
    pub(crate) fn receive_text(&mut self) -> Result<String, Error> {
        self.control.next_text()?.ok_or(Error::PeerGone(self.role))
    }

    /// Receives one word; its end is an error.
    pub(crate) fn receive(&mut self) -> Result<u64, Error> {
        self.control.next()?.ok_or(Error::PeerGone(self.role))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be in the middle of a repetition, spinning: nothing in it is worth waiting for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Called by the peer first of all: it shall not survive its parent, and it has its own core.
pub(crate) fn become_peer(parent: u32, core: Option<usize>) -> Result<Control, Error> {
    set_pdeathsig(Signal::SIGKILL).context("prctl PR_SET_PDEATHSIG")?;
    // The parent may have died before the line above.
    if u32::try_from(getppid().as_raw()) != Ok(parent) {
        return Err(Error::PeerGone("the parent"));
    }
    if let Some(core) = core {
        pin(core)?;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("dup")?;
    Ok(Control { socket: UnixStream::from(socket) })
}

/// One end of the socket between the two processes: words and descriptors.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UnixStream,
}

impl Control {
    /// Sends one word.
    pub(crate) fn send(&mut self, word: u64) -> Result<(), Error> {
        self.socket.write_all(&word.to_le_bytes()).context("write to the second process")
    }

    /// Whether there is something to read, or the other side is gone.
    pub(crate) fn is_ready(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut fds, PollTimeout::ZERO).context("poll")? > 0)
    }

    /// The next word; `None` when the other side is gone.
    pub(crate) fn next(&mut self) -> Result<Option<u64>, Error> {
        let mut bytes = [0; 8];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(u64::from_le_bytes(bytes))),
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                Ok(None)
            }
            error => error.map(|()| None).context("read from the second process"),
        }
    }

    /// Sends a text.
    pub(crate) fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.send(text.len() as u64)?;
        self.socket.write_all(text.as_bytes()).context("write to the second process")
    }

    /// The next text; `None` when the other side is gone.
    pub(crate) fn next_text(&mut self) -> Result<Option<String>, Error> {
        let Some(len) = self.next()? else { return Ok(None) };
        let mut text = String::new();
        (&self.socket)
            .take(len)
            .read_to_string(&mut text)
            .context("read from the second process")?;
        Ok(Some(text))
    }

    /// Sends descriptors, which both processes then have.
    pub(crate) fn send_descriptors(&mut self, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let buffers = [IoSlice::new(&[0])];
        sendmsg::<()>(self.socket.as_raw_fd(), &buffers, &rights, MsgFlags::MSG_NOSIGNAL, None)
            .map(drop)
            .context("sendmsg")
    }

    /// Receives exactly as many descriptors as are expected.
    pub(crate) fn receive_descriptors<const N: usize>(&mut self) -> Result<[OwnedFd; N], Error> {
        const { assert!(N <= descriptors::MAX_DESCRIPTORS) };
        let (_, fds) = descriptors::receive(self.socket.as_fd(), &mut [0; 1])?;
        fds.try_into().map_err(|_| Error::PeerGone("the parent"))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The cores that a measurement of two processes uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cores {
    /// Where this process runs; `None`: anywhere.
    pub(crate) origin: Option<usize>,
    /// Where the second process runs.
    pub(crate) target: Option<usize>,
}

impl Cores {
    /// Two allowed cores that are no siblings of one physical core where that can be had. With
    /// one core only, nothing is pinned.
    pub(crate) fn choose() -> Result<Cores, Error> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
        let allowed: Vec<usize> =
            (0..CpuSet::count()).filter(|&core| allowed.is_set(core) == Ok(true)).collect();
        Ok(apart(&allowed, siblings))
    }

    /// Whether the two processes have a core each.
    pub(crate) fn are_two(self) -> bool {
        self.origin.is_some() && self.target.is_some()
    }

    /// Pins the calling thread, and the threads it starts from now on, to the origin's core.
    pub(crate) fn pin_origin(self) -> Result<(), Error> {
        self.origin.map_or(Ok(()), pin)
    }
}

/// The first allowed core, and the first other one that does not share its physical core.
fn apart(allowed: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Cores {
    let [origin, others @ ..] = allowed else { return Cores::default() };
    let together = siblings(*origin);
    let elsewhere = others.iter().find(|&&core| together.is_none() || siblings(core) != together);
    match elsewhere.or(others.first()) {
        Some(target) => Cores { origin: Some(*origin), target: Some(*target) },
        None => Cores::default(),
    }
}

/// The kernel's list of hardware threads on the same physical core, as it writes it.
fn siblings(core: usize) -> Option<String> {
    fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        .ok()
}

/// Pins the calling thread to one core.
pub(crate) fn pin(core: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(core).context("CPU_SET")?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_of_one_physical_core_are_avoided_where_possible() {
        let threads = |core: usize| Some(format!("{}", core / 2));
        let cores = |origin, target| Cores { origin: Some(origin), target: Some(target) };
        assert_eq!(apart(&[0, 1, 2, 3], threads), cores(0, 2));
        assert_eq!(apart(&[1, 2], threads), cores(1, 2));
        assert_eq!(apart(&[0, 1], threads), cores(0, 1));
        assert_eq!(apart(&[4, 6], |_| None), cores(4, 6));
    }

    #[test]
    fn a_single_core_is_not_pinned() {
        assert_eq!(apart(&[3], |_| None), Cores::default());
        assert_eq!(apart(&[], |_| None), Cores::default());
    }

    #[test]
    fn words_and_descriptors_arrive_and_the_end_is_no_error()
    -> Result<(), Box<dyn std::error::Error>> {
        let (a, b) = UnixStream::pair()?;
        let (mut a, mut b) = (Control { socket: a }, Control { socket: b });
        let (kept, sent) = UnixStream::pair()?;
        a.send(u64::MAX - 1)?;
        a.send_text("an address")?;
        a.send_descriptors(&[sent.as_fd()])?;
        assert_eq!(b.next()?, Some(u64::MAX - 1));
        assert_eq!(b.next_text()?.as_deref(), Some("an address"));
        let [received] = b.receive_descriptors::<1>()?;
        drop(sent);
        UnixStream::from(received).write_all(b"x")?;
        let mut byte = [0];
        (&kept).read_exact(&mut byte)?;
        assert_eq!(byte, *b"x");
        drop(a);
        assert_eq!(b.next()?, None);
        Ok(())
    }
}
