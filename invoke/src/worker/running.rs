//! What others have called: runs here, in order.
//!
//! # Tags of records
//! | bits | meaning |
//! |---|---|
//! | 31 | a message of the fabric's own: the lower bits say which |
//! | 28 | a call of a group, or a message of its barrier: the number of the group (4) stands before all else |
//! | 30 | the caller wants the result: the number by which it knows the call (8) stands before the arguments |
//! | 29 | a broadcast: the end that has begun it (4) and its number there (8) stand before the arguments |
//! | 27 | the last argument, bytes, is to be read first: the caller's number of the call (8, not in a broadcast), and where they are, stand before the arguments |
//! | 26 | a broadcast whose bytes were put into memory here: which, and where there, stand before the arguments |
//! | 0..24 | number of the function; from 2^23 on those of the fabric's own |

use std::panic::{AssertUnwindSafe, catch_unwind};

use hg_channel::{Arrived, next_record};

use super::{Then, Worker};
use crate::{broadcasts::OWN_PLACE, functions::Reply, groups::By};

/// What becomes of the blocks behind one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The next one runs.
    Follows,
    /// They wait for a buffer that is being read.
    Waits,
    /// Their sender is gone by what it has sent before them: they do not run.
    Gone,
}

/// Why a sender is not believed any more.
pub(super) type Malformed = &'static str;

impl Worker {
    #[inline]
    pub(super) fn run(&self, block: Arrived<'_>) {
        if self.stalled.borrow().is_empty() {
            self.run_from(block, 0, |_| Ok(()));
        } else {
            self.run_behind(block);
        }
    }

    #[cold]
    fn run_behind(&self, block: Arrived<'_>) {
        let from = block.from();
        if self.stalled.borrow().has(from) {
            self.look_ahead(from, block.bytes());
        }
        let block = self.stalled.borrow_mut().wait_behind(block);
        if let Some(block) = block {
            self.run_from(block, 0, |_| Ok(()));
        }
    }

    /// Runs the records of a block from a place on; `first` comes before them. What becomes of the blocks behind it.
    #[inline]
    pub(super) fn run_from(
        &self,
        block: Arrived<'_>,
        at: usize,
        first: impl FnOnce(&Self) -> Result<(), Malformed>,
    ) -> Next {
        self.is_inside.set(true);
        self.running.set(Some(block.from()));
        let (from, mut left) = (block.from(), &block.bytes()[at..]);
        let (mut first, mut next) = (Some(first), Next::Follows);
        self.caller.set(from);
        let why = loop {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                if let Some(first) = first.take() {
                    first(self)?;
                    self.not_blamed()?;
                }
                self.run_records(from, &mut left)
            }));
            match ran {
                Ok(ran) => break ran.err(),
                // A function that panics is behind; those after it run.
                Err(_) => {
                    self.panicked.set(self.panicked.get() + 1);
                    self.end_of_call();
                    self.group.set(None);
                    self.caller.set(from);
                    if let Some(why) = self.blamed.take() {
                        break Some(why);
                    }
                }
            }
        };
        self.is_inside.set(false);
        self.running.set(None);
        // A call that is lost is not passed over in silence: its sender is gone.
        if let Some(why) = why.or(self.blamed.take()) {
            self.port.borrow_mut().expel(from, why);
            self.stalled.borrow_mut().ahead.lose(from);
            next = Next::Gone;
        }
        if self.is_reading.take() {
            let at = block.bytes().len() - left.len();
            self.look_ahead_anew(from, left);
            self.stalled.borrow_mut().stall(block.keep(), at);
            return Next::Waits;
        }
        self.port.borrow_mut().consumed(block);
        next
    }

    /// An end does not keep to the rules: it is gone. If a block of it runs, that ends behind the record that does.
    #[cold]
    pub(super) fn blame(&self, end: u32, why: Malformed) {
        if self.running.get() == Some(end) {
            self.blamed.set(Some(why));
        } else {
            self.port.borrow_mut().expel(end, why);
        }
    }

    #[inline]
    fn not_blamed(&self) -> Result<(), Malformed> {
        self.blamed.take().map_or(Ok(()), Err)
    }

    #[inline]
    fn run_records(&self, from: u32, left: &mut &[u8]) -> Result<(), Malformed> {
        while let Some(record) = next_record(left).map_err(|_| "half a record")? {
            if record.tag >= FLAGS {
                self.hear(from, record.tag, record.bytes)?;
                self.not_blamed()?;
                if self.is_reading.get() {
                    return Ok(());
                }
                continue;
            }
            let run = self.common.functions.run(record.tag).ok_or(UNKNOWN)?;
            self.run.set(self.run.get() + 1);
            run(self, record.bytes).map_err(|_| UNREADABLE)?;
        }
        Ok(())
    }

    /// Anything but a call whose arguments are all.
    #[inline(never)]
    fn hear(&self, from: u32, tag: u32, record: &[u8]) -> Result<(), Malformed> {
        let mut bytes = record;
        let has_group = tag & GROUP != 0;
        let group = if has_group { Some(take_u32(&mut bytes)?) } else { None };
        let kind = tag & !GROUP;
        match kind {
            REPORT | AGAIN | DONE | FAILED | ENTER | LEAVES => {
                self.hear_of_barrier(from, kind, group, bytes)
            }
            RAN => self.hear_ran(from, bytes),
            SETTLED => self.hear_settled(from, bytes),
            LET_GO => self.hear_let_go(from, bytes),
            RELEASE => self.hear_release(from, bytes),
            _ if kind < SYSTEM && kind & READ != 0 => self.hear_of_buffer(from, kind, group, bytes),
            _ if kind < SYSTEM || matches!(kind, ANSWER | HAS_READ | WITHDRAWN) => {
                let is_passed_on = kind < SYSTEM && kind & BROADCAST != 0;
                let root = if is_passed_on { take_u32(&mut &*bytes)? } else { from };
                self.count_run(group, (from, root))?;
                self.group.set(group);
                let ran = match kind {
                    ANSWER => self.hear_answer(from, bytes),
                    HAS_READ => self.hear_has_read(from, bytes),
                    WITHDRAWN => Ok(()),
                    ANSWERED.. => self.run_and_answer(from, kind & !ANSWERED, bytes),
                    BROADCAST.. if kind & WRITTEN != 0 => {
                        self.hear_written(from, tag, bytes, record)
                    }
                    BROADCAST.. => self.hear_broadcast(from, tag, bytes, record),
                    _ => {
                        let run = self.common.functions.run(kind).ok_or(UNKNOWN)?;
                        run(self, bytes).map_err(|_| UNREADABLE)
                    }
                };
                self.group.set(None);
                ran
            }
            _ => Err("a message of no known kind"),
        }
    }

    pub(super) fn count_run(&self, group: Option<u32>, by: By) -> Result<(), Malformed> {
        self.run.set(self.run.get() + 1);
        let is_counted = group.is_none_or(|group| self.groups.borrow_mut().run(group, by));
        if is_counted { Ok(()) } else { Err("calls of too many groups") }
    }

    fn run_and_answer(&self, from: u32, number: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let run = self.common.functions.run_and_answer(number).ok_or(UNKNOWN)?;
        let reply = Reply { to: from, number: take_u64(&mut bytes)? };
        self.then.set(Then::Answer(reply));
        let ran = run(self, bytes, reply);
        self.then.set(Then::Nothing);
        ran.map_err(|_| UNREADABLE)
    }

    /// The function that was called has returned, or panicked.
    pub(super) fn end_of_call(&self) {
        match self.then.take() {
            Then::Nothing => {}
            Then::Answer(reply) => self.answer_panic(reply),
            Then::Reading(name) => self.end_unread(name),
            Then::Ran(name) => self.end_broadcast(name, OWN_PLACE, None),
        }
    }
}

/// Four bytes in front.
pub(super) fn take_u32(bytes: &mut &[u8]) -> Result<u32, Malformed> {
    let (word, rest) = bytes.split_first_chunk().ok_or(SHORT)?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*word))
}

/// Eight bytes in front.
pub(super) fn take_u64(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let (word, rest) = bytes.split_first_chunk().ok_or(SHORT)?;
    *bytes = rest;
    Ok(u64::from_le_bytes(*word))
}

const SHORT: Malformed = "a message is too short";
pub(super) const UNKNOWN: Malformed = "a call of no registered function";
pub(super) const UNREADABLE: Malformed = "the arguments of a call cannot be read";

/// Tags below are calls whose arguments are all that they carry.
const FLAGS: u32 = 1 << 24;
pub(super) const WRITTEN: u32 = 1 << 26;
pub(super) const READ: u32 = 1 << 27;
pub(super) const GROUP: u32 = 1 << 28;
pub(super) const BROADCAST: u32 = 1 << 29;
pub(super) const ANSWERED: u32 = 1 << 30;
const SYSTEM: u32 = 1 << 31;
pub(super) const REPORT: u32 = SYSTEM | 1;
pub(super) const AGAIN: u32 = SYSTEM | 2;
pub(super) const DONE: u32 = SYSTEM | 3;
pub(super) const FAILED: u32 = SYSTEM | 4;
pub(super) const ANSWER: u32 = SYSTEM | 5;
pub(super) const RAN: u32 = SYSTEM | 6;
pub(super) const HAS_READ: u32 = SYSTEM | 7;
/// A call that does not run: its buffer was not written.
const WITHDRAWN: u32 = SYSTEM | 8;

/// To a service thread: the barrier has begun.
pub(super) const ENTER: u32 = SYSTEM | 9;

/// To those beside in the barrier: this worker leaves in good order.
pub(super) const LEAVES: u32 = SYSTEM | 10;

/// To the one above in the tree of an owner: memory that is everywhere is here, or is not.
pub(super) const SETTLED: u32 = SYSTEM | 12;

/// To those below in the tree of an owner, and to that one itself: memory that is everywhere is released.
pub(super) const LET_GO: u32 = SYSTEM | 13;

/// Memory that was allocated for who says so is released.
pub(super) const RELEASE: u32 = SYSTEM | 14;

/// Whether a record is a call, of one worker, whose last argument is to be read first.
pub(super) fn is_call_to_read(tag: u32) -> bool {
    tag & (SYSTEM | BROADCAST | READ) == READ
}

/// What a call's tag becomes when it is withdrawn.
pub(super) fn withdrawn(tag: u32) -> u32 {
    WITHDRAWN | tag & GROUP
}
