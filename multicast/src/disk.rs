//! An object that is read and written by blocks, by a thread of its own: whoever drives the groups never waits for a disk.
//!
//! Meanwhile blocks lie in *slots* of registered memory, some for those that come and some for those that are offered; small blocks in
//! vectors. An offer for which there is no slot waits until another one is taken. Each group has slots of its own: a transfer of one that has failed
//! may touch its memory still, and keeps it alive as long.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use hg::bulk::{Bulk, Descriptor, Rights};

use crate::{
    checksum,
    error::Error,
    machine::{INLINE_MAX, PULLS_MAX},
    object::Blocks,
    wire::{Place, Source},
};

/// Slots for blocks that come: as many as are pulled at a time, those among them whose pull has failed.
const COMING: usize = PULLS_MAX;
/// Slots for blocks that are offered.
const OFFERED: usize = 8;

/// A block: its number, where it begins in the object, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) block: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Where a block lies meanwhile.
#[derive(Debug)]
pub(crate) enum Slot {
    At(Room),
    Bytes(Vec<u8>),
}

/// Registered memory, from this offset.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    pub(crate) bulk: Arc<Bulk>,
    pub(crate) at: u64,
}

/// The slots of a group.
struct Slots {
    bulk: Arc<Bulk>,
    descriptor: Descriptor,
    free_to_come: Vec<u64>,
    free_to_offer: Vec<u64>,
}

impl Slots {
    /// `None` where small blocks need none.
    fn new(engine: &hg::Engine, block_size: u64) -> Result<Option<Self>, hg::Error> {
        if block_size <= INLINE_MAX {
            return Ok(None);
        }
        let bytes = hg_bulk::zeroed(block_size.saturating_mul((COMING + OFFERED) as u64))?;
        let bulk = engine.expose(bytes, Rights::READ)?;
        let slots = |from: usize, count: usize| {
            (from..from + count).map(|slot| slot as u64 * block_size).collect()
        };
        Ok(Some(Self {
            descriptor: bulk.descriptor(),
            bulk: Arc::new(bulk),
            free_to_come: slots(0, COMING),
            free_to_offer: slots(COMING, OFFERED),
        }))
    }

    fn room(&self, at: u64) -> Room {
        Room { bulk: Arc::clone(&self.bulk), at }
    }
}

/// What the thread is to do.
enum Job {
    /// Is it there already?
    Holds(Extent, u64),
    Write {
        extent: Extent,
        from: Slot,
        checksum: Option<u64>,
    },
    Load {
        extent: Extent,
        into: Slot,
        to: u32,
        has_checksum: bool,
    },
    Finish,
}

/// What came of it.
pub(crate) enum Done {
    Holds {
        block: u64,
        is_held: bool,
    },
    /// Whether it was right, and which slot is free now.
    Written {
        block: u64,
        is_right: bool,
        from: Slot,
    },
    Loaded {
        block: u64,
        to: u32,
        into: Slot,
        checksum: Option<u64>,
    },
    Finished,
    Failed(String),
}

type Shared = Arc<Mutex<Option<Box<dyn Blocks>>>>;

/// Set when the user gets the blocks back: jobs that have not begun are dropped.
type GivenBack = Arc<AtomicBool>;

/// The driver's side.
pub(crate) struct Disk {
    /// With the number of the group that wants it: what is done for one before counts no more.
    jobs: Sender<(u64, Job)>,
    group: u64,
    blocks: Shared,
    given_back: GivenBack,
    block_size: u64,
    slots: Option<Slots>,
    offered: BTreeMap<(u32, u64), u64>,
    /// Offers for which there is no slot.
    waiting: VecDeque<(u32, Extent, bool)>,
    pub(crate) is_finished: bool,
    /// The group that has asked last for its end.
    finishing: Option<u64>,
}

impl Disk {
    /// Starts the thread, which tells what came of each job.
    pub(crate) fn start(
        engine: &hg::Engine,
        blocks: Box<dyn Blocks>,
        block_size: u64,
        tell: impl Fn(u64, Done) + Send + 'static,
    ) -> Result<Self, Error> {
        let slots = Slots::new(engine, block_size)?;
        let (jobs, list) = channel();
        let blocks: Shared = Arc::new(Mutex::new(Some(blocks)));
        let given_back = GivenBack::default();
        let (shared, ends) = (Arc::clone(&blocks), Arc::clone(&given_back));
        let work = Work { blocks: shared, given_back: ends, scratch: Vec::new() };
        let thread = thread::Builder::new().name("multicast-disk".to_owned());
        thread.spawn(move || work.run(&list, &tell)).map_err(Error::Thread)?;
        Ok(Self {
            jobs,
            group: 0,
            blocks,
            given_back,
            block_size,
            slots,
            offered: BTreeMap::new(),
            waiting: VecDeque::new(),
            is_finished: false,
            finishing: None,
        })
    }

    fn begin(&self, job: Job) {
        // The thread ends after this only.
        let _ = self.jobs.send((self.group, job));
    }

    /// Asks whether a block is there already.
    pub(crate) fn ask(&self, extent: Extent, checksum: u64) {
        self.begin(Job::Holds(extent, checksum));
    }

    /// The slot that a block can come to; `None`: its blocks are small.
    pub(crate) fn room_to_come(&mut self) -> Option<Room> {
        let slots = self.slots.as_mut()?;
        let at = slots.free_to_come.pop()?;
        Some(slots.room(at))
    }

    pub(crate) fn write(&self, extent: Extent, from: Slot, checksum: Option<u64>) {
        self.begin(Job::Write { extent, from, checksum });
    }

    /// What came to this slot, for this group, is written.
    pub(crate) fn free(&mut self, slot: &Slot) {
        if let (Slot::At(room), Some(slots)) = (slot, &mut self.slots) {
            slots.free_to_come.push(room.at);
        }
    }

    /// Has a block loaded, to be offered.
    pub(crate) fn load(&mut self, to: u32, extent: Extent, has_checksum: bool) {
        self.waiting.push_back((to, extent, has_checksum));
        self.load_next();
    }

    fn load_next(&mut self) {
        while let Some(&(to, extent, has_checksum)) = self.waiting.front() {
            let into = match &mut self.slots {
                None => Slot::Bytes(Vec::new()),
                Some(slots) => match slots.free_to_offer.pop() {
                    Some(at) => Slot::At(slots.room(at)),
                    None => return,
                },
            };
            self.waiting.pop_front();
            if let Slot::At(room) = &into {
                self.offered.insert((to, extent.block), room.at);
            }
            self.begin(Job::Load { extent, into, to, has_checksum });
        }
    }

    /// Where a block is that was loaded; `None`: the offer is no longer wanted.
    pub(crate) fn loaded(
        &self,
        to: u32,
        block: u64,
        at: Slot,
        checksum: Option<u64>,
    ) -> Option<Source> {
        let place = match at {
            Slot::Bytes(bytes) => Place::Inline(bytes),
            Slot::At(Room { at: offset, .. }) => {
                self.offered.get(&(to, block)).filter(|it| **it == offset)?;
                Place::At { memory: self.slots.as_ref()?.descriptor.clone(), offset }
            }
        };
        Some(Source { place, checksum })
    }

    /// A block that was offered is taken.
    pub(crate) fn taken(&mut self, to: u32, block: u64) {
        if let (Some(at), Some(slots)) = (self.offered.remove(&(to, block)), &mut self.slots) {
            slots.free_to_offer.push(at);
            self.load_next();
        }
    }

    /// The group has failed: nothing is offered any more, and what is still done, or comes, is not for the one that follows.
    pub(crate) fn withdraw(&mut self) {
        self.group += 1;
        self.waiting.clear();
        self.offered.clear();
        self.slots = None;
    }

    /// Slots for the group that follows.
    pub(crate) fn renew(&mut self, engine: &hg::Engine) -> Result<(), hg::Error> {
        self.slots = Slots::new(engine, self.block_size)?;
        Ok(())
    }

    /// Whether something was done for a group before this one.
    pub(crate) fn is_stale(&self, group: u64) -> bool {
        group != self.group
    }

    /// Ends it, once: a group before may have begun to.
    pub(crate) fn finish(&mut self) {
        if self.finishing.replace(self.group).is_none() {
            self.begin(Job::Finish);
        }
    }

    /// It is finished; says whether this group has asked for that.
    pub(crate) fn finished(&mut self) -> bool {
        self.is_finished = true;
        self.finishing == Some(self.group)
    }

    /// What was given; where the thread is in the middle of a job, in a guise that waits for its end when it is used.
    pub(crate) fn into_blocks(self) -> Option<Box<dyn Blocks>> {
        // Relaxed: the lock orders the rest.
        self.given_back.store(true, Ordering::Relaxed);
        let free = match self.blocks.try_lock() {
            Ok(mut blocks) => Some(blocks.take()),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner().take()),
            Err(TryLockError::WouldBlock) => None,
        };
        free.unwrap_or_else(|| Some(Box::new(InUse { shared: self.blocks, own: None })))
    }
}

/// What was given, when a job was under way that had it. Whoever uses it takes it for himself when that has ended.
struct InUse {
    shared: Shared,
    own: Option<Box<dyn Blocks>>,
}

impl InUse {
    fn own(&mut self) -> &mut dyn Blocks {
        let take = || lock(&self.shared).take().expect("nobody else takes it");
        self.own.get_or_insert_with(take).as_mut()
    }
}

impl Blocks for InUse {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.own().read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.own().write_at(offset, bytes)
    }

    fn holds(&mut self, offset: u64, len: u64, checksum: u64) -> io::Result<bool> {
        self.own().holds(offset, len, checksum)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.own().finish()
    }
}

fn lock(blocks: &Shared) -> MutexGuard<'_, Option<Box<dyn Blocks>>> {
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's side.
struct Work {
    blocks: Shared,
    given_back: GivenBack,
    scratch: Vec<u8>,
}

impl Work {
    fn run(mut self, list: &Receiver<(u64, Job)>, tell: &impl Fn(u64, Done)) {
        for (group, job) in list {
            let shared = Arc::clone(&self.blocks);
            let mut guard = lock(&shared);
            if self.given_back.load(Ordering::Relaxed) {
                return;
            }
            let Some(blocks) = guard.as_mut() else { return };
            let worked = catch_unwind(AssertUnwindSafe(|| self.work(blocks.as_mut(), job)));
            // Whoever is told that this was the last job takes the blocks.
            drop(guard);
            let done = worked.unwrap_or_else(|_| Err(io::Error::other("it has panicked")));
            tell(group, done.unwrap_or_else(|error| Done::Failed(error.to_string())));
        }
    }

    fn work(&mut self, blocks: &mut dyn Blocks, job: Job) -> io::Result<Done> {
        Ok(match job {
            Job::Holds(Extent { block, offset, len }, checksum) => {
                let is_held = blocks.holds(offset, len, checksum).unwrap_or(false);
                Done::Holds { block, is_held }
            }
            Job::Write { extent, from, checksum } => {
                let bytes = match &from {
                    Slot::Bytes(bytes) => bytes,
                    Slot::At(Room { bulk, at }) => {
                        self.make_room(extent.len);
                        bulk.read(*at, &mut self.scratch).map_err(io::Error::other)?;
                        &self.scratch
                    }
                };
                let is_right = bytes.len() as u64 == extent.len
                    && checksum.is_none_or(|it| it == checksum::of(bytes));
                if is_right {
                    blocks.write_at(extent.offset, bytes)?;
                }
                Done::Written { block: extent.block, is_right, from }
            }
            Job::Load { extent, into, to, has_checksum } => {
                self.make_room(extent.len);
                blocks.read_at(extent.offset, &mut self.scratch)?;
                let checksum = has_checksum.then(|| checksum::of(&self.scratch));
                let into = match into {
                    Slot::Bytes(_) => Slot::Bytes(self.scratch.clone()),
                    Slot::At(room) => {
                        room.bulk.write(room.at, &self.scratch).map_err(io::Error::other)?;
                        Slot::At(room)
                    }
                };
                Done::Loaded { block: extent.block, to, into, checksum }
            }
            Job::Finish => {
                blocks.finish()?;
                Done::Finished
            }
        })
    }

    fn make_room(&mut self, len: u64) {
        self.scratch.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
    }
}
