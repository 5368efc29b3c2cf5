//! Calls that are made.

use std::mem;

use hg_channel::{Error as ChannelError, RECORD};
use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};

use super::{Worker, running::GROUP};
use crate::{Error, How, Place, Refused, Room, how::ANY, returned::ANSWER_HEAD};

/// What stands before the arguments of a call, and what its tag says of that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head<'a> {
    pub(super) flags: u32,
    len: usize,
    bytes: [u8; HEAD_MAX],
    /// Behind these.
    more: &'a [u8],
    /// The call is held by this name.
    hold: Option<u64>,
}

impl<'a> Head<'a> {
    /// Bytes of it.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len + self.more.len()
    }

    /// With these behind it.
    pub(super) fn before(self, more: &'a [u8]) -> Self {
        Self { more, ..self }
    }

    /// Of a call that waits, with all behind it, until this is released.
    pub(super) fn held(self, name: u64) -> Self {
        Self { hold: Some(name), ..self }
    }

    /// With more bytes, of which this bit of the tag tells.
    pub(super) fn with(mut self, flag: u32, bytes: &[u8]) -> Self {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        Self { flags: self.flags | flag, len: self.len + bytes.len(), ..self }
    }

    /// The same behind the number of a group.
    #[inline]
    pub(super) fn behind(self, group: Option<u32>) -> Self {
        let Some(group) = group else { return self };
        let front = Self { flags: 0, len: 0, ..self }.with(GROUP, &group.to_le_bytes());
        front.with(self.flags, &self.bytes[..self.len])
    }

    /// Writes it; the rest is for the arguments.
    #[inline]
    pub(super) fn write<'r>(&self, into: &'r mut [u8]) -> &'r mut [u8] {
        if self.len() == 0 {
            return into;
        }
        let (head, rest) = into.split_at_mut(self.len);
        head.copy_from_slice(&self.bytes[..self.len]);
        let (more, rest) = rest.split_at_mut(self.more.len());
        more.copy_from_slice(self.more);
        rest
    }
}

impl Worker {
    /// Runs a function at another worker, or at this one, some time. Without room, the call is queued here.
    ///
    /// # Errors
    /// Why it was not made; of [`Worker::call_with`], which gives the arguments back.
    #[inline]
    pub fn call<F: Rpc>(&self, to: Place, function: F, args: F::Args<'_>) -> Result<(), Error> {
        self.call_with(to, function, args, How::default()).map_err(|refused| refused.error)
    }

    /// The same with a choice for when there is no room, and with somebody to be told.
    ///
    /// # Errors
    /// The arguments, and why: [`Error::Full`], [`Error::Inside`], [`Error::TooLong`], [`Error::NoSuchPlace`],
    /// [`Error::NotRegistered`], [`Error::Unencodable`], [`Error::Gone`]. Nobody is told of a call that was not made.
    #[inline]
    pub fn call_with<'a, F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: F::Args<'a>,
        how: How<'_>,
    ) -> Result<(), Refused<F::Args<'a>>> {
        let _: F = function;
        let wire = F::pack(args);
        match self.write::<F>(to, &wire, how, Head::default()) {
            Ok(_) => Ok(()),
            Err(error) => Err(Refused { args: F::unpack(wire), error }),
        }
    }

    /// Writes the record of a call; says to which end.
    #[inline]
    pub(super) fn write<F: Rpc>(
        &self,
        to: Place,
        wire: &F::WireArgs<'_>,
        how: How<'_>,
        head: Head<'_>,
    ) -> Result<u32, Error> {
        let group = self.group_of(how)?;
        let head = head.behind(group);
        let tag = self.common.functions.number::<F>()? | head.flags;
        let end = self.end_of(to)?;
        let size = head.len() + codec::Default::size(wire).map_err(Error::Unencodable)?;
        let limit = match how.room {
            Room::Return | Room::Wait => self.two_blocks,
            Room::Queue => self.bounds.calls,
        };
        loop {
            let unfilled;
            let mut port = self.port.borrow_mut();
            // Who waits for others that take nothing has two blocks for each thread still.
            let is_over = port.queued() > self.bounds.total;
            let limit = if is_over { limit.min(self.two_blocks) } else { limit };
            if head.hold.is_some() {
                port.seal(end);
            }
            match port.record(end, tag, size, limit) {
                Ok(room) => {
                    unfilled = Unfilled { worker: self, end, len: size };
                    codec::Default::encode(wire, head.write(room)).map_err(Error::Unencodable)?;
                    mem::forget(unfilled);
                    self.count_called(group);
                    if let Some((when, synchronizer)) = how.notify {
                        synchronizer.expect_one();
                        port.tell(end, when, synchronizer.clone());
                    }
                    if to.thread == ANY {
                        port.ask(end);
                    }
                    match head.hold {
                        None => self.send_as_packed(&mut port, end),
                        Some(name) => {
                            port.hold(end, name);
                            port.flush(end);
                        }
                    }
                    if port.is_due() {
                        drop(port);
                        self.tell_due();
                    }
                    return Ok(end);
                }
                Err(ChannelError::Full(_)) if how.room == Room::Wait => {
                    port.flush(end);
                    drop(port);
                    let room = (RECORD + size) as u64;
                    self.wait_until(|| {
                        let waiting = self.port.borrow().waiting(end);
                        (waiting == 0 || waiting + room <= limit).then_some(Ok(()))
                    })?;
                }
                Err(error) => {
                    port.flush(end);
                    let error = self.error_of(to, error);
                    self.miss(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Of which group a call is.
    #[inline]
    pub(super) fn group_of(&self, how: How<'_>) -> Result<Option<u32>, Error> {
        let group = how.group.or(self.group.get());
        match group {
            Some(group) if !self.groups.borrow().has_room(group) => {
                Err(Error::TooManyGroups(group))
            }
            group => Ok(group),
        }
    }

    #[inline]
    pub(super) fn count_called(&self, group: Option<u32>) {
        self.made.set(self.made.get() + 1);
        if let Some(group) = group {
            self.groups.borrow_mut().called(group);
        }
    }

    /// Of what is made for others, who have called in the group.
    #[inline]
    pub(super) fn count_made(&self, group: Option<u32>) {
        self.made.set(self.made.get() + 1);
        if let Some(group) = group {
            self.groups.borrow_mut().made(group);
        }
    }

    /// The end that is called by this name. [`Place::any_of`] is another one each time.
    #[inline]
    pub(super) fn end_of(&self, place: Place) -> Result<u32, Error> {
        if place.thread == ANY && place.process < self.processes() {
            let first = place.process * self.common.shape.threads();
            return Ok(first + self.least_busy(first));
        }
        self.end_of_thread(place)
    }

    /// The end of a thread that has a name of its own.
    #[inline]
    pub(super) fn end_of_thread(&self, place: Place) -> Result<u32, Error> {
        let threads = self.common.shape.threads();
        if place.process >= self.processes() || place.thread >= threads {
            return Err(Error::NoSuchPlace(place));
        }
        Ok(place.process * threads + place.thread)
    }

    /// Of the service threads of a process, or of its workers where there are none, the one with the least to do; when all are gone or leave, one of them.
    fn least_busy(&self, first: u32) -> u32 {
        let (port, shape) = (self.port.borrow(), self.common.shape);
        let range =
            if shape.services > 0 { shape.workers..shape.threads() } else { 0..shape.workers };
        let count = range.end - range.start;
        let turn = self.turn.get();
        self.turn.set((turn + 1) % count);
        let in_turn = (0..count).map(|thread| range.start + (thread + turn) % count);
        let leaving = self.leaving.borrow();
        let busy = |thread: &u32| {
            let end = first + thread;
            let unconsumed = port.unconsumed(end).filter(|_| !leaving.contains(&end));
            unconsumed.unwrap_or(u64::MAX)
        };
        in_turn.min_by_key(busy).unwrap_or(0)
    }

    #[cold]
    pub(super) fn error_of(&self, to: Place, error: ChannelError) -> Error {
        match error {
            ChannelError::Full(_) => Error::Full(to),
            ChannelError::TooLong { len, max } => Error::TooLong { len, max },
            ChannelError::NoSuchEnd { .. } => Error::NoSuchPlace(to),
            ChannelError::Gone { reason, .. } => {
                Error::Gone { process: to.process, why: reason.to_string().into() }
            }
            other => Error::Setup(other.to_string()),
        }
    }
}

/// A record that is being filled. Dropped, it is taken back, so that nobody gets half of it: its `Serialize` has changed its mind about its
/// size, or has panicked. It is declared before the port is borrowed, and so dropped after that is given back.
pub(super) struct Unfilled<'w> {
    pub(super) worker: &'w Worker,
    pub(super) end: u32,
    pub(super) len: usize,
}

impl Drop for Unfilled<'_> {
    #[cold]
    fn drop(&mut self) {
        self.worker.port.borrow_mut().undo(self.end, self.len);
    }
}

/// Bytes of the longest [`Head`].
const HEAD_MAX: usize = 4 + 16;
const _: () = assert!(4 + ANSWER_HEAD <= HEAD_MAX);
