//! `eventfd_round_trip`: two wake-ups through eventfd and epoll, both sides blocking.
//!
//! As in the shared-memory transport: one eventfd per direction, in the receiver's epoll set,
//! edge-triggered and never read, so that a wake-up is one `write` and one `epoll_wait`.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd;

use super::round_trips::RoundTrips;
use crate::error::{Context, Error};
use crate::measure::{Subject, Wait};
use crate::pair::{Control, Cores, Peer};

/// This process and the one that answers.
#[derive(Debug)]
pub(crate) struct Pair {
    peer: Peer,
    target: EventFd,
    epoll: Epoll,
    /// Kept open for the set.
    _own: EventFd,
}

impl Pair {
    /// Starts the second process.
    pub(crate) fn start(cores: Cores) -> Result<Pair, Error> {
        let mut peer = Peer::start("eventfd", cores)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let target = EventFd::from_flags(flags).context("eventfd")?;
        let own = EventFd::from_flags(flags).context("eventfd")?;
        peer.control().send_descriptors(&[target.as_fd(), own.as_fd()])?;
        let epoll = wait_set(&own, peer.control())?;
        Ok(Pair { peer, target, epoll, _own: own })
    }
}

impl RoundTrips for Pair {
    const WARM_UP: u32 = 10;
    const BATCH: u32 = 100;

    fn subject(&self) -> Subject {
        Subject { size: None, ..Subject::round_trip("eventfd_round_trip", 0, Wait::Block) }
    }

    fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    fn round_trips(&mut self, count: u32) -> Result<(), Error> {
        for _ in 0..count {
            self.target.write(1).context("write eventfd")?;
            if sleep(&self.epoll)? == Woken::ByEnd {
                return Err(self.peer.gone());
            }
        }
        Ok(())
    }
}

/// The second process: answers each wake-up with one, as often as it is told.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let [own, origin] = control.receive_descriptors()?;
    let epoll = wait_set(&own, &control)?;
    while let Some(count) = control.next()? {
        for _ in 0..count {
            if sleep(&epoll)? == Woken::ByEnd {
                return Ok(());
            }
            unistd::write(&origin, &1_u64.to_ne_bytes()).context("write eventfd")?;
        }
    }
    Ok(())
}

/// Wakes for the eventfd, and for the end of the other process.
fn wait_set(own: &impl AsFd, control: &Control) -> Result<Epoll, Error> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create1")?;
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(own, EpollEvent::new(edge, OWN)).context("epoll_ctl")?;
    let end = EpollFlags::EPOLLRDHUP;
    epoll.add(control, EpollEvent::new(end, END)).context("epoll_ctl")?;
    Ok(epoll)
}

/// What ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    ByEventfd,
    ByEnd,
}

fn sleep(epoll: &Epoll) -> Result<Woken, Error> {
    let mut events = [EpollEvent::empty(); 2];
    loop {
        match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => {
                let count = result.context("epoll_wait")?;
                let end = events[..count].iter().any(|event| event.data() == END);
                return Ok(if end { Woken::ByEnd } else { Woken::ByEventfd });
            }
        }
    }
}

const OWN: u64 = 0;
const END: u64 = 1;
