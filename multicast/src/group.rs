//! A member's handle of a group.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hg::Address;

use crate::{
    completion::Completion,
    disk::Disk,
    error::{Error, Failure},
    id::GroupId,
    inbox::{Closing, Input, Reformed, Resent, Sending},
    machine::{METADATA_MAX, SENDS_MAX, is_possible},
    object::{Object, Received},
    options::Options,
    process::Process,
    schedule,
    shared::{Progress, Shared, State, TraceEvent},
    store::Store,
};

/// A member's handle of a group. Dropping it without [`close`](Self::close) leaves the group, which ends it for all.
pub struct Group {
    pub(crate) process: Arc<Process>,
    pub(crate) id: GroupId,
    pub(crate) own: u32,
    pub(crate) members: Arc<[Address]>,
    /// How many the members were on when the group was formed first.
    pub(crate) hosts: u32,
    pub(crate) options: Options,
    pub(crate) shared: Arc<Shared>,
    pub(crate) resent: Resent,
    /// Whether dropping it leaves the group.
    pub(crate) leaves: bool,
}

impl Group {
    /// Sends an object; only the root may. It goes after those sent before it, and begins as soon as the links have room for it. Ends when
    /// every member has it whole and verified, or with the group's failure; what [`reform`](Self::reform) sends again ends anew
    /// ([`resent`](Self::resent)).
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::MetadataTooLong`], [`Error::TooLarge`], [`Error::TooMany`], [`Error::Engine`] for memory that cannot be registered,
    /// [`Error::Failed`], [`Error::Closed`].
    pub fn send(
        &self,
        object: impl Into<Object>,
        metadata: &[u8],
    ) -> Result<Completion<Result<(), Failure>>, Error> {
        if self.own != 0 {
            return Err(Error::NotRoot(self.own));
        }
        if metadata.len() > METADATA_MAX {
            return Err(Error::MetadataTooLong { len: metadata.len(), max: METADATA_MAX });
        }
        self.begin_one()?;
        let prepared = self.prepare(object.into());
        let (store, disk, size, block_size) = prepared.map_err(|error| {
            let mut state = self.shared.lock();
            state.under_way -= 1;
            // An engine that has ended meanwhile has ended the group before.
            match &state.ended {
                Some(Err(failure)) => failure.clone().into(),
                Some(Ok(())) | None => error,
            }
        })?;
        let (completion, ended) = Completion::new();
        let metadata = metadata.to_vec();
        let sending = Sending { store, disk, size, block_size, metadata, ended };
        match self.process.inbox.push(Input::Send(self.id, Box::new(sending))) {
            Ok(()) => Ok(completion),
            Err(_over) => Err(self.outcome().map_or_else(Error::Failed, |()| Error::Closed)),
        }
    }

    fn begin_one(&self) -> Result<(), Error> {
        let mut state = self.shared.lock();
        match &state.ended {
            Some(Err(failure)) => return Err(failure.clone().into()),
            Some(Ok(())) => return Err(Error::Closed),
            None => {}
        }
        if state.under_way >= SENDS_MAX {
            return Err(Error::TooMany(SENDS_MAX));
        }
        state.under_way += 1;
        Ok(())
    }

    /// Its store, the number of its disk, its size, and that of its blocks.
    fn prepare(&self, object: Object) -> Result<(Store, Option<u64>, u64, u64), Error> {
        let (process, mut number) = (&self.process, None);
        let (store, size) = Store::of_object(&process.engine, object, |blocks, size| {
            let disk = process.inbox.next_disk();
            number = Some(disk);
            let inbox = Arc::clone(&process.inbox);
            let tell = move |group, done| inbox.tell(Input::Disk(disk, group, done));
            Disk::start(&process.engine, blocks, self.block_size(size).min(size.max(1)), tell)
        })?;
        let block_size = self.block_size(size);
        if !is_possible(size, block_size) {
            return Err(Error::TooLarge { size, block_size });
        }
        Ok((store, number, size, block_size))
    }

    /// Bytes of the blocks that an object of this size takes when this member sends it.
    #[must_use]
    pub fn block_size(&self, size: u64) -> u64 {
        self.options.block_size.unwrap_or_else(|| schedule::block_size(size, self.hosts))
    }

    /// The next object that has come whole, in the root's order; `None` when the group was closed in good order. After a failure
    /// what had come whole is given first.
    pub fn receive(&self) -> Receive<'_> {
        Receive(self)
    }

    /// Ends when all members have joined.
    pub fn joined(&self) -> Completion<Result<(), Failure>> {
        let (completion, completer) = Completion::new();
        if let Err(Input::Joined(_, completer)) =
            self.process.inbox.push(Input::Joined(self.id, completer))
        {
            completer.complete(self.outcome());
        }
        completion
    }

    /// Closes the group. Succeeds at a member only if every object has reached every member. At the root nothing more is sent; a receiver
    /// waits for the root's. Objects that have come can no longer be received afterwards.
    pub fn close(mut self) -> Completion<Result<(), Failure>> {
        self.leaves = false;
        let (completion, ended) = Completion::new();
        let keeps: Arc<Process> = Arc::clone(&self.process);
        let closing = Closing { ended, keeps };
        if let Err(Input::Close(_, closing)) =
            self.process.inbox.push(Input::Close(self.id, closing))
        {
            closing.ended.complete(self.outcome());
        }
        completion
    }

    /// Goes on without those that have failed, after a failure. All survivors call it; the first of them leads, and is the new root. Objects
    /// that have not reached everybody are sent again, of which only the blocks travel that a member lacks. When the root is among
    /// the dead, what a survivor has not whole is lost, and the new root sends anew. A member that had closed in good order already
    /// has everything, and does not go on.
    ///
    /// Whoever is blamed is not among the survivors, though it may live: one that has refused an object. The others go on without it, and that
    /// object is sent again to them. `incoming` is asked only for objects that it was not asked for before.
    ///
    /// # Errors
    /// [`Error::NotFailed`]; [`Error::Failed`] when the one that leads does not call it within
    /// [`join_within`](crate::Options::join_within), or this member is the one that is blamed; [`Error::Members`] when nobody else is left; [`Error::SameId`] when the one that leads
    /// has said the id of another group of this process; [`Error::Closed`].
    pub fn reform(mut self) -> Completion<Result<Self, Error>> {
        self.leaves = false;
        let (completion, completer) = Completion::new();
        let (process, shared) = (Arc::clone(&self.process), Arc::clone(&self.shared));
        let (hosts, options) = (self.hosts, self.options.clone());
        let formed = move |formed: Result<Reformed, Error>| {
            completer.complete(formed.map(|Reformed { id, own, members, resent }| Self {
                process,
                id,
                own,
                members,
                hosts,
                options,
                shared,
                resent,
                leaves: true,
            }));
        };
        if let Err(Input::Reform(_, formed)) =
            self.process.inbox.push(Input::Reform(self.id, Box::new(formed)))
        {
            formed(Err(Error::Closed));
        }
        completion
    }

    /// At a root that was one before [`reform`](Self::reform): the objects that are sent again, by number, and what ends when every
    /// member of this group has them. Given once.
    pub fn resent(&mut self) -> Vec<(u64, Completion<Result<(), Failure>>)> {
        std::mem::take(&mut self.resent)
    }

    /// How it has ended, once the driver has, and with it every group.
    fn outcome(&self) -> Result<(), Failure> {
        self.shared.lock().ended.clone().expect("a driver that ends has ended its groups")
    }

    /// Why the group has failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.shared.lock().ended.as_ref().and_then(|it| it.as_ref().err().cloned())
    }

    /// Where the members are, the root first.
    #[must_use]
    pub fn members(&self) -> &[Address] {
        &self.members
    }

    /// This member's place among them.
    #[must_use]
    pub fn own(&self) -> u32 {
        self.own
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.lock().progress
    }

    /// What happened since it was asked last, with [`trace`](crate::Options::trace).
    #[must_use]
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.shared.lock().trace)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.leaves {
            self.process.inbox.tell(Input::Leave(self.id));
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Group(member {} of {})", self.own, self.members.len())
    }
}

/// The next object, waited for or awaited. Dropped, it takes none.
#[derive(Debug)]
#[must_use = "it does nothing before it is waited for or awaited"]
pub struct Receive<'g>(&'g Group);

impl Receive<'_> {
    /// Waits for it.
    ///
    /// # Errors
    /// The group has failed.
    pub fn wait(self) -> Result<Option<Received>, Failure> {
        let shared = &self.0.shared;
        let mut state = shared.lock();
        loop {
            if let Some(received) = self.take(&mut state) {
                return received;
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for at most this long: `None` when nothing has come by then.
    pub fn wait_within(self, limit: Duration) -> Option<Result<Option<Received>, Failure>> {
        let shared = &self.0.shared;
        let until = Instant::now().checked_add(limit);
        let mut state = shared.lock();
        loop {
            if let Some(received) = self.take(&mut state) {
                return Some(received);
            }
            let left = until.map_or(limit, |it| it.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, state: &mut State) -> Option<Result<Option<Received>, Failure>> {
        if let Some((received, bytes)) = state.ready.pop_front() {
            self.0.process.inbox.tell(Input::Received(self.0.id, bytes));
            return Some(Ok(Some(received)));
        }
        state.ended.clone().map(|it| it.map(|()| None))
    }
}

impl Future for Receive<'_> {
    type Output = Result<Option<Received>, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.shared.lock();
        if let Some(received) = self.take(&mut state) {
            return Poll::Ready(received);
        }
        if !state.wakers.iter().any(|it| it.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
