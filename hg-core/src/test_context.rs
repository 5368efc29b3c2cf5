//! A transport that does what a test says: it takes as many operations of each peer as there is room for.

use std::{collections::HashMap, os::fd::BorrowedFd, sync::Arc, time::Duration, time::Instant};

use hg_na::{
    Address, Completion, Context, Error, Message, Op, OpId, Peer, Rejected, Token, Waiter,
};

#[derive(Debug)]
pub(crate) struct Scripted {
    address: Address,
    /// Operations that it takes of each peer before it has no room.
    pub(crate) room: HashMap<Peer, usize>,
    /// What it has taken, in order, and not been told to end.
    pub(crate) taken: Vec<(OpId, Token, Op)>,
    /// It moves no bytes: whoever drives it does.
    pub(crate) moves: bool,
    next: u64,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        let address = Address::new("mem://scripted").unwrap();
        Self { address, room: HashMap::new(), taken: Vec::new(), moves: false, next: 0 }
    }
}

impl Context for Scripted {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, _: &Address) -> Result<Peer, Error> {
        Err(Error::UnknownPeer)
    }

    fn forget(&mut self, _: Peer) {}

    fn message(&mut self, _: Peer, len: usize) -> Result<Message, Error> {
        Ok(Message::from(vec![0; len]))
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let room = self.room.entry(op.peer()).or_default();
        if *room == 0 {
            return Err(Rejected { error: Error::Again, op });
        }
        *room -= 1;
        self.next += 1;
        let id = OpId { scope: 3, serial: self.next };
        self.taken.push((id, token, op));
        Ok(id)
    }

    fn moves(&mut self, _: Peer) -> bool {
        self.moves
    }

    fn cancel(&mut self, _: OpId) {}

    fn set_admission(&mut self, _: bool) {}

    fn set_admission_of(&mut self, _: Peer, _: bool) {}

    fn progress(&mut self, _: Instant, _: &mut Vec<Completion>) -> Result<bool, Error> {
        Ok(false)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        true
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn connected(&mut self) -> Vec<Peer> {
        Vec::new()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::new(Nothing)
    }
}

#[derive(Debug)]
struct Nothing;

impl Waiter for Nothing {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&self, _: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }

    fn wake(&self) {}
}
