//! The sending end of a stream: packs records into blocks, and says which may leave. No I/O.
//!
//! ```text
//!  0 ........ consumed ........ posted ........ written        positions, in bytes
//!      run at the    |   on its way  |  sealed blocks, then the open one
//!      receiver      |<- at most a window ->|
//! ```
//! Records are written straight into the open block, which is sealed when the next record does not fit, or when there is room for it after a
//! flush. A sealed block may leave when the window has room for it. No block is longer than half of the window, and the receiver tells how far it has come
//! once per half of it at least: so nobody needs to ask. One that is *held* keeps itself and those behind it until it is released:
//! the bytes that it tells of are still moving.
//!
//! A *notice* is somebody to be told when the stream has reached a position: posted, or consumed.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::{
    error::Broken,
    limits::WIDENED_MAX,
    wire::{HEADER, Header, Kind, RECORD, Told, half, word, write_record},
};

/// Bytes of one block, at the beginning of which there is room for the header of a message.
#[derive(Debug, Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    used: usize,
    /// Position in the stream behind its last record.
    end: u64,
    asks: bool,
    is_held: bool,
    /// It was kept from leaving by the window.
    waited: bool,
}

impl Block {
    /// The whole message.
    pub(crate) fn message(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Bytes of its memory.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Whether its records take less than half of its memory: the window counts what was written, and not the rest.
    fn is_sparse(&self) -> bool {
        self.used < self.memory() / 2
    }

    /// A message of its own memory, with its header.
    pub(crate) fn copied(message: &[u8]) -> Self {
        Self { bytes: message.to_vec(), used: message.len(), ..Self::default() }
    }

    /// The header says how far the opposite stream has been consumed.
    pub(crate) fn address(&mut self, told: Told) {
        let (asks, waited) = (self.asks, self.waited);
        Header { kind: Kind::Records, asks, waited, told }.write(&mut self.bytes);
    }
}

/// Blocks of the usual size that are used again, of all channels of an end.
#[derive(Debug)]
pub(crate) struct Pool {
    size: usize,
    spare: Vec<Vec<u8>>,
}

impl Pool {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, spare: Vec::new() }
    }

    fn block(&mut self, least: usize) -> Block {
        let bytes = match self.spare.pop() {
            Some(bytes) if bytes.len() >= least => bytes,
            _ => vec![0; least.max(self.size)],
        };
        Block { bytes, used: HEADER, ..Block::default() }
    }

    /// What the block holds, in memory of its length where it would waste the most of its own, which is kept.
    pub(crate) fn of_its_length(&mut self, block: Block) -> Block {
        if !block.is_sparse() {
            return block;
        }
        let copy = Block::copied(block.message());
        self.take_back(block);
        copy
    }

    /// Takes a block's memory back.
    pub(crate) fn take_back(&mut self, block: Block) {
        if block.bytes.len() == self.size && self.spare.len() < SPARE_MAX {
            self.spare.push(block.bytes);
        }
    }
}

/// When somebody is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The record has left.
    Sent,
    /// The record was consumed: the function that it calls has run.
    Consumed,
}

/// The sending end of one stream. `N`: who is told what.
#[derive(Debug)]
pub(crate) struct Outgoing<N> {
    /// As it was at first.
    window: u64,
    /// How often the receiver has doubled it, as it has said last.
    doubled: u8,
    /// Something would have left, had the window been longer.
    waited: bool,
    open: Block,
    sealed: VecDeque<Block>,
    /// Of blocks that are held, by name: where each ends, by which it is found.
    held: FxHashMap<u64, u64>,
    written: u64,
    posted: u64,
    consumed: u64,
    /// What was written up to here leaves with the first room, though its block is not full.
    flushed: u64,
    /// Whoever is told at a position, in the order of positions: on being sent, on being consumed.
    notices: [VecDeque<(u64, N)>; 2],
}

impl<N> Outgoing<N> {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            window: u64::from(window),
            doubled: 0,
            waited: false,
            open: Block::default(),
            sealed: VecDeque::new(),
            held: FxHashMap::default(),
            written: 0,
            posted: 0,
            consumed: 0,
            flushed: 0,
            notices: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// Whether a record of `len` bytes may be written while at most `limit` bytes wait to leave.
    #[inline]
    pub(crate) fn has_room(&self, len: usize, limit: u64) -> bool {
        let waiting = self.written - self.posted;
        waiting == 0 || waiting + (RECORD + len) as u64 <= limit
    }

    /// Whether the open block has room for it; one that was not begun yet has none.
    #[inline]
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.open.bytes.len() - self.open.used >= RECORD + len
    }

    /// Room for a record, to be filled. Seals the open block when it has none.
    #[inline]
    pub(crate) fn record(&mut self, pool: &mut Pool, tag: u32, len: u32) -> &mut [u8] {
        let need = RECORD + len as usize;
        if self.open.bytes.len() - self.open.used < need {
            self.renew(pool, need);
        }
        self.written += need as u64;
        let start = self.open.used;
        self.open.used += need;
        let room = &mut self.open.bytes[start..start + need];
        write_record(room, tag, len);
        &mut room[RECORD..]
    }

    /// The record of `len` bytes that was written last, and that nothing has followed, is taken back.
    pub(crate) fn undo(&mut self, len: usize) {
        self.open.used -= RECORD + len;
        self.written -= (RECORD + len) as u64;
    }

    #[cold]
    fn renew(&mut self, pool: &mut Pool, need: usize) {
        self.seal();
        self.open = pool.block(HEADER + need);
    }

    /// What was written so far may leave. Whether the open block had anything of it.
    #[inline]
    pub(crate) fn seal(&mut self) -> bool {
        let has_any = self.open.used > HEADER;
        if has_any {
            self.open.end = self.written;
            self.sealed.push_back(std::mem::take(&mut self.open));
        }
        has_any
    }

    /// What was written so far leaves as soon as there is room; until then its block goes on being filled.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.flushed = self.written;
    }

    /// The same, of a block that may be one of many short ones: if it has to wait behind others, it takes at most twice the memory that it
    /// needs.
    pub(crate) fn seal_short(&mut self) {
        if self.sealed.is_empty() || !self.open.is_sparse() {
            self.seal();
            return;
        }
        let Block { bytes, used, .. } = &mut self.open;
        if *used > HEADER {
            let bytes = bytes[..*used].to_vec();
            let used = std::mem::replace(used, HEADER);
            let (asks, is_held) =
                (std::mem::take(&mut self.open.asks), std::mem::take(&mut self.open.is_held));
            let waited = std::mem::take(&mut self.open.waited);
            self.sealed.push_back(Block { bytes, used, end: self.written, asks, is_held, waited });
        }
    }

    /// The record that was written last waits, with all behind it, until this is released. Whatever was written before it was sealed.
    pub(crate) fn hold(&mut self, name: u64) {
        if self.open.used > HEADER {
            self.open.is_held = true;
            self.seal_short();
            self.held.insert(name, self.written);
        }
    }

    /// Lets go of what [`Outgoing::hold`] has kept.
    pub(crate) fn release(&mut self, name: u64) {
        if let Some(block) = self.find_held(name) {
            block.is_held = false;
        }
        self.held.remove(&name);
    }

    /// The record that is held by this name gets another tag: it is to mean something else when it leaves.
    pub(crate) fn retag(&mut self, name: u64, retag: impl Fn(u32) -> u32) {
        // The only record of its block.
        if let Some(block) = self.find_held(name)
            && let Ok(tag) = word(&block.bytes, HEADER)
        {
            block.bytes[HEADER..][..4].copy_from_slice(&retag(tag).to_le_bytes());
        }
    }

    /// Blocks lie in the order of their ends: however many wait, finding one looks at few.
    fn find_held(&mut self, name: u64) -> Option<&mut Block> {
        let end = *self.held.get(&name)?;
        let at = self.sealed.binary_search_by_key(&end, |block| block.end).ok()?;
        self.sealed.get_mut(at)
    }

    /// The receiver tells at once when it has consumed the record that was written last.
    pub(crate) fn ask(&mut self) {
        // It is in the open block, unless that was sealed by `hold`.
        let block =
            if self.open.used > HEADER { Some(&mut self.open) } else { self.sealed.back_mut() };
        if let Some(block) = block {
            block.asks = true;
        }
    }

    /// Somebody is told once the record that was written last has come so far.
    pub(crate) fn tell(&mut self, when: When, notice: N) {
        if when == When::Consumed {
            self.ask();
        }
        self.notices[when as usize].push_back((self.written, notice));
    }

    /// The open block with its header, when nothing waits before it, and it is short enough to leave as a copy.
    #[inline]
    pub(crate) fn short(&mut self, max: usize, told: Told) -> Option<&[u8]> {
        let Block { used, is_held, .. } = &self.open;
        let is_short = (HEADER + 1..=max).contains(used) && !is_held;
        let may_leave = self.sealed.is_empty() && self.written <= self.consumed + self.window();
        if !(is_short && may_leave) {
            return None;
        }
        self.open.waited = std::mem::take(&mut self.waited);
        self.open.address(told);
        Some(self.open.message())
    }

    /// What [`Outgoing::short`] gave has left. Its block stays open.
    #[inline]
    pub(crate) fn leave_short(&mut self) {
        (self.open.used, self.open.asks, self.open.waited) = (HEADER, false, false);
        self.posted = self.written;
    }

    /// An open block without a record is used by others.
    #[inline]
    pub(crate) fn close_empty(&mut self, pool: &mut Pool) {
        if self.open.used == HEADER {
            pool.take_back(std::mem::take(&mut self.open));
        }
    }

    /// The block that may leave next.
    #[inline]
    pub(crate) fn front(&mut self) -> Option<&mut Block> {
        let limit = self.consumed + self.window();
        if self.sealed.is_empty() && self.flushed > self.posted {
            if self.written > limit {
                self.waited = true;
                return None;
            }
            self.seal();
        }
        let block = self.sealed.front_mut().filter(|block| !block.is_held)?;
        if block.end > limit {
            self.waited = true;
            return None;
        }
        block.waited |= std::mem::take(&mut self.waited);
        Some(block)
    }

    /// Bytes that may be on their way, or wait to be consumed.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window << self.doubled
    }

    /// The window is as it was at first.
    pub(crate) fn narrow(&mut self) {
        self.doubled = 0;
    }

    /// The front block has left.
    #[inline]
    pub(crate) fn leave(&mut self) -> Option<Block> {
        let block = self.sealed.pop_front()?;
        give_back(&mut self.sealed, SEALED_KEPT);
        self.posted = block.end;
        Some(block)
    }

    /// The receiver takes nothing any more: this block, which has left, was not taken, and what would have followed it is dropped. Those
    /// who wait for any of it are given back at the end.
    #[cold]
    pub(crate) fn refuse(&mut self, block: &Block) {
        self.posted -= (block.used - HEADER) as u64;
        (self.written, self.flushed) = (self.posted, self.posted);
        (self.open, self.sealed, self.held) = Default::default();
    }

    /// The receiver says how far it has come. Says whether that is news: what it has said before may arrive later, since control
    /// messages overtake others.
    #[inline]
    pub(crate) fn consume(&mut self, claim: Told) -> Result<bool, Broken> {
        // No receiver has more for all its channels.
        if claim.doubled > 30 || (self.window << claim.doubled) - self.window > WIDENED_MAX {
            return Err(Broken::Consumed);
        }
        let step = claim.consumed.wrapping_sub(half(self.consumed));
        if step > u32::MAX / 2 {
            return Ok(false);
        }
        let step = u64::from(step);
        if step > self.posted - self.consumed {
            return Err(Broken::Consumed);
        }
        // The window is what was said with the latest position: the short one again, where the receiver has left an idle connection by which this side goes on. Of
        // what was said with the same one the longest, since the order is not known.
        let is_news = step > 0 || claim.doubled > self.doubled;
        if is_news {
            self.doubled = claim.doubled;
        }
        self.consumed += step;
        Ok(is_news)
    }

    /// Somebody who is to be told now.
    #[inline]
    pub(crate) fn due(&mut self) -> Option<N> {
        let reached = [self.posted, self.consumed];
        for (notices, reached) in self.notices.iter_mut().zip(reached) {
            if notices.front().is_some_and(|(position, _)| *position <= reached) {
                let due = notices.pop_front();
                give_back(notices, NOTICES_KEPT);
                return due.map(|(_, notice)| notice);
            }
        }
        None
    }

    /// What the receiver is known to have told.
    #[inline]
    pub(crate) fn known(&self) -> Told {
        Told { consumed: half(self.consumed), doubled: self.doubled }
    }

    /// Whether anything was written that has not left.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.posted != self.written
    }

    /// Whether everything was consumed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.consumed == self.written
    }

    /// Where what has left ends, and what was written.
    pub(crate) fn positions(&self) -> (u64, u64) {
        (self.posted, self.written)
    }

    /// Bytes that were written and have not left.
    pub(crate) fn waiting(&self) -> u64 {
        self.written - self.posted
    }

    /// Bytes that were written and are not known to have been consumed.
    pub(crate) fn unconsumed(&self) -> u64 {
        self.written - self.consumed
    }

    /// Whether anybody is still to be told.
    pub(crate) fn tells(&self) -> bool {
        self.notices.iter().any(|notices| !notices.is_empty())
    }

    /// Half of the position that was written.
    pub(crate) fn written(&self) -> u32 {
        half(self.written)
    }

    /// The receiver is gone: whoever was to be told, the sent ones first.
    pub(crate) fn end(&mut self) -> Vec<N> {
        (self.open, self.sealed, self.held) = Default::default();
        (self.posted, self.consumed) = (self.written, self.written);
        let notices = std::mem::take(&mut self.notices);
        notices.into_iter().flatten().map(|(_, it)| it).collect()
    }

    /// Nothing goes for now: gives back what was there for more than is left.
    pub(crate) fn rest(&mut self, pool: &mut Pool) {
        self.close_empty(pool);
        give_back(&mut self.sealed, 0);
        if self.held.is_empty() {
            self.held.shrink_to_fit();
        }
        self.notices.iter_mut().for_each(|notices| give_back(notices, 0));
    }

    /// Bytes of its memory.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        let of_notices: usize = self.notices.iter().map(VecDeque::capacity).sum();
        self.open.memory()
            + self.sealed.iter().map(Block::memory).sum::<usize>()
            + self.sealed.capacity() * size_of::<Block>()
            + self.held.capacity() * size_of::<(u64, u64)>()
            + of_notices * size_of::<(u64, N)>()
    }
}

/// Of an empty queue with room for more than `most` the memory is not kept. Filling it again costs a part of what it holds then.
#[inline]
fn give_back<T>(queue: &mut VecDeque<T>, most: usize) {
    if queue.is_empty() && queue.capacity() > most {
        queue.shrink_to(most);
    }
}

/// Blocks of the usual size that an end keeps, beside those of its few channels.
const SPARE_MAX: usize = 48;
/// Blocks for which there is room in an empty queue: a window of them.
const SEALED_KEPT: usize = 64;
/// Notices likewise.
const NOTICES_KEPT: usize = 1024;
