//! `cma`, `cma_cold`: bandwidth of `process_vm_readv` out of another process's heap.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::rc::Rc;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use super::memory::{self, Arena, SharedArena};
use crate::error::{Context, Error};
use crate::measure::{Measure, Subject, Unit};
use crate::pair::{Control, Cores, Peer};

/// A process with memory to read, and the position of a rotation through it.
#[derive(Debug)]
pub(crate) struct Remote {
    peer: Peer,
    base: usize,
    len: usize,
    at: usize,
}

/// Shared by the measurements of all sizes.
pub(crate) type SharedRemote = Rc<RefCell<Remote>>;

impl Remote {
    /// Starts a process that owns `len` touched bytes.
    pub(crate) fn start(cores: Cores, len: usize) -> Result<SharedRemote, Error> {
        let mut peer = Peer::start("memory", cores)?;
        peer.control().send(len as u64)?;
        let base = usize::try_from(peer.receive()?).map_err(|_| peer.gone())?;
        Ok(Rc::new(RefCell::new(Remote { peer, base, len, at: 0 })))
    }

    /// Fills `to` with the next bytes of the rotation.
    fn read(&mut self, to: &mut [u8]) -> Result<(), Error> {
        let (figure, len) = ("cma", to.len());
        let base = self.base + memory::rotate(&mut self.at, len, self.len);
        let from = [RemoteIoVec { base, len }];
        let got = process_vm_readv(self.peer.pid(), &mut [IoSliceMut::new(to)], &from);
        let got = got.context("process_vm_readv")?;
        if got != len {
            return Err(Error::WrongAnswer { figure, sent: len as u64, got: got as u64 });
        }
        match to.last() {
            Some(&got) if got != memory::FILL => {
                Err(Error::WrongAnswer { figure, sent: memory::FILL.into(), got: got.into() })
            }
            _ => Ok(()),
        }
    }
}

/// Reads of one size.
#[derive(Debug)]
pub(crate) struct Read {
    figure: &'static str,
    size: usize,
    remote: SharedRemote,
    to: SharedArena,
}

impl Read {
    /// From the same bytes into the same buffer, again and again.
    pub(crate) fn hot(size: usize, remote: &SharedRemote) -> Read {
        Read { figure: "cma", size, remote: remote.clone(), to: Arena::new(size) }
    }

    /// From and to large memories, each rotating.
    pub(crate) fn cold(size: usize, remote: &SharedRemote, to: &SharedArena) -> Read {
        Read { figure: "cma_cold", size, remote: remote.clone(), to: to.clone() }
    }

    fn is_hot(&self) -> bool {
        self.figure == "cma"
    }
}

impl Measure for Read {
    fn subject(&self) -> Subject {
        Subject {
            size: Some(self.size as u64),
            ..Subject::new(self.figure, Unit::MebibytesPerSecond)
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let hot = self.is_hot();
        let (remote, to) = (&mut *self.remote.borrow_mut(), &mut *self.to.borrow_mut());
        memory::bandwidth(self.size, || {
            if hot {
                remote.at = 0;
            }
            remote.read(to.next(self.size))
        })
    }
}

/// The second process: owns memory until its parent is gone.
pub(super) fn serve(mut control: Control) -> Result<(), Error> {
    let Some(len) = control.next()? else { return Ok(()) };
    let len = usize::try_from(len).map_err(|_| Error::PeerGone("the parent"))?;
    let arena = Arena::new(len);
    control.send(arena.borrow().bytes().as_ptr().addr() as u64)?;
    while control.next()?.is_some() {}
    Ok(())
}
