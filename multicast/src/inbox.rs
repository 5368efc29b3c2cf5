//! What the driver's thread is told, by handlers, by users and by the threads of disks.

use std::{
    any::Any,
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Wake,
};

use hg::Address;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    completion::{Completer, Completion},
    disk::Done,
    error::{Error, Failure},
    id::GroupId,
    machine::Message,
    object::{Destination, Incoming},
    options::Options,
    shared::Shared,
    store::Store,
    wire::{Meeting, Source, watch},
};

/// What it is told.
pub(crate) enum Input {
    Told {
        group: GroupId,
        from: u32,
        origin: hg::Peer,
        message: Message<Source>,
    },
    Met {
        group: GroupId,
        origin: hg::Peer,
        meeting: Meeting,
    },
    Watched(hg::Answer<watch>),
    Open(Box<Opening>),
    Send(GroupId, Box<Sending>),
    Joined(GroupId, Completer<Result<(), Failure>>),
    Close(GroupId, Closing),
    Reform(GroupId, OnReformed),
    /// The user has received so many bytes.
    Received(GroupId, u64),
    /// The handle was dropped.
    Leave(GroupId),
    /// What became of a job of the disk of this number, for so many groups after the first one.
    Disk(u64, u64, Done),
    End,
}

/// An object to send.
pub(crate) struct Sending {
    pub(crate) store: Store,
    /// The number of its disk, where it has one.
    pub(crate) disk: Option<u64>,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) ended: Completer<Result<(), Failure>>,
}

/// Who is asked where an object goes.
pub(crate) type AskIncoming =
    Box<dyn FnMut(Incoming<'_>) -> Result<Destination, String> + Send + 'static>;

/// A group that this process joins.
pub(crate) struct Opening {
    pub(crate) id: GroupId,
    pub(crate) own: u32,
    pub(crate) members: Arc<[Address]>,
    pub(crate) nodes: Vec<u32>,
    pub(crate) options: Options,
    pub(crate) incoming: AskIncoming,
    pub(crate) shared: Arc<Shared>,
}

/// Who waits for the end of a group.
pub(crate) struct Closing {
    pub(crate) ended: Completer<Result<(), Failure>>,
    /// The process's multicast, which does not end before.
    pub(crate) keeps: Arc<dyn Any + Send + Sync>,
}

/// What a group has become.
pub(crate) struct Reformed {
    pub(crate) id: GroupId,
    pub(crate) own: u32,
    pub(crate) members: Arc<[Address]>,
    pub(crate) resent: Resent,
}

/// Objects that are sent again, by number, and how that ends.
pub(crate) type Resent = Vec<(u64, Completion<Result<(), Failure>>)>;

/// Who wants to know it.
pub(crate) type OnReformed = Box<dyn FnOnce(Result<Reformed, Error>) + Send>;

/// Where it is told.
pub(crate) struct Inbox {
    /// `None`: the driver has ended.
    inputs: Mutex<Option<Vec<Input>>>,
    /// The groups that this process is in: messages of others are dropped unread.
    known: Mutex<FxHashSet<GroupId>>,
    /// What a group has become that has failed, while that is known: some of its members may not have gone on yet.
    followed: Mutex<FxHashMap<GroupId, GroupId>>,
    /// What others were asked to say: nothing else is taken for an answer.
    expected: Mutex<FxHashSet<u128>>,
    engine: OnceLock<hg::Engine>,
    disks: AtomicU64,
}

thread_local! {
    static IS_DRIVER: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            inputs: Mutex::new(Some(Vec::new())),
            known: Mutex::default(),
            followed: Mutex::default(),
            expected: Mutex::default(),
            engine: OnceLock::new(),
            disks: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_engine(&self, engine: &hg::Engine) {
        let _ = self.engine.set(engine.clone());
    }

    pub(crate) fn is_driver() -> bool {
        IS_DRIVER.with(Cell::get)
    }

    /// This thread is the driver's.
    pub(crate) fn become_driver() {
        IS_DRIVER.with(|it| it.set(true));
    }

    /// Tells the driver something.
    ///
    /// # Errors
    /// It has ended, and all groups that it had: what it would have been told.
    pub(crate) fn push(&self, input: Input) -> Result<(), Input> {
        match lock(&self.inputs).as_mut() {
            Some(inputs) => inputs.push(input),
            None => return Err(input),
        }
        self.interrupt();
        Ok(())
    }

    /// The same for what nobody waits for.
    pub(crate) fn tell(&self, input: Input) {
        let _ = self.push(input);
    }

    fn interrupt(&self) {
        if let Some(engine) = self.engine.get().filter(|_| !Self::is_driver()) {
            engine.interrupt_progress();
        }
    }

    pub(crate) fn take(&self) -> Vec<Input> {
        lock(&self.inputs).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What is left, if anything is; nothing more is taken in otherwise.
    pub(crate) fn take_or_end(&self) -> Option<Vec<Input>> {
        let mut inputs = lock(&self.inputs);
        let rest = inputs.take().filter(|rest| !rest.is_empty())?;
        *inputs = Some(Vec::new());
        Some(rest)
    }

    pub(crate) fn knows(&self, group: GroupId) -> bool {
        lock(&self.known).contains(&group)
    }

    /// Whether somebody in this process waits for that.
    pub(crate) fn is_wanted(&self, group: GroupId, meeting: &Meeting) -> bool {
        match meeting {
            Meeting::Meet { .. } => self.knows(group),
            Meeting::Prove { challenge: secret, .. } | Meeting::Proof { nonce: secret } => {
                lock(&self.expected).contains(secret)
            }
        }
    }

    /// Somebody will say this.
    pub(crate) fn expect(&self, secret: u128) {
        lock(&self.expected).insert(secret);
    }

    pub(crate) fn expect_no_more(&self, secret: u128) {
        lock(&self.expected).remove(&secret);
    }

    /// Says whether it was not known.
    pub(crate) fn add(&self, group: GroupId) -> bool {
        lock(&self.known).insert(group)
    }

    pub(crate) fn remove(&self, group: GroupId) {
        lock(&self.known).remove(&group);
        lock(&self.followed).retain(|_, it| *it != group);
    }

    /// This group goes on as that one.
    pub(crate) fn follow(&self, group: GroupId, as_that: GroupId) {
        lock(&self.followed).insert(group, as_that);
    }

    /// Whether this process lives for the members of a group: it is in it, or has gone on.
    pub(crate) fn lives_in(&self, group: GroupId) -> bool {
        self.knows(group) || lock(&self.followed).contains_key(&group)
    }

    pub(crate) fn next_disk(&self) -> u64 {
        // Relaxed: nothing hangs on it but that no two are the same.
        self.disks.fetch_add(1, Ordering::Relaxed)
    }
}

impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.interrupt();
    }
}
