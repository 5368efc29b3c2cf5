//! Memory that a worker allocates for others, which they release, or which is released when they are gone.
//!
//! ```text
//! owner -- reserve: a call whose result is the locator ------> Held of the worker that is asked
//! owner -- LET_GO: owner (4), its number (8) ----------------> that is released; an owner that is gone needs none
//! ```

use std::sync::Arc;

use hg_channel::Error as ChannelError;

use super::{
    Worker,
    calling::Head,
    running::{LET_GO, Malformed, take_u32, take_u64},
};
use crate::{
    Buffer, Error, Failed, Locator, Place, Remote, Request,
    held::{Charge, Key},
    how::ANY,
    remote::{Let, Refusal, Release},
};

/// Allocates for its caller.
#[hg_macros::rpc(crate = crate)]
pub(crate) fn reserve(
    here: &Request,
    number: u64,
    node: Option<u32>,
    bytes: u64,
) -> Result<Locator, Refusal> {
    here.reserve(number, node, bytes)
}

impl Worker {
    /// Zeroed memory of another worker, or of this one, that all may write and read, without that one's doing but its progress: on the NUMA node of that thread,
    /// where that is known. [`Place::any_of`] is whichever thread of a process. This waits for the answer.
    ///
    /// It is there until the handle is dropped, or this worker has ended or is gone. What it counts as there, its pages, is bounded by
    /// [`Fabric::remote_max`](crate::Fabric::remote_max). Functions that run there find it by [`Worker::memory_of`].
    ///
    /// # Errors
    /// [`Error::NotAllotted`]: over those bounds. [`Error::Memory`]: there is not so much. [`Error::Inside`]; [`Error::Gone`];
    /// [`Error::Full`]; [`Error::NoSuchPlace`].
    pub fn allocate_at(&self, at: Place, bytes: u64) -> Result<Remote, Error> {
        self.ask_for(at, None, bytes)
    }

    /// The same at whichever thread of a process, on a NUMA node of its machine, by the number that its system gives it.
    ///
    /// # Errors
    /// As [`Worker::allocate_at`]; [`Error::Memory`] also where that process may not run on that node, or does not know of nodes
    /// ([`Fabric::numa`](crate::Fabric::numa)).
    pub fn allocate_at_node(&self, process: u32, node: u32, bytes: u64) -> Result<Remote, Error> {
        self.ask_for(Place::any_of(process), Some(node), bytes)
    }

    /// Memory of this worker that was allocated for another one: [`Worker::allocate_at`], [`Worker::allocate_everywhere`]. It is there as long as this is
    /// kept, and is reached by others no longer than its owner wants.
    #[must_use]
    pub fn memory_of(&self, locator: &Locator) -> Option<Arc<Buffer>> {
        self.held.borrow().named(locator)
    }

    /// Bytes that were allocated here for others, as they count.
    #[must_use]
    pub fn allotted(&self) -> u64 {
        self.held.borrow().bytes()
    }

    fn ask_for(&self, at: Place, node: Option<u32>, bytes: u64) -> Result<Remote, Error> {
        if self.is_inside.get() {
            return Err(Error::Inside);
        }
        // What was dropped makes room for it.
        self.release_dropped();
        let number = self.moves.borrow_mut().number();
        let locator = match self.call_return(at, reserve, (number, node, bytes))?.wait(self) {
            Ok(locator) => locator,
            Err(Failed::Call(error)) => return Err(error),
            Err(Failed::Function(refusal)) => return Err(refusal.at(at, bytes)),
        };
        let from = locator.place();
        if from.process != at.process || at.thread != ANY && from != at {
            return Err(Error::Lost { from: at, why: "it names memory of another one" });
        }
        let of = Let::Tell { end: self.end_of_thread(from)?, number };
        let _release = Release { of, dropped: Arc::clone(&self.dropped) };
        Ok(Remote { locator, bytes, _release })
    }

    /// For whoever has called.
    fn reserve(&self, number: u64, node: Option<u32>, bytes: u64) -> Result<Locator, Refusal> {
        let key = Key { owner: self.caller.get(), number };
        let got = self.allot(key.owner, node, bytes)?;
        let locator = got.0.locator();
        if !self.held.borrow_mut().add(key, Ok(got), None, self.me) {
            return Err(Refusal::None { why: "it has that number already".to_owned() });
        }
        self.port.borrow_mut().keep(key.owner);
        Ok(locator)
    }

    /// Memory for another worker, on a node, or on that of this thread.
    pub(super) fn allot(
        &self,
        owner: u32,
        node: Option<u32>,
        bytes: u64,
    ) -> Result<(Buffer, Charge), Refusal> {
        let charge = self.held.borrow().charge(owner, bytes)?;
        let none =
            |error: Error| Refusal::None { why: error.to_string().chars().take(WHY_MAX).collect() };
        let bytes = usize::try_from(bytes).map_err(|error| none(Error::of_memory(error)))?;
        let got = match node.or(self.node.as_ref().map(|it| it.number)) {
            Some(node) => self.allocate_on(node, bytes),
            None => self.allocate(bytes),
        };
        Ok((got.map_err(none)?, charge))
    }

    /// Handles that were dropped since are told of.
    pub(super) fn release_dropped(&self) {
        if !self.dropped.is_any() {
            return;
        }
        for one in self.dropped.take() {
            let is_told = match one {
                Let::Tell { end, number } => {
                    self.say_let_go(end, Key { owner: self.me, number }, self.bounds.calls)
                }
                Let::Everywhere { number } => {
                    self.release(Key { owner: self.me, number }, None);
                    true
                }
            };
            if !is_told {
                self.dropped.add(one);
            }
        }
    }

    /// Whether it was told, or hears nothing any more.
    fn say_let_go(&self, end: u32, key: Key, limit: u64) -> bool {
        let head = Head::default().with(LET_GO, &key.owner.to_le_bytes());
        let head = head.with(0, &key.number.to_le_bytes());
        let mut port = self.port.borrow_mut();
        match port.record(end, head.flags, head.len(), limit) {
            Ok(room) => {
                head.write(room);
                self.send_as_packed(&mut port, end);
                true
            }
            Err(ChannelError::Full(_)) => false,
            Err(_) => true,
        }
    }

    /// An owner has dropped its handle; or one above this has heard so.
    pub(super) fn hear_let_go(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let owner = take_u32(&mut bytes)?;
        let key = Key { owner, number: take_u64(&mut bytes)? };
        if owner >= self.ends {
            return Err("memory of nobody");
        }
        let is_everywhere = self.held.borrow().get(key).map(|it| it.below.is_some());
        let is_heard_from = match is_everywhere {
            // It was released when somebody was gone.
            None => return Ok(()),
            Some(false) => owner == from,
            Some(true) => self.tree(owner).above(self.me) == Some(from),
        };
        if !is_heard_from {
            return Err("it releases what is not its own");
        }
        self.release(key, Some(from));
        Ok(())
    }

    /// It is gone here, and where it was everywhere, those below are told. `keeps`: a connection was kept with this one for it.
    pub(super) fn release(&self, key: Key, keeps: Option<u32>) {
        let Some(released) = self.held.borrow_mut().remove(key) else { return };
        if let Some(end) = keeps {
            self.port.borrow_mut().let_go(end);
        }
        if released.below.is_some() {
            for end in self.tree(key.owner).below(self.me) {
                // There is always room: so many may there be of each owner.
                self.say_let_go(end, key, u64::MAX);
            }
        }
    }

    /// An end is gone: what is here for it, and what it was to tell of.
    pub(super) fn lose_allotted(&self, end: u32) {
        let is_lost = |key: Key, is_everywhere| {
            let from =
                if is_everywhere { self.tree(key.owner).above(self.me) } else { Some(key.owner) };
            from == Some(end)
        };
        let lost = self.held.borrow().keys(is_lost);
        lost.into_iter().for_each(|key| self.release(key, None));
    }
}

/// Of a reason that travels.
const WHY_MAX: usize = 96;
