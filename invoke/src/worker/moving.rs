//! Puts and gets: memory of other workers, without their doing.

use std::{collections::VecDeque, ops::Range};

use hg_channel::Error as ChannelError;
use hg_na::{Error as NaError, LocalSlice, Memory, RemoteSlice, Rights};
use rustc_hash::FxHashMap;

use super::Worker;
use crate::{Buffer, Error, Locator, Synchronizer};

/// The puts and gets of a worker that have not ended.
#[derive(Debug, Default)]
pub(super) struct Moves {
    last: u64,
    /// Those that the transport has not taken yet.
    waiting: VecDeque<Move>,
    /// Those that it has: with which end, and who is told.
    under_way: FxHashMap<u64, (u32, Synchronizer)>,
}

#[derive(Debug)]
struct Move {
    end: u32,
    is_put: bool,
    local: LocalSlice,
    remote: RemoteSlice,
    done: Synchronizer,
}

impl Moves {
    /// Whoever waits, when nothing will come any more.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Synchronizer> + use<> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|it| it.done);
        waiting.chain(std::mem::take(&mut self.under_way).into_values().map(|it| it.1))
    }
}

impl Worker {
    /// Zeroed memory of this worker, that all others may write and read.
    ///
    /// # Errors
    /// [`Error::Memory`]: there is not so much, or the transport has no room to register it.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        let mut memory = Vec::new();
        let reserved = memory.try_reserve_exact(bytes);
        reserved.map_err(|error| Error::Memory(error.to_string().into()))?;
        memory.resize(bytes, 0);
        let rights = Rights::READ | Rights::WRITE;
        let region = self.common.domain.register(Memory::from(memory), rights);
        Ok(Buffer::new(region.map_err(Error::of_memory)?, self.place()))
    }

    /// Writes a range of one's own memory into that of another worker, from an offset on. `done` counts it, in one event or several, when it
    /// is there; a call that is made then finds it.
    ///
    /// # Errors
    /// [`Error::Memory`]: there are not so many bytes. [`Error::Full`]: too many puts and gets wait for the transport.
    /// [`Error::NoSuchPlace`]. Nobody is told of what was refused. What fails later is told by `done`: [`Error::Gone`], [`Error::Memory`].
    pub fn put(
        &self,
        from: &Buffer,
        range: Range<u64>,
        to: &Locator,
        offset: u64,
        done: &Synchronizer,
    ) -> Result<(), Error> {
        self.start_moving(true, from, &range, to, offset, done)
    }

    /// Reads memory of another worker, from an offset on, into a range of one's own. `done` counts it when it is here.
    ///
    /// # Errors
    /// As [`Worker::put`].
    pub fn get(
        &self,
        into: &Buffer,
        range: Range<u64>,
        from: &Locator,
        offset: u64,
        done: &Synchronizer,
    ) -> Result<(), Error> {
        self.start_moving(false, into, &range, from, offset, done)
    }

    fn start_moving(
        &self,
        is_put: bool,
        buffer: &Buffer,
        range: &Range<u64>,
        locator: &Locator,
        offset: u64,
        done: &Synchronizer,
    ) -> Result<(), Error> {
        let end = self.end_of(locator.place())?;
        let descriptor = locator.descriptor()?;
        let len = buffer.slice(range)?.len();
        Locator::slice(&descriptor, offset, len)?;
        let piece_max = self.common.domain.caps().max_transfer.max(1);
        let mut moves = self.moves.borrow_mut();
        let room = (MOVES_MAX - moves.waiting.len()) as u64;
        if len.div_ceil(piece_max) > room {
            return Err(Error::Full(locator.place()));
        }
        let mut at = 0;
        while at < len {
            let piece = piece_max.min(len - at);
            let start = range.start + at;
            let local = buffer.slice(&(start..start + piece))?;
            let remote = Locator::slice(&descriptor, offset + at, piece)?;
            done.expect_one();
            moves.waiting.push_back(Move { end, is_put, local, remote, done: done.clone() });
            at += piece;
        }
        drop(moves);
        self.post_moves();
        Ok(())
    }

    /// Gives the transport what it takes. One that it does not take holds up no other.
    pub(super) fn post_moves(&self) {
        let count = self.moves.borrow().waiting.len();
        for _ in 0..count {
            let mut moves = self.moves.borrow_mut();
            let Some(next) = moves.waiting.pop_front() else { return };
            moves.last += 1;
            let token = moves.last;
            let (local, remote) = (next.local.clone(), next.remote.clone());
            let mut port = self.port.borrow_mut();
            let posted = if next.is_put {
                port.put(next.end, token, local, remote)
            } else {
                port.get(next.end, token, local, remote)
            };
            match posted {
                Ok(()) => {
                    port.keep(next.end);
                    moves.under_way.insert(token, (next.end, next.done));
                }
                Err(ChannelError::Full(_)) => moves.waiting.push_back(next),
                Err(error) => {
                    drop((port, moves));
                    let error = match error {
                        ChannelError::Transport(error) => self.error_of_move(next.end, error),
                        other => self.error_of(self.place_of(next.end), other),
                    };
                    next.done.count(Some(error));
                }
            }
        }
    }

    /// The transport is done with one.
    pub(super) fn moved(&self, token: u64, result: Result<(), NaError>) {
        let moved = self.moves.borrow_mut().under_way.remove(&token);
        if let Some((end, done)) = moved {
            self.port.borrow_mut().let_go(end);
            done.count(result.err().map(|error| self.error_of_move(end, error)));
        }
    }

    fn error_of_move(&self, end: u32, error: NaError) -> Error {
        match error {
            NaError::PeerGone(reason) => {
                let process = self.place_of(end).process;
                Error::Gone { process, why: reason.to_string().into() }
            }
            other => Error::of_memory(other),
        }
    }
}

/// Puts and gets that wait until the transport takes them.
const MOVES_MAX: usize = 1024;
