//! Calls whose buffers are read first: their streams wait, and others go on.
//!
//! ```text
//! record -> the transport reads -> the function runs -> those behind it
//!           |<--- what comes from the same sender waits: a window at most, since nothing of it is told as consumed --->|
//! ```
//! Where this side reads memory of the sender by itself (`sm`), it does so here and now, and nothing waits. Elsewhere the sender has to answer: so buffers
//! of calls that wait behind are read [ahead](super::ahead) of their turn.
//!
//! # Where the bytes are
//! | size | what |
//! |-----:|---|
//! | 8 | bytes |
//! | 8 | offset of the first one |
//! | 4 | bytes of the descriptor |
//! | | the descriptor of the memory |
//!
//! The arguments follow, whose last one has no byte yet: its length, 0, is what they end with. It is replaced, and the bytes are read behind it.

use std::{collections::VecDeque, fmt, ops::ControlFlow};

use hg_channel::{Arrived, Kept};
use hg_na::{Descriptor, Memory, Region, Rights};
use rustc_hash::FxHashMap;

use super::{
    Worker,
    ahead::{Ahead, Read},
    moving::{After, Slices},
    running::{BROADCAST, Malformed, Next, READ, UNKNOWN, UNREADABLE, take_u32, take_u64},
};
use crate::{Error, broadcasts::Name};

/// Where the bytes of a call are.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) descriptor: Descriptor,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Source {
    pub(super) fn encode(&self) -> Vec<u8> {
        let descriptor = self.descriptor.encode();
        let len = u32::try_from(descriptor.len()).unwrap_or(u32::MAX);
        let head = [self.len.to_le_bytes(), self.offset.to_le_bytes()];
        [head.as_flattened(), &len.to_le_bytes(), &descriptor].concat()
    }

    /// What was claimed, in front of the arguments.
    pub(super) fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (len, offset) = (take_u64(bytes)?, take_u64(bytes)?);
        let descriptor = take_u32(bytes)? as usize;
        let (descriptor, rest) = bytes.split_at_checked(descriptor).ok_or(UNREADABLE)?;
        *bytes = rest;
        let descriptor = Descriptor::decode(descriptor).map_err(|_| UNREADABLE)?;
        Ok(Self { descriptor, offset, len })
    }
}

/// What a record asks for: a call, or a broadcast, whose last argument is to be read first.
pub(super) struct Asked<'a> {
    /// Of the function.
    number: u32,
    pub(super) group: Option<u32>,
    pub(super) of: Of,
    pub(super) source: Source,
    /// Without the bytes.
    args: &'a [u8],
}

/// A call whose buffer is being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) from: u32,
    pub(super) of: Of,
    number: u32,
    group: Option<u32>,
    /// The arguments, behind which the bytes are read; none: there was no room.
    memory: Option<Region>,
    args: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    /// A call, of this number at its caller.
    Call(u64),
    Broadcast(Name),
}

/// The streams that wait, by who sends them.
#[derive(Default)]
pub(super) struct Stalled {
    streams: FxHashMap<u32, Stream>,
    pub(super) ahead: Ahead,
}

/// The blocks of one, and how far the first one has run.
type Stream = (VecDeque<Kept>, usize);

impl Stalled {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(super) fn has(&self, from: u32) -> bool {
        self.streams.contains_key(&from)
    }

    /// A block waits behind others of its sender; it comes back when there are none.
    pub(super) fn wait_behind<'a>(&mut self, block: Arrived<'a>) -> Option<Arrived<'a>> {
        match self.streams.get_mut(&block.from()) {
            None => Some(block),
            Some((blocks, _)) => {
                blocks.push_back(block.keep());
                None
            }
        }
    }

    /// A block has run as far as this; those that are there already were behind it.
    pub(super) fn stall(&mut self, mut block: Kept, at: usize) {
        let (blocks, front) = self.streams.entry(block.arrived().from()).or_default();
        blocks.push_front(block);
        *front = at;
    }
}

impl fmt::Debug for Stalled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Stalled({} streams)", self.streams.len())
    }
}

impl Worker {
    /// A call, or a broadcast, whose last argument is to be read first.
    #[cold]
    pub(super) fn hear_of_buffer(
        &self,
        from: u32,
        kind: u32,
        group: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), Malformed> {
        self.common.functions.run(kind & !(READ | BROADCAST)).ok_or(UNKNOWN)?;
        let asked = self.asked(kind, group, bytes)?;
        if let Of::Broadcast(name) = asked.of {
            let len = usize::try_from(asked.source.len).map_err(|_| UNREADABLE)?;
            self.join_broadcast(from, name, asked.args.len() + len)?;
        }
        let ahead = self.stalled.borrow_mut().ahead.take(from, asked.of);
        match ahead {
            Some(Read::Ended(reading, failed)) => self.run_with_buffer(*reading, failed),
            Some(Read::UnderWay) => {
                self.is_reading.set(true);
                Ok(())
            }
            None => self.read(from, &asked),
        }
    }

    /// Reads it at once, and runs it, or begins to.
    fn read(&self, from: u32, asked: &Asked<'_>) -> Result<(), Malformed> {
        let reading = asked.reading(from);
        let begun = asked.room().and_then(|mut bytes| {
            let into = &mut bytes[asked.args.len()..];
            let Source { descriptor, offset, .. } = &asked.source;
            let is_first = || !self.moves.borrow().are_waiting();
            let fetch = |into| self.port.borrow_mut().fetch(from, descriptor, *offset, into);
            if into.is_empty() || is_first() && fetch(into) {
                return Ok(ControlFlow::Break(bytes));
            }
            self.sides(asked, bytes).map(ControlFlow::Continue)
        });
        match begun {
            Ok(ControlFlow::Break(bytes)) => return self.run_of_buffer(reading, Ok(bytes)),
            Ok(ControlFlow::Continue(sides)) => self.begin_reading(reading, sides),
            Err(error) => self.moves.borrow_mut().read.push_back((reading.into(), Some(error))),
        }
        self.is_reading.set(true);
        Ok(())
    }

    /// What a record says, whose function may be unknown.
    pub(super) fn asked<'a>(
        &self,
        kind: u32,
        group: Option<u32>,
        mut bytes: &'a [u8],
    ) -> Result<Asked<'a>, Malformed> {
        let of = if kind & BROADCAST == 0 {
            Of::Call(take_u64(&mut bytes)?)
        } else {
            Of::Broadcast(self.take_name(&mut bytes)?)
        };
        let source = Source::take(&mut bytes)?;
        let is_open = bytes.last_chunk() == Some(&0_u64.to_le_bytes());
        if !is_open || source.len > self.common.settings.buffer_max {
            return Err(UNREADABLE);
        }
        Ok(Asked { number: kind & !(READ | BROADCAST), group, of, source, args: bytes })
    }

    /// Where the bytes are to be, and where they are.
    pub(super) fn sides(
        &self,
        asked: &Asked<'_>,
        bytes: Vec<u8>,
    ) -> Result<(Region, Slices), Error> {
        let memory = self.register(Memory::from(bytes), Rights::empty())?;
        let Source { descriptor, offset, len } = &asked.source;
        let args = asked.args.len() as u64;
        let slices = self.slices(false, &memory, &(args..args + len), descriptor, *offset)?;
        Ok((memory, slices))
    }

    pub(super) fn begin_reading(&self, reading: Reading, (memory, slices): (Region, Slices)) {
        let from = reading.from;
        let reading = Reading { memory: Some(memory), ..reading };
        let number = self.moves.borrow_mut().number();
        self.start(number, from, slices, After::Run(reading.into()));
    }

    /// Runs what has waited for bytes that were read meanwhile. Whether there was any.
    pub(super) fn run_what_was_read(&self) -> bool {
        let mut any = false;
        loop {
            let next = self.moves.borrow_mut().read.pop_front();
            let Some((reading, failed)) = next else { return any };
            any = true;
            let from = reading.from;
            let its_turn = self.stalled.borrow_mut().ahead.end(reading, failed);
            let Some((reading, failed)) = its_turn else { continue };
            let stream = self.stalled.borrow_mut().streams.remove(&from);
            let Some((mut blocks, at)) = stream else { continue };
            let Some(mut block) = blocks.pop_front() else { continue };
            let first = |worker: &Self| worker.run_with_buffer(*reading, failed);
            let mut next = self.run_from(block.arrived(), at, first);
            while next == Next::Follows
                && let Some(mut block) = blocks.pop_front()
            {
                next = self.run_from(block.arrived(), 0, |_| Ok(()));
            }
            if let Some((behind, _)) = self.stalled.borrow_mut().streams.get_mut(&from) {
                behind.extend(blocks);
            }
        }
    }

    fn run_with_buffer(
        &self,
        mut reading: Reading,
        failed: Option<Error>,
    ) -> Result<(), Malformed> {
        let memory = reading.memory.take();
        let bytes = match failed {
            None => memory.ok_or_else(|| Error::of_memory("nothing was read")).and_then(bytes_of),
            Some(error) => Err(error),
        };
        self.run_of_buffer(reading, bytes)
    }

    fn run_of_buffer(
        &self,
        reading: Reading,
        bytes: Result<Vec<u8>, Error>,
    ) -> Result<(), Malformed> {
        let Reading { from, number, group, of, args, .. } = reading;
        if let Err(error) = &bytes {
            let (from, here) = (self.place_of(from), self.place());
            tracing::warn!(%from, %here, %error, "the buffer of a call was not read");
        }
        let root = if let Of::Broadcast(name) = of { name.root } else { from };
        if let Err(why) = self.count_run(group, (from, root)) {
            // It was heard of when its bytes began to be read: nobody is to wait for it.
            if let Of::Broadcast(name) = of {
                self.end_unread(name);
            }
            return Err(why);
        }
        self.group.set(group);
        let ran = match of {
            Of::Broadcast(name) => {
                self.run_broadcast_of_buffer(from, number, name, bytes.ok().as_deref(), args)
            }
            Of::Call(call) => {
                self.say_has_read(from, call, group, bytes.is_ok());
                match (bytes, self.common.functions.run(number)) {
                    (Ok(bytes), Some(run)) => run(self, &bytes).map_err(|_| UNREADABLE),
                    _ => Ok(()),
                }
            }
        };
        self.group.set(None);
        ran
    }
}

impl Asked<'_> {
    pub(super) fn reading(&self, from: u32) -> Reading {
        let Self { number, group, of, args, .. } = *self;
        Reading { from, of, number, group, memory: None, args: args.len() }
    }

    /// The arguments, with room behind them.
    pub(super) fn room(&self) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(self.source.len).map_err(Error::of_memory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.args.len() + len).map_err(Error::of_memory)?;
        bytes.extend_from_slice(&self.args[..self.args.len() - LEN]);
        bytes.extend_from_slice(&self.source.len.to_le_bytes());
        bytes.resize(self.args.len() + len, 0);
        Ok(bytes)
    }
}

/// Nobody reads into it any more.
fn bytes_of(memory: Region) -> Result<Vec<u8>, Error> {
    let memory = memory.unregister().map_err(Error::of_memory)?;
    memory.into_vec().map_err(|_| Error::of_memory("it is no vector any more"))
}

/// Bytes of a length.
pub(super) const LEN: usize = 8;
