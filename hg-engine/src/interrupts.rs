//! Places where a simulation runs another of its threads: before a lock, and while it is held.
//!
//! Logical threads that share one of the machine's switch where they wait. That leaves out whatever happens between two holds of one
//! lock, and at a lock that is held. With the feature `interrupts`, which is not for users, such a simulation sets [`Hooks`]; without
//! them nothing changes.

use std::sync::OnceLock;

/// What is called at locks, by whoever takes one.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// A lock is about to be taken: others may run.
    pub before: fn(),
    /// A lock was taken: others may run, and find it held.
    pub after: fn(),
    /// A lock is held by another one: lets others run, and gives true; false where the caller is none of the simulation's threads.
    pub held: fn() -> bool,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Sets what is called in this process from now on. The first who comes has set it for all.
pub fn set(hooks: Hooks) {
    HOOKS.get_or_init(|| hooks);
}

pub(crate) fn before() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.before)();
    }
}

pub(crate) fn after() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.after)();
    }
}

/// Takes a lock as soon as it is free; `None`: the machine is to wait for it.
pub(crate) fn wait<G>(take: impl Fn() -> Option<G>) -> Option<G> {
    let hooks = HOOKS.get()?;
    loop {
        if let Some(guard) = take() {
            (hooks.after)();
            return Some(guard);
        }
        if !(hooks.held)() {
            return None;
        }
    }
}
