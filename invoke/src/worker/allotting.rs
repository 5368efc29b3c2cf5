//! Memory that a worker allocates for others, which they release, or which is released when they are gone.
//!
//! ```text
//! owner -- reserve: a call whose result is the locator ------> Held of the worker that is asked
//! owner -- RELEASE: its number (8) --------------------------> that is released; an owner that is gone needs none
//! ```

use std::sync::Arc;

use hg_channel::Error as ChannelError;

use super::{
    Then, Worker,
    calling::Head,
    running::{LET_GO, Malformed, RELEASE, take_u32, take_u64},
};
use crate::{
    Buffer, Error, Failed, Locator, Place, Remote, Request,
    held::{Allotted, Charge, Key},
    how::ANY,
    remote::{Let, REASON_MAX, Refusal, Release},
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
        let end = self.end_of(at)?;
        let (there, number) = (self.place_of(end), self.moves.borrow_mut().number());
        let called = self.call_return(there, reserve, (number, node, bytes))?;
        if at.thread == ANY {
            self.port.borrow_mut().ask(end);
        }
        // It may be there whatever becomes of the answer.
        let release = Release::new(Let::Tell { end, number }, &self.dropped);
        let locator = match called.wait(self) {
            Ok(locator) => locator,
            Err(Failed::Call(error)) => return Err(error),
            Err(Failed::Function(refusal)) => {
                release.disarm();
                return Err(refusal.at(at, bytes));
            }
        };
        if locator.place() != there {
            return Err(Error::Lost { from: there, why: "it names memory of another one" });
        }
        Ok(Remote { locator, bytes, _release: release })
    }

    /// For whoever waits for the answer, and for nobody whom a broadcast names.
    fn reserve(&self, number: u64, node: Option<u32>, bytes: u64) -> Result<Locator, Refusal> {
        let Then::Answer(reply) = self.then.get() else {
            return Err(Refusal::None { why: "nobody waits for it".to_owned() });
        };
        let key = Key::here(reply.to, number);
        let got = self.allot(key.owner, node, bytes)?;
        let locator = got.0.locator();
        if !self.held.borrow_mut().add(key, Ok(got), 0, self.me) {
            return Err(Refusal::None { why: "it has that number already".to_owned() });
        }
        self.keep_for(key, key.owner);
        Ok(locator)
    }

    /// The end is to be heard of whose death releases this. If it is gone already, no more will be.
    pub(super) fn keep_for(&self, key: Key, end: u32) {
        let mut port = self.port.borrow_mut();
        port.keep(end);
        let is_gone = port.unconsumed(end).is_none();
        drop(port);
        if is_gone {
            self.release(key, None);
        }
    }

    /// Memory for another worker, on a node, or on that of this thread.
    pub(super) fn allot(
        &self,
        owner: u32,
        node: Option<u32>,
        bytes: u64,
    ) -> Result<(Buffer, Charge), Refusal> {
        let charge = self.held.borrow_mut().charge(owner, bytes)?;
        let none = |error: Error| Refusal::None {
            why: error.to_string().chars().take(REASON_MAX).collect(),
        };
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
            let (said, own) = match one {
                Let::Tell { end, number } => {
                    (self.say(end, RELEASE, &[], number, self.bounds.calls), None)
                }
                Let::Everywhere { number } => {
                    let key = Key::everywhere(self.me, number);
                    // What was broadcast before runs here before.
                    (self.say_let_go(self.me, key), Some(key))
                }
            };
            match (said, own) {
                (Ok(()) | Err(ChannelError::Gone { .. }), None) => {}
                (Ok(()), Some(key)) => {
                    self.held.borrow_mut().drop_own(key);
                }
                (Err(ChannelError::Gone { .. }), Some(key)) => self.release(key, None),
                // It is tried again.
                (Err(_), _) => self.dropped.put_back(one),
            }
        }
    }

    /// So many may there be of each owner that there is always room.
    fn say_let_go(&self, end: u32, key: Key) -> Result<(), ChannelError> {
        self.say(end, LET_GO, &key.owner.to_le_bytes(), key.number, u64::MAX)
    }

    fn say(
        &self,
        end: u32,
        tag: u32,
        owner: &[u8],
        number: u64,
        limit: u64,
    ) -> Result<(), ChannelError> {
        let head = Head::default().with(tag, owner).with(0, &number.to_le_bytes());
        let mut port = self.port.borrow_mut();
        head.write(port.record(end, head.flags, head.len(), limit)?);
        self.send_as_packed(&mut port, end);
        Ok(())
    }

    /// Who has asked for memory here has dropped its handle.
    pub(super) fn hear_release(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        self.release(Key::here(from, take_u64(&mut bytes)?), Some(from));
        Ok(())
    }

    /// An owner of memory everywhere has dropped its handle: itself, or one above this has heard so.
    pub(super) fn hear_let_go(&self, from: u32, mut bytes: &[u8]) -> Result<(), Malformed> {
        let owner = take_u32(&mut bytes)?;
        let key = Key::everywhere(owner, take_u64(&mut bytes)?);
        if owner >= self.ends {
            return Err("memory of nobody");
        }
        let above = self.tree(owner).above(self.me);
        if from != above.unwrap_or(self.me) {
            return Err("it releases what is not its own");
        }
        // It may have been released when somebody was gone.
        self.release(key, above);
        Ok(())
    }

    /// It is gone here, and where it was everywhere, those below are told. `keeps`: a connection was kept with this one for it.
    pub(super) fn release(&self, key: Key, keeps: Option<u32>) {
        if self.held.borrow_mut().remove(key).is_none() {
            return;
        }
        if let Some(end) = keeps {
            self.port.borrow_mut().let_go(end);
        }
        if key.is_everywhere {
            for end in self.tree(key.owner).below(self.me) {
                match self.say_let_go(end, key) {
                    // Who is gone hears nothing.
                    Ok(()) | Err(ChannelError::Gone { .. }) => {}
                    Err(_) => self.blame(end, "it does not hear what is released"),
                }
            }
        }
    }

    /// An end is gone: what is here for it, and what it was to tell of. When that is this one, it does not hear itself either.
    pub(super) fn lose_allotted(&self, end: u32) {
        let is_lost = |key: Key, allotted: &Allotted| {
            let from = if key.is_everywhere {
                let own = allotted.is_dropped.then_some(self.me);
                self.tree(key.owner).above(self.me).or(own)
            } else {
                Some(key.owner)
            };
            from == Some(end)
        };
        let lost = self.held.borrow().keys(is_lost);
        lost.into_iter().for_each(|key| self.release(key, None));
    }
}
