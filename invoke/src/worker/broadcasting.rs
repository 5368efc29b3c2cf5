//! Broadcasts: every worker runs a function once, and passes the bytes on as they came.

use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};
use hg_na::LocalSlice;

use super::{
    Then, Worker,
    running::{BROADCAST, GROUP, Malformed, RAN, UNKNOWN, UNREADABLE, take_u32, take_u64},
};
use crate::{
    Error, How, Refused, Room,
    bounds::Account,
    broadcasts::{Ended, Name, OWN_PLACE},
    functions::RunAndPassOn,
    how::When,
    tree::Tree,
};

impl Worker {
    /// Runs a function at every worker, this one included, some time.
    ///
    /// # Errors
    /// Why it was not made; of [`Worker::broadcast_with`], which gives the arguments back.
    pub fn broadcast<F: Rpc>(&self, function: F, args: F::Args<'_>) -> Result<(), Error> {
        self.broadcast_with(function, args, How::default()).map_err(|refused| refused.error)
    }

    /// The same with a choice for when there is no room, and with somebody to be told: once it has run everywhere, or has left this worker.
    ///
    /// Broadcasts of one worker run in their order everywhere; calls are not in order with them. When a process dies, those behind
    /// it in the tree may be left out: whoever waits until it has run is told [`Error::Gone`], and who is gone.
    ///
    /// # Errors
    /// As [`Worker::call_with`]. [`Error::Full`], with this worker's name: as many of its broadcasts as may have not run
    /// everywhere yet.
    pub fn broadcast_with<'a, F: Rpc>(
        &self,
        function: F,
        args: F::Args<'a>,
        how: How<'_>,
    ) -> Result<(), Refused<F::Args<'a>>> {
        let _: F = function;
        let wire = F::pack(args);
        let begun =
            self.encode_broadcast::<F>(&wire, how, (0, &[])).and_then(|(tag, number, bytes)| {
                self.wait_for_broadcasts(bytes.len(), how.room)?;
                self.begin_broadcast(tag, number, &bytes, None, how)
            });
        begun.map_err(|error| Refused { args: F::unpack(wire), error })
    }

    /// The record that goes everywhere as it is. What stands before the arguments, where there is anything: where bytes are, and what the tag says of that.
    pub(super) fn encode_broadcast<F: Rpc>(
        &self,
        wire: &F::WireArgs<'_>,
        how: How<'_>,
        (flag, source): (u32, &[u8]),
    ) -> Result<(u32, u64, Vec<u8>), Error> {
        let group = self.group_of(how)?;
        let flags = BROADCAST | if group.is_some() { GROUP } else { 0 };
        let tag = self.common.functions.number::<F>()? | flags | flag;
        let number = self.broadcasts.borrow_mut().number();
        let size = codec::Default::size(wire).map_err(Error::Unencodable)?;
        let mut bytes = Vec::with_capacity(4 + HEAD + source.len() + size);
        bytes.extend(group.iter().flat_map(|group| group.to_le_bytes()));
        bytes.extend_from_slice(&self.me.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(source);
        let head = bytes.len();
        bytes.resize(head + size, 0);
        codec::Default::encode(wire, &mut bytes[head..]).map_err(Error::Unencodable)?;
        Ok((tag, number, bytes))
    }

    pub(super) fn wait_for_broadcasts(&self, len: usize, room: Room) -> Result<(), Error> {
        let has_room = || self.broadcasts.borrow().has_room(self.me, len).then_some(Ok(()));
        match room {
            _ if has_room().is_some() => Ok(()),
            Room::Wait => self.wait_until(has_room),
            Room::Return | Room::Queue => Err(Error::Full(self.place())),
        }
    }

    pub(super) fn begin_broadcast(
        &self,
        tag: u32,
        number: u64,
        bytes: &[u8],
        lent: Option<(LocalSlice, usize)>,
        how: How<'_>,
    ) -> Result<(), Error> {
        let (group, name) = (self.group_of(how)?, Name { root: self.me, number });
        // To itself first: what is too long for one is too long for all.
        self.write_to(self.me, tag, bytes)?;
        self.count_called(group);
        // Bytes are free again when it has run everywhere.
        let is_told = |when| when == When::Consumed || lent.is_some();
        let (when_sent, when_run) = match how.notify {
            Some((when, told)) if is_told(when) => (None, Some(told)),
            other => (other.map(|it| it.1), None),
        };
        if let Some(synchronizer) = when_run {
            synchronizer.expect_one();
        }
        let below = self.tree(name.root).below(self.me).count();
        let mut broadcasts = self.broadcasts.borrow_mut();
        let cost = lent.as_ref().map_or(bytes.len(), |lent| lent.1);
        broadcasts.begin(name, cost, below, when_run.cloned());
        lent.into_iter().for_each(|(lent, _)| broadcasts.lend(name, lent));
        drop(broadcasts);
        self.pass_on(name, tag, group, bytes);
        if let Some(synchronizer) = when_sent {
            let mut port = self.port.borrow_mut();
            for end in self.tree(name.root).below(self.me).chain([self.me]) {
                if port.waiting(end) > 0 {
                    synchronizer.expect_one();
                    port.tell(end, When::Sent, synchronizer.clone());
                }
            }
        }
        self.tell_due();
        Ok(())
    }

    /// To those below, as it is. Who is gone has run it as far as it will.
    pub(super) fn pass_on(&self, name: Name, tag: u32, group: Option<u32>, bytes: &[u8]) {
        if self.cut_off.borrow().contains(&name.root) {
            self.leave_out(name);
            return;
        }
        for (end, place) in self.tree(name.root).below(self.me).zip(0..) {
            match self.pass(end, tag, group, bytes) {
                Ok(()) => self.passed(name, end, place),
                Err(error) => self.end_below(name, (end, place), error),
            }
        }
    }

    /// It does not reach one of those below: what is said of that names a process, which is missed where it was to run what this worker broadcasts.
    pub(super) fn end_below(&self, name: Name, (end, place): (u32, u32), error: Error) {
        if name.root == self.me {
            self.miss(&error);
        }
        let gone = match error {
            gone @ Error::Gone { .. } => gone,
            other => {
                let (process, why) = (self.place_of(end).process, other.to_string().into());
                Error::Gone { process, why }
            }
        };
        self.end_broadcast(name, place, Some(gone));
    }

    /// It goes no further, since this worker leaves.
    pub(super) fn leave_out(&self, name: Name) {
        for place in 0..u32::try_from(self.tree(name.root).below(self.me).count()).unwrap_or(0) {
            let (process, why) = (self.place().process, "it leaves".into());
            self.end_broadcast(name, place, Some(Error::Gone { process, why }));
        }
    }

    /// The record was written. That this one is gone is to be heard of until it says that it has run.
    pub(super) fn passed(&self, name: Name, end: u32, place: u32) {
        let mut port = self.port.borrow_mut();
        port.keep(end);
        self.broadcasts.borrow_mut().passed(name, place, port.written(end));
    }

    /// There is always room: how much is under way is bounded for each root.
    fn pass(&self, end: u32, tag: u32, group: Option<u32>, bytes: &[u8]) -> Result<(), Error> {
        self.write_to(end, tag, bytes)?;
        self.count_made(group);
        Ok(())
    }

    fn write_to(&self, end: u32, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        let mut port = self.port.borrow_mut();
        let room = port.record(end, tag, bytes.len(), u64::MAX);
        let room = room.map_err(|error| self.error_of(self.place_of(end), error))?;
        room.copy_from_slice(bytes);
        self.send_as_packed(&mut port, end);
        Ok(())
    }

    pub(super) fn hear_broadcast(
        &self,
        from: u32,
        tag: u32,
        mut bytes: &[u8],
        record: &[u8],
    ) -> Result<(), Malformed> {
        let name = self.take_name(&mut bytes)?;
        let run =
            self.common.functions.run_and_pass_on(tag & !(BROADCAST | GROUP)).ok_or(UNKNOWN)?;
        let is_own = self.join_broadcast(from, name, record.len())?;
        self.run_broadcast(from, name, (run, bytes), || {
            if !is_own {
                self.pass_on(name, tag, self.group.get(), record);
            }
        })
    }

    /// It goes on from here once its arguments were read, and runs then. What cannot be read goes no further.
    pub(super) fn run_broadcast(
        &self,
        from: u32,
        name: Name,
        (run, args): (RunAndPassOn, &[u8]),
        pass_on: impl Fn(),
    ) -> Result<(), Malformed> {
        self.then.set(Then::Reading(name));
        self.caller.set(name.root);
        let ran = run(self, args, &|| {
            self.then.set(Then::Ran(name));
            pass_on();
        });
        self.caller.set(from);
        self.end_of_call();
        ran.map_err(|_| UNREADABLE)
    }

    /// One is heard of. Whether it is this worker's own.
    pub(super) fn join_broadcast(
        &self,
        from: u32,
        name: Name,
        len: usize,
    ) -> Result<bool, Malformed> {
        let tree = self.tree(name.root);
        let is_own = name.root == self.me && from == self.me;
        let is_begun = match tree.above(self.me) {
            None => is_own && self.broadcasts.borrow().awaits(name, OWN_PLACE),
            Some(above) if above == from => {
                let below = tree.below(self.me).count();
                self.broadcasts.borrow_mut().begin(name, len, below, None)
            }
            Some(_) => false,
        };
        if is_begun { Ok(is_own) } else { Err("a broadcast that is none, or one too many") }
    }

    /// It could not be read: nobody below hears of it, unless it is this worker's own, of which they have heard.
    #[cold]
    pub(super) fn end_unread(&self, name: Name) {
        let error = self.cannot_read();
        let below = self.tree(name.root).below(self.me).zip(0..).filter(|_| name.root != self.me);
        for place in below.map(|it| it.1).chain([OWN_PLACE]) {
            self.end_broadcast(name, place, Some(error.clone()));
        }
    }

    pub(super) fn cannot_read(&self) -> Error {
        Error::Gone { process: self.place().process, why: "it cannot read a broadcast".into() }
    }

    /// One below has run it, with all below it; or says who is gone.
    pub(super) fn hear_ran(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let name = self.take_name(&mut bytes)?;
        let gone = take_u32(&mut bytes)?;
        let failed = match gone.checked_sub(1) {
            None => None,
            Some(process) if process < self.processes() => {
                let by = self.place_of(from);
                Some(Error::Gone {
                    process,
                    why: format!("a broadcast ends there, says {by}").into(),
                })
            }
            Some(_) => return Err("no process has that number"),
        };
        let place = self.tree(name.root).below(self.me).zip(0..).find(|it| it.0 == from);
        // Nobody has run what has not left: it would have others make more and more wait for it.
        let place = place.filter(|it| {
            let record = self.broadcasts.borrow().record(name, it.1);
            record.is_some_and(|position| self.port.borrow().has_left(from, position))
        });
        let (_, place) = place.ok_or("it has run what it was not told")?;
        self.port.borrow_mut().let_go(from);
        self.end_broadcast(name, place, failed);
        Ok(())
    }

    /// An end is gone: those below it will not say that they have run anything. Where it is this one, none of its own will run here.
    pub(super) fn lose_broadcasts(&self, end: u32, error: &Error) {
        let names = self.broadcasts.borrow().names();
        for name in names {
            let own = (name.root == self.me).then_some((self.me, OWN_PLACE));
            let mut all = self.tree(name.root).below(self.me).zip(0..).chain(own);
            let place = all.find(|it| it.0 == end);
            if let Some((_, place)) = place
                && self.broadcasts.borrow().awaits(name, place)
            {
                if self.broadcasts.borrow().tells(name) {
                    self.miss(error);
                }
                self.end_broadcast(name, place, Some(error.clone()));
            }
        }
    }

    /// One of those who are to run it has, or will not: the last one is told to the one above, or to whoever waits here.
    pub(super) fn end_broadcast(&self, name: Name, place: u32, failed: Option<Error>) {
        let ended = self.broadcasts.borrow_mut().end(name, place, failed);
        let Some(Ended { name, failed, notify }) = ended else { return };
        if let Some(synchronizer) = notify {
            synchronizer.count(failed);
            return;
        }
        let Some(above) = self.tree(name.root).above(self.me) else { return };
        let gone = match failed {
            None => 0,
            Some(Error::Gone { process, .. }) => process + 1,
            Some(_) => self.place().process + 1,
        };
        let mut port = self.port.borrow_mut();
        let owing = self.may_owe(&port, Account::News(name.root), above, HEAD + 4);
        let Some(owing) = owing else {
            drop(port);
            self.blame(above, "it does not hear what has run");
            return;
        };
        // Who is gone hears nothing.
        if let Ok(room) = port.record(above, RAN, HEAD + 4, u64::MAX) {
            room[..4].copy_from_slice(&name.root.to_le_bytes());
            room[4..HEAD].copy_from_slice(&name.number.to_le_bytes());
            room[HEAD..].copy_from_slice(&gone.to_le_bytes());
            self.owe(&port, owing);
        }
    }

    pub(super) fn take_name(&self, bytes: &mut &[u8]) -> Result<Name, Malformed> {
        let name = Name { root: take_u32(bytes)?, number: take_u64(bytes)? };
        if name.root < self.ends { Ok(name) } else { Err("a broadcast of nobody") }
    }

    pub(super) fn tree(&self, root: u32) -> Tree {
        Tree::new(self.processes(), self.common.shape.threads(), root)
    }
}

/// Bytes before the arguments: root (4), number (8).
pub(super) const HEAD: usize = 12;
