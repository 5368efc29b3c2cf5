//! Calls whose buffers are read first: their streams wait, and others go on.
//!
//! ```text
//! record -> the transport reads -> the function runs -> those behind it
//!           |<--- what comes from the same sender waits: a window at most, since nothing of it is told as consumed --->|
//! ```
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

use std::{collections::VecDeque, fmt};

use hg_channel::{Arrived, Kept};
use hg_na::{Descriptor, Memory, Region, Rights};
use rustc_hash::FxHashMap;

use super::{
    Worker,
    moving::After,
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

/// A call whose buffer is being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) from: u32,
    /// Of the function.
    pub(super) number: u32,
    pub(super) group: Option<u32>,
    of: Of,
    /// The arguments, behind which the bytes are read; none: there was no room.
    memory: Option<Region>,
    args: usize,
}

#[derive(Debug, Clone, Copy)]
enum Of {
    /// A call, of this number at its caller.
    Call(u64),
    Broadcast(Name),
}

/// The streams that wait, by who sends them.
#[derive(Default)]
pub(super) struct Stalled(FxHashMap<u32, Stream>);

/// The blocks of one, and how far the first one has run.
type Stream = (VecDeque<Kept>, usize);

impl Stalled {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A block waits behind others of its sender; it comes back when there are none.
    pub(super) fn wait_behind<'a>(&mut self, block: Arrived<'a>) -> Option<Arrived<'a>> {
        match self.0.get_mut(&block.from()) {
            None => Some(block),
            Some((blocks, _)) => {
                blocks.push_back(block.keep());
                None
            }
        }
    }

    /// A block has run as far as this; those that are there already were behind it.
    pub(super) fn stall(&mut self, mut block: Kept, at: usize) {
        let (blocks, front) = self.0.entry(block.arrived().from()).or_default();
        blocks.push_front(block);
        *front = at;
    }
}

impl fmt::Debug for Stalled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Stalled({} streams)", self.0.len())
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
        mut bytes: &[u8],
    ) -> Result<(), Malformed> {
        let number = kind & !(READ | BROADCAST);
        self.common.functions.run(number).ok_or(UNKNOWN)?;
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
        if let Of::Broadcast(name) = of {
            let len = usize::try_from(source.len).map_err(|_| UNREADABLE)?;
            self.join_broadcast(from, name, bytes.len() + len)?;
        }
        let memory = self.memory_for(bytes, source.len);
        let args = bytes.len();
        let slices = memory.and_then(|memory| {
            let range = args as u64..args as u64 + source.len;
            let slices = self.slices(false, &memory, &range, &source.descriptor, source.offset)?;
            Ok((memory, slices))
        });
        let reading = Reading { from, number, group, of, memory: None, args };
        self.is_reading.set(true);
        match slices {
            Ok((memory, slices)) => {
                let reading = Reading { memory: Some(memory), ..reading };
                let number = self.moves.borrow_mut().number();
                self.start(number, from, slices, After::Run(reading.into()));
            }
            Err(error) => self.moves.borrow_mut().read.push_back((reading.into(), Some(error))),
        }
        Ok(())
    }

    /// The arguments, with room behind them.
    fn memory_for(&self, args: &[u8], len: u64) -> Result<Region, Error> {
        let len_there = usize::try_from(len).map_err(Error::of_memory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(args.len() + len_there).map_err(Error::of_memory)?;
        bytes.extend_from_slice(&args[..args.len() - LEN]);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.resize(args.len() + len_there, 0);
        self.register(Memory::from(bytes), Rights::empty())
    }

    /// Runs what has waited for bytes that were read meanwhile. Whether there was any.
    pub(super) fn run_what_was_read(&self) -> bool {
        let mut any = false;
        loop {
            let next = self.moves.borrow_mut().read.pop_front();
            let Some((reading, failed)) = next else { return any };
            any = true;
            let from = reading.from;
            let stream = self.stalled.borrow_mut().0.remove(&from);
            let Some((mut blocks, at)) = stream else { continue };
            let Some(mut block) = blocks.pop_front() else { continue };
            let first = |worker: &Self| worker.run_with_buffer(*reading, failed);
            let mut next = self.run_from(block.arrived(), at, first);
            while next == Next::Follows
                && let Some(mut block) = blocks.pop_front()
            {
                next = self.run_from(block.arrived(), 0, |_| Ok(()));
            }
            if let Some((behind, _)) = self.stalled.borrow_mut().0.get_mut(&from) {
                behind.extend(blocks);
            }
        }
    }

    fn run_with_buffer(&self, reading: Reading, failed: Option<Error>) -> Result<(), Malformed> {
        let Reading { from, number, group, of, memory, args } = reading;
        let bytes = match failed {
            None => memory.ok_or_else(|| Error::of_memory("nothing was read")).and_then(bytes_of),
            Some(error) => Err(error),
        };
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

/// Nobody reads into it any more.
fn bytes_of(memory: Region) -> Result<Vec<u8>, Error> {
    let memory = memory.unregister().map_err(Error::of_memory)?;
    memory.into_vec().map_err(|_| Error::of_memory("it is no vector any more"))
}

/// Bytes of a length.
pub(super) const LEN: usize = 8;
