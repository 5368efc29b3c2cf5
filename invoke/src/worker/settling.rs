//! Memory that a worker has everywhere: each end allocates as much, and tells the one above it in the owner's tree where.
//!
//! ```text
//! owner -- broadcast of `settle` -------> each end allocates, and says SETTLED to the one above: where, or why not
//!       <- ... it has run everywhere ---- which each hears behind what those below have said
//! owner -- LET_GO ----------------------> from one to those below it; whoever loses the one above says so to those below
//! ```
//! So an end knows of its own memory and of that of eight others at most, however many there are.

use hg_channel::Error as ChannelError;
use hg_core::codec::{self, Codec as _};
use hg_na::Descriptor;
use serde::{Deserialize, Serialize};

use super::{
    Then, Worker,
    running::{Malformed, SETTLED, UNREADABLE},
};
use crate::{
    Error, Everywhere, How, Request, Room, Synchronizer,
    bounds::Account,
    held::{EVERYWHERE_MAX, Key},
    remote::{Let, REASON_MAX, Refusal, Release},
};

/// Allocates for the root of the broadcast that it is.
#[hg_macros::rpc(crate = crate)]
pub(crate) fn settle(here: &Request, number: u64, bytes: u64) {
    here.settle(number, bytes);
}

/// What an end says to the one above.
#[derive(Serialize, Deserialize)]
struct Settled {
    owner: u32,
    number: u64,
    /// Where its memory is; or which end, this one or one below, has allocated nothing, and why.
    what: What,
}

type What = Result<Vec<u8>, (u32, Refusal)>;

impl Worker {
    /// As much zeroed memory at every worker and service thread, this one included, for [`Worker::broadcast_buffer_written`]. This waits
    /// until all have it, so all make progress meanwhile. A worker has 16 of these at once.
    ///
    /// It is there until the handle is dropped, or this worker has ended or is gone; behind one that is gone, in the tree of this worker's
    /// broadcasts, it is released, since no broadcast comes there any more. Functions find it by [`Worker::memory_of`]. It counts as that of [`Worker::allocate_at`] does.
    ///
    /// # Errors
    /// [`Error::NotAllotted`], [`Error::Memory`]: of whichever worker has none; nobody keeps any. [`Error::Gone`]: a worker has left, or is gone;
    /// [`Error::Inside`].
    pub fn allocate_everywhere(&self, bytes: u64) -> Result<Everywhere, Error> {
        if self.is_inside.get() {
            return Err(Error::Inside);
        }
        self.release_dropped();
        // What it has dropped is there until what was broadcast before that has run here.
        self.wait_until(|| (!self.held.borrow().has_dropped()).then_some(Ok(())))?;
        if !self.held.borrow().may_settle(self.me) {
            let why = format!("a worker has memory everywhere {EVERYWHERE_MAX} times at most");
            return Err(Error::Memory(why.into()));
        }
        let key = Key::everywhere(self.me, self.moves.borrow_mut().number());
        // Others may answer before this worker runs its own function.
        self.settle_here(key, bytes);
        // Releases what others have meanwhile, too, if this does not come to its end.
        let release = Release::new(Let::Everywhere { number: key.number }, &self.dropped);
        let ran = Synchronizer::new();
        let how = How::room(Room::Wait).when_run(&ran);
        let begun = self.broadcast_with(settle, (key.number, bytes), how);
        begun.map_err(|refused| refused.error)?;
        ran.wait(self)?;
        let held = self.held.borrow();
        let allotted = held.get(key).ok_or_else(|| Error::of_memory("it was released"))?;
        if let Some((end, refusal)) = allotted.refused.clone() {
            return Err(refusal.at(self.place_of(end), bytes));
        }
        let silent = allotted.below.iter().position(Option::is_none);
        if let Some(end) = silent.and_then(|it| self.tree(self.me).below(self.me).nth(it)) {
            let why = format!("{} has not said where it is", self.place_of(end));
            return Err(Error::of_memory(why));
        }
        let own = allotted.buffer.clone().ok_or_else(|| Error::of_memory("it was released"))?;
        Ok(Everywhere { number: key.number, own, _release: release })
    }

    fn settle(&self, number: u64, bytes: u64) {
        // Of whoever calls it otherwise nobody else has heard.
        let Then::Ran(name) = self.then.get() else { return };
        let key = Key::everywhere(name.root, number);
        // An owner has its own already, and has asked before if it keeps to the rules.
        if key.owner != self.me && self.held.borrow().may_settle(key.owner) {
            self.settle_here(key, bytes);
        }
    }

    fn settle_here(&self, key: Key, bytes: u64) {
        let got = self.allot(key.owner, None, bytes);
        let what = match &got {
            Ok((buffer, _)) => Ok(buffer.region().descriptor().encode()),
            Err(refusal) => Err((self.me, refusal.clone())),
        };
        let tree = self.tree(key.owner);
        let below = tree.below(self.me).count();
        if self.held.borrow_mut().add(key, got, below, self.me)
            && let Some(above) = tree.above(self.me)
        {
            self.say_settled(above, key, what);
            self.keep_for(key, above);
        }
    }

    /// Nobody may believe that memory is there which has not been named: what is too long for a record is a refusal.
    fn say_settled(&self, above: u32, key: Key, what: What) {
        let end = what.as_ref().map_or_else(|it| it.0, |_| self.me);
        let mut said = self.write_settled(above, key, what);
        if let Err(ChannelError::TooLong { .. }) = said {
            said = self.write_settled(above, key, Err((end, Refusal::Unsaid)));
        }
        match said {
            // Who is gone hears nothing. Where more is to be said of an owner's memory than may wait, the owner does not keep to the rules, and who passes on what it
            // broadcasts is not to blame: others believe that there is none here.
            Ok(()) | Err(ChannelError::Gone { .. } | ChannelError::Full(_)) => {}
            Err(_) => self.blame(above, "it does not hear what is allocated"),
        }
    }

    fn write_settled(&self, above: u32, key: Key, what: What) -> Result<(), ChannelError> {
        let Key { owner, number, .. } = key;
        let settled = Settled { owner, number, what };
        let size = codec::Default::size(&settled).unwrap_or(usize::MAX);
        let mut port = self.port.borrow_mut();
        let owing = self.may_owe(&port, Account::Settled(owner), above, size);
        let owing = owing.ok_or(ChannelError::Full(above))?;
        let room = port.record(above, SETTLED, size, u64::MAX)?;
        // It has said how long it is.
        let _ = codec::Default::encode(&settled, room);
        self.owe(&port, owing);
        self.send_as_packed(&mut port, above);
        Ok(())
    }

    /// One below has its memory, or somebody there has none.
    pub(super) fn hear_settled(&self, from: u32, bytes: &[u8]) -> Result<(), Malformed> {
        let Settled { owner, number, what } =
            codec::Default::decode(bytes).map_err(|_| UNREADABLE)?;
        let is_end = |end: u32| end < self.ends;
        if !is_end(owner) || what.as_ref().is_err_and(|it| !is_end(it.0)) {
            return Err("memory of nobody");
        }
        let is_long = |it: &(u32, Refusal)| matches!(&it.1, Refusal::None { why } if why.len() > 4 * REASON_MAX);
        if what.as_ref().is_err_and(is_long) {
            return Err(UNREADABLE);
        }
        let (tree, key) = (self.tree(owner), Key::everywhere(owner, number));
        let place = tree.below(self.me).position(|it| it == from);
        let place = place.ok_or("it is not below in that tree")?;
        let what = match what {
            Ok(descriptor) => Ok(Descriptor::decode(&descriptor).map_err(|_| UNREADABLE)?),
            Err(refused) => Err(refused),
        };
        let mut held = self.held.borrow_mut();
        // It may have been released meanwhile.
        let Some(allotted) = held.get_mut(key) else { return Ok(()) };
        match what {
            Ok(descriptor) => allotted.below[place] = Some(descriptor),
            // The first is told of.
            Err(_) if allotted.refused.is_some() => {}
            Err(refused) => {
                allotted.refused = Some(refused.clone());
                drop(held);
                if let Some(above) = tree.above(self.me) {
                    self.say_settled(above, key, Err(refused));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hg_channel::RECORD;
    use hg_na::{DESCRIPTOR_MAX, Rights};

    use super::*;
    use crate::bounds::SETTLED_MAX;

    #[test]
    fn what_is_said_of_an_allocation_has_its_share() {
        let size = |what| {
            RECORD + codec::Default::size(&Settled { owner: 0, number: 0, what }).unwrap_or(0)
        };
        let there = Descriptor::new(1, Rights::all(), &[0; DESCRIPTOR_MAX]).encode();
        let why = "\u{10ffff}".repeat(REASON_MAX);
        let all = size(Ok(there)) + size(Err((0, Refusal::None { why })));
        assert_eq!(all, SETTLED_MAX);
    }
}
