//! Pieces of transfers that this side moves, in the round of whoever makes progress.
//!
//! Moving them may take long: the kernel waits for a peer's memory that is not there ([`hg_na::Mover`]), for ever perhaps. So
//! nobody has the role, nor the state's lock, while a piece is moved:
//!
//! | who | what |
//! |---|---|
//! | the background thread, or one that waits without a deadline for a transfer with the same peer, when it has the role | takes the next piece, gives the role back (H1), moves it, and some more, waits for the role anew |
//! | either of the two, in its last round, where there is a background thread | leaves the piece to that one, which it tells, or to the caller that it makes way for |
//! | any other thread that has the role: one that waits for something else, or with a deadline, in a poll, in [`crate::Engine::progress`], of a foreign loop, the stand-in; any thread, where there is no stand-in | leaves the piece to a thread of a pool for nothing else; where none was to be had at all for [`PATIENCE`], moves it |
//! | a follower, a thread that comes | takes the role meanwhile, as ever |
//! | the *stand-in*, a thread that lives while pieces are moved | takes the role where a piece takes longer than 5 ms and nobody has it, until one has ended |
//!
//! Of one peer one piece is moved at a time ([`hg_core::operations`]): a peer whose memory is not there holds one thread up. The pool is
//! not that of the handlers, which wait for pieces. Where threads are not to be had for long, the engine stands still until a piece
//! that waits has ended; whoever closes it waits for none.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hg_core::operations::{Came, Move};
use hg_na::{Begun, Peer};

use super::{Look, Port, Role, State};
use crate::{deferred, lock::MutexGuard, pool::Origin};

/// A piece that began before one tick and has not ended by the next one is stood in for: after 5 ms at most.
const TICK: Duration = Duration::from_micros(2500);

/// How long pieces wait for a thread where there is none at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// One thread moves pieces, one after the other, until there were so many bytes, or pieces, before it wants the role again: messages
/// may wait for that. A round for each piece of 64 KiB would cost a fifth of its time.
const TURN: u64 = 256 << 10;
const PIECES_MAX: u64 = 4;

/// A stand-in ends when for so many ticks no piece was moved.
const IDLE_TICKS: u32 = 40;

/// Whose pieces a thread may move, which may hold it up for as long as their memory is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Nobodys,
    /// It waits for a transfer with that peer, whose pieces are moved one at a time.
    Of(Peer),
    Everybodys,
}

impl Whose {
    fn has(self, peer: Peer) -> bool {
        match self {
            Self::Nobodys => false,
            Self::Of(its) => its == peer,
            Self::Everybodys => true,
        }
    }
}

/// The pieces that are being moved by threads that had the role.
#[derive(Debug, Default)]
pub(crate) struct Movers {
    running: AtomicUsize,
    /// How many have ended.
    ended: AtomicUsize,
    has_stand_in: AtomicBool,
}

impl Movers {
    /// Whether one is moved by a thread that had the role, for which another one may have to stand in.
    fn any_with_role(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0
    }
}

impl Port {
    /// Sees to the next piece, if there is one, and where this thread may wait for its peer and moves it, to some more: it has lost the role
    /// then.
    #[cold]
    pub(crate) fn move_pieces<L: Look + ?Sized>(
        self: &Arc<Self>,
        role: &mut Role<'_>,
        look: &L,
        is_last: bool,
    ) {
        let mut bytes = 0;
        while bytes < TURN {
            let Some(mut state) = self.enter_state() else { return };
            let waits = !is_last && !state.followers.has_loop();
            let whose = if waits { look.whose_moves(&mut state) } else { Whose::Nobodys };
            if role.is_lost() && whose == Whose::Nobodys {
                return; // What it waited for has ended. Whoever has the role sees to the others.
            }
            let Some(moving) = state.protocol.next_move() else { return };
            drop(state);
            bytes += moving.bytes().max(TURN / PIECES_MAX);
            let may_wait = whose.has(moving.peer);
            let taken = Taken { port: Arc::clone(self), moving: Some(moving) };
            let Some(running) = may_wait.then(|| self.begin_moving()).flatten() else {
                return self.shared.movers.add(Origin::Engine, Box::new(move || taken.run_apart()));
            };
            taken.run(Some((role, running)));
        }
    }

    /// The role, to close the engine; `None`: whoever has it is held up by a piece, or this is a forked child.
    pub(crate) fn role_to_close(self: &Arc<Self>) -> Option<(Role<'_>, MutexGuard<'_, State>)> {
        // The engine closes already, so no piece begins that is not counted yet.
        let limit = self.shared.movers.has_helpers().then(|| self.now() + TICK);
        self.wait_for_role(limit)
    }

    /// Waits a moment for the pieces by which threads that make progress are held up; says whether all have ended. Those in threads of
    /// the pool hold up nobody.
    pub(crate) fn has_moved(&self) -> bool {
        let platform = self.shared.platform.as_ref();
        let any = || self.movers.any_with_role() || self.shared.movers.has_helpers();
        let until = platform.now() + TICK;
        while any() && platform.now() < until {
            platform.park_timeout(TICK / 10);
        }
        !any()
    }

    /// A thread that has the role is about to move a piece. `None`: nobody would stand in for it, or the engine closes.
    fn begin_moving(self: &Arc<Self>) -> Option<Running<'_>> {
        self.movers.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(&self.movers);
        // SeqCst, with `interrupt`: whoever closes the engine waits for this thread, unless he finds the piece counted.
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        let Some(flag) = Flag::raise(self) else { return Some(running) };
        let job = Box::new(move || Arc::clone(&flag.0).stand_in(flag));
        let spawned = self.shared.platform.spawn("hg-stand-in".to_owned(), job);
        spawned.is_ok().then_some(running)
    }

    /// Makes progress where a piece takes long and nobody else does.
    fn stand_in(self: Arc<Self>, mut flag: Flag) {
        loop {
            self.watch_pieces();
            drop(flag);
            // Whoever began a piece while the flag was up has left it to this thread.
            let is_wanted = self.movers.any_with_role() && !self.closing.load(Ordering::Relaxed);
            match is_wanted.then(|| Flag::raise(&self)).flatten() {
                Some(again) => flag = again,
                None => return,
            }
        }
    }

    fn watch_pieces(self: &Arc<Self>) {
        let Movers { running, ended, .. } = &self.movers;
        let (mut idle, mut before) = (0, ended.load(Ordering::Relaxed));
        // Relaxed, here and below: what is missed is seen a tick later.
        while idle < IDLE_TICKS && !self.closing.load(Ordering::Relaxed) {
            self.shared.platform.park_timeout(TICK);
            let now = ended.load(Ordering::Relaxed);
            let any = running.load(Ordering::Relaxed) > 0;
            idle = if any || now != before { 0 } else { idle + 1 };
            let is_stuck = any && now == before;
            before = now;
            if is_stuck && let Some((mut role, state)) = self.try_role() {
                let has_ended = || ended.load(Ordering::Relaxed) != now;
                let mut look = |_: &mut _| has_ended().then_some(());
                self.drive(&mut role, state, &mut look);
            }
        }
    }
}

/// A piece that is to be moved. Dropped instead, it is given back.
struct Taken {
    port: Arc<Port>,
    /// `None` when it has ended.
    moving: Option<Move>,
}

impl Taken {
    /// Moves it in a thread of the pool, or, where there is none, in one that has the role and keeps it.
    fn run_apart(self) {
        // SeqCst: as in `begin_moving`; in a thread that has the role the pool has counted it (`Pool::has_helpers`).
        if !self.port.closing.load(Ordering::SeqCst) {
            self.run(None);
        }
    }

    /// Moves it; where this thread has the role, without that.
    fn run(mut self, role: Option<(&mut Role<'_>, Running<'_>)>) {
        let port = Arc::clone(&self.port);
        let (Some(mut state), Some(moving)) = (port.enter_state(), &self.moving) else { return };
        let (came, state) = match state.protocol.begin_move(moving) {
            Begun::Ready(mover) => {
                drop(state);
                let running = role.map(|(role, running)| {
                    if !role.is_lost() {
                        role.release();
                    }
                    running
                });
                let came = if mover.run().is_ok() { Came::Over } else { Came::Not };
                drop(running);
                (came, port.enter_state())
            }
            // In one go with the question: room may be told as soon as the lock is free.
            Begun::Over => (Came::Over, Some(state)),
            Begun::Later => (Came::Later, Some(state)),
            Begun::No => (Came::Not, Some(state)),
        };
        self.end(state, came);
    }

    fn end(&mut self, state: Option<MutexGuard<'_, State>>, came: Came) {
        let (Some(mut state), Some(moving)) = (state, self.moving.take()) else { return };
        state.protocol.handle_moved(moving, came);
        // Once the engine is closed nobody makes another round: who waits for the transfer is told here.
        let is_closed = !state.is_open();
        let deferred = is_closed.then(|| std::mem::take(&mut state.protocol.deferred));
        drop(state);
        deferred::run(&mut deferred.unwrap_or_default(), self.port.id, &self.port.shared.pool);
        self.port.notify();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.moving.is_some() {
            let port = Arc::clone(&self.port);
            self.end(port.enter_state(), Came::Not);
        }
    }
}

/// Counts a piece while it is moved.
struct Running<'m>(&'m Movers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// There is a stand-in, or will be; its job may be dropped instead of run.
struct Flag(Arc<Port>);

impl Flag {
    /// `None`: there is one already.
    fn raise(port: &Arc<Port>) -> Option<Self> {
        // SeqCst, with `running`: who finds it raised has counted its piece before, and who lowers it counts pieces afterwards. One
        // of them sees the other, so a piece that runs on has a stand-in.
        let was_raised = port.movers.has_stand_in.swap(true, Ordering::SeqCst);
        (!was_raised).then(|| Self(Arc::clone(port)))
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.movers.has_stand_in.store(false, Ordering::SeqCst);
    }
}
