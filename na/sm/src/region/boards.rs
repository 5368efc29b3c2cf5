//! The pin lines of all peers of a domain: who is transferring from or to its regions.
//!
//! The end of a connection does not end a transfer: the peer may be in the middle of a system call when
//! this side forgets it. A peer that leaves pins behind is *leaving*: its segment and its pidfd are kept
//! until the pins are clear or its process has ended, which is asked by the timer of a context ([`Boards::tidy`]).
//! Each peer reads in this side's segment whether its pins are looked at (`heed`; H1 to H4 of [`pins`]), and begins nothing else.
//!
//! Pins are claims, and nobody waits for them: what is pinned is retired. That is as many regions of each connection as it has pin
//! words; a process that has left [`LEAVING_MAX`] connections with pins behind gets no other one until they are clear or it has ended.
//! Those of one user that have no number here share that limit, and end, as far as is known, by a hang-up without a goodbye: once
//! this side has closed first, what they pin stays.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering};

use hg_na::Error;
use rustc_hash::FxHashMap;

use super::pins;
use crate::{rendezvous::process::ProcessWatch, segment::Rings};

/// Closed connections of one process whose pins are waited for.
pub(crate) const LEAVING_MAX: usize = 64;

/// All pin lines.
#[derive(Debug, Default)]
pub(crate) struct Boards(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    /// Of open connections, each with this side's segment, in which its peer reads that its pins are looked at.
    open: FxHashMap<u64, (Board, Rings)>,
    next: u64,
    /// Of closed ones, whose peers may be in the middle of a transfer.
    leaving: Vec<Board>,
}

/// One connection's.
#[derive(Debug)]
struct Board {
    rings: Arc<Rings>,
    watch: Arc<ProcessWatch>,
}

impl Boards {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer's segment, and says so in this side's `own`.
    ///
    /// # Errors
    /// [`Error::Limit`] when its process has left too many behind.
    pub(crate) fn add(
        &self,
        own: Rings,
        rings: Arc<Rings>,
        watch: Arc<ProcessWatch>,
    ) -> Result<u64, Error> {
        let mut list = self.lock();
        let left = list.leaving.iter().filter(|it| it.watch.shares_limits_with(&watch)).count();
        if left >= LEAVING_MAX {
            return Err(Error::Limit {
                what: "closed connections of one process that seem to be in the middle of a transfer",
                limit: LEAVING_MAX as u64,
                remedy: "let that process go on, or end it",
            });
        }
        list.next += 1;
        let number = list.next;
        let (_, own) = list.open.entry(number).or_insert((Board { rings, watch }, own));
        pins::heed(&own.heed.0); // H1
        Ok(number)
    }

    /// The connection is closed. Its pins stay as long as they are set and its process lives.
    pub(crate) fn remove(&self, number: u64) {
        let mut list = self.lock();
        if let Some((board, own)) = list.open.remove(&number) {
            pins::disregard(&own.heed.0); // H2, H3
            list.leaving.extend(board.may_transfer().then_some(board)); // H4
        }
    }

    /// Whether [`Boards::tidy`] is to be called, in a while: also where another context holds the lock, perhaps across its system calls.
    pub(crate) fn has_leaving(&self) -> bool {
        self.0.try_lock().map_or(true, |list| !list.leaving.is_empty())
    }

    /// As if the processes of all leaving peers had ended.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn end_processes(&self) {
        self.lock().leaving.clear();
    }

    /// Whether the pin words of any peer that may still be in the middle of a transfer name this region.
    ///
    /// A peer stops being one when its process has ended, or when its connection was closed without a
    /// pin in it: closing a connection does not stop a transfer.
    pub(crate) fn pinned(&self, index: u32, generation: u32) -> bool {
        let list = self.lock();
        let is_named = |board: &Board| pins::is_pinned(&board.rings.pins.0, index, generation);
        list.open.values().map(|(board, _)| board).chain(&list.leaving).any(is_named)
    }

    /// Forgets peers that are in no transfer any more: those that have ended, too, which is asked of the system.
    pub(crate) fn tidy(&self) {
        let mut list = self.lock();
        list.leaving.retain(Board::may_transfer);
        // Who has ended is in no transfer, though nobody has closed its connection yet.
        list.open.retain(|_, (board, _)| !board.pins_any() || board.may_transfer());
    }
}

impl Board {
    fn pins_any(&self) -> bool {
        // Acquire: as U3 in [`pins`].
        self.rings.pins.0.iter().any(|pin| pin.load(Ordering::Acquire) != 0)
    }

    /// One system call, if it has pins.
    fn may_transfer(&self) -> bool {
        self.pins_any() && self.watch.alive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use nix::unistd::getpid;

    use super::*;
    use crate::rendezvous::socket::Socket;

    /// A peer's segment, pinning region `index` of generation 1.
    pub(crate) fn pinning(index: u64) -> Arc<Rings> {
        let (rings, _fd) = Rings::create().unwrap();
        rings.pins.0[3].store((index + 1) | (1 << 32), Ordering::Relaxed);
        Arc::new(rings)
    }

    pub(crate) fn this_process() -> Arc<ProcessWatch> {
        let (one, _other) = Socket::pair().unwrap();
        let watch = ProcessWatch::of(&Arc::new(one)).unwrap();
        assert_eq!(watch.pid(), Some(getpid().as_raw()));
        Arc::new(watch)
    }

    fn own() -> Rings {
        Rings::create().unwrap().0
    }

    #[test]
    fn nobody_waits_for_whoever_tidies() {
        let boards = Boards::default();
        assert!(!boards.has_leaving());
        let _tidies = boards.lock();
        assert!(boards.has_leaving(), "it is asked again later");
    }

    #[test]
    fn a_peer_reads_whether_its_pins_are_looked_at_though_the_connection_has_gone() {
        let (boards, own) = (Boards::default(), own());
        let seen = own.share();
        assert!(!pins::is_heeded(&seen.heed.0));
        let at = boards.add(own, pinning(7), this_process()).unwrap();
        assert!(pins::is_heeded(&seen.heed.0));
        boards.remove(at);
        assert!(!pins::is_heeded(&seen.heed.0) && boards.pinned(7, 1));
    }

    #[test]
    fn a_closed_connection_keeps_its_pins_until_they_are_clear() {
        let (boards, rings) = (Boards::default(), pinning(7));
        let at = boards.add(own(), Arc::clone(&rings), this_process()).unwrap();
        assert!(boards.pinned(7, 1) && !boards.pinned(8, 1) && !boards.pinned(7, 3));
        boards.remove(at);
        assert!(boards.pinned(7, 1), "the peer is in the middle of a transfer");
        boards.tidy();
        assert!(boards.has_leaving() && boards.pinned(7, 1));
        rings.pins.0[3].store(0, Ordering::Relaxed);
        assert!(!boards.pinned(7, 1), "retired memory can be given back");
        boards.tidy();
        assert!(!boards.has_leaving());
        assert_eq!(Arc::strong_count(&rings), 1, "the segment is given back");
    }

    #[test]
    fn a_connection_without_pins_is_forgotten_at_once() {
        let (rings, _fd) = Rings::create().unwrap();
        let (boards, rings) = (Boards::default(), Arc::new(rings));
        let at = boards.add(own(), Arc::clone(&rings), this_process()).unwrap();
        boards.remove(at);
        assert_eq!((Arc::strong_count(&rings), boards.has_leaving()), (1, false));
        assert!(boards.lock().open.is_empty());
    }

    #[test]
    fn pins_end_with_the_process_that_set_them() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let boards = Boards::default();
        let socket = Arc::new(Socket::pair().unwrap().0);
        let watch = Arc::new(ProcessWatch::of_child(&child, &socket));
        let at = boards.add(own(), pinning(7), watch.clone()).unwrap();
        let open = boards.add(own(), pinning(8), watch).unwrap();
        boards.remove(at);
        boards.tidy();
        assert!(boards.pinned(7, 1) && boards.pinned(8, 1));
        child.kill().unwrap();
        child.wait().unwrap();
        boards.tidy();
        assert!(!boards.pinned(7, 1) && !boards.pinned(8, 1) && !boards.has_leaving());
        boards.remove(open);
    }

    #[test]
    fn a_process_that_leaves_too_many_transfers_behind_is_refused_and_none_is_forgotten() {
        let boards = Boards::default();
        for index in 0..LEAVING_MAX as u64 {
            let at = boards.add(own(), pinning(index), this_process()).unwrap();
            boards.remove(at);
        }
        let refused = boards.add(own(), pinning(99), this_process());
        assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
        assert!((0..LEAVING_MAX).all(|index| boards.pinned(u32::try_from(index).unwrap(), 1)));
    }
    #[test]
    fn processes_without_a_number_share_a_limit_with_those_of_their_user_alone_and_end_with_their_socket()
     {
        let nameless = |uid| Arc::new(ProcessWatch::without_number(uid));
        let (boards, liar) = (Boards::default(), nameless(7));
        let removed =
            |index, watch| boards.remove(boards.add(own(), pinning(index), watch).unwrap());
        (0..LEAVING_MAX as u64).for_each(|index| removed(index, Arc::clone(&liar)));
        let refused = boards.add(own(), pinning(99), nameless(7));
        assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
        boards.add(own(), pinning(99), nameless(8)).unwrap();
        boards.add(own(), pinning(99), this_process()).unwrap();
        boards.tidy();
        assert!(boards.has_leaving(), "it may be in the middle of a transfer");
        liar.hung_up();
        boards.tidy();
        assert!(!boards.has_leaving() && boards.pinned(99, 1));
        boards.add(own(), pinning(99), nameless(7)).unwrap();
    }
}
