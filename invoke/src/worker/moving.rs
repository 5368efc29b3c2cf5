//! Puts and gets: memory of other workers, without their doing. And what follows them.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use hg_channel::Error as ChannelError;
use hg_na::{
    Descriptor, Error as NaError, LocalSlice, Memory, Region, RemoteSlice, Returned, Rights,
};
use hg_na_memory::zeroed_here;
use rustc_hash::FxHashMap;

use super::{Worker, reading::Reading, running::withdrawn};
use crate::{
    Buffer, Error, Locator, Place, Synchronizer,
    broadcasts::Name,
    held::Charge,
    queues::{Offered, Queues},
};

/// The transfers of a worker that have not ended. Each is cut into pieces that the transport takes, when it takes them.
#[derive(Debug, Default)]
pub(super) struct Moves {
    last: u64,
    /// What the transport has not taken yet.
    waiting: Queues<Waiting>,
    /// How many of those this worker has been asked for. Of others there are as many as broadcasts are under way, and buffers being read.
    asked_for: usize,
    /// Pieces that the transport has: of which transfer each is.
    under_way: FxHashMap<u64, u64>,
    transfers: FxHashMap<u64, Transfer>,
    /// What receivers have read, or failed to: functions run with it when progress is made.
    pub(super) read: VecDeque<(Box<Reading>, Option<Error>)>,
}

/// A transfer, of which so many bytes were taken.
#[derive(Debug)]
struct Waiting {
    transfer: u64,
    is_asked_for: bool,
    slices: Slices,
    taken: u64,
}

#[derive(Debug)]
struct Transfer {
    end: u32,
    /// Pieces that have not ended.
    left: u64,
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

impl After {
    /// Whether a caller wants it, who may be refused. Broadcasts, and buffers that are read for functions, are bounded themselves.
    fn is_asked_for(&self) -> bool {
        matches!(self, Self::Tell(_) | Self::Release(_))
    }
}

/// What is moved where: as many bytes here as there.
#[derive(Debug)]
pub(super) struct Slices {
    is_put: bool,
    local: LocalSlice,
    remote: RemoteSlice,
}

impl Slices {
    /// A part of both.
    fn part(&self, at: u64, len: u64) -> Result<(LocalSlice, RemoteSlice), NaError> {
        let region = Region::new(Arc::clone(self.local.region()));
        let local = region.slice(self.local.offset() + at, len)?;
        let remote = self.remote.descriptor().slice(self.remote.offset() + at, len)?;
        Ok((local, remote))
    }
}

impl Moves {
    /// Of a new transfer, or of anything else that moves.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn has_room(&self) -> bool {
        self.asked_for < MOVES_MAX
    }

    /// Something waits for the transport, which nothing new overtakes.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
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

    /// Whether somebody waits for the end of a transfer, other than of a broadcast.
    pub(super) fn tells(&self) -> bool {
        self.transfers.values().any(|it| it.then.is_asked_for())
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
        self.buffer(memory)
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
        let memory = found.ok_or_else(none)?.run(|| zeroed_here(bytes)).map_err(Error::of_node)?;
        self.buffer(memory.map_err(Error::of_memory)?)
    }

    fn buffer(&self, memory: Vec<u8>) -> Result<Buffer, Error> {
        Ok(Buffer::new(self.register(memory.into(), Rights::READ | Rights::WRITE)?, self.place()))
    }

    pub(super) fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.common.domain.register(memory, rights).map_err(Error::of_memory)
    }

    /// Writes a range of one's own memory into that of another worker, from an offset on. `done` counts it, in one event, when it
    /// is there; a call that is made then finds it. Over `sm://` this thread moves the bytes, by itself, here or in its progress. The kernel waits
    /// for the other process's memory then: for ever, as long as that memory does not come ([`Worker::finish_within`] and service threads have the other side take part).
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
        let slices = self.slices(is_put, buffer.region(), range, &locator.descriptor()?, offset)?;
        if !self.moves.borrow().has_room() {
            return Err(Error::Full(locator.place()));
        }
        if !slices.local.is_empty() {
            done.expect_one();
            let number = self.moves.borrow_mut().number();
            self.start(number, end, slices, After::Tell(done.clone()));
        }
        Ok(())
    }

    /// What is to be moved, if there is so much on both sides.
    pub(super) fn slices(
        &self,
        is_put: bool,
        region: &Region,
        range: &Range<u64>,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<Slices, Error> {
        let len = range.end.saturating_sub(range.start);
        let local = region.slice(range.start, len).map_err(Error::of_memory)?;
        let remote = descriptor.slice(offset, len).map_err(Error::of_memory)?;
        Ok(Slices { is_put, local, remote })
    }

    /// Whether another transfer may wait for the transport; or waits for that.
    pub(super) fn wait_for_moves(&self, to: Place, may_wait: bool) -> Result<(), Error> {
        let has_room = || self.moves.borrow().has_room().then_some(Ok(()));
        match has_room() {
            Some(room) => room,
            None if may_wait => self.wait_until(has_room),
            None => Err(Error::Full(to)),
        }
    }

    /// A transfer begins, whose number nothing else has.
    pub(super) fn start(&self, number: u64, end: u32, slices: Slices, then: After) {
        let left = slices.local.len().div_ceil(self.piece_max());
        let is_asked_for = then.is_asked_for();
        let transfer = Transfer { end, left, failed: None, then };
        if left == 0 {
            return self.end_transfer(number, transfer);
        }
        let mut moves = self.moves.borrow_mut();
        moves.transfers.insert(number, transfer);
        moves.asked_for += usize::from(is_asked_for);
        moves.waiting.push(end, Waiting { transfer: number, is_asked_for, slices, taken: 0 });
        // Where something waits for another end, both have their turns in the next round.
        let is_alone = moves.waiting.ends() == 1;
        drop(moves);
        if is_alone {
            self.post_moves();
        }
    }

    fn piece_max(&self) -> u64 {
        self.common.domain.caps().max_transfer.clamp(1, PIECE_MAX)
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

    /// Gives the transport what it takes.
    fn post_moves(&self) {
        let piece_max = self.piece_max();
        let mut failed = Vec::new();
        let mut moves = self.moves.borrow_mut();
        let mut port = self.port.borrow_mut();
        let Moves { last, waiting, asked_for, under_way, .. } = &mut *moves;
        let take = |end: u32, next: &mut Waiting| {
            let Slices { is_put, local, .. } = &next.slices;
            let len = piece_max.min(local.len() - next.taken);
            *last += 1;
            let part = next.slices.part(next.taken, len).map_err(ChannelError::Transport);
            let posted = part.and_then(|(local, remote)| match is_put {
                true => port.put(end, *last, local, remote),
                false => port.get(end, *last, local, remote),
            });
            match posted {
                Ok(()) => {
                    port.keep(end);
                    under_way.insert(*last, next.transfer);
                }
                Err(ChannelError::Full(_)) => return Offered::Refused,
                Err(error) => failed.push((next.transfer, end, error)),
            }
            next.taken += len;
            if next.taken < local.len() {
                return Offered::Part;
            }
            *asked_for -= usize::from(next.is_asked_for);
            Offered::Taken
        };
        waiting.offer_all(take);
        drop((moves, port));
        for (transfer, end, error) in failed {
            let error = match error {
                ChannelError::Transport(error) => self.error_of_move(end, error),
                other => self.error_of(self.place_of(end), other),
            };
            self.end_piece(transfer, Some(error));
        }
    }

    /// The transport is done with one.
    pub(super) fn moved(&self, token: u64, result: Result<(), NaError>, returned: Returned) {
        drop(returned);
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
        if let (Some(error), After::Tell(_) | After::Release(Some(_))) = (&failed, &then) {
            self.miss(error);
        }
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

/// Puts and gets that callers have waiting until the transport takes them.
const MOVES_MAX: usize = 1024;
/// Bytes of a transfer that the transport is given at a time: one that moves them at once begins as many after each round ([`hg_na::Context::begin`]).
const PIECE_MAX: u64 = 1 << 20;
