//! The measurement of transfers: pulls, pushes and views of memory that a target owns.
//!
//! One repetition is a batch of transfers between two readings of the clock, `inflight` of them under way at a
//! time, each with buffers of its own on both sides. Before the first one the bytes are checked, and every buffer is
//! moved once.

use std::rc::Rc;

use hg::bulk::{Range, RemoteRange, Rights};

use super::bare::{Bare, Place};
use super::call::pipelined;
use super::store::{Exposed, Layout, Owned, to_usize};
use super::target::Target;
use super::{Via, origin, own};
use crate::error::Error;
use crate::limits::memory;
use crate::measure::{Caches, Measure, Memory, Op, Subject, Wait};

/// What is moved and how.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Chooses the transport.
    pub(crate) url: String,
    /// Which way.
    pub(crate) op: Op,
    /// The target's memory; this process's is always its heap.
    pub(crate) memory: Memory,
    /// Pieces of a buffer, on both sides.
    pub(crate) segments: u64,
    /// Whether the buffers are the same again and again.
    pub(crate) caches: Caches,
    /// Bytes of a transfer.
    pub(crate) size: u64,
    /// Transfers in flight.
    pub(crate) inflight: u32,
    /// How both sides wait.
    pub(crate) wait: Wait,
}

/// An origin with memory of its own and the descriptors of the target's.
#[derive(Debug)]
pub(crate) struct Mover {
    shape: Shape,
    target: Rc<Target>,
    engine: hg::Engine,
    peer: hg::Peer,
    via: Via,
    near: Layout,
    far: Layout,
    local: Vec<Range>,
    remote: Vec<RemoteRange>,
    /// The buffer whose turn it is.
    at: usize,
    /// Where the buffers lie, where both sides are pieces of the heap.
    places: Option<Vec<Place>>,
    /// What the local ranges are of.
    exposed: Vec<Exposed>,
}

impl Mover {
    /// Has memory made on both sides, connects, and checks that bytes arrive.
    pub(crate) fn connect(shape: Shape, target: &Rc<Target>) -> Result<Mover, Error> {
        let engine = origin(&shape.url, shape.wait)?;
        let peer = engine.lookup(target.address())?;
        let near = Layout::new(shape.size, shape.inflight, shape.segments, shape.caches);
        let far = Layout { shared: shape.memory == Memory::Shared, seed: 1, ..near };
        let owned = target.running(|| Ok(engine.call(own, &peer, (far,)).wait()?))?;
        let exposed = near.expose(&engine, Rights::empty())?;
        let mut mover = Mover {
            local: ranges(&near, &exposed, |it, bytes| it.bulk.range(bytes))?,
            remote: ranges(&far, &owned, |it, bytes| it.descriptor.range(bytes))?,
            places: places(&near, &exposed, &owned),
            exposed,
            via: Via::of(&engine, &peer, &shape.url),
            target: Rc::clone(target),
            at: 0,
            shape,
            engine,
            peer,
            near,
            far,
        };
        target.running(|| mover.check())?;
        // The first visit to a mapped page is a fault, and the limit's memory has had its own.
        target.running(|| mover.moves(mover.local.len()))?;
        Ok(mover)
    }

    /// Moves the first buffers and compares what arrived, byte by byte.
    fn check(&mut self) -> Result<(), Error> {
        let worth = (CHECKED_BYTES / self.shape.size.max(1)).max(1).min(self.near.buffers);
        self.moves(to_usize(worth))?;
        self.at = 0;
        for buffer in 0..worth {
            let place = to_usize(buffer);
            let fetched = || self.engine.fetch(&self.peer, self.remote[place].clone()).wait();
            let (sent, got) = match self.shape.op {
                Op::Pull => (self.far.bytes(buffer), self.arrived(buffer)?),
                Op::Push => (self.near.bytes(buffer), fetched()?),
                Op::View => {
                    let view = self.engine.view(&self.peer, self.remote[place].clone()).wait()?;
                    (self.far.bytes(buffer), view.to_vec()?)
                }
            };
            if sent != got {
                let what = format!("buffer {buffer} arrived with other bytes than were sent");
                return Err(Error::Failed(what));
            }
        }
        Ok(())
    }

    /// What a pull has left in a buffer of this process.
    fn arrived(&self, buffer: u64) -> Result<Vec<u8>, Error> {
        let (bulk, range) = self.near.place(buffer);
        let mut bytes = vec![0; to_usize(self.near.size)];
        self.exposed[bulk].bulk.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// The kernel's transfers of the same bytes; `None` where they are more than one piece a buffer.
    pub(crate) fn bare(&self) -> Option<Bare> {
        Some(Bare::new(self.shape.clone(), Rc::clone(&self.target), self.places.clone()?))
    }

    /// The transport that the transfers take.
    pub(crate) fn via(&self) -> &Via {
        &self.via
    }

    /// `count` transfers.
    fn moves(&mut self, count: usize) -> Result<(), Error> {
        let (engine, peer, buffers) = (&self.engine, &self.peer, self.local.len());
        let first = self.at;
        self.at = (first + count) % buffers;
        let place = |n: u64| (first + to_usize(n)) % buffers;
        let (local, remote) = (|n| self.local[place(n)].clone(), |n| self.remote[place(n)].clone());
        let (count, inflight) = (count as u64, self.shape.inflight);
        match self.shape.op {
            Op::Pull => {
                let start = |n| engine.pull(peer, remote(n), local(n));
                pipelined(count, inflight, start, |_, pull| Ok(pull.wait()?))
            }
            Op::Push => {
                let start = |n| engine.push(peer, local(n), remote(n));
                pipelined(count, inflight, start, |_, push| Ok(push.wait()?))
            }
            Op::View => {
                let start = |n| engine.view(peer, remote(n));
                pipelined(count, inflight, start, |_, view| {
                    // The view works: its last byte can be seen.
                    let view = view.wait()?;
                    Ok(view.read(view.len().saturating_sub(1), &mut [0])?)
                })
            }
        }
    }
}

impl Measure for Mover {
    fn subject(&self) -> Subject {
        let shape = &self.shape;
        Subject {
            url: Some(shape.url.clone()),
            via: self.via.key(),
            op: Some(shape.op),
            memory: Some(shape.memory),
            segments: Some(shape.segments),
            caches: Some(shape.caches),
            inflight: Some(u64::from(shape.inflight)),
            wait: Some(shape.wait),
            ..Subject::bandwidth("bandwidth", to_usize(shape.size))
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let buffers = match self.shape.caches {
            Caches::Hot => self.local.len(),
            Caches::Cold => self.shape.inflight as usize,
        };
        let size = to_usize(self.shape.size);
        let target = Rc::clone(&self.target);
        target.running(|| memory::bandwidth(size, buffers, |count| self.moves(count)))
    }
}

/// The range of each buffer.
fn ranges<T, R>(
    layout: &Layout,
    registered: &[T],
    range: impl Fn(&T, std::ops::Range<u64>) -> Result<R, hg::Error>,
) -> Result<Vec<R>, Error> {
    let of = |buffer| {
        let (at, bytes) = layout.place(buffer);
        let whole = registered.get(at).ok_or_else(|| missing(at))?;
        Ok(range(whole, bytes)?)
    };
    (0..layout.buffers).map(of).collect()
}

/// Where each buffer lies on both sides, where that can be told.
fn places(layout: &Layout, near: &[Exposed], far: &[Owned]) -> Option<Vec<Place>> {
    let place = |buffer| {
        let (at, bytes) = layout.place(buffer);
        let (near, far) = (near.get(at)?.pages.clone()?, far.get(at)?.address?);
        Some(Place { near, offset: bytes.start, far: far + bytes.start })
    };
    (0..layout.buffers).map(place).collect()
}

fn missing(at: usize) -> Error {
    Error::Failed(format!("the target gave no descriptor for registration {at}"))
}

/// Bytes that are compared before anything is measured, or one buffer where that is more.
const CHECKED_BYTES: u64 = 64 << 20;
