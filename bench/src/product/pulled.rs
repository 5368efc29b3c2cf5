//! The measurement of calls whose argument stays with the caller: the target pulls it, then answers.

use std::rc::Rc;

use hg::bulk::{Bulk, Descriptor, Rights};

use super::call::{Shape, check, pipelined};
use super::store::Layout;
use super::target::Target;
use super::{Via, builder, call_once, pull_first};
use crate::error::Error;
use crate::measure::{Caches, Measure, Memory, Op, Subject};

/// An origin whose memory is pulled.
#[derive(Debug)]
pub(crate) struct Caller {
    /// What is called; its size is that of the bytes which are pulled.
    shape: Shape,
    /// Where they lie.
    memory: Memory,
    target: Rc<Target>,
    engine: hg::Engine,
    peer: hg::Peer,
    via: Via,
    descriptors: Vec<Descriptor>,
    /// The first word of each buffer.
    words: Vec<u64>,
    _bulks: Vec<Bulk>,
}

impl Caller {
    /// Registers the memory and makes the first calls.
    pub(crate) fn connect(
        shape: Shape,
        memory: Memory,
        target: &Rc<Target>,
    ) -> Result<Caller, Error> {
        let size = shape.size as u64;
        // What rides in the descriptor is not pulled from anywhere.
        let eager_max = if memory == Memory::Eager { size } else { 0 };
        let own = builder(&shape.url, shape.wait).progress(hg::Progress::Own);
        let engine = own.eager_max(eager_max).open(&shape.url)?;
        let peer = engine.lookup(target.address())?;
        let layout = Layout::new(size, shape.inflight, 1, Caches::Hot);
        let layout = Layout { shared: memory == Memory::Shared, ..layout };
        let exposed = layout.expose(&engine, Rights::READ)?;
        let bulks: Vec<_> = exposed.into_iter().map(|it| it.bulk).collect();
        let descriptors: Vec<_> = bulks.iter().map(Bulk::descriptor).collect();
        if descriptors.iter().any(|it| it.is_eager() != (memory == Memory::Eager)) {
            let what = format!("{size} bytes do not ride in a descriptor");
            return Err(Error::Impossible(what));
        }
        let word = |bytes: Vec<u8>| {
            bytes.first_chunk().map_or(0, |word: &[u8; 8]| u64::from_le_bytes(*word))
        };
        let words = (0..layout.buffers).map(|buffer| word(layout.bytes(buffer))).collect();
        target.running(|| call_once(&engine, &peer, 1))?;
        let via = Via::of(&engine, &peer, &shape.url);
        let target = Rc::clone(target);
        let caller =
            Caller { shape, memory, target, engine, peer, via, descriptors, words, _bulks: bulks };
        caller.target.running(|| caller.calls(WARM_UP))?;
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
        Subject {
            figure: "call_with_pull".into(),
            via: self.via.key(),
            op: Some(Op::Pull),
            memory: Some(self.memory),
            caches: Some(Caches::Hot),
            ..self.shape.subject()
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let seconds = self.target.timed(|| self.calls(WARM_UP), || self.calls(BATCH))?;
        Ok(self.shape.figure(BATCH, seconds))
    }
}

/// Calls before the clock starts.
const WARM_UP: u64 = 100;
/// Calls of one repetition: less than a millisecond.
const BATCH: u64 = 500;
