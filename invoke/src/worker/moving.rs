//! Puts and gets: memory of other workers, without their doing. And what follows them.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use hg_channel::Error as ChannelError;
use hg_na::{Descriptor, Error as NaError, LocalSlice, Memory, Region, RemoteSlice, Rights};
use rustc_hash::FxHashMap;

use super::{Worker, reading::Reading, running::withdrawn};
use crate::{Buffer, Error, Locator, Place, Synchronizer, broadcasts::Name, held::Charge};

/// The transfers of a worker that have not ended. Each is of pieces that the transport takes.
#[derive(Debug, Default)]
pub(super) struct Moves {
    last: u64,
    /// Pieces that the transport has not taken yet.
    waiting: VecDeque<Piece>,
    /// Those that it has: of which transfer each is.
    under_way: FxHashMap<u64, u64>,
    transfers: FxHashMap<u64, Transfer>,
    /// What receivers have read, or failed to: functions run with it when progress is made.
    pub(super) read: VecDeque<(Box<Reading>, Option<Error>)>,
}

#[derive(Debug)]
struct Piece {
    transfer: u64,
    end: u32,
    is_put: bool,
    local: LocalSlice,
    remote: RemoteSlice,
}

#[derive(Debug)]
struct Transfer {
    end: u32,
    /// Pieces that have not ended.
    left: usize,
    failed: Option<Error>,
    then: After,
}

/// What follows a transfer.
#[derive(Debug)]
pub(super) enum After {
    /// This one is told.
    Tell(Synchronizer),
    /// The call that is held by the transfer's number leaves, and this one is told.
    Release(Option<Synchronizer>),
    /// A broadcast that is held by the transfer's number reaches an end: the one of this place among those below, or this one. Until then the memory that
    /// it is read from counts.
    PassOn { name: Name, place: u32, _charge: Option<Arc<Charge>> },
    /// The function runs for which it was made.
    Run(Box<Reading>),
}

/// What is moved where.
#[derive(Debug)]
pub(super) struct Pieces {
    of: Vec<(LocalSlice, RemoteSlice)>,
    is_put: bool,
}

impl Moves {
    /// Of a new transfer, or of anything else that moves.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn has_room(&self, pieces: &Pieces) -> bool {
        pieces.of.len() <= MOVES_MAX.saturating_sub(self.waiting.len())
    }

    /// A piece has ended; the transfer, if it was the last one.
    fn end(&mut self, number: u64, failed: Option<Error>) -> Option<Transfer> {
        let transfer = self.transfers.get_mut(&number)?;
        transfer.left -= 1;
        if transfer.failed.is_none() {
            transfer.failed = failed;
        }
        if transfer.left > 0 { None } else { self.transfers.remove(&number) }
    }

    /// Whether somebody waits for the end of a transfer.
    pub(super) fn tells(&self) -> bool {
        self.transfers.values().any(|it| !matches!(it.then, After::Run(_)))
    }

    /// Whoever waits, when nothing will come any more.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Synchronizer> + use<> {
        std::mem::take(&mut self.transfers).into_values().filter_map(|it| match it.then {
            After::Tell(told) => Some(told),
            After::Release(told) => told,
            After::PassOn { .. } | After::Run(_) => None,
        })
    }
}

impl Worker {
    /// Zeroed memory of this worker, that all others may write and read.
    ///
    /// # Errors
    /// [`Error::Memory`]: there is not so much, or the transport has no room to register it.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).map_err(Error::of_memory)?;
        memory.resize(bytes, 0);
        Ok(Buffer::new(self.register(memory.into(), Rights::READ | Rights::WRITE)?, self.place()))
    }

    /// The same on a NUMA node of this machine, by the number that its system gives it: for threads that run there. Memory of less than 128 KiB
    /// may be such that was used before, and lie where it was.
    ///
    /// # Errors
    /// As [`Worker::allocate`]; [`Error::Setup`]: this process may not run on that node, there is none, or
    /// no nodes are known here ([`Fabric::numa`](crate::Fabric::numa)).
    pub fn allocate_on(&self, node: u32, bytes: usize) -> Result<Buffer, Error> {
        let found = self.common.nodes_here.iter().find(|it| it.number == node);
        let none = || match self.numa_node(self.place()) {
            Some(_) => Error::Setup(format!("this process may not run on NUMA node {node}")),
            None => Error::Setup("no NUMA nodes are known: Fabric::numa asks for them".to_owned()),
        };
        found.ok_or_else(none)?.run(|| self.allocate(bytes)).map_err(Error::of_node)?
    }

    pub(super) fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.common.domain.register(memory, rights).map_err(Error::of_memory)
    }

    /// Writes a range of one's own memory into that of another worker, from an offset on. `done` counts it, in one event, when it
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
        let pieces = self.pieces(is_put, buffer.region(), range, &locator.descriptor()?, offset)?;
        if !self.moves.borrow().has_room(&pieces) {
            return Err(Error::Full(locator.place()));
        }
        if !pieces.of.is_empty() {
            done.expect_one();
            let number = self.moves.borrow_mut().number();
            self.start(number, end, pieces, After::Tell(done.clone()));
        }
        Ok(())
    }

    /// Cuts what is to be moved into what the transport takes.
    pub(super) fn pieces(
        &self,
        is_put: bool,
        region: &Region,
        range: &Range<u64>,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<Pieces, Error> {
        let len = range.end.saturating_sub(range.start);
        region.slice(range.start, len).map_err(Error::of_memory)?;
        descriptor.slice(offset, len).map_err(Error::of_memory)?;
        let piece_max = self.common.domain.caps().max_transfer.max(1);
        if len.div_ceil(piece_max) > MOVES_MAX as u64 {
            return Err(Error::Memory("it is longer than 1,024 transfers of the transport".into()));
        }
        let (mut of, mut at) = (Vec::new(), 0);
        while at < len {
            let piece = piece_max.min(len - at);
            let local = region.slice(range.start + at, piece).map_err(Error::of_memory)?;
            let remote = descriptor.slice(offset + at, piece).map_err(Error::of_memory)?;
            of.push((local, remote));
            at += piece;
        }
        Ok(Pieces { of, is_put })
    }

    /// Whether so many pieces may wait for the transport; or waits for that.
    pub(super) fn wait_for_moves(
        &self,
        to: Place,
        pieces: &Pieces,
        may_wait: bool,
    ) -> Result<(), Error> {
        let has_room = || self.moves.borrow().has_room(pieces).then_some(Ok(()));
        match has_room() {
            Some(room) => room,
            None if may_wait => self.wait_until(has_room),
            None => Err(Error::Full(to)),
        }
    }

    /// A transfer begins, whose number nothing else has.
    pub(super) fn start(&self, number: u64, end: u32, pieces: Pieces, then: After) {
        let Pieces { of, is_put } = pieces;
        let transfer = Transfer { end, left: of.len(), failed: None, then };
        if of.is_empty() {
            return self.end_transfer(number, transfer);
        }
        let mut moves = self.moves.borrow_mut();
        moves.transfers.insert(number, transfer);
        let pieces = of.into_iter().map(|(local, remote)| Piece {
            transfer: number,
            end,
            is_put,
            local,
            remote,
        });
        moves.waiting.extend(pieces);
        drop(moves);
        self.post_moves();
    }

    /// Whether anything waits for the transport, or was read meanwhile.
    #[inline]
    pub(super) fn has_to_move(&self) -> bool {
        let moves = self.moves.borrow();
        !(moves.waiting.is_empty() && moves.read.is_empty())
    }

    /// Goes on with it. Whether anything ran.
    pub(super) fn move_on(&self) -> bool {
        self.post_moves();
        self.run_what_was_read()
    }

    /// Gives the transport what it takes. One that it does not take holds up no other.
    pub(super) fn post_moves(&self) {
        let count = self.moves.borrow().waiting.len();
        for _ in 0..count {
            let mut moves = self.moves.borrow_mut();
            let Some(next) = moves.waiting.pop_front() else { return };
            let token = moves.number();
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
                    moves.under_way.insert(token, next.transfer);
                }
                Err(ChannelError::Full(_)) => moves.waiting.push_back(next),
                Err(error) => {
                    drop((port, moves));
                    let error = match error {
                        ChannelError::Transport(error) => self.error_of_move(next.end, error),
                        other => self.error_of(self.place_of(next.end), other),
                    };
                    self.end_piece(next.transfer, Some(error));
                }
            }
        }
    }

    /// The transport is done with one.
    pub(super) fn moved(&self, token: u64, result: Result<(), NaError>) {
        let mut moves = self.moves.borrow_mut();
        let Some(number) = moves.under_way.remove(&token) else { return };
        let Some(end) = moves.transfers.get(&number).map(|it| it.end) else { return };
        drop(moves);
        self.port.borrow_mut().let_go(end);
        self.end_piece(number, result.err().map(|error| self.error_of_move(end, error)));
    }

    fn end_piece(&self, number: u64, failed: Option<Error>) {
        let ended = self.moves.borrow_mut().end(number, failed);
        if let Some(transfer) = ended {
            self.end_transfer(number, transfer);
        }
    }

    fn end_transfer(&self, number: u64, transfer: Transfer) {
        let Transfer { end, failed, then, .. } = transfer;
        match then {
            After::Tell(told) => told.count(failed),
            After::Release(told) => {
                let mut port = self.port.borrow_mut();
                if failed.is_some() {
                    port.retag(end, number, withdrawn);
                }
                port.release(end, number);
                drop(port);
                self.tell_of_buffer(told, failed);
                self.tell_due();
            }
            After::PassOn { name, place, .. } => self.end_put(number, end, (name, place), failed),
            After::Run(reading) => self.moves.borrow_mut().read.push_back((reading, failed)),
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
