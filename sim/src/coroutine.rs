//! Logical threads: stackful coroutines, of which one runs at a time.
//!
//! The only room of this crate with `unsafe` in it: a coroutine suspends itself from anywhere below its own first call, so it has to
//! find what it was started with.

use std::cell::{Cell, RefCell};

use corosensei::{Coroutine as Stackful, CoroutineResult, Yielder, stack::DefaultStack};

/// Bytes of a stack; only what is touched costs memory.
const STACK: usize = 256 * 1024;

/// Stacks that are kept for the next coroutines.
const SPARE_MAX: usize = 512;

thread_local! {
    /// Where the coroutine that runs suspends itself; null outside of any.
    static CURRENT: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
    static SPARE: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// One that can be resumed.
pub(crate) struct Coroutine(Stackful<(), (), ()>);

impl Coroutine {
    /// It begins at its first [`Coroutine::resume`]. The job does not panic.
    pub(crate) fn new(job: Box<dyn FnOnce()>) -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let stack = spare.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        Self(Stackful::with_stack(stack, move |yielder, ()| {
            CURRENT.set(std::ptr::from_ref(yielder));
            job();
        }))
    }

    /// Runs it until it suspends itself or ends; says whether it has ended.
    pub(crate) fn resume(&mut self) -> bool {
        let result = self.0.resume(());
        CURRENT.set(std::ptr::null());
        matches!(result, CoroutineResult::Return(()))
    }

    /// Keeps the stack of one that has ended.
    pub(crate) fn recycle(self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_MAX {
                spare.push(self.0.into_stack());
            }
        });
    }

    /// Keeps the stack of one that will never run again, and forgets what lies on it.
    pub(crate) fn forget(mut self) {
        // SAFETY:
        // - nothing on the stack is used again: no logical thread of its story runs any more, and what others of the story
        //   hold is forgotten with it (`world::end`); an engine and its tasks refer to it only while one of their threads runs.
        // - nothing on it is to be dropped: it is forgotten, as by `mem::forget`.
        unsafe { self.0.force_reset() };
        self.recycle();
    }
}

/// Suspends the coroutine that runs.
///
/// # Panics
/// Outside of any.
pub(crate) fn suspend() {
    let current = CURRENT.get();
    assert!(!current.is_null(), "only a logical thread waits");
    // SAFETY:
    // - valid: it was made from a reference in the first call of the coroutine that runs now, which lives until
    //   that call returns; whoever resumes a coroutine takes the pointer back, and it sets its own again below.
    // - shared: only shared references to it are ever made.
    let yielder = unsafe { &*current };
    yielder.suspend(());
    CURRENT.set(current);
}

/// Whether this is a logical thread.
pub(crate) fn is_inside() -> bool {
    !CURRENT.get().is_null()
}
