//! The measurement of calls whose argument stays with the caller: the target pulls it, then answers.

use std::rc::Rc;
use std::time::Instant;

use hg::bulk::{Bulk, Descriptor, Rights};

use super::call::{check, pipelined};
use super::store::Layout;
use super::target::Target;
use super::{builder, pull_first};
use crate::error::Error;
use crate::measure::{Caches, Measure, Memory, Op, Subject, Unit, Wait};

/// What is called and how.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Chooses the transport.
    pub(crate) url: String,
    /// Where the caller's bytes lie.
    pub(crate) memory: Memory,
    /// How many there are.
    pub(crate) size: u64,
    /// Calls in flight, each with a buffer of its own.
    pub(crate) inflight: u32,
    /// How both sides wait.
    pub(crate) wait: Wait,
}

/// An origin whose memory is pulled.
#[derive(Debug)]
pub(crate) struct Caller {
    shape: Shape,
    target: Rc<Target>,
    engine: hg::Engine,
    peer: hg::Peer,
    descriptors: Vec<Descriptor>,
    /// The first word of each buffer.
    words: Vec<u64>,
    _bulks: Vec<Bulk>,
}

impl Caller {
    /// Registers the memory and makes the first calls.
    pub(crate) fn connect(shape: Shape, target: &Rc<Target>) -> Result<Caller, Error> {
        // What rides in the descriptor is not pulled from anywhere.
        let eager_max = if shape.memory == Memory::Eager { shape.size } else { 0 };
        let own = builder(shape.wait).progress(hg::Progress::Own);
        let engine = own.eager_max(eager_max).open(&shape.url)?;
        let peer = engine.lookup(target.address())?;
        let layout = Layout::new(shape.size, shape.inflight, 1, Caches::Hot);
        let layout = Layout { shared: shape.memory == Memory::Shared, ..layout };
        let bulks = layout.expose(&engine, Rights::READ)?;
        let descriptors: Vec<_> = bulks.iter().map(Bulk::descriptor).collect();
        if descriptors.iter().any(|it| it.is_eager() != (shape.memory == Memory::Eager)) {
            let what = format!("{} bytes do not ride in a descriptor", shape.size);
            return Err(Error::Impossible(what));
        }
        let word = |bytes: Vec<u8>| {
            bytes.first_chunk().map_or(0, |word: &[u8; 8]| u64::from_le_bytes(*word))
        };
        let words = (0..layout.buffers).map(|buffer| word(layout.bytes(buffer))).collect();
        let target = Rc::clone(target);
        let caller = Caller { shape, target, engine, peer, descriptors, words, _bulks: bulks };
        caller.target.resume()?;
        caller.calls(WARM_UP)?;
        caller.target.pause()?;
        Ok(caller)
    }

    fn calls(&self, count: u64) -> Result<(), Error> {
        let place = |n: u64| super::store::to_usize(n % self.words.len() as u64);
        let start = |n| {
            let from = self.descriptors[place(n)].clone();
            self.engine.call(pull_first, &self.peer, (from,))
        };
        let check = |n, call: hg::Call<'_, _>| check(self.words[place(n)], call.wait()?);
        pipelined(count, self.shape.inflight, start, check)
    }
}

impl Measure for Caller {
    fn subject(&self) -> Subject {
        let shape = &self.shape;
        let alone = shape.inflight == 1;
        let unit = if alone { Unit::Microseconds } else { Unit::PerSecond };
        Subject {
            url: Some(shape.url.clone()),
            op: Some(Op::Pull),
            memory: Some(shape.memory),
            caches: Some(Caches::Hot),
            size: Some(shape.size),
            inflight: Some(u64::from(shape.inflight)),
            wait: Some(shape.wait),
            ..Subject::new("call_with_pull", unit)
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.target.resume()?;
        self.calls(WARM_UP)?;
        let start = Instant::now();
        self.calls(BATCH)?;
        let seconds = start.elapsed().as_secs_f64();
        self.target.pause()?;
        let batch = BATCH as f64;
        Ok(if self.shape.inflight == 1 { seconds * 1e6 / batch } else { batch / seconds })
    }
}

/// Calls before the clock starts.
const WARM_UP: u64 = 200;
/// Calls of one repetition.
const BATCH: u64 = 2_000;
