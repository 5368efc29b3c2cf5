//! The pin lines of all peers of a domain: who is transferring from or to its regions.
//!
//! The end of a connection does not end a transfer: the peer may be in the middle of a system call when
//! this side forgets it. A peer that leaves pins behind is *leaving*: its segment and its pidfd are kept
//! until the pins are clear or its process has ended. Both are looked at when somebody asks for pins, and
//! in the chores of a context ([`Boards::tidy`]).

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{pins, state::PinBoard};
use crate::{os::death::ProcessWatch, segment::Rings};

/// Closed connections of one process whose pins are waited for. A process that leaves more behind does
/// not keep the protocol, and the oldest are forgotten.
const LEAVING_MAX: usize = 64;

/// All pin lines.
#[derive(Debug, Default)]
pub(crate) struct Boards {
    list: Mutex<List>,
    /// `leaving` is not empty, as far as is known: spares [`Boards::tidy`] the lock.
    has_leaving: AtomicBool,
}

#[derive(Debug, Default)]
struct List {
    boards: Vec<Option<Arc<Rings>>>,
    free: Vec<usize>,
    leaving: Vec<Leaving>,
}

/// A peer whose connection is closed, and which may be in the middle of a transfer.
#[derive(Debug)]
struct Leaving {
    rings: Arc<Rings>,
    watch: Arc<ProcessWatch>,
}

impl Boards {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer's segment.
    pub(crate) fn add(&self, rings: Arc<Rings>) -> usize {
        let mut list = self.lock();
        let at = list.free.pop().unwrap_or(list.boards.len());
        if at == list.boards.len() {
            list.boards.push(None);
        }
        list.boards[at] = Some(rings);
        at
    }

    /// The connection is closed. Its pins stay as long as they are set and its process lives.
    pub(crate) fn remove(&self, at: usize, watch: Option<Arc<ProcessWatch>>) {
        let mut list = self.lock();
        let board = list.boards[at].take();
        list.free.push(at);
        let (Some(rings), Some(watch)) = (board, watch) else { return };
        let leaving = Leaving { rings, watch };
        if !leaving.may_transfer() {
            return;
        }
        let is_same = |other: &Leaving| other.watch.pid() == leaving.watch.pid();
        if list.leaving.iter().filter(|other| is_same(other)).count() >= LEAVING_MAX
            && let Some(oldest) = list.leaving.iter().position(is_same)
        {
            list.leaving.remove(oldest);
        }
        list.leaving.push(leaving);
        // Relaxed: a hint; the list itself is under its lock.
        self.has_leaving.store(true, Ordering::Relaxed);
    }

    /// Forgets the leaving peers that are in no transfer any more; `true`: there were some, and memory
    /// that was retired for them can be given back.
    pub(crate) fn tidy(&self) -> bool {
        // Relaxed: as above.
        self.has_leaving.load(Ordering::Relaxed) && self.forget_idle(&mut self.lock())
    }

    /// As if the processes of all leaving peers had ended.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn end_processes(&self) {
        self.lock().leaving.clear();
    }

    fn forget_idle(&self, list: &mut List) -> bool {
        let before = list.leaving.len();
        list.leaving.retain(Leaving::may_transfer);
        // Relaxed: as above.
        self.has_leaving.store(!list.leaving.is_empty(), Ordering::Relaxed);
        list.leaving.len() != before
    }
}

impl PinBoard for Boards {
    fn pinned(&self, index: u32, generation: u32) -> bool {
        let mut list = self.lock();
        if !list.leaving.is_empty() {
            self.forget_idle(&mut list);
        }
        let leaving = list.leaving.iter().map(|leaving| &leaving.rings);
        let mut all = list.boards.iter().flatten().chain(leaving);
        all.any(|rings| pins::is_pinned(&rings.pins.0, index, generation))
    }
}

impl Leaving {
    fn may_transfer(&self) -> bool {
        // Acquire: as U3 in [`pins`].
        let mut pins = self.rings.pins.0.iter();
        pins.any(|pin| pin.load(Ordering::Acquire) != 0) && self.watch.alive()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::unistd::getpid;

    use super::*;
    use crate::rendezvous::socket::Socket;

    /// A peer's segment, pinning region `index` of generation 1.
    fn pinning(index: u64) -> Arc<Rings> {
        let (rings, _fd) = Rings::create().unwrap();
        rings.pins.0[3].store((index + 1) | (1 << 32), Ordering::Relaxed);
        Arc::new(rings)
    }

    fn this_process() -> Arc<ProcessWatch> {
        let (one, _other) = Socket::pair().unwrap();
        let watch = ProcessWatch::of(&Arc::new(one)).unwrap();
        assert_eq!(watch.pid(), Some(getpid().as_raw()));
        Arc::new(watch)
    }

    #[test]
    fn a_closed_connection_keeps_its_pins_until_they_are_clear() {
        let (boards, rings) = (Boards::default(), pinning(7));
        let at = boards.add(Arc::clone(&rings));
        assert!(boards.pinned(7, 1) && !boards.pinned(8, 1) && !boards.pinned(7, 3));
        boards.remove(at, Some(this_process()));
        assert!(boards.pinned(7, 1), "the peer is in the middle of a transfer");
        assert!(!boards.tidy() && boards.pinned(7, 1));
        rings.pins.0[3].store(0, Ordering::Relaxed);
        assert!(boards.tidy(), "retired memory can be given back");
        assert!(!boards.pinned(7, 1) && !boards.tidy());
        assert_eq!(Arc::strong_count(&rings), 1, "the segment is given back");
    }

    #[test]
    fn a_connection_without_pins_is_forgotten_at_once() {
        let (rings, _fd) = Rings::create().unwrap();
        let (boards, rings) = (Boards::default(), Arc::new(rings));
        let at = boards.add(Arc::clone(&rings));
        boards.remove(at, Some(this_process()));
        assert_eq!((Arc::strong_count(&rings), boards.tidy()), (1, false));
        assert_eq!(boards.add(rings), at, "its place is used again");
    }

    #[test]
    fn pins_end_with_the_process_that_set_them() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let boards = Boards::default();
        let at = boards.add(pinning(7));
        boards.remove(at, Some(Arc::new(ProcessWatch::of_child(&child))));
        assert!(boards.pinned(7, 1));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(boards.tidy() && !boards.pinned(7, 1));
    }

    #[test]
    fn a_process_leaves_only_so_many_connections_behind() {
        let boards = Boards::default();
        for index in 0..LEAVING_MAX as u64 + 2 {
            let at = boards.add(pinning(index));
            boards.remove(at, Some(this_process()));
        }
        assert!(!boards.pinned(0, 1) && !boards.pinned(1, 1), "the oldest are forgotten");
        assert!(boards.pinned(2, 1));
        assert_eq!(boards.lock().leaving.len(), LEAVING_MAX);
    }
}
