//! What is to happen at a time.

use std::{cmp::Ordering, task::Waker};

use super::{ProcessId, ThreadId};

/// What a timer does.
pub(crate) enum Action {
    /// Ends a wait, if it is still the same one.
    Wake(ThreadId, u64),
    /// Calls something of the simulation's own.
    Waker(Waker),
    /// Wakes a task of a process's.
    Task(ProcessId, Waker),
    /// Something happens in the network: its number there.
    Network(usize),
}

pub(super) struct Timer {
    pub(super) at: u64,
    pub(super) serial: u64,
    pub(super) action: Action,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}
