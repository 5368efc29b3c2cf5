//! Which handlers a thread is inside of, and whether it may wait there.
//!
//! A plain or `async` handler is run by the thread that makes progress for its port, and that stands still meanwhile: waiting for a
//! call of the same port would never end. Waiting for one of another port may: this thread makes the progress of that one then, or
//! another thread does. So a thread remembers a *level* for each handler that it is inside of, the innermost last, and one for each
//! wait in between.
//!
//! ```text
//! handler of A (async) > waits for B, whose progress this thread makes > handler of B (async)
//!    A, Async                     nobody, Plain                              B, Async
//! ```
//! In the handler of B, waiting for A is refused, and so is awaiting it where the future is pending: A's progress goes on after the wait
//! for B only, which is a wait for that handler.

use std::cell::{Cell, RefCell};

/// What of a user's a thread runs for a port, whose progress stands still meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// Nothing.
    Nothing,
    /// A plain handler, or the part of another one that runs before its future is made, or a wait inside of a handler.
    Plain,
    /// A poll of an `async` handler: it may poll futures of the engine's, but not wait for one.
    Async,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    kind: Inside,
    /// Number of the port.
    port: u64,
}

/// No port has this number.
const NOBODY: u64 = u64::MAX;
const OUTSIDE: Level = Level { kind: Inside::Nothing, port: NOBODY };

thread_local! {
    static INNERMOST: Cell<Level> = const { Cell::new(OUTSIDE) };
    /// The levels around that one, the outermost first.
    static AROUND: RefCell<Vec<Level>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread is inside of a handler of any port's.
#[inline]
pub(crate) fn is_in_handler() -> bool {
    INNERMOST.with(Cell::get).kind != Inside::Nothing
}

/// The port of the innermost handler that this thread is inside of; no port's number where there is none.
#[inline]
pub(crate) fn innermost() -> u64 {
    INNERMOST.with(Cell::get).port
}

/// Whether this port's progress stands still until this thread leaves a handler: waiting for it would never end.
#[inline]
pub(crate) fn is_inside(port: u64) -> bool {
    let level = INNERMOST.with(Cell::get);
    level.kind != Inside::Nothing && (level.port == port || is_around(port, true))
}

/// Whether a future of this port that is pending here never ends, since whoever polls it waits for it: in a plain
/// handler, or in one that this thread runs while it waits in a handler of that port.
#[inline]
pub(crate) fn is_waited_for(port: u64) -> bool {
    let level = INNERMOST.with(Cell::get);
    let waits = level.kind == Inside::Plain;
    level.kind != Inside::Nothing && (waits && level.port == port || is_around(port, waits))
}

/// Whether there is a level of this port's at which, or inside of which, this thread waits.
#[cold]
fn is_around(port: u64, mut waits: bool) -> bool {
    let look = |around: &RefCell<Vec<Level>>| {
        around.borrow().iter().rev().any(|level| {
            waits |= level.kind == Inside::Plain;
            waits && level.port == port
        })
    };
    // While the thread ends there is no handler.
    AROUND.try_with(look).unwrap_or(false)
}

/// What of this port's the innermost handler is.
#[inline]
pub(crate) fn innermost_of(port: u64) -> Inside {
    let level = INNERMOST.with(Cell::get);
    if level.port == port { level.kind } else { Inside::Nothing }
}

/// Runs a handler of a port so that it is known, until it has ended or panicked.
#[inline(always)]
pub(crate) fn in_handler<T>(port: u64, kind: Inside, run: impl FnOnce() -> T) -> T {
    /// A thread that is taken for a handler's can never wait again.
    struct Back(Level);

    impl Drop for Back {
        #[inline(always)]
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
            if self.0.kind != Inside::Nothing {
                leave();
            }
        }
    }

    let outer = INNERMOST.with(|innermost| innermost.replace(Level { kind, port }));
    if outer.kind != Inside::Nothing {
        enter(outer);
    }
    let _back = Back(outer);
    run()
}

/// Waits for something. In a handler of another port's, that is known meanwhile.
#[inline]
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if is_in_handler() { in_handler(NOBODY, Inside::Plain, wait) } else { wait() }
}

#[cold]
fn enter(outer: Level) {
    let _ending = AROUND.try_with(|around| around.borrow_mut().push(outer));
}

#[cold]
fn leave() {
    let _ending = AROUND.try_with(|around| around.borrow_mut().pop());
}

/// What a thread remembers, to be exchanged by a platform whose threads share one of the machine's.
#[derive(Debug)]
pub(crate) struct Levels {
    innermost: Level,
    around: Vec<Level>,
}

impl Default for Levels {
    fn default() -> Self {
        Self { innermost: OUTSIDE, around: Vec::new() }
    }
}

impl Levels {
    /// Exchanges these with the thread's.
    pub(crate) fn swap(&mut self) {
        self.innermost = INNERMOST.with(|innermost| innermost.replace(self.innermost));
        let _ending = AROUND.try_with(|it| {
            std::mem::swap(&mut *it.borrow_mut(), &mut self.around);
        });
    }
}
