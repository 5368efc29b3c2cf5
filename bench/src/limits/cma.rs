//! `cma`: bandwidth of `process_vm_readv` out of another process's heap, and of `process_vm_writev` into it.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};

use super::memory::{self, Arena, SharedArena};
use crate::error::{Context, Error};
use crate::measure::{Caches, Measure, Op, Subject, Unit};
use crate::pair::{Control, Cores, Peer};

/// A process with memory to read and write, and the position of a rotation through it.
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

    /// The next `len` bytes of a rotation over the first `window`.
    fn next(&mut self, len: usize, window: usize) -> [RemoteIoVec; 1] {
        let base = self.base + memory::rotate(&mut self.at, len, window);
        [RemoteIoVec { base, len }]
    }

    fn read(&self, to: &mut [u8], from: &[RemoteIoVec]) -> Result<(), Error> {
        let len = to.len();
        let got = process_vm_readv(self.peer.pid(), &mut [IoSliceMut::new(to)], from);
        whole(got.context("process_vm_readv")?, len)?;
        match to.last() {
            Some(&got) if got != memory::FILL => Err(Error::WrongAnswer {
                figure: FIGURE,
                sent: memory::FILL.into(),
                got: got.into(),
            }),
            _ => Ok(()),
        }
    }

    fn write(&self, from: &[u8], to: &[RemoteIoVec]) -> Result<(), Error> {
        let put = process_vm_writev(self.peer.pid(), &[IoSlice::new(from)], to);
        whole(put.context("process_vm_writev")?, from.len())
    }
}

/// The kernel may stop early; then the figure would be of something else.
fn whole(moved: usize, len: usize) -> Result<(), Error> {
    if moved == len {
        return Ok(());
    }
    Err(Error::WrongAnswer { figure: FIGURE, sent: len as u64, got: moved as u64 })
}

/// Transfers of one size.
#[derive(Debug)]
pub(crate) struct Transfer {
    op: Op,
    caches: Caches,
    size: usize,
    /// Bytes of the other process that it rotates over.
    window: usize,
    /// Transfers a second instead of bytes: with so many in flight.
    inflight: Option<u64>,
    remote: SharedRemote,
    local: SharedArena,
}

impl Transfer {
    /// Between the same buffers again and again, `buffers` of them a side.
    pub(crate) fn hot(op: Op, size: usize, buffers: usize, remote: &SharedRemote) -> Transfer {
        let (window, local) = (size * buffers, Arena::new(size * buffers));
        let remote = remote.clone();
        Transfer { op, caches: Caches::Hot, size, window, inflight: None, remote, local }
    }

    /// From and to large memories, each rotating.
    pub(crate) fn cold(
        op: Op,
        size: usize,
        remote: &SharedRemote,
        local: &SharedArena,
    ) -> Transfer {
        let window = remote.borrow().len;
        let (remote, local) = (remote.clone(), local.clone());
        Transfer { op, caches: Caches::Cold, size, window, inflight: None, remote, local }
    }

    /// The same as a rate, with `inflight` buffers in use.
    pub(crate) fn counted(self, inflight: u64) -> Transfer {
        Transfer { inflight: Some(inflight), ..self }
    }
}

impl Measure for Transfer {
    fn subject(&self) -> Subject {
        let bandwidth = Subject::bandwidth(FIGURE, self.size);
        let unit = if self.inflight.is_some() { Unit::PerSecond } else { bandwidth.unit };
        Subject {
            op: Some(self.op),
            caches: Some(self.caches),
            inflight: self.inflight,
            unit,
            ..bandwidth
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let (remote, local) = (&mut *self.remote.borrow_mut(), &mut *self.local.borrow_mut());
        if self.caches == Caches::Hot {
            // Another size may have left it anywhere.
            remote.at = 0;
            local.rewind();
        }
        let buffers = if self.caches == Caches::Hot { self.window / self.size } else { 1 };
        let rate = memory::bandwidth(self.size, buffers, |count| {
            (0..count).try_for_each(|_| {
                let (there, here) = (remote.next(self.size, self.window), local.next(self.size));
                match self.op {
                    Op::Push => remote.write(here, &there),
                    Op::Pull | Op::View => remote.read(here, &there),
                }
            })
        })?;
        Ok(match self.inflight {
            Some(_) => rate * f64::from(1 << 20) / self.size as f64,
            None => rate,
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

const FIGURE: &str = "cma";
