//! Calls whose results come back. An answer is a record of the opposite stream, and counts as a call: a barrier waits for it.

use std::{mem, sync::Arc};

use hg_channel::{Port, RECORD};
use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};
use serde::Serialize;

use super::{
    Then, Worker,
    calling::{Head, Unfilled},
    running::{ANSWER, ANSWERED, Malformed, take_u32, take_u64},
};
use crate::{
    Error, How, Place, Refused, Returned, Room, Synchronizer,
    bounds::Account,
    functions::Reply,
    returned::{Awaits, Status},
};

impl Worker {
    /// Runs a function at another worker, or at this one, and brings back what it returns. Without room, the call is queued here.
    ///
    /// # Errors
    /// Why it was not made; of [`Worker::call_return_with`], which gives the arguments back.
    pub fn call_return<F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: F::Args<'_>,
    ) -> Result<Returned<F>, Error> {
        let called = self.call_return_with(to, function, args, How::default());
        called.map_err(|refused| refused.error)
    }

    /// The same with a choice for when there is no room, and with somebody to be told.
    ///
    /// # Errors
    /// As [`Worker::call_with`]; [`Error::Full`] also when as many results are to come as may.
    pub fn call_return_with<'a, F: Rpc>(
        &self,
        to: Place,
        function: F,
        args: F::Args<'a>,
        how: How<'_>,
    ) -> Result<Returned<F>, Refused<F::Args<'a>>> {
        let _: F = function;
        let is_full = || self.answers.borrow().is_full();
        let room = match how.room {
            _ if !is_full() => Ok(()),
            Room::Wait => self.wait_until(|| (!is_full()).then_some(Ok(()))),
            Room::Return | Room::Queue => Err(Error::Full(to)),
        };
        if let Err(error) = room {
            return Err(Refused { args, error });
        }
        let number = self.answers.borrow_mut().number();
        let head = Head::default().with(ANSWERED, &number.to_le_bytes());
        let wire = F::pack(args);
        match self.write::<F>(to, &wire, how, head) {
            Ok(end) => {
                let returned = Returned::new();
                self.answers.borrow_mut().add(number, end, returned.awaits());
                self.port.borrow_mut().keep(end);
                Ok(returned)
            }
            Err(error) => Err(Refused { args: F::unpack(wire), error }),
        }
    }

    /// What the function that runs has returned travels to its caller. What does not fit is replaced by the reason. A `Serialize` that
    /// panics is as a function that does.
    pub(crate) fn answer<T: Serialize>(&self, reply: Reply, status: Status, value: &T) {
        let written = match codec::Default::size(value) {
            Err(_) => Err(Status::Unwritable),
            Ok(size) => self.write_answer(reply, status, size, value),
        };
        self.then.set(Then::Nothing);
        if let Err(failed) = written {
            self.answer_without(reply, failed);
        }
    }

    /// The function that ran has panicked: its caller is told so.
    pub(super) fn answer_panic(&self, reply: Reply) {
        self.answer_without(reply, Status::Panicked);
    }

    fn answer_without(&self, reply: Reply, status: Status) {
        if self.write_answer(reply, status, 0, &()) == Err(Status::NoRoom) {
            // Nobody in good order waits for so many results at once.
            self.blame(reply.to, "it takes none of the results that it asks for");
        }
    }

    fn write_answer<T: Serialize>(
        &self,
        reply: Reply,
        status: Status,
        size: usize,
        value: &T,
    ) -> Result<(), Status> {
        let account = match status {
            Status::Returned | Status::Failed => Account::Results(reply.to),
            _ => Account::Reasons(reply.to),
        };
        let group = self.group.get();
        let head = Head::default().with(ANSWER, &reply.number.to_le_bytes());
        let head = head.with(0, &(status as u32).to_le_bytes()).behind(group);
        let len = head.len() + size;
        let unfilled;
        let mut port = self.port.borrow_mut();
        let owing = self.may_owe(&port, account, reply.to, len).ok_or(Status::NoRoom)?;
        match port.record(reply.to, head.flags, len, u64::MAX) {
            Ok(room) => {
                unfilled = Unfilled { worker: self, end: reply.to, len };
                let filled = codec::Default::encode(value, head.write(room));
                filled.map_err(|_| Status::Unwritable)?;
                mem::forget(unfilled);
                self.owe(&port, owing);
                self.count_made(group);
                self.send_as_packed(&mut port, reply.to);
                Ok(())
            }
            Err(hg_channel::Error::TooLong { .. }) => Err(Status::TooLong),
            // Who is gone hears nothing.
            Err(_) => Ok(()),
        }
    }

    /// Whether a record of `len` bytes that somebody else has caused may wait for an end: alone, within two blocks, or within the share of its
    /// account, in which it is counted then.
    pub(super) fn may_owe(
        &self,
        port: &Port<Synchronizer>,
        account: Account,
        to: u32,
        len: usize,
    ) -> Option<Owing> {
        let (waiting, bytes) = (port.waiting(to), (RECORD as u64).saturating_add(len as u64));
        // What is too long is never written.
        let is_free = waiting == 0 || waiting + bytes <= self.two_blocks || len > port.record_max();
        let owing = Owing { account, to, bytes, is_free };
        let has_left = |to, end| port.has_left(to, end);
        (is_free || self.owed.borrow_mut().has_room(account, bytes, has_left)).then_some(owing)
    }

    /// It was written.
    pub(super) fn owe(&self, port: &Port<Synchronizer>, owing: Owing) {
        let Owing { account, to, bytes, is_free } = owing;
        if !is_free {
            self.owed.borrow_mut().add(account, to, port.written(to), bytes);
        }
    }

    pub(super) fn hear_answer(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let number = take_u64(&mut bytes)?;
        let status = Status::read(take_u32(&mut bytes)?).ok_or("an answer of no known kind")?;
        let awaits = self.answers.borrow_mut().remove(number, from);
        let awaits = awaits.ok_or("an answer to no call")?;
        self.port.borrow_mut().let_go(from);
        let unread = Unread { awaits, from: self.place_of(from) };
        let read = unread.awaits.answer(unread.from, status, bytes);
        read.map_err(|_| "a result that cannot be read")
    }
}

/// A record that may wait ([`Worker::may_owe`]).
#[must_use]
pub(super) struct Owing {
    account: Account,
    to: u32,
    bytes: u64,
    /// It is not counted.
    is_free: bool,
}

/// An answer that is being read: whoever waits for it is told if that fails, or panics.
struct Unread {
    awaits: Arc<dyn Awaits>,
    from: Place,
}

impl Drop for Unread {
    fn drop(&mut self) {
        // Nothing happens if it was read.
        self.awaits.fail(Error::Lost { from: self.from, why: "it cannot be read" });
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fabric, Group};

    struct One;

    impl Group for One {
        fn rank(&self) -> u32 {
            0
        }
        fn size(&self) -> u32 {
            1
        }
        fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
            Ok(vec![own.to_vec()])
        }
    }

    #[hg_macros::rpc(crate = crate)]
    fn bytes(len: usize) -> Vec<u8> {
        vec![7; len]
    }

    #[test]
    fn results_that_are_taken_one_by_one_are_not_counted_however_long_they_are() {
        let _watchdog = watchdog::Watchdog::start();
        let fabric = Fabric::new().register(bytes).expect("the only one");
        let worker = fabric.open(&One, "sm://").expect("it is alone").remove(0);
        let len = usize::try_from(2 * worker.two_blocks).expect("a length");
        for _ in 0..100 {
            let result = worker.call_return(worker.place(), bytes, (len,)).expect("there is room");
            assert_eq!(result.wait(&worker).map(|it| it.len()), Ok(len));
        }
        assert_eq!(worker.owed.borrow().spans(), 0);
    }
}
