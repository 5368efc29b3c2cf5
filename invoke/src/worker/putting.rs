//! Broadcasts whose bytes are put into memory at each worker first: see [`Worker::allocate_everywhere`].
//!
//! ```text
//! owner                        each end, from its own memory
//! put the bytes to those below ------------> put them to those below; then run the function
//!   the record is held in its stream meanwhile: what follows it comes when they are there
//! ```
//!
//! # Where the bytes are
//! | size | what |
//! |-----:|---|
//! | 8 | number of the allocation at its owner, who is the root |
//! | 8 | offset there |
//! | 8 | bytes |
//!
//! The arguments follow, but for the last one: where the bytes are differs from worker to worker.

use std::sync::Arc;

use hg_core::{
    codec::{self, Codec as _},
    rpc::Rpc,
};
use hg_na::Region;

use super::{
    Worker,
    moving::After,
    running::{BROADCAST, GROUP, Malformed, UNKNOWN, UNREADABLE, WRITTEN, take_u64, withdrawn},
};
use crate::{
    Buffer, EndsWith, Error, FrontOf, How, Part, Refused, SpotEverywhere, Written,
    broadcasts::{Name, OWN_PLACE},
    held::Key,
    memory::Spot,
    tree::BELOW_MAX,
};

/// Where the bytes of a broadcast are put.
#[derive(Debug, Clone, Copy)]
struct Target {
    number: u64,
    offset: u64,
    len: u64,
}

impl Target {
    fn encode(self) -> Vec<u8> {
        [self.number, self.offset, self.len].map(u64::to_le_bytes).concat()
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let (number, offset) = (take_u64(bytes)?, take_u64(bytes)?);
        Ok(Self { number, offset, len: take_u64(bytes)? })
    }
}

/// Whose bytes are put: a region, and where they begin.
type Source<'a> = (&'a Region, u64);

impl Worker {
    /// Writes a part of a buffer into memory of every worker, this one included, and then runs a function there, whose last argument is
    /// [`Written`] and says where the bytes are. They are put along the tree of broadcasts: each worker puts them from its own memory to eight others at most, and waits for none of these.
    ///
    /// The part, and the place at each worker, are not to be changed until the broadcast has run everywhere, which is when it counts as sent, too.
    /// It has its place among the broadcasts of this worker; calls that a worker makes after it has passed it on wait until the bytes are there.
    /// Where they cannot be written the function does not run, nor behind there: [`How::when_run`] tells [`Error::Gone`] and the number of that process.
    ///
    /// # Errors
    /// As [`Worker::broadcast_with`]; [`Error::Memory`]: there is no such part, or no room for it.
    pub fn broadcast_buffer_written<'a, F: Rpc>(
        &self,
        function: F,
        args: FrontOf<'a, F, Written>,
        from: Part<'_>,
        into: SpotEverywhere<'_>,
        how: How<'_>,
    ) -> Result<(), Refused<FrontOf<'a, F, Written>>>
    where
        F::Args<'a>: EndsWith<Written>,
    {
        let _: F = function;
        let locator = into.of.own.locator();
        let own = Written::new(Spot { locator: &locator, offset: into.offset }, from.len());
        let wire = F::pack(EndsWith::join(args, own.clone()));
        let begun = self.begin_of_written::<F>(&wire, &own, &from, into, how);
        begun.map_err(|error| Refused { args: F::unpack(wire).front(), error })
    }

    fn begin_of_written<F: Rpc>(
        &self,
        wire: &F::WireArgs<'_>,
        own: &Written,
        from: &Part<'_>,
        spot: SpotEverywhere<'_>,
        how: How<'_>,
    ) -> Result<(), Error> {
        let lent = from.slice()?;
        let into = Target { number: spot.of.number, offset: spot.offset, len: from.len() };
        spot.of.own.region().slice(into.offset, into.len).map_err(Error::of_memory)?;
        let key = Key::everywhere(self.me, into.number);
        let is_own = |own: &Arc<Buffer>| Arc::ptr_eq(own, &spot.of.own);
        if !self.held.borrow().get(key).and_then(|it| it.buffer.as_ref()).is_some_and(is_own) {
            return Err(Error::of_memory("it is memory of another worker's"));
        }
        let (tag, number, mut bytes) =
            self.encode_broadcast::<F>(wire, how, (WRITTEN, &into.encode()))?;
        let last = codec::Default::size(own).map_err(Error::Unencodable)?;
        bytes.truncate(bytes.len() - last);
        let cost = bytes.len().saturating_add(PUTS);
        self.wait_for_broadcasts(cost, how.room)?;
        let (group, name) = (self.group_of(how)?, Name { root: self.me, number });
        let (region, there) = (from.buffer.region(), spot.of.own.region().descriptor());
        let is_there = region.descriptor() == there && from.range.start == into.offset;
        let len = if is_there { 0 } else { into.len };
        let range = from.range.start..from.range.start + len;
        let slices = self.slices(true, region, &range, &there, into.offset)?;
        // To itself first: what is too long for one is too long for all.
        let held = self.hold(self.me, tag, &bytes)?;
        self.count_called(group);
        let told = how.notify.map(|it| it.1);
        if let Some(synchronizer) = told {
            synchronizer.expect_one();
        }
        let below = self.tree(name.root).below(self.me).count();
        let mut broadcasts = self.broadcasts.borrow_mut();
        broadcasts.begin(name, cost, below, told.cloned());
        broadcasts.lend(name, lent);
        drop(broadcasts);
        let then = After::PassOn { name, place: OWN_PLACE, _charge: None };
        self.start(held, self.me, slices, then);
        self.put_on(name, tag, group, &bytes, into, (region, from.range.start));
        self.tell_due();
        Ok(())
    }

    /// To those below. Whoever leaves passes on none of others, it would have to wait for each until the bytes are there; nor what follows of
    /// that root.
    fn put_on(
        &self,
        name: Name,
        tag: u32,
        group: Option<u32>,
        record: &[u8],
        into: Target,
        (region, start): Source<'_>,
    ) {
        let is_own = name.root == self.me;
        if self.is_leaving.get() && !is_own {
            let mut cut_off = self.cut_off.borrow_mut();
            if !cut_off.contains(&name.root) {
                cut_off.push(name.root);
            }
            drop(cut_off);
            self.leave_out(name);
            return;
        }
        let key = Key::everywhere(name.root, into.number);
        for (end, place) in self.tree(name.root).below(self.me).zip(0..) {
            let there = self.held.borrow().below(key, place);
            let there = there.ok_or_else(|| Error::of_memory("it has no memory for a broadcast"));
            let held = there.and_then(|there| {
                let range = start..start + into.len;
                let slices = self.slices(true, region, &range, &there, into.offset)?;
                Ok((self.hold(end, tag, record)?, slices))
            });
            match held {
                Ok((number, slices)) => {
                    self.count_made(group);
                    self.passed(name, end, place);
                    // A root's own is its own matter.
                    let _charge = if is_own { None } else { self.held.borrow().charge_of(key) };
                    self.start(number, end, slices, After::PassOn { name, place, _charge });
                }
                Err(error) => self.end_below(name, (end, place), error),
            }
        }
    }

    /// A record that is held until the bytes are there.
    fn hold(&self, end: u32, tag: u32, record: &[u8]) -> Result<u64, Error> {
        let number = self.moves.borrow_mut().number();
        let mut port = self.port.borrow_mut();
        port.seal(end);
        let room = port.record(end, tag, record.len(), u64::MAX);
        let room = room.map_err(|error| self.error_of(self.place_of(end), error))?;
        room.copy_from_slice(record);
        port.hold(end, number);
        port.flush(end);
        Ok(number)
    }

    /// The bytes are at an end, which hears of the broadcast now; or they are not, and those behind it do not.
    pub(super) fn end_put(
        &self,
        number: u64,
        end: u32,
        (name, place): (Name, u32),
        failed: Option<Error>,
    ) {
        let mut port = self.port.borrow_mut();
        if failed.is_some() {
            port.retag(end, number, withdrawn);
            if place != OWN_PLACE {
                port.let_go(end);
            }
        }
        port.release(end, number);
        drop(port);
        if let Some(error) = failed {
            self.end_below(name, (end, place), error);
        }
        self.tell_due();
    }

    /// The bytes are in the memory of this worker.
    pub(super) fn hear_written(
        &self,
        from: u32,
        tag: u32,
        mut bytes: &[u8],
        record: &[u8],
    ) -> Result<(), Malformed> {
        let name = self.take_name(&mut bytes)?;
        let into = Target::take(&mut bytes)?;
        let number = tag & !(BROADCAST | WRITTEN | GROUP);
        let run = self.common.functions.run_and_pass_on(number).ok_or(UNKNOWN)?;
        let is_own = self.join_broadcast(from, name, record.len().saturating_add(PUTS))?;
        let key = Key::everywhere(name.root, into.number);
        let own = self.held.borrow().get(key).and_then(|it| it.buffer.clone());
        // Who has none has said so.
        let Some(own) = own else {
            self.end_unread(name);
            return Ok(());
        };
        if own.region().slice(into.offset, into.len).is_err() {
            self.end_unread(name);
            return Err("a broadcast is longer than its memory");
        }
        let locator = own.locator();
        let written = Written::new(Spot { locator: &locator, offset: into.offset }, into.len);
        let mut args = bytes.to_vec();
        args.resize(bytes.len() + codec::Default::size(&written).map_err(|_| UNREADABLE)?, 0);
        codec::Default::encode(&written, &mut args[bytes.len()..]).map_err(|_| UNREADABLE)?;
        self.run_broadcast(from, name, (run, &args), || {
            if !is_own {
                self.put_on(name, tag, self.group.get(), record, into, (own.region(), into.offset));
            }
        })
    }
}

/// What the puts of one to those below count as in the limit of broadcasts, since they may wait for the transport.
const PUTS: usize = BELOW_MAX as usize * 128;
