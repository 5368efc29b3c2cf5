//! Buffers that are read before their calls have their turn: of what has come from a sender whose stream waits for another one.
//!
//! A call is known by its sender and its number there. So it does not matter which ones are read ahead: as many as may be, in their order. What is wrong with one
//! is told at its turn.

use hg_channel::next_record;
use rustc_hash::FxHashMap;

use super::{
    Worker,
    reading::{Of, Reading},
    running::{GROUP, is_call_to_read, take_u32},
};
use crate::Error;

/// By sender.
#[derive(Debug, Default)]
pub(super) struct Ahead(FxHashMap<u32, Reads>);

/// Of one sender.
#[derive(Debug, Default)]
struct Reads {
    of: FxHashMap<u64, (Read, u64)>,
    /// Of all their buffers.
    bytes: u64,
}

/// How far one is.
#[derive(Debug)]
pub(super) enum Read {
    UnderWay,
    /// Before its turn, maybe with an error.
    Ended(Box<Reading>, Option<Error>),
}

impl Ahead {
    fn is_empty(&self, from: u32) -> bool {
        !self.0.contains_key(&from)
    }

    /// Whether a buffer of this length may be read ahead.
    fn has_room(&self, from: u32, len: u64) -> bool {
        let reads = self.0.get(&from);
        let (count, bytes) = reads.map_or((0, 0), |it| (it.of.len(), it.bytes));
        count < COUNT_MAX && bytes.saturating_add(len) <= BYTES_MAX
    }

    /// Whether it has begun already.
    fn has(&self, from: u32, call: u64) -> bool {
        self.0.get(&from).is_some_and(|reads| reads.of.contains_key(&call))
    }

    fn begin(&mut self, from: u32, call: u64, len: u64) {
        let reads = self.0.entry(from).or_default();
        reads.bytes += len;
        reads.of.insert(call, (Read::UnderWay, len));
    }

    /// It has its turn. None: it was not read ahead.
    pub(super) fn take(&mut self, from: u32, of: Of) -> Option<Read> {
        let (Of::Call(call), reads) = (of, self.0.get_mut(&from)?) else { return None };
        let (read, len) = reads.of.remove(&call)?;
        reads.bytes -= len;
        if reads.of.is_empty() {
            self.0.remove(&from);
        }
        Some(read)
    }

    /// One was read; it comes back if it has its turn.
    pub(super) fn end(
        &mut self,
        reading: Box<Reading>,
        failed: Option<Error>,
    ) -> Option<(Box<Reading>, Option<Error>)> {
        let Of::Call(call) = reading.of else { return Some((reading, failed)) };
        let reads = self.0.get_mut(&reading.from);
        match reads.and_then(|it| it.of.get_mut(&call)) {
            Some((read @ Read::UnderWay, _)) => {
                *read = Read::Ended(reading, failed);
                None
            }
            _ => Some((reading, failed)),
        }
    }

    /// No call of this sender has its turn any more.
    pub(super) fn lose(&mut self, from: u32) {
        self.0.remove(&from);
    }
}

impl Worker {
    /// Records of a sender whose stream waits begin to be read, behind those that are under way, if all of these have had their turn.
    #[cold]
    pub(super) fn look_ahead_anew(&self, from: u32, records: &[u8]) {
        if self.stalled.borrow().ahead.is_empty(from) {
            self.look_ahead(from, records);
        }
    }

    /// Records of a sender whose stream waits begin to be read.
    #[cold]
    pub(super) fn look_ahead(&self, from: u32, mut records: &[u8]) {
        while self.stalled.borrow().ahead.has_room(from, 0)
            && let Ok(Some(record)) = next_record(&mut records)
        {
            if is_call_to_read(record.tag)
                && self.read_ahead(from, record.tag, record.bytes).is_none()
            {
                return;
            }
        }
    }

    /// `None`: there is no room for more.
    fn read_ahead(&self, from: u32, tag: u32, mut bytes: &[u8]) -> Option<()> {
        let has_group = tag & GROUP != 0;
        let group = if has_group { take_u32(&mut bytes).map(Some) } else { Ok(None) };
        let asked = group.and_then(|group| self.asked(tag & !GROUP, group, bytes));
        let Ok(asked) = asked else { return Some(()) };
        let (Of::Call(call), len) = (asked.of, asked.source.len) else { return Some(()) };
        if self.stalled.borrow().ahead.has(from, call) {
            return Some(());
        }
        if !self.stalled.borrow().ahead.has_room(from, len) {
            return None;
        }
        if let Ok(sides) = asked.room().and_then(|bytes| self.sides(&asked, bytes)) {
            self.stalled.borrow_mut().ahead.begin(from, call, len);
            self.begin_reading(asked.reading(from), sides);
        }
        Some(())
    }
}

/// So many buffers of one sender are read ahead, of so many bytes together.
const COUNT_MAX: usize = 64;
const BYTES_MAX: u64 = 256 << 10;
